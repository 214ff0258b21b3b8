"""The bytes of a plan's stages against the capacity of every link class: what is used, and that nothing is exceeded.

Bytes are the least that the chosen strategies must move (`planner.cost.link_bytes`, `planner.cost.trunk`), capacities
are line rates, so that a share above 1 means that the plan's time is impossible.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.jobs import engine_job, trainer_job
from planner.cost.link_bytes import (
    LinkBytes,
    engine_bytes,
    engine_slots,
    sending_bytes,
    synced_bytes,
    trainer_bytes,
)
from planner.cost.trunk import trajectory_bytes, weight_copy_bytes
from planner.cost.worker import Site
from planner.domain.execution import ShardedSync
from planner.domain.hardware import NodeType
from planner.domain.links import Link, LinkUse, StageLinks
from planner.domain.plan import DeviceGroup, Placement, Plan
from planner.domain.stages import ROLLOUTS, StageGraph, StageKind, StageName
from planner.domain.strategy import RolloutStrategy, TrainerStrategy
from planner.files.catalog import load_overheads


def link_use(plan: Plan) -> tuple[StageLinks, ...]:
    """Every stage that runs on GPUs, in the order of the placements, then what crosses pools per iteration."""
    view = _View(plan=plan, graph=plan.graph)
    stages = [view.stage(item) for item in plan.placements if item.gpu_memory is not None]
    return (*stages, *view.iteration())


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    plan: Plan
    graph: StageGraph

    def stage(self, item: Placement) -> StageLinks:
        group = self._group(item.device_group)
        if item.stage is StageName.WEIGHT_SYNC:
            return self._sync(item)
        node = self.plan.cluster.pool(group.pool).node
        assert item.strategy is not None
        links = self._bytes(item, group)
        uses = _uses(links, node, min(item.strategy.num_gpus, node.gpus_per_node))
        return StageLinks(stage=item.stage, time_s=item.time_s, uses=uses)

    def iteration(self) -> tuple[StageLinks, ...]:
        """Trajectories of a plan whose engines and trainer are in different pools."""
        capacity = self.plan.cluster.inter_pool_total_bytes_per_s
        share = sum(self.plan.execution.share_ratio(item.worker) for item in self._across() if item.worker is not None)
        if capacity is None or not share:
            return ()
        num_bytes = share * trajectory_bytes(self.plan.workload)
        use = LinkUse(link=Link.TRUNK, num_bytes=num_bytes, bytes_per_s=capacity)
        return (StageLinks(stage=None, time_s=self.plan.time_s, uses=(use,)),)

    def _bytes(self, item: Placement, group: DeviceGroup) -> LinkBytes:
        plan, site = self.plan, self._site(group)
        assert item.worker is not None and item.gpu_memory is not None
        worker = self.graph.worker(item.worker)
        if isinstance(item.strategy, RolloutStrategy):
            job = engine_job(plan.workload, worker, plan.execution)
            cache = sum(term.value for term in item.gpu_memory.terms if term.name == "kv_cache")
            return engine_bytes(job, item.strategy, engine_slots(job, item.strategy, cache), site)
        assert isinstance(item.strategy, TrainerStrategy)
        trainer = trainer_job(plan.workload, self.graph, worker, plan.execution)
        trains = self.graph.stage(item.stage).kind is StageKind.TRAINING
        load = trainer.train_load if trains else dict(trainer.inference_loads)[item.stage]
        assert load is not None
        return trainer_bytes(trainer, load, item.strategy, site, trains=trains)

    def _sync(self, item: Placement) -> StageLinks:
        """Both sides, priced one after the other: gathering and sending, and what arrives, is read and written. Two
        groups of engines are served one after the other; of every link the longer side is listed."""
        plan = self.plan
        trainer = plan.placement(StageName.ACTOR_UPDATE)
        assert isinstance(trainer.strategy, TrainerStrategy) and trainer.worker is not None
        source = self._group(trainer.device_group)
        site = self._site(source)
        job = trainer_job(plan.workload, self.graph, self.graph.worker(trainer.worker), plan.execution)
        sides = []
        for engine in self._engines():
            assert isinstance(engine.strategy, RolloutStrategy) and engine.worker is not None
            group = self._group(engine.device_group)
            shares, is_apart = _share(source, group), self._is_apart(source, group)
            shard = synced_bytes(engine_job(plan.workload, self.graph.worker(engine.worker)), engine.strategy)
            arriving = LinkBytes(
                hbm_bytes=2.0 * shard,
                nic_bytes=shard if is_apart else 0.0,
                scale_up_bytes=shard if shares and ShardedSync.MICRO_GROUPS in plan.execution.sharded_syncs else 0.0,
            )
            sending = sending_bytes(job, trainer.strategy, site, shares_gpus=shares, is_apart=is_apart)
            sides += [_uses(arriving, self._site(group).node, 1), _uses(sending, site.node, 1)]
        uses = _fullest(*sides)
        capacity, copies = plan.cluster.inter_pool_total_bytes_per_s, len(self._across())
        if capacity is not None and copies:
            num_bytes = copies * weight_copy_bytes(plan.workload)
            uses = (*uses, LinkUse(link=Link.TRUNK, num_bytes=num_bytes, bytes_per_s=capacity))
        return StageLinks(stage=item.stage, time_s=item.time_s, uses=uses)

    def _is_apart(self, source: DeviceGroup, target: DeviceGroup) -> bool:
        """Whether weights go over NICs: no GPU is shared, and not all are in one scale-up domain."""
        if source.pool != target.pool:
            return True
        if _share(source, target):
            return False
        domain = self.plan.cluster.pool(source.pool).node.scale_up_domain_gpus
        first = min(source.first_gpu, target.first_gpu)
        return first // domain != (max(source.ranks.stop, target.ranks.stop) - 1) // domain

    def _engines(self) -> list[Placement]:
        """The rollout, or both parts of a split one."""
        return [item for item in self.plan.placements if item.stage in ROLLOUTS]

    def _across(self) -> list[Placement]:
        """Rollouts in another pool than the trainer's."""
        source = self._group(self.plan.placement(StageName.ACTOR_UPDATE).device_group)
        return [item for item in self._engines() if self._group(item.device_group).pool != source.pool]

    def _site(self, group: DeviceGroup) -> Site:
        node, margin = self.plan.cluster.pool(group.pool).node, self.plan.workload.memory_margin_ratio
        return Site(node=node, overheads=load_overheads(), memory_margin_ratio=margin)

    def _group(self, name: str) -> DeviceGroup:
        return next(group for group in self.plan.device_groups if group.id == name)


def _share(source: DeviceGroup, target: DeviceGroup) -> bool:
    """Whether two groups have a GPU in common."""
    first, last = max(source.first_gpu, target.first_gpu), min(source.ranks.stop, target.ranks.stop)
    return source.pool == target.pool and first < last


def _fullest(*sides: tuple[LinkUse, ...]) -> tuple[LinkUse, ...]:
    """Of every link class the side that it takes longer."""
    found = [use for side in sides for use in side]
    most = {link: max((u for u in found if u.link is link), key=lambda u: u.least_s, default=None) for link in Link}
    return tuple(use for use in most.values() if use is not None)


def _uses(links: LinkBytes, node: NodeType, node_gpus: int) -> tuple[LinkUse, ...]:
    """Links that carry something, at line rate; `node_gpus` GPUs of a node share the way to its RAM."""
    host = min(node.gpu.host_link_bytes_per_s, node.network.host_node_bytes_per_s / node_gpus)
    found = (
        (Link.HBM, links.hbm_bytes, node.gpu.hbm_bytes_per_s),
        (Link.SCALE_UP, links.scale_up_bytes, node.gpu.scale_up_bytes_per_s),
        (Link.NIC, links.nic_bytes, node.nic_bytes_per_s),
        (Link.HOST, links.host_bytes, host),
    )
    return tuple(
        LinkUse(link=link, num_bytes=num_bytes, bytes_per_s=rate) for link, num_bytes, rate in found if num_bytes > 0.0
    )
