from dataclasses import replace

import numpy as np
import pytest

from planner.domain.hardware import Precision
from planner.domain.strategy import RECOMPUTES, SHARDINGS, Recompute, Sharding
from planner.files.catalog import generic_node, load_model
from planner.search.candidates import _degrees, _InnerChoices, _on_size, chunks, enumerate_rollout, enumerate_trainer
from planner.search.legality import TRAINER_RULES, RolloutFacts, TrainerFacts
from planner.search.space import WHOLE, SizeGrid, partial_layers


def trainer_facts(model: str = "qwen3-32b", *, mini_batch: int = 1024, trains: bool = True) -> TrainerFacts:
    return TrainerFacts(
        model=load_model(model),
        node=generic_node("h100"),
        mini_batch_sequences=mini_batch,
        trains=trains,
        precision=Precision.BF16,
    )


def test_every_candidate_spans_its_gpus_and_splits_the_batch() -> None:
    table = enumerate_trainer(trainer_facts(), max_tokens=9216, num_nodes=4).table
    assert len(table) > 10_000
    assert (table.tp * table.pp * table.cp * table.dp == table.num_gpus).all()
    assert (1024 % table.dp == 0).all()
    assert (64 % table.tp == 0).all()
    assert (table.micro_batch_tokens >= 9216).all()
    zero = table.sharding >= SHARDINGS.index(Sharding.ZERO2)
    assert (table.pp[zero] == 1).all()


def test_a_vocabulary_that_tp_does_not_split_needs_padding() -> None:
    """Megatron pads an odd vocabulary a little; DTensor does not pad, and nobody pads a tiny one several times."""
    odd = replace(trainer_facts(), model=replace(load_model("qwen3-8b"), vocab_size=151_935))
    table = enumerate_trainer(odd, max_tokens=9216, num_nodes=1).table
    unsharded = table.sharding >= SHARDINGS.index(Sharding.ZERO2)
    assert set(np.unique(table.tp[unsharded])) == {1.0}
    assert set(np.unique(table.tp[~unsharded])) == {1.0, 2.0, 4.0, 8.0}
    tiny = replace(trainer_facts(), model=replace(load_model("qwen3-8b"), vocab_size=301))
    assert enumerate_trainer(tiny, max_tokens=9216, num_nodes=1).table.tp.max() == 1.0


def test_no_candidate_appears_twice() -> None:
    table = enumerate_trainer(trainer_facts(), max_tokens=9216, num_nodes=2).table
    names = list(table.__slots__)
    rows = np.stack([getattr(table, n) for n in names], axis=1)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_moe_candidates_use_expert_parallelism_within_the_expert_product() -> None:
    table = enumerate_trainer(trainer_facts("qwen3-30b-a3b"), max_tokens=9216, num_nodes=2).table
    assert (table.ep > 1).any()
    assert (np.mod(table.num_gpus, table.ep * table.etp * table.pp) == 0).all()
    assert (np.mod(128, table.ep) == 0).all()


def test_rejections_carry_reasons_and_counts() -> None:
    rejected = dict(enumerate_trainer(trainer_facts(mini_batch=3), max_tokens=9216, num_nodes=1).rejected)
    assert rejected["dp does not divide the mini-batch"] > 0


@pytest.mark.parametrize("mini_batch", [1024, 3])
def test_each_layout_is_legal_or_counts_under_the_first_rule_it_breaks(mini_batch: int) -> None:
    facts = trainer_facts("qwen3-30b-a3b", mini_batch=mini_batch)
    found = enumerate_trainer(facts, max_tokens=9216, num_nodes=3)
    # All rules on all layouts, without leaving anything out on the way.
    degrees = _degrees(facts)
    parts = [_on_size(degrees, size, facts) for size in SizeGrid.of(facts.node, 3).sizes]
    whole = replace(parts[0], **{n: np.concatenate([getattr(p, n) for p in parts]) for n in parts[0].__slots__})
    broken = np.stack([~rule.allows(whole, facts) for rule in TRAINER_RULES])
    weights = _InnerChoices(facts, 9216, WHOLE).numbers(whole)
    first = np.where(broken.any(axis=0), broken.argmax(axis=0), -1)
    counts = {rule.reason: int(weights[first == i].sum()) for i, rule in enumerate(TRAINER_RULES)}
    assert dict(found.rejected) == {reason: count for reason, count in counts.items() if count}
    assert len(found.table) == int(weights[first == -1].sum())


def test_framework_filter_counts_as_a_rejection() -> None:
    plain = enumerate_trainer(trainer_facts(), max_tokens=9216, num_nodes=1)
    only_tp1 = enumerate_trainer(
        trainer_facts(), max_tokens=9216, num_nodes=1, framework=lambda t: (("no TP", t.tp > 1),)
    )
    assert dict(only_tp1.rejected)["no TP"] == int((plain.table.tp > 1).sum())
    assert (only_tp1.table.tp == 1).all()


def test_forward_only_workers_have_no_training_choices() -> None:
    table = enumerate_trainer(trainer_facts(trains=False), max_tokens=9216, num_nodes=2).table
    assert set(np.unique(table.recompute)) == {0.0}
    assert set(np.unique(table.vpp)) == {1.0}


def test_rollout_engines_fill_their_group_and_respect_the_margin() -> None:
    facts = RolloutFacts(
        model=load_model("qwen3-32b"), node=generic_node("h100"), num_sequences=64, precision=Precision.BF16
    )
    table = enumerate_rollout(facts, num_nodes=3, memory_margin_ratio=0.25, can_sleep=True).table
    assert (table.num_engines == np.floor(table.num_engines)).all()
    assert (table.num_engines <= 64).all()
    assert table.engine_fraction.max() <= 0.75
    assert {3.0 * 8} <= set(np.unique(table.num_gpus))


def test_a_judge_never_sleeps() -> None:
    facts = RolloutFacts(
        model=load_model("qwen3-8b"), node=generic_node("h100"), num_sequences=64, precision=Precision.BF16
    )
    table = enumerate_rollout(facts, num_nodes=1, memory_margin_ratio=0.1, can_sleep=False).table
    assert (table.idle == 0).all()


@pytest.mark.parametrize(("gpu", "nodes", "expected"), [("h100", 2, (1, 2, 4, 8, 16)), ("gb200", 2, (1, 2, 4, 8))])
def test_sizes_are_halvings_then_whole_nodes(gpu: str, nodes: int, expected: tuple[int, ...]) -> None:
    assert SizeGrid.of(generic_node(gpu), nodes).sizes == expected


def test_chunks_cover_every_row_once() -> None:
    covered = [i for piece in chunks(40_000) for i in range(piece.start, piece.stop)]
    assert covered == list(range(40_000))


def test_partial_recomputation_takes_thirds_of_a_stage() -> None:
    """Qwen3-32B has 64 layers: 21 and 43 of them on one rank, 3 and 5 of 8; one of two, and none of a single one."""
    table = enumerate_trainer(trainer_facts(), max_tokens=9216, num_nodes=4).table
    is_partial = table.recompute == RECOMPUTES.index(Recompute.PARTIAL)
    found: dict[float, set[float]] = {}
    for stage, layers in zip(64 / (table.pp * table.vpp)[is_partial], table.recompute_layers[is_partial], strict=True):
        found.setdefault(stage, set()).add(layers)
    expected = {stage: set(map(float, partial_layers(round(stage)))) for stage in found}
    assert found == expected and found[64.0] == {21.0, 43.0} and found[8.0] == {3.0, 5.0} and found[2.0] == {1.0}
    assert (table.recompute_layers[~is_partial] == 0).all()
    assert not (is_partial & (table.sharding >= SHARDINGS.index(Sharding.ZERO2))).any()
    assert not (is_partial & (table.pp * table.vpp == 64)).any()


def test_partial_recomputation_does_not_double_the_space() -> None:
    for model, nodes in (("qwen3-32b", 2), ("qwen3-30b-a3b", 2)):
        table = enumerate_trainer(trainer_facts(model), max_tokens=9216, num_nodes=nodes).table
        assert (table.recompute == RECOMPUTES.index(Recompute.PARTIAL)).mean() < 0.5


def test_experts_spread_over_ranks_that_shard_weights() -> None:
    """ZeRO-2/3 with EP: a whole number of ranks shards each expert, in every shard group of HSDP."""
    table = enumerate_trainer(trainer_facts("qwen3-30b-a3b"), max_tokens=9216, num_nodes=2).table
    sharded = table.take(table.sharding >= SHARDINGS.index(Sharding.ZERO2))
    group = sharded.shard_ranks * sharded.tp
    assert {1.0, 8.0, 16.0} <= set(np.unique(sharded.ep))
    assert (np.mod(group, sharded.ep * sharded.etp) == 0).all()
    assert ((sharded.ep == 1) | (sharded.etp == 1)).all()
    assert ((sharded.etp > 1) & (sharded.etp == sharded.tp)).any()
