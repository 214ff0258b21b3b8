"""The workload file (YAML) as pydantic models; only what the file says, defaults are in `workload`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from planner.files.gpus import MAX_POOLS
from planner.files.schema import raise_for
from planner.files.spec import ClusterSpec, PoolSpec, WorkerSpec, WorkloadSpec
from planner.files.yaml_text import read_yaml

Name = Annotated[str, Field(min_length=1, max_length=200)]
PathText = Annotated[str, Field(min_length=1, max_length=4096)]
Quantity = Annotated[str, Field(min_length=1, max_length=40)]
MAX_OUT = 4096
OutNodes = Annotated[int, Field(ge=0, le=100_000)] | Annotated[list[Name], Field(max_length=MAX_OUT)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class PoolFile(_Section):
    """Homogeneous nodes: either a GPU type (generic nodes) or a node type of the catalog."""

    gpu: Name | None = Field(default=None, description="GPU type; generic nodes. See `rlplan hardware`.")
    node: Name | None = Field(default=None, description="Node type of the catalog.")
    nodes: int = Field(ge=1, le=100_000, description="Number of nodes.")
    name: Name | None = Field(default=None, description="Name of the pool; default: the type.")
    gpus_per_node: int | None = Field(
        default=None, ge=1, le=1024, description="GPUs of a generic node, other than it has in the catalog."
    )
    price: Quantity | None = Field(default=None, description="Per GPU, such as '2.50 USD/hour'.")
    host_ram: Quantity | None = Field(default=None, description="Per node, such as '1 TiB'.")
    nic: Quantity | None = Field(default=None, description="Per GPU, one direction, such as '400 Gbit/s'.")
    out: OutNodes | None = Field(
        default=None, description="Nodes that cannot be used: how many, or which (node-0 is the first)."
    )
    oversubscription: float | None = Field(
        default=None, ge=1, le=64, description="NIC rate below a leaf switch over its uplinks; 1 is non-blocking."
    )
    rails: bool | None = Field(
        default=None, description="GPU i of every node is on rail switch i; the oversubscribed level joins the rails."
    )
    nodes_per_leaf: int | None = Field(
        default=None, ge=1, le=100_000, description="Nodes below one leaf switch; default: 1, with rails all of them."
    )
    cpu_cores: int | None = Field(
        default=None, ge=1, le=100_000, description="Per node, that sandboxes and reward code may use."
    )

    @field_validator("out", mode="before")
    @classmethod
    def _count_or_names(cls, value: object) -> object:
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        is_names = isinstance(value, list) and all(isinstance(item, str) and item for item in value)
        if value is None or is_count or (is_names and isinstance(value, list) and len(value) <= MAX_OUT):
            return value
        raise ValueError("is neither a number of nodes, such as 1, nor a list of nodes, such as [node-17]")

    def to_spec(self) -> PoolSpec:
        return PoolSpec(
            nodes=self.nodes, gpu=self.gpu, node=self.node, name=self.name, gpus_per_node=self.gpus_per_node,
            price=self.price, host_ram=self.host_ram, nic=self.nic,
            out=tuple(self.out) if isinstance(self.out, list) else self.out, oversubscription=self.oversubscription,
            rails=self.rails, nodes_per_leaf=self.nodes_per_leaf, cpu_cores=self.cpu_cores,
        )  # fmt: skip


class ClusterFile(_Section):
    """All pools, and the link between them."""

    pools: list[PoolFile] = Field(min_length=1, max_length=MAX_POOLS)
    inter_pool: Quantity | None = Field(default=None, description="Link between pools per GPU, such as '100 Gbit/s'.")
    inter_pool_total: Quantity | None = Field(
        default=None, description="What all GPUs together can send between pools, such as '800 Gbit/s'."
    )

    def to_spec(self) -> ClusterSpec:
        return ClusterSpec(
            pools=tuple(pool.to_spec() for pool in self.pools), inter_pool=self.inter_pool,
            inter_pool_total=self.inter_pool_total,
        )  # fmt: skip


class BatchFile(_Section):
    """One iteration."""

    prompts: int | None = Field(default=None, description="Prompts per iteration.")
    group: int | None = Field(default=None, description="Responses per prompt.")
    optimizer_steps: int | None = Field(default=None, description="Mini-batches per epoch.")
    epochs: int | None = Field(default=None, description="Passes over the batch.")
    kl: float | None = Field(default=None, description="KL coefficient; 0 removes the reference model.")
    oversampling: float | None = Field(default=None, description="Prompts generated per prompt kept.")


class LengthsFile(_Section):
    """Tokens per sequence."""

    prompt: int | None = Field(default=None, description="Longest prompt.")
    prompt_mean: float | None = Field(default=None, description="Mean prompt.")
    response: int | None = Field(default=None, description="Longest response.")
    response_mean: float | None = Field(default=None, description="Mean response, after truncation.")
    response_cv: float | None = Field(default=None, description="Standard deviation over mean of the response length.")


class RewardFile(_Section):
    """How a response is scored."""

    kind: Name | None = Field(default=None, description="rule, model, process-model, judge or sandbox.")
    model: PathText | None = Field(default=None, description="Reward model or judge; default: the actor's model.")
    judge_tokens: int | None = Field(default=None, description="Tokens that a judge writes per verdict.")
    latency: Quantity | None = Field(default=None, description="Sandbox time per response, such as '2 s'.")
    parallel: int | None = Field(default=None, description="Responses scored in sandboxes at the same time.")


class PrecisionFile(_Section):
    """Number formats of matrix inputs: bf16, fp8 or fp4."""

    train: Name | None = None
    rollout: Name | None = None


class LimitsFile(_Section):
    """What is minimised, within what."""

    objective: Name | None = Field(default=None, description="time, cost or gpus.")
    deadline: Quantity | None = Field(default=None, description="For all steps, such as '12h'; needs steps.")
    budget: Quantity | None = Field(default=None, description="For all steps, such as '5000 USD'; needs steps.")
    steps: int | None = Field(default=None, description="Iterations of the whole run.")
    max_gpus: int | None = None
    memory_margin: Quantity | None = Field(default=None, description="Share of GPU memory to keep free, such as '10%'.")
    framework: Name | None = Field(default=None, description="Only plans that this framework can run.")
    time_limit: Quantity | None = Field(default=None, description="Of the search, such as '60s'.")
    solver: Name | None = Field(
        default=None, description="auto (own exact enumeration, CP-SAT where it grows large), cpsat or ilp."
    )
    seed: int | None = None
    staleness: int | None = Field(default=None, description="Largest version lag that is permitted; 0: synchronous.")
    allow: list[Name] = Field(default=[], max_length=8, description="partial-rollouts.")
    fusion: Name | None = Field(default=None, description="Stage fusion: none, inter or all.")
    sync: Name | None = Field(default=None, description="Weight sync: full, micro-groups, shard-to-shard or shards.")
    policy: Name | None = Field(default=None, description="Order of stages: planned, fifo or sequential.")
    share: list[Name] = Field(default=[], max_length=8, description="Workers that share GPUs, such as actor+reference.")
    apart: list[Name] = Field(default=[], max_length=8, description="Workers of which no two meet on a GPU.")
    fix: list[Name] = Field(default=[], max_length=8, description="Fixed strategies, such as 'actor: tp=8, pp=2'.")
    alternatives: int | None = Field(default=None, description="Other structures that are listed.")


class WorkerFile(_Section):
    """One worker of a fixed configuration, for `rlplan estimate`."""

    worker: Name = Field(description="rollout engine, actor trainer, reference, critic trainer or reward model.")
    pool: Name | None = Field(default=None, description="Default: the first pool.")
    first_gpu: int = Field(default=0, ge=0, le=100_000)
    num_gpus: int | None = Field(default=None, ge=1, le=100_000, description="Default: the rest of the pool.")
    tp: int = Field(default=1, ge=1, le=4096)
    pp: int = Field(default=1, ge=1, le=4096)
    vpp: int | None = Field(default=None, ge=1, le=4096)
    cp: int | None = Field(default=None, ge=1, le=4096)
    context_parallel: Name | None = Field(default=None, description="ring or ulysses.")
    ep: int = Field(default=1, ge=1, le=4096)
    etp: int | None = Field(default=None, ge=1, le=4096)
    sharding: Name | None = Field(default=None, description="ddp, zero1, zero2 or zero3.")
    shard_ranks: int | None = Field(default=None, ge=1, le=100_000, description="Default: all data-parallel ranks.")
    micro_batch_tokens: int | None = Field(default=None, ge=1, le=2**26, description="Default: one longest sequence.")
    inference_tokens: int | None = Field(default=None, ge=1, le=2**26, description="Default: micro_batch_tokens.")
    recompute: Name | None = Field(default=None, description="none, selective, full or partial.")
    recompute_layers: int | None = Field(
        default=None, ge=0, le=4096, description="With partial: recomputed layers at the start of each pipeline stage."
    )
    offload: Name | None = None
    engine_fraction: float | None = Field(default=None, gt=0, le=1, description="Engines: share of GPU memory.")
    max_num_seqs: int | None = Field(default=None, ge=1, le=2**20, description="Engines: sequences decoded at a time.")
    idle: Name | None = Field(default=None, description="Engines: resident or sleep.")
    attention_dp: int | None = Field(
        default=None, ge=1, le=4096, description="Engines: groups of tp ranks with attention and a cache of their own."
    )
    exchange: Name | None = Field(default=None, description="Engines with attention_dp: gather or all-to-all.")

    def to_spec(self) -> WorkerSpec:
        return WorkerSpec(
            worker=self.worker, pool=self.pool, first_gpu=self.first_gpu, num_gpus=self.num_gpus, tp=self.tp,
            pp=self.pp, vpp=self.vpp, cp=self.cp, context_parallel=self.context_parallel, ep=self.ep, etp=self.etp,
            sharding=self.sharding, shard_ranks=self.shard_ranks, micro_batch_tokens=self.micro_batch_tokens,
            inference_tokens=self.inference_tokens, recompute=self.recompute, recompute_layers=self.recompute_layers,
            offload=self.offload,
            engine_fraction=self.engine_fraction, max_num_seqs=self.max_num_seqs, idle=self.idle,
            attention_dp=self.attention_dp, exchange=self.exchange,
        )  # fmt: skip


class WorkloadFile(_Section):
    """A workload for `rlplan plan` or, with strategies, for `rlplan estimate`. Every key but model has a default."""

    model: PathText | None = Field(default=None, description="Catalog id, Hugging Face id, alias or path.")
    algorithm: Name | None = None
    gpus: Annotated[str, Field(max_length=400)] | None = Field(default=None, description="Such as 32xh100; or cluster.")
    cluster: ClusterFile | None = None
    batch: BatchFile = BatchFile()
    lengths: LengthsFile = LengthsFile()
    critic: PathText | None = Field(default=None, description="Critic model; default: the actor's model.")
    reward: RewardFile = RewardFile()
    precision: PrecisionFile = PrecisionFile()
    lora: int | None = Field(default=None, description="LoRA rank; default: full training.")
    limits: LimitsFile = LimitsFile()
    prices: list[Name] = Field(default=[], max_length=64, description="Such as 'h100=2.50', USD per GPU-hour.")
    strategies: list[WorkerFile] = Field(default=[], max_length=16)

    def to_spec(self, file: str) -> WorkloadSpec:
        batch, lengths, reward, limits = self.batch, self.lengths, self.reward, self.limits
        return WorkloadSpec(
            model=self.model, algorithm=self.algorithm, gpus=self.gpus,
            pools=tuple(pool.to_spec() for pool in self.cluster.pools) if self.cluster else (),
            inter_pool=self.cluster.inter_pool if self.cluster else None,
            inter_pool_total=self.cluster.inter_pool_total if self.cluster else None,
            num_prompts=batch.prompts, group_size=batch.group, num_optimizer_steps=batch.optimizer_steps,
            num_epochs=batch.epochs, kl_coefficient=batch.kl, oversampling_ratio=batch.oversampling,
            prompt_max=lengths.prompt, prompt_mean=lengths.prompt_mean, response_max=lengths.response,
            response_mean=lengths.response_mean, response_cv=lengths.response_cv, critic=self.critic,
            reward=reward.kind, reward_model=reward.model, judge_tokens=reward.judge_tokens,
            reward_latency=reward.latency, reward_parallel=reward.parallel, train_precision=self.precision.train,
            rollout_precision=self.precision.rollout, lora_rank=self.lora, objective=limits.objective,
            deadline=limits.deadline, steps=limits.steps, budget=limits.budget, max_gpus=limits.max_gpus,
            memory_margin=limits.memory_margin, framework=limits.framework, time_limit=limits.time_limit,
            solver=limits.solver, seed=limits.seed, staleness=limits.staleness, allow=tuple(limits.allow),
            fusion=limits.fusion, sync=limits.sync, policy=limits.policy, share=tuple(limits.share),
            apart=tuple(limits.apart), fix=tuple(limits.fix), alternatives=limits.alternatives,
            prices=tuple(self.prices), strategies=tuple(worker.to_spec() for worker in self.strategies), file=file,
        )  # fmt: skip


def read_workload(path: Path) -> WorkloadSpec:
    """The workload file at `path`; raises InvalidInputError with every problem that it has."""
    content = read_yaml(path, kind="workload file")
    try:
        return WorkloadFile.model_validate(content).to_spec(str(path))
    except ValidationError as error:
        raise_for(error, WorkloadFile, where=str(path))
        raise


def read_cluster(path: Path) -> ClusterSpec:
    """The cluster file at `path`: the keys of a workload file's `cluster`; raises InvalidInputError as above."""
    content = read_yaml(path, kind="cluster file")
    try:
        return ClusterFile.model_validate(content).to_spec()
    except ValidationError as error:
        raise_for(error, ClusterFile, where=str(path))
        raise
