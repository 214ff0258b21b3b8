"""What the imports of all frameworks share: degrees that must divide, updates per iteration, words for a strategy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from planner.adapters.findings import Finding, Severity
from planner.adapters.import_values import Values
from planner.adapters.imported import POOL
from planner.domain.request import FixedWorker
from planner.domain.stages import WorkerName
from planner.domain.strategy import (
    ContextParallel,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    Strategy,
    TrainerStrategy,
)

USUAL_NODE = 8
USUAL_GPU_BYTES = 80e9
"""For fractions of GPU memory that a framework counts otherwise than a plan, before the GPU is known."""
_MODEL_KEYS = ("path", "model_name", "hf-checkpoint")
_LAYER_KEYS = (
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
)  # fmt: skip
"""Megatron-LM's settings for layers of pipeline ranks (megatron/core/transformer/transformer_config.py)."""
TINY_KL = 1e-9
"""A coefficient of 0 where the reference is loaded and run all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Parallel degrees of a trainer; dp is what remains."""

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Packed tokens per micro-batch of one data-parallel rank, all its context-parallel ranks together."""

    train: int
    inference: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A worker on GPUs of POOL; without a strategy it could not be made out."""

    worker: WorkerName
    first_gpu: int
    num_gpus: int
    strategy: Strategy | None


def fixed(places: Iterable[Place]) -> tuple[FixedWorker, ...]:
    """The workers that have a strategy."""
    return tuple(
        FixedWorker(
            worker=item.worker, pool=POOL, first_gpu=item.first_gpu, num_gpus=item.num_gpus, strategy=item.strategy
        )
        for item in places
        if item.strategy is not None
    )


def holds_longest(budget: int, max_tokens: int) -> int:
    """Tokens of the largest micro-batch where a longer sequence makes one of its own: what memory must hold."""
    return max(budget, max_tokens)


def layers_are_given(values: Values, section: str) -> bool:
    """Whether Megatron's settings in a section of the configuration spread layers over the pipeline by hand."""
    found = [values.config.get(f"{section}.{name}") for name in _LAYER_KEYS]
    return any(value is not None and value is not False for value in found)


def check_pipeline(values: Values, key: str, section: str, model: str | None) -> None:
    """Megatron-LM's megatron/core/transformer/transformer_block.py get_num_layers_to_build: layers divide over the
    pipeline that `key` sets, unless the `section` spreads them by hand."""
    from planner.files.catalog import load_model

    pp = values.whole(key, 1, minimum=1)
    if model is None or layers_are_given(values, section):
        return
    layers = load_model(model).num_layers
    if layers % pp:
        values.find(
            key, Severity.ERROR, f"{layers} layers do not divide over {pp} pipeline ranks",
            f"another degree, or {section}.num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage",
        )  # fmt: skip


def is_moe(model: str | None) -> bool:
    """Whether the layers of a model of the catalog have experts."""
    from planner.files.catalog import load_model

    return model is not None and load_model(model).is_moe


def divides(values: Values, place: str, degrees: Degrees, num_gpus: int) -> bool:
    """Whether the degrees fill the GPUs; a finding at `place` says why not."""
    dense = degrees.tp * degrees.pp * degrees.cp
    experts = degrees.ep * degrees.etp * degrees.pp
    if num_gpus % dense:
        shown = f"tp {degrees.tp} x pp {degrees.pp} x cp {degrees.cp} = {dense}"
        values.find(
            place, Severity.ERROR, f"{shown} does not divide {num_gpus} GPUs",
            "degrees whose product divides the GPUs of the trainer",
        )  # fmt: skip
        return False
    if num_gpus % experts:
        shown = f"ep {degrees.ep} x etp {degrees.etp} x pp {degrees.pp} = {experts}"
        remedy = "expert tensor parallel size 1" if degrees.etp > 1 else "a smaller expert parallel size"
        values.find(place, Severity.ERROR, f"{shown} does not divide {num_gpus} GPUs", remedy)
        return False
    return True


def updates_per_iteration(values: Values, key: str, *, samples: int, per_update: int, prompts: int) -> int:
    """Optimizer steps of a pass over the batch: the nearest number that divides the prompts.

    `per_update` counts samples, like `samples`; `key` names it in messages.
    """
    wanted = max(1, math.ceil(samples / per_update))
    if samples % per_update and samples > per_update:
        values.find(
            key, Severity.WARNING,
            f"{samples:,} samples per iteration are no multiple of {per_update:,}: the last update is smaller or left "
            "out", f"a divisor of {samples:,}",
        )  # fmt: skip
    if prompts % wanted == 0:
        return wanted
    steps = next((count for count in range(wanted, prompts + 1) if prompts % count == 0), prompts)
    values.find(
        key, Severity.NOTE,
        f"{wanted} updates per iteration cut groups of one prompt apart: priced as {steps} updates of whole groups",
    )  # fmt: skip
    return steps


def forward_only(
    degrees: Degrees, num_gpus: int, tokens: int, *, sharding: Sharding, swaps: bool, kind: ContextParallel
) -> TrainerStrategy:
    """A worker that only runs forward passes: a reference, or a reward model."""
    return TrainerStrategy(
        num_gpus=num_gpus, tp=degrees.tp, pp=degrees.pp, vpp=1, cp=degrees.cp, context_parallel=kind, ep=degrees.ep,
        etp=degrees.etp, sharding=sharding, shard_ranks=num_gpus // (degrees.tp * degrees.pp),
        micro_batch_tokens=tokens, inference_tokens=tokens, recompute=Recompute.NONE,
        offload=Offload.STATE_SWAP if swaps else Offload.NONE,
    )  # fmt: skip


def trainer_words(strategy: TrainerStrategy) -> str:
    """A trainer's strategy in one line; degrees of 1 are left out but dp."""
    degrees = [("tp", strategy.tp), ("pp", strategy.pp), ("vpp", strategy.vpp), ("cp", strategy.cp)]
    experts = [("ep", strategy.ep), ("etp", strategy.etp)] if strategy.ep * strategy.etp > 1 else []
    found = [f"{name} {value}" for name, value in (*degrees, *experts) if value > 1]
    layers = f" ({strategy.recompute_layers} layers per stage)" if strategy.recompute_layers else ""
    return (
        f"{' '.join([*found, f'dp {strategy.dp}'])}, {strategy.sharding.value}, {strategy.micro_batch_tokens:,} tokens "
        f"per micro-batch ({strategy.inference_tokens:,} forward), recompute {strategy.recompute.value}{layers}, "
        f"offload {strategy.offload.value}"
    )


def engine_words(strategy: RolloutStrategy) -> str:
    """Engines in one line."""
    pp = f" pp {strategy.pp}" if strategy.pp > 1 else ""
    ep = f" ep {strategy.ep}" if strategy.ep > 1 else ""
    groups, each = "", "each"
    if strategy.attention_dp > 1:
        groups, each = f" attention dp {strategy.attention_dp}", "per attention group"
    idle = "sleep" if strategy.idle.value == "sleep" else "stay in memory"
    return (
        f"{strategy.num_engines} of tp {strategy.tp}{pp}{groups}{ep}, {strategy.engine_fraction:.0%} of GPU memory, up "
        f"to {strategy.max_num_seqs:,} sequences {each}, {idle} while others run"
    )


def attention_groups(values: Values, key: str, ranks: int, model: str | None, *, enabled: bool) -> int:
    """Attention groups of an engine of SGLang, `key` being its dp-size: 1 unless they are enabled.

    SGLang's tp counts all `ranks` of an engine. Dense models are priced without groups.
    """
    groups = values.whole(key, 1, minimum=1)
    if groups == 1 or not enabled:
        return 1
    if ranks % groups:
        values.find(key, Severity.ERROR, f"{groups} does not divide the {ranks} ranks of an engine", "a divisor")
        return 1
    if not is_moe(model):
        values.find(key, Severity.NOTE, "attention replicas over dense layers are priced as tensor parallelism")
        return 1
    return groups


def sglang_fraction(values: Values, key: str, static: float, model: str | None) -> float:
    """The engine fraction of a plan from SGLang's `mem_fraction_static`.

    SGLang's counts weights and KV cache, a plan's everything that an engine allocates: activations, graphs, the
    context and communicators come on top. Before the GPU is known their share is that of one of 80 GB; `placed` of
    planner/check.py takes the real one.
    """
    from planner.files.catalog import load_model, load_overheads

    hidden = load_model(model).hidden_size if model is not None else 0
    costs = load_overheads()
    activations = costs.engine_activation_factor * costs.engine_batched_tokens * hidden * 2.0
    beside = activations + costs.engine_graph_bytes + costs.context_bytes + costs.first_communicator_bytes
    fraction = min(round(static + beside / USUAL_GPU_BYTES, 3), 0.98)
    values.engine_static_ratio = static
    if fraction > static:
        values.find(
            key, Severity.NOTE,
            f"{static:g} is weights and KV cache alone; activations and graphs come on top, about {fraction:.0%} of an "
            "80 GB GPU in all, and are priced",
        )  # fmt: skip
    return max(fraction, static)


def node_shape(num_gpus: int, per_node: Iterable[int]) -> tuple[int, int]:
    """Nodes and GPUs per node of a configuration that says GPUs per node for each role."""
    largest = max(per_node, default=USUAL_NODE)
    if num_gpus <= USUAL_NODE:
        return 1, num_gpus
    size = largest if largest >= USUAL_NODE else USUAL_NODE
    return math.ceil(num_gpus / size), size


def settled(values: Values) -> tuple[Finding, ...]:
    """The findings of a reading; without the errors where a number that they compare is not known yet.

    Which model it is decides no such comparison: those names end like the keys of models.
    """
    open_numbers = [name for name in values.unresolved if not name.endswith(_MODEL_KEYS)]
    if not open_numbers:
        return tuple(values.findings)
    return tuple(item for item in values.findings if item.severity is not Severity.ERROR)


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each finding once, the worst first."""
    order = {severity: index for index, severity in enumerate(Severity)}
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: order[finding.severity]))
