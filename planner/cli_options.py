"""The options and arguments of the command line, as typer annotations: spelling, reader and help of each.

An option that fills a field of WorkloadSpec is named after that field and spelled as `planner.files.spec.PLACES`
says, so that messages about a value name the flag that gave it. Values are read here and not by typer, since its
messages change from version to version.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from typer.models import OptionInfo

from planner.adapters.registry import EXPORTERS
from planner.errors import InvalidInputError
from planner.files.spec import PLACES

EXPORTS = tuple(EXPORTERS)
SHOWN_LENGTH = 60
# The parser takes whatever follows as a value; these are the next option after a forgotten value.
NEXT_OPTION = re.compile("--?[A-Za-z]")

T = TypeVar("T")


def _reader(flag: str, convert: Callable[[str], T], kind: str) -> Callable[[str], T]:
    """The function that reads the values of `flag`; it raises InvalidInputError with the flag and the value."""

    def read(text: str) -> T:
        if NEXT_OPTION.match(text):
            raise InvalidInputError(f"needs a value before {text[:SHOWN_LENGTH]!r}", where=flag)
        try:
            return convert(text)
        except ValueError:
            raise InvalidInputError(f"{text[:SHOWN_LENGTH]!r} is not {kind}", where=flag) from None

    return read


def option(
    *names: str, metavar: str, help: str, convert: Callable[[str], str | int | float | Path] = str, kind: str = ""
) -> OptionInfo:
    """An option whose value `convert` reads; it raises ValueError for what is not `kind`."""
    info: OptionInfo = typer.Option(*names, metavar=metavar, help=help, parser=_reader(names[-1], convert, kind))
    return info


def _text(field: str, help: str) -> OptionInfo:
    """An option with text that `planner.files` reads."""
    return option(PLACES[field][0], metavar="TEXT", help=help)


def whole(text: str) -> int:
    """An integer in plain digits."""
    # int() would take other scripts' digits and underscores too.
    if not text.isascii() or "_" in text:
        raise ValueError
    return int(text)


def _integer(field: str, help: str) -> OptionInfo:
    return option(PLACES[field][0], metavar="N", help=help, convert=whole, kind="an integer")


def _number(field: str, help: str) -> OptionInfo:
    return option(PLACES[field][0], metavar="X", help=help, convert=float, kind="a number")


def file_path(text: str) -> Path:
    """The path of a file, which a directory's is not, and neither is `-`: it means a stream elsewhere."""
    if not text.strip() or text == "-" or text.endswith(("/", "/.")):
        raise ValueError
    return Path(text)


def directory_path(text: str) -> Path:
    """The path of a directory."""
    if not text.strip():
        raise ValueError
    return Path(text)


def _output(metavar: str, help: str, convert: Callable[[str], Path], kind: str) -> OptionInfo:
    return option("-o", "--output", metavar=metavar, help=help, convert=convert, kind=kind)


# ---------------------------------------------------------------------------------------------- workload

Algorithm = Annotated[
    str | None, _text("algorithm", "ppo, vapo, grpo, dr-grpo, dapo, gspo, rloo, reinforce++ or remax [grpo]")
]
Gpus = Annotated[
    str | None,
    _text(
        "gpus",
        "32xh100, 4x8xh100, 4xp5.48xlarge, pools joined by commas; a type or nothing: smallest cluster that works",
    ),
]
PromptMax = Annotated[int | None, _integer("prompt_max", "longest prompt, tokens [1024]")]
PromptMean = Annotated[float | None, _number("prompt_mean", "mean prompt [half of the longest]")]
ResponseMax = Annotated[int | None, _integer("response_max", "longest response, tokens [8192]")]
ResponseMean = Annotated[float | None, _number("response_mean", "mean response [half of the longest]")]
ResponseCv = Annotated[float | None, _number("response_cv", "spread of responses, deviation over mean [0.6]")]
NumPrompts = Annotated[int | None, _integer("num_prompts", "prompts per iteration [256]")]
GroupSize = Annotated[int | None, _integer("group_size", "responses per prompt [the algorithm's]")]
NumOptimizerSteps = Annotated[int | None, _integer("num_optimizer_steps", "mini-batches per iteration [4]")]
NumEpochs = Annotated[int | None, _integer("num_epochs", "passes over the batch [1]")]
KlCoefficient = Annotated[
    float | None, _number("kl_coefficient", "KL coefficient; 0 removes the reference [the algorithm's]")
]
OversamplingRatio = Annotated[
    float | None, _number("oversampling_ratio", "prompts generated per prompt kept [the algorithm's]")
]
Critic = Annotated[str | None, _text("critic", "critic model [MODEL]")]
Reward = Annotated[str | None, _text("reward", "rule, model, process-model, judge or sandbox [rule]")]
RewardModel = Annotated[str | None, _text("reward_model", "reward model or judge [MODEL]")]
JudgeTokens = Annotated[int | None, _integer("judge_tokens", "tokens per verdict of a judge [512]")]
RewardLatency = Annotated[str | None, _text("reward_latency", "sandbox: time per response, such as 2s")]
RewardParallel = Annotated[int | None, _integer("reward_parallel", "sandboxes at the same time [256]")]
TrainPrecision = Annotated[str | None, _text("train_precision", "of training: bf16 or fp8 [bf16]")]
RolloutPrecision = Annotated[str | None, _text("rollout_precision", "of the rollout: bf16, fp8 or fp4 [bf16]")]
LoraRank = Annotated[int | None, _integer("lora_rank", "LoRA rank [full training]")]

# ---------------------------------------------------------------------------------------------- limits and search

Framework = Annotated[str | None, _text("framework", "only plans that this framework can run; see rlplan frameworks")]
Objective = Annotated[str | None, _text("objective", "time, cost or gpus [time; gpus without a given cluster]")]
Deadline = Annotated[str | None, _text("deadline", "for all --steps, such as 12h")]
Budget = Annotated[str | None, _text("budget", "for all --steps, such as '5000 USD'")]
Steps = Annotated[int | None, _integer("steps", "iterations of the whole run")]
MaxGpus = Annotated[int | None, _integer("max_gpus", "use at most so many GPUs")]
MemoryMargin = Annotated[str | None, _text("memory_margin", "GPU memory and host RAM to keep free [10%]")]
Prices = Annotated[list[str] | None, _text("prices", "USD per GPU-hour, such as h100=2.50; repeatable")]
Profile = Annotated[str | None, _text("profile", "calibration of rlplan calibrate (YAML)")]
InterPool = Annotated[str | None, _text("inter_pool", "link between pools per GPU, such as '100 Gbit/s'")]
InterPoolTotal = Annotated[
    str | None, _text("inter_pool_total", "the same of all GPUs together, such as '800 Gbit/s' [no limit]")
]
Cluster = Annotated[str | None, _text("cluster", "cluster file (YAML) in place of --gpus")]
TimeLimit = Annotated[str | None, _text("time_limit", "for the whole search of a plan [60s]")]
Solver = Annotated[str | None, _text("solver", "auto, cpsat or ilp [auto]")]
Seed = Annotated[int | None, _integer("seed", "of the search [0]")]
Staleness = Annotated[int | None, _integer("staleness", "permit so many versions of lag: asynchronous plans [0]")]
Allow = Annotated[list[str] | None, _text("allow", "partial-rollouts: newer weights may finish a response (streaming)")]
Fusion = Annotated[str | None, _text("fusion", "stage fusion: none, inter (beside the rollout) or all [inter]")]
Sync = Annotated[
    str | None,
    _text("sync", "weight sync: full (gather), micro-groups, shard-to-shard, or shards: the best of all [full]"),
]
Policy = Annotated[
    str | None, _text("policy", "order of stages: planned, fifo or sequential [that of the framework; planned]")
]
Share = Annotated[list[str] | None, _text("share", "workers that share GPUs, such as actor+reference; repeatable")]
Apart = Annotated[list[str] | None, _text("apart", "workers that must not share GPUs; repeatable")]
Fix = Annotated[list[str] | None, _text("fix", "fixed strategy, such as 'actor: tp=8, recompute=full'; repeatable")]
Alternatives = Annotated[int | None, _integer("alternatives", "list so many other structures [5]")]

# ---------------------------------------------------------------------------------------------- measurements

ValidatedTable = Annotated[
    list[str] | None,
    option("--table", metavar="TABLE", help="train, rl, memory, generation or fits; repeatable [all]"),
]
RowGpu = Annotated[str | None, option("--gpu", metavar="TEXT", help="only rows whose GPU contains this")]
RowModel = Annotated[str | None, option("--model", metavar="TEXT", help="only rows whose model contains this")]
Worst = Annotated[
    int | None, option("--worst", metavar="N", help="rows that are furthest off [5]", convert=int, kind="an integer")
]
Data = Annotated[
    Path | None, option("--data", metavar="DIRECTORY", help="tables of the same columns [shipped]", convert=Path)
]
NoAnchors = Annotated[bool, typer.Option("--no-anchors", help="leave out the figures with anchors")]
WriteResiduals = Annotated[
    Path | None,
    option("--write-residuals", metavar="FILE", help="write what plans take their error bands from", convert=Path),
]
WriteDocs = Annotated[
    Path | None,
    option("--write-docs", metavar="DIRECTORY", help="write accuracy.md and its plots there", convert=Path),
]

# ---------------------------------------------------------------------------------------------- the rest

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", parser=str, help="catalog id, Hugging Face id, alias, config.json, or workload.yaml"
    ),
]
WorkloadFile = Annotated[Path, typer.Argument(metavar="FILE", help="a workload file with strategies")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="a saved plan (JSON)")]
Reported = Annotated[Path, typer.Argument(metavar="FILE", help="a saved plan (JSON), or results of a sweep (.jsonl)")]
Before = Annotated[Path, typer.Argument(metavar="A", help="a saved plan")]
After = Annotated[Path, typer.Argument(metavar="B", help="another saved plan")]
Name = Annotated[str | None, typer.Argument(metavar="NAME", parser=str, help="show one entry in full")]
Output = Annotated[Path | None, _output("FILE", "save the plan as JSON", file_path, "a file name")]
Page = Annotated[Path | None, _output("FILE", "the HTML page [the plan's name with .html]", file_path, "a file name")]
Directory = Annotated[Path, _output("DIRECTORY", "where the files go", directory_path, "a directory")]
Target = Annotated[str, option("--to", metavar="FRAMEWORK", help=", ".join(EXPORTS))]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for programs instead of text")]
NoPlan = Annotated[bool, typer.Option("--no-plan", help="bounds of the cluster only, without a search")]
DescribeSpace = Annotated[bool, typer.Option("--describe-space", help="print what is searched, and exit")]
