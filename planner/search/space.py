"""The declared space: which degrees, sizes and techniques are considered, and which are left out and why."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.hardware import NodeType
from planner.domain.model import Model
from planner.domain.stages import StageKind
from planner.domain.strategy import (
    EXPERT_EXCHANGES,
    ContextParallel,
    EngineIdle,
    ExpertExchange,
    Offload,
    Recompute,
    Sharding,
)

TP_DEGREES = (1, 2, 4, 8, 16, 32, 64)
PP_DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
VPP_DEGREES = (1, 2, 4)
CP_DEGREES = (1, 2, 4, 8, 16)
EP_DEGREES = (1, 2, 4, 8, 16, 32, 64, 128)
ROLLOUT_PP_DEGREES = (1, 2, 4, 8)
ATTENTION_DP_DEGREES = (2, 4, 8, 16, 32, 64)
MAX_WIDE_ENGINE_GPUS = 64
"""Largest engine with data-parallel attention."""
ENGINE_FRACTIONS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MAX_NUM_SEQS = (16, 64, 128, 256, 512, 1024)
BUDGET_MULTIPLES = (1, 2, 4, 8, 16)
"""Micro-batch token budgets in multiples of the longest sequence."""
MAX_BUDGET_TOKENS = 65536
"""Largest budget per GPU, unless one longest sequence is larger."""
INFERENCE_MULTIPLES = (1, 4)
"""Forward-only token budgets in multiples of the training budget."""

TRAIN_OFFLOADS = tuple(Offload)
INFERENCE_OFFLOADS = (Offload.NONE, Offload.STATE_SWAP)
RECOMPUTES = tuple(Recompute)
PARTIAL_SHARES = (1 / 3, 2 / 3)
"""Partial recomputation: these shares of the layers of a (virtual) pipeline stage, rounded to whole layers."""
PARTIAL_SHARDINGS = (Sharding.DDP, Sharding.ZERO1)
"""Sharding with which layers are recomputed in part."""
ENGINE_IDLES = tuple(EngineIdle)

EXCLUDED: tuple[tuple[str, str], ...] = (
    ("training TP across scale-up domains", "every layer would wait for NICs; PP, CP or ZeRO cross nodes instead"),
    (
        "experts both spread (ep) and split in width (etp) with ZeRO-2 or ZeRO-3",
        "either leaves one copy of the experts in so many ranks; a wider ep does the same with less traffic",
    ),
    (
        "expert parallelism beyond one shard group with HSDP",
        "every replica of a shard group holds the whole model, experts too",
    ),
    ("pipeline parallelism together with ZeRO-2 or ZeRO-3", "gradients and weights would be gathered per micro-batch"),
    (
        "partial recomputation with ZeRO-2 or ZeRO-3, together with selective recomputation, or of other shares",
        "training back ends with FSDP checkpoint all layers or none; shares in between lie between these",
    ),
    (
        "old log-prob away from the actor trainer, critic value away from the critic trainer",
        "would need another copy of the weights",
    ),
    (
        "a worker over several pools or device groups, but for the rollout",
        "the rollout is split over two groups of engines in two pools; only engines serve responses one by one",
    ),
    (
        "a split rollout in a plan for a framework, in shares finer than 1/16, over more than two groups, with stage "
        "fusion, or with the second group on GPUs that others use",
        "no framework of the catalog runs two groups of engines of different kinds; the others would add little",
    ),
    ("device groups that overlap other than by one being the whole pool", "groups are laminar"),
    ("asynchronous execution with trainer and engines on the same GPUs", "nothing would overlap"),
    ("stage fusion in asynchronous plans", "assessors of one batch already run beside the rollout of the next"),
    (
        "data-parallel attention together with pipeline parallelism or with tp across scale-up domains, in engines of "
        "more than 64 GPUs, or of dense models",
        "a further group divides the cache and spreads the experts, which is what pipeline ranks or wider tp would do",
    ),
    ("ep of an engine other than 1, tp and tp x attention dp", "the divisors in between lie between these"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of the declared space is looked at: all of it, or a coarse part that brings a first plan early."""

    pool_parts: int | None
    """Groups of whole nodes: every number of them (None), or doublings and so many equal parts of the pool."""
    budget_multiples: tuple[int, ...]
    inference_multiples: tuple[int, ...]
    recomputes: tuple[Recompute, ...]
    train_offloads: tuple[Offload, ...]
    engine_fractions: tuple[float, ...]
    max_num_seqs: tuple[int, ...]


WHOLE = Coverage(
    pool_parts=None,
    budget_multiples=BUDGET_MULTIPLES,
    inference_multiples=INFERENCE_MULTIPLES,
    recomputes=RECOMPUTES,
    train_offloads=TRAIN_OFFLOADS,
    engine_fractions=ENGINE_FRACTIONS,
    max_num_seqs=MAX_NUM_SEQS,
)
COARSE = Coverage(
    pool_parts=4,
    budget_multiples=(1, 4),
    inference_multiples=INFERENCE_MULTIPLES[-1:],
    recomputes=(Recompute.NONE, Recompute.FULL),
    train_offloads=(Offload.NONE, Offload.STATE_SWAP, Offload.CPU_OPTIMIZER_STATE_SWAP),
    engine_fractions=(0.5, 0.8),
    max_num_seqs=(128, 512),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGrid:
    """Numbers of GPUs that a device group may have on one pool."""

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, node: NodeType, num_nodes: int, coverage: Coverage = WHOLE) -> SizeGrid:
        """Halvings of a node, then every number of whole nodes; below a node whose GPUs are no power of two, every
        number (groups of such a size take a whole node where there are several, see `SearchPool.group_sizes`)."""
        per_node = node.gpus_per_node
        is_power_of_two = per_node & (per_node - 1) == 0
        below = (
            [per_node >> k for k in range(1, per_node.bit_length())] if is_power_of_two else list(range(1, per_node))
        )
        nodes = tuple(node.gpus_per_node * count for count in _node_counts(num_nodes, coverage.pool_parts))
        return cls(sizes=tuple(sorted(below)) + nodes)


def _node_counts(num_nodes: int, parts: int | None) -> list[int]:
    if parts is None:
        return list(range(1, num_nodes + 1))
    doublings = {1 << k for k in range(num_nodes.bit_length())}
    return sorted(doublings | {num_nodes * part // parts for part in range(1, parts + 1)} - {0})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingChoice:
    """A sharding level with the context parallelism that its implementations have."""

    sharding: Sharding
    context_parallel: ContextParallel
    is_hybrid: bool
    """HSDP: shard within one node, replicate across nodes."""


TRAIN_SHARDINGS = (
    ShardingChoice(sharding=Sharding.DDP, context_parallel=ContextParallel.RING, is_hybrid=False),
    ShardingChoice(sharding=Sharding.ZERO1, context_parallel=ContextParallel.RING, is_hybrid=False),
    ShardingChoice(sharding=Sharding.ZERO2, context_parallel=ContextParallel.ULYSSES, is_hybrid=False),
    ShardingChoice(sharding=Sharding.ZERO3, context_parallel=ContextParallel.ULYSSES, is_hybrid=False),
    ShardingChoice(sharding=Sharding.ZERO3, context_parallel=ContextParallel.ULYSSES, is_hybrid=True),
)
INFERENCE_SHARDINGS = (
    ShardingChoice(sharding=Sharding.DDP, context_parallel=ContextParallel.RING, is_hybrid=False),
    ShardingChoice(sharding=Sharding.ZERO3, context_parallel=ContextParallel.ULYSSES, is_hybrid=False),
)


def token_budgets(max_tokens: int, cp: int, coverage: Coverage = WHOLE) -> tuple[int, ...]:
    """Micro-batch budgets of one data-parallel rank whose CP group has `cp` ranks."""
    limit = max(max_tokens, MAX_BUDGET_TOKENS * cp)
    return tuple(max_tokens * factor for factor in coverage.budget_multiples if max_tokens * factor <= limit)


def partial_layers(stage_layers: int) -> tuple[int, ...]:
    """Numbers of layers that partial recomputation takes of a stage: some of them and never all.

    >>> [partial_layers(layers) for layers in (1, 2, 3, 16)]
    [(), (1,), (1, 2), (5, 11)]
    """
    wanted = {round(stage_layers * share) for share in PARTIAL_SHARES}
    return tuple(sorted(layers for layers in wanted if 1 <= layers < stage_layers))


def engine_fractions(memory_margin_ratio: float, coverage: Coverage = WHOLE) -> tuple[float, ...]:
    """Engine fractions that leave the memory margin free."""
    return tuple(f for f in coverage.engine_fractions if f <= 1.0 - memory_margin_ratio + 1e-9)


def pp_degrees(model: Model, kind: StageKind) -> tuple[int, ...]:
    """Pipeline degrees up to one layer per rank; powers of two, and divisors of the layer count."""
    if kind is StageKind.GENERATION:
        return tuple(p for p in ROLLOUT_PP_DEGREES if p <= model.num_layers)
    return tuple(p for p in PP_DEGREES if p <= model.num_layers and (p & (p - 1) == 0 or model.num_layers % p == 0))


def engine_layouts(model: Model, node: NodeType) -> list[tuple[float, float, float, float, float]]:
    """(tp, pp, attention_dp, ep, exchange) of one engine; `exchange` indexes EXPERT_EXCHANGES.

    Without data-parallel attention experts are split in width (ep 1) or spread over the TP ranks. With it, over one
    group or all of them too; an all-to-all needs the latter.
    """
    gather, all_to_all = (
        float(EXPERT_EXCHANGES.index(kind)) for kind in (ExpertExchange.GATHER, ExpertExchange.ALL_TO_ALL)
    )
    found: list[tuple[float, float, float, float, float]] = []
    for tp in TP_DEGREES:
        for pp in pp_degrees(model, StageKind.GENERATION):
            found += [(tp, pp, 1, ep, gather) for ep in _expert_degrees(model, tp)]
    if not model.is_moe:
        return found
    for tp in (degree for degree in TP_DEGREES if degree <= node.scale_up_domain_gpus):
        for groups in (degree for degree in ATTENTION_DP_DEGREES if degree * tp <= MAX_WIDE_ENGINE_GPUS):
            found += [(tp, 1, groups, ep, gather) for ep in _expert_degrees(model, tp, tp * groups)]
            found.append((tp, 1, groups, tp * groups, all_to_all))
    return found


def _expert_degrees(model: Model, *degrees: int) -> tuple[int, ...]:
    """1 and, of a model with experts, each of the degrees above it."""
    return tuple(sorted({1, *degrees})) if model.is_moe else (1,)


def describe() -> str:
    """The published space in words, for `rlplan plan --describe-space`."""

    def listed(values: tuple[object, ...]) -> str:
        return ", ".join(str(value) for value in values)

    lines = [
        "Every worker (rollout engine, actor trainer, reference, critic trainer, reward model) is placed as a whole.",
        "",
        "Placement",
        "  device group sizes   halvings of a node, then every number of whole nodes; a worker may use fewer GPUs;"
        " below a node of 3, 5, 6, 7, ... GPUs: every number",
        "  groupings            any set of workers on the whole pool, any set partition of the others into disjoint"
        " groups, any pool per worker",
        "  split rollout        with two pools or more and without a framework: a second group of engines alone on a"
        " device group of another pool generates 1/16 to 15/16 of the responses",
        "  order of stages      every order that the dependencies allow; or fifo, or sequential",
        "",
        "Execution",
        "  synchronous          assessors may start while the rollout's tail runs, on other GPUs or on those that a"
        " gathered tail leaves free (inter-stage fusion); actor and critic updates may share a pipeline (intra-stage)",
        "  asynchronous         up to the permitted staleness, trainer and engines on different GPUs: whole batches, or"
        " streaming where partial rollouts are permitted",
        "",
        "Trainer (and forward-only workers, without vpp, recompute and optimizer)",
        f"  tp                   {listed(TP_DEGREES)} within one scale-up domain, sequence parallelism whenever tp > 1",
        f"  pp                   {listed(PP_DEGREES)} (powers of two, or divisors of the layer count)",
        f"  vpp                  {listed(VPP_DEGREES)}",
        f"  cp                   {listed(CP_DEGREES)}; ring with ZeRO-0/1, Ulysses with ZeRO-2/3",
        f"  ep, etp              {listed(EP_DEGREES)}; etp 1 or tp, with ZeRO-2/3 one of the two; what shards the rest"
        " shards each expert over the ranks that hold it",
        f"  sharding             {listed(tuple(s.value for s in Sharding))}, and zero3 within a node (HSDP)",
        f"  micro-batch tokens   {listed(BUDGET_MULTIPLES)} x longest sequence, up to {MAX_BUDGET_TOKENS} per GPU",
        f"  log-prob tokens      {listed(INFERENCE_MULTIPLES)} x micro-batch tokens",
        f"  recompute            {listed(tuple(r.value for r in Recompute))}; partial: full recomputation of the first"
        " third or two thirds of the layers of each (virtual) pipeline stage, with ddp and zero1",
        f"  offload              {listed(tuple(o.value for o in Offload))}",
        "",
        "Rollout engine",
        f"  tp                   {listed(TP_DEGREES)}, across nodes too",
        f"  pp                   {listed(ROLLOUT_PP_DEGREES)}",
        "  attention dp         1, and for MoE models with pp 1 and tp within a scale-up domain "
        f"{listed(ATTENTION_DP_DEGREES)}, up to {MAX_WIDE_ENGINE_GPUS} GPUs per engine",
        "  ep                   1, tp or tp x attention dp",
        "  token exchange       gather and scatter, or with ep = tp x attention dp also all-to-all",
        f"  engine fraction      {listed(ENGINE_FRACTIONS)}, at most 1 - memory margin",
        f"  max sequences        {listed(MAX_NUM_SEQS)} per engine, or per attention group",
        f"  while others run     {listed(tuple(i.value for i in EngineIdle))}",
        "",
        "Not in the space",
    ]
    lines += [f"  {what}: {why}" for what, why in EXCLUDED]
    return "\n".join(lines)
