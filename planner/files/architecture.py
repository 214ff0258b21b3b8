"""Hugging Face `config.json` -> Model, for the families listed in `model_types()`.

A family that is not listed, a key that looks structural but is not understood and a value that would need
another formula are errors that name the key: a silent guess would give a plausible plan for another network.

Not modelled: Phi-3-small (`phi3small`). Its block-sparse layers attend to the last 1,024 tokens and to every
eighth block before them, at different strides per head, so the work per query has two slopes and the cache is
read in part; a window or a full context would both be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.domain.model import Model
from planner.errors import InvalidInputError, nearest
from planner.files import decoder_families, hybrid_families
from planner.files.config_fields import MAX_POSITIONS, MAX_VOCABULARY, ConfigFields
from planner.files.fields import short
from planner.files.gemma4_family import build_gemma4
from planner.files.stack import Stack, layer_classes

Builder = Callable[[ConfigFields, str], Stack]

_BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(decoder_families.FAMILIES, decoder_families.build),
    **dict.fromkeys(hybrid_families.MLA_TYPES, hybrid_families.build_mla),
    **dict.fromkeys(hybrid_families.DELTA_TYPES, hybrid_families.build_gated_delta),
    "gemma4_text": build_gemma4,
    "minimax_m1": hybrid_families.build_minimax_m1,
    "nemotron_h": hybrid_families.build_nemotron_h,
    "nemotron-nas": hybrid_families.build_nemotron_nas,
}

_WRAPPERS = frozenset(
    (
        "gemma3",
        "gemma4",
        "glm4v",
        "kimi_k25",
        "llama4",
        "mistral3",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_vl",
        "qwen3_vl_moe",
    )
)
"""Multimodal configs; the planner takes their `text_config`."""

_LEFT_OUT = {"phi3small": "its block-sparse attention (two slopes of work per query) is not modelled"}
_TIED_BY_DEFAULT = frozenset(("gemma2", "gemma3_text", "gemma4_text"))


def model_types() -> tuple[str, ...]:
    """All values of `model_type` that are understood."""
    return tuple(sorted({*_BUILDERS, *_WRAPPERS}))


def build_model(config: Mapping[str, object], *, model_id: str, hf_repo: str, where: str) -> Model:
    """The text part of the network that `config` describes.

    `where` is the file that messages name. Raises InvalidInputError for an unknown family, a missing key, a
    value out of range and a structural key that is not understood.
    """
    outer = ConfigFields(config, where=where)
    fields = _text_part(outer)
    family = _family(fields)
    fields.check_quantization()
    stack = _BUILDERS[family](fields, family)
    hidden = fields.size("hidden_size")
    vocabulary = fields.count("vocab_size", limit=MAX_VOCABULARY)
    is_tied = _is_tied(fields, outer, family)
    positions = fields.count("max_position_embeddings", limit=MAX_POSITIONS, default=0, minimum=0)
    fields.finish_config(family)
    return Model(
        id=model_id,
        hf_repo=hf_repo,
        architecture=family,
        hidden_size=hidden,
        vocab_size=vocabulary,
        is_embedding_tied=is_tied,
        layers=layer_classes(stack.layers),
        extra_params=stack.extra_params,
        mtp_params=stack.mtp_params,
        max_positions=positions or None,
    )


def _text_part(outer: ConfigFields) -> ConfigFields:
    """The fields themselves, or those of `text_config` in a multimodal config."""
    if not outer.has("text_config"):
        return outer
    wrapper = outer.text("model_type")
    if wrapper not in _WRAPPERS:
        raise InvalidInputError(
            f"model_type {wrapper[:60]!r} with a text_config is not understood",
            where=outer.where,
            accepted=", ".join(sorted(_WRAPPERS)),
        )
    outer.check_quantization()
    outer.skip(["tie_word_embeddings"])
    outer.finish_config(wrapper)
    return ConfigFields(outer.raw("text_config"), where=outer.place("text_config"))


def _family(fields: ConfigFields) -> str:
    family = fields.text("model_type")
    if family in _LEFT_OUT:
        raise InvalidInputError(f"model_type {family!r}: {_LEFT_OUT[family]}", where=fields.where)
    if family not in _BUILDERS:
        raise InvalidInputError(
            f"model_type {short(family)} is not understood",
            where=fields.where,
            accepted=", ".join(model_types()),
            suggestion=nearest(family, model_types()),
        )
    return family


def _is_tied(fields: ConfigFields, outer: ConfigFields, family: str) -> bool:
    """From the text part, else from the multimodal config, else the default of the family's config class."""
    default = family in _TIED_BY_DEFAULT
    if not fields.has("tie_word_embeddings"):
        return outer.flag("tie_word_embeddings", default=default)
    return fields.flag("tie_word_embeddings", default=default)
