"""Names of exposed cost terms, what bounds each, and where its formula comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from planner.domain.strategy import FloatArray


class Resource(StrEnum):
    """What bounds a term."""

    COMPUTE = "compute"
    HBM = "HBM"
    SCALE_UP = "NVLink"
    NIC = "NIC"
    LATENCY = "latency"
    HOST_LINK = "host link"
    BUBBLE = "pipeline bubble"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class TermInfo:
    """A named time term: its meaning, its resource and the source of its formula."""

    name: str
    resource: Resource
    title: str
    source: str


Terms = Mapping[str, FloatArray]
"""Exposed seconds (or bytes) by term name, each of shape (num_candidates,); their sum is the total."""


TIME_TERMS: tuple[TermInfo, ...] = (
    TermInfo(name="gemm", resource=Resource.COMPUTE, title="matrix products", source="roofline, fitted GEMM efficiency"),
    TermInfo(name="attention", resource=Resource.COMPUTE, title="attention kernels", source="FlashAttention FLOP, arXiv 2307.08691"),
    TermInfo(name="recompute", resource=Resource.COMPUTE, title="activation recomputation", source="arXiv 2205.05198"),
    TermInfo(name="weight_read", resource=Resource.HBM, title="reading weights per decode step", source="roofline"),
    TermInfo(name="kv_read", resource=Resource.HBM, title="reading the KV cache", source="roofline"),
    TermInfo(name="elementwise", resource=Resource.HBM, title="norms, activations, routing", source="roofline"),
    TermInfo(name="prefill", resource=Resource.COMPUTE, title="prefill of prompts", source="roofline"),
    TermInfo(name="reprefill", resource=Resource.COMPUTE, title="prefill of interrupted responses", source="roofline"),
    TermInfo(name="optimizer", resource=Resource.HBM, title="optimizer step", source="bytes touched / HBM"),
    TermInfo(name="cpu_optimizer", resource=Resource.HOST, title="optimizer step on the host", source="bytes touched / host DRAM"),
    TermInfo(name="tp_scale_up", resource=Resource.SCALE_UP, title="tensor-parallel collectives within the domain", source="arXiv 1909.08053, 2205.05198"),
    TermInfo(name="tp_scale_out", resource=Resource.NIC, title="tensor-parallel collectives across domains", source="arXiv 1909.08053"),
    TermInfo(name="cp_scale_up", resource=Resource.SCALE_UP, title="context-parallel exchange within the domain", source="arXiv 2310.01889, 2309.14509"),
    TermInfo(name="cp_scale_out", resource=Resource.NIC, title="context-parallel exchange across domains", source="arXiv 2310.01889, 2309.14509"),
    TermInfo(name="ep_scale_up", resource=Resource.SCALE_UP, title="expert all-to-all within the domain", source="arXiv 2412.19437"),
    TermInfo(name="ep_scale_out", resource=Resource.NIC, title="expert all-to-all across domains", source="arXiv 2412.19437"),
    TermInfo(name="pp_transfer", resource=Resource.NIC, title="pipeline sends", source="arXiv 2104.04473"),
    TermInfo(name="pp_bubble", resource=Resource.BUBBLE, title="pipeline bubble", source="arXiv 2104.04473"),
    TermInfo(name="dp_scale_up", resource=Resource.SCALE_UP, title="data-parallel collectives within the domain", source="arXiv 1910.02054"),
    TermInfo(name="dp_scale_out", resource=Resource.NIC, title="data-parallel collectives across domains", source="arXiv 1910.02054"),
    TermInfo(name="imbalance", resource=Resource.COMPUTE, title="waiting for the slowest data-parallel rank", source="order statistics of unequal sequences"),
    TermInfo(name="launch", resource=Resource.LATENCY, title="kernel launch and host floor", source="fitted"),
    TermInfo(name="engine_host", resource=Resource.HOST, title="engine scheduler and sampling", source="fitted"),
    TermInfo(name="tail", resource=Resource.LATENCY, title="last responses decode almost alone", source="survival of the length law"),
    TermInfo(name="reload", resource=Resource.HOST_LINK, title="states between host RAM and GPU", source="bytes / host link"),
    TermInfo(name="wake", resource=Resource.HOST, title="engine wake-up", source="vendor measurements"),
    TermInfo(name="switch", resource=Resource.HOST, title="controller and stage switch", source="fitted"),
    TermInfo(name="sync_gather", resource=Resource.SCALE_UP, title="gathering trainer shards", source="bytes / link"),
    TermInfo(name="sync_send", resource=Resource.NIC, title="sending weights to other nodes", source="bytes / NIC"),
    TermInfo(name="sync_load", resource=Resource.HBM, title="engine loads weights", source="bytes / copy rate + tensors"),
    TermInfo(name="sync_fixed", resource=Resource.HOST, title="sync set-up and barriers", source="measured anchors"),
    TermInfo(name="sandbox", resource=Resource.HOST, title="tool or sandbox latency", source="user"),
)  # fmt: skip

_BY_NAME = {info.name: info for info in TIME_TERMS}


def term_info(name: str) -> TermInfo:
    """The registered term; KeyError for a name that no formula declared."""
    return _BY_NAME[name]


def total(terms: Terms) -> FloatArray:
    """Sum of all terms, in registration order so that the floating-point result is reproducible."""
    names = [info.name for info in TIME_TERMS if info.name in terms] + sorted(n for n in terms if n not in _BY_NAME)
    result = terms[names[0]] * 1.0
    for name in names[1:]:
        result = result + terms[name]
    return result


def bound_by(seconds: Mapping[str, float]) -> Resource:
    """The resource that takes most of a stage's time."""
    per_resource: dict[Resource, float] = {}
    for name, value in seconds.items():
        resource = term_info(name).resource
        per_resource[resource] = per_resource.get(resource, 0.0) + value
    return max(per_resource, key=lambda resource: (per_resource[resource], resource.value))
