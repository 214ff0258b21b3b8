"""Which executions a request leaves open: with or without staleness and fusions, under which scheduling policy."""

from __future__ import annotations

from planner.domain.execution import Execution, ExecutionMode, Fusion, SchedulingPolicy, ShardedSync
from planner.domain.framework import FrameworkRules
from planner.domain.plan import Limits


def policy_of(limits: Limits, rules: FrameworkRules | None) -> SchedulingPolicy:
    """The policy that was asked for, or that of the framework, or the planned order."""
    if limits.policy is not None:
        return limits.policy
    return SchedulingPolicy.PLANNED if rules is None else rules.policy


def synchronous_executions(limits: Limits, rules: FrameworkRules | None) -> tuple[Execution, ...]:
    """Executions without staleness: plain, or with the fusions that the user and the framework allow."""
    fusions = tuple(f for f in Fusion if f in limits.fusions and (rules is None or f in rules.fusions))
    policy = policy_of(limits, rules)
    without_joint = tuple(f for f in fusions if f is not Fusion.INTRA_STAGE)
    kinds = [without_joint, *([fusions] if Fusion.INTRA_STAGE in fusions else [])]
    ways = sync_ways(limits, rules)
    return tuple(Execution(fusions=kind, policy=policy, sharded_syncs=way) for way in ways for kind in kinds)


def sync_ways(limits: Limits, rules: FrameworkRules | None) -> tuple[tuple[ShardedSync, ...], ...]:
    """Ways of the weight sync that together hold the best one.

    Shard-to-shard is never slower than full gather, so that without a framework, which may ask something of the
    strategies, it takes the place of that. Micro-groups can be: a rank that holds almost everything gathers nothing
    more, but is charged its engine shard, as the sides of a sync are priced alone (docs/cost/weight-sync.md).
    """
    if rules is not None:
        known = {rule.way for rule in rules.sharded_syncs}
        return ((), *((way,) for way in ShardedSync if way in limits.sharded_syncs and way in known))
    apart = tuple(way for way in limits.sharded_syncs if way is ShardedSync.SHARD_TO_SHARD)
    shared = tuple(way for way in ShardedSync if way in limits.sharded_syncs)
    return tuple(dict.fromkeys((apart, shared)))


def asynchronous_executions(staleness: int, limits: Limits, rules: FrameworkRules | None) -> tuple[Execution, ...]:
    """Executions with a staleness, as far as the framework can run them."""
    modes = [ExecutionMode.BATCHES, ExecutionMode.STREAMING]
    if rules is not None:
        modes = [mode for mode in modes if staleness <= rules.max_staleness_of(mode)]
    policy = policy_of(limits, rules)
    # Trainer and engines are apart in all of them.
    ways = tuple(way for way in sync_ways(limits, rules) if ShardedSync.MICRO_GROUPS not in way)
    return tuple(
        Execution(mode=mode, staleness=staleness, policy=policy, sharded_syncs=way) for mode in modes for way in ways
    )


def permitted_executions(limits: Limits, rules: FrameworkRules | None) -> tuple[Execution, ...]:
    """Executions that hold the best plan, whatever its staleness: synchronous ones first, then those with the largest
    version lag that user and framework permit."""
    most = max_staleness(limits, rules)
    ahead = asynchronous_executions(most, limits, rules) if most else ()
    return (*synchronous_executions(limits, rules), *(e for e in ahead if is_permitted(e, limits)))


def is_permitted(execution: Execution, limits: Limits) -> bool:
    """Whether the user permits what the execution does; the framework is asked elsewhere."""
    return execution.mode is not ExecutionMode.STREAMING or limits.allow_partial_rollouts


def max_staleness(limits: Limits, rules: FrameworkRules | None) -> int:
    """The largest version lag that the user permits and the framework can run."""
    return limits.max_staleness if rules is None else min(limits.max_staleness, rules.max_staleness)
