"""Reading of Hugging Face `config.json`: which keys say something about the shape, and limits of their values.

A family reads the keys that it understands. What is left over is ignored if it cannot change the shape of the
network; a left-over key whose name looks structural is an error, because ignoring it would be a guess.
"""

from __future__ import annotations

import re

from planner.errors import InvalidInputError, nearest
from planner.files.fields import Fields, short

MAX_SIZE = 4_000_000
MAX_VOCABULARY = 20_000_000
MAX_LAYERS = 2_000
MAX_POSITIONS = 1_000_000_000

_STRUCTURAL_PARTS = ("heads", "expert", "hidden", "intermediate", "window", "layers", "latent", "attention", "sparse")
_STRUCTURAL_WORD_TEXT = (
    "head dim dims rank state conv group groups attn mlp moe mamba ssm lora kv qk mtp nextn block blocks kernel "
    "shared width depth layer bias"
)
_STRUCTURAL_WORDS = frozenset(_STRUCTURAL_WORD_TEXT.split())

# Named like structure but without influence on parameter shapes, FLOP or cache: activation names, dropout,
# epsilons, routing details, numeric precision, kernel choices, generation defaults.
_IRRELEVANT_TEXT = """
    _attn_implementation attn_implementation attention_dropout attn_dropout attn_pdrop attention_dropout_prob
    attention_probs_dropout_prob attention_multiplier attn_logit_softcapping attn_temperature_tuning attn_scale
    attn_factor attention_in_fp32 attention_softmax_in_fp32 use_flash_attn use_flash_attention
    block_auto_adjust_ratio chunk_size_feed_forward clip_qkv
    embd_pdrop enable_attention_fp32_softmax enable_moe_fp32_combine
    encoder_no_repeat_ngram_size floor_scale full_attn_alpha_factor full_attn_beta_factor
    hidden_act hidden_activation hidden_dropout hidden_dropout_prob indexer_rope_interleave
    layer_norm_eps layer_norm_epsilon layernorm_epsilon layernorm_full_attention_alpha
    layernorm_full_attention_beta layernorm_linear_attention_alpha layernorm_linear_attention_beta
    layernorm_mlp_alpha layernorm_mlp_beta linear_attn_alpha_factor linear_attn_beta_factor
    mamba_hidden_act mlp_alpha_factor mlp_beta_factor mlp_hidden_act moe_router_activation_func
    moe_router_enable_expert_bias moe_router_use_sigmoid
    moe_shared_expert_overlap mtp_use_dedicated_embeddings n_group num_beam_groups num_logits_to_keep output_attentions
    output_hidden_states output_router_logits pruned_heads query_pre_attn_scalar routing_dim rotary_dim
    router_aux_loss_coef router_jitter_noise shared_moe_mode time_step_rank topk_group use_mamba_kernels
"""
_IRRELEVANT = frozenset(_IRRELEVANT_TEXT.split())

_CHECKPOINT_FORMATS = ("fp8", "mxfp4", "compressed-tensors")
"""Storage formats of published checkpoints that keep the shapes; frameworks dequantise them to bf16."""


class ConfigFields(Fields):
    """A `config.json` or its text part."""

    def size(self, key: str, *, default: int | None = None) -> int:
        """A width, a number of heads or of experts."""
        return self.count(key, limit=MAX_SIZE, default=default)

    def optional_size(self, key: str) -> int:
        """A width where missing, null and 0 all mean that there is none."""
        return self.count(key, limit=MAX_SIZE, default=0, minimum=0)

    def num_layers(self) -> int:
        return self.count("num_hidden_layers", limit=MAX_LAYERS)

    def must_be(self, key: str, *accepted: object) -> None:
        """Refuses a known key whose other values would need a different formula. Missing and null pass."""
        if self.has(key) and self.value(key) not in accepted:
            choices = ", ".join(str(a).lower() if isinstance(a, bool) else str(a) for a in accepted)
            raise InvalidInputError(
                f"{short(self.value(key))} is not modelled", where=self.place(key), accepted=choices
            )

    def check_divides(self, divisor_key: str, divisor: int, key: str, value: int) -> None:
        if value % divisor:
            raise InvalidInputError(f"{value} is not a multiple of {divisor_key} ({divisor})", where=self.place(key))

    def check_quantization(self) -> None:
        """Accepts storage formats that keep the logical shapes."""
        if self.has("quantization_config"):
            method = self.section("quantization_config").text("quant_method")
            if method not in _CHECKPOINT_FORMATS:
                raise InvalidInputError(
                    f"quantisation {method[:40]!r} is not understood; give the config of the unquantised model",
                    where=self.place("quantization_config"),
                    accepted=", ".join(_CHECKPOINT_FORMATS),
                )
        if self.has("quantization"):
            raise InvalidInputError("is not understood", where=self.place("quantization"))

    def finish_config(self, family: str) -> None:
        """Raises for left-over keys that look structural and are switched on."""
        for key in self.unread():
            if key in _IRRELEVANT or not looks_structural(key) or _is_off(self.value(key)):
                continue
            raise InvalidInputError(
                f"key {key[:60]!r} ({short(self.value(key))}) looks like part of the architecture, but is not "
                f"understood for model_type {family!r}",
                where=self.where,
                suggestion=nearest(key, self._read),
            )


def looks_structural(key: str) -> bool:
    """Whether a key's name suggests that it changes the shape of the network."""
    lowered = key.lower()
    words = set(re.split(r"[^a-z]+", lowered))
    return any(part in lowered for part in _STRUCTURAL_PARTS) or not words.isdisjoint(_STRUCTURAL_WORDS)


def _is_off(value: object) -> bool:
    """Null, false, zero and empty collections switch nothing on."""
    return value is None or value is False or value == 0 or value in ([], {}, "")
