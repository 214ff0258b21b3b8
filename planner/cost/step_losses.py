"""What an RL step loses around its kernels: the same stages take longer there than as isolated benchmarks.

Factors and seconds are data (`planner.domain.overheads.StepLosses`), fitted on whole published steps. They apply to
priced stages, so that the formulas of single stages stay comparable with benchmarks of single stages.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.offload import host_link_rate
from planner.cost.terms import Terms
from planner.cost.worker import Site, StageCost, WorkerCosts
from planner.domain.overheads import StepLosses
from planner.domain.stages import StageName
from planner.domain.strategy import FloatArray, RolloutTable

_HOST_TERMS = frozenset(("switch", "wake", "reload", "cpu_optimizer"))
"""Terms that are host work already."""


def with_step_losses(costs: WorkerCosts, site: Site, num_sequences: float) -> WorkerCosts:
    """`costs` with the terms of stages and sync scaled, and the controller's own seconds in the actor update.

    `num_sequences` are the responses of one iteration, which the controller scores, batches and logs.
    """
    losses = site.overheads.step_losses
    ratio = _ratio(costs, losses)
    node_gpus = np.minimum(costs.num_gpus, site.node.gpus_per_node)
    swap_ratio = np.maximum(host_link_rate(site.node, node_gpus) / losses.swap_bytes_per_s, 1.0)
    stages = tuple(
        replace(
            stage,
            time_terms=_scaled(stage, ratio, swap_ratio, losses, num_sequences),
            remaining_s={moment: seconds * ratio for moment, seconds in stage.remaining_s.items()},
        )
        for stage in costs.stages
    )
    return replace(
        costs,
        stages=stages,
        sync_terms_colocated=_times(costs.sync_terms_colocated, losses.sync_ratio),
    )


def _times(terms: Terms | None, ratio: float) -> Terms | None:
    return None if terms is None else {name: seconds * ratio for name, seconds in terms.items()}


def _ratio(costs: WorkerCosts, losses: StepLosses) -> float:
    if isinstance(costs.strategies, RolloutTable):
        return losses.rollout_ratio
    return losses.moe_training_ratio if costs.model.is_moe else losses.training_ratio


def _scaled(stage: StageCost, ratio: float, swap_ratio: FloatArray, losses: StepLosses, num_sequences: float) -> Terms:
    terms = {name: seconds if name in _HOST_TERMS else seconds * ratio for name, seconds in stage.time_terms.items()}
    terms["reload"] = terms["reload"] * swap_ratio
    if stage.stage is StageName.ACTOR_UPDATE:
        terms["switch"] = terms["switch"] + (losses.step_s + losses.sequence_s * num_sequences)
    return terms
