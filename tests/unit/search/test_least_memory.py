"""Techniques that do not fit with the smallest budgets are never built: nothing that fits is lost by that."""

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.domain.execution import IN_STEP, Execution, ExecutionMode
from planner.domain.hardware import Cluster, Pool
from planner.domain.stages import Worker
from planner.domain.strategy import FloatArray, StrategyTable
from planner.domain.workload import Workload
from planner.files.catalog import generic_node, load_model
from planner.parts import make_inputs
from planner.search.candidates import chunks
from planner.search.options import build_options
from planner.search.pricing import (
    PRICED_AND_REJECTED,
    PricingInputs,
    candidates_of,
    price_table,
    price_worker,
    search_pool,
    site_of,
)
from planner.search.timing import moments_of
from tests.factories import workload as sample_workload

STREAMING = Execution(mode=ExecutionMode.STREAMING, staleness=1)
BASE = replace(sample_workload("grpo", prompts=64, group=8), actor=load_model("qwen3-32b"), kl_coefficient=0.001)
CASES = {
    "dense": (BASE, "h100", 2, IN_STEP),
    "small": (replace(BASE, actor=load_model("qwen3-8b")), "h100", 1, IN_STEP),
    "experts": (replace(BASE, actor=load_model("qwen3-30b-a3b")), "h20", 3, IN_STEP),
    "latent attention": (replace(BASE, actor=load_model("deepseek-v3")), "h200", 16, IN_STEP),
    "recurrent": (replace(BASE, actor=load_model("qwen3-next-80b-a3b")), "h100", 4, IN_STEP),
    "streaming": (BASE, "h100", 2, STREAMING),
    "lora": (replace(BASE, lora_rank=32), "a100-80gb", 1, IN_STEP),
    "several steps": (replace(BASE, num_optimizer_steps=4), "h100", 2, IN_STEP),
}


@pytest.mark.parametrize(("workload", "gpu", "num_nodes", "execution"), CASES.values(), ids=CASES)
def test_no_candidate_that_fits_is_left_out(workload: Workload, gpu: str, num_nodes: int, execution: Execution) -> None:
    cluster = Cluster(pools=(Pool(name=gpu, node=generic_node(gpu), num_nodes=num_nodes, usd_per_gpu_hour=None),))
    inputs = make_inputs(workload, cluster, None, execution)
    (pool,) = cluster.pools
    num_built = num_all = 0
    for worker in inputs.graph.workers:
        item = price_worker(worker, pool, inputs)
        whole = candidates_of(worker, pool, inputs)
        assert item.num_candidates == len(whole)
        num_built, num_all = num_built + len(item.candidates), num_all + len(whole)
        fitting, counts = _fitting(worker, pool, inputs, whole)
        kept, _ = _fitting(worker, pool, inputs, item.candidates)
        assert np.array_equal(fitting, kept)
        unfit = [sum(values) for values in zip(*counts, strict=True)]
        rejected = dict(item.rejected)
        assert [rejected.get(reason, 0) for reason in PRICED_AND_REJECTED] == unfit
    assert num_built < num_all


def _fitting(
    worker: Worker, pool: Pool, inputs: PricingInputs, table: StrategyTable
) -> tuple[FloatArray, list[tuple[int, int, int]]]:
    """(the strategies that fit alone, one per row, in order; what became of the others)."""
    columns = np.vstack([getattr(table, field.name) for field in fields(table)])
    kept, counts = [], []
    for rows in chunks(len(table)):
        options, count = build_options(
            price_table(worker, table.take(rows), site_of(pool, inputs), inputs),
            search_pool(pool, inputs),
            first_row=rows.start,
            moments=moments_of(inputs.execution, worker),
            num_sequences=inputs.workload.num_samples,
        )
        kept.append(columns[:, options.row])
        counts.append((count.num_illegal, count.num_gpu_memory, count.num_host_ram))
    return np.concatenate(kept, axis=1), counts
