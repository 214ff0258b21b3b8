"""What each worker of a stage graph does in one iteration, as jobs for the cost model."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.worker import ROLLOUT_MOMENTS, EngineJob, Moment, TrainerJob
from planner.domain.execution import IN_STEP, Execution, ExecutionMode, Fusion
from planner.domain.stages import ROLLOUT_ENGINES, StageGraph, StageKind, StageName, Worker, WorkerName
from planner.domain.workload import GenerationLoad, TokenLoad, Workload


def trainer_job(workload: Workload, graph: StageGraph, worker: Worker, execution: Execution = IN_STEP) -> TrainerJob:
    """The job of a training or forward-only worker.

    Assessors score what was generated (discarded groups included where the reward decides what is
    discarded); log-probs, values and updates run on what is kept.
    """
    train_stage = next((name for name in worker.stages if graph.stage(name).kind is StageKind.TRAINING), None)
    inference = tuple(
        (name, _inference_load(workload, name))
        for name in worker.stages
        if graph.stage(name).kind is StageKind.INFERENCE
    )
    is_actor_trainer = worker.name is WorkerName.ACTOR_TRAINER
    return TrainerJob(
        worker=worker.name,
        model=worker.model,
        train_stage=train_stage,
        train_load=None if train_stage is None else workload.token_load(workload.num_samples),
        num_optimizer_steps=workload.num_optimizer_steps,
        num_epochs=workload.num_epochs,
        inference_loads=inference,
        has_vocabulary_head=worker.name in (WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE),
        lora_rank=workload.lora_rank if is_actor_trainer else None,
        precision=workload.train_precision,
        sends_weights=is_actor_trainer,
        rollout_precision=workload.rollout_precision,
        sharded_syncs=execution.sharded_syncs if is_actor_trainer else (),
    )


def _inference_load(workload: Workload, stage: StageName) -> TokenLoad:
    if stage is StageName.REWARD:
        return workload.token_load(workload.num_generated)
    return workload.token_load(workload.num_samples)


def engine_job(workload: Workload, worker: Worker, execution: Execution = IN_STEP) -> EngineJob:
    """The job of a rollout engine, on its share of the responses, or of a generative judge."""
    is_rollout = worker.name in ROLLOUT_ENGINES
    return EngineJob(
        worker=worker.name,
        model=worker.model,
        stage=worker.stages[0],
        load=_rollout_load(workload, worker, execution) if is_rollout else workload.judge_load,
        precision=workload.rollout_precision,
        receives_weights=is_rollout,
        lora_rank=workload.lora_rank if is_rollout else None,
        moments=_rollout_moments(execution) if is_rollout else frozenset(),
        streamed_batches=execution.staleness if is_rollout and execution.mode is ExecutionMode.STREAMING else None,
        sharded_syncs=execution.sharded_syncs if is_rollout else (),
    )


def _rollout_load(workload: Workload, worker: Worker, execution: Execution) -> GenerationLoad:
    """What one group of engines generates: all responses, or its share in whole ones."""
    load = workload.rollout_load
    if not execution.is_split:
        return load
    second = min(max(round(load.num_sequences * execution.second_share_ratio), 1), load.num_sequences - 1)
    is_second = worker.name is WorkerName.SECOND_ENGINE
    return replace(load, num_sequences=second if is_second else load.num_sequences - second)


def _rollout_moments(execution: Execution) -> frozenset[Moment]:
    """Moments of the rollout that the iteration time depends on."""
    if execution.mode is ExecutionMode.STREAMING:
        return frozenset({Moment.LONGEST_RESPONSE})
    if Fusion.INTER_STAGE in execution.fusions:
        return ROLLOUT_MOMENTS
    return frozenset()


def host_stage_s(workload: Workload) -> float:
    """Seconds of a reward that runs on the host: sandbox calls in waves of `num_parallel`, 0 for rules."""
    waves = -(-workload.num_generated // workload.reward.num_parallel)
    return waves * workload.reward.latency_s
