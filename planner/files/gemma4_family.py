"""Gemma 4: two shapes of attention, shared keys and values, per-layer embeddings, experts beside a dense MLP.

Shapes as in the modelling code of Hugging Face transformers 5.23 (`gemma4`). Two things are simplified. Layers that
reuse the keys and values of an earlier one (E2B, E4B) have no projections for them, but are priced with a cache of
their own: what a step reads is right, what the cache holds is an upper bound. The per-layer embedding table is
stored like the final norm: it is looked up, never read whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.model import Attention, Mlp
from planner.files.config_fields import MAX_VOCABULARY, ConfigFields
from planner.files.decoder_families import layer_types, require_window
from planner.files.layer_parts import Gqa, Moe, dense_mlp, gqa, moe_mlp
from planner.files.stack import Layer, Stack

_FULL, _WINDOWED = "full_attention", "sliding_attention"
_PERIOD = 6
_GLOBAL_HEAD_DIM = 512
_NORMS = 4
_EXPERT_NORMS = 3
"""Norms of a layer, and those that experts beside the MLP add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What the layers have in common."""

    hidden: int
    num_heads: int
    window: int
    per_layer: int
    """Width of the per-layer embeddings; 0 without."""
    replicated: int


def build_gemma4(fields: ConfigFields, name: str) -> Stack:
    """The stack of `gemma4_text`: 31B, 26B-A4B, E2B and E4B."""
    num_layers = fields.num_layers()
    fields.must_be("attention_bias", False)
    fields.must_be("use_bidirectional_attention", "vision")
    shape = _read_shape(fields)
    types = layer_types(fields, num_layers, (_FULL, _WINDOWED)) or _default_types(num_layers)
    require_window(fields, any(kind == _WINDOWED for kind in types), shape.window, "sliding_window")
    num_shared = fields.count("num_kv_shared_layers", limit=num_layers, default=0, minimum=0)
    attentions = {
        (kind, is_shared): _attention(fields, shape, kind, is_shared=is_shared)
        for kind in sorted(set(types))
        for is_shared in (False, True)
    }
    mlps = {is_shared: _mlp(fields, shape, is_shared=is_shared) for is_shared in (False, True)}
    norms = _NORMS + (_EXPERT_NORMS if mlps[False].is_moe else 0) + (1 if shape.per_layer else 0)
    layers = []
    for index, kind in enumerate(types):
        is_shared = index >= num_layers - num_shared
        layers.append(
            Layer(attention=attentions[kind, is_shared], mlp=mlps[is_shared], norm_params=norms * shape.hidden)
        )
    return Stack(layers=tuple(layers), extra_params=shape.hidden + _per_layer_table(fields, shape, num_layers))


def _read_shape(fields: ConfigFields) -> _Shape:
    hidden = fields.size("hidden_size")
    return _Shape(
        hidden=hidden,
        num_heads=fields.size("num_attention_heads"),
        window=fields.optional_size("sliding_window"),
        per_layer=fields.optional_size("hidden_size_per_layer_input"),
        # a norm after each mixer keeps one more copy of its input
        replicated=hidden * (2 + (_NORMS - 2) // 2),
    )


def _default_types(num_layers: int) -> tuple[str, ...]:
    """Every sixth layer and the last one see the whole context."""
    return tuple(
        _FULL if (index + 1) % _PERIOD == 0 or index == num_layers - 1 else _WINDOWED for index in range(num_layers)
    )


def _attention(fields: ConfigFields, shape: _Shape, kind: str, *, is_shared: bool) -> Attention:
    """Softmax attention of a windowed or a full layer; a shared one has queries and an output only."""
    num_kv_heads, head_dim = fields.size("num_key_value_heads"), fields.size("head_dim")
    # The width of full layers may differ; keys and values of theirs can be one projection.
    global_heads = fields.optional_size("num_global_key_value_heads")
    global_dim = fields.size("global_head_dim", default=_GLOBAL_HEAD_DIM)
    is_joint = fields.flag("attention_k_eq_v", default=False) and kind == _FULL
    if kind == _FULL:
        num_kv_heads, head_dim = global_heads or num_kv_heads, global_dim
    fields.check_divides("num_key_value_heads", num_kv_heads, "num_attention_heads", shape.num_heads)
    parts = Gqa(
        hidden=shape.hidden,
        num_heads=shape.num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        extra_params=head_dim * (1 if is_shared else 2),
    )
    whole = gqa(parts, window=None if kind == _FULL else shape.window, replicated=shape.replicated)
    num_missing = 2 if is_shared else 1 if is_joint else 0
    return replace(whole, matmul_params=whole.matmul_params - num_missing * shape.hidden * parts.kv_size)


def _mlp(fields: ConfigFields, shape: _Shape, *, is_shared: bool) -> Mlp:
    """The MLP, with experts beside it where the config has them, and with the per-layer embedding's maps."""
    is_wide = fields.flag("use_double_wide_mlp", default=False) and is_shared
    width = fields.size("intermediate_size") * (2 if is_wide else 1)
    if fields.flag("enable_moe_block", default=False):
        mlp = _experts(fields, shape, width)
    else:
        fields.skip(["num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size"])
        mlp = dense_mlp(hidden=shape.hidden, width=width, is_gated=True, replicated=shape.replicated)
    if not shape.per_layer:
        return mlp
    # gate, projection back, and this layer's share of the projection of the token's embedding
    return replace(
        mlp,
        dense_params=mlp.dense_params + 3 * shape.hidden * shape.per_layer,
        num_gemms=mlp.num_gemms + 2,
        saved_elements_per_token=mlp.saved_elements_per_token + 3.0 * shape.per_layer,
        replicated_saved_elements_per_token=mlp.replicated_saved_elements_per_token + 2.0 * shape.hidden,
    )


def _experts(fields: ConfigFields, shape: _Shape, width: int) -> Mlp:
    """Experts and a dense MLP on the same input: the MLP is a shared expert; the router has two more scales."""
    num_experts = fields.size("num_experts")
    routed = moe_mlp(
        Moe(
            hidden=shape.hidden,
            num_experts=num_experts,
            num_active=fields.count("top_k_experts", limit=num_experts),
            width=fields.size("moe_intermediate_size"),
            shared_width=width,
            router_bias_params=shape.hidden + num_experts,
        )
    )
    return replace(routed, replicated_saved_elements_per_token=float(shape.replicated + 2 * shape.hidden))


def _per_layer_table(fields: ConfigFields, shape: _Shape, num_layers: int) -> int:
    """Stored parameters of the per-layer embeddings: the table and the norm of its projection."""
    vocabulary = fields.count("vocab_size_per_layer_input", limit=MAX_VOCABULARY, default=262_144)
    return (vocabulary * num_layers + 1) * shape.per_layer
