"""Families beyond equal softmax-attention layers: MLA, gated delta net, lightning attention, Mamba-2, NAS blocks."""

from __future__ import annotations

from planner.domain.model import Attention, Mlp
from planner.files.config_fields import MAX_LAYERS, ConfigFields
from planner.files.decoder_families import (
    ExpertKeys,
    Experts,
    Family,
    QkNorm,
    deepseek_mlps,
    layer_types,
    local_moe,
    qwen_mlps,
    read_active,
    read_gqa,
)
from planner.files.fields import Fields
from planner.files.layer_parts import (
    FP32_ELEMENTS,
    Gqa,
    Mla,
    Moe,
    dense_mlp,
    gated_delta_net,
    gqa,
    lightning,
    mamba2,
    mla,
    moe_mlp,
    without_attention,
    without_mlp,
)
from planner.files.stack import Layer, Stack, mtp_params

MLA_TYPES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm4_moe_lite")
_INDEXED_TYPES = ("deepseek_v32", "glm_moe_dsa")
DELTA_TYPES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_DELTA_FAMILY = Family(qk_norm=QkNorm.PER_HEAD)
_PLAIN_FAMILY = Family()


def build_mla(fields: ConfigFields, name: str) -> Stack:
    """DeepSeek-V2/V3/V3.2, Kimi-K2, Moonlight, GLM-5, GLM-4.7-Flash."""
    num_layers, hidden = fields.num_layers(), fields.size("hidden_size")
    attention = mla(_read_mla(fields, name))
    fields.skip(["num_key_value_heads", "head_dim", "qk_head_dim"])
    # The router's correction bias exists exactly with this way of choosing experts.
    has_bias = (fields.optional_text("topk_method") or _default_topk_method(name)) == "noaux_tc"
    names = ExpertKeys(num_dense_default=1 if name == "glm4_moe_lite" else 0)
    mlps = deepseek_mlps(fields, num_layers, hidden, has_score_bias=has_bias, names=names)
    layers = tuple(Layer(attention=attention, mlp=mlp, norm_params=2 * hidden) for mlp in mlps)
    num_mtp = fields.optional_size("num_nextn_predict_layers")
    return Stack(
        layers=layers, extra_params=hidden, mtp_params=mtp_params(layers[-1:], hidden=hidden, num_modules=num_mtp)
    )


def _default_topk_method(name: str) -> str:
    return "greedy" if name == "deepseek_v2" else "noaux_tc"


def _read_mla(fields: ConfigFields, name: str) -> Mla:
    hidden, kv_rank, rope = fields.size("hidden_size"), fields.size("kv_lora_rank"), fields.size("qk_rope_head_dim")
    # The config class of DeepSeek-V2 has a default rank, so a missing key is not the same as null.
    if "q_lora_rank" not in fields.names():
        fields.raw("q_lora_rank")
    query_rank = fields.optional_size("q_lora_rank")
    bias = (query_rank + kv_rank + rope + hidden) if fields.flag("attention_bias", default=False) else 0
    is_indexed = name in _INDEXED_TYPES
    return Mla(
        hidden=hidden,
        num_heads=fields.size("num_attention_heads"),
        nope_dim=fields.size("qk_nope_head_dim"),
        rope_dim=rope,
        value_dim=fields.size("v_head_dim"),
        kv_rank=kv_rank,
        query_rank=query_rank,
        bias_params=bias,
        index_heads=fields.size("index_n_heads") if is_indexed else 0,
        index_dim=fields.size("index_head_dim") if is_indexed else 0,
        index_topk=fields.size("index_topk") if is_indexed else 0,
    )


def build_gated_delta(fields: ConfigFields, name: str) -> Stack:
    """Qwen3-Next and Qwen3.5: gated delta nets with gated softmax attention in between."""
    num_layers, hidden = fields.num_layers(), fields.size("hidden_size")
    fields.must_be("attn_output_gate", True)
    fields.must_be("use_sliding_window", False)
    fields.must_be("attention_bias", False)
    full = gqa(read_gqa(fields, _DELTA_FAMILY, is_gated=True), window=None, replicated=2 * hidden)
    linear = _read_delta(fields, hidden)
    is_full = _full_layers(fields, num_layers)
    if fields.has("num_experts"):
        mlps = qwen_mlps(fields, num_layers, hidden, has_shared=True)
    else:
        dense = dense_mlp(hidden=hidden, width=fields.size("intermediate_size"), is_gated=True, replicated=2 * hidden)
        mlps = (dense,) * num_layers
    layers = tuple(
        Layer(attention=full if flag else linear, mlp=mlp, norm_params=2 * hidden)
        for flag, mlp in zip(is_full, mlps, strict=True)
    )
    module = Layer(attention=full, mlp=mlps[-1], norm_params=2 * hidden)
    num_mtp = fields.optional_size("mtp_num_hidden_layers")
    return Stack(
        layers=layers, extra_params=hidden, mtp_params=mtp_params((module,), hidden=hidden, num_modules=num_mtp)
    )


def _full_layers(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    """Which layers have softmax attention: by name, else every `full_attention_interval`-th."""
    types = layer_types(fields, num_layers, ("full_attention", "linear_attention"))
    interval = fields.count("full_attention_interval", limit=MAX_LAYERS, default=4)
    if types:
        return tuple(layer_type == "full_attention" for layer_type in types)
    return tuple((i + 1) % interval == 0 for i in range(num_layers))


def _read_delta(fields: ConfigFields, hidden: int) -> Attention:
    key_heads, value_heads = fields.size("linear_num_key_heads"), fields.size("linear_num_value_heads")
    fields.check_divides("linear_num_key_heads", key_heads, "linear_num_value_heads", value_heads)
    return gated_delta_net(
        hidden=hidden,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.size("linear_key_head_dim"),
        value_dim=fields.size("linear_value_head_dim"),
        conv=fields.size("linear_conv_kernel_dim"),
        state_elements=_state_elements(fields, "mamba_ssm_dtype"),
    )


def _state_elements(fields: ConfigFields, key: str) -> int:
    """16-bit elements per number of a recurrent state: fp32 where the config says so."""
    dtype = fields.optional_text(key)
    fields.must_be(key, "float32", "bfloat16", "float16", "auto")
    return FP32_ELEMENTS if dtype == "float32" else 1


def build_minimax_m1(fields: ConfigFields, name: str) -> Stack:
    """MiniMax-M1 and MiniMax-Text-01: lightning attention, every eighth layer softmax attention."""
    num_layers, hidden = fields.num_layers(), fields.size("hidden_size")
    shape = read_gqa(fields, _PLAIN_FAMILY)
    full = gqa(shape, window=None, replicated=2 * hidden)
    linear = lightning(hidden=hidden, num_heads=shape.num_heads, head_dim=shape.head_dim)
    kinds = fields.counts("attn_type_list", limit=1)
    if len(kinds) != num_layers:
        raise fields.wrong("attn_type_list", kinds, f"{num_layers} values, 0 (lightning) or 1 (softmax)")
    mlp = local_moe(fields, Experts.MIXTRAL, hidden)
    layers = tuple(Layer(attention=full if kind == 1 else linear, mlp=mlp, norm_params=2 * hidden) for kind in kinds)
    return Stack(layers=layers, extra_params=hidden)


_NEMOTRON_BLOCKS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}


def build_nemotron_h(fields: ConfigFields, name: str) -> Stack:
    """Nemotron-H and Nemotron-3: each layer is one mixer (M, *, E or -) behind one norm."""
    hidden = fields.size("hidden_size")
    for key in ("use_bias", "mamba_proj_bias", "mlp_bias", "attention_bias"):
        fields.must_be(key, False)
    fields.must_be("sliding_window", 0)
    # A stack may have none of the blocks that these describe.
    fields.skip(["expand", "attention_head_dim", "intermediate_size", "num_nextn_predict_layers"])
    fields.skip(["num_attention_heads", "num_key_value_heads", "head_dim"])
    pattern = _pattern(fields)
    blocks = {symbol: _nemotron_block(fields, symbol, hidden) for symbol in sorted(set(pattern))}
    # The module's blocks need not appear in the stack itself.
    module = _letters(fields, "mtp_layers_block_type") or fields.optional_text("mtp_hybrid_override_pattern") or "*E"
    if len(module) > MAX_LAYERS:
        raise fields.wrong("mtp_hybrid_override_pattern", module, f"at most {MAX_LAYERS} letters")
    num_mtp = fields.optional_size("num_nextn_predict_layers")
    mtp = tuple(blocks.get(s) or _nemotron_block(fields, s, hidden) for s in module) if num_mtp else ()
    return Stack(
        layers=tuple(blocks[symbol] for symbol in pattern),
        extra_params=hidden,
        mtp_params=mtp_params(mtp, hidden=hidden, num_modules=num_mtp),
    )


def _letters(fields: ConfigFields, key: str) -> str:
    """A list of block names as the letters of a pattern; empty when it is not given."""
    names = fields.texts(key)
    for name in names:
        if name not in _NEMOTRON_BLOCKS:
            raise fields.wrong(key, name, ", ".join(_NEMOTRON_BLOCKS))
    return "".join(_NEMOTRON_BLOCKS[name] for name in names)


def _pattern(fields: ConfigFields) -> str:
    pattern = _letters(fields, "layers_block_type") or fields.text("hybrid_override_pattern")
    fields.skip(["hybrid_override_pattern", "mtp_hybrid_override_pattern"])
    num_layers = fields.count("num_hidden_layers", limit=MAX_LAYERS, default=min(len(pattern), MAX_LAYERS))
    if not set(pattern) <= set(_NEMOTRON_BLOCKS.values()) or len(pattern) != num_layers:
        raise fields.wrong("hybrid_override_pattern", pattern, f"{num_layers} letters of M, *, E and -")
    return pattern


def _nemotron_block(fields: ConfigFields, symbol: str, hidden: int) -> Layer:
    attention, mlp = without_attention(), without_mlp()
    if symbol == "M":
        attention = _read_mamba2(fields, hidden)
    elif symbol == "*":
        attention = gqa(read_gqa(fields, _PLAIN_FAMILY), window=None, replicated=2 * hidden)
    elif symbol == "-":
        width = fields.size("intermediate_size")
        mlp = dense_mlp(hidden=hidden, width=width, is_gated=False, replicated=2 * hidden)
    elif symbol == "E":
        mlp = _nemotron_moe(fields, hidden)
    else:
        raise fields.wrong("mtp_hybrid_override_pattern", symbol, "letters of M, *, E and -")
    return Layer(attention=attention, mlp=mlp, norm_params=hidden)


def _read_mamba2(fields: ConfigFields, hidden: int) -> Attention:
    num_heads, groups = fields.size("mamba_num_heads"), fields.size("n_groups")
    fields.check_divides("n_groups", groups, "mamba_num_heads", num_heads)
    return mamba2(
        hidden=hidden,
        num_heads=num_heads,
        head_dim=fields.size("mamba_head_dim"),
        groups=groups,
        state_size=fields.size("ssm_state_size"),
        conv=fields.size("conv_kernel"),
        has_conv_bias=fields.flag("use_conv_bias", default=True),
        state_elements=_state_elements(fields, "mamba_ssm_cache_dtype"),
    )


def _nemotron_moe(fields: ConfigFields, hidden: int) -> Mlp:
    num_experts = fields.size("n_routed_experts")
    shared = fields.optional_size("n_shared_experts")
    shared_width = fields.size("moe_shared_expert_intermediate_size") if shared else 0
    return moe_mlp(
        Moe(
            hidden=hidden,
            num_experts=num_experts,
            num_active=read_active(fields, num_experts),
            width=fields.size("moe_intermediate_size"),
            is_gated=False,
            shared_width=shared * shared_width,
            score_bias_params=num_experts,
            latent=fields.optional_size("moe_latent_size"),
        )
    )


def build_nemotron_nas(fields: ConfigFields, name: str) -> Stack:
    """Llama-Nemotron found by architecture search: every block has its own attention and MLP, or none."""
    num_layers, hidden = fields.num_layers(), fields.size("hidden_size")
    num_heads = fields.size("num_attention_heads")
    fields.check_divides("num_attention_heads", num_heads, "hidden_size", hidden)
    fields.must_be("attention_bias", False)
    fields.must_be("mlp_bias", False)
    fields.skip(["num_key_value_heads", "intermediate_size"])
    blocks = fields.sections("block_configs")
    if len(blocks) != num_layers:
        raise fields.wrong("block_configs", f"{len(blocks)} blocks", f"num_hidden_layers = {num_layers}")
    return Stack(layers=tuple(_nas_block(block, hidden, num_heads) for block in blocks), extra_params=hidden)


def _nas_block(block: Fields, hidden: int, num_heads: int) -> Layer:
    attention, ffn = block.section("attention"), block.section("ffn")
    mixers = [_is_there(attention), _is_there(ffn)]
    layer = Layer(
        attention=_nas_attention(attention, hidden, num_heads),
        mlp=_nas_mlp(ffn, hidden),
        norm_params=sum(mixers) * hidden,
    )
    for section, known in ((attention, _NAS_ATTENTION_KEYS), (ffn, _NAS_FFN_KEYS)):
        # Released configs list every switch of the search, also those that are off.
        for key in section.names():
            if key not in known and section.value(key) not in (None, False, 0):
                raise section.wrong(key, section.value(key), "off")
    return layer


_NAS_ATTENTION_KEYS = ("n_heads_in_group", "no_op", "replace_with_linear")
_NAS_FFN_KEYS = ("ffn_mult", "no_op", "replace_with_linear", "hidden_act")


def _is_there(section: Fields) -> bool:
    return not section.flag("no_op", default=False)


def _nas_attention(section: Fields, hidden: int, num_heads: int) -> Attention:
    if not _is_there(section):
        return without_attention()
    if section.flag("replace_with_linear", default=False):
        return without_attention(linear_params=hidden * hidden, replicated=2 * hidden)
    group = section.count("n_heads_in_group", limit=num_heads)
    if num_heads % group:
        raise section.wrong("n_heads_in_group", group, f"a divisor of {num_heads}")
    shape = Gqa(hidden=hidden, num_heads=num_heads, num_kv_heads=num_heads // group, head_dim=hidden // num_heads)
    return gqa(shape, window=None, replicated=2 * hidden)


def _nas_mlp(section: Fields, hidden: int) -> Mlp:
    if not _is_there(section):
        return without_mlp()
    if section.flag("replace_with_linear", default=False):
        return without_mlp(linear_params=hidden * hidden, replicated=2 * hidden)
    # The width of a Llama MLP: two thirds of the multiple, rounded up to a multiple of 256.
    width = -(-int(2 * section.number("ffn_mult", limit=100) * hidden / 3) // 256) * 256
    return dense_mlp(hidden=hidden, width=width, is_gated=True, replicated=2 * hidden)
