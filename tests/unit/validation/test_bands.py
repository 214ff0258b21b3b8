"""Bands: percentiles, distances, stretch, hold-out of families, the file that plans read."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from planner.bands import band, distances, log_bands, plan_bands, stretched
from planner.domain.bands import Band, Residual, ResidualTable, Traits
from planner.domain.hardware import Cluster
from planner.errors import InvalidInputError
from planner.files.catalog import generic_node
from planner.files.residuals import ResidualFile, load_residuals, parse_residuals, residuals_text
from planner.validation.bands import judge, needed_stretch, residual_table, smallest_stretch
from planner.validation.records import Priced
from tests.golden.sample import grpo_plan
from tests.unit.validation.rows import priced


def traits(**changes: str) -> Traits:
    values = {
        "model": "m", "family": "f", "gpu": "g", "architecture": "a", "precision": "bf16", "framework": "fw",
        "subset": "", "quality": "A",
    }  # fmt: skip
    return Traits(**{**values, **changes}, num_active_params=8e9)


def residual(log_ratio: float, *, weight: float = 1.0, row: str = "r", **changes: str) -> Residual:
    return Residual(row=row, traits=traits(**changes), log_ratio=log_ratio, weight=weight)


def test_percentiles_of_equal_rows() -> None:
    rows = tuple(residual(value) for value in np.linspace(-1.0, 1.0, 101))
    low, high = log_bands(np.zeros((1, 101)), rows)
    assert (low[0], high[0]) == (pytest.approx(-0.8, abs=0.03), pytest.approx(0.8, abs=0.03))


def test_similar_rows_decide() -> None:
    near = [residual(value) for value in np.linspace(-0.1, 0.1, 50)]
    far = [
        residual(value, subset="other", gpu="x", architecture="y", framework="z") for value in np.linspace(-2, 2, 50)
    ]
    table = ResidualTable(name="t", stretch_ratio=1.0, residuals=(*near, *far))
    close, distant = band(traits(), table), band(traits(subset="other", gpu="x", architecture="y"), table)
    assert close.high_ratio < 1.3 < 2.5 < distant.high_ratio


def test_distance_grows_with_every_difference_and_ignores_the_case_of_frameworks() -> None:
    rows = [residual(0.0)]
    assert distances([traits(framework="FW")], rows)[0, 0] == 0.0
    for name in ("model", "family", "gpu", "architecture", "precision", "framework", "subset", "quality"):
        assert distances([traits(**{name: "other"})], rows)[0, 0] > 0.0


def test_models_of_like_size_are_nearer() -> None:
    query = traits()
    rows = [replace(residual(0.0), traits=replace(query, num_active_params=size)) for size in (8e9, 16e9, 256e9, 0.0)]
    apart = distances([query], rows)[0]
    assert apart[0] == 0.0 < apart[1] < apart[2] == apart[3]


def test_bands_hold_their_prediction_even_where_the_model_is_biased() -> None:
    found = band(traits(), ResidualTable(name="t", stretch_ratio=1.0, residuals=(residual(0.5), residual(0.6))))
    assert found.low_ratio == 1.0
    assert found.high_ratio == pytest.approx(np.exp(0.6))
    with pytest.raises(ValueError, match="hold"):
        Band(low_ratio=1.1, high_ratio=1.2, coverage_ratio=0.8, num_near_rows=0, nearest_row="")


def test_nearest_row_is_named_or_its_absence() -> None:
    table = ResidualTable(name="t", stretch_ratio=1.0, residuals=(residual(0.1, row="close"),))
    assert "close (m on g, fw); 1 row " in band(traits(), table).basis
    far = traits(subset="x", gpu="y", architecture="z")
    assert band(far, table).basis == "no measured row near this"


def test_without_a_near_row_of_the_gpu_generation_bands_are_wider_and_say_so() -> None:
    rows = tuple(residual(value, row="r") for value in np.linspace(-0.1, 0.1, 101))
    table = ResidualTable(name="t", stretch_ratio=1.0, residuals=rows)
    known, unknown = band(traits(), table), band(traits(gpu="y", architecture="z"), table)
    assert np.log(unknown.high_ratio) == pytest.approx(2.0 * np.log(known.high_ratio), rel=0.02)
    assert np.log(unknown.low_ratio) == pytest.approx(2.0 * np.log(known.low_ratio), rel=0.02)
    assert (unknown.num_near_rows, unknown.basis) == (0, "no measured row near this")
    assert band(traits(gpu="", architecture=""), table) == known


def test_plans_on_unmeasured_gpus_have_wider_bands_of_time_but_not_of_memory() -> None:
    plan = grpo_plan()
    pool = plan.cluster.pools[0]
    elsewhere = replace(plan, cluster=Cluster(pools=(replace(pool, node=generic_node("l40s")),)))
    (time_known, memory_known), (time_unknown, memory_unknown) = plan_bands(plan), plan_bands(elsewhere)
    assert time_known is not None
    assert time_unknown is not None
    assert time_unknown.high_ratio / time_unknown.low_ratio > time_known.high_ratio / time_known.low_ratio
    assert time_unknown.nearest_row == ""
    assert memory_unknown == memory_known


def test_stretch_reaches_the_wanted_share() -> None:
    low, high = np.full(100, -0.1), np.full(100, 0.1)
    actual = np.linspace(-0.4, 0.4, 100)
    needed = needed_stretch(low, high, actual)
    stretch = smallest_stretch(needed)
    low_log, high_log = stretched(low, high, stretch)
    assert ((low_log <= actual) & (actual <= high_log)).mean() == pytest.approx(0.8, abs=0.02)


def _family_rows(spread: float, seed: int) -> list[Priced]:
    random = np.random.default_rng(seed)
    rows = []
    for family in range(8):
        offset = random.normal(0.0, spread)
        rows += [
            priced(float(np.exp(offset + random.normal(0.0, 0.05))), 1.0, row=f"{family}-{i}", family=f"f{family}",
                   model=f"f{family}", configuration=f"{family}-{i}", gpu="h100")
            for i in range(20)
        ]  # fmt: skip
    return rows


def test_bands_of_left_out_families_cover_what_they_promise() -> None:
    # Errors common to a family would be invisible in bands made from the same family.
    covered = []
    for seed in range(6):
        rows = _family_rows(0.3, seed)
        covered.append(judge(rows, residual_table("train", rows)).coverage_ratio(range(len(rows))))
    assert 0.7 <= np.mean([value for value in covered if value is not None]) <= 0.92


def test_a_family_never_sees_its_own_residuals() -> None:
    rows = _family_rows(0.01, 0)
    outlier = [
        priced(100.0, 1.0, row=f"o{i}", family="odd", model="odd", configuration=f"o{i}", gpu="h100") for i in range(5)
    ]
    found = judge([*rows, *outlier], residual_table("train", [*rows, *outlier]))
    assert found.coverage_ratio(range(len(rows), len(rows) + 5)) == 0.0


def test_repeats_count_once() -> None:
    table = residual_table("train", [priced(1.0, 1.0, configuration="a") for _ in range(4)])
    assert [item.weight for item in table.residuals] == [0.25] * 4


def test_quality_c_is_no_evidence() -> None:
    assert residual_table("train", [priced(9.0, 1.0, quality="C")]).residuals == ()


def test_file_round_trip() -> None:
    table = ResidualTable(
        name="rl", stretch_ratio=1.25, residuals=(residual(0.125, row='a "b"', weight=0.5), residual(-0.25, gpu=""))
    )
    file = ResidualFile(tables=(table,), families=(("qwen3", "qwen3"),))
    text = residuals_text(file)
    assert parse_residuals(text, where="x") == file
    assert residuals_text(parse_residuals(text, where="x")) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"format": 2}',
        '{"format": 1, "texts": [], "families": [], "tables": [{"name": "rl", "stretch_ratio": 1, "rows": [["r"]]}]}',
        '{"format": 1, "texts": ["a"], "families": [], "tables": [{"name": "rl", "stretch_ratio": 1, "rows": '
        '[["r", 0.1, 1, 8, 9, 0, 0, 0, 0, 0, 0, 0]]}]}',
    ],
)  # fmt: skip
def test_damaged_files_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_residuals(text, where="x")


def test_plans_get_bands_in_milliseconds() -> None:
    plan = grpo_plan()
    load_residuals.cache_clear()
    start = time.perf_counter()
    time_band, memory_band = plan_bands(plan)
    assert time.perf_counter() - start < 0.2
    assert time_band is not None
    assert memory_band is not None
    for found in (time_band, memory_band):
        assert found.low_ratio <= 1.0 <= found.high_ratio
        assert found.low_ratio < found.high_ratio
