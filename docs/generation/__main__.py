"""`python -m docs.generation [PAGE ...] [--check]`: renews the pages, or says which are out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from docs.generation.api_page import api_page
from docs.generation.cli_page import cli_page
from docs.generation.guidelines_page import guidelines_page
from docs.generation.samples import ROOT, renewed
from docs.generation.transcripts import example_names, transcript

WHOLE: dict[str, Callable[[], str]] = {
    "docs/cli.md": cli_page,
    "docs/api.md": api_page,
    "docs/guidelines.md": guidelines_page,
}
WITH_SAMPLES = (
    "README.md",
    "docs/quickstart.md",
    "docs/will-it-fit.md",
    "docs/how-many-gpus.md",
    "docs/is-async-worth-it.md",
)


def makers() -> dict[str, Callable[[], str]]:
    """Path of each page from the root -> what makes its text."""
    found = dict(WHOLE)
    for name in WITH_SAMPLES:
        path = ROOT / name
        if path.exists():
            found[name] = partial(_renewed, path)
    found.update((f"examples/{name}/output.txt", partial(transcript, name)) for name in example_names())
    return found


def _renewed(path: Path) -> str:
    return renewed(path.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="such as docs/cli.md [all]")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a page is out of date")
    options = parser.parse_args()
    known = makers()
    for name in options.pages or known:
        if name not in known:
            parser.error(f"{name} is not generated; known: {', '.join(known)}")
    stale = []
    for name in options.pages or known:
        path, text = ROOT / name, known[name]()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not options.check:
            path.write_text(text, encoding="utf-8")
        print(f"{'out of date' if options.check else 'renewed'}: {name}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
