"""Cells, files and names of published measurements."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planner.errors import InvalidInputError
from planner.validation import read
from planner.validation.memory_rows import read_run
from planner.validation.records import Table


def test_shipped_tables_are_whole() -> None:
    tables = read.read_tables(None, tuple(Table))
    counts = {table: len(raw.rows) for table, raw in tables.items()}
    assert counts == {
        Table.TRAIN: 627, Table.RL: 158, Table.MEMORY: 588, Table.GENERATION: 2255, Table.FITS: 545
    }  # fmt: skip
    assert not any(raw.malformed for raw in tables.values())


@pytest.mark.parametrize(
    ("cell", "value"), [("", None), ("8", 8.0), ("8.5", 8.5), ("1e3", 1000.0), (" 4 ", 4.0), ("0", 0.0)]
)
def test_number(cell: str, value: float | None) -> None:
    assert read.number({"x": cell}, "x") == value


@pytest.mark.parametrize("cell", ["nan", "inf", "-1", "8x", "1,000", "1e19", "\u0661e999"])
def test_number_refuses(cell: str) -> None:
    with pytest.raises(read.RowError, match="x = "):
        read.number({"x": cell}, "x")


def test_whole_numbers() -> None:
    row = {"a": "8.0", "b": "8.5", "c": "0", "d": ""}
    assert read.integer(row, "a") == 8
    assert read.degree(row, "d") == 1
    assert read.integer(row, "absent") is None
    for key in "bc":
        with pytest.raises(read.RowError):
            read.degree(row, key)
    with pytest.raises(read.RowError, match="d not stated"):
        read.required_degree(row, "d")


def test_flag() -> None:
    assert [read.flag({"x": cell}, "x") for cell in ("1", "True", "no", "")] == [True, True, False, None]
    with pytest.raises(read.RowError):
        read.flag({"x": "2"}, "x")


def test_rows_of_another_length_are_reported_not_dropped() -> None:
    raw = read.parse_table("id,n\na,1\nb,1,2\nc\n", Table.TRAIN, where="t.csv")
    assert [row["id"] for row in raw.rows] == ["a"]
    assert [(item.row, item.reason) for item in raw.malformed] == [
        ("b", "3 cells, the header has 2"),
        ("c", "1 cells, the header has 2"),
    ]


def test_missing_column_reads_as_empty() -> None:
    (row,) = read.parse_table("id\na\n", Table.TRAIN, where="t.csv").rows
    assert row["model"] == ""


@pytest.mark.parametrize("text", ["<html>", '{"id": 1}', "a,b\n1,2\n", 'id,n\n"a,1\n', "id,n,n\n1,2,3\n", "\n\n"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        read.parse_table(text, Table.TRAIN, where="t.csv")


def test_directory_needs_a_table(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no table of measurements"):
        read.read_tables(tmp_path, (Table.TRAIN,))
    (tmp_path / "train.csv").write_bytes(b"\x00\xff")
    with pytest.raises(InvalidInputError):
        read.read_tables(tmp_path, (Table.TRAIN,))
    (tmp_path / "train.csv").write_text("id\na\n")
    assert set(read.read_tables(tmp_path, tuple(Table))) == {Table.TRAIN}


@pytest.mark.parametrize(
    ("name", "model", "family"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b", "qwen3"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-v3", "deepseek"),
        ("Qwen/Qwen2.5-7B-Instruct (SFT on ReTool)", "qwen2.5-7b", "qwen2"),
        ("Qwen/Qwen2.5-VL-72B-Instruct-GPTQ-Int4", "qwen2.5-72b", "qwen2"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b", "llama3"),
    ],
)
def test_model_names(name: str, model: str, family: str) -> None:
    found = read.find_model(name)
    assert (found.id, read.model_family(found)) == (model, family)


def test_unknown_models_are_reported() -> None:
    for name in ("", "Nobody/Nothing-7B", "/etc/passwd", "../../config.json"):
        with pytest.raises(read.RowError):
            read.find_model(name)


def test_mpt_shapes_give_the_published_parameter_counts() -> None:
    rows = [row for row in read.read_tables(None, (Table.TRAIN,))[Table.TRAIN].rows if row["model"].startswith("MPT")]
    assert len(rows) > 100
    for row in rows:
        model = read.find_model(row["model"], max_positions=read.integer(row, "seq_len"))
        assert f"{model.num_params} params" == row["params_note"]


def test_truncated_models() -> None:
    whole, cut = read.find_model("deepseek-ai/DeepSeek-V3"), read.find_model("deepseek-ai/DeepSeek-V3", num_layers=4)
    assert [layer.num_layers for layer in cut.layers] == [3, 1]
    assert cut.hidden_size == whole.hidden_size
    with pytest.raises(read.RowError, match="1 to 61"):
        read.find_model("deepseek-ai/DeepSeek-V3", num_layers=62)


def test_models_of_absurd_depth_are_refused_at_once() -> None:
    start = time.perf_counter()
    with pytest.raises(read.RowError, match="at most 10,000"):
        read.find_model("meta-llama/Meta-Llama-3-70B", num_layers=4_194_304)
    tests = read.read_tables(None, (Table.MEMORY,))[Table.MEMORY].rows
    row = next(row for row in tests if row["id"].startswith("mcore-gpt-gpt3_mcore_te_tp2_pp2_resume_t"))
    with pytest.raises(read.RowError, match="at most 10,000"):
        read_run({**row, "layers": "4194304"})
    with pytest.raises(read.RowError):
        read.find_model("unheard-of", stated_shape="heads 32, hidden 4096, layers 999999999, vocab 131072")
    assert time.perf_counter() - start < 2.0


def test_stated_shape() -> None:
    model = read.find_model("GPT-39B", stated_shape="39.1 B params, hidden 8192, layers 48, vocab 51200")
    assert model.num_params == pytest.approx(39.1e9, rel=0.01)


def test_machines() -> None:
    rack = read.find_node("gb200")
    assert (rack.gpus_per_node, rack.scale_up_domain_gpus) == (4, 72)
    assert read.find_node("h100-sxm", "DGX-H100").id == "dgx-h100"
    assert read.find_node("h100-96g-hbm2e-500w").gpu.hbm_bytes_per_s == 2.4e12
    assert read.find_node("h20").gpu.id == "h20-96g"
    for code in ("", "ascend-npu", "h1000"):
        with pytest.raises(read.RowError):
            read.find_node(code)


def test_machines_by_size() -> None:
    node, count = read.find_node_of_size("h100", "", 2)
    assert (node.gpus_per_node, count) == (2, 1)
    assert read.find_node_of_size("h100", "", 64)[1] == 8
    with pytest.raises(read.RowError):
        read.find_node_of_size("h100", "", 12)
