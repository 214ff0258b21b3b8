"""Strategies, shares and arrangements in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.plan import Assumption, NamedValue
from planner.domain.strategy import ContextParallel, EngineIdle, Offload, Recompute, Sharding
from planner.files.workload import KEY_INPUTS
from planner.report.words import (
    arrangement,
    counted,
    largest,
    one_line,
    percent,
    quantity,
    rests_on_defaults,
    strategy_words,
    term_words,
)
from tests.golden.sample import ENGINE, TRAINER, grpo_plan, split_plan


def test_trainer_in_words() -> None:
    assert strategy_words(TRAINER).startswith("tp 8 dp 4, zero1, full recompute, 9,216 tokens per micro-batch")
    hybrid = replace(
        TRAINER, tp=1, cp=2, context_parallel=ContextParallel.ULYSSES, sharding=Sharding.ZERO3, shard_ranks=8,
        recompute=Recompute.NONE, offload=Offload.NONE, ep=4, etp=2,
    )  # fmt: skip
    words = "cp 2 dp 16 ep 4 etp 2, zero3 over 8 ranks, ulysses, no recompute, 9,216 tokens per micro-batch"
    assert strategy_words(hybrid) == words


def test_forward_only_worker_has_no_recompute() -> None:
    assert strategy_words(TRAINER, trains=False) == "tp 8 dp 4, zero1, 36,864 tokens per pass, optimizer-swap"


def test_engine_in_words() -> None:
    words = "8 engines of tp 4, up to 512 sequences each, 80% of GPU memory, sleeping when idle"
    assert strategy_words(ENGINE) == words
    one = replace(ENGINE, num_gpus=4, idle=EngineIdle.RESIDENT)
    assert strategy_words(one).startswith("1 engine of tp 4,")
    assert strategy_words(one).endswith("always resident")
    assert strategy_words(None) == ""


def test_largest_terms() -> None:
    terms = [NamedValue(name=name, value=value) for name, value in (("a_b", 1), ("c", 6), ("d", 3), ("e", 0))]
    assert largest(terms, count=2, least_ratio=0.0) == [("c", 0.6), ("d", 0.3)]
    assert largest(terms, count=9, least_ratio=0.1) == [("c", 0.6), ("d", 0.3), ("a b", 0.1)]
    assert largest([], count=3, least_ratio=0.0) == []


@pytest.mark.parametrize(
    ("ratio", "text"), [(0, "0%"), (1e-6, "<0.01%"), (0.0006, "0.06%"), (0.095, "9.5%"), (0.37, "37%"), (1.2, "120%")]
)
def test_percent(ratio: float, text: str) -> None:
    assert percent(ratio) == text


def test_quantity() -> None:
    assert quantity(90.0, "s") == "90.0 s"
    assert quantity(25.387, "USD") == "25.39 USD"
    assert quantity(32, "GPUs") == "32 GPUs"
    assert quantity(1.0, "GPUs") == "1 GPU"


def test_numbers_with_nouns() -> None:
    assert [counted(n, "node") for n in (0, 1, 2, 2000)] == ["0 nodes", "1 node", "2 nodes", "2,000 nodes"]


def test_terms_do_not_stutter() -> None:
    assert term_words("rollout engine: engine_sleep") == "rollout engine sleep"
    assert term_words("idle: reference") == "idle reference"


def test_texts_of_a_plan_become_printable() -> None:
    plan = grpo_plan()
    assert one_line(plan) is plan
    group = replace(plan.device_groups[0], id="g\x1b[31m\n\u202e0")
    shown = one_line(replace(plan, device_groups=(group,)))
    assert shown.device_groups[0].id == r"g\x1b[31m\n\u202e0"
    assert shown.placements is plan.placements


def test_arrangement() -> None:
    assert arrangement(grpo_plan()) == "colocated"
    split = split_plan()
    assert arrangement(split) == "disaggregated"
    overlapping = replace(split.device_groups[1], first_gpu=8, num_gpus=24)
    assert arrangement(replace(split, device_groups=(split.device_groups[0], overlapping))) == "hybrid"


def test_defaults_alone() -> None:
    plan = grpo_plan()
    assert not rests_on_defaults(plan)
    assumed = tuple(Assumption(what=what, value="x", source="default") for what in sorted(KEY_INPUTS))
    assert rests_on_defaults(replace(plan, assumptions=assumed))
    assert not rests_on_defaults(replace(plan, assumptions=assumed[1:]))
