"""Megatron-LM's flags for routed experts, as slime's own model files have them (scripts/models of its repository)."""

from __future__ import annotations

from planner.adapters.flags import FlagValue
from planner.domain.model import Model
from planner.files.config_fields import MAX_LAYERS, MAX_SIZE, ConfigFields

Pairs = tuple[tuple[str, FlagValue | bool | tuple[FlagValue, ...]], ...]
"""Names of flags and their values, as `planner.adapters.flags.flags` takes them."""


def softmax_experts(fields: ConfigFields, model: Model, *, normalised: bool, has_gate: bool = False) -> Pairs:
    """Routers that score by a softmax, with one gated shared expert where the family has it.

    `normalised` is the family's default of `norm_topk_prob`: whether the weights of the chosen experts add up to one.
    """
    step = fields.count("decoder_sparse_step", limit=MAX_LAYERS, default=1)
    dense = frozenset(fields.counts("mlp_only_layers", limit=MAX_LAYERS))
    routed = tuple(i not in dense and (i + 1) % step == 0 for i in range(model.num_layers))
    shared: Pairs = ()
    if has_gate:
        shared = (
            ("moe-shared-expert-intermediate-size", fields.size("shared_expert_intermediate_size")),
            ("moe-shared-expert-gate", True),
        )
    return (
        *experts(routed, fields.size("num_experts"), fields.size("moe_intermediate_size"), fields),
        *shared,
        ("moe-router-score-function", "softmax"),
        # Without the flag the weights of the chosen experts add up to one.
        ("moe-router-pre-softmax", not fields.flag("norm_topk_prob", default=normalised)),
        ("moe-router-load-balancing-type", "none"),
    )


def sigmoid_experts(fields: ConfigFields, model: Model) -> Pairs:
    """Routers that score by a sigmoid with a correction per expert, after some dense layers."""
    fields.must_be("scoring_func", "sigmoid")
    fields.must_be("topk_method", "noaux_tc")
    fields.must_be("moe_layer_freq", 1)
    first = fields.count("first_k_dense_replace", limit=MAX_LAYERS, default=0, minimum=0)
    routed = tuple(i >= first for i in range(model.num_layers))
    width = fields.size("moe_intermediate_size") * fields.optional_size("n_shared_experts")
    shared: Pairs = (("moe-shared-expert-intermediate-size", width),) if width else ()
    return (
        *experts(routed, fields.size("n_routed_experts"), fields.size("moe_intermediate_size"), fields),
        *shared,
        *_corrected(),
        ("moe-router-load-balancing-type", "seq_aux_loss"),
        ("moe-router-topk-scaling-factor", fields.number("routed_scaling_factor", limit=1e3)),
        ("moe-router-num-groups", fields.size("n_group", default=1)),
        ("moe-router-group-topk", fields.size("topk_group", default=1)),
    )


def minimax_experts(fields: ConfigFields, model: Model) -> Pairs:
    """A sigmoid with a correction, experts in every layer, none of them shared."""
    fields.must_be("scoring_func", "sigmoid")
    fields.must_be("shared_intermediate_size", 0)
    width = fields.size("intermediate_size")
    return (
        *experts((True,) * model.num_layers, fields.size("num_local_experts"), width, fields),
        *_corrected(),
        ("moe-router-load-balancing-type", "none"),
    )


def _corrected() -> Pairs:
    return (
        ("moe-router-score-function", "sigmoid"),
        ("moe-router-pre-softmax", True),
        ("moe-router-enable-expert-bias", True),
        ("moe-router-bias-update-rate", 0),
    )


def experts(routed: tuple[bool, ...], num_experts: int, width: int, fields: ConfigFields) -> Pairs:
    """What all routers have; `routed` says which layers have experts, `width` is the inner size of one."""
    return (
        ("num-experts", num_experts),
        ("moe-layer-freq", _pattern(routed)),
        ("moe-ffn-hidden-size", width),
        ("moe-router-topk", fields.count("num_experts_per_tok", limit=MAX_SIZE)),
        ("moe-router-dtype", "fp32"),
        ("moe-aux-loss-coeff", 0.0),
        ("moe-token-dispatcher-type", "alltoall"),
        ("moe-grouped-gemm", True),
        ("moe-permute-fusion", True),
    )


def _pattern(routed: tuple[bool, ...]) -> str:
    """Which layers have experts, as Megatron's expression: `[0]*3+[1]*58`."""
    runs: list[tuple[int, int]] = []
    for flag in routed:
        if runs and runs[-1][0] == flag:
            runs[-1] = (int(flag), runs[-1][1] + 1)
        else:
            runs.append((int(flag), 1))
    return "+".join(f"[{flag}]*{count}" for flag, count in runs)
