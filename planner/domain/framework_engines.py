"""Which rollout strategies the engines of a framework can express."""

from __future__ import annotations

import numpy as np

from planner.domain.codes import is_in
from planner.domain.framework import FrameworkRules
from planner.domain.framework_words import idle_words
from planner.domain.strategy import ENGINE_IDLES, EXPERT_EXCHANGES, BoolArray, RolloutTable


def rollout_rejections(
    rules: FrameworkRules, table: RolloutTable, *, overlaps: bool = False
) -> tuple[tuple[str, BoolArray], ...]:
    """Rows that the framework's engines cannot express, by reason; masks of shape (num_candidates,).

    `overlaps`: iterations overlap.
    """
    masks = rollout_masks(rules, table, overlaps=overlaps)
    return tuple((f"{rules.title}: {reason}", mask) for reason, mask in masks if mask.any())


def rollout_masks(
    rules: FrameworkRules, table: RolloutTable, *, overlaps: bool = False
) -> tuple[tuple[str, BoolArray], ...]:
    wide_ep = table.ep > 1
    all_ranks = table.tp * table.attention_dp
    return (
        (f"rollout pp above {rules.max_rollout_pp}", np.asarray(table.pp > rules.max_rollout_pp)),
        ("no rollout expert parallelism", np.asarray(wide_ep & (not rules.allows_rollout_ep))),
        ("no engine without expert parallelism", np.asarray(~wide_ep & rules.rollout_needs_ep)),
        ("rollout ep differs from tp", np.asarray(wide_ep & rules.rollout_ep_equals_tp & (table.ep != all_ranks))),
        *_attention_dp_masks(rules, table, overlaps),
        (
            f"engines always {idle_words(rules.all_engine_idles)}",
            ~is_in(table.idle, ENGINE_IDLES, frozenset(rules.all_engine_idles)),
        ),
    )


def _attention_dp_masks(
    rules: FrameworkRules, table: RolloutTable, overlaps: bool
) -> tuple[tuple[str, BoolArray], ...]:
    groups = table.attention_dp
    is_split = groups > 1
    most = rules.max_attention_dp
    above = "no data-parallel attention in engines" if most == 1 else f"attention dp above {most}"
    allowed = np.array([kind in rules.expert_exchanges for kind in EXPERT_EXCHANGES])
    return (
        (above, np.asarray(groups > most)),
        (
            "attention dp without expert parallelism",
            np.asarray(is_split & rules.attention_dp_needs_ep & (table.ep == 1)),
        ),
        (
            "attention dp while iterations overlap",
            np.asarray(is_split & (rules.attention_dp_excludes_overlap & overlaps)),
        ),
        ("no all-to-all between the ranks of an engine", ~allowed[table.exchange.astype(np.int64)]),
    )
