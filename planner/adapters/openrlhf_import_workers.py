"""OpenRLHF's roles: which GPUs they get, and the strategy of each.

`--ds.*` holds for every DeepSpeed model. Token budgets are per GPU and multiplied by ring and tensor parallelism
(openrlhf/trainer/ppo_utils/replay_buffer.py), static micro-batches count sequences per data-parallel rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_trainer import (
    Degrees,
    Place,
    Tokens,
    divides,
    engine_words,
    fixed,
    forward_only,
    holds_longest,
    node_shape,
    trainer_words,
)
from planner.adapters.import_values import Values
from planner.adapters.imported import Knob
from planner.domain.request import FixedWorker
from planner.domain.stages import WorkerName
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)

VLLM_MAX_SEQS = 256
"""vLLM's own limit of sequences on most GPUs (vllm/engine/arg_utils.py); OpenRLHF has no flag for it."""
_SHARDINGS = {0: Sharding.DDP, 1: Sharding.ZERO1, 2: Sharding.ZERO2, 3: Sharding.ZERO3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """GPUs of each role: (first, number); roles that are not there are None."""

    actor: tuple[int, int]
    engines: tuple[int, int] | None
    reference: tuple[int, int] | None
    critic: tuple[int, int] | None
    reward: tuple[int, int] | None
    num_nodes: int
    gpus_per_node: int

    @property
    def engines_share(self) -> bool:
        return self.engines is not None and self.engines[0] == self.actor[0]


def read_layout(values: Values, *, has_reference: bool, has_critic: bool, has_reward: bool) -> Layout:
    """cli/train_ppo_ray.py train: one placement group where models are colocated, else GPUs of their own."""
    asynchronous = values.flag("train.async_enable")
    colocate_all = values.flag("train.colocate_all")
    per_node: list[int] = []
    end = 0

    def size(role: str) -> int:
        per_node.append(values.whole(f"{role}.num_gpus_per_node", 8, minimum=1))
        return values.whole(f"{role}.num_nodes", 1, minimum=1) * per_node[-1]

    def take(count: int) -> tuple[int, int]:
        nonlocal end
        start, end = end, end + count
        return start, count

    actor = take(size("actor"))
    num_engines = values.optional_whole("vllm.num_engines") or 0
    engine_gpus = num_engines * values.whole("vllm.tensor_parallel_size", 1, minimum=1)
    engines = None
    if engine_gpus:
        engines = (0, engine_gpus) if colocate_all and not asynchronous else take(engine_gpus)
    reference = critic = reward = None
    if has_reference:
        count = size("ref")
        shared = colocate_all or values.flag("train.colocate_actor_ref")
        reference = (0, count) if shared else take(count)
    if has_critic:
        critic = (0, size("critic")) if colocate_all else take(size("critic"))
    if has_reward:
        joins = values.flag("train.colocate_critic_reward") and critic is not None
        if joins and critic is not None and not colocate_all:
            reward = (critic[0], size("reward"))
        else:
            reward = (0, size("reward")) if colocate_all else take(size("reward"))
    nodes, gpus = node_shape(end, per_node)
    return Layout(
        actor=actor, engines=engines, reference=reference, critic=critic, reward=reward, num_nodes=nodes,
        gpus_per_node=gpus,
    )  # fmt: skip


def read_workers(values: Values, layout: Layout, max_tokens: int) -> tuple[FixedWorker, ...]:
    """The workers whose degrees divide their GPUs."""
    degrees = Degrees(
        tp=values.whole("ds.tensor_parallel_size", 1, minimum=1), cp=values.whole("ds.ring_attn_size", 1, minimum=1)
    )
    stage = values.whole("ds.zero_stage", 2)
    if stage not in _SHARDINGS:
        values.wrong("ds.zero_stage", stage, "0, 1, 2 or 3")
    sharding = _SHARDINGS.get(stage, Sharding.ZERO2)
    tokens = _tokens(values, degrees, max_tokens)
    places: list[Place] = []
    if layout.engines is not None:
        places.append(
            Place(
                worker=WorkerName.ROLLOUT_ENGINE, first_gpu=layout.engines[0], num_gpus=layout.engines[1],
                strategy=_engines(values, layout.engines[1], shares=layout.engines_share),
            )
        )  # fmt: skip
    for worker, name, where in (
        (WorkerName.ACTOR_TRAINER, "actor", layout.actor),
        (WorkerName.CRITIC_TRAINER, "critic", layout.critic),
    ):
        if where is not None:
            strategy = _trainer(values, name, degrees, sharding, tokens, where[1])
            places.append(Place(worker=worker, first_gpu=where[0], num_gpus=where[1], strategy=strategy))
    inference = Sharding.ZERO3 if sharding is Sharding.ZERO3 else Sharding.DDP
    for worker, name, where in (
        (WorkerName.REFERENCE, "ref", layout.reference),
        (WorkerName.REWARD_MODEL, "reward", layout.reward),
    ):
        if where is None or not divides(values, f"{name}.num_gpus_per_node", degrees, where[1]):
            continue
        found = forward_only(
            degrees, where[1], tokens.inference, sharding=inference, swaps=values.flag(f"{name}.offload"),
            kind=ContextParallel.RING,
        )  # fmt: skip
        values.say(worker.value, trainer_words(found), f"--ds.*, --{name}.offload")
        places.append(Place(worker=worker, first_gpu=where[0], num_gpus=where[1], strategy=found))
    return fixed(places)


def _engines(values: Values, num_gpus: int, *, shares: bool) -> RolloutStrategy | None:
    fraction = values.number("vllm.gpu_memory_utilization", 0.95)
    if not 0 < fraction <= 1:
        values.wrong("vllm.gpu_memory_utilization", fraction, "a share of GPU memory above 0 and up to 1")
        return None
    seqs = values.optional_whole("vllm.max_num_seqs", minimum=1)
    if seqs is None:
        values.find(
            "vllm.max_num_seqs", Severity.NOTE,
            f"OpenRLHF has no flag for the sequences of an engine: vLLM's own limit, taken as {VLLM_MAX_SEQS}",
            "--set vllm.max_num_seqs=N if your vLLM decides otherwise",
        )  # fmt: skip
    sleeps = shares and values.flag("vllm.enable_sleep")
    strategy = RolloutStrategy(
        num_gpus=num_gpus, tp=values.whole("vllm.tensor_parallel_size", 1, minimum=1), pp=1, ep=1,
        engine_fraction=fraction, max_num_seqs=seqs or VLLM_MAX_SEQS,
        idle=EngineIdle.SLEEP if sleeps else EngineIdle.RESIDENT,
    )  # fmt: skip
    values.say("engines", engine_words(strategy), values.origin("vllm.tensor_parallel_size"))
    return strategy


def _tokens(values: Values, degrees: Degrees, max_tokens: int) -> Tokens:
    if values.flag("train.dynamic_batch_enable"):
        ranks = degrees.tp * degrees.cp
        train = values.whole("train.max_tokens_per_gpu", 16192, minimum=1)
        inference = values.optional_whole("rollout.max_tokens_per_gpu", minimum=1) or train
        # openrlhf/utils/seqlen_balancing.py get_minimum_num_micro_batch_size: first fit.
        return Tokens(
            train=holds_longest(train * ranks, max_tokens), inference=holds_longest(inference * ranks, max_tokens)
        )
    train = values.whole("train.micro_batch_size", 1, minimum=1)
    inference = values.whole("rollout.micro_batch_size", 1, minimum=1)
    values.say(
        "micro-batches", f"{train} sequences ({inference} forward), up to {train * max_tokens:,} tokens",
        "--train.micro_batch_size, --rollout.micro_batch_size",
    )  # fmt: skip
    return Tokens(train=train * max_tokens, inference=inference * max_tokens)


def _trainer(
    values: Values, name: str, degrees: Degrees, sharding: Sharding, tokens: Tokens, num_gpus: int
) -> TrainerStrategy | None:
    if not divides(values, f"{name}.num_gpus_per_node", degrees, num_gpus):
        return None
    recomputes = values.flag("actor.gradient_checkpointing_enable")
    strategy = TrainerStrategy(
        num_gpus=num_gpus, tp=degrees.tp, pp=1, vpp=1, cp=degrees.cp, context_parallel=ContextParallel.RING, ep=1,
        etp=1, sharding=sharding, shard_ranks=num_gpus // degrees.tp, micro_batch_tokens=tokens.train,
        inference_tokens=tokens.inference, recompute=Recompute.FULL if recomputes else Recompute.NONE,
        offload=_offload(values),
    )  # fmt: skip
    values.say(name, trainer_words(strategy), "--ds.*")
    return strategy


def _offload(values: Values) -> Offload:
    if values.flag("ds.adam_offload"):
        return Offload.CPU_OPTIMIZER
    return Offload.OPTIMIZER_SWAP if values.flag("ds.enable_sleep") else Offload.NONE


def knobs(workers: tuple[FixedWorker, ...], *, is_dynamic: bool) -> tuple[Knob, ...]:
    """How OpenRLHF writes the fields of the workers that a configuration has."""
    found: list[Knob] = []
    for worker in workers:
        name = worker.worker
        if name is WorkerName.ROLLOUT_ENGINE:
            found += [
                Knob(worker=name, field="tp", keys=("--vllm.tensor_parallel_size",)),
                Knob(worker=name, field="engine_fraction", keys=("--vllm.gpu_memory_utilization",)),
            ]
            continue
        found += [
            Knob(worker=name, field="tp", keys=("--ds.tensor_parallel_size",)),
            Knob(worker=name, field="cp", keys=("--ds.ring_attn_size",)),
        ]
        if name in (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER):
            stages = tuple((member.value, (str(stage),)) for stage, member in _SHARDINGS.items())
            found.append(Knob(worker=name, field="sharding", keys=("--ds.zero_stage",), words=stages))
            if is_dynamic and worker.strategy.tp == 1:
                # A knob divides by one degree; OpenRLHF multiplies by ring and tensor parallelism.
                keys = {"micro_batch_tokens": "--train", "inference_tokens": "--rollout"}
                found += [
                    Knob(worker=name, field=field, keys=(f"{key}.max_tokens_per_gpu",), divisor_field="cp")
                    for field, key in keys.items()
                ]
    return tuple(found)
