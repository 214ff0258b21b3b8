"""Functions on the outside world: configurations of frameworks, and measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from planner.api.given import workload
from planner.api.results import CheckResult, ValidationResult
from planner.errors import InvalidInputError
from planner.files.spec import WorkloadSpec, override

if TYPE_CHECKING:
    from planner.adapters.imported import Imported
    from planner.check import CheckView


def check_config(
    file: str | PathLike[str], *, framework: str = "auto", given: Sequence[str] = (),
    root: str | PathLike[str] | None = None, model: str | None = None, gpus: str | None = None,
    prompt_mean: float | None = None, response_mean: float | None = None, response_cv: float | None = None,
    oversampling_ratio: float | None = None, reward_latency: str | None = None, memory_margin: str | None = None,
    prices: Sequence[str] = (), time_limit: str | None = None, profile: str | PathLike[str] | None = None,
) -> CheckResult:  # fmt: skip
    """Checks a launch script or configuration of a framework, which is never executed: `rlplan check`.

    `given` are NAME=VALUE texts: variables of the script, or keys. Files below `root` may be read [the file's folder].
    `model` names the model where its path in the configuration does not; a bare type for `gpus` takes the number of
    GPUs from the configuration. Raises InvalidInputError for a file that is no configuration, and for values that have
    to be given before it can be priced.
    """
    from planner.adapters.import_source import open_source, parse_given, with_accelerator
    from planner.adapters.importers import import_source

    texts = (given,) if isinstance(given, str) else tuple(given)
    known = with_accelerator(parse_given(texts, model=model), gpus)
    source = open_source(Path(file), given=known, root=None if root is None else Path(root))
    imported = import_source(source, framework.lower())
    spec = workload(
        gpus=gpus, prompt_mean=prompt_mean, response_mean=response_mean, response_cv=response_cv,
        oversampling_ratio=oversampling_ratio, reward_latency=reward_latency, memory_margin=memory_margin,
        prices=prices, time_limit=time_limit, profile=profile,
    )  # fmt: skip
    missing = lacking(imported, spec)
    if missing is not None:
        raise missing
    return CheckResult(view=checked(imported, spec))


def lacking(imported: Imported, spec: WorkloadSpec) -> InvalidInputError | None:
    """What has to be given before anything can be priced, as an error; None where nothing has."""
    if not imported.unresolved and spec.gpus is not None:
        return None
    asked = [f"--set {name}=..." for name in imported.unresolved if not name.startswith("--")]
    asked += [name for name in imported.unresolved if name.startswith("--")]
    if spec.gpus is None:
        asked.append("--gpus TYPE (the configuration says how many GPUs, not which)")
    return InvalidInputError(f"to be priced, the configuration needs {', '.join(asked)}", where=imported.file)


def checked(imported: Imported, spec: WorkloadSpec) -> CheckView:
    """The check of an imported configuration with what `spec` gives; raises InvalidInputError for wrong values."""
    from planner.check import check, gpus_text, unpriced
    from planner.files.workload import build_request

    given = override(imported.spec, replace(spec, gpus=gpus_text(imported, spec.gpus or "")))
    try:
        request = build_request(given)
    except InvalidInputError as error:
        if imported.has_errors:
            # What is wrong with the configuration is the answer; that it cannot be priced follows from it.
            return unpriced(imported, str(error))
        raise
    return check(imported, request)


def validate(
    *, tables: Sequence[str] = (), gpu: str = "", model: str = "", data: str | PathLike[str] | None = None
) -> ValidationResult:
    """Prices measurements, each with its own configuration, and compares: `rlplan validate`.

    `tables` are train, rl, memory, generation or fits [all]; `gpu` and `model` keep rows that contain the text; `data`
    is a directory with tables of one's own. Raises InvalidInputError for unknown tables and for no rows.
    """
    from planner.validation.run import Request, tables_named
    from planner.validation.run import validate as price_tables
    from planner.validation.targets import held_out_errors

    names = (tables,) if isinstance(tables, str) else tuple(tables)
    directory = None if data is None else Path(data)
    request = Request(tables=tables_named(names), gpu=gpu, model=model, directory=directory)
    # Errors on held-out families are those of all shipped rows.
    held_out = held_out_errors() if not (data or gpu or model) else ()
    return ValidationResult(evaluations=price_tables(request), held_out=held_out)
