"""What a user gave, before any default: the common form of command-line flags and workload files."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """One pool as given in a workload file: a GPU type (generic nodes) or a node type, and how many nodes."""

    nodes: int
    gpu: str | None = None
    node: str | None = None
    name: str | None = None
    gpus_per_node: int | None = None
    price: str | None = None
    host_ram: str | None = None
    nic: str | None = None
    out: int | tuple[str, ...] | None = None
    """How many of the nodes are out, or which."""
    oversubscription: float | None = None
    rails: bool | None = None
    nodes_per_leaf: int | None = None
    cpu_cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """All pools and the link between them, as a cluster file or section gives them."""

    pools: tuple[PoolSpec, ...]
    inter_pool: str | None = None
    inter_pool_total: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker of a fixed configuration (`rlplan estimate`). None means: not given."""

    worker: str
    pool: str | None = None
    first_gpu: int = 0
    num_gpus: int | None = None
    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    cp: int | None = None
    context_parallel: str | None = None
    ep: int = 1
    etp: int | None = None
    sharding: str | None = None
    shard_ranks: int | None = None
    micro_batch_tokens: int | None = None
    inference_tokens: int | None = None
    recompute: str | None = None
    recompute_layers: int | None = None
    offload: str | None = None
    engine_fraction: float | None = None
    max_num_seqs: int | None = None
    idle: str | None = None
    attention_dp: int | None = None
    exchange: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Everything that flags or a file can say; None and () mean: not given. Quantities are text with a unit."""

    model: str | None = None
    algorithm: str | None = None
    gpus: str | None = None
    pools: tuple[PoolSpec, ...] = ()
    inter_pool: str | None = None
    inter_pool_total: str | None = None
    cluster: str | None = None
    """Path of a cluster file, in place of `gpus` and `pools`."""
    num_prompts: int | None = None
    group_size: int | None = None
    num_optimizer_steps: int | None = None
    num_epochs: int | None = None
    kl_coefficient: float | None = None
    oversampling_ratio: float | None = None
    prompt_max: int | None = None
    prompt_mean: float | None = None
    response_max: int | None = None
    response_mean: float | None = None
    response_cv: float | None = None
    critic: str | None = None
    reward: str | None = None
    reward_model: str | None = None
    judge_tokens: int | None = None
    reward_latency: str | None = None
    reward_parallel: int | None = None
    train_precision: str | None = None
    rollout_precision: str | None = None
    lora_rank: int | None = None
    objective: str | None = None
    deadline: str | None = None
    steps: int | None = None
    budget: str | None = None
    max_gpus: int | None = None
    memory_margin: str | None = None
    framework: str | None = None
    time_limit: str | None = None
    solver: str | None = None
    seed: int | None = None
    staleness: int | None = None
    allow: tuple[str, ...] = ()
    fusion: str | None = None
    sync: str | None = None
    policy: str | None = None
    share: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    alternatives: int | None = None
    prices: tuple[str, ...] = ()
    profile: str | None = None
    """Path of a calibration profile."""
    strategies: tuple[WorkerSpec, ...] = ()
    file: str = ""
    """The file that the values come from; empty for flags."""
    flags: frozenset[str] = frozenset()
    """Names of the fields that flags gave; messages about them name the flag."""

    def place(self, name: str) -> str:
        """Where the user gave (or can give) a field, for messages."""
        flag, key = PLACES[name]
        return flag if name in self.flags or not self.file else f"{self.file}: {key}"


PLACES: dict[str, tuple[str, str]] = {
    "model": ("MODEL", "model"),
    "algorithm": ("--algorithm", "algorithm"),
    "gpus": ("--gpus", "gpus"),
    "pools": ("--gpus", "cluster.pools"),
    "inter_pool": ("--inter-pool", "cluster.inter_pool"),
    "inter_pool_total": ("--inter-pool-total", "cluster.inter_pool_total"),
    "cluster": ("--cluster", "cluster"),
    "num_prompts": ("--prompts", "batch.prompts"),
    "group_size": ("--group", "batch.group"),
    "num_optimizer_steps": ("--optimizer-steps", "batch.optimizer_steps"),
    "num_epochs": ("--epochs", "batch.epochs"),
    "kl_coefficient": ("--kl", "batch.kl"),
    "oversampling_ratio": ("--oversampling", "batch.oversampling"),
    "prompt_max": ("--prompt", "lengths.prompt"),
    "prompt_mean": ("--prompt-mean", "lengths.prompt_mean"),
    "response_max": ("--response", "lengths.response"),
    "response_mean": ("--response-mean", "lengths.response_mean"),
    "response_cv": ("--response-cv", "lengths.response_cv"),
    "critic": ("--critic", "critic"),
    "reward": ("--reward", "reward.kind"),
    "reward_model": ("--reward-model", "reward.model"),
    "judge_tokens": ("--judge-tokens", "reward.judge_tokens"),
    "reward_latency": ("--reward-latency", "reward.latency"),
    "reward_parallel": ("--reward-parallel", "reward.parallel"),
    "train_precision": ("--precision", "precision.train"),
    "rollout_precision": ("--rollout-precision", "precision.rollout"),
    "lora_rank": ("--lora", "lora"),
    "objective": ("--objective", "limits.objective"),
    "deadline": ("--deadline", "limits.deadline"),
    "steps": ("--steps", "limits.steps"),
    "budget": ("--budget", "limits.budget"),
    "max_gpus": ("--max-gpus", "limits.max_gpus"),
    "memory_margin": ("--memory-margin", "limits.memory_margin"),
    "framework": ("--framework", "limits.framework"),
    "time_limit": ("--time-limit", "limits.time_limit"),
    "solver": ("--solver", "limits.solver"),
    "seed": ("--seed", "limits.seed"),
    "staleness": ("--staleness", "limits.staleness"),
    "allow": ("--allow", "limits.allow"),
    "fusion": ("--fusion", "limits.fusion"),
    "sync": ("--sync", "limits.sync"),
    "policy": ("--policy", "limits.policy"),
    "share": ("--share", "limits.share"),
    "apart": ("--apart", "limits.apart"),
    "fix": ("--fix", "limits.fix"),
    "alternatives": ("--alternatives", "limits.alternatives"),
    "prices": ("--price", "prices"),
    "profile": ("--profile", "profile"),
    "strategies": ("strategies", "strategies"),
}
"""Field -> (flag, key in the workload file)."""


def override(base: WorkloadSpec, flags: WorkloadSpec) -> WorkloadSpec:
    """`base` (from a file) with every field that `flags` gives; `--gpus` and `--cluster` replace pools."""
    given = [f.name for f in fields(flags) if f.name in PLACES and getattr(flags, f.name) not in (None, ())]
    result = base
    for name in given:
        result = replace(result, **{name: getattr(flags, name)})
    if "gpus" in given:
        result = replace(result, pools=())
    if "cluster" in given and "gpus" not in given:
        result = replace(
            result, gpus=None, pools=(), inter_pool=flags.inter_pool, inter_pool_total=flags.inter_pool_total
        )
    return replace(result, flags=frozenset(given))
