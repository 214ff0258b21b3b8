"""From what the user asks (`--gpus 8..512 --types h100,h200 ...`) to the points of a sweep and its head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner import __version__
from planner.cost.generation import lora_params
from planner.domain.budget import KindPrice, RunRates, SweepHead
from planner.domain.hardware import NodeType
from planner.domain.plan import Assumption
from planner.domain.request import PlanRequest
from planner.domain.workload import Workload
from planner.errors import InvalidInputError, nearest
from planner.files import catalog
from planner.files.prices import GivenPrice, Quote, find_price, read_given_prices, read_price_file
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.sweep.points import Group, Task, digest_of, groups_of
from planner.units import Dimension, format_bandwidth, format_bytes, format_seconds, parse

DEFAULT_SIZES = "8..512"
DEFAULT_TYPES = "h100,h200,b200,gb200"
DEFAULT_STEPS = 500
DEFAULT_STARTUP_S = 15 * 60.0
DEFAULT_EVERY = 20
"""Checkpoints and validations, as in the example scripts of verl (`trainer.save_freq=20`, `trainer.test_freq=20`)."""
DEFAULT_VALIDATION_PROMPTS = 500
DEFAULT_CHECKPOINT_BYTES_PER_S = 2e9
LLAMA3_FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16_384)
"""419 unexpected interruptions in 54 days on 16,384 H100 (The Llama 3 Herd of Models, arXiv:2407.21783, 3.3.4)."""
DEFAULT_INTERRUPTIONS_PER_NODE_HOUR = 0.01
TRAINED_BYTES_PER_PARAMETER = 14.0
"""A checkpoint: bf16 weights (2), fp32 weights (4) and two fp32 moments of Adam (8)."""
MAX_SIZE = 8192
MAX_POINTS = 100_000
SIZES_GRAMMAR = "8..512, 8..512:24 (steps of 24), or 8,16,32"
MAX_TEXT = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What a sweep can be asked beyond the workload; None: not given. Texts have units."""

    sizes: str | None = None
    types: str | None = None
    nodes: str | None = None
    response_means: str | None = None
    spot: bool = False
    price_file: Path | None = None
    startup: str | None = None
    checkpoint_every: int | None = None
    checkpoint_rate: str | None = None
    """Per node."""
    validation_every: int | None = None
    validation_prompts: int | None = None
    failures_per_gpu_hour: float | None = None
    interruptions_per_node_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSweep:
    """A sweep that can be run: its head and its points."""

    head: SweepHead
    tasks: tuple[Task, ...]


def prepare(spec: WorkloadSpec, options: SweepOptions) -> PreparedSweep:
    """The sweep that a spec and the options ask for; raises InvalidInputError for all that is wrong with them.

    Fields of the spec about one cluster or one plan (pools, objective) have no meaning here and are not read.
    """
    kinds = _kinds(options)
    sizes = _sizes(options.sizes or DEFAULT_SIZES, spec.max_gpus)
    names = tuple(name for name, _ in kinds)
    given = read_given_prices(spec.prices, names, where=spec.place("prices"))
    listed = read_price_file(options.price_file).quotes if options.price_file is not None else ()
    prices = tuple(
        KindPrice(kind=name, price=find_price(name, node, spot=options.spot, given=given, listed=listed))
        for name, node in kinds
    )
    means = _means(options.response_means)
    base = _request(spec, names[0], None)
    own = float(base.workload.response.mean_tokens)
    means = tuple(dict.fromkeys([own, *means])) if spec.response_mean is not None or not means else means
    rates = _rates(spec, options, base.workload)
    max_time_s, max_usd = _limits(spec, rates, prices, spot=options.spot, given=given, listed=listed)
    tasks = _tasks(spec, kinds, sizes, means, rates)
    head = SweepHead(
        digest=digest_of(tasks, __version__),
        version=__version__,
        title=_title(base),
        kinds=names,
        sizes=sizes,
        response_means=means,
        response_max_tokens=base.workload.response.max_tokens,
        num_points=len(tasks),
        rates=rates,
        prices=prices,
        max_time_s=max_time_s,
        max_usd=max_usd,
        assumptions=(
            *_rate_words(spec, options, rates),
            *_workload_words(base, has_means=bool(options.response_means)),
        ),
    )
    return PreparedSweep(head=head, tasks=tasks)


def _request(spec: WorkloadSpec, kind: str, mean: float | None) -> PlanRequest:
    """The open request of one kind of node, without the limits of a whole run."""
    bare = replace(
        spec, gpus=kind, pools=(), cluster=None, inter_pool=None, inter_pool_total=None, objective=None,
        deadline=None, budget=None, steps=None,
        max_gpus=None, prices=(), strategies=(), response_mean=spec.response_mean if mean is None else mean,
    )  # fmt: skip
    return build_request(bare)


def _tasks(
    spec: WorkloadSpec, kinds: Sequence[tuple[str, NodeType]], sizes: Sequence[int], means: Sequence[float],
    rates: RunRates,
) -> tuple[Task, ...]:  # fmt: skip
    tasks: list[Task] = []
    for kind, node in kinds:
        for mean in means:
            made: dict[int, Group] = {}
            request = _request(spec, kind, mean)
            # The request's node is the same one, calibrated where there is a profile.
            for group, size in groups_of(kind, request.gpu_type_when_open or node, request, sizes):
                if id(group) not in made:
                    prompts = rates.validation_prompts if rates.validation_every else 0
                    made[id(group)] = replace(group, validation_prompts=prompts)
                tasks.append(Task(group=made[id(group)], num_gpus=size))
    if len(tasks) > MAX_POINTS:
        raise InvalidInputError(f"{len(tasks):,} points", where="--gpus", accepted=f"at most {MAX_POINTS:,}")
    return tuple(tasks)


def _title(request: PlanRequest) -> str:
    work = request.workload
    framework = f" · for {request.limits.framework}" if request.limits.framework else ""
    return (
        f"{work.algorithm.title} on {work.actor.id}{framework} · {work.num_prompts:,} prompts x {work.group_size}, "
        f"prompt up to {work.prompt_max_tokens:,}, response up to {work.response.max_tokens:,} tokens"
    )


# ---------------------------------------------------------------------------------------------- kinds and sizes


def _kinds(options: SweepOptions) -> tuple[tuple[str, NodeType], ...]:
    """Name and node of every kind: GPU types stand for generic nodes."""
    types = options.types if options.types is not None or options.nodes is not None else DEFAULT_TYPES
    found: dict[str, NodeType] = {}
    for name in _names(types, "--types"):
        found[name] = _type(name)
    for name in _names(options.nodes, "--nodes"):
        found[name] = _node(name)
    return tuple(found.items())


def _names(text: str | None, where: str) -> tuple[str, ...]:
    if text is None:
        return ()
    names = [name.strip().lower() for name in text[:MAX_TEXT].split(",")]
    if not all(names) or len(text) > MAX_TEXT:
        raise InvalidInputError(f"{text[:60]!r} names nothing", where=where, accepted="names joined by commas")
    return tuple(dict.fromkeys(names))


def _type(name: str) -> NodeType:
    try:
        return catalog.generic_node(name)
    except InvalidInputError:
        known = [alias for entry in catalog.list_gpus() for alias in (entry.id, *entry.aliases)]
        nodes = [alias for entry in catalog.list_nodes() for alias in (entry.id, *entry.aliases)]
        if name in nodes:
            raise InvalidInputError(f"{name[:60]!r} is a node type", where="--types", accepted="--nodes") from None
        raise InvalidInputError(
            f"{name[:60]!r} is in no catalog", where="--types", accepted="see rlplan hardware",
            suggestion=nearest(name, known),
        ) from None  # fmt: skip


def _node(name: str) -> NodeType:
    try:
        return catalog.load_node(name)
    except InvalidInputError:
        known = [alias for entry in catalog.list_nodes() for alias in (entry.id, *entry.aliases)]
        raise InvalidInputError(
            f"{name[:60]!r} is in no catalog", where="--nodes", accepted="see rlplan hardware",
            suggestion=nearest(name, known),
        ) from None  # fmt: skip


def _sizes(text: str, max_gpus: int | None) -> tuple[int, ...]:
    where = "--gpus"
    if len(text) > MAX_TEXT:
        raise InvalidInputError(f"{len(text)} characters are too many", where=where, accepted=SIZES_GRAMMAR)
    sizes: set[int] = set()
    for part in text.split(","):
        sizes.update(_range(part.strip(), where))
    if max_gpus is not None:
        if max_gpus < 1:
            raise InvalidInputError(f"{max_gpus} is out of range", where="--max-gpus", accepted="at least 1")
        if min(sizes) > max_gpus:
            raise InvalidInputError(
                f"no size of --gpus {text[:60]} is within --max-gpus {max_gpus}", accepted=f"at least {min(sizes)}"
            )
    return tuple(sorted(size for size in sizes if max_gpus is None or size <= max_gpus))


def _range(part: str, where: str) -> tuple[int, ...]:
    low_text, dots, rest = part.partition("..")
    high_text, colon, step_text = rest.partition(":")
    low = _count(low_text, part, where)
    if not dots:
        return (low,)
    high = _count(high_text, part, where)
    if high < low:
        raise InvalidInputError(f"{part[:40]!r} is empty", where=where, accepted=f"{high}..{low}")
    if colon:
        return tuple(range(low, high + 1, _count(step_text, part, where)))
    sizes = {high}
    size = low
    while size < high:
        # Doubling, with one size between.
        sizes |= {size, size * 3 // 2} if size * 3 // 2 < high else {size}
        size *= 2
    return tuple(sorted(sizes))


def _count(text: str, part: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidInputError(f"{part[:40]!r} is not understood", where=where, accepted=SIZES_GRAMMAR)
    if len(text) > 6 or not 1 <= int(text) <= MAX_SIZE:
        raise InvalidInputError(f"{part[:40]!r} is out of range", where=where, accepted=f"1 to {MAX_SIZE:,} GPUs")
    return int(text)


def _means(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    means = []
    for part in text[:MAX_TEXT].split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 1.0 <= value < 1e9:
            raise InvalidInputError(
                f"{part.strip()[:40]!r} is no length", where="--lengths", accepted="mean responses in tokens: 1000,3000"
            )
        means.append(value)
    return tuple(dict.fromkeys(means))


# ---------------------------------------------------------------------------------------------- rates and limits


def _rates(spec: WorkloadSpec, options: SweepOptions, workload: Workload) -> RunRates:
    interruptions = 0.0
    if options.spot or options.interruptions_per_node_hour is not None:
        interruptions = _rate(
            options.interruptions_per_node_hour, DEFAULT_INTERRUPTIONS_PER_NODE_HOUR, "--interruption-rate"
        )
    startup_s = DEFAULT_STARTUP_S
    if options.startup is not None:
        startup_s = parse(options.startup, Dimension.TIME, where="--startup")
    writing = DEFAULT_CHECKPOINT_BYTES_PER_S
    if options.checkpoint_rate is not None:
        writing = parse(options.checkpoint_rate, Dimension.BANDWIDTH, where="--checkpoint-rate")
    return RunRates(
        num_steps=_whole(spec.steps, DEFAULT_STEPS, 1, spec.place("steps")),
        startup_s=startup_s,
        checkpoint_bytes=checkpoint_bytes(workload),
        checkpoint_bytes_per_s_per_node=writing,
        checkpoint_every=_whole(options.checkpoint_every, DEFAULT_EVERY, 1, "--checkpoint-every"),
        validation_every=_whole(options.validation_every, DEFAULT_EVERY, 0, "--validation-every"),
        validation_prompts=_whole(
            options.validation_prompts, DEFAULT_VALIDATION_PROMPTS, 1, "--validation-prompts"
        ),
        failures_per_gpu_hour=_rate(options.failures_per_gpu_hour, LLAMA3_FAILURES_PER_GPU_HOUR, "--failure-rate"),
        interruptions_per_node_hour=interruptions,
    )  # fmt: skip


def checkpoint_bytes(workload: Workload) -> float:
    """Size of a checkpoint that training can go on from: what is trained, of the actor and of a critic."""
    trained = float(workload.actor.num_params)
    if workload.lora_rank is not None:
        trained = lora_params(workload.actor, workload.lora_rank)
    if workload.critic is not None:
        trained += workload.critic.num_params
    return trained * TRAINED_BYTES_PER_PARAMETER


def _whole(value: int | None, default: int, low: int, where: str) -> int:
    if value is None:
        return default
    if not low <= value <= 10_000_000:
        raise InvalidInputError(f"{value} is out of range", where=where, accepted=f"{low} to 10,000,000")
    return value


def _rate(value: float | None, default: float, where: str) -> float:
    if value is None:
        return default
    if not 0.0 <= value <= 60.0:
        raise InvalidInputError(f"{value} per hour is out of range", where=where, accepted="0 to 60")
    return value


def _limits(
    spec: WorkloadSpec, rates: RunRates, prices: Sequence[KindPrice], *, spot: bool, given: Sequence[GivenPrice],
    listed: Sequence[Quote],
) -> tuple[float | None, float | None]:  # fmt: skip
    """Seconds and USD that the run may take; contradictions are found before anything is planned."""
    max_time_s = max_usd = None
    if spec.deadline is not None:
        max_time_s = parse(spec.deadline, Dimension.TIME, where=spec.place("deadline"))
        if max_time_s <= rates.startup_s:
            raise InvalidInputError(
                f"{spec.deadline!r} is over before the start-up of {format_seconds(rates.startup_s)} is",
                where=spec.place("deadline"),
                accepted="a longer time, or a shorter --startup",
            )
    if spec.budget is not None:
        max_usd = parse(spec.budget, Dimension.MONEY, where=spec.place("budget"))
        if all(item.price is None for item in prices):
            kind = prices[0].kind
            raise InvalidInputError(
                f"no {'spot ' * spot}price is known for {', '.join(item.kind for item in prices)}",
                where=spec.place("budget"),
                accepted=f"--price {kind}=2.50 (USD per GPU-hour), or --prices FILE",
            )
    return max_time_s, max_usd


# ---------------------------------------------------------------------------------------------- assumptions in words


def _rate_words(spec: WorkloadSpec, options: SweepOptions, rates: RunRates) -> tuple[str, ...]:
    def source(value: object, default: str) -> str:
        return "given" if value is not None else default

    words = [
        f"run: {rates.num_steps:,} iterations ({source(spec.steps, 'default; give --steps')})",
        f"start-up: {format_seconds(rates.startup_s)} at the start and after each interruption "
        f"({source(options.startup, 'assumption; give --startup')})",
        f"checkpoint: {format_bytes(rates.checkpoint_bytes)} (bf16 and fp32 weights, Adam moments) every "
        f"{rates.checkpoint_every} iterations or at Young's interval if shorter, written at "
        f"{format_bandwidth(rates.checkpoint_bytes_per_s_per_node)} per node while training waits "
        f"({source(options.checkpoint_rate, 'assumption; give --checkpoint-rate and --checkpoint-every')})",
        "validation: none"
        if not rates.validation_every
        else f"validation: {rates.validation_prompts:,} responses every {rates.validation_every} iterations on the "
        f"plan's engines ({source(options.validation_every, 'default; give --validation-every')})",
        f"failures: {rates.failures_per_gpu_hour:.2g} per GPU-hour "
        f"({source(options.failures_per_gpu_hour, '419 in 54 days on 16,384 H100, arXiv:2407.21783; --failure-rate')})"
        "; each repeats half a checkpoint interval and the start-up",
    ]
    if rates.interruptions_per_node_hour:
        origin = source(
            options.interruptions_per_node_hour,
            "assumption, no measured source: it depends on provider, region and hour; give --interruption-rate",
        )
        words.append(f"spot interruptions: {rates.interruptions_per_node_hour:g} per node-hour ({origin})")
    return tuple(words)


def _workload_words(base: PlanRequest, *, has_means: bool) -> tuple[str, ...]:
    return tuple(
        f"{item.what}: {item.value} ({item.source})"
        for item in base.assumptions
        if not item.what.startswith(("price of", "node of", "objective")) and not (has_means and _is_mean(item))
    )


def _is_mean(item: Assumption) -> bool:
    return item.what == "mean response"
