"""Timings of single structures, worked out by hand."""

from __future__ import annotations

from planner.cost.worker import Moment
from planner.domain.execution import Execution, Fusion
from planner.domain.stages import Role, Stage, StageGraph, StageKind, StageName, Worker, WorkerName
from planner.search.structures import PoolGroups, Structure
from planner.search.timing import Part, Timing, TimingBook, timing_book
from tests.factories import dense_model
from tests.oracle.instances import graph_of

INTER = Execution(fusions=(Fusion.INTER_STAGE,))
ENGINE, ACTOR, CRITIC = WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER


def lora_graph() -> StageGraph:
    """GRPO with LoRA: the actor trainer computes the reference's log-probs too."""
    names = {
        StageName.ROLLOUT: (StageKind.GENERATION, ENGINE),
        StageName.REFERENCE_LOGPROB: (StageKind.INFERENCE, ACTOR),
        StageName.OLD_LOGPROB: (StageKind.INFERENCE, ACTOR),
        StageName.ACTOR_UPDATE: (StageKind.TRAINING, ACTOR),
        StageName.WEIGHT_SYNC: (StageKind.TRANSFER, None),
    }
    model = dense_model()
    trained = (StageName.REFERENCE_LOGPROB, StageName.OLD_LOGPROB, StageName.ACTOR_UPDATE)
    engine = Worker(name=ENGINE, role=Role.ACTOR, model=model, kind=StageKind.GENERATION, stages=(StageName.ROLLOUT,))
    trainer = Worker(name=ACTOR, role=Role.ACTOR, model=model, kind=StageKind.TRAINING, stages=trained)
    return StageGraph(
        stages=tuple(Stage(name=n, kind=kind, role=Role.ACTOR, worker=worker) for n, (kind, worker) in names.items()),
        workers=(engine, trainer),
        edges=(
            (StageName.ROLLOUT, StageName.REFERENCE_LOGPROB),
            (StageName.ROLLOUT, StageName.OLD_LOGPROB),
            (StageName.REFERENCE_LOGPROB, StageName.ACTOR_UPDATE),
            (StageName.OLD_LOGPROB, StageName.ACTOR_UPDATE),
            (StageName.ACTOR_UPDATE, StageName.WEIGHT_SYNC),
        ),
    )


def one_pool(*blocks: tuple[WorkerName, ...], whole: tuple[WorkerName, ...] = ()) -> Structure:
    return Structure(pools=(PoolGroups(pool="pool", whole=whole, blocks=blocks),))


def longest_s(timing: Timing, seconds: dict[Part, float]) -> float:
    return max(sum(coefficient * seconds[part] for part, coefficient in row) for row in timing.rows)


SECONDS: dict[Part, float] = {
    (StageName.ROLLOUT, None): 10.0,
    (StageName.ROLLOUT, Moment.GATHERED): 6.0,
    (StageName.ROLLOUT, Moment.GATHERED_END): 11.0,
    (StageName.REFERENCE_LOGPROB, None): 1.0,
    (StageName.OLD_LOGPROB, None): 6.0,
    (StageName.ACTOR_UPDATE, None): 20.0,
    (StageName.WEIGHT_SYNC, None): 2.0,
}


def test_the_longer_assessor_goes_first_beside_a_gathered_tail() -> None:
    """Orders with one and the same path differ in what the tail hides."""
    timings = TimingBook(lora_graph(), INTER).timings(one_pool((ENGINE, ACTOR)))
    best = min(timings, key=lambda timing: longest_s(timing, SECONDS))
    # Four fifths of the old log-probs on three quarters of the GPUs from second 6 on, the rest and the reference after.
    assert abs(longest_s(best, SECONDS) - (6 + 6 * 0.8 / 0.75 + 6 * 0.2 + 1 + 22)) < 1e-9
    assert best.gathers and (StageName.OLD_LOGPROB, StageName.REFERENCE_LOGPROB) in best.arcs
    # With a short old log-prob the reference first, or no gathering, is better.
    short = SECONDS | {(StageName.OLD_LOGPROB, None): 0.1}
    assert abs(min(longest_s(timing, short) for timing in timings) - (10 + 1.1 + 22)) < 1e-9


def test_without_streaming_one_order_is_enough() -> None:
    assert len(TimingBook(lora_graph(), Execution()).timings(one_pool((ENGINE, ACTOR)))) == 1


def test_updates_on_one_pool_wide_group_can_share_a_pipeline() -> None:
    execution = Execution(fusions=(Fusion.INTRA_STAGE,))
    graph = graph_of((ENGINE, ACTOR, WorkerName.REFERENCE, CRITIC), host_reward=False)
    book = TimingBook(graph, execution)

    def joins(structure: Structure) -> bool:
        return any(Fusion.INTRA_STAGE in timing.fusions for timing in book.timings(structure))

    assert joins(one_pool((ENGINE,), (ACTOR, CRITIC), (WorkerName.REFERENCE,)))
    assert joins(one_pool((ENGINE,), (WorkerName.REFERENCE,), whole=(ACTOR, CRITIC)))
    assert not joins(one_pool((ENGINE, CRITIC), (ACTOR, WorkerName.REFERENCE)))
    assert not joins(one_pool((CRITIC,), (ENGINE, WorkerName.REFERENCE), whole=(ACTOR,)))


def test_searches_of_one_graph_share_a_book() -> None:
    assert timing_book(lora_graph(), INTER) is timing_book(lora_graph(), INTER)
    assert timing_book(lora_graph(), INTER) is not timing_book(lora_graph(), Execution())
