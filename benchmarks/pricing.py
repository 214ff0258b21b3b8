"""Candidates priced per second and core, on the candidates of real instances."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from planner.cost.generation import price_engine
from planner.cost.jobs import engine_job, trainer_job
from planner.cost.training import price_trainer
from planner.cost.worker import Site
from planner.domain.algorithm import find_algorithm
from planner.domain.hardware import Precision
from planner.domain.lengths import LengthLaw
from planner.domain.stages import WorkerName, build_graph
from planner.domain.strategy import StrategyTable
from planner.domain.workload import Reward, RewardKind, Workload
from planner.files.catalog import generic_node, load_model, load_overheads
from planner.search.candidates import chunks, enumerate_rollout, enumerate_trainer
from planner.search.legality import RolloutFacts, TrainerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingRate:
    """How fast one kind of candidate is priced."""

    title: str
    num_priced: int
    per_s: float
    target_per_s: float


def _workload() -> Workload:
    algorithm = find_algorithm("grpo")
    assert algorithm is not None
    return Workload(
        algorithm=algorithm, actor=load_model("qwen3-32b"), critic=None, reward=Reward(kind=RewardKind.RULE),
        num_prompts=256, group_size=16, prompt_mean_tokens=512, prompt_max_tokens=1024,
        response=LengthLaw(mean_tokens=4096, cv=0.6, max_tokens=8192), num_optimizer_steps=4, num_epochs=1,
        kl_coefficient=0.001, needs_old_logprob=True, train_precision=Precision.BF16,
        rollout_precision=Precision.BF16, lora_rank=None, memory_margin_ratio=0.1,
    )  # fmt: skip


def _rate(title: str, table: StrategyTable, price: Callable[[slice], object], target: float) -> PricingRate:
    price(slice(0, min(1024, len(table))))  # tables per length law are built once, not per candidate
    start = time.perf_counter()
    for rows in chunks(len(table)):
        price(rows)
    return PricingRate(
        title=title, num_priced=len(table), per_s=len(table) / (time.perf_counter() - start), target_per_s=target
    )


def pricing_rates() -> list[PricingRate]:
    """Training, forward-only and rollout candidates of GRPO on Qwen3-32B over 32 nodes of 8 H100."""
    workload = _workload()
    graph = build_graph(workload)
    node = generic_node("h100")
    site = Site(node=node, overheads=load_overheads(), memory_margin_ratio=workload.memory_margin_ratio)
    rates = []
    for name, trains in ((WorkerName.ACTOR_TRAINER, True), (WorkerName.REFERENCE, False)):
        facts = TrainerFacts(
            model=workload.actor, node=node, mini_batch_sequences=1024, trains=trains, precision=Precision.BF16
        )
        table = enumerate_trainer(facts, max_tokens=workload.max_tokens, num_nodes=32).table
        job = trainer_job(workload, graph, graph.worker(name))
        rates.append(_rate(name.value, table, lambda rows, t=table, j=job: price_trainer(j, t.take(rows), site), 1e6))
    rollout_facts = RolloutFacts(model=workload.actor, node=node, num_sequences=4096, precision=Precision.BF16)
    engines = enumerate_rollout(rollout_facts, num_nodes=32, memory_margin_ratio=0.1, can_sleep=True).table
    job = engine_job(workload, graph.worker(WorkerName.ROLLOUT_ENGINE))
    rates.append(_rate("rollout engine", engines, lambda rows: price_engine(job, engines.take(rows), site), 1e5))
    return rates
