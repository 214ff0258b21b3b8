"""RL algorithms as data: which roles take part and how often each stage runs.

Sources: PPO (arXiv 1707.06347), VAPO (2504.05118), GRPO (2402.03300), Dr.GRPO (2503.20783), DAPO (2503.14476),
GSPO (2507.18071), RLOO (2402.14740), REINFORCE++ (2501.03262), ReMax (2310.10505).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What an algorithm needs, and the defaults that its authors use.

    `num_greedy_baselines` extra greedy responses per prompt are generated and scored but not trained on (ReMax).
    `oversampling_ratio` multiplies the prompts that are generated and scored: dynamic sampling discards groups
    without signal before training (DAPO).
    """

    name: str
    title: str
    has_critic: bool
    default_kl_coefficient: float
    default_group_size: int
    min_group_size: int = 1
    num_greedy_baselines: int = 0
    oversampling_ratio: float = 1.0
    uses_ratio: bool = True
    """The loss compares with old log-probs, so several optimizer steps per iteration need them."""


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(name="ppo", title="PPO", has_critic=True, default_kl_coefficient=0.001, default_group_size=1),
    Algorithm(name="vapo", title="VAPO", has_critic=True, default_kl_coefficient=0.0, default_group_size=16),
    Algorithm(
        name="grpo",
        title="GRPO",
        has_critic=False,
        default_kl_coefficient=0.001,
        default_group_size=16,
        min_group_size=2,
    ),
    Algorithm(
        name="dr-grpo",
        title="Dr.GRPO",
        has_critic=False,
        default_kl_coefficient=0.0,
        default_group_size=16,
        min_group_size=2,
    ),
    Algorithm(
        name="dapo",
        title="DAPO",
        has_critic=False,
        default_kl_coefficient=0.0,
        default_group_size=16,
        min_group_size=2,
        oversampling_ratio=1.5,
    ),
    Algorithm(
        name="gspo",
        title="GSPO",
        has_critic=False,
        default_kl_coefficient=0.0,
        default_group_size=16,
        min_group_size=2,
    ),
    Algorithm(
        name="rloo",
        title="RLOO",
        has_critic=False,
        default_kl_coefficient=0.001,
        default_group_size=4,
        min_group_size=2,
    ),
    Algorithm(
        name="reinforce++",
        title="REINFORCE++",
        has_critic=False,
        default_kl_coefficient=0.001,
        default_group_size=1,
    ),
    Algorithm(
        name="remax",
        title="ReMax",
        has_critic=False,
        default_kl_coefficient=0.001,
        default_group_size=1,
        num_greedy_baselines=1,
        uses_ratio=False,
    ),
)


def algorithm_names() -> tuple[str, ...]:
    return tuple(algorithm.name for algorithm in ALGORITHMS)


def find_algorithm(name: str) -> Algorithm | None:
    """The algorithm of that name, ignoring case, spaces and punctuation; None if unknown."""

    def key(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum() or c == "+")

    return next((a for a in ALGORITHMS if key(a.name) == key(name)), None)
