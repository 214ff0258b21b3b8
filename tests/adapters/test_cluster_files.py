"""Ray placement groups and job files of exports."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.adapters.cluster_files import (
    RAY_FILE,
    RUN,
    Launcher,
    export_with_cluster_files,
    launcher_file,
    ray_file,
)
from planner.adapters.cluster_groups import plan_bundles
from planner.adapters.export import ExportFile
from planner.adapters.files import marked
from planner.domain.hardware import Cluster, NodeType
from planner.domain.plan import DeviceGroup, Plan
from planner.errors import InvalidInputError
from planner.files.catalog import load_node
from tests.adapters.areal_cases import critic_apart
from tests.adapters.split_plans import apart, engine, fsdp, load, megatron, together

SPLIT = apart(load("qwen3-8b"), megatron(16), engine(16))
SHARED = together(load("qwen3-8b"), megatron(16), engine(16))
FILES = (ExportFile(name=RUN, text='#!/usr/bin/env bash\necho "it\'s" $x\n', is_executable=True),)


def on(plan: Plan, node: NodeType) -> Plan:
    """The same plan on nodes of another type."""
    (pool,) = plan.cluster.pools
    return replace(plan, cluster=Cluster(pools=(replace(pool, node=node),)))


def ray_document(plan: Plan) -> dict[str, list[dict[str, object]]]:
    file = ray_file(plan, "digest")
    document: dict[str, list[dict[str, object]]] = json.loads(marked(file.text, before=file.before, after=file.after))
    return document


def test_groups_apart_are_placement_groups_of_whole_nodes() -> None:
    document = ray_document(SPLIT)
    assert [group["name"] for group in document["placement_groups"]] == ["rlplan-0", "rlplan-1"]
    assert document["placement_groups"][0]["bundles"] == [{"GPU": 8, "CPU": 8}] * 2
    assert document["placement_groups"][0]["strategy"] == "STRICT_SPREAD"
    trainer, rollout = document["device_groups"]
    assert trainer["workers"] == ["actor trainer", "reference"]
    assert (rollout["workers"], rollout["placement_group"]) == (["rollout engine"], "rlplan-1")
    assert rollout["gpus"] == [{"bundle": i, "first_gpu": 0, "num_gpus": 8} for i in (0, 1)]


def test_every_gpu_is_reserved_once() -> None:
    for plan in (SPLIT, SHARED, critic_apart(), apart(load("qwen3-0.6b"), fsdp(4, cp=1), engine(4, tp=1))):
        reserved = sum(bundle.num_gpus for item in plan_bundles(plan) for bundle in item.bundles)
        assert reserved == plan.num_gpus
        placed = {part.group: sum(s.num_gpus for s in part.spans) for item in plan_bundles(plan) for part in item.parts}
        assert placed == {group.id: group.num_gpus for group in plan.device_groups}


def test_groups_that_share_gpus_lie_in_one_placement_group() -> None:
    """A pool-wide group over two blocks, as the search builds them."""

    def group(name: str, first: int, size: int) -> DeviceGroup:
        return DeviceGroup(id=name, pool="pool", gpu="h100", first_gpu=first, num_gpus=size, num_nodes=-(-size // 8))

    groups = (group("a", 0, 12), group("b", 12, 4), group("whole", 0, 16))
    (item,) = plan_bundles(replace(SHARED, device_groups=groups))
    assert [bundle.num_gpus for bundle in item.bundles] == [8, 8]
    spans = {part.group: [(s.bundle, s.first_gpu, s.num_gpus) for s in part.spans] for part in item.parts}
    assert spans == {"a": [(0, 0, 8), (1, 0, 4)], "b": [(1, 4, 4)], "whole": [(0, 0, 8), (1, 0, 8)]}


def test_nodes_of_several_pools_are_told_apart() -> None:
    (pool,) = SPLIT.cluster.pools
    two = replace(SPLIT, cluster=Cluster(pools=(pool, replace(pool, name="other"))))
    assert ray_document(two)["placement_groups"][0]["bundles"] == [{"GPU": 8, "CPU": 8, "pool:pool": 1}] * 2


def test_slurm_asks_for_the_nodes_of_the_plan() -> None:
    text = launcher_file(Launcher.SLURM, SPLIT, FILES, "digest").text
    for line in ("--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--job-name=rlplan-grpo"):
        assert f"#SBATCH {line}\n" in text
    assert "container" not in text
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0
    part = apart(load("qwen3-0.6b"), fsdp(2, cp=1), engine(4, tp=1))
    assert "#SBATCH --nodes=1\n" in launcher_file(Launcher.SLURM, part, FILES, "digest").text
    assert "--gpus-per-node=6" in launcher_file(Launcher.SLURM, part, FILES, "digest").text


@pytest.mark.parametrize(("rank", "lines"), [("0", 4), ("1", 1)])
def test_a_slurm_job_starts_ray_everywhere_and_the_script_once(rank: str, lines: int, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    commands = {
        "scontrol": 'printf "node0\\nnode1\\n"',
        "srun": 'case "$*" in *hostname*) echo "10.0.0.1 fe80::1";; *) bash -c "${@: -1}";; esac',
        "ray": 'echo "ray $*" >> log',
        "python3": "echo waited >> log",
        "sleep": "true",
    }  # fmt: skip
    for name, body in commands.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tools / name).chmod(0o755)
    (tmp_path / RUN).write_text("echo started $RAY_ADDRESS >> log\n")
    job = tmp_path / "job.slurm"
    job.write_text(launcher_file(Launcher.SLURM, SPLIT, FILES, "digest").text)
    environment = {
        "PATH": f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin", "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NODELIST": "node[0-3]", "SLURM_PROCID": rank,
    }  # fmt: skip
    subprocess.run(["bash", str(job)], env=environment, check=True, cwd=tmp_path)
    log = (tmp_path / "log").read_text().splitlines()
    assert len(log) == lines
    if rank == "0":
        assert log[0] == "ray start --head --node-ip-address=10.0.0.1 --port=6379 --num-gpus=8"
        assert log[1:] == ["waited", "started 10.0.0.1:6379", "ray stop"]
    else:
        assert log == ["ray start --address=10.0.0.1:6379 --num-gpus=8 --block"]


@pytest.mark.parametrize(
    ("name", "resources"),
    [
        ("hgx-h200", {"accelerators": "H200:8"}),
        ("aws-p5.48xlarge", {"infra": "aws", "instance_type": "p5.48xlarge"}),
        ("gcp-a3-highgpu-8g", {"infra": "gcp", "instance_type": "a3-highgpu-8g"}),
        ("azure-nd96isr-h100-v5", {"infra": "azure", "accelerators": "H100:8"}),
        ("lambda-8x-h100-sxm5", {"infra": "lambda", "accelerators": "H100:8"}),
    ],
)
def test_skypilot_names_the_nodes(name: str, resources: dict[str, str]) -> None:
    document = yaml.safe_load(launcher_file(Launcher.SKYPILOT, on(SPLIT, load_node(name)), FILES, "digest").text)
    assert document["resources"] == resources
    assert (document["num_nodes"], document["workdir"]) == (4, ".")
    assert "bash run.sh" in document["run"]
    assert subprocess.run(["bash", "-n"], input=document["run"].encode(), check=False).returncode == 0


def test_a_part_of_a_cloud_node_is_rented_whole() -> None:
    half = load_node("aws-p5.48xlarge").with_gpus(4)
    plan = on(apart(load("qwen3-0.6b"), fsdp(2, cp=1), engine(2, tp=1), gpus_per_node=4), half)
    document = yaml.safe_load(launcher_file(Launcher.SKYPILOT, plan, FILES, "digest").text)
    assert document["resources"]["instance_type"] == "p5.48xlarge"
    assert "--num-gpus=4" in document["run"]


def test_kuberay_carries_the_files_and_asks_for_the_gpus() -> None:
    plan = on(SPLIT, load_node("aws-p5.48xlarge"))
    readme = ExportFile(name="README.md", text="# x\n", before="<!-- ", after=" -->")
    text = launcher_file(Launcher.KUBERAY, plan, (*FILES, readme), "digest", image="a/b:1").text
    config, job = yaml.safe_load_all(text)
    assert config["data"][RUN] == FILES[0].text
    assert sorted(config["data"]) == ["launch.sh", RUN]
    spec = job["spec"]["rayClusterSpec"]
    (workers,) = spec["workerGroupSpecs"]
    assert (workers["replicas"], job["kind"], job["apiVersion"]) == (3, "RayJob", "ray.io/v1")
    for group in (spec["headGroupSpec"], workers):
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert container["image"] == "a/b:1"
        assert group["template"]["spec"]["nodeSelector"] == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    alone = apart(load("qwen3-0.6b"), fsdp(4, cp=1), engine(4, tp=1))
    document = list(yaml.safe_load_all(launcher_file(Launcher.KUBERAY, alone, FILES, "d", image="a").text))[1]
    assert document["spec"]["rayClusterSpec"]["workerGroupSpecs"] == []


def test_names_fit_kubernetes_and_a_hostile_digest_stays_a_comment() -> None:
    plan = together(load("qwen3-8b", "reinforce++"), megatron(16), engine(16))
    text = launcher_file(Launcher.KUBERAY, plan, FILES, "x\nkind: Evil", image="a").text
    config, _ = yaml.safe_load_all(text)
    assert config["metadata"]["name"] == "rlplan-reinforce"
    assert config["kind"] == "ConfigMap"


@pytest.mark.parametrize(
    ("launcher", "image", "message"),
    [
        ("helm", None, "accepted: skypilot, kuberay, slurm"),
        ("kuberay", None, "needs a container image"),
        ("slurm", "a b", "is not the name of an image"),
        ("slurm", "$(touch x)", "is not the name of an image"),
        (None, "a/b", "needs a launcher"),
    ],
)
def test_wrong_options_leave_nothing(launcher: str | None, image: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=message):
        export_with_cluster_files("areal", SPLIT, tmp_path / "out", launcher=launcher, image=image)
    assert list(tmp_path.iterdir()) == []


def test_gpus_without_a_name_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="no name of 'h20-96g' in SkyPilot"):
        launcher_file(Launcher.SKYPILOT, on(SPLIT, load_node("hgx-h20")), FILES, "digest")
    with pytest.raises(InvalidInputError, match="no device plugin"):
        launcher_file(Launcher.KUBERAY, on(SPLIT, load_node("gaudi3-8")), FILES, "digest", image="a")


def test_plans_on_several_pools_have_no_job_file() -> None:
    (pool,) = SPLIT.cluster.pools
    first, second = SPLIT.device_groups
    groups = (first, replace(second, pool="other", first_gpu=0))
    plan = replace(SPLIT, cluster=Cluster(pools=(pool, replace(pool, name="other"))), device_groups=groups)
    with pytest.raises(InvalidInputError, match="the plan uses the pools other, pool"):
        launcher_file(Launcher.SLURM, plan, FILES, "digest")


def test_an_export_with_all_files_is_replaced_and_a_changed_one_kept(tmp_path: Path) -> None:
    def write() -> tuple[Path, ...]:
        return export_with_cluster_files(
            "areal", SPLIT, tmp_path / "out", with_ray=True, launcher="Slurm", image="a/b:1"
        )

    paths = write()
    assert {RAY_FILE, "job.slurm", RUN} <= {path.name for path in paths}
    assert "--container-image=a/b:1" in (tmp_path / "out" / "job.slurm").read_text()
    assert write() == paths
    json.loads((tmp_path / "out" / RAY_FILE).read_text())
    changed = (tmp_path / "out" / RAY_FILE).read_text().replace('"GPU": 8', '"GPU": 4', 1)
    (tmp_path / "out" / RAY_FILE).write_text(changed)
    with pytest.raises(InvalidInputError, match=f"{RAY_FILE} was changed"):
        write()
