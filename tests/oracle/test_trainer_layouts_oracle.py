"""The strategies of trainers that are searched, against plain enumeration of the declared space."""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
import pytest

from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.strategy import RECOMPUTES, SHARDINGS, Recompute, Sharding
from planner.files.catalog import generic_node, load_model
from planner.search.candidates import enumerate_trainer
from planner.search.legality import TrainerFacts

LONGEST, BATCH = 9216, 512
Layout = tuple[int, int, int, int, int, int, int, str, int]
"""GPUs, tp, pp, vpp, cp, ep, etp, sharding, shard ranks."""


def sizes(per_node: int, num_nodes: int) -> list[int]:
    """Halvings of a node, then whole nodes."""
    below = [per_node // 2**k for k in range(1, 10) if per_node // 2**k >= 1]
    return sorted({*below, *(per_node * count for count in range(1, num_nodes + 1))})


def degrees_exist(model: Model, node: NodeType, layout: Layout) -> bool:
    """The declared space in words: docs/search.md and `rlplan plan --describe-space`."""
    num_gpus, tp, pp, vpp, cp, ep, etp, sharding, ranks = layout
    if num_gpus % (tp * pp * cp) or num_gpus % (ep * etp * pp) or BATCH % (num_gpus // (tp * pp * cp)):
        return False
    if tp > node.scale_up_domain_gpus or pp > model.num_layers or (pp & (pp - 1) and model.num_layers % pp):
        return False
    if vpp > 1 and (pp == 1 or model.num_layers % (pp * vpp)):
        return False
    if etp not in (1, tp) or (not model.is_moe and ep * etp > 1):
        return False
    data_ranks = num_gpus // (tp * pp)
    if sharding in ("zero2", "zero3"):
        if pp > 1 or (ep > 1 and etp > 1) or data_ranks == 1 or ranks * tp % (ep * etp):
            return False
        # Ulysses splits query heads, and key/value heads or repeats them
        for layer in model.layers:
            heads, kv_heads = layer.attention.num_heads, layer.attention.num_kv_heads
            if cp > 1 and (heads % (tp * cp) or (kv_heads % (tp * cp) and tp * cp % kv_heads)):
                return False
        if model.vocab_size % tp:
            return False
    for layer in model.layers:
        heads, kv_heads = layer.attention.num_heads, layer.attention.num_kv_heads
        if heads % tp or (kv_heads % tp and tp % kv_heads):
            return False
        if layer.mlp.is_moe and (layer.mlp.num_experts % ep or layer.mlp.expert_hidden_size % etp):
            return False
    return True


def shard_groups(num_gpus: int, tp: int, pp: int, node: NodeType) -> list[tuple[str, int]]:
    """All levels over all ranks, and ZeRO-3 within a node where the ranks span several."""
    ranks, inside = num_gpus // (tp * pp), max(1, node.gpus_per_node // tp)
    found = [(level.value, ranks) for level in Sharding]
    return found + ([("zero3", inside)] if ranks > inside > 1 and ranks % inside == 0 else [])


def levels(model: Model, layout: Layout) -> set[tuple[str, int]]:
    """Recomputation with its layers: partial takes a third or two of a stage, of Megatron's trainers."""
    _, _, pp, vpp, *_, sharding, _ = layout
    stage = ceil(model.num_layers / (pp * vpp))
    whole = {("none", 0), ("selective", 0), ("full", 0)}
    if sharding in ("zero2", "zero3"):
        return whole
    return whole | {("partial", n) for n in (round(stage / 3), round(2 * stage / 3)) if 0 < n < stage}


CASES = [
    ("qwen3-30b-a3b", "h100", 2),
    ("qwen3-30b-a3b", "h100", 3),
    ("qwen3-32b", "h100", 2),
    ("qwen3-235b-a22b", "h100", 1),
]


@pytest.mark.parametrize(("name", "gpu", "num_nodes"), CASES)
def test_the_strategies_are_those_of_the_declared_space(name: str, gpu: str, num_nodes: int) -> None:
    model, node = load_model(name), generic_node(gpu)
    facts = TrainerFacts(model=model, node=node, mini_batch_sequences=BATCH, trains=True, precision=Precision.BF16)
    table = enumerate_trainer(facts, max_tokens=LONGEST, num_nodes=num_nodes).table
    codes = [table.num_gpus, table.tp, table.pp, table.vpp, table.cp, table.ep, table.etp, table.sharding]
    codes += [table.shard_ranks, table.recompute, table.recompute_layers]
    rows = np.unique(np.stack(codes, axis=1).astype(int), axis=0).tolist()
    found = {(*row[:7], SHARDINGS[row[7]].value, row[8], RECOMPUTES[row[9]].value, row[10]) for row in rows}
    expected = set()
    powers, pipelines = [2**k for k in range(8)], (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
    for num_gpus, tp, pp in product(sizes(node.gpus_per_node, num_nodes), powers[:7], pipelines):
        if num_gpus % (tp * pp):
            continue
        for (sharding, ranks), vpp, cp, ep in product(
            shard_groups(num_gpus, tp, pp, node), (1, 2, 4), powers[:5], powers if model.is_moe else (1,)
        ):
            for etp in {1, tp} if model.is_moe else {1}:
                layout = (num_gpus, tp, pp, vpp, cp, ep, etp, sharding, ranks)
                if degrees_exist(model, node, layout):
                    expected |= {(*layout, *level) for level in levels(model, layout)}
    assert found == expected
    assert any(row[5] > 1 and row[7] == "zero3" for row in found) == model.is_moe
    assert any(row[9] == Recompute.PARTIAL.value for row in found)
