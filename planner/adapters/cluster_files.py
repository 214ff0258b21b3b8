"""Files that get a plan its nodes: Ray placement groups, and job files for SkyPilot, KubeRay and Slurm.

Sources: Ray's placement groups (docs.ray.io, ray-core/scheduling/placement-group), SkyPilot's task YAML
(docs.skypilot.co, reference/yaml-spec), KubeRay's RayJob (ray-project.github.io/kuberay, reference/api, ray.io/v1) and
Slurm's sbatch and srun manual pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from planner.adapters.cluster_groups import plan_bundles
from planner.adapters.export import ExportFile, plan_digest, with_remarks, write_files
from planner.adapters.registry import exported_files
from planner.adapters.shell import comment, shell_word
from planner.domain.framework_placed import placed_workers
from planner.domain.hardware import NodeType
from planner.domain.plan import Plan
from planner.errors import InvalidInputError, nearest, printable

RAY_FILE = "ray_bundles.json"
RUN = "run.sh"
"""The start script of every export."""
PORT = 6379
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+#-]*")
"""Image names as Docker and enroot (`registry#name`) write them; no other character is in one."""
_SHARED_MEMORY = "/dev/shm"


class Launcher(StrEnum):
    """What allocates nodes and starts the run on them."""

    SKYPILOT = "skypilot"
    KUBERAY = "kuberay"
    SLURM = "slurm"


_SKY_NAMES = {
    "a10g": "A10G",
    "a100-sxm-40g": "A100",
    "a100-sxm-80g": "A100-80GB",
    "b200-sxm": "B200",
    "b300-sxm": "B300",
    "gb200": "GB200",
    "gh200-96g": "GH200",
    "h100-sxm": "H100",
    "h200-sxm": "H200",
    "l4": "L4",
    "l40s": "L40S",
    "mi300x": "MI300X",
    "v100-sxm2-16g": "V100",
    "v100-sxm2-32g": "V100-32GB",
}
"""Accelerators of the hardware catalog as `sky show-gpus` lists them."""
_SKY_CLOUDS = ("aws", "gcp", "azure", "oci", "lambda", "nebius", "runpod", "crusoe")
_INSTANCE_CLOUDS = ("aws", "gcp")
"""Clouds whose nodes the hardware catalog names by their instance type."""
_GPU_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
"""Names of the device plugins, by vendor."""


def export_with_cluster_files(
    framework: str,
    plan: Plan,
    directory: Path,
    *,
    with_ray: bool = False,
    launcher: str | None = None,
    image: str | None = None,
    remarks: Sequence[str] = (),
) -> tuple[Path, ...]:
    """Writes the export to `framework` and beside it what gets the nodes; returns the paths.

    `launcher` is a name of Launcher, `image` a container image, `remarks` are lines for the README on what the files
    are predicted to do. Raises InvalidInputError as `exported_files`,
    `launcher_file` and `write_files` do; then nothing is left behind.
    """
    if launcher is not None and launcher.lower() not in tuple(Launcher):
        raise InvalidInputError(
            f"{launcher[:60]!r} is not known",
            where="--launcher",
            accepted=", ".join(Launcher),
            suggestion=nearest(launcher, Launcher),
        )
    if image is not None and (launcher is None or not _IMAGE.fullmatch(image)):
        problem = "needs a launcher" if launcher is None else f"{image[:60]!r} is not the name of an image"
        raise InvalidInputError(problem, where="--image", accepted="--launcher ... --image REGISTRY/NAME:TAG")
    files = exported_files(framework, plan)
    digest = plan_digest(plan)
    further = [ray_file(plan, digest)] if with_ray else []
    if launcher is not None:
        further.append(launcher_file(Launcher(launcher.lower()), plan, files, digest, image=image))
    return write_files(directory, (*(with_remarks(file, remarks) for file in files), *further))


def ray_file(plan: Plan, digest: str) -> ExportFile:
    """`ray_bundles.json`: placement groups that reserve the plan's GPUs, and where each device group sits in them.

    Device groups that share GPUs lie in one placement group, because Ray gives a GPU away once. A bundle is the part
    of a placement group on one node; `first_gpu` counts within the bundle.
    """
    reserved = plan_bundles(plan)
    document = {
        "format": "rlplan-ray-1",
        "plan": digest,
        "placement_groups": [
            {
                "name": item.name,
                "strategy": item.strategy,
                "bundles": [dict(bundle.resources) for bundle in item.bundles],
            }
            for item in reserved
        ],
        "device_groups": [
            {
                "id": part.group,
                "workers": [worker.name.value for worker in placed_workers(plan) if worker.group.id == part.group],
                "placement_group": item.name,
                "gpus": [{"bundle": s.bundle, "first_gpu": s.first_gpu, "num_gpus": s.num_gpus} for s in part.spans],
            }
            for item in reserved
            for part in item.parts
        ],
    }
    text = json.dumps(document, indent=2, ensure_ascii=True)
    # The mark is the last entry of the object.
    return ExportFile(name=RAY_FILE, text=text.removesuffix("\n}") + ",\n", before='  "mark": "', after='"}')


def launcher_file(
    launcher: Launcher, plan: Plan, files: Sequence[ExportFile], digest: str, *, image: str | None = None
) -> ExportFile:
    """The job file of `launcher` for the plan's nodes; it starts Ray on all of them and `run.sh` on the first.

    `files` are those of the export, `image` is a container image with the framework. Raises InvalidInputError when the
    plan's GPUs lie in several pools, when the launcher has no name for the GPU, or when KubeRay gets no image.
    """
    pools = {name: count for name, count in plan.num_nodes_used.items() if count}
    if len(pools) > 1:
        raise InvalidInputError(
            f"{launcher.value} starts equal nodes, the plan uses the pools {', '.join(map(printable, sorted(pools)))}",
            where="--launcher",
            accepted="a plan on one pool",
        )
    ((pool, num_nodes),) = pools.items()
    job = _Job(
        plan=plan,
        node=plan.cluster.pool(pool).node,
        num_nodes=num_nodes,
        gpus_per_node=_gpus_per_node(plan),
        image=image,
        digest=digest,
    )
    if launcher is Launcher.SLURM:
        return _slurm(job)
    return _skypilot(job) if launcher is Launcher.SKYPILOT else _kuberay(job, files)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What all job files say: nodes, GPUs per node, image."""

    plan: Plan
    node: NodeType
    num_nodes: int
    gpus_per_node: int
    image: str | None
    digest: str

    @property
    def name(self) -> str:
        """Lower-case letters, digits and hyphens, as Kubernetes wants it."""
        return "rlplan-" + re.sub(r"[^a-z0-9]+", "-", self.plan.workload.algorithm.name).strip("-")

    @property
    def header(self) -> str:
        return f"# written by rlplan from plan {comment(self.digest)}: {self.num_nodes} x {comment(self.node.name)}"

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def base_id(self) -> str:
        """Id of the whole node where the cluster takes a part of its GPUs."""
        return self.node.id.removesuffix(f"-{self.node.gpus_per_node}") if " of " in self.node.name else self.node.id

    @property
    def instance_type(self) -> str | None:
        """The cloud's own name of the node, where the catalog has it."""
        cloud, _, name = self.base_id.partition("-")
        return name if cloud in _INSTANCE_CLOUDS else None

    def start(self, *, rank: str, address: str, follow: str, finish: str = "") -> str:
        """Shell that starts Ray on every node and `run.sh` on the first, once all GPUs have joined.

        `rank` and `address` are shell variables with the number of the node and the address of the first, `follow` is
        what the other nodes do, `finish` what the first one does in the end.
        """
        head = f"""wait_for_gpus='import ray, time
ray.init(address="auto", log_to_driver=False)
while ray.cluster_resources().get("GPU", 0) < {self.num_gpus}:
    time.sleep(2)'
if [ "${rank}" = 0 ]; then
  ray start --head --node-ip-address="${address}" --port={PORT} --num-gpus={self.gpus_per_node}
  export RAY_ADDRESS="${address}:{PORT}"
  python3 -c "$wait_for_gpus"
  bash {RUN}
{finish}"""
        others = f"""else
  sleep 15
  ray start --address="${address}:{PORT}" --num-gpus={self.gpus_per_node}{follow}
"""
        return f"{head}{others if self.num_nodes > 1 else ''}fi\n"


def _gpus_per_node(plan: Plan) -> int:
    """The most GPUs of one node that the plan uses."""
    used: dict[tuple[str, int], set[int]] = {}
    for group in plan.device_groups:
        per_node = plan.cluster.pool(group.pool).node.gpus_per_node
        for rank in group.ranks:
            used.setdefault((group.pool, rank // per_node), set()).add(rank)
    return max(len(ranks) for ranks in used.values())


def _slurm(job: _Job) -> ExportFile:
    container = ""
    if job.image is not None:
        container = (
            f' --container-image={shell_word(job.image)} --container-mounts="$PWD:$PWD" --container-workdir="$PWD"'
        )
    # A step ends with its tasks: the other nodes stay until the first one stops Ray, which they report as a failure.
    start = job.start(rank="SLURM_PROCID", address="address", follow=" --block || true", finish="  ray stop\n")
    text = f"""#!/usr/bin/env bash
{job.header}
# Usage: sbatch --partition=... job.slurm   from the directory of this file, which all nodes see
#SBATCH --job-name={job.name}
#SBATCH --nodes={job.num_nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={job.gpus_per_node}
#SBATCH --exclusive
#SBATCH --output=%x-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | cut -d ' ' -f 1)
export address

start=$(cat <<'END'
set -euo pipefail
{start}END
)
srun --ntasks-per-node=1 --kill-on-bad-exit=1{container} bash -c "$start"
"""
    return ExportFile(name="job.slurm", text=text, is_executable=True)


def _skypilot(job: _Job) -> ExportFile:
    cloud = job.base_id.partition("-")[0]
    resources: dict[str, object] = {"infra": cloud} if cloud in _SKY_CLOUDS else {}
    if job.instance_type is not None:
        resources["instance_type"] = job.instance_type
    elif job.node.gpu.id in _SKY_NAMES:
        resources["accelerators"] = f"{_SKY_NAMES[job.node.gpu.id]}:{job.gpus_per_node}"
    else:
        raise InvalidInputError(
            f"no name of {job.node.gpu.id!r} in SkyPilot is known", where="--launcher", accepted=", ".join(_SKY_NAMES)
        )
    if job.image is not None:
        resources["image_id"] = f"docker:{job.image}"
    # Ray goes on in the background when the other nodes are done. SkyPilot has a Ray of its own on another port.
    start = job.start(rank="SKYPILOT_NODE_RANK", address="head", follow="\n  sleep 5")
    run = f'set -euo pipefail\nhead=$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p)\n{start}'
    document = {
        "name": job.name,
        "workdir": ".",
        "num_nodes": job.num_nodes,
        "resources": resources,
        "run": run,
    }
    usage = "# Usage: sky launch skypilot.yaml   from the directory of this file"
    return ExportFile(name="skypilot.yaml", text=f"{job.header}\n{usage}\n{_yaml(document)}")


def _kuberay(job: _Job, files: Sequence[ExportFile]) -> ExportFile:
    if job.image is None:
        raise InvalidInputError(
            "KubeRay needs a container image with the framework", where="--launcher", accepted="--image IMAGE beside it"
        )
    resource = _GPU_RESOURCES.get(job.node.gpu.vendor.lower())
    if resource is None:
        raise InvalidInputError(
            f"no device plugin of {job.node.gpu.vendor!r} is known",
            where="--launcher",
            accepted=", ".join(_GPU_RESOURCES),
        )
    launch = f"""set -euo pipefail
mkdir -p /tmp/rlplan
cp -L /rlplan/* /tmp/rlplan/
cd /tmp/rlplan
bash {RUN}
"""
    scripts = {file.name: file.text for file in files if not file.name.endswith(".md")}
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job.name},
        "data": {**scripts, "launch.sh": launch},
    }
    workers: list[object] = []
    if job.num_nodes > 1:
        count = job.num_nodes - 1
        workers.append(
            {
                "groupName": "workers",
                "replicas": count,
                "minReplicas": count,
                "maxReplicas": count,
                "rayStartParams": {"num-gpus": str(job.gpus_per_node)},
                "template": _pod(job, resource, "ray-worker"),
            }
        )
    ray_job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name},
        "spec": {
            "entrypoint": "bash /rlplan/launch.sh",
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {"num-gpus": str(job.gpus_per_node), "dashboard-host": "0.0.0.0"},
                    "template": _pod(job, resource, "ray-head"),
                },
                "workerGroupSpecs": workers,
            },
        },
    }
    usage = "# Usage: kubectl apply -f rayjob.yaml; add what the pods need: volumes with model and data, secrets, NICs"
    return ExportFile(name="rayjob.yaml", text=f"{job.header}\n{usage}\n{_yaml(config)}---\n{_yaml(ray_job)}")


def _pod(job: _Job, resource: str, name: str) -> dict[str, object]:
    selector: dict[str, object] = {}
    if job.instance_type is not None:
        selector = {"nodeSelector": {"node.kubernetes.io/instance-type": job.instance_type}}
    return {
        "spec": {
            **selector,
            "containers": [
                {
                    "name": name,
                    "image": job.image,
                    "resources": {"limits": {resource: job.gpus_per_node}},
                    "volumeMounts": [
                        {"name": "rlplan", "mountPath": "/rlplan"},
                        {"name": "shared-memory", "mountPath": _SHARED_MEMORY},
                    ],
                }
            ],
            "volumes": [
                {"name": "rlplan", "configMap": {"name": job.name}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
    }


def _yaml(document: object) -> str:
    """YAML with texts of several lines as blocks; PyYAML quotes the rest."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Indents lists, never writes anchors."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    found: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=False, width=1000)
    return found
