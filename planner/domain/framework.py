"""What a training framework can run, as rules over strategies and placements (data: planner/adapters/data).

The search (rows of a table) and the verdict on a finished plan (`framework_verdict`) read the same rules, so a plan
that was searched for a framework is a plan that its adapter can export.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.execution import ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.framework_limits import MultipleEpochs, OffloadRule, OldLogprobNeed, ShardedSyncRule
from planner.domain.hardware import Precision
from planner.domain.model import Model
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import (
    CONTEXT_PARALLELS,
    ENGINE_IDLES,
    EXPERT_EXCHANGES,
    OFFLOADS,
    RECOMPUTES,
    SHARDINGS,
    BoolArray,
    ContextParallel,
    EngineIdle,
    ExpertExchange,
    FloatArray,
    IntArray,
    Offload,
    Recompute,
    RolloutTable,
    Sharding,
    TrainerStrategy,
    TrainerTable,
)
from planner.domain.technique import Technique
from planner.domain.workload import RewardKind, Workload

TRAINING_WORKERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)
HOST_STEPS = (Offload.CPU_OPTIMIZER, Offload.CPU_OPTIMIZER_STATE_SWAP)
"""Offload modes whose optimizer step runs on the host."""
ONE_BACKEND_WORKERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER, WorkerName.REFERENCE)
"""Workers that a framework configures with one choice of back end."""


def coupled_workers(rules: FrameworkRules) -> tuple[WorkerName, ...]:
    """Workers with one choice of back end: a reward model too where it runs on the trainers'."""
    joins = any({WorkerName.ACTOR_TRAINER, WorkerName.REWARD_MODEL} <= backend.workers for backend in rules.backends)
    return (*ONE_BACKEND_WORKERS, WorkerName.REWARD_MODEL) if joins else ONE_BACKEND_WORKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerBackend:
    """One back end of a framework: the degrees and techniques that its configuration can express."""

    name: str
    """`megatron`, `fsdp`, `deepspeed`, ..."""
    workers: frozenset[WorkerName]
    """Workers that it can serve."""
    shardings: frozenset[Sharding]
    allows_hybrid_shard: bool
    """HSDP: sharding over fewer ranks than all data-parallel ranks."""
    inference_shardings: frozenset[Sharding]
    """Sharding of forward-only workers."""
    max_tp: int
    max_pp: int
    max_vpp: int
    max_cp: int
    context_parallels: frozenset[ContextParallel]
    allows_ep: bool
    allows_etp: bool
    """Expert-TP different from TP."""
    allows_uneven_pp: bool
    """The first and the last pipeline rank may hold fewer layers than the others."""
    recomputes: frozenset[Recompute]
    selective_needs_experts: bool
    """Selective recomputation of MLP activation functions exists for routed experts only."""
    offloads: frozenset[Offload]
    inference_offloads: frozenset[Offload]
    """Offload of forward-only workers."""
    shares_mesh: bool
    """Workers on the same GPUs live in one process whose parallel groups are built once, so that tp, pp, cp, ep
    and etp are equal for all of them."""
    one_setting: bool = False
    """One ZeRO stage, offload and recomputation for all trainers; forward-only workers are sharded exactly when the
    trainers' weights are."""
    cpu_optimizer_shardings: frozenset[Sharding] = frozenset(Sharding)
    """Sharding with which the optimizer step can run on the host."""
    tp_divides_kv_heads: bool = False
    """TP splits key/value heads too, it never repeats them."""
    max_cp_with_critic: int | None = None
    """`max_cp` where there is a critic; None: no difference."""
    train_precisions: frozenset[Precision] = frozenset(Precision)
    """Of those of the framework, the ones that this back end has."""
    budget_ranks: tuple[str, ...] = ()
    """Degrees over whose ranks a token budget is divided: budgets are multiples of their product times
    `budget_chunks`, and of `budget_block`."""
    budget_chunks: int = 1
    budget_block: int = 1
    max_etp: int | None = None
    """Largest expert-TP; None: no limit of its own."""
    ep_stands_alone: bool = False
    """Expert parallelism excludes tp, cp and hybrid sharding."""
    ep_architectures: frozenset[str] = frozenset()
    """Architectures whose experts the back end can spread; empty: all."""
    ep_excludes_critic: bool = False
    ep_excludes_lora: bool = False
    allows_any_pp: bool = False
    """Layers need not divide over the pipeline in any pattern: for configurations that say what each rank holds."""
    counts_sequences: frozenset[WorkerName] = frozenset()
    """Workers whose micro-batches are a number of longest sequences, so that budgets are not rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRules:
    """Capabilities of one framework version. Every limit names its evidence."""

    name: str
    title: str
    version: str
    backends: tuple[TrainerBackend, ...]
    algorithms: frozenset[str]
    """Names of `planner.domain.algorithm.ALGORITHMS`."""
    workers: frozenset[WorkerName]
    """Workers that the framework runs on GPUs."""
    max_rollout_pp: int
    allows_rollout_ep: bool
    rollout_ep_equals_tp: bool
    """An engine with expert parallelism spreads experts over all its ranks: tp, times attention DP if it has that."""
    engine_idles: frozenset[EngineIdle]
    must_share: tuple[frozenset[WorkerName], ...]
    """Workers that always sit on one device group."""
    may_share: tuple[frozenset[WorkerName], ...]
    """Sets of workers that may sit on one device group; any other sharing is impossible."""
    shared_workers_use_whole_group: bool
    """Workers on one device group all span it completely."""
    one_pool: bool
    """All device groups lie on one kind of node: the configuration cannot say which GPU type a worker gets."""
    whole_nodes_only: bool
    """Device groups of several nodes consist of whole nodes (one node may be used in part)."""
    always_recomputes_old_logprob: bool
    dynamic_sampling_excludes_shared_reward_model: bool
    """Discarding groups needs scores while the rollout runs, which a reward model on its GPUs cannot give."""
    train_precisions: frozenset[Precision]
    rollout_precisions: frozenset[Precision]
    max_lora_rank: int
    """0: no LoRA."""
    supported_stages: frozenset[StageName]
    execution_modes: frozenset[ExecutionMode]
    max_staleness: int
    """Largest version lag that can be configured; 0 without asynchronous execution."""
    fusions: frozenset[Fusion]
    policy: SchedulingPolicy
    """How the controller orders the stages of one iteration."""
    evidence: tuple[tuple[str, str], ...]
    """(rule, file or page that shows it)."""
    indivisible_shares: tuple[frozenset[WorkerName], ...] = ()
    """Sets of `may_share` that all present workers of the set share, or none: a switch for all of them at once."""
    techniques: tuple[Technique, ...] = ()
    """What the framework can do, whether or not plans and exports use it; for comparison only."""
    max_batches_staleness: int | None = None
    """Largest version lag of asynchronous batches where it is smaller than that of streaming; None: `max_staleness`."""

    max_attention_dp: int = 1
    """Most groups of data-parallel attention in one engine; 1 where it cannot be configured."""
    attention_dp_needs_ep: bool = False
    """Data-parallel attention is said by expert parallelism above tp, so that it always spreads the experts."""
    attention_dp_excludes_overlap: bool = False
    """Iterations that overlap need another engine class, which has no data-parallel attention."""
    expert_exchanges: frozenset[ExpertExchange] = frozenset({ExpertExchange.GATHER})
    """How tokens may reach the experts of engines with data-parallel attention."""
    rollout_needs_ep: bool = False
    """Engines spread routed experts over their ranks."""
    sharded_syncs: tuple[ShardedSyncRule, ...] = ()
    """Ways in which the weight sync can move shards only; full gather is always there."""
    engine_idles_apart: frozenset[EngineIdle] | None = None
    """`engine_idles` of engines on GPUs of their own; None: no difference."""
    equal_gpus_per_node: bool = False
    """With engines apart, trainers and engines take equally many GPUs of every node, or divide a single one."""
    offload_rules: tuple[OffloadRule, ...] = ()
    shared_train_budget: frozenset[WorkerName] = frozenset()
    """Workers whose updates have one token budget."""
    shared_forward_budget: frozenset[WorkerName] = frozenset()
    """Workers whose forward passes have one token budget."""
    one_token_budget: frozenset[WorkerName] = frozenset()
    """Workers that have one token budget for updates and forward passes."""
    multiple_epochs: MultipleEpochs = MultipleEpochs.ALWAYS
    old_logprob_needs: frozenset[OldLogprobNeed] = frozenset()
    lora_excludes_reference: bool = False
    """With adapters there is no reference: the base of an adapter is never one."""
    lora_excludes_critic: bool = False
    lora_excludes_rollout_ep: bool = False
    """Engines that serve adapters have no expert parallelism."""
    critic_is_actor_model: bool = False
    """The critic is a copy of the actor's model."""
    model_architectures: frozenset[str] = frozenset()
    """Architectures of models that it trains; empty: all."""
    reward_kinds: frozenset[RewardKind] = frozenset(RewardKind)
    dynamic_sampling_excludes_reward_model: bool = False
    """Groups are discarded by a function or a server, never by a reward model on GPUs."""
    streaming_excludes_dynamic_sampling: bool = False
    batches_exclude_reward_model: bool = False
    """Asynchronous batches run without a reward model on GPUs."""
    batches_exclude_dynamic_sampling: bool = False
    """Asynchronous batches do not replace discarded groups."""
    own_degrees_in_scripts: bool = False
    """A configuration can give a critic on the actor's GPUs a layout of its own, which no plan does."""

    @property
    def all_engine_idles(self) -> frozenset[EngineIdle]:
        """What engines may keep while other workers run, wherever they sit."""
        return self.engine_idles | (self.engine_idles_apart or frozenset())

    def max_staleness_of(self, mode: ExecutionMode) -> int:
        """Largest version lag of iterations that overlap in this way; 0 where they cannot."""
        if mode not in self.execution_modes or mode is ExecutionMode.SYNCHRONOUS:
            return 0
        if mode is ExecutionMode.BATCHES and self.max_batches_staleness is not None:
            return min(self.max_batches_staleness, self.max_staleness)
        return self.max_staleness


# Rules on rows ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowRule:
    """`allows` gives the rows that a back end can express.

    `reason` completes "<back end>: ..." for many rows, `fault` says the same about one strategy.
    """

    reason: str
    allows: Callable[[TrainerBackend, TrainerTable, bool, Model | None], BoolArray]
    fault: Callable[[TrainerBackend, TrainerStrategy], str] | None = None
    """None: `reason` says it all."""

    def fault_of(self, backend: TrainerBackend, strategy: TrainerStrategy) -> str:
        return self.reason if self.fault is None else self.fault(backend, strategy)


def _is_in(column: FloatArray, values: tuple[object, ...], allowed: frozenset[object]) -> BoolArray:
    """Rows whose code stands for an allowed member of an enumeration."""
    by_code = np.array([value in allowed for value in values])
    return np.asarray(by_code[column.astype(np.int64)])


def _constant(table: TrainerTable, value: bool) -> BoolArray:
    return np.full(len(table), value)


def _hybrid(backend: TrainerBackend, table: TrainerTable, trains: bool, _: Model | None) -> BoolArray:
    if backend.allows_hybrid_shard or not trains:
        return _constant(table, True)
    is_sharded = table.sharding != SHARDINGS.index(Sharding.DDP)
    return np.asarray(~is_sharded | (table.shard_ranks >= np.floor(table.dp * table.cp)))


def _expert_tp(backend: TrainerBackend, table: TrainerTable, _: bool, model: Model | None) -> BoolArray:
    if backend.allows_etp or (model is not None and not model.is_moe):
        return _constant(table, True)
    # Without a model, etp = 1 may as well be a dense layer.
    return np.asarray((table.etp == table.tp) | ((table.etp == 1) & (model is None)))


def _expert_parallel_alone(backend: TrainerBackend, table: TrainerTable, _: bool, __: Model | None) -> BoolArray:
    if not backend.ep_stands_alone:
        return _constant(table, True)
    is_alone = (table.tp == 1) & (table.cp == 1) & (table.shard_ranks >= np.floor(table.dp * table.cp))
    return np.asarray((table.ep == 1) | is_alone)


def _expert_architecture(backend: TrainerBackend, table: TrainerTable, _: bool, model: Model | None) -> BoolArray:
    if not backend.ep_architectures or model is None or model.architecture in backend.ep_architectures:
        return _constant(table, True)
    return np.asarray(table.ep == 1)


def _kv_heads(backend: TrainerBackend, table: TrainerTable, _: bool, model: Model | None) -> BoolArray:
    legal = _constant(table, True)
    if not backend.tp_divides_kv_heads or model is None:
        return legal
    for heads in {layer.attention.num_kv_heads for layer in model.layers} - {0}:
        legal &= np.mod(heads, table.tp) == 0
    return legal


def _cpu_optimizer(backend: TrainerBackend, table: TrainerTable, trains: bool, _: Model | None) -> BoolArray:
    if not trains:
        return _constant(table, True)
    on_host = _is_in(table.offload, OFFLOADS, frozenset(HOST_STEPS))
    return np.asarray(~on_host | _is_in(table.sharding, SHARDINGS, frozenset(backend.cpu_optimizer_shardings)))


def _even_pipeline(backend: TrainerBackend, table: TrainerTable, _: bool, model: Model | None) -> BoolArray:
    if model is None or backend.allows_any_pp:
        return _constant(table, True)
    degrees = np.unique(table.pp).astype(int).tolist()
    fits = {pp: _splits(model.num_layers, pp, uneven=backend.allows_uneven_pp) for pp in degrees}
    bad = [pp for pp in degrees if not fits[pp]]
    return np.asarray(~np.isin(table.pp, bad))


def _splits(num_layers: int, pp: int, *, uneven: bool) -> bool:
    return num_layers % pp == 0 or (uneven and pipeline_ends(num_layers, pp) is not None)


def pipeline_ends(num_layers: int, pp: int) -> tuple[int, int] | None:
    """Layers of the first and the last pipeline rank when all others hold ceil(num_layers / pp).

    None when that would leave an end without layers, or with more than the others.

    >>> pipeline_ends(28, 8)
    (2, 2)
    """
    middle = -(-num_layers // pp)
    rest = num_layers - (pp - 2) * middle
    first, last = rest - rest // 2, rest // 2
    return (first, last) if pp > 1 and last >= 1 and first <= middle else None


def _recompute(backend: TrainerBackend, table: TrainerTable, trains: bool, model: Model | None) -> BoolArray:
    if not trains:
        return _constant(table, True)
    allowed = set(backend.recomputes)
    if backend.selective_needs_experts and model is not None and not model.is_moe:
        allowed.discard(Recompute.SELECTIVE)
    return _is_in(table.recompute, RECOMPUTES, frozenset(allowed))


_ROW_RULES: tuple[_RowRule, ...] = (
    _RowRule(
        reason="ZeRO level not offered",
        allows=lambda b, t, trains, _: _is_in(
            t.sharding, SHARDINGS, frozenset(b.shardings if trains else b.inference_shardings)
        ),
        fault=lambda _, s: f"{s.sharding.value} is not offered",
    ),
    _RowRule(reason="no sharding over only a part of the ranks", allows=_hybrid),
    _RowRule(
        reason="tp above the limit",
        allows=lambda b, t, *_: np.asarray(t.tp <= b.max_tp),
        fault=lambda b, s: f"tp is {s.tp}, at most {b.max_tp}",
    ),
    _RowRule(
        reason="pp above the limit",
        allows=lambda b, t, *_: np.asarray(t.pp <= b.max_pp),
        fault=lambda b, s: f"pp is {s.pp}, at most {b.max_pp}",
    ),
    _RowRule(
        reason="vpp above the limit",
        allows=lambda b, t, *_: np.asarray(t.vpp <= b.max_vpp),
        fault=lambda b, s: f"vpp is {s.vpp}, at most {b.max_vpp}",
    ),
    _RowRule(
        reason="cp above the limit",
        allows=lambda b, t, *_: np.asarray(t.cp <= b.max_cp),
        fault=lambda b, s: f"cp is {s.cp}, at most {b.max_cp}",
    ),
    _RowRule(
        reason="kind of context parallelism not offered",
        allows=lambda b, t, *_: np.asarray(
            (t.cp == 1) | _is_in(t.context_parallel, CONTEXT_PARALLELS, frozenset(b.context_parallels))
        ),
        fault=lambda _, s: f"{s.context_parallel.value} context parallelism is not offered",
    ),
    _RowRule(reason="no expert parallelism", allows=lambda b, t, *_: np.asarray((t.ep == 1) | b.allows_ep)),
    _RowRule(reason="expert parallelism together with tp, cp or hybrid sharding", allows=_expert_parallel_alone),
    _RowRule(reason="no expert parallelism for this architecture", allows=_expert_architecture),
    _RowRule(
        reason="expert tp differs from tp",
        allows=_expert_tp,
        fault=lambda _, s: f"expert tp {s.etp} differs from tp {s.tp}",
    ),
    _RowRule(
        reason="expert tp above the limit",
        allows=lambda b, t, *_: np.asarray((t.etp <= b.max_etp) if b.max_etp is not None else _constant(t, True)),
        fault=lambda b, s: f"expert tp is {s.etp}, at most {b.max_etp}",
    ),
    _RowRule(
        reason="layers do not split over pp",
        allows=_even_pipeline,
        fault=lambda _, s: f"layers do not split over pp {s.pp}",
    ),
    _RowRule(
        reason="recomputation not offered",
        allows=_recompute,
        fault=lambda _, s: f"recomputation '{s.recompute.value}' is not offered",
    ),
    _RowRule(
        reason="offload not offered",
        allows=lambda b, t, trains, _: _is_in(
            t.offload, OFFLOADS, frozenset(b.offloads if trains else b.inference_offloads)
        ),
        fault=lambda _, s: f"offload '{s.offload.value}' is not offered",
    ),
    _RowRule(reason="tp must divide heads and key/value heads", allows=_kv_heads),
    _RowRule(
        reason="ZeRO level not offered with the optimizer step on the host",
        allows=_cpu_optimizer,
        fault=lambda b, _: (
            "the optimizer step on the host needs "
            + " or ".join(level.value for level in SHARDINGS if level in b.cpu_optimizer_shardings)
        ),
    ),
)


def _candidates(rules: FrameworkRules, worker: WorkerName | None) -> tuple[TrainerBackend, ...]:
    return tuple(b for b in rules.backends if worker is None or worker in b.workers)


def trainer_rejections(
    rules: FrameworkRules,
    table: TrainerTable,
    *,
    trains: bool,
    worker: WorkerName | None = None,
    model: Model | None = None,
) -> tuple[tuple[str, BoolArray], ...]:
    """Rows that no back end of the framework can express, by reason; masks of shape (num_candidates,), disjoint.

    A row that several back ends reject is counted with the first rule of the back end that breaks fewest rules.
    `worker` limits the back ends to those that serve it, `model` adds the rules that depend on layers and experts.
    """
    backends = _candidates(rules, worker)
    if not backends:
        who = "such worker" if worker is None else worker.value
        return ((f"{rules.title} runs no {who} on GPUs", _constant(table, True)),)
    broken = [np.stack([~rule.allows(b, table, trains, model) for rule in _ROW_RULES]) for b in backends]
    counts = np.stack([violations.sum(axis=0) for violations in broken])
    rejected = np.flatnonzero(counts.min(axis=0) > 0)
    closest = counts[:, rejected].argmin(axis=0)
    result: list[tuple[str, BoolArray]] = []
    for index, backend in enumerate(backends):
        rows = rejected[closest == index]
        first = broken[index][:, rows].argmax(axis=0)
        for number in np.unique(first).tolist():
            mask = _constant(table, False)
            mask[rows[first == number]] = True
            result.append((f"{rules.title}, {backend.name}: {_ROW_RULES[number].reason}", mask))
    return tuple(result)


def trainer_faults(
    rules: FrameworkRules, strategy: TrainerStrategy, *, trains: bool, worker: WorkerName, model: Model
) -> tuple[str, tuple[str, ...]]:
    """The back end that comes closest to a strategy, and what it lacks: nothing where some back end can express it."""
    table = TrainerTable.of((strategy,))
    found = [
        (
            backend.name,
            tuple(
                rule.fault_of(backend, strategy)
                for rule in _ROW_RULES
                if not rule.allows(backend, table, trains, model)[0]
            ),
        )
        for backend in _candidates(rules, worker)
    ]
    return min(found, key=lambda item: len(item[1]), default=("", ()))


def rollout_rejections(
    rules: FrameworkRules, table: RolloutTable, *, overlaps: bool = False
) -> tuple[tuple[str, BoolArray], ...]:
    """Rows that the framework's engines cannot express, by reason; masks of shape (num_candidates,).

    `overlaps`: iterations overlap.
    """
    masks = rollout_masks(rules, table, overlaps=overlaps)
    return tuple((f"{rules.title}: {reason}", mask) for reason, mask in masks if mask.any())


def rollout_masks(
    rules: FrameworkRules, table: RolloutTable, *, overlaps: bool = False
) -> tuple[tuple[str, BoolArray], ...]:
    wide_ep = table.ep > 1
    all_ranks = table.tp * table.attention_dp
    return (
        (f"rollout pp above {rules.max_rollout_pp}", np.asarray(table.pp > rules.max_rollout_pp)),
        ("no rollout expert parallelism", np.asarray(wide_ep & (not rules.allows_rollout_ep))),
        ("no engine without expert parallelism", np.asarray(~wide_ep & rules.rollout_needs_ep)),
        ("rollout ep differs from tp", np.asarray(wide_ep & rules.rollout_ep_equals_tp & (table.ep != all_ranks))),
        *_attention_dp_masks(rules, table, overlaps),
        (
            f"engines always {idle_words(rules.all_engine_idles)}",
            ~_is_in(table.idle, ENGINE_IDLES, frozenset(rules.all_engine_idles)),
        ),
    )


def _attention_dp_masks(
    rules: FrameworkRules, table: RolloutTable, overlaps: bool
) -> tuple[tuple[str, BoolArray], ...]:
    groups = table.attention_dp
    is_split = groups > 1
    most = rules.max_attention_dp
    above = "no data-parallel attention in engines" if most == 1 else f"attention dp above {most}"
    allowed = np.array([kind in rules.expert_exchanges for kind in EXPERT_EXCHANGES])
    return (
        (above, np.asarray(groups > most)),
        (
            "attention dp without expert parallelism",
            np.asarray(is_split & rules.attention_dp_needs_ep & (table.ep == 1)),
        ),
        (
            "attention dp while iterations overlap",
            np.asarray(is_split & (rules.attention_dp_excludes_overlap & overlaps)),
        ),
        ("no all-to-all between the ranks of an engine", ~allowed[table.exchange.astype(np.int64)]),
    )


def idle_words(idles: frozenset[EngineIdle]) -> str:
    """What engines do while others run."""
    return " or ".join(_IDLE_WORDS[idle] for idle in EngineIdle if idle in idles)


_IDLE_WORDS = {
    EngineIdle.RESIDENT: "stay in GPU memory while others run",
    EngineIdle.SLEEP: "sleep while others run",
}


def first_backends(
    rules: FrameworkRules, table: TrainerTable, *, trains: bool, worker: WorkerName | None, model: Model | None
) -> IntArray:
    """Index of the first back end that allows each row, -1 if none; shape (num_candidates,)."""
    result = np.full(len(table), -1, dtype=np.int64)
    for index, backend in reversed(tuple(enumerate(rules.backends))):
        if worker is not None and worker not in backend.workers:
            continue
        allowed = _constant(table, True)
        for rule in _ROW_RULES:
            allowed &= rule.allows(backend, table, trains, model)
        result[allowed] = index
    return result


def backend_of(
    rules: FrameworkRules,
    strategy: TrainerStrategy,
    *,
    trains: bool = True,
    worker: WorkerName | None = None,
    model: Model | None = None,
) -> TrainerBackend | None:
    """The first back end that can express the strategy, None if there is none."""
    table = TrainerTable.of((strategy,))
    index = int(first_backends(rules, table, trains=trains, worker=worker, model=model)[0])
    return rules.backends[index] if index >= 0 else None


def mesh_keys(
    rules: FrameworkRules,
    table: TrainerTable,
    *,
    trains: bool,
    with_vpp: bool,
    worker: WorkerName | None = None,
    model: Model | None = None,
) -> IntArray:
    """Equal keys may be combined on one device group; shape (num_candidates,), -1 for rows that are rejected.

    Actor, critic and reference use one back end, and where it `shares_mesh` also one set of degrees. Compare
    actor and critic with `with_vpp`, either of them and the reference without: a forward-only pass follows the
    virtual pipeline of the trainers. Where a back end has `one_setting`, its parts are compared in the same way.
    """
    backend = first_backends(rules, table, trains=trains, worker=worker, model=model)
    shares = np.array([b.shares_mesh for b in rules.backends] + [False])[backend]
    key = backend.copy()
    columns = (table.tp, table.pp, table.cp, table.ep, table.etp, *((table.vpp,) if with_vpp else ()))
    for column in columns:
        # Degrees are below 512; 512**6 * 6 back ends * 80 settings fit in 63 bits.
        key = np.where(shares, key * 512 + column.astype(np.int64), key)
    has_one = np.array([b.one_setting for b in rules.backends] + [False])[backend]
    key = np.where(has_one, key * (_NUM_SETTINGS + 1) + _setting(table, of_trainers=with_vpp), key)
    return np.where(backend < 0, -1, key)


_NUM_SETTINGS = len(SHARDINGS) * len(OFFLOADS) * len(RECOMPUTES)


def _setting(table: TrainerTable, *, of_trainers: bool) -> IntArray:
    """What a back end with one setting can tell apart between trainers, or between any two workers."""
    if not of_trainers:
        return np.asarray(table.sharding == SHARDINGS.index(Sharding.ZERO3), dtype=np.int64)
    code = (table.sharding * len(OFFLOADS) + table.offload) * len(RECOMPUTES) + table.recompute
    return np.asarray(code, dtype=np.int64)


# Rules on placements ---------------------------------------------------------------------------------------------


def joined(names: Sequence[str]) -> str:
    """`'a'`, `'a and b'`, `'a, b and c'`."""
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])


def listed(workers: frozenset[WorkerName]) -> str:
    return joined([w.value for w in WorkerName if w in workers])


def placement_problem(
    rules: FrameworkRules, groups: tuple[frozenset[WorkerName], ...], present: frozenset[WorkerName]
) -> str | None:
    """Why the framework cannot place workers so, None if it can.

    `groups` are the sets of workers that share GPUs (a worker alone is a set of one), `present` all workers.
    """
    absent = present - rules.workers
    if absent:
        return f"runs no {listed(absent)} on GPUs"
    for together in rules.must_share:
        needed = together & present
        if len(needed) > 1 and not any(needed <= group for group in groups):
            return f"places {listed(needed)} on the same GPUs"
    for group in groups:
        if len(group) > 1 and not any(_is_allowed(rules, group, allowed, present) for allowed in rules.may_share):
            return f"cannot place {listed(group)} on the same GPUs"
    return None


def _is_allowed(
    rules: FrameworkRules,
    group: frozenset[WorkerName],
    allowed: frozenset[WorkerName],
    present: frozenset[WorkerName],
) -> bool:
    return group == allowed & present if allowed in rules.indivisible_shares else group <= allowed


def sharing_problem(rules: FrameworkRules, workload: Workload, groups: tuple[frozenset[WorkerName], ...]) -> str | None:
    """What the workload forbids about sharing GPUs, None if nothing."""
    samples_dynamically = workload.algorithm.oversampling_ratio > 1
    if rules.dynamic_sampling_excludes_shared_reward_model and samples_dynamically:
        for group in groups:
            if WorkerName.REWARD_MODEL in group and len(group) > 1:
                return f"{rules.title}: dynamic sampling needs the reward model on GPUs of its own"
    return None
