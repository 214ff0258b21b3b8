"""Token and channel mixers in the numbers of the cost model: parameters, FLOP, cache and saved activations.

Saved activations follow the accounting of arXiv 2205.05198 for FlashAttention in 16 bit, without dropout:
a tensor that the backward pass needs is counted once, in elements per token and layer. What norms keep
(input and output, 2 x hidden) is counted as replicated, because without sequence parallelism TP does not
shard it. Linear attention and state-space mixers are estimates of the same kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.model import Attention, Mlp

FP32_ELEMENTS = 2
"""16-bit elements that one fp32 number takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gqa:
    """Grouped-query attention of one family; MHA and MQA are its ends."""

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    is_gated: bool = False
    """An output gate as wide as the queries, computed with them (Qwen3-Next)."""
    extra_params: int = 0
    """Biases, norms of queries and keys, sinks."""

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys alone."""
        return self.num_kv_heads * self.head_dim


def gqa(shape: Gqa, *, window: int | None, replicated: int) -> Attention:
    """Softmax attention with `window` visible tokens (None: all)."""
    query, kv, hidden = shape.query_size, shape.kv_size, shape.hidden
    gate = query if shape.is_gated else 0
    return Attention(
        kind="gqa",
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        matmul_params=hidden * (query + gate + 2 * kv) + query * hidden,
        other_params=shape.extra_params,
        num_gemms=2,
        score_flop_per_pair=4.0 * query,
        window_tokens=window,
        state_flop_per_token=0.0,
        kv_elements_per_token=2.0 * kv,
        kv_is_sharded_by_tp=True,
        state_elements_per_sequence=0.0,
        # q, k, v, the output and the fp32 log-sum-exp; a gate keeps itself and the gated output
        saved_elements_per_token=float(query + 2 * kv + query + FP32_ELEMENTS * shape.num_heads + 2 * gate),
        replicated_saved_elements_per_token=float(replicated),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention (arXiv 2405.04434), with the DSA indexer of DeepSeek-V3.2 where given."""

    hidden: int
    num_heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    query_rank: int
    """0: queries are projected directly."""
    bias_params: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0


def mla(shape: Mla) -> Attention:
    """MLA with its latent cache.

    With an indexer every pair is scored by the indexer alone and each query attends to at most `index_topk`
    tokens in the latent space (MQA form, as the DeepSeek-V3.2 report runs it): a constant cost per token,
    which is an upper bound for contexts shorter than that. The latent cache is kept and, as an upper bound,
    read whole.
    """
    hidden, heads = shape.hidden, shape.num_heads
    query = heads * (shape.nope_dim + shape.rope_dim)
    expanded = heads * (shape.nope_dim + shape.value_dim)
    output = heads * shape.value_dim
    matmul = hidden * (shape.kv_rank + shape.rope_dim) + shape.kv_rank * expanded + output * hidden
    matmul += hidden * shape.query_rank + shape.query_rank * query if shape.query_rank else hidden * query
    other = shape.query_rank + shape.kv_rank + shape.bias_params
    score = 2.0 * (query + output)
    cache = float(shape.kv_rank + shape.rope_dim)
    num_gemms, sparse_flop = 4, 0.0
    if shape.index_heads:
        index = shape.index_heads * shape.index_dim
        matmul += shape.query_rank * index + hidden * shape.index_dim + hidden * shape.index_heads
        other += 2 * shape.index_dim
        num_gemms += 3
        sparse_flop = 2.0 * heads * (2 * shape.kv_rank + shape.rope_dim) * shape.index_topk
        score = 2.0 * index
        # keys of the indexer: one byte per element and a four-byte scale
        cache += shape.index_dim / 2 + 2
    saved = 2 * shape.query_rank + 2 * query + expanded + output + hidden + 2 * shape.kv_rank + shape.rope_dim
    return Attention(
        kind="mla",
        num_heads=heads,
        num_kv_heads=heads,
        matmul_params=matmul,
        other_params=other,
        num_gemms=num_gemms,
        score_flop_per_pair=score,
        window_tokens=None,
        state_flop_per_token=sparse_flop,
        kv_elements_per_token=cache,
        kv_is_sharded_by_tp=False,
        state_elements_per_sequence=0.0,
        saved_elements_per_token=float(saved),
        replicated_saved_elements_per_token=2.0 * hidden,
    )


def gated_delta_net(
    *, hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, conv: int, state_elements: int
) -> Attention:
    """Gated DeltaNet (arXiv 2412.06464): read, update and query a key_dim x value_dim state per value head."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    state = value_heads * key_dim * value_dim
    return Attention(
        kind="gated_delta_net",
        num_heads=key_heads,
        num_kv_heads=key_heads,
        matmul_params=hidden * (2 * keys + 2 * values) + hidden * 2 * value_heads + values * hidden,
        other_params=channels * conv + 2 * value_heads + value_dim,
        num_gemms=3,
        score_flop_per_pair=0.0,
        window_tokens=None,
        state_flop_per_token=6.0 * state + 2.0 * channels * conv,
        kv_elements_per_token=0.0,
        kv_is_sharded_by_tp=True,
        state_elements_per_sequence=float(state * state_elements + channels * (conv - 1)),
        # before and after the convolution, gate, output, gated output, decay and step in fp32
        saved_elements_per_token=float(2 * channels + 3 * values + 2 * FP32_ELEMENTS * value_heads),
        replicated_saved_elements_per_token=2.0 * hidden,
    )


def mamba2(
    *,
    hidden: int,
    num_heads: int,
    head_dim: int,
    groups: int,
    state_size: int,
    conv: int,
    has_conv_bias: bool,
    state_elements: int,
) -> Attention:
    """Mamba-2 mixer (arXiv 2405.21060); 7 FLOP per state element and token as Megatron-LM counts the scan."""
    inner = num_heads * head_dim
    channels = inner + 2 * groups * state_size
    return Attention(
        kind="mamba2",
        num_heads=num_heads,
        num_kv_heads=num_heads,
        matmul_params=hidden * (inner + channels + num_heads) + inner * hidden,
        other_params=channels * conv + (channels if has_conv_bias else 0) + 3 * num_heads + inner,
        num_gemms=2,
        score_flop_per_pair=0.0,
        window_tokens=None,
        state_flop_per_token=7.0 * inner * state_size + 2.0 * channels * conv,
        kv_elements_per_token=0.0,
        kv_is_sharded_by_tp=True,
        state_elements_per_sequence=float(inner * state_size * state_elements + channels * (conv - 1)),
        saved_elements_per_token=float(2 * channels + 3 * inner + FP32_ELEMENTS * num_heads),
        replicated_saved_elements_per_token=2.0 * hidden,
    )


def lightning(*, hidden: int, num_heads: int, head_dim: int) -> Attention:
    """Lightning attention (arXiv 2501.08313): linear attention with a head_dim x head_dim fp32 state per head."""
    inner = num_heads * head_dim
    return Attention(
        kind="lightning",
        num_heads=num_heads,
        num_kv_heads=num_heads,
        matmul_params=hidden * 3 * inner + hidden * inner + inner * hidden,
        other_params=inner,
        num_gemms=3,
        score_flop_per_pair=0.0,
        window_tokens=None,
        state_flop_per_token=4.0 * inner * head_dim,
        kv_elements_per_token=0.0,
        kv_is_sharded_by_tp=True,
        state_elements_per_sequence=float(inner * head_dim * FP32_ELEMENTS),
        saved_elements_per_token=6.0 * inner,
        replicated_saved_elements_per_token=2.0 * hidden,
    )


def without_attention(*, linear_params: int = 0, replicated: int = 0) -> Attention:
    """A layer that does not mix tokens, or whose mixer was replaced by one linear map."""
    return Attention(
        kind="linear" if linear_params else "none",
        num_heads=0,
        num_kv_heads=0,
        matmul_params=linear_params,
        other_params=0,
        num_gemms=1 if linear_params else 0,
        score_flop_per_pair=0.0,
        window_tokens=None,
        state_flop_per_token=0.0,
        kv_elements_per_token=0.0,
        kv_is_sharded_by_tp=True,
        state_elements_per_sequence=0.0,
        saved_elements_per_token=0.0,
        replicated_saved_elements_per_token=float(replicated),
    )


def dense_mlp(*, hidden: int, width: int, is_gated: bool, other_params: int = 0, replicated: int) -> Mlp:
    """Gated (gate, up, down) or plain MLP."""
    return Mlp(
        dense_params=(3 if is_gated else 2) * hidden * width,
        other_params=other_params,
        num_gemms=2,
        num_experts=0,
        num_active_experts=0,
        params_per_expert=0,
        expert_hidden_size=0,
        saved_elements_per_token=float((3 if is_gated else 2) * width),
        saved_elements_per_routed_token=0.0,
        replicated_saved_elements_per_token=float(replicated),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Routed experts with an optional shared one."""

    hidden: int
    num_experts: int
    num_active: int
    width: int
    is_gated: bool = True
    shared_width: int = 0
    """Width of all shared experts together."""
    has_shared_gate: bool = False
    score_bias_params: int = 0
    router_bias_params: int = 0
    expert_bias_params: int = 0
    """Per expert."""
    latent: int = 0
    """Experts work on a down-projection of this width (Nemotron-3 Super); 0: on the hidden size."""


def moe_mlp(shape: Moe) -> Mlp:
    """Router, shared expert and routed experts."""
    hidden, matrices = shape.hidden, 3 if shape.is_gated else 2
    entry = shape.latent or hidden
    shared = matrices * hidden * shape.shared_width
    gate = hidden if shape.has_shared_gate else 0
    num_gemms = 1 + (2 if shape.shared_width else 0) + (1 if gate else 0) + (2 if shape.latent else 0)
    return Mlp(
        dense_params=shape.num_experts * hidden + shared + gate + 2 * hidden * shape.latent,
        other_params=shape.score_bias_params + shape.router_bias_params,
        num_gemms=num_gemms,
        num_experts=shape.num_experts,
        num_active_experts=shape.num_active,
        params_per_expert=matrices * entry * shape.width + shape.expert_bias_params,
        expert_hidden_size=shape.width,
        saved_elements_per_token=float(matrices * shape.shared_width + 2 * shape.latent),
        saved_elements_per_routed_token=float(2 * entry + matrices * shape.width),
        replicated_saved_elements_per_token=2.0 * hidden,
    )


def without_mlp(*, linear_params: int = 0, replicated: int = 0) -> Mlp:
    """A layer without channel mixing, or with one linear map in its place."""
    return Mlp(
        dense_params=linear_params,
        other_params=0,
        num_gemms=1 if linear_params else 0,
        num_experts=0,
        num_active_experts=0,
        params_per_expert=0,
        expert_hidden_size=0,
        saved_elements_per_token=0.0,
        saved_elements_per_routed_token=0.0,
        replicated_saved_elements_per_token=float(replicated),
    )
