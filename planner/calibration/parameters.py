"""Which parameters can be fitted, where they start, and how far from the catalog they may be expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.domain.hardware import NodeType
from planner.domain.overheads import Overheads
from planner.domain.profile import SOFTWARE, Parameter, software_value, with_hardware, with_software

PRIOR_LOG_SD: Mapping[Parameter, float] = {
    Parameter.ROLLOUT_RATIO: 0.35,
    Parameter.TRAINING_RATIO: 0.25,
    Parameter.MOE_TRAINING_RATIO: 0.35,
    Parameter.SYNC_RATIO: 0.7,
    Parameter.SWAP_RATE: 0.5,
    Parameter.STEP: 0.8,
    Parameter.SEQUENCE: 0.7,
    Parameter.ENGINE_STEP: 0.5,
    Parameter.ENGINE_LAUNCH: 0.25,
    Parameter.HBM: 0.15,
    Parameter.TRAINING_FLOP: 0.12,
    Parameter.ALL_REDUCE_BANDWIDTH: 0.25,
    Parameter.ALL_GATHER_BANDWIDTH: 0.25,
    Parameter.REDUCE_SCATTER_BANDWIDTH: 0.25,
    Parameter.ALL_TO_ALL_BANDWIDTH: 0.25,
    Parameter.ALL_REDUCE_LATENCY: 0.5,
    Parameter.ALL_GATHER_LATENCY: 0.5,
    Parameter.REDUCE_SCATTER_LATENCY: 0.5,
    Parameter.ALL_TO_ALL_LATENCY: 0.5,
    Parameter.NIC_BANDWIDTH: 0.35,
    Parameter.NIC_LATENCY: 0.7,
}
"""Standard deviation of log(true / catalog): judged before any fit from the spread of published rows per parameter
(docs/calibrate.md). Kernel efficiencies are measured well, losses of whole steps and waking engines vary most."""
MAX_LOG = 2.0
"""No value leaves the catalog's by more than a factor of e**2."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A parameter, of one GPU type where it belongs to hardware."""

    parameter: Parameter
    gpu: str | None = None


Point = Mapping[Key, float]
"""Values of parameters in units of the catalog's: 1.0 is the catalog. Missing ones are 1.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A parameter that may be fitted, and its value in the catalog (1 for factors)."""

    key: Key
    catalog: float

    @property
    def prior_log_sd(self) -> float:
        return PRIOR_LOG_SD[self.key.parameter]


def unknown(key: Key, overheads: Overheads) -> Unknown:
    """The parameter with its catalog value."""
    is_software = key.parameter in SOFTWARE
    return Unknown(key=key, catalog=software_value(overheads, key.parameter) if is_software else 1.0)


def overheads_at(point: Point, base: Overheads) -> Overheads:
    """Software costs at a point."""
    values = {
        key.parameter: software_value(base, key.parameter) * factor
        for key, factor in point.items()
        if key.parameter in SOFTWARE
    }
    return with_software(base, values)


def node_at(point: Point, base: NodeType) -> NodeType:
    """A node at a point."""
    factors = {
        key.parameter: factor
        for key, factor in point.items()
        if key.parameter not in SOFTWARE and key.gpu == base.gpu.id
    }
    return with_hardware(base, factors)
