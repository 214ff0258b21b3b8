"""Every model of the catalog: sources, parameter counts against published ones, cache sizes."""

from __future__ import annotations

import pytest

from planner.files.catalog import ModelEntry, find_catalog_model, list_models, load_model

ENTRIES = {entry.id: entry for entry in list_models()}
IDS = sorted(ENTRIES)

# The published number is the size in the name, rounded, or counts something that the text model does not have.
_NAME = "size label of the name"
_TEXT_PART = "size label of the name; the catalog holds the text part only"
_VISION = "includes the vision tower"
_TOWERS = "includes the towers of images and sound"
NOT_EXACT = {
    "deepseek-llm-7b": _NAME,
    "glm-4.5": _NAME,
    "glm-4.5-air": _NAME,
    "gemma-4-e2b": _TOWERS,
    "gemma-4-e4b": _TOWERS,
    "glm-4.6": _NAME,
    "hy3": _NAME,
    "llama-4-maverick": _VISION,
    "llama-4-scout": _VISION,
    "mimo-7b": "includes the multi-token-prediction layer",
    "minimax-m2": _NAME,
    "nemotron-3-super-120b-a12b": _NAME,
    "nemotron-3-ultra-550b-a55b": _NAME,
    "qwen3-0.6b": _NAME,
    "qwen3-1.7b": _NAME,
    "qwen3-4b": _NAME,
    "qwen3-coder-480b-a35b": _NAME,
    "qwen3-next-80b-a3b": _NAME,
    "qwen3-vl-4b": _NAME,
    "qwen3.5-0.8b": _TEXT_PART,
    "qwen3.5-122b-a10b": _NAME,
    "qwen3.5-27b": _NAME,
    "qwen3.5-2b": _TEXT_PART,
    "qwen3.5-35b-a3b": _NAME,
    "qwen3.5-397b-a17b": _NAME,
    "qwen3.5-4b": _TEXT_PART,
    "qwen3.5-9b": _NAME,
    "seed-oss-36b": _NAME,
}

# Gemma 4 publishes parameters without the table of the per-layer embeddings, which is looked up.
EFFECTIVE_BILLION = {"gemma-4-e2b": 2.3, "gemma-4-e4b": 4.5}

# Stored totals that hold more than the text model's parameters, see the notes of the entries.
STORED_MORE = {"deepseek-v3", "glm-4.5", "kimi-k2"}


def test_the_catalog_is_complete() -> None:
    assert len(IDS) == 73 + 14 + 8 + 12
    wanted = (
        "qwen2-0.5b qwen2-1.5b qwen2-7b qwen2-57b-a14b qwen2-72b internlm2-1.8b internlm2-7b internlm2-20b "
        "phi-3-mini phi-3-medium nemotron-4-340b kimi-k2.5 llama-3-8b llama-3-70b deepseek-llm-7b gemma-2-2b "
        "gemma-4-31b gemma-4-26b-a4b gemma-4-e2b gemma-4-e4b glm-4-9b-0414 glm-4.7-flash hy3 nemotron-nano-12b-v2 "
        "nemotron-nano-9b-v2 nemotron-3-ultra-550b-a55b qwen3.5-2b seed-oss-36b "
        "gemma-3-1b mistral-nemo-12b qwen1.5-moe-a2.7b qwen3-vl-2b qwen3-vl-235b-a22b mimo-7b"
    )
    assert set(wanted.split()) <= set(IDS)


@pytest.mark.parametrize("model_id", IDS)
def test_provenance(model_id: str) -> None:
    entry = ENTRIES[model_id]
    assert entry.id == model_id and entry.title
    assert entry.source and entry.date and entry.published.source
    assert entry.confidence in {"low", "medium", "high"}
    assert entry.published.is_exact is (model_id not in NOT_EXACT)
    assert entry.published.is_exact or entry.published.note


@pytest.mark.parametrize("model_id", [m for m in IDS if m not in NOT_EXACT])
def test_total_parameters_are_within_one_percent(model_id: str) -> None:
    published = ENTRIES[model_id].published.total_billion
    assert load_model(model_id).num_params == pytest.approx(published * 1e9, rel=0.01)


@pytest.mark.parametrize("model_id", sorted(set(NOT_EXACT) - set(EFFECTIVE_BILLION)))
def test_name_labels_are_near(model_id: str) -> None:
    published = ENTRIES[model_id].published.total_billion
    assert load_model(model_id).num_params == pytest.approx(published * 1e9, rel=0.07)


@pytest.mark.parametrize("model_id", sorted(EFFECTIVE_BILLION))
def test_effective_parameters_leave_the_per_layer_table_out(model_id: str) -> None:
    model = load_model(model_id)
    effective = model.num_params - model.extra_params
    assert effective == pytest.approx(EFFECTIVE_BILLION[model_id] * 1e9, rel=0.035)
    assert effective + model.extra_params < ENTRIES[model_id].published.total_billion * 1e9


def test_layers_of_gemma_4_that_share_have_no_projections_of_keys_and_values() -> None:
    model = load_model("gemma-4-e2b")
    own, shared = model.layers[0], model.layers[2]
    assert own.attention.window_tokens == shared.attention.window_tokens == 512
    assert own.attention.matmul_params - shared.attention.matmul_params == 1536 * 2 * 256
    assert shared.mlp.dense_params - own.mlp.dense_params == 3 * 1536 * 6144
    assert sum(layer.num_layers for layer in model.layers if layer.attention.window_tokens is None) == 7


def test_full_layers_of_gemma_4_have_one_projection_for_keys_and_values() -> None:
    windowed, full = load_model("gemma-4-31b").layers
    assert windowed.attention.matmul_params == 5376 * (2 * 32 * 256 + 2 * 16 * 256)
    assert full.attention.matmul_params == 5376 * (2 * 32 * 512 + 4 * 512)
    assert full.attention.kv_elements_per_token == 2 * 4 * 512


STORED = [m for m in IDS if ENTRIES[m].published.stored_total is not None and m not in STORED_MORE]


def test_there_are_stored_totals() -> None:
    assert len(STORED) >= 8


@pytest.mark.parametrize("model_id", STORED)
def test_stored_totals_are_exact(model_id: str) -> None:
    assert load_model(model_id).num_params == ENTRIES[model_id].published.stored_total


def _active_candidates(entry: ModelEntry) -> list[float]:
    """Publishers count both vocabulary tables, one of them, or none."""
    model = load_model(entry.id)
    table = float(model.embedding_params)
    return [model.num_active_params - share * table for share in (0, 1, 2)]


@pytest.mark.parametrize("model_id", [m for m in IDS if ENTRIES[m].published.active_billion is not None])
def test_active_parameters_agree_with_one_way_of_counting(model_id: str) -> None:
    active = ENTRIES[model_id].published.active_billion
    assert active is not None
    errors = [abs(value / 1e9 / active - 1) for value in _active_candidates(ENTRIES[model_id])]
    # Names such as A3B are rounded to whole billions.
    tolerance = 0.5 / active if active == round(active) else 0.03
    assert min(errors) <= max(tolerance, 0.03)


@pytest.mark.parametrize("model_id", IDS)
def test_the_first_layers_of_a_model_are_a_smaller_model(model_id: str) -> None:
    whole, part = load_model(model_id), find_catalog_model(model_id, num_layers=12)
    assert part is not None
    assert part.num_layers == 12
    assert part.num_params < whole.num_params
    assert (part.hidden_size, part.vocab_size) == (whole.hidden_size, whole.vocab_size)


@pytest.mark.parametrize("model_id", IDS)
def test_shapes_are_plausible(model_id: str) -> None:
    model = load_model(model_id)
    assert 1 <= model.num_layers <= 200
    assert 256 <= model.hidden_size <= 32768
    assert 30_000 <= model.vocab_size <= 300_000
    assert 0 < model.num_active_params <= model.num_params
    assert model.is_moe is (model.num_active_params < model.num_params)
    assert len({layer.name for layer in model.layers}) == len(model.layers)
    for layer in model.layers:
        attention, mlp = layer.attention, layer.mlp
        assert attention.num_gemms + mlp.num_gemms > 0 or layer.norm_params == 0
        has_cache = attention.kv_elements_per_token > 0
        has_state = attention.state_elements_per_sequence > 0
        assert has_cache + has_state == (0 if attention.kind in {"none", "linear"} else 1)
        assert attention.saved_elements_per_token > 0 or not (has_cache or has_state)
        assert mlp.is_moe is (mlp.saved_elements_per_routed_token > 0)


def test_published_kv_cache_sizes() -> None:
    """Bytes per token in bf16, equal to the `kv_size_per_token` of PyPI aiconfigurator-core 0.12.0."""

    def kv_bytes(model_id: str) -> float:
        layers = load_model(model_id).layers
        return 2 * sum(layer.num_layers * layer.attention.kv_elements_per_token for layer in layers)

    assert kv_bytes("qwen3-32b") == 2 * 64 * 2 * 8 * 128 == 262_144
    assert kv_bytes("qwen3-30b-a3b") == 2 * 48 * 2 * 4 * 128 == 98_304
    assert kv_bytes("deepseek-v3") == 2 * 61 * (512 + 64) == 70_272
    assert not load_model("deepseek-v3").layers[0].attention.kv_is_sharded_by_tp


def test_mtp_parameters_match_the_published_checkpoint() -> None:
    # DeepSeek-V3 stores 684.531 B: main model, MTP layer, its copies of both tables and fp8 scales.
    model = load_model("deepseek-v3")
    assert model.mtp_params == pytest.approx(11.610e9, rel=1e-3)
    stored = model.num_params + model.mtp_params + 2 * model.embedding_params
    assert stored == pytest.approx(684.531e9, rel=2e-4)


def test_names_are_unique_and_lead_to_their_model() -> None:
    seen: dict[str, str] = {}
    for entry in ENTRIES.values():
        for name in (entry.id, *entry.aliases):
            assert seen.setdefault(name.lower(), entry.id) == entry.id
            assert load_model(name.upper()).id == entry.id
    tails: dict[str, str] = {}
    for entry in ENTRIES.values():
        for name in entry.aliases:
            tail = name.lower().rpartition("/")[2]
            assert tails.setdefault(tail, name) == name, f"{tail} is ambiguous"


def test_the_first_name_is_the_repository() -> None:
    for entry in ENTRIES.values():
        if entry.hf_repo:
            assert load_model(entry.id).hf_repo == entry.aliases[0] == entry.hf_repo


def test_aliases_can_differ_from_their_entry() -> None:
    base, distilled = load_model("qwen2.5-1.5b"), load_model("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    assert base.is_embedding_tied and not distilled.is_embedding_tied
    assert distilled.num_params == pytest.approx(1.777e9, rel=1e-3)
    assert load_model("Qwen/Qwen3-4B-Instruct-2507").max_positions == 262_144
    assert load_model("mistralai/Mistral-7B-Instruct-v0.2").layers[0].attention.window_tokens is None
    assert load_model("mistral-7b-v0.1").layers[0].attention.window_tokens == 4096
