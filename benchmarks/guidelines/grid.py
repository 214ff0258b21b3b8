"""The grid as data, and one row of results."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import yaml

HERE = Path(__file__).parent
GRID = HERE / "grid.yaml"
RESULTS = HERE / "results.jsonl"
_FLAGS = {"fusion": "--fusion", "share": "--share", "apart": "--apart", "staleness": "--staleness",
          "allow": "--allow", "fix": "--fix", "sync": "--sync"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload on a cluster."""

    model: str
    gpu: str
    num_gpus: int
    response_mean: int
    response_max: int
    algorithm: str
    reward: str | None
    prompts: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What a plan may do, beyond the case; values as `planner.plan` takes them."""

    name: str
    fusion: str | None = None
    share: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    staleness: int | None = None
    allow: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    sync: str | None = None
    models: tuple[str, ...] = ()
    """Models that it is about; empty for all."""

    def is_about(self, case: Case) -> bool:
        return not self.models or case.model in self.models


def read_grid(path: Path = GRID) -> tuple[tuple[Case, ...], tuple[Variant, ...]]:
    """All cases and variants; raises KeyError or TypeError for a grid that is none."""
    data = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    cases = tuple(
        Case(
            model=model, gpu=data["gpu"], num_gpus=size, response_mean=response["mean"], response_max=response["max"],
            algorithm=algorithm["name"], reward=algorithm.get("reward"), prompts=data["prompts"], group=data["group"],
        )
        for algorithm, model, size, response in product(
            data["algorithms"], data["models"], data["sizes"], data["responses"]
        )
        if size in algorithm.get("sizes", data["sizes"])
    )  # fmt: skip
    return cases, tuple(_variant(name, given) for name, given in data["variants"].items())


def _variant(name: str, given: Mapping[str, str | int | Sequence[str]]) -> Variant:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return Variant(name=name, **values)  # type: ignore[arg-type]


def command(case: Case, variant: Variant) -> str:
    """The command line that makes the same plan."""
    words = ["rlplan", "plan", case.model, "--gpus", f"{case.num_gpus}x{case.gpu}"]
    if case.algorithm != "grpo":
        words += ["--algorithm", case.algorithm]
    if case.reward is not None:
        words += ["--reward", case.reward]
    words += ["--prompts", str(case.prompts), "--group", str(case.group)]
    words += ["--response", str(case.response_max), "--response-mean", str(case.response_mean)]
    words += [word for pair in _options(variant) for word in pair]
    return shlex.join(words)


def _options(variant: Variant) -> Iterator[tuple[str, str]]:
    for field, flag in _FLAGS.items():
        value = getattr(variant, field)
        for item in value if isinstance(value, tuple) else () if value is None else (value,):
            yield flag, str(item)
