"""The strategies of a plan against what a framework can express: parts of the verdict."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.framework import TRAINING_WORKERS, FrameworkRules
from planner.domain.framework_budgets import budget_keys, budget_rejections
from planner.domain.framework_engines import rollout_masks
from planner.domain.framework_limits import EngineSite
from planner.domain.framework_mesh import coupled_workers, mesh_keys
from planner.domain.framework_placed import PlacedWorker, engine_site, worker_model
from planner.domain.framework_sites import allowed_at, idles_at
from planner.domain.framework_trainers import trainer_faults
from planner.domain.framework_words import idle_words, joined, listed
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy, RolloutTable, TrainerStrategy, TrainerTable
from planner.domain.workload import Workload


def strategy_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    """What strategies ask too much, once for all workers of which the same is true."""
    who: dict[tuple[str, str], list[str]] = {}
    for worker in workers:
        if worker.name not in rules.workers:
            continue
        if isinstance(worker.strategy, RolloutStrategy):
            engines = RolloutTable.of((worker.strategy,))
            masks = rollout_masks(rules, engines, overlaps=plan.execution.is_asynchronous)
            backend, faults = "", tuple(reason for reason, mask in masks if mask[0])
        else:
            model = worker_model(plan.workload, worker.name)
            backend, faults = trainer_faults(
                rules, worker.strategy, trains=worker.trains, worker=worker.name, model=model
            )
        for fault in faults:
            who.setdefault((backend, fault), []).append(worker.name.value)
    by_workers: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for (backend, fault), names in who.items():
        by_workers.setdefault((tuple(names), backend), []).append(fault)
    return [
        f"{joined(names)}{f' ({backend})' if backend else ''}: {', '.join(faults)}"
        for (names, backend), faults in by_workers.items()
    ]


def mesh_problems(rules: FrameworkRules, workload: Workload, workers: tuple[PlacedWorker, ...]) -> list[str]:
    """One back end for actor, critic and reference, and equal degrees where they share a process."""
    coupled = [w for w in workers if w.name in coupled_workers(rules)]
    differing: list[str] = []
    for other in coupled[1:]:
        with_vpp = coupled[0].trains and other.trains
        keys = [_mesh_key(rules, workload, worker, with_vpp=with_vpp) for worker in (coupled[0], other)]
        # A strategy that no back end has is reported on its own.
        if keys[0] != keys[1] and None not in keys:
            differing.append(other.name.value)
    if not differing:
        return []
    names = joined([coupled[0].name.value, *differing])
    if all(backend.one_setting for backend in rules.backends):
        return [
            f"it runs {names} with one tp, cp, ZeRO stage, offload and recomputation; forward-only workers are zero3 "
            "exactly when training is"
        ]
    return [f"it runs {names} with one back end and, on Megatron, with equal tp, pp, cp, ep and etp"]


def _mesh_key(rules: FrameworkRules, workload: Workload, worker: PlacedWorker, *, with_vpp: bool) -> int | None:
    if isinstance(worker.strategy, RolloutStrategy):
        return None
    table = TrainerTable.of((worker.strategy,))
    model = worker_model(workload, worker.name)
    key = mesh_keys(rules, table, trains=worker.trains, with_vpp=with_vpp, worker=worker.name, model=model)
    return int(key[0]) if key[0] >= 0 else None


def gentle(rules: FrameworkRules, workload: Workload) -> FrameworkRules:
    """Only the rules on offload modes that spoil nothing, those without a site included."""
    kept = tuple(rule for rule in rules.offload_rules if rule.concerns(workload) and not rule.breaks)
    return replace(rules, offload_rules=kept)


def offload_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    site, mode = engine_site(workers), plan.execution.mode
    problems: list[str] = []
    for worker in workers:
        if not worker.trains or isinstance(worker.strategy, RolloutStrategy):
            continue
        table, model = TrainerTable.of((worker.strategy,)), worker_model(plan.workload, worker.name)
        for rule in rules.offload_rules:
            alone = replace(rules, offload_rules=(rule,))
            if not allowed_at(alone, table, worker.name, model, mode, site)[0]:
                problems.append(f"{worker.name.value}: {rule.reason}")
    return problems


def idle_problems(rules: FrameworkRules, workers: tuple[PlacedWorker, ...], site: EngineSite) -> list[str]:
    engine = next((w for w in workers if w.name is WorkerName.ROLLOUT_ENGINE), None)
    if engine is None or not isinstance(engine.strategy, RolloutStrategy) or engine_site(workers) is not site:
        return []
    allowed = idles_at(rules, site)
    if engine.strategy.idle in allowed or engine.strategy.idle not in rules.all_engine_idles:
        return []
    where = "" if site is EngineSite.SHARED else " on GPUs of their own"
    return [f"{engine.name.value}: engines{where} always {idle_words(allowed)}"]


def budget_problems(rules: FrameworkRules, workload: Workload, workers: tuple[PlacedWorker, ...]) -> list[str]:
    """Token budgets that differ where the framework has one."""
    trainers = [w for w in workers if isinstance(w.strategy, TrainerStrategy)]
    tables = {w.name: TrainerTable.of((w.strategy,)) for w in trainers if isinstance(w.strategy, TrainerStrategy)}
    problems = [
        f"{worker.value}: it has one token budget for updates and forward passes"
        for worker, table in tables.items()
        if any(mask[0] for _, mask in budget_rejections(rules, table, worker))
    ]
    has_critic = workload.critic is not None
    for among, names in ((True, TRAINING_WORKERS), (False, tuple(tables))):
        keys = {
            int(budget_keys(rules, tables[name], name, among_trainers=among, has_critic=has_critic)[0])
            for name in names
            if name in tables
        }
        if len(keys - {0}) > 1:
            shared = rules.shared_train_budget if among else rules.shared_forward_budget
            problems.append(f"it has one token budget for {listed(shared & frozenset(tables))}")
    return problems


def batch_problems(workload: Workload, workers: tuple[PlacedWorker, ...]) -> list[str]:
    """Batches that no framework can cut: prompts into mini-batches, mini-batches over data-parallel ranks."""
    if workload.num_prompts % workload.num_optimizer_steps:
        return [f"{workload.num_prompts} prompts do not divide into {workload.num_optimizer_steps} mini-batches"]
    sequences = workload.num_samples // workload.num_optimizer_steps
    problems: list[str] = []
    for worker in workers:
        strategy = worker.strategy
        if isinstance(strategy, RolloutStrategy):
            if strategy.num_gpus % strategy.engine_gpus:
                problems.append(
                    f"{worker.name.value}: engines of {strategy.engine_gpus} GPUs do not fill {strategy.num_gpus}"
                )
            continue
        if worker.trains and sequences % strategy.dp:
            problems.append(f"{worker.name.value}: dp {strategy.dp} does not divide {sequences} sequences per step")
        # Forward-only workers have no training budget.
        budget = (
            min(strategy.micro_batch_tokens, strategy.inference_tokens) if worker.trains else strategy.inference_tokens
        )
        if budget < workload.max_tokens:
            problems.append(
                f"{worker.name.value}: a budget of {budget} tokens is below one sequence of {workload.max_tokens}"
            )
    return problems
