"""Decoders of equal softmax-attention layers, dense or with experts: families differ by the table below.

Biases, norms and defaults as in the modelling code of Hugging Face transformers 5.23; InternLM2 as in its own
repository, `gpt_megatron` as Megatron-LM builds GPT-3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.domain.model import Mlp
from planner.errors import InvalidInputError
from planner.files.config_fields import MAX_LAYERS, MAX_POSITIONS, ConfigFields
from planner.files.layer_parts import Gqa, Moe, dense_mlp, gqa, moe_mlp
from planner.files.stack import Layer, Stack, mtp_params


class QkNorm(StrEnum):
    """Norms of queries and keys."""

    NONE = "none"
    PER_HEAD = "one scale per element of a head"
    FULL = "one scale per element of all heads"


class Windows(StrEnum):
    """Which layers see a sliding window when `layer_types` does not say it."""

    NONE = "none"
    ALL = "all, where sliding_window is given"
    FROM_LAYER = "layers from max_window_layers on, where use_sliding_window is true"
    ODD = "the first and every second layer"
    ALL_BUT_EVERY_FOURTH = "all but every fourth layer"
    ALL_BUT_EVERY_SIXTH = "all but every sixth layer"


class Experts(StrEnum):
    """How a family writes its experts."""

    NONE = "none"
    QWEN = "num_experts, moe_intermediate_size"
    QWEN_SHARED = "the same with a gated shared expert"
    MIXTRAL = "num_local_experts of intermediate_size"
    GPT_OSS = "the same with biases"
    MINIMAX = "the same with routing biases"
    GLM = "n_routed_experts after first_k_dense_replace layers"
    HY = "num_experts and num_shared_experts after the first layer"
    LLAMA4 = "num_local_experts every interleave_moe_layer_step layers, one shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets a family apart from Llama."""

    qkv_bias_default: bool = False
    has_output_bias: bool = True
    """`attention_bias` adds a bias to the output projection as well."""
    bias_key: str = "attention_bias"
    kv_heads_default_to_heads: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    windows: Windows = Windows.NONE
    experts: Experts = Experts.NONE
    is_gated: bool = True
    norms_per_layer: int = 2
    norm_has_bias: bool = False
    has_sinks: bool = False
    has_mlp_bias: bool = False
    has_learned_positions: bool = False


_LLAMA = Family(kv_heads_default_to_heads=True)
_QWEN3 = Family(qk_norm=QkNorm.PER_HEAD, windows=Windows.FROM_LAYER)
_GLM4 = Family(qkv_bias_default=True, has_output_bias=False, norms_per_layer=4)
_QWEN3_MOE = Family(qk_norm=QkNorm.PER_HEAD, windows=Windows.FROM_LAYER, experts=Experts.QWEN)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(windows=Windows.ALL),
    "mixtral": Family(windows=Windows.ALL, experts=Experts.MIXTRAL),
    "phi3": Family(kv_heads_default_to_heads=True, windows=Windows.ALL),
    "internlm2": Family(kv_heads_default_to_heads=True, bias_key="bias"),
    "nemotron": Family(is_gated=False, norm_has_bias=True),
    "qwen2": Family(qkv_bias_default=True, has_output_bias=False, windows=Windows.FROM_LAYER),
    "mimo": Family(qkv_bias_default=True, has_output_bias=False, windows=Windows.FROM_LAYER),
    "qwen2_moe": Family(
        qkv_bias_default=True,
        has_output_bias=False,
        bias_key="qkv_bias",
        windows=Windows.FROM_LAYER,
        experts=Experts.QWEN_SHARED,
    ),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "gemma2": Family(windows=Windows.ODD, norms_per_layer=4),
    "gemma3_text": Family(qk_norm=QkNorm.PER_HEAD, windows=Windows.ALL_BUT_EVERY_SIXTH, norms_per_layer=4),
    "olmo2": Family(qk_norm=QkNorm.FULL),
    "olmo3": Family(qk_norm=QkNorm.FULL, windows=Windows.ALL_BUT_EVERY_FOURTH),
    "gpt_oss": Family(windows=Windows.ODD, experts=Experts.GPT_OSS, has_sinks=True),
    "glm4_moe": Family(has_output_bias=False, qk_norm=QkNorm.PER_HEAD, experts=Experts.GLM),
    "glm4": _GLM4,
    "glm4v_text": _GLM4,
    "seed_oss": Family(qkv_bias_default=True, has_output_bias=False),
    "hy_v3": Family(qk_norm=QkNorm.PER_HEAD, experts=Experts.HY),
    "minimax_m2": Family(qk_norm=QkNorm.FULL, experts=Experts.MINIMAX),
    "llama4_text": Family(windows=Windows.ALL_BUT_EVERY_FOURTH, experts=Experts.LLAMA4),
    "gpt_megatron": Family(
        qkv_bias_default=True,
        kv_heads_default_to_heads=True,
        is_gated=False,
        norm_has_bias=True,
        has_mlp_bias=True,
        has_learned_positions=True,
    ),
}

_FULL_LAYER = "full_attention"
_WINDOW_LAYERS = ("sliding_attention", "chunked_attention")


def build(fields: ConfigFields, name: str) -> Stack:
    """The stack of one of FAMILIES."""
    family = FAMILIES[name]
    num_layers, hidden = fields.num_layers(), fields.size("hidden_size")
    norm_size = hidden * (2 if family.norm_has_bias else 1)
    # A norm after a mixer keeps one more copy of its input.
    replicated = hidden * (2 + (family.norms_per_layer - 2) // 2)
    shape = read_gqa(fields, family)
    mlps = _mlps(fields, family, num_layers, hidden, replicated)
    layers = tuple(
        Layer(
            attention=gqa(shape, window=window, replicated=replicated),
            mlp=mlp,
            norm_params=family.norms_per_layer * norm_size,
        )
        for window, mlp in zip(_windows(fields, family, num_layers), mlps, strict=True)
    )
    positions = 0
    if family.has_learned_positions:
        positions = fields.count("max_position_embeddings", limit=MAX_POSITIONS) * hidden
    return Stack(
        layers=layers,
        extra_params=norm_size + positions,
        mtp_params=mtp_params(layers[-1:], hidden=hidden, num_modules=_num_mtp_modules(fields)),
    )


def read_gqa(fields: ConfigFields, family: Family, *, is_gated: bool = False) -> Gqa:
    """Heads, widths, biases and norms of softmax attention."""
    hidden, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    default = num_heads if family.kv_heads_default_to_heads else None
    num_kv_heads = fields.size("num_key_value_heads", default=default)
    fields.check_divides("num_key_value_heads", num_kv_heads, "num_attention_heads", num_heads)
    if not fields.has("head_dim"):
        fields.check_divides("num_attention_heads", num_heads, "hidden_size", hidden)
    head_dim = fields.size("head_dim", default=hidden // num_heads)
    query, kv = num_heads * head_dim, num_kv_heads * head_dim
    extra = 0
    if fields.flag(family.bias_key, default=family.qkv_bias_default):
        extra += query + 2 * kv + (hidden if family.has_output_bias else 0)
    # The presence of norms is a constant in most families and a switch in some.
    if fields.flag("use_qk_norm", default=family.experts is not Experts.GLM):
        extra += {QkNorm.NONE: 0, QkNorm.PER_HEAD: 2 * head_dim, QkNorm.FULL: query + kv}[family.qk_norm]
    fields.must_be("qk_norm_type", "per_layer")
    if family.qk_norm is not QkNorm.NONE:
        fields.must_be("qk_norm", True)
    return Gqa(
        hidden=hidden,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        is_gated=is_gated,
        extra_params=extra + (num_heads if family.has_sinks else 0),
    )


def _windows(fields: ConfigFields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """Visible tokens of each layer; None is the whole context."""
    if family.windows is Windows.NONE:
        return (None,) * num_layers
    key = "attention_chunk_size" if family.experts is Experts.LLAMA4 else "sliding_window"
    is_on = fields.flag("use_sliding_window", default=family.windows is not Windows.FROM_LAYER)
    # Released configs keep the size of a window that is switched off.
    window = fields.optional_size(key) * is_on
    first = fields.count("max_window_layers", limit=MAX_LAYERS, default=0, minimum=0)
    period = fields.count("sliding_window_pattern", limit=MAX_LAYERS, default=_period(family))
    if family.experts is Experts.LLAMA4:
        # Chunks are priced like windows: a token sees half a chunk on average, so this is an upper bound.
        period = fields.count("no_rope_layer_interval", limit=MAX_LAYERS, default=period)
    with_rope = _layer_flags(fields, "no_rope_layers", num_layers)
    types = layer_types(fields, num_layers, (_FULL_LAYER, *_WINDOW_LAYERS))
    if types:
        is_windowed = [layer_type != _FULL_LAYER for layer_type in types]
    elif with_rope:
        # Llama 4: layers without rotary positions (0) see the whole context.
        is_windowed = list(with_rope)
    elif family.windows is Windows.FROM_LAYER:
        is_windowed = [i >= first for i in range(num_layers)]
    elif family.windows is Windows.ALL:
        is_windowed = [True] * num_layers
    else:
        is_windowed = [(i + 1) % period != 0 for i in range(num_layers)]
    require_window(fields, bool(types) and any(is_windowed), window, key)
    return tuple(window if flag and window else None for flag in is_windowed)


def require_window(fields: ConfigFields, is_needed: bool, window: int, key: str) -> None:
    """Raises InvalidInputError where layers are windowed and nobody says how far they see."""
    if is_needed and not window:
        raise InvalidInputError(f"layer_types has windowed layers, but {key!r} is not given", where=fields.where)


def _layer_flags(fields: ConfigFields, key: str, num_layers: int) -> tuple[bool, ...]:
    """A list of 0 and 1, one per layer; empty when it is not given."""
    flags = fields.counts(key, limit=1)
    if flags and len(flags) != num_layers:
        raise fields.wrong(key, f"{len(flags)} entries", f"num_hidden_layers = {num_layers}")
    return tuple(bool(flag) for flag in flags)


def _period(family: Family) -> int:
    return {Windows.ODD: 2, Windows.ALL_BUT_EVERY_FOURTH: 4, Windows.ALL_BUT_EVERY_SIXTH: 6}.get(family.windows, 1)


def layer_types(
    fields: ConfigFields, num_layers: int, accepted: tuple[str, ...], *, key: str = "layer_types"
) -> tuple[str, ...]:
    """`layer_types`, checked against the number of layers; empty when it is not given."""
    types = fields.texts(key)
    if types and len(types) != num_layers:
        raise fields.wrong(key, f"{len(types)} entries", f"num_hidden_layers = {num_layers}")
    for layer_type in types:
        if layer_type not in accepted:
            raise fields.wrong(key, layer_type, ", ".join(accepted))
    return types


def _mlps(fields: ConfigFields, family: Family, num_layers: int, hidden: int, replicated: int) -> tuple[Mlp, ...]:
    """The channel mixer of each layer."""
    if family.experts is Experts.NONE:
        return (_dense(fields, family, hidden, replicated),) * num_layers
    if family.experts in (Experts.QWEN, Experts.QWEN_SHARED):
        return qwen_mlps(fields, num_layers, hidden, has_shared=family.experts is Experts.QWEN_SHARED)
    if family.experts is Experts.GLM:
        return deepseek_mlps(fields, num_layers, hidden, has_score_bias=True)
    if family.experts is Experts.HY:
        names = ExpertKeys(routed="num_experts", shared="num_shared_experts", num_dense_default=1)
        return deepseek_mlps(fields, num_layers, hidden, has_score_bias=True, names=names)
    if family.experts is Experts.LLAMA4:
        return _llama4_mlps(fields, num_layers, hidden)
    return (local_moe(fields, family.experts, hidden),) * num_layers


def _dense(fields: ConfigFields, family: Family, hidden: int, replicated: int) -> Mlp:
    width = fields.size("intermediate_size")
    bias = fields.flag("mlp_bias", default=family.has_mlp_bias)
    widths = (2 if family.is_gated else 1) * width + hidden
    return dense_mlp(
        hidden=hidden,
        width=width,
        is_gated=family.is_gated,
        other_params=widths if bias else 0,
        replicated=replicated,
    )


def read_active(fields: ConfigFields, num_experts: int) -> int:
    """`num_experts_per_tok`, at most the number of experts."""
    return fields.count("num_experts_per_tok", limit=num_experts)


def qwen_mlps(fields: ConfigFields, num_layers: int, hidden: int, *, has_shared: bool) -> tuple[Mlp, ...]:
    """Qwen MoE: dense on `mlp_only_layers` and off the `decoder_sparse_step`, routed elsewhere."""
    num_experts = fields.size("num_experts")
    shared = fields.optional_size("shared_expert_intermediate_size")
    if shared and not has_shared:
        raise fields.wrong("shared_expert_intermediate_size", shared, "0 for this model_type")
    moe = moe_mlp(
        Moe(
            hidden=hidden,
            num_experts=num_experts,
            num_active=read_active(fields, num_experts),
            width=fields.size("moe_intermediate_size"),
            shared_width=shared,
            has_shared_gate=bool(shared),
        )
    )
    step = fields.count("decoder_sparse_step", limit=MAX_LAYERS, default=1)
    dense_layers = set(fields.counts("mlp_only_layers", limit=MAX_LAYERS))
    is_dense = [i in dense_layers or (i + 1) % step != 0 for i in range(num_layers)]
    fields.skip(["intermediate_size"])
    if not any(is_dense):
        return (moe,) * num_layers
    dense = dense_mlp(hidden=hidden, width=fields.size("intermediate_size"), is_gated=True, replicated=2 * hidden)
    return tuple(dense if flag else moe for flag in is_dense)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKeys:
    """Keys of experts behind dense layers, and how many layers are dense when the config does not say."""

    routed: str = "n_routed_experts"
    shared: str = "n_shared_experts"
    num_dense_default: int = 0


_DEEPSEEK_KEYS = ExpertKeys()


def deepseek_mlps(
    fields: ConfigFields, num_layers: int, hidden: int, *, has_score_bias: bool, names: ExpertKeys = _DEEPSEEK_KEYS
) -> tuple[Mlp, ...]:
    """First layers dense, then routed experts with shared ones (DeepSeek-V2/V3, Kimi-K2, GLM-4.5, Hy3)."""
    num_experts, width = fields.size(names.routed), fields.size("moe_intermediate_size")
    moe = moe_mlp(
        Moe(
            hidden=hidden,
            num_experts=num_experts,
            num_active=read_active(fields, num_experts),
            width=width,
            shared_width=width * fields.optional_size(names.shared),
            score_bias_params=num_experts if has_score_bias else 0,
        )
    )
    dense = dense_mlp(hidden=hidden, width=fields.size("intermediate_size"), is_gated=True, replicated=2 * hidden)
    return tuple(moe if flag else dense for flag in _routed_layers(fields, num_layers, names.num_dense_default))


def _routed_layers(fields: ConfigFields, num_layers: int, num_dense_default: int) -> tuple[bool, ...]:
    """Which layers are routed: by name, else all behind the first dense ones."""
    default = min(num_dense_default, num_layers)
    num_dense = fields.count("first_k_dense_replace", limit=num_layers, default=default, minimum=0)
    step = fields.count("moe_layer_freq", limit=MAX_LAYERS, default=1)
    types = layer_types(fields, num_layers, ("dense", "sparse"), key="mlp_layer_types")
    if types:
        return tuple(kind == "sparse" for kind in types)
    return tuple(i >= num_dense and i % step == 0 for i in range(num_layers))


def local_moe(fields: ConfigFields, experts: Experts, hidden: int) -> Mlp:
    """Every layer routed, experts as wide as `intermediate_size` (Mixtral, gpt-oss, MiniMax)."""
    num_experts, width = fields.size("num_local_experts"), fields.size("intermediate_size")
    shared = fields.optional_size("shared_intermediate_size")
    if shared:
        raise fields.wrong("shared_intermediate_size", shared, "0")
    if experts is Experts.MINIMAX and not set(fields.counts("attn_type_list", limit=1)) <= {1}:
        raise fields.wrong("attn_type_list", fields.value("attn_type_list"), "softmax attention (1) only")
    has_score_bias = experts is Experts.MINIMAX and fields.flag("use_routing_bias", default=True)
    is_gpt_oss = experts is Experts.GPT_OSS
    if is_gpt_oss:
        fields.skip(["experts_per_token"])
    return moe_mlp(
        Moe(
            hidden=hidden,
            num_experts=num_experts,
            num_active=read_active(fields, num_experts),
            width=width,
            score_bias_params=num_experts if has_score_bias else 0,
            router_bias_params=num_experts if is_gpt_oss else 0,
            expert_bias_params=2 * width + hidden if is_gpt_oss else 0,
        )
    )


def _llama4_mlps(fields: ConfigFields, num_layers: int, hidden: int) -> tuple[Mlp, ...]:
    num_experts, width = fields.size("num_local_experts"), fields.size("intermediate_size")
    step = fields.count("interleave_moe_layer_step", limit=MAX_LAYERS)
    moe = moe_mlp(
        Moe(
            hidden=hidden,
            num_experts=num_experts,
            num_active=read_active(fields, num_experts),
            width=width,
            shared_width=width,
        )
    )
    dense = dense_mlp(hidden=hidden, width=fields.size("intermediate_size_mlp"), is_gated=True, replicated=2 * hidden)
    routed = set(fields.counts("moe_layers", limit=num_layers - 1)) or set(range(step - 1, num_layers, step))
    return tuple(moe if i in routed else dense for i in range(num_layers))


def _num_mtp_modules(fields: ConfigFields) -> int:
    """Multi-token-prediction modules under the names that families use."""
    if fields.has("num_nextn_predict_layers"):
        return fields.optional_size("num_nextn_predict_layers")
    layers = fields.count("mtp_transformer_layers", limit=MAX_LAYERS, default=1, minimum=0)
    modules = fields.optional_size("num_mtp_modules") * layers
    return modules if fields.flag("use_mtp", default=True) else 0
