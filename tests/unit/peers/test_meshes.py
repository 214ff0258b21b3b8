"""Ranges of GPUs as structures of our space."""

from planner.domain.stages import WorkerName
from planner.peers.meshes import Mesh, structure_of
from planner.peers.task import structure_key
from planner.search.structures import PoolGroups, Structure

ENGINE, ACTOR, REFERENCE, CRITIC = (
    WorkerName.ROLLOUT_ENGINE,
    WorkerName.ACTOR_TRAINER,
    WorkerName.REFERENCE,
    WorkerName.CRITIC_TRAINER,
)


def on(first: int, num: int, pool: str = "a") -> Mesh:
    return Mesh(pool=pool, first_gpu=first, num_gpus=num)


def groups(whole: tuple[WorkerName, ...], *blocks: tuple[WorkerName, ...], pool: str = "a") -> Structure:
    return Structure(pools=(PoolGroups(pool=pool, whole=whole, blocks=blocks),))


def test_equal_ranges_are_one_block() -> None:
    found = structure_of({ENGINE: on(0, 8), ACTOR: on(0, 8), REFERENCE: on(0, 8)})
    assert structure_key(found) == structure_key(groups((), (ENGINE, ACTOR, REFERENCE)))


def test_who_meets_everyone_is_pool_wide_over_what_lies_side_by_side() -> None:
    found = structure_of({ENGINE: on(0, 16), ACTOR: on(0, 8), REFERENCE: on(8, 4), CRITIC: on(8, 8)})
    assert structure_key(found) == structure_key(groups((ENGINE,), (ACTOR,), (REFERENCE, CRITIC)))


def test_workers_that_meet_through_a_third_one_share_its_block() -> None:
    # Reference and critic are apart, but both meet the engine, which does not meet the actor.
    found = structure_of({ENGINE: on(0, 16), ACTOR: on(16, 8), REFERENCE: on(0, 8), CRITIC: on(8, 8)})
    assert structure_key(found) == structure_key(groups((), (ENGINE, REFERENCE, CRITIC), (ACTOR,)))


def test_a_mutual_overlap_is_one_block_and_no_pool_wide_group() -> None:
    found = structure_of({ENGINE: on(0, 16), ACTOR: on(0, 8)})
    assert structure_key(found) == structure_key(groups((), (ENGINE, ACTOR)))


def test_pools_are_apart() -> None:
    found = structure_of({ENGINE: on(0, 8, "b"), ACTOR: on(0, 8), REFERENCE: on(0, 8)})
    assert [pool.pool for pool in found.pools] == ["a", "b"]
    assert not found.overlap(ENGINE, ACTOR)
