"""How much of each link class the stages of a plan use, at the line rates that no traffic can exceed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.domain.stages import StageName


class Link(StrEnum):
    """A class of links."""

    HBM = "HBM"
    SCALE_UP = "scale-up link"
    NIC = "NIC"
    HOST = "host link"
    """Between GPU and host RAM; all GPUs of a node share the node's part."""
    TRUNK = "inter-pool link"
    """All GPUs together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Bytes that one stage moves over one link class, and what the link carries per second at most.

    Per GPU, on the one with most of them; of the inter-pool link for all GPUs together.
    """

    link: Link
    num_bytes: float
    bytes_per_s: float

    @property
    def least_s(self) -> float:
        return self.num_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLinks:
    """The link classes that a stage uses. `stage` is None for what may take the whole iteration."""

    stage: StageName | None
    time_s: float
    uses: tuple[LinkUse, ...]

    def used_ratio(self, use: LinkUse) -> float:
        """Bytes over capacity times time; above 1 is impossible."""
        return use.least_s / self.time_s if self.time_s > 0.0 else 0.0


TOLERANCE_RATIO = 1e-6
"""Times and bytes are compared in floats."""


def overused(stages: tuple[StageLinks, ...]) -> tuple[str, ...]:
    """What no link could have carried in time, in words; empty for every plan that is right."""
    return tuple(
        f"{'the iteration' if item.stage is None else item.stage.value}: {use.num_bytes:.3g} bytes over the "
        f"{use.link.value} of {use.bytes_per_s:.3g} bytes/s take {use.least_s:.3g} s, "
        f"but the plan says {item.time_s:.3g} s"
        for item in stages
        for use in item.uses
        if item.used_ratio(use) > 1.0 + TOLERANCE_RATIO
    )
