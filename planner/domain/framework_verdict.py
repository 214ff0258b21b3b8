"""The verdict on a finished plan: what keeps a framework from running it, from the same rules as the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from planner.domain.execution import Execution, ExecutionMode, SchedulingPolicy
from planner.domain.framework import (
    TRAINING_WORKERS,
    FrameworkRules,
    coupled_workers,
    idle_words,
    joined,
    listed,
    mesh_keys,
    placement_problem,
    rollout_masks,
    trainer_faults,
)
from planner.domain.framework_budgets import budget_keys, budget_rejections
from planner.domain.framework_limits import EngineSite
from planner.domain.framework_sites import allowed_at, idles_at, sizes_fit
from planner.domain.framework_sync import narrowed, sync_problems
from planner.domain.framework_workload import (
    batches_problem,
    for_workload,
    position_problem,
    runs_old_logprob,
    scope_lacks,
    streaming_problem,
    workload_lacks,
)
from planner.domain.model import Model
from planner.domain.plan import DeviceGroup, Plan
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import RolloutStrategy, RolloutTable, Strategy, TrainerStrategy, TrainerTable
from planner.domain.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWorker:
    """A worker of a plan: its device group and its strategy."""

    name: WorkerName
    group: DeviceGroup
    strategy: Strategy

    @property
    def trains(self) -> bool:
        return self.name in TRAINING_WORKERS

    def overlaps(self, other: PlacedWorker) -> bool:
        """True when the two share at least one GPU."""
        a, b = self.group, other.group
        return a.pool == b.pool and max(a.ranks.start, b.ranks.start) < min(a.ranks.stop, b.ranks.stop)


def placed_workers(plan: Plan) -> tuple[PlacedWorker, ...]:
    """The workers of a plan, in the order of WorkerName."""
    groups = {group.id: group for group in plan.device_groups}
    found: dict[WorkerName, PlacedWorker] = {}
    for item in plan.placements:
        if item.worker is not None and item.strategy is not None and item.worker not in found:
            found[item.worker] = PlacedWorker(name=item.worker, group=groups[item.device_group], strategy=item.strategy)
    return tuple(found[name] for name in WorkerName if name in found)


def worker_model(workload: Workload, worker: WorkerName) -> Model:
    """The model whose weights a worker of the workload's stage graph holds."""
    by_worker = {WorkerName.CRITIC_TRAINER: workload.critic, WorkerName.REWARD_MODEL: workload.reward.model}
    return by_worker.get(worker) or workload.actor


class ProblemKind(StrEnum):
    """What a problem is about."""

    WORKLOAD = "workload"
    """No plan would remove it."""
    SCOPE = "scope"
    """Algorithms and architectures that plans are not made for: no verdict on a launch script that has them."""
    OLD_LOGPROB = "old log-prob"
    """The framework computes old log-probs that the plan leaves out."""
    EXECUTION = "execution"
    STAGE = "stage"
    STRATEGY = "strategy"
    MESH = "mesh"
    PLACEMENT = "placement"
    NODES = "nodes"
    """Parts of several nodes."""
    BATCH = "batch"
    OFFLOAD = "offload"
    """States leave the GPUs, or stay there, whatever the plan says."""
    IDLE = "idle"
    """The same for engines."""
    TOKEN_BUDGET = "token budget"
    """Budgets that the framework has in common."""


TOLERATED = frozenset({ProblemKind.OFFLOAD, ProblemKind.IDLE, ProblemKind.TOKEN_BUDGET})
"""A plan with such a problem starts and computes the same; its price is another one. No search for the framework finds
it, exports say what differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkProblem:
    """A clause about the framework ("it has no PPO") or about workers of the plan."""

    kind: ProblemKind
    text: str


def plan_problems(rules: FrameworkRules, plan: Plan) -> tuple[str, ...]:
    """Everything that keeps the framework from running the plan as it is; empty if it can."""
    return tuple(item.text for item in framework_problems(rules, plan) if item.kind not in TOLERATED)


def framework_problems(rules: FrameworkRules, plan: Plan) -> tuple[FrameworkProblem, ...]:
    """Everything in which the framework would run the plan in another way, or not at all; each once."""
    workers = placed_workers(plan)
    strict = for_workload(rules, plan.workload, tolerant=True)
    scope = scope_lacks(rules, plan.workload)
    lacks = tuple(lack for lack in workload_lacks(rules, plan.workload) if lack not in scope)
    found: tuple[tuple[ProblemKind, Sequence[str]], ...] = (
        (ProblemKind.WORKLOAD, tuple(f"it {lack}" for lack in lacks)),
        (ProblemKind.SCOPE, tuple(f"it {lack}" for lack in scope)),
        (ProblemKind.OLD_LOGPROB, _old_logprob_problems(rules, plan.workload)),
        (ProblemKind.EXECUTION, _execution_problems(rules, plan.execution, plan.workload)),
        (ProblemKind.EXECUTION, _order_problems(rules, plan)),
        (ProblemKind.STAGE, _stage_problems(rules, plan, workers)),
        (ProblemKind.STRATEGY, _strategy_problems(narrowed(strict, plan.execution.sharded_syncs), plan, workers)),
        (ProblemKind.MESH, _mesh_problems(strict, plan.workload, workers)),
        (ProblemKind.PLACEMENT, _placement_problems(rules, plan, workers)),
        (ProblemKind.NODES, _whole_node_problems(rules, plan, workers)),
        (ProblemKind.BATCH, _batch_problems(plan.workload, workers)),
        (ProblemKind.STRATEGY, _offload_problems(strict, plan, workers)),
        (ProblemKind.OFFLOAD, _offload_problems(_gentle(rules, plan.workload), plan, workers)),
        # What engines beside a trainer keep decides what fits there; with GPUs of their own it is a matter of price.
        (ProblemKind.STRATEGY, _idle_problems(rules, workers, EngineSite.SHARED)),
        (ProblemKind.IDLE, _idle_problems(rules, workers, EngineSite.APART)),
        (ProblemKind.TOKEN_BUDGET, _budget_problems(rules, plan.workload, workers)),
    )
    problems = [FrameworkProblem(kind=kind, text=text) for kind, texts in found for text in texts]
    return tuple({item.text: item for item in reversed(problems)}.values())[::-1]


def workload_problems(rules: FrameworkRules, workload: Workload) -> tuple[str, ...]:
    """What the framework lacks for the workload, whatever the plan: to be asked before any search."""
    positions = position_problem(workload)
    found = (*workload_lacks(rules, workload), *_old_logprob_lacks(rules, workload))
    return tuple(f"{rules.title} {lack}" for lack in (*found, *([positions] if positions is not None else [])))


def _old_logprob_lacks(rules: FrameworkRules, workload: Workload) -> list[str]:
    if workload.needs_old_logprob or not runs_old_logprob(rules, workload):
        return []
    when = "always" if rules.always_recomputes_old_logprob else "for this workload"
    return [f"recomputes old log-probs {when}, the plan leaves that stage out"]


def _old_logprob_problems(rules: FrameworkRules, workload: Workload) -> list[str]:
    return [f"it {lack}" for lack in _old_logprob_lacks(rules, workload)]


def _execution_problems(rules: FrameworkRules, execution: Execution, workload: Workload) -> list[str]:
    """Overlap of iterations, version lag and fusions that the framework does not have."""
    problems: list[str] = []
    if execution.mode not in rules.execution_modes:
        modes = joined([mode.value for mode in ExecutionMode if mode in rules.execution_modes])
        problems.append(f"it does not run {execution.mode.value}, only {modes}")
    elif execution.staleness > rules.max_staleness_of(execution.mode):
        most = rules.max_staleness_of(execution.mode)
        versions = f"{most} versions" if most != 1 else "1 version"
        how = f" with {execution.mode.value}" if most < rules.max_staleness else ""
        problems.append(f"its weights lag at most {versions} behind{how}, the plan allows {execution.staleness}")
    lack = batches_problem(rules, workload) if execution.mode is ExecutionMode.BATCHES else None
    if execution.mode is ExecutionMode.STREAMING:
        lack = streaming_problem(rules, workload)
    if lack is not None:
        problems.append(f"it has {lack} with {execution.mode.value}")
    problems += [f"it has no {fusion.value} fusion" for fusion in execution.fusions if fusion not in rules.fusions]
    problems += sync_problems(rules, execution, workload)
    return problems


_TOUCHING_RATIO = 1e-5
"""Overlaps below this share of an iteration are rounding."""


def _order_problems(rules: FrameworkRules, plan: Plan) -> list[str]:
    """Stages that a plan runs side by side although the controller waits for each before it starts the next."""
    if rules.policy is not SchedulingPolicy.SEQUENTIAL or plan.execution.policy is SchedulingPolicy.SEQUENTIAL:
        return []
    # What asynchronous and fused rollouts run beside is said by the checks of these.
    overlaps = plan.execution.is_asynchronous or bool(plan.execution.fusions)
    ahead = {StageName.ROLLOUT, StageName.SECOND_ROLLOUT} if overlaps else set[StageName]()
    items = [item for item in plan.schedule if item.stage not in ahead]
    shifts = [0.0]
    if plan.period_s:
        reach = ceil(plan.makespan_s / plan.period_s)
        shifts = [number * plan.period_s for number in range(-reach, reach + 1)]
    least_s = _TOUCHING_RATIO * plan.time_s
    for index, first in enumerate(items):
        for second in items[index + 1 :]:
            together = max(
                min(first.end_s, second.end_s + shift) - max(first.start_s, second.start_s + shift) for shift in shifts
            )
            if together > least_s:
                return [
                    f"it runs one stage after the other, the plan {first.stage.value} beside {second.stage.value} "
                    "(--policy sequential plans for that)"
                ]
    return []


def _stage_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    # A worker that the framework lacks is reported as such, and not once more for each of its stages.
    stages = {item.stage for item in plan.placements if item.worker is None or item.worker in rules.workers}
    missing = [f"'{stage.value}'" for stage in StageName if stage in stages - rules.supported_stages]
    problems = [f"it has no stage {' and '.join(missing)}"] if missing else []
    if rules.dynamic_sampling_excludes_shared_reward_model and plan.workload.algorithm.oversampling_ratio > 1:
        reward = [w for w in workers if w.name is WorkerName.REWARD_MODEL]
        if any(w.overlaps(other) for w in reward for other in workers if other is not w):
            problems.append("its dynamic sampling needs the reward model on GPUs of its own")
    return problems


def _strategy_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
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


def _mesh_problems(rules: FrameworkRules, workload: Workload, workers: tuple[PlacedWorker, ...]) -> list[str]:
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


def _placement_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    problems: list[str] = []
    groups = {frozenset(other.name for other in workers if worker.overlaps(other)) for worker in workers}
    ordered = tuple(sorted(groups, key=listed))
    problem = placement_problem(rules, ordered, frozenset(worker.name for worker in workers))
    if problem is not None:
        problems.append(f"it {problem}")
    if rules.one_pool and len({worker.group.pool for worker in workers}) > 1:
        problems.append("it cannot be told which pool a worker gets")
    if rules.shared_workers_use_whole_group:
        problems += _partial_use_problems(workers)
    problems += _node_share_problems(rules, plan, workers)
    return problems


def _whole_node_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    problems: list[str] = []
    for group in {worker.group.id: worker.group for worker in workers}.values() if rules.whole_nodes_only else ():
        gpus_per_node = plan.cluster.pool(group.pool).node.gpus_per_node
        if group.num_nodes > 1 and group.num_gpus != group.num_nodes * gpus_per_node:
            problems.append(
                f"it takes whole nodes, the plan has {group.num_gpus} GPUs on {group.num_nodes} nodes "
                f"of {gpus_per_node}"
            )
    return problems


def _node_share_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    """Trainers and engines apart that take unequal parts of nodes."""
    by_name = {worker.name: worker for worker in workers}
    engine, trainer = by_name.get(WorkerName.ROLLOUT_ENGINE), by_name.get(WorkerName.ACTOR_TRAINER)
    if engine is None or trainer is None or engine.overlaps(trainer) or engine.group.pool != trainer.group.pool:
        return []
    per_node = plan.cluster.pool(trainer.group.pool).node.gpus_per_node
    nodes = {rank // per_node for w in (engine, trainer) for rank in (w.group.ranks.start, w.group.ranks.stop - 1)}
    sizes = trainer.group.num_gpus, engine.group.num_gpus
    if sizes_fit(rules, *sizes, per_node, is_one_node=len(nodes) == 1):
        return []
    return [
        f"it takes equally many GPUs of every node, the plan has {sizes[0]} for training and {sizes[1]} for engines"
    ]


def _partial_use_problems(workers: tuple[PlacedWorker, ...]) -> list[str]:
    problems: list[str] = []
    for index, worker in enumerate(workers):
        neighbours = [other for other in workers if worker.overlaps(other) and other is not worker]
        used, held = worker.strategy.num_gpus, worker.group.num_gpus
        if neighbours and used != held:
            problems.append(
                f"{worker.name.value} must use all GPUs that it shares with others, the plan gives it {used} of {held}"
            )
        problems += [
            f"{other.name.value} and {worker.name.value} share only a part of their GPUs"
            for other in workers[:index]
            if other in neighbours and other.group.ranks != worker.group.ranks
        ]
    return problems


def _engine_site(workers: tuple[PlacedWorker, ...]) -> EngineSite:
    by_name = {worker.name: worker for worker in workers}
    engine, trainer = by_name.get(WorkerName.ROLLOUT_ENGINE), by_name.get(WorkerName.ACTOR_TRAINER)
    shares = engine is not None and trainer is not None and engine.overlaps(trainer)
    return EngineSite.SHARED if shares else EngineSite.APART


def _gentle(rules: FrameworkRules, workload: Workload) -> FrameworkRules:
    """Only the rules on offload modes that spoil nothing, those without a site included."""
    kept = tuple(rule for rule in rules.offload_rules if rule.concerns(workload) and not rule.breaks)
    return replace(rules, offload_rules=kept)


def _offload_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    site, mode = _engine_site(workers), plan.execution.mode
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


def _idle_problems(rules: FrameworkRules, workers: tuple[PlacedWorker, ...], site: EngineSite) -> list[str]:
    engine = next((w for w in workers if w.name is WorkerName.ROLLOUT_ENGINE), None)
    if engine is None or not isinstance(engine.strategy, RolloutStrategy) or _engine_site(workers) is not site:
        return []
    allowed = idles_at(rules, site)
    if engine.strategy.idle in allowed or engine.strategy.idle not in rules.all_engine_idles:
        return []
    where = "" if site is EngineSite.SHARED else " on GPUs of their own"
    return [f"{engine.name.value}: engines{where} always {idle_words(allowed)}"]


def _budget_problems(rules: FrameworkRules, workload: Workload, workers: tuple[PlacedWorker, ...]) -> list[str]:
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


def _batch_problems(workload: Workload, workers: tuple[PlacedWorker, ...]) -> list[str]:
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
