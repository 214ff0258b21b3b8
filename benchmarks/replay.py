"""Do the finalists of a search keep their order in the replay? Kendall's tau, and the regret of the cost model's pick.

    python -m benchmarks.replay

Every finalist is replayed on the same sampled lengths. Regret is the replayed time of the plan that the cost model
ranks first over the least replayed time of any finalist, minus one: what is lost by trusting the cost model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import combinations

from benchmarks.finalists import finalists, request_of
from planner.domain.execution import Fusion
from planner.domain.request import PlanRequest
from planner.domain.stages import WorkerName
from planner.files.catalog import load_overheads
from planner.simulate.replay import ReplaySettings, replay

TARGET_REGRET_RATIO = 0.02
BAND_RATIOS = (0.05, 0.07)
"""Plans that the replay should confirm within these limits."""
TIE_RATIO = 0.01
"""Plans this close count as equal in the cost model (planner.pipeline.TIE_TOLERANCE_RATIO)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How cost model and replay rank the finalists of one request."""

    num_finalists: int
    tau: float
    """Kendall's tau-a over all pairs."""
    clear_tau: float
    """The same over pairs that the cost model tells apart by more than TIE_RATIO; 1 without such pairs."""
    regret_ratio: float
    worst_difference_ratio: float
    """Largest |planned / replayed - 1|."""
    mean_difference_ratio: float
    """Mean of planned / replayed - 1."""
    num_within: tuple[int, ...]
    """Finalists whose planned time lies within each of BAND_RATIOS of the replayed one."""
    worst_origin: str
    """Where the finalist of the largest difference comes from."""


def judge(request: PlanRequest, *, number: int = 24, num_iterations: int = 4, seed: int = 0) -> Judgement:
    """Replays the finalists of a request. Lengths are the same for all of them."""
    overheads = load_overheads()
    settings = ReplaySettings(num_iterations=num_iterations, seed=seed)
    items = finalists(request, number, seed)
    planned = [item.plan.time_s for item in items]
    replayed = [replay(item.plan, overheads, settings).iteration_s.mean for item in items]
    differences = [p / r - 1.0 for p, r in zip(planned, replayed, strict=True)]
    pick = min(range(len(items)), key=lambda i: planned[i])
    worst = max(range(len(items)), key=lambda i: abs(differences[i]))
    return Judgement(
        num_finalists=len(items),
        tau=kendall_tau(planned, replayed, least_ratio=0.0),
        clear_tau=kendall_tau(planned, replayed, least_ratio=TIE_RATIO),
        regret_ratio=replayed[pick] / min(replayed) - 1.0,
        worst_difference_ratio=abs(differences[worst]),
        mean_difference_ratio=sum(differences) / len(differences),
        num_within=tuple(sum(abs(d) <= ratio for d in differences) for ratio in BAND_RATIOS),
        worst_origin=items[worst].origin,
    )


def kendall_tau(first: list[float], second: list[float], *, least_ratio: float) -> float:
    """(concordant - discordant) / pairs, over pairs whose first values differ by more than `least_ratio`.

    Ties count as neither. 1 when no pair is left.
    """
    concordant = discordant = pairs = 0
    for i, j in combinations(range(len(first)), 2):
        if abs(first[i] - first[j]) <= least_ratio * min(first[i], first[j]):
            continue
        pairs += 1
        product = (first[i] - first[j]) * (second[i] - second[j])
        concordant += product > 0
        discordant += product < 0
    return (concordant - discordant) / pairs if pairs else 1.0


def requests() -> list[tuple[str, PlanRequest]]:
    """Situations that differ in what decides: tails, cache, training, pools."""
    return [
        ("GRPO 32B, 32 H100, mean 3,000", request_of(model="qwen3-32b", gpus="32xh100", response_mean=3000)),
        ("GRPO 32B, 32 H100, mean 1,000 of 16,384",
         request_of(model="qwen3-32b", gpus="32xh100", response_mean=1000, response_max=16384, response_cv=1.2)),
        ("GRPO 8B, 8 H100", request_of(model="qwen3-8b", gpus="8xh100", response_mean=2000)),
        ("PPO 8B with reward model, 16 H100",
         request_of(model="qwen3-8b", algorithm="ppo", reward="model", gpus="16xh100", response_mean=1000)),
        ("DAPO 32B, 64 H100, 20,480 tokens",
         request_of(model="qwen3-32b", algorithm="dapo", gpus="64xh100", response_max=20480, response_mean=6000)),
        ("GRPO 30B MoE, 16 H100", request_of(model="qwen3-30b-a3b", gpus="16xh100", response_mean=3000)),
        ("GRPO 14B, 8 H100 + 8 H200", request_of(model="qwen3-14b", gpus="8xh100,8xh200", response_mean=2000)),
        ("GRPO 8B, 64 H100, 64 prompts",
         request_of(model="qwen3-8b", gpus="64xh100", num_prompts=64, response_mean=4000)),
        ("GRPO 32B, 512 H100, 32,768 tokens",
         request_of(model="qwen3-32b", gpus="512xh100", num_prompts=512, response_max=32768, response_cv=1.0)),
        ("GRPO 32B, 64 H100, one step off", _asynchronous(1, partial_rollouts=False)),
        ("GRPO 32B, 64 H100, streaming", _asynchronous(2, partial_rollouts=True)),
        ("GRPO 32B, 32 H100 + 64 H20, split", request_of(model="qwen3-32b", gpus="32xh100,64xh20")),
        ("GRPO 8B, 16 H100 + 16 H20 + 8 A100, one step off, split", _split_ahead()),
        ("PPO 8B, 16 L40S, interleaved updates",
         _interleaved(model="qwen3-8b", gpus="16xl40s", response_mean=500, num_prompts=512)),
        ("PPO 32B, 64 H100, interleaved updates",
         _interleaved(model="qwen3-32b", gpus="64xh100", response_mean=1000, num_prompts=1024)),
    ]  # fmt: skip


def _asynchronous(max_staleness: int, *, partial_rollouts: bool) -> PlanRequest:
    request = request_of(model="qwen3-32b", gpus="64xh100", response_mean=3000)
    limits = replace(request.limits, max_staleness=max_staleness, allow_partial_rollouts=partial_rollouts)
    return replace(request, limits=limits)


def _split_ahead() -> PlanRequest:
    request = request_of(model="qwen3-8b", gpus="16xh100,16xh20,8xa100", response_mean=4000)
    return replace(request, limits=replace(request.limits, max_staleness=1))


def _interleaved(**fields: str | int | float) -> PlanRequest:
    """Both trainers on one block: the search rarely chooses that by itself."""
    request = request_of(algorithm="ppo", **fields)
    together = ((WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER),)
    return replace(request, limits=replace(request.limits, fusions=tuple(Fusion), must_share=together))


def main() -> None:
    """Prints one line per situation."""
    within = "  ".join(f"<{ratio:.0%}" for ratio in BAND_RATIOS)
    print(f"{'situation':<56} plans  tau  tau >1%  regret  plan/replay-1 mean  worst  {within}   s")
    for title, request in requests():
        start = time.perf_counter()
        found = judge(request)
        print(
            f"{title:<56} {found.num_finalists:>5} {found.tau:>4.2f} {found.clear_tau:>8.2f} "
            f"{found.regret_ratio:>7.2%} {found.mean_difference_ratio:>19.1%} {found.worst_difference_ratio:>6.1%} "
            f"{' '.join(f'{number:>4}' for number in found.num_within)} "
            f"{time.perf_counter() - start:>3.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
