"""The way of the weight sync that a found placement is fastest with, and what that saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.assembly import Assembled, PlacedStrategy, assemble
from planner.domain.execution import ShardedSync
from planner.domain.plan import Assumption, Limits
from planner.search.pricing import PricingInputs
from planner.units import format_seconds

FULL_GATHER = "full gather"


def best_sync(
    placed: Sequence[PlacedStrategy], inputs: PricingInputs, assembled: Assembled, limits: Limits
) -> tuple[Assembled, tuple[Assumption, ...]]:
    """The same placement under the fastest permitted way of its weight sync, and what that saves over full gather.

    The search compares whole plans: among near-equal ones it may have taken one whose other way is faster. A framework
    that has a way asks for more than a placement shows, so that with one only the way of the search and full gather are
    compared. Nothing is said where only full gather is permitted.
    """
    if not limits.sharded_syncs or assembled.execution.is_split:
        return assembled, ()
    full = _under((), placed, inputs, assembled)
    ways = [assembled.execution.sharded_syncs]
    if inputs.rules is None:
        # Assembling leaves of these the one for where the engine sits.
        ways.append(tuple(way for way in ShardedSync if way in limits.sharded_syncs))
    found = min((_under(way, placed, inputs, assembled) for way in ways if way), key=_time_s, default=full)
    if found.time_s >= full.time_s or not found.execution.sharded_syncs:
        return full, (_told(FULL_GATHER, "no permitted way is faster with this placement"),)
    saved_s = full.time_s - found.time_s
    words = f"saves {format_seconds(saved_s)} ({saved_s / full.time_s:.2%}) over full gather"
    (way,) = found.execution.sharded_syncs
    return found, (_told(way.value, f"{words} with this placement; --sync full plans without"),)


def _under(
    way: tuple[ShardedSync, ...], placed: Sequence[PlacedStrategy], inputs: PricingInputs, assembled: Assembled
) -> Assembled:
    execution = replace(assembled.execution, sharded_syncs=way)
    return assemble(placed, replace(inputs, execution=execution), None)


def _time_s(assembled: Assembled) -> float:
    return assembled.time_s


def _told(value: str, effect: str) -> Assumption:
    return Assumption(what="weight sync", value=value, source="--sync", effect=effect)
