"""Profile files and how they enter requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.hardware import CollectiveOp, Precision
from planner.domain.profile import Parameter, Profile, ProfileSource, ProfileValue
from planner.errors import InvalidInputError
from planner.files.calibrated import CALIBRATED, overheads_with
from planner.files.catalog import generic_node, load_overheads
from planner.files.plan import read_plan, write_plan
from planner.files.profile import profile_text, read_profile, write_profile
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.pipeline import make_plan

H100 = "h100-sxm"


def value(parameter: Parameter, number: float, gpu: str | None = None) -> ProfileValue:
    return ProfileValue(parameter=parameter, gpu=gpu, value=number, low=0.5 * number, high=2.0 * number, catalog=1.0)


PROFILE = Profile(
    values=(value(Parameter.ROLLOUT_RATIO, 2.4), value(Parameter.HBM, 0.8, H100)),
    sources=(ProfileSource(name="a.log", sha256="0" * 64, kind="run of verl", num_used=7),),
    date="2026-05-31",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_profile(PROFILE, tmp_path / "p.yaml")
    return tmp_path / "p.yaml"


def test_a_profile_survives_its_file(file: Path) -> None:
    assert replace(read_profile(file), name="") == PROFILE


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("rollout_ratio", "rollout_ration", "did you mean 'rollout_ratio'"),
        ("value: 2.4", "value: -2", "above 0"),
        ("value: 2.4", "value: .nan", "above 0"),
        ("value: 2.4", "value: 9.9", "no interval"),
        ("value: 2.4", "value: true", "above 0"),
        ("  gpu: h100-sxm\n", "", "needs the GPU"),
        ("rlplan_profile: 1", "rlplan_profile: 2", "no version that can be read"),
        ("rlplan_profile: 1", "rlplan: 1", "rlplan_profile"),
        ("date: '2026-05-31'", "date: 'May'", "no date"),
        ("kind: run of verl", "kind: run of verl\n  extra: 1", "extra"),
    ],
)  # fmt: skip
def test_wrong_profiles_are_refused_with_the_place(file: Path, old: str, new: str, problem: str) -> None:
    text = profile_text(PROFILE)
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidInputError, match=problem):
        read_profile(file)


def test_a_value_given_twice_is_refused(file: Path) -> None:
    text = profile_text(replace(PROFILE, values=(PROFILE.values[0],)))
    start, end = text.index("- parameter"), text.index("sources:")
    file.write_text(text[:end] + text[start:end] + text[end:])
    with pytest.raises(InvalidInputError, match="twice"):
        read_profile(file)


def test_software_values_replace_and_hardware_factors_multiply() -> None:
    base, node = load_overheads(), generic_node("h100")
    everything = Profile(
        values=tuple(value(p, 0.5, None if p in SOFTWARE_NAMES else H100) for p in Parameter if p is not Parameter.HBM)
    )
    costs, faster = everything.overheads(base), everything.node(node)
    assert costs.step_losses.rollout_ratio == costs.step_losses.step_s == costs.engine_step_s == 0.5
    assert costs.engines[0].step_s == pytest.approx(base.engines[0].step_s * 0.5 / base.engine_step_s)
    law, before = faster.gpu.collective(CollectiveOp.ALL_REDUCE), node.gpu.collective(CollectiveOp.ALL_REDUCE)
    assert law.bytes_per_s == tuple(0.5 * v for v in before.bytes_per_s)
    assert law.alpha_s == tuple(0.5 * v for v in before.alpha_s)
    assert faster.network.nic_ratio == 0.5 * node.network.nic_ratio
    kernel, was = faster.gpu.kernel(Precision.BF16), node.gpu.kernel(Precision.BF16)
    assert kernel.training_flop_ratio == 0.5 * was.training_flop_ratio
    assert kernel.gemm_hbm_ratio == was.gemm_hbm_ratio


SOFTWARE_NAMES = {
    Parameter.ROLLOUT_RATIO, Parameter.TRAINING_RATIO, Parameter.MOE_TRAINING_RATIO, Parameter.SYNC_RATIO,
    Parameter.SWAP_RATE, Parameter.STEP, Parameter.SEQUENCE, Parameter.ENGINE_STEP, Parameter.ENGINE_LAUNCH,
}  # fmt: skip


def test_shares_of_a_peak_stay_below_it_and_other_gpus_as_they_are() -> None:
    node = generic_node("h100")
    fast = Profile(values=(value(Parameter.HBM, 5.0, H100), value(Parameter.NIC_BANDWIDTH, 5.0, H100))).node(node)
    assert fast.network.nic_ratio <= 1.0
    assert fast.gpu.kernel(Precision.BF16).gemm_hbm_ratio <= 1.0
    other = generic_node("a100")
    assert Profile(values=(value(Parameter.HBM, 0.5, H100),)).node(other) == other


def test_plans_use_the_profile_say_so_and_survive_their_file(file: Path, tmp_path: Path) -> None:
    plain = make_plan(build_request(WorkloadSpec(model="qwen3-4b", gpus="8xh100")))
    made = make_plan(build_request(WorkloadSpec(model="qwen3-4b", gpus="8xh100", profile=str(file))))
    assert made.time_s > 1.2 * plain.time_s
    (note,) = [item for item in made.assumptions if item.what == CALIBRATED]
    assert note.value == "calibrated by profile p.yaml of 2026-05-31"
    write_plan(made, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again.cluster == made.cluster
    with pytest.raises(InvalidInputError, match="give the same profile"):
        overheads_with(None, again)
    assert overheads_with(str(file), again).step_losses.rollout_ratio == 2.4
    assert overheads_with(None, plain) == load_overheads()


def test_the_smallest_cluster_and_unused_gpus(file: Path) -> None:
    request = build_request(WorkloadSpec(model="qwen3-4b", gpus="h200", profile=str(file)))
    assert request.gpu_type_when_open == generic_node("h200")
    assert request.overheads is not None and request.overheads.step_losses.rollout_ratio == 2.4
    assert "not used: values of h100-sxm" in request.assumptions[-1].effect
