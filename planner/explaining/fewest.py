"""The fewest GPUs on which a trainer can be fast enough, known before it is priced.

An update comes after the whole rollout and takes at least its FLOP at the best rate that any kernel of the GPU reaches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.cost.compute import kernel_rates
from planner.cost.work_bound import stage_flop
from planner.cost.worker import Moment
from planner.domain.hardware import Gpu, Pool, Precision
from planner.domain.stages import ROLLOUT_ENGINES, StageName, Worker
from planner.search.pricing import PricingInputs
from planner.search.problem import OptionTable
from planner.search.timing import UPDATES

NONE_SUFFICES = 2**62


def fewest_gpus(worker: Worker, pool: Pool, inputs: PricingInputs, rollout_s: float, cutoff_s: float) -> int:
    """No iteration takes at most `cutoff_s` with the trainer on fewer GPUs of the pool; `NONE_SUFFICES` if none does.

    `rollout_s` are the least seconds of the rollout. Asynchronous updates run beside it, but not beside what else the
    trainer does.
    """
    is_asynchronous = inputs.execution.is_asynchronous
    stages = worker.stages if is_asynchronous else tuple(name for name in worker.stages if name in UPDATES)
    flop = sum(stage_flop(inputs.workload, inputs.graph, name) for name in stages)
    spare_s = cutoff_s - (0.0 if is_asynchronous else rollout_s)
    if spare_s <= 0.0:
        return NONE_SUFFICES
    losses = inputs.overheads.step_losses
    ratio = losses.moe_training_ratio if worker.model.is_moe else losses.training_ratio
    stacks = (inputs.overheads.megatron, inputs.overheads.megatron_graphs, inputs.overheads.fsdp)
    speed = max(stack.compute_ratio * max(stack.attention_ratio, stack.moe_ratio, 1.0) for stack in stacks)
    rate = _best_flop_per_s(pool.node.gpu, inputs.workload.train_precision) * max(speed, 1.0)
    return max(1, math.ceil(float(flop) * ratio / (rate * spare_s) * (1.0 - 1e-9)))


def _best_flop_per_s(gpu: Gpu, precision: Precision) -> float:
    """The best rate of any kernel in training."""
    rates = kernel_rates(gpu, precision, is_training=True)
    return 1.0 / min(rates.gemm_s_per_flop, rates.moe_gemm_s_per_flop, rates.attention_s_per_flop)


def least_rollout_s(tables: Sequence[OptionTable]) -> float:
    """The fastest rollout of the engines on any pool, its tail gathered or not; 0 where there is none."""
    found = []
    for table in tables:
        if table.worker not in ROLLOUT_ENGINES:
            continue
        seconds = table.stage_time_s.sum(axis=0)
        gathered = (StageName.ROLLOUT, Moment.GATHERED_END)
        if gathered in table.moments:
            seconds = np.minimum(seconds, table.moment_s[table.moments.index(gathered)])
        found.append(float(np.min(seconds, initial=np.inf)))
    return min(found, default=0.0)
