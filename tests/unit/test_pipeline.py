"""Placement on physical GPUs, infeasible requests, the smallest cluster, fixed configurations."""

from dataclasses import replace

import pytest

from planner import explain, parts, pipeline
from planner.assembly import PlacedStrategy, structure_of
from planner.domain.fixed import FixedField
from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import DeviceGroup, Limits, Objective, Status
from planner.domain.request import FixedWorker, PlanRequest
from planner.domain.stages import StageName, Worker, WorkerName, build_graph
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)
from planner.domain.workload import RewardKind, Workload
from planner.errors import InfeasibleError, InvalidInputError
from planner.files.catalog import generic_node, load_model
from planner.pipeline import estimate, make_plan
from planner.search.clock import Clock
from planner.search.pricing import PricedWorker, PricingInputs
from tests.factories import workload


def qwen_workload(
    model: str = "qwen3-8b", algorithm: str = "grpo", *, reward: RewardKind = RewardKind.RULE
) -> Workload:
    base = workload(algorithm, prompts=64, group=8, reward=reward)
    actor = load_model(model)
    scored = replace(base.reward, model=actor) if base.reward.model else base.reward
    return replace(base, actor=actor, critic=actor if base.critic else None, reward=scored)


def request_on(work: Workload, num_nodes: int = 1, *, gpu: str = "h100", limits: Limits | None = None) -> PlanRequest:
    pool = Pool(name=gpu, node=generic_node(gpu), num_nodes=num_nodes, usd_per_gpu_hour=2.0)
    return PlanRequest(
        workload=work,
        cluster=Cluster(pools=(pool,)),
        gpu_type_when_open=None,
        limits=limits or Limits(),
        assumptions=(),
    )


def trainer(num_gpus: int, **changes: object) -> TrainerStrategy:
    base = TrainerStrategy(
        num_gpus=num_gpus, tp=1, pp=1, vpp=1, cp=1, context_parallel=ContextParallel.ULYSSES, ep=1, etp=1,
        sharding=Sharding.ZERO3, shard_ranks=num_gpus, micro_batch_tokens=9216, inference_tokens=9216,
        recompute=Recompute.FULL, offload=Offload.STATE_SWAP,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def engine(num_gpus: int, tp: int = 2) -> RolloutStrategy:
    return RolloutStrategy(
        num_gpus=num_gpus, tp=tp, pp=1, ep=1, engine_fraction=0.6, max_num_seqs=128, idle=EngineIdle.SLEEP
    )


def fixed(worker: WorkerName, strategy: TrainerStrategy | RolloutStrategy, first: int = 0) -> FixedWorker:
    return FixedWorker(worker=worker, pool="h100", first_gpu=first, num_gpus=strategy.num_gpus, strategy=strategy)


def test_what_does_not_fit_names_stage_instant_term_and_a_checked_change() -> None:
    with pytest.raises(InfeasibleError) as failure:
        make_plan(request_on(qwen_workload("qwen3-235b-a22b")))
    message = str(failure.value)
    assert "stage 'actor update' on 8x H100" in message
    assert "usable; largest term" in message
    assert "smallest changes that work (each was planned): " in message
    num_gpus = int(message.split("each was planned): ")[1].split()[0])
    assert make_plan(request_on(qwen_workload("qwen3-235b-a22b"), num_gpus // 8)).status is Status.OPTIMAL
    with pytest.raises(InfeasibleError):
        make_plan(request_on(qwen_workload("qwen3-235b-a22b"), num_gpus // 8 - 1))


@pytest.mark.parametrize(
    ("option", "limits"),
    [
        ("--fix", Limits(fixed=(FixedField(worker=WorkerName.ACTOR_TRAINER, field="tp", value="3"),))),
        ("--apart", Limits(must_not_share=((WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER),))),
    ],
)
def test_what_the_user_decided_is_named_where_it_leaves_no_plan(option: str, limits: Limits) -> None:
    one_gpu = Pool(name="h100", node=generic_node("h100").with_gpus(1), num_nodes=1, usd_per_gpu_hour=2.0)
    cluster = Cluster(pools=(one_gpu,))
    with pytest.raises(InfeasibleError) as failure:
        make_plan(replace(request_on(qwen_workload("qwen3-0.6b"), limits=limits), cluster=cluster))
    assert f"without {option}: " in str(failure.value)


def test_a_limit_in_the_way_is_named_as_such() -> None:
    with pytest.raises(InfeasibleError, match="the limits are in the way") as failure:
        make_plan(request_on(qwen_workload("qwen3-32b"), limits=Limits(max_gpus=1)))
    needed = int(str(failure.value).split("--max-gpus ")[1])
    plan = make_plan(request_on(qwen_workload("qwen3-32b"), limits=Limits(max_gpus=needed)))
    assert plan.num_gpus <= needed


def test_a_change_is_given_up_at_the_first_worker_without_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for a change that works prices the worker that failed first, and no other one when it fails again."""
    base = qwen_workload()
    work = replace(base, actor=load_model("deepseek-v3"), response=replace(base.response, max_tokens=65536))
    priced: list[tuple[int, WorkerName]] = []
    real = parts.price_worker

    def counted(worker: Worker, pool: Pool, inputs: PricingInputs, clock: Clock | None = None) -> PricedWorker:
        priced.append((pool.num_nodes, worker.name))
        return real(worker, pool, inputs, clock)

    for module in (pipeline, parts):
        monkeypatch.setattr(module, "price_worker", counted)
    with pytest.raises(InfeasibleError):
        make_plan(request_on(work, 1))
    workers = [worker for nodes, worker in priced if nodes == 2]
    assert len(build_graph(work).workers) == 3
    assert len(workers) == 1


@pytest.mark.parametrize("max_gpus", [6, 12])
def test_a_limit_on_gpus_plans_as_on_the_nodes_that_it_leaves(max_gpus: int) -> None:
    limited = Limits(max_gpus=max_gpus)
    many = make_plan(request_on(qwen_workload(), 6, limits=limited))
    few = make_plan(request_on(qwen_workload(), 2, limits=limited))
    assert many.bound == few.bound
    assert many.num_gpus <= max_gpus
    assert many.cluster.pools[0].num_nodes == 6
    assert many.search.num_priced <= few.search.num_priced


def test_no_cluster_beyond_the_largest_is_tried() -> None:
    request = request_on(qwen_workload(), explain.MAX_NODES_TRIED // 2 + 1)
    assert request.cluster is not None
    tried: list[int] = []

    def nothing(changed: PlanRequest, on: Cluster) -> None:
        tried.append(on.pools[0].num_nodes)

    pool = request.cluster.pools[0]
    assert explain._fewest_gpus(request, pool, pool.node, nothing) is None
    assert tried == []
    assert (
        explain._fewest_gpus(request, replace(pool, num_nodes=explain.MAX_NODES_TRIED // 4), pool.node, nothing) is None
    )
    assert max(tried) == explain.MAX_NODES_TRIED


def test_without_a_cluster_the_smallest_one_is_found() -> None:
    request = PlanRequest(
        workload=qwen_workload(),
        cluster=None,
        gpu_type_when_open=generic_node("h100"),
        limits=Limits(),
        assumptions=(),
    )
    plan = make_plan(request)
    assert plan.limits.objective is Objective.GPUS
    fewer = [size for size in (1, 2, 4) if size < plan.num_gpus]
    for size in fewer:
        with pytest.raises(InfeasibleError):
            make_plan(request_on(qwen_workload(), limits=Limits(max_gpus=size)))


def test_disjoint_blocks_use_disjoint_gpus_inside_the_pool() -> None:
    plan = make_plan(request_on(qwen_workload("qwen3-32b", "ppo", reward=RewardKind.MODEL), 4))
    pool_gpus = plan.cluster.num_gpus
    for group in plan.device_groups:
        assert group.first_gpu >= 0 and group.ranks.stop <= pool_gpus
        aligned = min(group.num_gpus, 8)
        assert group.first_gpu % aligned == 0
    blocks = [g for g in plan.device_groups if not g.id.endswith("whole")]
    for a in blocks:
        for b in blocks:
            assert a is b or not set(a.ranks) & set(b.ranks)


def test_a_fixed_configuration_is_priced_as_given() -> None:
    plan = estimate(
        request_on(qwen_workload()),
        (
            fixed(WorkerName.ROLLOUT_ENGINE, engine(8)),
            fixed(WorkerName.ACTOR_TRAINER, trainer(8)),
            fixed(WorkerName.REFERENCE, trainer(8, recompute=Recompute.NONE)),
        ),
    )
    assert plan.status is Status.FEASIBLE
    assert plan.time_s == pytest.approx(sum(p.time_s for p in plan.placements), rel=1e-9)


def test_disjoint_fixed_groups_let_stages_overlap() -> None:
    plan = estimate(
        request_on(qwen_workload(), 2),
        (
            fixed(WorkerName.ROLLOUT_ENGINE, engine(16)),
            fixed(WorkerName.ACTOR_TRAINER, trainer(8)),
            fixed(WorkerName.REFERENCE, trainer(8, recompute=Recompute.NONE), first=8),
        ),
    )
    times = {item.stage: item for item in plan.schedule}
    assert times[StageName.OLD_LOGPROB].start_s == times[StageName.REFERENCE_LOGPROB].start_s


def test_a_fixed_configuration_that_breaks_a_rule_says_which() -> None:
    plan = estimate(
        request_on(qwen_workload()),
        (
            fixed(WorkerName.ROLLOUT_ENGINE, engine(8)),
            fixed(WorkerName.ACTOR_TRAINER, trainer(8, cp=8, shard_ranks=8)),
            fixed(WorkerName.REFERENCE, trainer(8, pp=8, shard_ranks=1)),
        ),
    )
    assert plan.status is Status.INFEASIBLE
    reasons = [item.value for item in plan.assumptions if item.what == "does not fit"]
    assert "reference: ZeRO-2/3 with pipeline parallelism" in reasons


def test_groups_that_overlap_in_part_are_refused() -> None:
    graph = build_graph(qwen_workload())
    pool = Pool(name="h100", node=generic_node("h100"), num_nodes=2, usd_per_gpu_hour=None)

    def placed(name: WorkerName, first: int, size: int) -> PlacedStrategy:
        group = DeviceGroup(id=f"g{first}", pool="h100", gpu="h100", first_gpu=first, num_gpus=size, num_nodes=1)
        strategy = engine(size) if name is WorkerName.ROLLOUT_ENGINE else trainer(size)
        return PlacedStrategy(worker=graph.worker(name), pool=pool, group=group, strategy=strategy)

    items = [
        placed(WorkerName.ROLLOUT_ENGINE, 0, 8),
        placed(WorkerName.ACTOR_TRAINER, 4, 8),
        placed(WorkerName.REFERENCE, 12, 4),
    ]
    with pytest.raises(InvalidInputError, match="overlap only in part"):
        structure_of(items)


@pytest.mark.parametrize(("gpus", "expected"), [(("h100", "mi300x"), True), (("h100", "h20"), False)])
def test_a_weight_sync_between_vendors_is_an_assumption(gpus: tuple[str, ...], expected: bool) -> None:
    pools = tuple(Pool(name=gpu, node=generic_node(gpu), num_nodes=1, usd_per_gpu_hour=2.0) for gpu in gpus)
    apart = ((WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER),)
    request = replace(request_on(qwen_workload(), limits=Limits(must_not_share=apart)), cluster=Cluster(pools=pools))
    plan = make_plan(request)
    used = {group.pool for group in plan.device_groups}
    assert any(item.what == "GPUs of several vendors" for item in plan.assumptions) == (expected and len(used) > 1)
    assert len(used) > 1
