"""What a trainer keeps for the backward pass, by recipe: module-wise recomputation, dropout, unfused attention.

The search uses `STANDARD` and the totals of `planner.cost.layout`; other recipes price published runs and
frameworks whose settings are known. Element counts follow arXiv 2205.05198 (see `planner.files.layer_parts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from planner.cost.layout import ModelTotals
from planner.domain.model import LayerClass, Model


class Module(StrEnum):
    """Parts of a layer that selective recomputation can leave out."""

    NORM = "layernorm"
    """Norm outputs."""
    ACTIVATION = "activation"
    """Outputs of activation functions in dense MLPs."""
    MOE_ACTIVATION = "moe_act"
    """The same inside routed experts."""
    MLP = "mlp"
    """Everything inside dense MLPs."""
    MOE = "moe"
    """Everything inside routed experts and shared experts."""
    MLA_UP_PROJECTION = "mla_up_proj"
    """Expanded queries, keys and values of multi-head latent attention."""
    EVERY_SECOND_PRODUCT = "every second matrix product"
    """Only layer inputs, attention outputs and every second matrix product are kept (torchtitan's `op` mode)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Precisions and kernels of a training run that its parallel strategy does not say. Bytes per parameter."""

    weight_bytes: float = 2.0
    gradient_bytes: float = 4.0
    """Gradients are reduced in fp32 (Megatron default; verl and NeMo-RL set it for FSDP)."""
    optimizer_bytes: float = 12.0
    """fp32 master weights and two fp32 moments; 8 with 16-bit moments."""
    sharded_weight_bytes: float = 4.0
    """Of a ZeRO-3 shard."""
    sharded_optimizer_bytes: float = 8.0
    """Beside the shard of weights."""
    frozen_bytes: float = 2.0
    """Of a base that LoRA leaves untouched, vocabulary tables apart."""
    fp8_bytes: float = 2.0
    """FP8 copies of a weight and of its transpose, kept beside the 16-bit weight."""
    has_fp8_inputs: bool = False
    """Inputs of linear layers are kept in FP8: one byte less for norm outputs, attention outputs, products."""
    has_root_unit: bool = True
    """FSDP gathers both vocabulary tables together (transformers); torchtitan wraps each."""
    logits_bytes: float | None = None
    """Live bytes per logit; None: the value of `Overheads`."""
    has_wgrad_buffer: bool = True
    """Gradient accumulation fused into weight-gradient products (Megatron)."""
    is_sequence_parallel: bool = True
    """Norms, residuals and dropout are sharded over TP."""
    has_dropout: bool = False
    """Hidden dropout keeps two one-byte masks per layer."""
    score_bytes_per_pair: float = 0.0
    """Kept per head and query-key pair: 0 with fused attention, 5 without (softmax, dropout mask and output)."""
    selective: tuple[Module, ...] = (Module.NORM, Module.ACTIVATION, Module.MOE_ACTIVATION)
    """What `Recompute.SELECTIVE` leaves out."""
    keeps_live_layer: bool = False
    """Selective recomputation rebuilds a whole layer at once (checkpointing of blocks), as full does."""
    only_last_rank: bool = False
    """Report the last pipeline rank instead of the fullest one."""


STANDARD = Recipe()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptParts:
    """Bytes per token of the whole model without recomputation, with the selective one, of layer inputs alone, and of
    one live layer."""

    all: float
    selective: float
    inputs: float
    live: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Bytes per token of the whole model. `sharded` parts divide by TP, `whole` parts do not."""

    all_sharded: float
    all_whole: float
    selective_sharded: float
    selective_whole: float
    inputs_sharded: float
    """Layer inputs only (full recomputation)."""
    inputs_whole: float
    live_sharded: float
    """The layer with most activations, alive while it is recomputed or differentiated."""
    live_whole: float

    @property
    def sharded_parts(self) -> KeptParts:
        return KeptParts(
            all=self.all_sharded, selective=self.selective_sharded, inputs=self.inputs_sharded, live=self.live_sharded
        )

    @property
    def whole_parts(self) -> KeptParts:
        return KeptParts(
            all=self.all_whole, selective=self.selective_whole, inputs=self.inputs_whole, live=self.live_whole
        )


def standard_saved(totals: ModelTotals) -> Saved:
    """Of `STANDARD`, from totals that are cached already."""
    return Saved(
        all_sharded=2.0 * totals.saved_elements,
        all_whole=0.0,
        selective_sharded=2.0 * totals.saved_selective_elements,
        selective_whole=0.0,
        inputs_sharded=2.0 * totals.hidden_size * totals.num_layers,
        inputs_whole=0.0,
        live_sharded=2.0 * totals.live_elements,
        live_whole=0.0,
    )


@lru_cache(maxsize=256)
def saved_bytes(model: Model, recipe: Recipe, seq_tokens: float) -> Saved:
    """Of any recipe; `seq_tokens` are the tokens that a query attends over (for unfused attention)."""
    every = [_layer_bytes(layer, recipe, (), model.hidden_size, seq_tokens) for layer in model.layers]
    less = [_layer_bytes(layer, recipe, recipe.selective, model.hidden_size, seq_tokens) for layer in model.layers]
    numbers = [layer.num_layers for layer in model.layers]
    live = max(every, key=sum)
    inputs = 2.0 * model.hidden_size * model.num_layers
    is_sharded = recipe.is_sequence_parallel
    return Saved(
        all_sharded=sum(n * part[0] for n, part in zip(numbers, every, strict=True)),
        all_whole=sum(n * part[1] for n, part in zip(numbers, every, strict=True)),
        selective_sharded=sum(n * part[0] for n, part in zip(numbers, less, strict=True)),
        selective_whole=sum(n * part[1] for n, part in zip(numbers, less, strict=True)),
        inputs_sharded=inputs * is_sharded,
        inputs_whole=inputs * (not is_sharded),
        live_sharded=live[0],
        live_whole=live[1],
    )


def _layer_bytes(
    layer: LayerClass, recipe: Recipe, modules: tuple[Module, ...], hidden_size: int, seq_tokens: float
) -> tuple[float, float]:
    """(sharded, whole) bytes per token of one layer after leaving out `modules`."""
    attention, mlp = layer.attention, layer.mlp
    norms = attention.replicated_saved_elements_per_token + mlp.replicated_saved_elements_per_token
    dense, mixer = mlp.saved_elements_per_token, attention.saved_elements_per_token
    routed = mlp.num_active_experts * mlp.saved_elements_per_routed_token
    if Module.EVERY_SECOND_PRODUCT in modules:
        return 2.0 * _second_products(layer, hidden_size), 0.0
    if Module.MLA_UP_PROJECTION in modules and attention.kind == "mla":
        # 2 queries and expanded keys and values; equals the score FLOP per pair where values are as wide as
        # unrotated queries and twice the rotated part (DeepSeek, Kimi, Moonlight, GLM-5)
        mixer = max(mixer - attention.score_flop_per_pair, 0.0)
    if Module.MOE in modules:
        routed = 0.0
        dense = 0.0 if mlp.is_moe else dense
    elif Module.MOE_ACTIVATION in modules:
        routed -= mlp.num_active_experts * mlp.expert_hidden_size
    if Module.MLP in modules and not mlp.is_moe:
        dense = 0.0
    elif Module.ACTIVATION in modules:
        dense -= dense / 3.0
    if Module.NORM in modules:
        norms /= 2.0
    scores = recipe.score_bytes_per_pair * attention.num_heads * seq_tokens * (attention.kv_elements_per_token > 0)
    masks = 2.0 * hidden_size * recipe.has_dropout
    sharded = 2.0 * (mixer + dense + routed) + scores
    residual = 2.0 * norms + masks
    if recipe.has_fp8_inputs:
        sharded -= attention.score_flop_per_pair / 4.0 + (dense + routed) / 3.0
        residual -= norms / 2.0 * (Module.NORM not in modules)
    return (sharded + residual, 0.0) if recipe.is_sequence_parallel else (sharded, residual)


def _second_products(layer: LayerClass, hidden_size: int) -> float:
    """Elements kept by saving the layer input, the attention output and every second matrix product."""
    attention, mlp = layer.attention, layer.mlp
    query = attention.score_flop_per_pair / 4.0
    value = attention.kv_elements_per_token / 2.0
    inside = mlp.saved_elements_per_token / 3.0 + mlp.num_active_experts * mlp.saved_elements_per_routed_token / 3.0
    return hidden_size + query + value + query + inside + hidden_size
