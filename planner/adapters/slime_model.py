"""Megatron-LM's model flags from a `config.json`, for the families whose weights slime converts.

slime starts a model from these flags, compares sizes with the checkpoint and refuses a difference
(slime/backends/megatron_utils/arguments.py _hf_validate_args). What it does not compare (norms of queries and keys,
biases, the router, scaling of rotary positions) is read from the same file here; a value that has no flag is refused.
Sources: scripts/models of slime's repository, megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.adapters.flags import Flag, FlagValue, flags
from planner.domain.model import Model
from planner.errors import InvalidInputError
from planner.files.catalog import model_config
from planner.files.config_fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, ConfigFields

_LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Megatron's --use-rope-scaling has built in (megatron/core/models/common/embeddings/rotary_pos_embedding.py)."""
_YARN_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}

_Pairs = tuple[tuple[str, FlagValue | bool | tuple[FlagValue, ...]], ...]


def model_flags(model: Model) -> tuple[Flag, ...]:
    """The flags. Raises InvalidInputError when slime has no converter for the family, when the `config.json` is not at
    hand, or when it lacks a value or has one that no flag expresses."""
    config = model_config(model)
    if config is None:
        raise InvalidInputError(
            f"the config.json of {model.hf_repo or model.id!r} is not at hand, or describes another model by now; "
            "slime needs it for Megatron's model flags: plan with a name of the catalog or the path of a directory"
        )
    family = str(config.get("model_type"))
    if family not in _FAMILIES:
        raise InvalidInputError(
            f"rlplan has no Megatron model flags for model_type {family!r}", accepted=", ".join(sorted(_FAMILIES))
        )
    fields = ConfigFields(config, where=f"config.json of {model.hf_repo or model.id}")
    return flags("", *_common(fields, model), *_FAMILIES[family](fields, model))


def supported_families() -> tuple[str, ...]:
    return tuple(sorted(_FAMILIES))


def _common(fields: ConfigFields, model: Model) -> _Pairs:
    fields.must_be("hidden_act", "silu")
    return (
        ("num-layers", model.num_layers),
        ("hidden-size", model.hidden_size),
        ("ffn-hidden-size", fields.size("intermediate_size")),
        ("num-attention-heads", fields.size("num_attention_heads")),
        ("vocab-size", model.vocab_size),
        ("swiglu", True),
        ("normalization", "RMSNorm"),
        ("norm-epsilon", fields.number("rms_norm_eps", limit=1.0)),
        ("disable-bias-linear", True),
        ("position-embedding-type", "rope"),
        ("rotary-base", round(fields.number("rope_theta", limit=1e12))),
        ("untie-embeddings-and-output-weights", not model.is_embedding_tied),
    )


def _grouped(fields: ConfigFields, *, has_qk_norm: bool, qkv_bias_default: bool) -> _Pairs:
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


def _whole_context(fields: ConfigFields) -> None:
    fields.must_be("use_sliding_window", False)


def _llama(fields: ConfigFields, model: Model) -> _Pairs:
    fields.must_be("attention_bias", False)
    return (*_grouped(fields, has_qk_norm=False, qkv_bias_default=False), *_llama3_scaling(fields))


def _llama3_scaling(fields: ConfigFields) -> _Pairs:
    if not fields.has("rope_scaling"):
        return ()
    scaling = fields.section("rope_scaling")
    kind = scaling.optional_text("rope_type") or scaling.optional_text("type")
    fixed = all(scaling.number(key, limit=MAX_POSITIONS) == value for key, value in _LLAMA3_SCALING.items())
    if kind != "llama3" or not fixed:
        raise fields.wrong("rope_scaling", fields.value("rope_scaling"), f"null or llama3 with {_LLAMA3_SCALING}")
    return (("use-rope-scaling", True), ("rope-scaling-factor", scaling.number("factor", limit=1e6)))


def _qwen2(fields: ConfigFields, model: Model) -> _Pairs:
    _no_scaling(fields)
    _whole_context(fields)
    return _grouped(fields, has_qk_norm=False, qkv_bias_default=True)


def _qwen3(fields: ConfigFields, model: Model) -> _Pairs:
    _no_scaling(fields)
    _whole_context(fields)
    return _grouped(fields, has_qk_norm=True, qkv_bias_default=False)


def _qwen3_moe(fields: ConfigFields, model: Model) -> _Pairs:
    step = fields.count("decoder_sparse_step", limit=MAX_LAYERS, default=1)
    dense = frozenset(fields.counts("mlp_only_layers", limit=MAX_LAYERS))
    routed = tuple(i not in dense and (i + 1) % step == 0 for i in range(model.num_layers))
    return (
        *_qwen3(fields, model),
        *_experts(routed, fields.size("num_experts"), fields),
        ("moe-router-score-function", "softmax"),
        # Without the flag the weights of the chosen experts add up to one.
        ("moe-router-pre-softmax", not fields.flag("norm_topk_prob", default=False)),
        ("moe-router-load-balancing-type", "none"),
    )


def _glm4_moe(fields: ConfigFields, model: Model) -> _Pairs:
    _no_scaling(fields)
    return (
        *_grouped(fields, has_qk_norm=fields.flag("use_qk_norm", default=False), qkv_bias_default=False),
        ("rotary-percent", fields.number("partial_rotary_factor", limit=1.0)),
        *_sigmoid_experts(fields, model),
    )


def _deepseek(fields: ConfigFields, model: Model) -> _Pairs:
    """Multi-head latent attention. Queries are not compressed where `q_lora_rank` is null."""
    rank: _Pairs = (("q-lora-rank", fields.size("q_lora_rank")),) if fields.has("q_lora_rank") else ()
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
        ("no-rope-fusion", True),
        *_yarn(fields),
        *_sigmoid_experts(fields, model),
    )


def _yarn(fields: ConfigFields) -> _Pairs:
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


def model_differences(model: Model) -> tuple[str, ...]:
    """What the flags cannot say about the model's positions."""
    config = model_config(model)
    scaling = None if config is None else config.get("rope_scaling")
    if not isinstance(scaling, Mapping) or scaling.get("type", scaling.get("rope_type")) != "yarn":
        return ()
    found = {key: scaling.get(key, value) for key, value in _YARN_BETAS.items()}
    if found == _YARN_BETAS:
        return ()
    return (
        f"Megatron has no flags for YaRN's beta_fast and beta_slow and takes {_YARN_BETAS}; the model has {found}, "
        "which SGLang reads from its config.json. slime's own script for this model does the same.",
    )


def _sigmoid_experts(fields: ConfigFields, model: Model) -> _Pairs:
    """Routers that score by a sigmoid with a correction per expert, after some dense layers."""
    fields.must_be("scoring_func", "sigmoid")
    fields.must_be("topk_method", "noaux_tc")
    fields.must_be("moe_layer_freq", 1)
    first = fields.count("first_k_dense_replace", limit=MAX_LAYERS, default=0, minimum=0)
    routed = tuple(i >= first for i in range(model.num_layers))
    width = fields.size("moe_intermediate_size") * fields.optional_size("n_shared_experts")
    shared: _Pairs = (("moe-shared-expert-intermediate-size", width),) if width else ()
    return (
        *_experts(routed, fields.size("n_routed_experts"), fields),
        *shared,
        ("moe-router-score-function", "sigmoid"),
        ("moe-router-pre-softmax", True),
        ("moe-router-enable-expert-bias", True),
        ("moe-router-bias-update-rate", 0),
        ("moe-router-load-balancing-type", "seq_aux_loss"),
        ("moe-router-topk-scaling-factor", fields.number("routed_scaling_factor", limit=1e3)),
        ("moe-router-num-groups", fields.size("n_group", default=1)),
        ("moe-router-group-topk", fields.size("topk_group", default=1)),
    )


def _experts(routed: tuple[bool, ...], num_experts: int, fields: ConfigFields) -> _Pairs:
    return (
        ("num-experts", num_experts),
        ("moe-layer-freq", _pattern(routed)),
        ("moe-ffn-hidden-size", fields.size("moe_intermediate_size")),
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


_FAMILIES: Mapping[str, Callable[[ConfigFields, Model], _Pairs]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "glm4_moe": _glm4_moe,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
}
