"""Pages that follow from code are up to date, links lead somewhere, and examples print what they printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generation import samples
from docs.generation.api_page import api_page
from docs.generation.cli_page import cli_page
from docs.generation.transcripts import commands, example_names, transcript
from planner import api
from planner.cli_commands import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "examples" / "README.md", *sorted(DOCS.glob("**/*.md")))
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
HINT = "run `make docs`"
CHEAP = ("consumer-gpus", "lora-one-node")


@pytest.mark.parametrize(("name", "make"), [("cli.md", cli_page), ("api.md", api_page)])
def test_reference_pages_are_up_to_date(name: str, make: object) -> None:
    assert callable(make)
    assert (DOCS / name).read_text(encoding="utf-8") == make(), HINT


def test_reference_pages_have_everything() -> None:
    text = cli_page()
    assert all(f"\n## rlplan {name}\n" in text for name in COMMANDS)
    assert "| `-o`, `--output FILE` | save the plan as JSON |" in text
    reference = api_page()
    assert all(f"### {name}\n" in reference or f"- `{name}`" in reference for name in api.__all__)
    assert "'str" not in reference, "annotations are shown without quotes"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    missing = [link for link in _LINK.findall(text) if not (page.parent / link).exists()]
    assert not missing


def test_the_index_has_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / link).resolve() for link in _LINK.findall(index)}
    unlisted = {page.resolve() for page in DOCS.glob("**/*.md")} - linked - {(DOCS / "README.md").resolve()}
    assert not unlisted


@pytest.mark.parametrize("name", example_names())
def test_examples_are_complete(name: str) -> None:
    folder = ROOT / "examples" / name
    ran = [line[2:] for line in (folder / "output.txt").read_text(encoding="utf-8").splitlines() if line[:2] == "$ "]
    assert ran == [command for command, _ in commands((folder / "run.sh").read_text(encoding="utf-8"))], HINT
    assert (folder / "README.md").exists()
    assert f"[{name}]({name}/)" in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CHEAP)
def test_examples_print_what_they_printed(name: str) -> None:
    assert (ROOT / "examples" / name / "output.txt").read_text(encoding="utf-8") == transcript(name), HINT


# ---------------------------------------------------------------------------------------------- the generator

REPORT = """head
more

First section
  a

  b

Second section
  c
"""


def test_sections_are_chosen_by_title() -> None:
    assert [title for title, _ in samples.sections(REPORT)] == ["top", "First section", "Second section"]
    assert samples.shown(REPORT, None) == REPORT.strip()
    assert samples.shown(REPORT, "top, Second") == "head\nmore\n\n...\n\nSecond section\n  c"
    with pytest.raises(RuntimeError, match="no section Third"):
        samples.shown(REPORT, "top, Third")


def test_blocks_are_renewed_and_nothing_else() -> None:
    page = "a\n<!-- run: rlplan --version -->\n```\n```\nb\n```\nkept\n```\n"
    once = samples.renewed(page)
    assert once.startswith("a\n<!-- run: rlplan --version -->\n```\n$ rlplan --version\nrlplan ")
    assert once.endswith("\n```\nb\n```\nkept\n```\n")
    assert samples.renewed(once) == once


def test_python_blocks_are_run() -> None:
    page = "```python\nprint(6 * 7)\n```\n\n<!-- run: python -->\n```\nold\n```\n"
    assert samples.renewed(page).endswith("-->\n```\n42\n```\n")
    with pytest.raises(RuntimeError, match="failed"):
        samples.renewed(page.replace("6 * 7", "1 / 0"))


def test_only_rlplan_is_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="only rlplan"):
        samples.run("rm -rf x", tmp_path)


def test_scripts_say_which_exit_code_they_expect() -> None:
    script = "#!/bin/sh\nset -eu\nrlplan plan a\n# rlplan no\nrlplan plan b || [ $? -eq 3 ]\n"
    assert commands(script) == [("rlplan plan a", 0), ("rlplan plan b", 3)]
