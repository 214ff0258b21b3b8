"""Logs that the cost model makes with known parameters, in the formats of the frameworks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from planner.calibration.coverage import controller_s
from planner.calibration.parameters import Key, node_at, overheads_at
from planner.calibration.setup import RunSetup, price_setup, setup_of, with_lengths
from planner.domain.execution import SchedulingPolicy
from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import Limits, Plan
from planner.domain.profile import Parameter
from planner.domain.request import PlanRequest
from planner.domain.stages import StageName
from planner.domain.workload import RewardKind
from planner.files.catalog import generic_node, load_model, load_overheads
from planner.files.fixed import build_fixed_workers
from planner.files.workload import build_request
from planner.files.workload_file import read_workload
from planner.pipeline import make_plan
from planner.whatif import fixed_workers
from tests.factories import workload

ROOT = Path(__file__).parents[3]
FIXED = ROOT / "examples" / "fixed-qwen3-8b.yaml"
LOGS = ROOT / "examples" / "logs"
TRUE = {
    Key(Parameter.ROLLOUT_RATIO): 1.25,
    Key(Parameter.TRAINING_RATIO): 1.15,
    Key(Parameter.SYNC_RATIO): 0.7,
    Key(Parameter.STEP): 2.0,
}
"""Factors on the catalog's values."""
VERL_NAMES = {
    StageName.ROLLOUT: "gen",
    StageName.OLD_LOGPROB: "old_log_prob",
    StageName.REFERENCE_LOGPROB: "ref",
    StageName.ACTOR_UPDATE: "update_actor",
    StageName.WEIGHT_SYNC: "update_weights",
    StageName.REWARD: "reward",
    StageName.CRITIC_VALUE: "values",
    StageName.CRITIC_UPDATE: "update_critic",
}


@cache
def setup() -> RunSetup:
    """Everything on one node of eight H100."""
    spec = read_workload(FIXED)
    request = build_request(spec)
    assert request.cluster is not None
    workers = build_fixed_workers(spec, request)
    return RunSetup(workload=request.workload, cluster=request.cluster, workers=workers)


@cache
def ppo_plan() -> Plan:
    """PPO with critic, reference and reward model on eight H100, one stage after the other, as verl runs it."""
    base = workload("ppo", prompts=64, group=1, reward=RewardKind.MODEL)
    actor = load_model("qwen3-0.6b")
    work = replace(base, actor=actor, critic=actor, reward=replace(base.reward, model=actor))
    pool = Pool(name="h100", node=generic_node("h100"), num_nodes=1, usd_per_gpu_hour=None)
    limits = Limits(framework="verl", policy=SchedulingPolicy.SEQUENTIAL, fusions=())
    return make_plan(
        PlanRequest(
            workload=work, cluster=Cluster(pools=(pool,)), gpu_type_when_open=None, limits=limits, assumptions=()
        )
    )


@cache
def ppo_setup() -> RunSetup:
    plan = ppo_plan()
    return setup_of(plan, fixed_workers(plan), "plan")


def iterations(
    num: int,
    *,
    true: Mapping[Key, float] = TRUE,
    noise: float = 0.0,
    seed: int = 0,
    base: RunSetup | None = None,
    start: float | None = None,
) -> list[dict[str, float]]:
    """verl's timers, the length and the whole of `num` iterations with growing responses."""
    rng = random.Random(seed)
    base = base or setup()
    start = 1500.0 / base.workload.response.mean_tokens if start is None else start
    pools = tuple(replace(pool, node=node_at(true, pool.node)) for pool in base.cluster.pools)
    base = replace(base, cluster=replace(base.cluster, pools=pools))
    overheads = overheads_at(true, load_overheads())
    result = []
    for index in range(num):
        tokens = base.workload.response.mean_tokens * start + 60.0 * index
        at = with_lengths(base, tokens, None)
        own = controller_s(at.workload, overheads)
        timers = {}
        priced = price_setup(at, overheads)
        for item in priced.placements:
            if item.stage in VERL_NAMES:
                seconds = item.time_s - (own if item.stage is StageName.ACTOR_UPDATE else 0.0)
                timers[VERL_NAMES[item.stage]] = seconds * rng.lognormvariate(0.0, noise)
        timers["step"] = priced.time_s if base.execution.is_asynchronous else sum(timers.values()) + own
        timers["tokens"] = tokens
        result.append(timers)
    return result


def verl_line(step: int, timers: Mapping[str, float]) -> str:
    parts = [f"step:{step}", "actor/grad_norm:0.1"]
    if "tokens" in timers:
        parts.append(f"response_length/mean:{timers['tokens']}")
    parts += [f"timing_s/{name}:{value}" for name, value in timers.items() if name != "tokens"]
    return " - ".join(parts)


def verl_log(path: Path, rows: list[dict[str, float]]) -> Path:
    path.write_text("\n".join(verl_line(index + 1, row) for index, row in enumerate(rows)) + "\n")
    return path
