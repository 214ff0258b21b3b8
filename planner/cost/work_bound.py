"""The work bound of an iteration: no plan takes less time than its total work at the peak rate of all GPUs.

Work in FLOP is that of `planner.cost.work_depth`: prompts read once per group, no recomputation, nothing padded. Work
in a lower precision counts as the 16-bit work that takes as long on the GPU that gains most from it, so no division
of the work among pools can beat the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.jobs import engine_job, trainer_job
from planner.cost.work_depth import Head, Lengths, forward_flop, rollout_flop, training_flop
from planner.cost.worker import TrainerJob
from planner.domain.hardware import Gpu, Precision
from planner.domain.stages import StageGraph, StageKind, StageName, WorkerName
from planner.domain.workload import RewardKind, TokenLoad, Workload


def head_of(workload: Workload, worker: WorkerName) -> Head:
    """What a worker's model puts on top of its layers."""
    if worker is WorkerName.CRITIC_TRAINER:
        return Head.TOKEN_SCALAR
    if worker is WorkerName.REWARD_MODEL:
        return Head.TOKEN_SCALAR if workload.reward.kind is RewardKind.PROCESS_MODEL else Head.SEQUENCE_SCALAR
    return Head.VOCABULARY


def trainer_flop(job: TrainerJob, head: Head, load: TokenLoad, *, trains: bool) -> float:
    """FLOP of an update (all epochs) or of a forward pass over the load."""
    lengths = Lengths.of_load(load)
    if not trains:
        return load.num_sequences * forward_flop(job.model, head, lengths)
    return job.num_epochs * load.num_sequences * training_flop(job.model, head, lengths, lora_rank=job.lora_rank)


def peak_flop_per_s(gpu: Gpu, precision: Precision) -> float:
    """Peak rate; what a GPU has no mode for runs in its first one."""
    return gpu.peak(precision) if gpu.supports(precision) else gpu.peak_flop_per_s[0][1]


def stage_flop(workload: Workload, graph: StageGraph, name: StageName) -> float:
    """Least work of a stage; 0 for transfers and work on the host."""
    stage = graph.stage(name)
    if stage.worker is None or name is StageName.SECOND_ROLLOUT:
        # All responses of a split rollout count with its first part.
        return 0.0
    worker = graph.worker(stage.worker)
    if stage.kind is StageKind.GENERATION:
        return rollout_flop(worker.model, engine_job(workload, worker).load)
    job = trainer_job(workload, graph, worker)
    trains = stage.kind is StageKind.TRAINING
    load = job.train_load if trains else dict(job.inference_loads)[name]
    assert load is not None
    return trainer_flop(job, head_of(workload, worker.name), load, trains=trains)


def iteration_flop(workload: Workload, graph: StageGraph, gpus: Sequence[Gpu]) -> float:
    """Least work of an iteration in 16-bit FLOP on the given kinds of GPUs."""
    total = 0.0
    for stage in graph.stages:
        is_rollout = stage.kind is StageKind.GENERATION
        precision = workload.rollout_precision if is_rollout else workload.train_precision
        ratio = max(peak_flop_per_s(gpu, precision) / peak_flop_per_s(gpu, Precision.BF16) for gpu in gpus)
        total += stage_flop(workload, graph, stage.name) / ratio
    return total
