"""What a training framework can run, as data (planner/adapters/data): back ends and limits of one version.

The search (rows of a table: `framework_trainers`, `framework_engines`) and the verdict on a finished plan
(`framework_verdict`) read the same values, so a plan that was searched for a framework is a plan that its adapter can
export.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.execution import ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.framework_limits import MultipleEpochs, OffloadRule, OldLogprobNeed, ShardedSyncRule
from planner.domain.hardware import Precision
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import ContextParallel, EngineIdle, ExpertExchange, Offload, Recompute, Sharding
from planner.domain.technique import Technique
from planner.domain.workload import RewardKind

TRAINING_WORKERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)

HOST_STEPS = (Offload.CPU_OPTIMIZER, Offload.CPU_OPTIMIZER_STATE_SWAP)
"""Offload modes whose optimizer step runs on the host."""

ONE_BACKEND_WORKERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER, WorkerName.REFERENCE)
"""Workers that a framework configures with one choice of back end."""


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
    recurrent_tp: bool = True
    """Tensor parallelism divides recurrent layers; else each rank computes them whole, and plans keep tp 1 there."""
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
