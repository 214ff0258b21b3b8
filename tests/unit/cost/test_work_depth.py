"""Work and depth: invariants, multiply-adds counted one by one in small transformers, and published settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.link_bytes import cache_read_bytes, decode_step_floor_s, decode_weight_bytes
from planner.cost.work_depth import (
    Head,
    Lengths,
    backward_flop,
    causal_pairs,
    contraction_levels,
    decode_flop,
    forward_depth,
    forward_flop,
    forward_levels,
    gae_depth,
    generation_depth,
    group_depth,
    head_flop,
    layers_flop,
    num_waves,
    prefill_flop,
    rollout_flop,
    training_depth,
    training_flop,
)
from planner.cost.worker import Site
from planner.domain.hardware import Precision
from planner.domain.lengths import LengthLaw
from planner.domain.model import LayerClass, Mlp, Model
from planner.domain.workload import GenerationLoad, TokenLoad
from planner.files.catalog import generic_node, load_model, load_overheads
from tests.factories import dense_model

MODELS = ("llama-2-7b", "qwen3-30b-a3b", "gemma-3-4b", "deepseek-v3", "qwen3.5-4b", "gpt-oss-20b")


def rollouts(
    num: int, prompt: float, response: float, *, shared: int = 1, longest: int | None = None
) -> GenerationLoad:
    law = LengthLaw(mean_tokens=response, cv=0.0, max_tokens=longest or int(response))
    return GenerationLoad(
        num_sequences=num, num_shared=shared, prompt_mean_tokens=prompt, prompt_max_tokens=int(prompt), response=law
    )


def equal(num: float, tokens: float) -> TokenLoad:
    return TokenLoad(num_sequences=num, mean_tokens=tokens, mean_square_tokens=tokens**2, max_tokens=int(tokens))


# ---------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("name", MODELS)
@given(prompt=st.integers(1, 5000), response=st.integers(1, 5000))
def test_prefill_and_decode_are_one_forward_pass(name: str, prompt: int, response: int) -> None:
    model = load_model(name)
    generated = prefill_flop(model, prompt) + decode_flop(model, prompt, Lengths.fixed(prompt + response))
    whole = layers_flop(model, Lengths.fixed(prompt + response - 1)) + head_flop(model, Head.VOCABULARY, response)
    assert generated == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("prompt", "response"), [(1, 1), (7, 40), (1000, 900), (100, 3000)])
def test_decode_is_the_sum_over_its_steps(name: str, prompt: int, response: int) -> None:
    model = load_model(name)
    steps = 0.0
    for context in range(prompt + 1, prompt + response):
        steps += 2.0 * sum(x.num_layers * x.active_matmul_params for x in model.layers) + 2.0 * model.embedding_params
        for layer in model.layers:
            seen = min(context, layer.attention.window_tokens or context)
            steps += layer.num_layers * (
                layer.attention.score_flop_per_pair * seen + layer.attention.state_flop_per_token
            )
    # A window is evaluated at the mean length, exact beyond it and below it.
    assert decode_flop(model, prompt, Lengths.fixed(prompt + response)) == pytest.approx(steps, rel=1e-9)


@given(tokens=st.integers(1, 300), window=st.one_of(st.none(), st.integers(1, 400)))
def test_pairs_are_those_of_the_mask(tokens: int, window: int | None) -> None:
    counted = sum(min(position, window or position) for position in range(1, tokens + 1))
    assert causal_pairs(Lengths.fixed(tokens), window) == pytest.approx(counted, rel=1e-12)


def test_unequal_lengths_need_the_second_moment() -> None:
    model = load_model("llama-2-7b")
    lengths = np.array([10.0, 500.0, 3000.0])
    mixed = Lengths(mean_tokens=float(lengths.mean()), mean_square_tokens=float((lengths**2).mean()))
    each = [forward_flop(model, Head.VOCABULARY, Lengths.fixed(float(x))) for x in lengths]
    assert forward_flop(model, Head.VOCABULARY, mixed) == pytest.approx(float(np.mean(each)), rel=1e-12)


# ---------------------------------------------------------------------------------------------- counted one by one


class Counter:
    """Multiplies matrices as loops would, counting multiply-adds."""

    def __init__(self) -> None:
        self.flop = 0

    def product(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        assert left.shape[-1] == right.shape[0]
        self.flop += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return left @ right

    def attend(self, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Causal attention of one head, query by query, over exactly the keys that the mask leaves."""
        rows = []
        for position in range(len(query)):
            scores = self.product(query[position : position + 1], key[: position + 1].T)
            weights = np.exp(scores - scores.max())
            rows.append(self.product(weights / weights.sum(), value[: position + 1])[0])
        return np.array(rows)


def counted_forward(model: Model, num_tokens: int, *, seed: int = 0) -> int:
    """FLOP of a forward pass of a GQA transformer with gated MLP or top-k experts, by running it."""
    random = np.random.default_rng(seed)
    counter = Counter()
    hidden, head_dim = model.hidden_size, 128

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(size=(rows, columns)) / np.sqrt(rows)

    def gated(x: np.ndarray, width: int) -> np.ndarray:
        gate, up = counter.product(x, matrix(hidden, width)), counter.product(x, matrix(hidden, width))
        return counter.product(gate / (1 + np.exp(-gate)) * up, matrix(width, hidden))

    x = random.normal(size=(num_tokens, hidden))
    for layer in model.layers:
        for _ in range(layer.num_layers):
            heads, kv_heads = layer.attention.num_heads, layer.attention.num_kv_heads
            query = counter.product(x, matrix(hidden, heads * head_dim))
            key = counter.product(x, matrix(hidden, kv_heads * head_dim))
            value = counter.product(x, matrix(hidden, kv_heads * head_dim))
            mixed = []
            for head in range(heads):
                shared = head * kv_heads // heads
                part, kv_part = (slice(i * head_dim, (i + 1) * head_dim) for i in (head, shared))
                mixed.append(counter.attend(query[:, part], key[:, kv_part], value[:, kv_part]))
            x = x + counter.product(np.concatenate(mixed, axis=1), matrix(heads * head_dim, hidden))
            mlp = layer.mlp
            if not mlp.is_moe:
                x = x + gated(x, mlp.dense_params // (3 * hidden))
                continue
            chosen = np.argsort(counter.product(x, matrix(hidden, mlp.num_experts)))[:, -mlp.num_active_experts :]
            added = np.zeros_like(x)
            for expert in range(mlp.num_experts):
                visitors = np.flatnonzero((chosen == expert).any(axis=1))
                if len(visitors):
                    added[visitors] += gated(x[visitors], mlp.expert_hidden_size)
            x = x + added
    counter.product(x, matrix(hidden, model.vocab_size))
    return counter.flop


def tiny_moe() -> Model:
    dense = dense_model(hidden=256, layers=2, heads=4, kv_heads=2, width=96, vocab=300)
    experts = Mlp(
        dense_params=8 * 256, other_params=0, num_gemms=1, num_experts=8, num_active_experts=3,
        params_per_expert=3 * 256 * 48, expert_hidden_size=48, saved_elements_per_token=0.0,
        saved_elements_per_routed_token=0.0, replicated_saved_elements_per_token=512.0,
    )  # fmt: skip
    first = dense.layers[0]
    sparse: LayerClass = replace(first, name="sparse", mlp=experts)
    return replace(dense, layers=(replace(first, num_layers=1), sparse))


@pytest.mark.parametrize("num_tokens", [1, 2, 9])
@pytest.mark.parametrize(
    "model",
    [
        dense_model(hidden=256, layers=2, heads=4, kv_heads=2, width=96, vocab=300),
        dense_model(hidden=128, layers=2, heads=3, kv_heads=1, width=40, vocab=77),
        tiny_moe(),
    ],
    ids=["gqa", "one kv head", "moe"],
)
def test_work_is_what_a_transformer_really_multiplies(model: Model, num_tokens: int) -> None:
    work = forward_flop(model, Head.VOCABULARY, Lengths.fixed(num_tokens))
    assert work == pytest.approx(counted_forward(model, num_tokens), rel=1e-12)


def counted_backward_of_product(rows: int, inner: int, columns: int, *, is_frozen: bool) -> int:
    """FLOP of the gradients of rows x inner times inner x columns: of the input, and of the weights."""
    counter = Counter()
    gradient = np.ones((rows, columns))
    counter.product(gradient, np.ones((inner, columns)).T)
    if not is_frozen:
        counter.product(np.ones((rows, inner)).T, gradient)
    return counter.flop


@pytest.mark.parametrize("rank", [None, 4])
def test_backward_without_attention_is_two_products_per_product(rank: int | None) -> None:
    model = dense_model(hidden=256, layers=1, heads=4, kv_heads=2, width=96, vocab=300)
    layer = model.layers[0]
    model = replace(model, layers=(replace(layer, attention=replace(layer.attention, score_flop_per_pair=0.0)),))
    shapes = [(256, 512), (256, 256), (256, 256), (512, 256), (256, 96), (256, 96), (96, 256), (256, 300)]
    expected = sum(counted_backward_of_product(5, *shape, is_frozen=rank is not None) for shape in shapes)
    got = backward_flop(model, Head.VOCABULARY, Lengths.fixed(5), rank)
    if rank is None:
        assert got == pytest.approx(expected, rel=1e-12)
    else:
        # 4 fused linear maps per layer in the cost model's adapters; their own products come on top
        assert expected < got < 1.1 * expected


def test_recomputation_runs_the_layers_again() -> None:
    model, lengths = load_model("qwen3-8b"), Lengths.fixed(4096)
    plain = training_flop(model, Head.VOCABULARY, lengths, lora_rank=None)
    full = training_flop(model, Head.VOCABULARY, lengths, lora_rank=None, is_recomputed=True)
    assert full - plain == pytest.approx(layers_flop(model, lengths))
    assert plain == pytest.approx(3 * forward_flop(model, Head.VOCABULARY, lengths))


# ---------------------------------------------------------------------------------------------- reference values


@pytest.mark.parametrize(
    ("actor", "prompts", "expected"),
    [
        ("llama-2-7b", 128, (3.569e15, 3.605e15, 3.536e15, 1.081e16, 1.061e16, 3.567e16)),
        ("llama-2-70b", 512, (1.466e17, 1.469e17, 1.414e16, 4.408e17, 4.243e16, 8.050e17)),
    ],
)
def test_ppo_with_a_7b_critic(actor: str, prompts: int, expected: tuple[float, ...]) -> None:
    """BF16, S = T = 1024, 32,000 tokens of vocabulary; generation, reference, critic, both updates, total."""
    policy, critic = load_model(actor), load_model("llama-2-7b")
    lengths = Lengths.fixed(2048)
    found = (
        rollout_flop(policy, rollouts(prompts, 1024, 1024)),
        prompts * forward_flop(policy, Head.VOCABULARY, lengths),
        prompts * forward_flop(critic, Head.TOKEN_SCALAR, lengths),
        prompts * training_flop(policy, Head.VOCABULARY, lengths, lora_rank=None),
        prompts * training_flop(critic, Head.TOKEN_SCALAR, lengths, lora_rank=None),
    )
    reward = prompts * forward_flop(critic, Head.SEQUENCE_SCALAR, lengths)
    assert (*found, sum(found) + reward) == pytest.approx(expected, rel=0.01)


def test_grpo_with_a_32b_actor() -> None:
    """64 prompts x 16, S = 1024, every response at the mean of 8192."""
    model, lengths = load_model("qwen2.5-32b"), Lengths.fixed(1024 + 8192)
    load = rollouts(1024, 1024, 8192, shared=16)
    shared, alone = rollout_flop(model, load), rollout_flop(model, load, shares_prefix=False)
    reference = 1024 * forward_flop(model, Head.VOCABULARY, lengths)
    update = 1024 * training_flop(model, Head.VOCABULARY, lengths, lora_rank=None)
    assert (shared, alone, reference, update) == pytest.approx((5.970e17, 6.590e17, 6.607e17, 1.982e18), rel=0.01)
    assert shared + reference + update == pytest.approx(3.240e18, rel=0.01)
    one = np.ones(1)
    kv_bytes = sum(x.num_layers * x.attention.kv_elements_per_token * 2 for x in model.layers)
    assert 1024 * (1024 + 8192) * kv_bytes / 2**40 == pytest.approx(2.25, rel=0.01)
    # The longest chain at TP 8 on H100, weights only.
    weights = decode_weight_bytes(model, Precision.BF16, 1, 0.0)
    assert 32768 * weights / (8 * 3.35e12) == pytest.approx(78, rel=0.01)
    assert cache_read_bytes(model, 1024, lengths, one) > 0


def test_hbm_and_chain_of_the_ppo_settings() -> None:
    small, large = load_model("llama-2-7b"), load_model("llama-2-70b")
    cached = 128 * float(cache_read_bytes(small, 1024, Lengths.fixed(2048), np.ones(1))[0])
    # 6.6 s of 8 x A100 with 2.0 TB/s
    assert cached / (8 * 2.0e12) == pytest.approx(6.6, rel=0.01)
    weights = 1024 * decode_weight_bytes(small, Precision.BF16, 1, 0.0)
    assert (cached + weights) / (8 * 2.0e12) == pytest.approx(7.4, rel=0.01)
    assert 1024 * decode_weight_bytes(large, Precision.BF16, 1, 0.0) / (8 * 3.35e12) == pytest.approx(5.25, rel=0.01)


@pytest.mark.parametrize(
    ("actor", "critic", "longest", "mini_batches", "samples", "least"),
    [
        ("llama-2-7b", "llama-2-7b", 1024, 8, 128, 0.98),
        ("llama-2-70b", "llama-2-7b", 1024, 8, 512, 0.98),
        ("qwen2.5-32b", None, 32768, 4, 1024, 0.999),
    ],
)
def test_generation_is_nearly_all_of_the_depth(
    actor: str, critic: str | None, longest: int, mini_batches: int, samples: int, least: float
) -> None:
    model = load_model(actor)
    load = equal(samples, 1024 + longest)
    rollout = generation_depth(model, 1024, longest)
    scored = forward_depth(model, Head.VOCABULARY, 1024 + longest)
    update = training_depth(model, Head.VOCABULARY, load, num_optimizer_steps=mini_batches, num_epochs=1)
    if critic is not None:
        value = load_model(critic)
        scored = max(scored, forward_depth(value, Head.TOKEN_SCALAR, 1024 + longest))
        trained = training_depth(value, Head.TOKEN_SCALAR, load, num_optimizer_steps=mini_batches, num_epochs=1)
        update = max(update, trained)
    assert rollout / (rollout + scored + gae_depth(longest) + update) >= least


# ---------------------------------------------------------------------------------------------- depth


def test_contractions_of_multi_head_attention() -> None:
    """L log2(d**4 d_ff m / h) where the heads together are as wide as the model."""
    model = load_model("llama-2-7b")
    (layer,) = model.layers
    got = float(contraction_levels(layer, 4096, 2048, np.array([2048.0]))[0])
    assert got == pytest.approx(np.log2(4096.0**4 * 11008 * 2048 / 32), rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 32])
def test_tensor_parallelism_never_changes_depth(tp: int) -> None:
    """A contraction over d elements is log2(d / t) deep on each of t ranks and log2(t) deep between them.

    Run as a DAG: partial sums by pairs on each rank, then ranks by pairs.
    """

    def tree(num_leaves: int) -> int:
        depth = 0
        while num_leaves > 1:
            num_leaves = -(-num_leaves // 2)
            depth += 1
        return depth

    for length in (4096, 11008, 5120):
        if length % tp == 0 and tp & (tp - 1) == 0:
            assert tree(length // tp) + tree(tp) == tree(length)
    # and no depth takes a strategy: seconds do, since ranks bring bandwidth and latency
    site = Site(node=generic_node("h100"), overheads=load_overheads(), memory_margin_ratio=0.1)
    model = load_model("qwen3-32b")
    floors = decode_step_floor_s(model, Precision.BF16, np.array([1.0, float(tp)]), site)
    assert floors[1] <= floors[0] or tp > 8


def test_depth_follows_the_longest_response_and_not_the_mean() -> None:
    model = load_model("qwen3-8b")
    law = LengthLaw(mean_tokens=1000, cv=0.8, max_tokens=16384)
    few, many = law.expected_maximum(16), law.expected_maximum(4096)
    assert generation_depth(model, 512, many) > 1.5 * generation_depth(model, 512, few)
    assert generation_depth(model, 512, few) > 1.5 * generation_depth(model, 512, law.mean_tokens)


def test_depth_of_generation_is_a_sum_over_tokens() -> None:
    model = load_model("gemma-3-4b")
    contexts = np.array([100.0 + t for t in range(1, 2000)])
    steps = [float(forward_levels(model, Head.VOCABULARY, 1.0, np.array([c]))[0]) for c in contexts]
    expected = forward_depth(model, Head.VOCABULARY, 100) + sum(steps)
    assert generation_depth(model, 100, 2000) == pytest.approx(expected, rel=1e-12)


def test_depth_of_updates_grows_with_sequential_steps_and_not_with_the_batch() -> None:
    model = load_model("qwen3-8b")

    def depth(samples: int, steps: int, epochs: int = 1) -> float:
        return training_depth(
            model, Head.VOCABULARY, equal(samples, 4096), num_optimizer_steps=steps, num_epochs=epochs
        )

    assert depth(64, 1, 3) == pytest.approx(3 * depth(64, 1))
    assert depth(256, 4) == pytest.approx(4 * depth(64, 1))
    assert depth(64 * 1024, 1) - depth(64, 1) == pytest.approx(10)  # log2 of 1,024 times the tokens


def test_advantages_are_logarithmic_and_waves_are_counted() -> None:
    assert gae_depth(4096) == pytest.approx(2 * 12)
    assert group_depth(16) == pytest.approx(2 * 4)
    assert [num_waves(1024, slots) for slots in (1024, 1023, 512, 100, 2000)] == [1, 2, 2, 11, 1]
