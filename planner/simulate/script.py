"""What is replayed: a plan with its priced parts, and the responses that each batch will have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.execution import NUM_SHARES
from planner.domain.plan import Plan
from planner.domain.stages import ROLLOUTS, StageName
from planner.simulate.engine import Request
from planner.simulate.kernels import EngineKernels
from planner.simulate.lengths import Lengths
from planner.simulate.training import TrainerRates


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is replayed: a plan and its priced parts."""

    plan: Plan
    lengths: Lengths
    kernels: dict[StageName, EngineKernels]
    """Of the rollout (or both parts of a split one) and of a generative judge."""
    rates: dict[StageName, TrainerRates]
    seed: int
    num_iterations: int
    num_warm_up: int
    rereads_cache: bool


def requests(script: Script, batch: int) -> list[list[Request]]:
    """One batch of groups that share a prompt, greedy baselines included.

    The lengths of a batch are the same whatever is replayed with this seed. The prompt has its mean length, as in the
    cost model.
    """
    workload = script.plan.workload
    progress = min(max(batch - script.num_warm_up, 0) / max(script.num_iterations - 1, 1), 1.0)
    random = np.random.default_rng([script.seed, batch])
    lengths = script.lengths.sample(workload.num_generated, progress, random).tolist()
    size = workload.group_size + workload.algorithm.num_greedy_baselines
    prompt = max(round(workload.prompt_mean_tokens), 1)
    return [
        [
            Request(group=(batch << 32) + first, prompt_tokens=prompt, response_tokens=length)
            for length in lengths[first : first + size]
        ]
        for first in range(0, len(lengths), size)
    ]


def divided(script: Script, groups: list[list[Request]]) -> dict[StageName, list[list[Request]]]:
    """Which groups of a batch each part of the rollout generates: the second one takes its share of the prompts, in
    whole prompts and at least one, and where there are too few for that its share of the responses; all go to the first
    where the rollout is not split."""
    execution = script.plan.execution
    if not execution.is_split:
        return {StageName.ROLLOUT: groups}
    if len(groups) < NUM_SHARES:
        # Both parts read the prompt that is divided.
        units = [[request] for group in groups for request in group]
        first, second = _cut(units, execution.second_share_ratio)
        return dict(zip(ROLLOUTS, (_by_prompt(first), _by_prompt(second)), strict=True))
    return dict(zip(ROLLOUTS, _cut(groups, execution.second_share_ratio), strict=True))


def _cut(units: list[list[Request]], share: float) -> tuple[list[list[Request]], list[list[Request]]]:
    """All but the last units, and these: the share of them, at least one on either side."""
    second = min(max(round(len(units) * share), 1), len(units) - 1)
    return units[:-second], units[-second:]


def _by_prompt(units: list[list[Request]]) -> list[list[Request]]:
    groups: dict[int, list[Request]] = {}
    for unit in units:
        groups.setdefault(unit[0].group, []).extend(unit)
    return list(groups.values())


def verdicts(script: Script, responses: Sequence[Request]) -> list[Request]:
    """What a generative judge reads (prompt and response, no two alike) and writes."""
    tokens = script.plan.workload.reward.judge_tokens
    return [
        Request(group=number, prompt_tokens=r.num_tokens, response_tokens=tokens) for number, r in enumerate(responses)
    ]
