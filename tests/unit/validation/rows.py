"""Priced rows for tests."""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.plan import NamedValue
from planner.validation.records import Keys, Priced, Table, Verdict


def priced(
    measured: float,
    predicted: float,
    *,
    row: str = "r",
    table: Table = Table.TRAIN,
    unit: str = "s",
    quality: str = "A",
    model: str = "m",
    family: str = "f",
    gpu: str = "g",
    precision: str = "bf16",
    framework: str = "fw",
    release: str = "1",
    configuration: str = "c",
    workload: str = "w",
    subset: str = "",
    verdict: Verdict | None = None,
    terms: Mapping[str, float] | None = None,
) -> Priced:
    keys = Keys(
        model=model, family=family, gpu=gpu, precision=precision, framework=framework, release=release,
        configuration=configuration, workload=workload, subset=subset,
    )  # fmt: skip
    named = terms if terms is not None else {"gemm": predicted}
    return Priced(
        table=table, row=row, source="s", quality=quality, keys=keys, unit=unit, measured=measured,
        predicted=predicted, terms=tuple(NamedValue(name=name, value=value) for name, value in named.items()),
        verdict=verdict,
    )  # fmt: skip
