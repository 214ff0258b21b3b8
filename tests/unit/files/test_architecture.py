"""Families of `config.json`: parameters, attention, saved activations, and refusal of what is not understood."""

from __future__ import annotations

import random
from typing import Any

import pytest

from planner.domain.model import LayerClass, Model
from planner.errors import InvalidInputError
from planner.files.architecture import build_model, model_types
from planner.files.catalog import list_models, load_model
from planner.files.config_fields import looks_structural

Config = dict[str, Any]


def _build(config: Config) -> Model:
    return build_model(config, model_id="m", hf_repo="org/m", where="config.json")


def llama(**changes: object) -> Config:
    config: Config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value != "drop"}


def deepseek(**changes: object) -> Config:
    config: Config = {
        **llama(model_type="deepseek_v3", num_key_value_heads=8),
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value != "drop"}


def _only(model: Model) -> LayerClass:
    assert len(model.layers) == 1
    return model.layers[0]


def test_llama_counts() -> None:
    model = _build(llama())
    attention = 64 * (8 + 2 * 2) * 8 + 64 * 64
    layer = attention + 3 * 64 * 160 + 2 * 64
    assert model.num_params == 4 * layer + 2 * 1000 * 64 + 64
    assert model.num_active_params == model.num_params
    assert (model.num_layers, model.max_positions, model.is_embedding_tied) == (4, 2048, False)


def test_tied_embeddings_are_stored_once() -> None:
    assert _build(llama()).num_params - _build(llama(tie_word_embeddings=True)).num_params == 1000 * 64


def test_biases_are_stored_but_not_multiplied() -> None:
    plain, biased = _only(_build(llama())), _only(_build(llama(attention_bias=True, mlp_bias=True)))
    assert biased.attention.other_params - plain.attention.other_params == (8 + 2 * 2) * 8 + 64
    assert biased.mlp.other_params == 2 * 160 + 64
    assert biased.active_matmul_params == plain.active_matmul_params


def test_gqa_flop_cache_and_saved_activations() -> None:
    model = load_model("llama-3.1-8b")
    layer = _only(model)
    h, q, kv, f, heads = 4096, 4096, 1024, 14336, 32
    assert layer.attention.score_flop_per_pair == 4 * q
    assert layer.attention.kv_elements_per_token == 2 * kv
    # bytes per token before dividing: norms 4h each, q, k, v, output, fp32 log-sum-exp, gate, up, product
    attention_bytes = 2 * (q + 2 * kv) + 2 * q + 4 * heads
    mlp_bytes = 4 * f + 2 * f
    assert 2 * layer.attention.saved_elements_per_token == attention_bytes
    assert 2 * layer.attention.replicated_saved_elements_per_token == 4 * h
    assert 2 * layer.mlp.saved_elements_per_token == mlp_bytes
    assert 2 * layer.mlp.replicated_saved_elements_per_token == 4 * h


def test_mla_flop_cache_and_saved_activations() -> None:
    model = load_model("deepseek-v3")
    dense, moe = model.layers
    assert (dense.num_layers, moe.num_layers) == (3, 58)
    n, h, ql, kl, dn, dr, dv = 128, 7168, 1536, 512, 128, 64, 128
    attention = moe.attention
    assert attention.score_flop_per_pair == 2 * n * (dn + dr + dv)
    saved_bytes = (
        4 * ql + 2 * n * (dn + dr) + 2 * (kl + dr) + 2 * kl + 2 * n * (dn + dv) + 2 * n * (dn + dr) + 2 * n * dv + 2 * h
    )
    assert 2 * attention.saved_elements_per_token == saved_bytes
    assert 2 * moe.mlp.saved_elements_per_routed_token == 4 * h + 6 * 2048
    assert 2 * moe.mlp.saved_elements_per_token == 6 * 2048
    assert (moe.mlp.num_experts, moe.mlp.num_active_experts, moe.mlp.expert_hidden_size) == (256, 8, 2048)


def test_mla_without_query_rank() -> None:
    with_rank, without = _build(deepseek()), _build(deepseek(q_lora_rank=None))
    query = 8 * (8 + 4)
    per_layer = (64 * 32 + 32 + 32 * query) - 64 * query
    assert with_rank.num_params - without.num_params == 4 * per_layer


def test_shared_experts_and_dense_first_layers() -> None:
    model = _build(deepseek(first_k_dense_replace=2, n_shared_experts=2))
    assert [layer.num_layers for layer in model.layers] == [2, 2]
    assert model.layers[1].mlp.dense_params == 16 * 64 + 3 * 64 * 48
    assert model.layers[1].expert_params == 16 * 3 * 64 * 24


def test_sparse_attention_indexer_pays_per_pair_and_caps_the_rest() -> None:
    plain = load_model("deepseek-v3").layers[0].attention
    indexed = load_model("deepseek-v3.2").layers[0].attention
    assert indexed.score_flop_per_pair == 2 * 64 * 128 < plain.score_flop_per_pair
    assert indexed.state_flop_per_token == 2048 * 2 * 128 * (512 + 64 + 512)
    assert indexed.kv_elements_per_token == plain.kv_elements_per_token + 128 / 2 + 2


def _windows(model: Model) -> dict[int | None, int]:
    return {layer.attention.window_tokens: layer.num_layers for layer in model.layers}


@pytest.mark.parametrize(
    ("model_id", "expected"),
    [
        ("gpt-oss-20b", {128: 12, None: 12}),
        ("gemma-3-27b", {1024: 52, None: 10}),
        ("gemma-2-9b", {4096: 21, None: 21}),
        ("olmo-3-7b", {4096: 24, None: 8}),
        ("llama-4-scout", {8192: 36, None: 12}),
        ("qwen3-8b", {None: 36}),
    ],
)
def test_sliding_windows(model_id: str, expected: dict[int | None, int]) -> None:
    assert _windows(load_model(model_id)) == expected


def test_qwen_window_starts_at_a_layer() -> None:
    config = llama(model_type="qwen2", use_sliding_window=True, sliding_window=512, max_window_layers=3)
    assert _windows(_build(config)) == {None: 3, 512: 1}
    config["use_sliding_window"] = False
    assert _windows(_build(config)) == {None: 4}


def test_llama4_lists_override_its_intervals() -> None:
    config = llama(
        model_type="llama4_text",
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        intermediate_size_mlp=320,
        attention_chunk_size=256,
        no_rope_layers=[1, 0, 0, 1],
        moe_layers=[3],
    )
    model = _build(config)
    assert _windows(_build({**config, "moe_layers": [0, 1, 2, 3]})) == {256: 2, None: 2}
    assert sum(layer.num_layers for layer in model.layers if layer.mlp.is_moe) == 1
    with pytest.raises(InvalidInputError, match="no_rope_layers"):
        _build({**config, "no_rope_layers": [1, 0]})


def test_hybrids_have_states_instead_of_caches() -> None:
    linear, full = load_model("qwen3-next-80b-a3b").layers
    assert (linear.num_layers, full.num_layers) == (36, 12)
    state, conv = 32 * 128 * 128, (2 * 16 * 128 + 32 * 128) * 3
    assert linear.attention.state_elements_per_sequence in (state + conv, 2 * state + conv)
    assert linear.attention.kv_elements_per_token == 0
    assert full.attention.kv_elements_per_token == 2 * 2 * 256
    lightning = load_model("minimax-m1").layers[0].attention
    assert (lightning.kind, lightning.state_elements_per_sequence) == ("lightning", 2 * 64 * 128 * 128)


def test_mamba_hybrid_layers_hold_one_mixer_each() -> None:
    model = load_model("nemotron-3-nano-30b-a3b")
    kinds = {layer.name: layer.num_layers for layer in model.layers}
    assert kinds == {"mamba2": 23, "moe": 23, "gqa": 6}
    mamba = next(layer.attention for layer in model.layers if layer.attention.kind == "mamba2")
    # 64 heads x 64 x 128 states in fp32, and three columns of (4096 + 2 x 8 x 128) convolution inputs
    assert mamba.state_elements_per_sequence == 2 * 64 * 64 * 128 + (4096 + 2048) * 3


def test_squared_relu_is_ungated() -> None:
    layer = _only(load_model("nemotron-4-340b"))
    assert layer.mlp.dense_params == 2 * 18432 * 73728
    assert layer.norm_params == 4 * 18432  # LayerNorm has scale and bias


def test_text_part_of_a_multimodal_config() -> None:
    assert load_model("kimi-k2.5").num_params == load_model("kimi-k2").num_params
    config = {"model_type": "mistral3", "text_config": llama(model_type="mistral"), "vision_config": {"hidden_size": 8}}
    assert _build(config).num_params == _build(llama(model_type="mistral")).num_params


def test_unknown_families_are_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidInputError, match=r"'qwen3_mo' is not understood.*did you mean 'qwen3_moe'"):
        _build(llama(model_type="qwen3_mo"))
    with pytest.raises(InvalidInputError, match="block-sparse attention"):
        _build(llama(model_type="phi3small"))
    with pytest.raises(InvalidInputError, match="with a text_config"):
        _build({"model_type": "gemma9", "text_config": llama()})
    assert "phi3small" not in model_types()


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "model_type"])
def test_missing_and_null_keys_are_named(key: str) -> None:
    with pytest.raises(InvalidInputError, match=f"'{key}' is missing"):
        _build(llama(**{key: "drop"}))
    with pytest.raises(InvalidInputError, match=f"'{key}' is null"):
        _build(llama(**{key: None}))


@pytest.mark.parametrize("value", [0, -1, 10**30, 1.5, "64", True, [64], {}, float("nan"), float("inf")])
def test_wrong_sizes_are_refused(value: object) -> None:
    for key in ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"):
        with pytest.raises(InvalidInputError, match=key):
            _build(llama(**{key: value}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 8}, "num_experts"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"attention_sink_size": 4}, "attention_sink_size"),
        ({"sliding_window": 512}, "sliding_window"),
        ({"kv_lora_rank": 64}, "kv_lora_rank"),
        ({"ssm_state_size": 16}, "ssm_state_size"),
        ({"altup_num_inputs_latent": 4}, "altup_num_inputs_latent"),
        ({"cross_layer_groups": 2}, "cross_layer_groups"),
        ({"quantization": {"bits": 4}}, "quantization"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantisation 'awq'"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads"),
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, "not a multiple of num_attention_heads"),
    ],
)
def test_structure_that_is_not_understood_is_refused(changes: Config, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        _build(llama(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"factor": 8.0}, "transformers_version": "5.0", "use_cache": True, "pad_token_id": 0},
        {"attention_dropout": 0.1, "hidden_act": "silu", "output_hidden_states": False, "pretraining_tp": 1},
        {"num_experts": None, "sliding_window": None, "pruned_heads": {}, "cross_attention_hidden_size": None},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
    ],
)
def test_harmless_keys_change_nothing(changes: Config) -> None:
    assert _build(llama(**changes)) == _build(llama())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 17}, "num_experts_per_tok"),
        ({"first_k_dense_replace": 5}, "first_k_dense_replace"),
        ({"q_lora_rank": "drop"}, "q_lora_rank"),
        ({"index_n_heads": 4}, "index_n_heads"),
    ],
)
def test_wrong_moe_and_mla_values(changes: Config, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        _build(deepseek(**changes))


def test_layer_types_are_checked() -> None:
    base = llama(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=128)
    with pytest.raises(InvalidInputError, match="3 entries"):
        _build({**base, "layer_types": ["full_attention"] * 3})
    with pytest.raises(InvalidInputError, match="gated_attention"):
        _build({**base, "layer_types": ["gated_attention"] * 4})
    with pytest.raises(InvalidInputError, match="'sliding_window' is not given"):
        _build({**base, "layer_types": ["sliding_attention"] * 4, "sliding_window": None})


def test_structural_names() -> None:
    for key in ("n_experts", "q_head_dim", "conv_kernel", "index_topk_groups", "kv_rank", "altup_hidden", "mlp_type"):
        assert looks_structural(key)
    for key in ("rope_theta", "use_cache", "vocab_file", "temperature", "initializer_range", "norm_eps"):
        assert not looks_structural(key)


_JUNK = (None, -1, 0, 1, 3, 10**12, 0.5, "x", "", [], [[]], [1, "a"], {}, {"a": 1}, True, False)


@pytest.mark.parametrize("entry", list_models(), ids=lambda entry: entry.id)
def test_damaged_configs_give_a_model_or_a_clear_error(entry: Any) -> None:
    """Any one key of a real config replaced by junk: never another exception, never a silent half-model."""
    import json
    from importlib.resources import files

    raw = json.loads(files("models_catalog").joinpath(f"{entry.id}.json").read_text(encoding="utf-8"))
    config = raw["config"]
    inner = config.get("text_config", config)
    rng = random.Random(entry.id)
    for key in sorted(inner):
        damaged = {**inner, key: rng.choice(_JUNK)}
        whole = {**config, "text_config": damaged} if "text_config" in config else damaged
        try:
            model = _build(whole)
        except InvalidInputError as error:
            assert "config.json" in str(error)
        else:
            assert model.num_params > 0
