"""The strategies of a fixed configuration (`rlplan estimate`) -> domain values."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import Assumption
from planner.domain.request import FixedWorker, PlanRequest
from planner.domain.stages import StageKind, Worker, WorkerName, build_graph
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    ExpertExchange,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)
from planner.errors import InvalidInputError, nearest
from planner.files.problems import Problems
from planner.files.spec import WorkerSpec, WorkloadSpec

DEFAULT_ENGINE_FRACTION = 0.85
DEFAULT_NUM_SEQS = 256

E = TypeVar("E", bound=StrEnum)

_TRAINER_ONLY = (
    "vpp", "cp", "context_parallel", "etp", "sharding", "shard_ranks", "micro_batch_tokens", "inference_tokens",
    "recompute", "recompute_layers", "offload",
)  # fmt: skip
_ENGINE_CHOICES = ("engine_fraction", "max_num_seqs", "idle")
_ENGINE_ONLY = (*_ENGINE_CHOICES, "attention_dp", "exchange")


def build_fixed_workers(spec: WorkloadSpec, request: PlanRequest) -> tuple[FixedWorker, ...]:
    """The placed workers of `spec.strategies`; raises InvalidInputError with every problem.

    Every worker of the workload's stage graph must be given exactly once, on a given cluster.
    """
    where = spec.place("strategies")
    cluster = request.cluster
    if not spec.strategies:
        raise InvalidInputError("is missing", where=where, accepted="one entry per worker; a search needs rlplan plan")
    if cluster is None:
        raise InvalidInputError("a fixed configuration needs a fixed cluster", where=spec.place("gpus"))
    workers = {worker.name: worker for worker in build_graph(request.workload).workers}
    problems = Problems()
    found: list[FixedWorker] = []
    for index, item in enumerate(spec.strategies):
        try:
            worker = _worker(item, workers, f"{where}[{index}]")
            if any(other.worker is worker.name for other in found):
                raise InvalidInputError(f"{worker.name.value} is given twice", where=f"{where}[{index}].worker")
            found.append(_fixed(item, worker, request, cluster, f"{where}[{index}]"))
        except InvalidInputError as error:
            problems.add(error)
    for name in workers:
        if not problems and all(other.worker is not name for other in found):
            problems.add(InvalidInputError(f"{name.value} is missing", where=where))
    problems.raise_if_any()
    return tuple(found)


def fixed_assumptions(spec: WorkloadSpec, workers: tuple[FixedWorker, ...]) -> tuple[Assumption, ...]:
    """What the strategies of `spec` leave open and `build_fixed_workers` filled in, one assumption per worker."""
    result = []
    for item, placed in zip(spec.strategies, workers, strict=True):
        filled = ", ".join(
            f"{name.replace('_', ' ')} {getattr(placed.strategy, name)}"
            for name in _choices(placed)
            if getattr(item, name) is None
        )
        if filled:
            what = f"strategy of {placed.worker.value}"
            result.append(Assumption(what=what, value=filled, source="default", effect="give them in the file"))
    return tuple(result)


def _choices(placed: FixedWorker) -> tuple[str, ...]:
    """Keys whose default decides memory or time of a worker."""
    if isinstance(placed.strategy, RolloutStrategy):
        return _ENGINE_CHOICES
    if placed.worker in (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER):
        return ("sharding", "micro_batch_tokens", "inference_tokens", "recompute", "offload")
    return ("sharding", "inference_tokens", "offload")


def _worker(item: WorkerSpec, workers: dict[WorkerName, Worker], where: str) -> Worker:
    name = next((n for n in workers if n.value == item.worker.strip().lower().replace("_", " ")), None)
    if name is None:
        known = [n.value for n in workers]
        raise InvalidInputError(
            f"{item.worker[:60]!r} is no worker of this workload",
            where=f"{where}.worker",
            accepted=", ".join(known),
            suggestion=nearest(item.worker, known),
        )
    return workers[name]


def _fixed(item: WorkerSpec, worker: Worker, request: PlanRequest, cluster: Cluster, where: str) -> FixedWorker:
    pool = _pool(item, cluster, where)
    num_gpus = item.num_gpus if item.num_gpus is not None else pool.num_gpus - item.first_gpu
    if num_gpus < 1 or item.first_gpu + num_gpus > pool.num_gpus:
        last = item.first_gpu + max(num_gpus, 1) - 1
        raise InvalidInputError(
            f"GPUs {item.first_gpu} to {last} are not all in pool {pool.name}",
            where=where,
            accepted=f"0 to {pool.num_gpus - 1}",
        )
    is_engine = worker.kind is StageKind.GENERATION
    for name in _TRAINER_ONLY if is_engine else _ENGINE_ONLY:
        if getattr(item, name) is not None:
            raise InvalidInputError(f"has no meaning for the {worker.name.value}", where=f"{where}.{name}")
    strategy = _engine(item, num_gpus, where) if is_engine else _trainer(item, num_gpus, request, where)
    return FixedWorker(
        worker=worker.name, pool=pool.name, first_gpu=item.first_gpu, num_gpus=num_gpus, strategy=strategy
    )


def _pool(item: WorkerSpec, cluster: Cluster, where: str) -> Pool:
    if item.pool is None:
        return cluster.pools[0]
    known = [pool.name for pool in cluster.pools]
    if item.pool not in known:
        raise InvalidInputError(
            f"{item.pool!r} is no pool",
            where=f"{where}.pool",
            accepted=", ".join(known),
            suggestion=nearest(item.pool, known),
        )
    return cluster.pool(item.pool)


def _require_divides(product: int, num_gpus: int, names: str, where: str) -> None:
    if num_gpus % product:
        raise InvalidInputError(f"{names} = {product} does not divide {num_gpus} GPUs", where=where)


def _engine(item: WorkerSpec, num_gpus: int, where: str) -> RolloutStrategy:
    groups = item.attention_dp or 1
    names = "tp x pp" if groups == 1 else "tp x attention_dp x pp"
    _require_divides(item.tp * groups * item.pp, num_gpus, names, where)
    return RolloutStrategy(
        num_gpus=num_gpus,
        tp=item.tp,
        pp=item.pp,
        ep=item.ep,
        engine_fraction=item.engine_fraction or DEFAULT_ENGINE_FRACTION,
        max_num_seqs=item.max_num_seqs or DEFAULT_NUM_SEQS,
        idle=_choice(item.idle, EngineIdle, EngineIdle.SLEEP, f"{where}.idle"),
        attention_dp=groups,
        exchange=_choice(item.exchange, ExpertExchange, ExpertExchange.GATHER, f"{where}.exchange"),
    )


def _trainer(item: WorkerSpec, num_gpus: int, request: PlanRequest, where: str) -> TrainerStrategy:
    cp, etp = item.cp or 1, item.etp or 1
    _require_divides(item.tp * item.pp * cp, num_gpus, "tp x pp x cp", where)
    _require_divides(item.ep * etp * item.pp, num_gpus, "ep x etp x pp", where)
    data_ranks = num_gpus // (item.tp * item.pp)
    shard_ranks = item.shard_ranks or data_ranks
    if data_ranks % shard_ranks:
        raise InvalidInputError(
            f"{shard_ranks} does not divide the {data_ranks} data-parallel ranks", where=f"{where}.shard_ranks"
        )
    recompute = _choice(item.recompute, Recompute, Recompute.FULL, f"{where}.recompute")
    layers = item.recompute_layers or 0
    if (recompute is Recompute.PARTIAL) != (layers > 0):
        raise InvalidInputError(
            f"{layers} with recompute: {recompute.value}", where=f"{where}.recompute_layers",
            accepted="a number of layers per pipeline stage with partial, none with the other levels",
        )  # fmt: skip
    # A micro-batch that cannot hold the longest sequence could not run.
    tokens = item.micro_batch_tokens or request.workload.max_tokens
    return TrainerStrategy(
        num_gpus=num_gpus,
        tp=item.tp,
        pp=item.pp,
        vpp=item.vpp or 1,
        cp=cp,
        context_parallel=_choice(
            item.context_parallel, ContextParallel, ContextParallel.RING, f"{where}.context_parallel"
        ),
        ep=item.ep,
        etp=etp,
        sharding=_choice(item.sharding, Sharding, Sharding.ZERO1, f"{where}.sharding"),
        shard_ranks=shard_ranks,
        micro_batch_tokens=tokens,
        inference_tokens=item.inference_tokens or tokens,
        recompute=recompute,
        offload=_choice(item.offload, Offload, Offload.NONE, f"{where}.offload"),
        recompute_layers=layers,
    )


def _choice(text: str | None, kind: type[E], default: E, where: str) -> E:
    if text is None:
        return default
    names = [member.value for member in kind]
    if text.lower() not in names:
        raise InvalidInputError(
            f"{text[:60]!r} is not known", where=where, accepted=", ".join(names), suggestion=nearest(text, names)
        )
    return kind(text.lower())
