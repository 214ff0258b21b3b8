"""What scripts ask the machine: the kind of accelerator, and what Slurm's header asks for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.adapters.import_source import open_source, parse_given, with_accelerator
from planner.adapters.shell_script import ACCELERATOR, Script, is_known, read_script

PROBE = """DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
n=8
if [ "$DEVICE" = npu ]; then n=16; fi
python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$n
"""


def script(tmp_path: Path, text: str, **given: str) -> Script:
    file = tmp_path / "run.sh"
    file.write_text(text)
    return read_script(file, given=given)


def of_kind(tmp_path: Path, text: str, kind: str) -> Script:
    file = tmp_path / "run.sh"
    file.write_text(text)
    return read_script(file, given={ACCELERATOR: kind})


def only_argument(found: Script) -> str:
    (launch,) = found.launches
    return launch.arguments[-1]


@pytest.mark.parametrize(("kind", "count"), [("gpu", "8"), ("npu", "16")])
def test_the_probe_for_npus_follows_the_accelerator(tmp_path: Path, kind: str, count: str) -> None:
    found = of_kind(tmp_path, PROBE, kind)
    assert only_argument(found) == f"trainer.n_gpus_per_node={count}"
    assert any("torch_npu" in finding.message and "--gpus" in finding.message for finding in found.findings)


def test_without_an_accelerator_the_probe_is_not_known(tmp_path: Path) -> None:
    assert not is_known(only_argument(script(tmp_path, PROBE)))


def test_a_variable_that_is_given_comes_before_the_probe(tmp_path: Path) -> None:
    assert only_argument(script(tmp_path, PROBE, DEVICE="npu")) == "trainer.n_gpus_per_node=16"


@pytest.mark.parametrize("code", ["import torch_npu; print(1)", "import torch", "import torch_npu.contrib"])
def test_other_programs_are_not_decided(tmp_path: Path, code: str) -> None:
    text = f"python3 -c '{code}' && X=1 || X=2\npython3 -m verl.trainer.main_ppo a=$X\n"
    assert only_argument(of_kind(tmp_path, text, "gpu")) not in ("a=1", "a=2")


@pytest.mark.parametrize(
    ("gpus", "kind"),
    [
        ("h100", "gpu"), ("4x8xh100", "gpu"), ("32xh100,16xmi300x", "gpu"), ("8xascend-910b", "npu"),
        ("8xh100,8xascend-910b", None), ("not-a-gpu", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_gpus_name_the_kind_of_accelerator(gpus: str | None, kind: str | None) -> None:
    assert with_accelerator({"A": "1"}, gpus).get(ACCELERATOR) == kind


def test_the_accelerator_is_no_key_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(PROBE)
    source = open_source(file, given=with_accelerator(parse_given(("a.b=1",)), "h100"))
    assert source.given_keys == {"a.b": "1"} and source.environment == {}


HEADER = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1
#SBATCH -c 64
#SBATCH --gpus-per-node=h100:4   # of one kind

"""
LAUNCH = "srun python3 -m verl.trainer.main_ppo n=$SLURM_NNODES g=$SLURM_GPUS_PER_NODE c=$SLURM_CPUS_PER_TASK\n"


def test_slurm_sets_what_the_header_asks_for(tmp_path: Path) -> None:
    (launch,) = script(tmp_path, HEADER + LAUNCH).launches
    assert launch.arguments == ("n=2", "g=4", "c=64")


def test_given_values_come_before_the_header(tmp_path: Path) -> None:
    (launch,) = script(tmp_path, HEADER + LAUNCH, SLURM_NNODES="8").launches
    assert launch.arguments[0] == "n=8"


@pytest.mark.parametrize("line", ["#SBATCH --nodes=2-4", "#SBATCH --nodes", "##SBATCH --nodes=2", "# SBATCH --nodes=2"])
def test_lines_that_say_no_number_give_none(tmp_path: Path, line: str) -> None:
    (launch,) = script(tmp_path, f"#!/bin/bash\n{line}\n{LAUNCH}").launches
    assert "SLURM_NNODES" in launch.arguments[0]


def test_the_header_ends_at_the_first_command(tmp_path: Path) -> None:
    (launch,) = script(tmp_path, f"#!/bin/bash\necho\n#SBATCH --nodes=2\n{LAUNCH}").launches
    assert "SLURM_NNODES" in launch.arguments[0]


def test_a_pipe_in_place_of_a_script_does_not_block(tmp_path: Path) -> None:
    from planner.adapters.shell_script.machine import slurm_environment

    os.mkfifo(tmp_path / "run.sh")
    assert slurm_environment(tmp_path / "run.sh") == {}


def test_arguments_of_a_container_are_no_launchers(tmp_path: Path) -> None:
    text = "srun -w node apptainer run --nv --bind /path/to/verl image.sif python3 -m verl.trainer.main_ppo a=1\n"
    (launch,) = script(tmp_path, text).launches
    assert (launch.target, launch.arguments) == ("verl.trainer.main_ppo", ("a=1",))


def test_a_launcher_behind_its_path_is_one(tmp_path: Path) -> None:
    (launch,) = script(tmp_path, "nohup /opt/conda/bin/torchrun --nnodes 1 train.py --a\n").launches
    assert (launch.target, launch.arguments) == ("train.py", ("--a",))
