"""What the exports of all frameworks have in common: refusals, the README, positions of models, files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.adapters.files import marked, publish
from planner.adapters.shell import comment
from planner.domain.framework import FrameworkRules
from planner.domain.framework_placed import placed_workers, worker_model
from planner.domain.framework_verdict import plan_problems
from planner.domain.framework_workload import workload_lacks
from planner.domain.model import Model
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy, Strategy
from planner.domain.workload import RewardKind, Workload
from planner.errors import InvalidInputError
from planner.units import format_bytes, format_seconds

README = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """A file of an export: its text ends with a line feed and has no mark yet.

    `before` and `after` make a line a comment in the language of the file.
    """

    name: str
    text: str
    is_executable: bool = False
    before: str = "# "
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What the README of an export says beside the plan itself. Each item is a line of Markdown."""

    commands: tuple[str, ...]
    """Lines of shell that start the run."""
    needs: str
    """Where to run them, and what must be installed."""
    to_do: tuple[str, ...]
    """What only the user can fill in."""
    differences: tuple[str, ...]
    """Where the framework does something else than the plan's cost model assumes."""


def write_files(directory: Path, files: Sequence[ExportFile]) -> tuple[Path, ...]:
    """Publishes all files or none; returns their paths. Raises InvalidInputError as `publish` does."""
    texts = {file.name: (marked(file.text, before=file.before, after=file.after), file.is_executable) for file in files}
    return publish(directory, texts)


def plan_digest(plan: Plan) -> str:
    """SHA-256 over all values of the plan; the facts of the run that found it do not count."""
    return hashlib.sha256(repr(replace(plan, run=None)).encode()).hexdigest()


def check_exportable(
    rules: FrameworkRules, plan: Plan, *, unfit: Iterable[str] = (), lacks: Iterable[str] = ()
) -> None:
    """Raises InvalidInputError with every reason that keeps the framework from running the plan.

    `unfit` are reasons in the workload that no other plan would remove, `lacks` those of the adapter beside what
    `plan_problems` finds: for them the message names the command that finds the nearest plan.
    """
    title = f"{rules.title} {rules.version}"
    hopeless = tuple(unfit)
    if hopeless:
        raise InvalidInputError("\n  ".join([f"{title} cannot start this plan:", *hopeless]))
    problems = (*plan_problems(rules, plan), *lacks)
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InvalidInputError(f"{title} cannot run this plan:\n{listed}\n{_way_out(rules, plan)}")


def _way_out(rules: FrameworkRules, plan: Plan) -> str:
    if plan.limits.framework == rules.name:
        # The same command would find the same plan again.
        return "the search does not know this limit: plan again with other options, so that the plan does not need it"
    nearest = f"rlplan plan ... --framework {rules.name}"
    if workload_lacks(rules, plan.workload):
        return f"no plan for this workload runs there; with another one, as said above: {nearest}"
    return f"the nearest plan that it can run: {nearest}"


def model_path(model: Model) -> str:
    """What a framework opens: the Hugging Face repository, or the id when the model has none."""
    return model.hf_repo or model.id


def answer_tokens(workload: Workload) -> int:
    """Tokens that the server of a reward model generates for each response."""
    return workload.reward.judge_tokens if workload.reward.kind is RewardKind.JUDGE else 1


def engine_tokens_needed(plan: Plan) -> tuple[tuple[WorkerName, int], ...]:
    """The longest sequence of every inference engine, where reward models are engines too."""
    workload = plan.workload
    needed = ((WorkerName.ROLLOUT_ENGINE, workload.max_tokens),)
    if workload.reward.model is None:
        return needed
    return (*needed, (WorkerName.REWARD_MODEL, workload.max_tokens + answer_tokens(workload)))


def position_problems(plan: Plan, needed: Iterable[tuple[WorkerName, int]]) -> tuple[str, ...]:
    """Sequences that an engine refuses: longer than the `max_position_embeddings` of the model's configuration.

    `needed` is the longest sequence by worker. vLLM and SGLang both compare it with config.json, which they read
    themselves: a longer one would run rollout and training on two different models.
    """
    problems = []
    for worker, num_tokens in needed:
        model = worker_model(plan.workload, worker)
        if model.max_positions is not None and num_tokens > model.max_positions:
            problems.append(
                f"{worker.value}: sequences of {num_tokens:,} tokens, the configuration of {model_path(model)} ends at "
                f"{model.max_positions:,} positions; plan with shorter prompts and responses, or plan and train a copy "
                "of the model whose config.json has the RoPE scaling that you want and a larger max_position_embeddings"
            )
    return tuple(problems)


def _groups(strategy: RolloutStrategy) -> str:
    return f"attention dp {strategy.attention_dp} ({strategy.exchange.value}) " if strategy.attention_dp > 1 else ""


def describe(strategy: Strategy) -> str:
    """A strategy in the plan's words, on one line."""
    if isinstance(strategy, RolloutStrategy):
        return (
            f"{strategy.num_engines} engines of tp {strategy.tp} pp {strategy.pp} {_groups(strategy)}ep {strategy.ep}, "
            f"{strategy.engine_fraction:g} of GPU memory, {strategy.max_num_seqs} sequences "
            f"{'each' if strategy.attention_dp == 1 else 'per attention group'}, "
            f"{strategy.idle.value} while others run"
        )
    layers = f" ({strategy.recompute_layers} layers per stage)" if strategy.recompute_layers else ""
    return (
        f"tp {strategy.tp} pp {strategy.pp} vpp {strategy.vpp} cp {strategy.cp} ({strategy.context_parallel.value}) "
        f"dp {strategy.dp} ep {strategy.ep} etp {strategy.etp}, {strategy.sharding.value} over {strategy.shard_ranks} "
        f"ranks, recompute {strategy.recompute.value}{layers}, offload {strategy.offload.value}, "
        f"{strategy.micro_batch_tokens} / {strategy.inference_tokens} tokens"
    )


def execution_text(plan: Plan) -> str:
    """How iterations follow each other, in the plan's words."""
    execution = plan.execution
    lag = f", at most {execution.staleness} versions behind" if execution.is_asynchronous else ""
    fused = "".join(f", {fusion.value} fusion" for fusion in execution.fusions)
    synced = "".join(f", {way.value} weight sync" for way in execution.sharded_syncs)
    return f"{execution.mode.value}{lag}{fused}{synced}"


def readme_file(plan: Plan, rules: FrameworkRules, digest: str, notes: Notes) -> ExportFile:
    """README.md: the command, what it needs, the plan and where the framework differs from it."""
    workers = "\n".join(
        f"| {worker.name.value} | {cell(worker.group.id)}: {worker.strategy.num_gpus} x {cell(worker.group.gpu)} "
        f"| {describe(worker.strategy)} |"
        for worker in placed_workers(plan)
    )
    stages = "\n".join(
        f"| {item.stage.value} | {format_seconds(item.time_s)} | "
        + (f"{format_bytes(item.gpu_memory.peak_bytes)} at {item.gpu_memory.instant} |" if item.gpu_memory else "|")
        for item in plan.placements
    )
    differences = "\n".join(f"- {note}" for note in notes.differences) or "- None known."
    to_do = "\n".join(f"- {item}" for item in notes.to_do)
    commands = "\n".join(f"    {line}" for line in notes.commands)
    text = f"""# {plan.workload.algorithm.title} on {rules.title} {rules.version}

{commands}

{notes.needs}

Plan digest: `{cell(digest)}`

## Set before the first run

{to_do}

## The plan

One iteration: {format_seconds(plan.time_s)} predicted; {execution_text(plan)}.

| worker | GPUs | strategy |
|---|---|---|
{workers}

| stage | time | GPU memory |
|---|---|---|
{stages}

## Where {rules.title} differs from the plan

{differences}

"""
    return ExportFile(name=README, text=text, before="<!-- ", after=" -->")


def with_remarks(file: ExportFile, remarks: Sequence[str]) -> ExportFile:
    """The README with lines of Markdown at its end; any other file, and a README without remarks, as it is."""
    if file.name != README or not remarks:
        return file
    listed = "\n".join(comment(line) for line in remarks[1:])
    text = f"{file.text.rstrip()}\n\n## Predicted as exported\n\n{comment(remarks[0])}\n\n{listed}".rstrip()
    return replace(file, text=f"{text}\n\n")


def cell(text: str) -> str:
    """Text that stays inside a table cell or code span."""
    return comment(text).replace("|", "\\|").replace("`", "'")
