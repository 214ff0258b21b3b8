"""Megatron-LM's model flags from a `config.json`, for the families whose weights slime converts.

slime starts a model from these flags, compares sizes with the checkpoint and refuses a difference
(slime/backends/megatron_utils/arguments.py _hf_validate_args). What it does not compare (norms of queries and keys,
biases, the router, scaling of rotary positions) is read from the same file here; a value that has no flag is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.adapters.flags import Flag, flags
from planner.adapters.slime_experts import Pairs
from planner.adapters.slime_families import FAMILIES, rope_number
from planner.domain.model import Model
from planner.errors import InvalidInputError
from planner.files.catalog import model_config
from planner.files.config_fields import ConfigFields

_YARN_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}
_WRAPPERS = frozenset({"qwen3_5", "qwen3_5_moe"})
"""`model_type` of multimodal files whose language model slime loads (slime/backends/megatron_utils/hf_to_megatron)."""


def model_flags(model: Model) -> tuple[Flag, ...]:
    """The flags. Raises InvalidInputError when there are none for the family, when the `config.json` is not at hand, or
    when it lacks a value or has one that no flag expresses."""
    config = model_config(model)
    if config is None:
        raise InvalidInputError(
            f"the config.json of {model.hf_repo or model.id!r} is not at hand, or describes another model by now; "
            "slime needs it for Megatron's model flags: plan with a name of the catalog or the path of a directory"
        )
    text = _language_model(config)
    family = str(text.get("model_type"))
    if family not in FAMILIES:
        raise InvalidInputError(
            f"rlplan has no Megatron model flags for model_type {family!r}", accepted=", ".join(sorted(FAMILIES))
        )
    fields = ConfigFields(text, where=f"config.json of {model.hf_repo or model.id}")
    return flags("", *_common(fields, model), *FAMILIES[family](fields, model))


def _language_model(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part of the file that describes the language model; the file itself for networks that slime does not load."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) and config.get("model_type") in _WRAPPERS else config


def supported_families() -> tuple[str, ...]:
    return tuple(sorted(FAMILIES))


def _common(fields: ConfigFields, model: Model) -> Pairs:
    fields.must_be("hidden_act", "silu")
    # Files of networks with experts in every layer may leave the width of dense layers out: there are none.
    width = "intermediate_size" if fields.has("intermediate_size") else "moe_intermediate_size"
    return (
        ("num-layers", model.num_layers),
        ("hidden-size", model.hidden_size),
        ("ffn-hidden-size", fields.size(width if model.is_moe else "intermediate_size")),
        ("num-attention-heads", fields.size("num_attention_heads")),
        ("vocab-size", model.vocab_size),
        ("swiglu", True),
        ("normalization", "RMSNorm"),
        ("norm-epsilon", fields.number("rms_norm_eps", limit=1.0)),
        ("disable-bias-linear", True),
        ("position-embedding-type", "rope"),
        ("rotary-base", round(rope_number(fields, "rope_theta", limit=1e12))),
        ("untie-embeddings-and-output-weights", not model.is_embedding_tied),
    )


def model_differences(model: Model) -> tuple[str, ...]:
    """What the flags cannot say about the model, and what slime computes otherwise than the plan's cost model."""
    config = model_config(model) or {}
    return (*_position_differences(config), *_layer_differences(model))


def _position_differences(config: Mapping[str, object]) -> tuple[str, ...]:
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, Mapping) or scaling.get("type", scaling.get("rope_type")) != "yarn":
        return ()
    found = {key: scaling.get(key, value) for key, value in _YARN_BETAS.items()}
    if found == _YARN_BETAS:
        return ()
    return (
        f"Megatron has no flags for YaRN's beta_fast and beta_slow and takes {_YARN_BETAS}; the model has {found}, "
        "which SGLang reads from its config.json. slime's own script for this model does the same.",
    )


def _layer_differences(model: Model) -> tuple[str, ...]:
    notes: list[str] = []
    if model.architecture == "glm_moe_dsa":
        notes.append(
            "Sparse attention gathers keys over context-parallel ranks (--allgather-cp); the plan priced a ring."
        )
    if model.mtp_params:
        notes.append("Layers that predict further tokens are left out of training, as in the plan.")
    return tuple(notes)
