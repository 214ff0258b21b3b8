"""What a framework needs of a plan whose weight sync moves shards only (`ShardedSync`)."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.execution import Execution, ShardedSync
from planner.domain.framework import FrameworkRules
from planner.domain.framework_limits import ShardedSyncRule
from planner.domain.workload import Workload

_MOST = 2**31


def sync_lack(rule: ShardedSyncRule, workload: Workload) -> str | None:
    """Why the framework cannot sync the workload in this way, None if it can; completes "it has ..."."""
    name = f"{rule.way.value} weight sync"
    if workload.lora_rank is not None:
        return f"no {name} of adapters"
    if rule.needs_rollout_ep and not workload.actor.is_moe:
        return f"a {name} for routed experts only"
    if rule.equal_precisions and workload.train_precision is not workload.rollout_precision:
        formats = f"{workload.train_precision.value} to {workload.rollout_precision.value}"
        return f"no {name} from {formats}"
    return None


def sync_problems(rules: FrameworkRules, execution: Execution, workload: Workload) -> list[str]:
    """Ways of the plan's weight sync that the framework does not have, whatever the strategies."""
    known = {rule.way: rule for rule in rules.sharded_syncs}
    problems = [f"it has no {way.value} weight sync" for way in execution.sharded_syncs if way not in known]
    lacks = [sync_lack(known[way], workload) for way in execution.sharded_syncs if way in known]
    return [*problems, *(f"it has {lack}" for lack in lacks if lack is not None)]


def narrowed(rules: FrameworkRules, ways: tuple[ShardedSync, ...]) -> FrameworkRules:
    """The rules for strategies whose weight sync uses `ways`; those that the framework lacks narrow nothing."""
    for rule in rules.sharded_syncs:
        if rule.way in ways:
            rules = _narrowed(rules, rule)
    return rules


def _narrowed(rules: FrameworkRules, rule: ShardedSyncRule) -> FrameworkRules:
    backends = tuple(
        replace(backend, max_etp=min(_given(backend.max_etp), _given(rule.max_etp)))
        for backend in rules.backends
        if backend.name in rule.backends
    )
    return replace(
        rules,
        backends=backends,
        max_rollout_pp=min(rules.max_rollout_pp, _given(rule.max_rollout_pp)),
        rollout_needs_ep=rules.rollout_needs_ep or rule.needs_rollout_ep,
    )


def _given(limit: int | None) -> int:
    return _MOST if limit is None else limit
