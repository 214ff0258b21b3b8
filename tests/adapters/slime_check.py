"""Exports of every test plan through slime's own start: its parser, Megatron-LM's and SGLang's, with their checks.

    python -m tests.adapters.slime_check            check everything; skipped when sources are missing
    python -m tests.adapters.slime_check --freeze   write slime_keys.json from the sources

SLIME_ROOT names a checkout of slime, MEGATRON_ROOT one of Megatron-LM (the commit of slime's docker/Dockerfile with its
patch), SGLANG_ROOT the directory of an unpacked SGLang wheel. Neither torch nor ray is needed: packages of which only
the names matter are replaced by inert modules. slime drops flags that it does not know without a word, so that they
are looked for in the three parsers first.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import io
import json
import os
import re
import sys
import tempfile
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.adapters.slime import SCRIPT, exported_files
from planner.domain.framework_placed import placed_workers
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy
from tests.adapters.inert import bare_package, install
from tests.adapters.launch import recorded_arguments
from tests.adapters.slime_cases import cases

KEYS = Path(__file__).with_name("slime_keys.json")
VERSIONS = "slime 624b824a89, Megatron-LM 1dcf0dafa with slime's patch, SGLang 0.5.15.post1; all Apache-2.0 or BSD-3"
_INERT_NAMES = """
    torch ray transformers numpy transformer_engine triton flash_attn apex sglang_router sgl_kernel einops datasets
    wandb httpx pylatexenc tqdm requests orjson psutil zmq IPython pydantic setproctitle PIL pybase64 msgspec
    fastapi uvloop torch_memory_saver aiohttp torchao huggingface_hub nvidia_resiliency_ext modelopt megatron.legacy
    megatron.core.optimizer megatron.core.distributed megatron.core.models megatron.core.pipeline_parallel
    megatron.core.datasets megatron.core.inference megatron.training.training megatron.training.tokenizer
    sglang.jit_kernel sglang.utils sglang.kernels
"""
INERT = tuple(_INERT_NAMES.split())
"""Modules of which the parsers need the names only."""
MUTATIONS = (
    ("--max-tokens-per-gpu=", "--max-token-per-gpu="),
    ("--tensor-model-parallel-size=4", "--tensor-model-parallel-size=3"),
    ("--pipeline-model-parallel-size=2", "--pipeline-model-parallel-size=5"),
    ("--advantage-estimator=grpo", "--advantage-estimator=group"),
    ("--global-batch-size=1024", "--global-batch-size=1000"),
    ("--num-attention-heads=32", "--num-attention-heads=30"),
    ("--rollout-temperature=1.0", "--rollout-temperature=0"),
)
"""Each turns the command of the plan MUTATED into one that is refused."""
MUTATED = "qwen3-8b-16-together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Directories of the three programs."""

    slime: Path
    megatron: Path
    sglang: Path


def sources() -> Sources | None:
    """From the environment; None when one is missing."""
    found = [Path(os.environ.get(name, "/nowhere")) for name in ("SLIME_ROOT", "MEGATRON_ROOT", "SGLANG_ROOT")]
    wanted = ("slime/utils/arguments.py", "megatron/training/arguments.py", "sglang/srt/server_args.py")
    if not all((root / path).is_file() for root, path in zip(found, wanted, strict=True)):
        return None
    return Sources(slime=found[0], megatron=found[1], sglang=found[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The modules that parse and check."""

    megatron: types.ModuleType
    slime: types.ModuleType
    sglang: types.ModuleType
    flags: frozenset[str]


def prepare(found: Sources) -> Programs:
    """Imports the three parsers without what a GPU or a network would be needed for."""
    for root in (found.slime, found.megatron, found.sglang):
        sys.path.insert(0, str(root))
    below = {path.stem for path in (found.sglang / "sglang" / "srt").iterdir()} - {"server_args", "arg_groups"}
    install(*INERT, *(f"sglang.srt.{name}" for name in below))
    for root, names in (
        (found.megatron, ("megatron", "megatron.core", "megatron.training", "megatron.training.utils")),
        (found.slime, ("slime", "slime.utils", "slime.backends", "slime.backends.megatron_utils",
                       "slime.backends.sglang_utils")),
        (found.sglang, ("sglang", "sglang.srt")),
    ):  # fmt: skip
        for name in names:
            directory = root.joinpath(*name.split("."))
            if directory.is_dir():
                bare_package(name, directory)
    _answer(found)
    state = importlib.import_module("megatron.core.parallel_state")
    sys.modules["megatron.core"].mpu = state  # type: ignore[attr-defined]
    megatron = importlib.import_module("megatron.training.arguments")
    slime = importlib.import_module("slime.utils.arguments")
    sglang = importlib.import_module("slime.backends.sglang_utils.arguments")
    return Programs(megatron=megatron, slime=slime, sglang=sglang, flags=_flags(found, megatron, slime, sglang))


def _answer(found: Sources) -> None:
    """What the parsers ask their surroundings: an H100, and two tables that SGLang turns into choices."""
    cuda = importlib.import_module("torch.cuda")
    cuda.get_device_capability = lambda *_, **__: (9, 0)  # type: ignore[attr-defined]
    cuda.get_device_properties = lambda *_, **__: types.SimpleNamespace(major=9, minor=0)  # type: ignore[attr-defined]
    cuda.device_count = lambda: 8  # type: ignore[attr-defined]
    training = sys.modules["megatron.training"]
    for name in ("get_args", "get_timers", "get_tokenizer", "get_adlr_autoresume", "get_num_microbatches"):
        setattr(training, name, lambda *_, **__: None)
    srt = found.sglang / "sglang" / "srt"
    parser = importlib.import_module("sglang.srt.function_call.function_call_parser")
    parser.FunctionCallParser.ToolCallParserEnum = _table(  # type: ignore[attr-defined]
        srt / "function_call" / "function_call_parser.py", "ToolCallParserEnum"
    )
    reasoning = importlib.import_module("sglang.srt.parser.reasoning_parser")
    reasoning.ReasoningParser.DetectorMap = _table(  # type: ignore[attr-defined]
        srt / "parser" / "reasoning_parser.py", "DetectorMap"
    )
    consts = importlib.import_module("sglang.jit_kernel.kv_canary.consts")
    consts.RealKvHashMode = enum.Enum("RealKvHashMode", "NONE SAMPLE FULL")  # type: ignore[attr-defined]


def _table(path: Path, marker: str) -> dict[str, None]:
    """Keys of a dictionary in a source file that cannot be imported."""
    text = path.read_text()
    start = text.index(marker)
    return dict.fromkeys(re.findall(r'"([\w.-]+)"\s*:', text[start : text.index("}", start)]))


def _flags(
    found: Sources, megatron: types.ModuleType, slime: types.ModuleType, sglang: types.ModuleType
) -> frozenset[str]:
    """All flags of the three parsers, and those that slime reads before them."""
    parser = megatron.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False, add_help=False))
    parser = slime.get_slime_extra_args_provider()(parser)
    engine = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    sglang.add_sglang_arguments(engine)
    text = (found.slime / "slime" / "utils" / "arguments.py").read_text()
    early = re.findall(r'"(--[\w-]+)"', text[text.index("def _pre_parse_mode") : text.index("def parse_args(")])
    known = {option for item in (parser, engine) for action in item._actions for option in action.option_strings}
    return frozenset({*known, *early})


def command(plan: Plan) -> list[str]:
    """Program and arguments that the exported script starts."""
    with tempfile.TemporaryDirectory() as scratch:
        for file in exported_files(plan):
            path = Path(scratch) / file.name
            path.write_text(file.text)
            path.chmod(0o755)
        places = {"HF_CHECKPOINT": "/models/hf", "REF_LOAD": "/models/megatron", "TRAIN_DATA": "/data/train.jsonl"}
        return recorded_arguments(
            Path(scratch) / SCRIPT, Path(scratch) / "bin", SLIME_DIR=scratch, SAVE_DIR="/models/save", **places
        )


def accept(words: list[str], plan: Plan | None, programs: Programs) -> None:
    """Raises what slime raises, or AssertionError for what it would only find later or not at all."""
    unknown = [w for w in words[1:] if w.startswith("--") and w.split("=", 1)[0] not in programs.flags]
    assert not unknown, f"unknown flags {unknown}"
    args = _parsed(words, programs)
    programs.megatron.core_transformer_config_from_args(args)
    train = args.actor_num_nodes * args.actor_num_gpus_per_node
    model_ranks = args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size
    experts = args.expert_tensor_parallel_size * args.expert_model_parallel_size * args.pipeline_model_parallel_size
    assert train % model_ranks == 0, f"{train} GPUs for {model_ranks} ranks"
    assert train % experts == 0, f"{train} GPUs for {experts} expert ranks"
    assert args.rollout_num_gpus % args.rollout_num_gpus_per_engine == 0
    assert args.rollout_batch_size * args.n_samples_per_prompt % args.global_batch_size == 0
    assert args.global_batch_size % (train // model_ranks) == 0
    if args.num_experts:
        assert args.num_experts % args.expert_model_parallel_size == 0
        # megatron/core/transformer/moe/moe_layer.py says so at the first step.
        assert args.tensor_model_parallel_size == 1 or args.sequence_parallel
    if words[0] == "train_async.py":
        assert not args.colocate
    if plan is not None:
        _compare(plan, args, train)


def _parsed(words: list[str], programs: Programs) -> typing.Any:
    """slime's own `parse_args`: three parsers and three checks. Checkpoints need not be on this machine."""
    helpers = importlib.import_module("slime.backends.megatron_utils.arguments")
    helpers._hf_validate_args = lambda *_, **__: None  # type: ignore[attr-defined]
    helpers._vocab_size_with_padding = lambda size, _: -(-size // 128) * 128  # type: ignore[attr-defined]
    exists, argv = os.path.exists, sys.argv

    def pretended(path: object) -> bool:
        named = isinstance(path, str) and path.startswith("/models/megatron")
        return named or exists(path)  # type: ignore[arg-type]

    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    errors = io.StringIO()
    os.path.exists, sys.argv = pretended, words  # type: ignore[assignment]
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            return programs.slime.parse_args()
    except SystemExit:
        raise ValueError(errors.getvalue().strip().splitlines()[-1]) from None
    finally:
        os.path.exists, sys.argv = exists, argv


def _compare(plan: Plan, args: typing.Any, train: int) -> None:
    """What slime understood is what the plan says."""
    for worker in placed_workers(plan):
        strategy = worker.strategy
        if isinstance(strategy, RolloutStrategy):
            found = (args.rollout_num_gpus, args.rollout_num_gpus_per_engine, args.sglang_pp_size, args.sglang_ep_size)
            # SGLang's tp is that of the whole engine, attention groups included.
            tp = strategy.tp * strategy.attention_dp
            wanted = (strategy.num_gpus, tp * strategy.pp, strategy.pp, strategy.ep)
            assert found == wanted, f"engines {found} instead of {wanted}"
            assert (args.sglang_tp_size, args.sglang_dp_size) == (tp, strategy.attention_dp)
            continue
        degrees = (
            args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.context_parallel_size,
            args.expert_model_parallel_size, train,
        )  # fmt: skip
        wanted = (strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.num_gpus)
        assert degrees == wanted, f"{worker.name.value}: {degrees} instead of {wanted}"
        if worker.name is WorkerName.ACTOR_TRAINER:
            assert (args.virtual_pipeline_model_parallel_size or 1) == strategy.vpp
    assert args.use_critic == (plan.workload.critic is not None)
    total = train if args.colocate else train + args.rollout_num_gpus
    assert total == plan.num_gpus, f"{total} GPUs instead of {plan.num_gpus}"
    assert args.num_layers == plan.workload.actor.num_layers


def mutated(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    for before, after in MUTATIONS:
        if any(word.startswith(before) for word in words):
            yield after, [after + word.removeprefix(before) if word.startswith(before) else word for word in words]


def check(found: Sources) -> int:
    programs = prepare(found)
    if "--freeze" in sys.argv:
        KEYS.write_text(json.dumps({"source": VERSIONS, "flags": sorted(programs.flags)}, indent=1) + "\n")
        return 0
    failures, tried = 0, set()
    for name, plan in cases().items():
        words = command(plan)
        problem = _problem(words, plan, programs)
        failures += bool(problem)
        print(f"{'FAIL' if problem else 'ok  '} {name}{problem}")
        for after, changed in mutated(words) if name == MUTATED else ():
            refused = _problem(changed, None, programs)
            tried.add(after)
            failures += not refused
            print(f"{'ok  ' if refused else 'FAIL'} {name} with {after} is refused{refused}")
    missing = {after for _, after in MUTATIONS} - tried
    assert not missing, f"mutations that no plan has: {missing}"
    return failures


def _problem(words: list[str], plan: Plan | None, programs: Programs) -> str:
    try:
        accept(words, plan, programs)
    except ImportError:
        # This machine's fault, which must not pass for a refusal.
        raise
    except Exception as error:  # noqa: BLE001 - whatever the three programs raise is the answer
        return f"\n     {type(error).__name__}: {str(error).strip()[:300]}"
    return ""


def main() -> int:
    found = sources()
    if found is None:
        print(
            "skipped: set SLIME_ROOT, MEGATRON_ROOT (checkouts, not on PyPI; docker/Dockerfile of slime names "
            "the commit of Megatron-LM) and SGLANG_ROOT (the unpacked wheel sglang==0.5.15.post1)"
        )
        return 0
    return 1 if check(found) else 0


if __name__ == "__main__":
    sys.exit(main())
