"""Serving measurements against the cost model: time per output token, and throughput at maximum load.

Every row is one deployment: engines of `tp * attn_dp * pp` GPUs each, all alike, that share the printed concurrency.
Closed-loop rows predict `tpot_ms`; rows with all requests queued at once predict output tokens per second. What rows
do not say (format of the KV cache, tokens per prefill step) comes from `data/serving.yaml`, by source.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from planner.cost.decode import EngineLayout, engine_layout
from planner.cost.formats import WeightFormats
from planner.cost.serving import (
    CacheBudget,
    CacheRule,
    ClosedLoop,
    MaximumLoad,
    cache_slots,
    closed_loop_terms,
    maximum_load_terms,
)
from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from planner.domain.plan import NamedValue
from planner.domain.strategy import FloatArray
from planner.files.catalog import load_overheads
from planner.files.fields import Fields
from planner.validation.read import (
    MAX_DEGREE,
    Row,
    RowError,
    collect,
    degree,
    find_model,
    find_node,
    integer,
    model_family,
    number,
    positive,
    quality,
    required,
    text,
)
from planner.validation.records import Keys, Priced, Table, TableResult, Unpriced

CLOSED_LOOP = "time per token"
MAXIMUM_LOAD = "maximum load"
_SHORT_LENGTHS = "uniform 0.8-1.0"
_SHORT_RATIO = 0.9
"""Lengths drawn uniformly from 0.8 to 1.0 of the printed ones."""
_DEFAULT_REQUESTS = 3000
"""Requests of a maximum-load run that does not list them: as in the longest listed run of the same table."""
_QUEUE_RATIO = 0.5
_QUEUE_S = 5.0
_REPEAT_RATIO = 1.5
_REQUESTS = re.compile(r"(\d+) requests queued")
_CACHE_RULES = {"vllm": CacheRule.TOTAL, "sglang": CacheRule.STATIC, "trtllm": CacheRule.FREE}
_ENGINES = tuple(_CACHE_RULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What an engine was started with where rows do not say; see data/serving.yaml."""

    cache_bytes: float
    batched_tokens: float
    budget: CacheBudget
    max_num_seqs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One row as the cost model needs it; token counts per request, `concurrency` per engine."""

    model: Model
    node: NodeType
    engine: str
    formats: WeightFormats
    serving: Serving
    tp: int
    pp: int
    ep: int
    attention_dp: int
    num_gpus: int
    num_engines: int
    concurrency: float
    prompt_tokens: float
    output_tokens: float
    is_maximum_load: bool
    measured: float
    """Seconds per token, or output tokens per second of all GPUs."""


def price(rows: Sequence[Mapping[str, str]], overheads: Overheads | None = None) -> TableResult:
    """Every row of generation.csv with its own configuration; rows that cannot be priced carry the reason."""
    ruled, rest = exclude_by_rule(rows)
    read, unreadable = collect(rest, Table.GENERATION, read_row)
    priced = price_deployments(read, overheads or load_overheads())
    return TableResult(table=Table.GENERATION, priced=tuple(priced), unpriced=(*ruled, *unreadable))


def price_deployments(read: Sequence[tuple[Row, Deployment]], overheads: Overheads) -> list[Priced]:
    """Prices rows in groups that share model, machine, engine and formats, one vectorised call per group."""
    groups: dict[tuple[Model, NodeType, str, WeightFormats, bool], list[int]] = defaultdict(list)
    for index, (_, item) in enumerate(read):
        groups[(item.model, item.node, item.engine, item.formats, item.is_maximum_load)].append(index)
    results: dict[int, Priced] = {}
    for (_, _, engine, _, is_maximum), members in groups.items():
        items = [read[index][1] for index in members]
        terms = (_maximum_terms if is_maximum else _token_terms)(items, overheads.for_engine(engine))
        for place, index in enumerate(members):
            row, item = read[index]
            named = tuple(NamedValue(name=name, value=float(values[place])) for name, values in terms.items())
            results[index] = _priced(row, item, named)
    return [results[index] for index in range(len(read))]


def _priced(row: Row, item: Deployment, terms: tuple[NamedValue, ...]) -> Priced:
    seconds = sum(term.value for term in terms)
    tokens = item.concurrency * item.num_engines * item.output_tokens
    return Priced(
        table=Table.GENERATION,
        row=text(row, "id"),
        source=text(row, "source"),
        quality=quality(row),
        keys=_keys(row, item),
        unit="tokens/s" if item.is_maximum_load else "s",
        measured=item.measured,
        predicted=tokens / seconds if item.is_maximum_load else seconds,
        terms=terms,
        note=text(row, "note"),
    )


def _keys(row: Row, item: Deployment) -> Keys:
    engine, quant = item.engine, _precision(row)
    layout = f"tp{item.tp} pp{item.pp} ep{item.ep} dp{item.attention_dp} x{item.num_engines}"
    load = f"{text(row, 'isl')}/{text(row, 'osl')} c{text(row, 'concurrency')}"
    return Keys(
        model=item.model.id,
        family=model_family(item.model),
        gpu=text(row, "gpu"),
        precision=quant,
        framework=engine,
        release=text(row, "engine_version"),
        configuration=f"{item.model.id} {engine} {text(row, 'gpu')} {quant} {layout} {load}",
        workload=f"{item.model.id} {load} on {item.num_gpus} {text(row, 'gpu')}",
        subset=MAXIMUM_LOAD if item.is_maximum_load else CLOSED_LOOP,
    )


# ----------------------------------------------------------------------------------------------- rules


def exclude_by_rule(rows: Sequence[Row]) -> tuple[list[Unpriced], list[Row]]:
    """Rows that docs/validation-protocol.md excludes before any fit, and the others."""
    ruled: list[Unpriced] = []
    rest: list[Row] = []
    repeats = _unrepeatable(rows)
    for row in rows:
        reason = _rule(row) or ("repeats differ by more than 1.5 x" if _printed(row) in repeats else "")
        if reason:
            ruled.append(
                Unpriced(table=Table.GENERATION, row=text(row, "id"), quality=quality(row), reason=reason, is_rule=True)
            )
        else:
            rest.append(row)
    return ruled, rest


def _rule(row: Row) -> str:
    """The rule that excludes a row on its own; empty for none. Cells that are no numbers are judged when read."""
    if "bnb" in text(row, "quant"):
        return "quantised by bitsandbytes: kernels without efficiencies"
    if text(row, "tpot_ms") and any(_is_mixed(entry, row) for entry in _defaults().unlabelled_mtp):
        return "runs with multi-token prediction are mixed in without a mark"
    try:
        first, token = number(row, "ttft_ms"), number(row, "tpot_ms")
        output = number(row, "osl")
    except RowError:
        return ""
    if first and token and output and first > 1e3 * _QUEUE_S and first > _QUEUE_RATIO * token * output:
        return "requests queue: first token after more than half of a request's decoding"
    return ""


def _printed(row: Row) -> tuple[str, ...]:
    names = ("engine", "engine_version", "model", "quant", "gpu", "n_gpus", "tp", "pp", "ep", "attn_dp", "concurrency")
    return tuple(text(row, name) for name in (*names, "isl", "osl", "mode"))


def _unrepeatable(rows: Sequence[Row]) -> set[tuple[str, ...]]:
    """Printed configurations whose repeats within one release differ by more than the ratio."""
    seen: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        try:
            value = number(row, "tpot_ms")
        except RowError:
            continue
        if value:
            seen[_printed(row)].append(value)
    return {key for key, values in seen.items() if max(values) > _REPEAT_RATIO * min(values)}


# ----------------------------------------------------------------------------------------------- rows


def read_row(row: Row) -> Deployment:
    """A row of generation.csv; RowError with the reason when it does not say enough."""
    model = find_model(text(row, "model"))
    node = find_node(required(row, "gpu"))
    engine = text(row, "engine")
    if engine not in _ENGINES:
        raise RowError(f"no profile of engine {engine[:40]!r}")
    if not integer(row, "n_gpus"):
        raise RowError("number of GPUs not stated")
    num_gpus = degree(row, "n_gpus")
    pp, attention_dp = degree(row, "pp"), degree(row, "attn_dp")
    tp = degree(row, "tp", 1 if attention_dp > 1 else num_gpus)
    ranks = tp * pp * attention_dp
    if ranks > num_gpus or num_gpus % ranks:
        raise RowError(f"{num_gpus} GPUs are no whole number of engines of {ranks}")
    ep = degree(row, "ep") if model.is_moe else 1
    if ep > tp * attention_dp or (tp * attention_dp) % ep:
        raise RowError(f"ep {ep} does not divide {tp * attention_dp} ranks")
    if model.layers[0].attention.num_heads % tp and tp > 1:
        raise RowError(f"tp {tp} does not divide the attention heads")
    serving = _serving(engine, model, node)
    formats = _formats(row, model, node, serving)
    num_engines = num_gpus // ranks
    prompt, output = positive(row, "isl"), positive(row, "osl")
    if not (1.0 <= prompt <= MAX_DEGREE and 1.0 <= output <= MAX_DEGREE):
        raise RowError(f"sequences of {prompt:g} and {output:g} tokens; 1 to {MAX_DEGREE:,} can be priced")
    if _SHORT_LENGTHS in text(row, "len_dist"):
        prompt, output = prompt * _SHORT_RATIO, output * _SHORT_RATIO
    is_maximum = text(row, "concurrency") == "max load"
    if is_maximum:
        found = _REQUESTS.search(text(row, "note"))
        concurrency = float(found.group(1)) if found else float(_DEFAULT_REQUESTS)
        measured = positive(row, "out_tok_s_total")
    else:
        concurrency = positive(row, "concurrency")
        measured = positive(row, "tpot_ms") * 1e-3
    return Deployment(
        model=model,
        node=node,
        engine=engine,
        formats=formats,
        serving=serving,
        tp=tp,
        pp=pp,
        ep=ep,
        attention_dp=attention_dp,
        num_gpus=num_gpus,
        num_engines=num_engines,
        concurrency=max(concurrency / num_engines, 1.0),
        prompt_tokens=prompt,
        output_tokens=output,
        is_maximum_load=is_maximum,
        measured=measured,
    )


def _precision(row: Row) -> str:
    """`fp8`, `fp4`, `int4` or `bf16`, from the text of the column."""
    stated = text(row, "quant").lower()
    for name, value in (("int4", "int4"), ("fp4", "fp4"), ("fp8", "fp8"), ("bf16", "bf16"), ("bfloat16", "bf16")):
        if name in stated:
            return value
    raise RowError(f"quantisation {stated[:40]!r} is not known" if stated else "quantisation not stated")


def _formats(row: Row, model: Model, node: NodeType, serving: Serving) -> WeightFormats:
    """Four-bit checkpoints of mixture-of-experts models quantise the experts only; gpt-oss always has MXFP4 experts."""
    precision = _precision(row)
    is_four_bit = precision in ("int4", "fp4")
    if model.id.startswith("gpt-oss") or (is_four_bit and model.is_moe):
        dense, experts = Precision.BF16, Precision.FP4
    elif is_four_bit:
        dense = experts = Precision.FP4
    else:
        dense = experts = Precision.FP8 if precision == "fp8" else Precision.BF16
    arithmetic = Precision.BF16 if precision == "int4" else None
    if model.id.startswith("gpt-oss") and node.gpu.supports(Precision.FP4):
        arithmetic = Precision.FP8  # MXFP4 weights meet MXFP8 activations
    return WeightFormats(dense=dense, experts=experts, cache_bytes=serving.cache_bytes, arithmetic=arithmetic)


def _serving(engine: str, model: Model, node: NodeType) -> Serving:
    for entry in _defaults().defaults:
        is_here = not entry.gpus or any(node.gpu.id.startswith(prefix) for prefix in entry.gpus)
        if entry.engine == engine and model.id.startswith(entry.model) and is_here:
            return entry.serving
    raise RowError(f"no defaults for engine {engine[:40]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Default:
    """An entry of serving.yaml: which rows, and how they were served."""

    engine: str
    model: str
    gpus: tuple[str, ...]
    serving: Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixed:
    """Deployments in which rows do not say whether multi-token prediction was on; empty fields match all."""

    engine: str
    model: str
    precision: str
    gpus: tuple[str, ...]
    layout: str
    releases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServingFile:
    """serving.yaml; the first matching default counts."""

    defaults: tuple[_Default, ...]
    unlabelled_mtp: tuple[_Mixed, ...]


@cache
def _defaults() -> _ServingFile:
    import yaml

    content = files("planner.validation").joinpath("data", "serving.yaml").read_text(encoding="utf-8")
    fields = Fields(yaml.load(content, Loader=yaml.CSafeLoader), where="serving.yaml")
    found = _ServingFile(
        defaults=tuple(_default(entry) for entry in fields.sections("defaults")),
        unlabelled_mtp=tuple(_mixed(entry) for entry in fields.sections("unlabelled_mtp")),
    )
    fields.finish()
    return found


def _mixed(entry: Fields) -> _Mixed:
    entry.text("why")
    found = _Mixed(
        engine=entry.text("engine"),
        model=entry.text("model"),
        precision=entry.text("precision") if entry.has("precision") else "",
        gpus=entry.texts("gpus") if entry.has("gpus") else (),
        layout=entry.text("layout") if entry.has("layout") else "",
        releases=entry.texts("releases"),
    )
    entry.finish()
    return found


def _is_mixed(entry: _Mixed, row: Row) -> bool:
    """The row is one of the deployments of an entry."""
    try:
        model, precision = find_model(text(row, "model")), _precision(row)
    except RowError:
        return False
    return (
        text(row, "engine") == entry.engine
        and model.id.startswith(entry.model)
        and entry.precision in ("", precision)
        and (not entry.gpus or text(row, "gpu") in entry.gpus)
        and entry.layout in ("", f"tp{text(row, 'tp')} ep{text(row, 'ep')}")
        and text(row, "engine_version") in entry.releases
    )


def _default(entry: Fields) -> _Default:
    entry.text("why")
    found = _Default(
        engine=entry.text("engine"),
        model=entry.text("model") if entry.has("model") else "",
        gpus=entry.texts("gpus") if entry.has("gpus") else (),
        serving=Serving(
            cache_bytes=entry.number("cache_bytes", limit=4),
            batched_tokens=entry.number("batched_tokens", limit=1e6),
            budget=CacheBudget(
                memory_fraction=entry.number("memory_fraction", limit=1), rule=_CACHE_RULES[entry.text("engine")]
            ),
            max_num_seqs=entry.number("max_num_seqs", limit=1e6),
        ),
    )
    entry.finish()
    return found


# ----------------------------------------------------------------------------------------------- pricing


def _column(items: Sequence[Deployment], name: str) -> FloatArray:
    return np.array([getattr(item, name) for item in items], dtype=np.float64)


def _layout(items: Sequence[Deployment]) -> EngineLayout:
    return engine_layout(
        _column(items, "tp"),
        _column(items, "pp"),
        _column(items, "ep"),
        items[0].node,
        _column(items, "attention_dp"),
    )


def _slots(items: Sequence[Deployment], layout: EngineLayout, overheads: Overheads) -> FloatArray:
    """Requests that run at a time. TensorRT-LLM admits only what it can hold to its end, the others evict."""
    first = items[0]
    prompt, output = _column(items, "prompt_tokens"), _column(items, "output_tokens")
    context = prompt + output if first.serving.budget.rule is CacheRule.FREE else prompt + 0.5 * output
    held = cache_slots(first.model, first.formats, first.node, overheads, layout, first.serving.budget, context)
    return np.minimum(np.maximum(np.floor(held), 1.0), first.serving.max_num_seqs)


def _token_terms(items: Sequence[Deployment], overheads: Overheads) -> dict[str, FloatArray]:
    layout = _layout(items)
    first = items[0]
    prompt, output = _column(items, "prompt_tokens"), _column(items, "output_tokens")
    slots = _slots(items, layout, overheads)
    load = ClosedLoop(
        concurrency=np.minimum(_column(items, "concurrency"), slots),
        prompt_tokens=prompt,
        output_tokens=output,
        batched_tokens=np.full_like(prompt, first.serving.batched_tokens),
    )
    return closed_loop_terms(first.model, first.formats, first.node, overheads, layout, load)


def _maximum_terms(items: Sequence[Deployment], overheads: Overheads) -> dict[str, FloatArray]:
    layout = _layout(items)
    first = items[0]
    prompt, output = _column(items, "prompt_tokens"), _column(items, "output_tokens")
    requests = _column(items, "concurrency")
    slots = np.minimum(_slots(items, layout, overheads), requests)
    load = MaximumLoad(
        requests=requests,
        slots=slots,
        prompt_tokens=prompt,
        output_tokens=output,
        batched_tokens=np.full_like(prompt, first.serving.batched_tokens),
    )
    return maximum_load_terms(first.model, first.formats, first.node, overheads, layout, load)
