"""What a plan comes to under an objective, so that two plans can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import Objective
from planner.domain.strategy import FloatArray, IntArray
from planner.search.solve import Solution, used_in_pool
from planner.units import HOUR_S

GPUS = "GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A plan in figures. `value` is in `unit`: s, USD, GPU-hours or GPUs; `usd` is None where a price is missing."""

    value: float
    unit: str
    time_s: float
    num_gpus: int
    usd: float | None

    @property
    def key(self) -> tuple[float, float]:
        """Smaller is better; only scores of one unit can be compared."""
        return self.value, self.time_s

    def times(self, ratio: float) -> Score:
        """A score so many times this one: time and cost, on as many GPUs."""
        value = self.value if self.unit == GPUS else self.value * ratio
        usd = None if self.usd is None else self.usd * ratio
        return Score(value=value, unit=self.unit, time_s=self.time_s * ratio, num_gpus=self.num_gpus, usd=usd)

    def change_ratio(self, base: Score) -> float:
        """How much worse this is than `base`, as a share of it: 0.1 for a tenth more, below 0 where it is better.

        Plans on equally many GPUs are compared by time, and so are values in different units.
        """
        if self.unit != base.unit or self.value == base.value:
            return self.time_s / base.time_s - 1.0
        return self.value / base.value - 1.0


def score_of(objective: Objective, cluster: Cluster, time_s: float, num_gpus: dict[str, int]) -> Score:
    """The score of a plan that uses `num_gpus` GPUs of each pool; whole nodes are billed."""
    gpu_hours, usd = 0.0, 0.0
    has_prices = all(pool.usd_per_gpu_hour is not None for pool in cluster.pools)
    for pool in cluster.pools:
        nodes = -(-num_gpus.get(pool.name, 0) // pool.node.gpus_per_node)
        hours = nodes * pool.node.gpus_per_node * time_s / HOUR_S
        gpu_hours += hours
        usd += hours * (pool.usd_per_gpu_hour or 0.0)
    used = sum(num_gpus.values())
    if objective is Objective.GPUS:
        value, unit = float(used), GPUS
    elif objective is Objective.COST:
        value, unit = (usd, "USD") if has_prices else (gpu_hours, "GPU-hours")
    else:
        value, unit = time_s, "s"
    return Score(value=value, unit=unit, time_s=time_s, num_gpus=used, usd=usd if has_prices else None)


def billed_rate(cluster: Cluster, pool: Pool, num_gpus: IntArray) -> FloatArray:
    """Cost per second of the whole nodes that `num_gpus` GPUs of a pool need, in the unit of the objective cost."""
    has_prices = all(item.usd_per_gpu_hour is not None for item in cluster.pools)
    price = (pool.usd_per_gpu_hour or 0.0) if has_prices else 1.0
    per_node = pool.node.gpus_per_node
    return np.asarray(-(-num_gpus // per_node) * per_node * price / HOUR_S)


def solution_score(objective: Objective, cluster: Cluster, solution: Solution) -> Score:
    """The score of a solution of the search."""
    pools = {group.pool for group in solution.groups}
    used = {name: used_in_pool(solution.groups, name) for name in sorted(pools)}
    return score_of(objective, cluster, solution.time_s, used)
