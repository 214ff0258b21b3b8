"""What Megatron's full recomputation takes: all layers, or with the method `block` the first of each stage."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_values import Values
from planner.domain.strategy import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """A level of recomputation; `layers` per (virtual) pipeline stage with `Recompute.PARTIAL`, else 0."""

    level: Recompute
    layers: int = 0


def full_recomputation(
    values: Values, *, method: str, layers: str, model: str | None, pp: int, vpp: int
) -> Recomputation:
    """Of a trainer whose granularity is full; `method` and `layers` are the keys that say which layers.

    `block` takes so many layers at the start of each stage (megatron/core/recompute.py). Where that is all of them,
    as for the largest stage of the model, it is full recomputation.
    """
    if values.text(method) != "block":
        return Recomputation(level=Recompute.FULL)
    number = values.optional_whole(layers)
    if number is None:
        values.find(layers, Severity.ERROR, "is missing, and block needs it", "a number of layers per pipeline stage")
        return Recomputation(level=Recompute.FULL)
    if number == 0:
        return Recomputation(level=Recompute.NONE)
    stage = _stage_layers(model, pp * vpp)
    if stage is not None and number >= stage:
        return Recomputation(level=Recompute.FULL)
    return Recomputation(level=Recompute.PARTIAL, layers=number)


def _stage_layers(model: str | None, stages: int) -> int | None:
    """Layers of the largest stage; None where the model is not known yet."""
    if model is None:
        return None
    from planner.files.catalog import load_model

    return -(-load_model(model).num_layers // stages)
