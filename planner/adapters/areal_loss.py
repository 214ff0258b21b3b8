"""Algorithms as AReaL 1.0.4 spells them: it has no switch, only normalisations, clip ranges and levels."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.yaml_text import YamlValue
from planner.domain.workload import Workload

MAX_RATIO = 5.0
"""Tokens whose weights moved by more than this factor since they were generated are masked: what AReaL filtered by
default before 1.0 (areal/api/cli_args.py, PPOActorConfig.__post_init__)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norm:
    """A `NormConfig`: over the whole batch or one group; `leaves_one_out` compares with the others of the group."""

    mean_level: str
    std_level: str | None
    leaves_one_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """Clip ranges are those of the algorithm's paper."""

    reward_norm: _Norm | None = None
    advantage_norm: _Norm | None = None
    clip_low: float = 0.2
    clip_high: float | None = None
    level: str = "token"


_GROUP = _Norm(mean_level="group", std_level="group")
_BATCH = _Norm(mean_level="batch", std_level="batch")

_LOSSES = {
    "ppo": _Loss(advantage_norm=_BATCH),
    "grpo": _Loss(reward_norm=_GROUP),
    "dr-grpo": _Loss(reward_norm=_Norm(mean_level="group", std_level=None)),
    "dapo": _Loss(reward_norm=_GROUP, clip_high=0.28),
    "gspo": _Loss(reward_norm=_GROUP, clip_low=3e-4, clip_high=4e-4, level="sequence"),
    "rloo": _Loss(reward_norm=_Norm(mean_level="group", std_level=None, leaves_one_out=True)),
}
"""Sources: arXiv 1707.06347, 2402.03300, 2503.20783, 2503.14476, 2507.18071, 2402.14740, and AReaL's
examples/math/gsm8k_*.yaml for how they are written."""


def supported_algorithms() -> tuple[str, ...]:
    return tuple(_LOSSES)


def loss_entries(workload: Workload) -> tuple[tuple[str, YamlValue], ...]:
    """Entries of `actor` that make the algorithm."""
    loss = _LOSSES[workload.algorithm.name]
    return (
        ("eps_clip", loss.clip_low),
        ("eps_clip_higher", loss.clip_high),
        ("importance_sampling_level", loss.level),
        *_norm_entries("reward_norm", loss.reward_norm, workload.group_size),
        *_norm_entries("adv_norm", loss.advantage_norm, workload.group_size),
        ("discount", 1.0),
        ("gae_lambda", 1.0),
        ("kl_ctl", float(workload.kl_coefficient)),
        ("kl_estimator", "k1"),
    )


def _norm_entries(key: str, norm: _Norm | None, group_size: int) -> tuple[tuple[str, YamlValue], ...]:
    if norm is None:
        return ((key, None),)
    return (
        (f"{key}.mean_level", norm.mean_level),
        (f"{key}.mean_leave1out", norm.leaves_one_out),
        (f"{key}.std_level", norm.std_level),
        (f"{key}.group_size", group_size),
    )


def off_policy_entries(workload: Workload, *, is_asynchronous: bool) -> tuple[tuple[str, YamlValue], ...]:
    """Which log-probs the ratio compares with, and the correction for responses of older weights.

    Asynchronous plans use the decoupled loss: it clips against the weights before the update and weights tokens by
    how far these are from the ones that generated. Without an old log-prob stage these are interpolated.
    """
    if not is_asynchronous:
        return (
            ("recompute_logprob", workload.needs_old_logprob),
            ("use_decoupled_loss", False),
            ("rejection_sampling", None),
        )
    return (
        ("recompute_logprob", workload.needs_old_logprob),
        ("use_decoupled_loss", True),
        ("prox_logp_method", "recompute" if workload.needs_old_logprob else "loglinear"),
        ("rejection_sampling.level", "token"),
        ("rejection_sampling.action", "mask"),
        ("rejection_sampling.metric", "ratio"),
        ("rejection_sampling.upper", MAX_RATIO),
    )
