"""The layouts of engines that are searched, against plain enumeration: every degree, every exchange, every size."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.strategy import EXPERT_EXCHANGES, ExpertExchange
from planner.files.catalog import generic_node, load_model
from planner.search.candidates import enumerate_rollout
from planner.search.legality import RolloutFacts

Layout = tuple[int, int, int, int, int, str]
"""GPUs, tp, pp, attention_dp, ep, exchange."""


def sizes(per_node: int, num_nodes: int) -> list[int]:
    """Halvings of a node, then whole nodes."""
    below = [per_node // 2**k for k in range(1, 10) if per_node // 2**k >= 1]
    return sorted({*below, *(per_node * count for count in range(1, num_nodes + 1))})


def exists(model: Model, node: NodeType, num_sequences: int, layout: Layout) -> bool:
    """The declared space in words: docs/search.md and `rlplan plan --describe-space`."""
    num_gpus, tp, pp, groups, ep, exchange = layout
    engine = tp * pp * groups
    ranks = tp * groups
    if num_gpus % engine or pp > model.num_layers:
        return False
    if num_gpus > node.gpus_per_node and node.gpus_per_node % engine and engine % node.gpus_per_node:
        return False
    if groups > 1 and (not model.is_moe or pp > 1 or tp > node.scale_up_domain_gpus or engine > 64):
        return False
    if ep not in {1, tp, ranks} or (ep > 1 and not model.is_moe):
        return False
    if exchange == "all-to-all" and (groups == 1 or ep != ranks):
        return False
    if num_gpus // engine * groups > num_sequences:
        return False
    for layer in model.layers:
        heads, kv_heads = layer.attention.num_heads, layer.attention.num_kv_heads
        if heads % tp or (kv_heads % tp and tp % kv_heads):
            return False
        if layer.mlp.is_moe and (layer.mlp.num_experts % ep or layer.mlp.expert_hidden_size % (ranks // ep)):
            return False
    return True


CASES = [
    ("qwen3-30b-a3b", "h100", 3, 4096), ("qwen3-30b-a3b", "h100", 2, 24), ("deepseek-v3", "h200", 9, 4096),
    ("qwen3-8b", "h100", 2, 512), ("qwen3-235b-a22b", "gb200", 8, 100),
]  # fmt: skip


@pytest.mark.parametrize(("name", "gpu", "num_nodes", "num_sequences"), CASES)
def test_the_layouts_are_those_of_the_declared_space(name: str, gpu: str, num_nodes: int, num_sequences: int) -> None:
    model, node = load_model(name), generic_node(gpu)
    facts = RolloutFacts(model=model, node=node, num_sequences=num_sequences, precision=Precision.BF16)
    table = enumerate_rollout(facts, num_nodes=num_nodes, memory_margin_ratio=0.1, can_sleep=True).table
    columns = (table.num_gpus, table.tp, table.pp, table.attention_dp, table.ep)
    rows = np.stack([*columns, table.exchange], axis=1).astype(int)
    found = {(*(int(value) for value in row[:5]), EXPERT_EXCHANGES[row[5]].value) for row in np.unique(rows, axis=0)}
    powers, exchanges = [2**k for k in range(7)], [exchange.value for exchange in ExpertExchange]
    every = product(sizes(node.gpus_per_node, num_nodes), powers, (1, 2, 4, 8), powers, powers, exchanges)
    expected = {layout for layout in every if exists(model, node, num_sequences, layout)}
    assert found == expected
    assert any(layout[3] > 1 for layout in found) == model.is_moe
    whole = np.column_stack([rows, table.engine_fraction, table.max_num_seqs, table.idle])
    assert len(np.unique(whole, axis=0)) == len(table)
