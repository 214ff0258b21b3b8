"""What a term of GPU memory holds, in few words: pictures have room for kinds, not for every term."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import fsum

from planner.domain.plan import NamedValue


class Kind(StrEnum):
    """What memory holds, in the order in which it is stacked."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer states"
    ACTIVATIONS = "activations and logits"
    KV_CACHE = "KV cache"
    BUFFERS = "buffers and communicators"
    CONTEXT = "context and fragmentation"
    IDLE = "idle workers on the same GPUs"


_KIND_OF_TERM = {
    "weights": Kind.WEIGHTS, "unsharded": Kind.WEIGHTS, "gradients": Kind.GRADIENTS, "wgrad_buffer": Kind.GRADIENTS,
    "optimizer": Kind.OPTIMIZER, "activations": Kind.ACTIVATIONS, "logits": Kind.ACTIVATIONS,
    "engine_activations": Kind.ACTIVATIONS, "kv_cache": Kind.KV_CACHE, "communicator": Kind.BUFFERS,
    "sync_buckets": Kind.BUFFERS, "engine_graphs": Kind.BUFFERS, "context": Kind.CONTEXT,
    "fragmentation": Kind.CONTEXT, "engine_sleep": Kind.CONTEXT,
}  # fmt: skip


def kind_of(term: str) -> Kind:
    """`'actor trainer: weights'` -> WEIGHTS; a term that is not known counts as a buffer."""
    if term.startswith("idle: "):
        return Kind.IDLE
    return _KIND_OF_TERM.get(term.rpartition(": ")[2], Kind.BUFFERS)


def bytes_by_kind(terms: Iterable[NamedValue]) -> tuple[tuple[Kind, float], ...]:
    """Sums of the kinds that hold anything, in the order of Kind."""
    listed = list(terms)
    sums = ((kind, fsum(term.value for term in listed if kind_of(term.name) is kind)) for kind in Kind)
    return tuple((kind, value) for kind, value in sums if value > 0)
