"""Domain values in words, the same words everywhere (see docs/glossary)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TypeVar

from planner.domain.plan import NamedValue, Plan
from planner.domain.stages import StageName
from planner.domain.strategy import EngineIdle, ExpertExchange, Offload, Recompute, Sharding, Strategy, TrainerStrategy
from planner.errors import printable
from planner.files.workload import KEY_INPUTS
from planner.units import format_bytes, format_percent, format_seconds

MISFIT = "does not fit"
"""What the pipeline calls a capacity that a fixed configuration exceeds."""
NO_SOLVER = "none"
"""How the solver's name starts when nothing was searched."""
percent = format_percent

T = TypeVar("T")


def one_line(value: T) -> T:
    """The value with every text in it made printable, line feeds included; itself where all texts are."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return value if value.isprintable() else printable(value).replace("\n", "\\n")  # type: ignore[return-value]
    if isinstance(value, tuple):
        items = tuple(one_line(item) for item in value)
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else items  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        shown_fields = {f.name: one_line(getattr(value, f.name)) for f in fields(value) if f.init}
        changed = {name: new for name, new in shown_fields.items() if new is not getattr(value, name)}
        return replace(value, **changed) if changed else value
    return value


def counted(number: int, noun: str) -> str:
    """`'1 node'`, `'2 nodes'`, `'1,024 GPUs'`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def strategy_words(strategy: Strategy | None, *, trains: bool = True) -> str:
    """`'tp 4 pp 2 dp 4, zero1, full recompute'` or `'8 engines of tp 4, ...'`; empty for None.

    A worker that only runs forward passes (`trains` False) has no recomputation.
    """
    if strategy is None:
        return ""
    if isinstance(strategy, TrainerStrategy):
        return ", ".join(_trainer_words(strategy, trains))
    engines = f"{counted(strategy.num_engines, 'engine')} of "
    idle = "sleeping when idle" if strategy.idle is EngineIdle.SLEEP else "always resident"
    return ", ".join(
        (
            engines
            + degrees(
                ("tp", strategy.tp),
                ("pp", strategy.pp),
                ("attention dp", strategy.attention_dp),
                ("ep", strategy.ep),
                always=("tp",),
            ),
            *(("all-to-all",) if strategy.exchange is ExpertExchange.ALL_TO_ALL else ()),
            f"up to {counted(strategy.max_num_seqs, 'sequence')} "
            + ("each" if strategy.attention_dp == 1 else "per attention group"),
            f"{percent(strategy.engine_fraction)} of GPU memory",
            idle,
        )
    )


def _recompute_words(strategy: TrainerStrategy) -> str:
    if strategy.recompute is Recompute.NONE:
        return "no recompute"
    if strategy.recompute is Recompute.PARTIAL:
        return f"recompute of {counted(strategy.recompute_layers, 'layer')} per stage"
    return f"{strategy.recompute.value} recompute"


def _trainer_words(strategy: TrainerStrategy, trains: bool) -> list[str]:
    shape = degrees(
        ("tp", strategy.tp), ("pp", strategy.pp), ("vpp", strategy.vpp), ("cp", strategy.cp), ("dp", strategy.dp),
        ("ep", strategy.ep), ("etp", strategy.etp if strategy.ep > 1 else 1), always=("dp",),
    )  # fmt: skip
    sharding = strategy.sharding.value
    replicas = strategy.dp * strategy.cp // strategy.shard_ranks
    if strategy.sharding is not Sharding.DDP and replicas > 1:
        sharding += f" over {strategy.shard_ranks} ranks"
    words = [shape, sharding]
    if strategy.cp > 1:
        words.append(strategy.context_parallel.value)
    if trains:
        words.append(_recompute_words(strategy))
        words.append(f"{strategy.micro_batch_tokens:,} tokens per micro-batch")
    else:
        words.append(f"{strategy.inference_tokens:,} tokens per pass")
    if strategy.offload is not Offload.NONE:
        words.append(strategy.offload.value)
    return words


def degrees(*values: tuple[str, int], always: tuple[str, ...] = ()) -> str:
    """Degrees above 1, and those named in `always`: `'tp 4 dp 2'`."""
    return " ".join(f"{name} {value}" for name, value in values if value > 1 or name in always)


def largest(terms: Iterable[NamedValue], *, count: int, least_ratio: float) -> list[tuple[str, float]]:
    """(name in words, share of the sum) of the largest terms, at most `count` and none below `least_ratio`."""
    listed = list(terms)
    total = sum(term.value for term in listed)
    if total <= 0:
        return []
    ranked = sorted(listed, key=lambda term: (-term.value, term.name))[:count]
    return [(term_words(t.name), t.value / total) for t in ranked if t.value / total >= least_ratio]


def term_words(name: str) -> str:
    """`'weight_read'` -> `'weight read'`; `'idle: reference'` -> `'idle reference'`."""
    words = name.replace("_", " ").replace(": ", " ")
    return re.sub(r"\b(\w+) \1\b", r"\1", words)


def quantity(value: float, unit: str) -> str:
    """A value of an objective with its unit."""
    if unit == "s":
        return format_seconds(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "GPUs" and value == round(value):
        return counted(round(value), "GPU")
    return f"{value:,.2f} {unit}" if value != round(value) else f"{value:,.0f} {unit}"


def arrangement(plan: Plan) -> str:
    """`colocated`, `disaggregated` or `hybrid`, from how the device groups of rollout and training overlap."""
    groups = {(group.pool, group.id): frozenset(group.ranks) for group in plan.device_groups}
    of = {group.id: group.pool for group in plan.device_groups}
    used = {
        placement.stage: (of[placement.device_group], groups[of[placement.device_group], placement.device_group])
        for placement in plan.placements
        if placement.device_group in of
    }
    rollout, update = used.get(StageName.ROLLOUT), used.get(StageName.ACTOR_UPDATE)
    if rollout is None or update is None:
        return ""
    parts = [(pool, ranks) for (pool, _), ranks in groups.items()]
    apart = all(a[0] != b[0] or not a[1] & b[1] for i, a in enumerate(parts) for b in parts[:i])
    if rollout == update:
        return "colocated" if len(groups) == 1 else "hybrid"
    return "disaggregated" if apart else "hybrid"


def rests_on_defaults(plan: Plan) -> bool:
    """True when the user gave nothing but the model and perhaps the hardware."""
    return {assumption.what for assumption in plan.assumptions} >= KEY_INPUTS


def is_fixed(plan: Plan) -> bool:
    """True for a configuration that was only priced."""
    return plan.search.solver.startswith(NO_SOLVER)


def misfits(plan: Plan) -> tuple[str, ...]:
    """Every capacity that a fixed configuration exceeds, in words."""
    return tuple(item.value for item in plan.assumptions if item.what == MISFIT)
