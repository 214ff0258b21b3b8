"""OpenRLHF exports against the frozen flags of 0.11.2 and against what the plan says.

`make test-frameworks` (tests/adapters/openrlhf_check.py) parses the same exports with OpenRLHF's own code.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.adapters.flags import Flag, flags
from planner.adapters.openrlhf import export_plan, exported_files
from planner.adapters.openrlhf_config import sections, supported_algorithms
from planner.adapters.overrides import UserText
from planner.adapters.roles import Roles
from planner.domain.execution import Execution
from planner.domain.hardware import Precision
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, Offload, Sharding
from planner.domain.workload import RewardKind
from planner.errors import InvalidInputError
from planner.files.framework import load_framework
from tests.adapters.launch import recorded_arguments
from tests.adapters.openrlhf_cases import cases, deepspeed, hostile_case, shared
from tests.adapters.openrlhf_check import arguments_of
from tests.adapters.plans import HOSTILE, engine, forward_only, megatron
from tests.adapters.variants import BATCHES, split_plan, with_strategy
from tests.factories import workload

PLANS = cases()
FLAGS = json.loads(Path(__file__).with_name("openrlhf_keys.json").read_text())["flags"]
VALUES: dict[str, str] = {"TRAIN_DATA": "data.jsonl", "REWARD_FUNCTION": "reward.py"}


def words(plan: Plan) -> list[str]:
    """The arguments as OpenRLHF gets them, without starting a shell: variables have the values of VALUES."""
    result: list[str] = []
    for section in sections(Roles.of(plan)):
        for flag in section.flags:
            texts = [value.text if isinstance(value, UserText) else str(value) for value in flag.values]
            texts = [
                VALUES.get(getattr(value, "variable", ""), text) for value, text in zip(flag.values, texts, strict=True)
            ]
            result += [f"--{flag.name}={texts[0]}"] if len(texts) == 1 else [f"--{flag.name}", *texts]
    return result


def illegal(arguments: list[str]) -> list[str]:
    """Arguments that the parser of OpenRLHF 0.11.2 refuses: unknown flags, wrong numbers or kinds of values."""
    bad: list[str] = []
    position = 0
    while position < len(arguments):
        name, has_value, value = arguments[position].partition("=")
        position += 1
        entry = FLAGS.get(name)
        if entry is None:
            bad.append(name)
            continue
        found = [value] if has_value else []
        while not has_value and position < len(arguments) and not arguments[position].startswith("--"):
            found.append(arguments[position])
            position += 1
        wanted = entry["values"]
        counts = len(found) >= 1 if wanted in ("+", "*") else len(found) == wanted
        kinds = {"int": r"-?\d+", "float": r"-?[\d.]+(e[-+]?\d+)?"}
        typed = all(re.fullmatch(kinds.get(entry.get("type", ""), r"(?s).*"), text) for text in found)
        chosen = all(text in entry.get("choices", found) for text in found)
        if not (counts and typed and chosen):
            bad.append(name)
    return bad


def values(plan: Plan) -> dict[str, str]:
    """Flag -> value; a switch has an empty one, several values are joined by blanks."""
    result: dict[str, str] = {}
    last = ""
    for word in words(plan):
        if word.startswith("--"):
            last, _, value = word.partition("=")
            result[last] = value
        else:
            result[last] = f"{result[last]} {word}".strip()
    return result


def refusal(plan: Plan) -> str:
    with pytest.raises(InvalidInputError) as caught:
        exported_files(plan)
    return str(caught.value)


def test_there_are_enough_plans() -> None:
    assert len(PLANS) >= 40


@pytest.mark.parametrize("name", PLANS)
def test_every_flag_exists_in_openrlhf(name: str) -> None:
    exported_files(PLANS[name])
    arguments = words(PLANS[name])
    assert illegal(arguments) == []
    assert len(arguments) > 50


@pytest.mark.parametrize("name", ["qwen3-32b-4n-streaming", "ppo-reward-model"])
def test_a_letter_lost_in_any_flag_is_found(name: str) -> None:
    arguments = words(PLANS[name])
    for position, word in enumerate(arguments):
        flag, mark, value = word.partition("=")
        if flag.startswith("--"):
            mutated = f"{flag[:-2]}{flag[-1]}"
            changed = [*arguments[:position], f"{mutated}{mark}{value}", *arguments[position + 1 :]]
            assert illegal(changed)[0] == mutated


def test_wrong_values_are_found() -> None:
    wrong = ["--ds.zero_stage=three", "--actor.policy_loss_type=grpo", "--train.colocate_all=1", "--rollout.batch_size"]
    assert len(illegal(wrong)) == 4


def test_the_script_passes_exactly_these_arguments(tmp_path: Path) -> None:
    for name in ("qwen3-32b-4n-shared", "ppo-critic-apart-streaming", "ppo-reward-model"):
        assert arguments_of(PLANS[name], tmp_path / name) == words(PLANS[name])
    script = export_plan(PLANS["dapo"], tmp_path / "out")[0]
    further = recorded_arguments(
        script, tmp_path / "bin", "--train.seed=$(b) c", TRAIN_DATA="a $x", REWARD_FUNCTION="`id`"
    )
    assert further[-1] == "--train.seed=$(b) c"
    assert "--data.prompt_dataset=a $x" in further and "--reward.remote_url=`id`" in further


def test_every_algorithm_of_the_rules_has_a_loss() -> None:
    assert set(supported_algorithms()) == load_framework("openrlhf").algorithms


def test_a_colocated_plan() -> None:
    found = values(PLANS["qwen3-32b-4n-shared"])
    assert found["--train.colocate_all"] == ""
    assert (found["--actor.num_nodes"], found["--actor.num_gpus_per_node"]) == ("4", "8")
    assert (found["--ref.num_nodes"], found["--ref.num_gpus_per_node"]) == ("4", "8")
    assert (found["--vllm.num_engines"], found["--vllm.tensor_parallel_size"]) == ("8", "4")
    assert found["--vllm.enable_sleep"] == "" and found["--ds.enable_sleep"] == ""
    assert found["--ds.zero_stage"] == "3" and found["--ds.ring_attn_size"] == "2"
    # 256 prompts x 16 responses in 4 steps; 36,864 tokens on 2 ring ranks.
    assert found["--rollout.batch_size"] == "256" and found["--train.batch_size"] == "1024"
    assert found["--train.max_tokens_per_gpu"] == "18432"
    assert found["--rollout.max_tokens_per_gpu"] == "36864"
    assert found["--data.max_len"] == "9216" and found["--rollout.max_new_tokens"] == "8192"
    assert found["--vllm.gpu_memory_utilization"] == "0.6"
    assert found["--algo.advantage.is_correction_level"] == "off"
    assert "--train.async_enable" not in found


def test_disaggregated_plans_have_shapes_per_role() -> None:
    split = values(PLANS["qwen3-32b-4n-split"])
    assert "--train.colocate_all" not in split and split["--train.colocate_actor_ref"] == ""
    assert (split["--actor.num_nodes"], split["--vllm.num_engines"]) == ("2", "4")
    assert "--vllm.enable_sleep" not in split
    apart = values(PLANS["reference-apart"])
    assert "--train.colocate_actor_ref" not in apart and apart["--ref.num_nodes"] == "2"
    critic = values(PLANS["ppo-critic-apart"])
    assert critic["--critic.num_nodes"] == "1" and "--train.colocate_critic_reward" not in critic
    part = values(PLANS["one-node-part"])
    assert (part["--actor.num_nodes"], part["--actor.num_gpus_per_node"]) == ("1", "4")


@pytest.mark.parametrize(("name", "queue", "partial"), [("batches", "1", False), ("streaming", "2", True)])
def test_asynchrony_comes_with_its_correction(name: str, queue: str, partial: bool) -> None:
    found = values(PLANS[f"qwen3-32b-4n-{name}"])
    assert found["--train.async_enable"] == ""
    assert found["--train.async_queue_size"] == queue
    assert ("--train.partial_rollout_enable" in found) is partial
    assert found["--algo.advantage.is_correction_level"] == "token"
    assert found["--algo.advantage.is_correction_mode"] == "clip"


def test_strategies_and_algorithms_become_their_flags() -> None:
    assert [values(PLANS[f"zero{stage}"])["--ds.zero_stage"] for stage in range(4)] == ["0", "1", "2", "3"]
    tensor = values(PLANS["tensor-parallel"])
    assert tensor["--ds.tensor_parallel_size"] == "4"
    # 36,864 tokens over 4 tp ranks.
    assert tensor["--train.max_tokens_per_gpu"] == "9216"
    assert "--ds.adam_offload" in values(PLANS["cpu-optimizer"])
    assert "--ds.enable_sleep" not in values(PLANS["cpu-optimizer"])
    assert "--actor.gradient_checkpointing_enable" not in values(PLANS["no-recompute"])
    assert "--vllm.enable_sleep" not in values(PLANS["resident"])
    ppo = values(PLANS["ppo"])
    assert ppo["--algo.advantage.estimator"] == "gae" and ppo["--critic.model_name_or_path"] == "test/dense"
    assert ppo["--algo.kl.estimator"] == "k1" and "--algo.kl.use_loss" not in ppo
    assert values(PLANS["ppo-epochs"])["--train.max_epochs"] == "2"
    dapo = values(PLANS["dapo"])
    assert dapo["--algo.dynamic_filtering_range"] == "0.0 1.0"
    assert dapo["--actor.eps_clip_low_high"] == "0.2 0.28"
    assert values(PLANS["gspo"])["--actor.policy_loss_type"] == "gspo"
    reward = values(PLANS["ppo-reward-model"])
    assert "--reward.remote_url" not in reward and reward["--reward.num_nodes"] == "4"


def test_user_text_stays_data(tmp_path: Path) -> None:
    arguments = arguments_of(hostile_case(), tmp_path)
    for role in ("actor", "critic", "reward"):
        assert f"--{role}.model_name_or_path=--{HOSTILE}" in arguments
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "out"]
    assert not list(tmp_path.rglob("pwned*"))


def test_a_switch_that_is_off_is_left_out() -> None:
    assert flags("a", ("b", False), ("c", True), ("d", (1, 2)), ("e", "x y")) == (
        Flag(name="a.c"), Flag(name="a.d", values=(1, 2)), Flag(name="a.e", values=("x y",)),
    )  # fmt: skip
    assert Flag(name="a.e", values=("x y",)).words() == "'--a.e=x y'"


def test_every_block_names_its_decision_and_the_readme_the_command(tmp_path: Path) -> None:
    script, readme = (path.read_text() for path in export_plan(PLANS["ppo"], tmp_path / "out"))
    arrays = re.findall(r"^(.*)\n(\w+)=\(", script, flags=re.MULTILINE)
    assert len(arrays) >= 9 and all(line.startswith("# ") for line, _ in arrays)
    assert "critic trainer on device group g0" in script
    assert "OpenRLHF 0.11.2" in script and "openrlhf[vllm,ring]==0.11.2" in readme
    assert "TRAIN_DATA=train.jsonl REWARD_FUNCTION=reward_func.py ./run.sh" in readme


def test_differences_are_named(tmp_path: Path) -> None:
    def readme(name: str) -> str:
        return export_plan(PLANS[name], tmp_path / name)[1].read_text()

    assert "no flag for the sequences of an engine" in readme("zero3")
    assert "streamed in every micro-batch" in readme("zero3")
    assert "replaces each discarded group" in readme("dapo")
    assert "finish 2 batches ahead" in readme("qwen3-32b-4n-streaming")


def test_what_cannot_be_expressed_is_refused_with_the_reason_and_a_way_out() -> None:
    grpo, trainer, rollout = workload(), deepspeed(32), engine(32)
    message = refusal(shared(grpo, megatron(32), rollout))
    assert "pp is 2, at most 1" in message and "--framework openrlhf" in message
    swapped = refusal(shared(grpo, deepspeed(32, offload=Offload.STATE_SWAP), rollout))
    assert "offload 'state-swap' is not offered" in swapped
    assert "generate in fp8" in refusal(shared(replace(grpo, rollout_precision=Precision.FP8), trainer, rollout))
    assert "no LoRA" in refusal(shared(workload(lora_rank=8), trainer, rollout))
    ddp = deepspeed(32, sharding=Sharding.DDP, offload=Offload.CPU_OPTIMIZER)
    assert "optimizer step on the host needs zero1 or zero2 or zero3" in refusal(shared(grpo, ddp, rollout))
    reference = forward_only(deepspeed(32, sharding=Sharding.ZERO1))
    mixed = with_strategy(shared(grpo, trainer, rollout), WorkerName.REFERENCE, reference)
    assert "forward-only workers are zero3 exactly when training is" in refusal(mixed)
    critic = with_strategy(
        shared(workload("ppo"), trainer, rollout), WorkerName.CRITIC_TRAINER, deepspeed(32, offload=Offload.NONE)
    )
    assert "one tp, cp, ZeRO stage, offload and recomputation" in refusal(critic)
    scored = shared(workload("ppo", reward=RewardKind.MODEL), trainer, rollout)
    other = with_strategy(scored, WorkerName.REWARD_MODEL, forward_only(deepspeed(32, tp=2)))
    assert "reward model with one tp, cp" in refusal(other)
    filtered = shared(workload("dapo", reward=RewardKind.MODEL), trainer, rollout)
    assert "samples dynamically with a function or a server only" in refusal(filtered)


def test_a_judge_is_refused() -> None:
    plan = shared(workload(reward=RewardKind.JUDGE), deepspeed(32), engine(32))
    judge = with_strategy(plan, WorkerName.REWARD_MODEL, engine(32, idle=EngineIdle.RESIDENT))
    assert "no reward of the kind judge" in refusal(judge)


def test_only_everything_or_the_two_pairs_share_gpus() -> None:
    ppo = workload("ppo")
    # Actor, reference and critic together, the rollout apart: no switch does that.
    assert "cannot place actor trainer, reference and critic trainer" in refusal(
        split_plan(ppo, deepspeed(16), engine(16))
    )
    assert "cannot place" in refusal(split_plan(ppo, deepspeed(16), engine(16), mode=BATCHES, staleness=1))
    together = replace(
        shared(workload(), deepspeed(32), engine(32)), execution=Execution(mode=BATCHES, staleness=1), period_s=1.0
    )
    assert "needs GPUs of its own for the rollout" in refusal(together)
