"""A network as the list of its layers, before equal layers are gathered into classes."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.model import Attention, LayerClass, Mlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: token mixer, channel mixer and the parameters of its norms."""

    attention: Attention
    mlp: Mlp
    norm_params: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """All layers in order, and what is stored beside them."""

    layers: tuple[Layer, ...]
    extra_params: int
    mtp_params: int = 0


def num_layer_params(layer: Layer) -> int:
    """Stored parameters of one layer."""
    gathered = _layer_class(layer, 1, "")
    return gathered.dense_params + gathered.expert_params


def mtp_params(layers: tuple[Layer, ...], *, hidden: int, num_modules: int) -> int:
    """Multi-token-prediction modules as DeepSeek-V3 builds them: layers, a 2h -> h projection and three norms."""
    if not num_modules:
        return 0
    return num_modules * (sum(num_layer_params(layer) for layer in layers) + 2 * hidden * hidden + 3 * hidden)


def layer_classes(layers: tuple[Layer, ...]) -> tuple[LayerClass, ...]:
    """Equal layers gathered, in order of first appearance, with distinct names."""
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    classes: list[LayerClass] = []
    used: dict[str, int] = {}
    for layer, num_layers in counts.items():
        name = _name(layer)
        used[name] = used.get(name, 0) + 1
        classes.append(_layer_class(layer, num_layers, name if used[name] == 1 else f"{name} {used[name]}"))
    return tuple(classes)


def _layer_class(layer: Layer, num_layers: int, name: str) -> LayerClass:
    return LayerClass(
        name=name, num_layers=num_layers, attention=layer.attention, mlp=layer.mlp, norm_params=layer.norm_params
    )


def _name(layer: Layer) -> str:
    parts: list[str] = []
    if layer.attention.kind != "none":
        window = layer.attention.window_tokens
        parts.append(layer.attention.kind + (f" window {window}" if window is not None else ""))
    if layer.mlp.is_moe:
        parts.append("moe")
    elif layer.mlp.dense_params:
        parts.append("mlp")
    return " + ".join(parts) or "empty"
