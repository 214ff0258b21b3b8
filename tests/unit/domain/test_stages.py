import networkx as nx
import pytest

from planner.domain.algorithm import ALGORITHMS
from planner.domain.stages import StageKind, StageName, WorkerName, build_graph
from planner.domain.workload import RewardKind
from tests.factories import workload

ALWAYS = {StageName.ROLLOUT, StageName.REWARD, StageName.ACTOR_UPDATE, StageName.WEIGHT_SYNC}


@pytest.mark.parametrize("algorithm", [a.name for a in ALGORITHMS])
def test_graph_is_a_dag_from_rollout_to_weight_sync(algorithm: str) -> None:
    graph = build_graph(workload(algorithm)).digraph()
    assert nx.is_directed_acyclic_graph(graph)
    assert [n for n in graph if graph.in_degree(n) == 0] == [StageName.ROLLOUT]
    assert nx.has_path(graph, StageName.ROLLOUT, StageName.WEIGHT_SYNC)
    assert set(graph) >= ALWAYS


def test_grpo_without_kl_and_old_logprobs_is_the_shortest_chain() -> None:
    graph = build_graph(workload("grpo", kl=0.0, old_logprob=False))
    assert {s.name for s in graph.stages} == ALWAYS
    assert [w.name for w in graph.workers] == [WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER]


def test_kl_adds_the_reference() -> None:
    graph = build_graph(workload("grpo", kl=0.01))
    assert graph.stage(StageName.REFERENCE_LOGPROB).worker is WorkerName.REFERENCE
    assert (StageName.REFERENCE_LOGPROB, StageName.ACTOR_UPDATE) in graph.edges


def test_ppo_updates_actor_and_critic_independently() -> None:
    graph = build_graph(workload("ppo", reward=RewardKind.MODEL))
    assert len(graph.workers) == 5
    digraph = graph.digraph()
    assert not nx.has_path(digraph, StageName.ACTOR_UPDATE, StageName.CRITIC_UPDATE)
    assert not nx.has_path(digraph, StageName.CRITIC_UPDATE, StageName.ACTOR_UPDATE)
    assert nx.has_path(digraph, StageName.CRITIC_VALUE, StageName.ACTOR_UPDATE)
    # The critic does not wait for the actor's old log-probs.
    assert not nx.has_path(digraph, StageName.OLD_LOGPROB, StageName.CRITIC_UPDATE)


def test_lora_reference_is_the_actor_without_adapter() -> None:
    graph = build_graph(workload("grpo", lora_rank=32))
    assert not graph.has_worker(WorkerName.REFERENCE)
    assert StageName.REFERENCE_LOGPROB in graph.worker(WorkerName.ACTOR_TRAINER).stages


@pytest.mark.parametrize(
    ("kind", "stage_kind"),
    [
        (RewardKind.RULE, StageKind.HOST),
        (RewardKind.SANDBOX, StageKind.HOST),
        (RewardKind.MODEL, StageKind.INFERENCE),
        (RewardKind.PROCESS_MODEL, StageKind.INFERENCE),
        (RewardKind.JUDGE, StageKind.GENERATION),
    ],
)
def test_reward_kinds_decide_where_scoring_runs(kind: RewardKind, stage_kind: StageKind) -> None:
    graph = build_graph(workload("grpo", reward=kind))
    assert graph.stage(StageName.REWARD).kind is stage_kind
    assert graph.has_worker(WorkerName.REWARD_MODEL) == (stage_kind is not StageKind.HOST)


def test_weight_sync_occupies_trainer_and_engine() -> None:
    graph = build_graph(workload("grpo"))
    assert set(graph.workers_of(StageName.WEIGHT_SYNC)) == {WorkerName.ACTOR_TRAINER, WorkerName.ROLLOUT_ENGINE}


def test_multiplicities() -> None:
    assert workload("grpo").num_generated == 256 * 16
    assert workload("remax", group=1).num_generated == 2 * 256
    assert workload("dapo").num_generated == round(1.5 * 4096)
    assert workload("dapo").num_samples == 4096
