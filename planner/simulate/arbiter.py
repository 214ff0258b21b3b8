"""Who may use which GPUs when: exclusive device groups, granted in order of priority without overtaking."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import simpy

from planner.domain.plan import DeviceGroup

Groups = frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A stage that waits for its device groups, or holds them. Lower priorities go first."""

    groups: Groups
    priority: tuple[int, ...]
    granted: simpy.Event


@dataclass(slots=True)
class Arbiter:
    """Hands out device groups. Groups that share GPUs exclude each other; a claim never overtakes one of lower
    priority number that waits for GPUs of its own."""

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
        self._grant()
        return claim

    def release(self, claim: Claim) -> None:
        self._held.remove(claim)
        self._grant()

    def _grant(self) -> None:
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
