"""Workload files and flags -> requests: defaults, grammar of --gpus, limits, hostile input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.domain.hardware import Precision
from planner.domain.plan import Objective
from planner.domain.request import PlanRequest
from planner.domain.stages import WorkerName
from planner.domain.strategy import ContextParallel, RolloutStrategy, TrainerStrategy
from planner.domain.workload import RewardKind
from planner.errors import InvalidInputError
from planner.files.fixed import build_fixed_workers
from planner.files.spec import PLACES, WorkloadSpec, override
from planner.files.workload import KEY_INPUTS, build_request
from planner.files.workload_file import read_workload
from planner.units import GIB

BASE = WorkloadSpec(model="qwen3-8b", gpus="32xh100", flags=frozenset(PLACES))


def request(text: str, tmp_path: Path) -> PlanRequest:
    return build_request(read_workload(written(text, tmp_path)))


def written(text: str | bytes, tmp_path: Path) -> Path:
    path = tmp_path / "w.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(spec: WorkloadSpec) -> str:
    with pytest.raises(InvalidInputError) as caught:
        build_request(spec)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- defaults


def test_defaults_are_applied_and_recorded() -> None:
    made = build_request(BASE)
    work = made.workload
    assert (work.algorithm.name, work.num_prompts, work.group_size) == ("grpo", 256, 16)
    assert (work.prompt_max_tokens, work.prompt_mean_tokens) == (1024, 512)
    assert (work.response.max_tokens, work.response.mean_tokens, work.response.cv) == (8192, 4096, 0.6)
    assert (work.num_optimizer_steps, work.num_epochs, work.needs_old_logprob) == (4, 1, True)
    assert work.memory_margin_ratio == pytest.approx(0.1)
    assert work.train_precision is work.rollout_precision is Precision.BF16
    assert made.limits.objective is Objective.TIME
    names = [assumption.what for assumption in made.assumptions]
    assert names[0] == "mean response"
    assert set(names) >= KEY_INPUTS
    assert len(names) == len(set(names))
    assert {"node of h100", "price of h100", "reward", "memory margin", "KL coefficient"} <= set(names)


def test_what_is_given_is_no_assumption() -> None:
    spec = replace(BASE, algorithm="ppo", num_prompts=64, prompt_max=2048, response_max=4096, response_mean=1000.0,
                   response_cv=0.0, prompt_mean=100.0, group_size=1, num_optimizer_steps=1, num_epochs=1,
                   kl_coefficient=0.0, critic="qwen3-4b", reward="rule", train_precision="bf16",
                   rollout_precision="fp8", memory_margin="5%", objective="time", gpus="4xp5.48xlarge",
                   prices=("p5.48xlarge=3",))  # fmt: skip
    made = build_request(spec)
    assert made.assumptions == ()
    assert made.workload.critic is not None and made.workload.critic.id == "qwen3-4b"
    assert not made.workload.has_reference
    assert not made.workload.needs_old_logprob
    assert made.workload.memory_margin_ratio == pytest.approx(0.05)


@pytest.mark.parametrize(("prompts", "steps"), [(256, 4), (6, 3), (7, 1), (2, 2), (9, 3)])
def test_default_optimizer_steps_divide_the_prompts(prompts: int, steps: int) -> None:
    assert build_request(replace(BASE, num_prompts=prompts)).workload.num_optimizer_steps == steps


def test_critic_and_reward_model_default_to_the_actor() -> None:
    work = build_request(replace(BASE, algorithm="ppo", reward="model")).workload
    assert work.critic == work.actor
    assert work.reward.model == work.actor


def test_reward_model_alone_means_a_reward_model() -> None:
    work = build_request(replace(BASE, reward_model="qwen3-4b")).workload
    assert work.reward.kind is RewardKind.MODEL


# ---------------------------------------------------------------------------------------------- --gpus


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        ("32xh100", [("h100", 4, 8)]),
        ("32 x H100", [("h100", 4, 8)]),
        ("4x8xh100", [("h100", 4, 8)]),
        ("2x4xh100", [("h100", 2, 4)]),
        ("4xh100", [("h100", 1, 4)]),
        ("4xp5.48xlarge", [("p5.48xlarge", 4, 8)]),
        ("8xgb200", [("gb200", 2, 4)]),
        ("8x4090", [("4090", 1, 8)]),
        ("8xh100, 16xh200", [("h100", 1, 8), ("h200", 2, 8)]),
        ("8xh100,8xh100", [("h100", 1, 8), ("h100-2", 1, 8)]),
    ],
)
def test_gpus_grammar(text: str, pools: list[tuple[str, int, int]]) -> None:
    cluster = build_request(replace(BASE, gpus=text)).cluster
    assert cluster is not None
    assert [(p.name, p.num_nodes, p.node.gpus_per_node) for p in cluster.pools] == pools


def test_part_of_a_node_has_its_share_of_the_host() -> None:
    whole = build_request(replace(BASE, gpus="8xh100")).cluster
    part = build_request(replace(BASE, gpus="2xh100")).cluster
    assert whole is not None and part is not None
    full, quarter = whole.pools[0].node, part.pools[0].node
    assert quarter.host_ram_bytes == pytest.approx(full.host_ram_bytes / 4)
    assert quarter.network.host_node_bytes_per_s == pytest.approx(full.network.host_node_bytes_per_s / 4)
    assert quarter.scale_up_domain_gpus == 2
    assert quarter.nic_bytes_per_s == full.nic_bytes_per_s


@pytest.mark.parametrize(("text", "gpu"), [(None, "h100-sxm"), ("h200", "h200-sxm"), ("p5.48xlarge", "h100-sxm")])
def test_no_count_means_the_smallest_cluster(text: str | None, gpu: str) -> None:
    made = build_request(replace(BASE, gpus=text))
    assert made.cluster is None
    assert made.gpu_type_when_open is not None and made.gpu_type_when_open.gpu.id == gpu
    assert made.limits.objective is Objective.GPUS
    assert (text is None) == any(a.what == "GPU type" for a in made.assumptions)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12xh100", "did you mean '8xh100' or '16xh100'?"),
        ("h100x32", "did you mean '32xh100'?"),
        ("32xh101", "did you mean 'h100'"),
        ("4xp5.49xlarge", "did you mean 'p5.48xlarge'"),
        ("0xh100", "asks for no GPU"),
        ("2x16xh100", "at most 8"),
        ("4x4xp5.48xlarge", "has 8 GPUs, not 4"),
        ("8xh100,h200", "'h200' is not understood"),
        ("8x8x8xh100", "is not understood"),
        ("", "is not understood"),
        (",", "is not understood"),
        ("9" * 30 + "xh100", "is too large"),
        ("x" * 500, "too many"),
        ("-8xh100", "is not understood"),
        ("٨xh100", "is not understood"),
        (",".join(["8xh100"] * 17), "17 pools are too many; accepted: at most 16"),
        ("8xh100;rm", "is not understood"),
    ],
)
def test_gpus_that_are_refused(text: str, expected: str) -> None:
    message = refused(replace(BASE, gpus=text))
    assert message.startswith("--gpus: ")
    assert expected in message


# ---------------------------------------------------------------------------------------------- limits and prices


def test_deadline_and_budget_become_limits_of_one_iteration() -> None:
    spec = replace(BASE, deadline="12h", budget="5000 USD", steps=500, prices=("h100=2.50",), max_gpus=16)
    made = build_request(spec)
    assert made.limits.max_iteration_s == pytest.approx(86.4)
    assert made.limits.max_usd_per_iteration == pytest.approx(10.0)
    assert made.limits.max_gpus == 16
    assert made.cluster is not None and made.cluster.pools[0].usd_per_gpu_hour == pytest.approx(2.5)


def test_a_budget_asks_for_an_unknown_price() -> None:
    message = refused(replace(BASE, gpus="8x4090", budget="100 USD", steps=10))
    assert "no price is known for 4090" in message
    assert "--price 4090=2.50" in message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"deadline": "12h"}, "--steps: is missing"),
        ({"steps": 5}, "--steps: has no effect"),
        ({"deadline": "12", "steps": 5}, "has no unit"),
        ({"deadline": "-1 h", "steps": 5}, "must be positive"),
        ({"budget": "5 EUR", "steps": 5}, "is not a unit of USD"),
        ({"prices": ("h200=2",)}, "no pool is called 'h200'"),
        ({"prices": ("h100",)}, "is not understood"),
        ({"prices": ("h100=0",)}, "must be positive"),
        ({"prices": ("h100=nan",)}, "is not a quantity"),
        ({"memory_margin": "10"}, "is no share"),
        ({"memory_margin": "nan"}, "is no share"),
        ({"memory_margin": "-5%"}, "is no share"),
        ({"num_prompts": 0}, "--prompts: 0 is out of range"),
        ({"num_prompts": 10**12}, "is out of range"),
        ({"response_mean": float("nan")}, "is out of range; accepted: a number from 1 to 16,777,216"),
        ({"response_mean": 9000.0}, "above the longest response"),
        ({"prompt_mean": 9000.0}, "above the longest prompt"),
        ({"response_cv": float("inf")}, "is out of range"),
        ({"group_size": 1}, "at least 2"),
        ({"num_optimizer_steps": 3}, "a divisor of 256, such as 2 or 4"),
        ({"critic": "qwen3-4b"}, "has no critic"),
        ({"reward": "sandbox"}, "--reward-latency: is missing"),
        ({"reward": "rule", "reward_model": "qwen3-4b"}, "has no meaning for reward kind 'rule'"),
        ({"reward": "mode"}, "did you mean 'model'"),
        ({"algorithm": "gppo"}, "did you mean"),
        ({"model": "qwen3-33b"}, "did you mean 'qwen3-32b'"),
        ({"model": None}, "MODEL: is missing"),
        ({"solver": "cpsta"}, "did you mean 'cpsat'"),
        ({"seed": -1}, "is out of range"),
        ({"lora_rank": 0}, "is out of range"),
        ({"gpus": "8xa100", "rollout_precision": "fp8"}, "cannot compute in fp8"),
    ],
)
def test_values_that_are_refused(changes: dict[str, object], expected: str) -> None:
    spec = BASE
    for name, value in changes.items():
        spec = replace(spec, **{name: value})  # type: ignore[arg-type]
    assert expected in refused(spec)


def test_all_problems_are_reported_at_once() -> None:
    message = refused(replace(BASE, model="qwen3-33b", gpus="32xh101", num_prompts=0, kl_coefficient=-1.0))
    assert message.startswith("4 problems:\n")
    for part in ("qwen3-33b", "--gpus", "--prompts", "--kl"):
        assert part in message


# ---------------------------------------------------------------------------------------------- files


def test_file_with_everything(tmp_path: Path) -> None:
    made = request(
        """
        model: qwen3-8b
        algorithm: ppo
        cluster:
          inter_pool: 100 Gbit/s
          pools:
            - {name: train, gpu: h100, nodes: 2, price: 2.5 USD/hour, host_ram: 1 TiB, nic: 200 Gbit/s}
            - {node: p5.48xlarge, nodes: 1}
        batch: {prompts: 128, group: 2, optimizer_steps: 2, epochs: 1, kl: 0.01}
        lengths: {prompt: 512, prompt_mean: 200, response: 2048, response_mean: 700, response_cv: 0.5}
        critic: qwen3-4b
        reward: {kind: judge, model: qwen3-4b, judge_tokens: 64}
        precision: {train: bf16, rollout: fp8}
        lora: 32
        limits: {objective: cost, deadline: 10h, steps: 100, memory_margin: 8%, framework: verl, seed: 7}
        """,
        tmp_path,
    )
    assert made.cluster is not None
    assert made.cluster.inter_pool_bytes_per_s == pytest.approx(12.5e9)
    train, second = made.cluster.pools
    assert (train.name, train.num_gpus, train.usd_per_gpu_hour) == ("train", 16, 2.5)
    assert train.node.host_ram_bytes == 1024 * GIB
    assert train.node.nic_bytes_per_s == pytest.approx(25e9)
    assert second.name == "p5.48xlarge"
    assert made.limits.max_iteration_s == pytest.approx(360.0)
    assert made.limits.framework == "verl"
    assert made.workload.reward.judge_tokens == 64
    assert made.workload.lora_rank == 32
    assert [a.what for a in made.assumptions] == ["price of p5.48xlarge"]


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = read_workload(written("model: qwen3-8b\ncluster: {pools: [{gpu: h100, nodes: 1}]}\nlora: 8\n", tmp_path))
    made = build_request(override(file, WorkloadSpec(gpus="16xh200", lora_rank=64)))
    assert made.cluster is not None and made.cluster.pools[0].name == "h200"
    assert made.workload.lora_rank == 64


def test_messages_name_flag_or_key(tmp_path: Path) -> None:
    path = written("model: qwen3-8b\nbatch: {prompts: 0, group: 0}\n", tmp_path)
    message = refused(override(read_workload(path), WorkloadSpec(num_prompts=-1)))
    assert "--prompts: -1" in message
    assert f"{path}: batch.group: 0" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("- a\n- b\n", "holds a list"),
        ("just text", "holds text"),
        ("model: qwen3-8b\nmodle: x\n", "unknown key 'modle'; "),
        ("model: qwen3-8b\nmodle: x\n", "did you mean 'model'?"),
        ("model: a\nbatch: {promts: 3}\n", "batch: unknown key 'promts'"),
        ("model: a\nmodel: b\n", "key 'model' is given twice"),
        ("model: a\nbatch: {group: 2, group: 3}\n", "key 'group' is given twice"),
        ("model: a\nbatch: {prompts: many}\n", "batch.prompts: 'many' is not accepted; accepted: a whole number"),
        ("model: a\nbatch: {prompts: 2.5}\n", "batch.prompts"),
        ("model: a\nbatch: {prompts: true}\n", "batch.prompts"),
        ("model: a\nbatch: {kl: .nan}\n", "batch.kl"),
        ("model: a\nbatch: {kl: .inf}\n", "batch.kl"),
        ("model: a\nlimits: {deadline: 12}\n", "limits.deadline: 12 is not accepted; accepted: text, such as '12h'"),
        ("model: 5\n", "model: 5 is not accepted; accepted: text"),
        ("model: a\nbatch: foo\n", "batch: 'foo' is not accepted; accepted: keys and values"),
        (
            "cluster: {pools: [{gpu: h100, nodes: 1, price: 4.10}]}\n",
            "cluster.pools[0].price: 4.1 is not accepted; accepted: text, such as '2.50 USD/hour'",
        ),
        (
            "cluster: {pools: [{gpu: h100, nodes: 1, host_ram: 2}]}\n",
            "pools[0].host_ram: 2 is not accepted; accepted: text, such as '1 TiB'",
        ),
        ("model: a\nbatch: {prompts: 1:30}\n", "line 2: 1:30 would be read to base 60 or 8"),
        ("model: a\nbatch: {prompts: 010}\n", "line 2: 010 would be read to base 60 or 8"),
        (f"model: a\nbatch: {{prompts: {'9' * 5000}}}\n", "holds a value that cannot be read: Exceeds the limit"),
        ("model: [a\n", "is not YAML"),
        ("model: a\n\tgpus: b\n", "is not YAML"),
        ("model: !!python/object/apply:os.system ['true']\n", "is not YAML"),
        ("a: &a [x, x]\nb: [*a, *a]\n", "aliases"),
        ("model: a\n---\nmodel: b\n", "a second document"),
        ("[" * 5000, "nest"),
        ("{a: " * 100, "nested deeper"),
        ("a: [" + "1," * 60_000 + "]", "more than 50000 values"),
        ("model: 2024-13-45\n", "cannot be read"),
        ("1: 2\n", "key 1 is not text"),
        ("cluster: {pools: []}\n", "cluster.pools: [] is not accepted; accepted: a list of at least 1"),
        (
            "cluster: {pools: [{gpu: h100, nodes: 0}]}\n",
            "cluster.pools[0].nodes: 0 is not accepted; accepted: at least 1",
        ),
    ],
)
def test_files_that_are_refused(text: str, expected: str, tmp_path: Path) -> None:
    path = written(text, tmp_path)
    with pytest.raises(InvalidInputError) as caught:
        read_workload(path)
    message = str(caught.value)
    assert str(path) in message
    assert expected in message
    for jargon in ("dictionary", "instance", "validation", "Input", "valid ", "set_int_max_str_digits"):
        assert jargon not in message


def test_quoted_text_may_look_like_a_number_to_base_60(tmp_path: Path) -> None:
    assert read_workload(written("model: '1:30'\ngpus: \"010\"\n", tmp_path)).model == "1:30"


@pytest.mark.parametrize(
    "spec",
    [
        replace(BASE, response_max=-1),
        replace(BASE, response_max=10**10),
        replace(BASE, response_max=-1, response_mean=9000.0),
        replace(BASE, prompt_max=0, prompt_mean=2000.0),
        replace(BASE, group_size=0),
        replace(BASE, group_size=10**6),
        replace(BASE, num_prompts=0, num_optimizer_steps=7),
        replace(BASE, gpus="8xv100"),
        replace(BASE, gpus="v100", train_precision="bf16"),
        replace(BASE, framework=""),
    ],
)
def test_one_wrong_value_is_one_problem(spec: WorkloadSpec) -> None:
    message = refused(spec)
    assert "problems" not in message
    assert message.startswith("--")


def test_a_gpu_without_the_default_precision_is_named() -> None:
    message = refused(replace(BASE, gpus="8xv100"))
    assert "--gpus: Tesla V100-SXM2-32GB cannot compute in bf16" in message
    # One pool that can is enough.
    assert build_request(replace(BASE, gpus="8xv100,8xh100")).cluster is not None


def test_a_framework_is_called_as_its_rules_call_it() -> None:
    assert build_request(replace(BASE, framework="VERL")).limits.framework == "verl"
    assert "did you mean 'verl'" in refused(replace(BASE, framework="vrel"))


def test_a_pool_name_must_be_printable(tmp_path: Path) -> None:
    text = 'model: qwen3-8b\ncluster: {pools: [{gpu: h100, nodes: 1, name: "a\\e[31m"}]}\n'
    with pytest.raises(InvalidInputError, match=r"pools\[0\]\.name: 'a\\x1b\[31m' is no name"):
        request(text, tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xff\xfe\x00m", "is not UTF-8"),
        (b"model: a\0b\n", "is a binary file"),
        (b"x" * (4 * 2**20 + 1), "is larger than 4 MiB"),
    ],
)
def test_bytes_that_are_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=expected):
        read_workload(written(content, tmp_path))


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="does not exist"):
        read_workload(tmp_path / "none.yaml")
    with pytest.raises(InvalidInputError, match="is a directory"):
        read_workload(tmp_path)


def test_several_problems_of_a_file_come_together(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="3 problems"):
        read_workload(written("modle: a\nbatch: {prompts: x}\nlora: y\n", tmp_path))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_garbage_is_refused_cleanly(content: bytes, tmp_path: Path) -> None:
    try:
        spec = read_workload(written(content, tmp_path))
    except InvalidInputError as error:
        assert "w.yaml" in str(error)
    else:
        assert spec.file


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet="0123456789xX*h20,. -p5", max_size=24))
def test_any_gpus_text_is_read_or_refused(text: str) -> None:
    try:
        made = build_request(replace(BASE, gpus=text))
    except InvalidInputError as error:
        assert "--gpus" in str(error)
    else:
        assert (made.cluster is None) != (made.gpu_type_when_open is None)


# ---------------------------------------------------------------------------------------------- fixed strategies

FIXED = """
model: qwen3-8b
gpus: 16xh100
strategies:
  - {worker: rollout engine, tp: 2, engine_fraction: 0.7, max_num_seqs: 128, idle: sleep}
  - {worker: actor trainer, tp: 2, cp: 2, context_parallel: ulysses, sharding: zero3, recompute: selective}
  - {worker: reference, tp: 4, num_gpus: 8, first_gpu: 8}
"""


def test_fixed_strategies(tmp_path: Path) -> None:
    spec = read_workload(written(FIXED, tmp_path))
    engine, trainer, reference = build_fixed_workers(spec, build_request(spec))
    assert isinstance(engine.strategy, RolloutStrategy)
    assert (engine.strategy.num_engines, engine.strategy.engine_fraction) == (8, 0.7)
    assert isinstance(trainer.strategy, TrainerStrategy)
    assert (trainer.strategy.dp, trainer.strategy.shard_ranks) == (4, 8)
    assert trainer.strategy.context_parallel is ContextParallel.ULYSSES
    assert trainer.strategy.micro_batch_tokens == 1024 + 8192
    assert (reference.worker, reference.first_gpu, reference.num_gpus) == (WorkerName.REFERENCE, 8, 8)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("tp: 2, engine", "tp: 3, engine", "does not divide 16 GPUs"),
        ("worker: reference", "worker: refernce", "did you mean 'reference'"),
        ("worker: reference", "worker: actor trainer", "given twice"),
        ("worker: reference", "worker: critic trainer", "is no worker of this workload"),
        ("first_gpu: 8", "first_gpu: 9", "are not all in pool h100"),
        ("num_gpus: 8, first_gpu: 8", "first_gpu: 16", "GPUs 16 to 16 are not all in pool h100; accepted: 0 to 15"),
        ("sharding: zero3", "sharding: zero4", "did you mean"),
        ("tp: 2, engine", "recompute: full, engine", "has no meaning for the rollout engine"),
        ("gpus: 16xh100", "gpus: h100", "needs a fixed cluster"),
        ("tp: 4, num", "pool: h200, num", "is no pool"),
        ("  - {worker: reference, tp: 4, num_gpus: 8, first_gpu: 8}\n", "", "reference is missing"),
    ],
)
def test_fixed_strategies_that_are_refused(old: str, new: str, expected: str, tmp_path: Path) -> None:
    assert old in FIXED
    spec = read_workload(written(FIXED.replace(old, new), tmp_path))
    with pytest.raises(InvalidInputError, match=expected):
        build_fixed_workers(spec, build_request(spec))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("recompute: selective", "micro_batch_tokens: 99999999999", "accepted: at most 67,108,864$"),
        ("engine_fraction: 0.7", "engine_fraction: 0", "accepted: more than 0$"),
        ("engine_fraction: 0.7", "engine_fraction: 2", "accepted: at most 1$"),
    ],
)
def test_bounds_are_written_out(old: str, new: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=expected):
        read_workload(written(FIXED.replace(old, new), tmp_path))


def test_what_a_fixed_strategy_leaves_open_is_an_assumption(tmp_path: Path) -> None:
    from planner.files.fixed import build_fixed_workers, fixed_assumptions

    file = tmp_path / "fixed.yaml"
    file.write_text(
        "model: qwen3-8b\ngpus: 8xh100\nbatch: {kl: 0}\n"
        "strategies: [{worker: rollout engine, tp: 2, idle: sleep}, {worker: actor trainer, recompute: none}]\n"
    )
    spec = read_workload(file)
    request = build_request(spec)
    found = {item.what: item.value for item in fixed_assumptions(spec, build_fixed_workers(spec, request))}
    assert found["strategy of rollout engine"] == "engine fraction 0.85, max num seqs 256"
    assert "sharding zero1" in found["strategy of actor trainer"]
    assert "recompute" not in found["strategy of actor trainer"]
