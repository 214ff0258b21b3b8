"""Megatron-LM's flags beyond sizes, by family: attention, positions, layers of slime's own.

Sources: scripts/models and slime_plugins/models of slime's repository, megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.adapters.slime_experts import Pairs, minimax_experts, sigmoid_experts, softmax_experts
from planner.domain.model import Model
from planner.files.config_fields import MAX_POSITIONS, ConfigFields

_LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Megatron's --use-rope-scaling has built in (megatron/core/models/common/embeddings/rotary_pos_embedding.py)."""


def rope_number(fields: ConfigFields, key: str, *, limit: float) -> float:
    """A number about rotary positions, which newer files keep in `rope_parameters`."""
    if not fields.has(key) and fields.has("rope_parameters"):
        return fields.section("rope_parameters").number(key, limit=limit)
    return fields.number(key, limit=limit)


def _grouped(fields: ConfigFields, *, has_qk_norm: bool, qkv_bias_default: bool) -> Pairs:
    heads = fields.size("num_attention_heads")
    head_dim = fields.size("head_dim", default=fields.size("hidden_size") // heads)
    return (
        ("group-query-attention", True),
        ("num-query-groups", fields.size("num_key_value_heads", default=heads)),
        ("kv-channels", head_dim),
        ("qk-layernorm", has_qk_norm),
        ("add-qkv-bias", fields.flag("attention_bias", default=qkv_bias_default)),
    )


def _no_scaling(fields: ConfigFields) -> None:
    if fields.has("rope_scaling"):
        raise fields.wrong("rope_scaling", fields.value("rope_scaling"), "null for this family")
    if fields.has("rope_parameters"):
        kind = fields.section("rope_parameters").optional_text("rope_type")
        if kind not in ("", "default"):
            raise fields.wrong("rope_parameters", fields.value("rope_parameters"), "rope_type default for this family")


def _whole_context(fields: ConfigFields) -> None:
    fields.must_be("use_sliding_window", False)


def _part_rotary(fields: ConfigFields) -> Pairs:
    return (("rotary-percent", rope_number(fields, "partial_rotary_factor", limit=1.0)),)


def _llama(fields: ConfigFields, model: Model) -> Pairs:
    fields.must_be("attention_bias", False)
    return (*_grouped(fields, has_qk_norm=False, qkv_bias_default=False), *_llama3_scaling(fields))


def _llama3_scaling(fields: ConfigFields) -> Pairs:
    if not fields.has("rope_scaling"):
        return ()
    scaling = fields.section("rope_scaling")
    kind = scaling.optional_text("rope_type") or scaling.optional_text("type")
    fixed = all(scaling.number(key, limit=MAX_POSITIONS) == value for key, value in _LLAMA3_SCALING.items())
    if kind != "llama3" or not fixed:
        raise fields.wrong("rope_scaling", fields.value("rope_scaling"), f"null or llama3 with {_LLAMA3_SCALING}")
    return (("use-rope-scaling", True), ("rope-scaling-factor", scaling.number("factor", limit=1e6)))


def _qwen2(fields: ConfigFields, model: Model) -> Pairs:
    _no_scaling(fields)
    _whole_context(fields)
    return _grouped(fields, has_qk_norm=False, qkv_bias_default=True)


def _qwen3(fields: ConfigFields, model: Model) -> Pairs:
    _no_scaling(fields)
    _whole_context(fields)
    return _grouped(fields, has_qk_norm=True, qkv_bias_default=False)


def _qwen2_moe(fields: ConfigFields, model: Model) -> Pairs:
    return (*_qwen2(fields, model), *softmax_experts(fields, model, normalised=False, has_gate=True))


def _qwen3_moe(fields: ConfigFields, model: Model) -> Pairs:
    return (*_qwen3(fields, model), *softmax_experts(fields, model, normalised=False))


def _gated(spec: str) -> Pairs:
    """Layers of slime's own that put gated delta nets in the place of most attention; norms are one plus a weight."""
    return (
        ("spec", (f"slime_plugins.models.{spec}", f"get_{spec}_spec")),
        ("use-gated-attention", True),
        ("attention-output-gate", True),
        ("apply-layernorm-1p", True),
    )


def _qwen3_next(fields: ConfigFields, model: Model) -> Pairs:
    return (
        *_qwen3(fields, model),
        *_part_rotary(fields),
        *_gated("qwen3_next"),
        *softmax_experts(fields, model, normalised=True, has_gate=True),
    )


def _qwen3_5(fields: ConfigFields, model: Model) -> Pairs:
    fields.must_be("attn_output_gate", True)
    return (*_qwen3(fields, model), *_part_rotary(fields), *_gated("qwen3_5"))


def _qwen3_5_moe(fields: ConfigFields, model: Model) -> Pairs:
    return (*_qwen3_5(fields, model), *softmax_experts(fields, model, normalised=True, has_gate=True))


def _glm4(fields: ConfigFields, model: Model) -> Pairs:
    """Four norms per layer, and rotary positions over neighbouring pairs of half a head."""
    _no_scaling(fields)
    return (
        ("spec", ("slime_plugins.models.glm4", "get_glm_spec")),
        *_grouped(fields, has_qk_norm=False, qkv_bias_default=False),
        *_part_rotary(fields),
        ("rotary-interleaved", True),
        ("no-rope-fusion", True),
        ("post-self-attn-layernorm", True),
        ("post-mlp-layernorm", True),
    )


def _glm4_moe(fields: ConfigFields, model: Model) -> Pairs:
    _no_scaling(fields)
    return (
        *_grouped(fields, has_qk_norm=fields.flag("use_qk_norm", default=False), qkv_bias_default=False),
        *_part_rotary(fields),
        *sigmoid_experts(fields, model),
    )


def _minimax_m2(fields: ConfigFields, model: Model) -> Pairs:
    """Norms of queries and keys over all heads at once, in an attention of slime's own."""
    _no_scaling(fields)
    fields.must_be("use_qk_norm", True)
    fields.must_be("qk_norm_type", "per_layer")
    head_dim = fields.size("head_dim")
    return (
        ("spec", ("slime_plugins.models.minimax_m2", "get_minimax_m2_layer_spec")),
        *_grouped(fields, has_qk_norm=True, qkv_bias_default=False),
        ("rotary-percent", fields.size("rotary_dim", default=head_dim) / head_dim),
        ("no-rope-fusion", True),
        ("attention-softmax-in-fp32", True),
        *minimax_experts(fields, model),
    )


def _latent(fields: ConfigFields) -> Pairs:
    """Multi-head latent attention. Queries are not compressed where `q_lora_rank` is null."""
    rank: Pairs = (("q-lora-rank", fields.size("q_lora_rank")),) if fields.has("q_lora_rank") else ()
    nope = fields.size("qk_nope_head_dim")
    return (
        ("multi-latent-attention", True),
        *rank,
        ("kv-lora-rank", fields.size("kv_lora_rank")),
        ("qk-head-dim", nope),
        ("qk-pos-emb-head-dim", fields.size("qk_rope_head_dim")),
        ("v-head-dim", fields.size("v_head_dim")),
        ("kv-channels", nope),
        ("qk-layernorm", True),
    )


def _deepseek(fields: ConfigFields, model: Model) -> Pairs:
    return (*_latent(fields), ("no-rope-fusion", True), *_yarn(fields), *sigmoid_experts(fields, model))


def _glm_moe_dsa(fields: ConfigFields, model: Model) -> Pairs:
    """Latent attention to the tokens that an indexer chooses, which reads its own sizes from the checkpoint.

    Where some layers use the choice of an earlier one, no pipeline rank may begin with such a layer: refused.
    """
    _no_scaling(fields)
    fields.must_be("index_topk_freq", 1)
    return (
        ("spec", ("slime_plugins.models.glm5.glm5", "get_glm5_spec")),
        ("enable-experimental", True),
        ("allgather-cp", True),
        *_latent(fields),
        *sigmoid_experts(fields, model),
    )


def _yarn(fields: ConfigFields) -> Pairs:
    """Megatron scales latent attention's positions by YaRN always; a factor of 1 leaves them alone.

    It takes --max-position-embeddings for the context before scaling.
    """
    if not fields.has("rope_scaling"):
        return (("rotary-scaling-factor", 1.0), ("mscale", 1.0), ("mscale-all-dim", 1.0))
    scaling = fields.section("rope_scaling")
    kind = scaling.optional_text("rope_type") or scaling.optional_text("type")
    if kind != "yarn":
        raise fields.wrong("rope_scaling", fields.value("rope_scaling"), "null or yarn")
    return (
        ("rotary-scaling-factor", scaling.number("factor", limit=1e6)),
        ("mscale", scaling.number("mscale", limit=1e3)),
        ("mscale-all-dim", scaling.number("mscale_all_dim", limit=1e3)),
        ("max-position-embeddings", scaling.count("original_max_position_embeddings", limit=MAX_POSITIONS)),
    )


FAMILIES: Mapping[str, Callable[[ConfigFields, Model], Pairs]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "mimo": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "glm4_moe_lite": _deepseek,
    "glm_moe_dsa": _glm_moe_dsa,
    "minimax_m2": _minimax_m2,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
}
"""`model_type` of the language model -> its flags."""
