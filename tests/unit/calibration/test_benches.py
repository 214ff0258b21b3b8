"""Micro-benchmarks: the samples in examples/logs were made with known factors."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.calibrating import CalibrationReport, calibrate_logs
from planner.domain.profile import Parameter
from planner.errors import InvalidInputError
from planner.files.bench_logs import EngineBenchKind, LinkTest, read_benches
from planner.files.spec import WorkloadSpec
from tests.unit.calibration import samples

ALL_REDUCE = samples.LOGS / "nccl-all-reduce-8.txt"
ACROSS = samples.LOGS / "nccl-all_gather-4-nodes.txt"
SERVE = samples.LOGS / "vllm-serve-tp4.txt"
MORE = samples.LOGS / "vllm-throughput-latency-tp4.txt"


def value(report: CalibrationReport, parameter: Parameter) -> float:
    item = next(v for v in report.calibration.result.verdicts if v.unknown.key.parameter is parameter)
    assert item.is_identified, item
    return item.value


def test_headers_and_rows_of_nccl_tests() -> None:
    (bench,), engines = read_benches(ALL_REDUCE)
    assert not engines
    assert (bench.test, bench.num_ranks, bench.num_nodes) == (LinkTest.ALL_REDUCE, 8, 1)
    assert bench.gpu == "NVIDIA H100 80GB HBM3"
    assert len(bench.rows) == 20 and bench.rows[0].num_bytes == 8192
    assert 1e-5 < bench.rows[0].seconds < 1e-4
    (bench,), _ = read_benches(ACROSS)
    assert (bench.test, bench.num_ranks, bench.num_nodes) == (LinkTest.ALL_GATHER, 32, 4)


def test_links_inside_a_node_give_the_law_and_links_between_nodes_the_nic() -> None:
    report = calibrate_logs([ALL_REDUCE, ACROSS])
    assert value(report, Parameter.ALL_REDUCE_BANDWIDTH) == pytest.approx(0.85, rel=0.08)
    assert value(report, Parameter.ALL_REDUCE_LATENCY) == pytest.approx(1.4, rel=0.08)
    assert value(report, Parameter.NIC_BANDWIDTH) == pytest.approx(0.7, rel=0.08)
    assert value(report, Parameter.NIC_LATENCY) == pytest.approx(1.5, rel=0.12)
    assert {item.gpu for item in report.calibration.profile.values} == {"h100-sxm"}
    assert all(row.left_out_ratio is not None and row.left_out_ratio < 0.05 for row in report.calibration.result.errors)


def test_prefixes_of_mpi_and_older_formats_are_read(tmp_path: Path) -> None:
    lines = [f"[1,0]<stdout>:{line}" for line in ALL_REDUCE.read_text().splitlines() if "Collective test" not in line]
    (tmp_path / "mpi.txt").write_text("\n".join(lines))
    (bench,), _ = read_benches(tmp_path / "mpi.txt")
    assert bench.test is LinkTest.ALL_REDUCE and len(bench.rows) == 20


def test_a_test_without_a_name_is_refused_unless_its_rows_say_which(tmp_path: Path) -> None:
    text = ACROSS.read_text()
    (tmp_path / "links.txt").write_text(text)
    with pytest.raises(InvalidInputError, match="which test of nccl-tests"):
        read_benches(tmp_path / "links.txt")
    (tmp_path / "all_gather.txt").write_text(text)
    assert read_benches(tmp_path / "all_gather.txt")[0][0].test is LinkTest.ALL_GATHER


def test_bad_rows_are_named(tmp_path: Path) -> None:
    text = ALL_REDUCE.read_text().replace("    22.71 ", "      nan ", 1)
    lines = text.splitlines()
    (tmp_path / "bad.txt").write_text(text)
    (bench,), _ = read_benches(tmp_path / "bad.txt")
    assert len(bench.rows) == 19
    (bad,) = bench.bad
    assert "nan" in lines[bad.line - 1]


def test_one_rank_and_impossible_nodes_are_skipped_and_named(tmp_path: Path) -> None:
    text = ALL_REDUCE.read_text()
    alone = "\n".join(line for line in text.splitlines() if "Rank" not in line or "Rank  0" in line)
    (tmp_path / "alone.txt").write_text(alone)
    report = calibrate_logs([tmp_path / "alone.txt", ACROSS])
    assert any("ran on one rank" in note for note in report.calibration.notes)
    with pytest.raises(InvalidInputError, match="ran on one rank"):
        calibrate_logs([tmp_path / "alone.txt"])


def test_unknown_gpus_ask_for_the_type(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(ALL_REDUCE.read_text().replace("NVIDIA H100 80GB HBM3", "Quantum Abacus 9"))
    with pytest.raises(InvalidInputError, match="--gpus TYPE"):
        calibrate_logs([tmp_path / "x.txt"])
    report = calibrate_logs([tmp_path / "x.txt"], spec=WorkloadSpec(gpus="8xh200"))
    assert {item.unknown.key.gpu for item in report.calibration.result.verdicts} == {"h200-sxm"}


def test_benchmarks_of_vllm_are_read() -> None:
    _, serving = read_benches(SERVE)
    assert [item.concurrency for item in serving] == [1, 16, 64, 256]
    assert all(item.prompt_tokens == 1024 and item.output_tokens == 1024 for item in serving)
    _, (throughput, latency) = read_benches(MORE)
    assert throughput.kind is EngineBenchKind.THROUGHPUT and throughput.num_requests == 1000
    assert throughput.prompt_tokens == pytest.approx(512, rel=0.01)
    assert throughput.output_tokens == pytest.approx(256, rel=0.01)
    assert latency.kind is EngineBenchKind.LATENCY and latency.concurrency == 8 and latency.tp == 4


def test_engines_are_predicted_better_afterwards() -> None:
    report = calibrate_logs([SERVE, MORE], [samples.FIXED])
    assert len(report.calibration.identified) >= 1
    errors = report.calibration.result.errors
    assert sum(row.after_ratio for row in errors) < 0.4 * sum(row.before_ratio for row in errors)
    assert all(row.left_out_ratio is not None and row.left_out_ratio < 0.1 for row in errors)


def test_engines_need_a_configuration_and_a_known_concurrency(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="neither model nor layout"):
        calibrate_logs([SERVE])
    text = SERVE.read_text().replace("Maximum request concurrency:", "Request rate configured (RPS):")
    (tmp_path / "rate.txt").write_text(text)
    with pytest.raises(InvalidInputError, match="--max-concurrency"):
        calibrate_logs([tmp_path / "rate.txt"], [samples.FIXED])
