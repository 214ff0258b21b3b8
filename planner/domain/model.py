"""A language model as a few classes of equal layers, in the numbers that the cost model needs.

The cost model never branches on a model family: whatever an architecture is, its layers say how many
parameters they multiply with, what attention costs per query-key pair, what they cache and what they save.
Element counts are per layer and unsharded.
"""

from __future__ import annotations

from dataclasses import dataclass

WHOLE_SEQUENCE_MIXERS = frozenset({"gated_delta_net", "lightning"})
"""Kinds of attention whose recurrence no framework splits over context-parallel ranks (Megatron splits Mamba-2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Token mixing of one layer: softmax attention (GQA, MHA, MLA), linear attention or a state-space block."""

    kind: str
    """`gqa`, `mla`, `gated_delta_net`, `mamba2`, `lightning`, `linear` or `none`; for display and legality,
    never for costs."""
    num_heads: int
    """Query heads; TP must divide it. 0 when the layer has none."""
    num_kv_heads: int
    """Key/value heads; beyond it TP replicates the cache."""
    matmul_params: int
    """Parameters of projections that every token multiplies with."""
    other_params: int
    """Norm scales, biases, convolutions, decay terms: stored, not multiplied."""
    num_gemms: int
    """Projection kernels per forward (fused as engines fuse them)."""
    score_flop_per_pair: float
    """Forward FLOP per (query, key) pair over all heads: 4 * heads * head_dim for GQA."""
    window_tokens: int | None
    """Sliding window; None means the whole context."""
    state_flop_per_token: float
    """Forward FLOP per token of a recurrent or state-space mixer beyond its projections."""
    kv_elements_per_token: float
    """Cached elements per token, all heads."""
    kv_is_sharded_by_tp: bool
    """False for MLA, whose latent cache every TP rank holds whole."""
    state_elements_per_sequence: float
    """Constant recurrent state per sequence, sharded by TP."""
    saved_elements_per_token: float
    """Activation elements kept for backward without recomputation, 16-bit, excluding norms and residual."""
    replicated_saved_elements_per_token: float
    """Part kept whole on every TP rank without sequence parallelism (norm input and output: 2 * hidden)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Channel mixing of one layer: a dense part that every token visits and routed experts."""

    dense_params: int
    """Matmul parameters every token visits: dense MLP or shared experts, and the router."""
    other_params: int
    """Biases and router correction terms."""
    num_gemms: int
    """Kernels of the dense part per forward."""
    num_experts: int
    """Routed experts; 0 for a dense layer."""
    num_active_experts: int
    params_per_expert: int
    expert_hidden_size: int
    saved_elements_per_token: float
    """Kept for backward by the dense part, 16-bit elements per token, excluding norm and residual."""
    saved_elements_per_routed_token: float
    """Kept for backward per (token, expert) pair: dispatched input and output plus expert internals."""
    replicated_saved_elements_per_token: float
    """As for attention: norm input and output."""

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerClass:
    """`num_layers` equal layers."""

    name: str
    num_layers: int
    attention: Attention
    mlp: Mlp
    norm_params: int

    @property
    def dense_params(self) -> int:
        """Stored parameters of one layer that do not belong to routed experts."""
        return (
            self.attention.matmul_params
            + self.attention.other_params
            + self.mlp.dense_params
            + self.mlp.other_params
            + self.norm_params
        )

    @property
    def expert_params(self) -> int:
        """Stored parameters of one layer in routed experts."""
        return self.mlp.num_experts * self.mlp.params_per_expert

    @property
    def active_matmul_params(self) -> int:
        """Matmul parameters that one token visits in one layer."""
        return (
            self.attention.matmul_params
            + self.mlp.dense_params
            + self.mlp.num_active_experts * self.mlp.params_per_expert
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A causal language model (text part)."""

    id: str
    hf_repo: str
    architecture: str
    hidden_size: int
    vocab_size: int
    is_embedding_tied: bool
    layers: tuple[LayerClass, ...]
    extra_params: int
    """Final norm, learned positions and the like."""
    mtp_params: int
    """Multi-token-prediction layers, held in training only when the user trains them."""
    max_positions: int | None

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError(f"model {self.id!r} has no layers")

    @property
    def num_layers(self) -> int:
        return sum(layer.num_layers for layer in self.layers)

    @property
    def embedding_params(self) -> int:
        """One vocabulary table."""
        return self.vocab_size * self.hidden_size

    @property
    def head_params(self) -> int:
        """Output head stored on its own (0 when tied)."""
        return 0 if self.is_embedding_tied else self.embedding_params

    @property
    def num_params(self) -> int:
        body = sum(layer.num_layers * (layer.dense_params + layer.expert_params) for layer in self.layers)
        return body + self.embedding_params + self.head_params + self.extra_params

    @property
    def num_expert_params(self) -> int:
        return sum(layer.num_layers * layer.expert_params for layer in self.layers)

    @property
    def num_dense_params(self) -> int:
        return self.num_params - self.num_expert_params

    @property
    def num_active_params(self) -> int:
        """Stored parameters that one token uses, both tables included."""
        idle = sum(
            layer.num_layers * (layer.mlp.num_experts - layer.mlp.num_active_experts) * layer.mlp.params_per_expert
            for layer in self.layers
        )
        return self.num_params - idle

    @property
    def needs_whole_sequence(self) -> bool:
        """Whether some layers are recurrent over the sequence in a way that is not split."""
        return any(layer.attention.kind in WHOLE_SEQUENCE_MIXERS for layer in self.layers)

    @property
    def is_moe(self) -> bool:
        return any(layer.mlp.is_moe for layer in self.layers)

    @property
    def max_experts(self) -> int:
        return max(layer.mlp.num_experts for layer in self.layers)

    @property
    def num_weight_tensors(self) -> int:
        """Tensors of a Hugging Face checkpoint, roughly: what a weight sync loads one by one."""
        per_layer = sum(
            layer.num_layers * (4 + layer.attention.num_gemms + layer.mlp.num_gemms + 3 * layer.mlp.num_experts)
            for layer in self.layers
        )
        return per_layer + 3
