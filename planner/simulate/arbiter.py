"""Who may use which GPUs when: exclusive device groups, granted in order of priority without overtaking."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import simpy
from simpy.events import EventPriority

from planner.domain.plan import DeviceGroup

Groups = frozenset[str]
_LAST = EventPriority(2)
"""After the events that simpy itself schedules (0 and 1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A stage that waits for its device groups, or holds them. Lower priorities go first."""

    groups: Groups
    priority: tuple[int, ...]
    granted: simpy.Event


class _Settled(simpy.Event):
    """Happens now, but after everything else that happens now: what ends and what begins by it have made claims."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority=_LAST)


@dataclass(slots=True)
class Arbiter:
    """Hands out device groups. Groups that share GPUs exclude each other; a claim never overtakes one of lower
    priority number that waits for GPUs of its own. Groups are handed out when all claims of a moment are known, so
    that the next stage of a batch comes before one of a later batch that has waited longer."""

    env: simpy.Environment
    overlaps: frozenset[tuple[str, str]]
    """Pairs of groups that share a GPU, both ways, each group with itself."""
    _waiting: list[Claim] = field(default_factory=list)
    _held: list[Claim] = field(default_factory=list)

    def claim(self, groups: Iterable[str], priority: tuple[int, ...]) -> Claim:
        """A claim whose `granted` event happens when it holds its groups."""
        claim = Claim(groups=frozenset(groups), priority=priority, granted=self.env.event())
        self._waiting.append(claim)
        self._waiting.sort(key=lambda item: item.priority)
        self._settle()
        return claim

    def release(self, claim: Claim) -> None:
        self._held.remove(claim)
        self._settle()

    def _settle(self) -> None:
        settled = _Settled(self.env)
        assert settled.callbacks is not None
        settled.callbacks.append(self._grant)

    def _grant(self, _: simpy.Event) -> None:
        ahead: list[Claim] = []
        for claim in list(self._waiting):
            if any(self._conflict(claim, other) for other in (*self._held, *ahead)):
                ahead.append(claim)
                continue
            self._waiting.remove(claim)
            self._held.append(claim)
            claim.granted.succeed()

    def _conflict(self, first: Claim, second: Claim) -> bool:
        return any((a, b) in self.overlaps for a in first.groups for b in second.groups)


def overlapping(groups: Iterable[DeviceGroup]) -> frozenset[tuple[str, str]]:
    """Pairs of device groups with a GPU in common."""
    listed = tuple(groups)
    return frozenset(
        (a.id, b.id)
        for a in listed
        for b in listed
        if a.pool == b.pool and a.ranks.start < b.ranks.stop and b.ranks.start < a.ranks.stop
    )
