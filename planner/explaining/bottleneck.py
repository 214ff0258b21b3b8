"""What binds a plan: the stages that an iteration waits for, the fullest memory, and the busiest links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.domain.stages import StageName
from planner.explaining.attribution import Critical, critical_path
from planner.explaining.case import Case
from planner.link_use import link_use


@dataclass(frozen=True, slots=True, kw_only=True)
class FullMemory:
    """The stage at whose worst instant least memory is free. `peak_bytes` per GPU, or per node for host RAM."""

    stage: StageName
    resource: str
    instant: str
    largest_term: str
    peak_bytes: float
    usable_bytes: float

    @property
    def used_ratio(self) -> float:
        return self.peak_bytes / self.usable_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLink:
    """A link class and the share of its line rate that the stage on the longest path uses which uses it most."""

    stage: StageName
    link: str
    used_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What the plan runs into. `path` are the stages whose seconds add up to an iteration."""

    path: tuple[Critical, ...]
    resources: tuple[tuple[StageName, str], ...]
    """What bounds each stage of the path."""
    gpu_memory: FullMemory | None
    host_ram: FullMemory | None
    links: tuple[BusyLink, ...]
    """By falling use, one per link class."""


def bottleneck(case: Case) -> Bottleneck:
    """The longest path of the plan and what is nearly used up."""
    path = critical_path(case.assembled, case.placed, case.inputs)
    stages = {item.stage for item in path}
    bound_by = {item.stage: item.bound_by for item in case.assembled.placements}
    return Bottleneck(
        path=path,
        resources=tuple((item.stage, bound_by[item.stage]) for item in path),
        gpu_memory=max(_gpu_memory(case), key=lambda item: item.used_ratio, default=None),
        host_ram=max(_host_ram(case), key=lambda item: item.used_ratio, default=None),
        links=_links(case, stages),
    )


def _gpu_memory(case: Case) -> Iterator[FullMemory]:
    for item in case.assembled.placements:
        memory = item.gpu_memory
        if memory is not None and memory.terms:
            yield FullMemory(
                stage=item.stage, resource="GPU memory", instant=memory.instant,
                largest_term=max(memory.terms, key=lambda term: term.value).name,
                peak_bytes=memory.peak_bytes, usable_bytes=memory.usable_bytes,
            )  # fmt: skip


def _host_ram(case: Case) -> Iterator[FullMemory]:
    for item in case.assembled.placements:
        ram = item.host_ram
        if ram is not None and ram.terms:
            yield FullMemory(
                stage=item.stage, resource="host RAM per node", instant="the whole iteration",
                largest_term=max(ram.terms, key=lambda term: term.value).name,
                peak_bytes=ram.peak_bytes, usable_bytes=ram.usable_bytes,
            )  # fmt: skip


def _links(case: Case, stages: set[StageName]) -> tuple[BusyLink, ...]:
    busiest: dict[str, BusyLink] = {}
    for item in link_use(case.plan):
        if item.stage is None or item.stage not in stages:
            continue
        for use in item.uses:
            ratio = item.used_ratio(use)
            if ratio > 0.0 and (use.link.value not in busiest or ratio > busiest[use.link.value].used_ratio):
                busiest[use.link.value] = BusyLink(stage=item.stage, link=use.link.value, used_ratio=ratio)
    return tuple(sorted(busiest.values(), key=lambda item: -item.used_ratio))
