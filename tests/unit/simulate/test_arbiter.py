"""Exclusive device groups."""

import simpy

from planner.domain.plan import DeviceGroup
from planner.simulate.arbiter import Arbiter, Claim, overlapping


def group(name: str, first: int, number: int, pool: str = "a") -> DeviceGroup:
    return DeviceGroup(id=name, pool=pool, gpu="h100", first_gpu=first, num_gpus=number, num_nodes=1)


GROUPS = (group("whole", 0, 8), group("left", 0, 4), group("right", 4, 4), group("other", 0, 8, pool="b"))


def arbiter() -> Arbiter:
    return Arbiter(simpy.Environment(), overlapping(GROUPS))


def granted(judge: Arbiter, *claims: Claim) -> list[bool]:
    """Which claims hold their groups once everything has settled."""
    judge.env.run()
    return [claim.granted.triggered for claim in claims]


def test_groups_overlap_where_they_share_gpus_of_a_pool() -> None:
    found = overlapping(GROUPS)
    assert ("whole", "left") in found and ("right", "whole") in found
    assert ("left", "right") not in found and ("whole", "other") not in found


def test_claims_on_shared_gpus_wait_and_others_do_not() -> None:
    judge = arbiter()
    claims = left, right, whole = [judge.claim([name], (i,)) for i, name in enumerate(("left", "right", "whole"))]
    assert granted(judge, *claims) == [True, True, False]
    judge.release(left)
    assert granted(judge, whole) == [False]
    judge.release(right)
    assert granted(judge, whole) == [True]


def test_nobody_overtakes_a_claim_of_lower_number() -> None:
    judge = arbiter()
    held, late = judge.claim(["left"], (0,)), judge.claim(["right"], (9,))
    assert granted(judge, held, late) == [True, True], "nobody else is there"
    early = judge.claim(["whole"], (1,))
    judge.release(late)
    later = judge.claim(["right"], (9,))
    assert granted(judge, early, later) == [False, False], "the whole pool waits before it"
    judge.release(held)
    assert granted(judge, early, later) == [True, False]


def test_what_begins_by_an_end_is_asked_before_what_waits() -> None:
    """The next stage of an old batch claims in the moment in which the one before releases."""
    judge = arbiter()
    held = judge.claim(["left"], (0,))
    assert granted(judge, held) == [True]
    young = judge.claim(["left"], (5,))
    judge.release(held)
    old = judge.claim(["left"], (0, 1))
    assert granted(judge, young, old) == [False, True]


def test_no_groups_are_granted_at_once() -> None:
    judge = arbiter()
    assert granted(judge, judge.claim([], (0,))) == [True]
