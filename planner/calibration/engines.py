"""Benchmarks of vLLM as observations of an engine: time per token, throughput, or seconds of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.calibration.parameters import Key, Point, node_at, overheads_at
from planner.calibration.source import Observation
from planner.cost.decode import engine_layout
from planner.cost.formats import uniform
from planner.cost.serving import (
    CacheBudget,
    CacheRule,
    ClosedLoop,
    MaximumLoad,
    cache_slots,
    closed_loop_terms,
    maximum_load_terms,
)
from planner.domain.hardware import NodeType, Precision
from planner.domain.lengths import FloatArray
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from planner.domain.profile import Parameter
from planner.domain.strategy import RolloutStrategy
from planner.errors import InvalidInputError
from planner.files.bench_logs import EngineBench, EngineBenchKind

BENCH_LOG_SD = 0.05
ENGINE = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """The engine that was measured: one of `strategy` on nodes of one type."""

    model: Model
    precision: Precision
    node: NodeType
    strategy: RolloutStrategy


class EngineSource:
    """One benchmark of one engine."""

    def __init__(self, bench: EngineBench, setup: EngineSetup, base: Overheads) -> None:
        """Raises InvalidInputError where the benchmark does not say enough to be priced."""
        self.bench, self.setup, self.base = bench, setup, base
        self.measured, self.is_rate = _measured(bench)
        self.num_used = 1
        tokens = f"{bench.prompt_tokens:,.0f} + {bench.output_tokens:,.0f} tokens"
        label = f"{bench.kind.value}, {bench.concurrency:g} requests of {tokens}"
        self.observations: tuple[Observation, ...] = (
            Observation(
                label=label, kind=f"{bench.file} {label}", measured=self.measured, log_sd=BENCH_LOG_SD,
                fold=f"{bench.file} {label}", is_rate=self.is_rate,
            ),
        )  # fmt: skip
        gpu = setup.node.gpu.id
        self.keys: tuple[Key, ...] = (
            Key(Parameter.ENGINE_STEP), Key(Parameter.ENGINE_LAUNCH), Key(Parameter.HBM, gpu),
        )  # fmt: skip

    def predict(self, point: Point) -> FloatArray:
        setup, bench = self.setup, self.bench
        node = node_at(point, setup.node)
        overheads = overheads_at(point, self.base).for_engine(ENGINE)
        strategy = setup.strategy
        layout = engine_layout(
            _column(bench.tp or strategy.tp), _column(strategy.pp), _column(strategy.ep), node, np.ones(1)
        )  # fmt: skip
        formats = uniform(setup.precision)
        assert bench.prompt_tokens is not None and bench.output_tokens is not None and bench.concurrency is not None
        prompt, output = _column(bench.prompt_tokens), _column(bench.output_tokens)
        requests, chunk = _column(bench.concurrency), _column(overheads.engine_batched_tokens)
        if bench.kind is EngineBenchKind.LATENCY:
            slots = requests
        else:
            budget = CacheBudget(memory_fraction=strategy.engine_fraction, rule=CacheRule.TOTAL)
            held = cache_slots(setup.model, formats, node, overheads, layout, budget, prompt + 0.5 * output)
            slots = np.minimum(np.clip(np.floor(held), 1.0, strategy.max_num_seqs), requests)
        if bench.kind is EngineBenchKind.SERVE:
            loop = ClosedLoop(concurrency=slots, prompt_tokens=prompt, output_tokens=output, batched_tokens=chunk)
            return _total(closed_loop_terms(setup.model, formats, node, overheads, layout, loop))
        load = MaximumLoad(
            requests=requests, slots=slots, prompt_tokens=prompt, output_tokens=output, batched_tokens=chunk
        )
        seconds = _total(maximum_load_terms(setup.model, formats, node, overheads, layout, load))
        return requests * output / seconds if self.is_rate else seconds


def _column(value: float) -> FloatArray:
    return np.array([float(value)])


def _total(terms: dict[str, FloatArray]) -> FloatArray:
    total: FloatArray = np.sum(list(terms.values()), axis=0).reshape(1)
    return total


def _measured(bench: EngineBench) -> tuple[float, bool]:
    """(value, whether it is a rate)."""
    if bench.has_rate:
        raise InvalidInputError(
            "requests came at a rate, so that nobody knows how many ran at a time", where=bench.file,
            accepted="vllm bench serve --max-concurrency N",
        )  # fmt: skip
    missing = [
        name
        for name, value in (
            ("number of requests", bench.concurrency),
            ("input tokens", bench.prompt_tokens),
            ("output tokens", bench.output_tokens),
        )
        if not value
    ]
    value = {
        EngineBenchKind.SERVE: bench.token_s,
        EngineBenchKind.THROUGHPUT: bench.tokens_per_s,
        EngineBenchKind.LATENCY: bench.batch_s,
    }[bench.kind]
    if not value:
        missing.append("result")
    if missing or value is None:
        raise InvalidInputError(
            f"the output of {bench.kind.value} does not state: {', '.join(missing)}", where=bench.file,
            accepted="the whole output, with the line of arguments (Namespace(...)) that newer releases print",
        )  # fmt: skip
    return value, bench.kind is EngineBenchKind.THROUGHPUT
