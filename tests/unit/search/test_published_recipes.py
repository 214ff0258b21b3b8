"""Every recipe whose step time was published is a member of the declared space.

tests/data/rl_recipes.csv holds the configurations of 158 measured RL steps (NeMo-RL performance pages 0.4 to 0.7,
verl practice files and logs, verl documentation and others; the source stands in each row).
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.stages import StageKind
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    RolloutTable,
    Sharding,
    TrainerStrategy,
    TrainerTable,
)
from planner.errors import InvalidInputError
from planner.files.catalog import generic_node, load_model
from planner.search import space
from planner.search.candidates import in_space
from planner.search.legality import ROLLOUT_RULES, TRAINER_RULES, RolloutFacts, TrainerFacts

ROWS = list(csv.DictReader((Path(__file__).parents[2] / "data" / "rl_recipes.csv").read_text().splitlines()))

OUTSIDE = {
    "rlinf-1.5b-verl": "recomputes 20 blocks only; partial recomputation is excluded from the space, and said so",
    "rlinf-1.5b-rlinf": "recomputes 20 blocks only; partial recomputation is excluded from the space, and said so",
    "verl-onestepoff-64": "12 trainer GPUs divide neither the batch of 8,192 nor whole nodes; the page is ambiguous",
    "verl-onestepoff-66": "12 trainer GPUs divide neither the batch of 8,192 nor whole nodes; the page is ambiguous",
    "asyncflow-2": "62 GPUs in nodes of 8; the page names no split",
}
GPUS = {"h100": "h100", "h100-sxm": "h100", "h20": "h20", "gb200": "gb200", "a800-80g": "a800", "h800": "h800",
        "mi300x": "mi300x", "ascend-npu": "ascend-910b", "": "h100"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One row, with what it leaves open."""

    row: dict[str, str]
    model: Model
    node: NodeType

    def number(self, *names: str, default: int = 1) -> int:
        return next((int(float(self.row[name])) for name in names if self.row[name]), default)

    @property
    def longest(self) -> int:
        both = self.number("max_prompt_len", default=0) + self.number("max_response_len", default=0)
        return self.number("max_seq_len", default=both or 4096)


def recipe(row: dict[str, str]) -> Recipe | None:
    try:
        return Recipe(row=row, model=load_model(row["model"]), node=generic_node(GPUS[row["gpu"]]))
    except InvalidInputError:
        return None


RECIPES = [(row["id"], item) for row in ROWS if row["id"] not in OUTSIDE and (item := recipe(row)) is not None]


def trainer_strategies(item: Recipe) -> list[TrainerStrategy]:
    """The row's strategy; where expert-TP is not stated, both spellings."""
    row = item.row
    is_fsdp = row["train_backend"].startswith(("fsdp", "dtensor"))
    tp, pp = item.number("train_tp"), item.number("train_pp")
    cp = item.number("train_cp", "ulysses_sp")
    num_gpus = item.number("n_gpus_train", "n_gpus", default=8)
    ranks = num_gpus // (tp * pp)
    offload = Offload.STATE_SWAP if "param" in row["offload"] else Offload.NONE
    recompute = {"none": Recompute.NONE, "selective": Recompute.SELECTIVE}.get(row["recompute"], Recompute.FULL)
    experts = (item.number("train_etp"),) if row["train_etp"] else (1, tp)
    # verl counts the tokens of one GPU, NeMo-RL those of a whole micro-batch.
    budget = item.number("token_budget_train", default=0) * (cp if row["framework"] == "verl" else 1)
    return [
        TrainerStrategy(
            num_gpus=num_gpus, tp=tp, pp=pp, vpp=item.number("train_vpp"), cp=cp,
            context_parallel=ContextParallel.ULYSSES if is_fsdp else ContextParallel.RING,
            ep=item.number("train_ep"), etp=etp, sharding=Sharding.ZERO3 if is_fsdp and ranks > 1 else Sharding.ZERO1,
            shard_ranks=ranks, micro_batch_tokens=max(budget, item.longest), inference_tokens=item.longest,
            recompute=recompute, offload=offload,
        )
        for etp in experts
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "item"), RECIPES)
def test_trainer_of_a_published_recipe_is_in_the_space(name: str, item: Recipe) -> None:
    facts = TrainerFacts(
        model=item.model,
        node=item.node,
        mini_batch_sequences=item.number("train_gbs", default=0)
        or item.number("prompts_per_step", default=64) * item.number("gens_per_prompt", default=8),
        trains=True,
        precision=Precision.BF16,
    )
    table = TrainerTable.of(tuple(trainer_strategies(item)))
    broken = {rule.reason: rule.allows(table, facts) for rule in TRAINER_RULES}
    legal = np.logical_and.reduce(list(broken.values())) & in_space(table, item.model, max_tokens=item.longest)
    assert legal.any(), [reason for reason, allowed in broken.items() if not allowed.any()]


@pytest.mark.parametrize(("name", "item"), RECIPES)
def test_engine_of_a_published_recipe_is_in_the_space(name: str, item: Recipe) -> None:
    num_gpus = item.number("n_gpus_gen", "n_gpus", default=8)
    tp, pp = item.number("gen_tp"), item.number("gen_pp")
    fraction = float(item.row["gen_mem_util"] or 0.6)
    table = RolloutTable.of((
        RolloutStrategy(
            num_gpus=num_gpus, tp=tp, pp=pp, ep=item.number("gen_ep"), engine_fraction=fraction,
            max_num_seqs=256, idle=EngineIdle.SLEEP,
        ),
    ))  # fmt: skip
    facts = RolloutFacts(model=item.model, node=item.node, num_sequences=100_000, precision=Precision.BF16)
    assert [rule.reason for rule in ROLLOUT_RULES if not rule.allows(table, facts)[0]] == []
    assert tp in space.TP_DEGREES
    assert pp in space.pp_degrees(item.model, StageKind.GENERATION)
    assert min(space.ENGINE_FRACTIONS) <= fraction <= max(space.ENGINE_FRACTIONS)
    grid = space.SizeGrid.of(item.node, -(-num_gpus // item.node.gpus_per_node)).sizes
    assert num_gpus in grid


def test_most_rows_are_recipes_of_catalog_models() -> None:
    unknown = sorted({row["model"] for row in ROWS if recipe(row) is None})
    assert len(RECIPES) >= 130, unknown


def test_exceptions_are_rows_of_the_file() -> None:
    assert set(OUTSIDE) <= {row["id"] for row in ROWS}
    assert {row["id"] for row in ROWS if row["recompute"].endswith("blocks")} <= set(OUTSIDE)
