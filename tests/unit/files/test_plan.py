"""Saved plans: exact round trip, equal bytes, JSON Schema, and every way in which a file can be broken."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.plan import NamedValue
from planner.errors import InvalidInputError
from planner.files.atomic import write_atomic
from planner.files.plan import json_output, parse_plan, plan_digest, plan_document, plan_text, read_plan, write_plan
from planner.files.schema import schemas
from tests.golden.sample import grpo_plan, split_plan
from tests.schema_check import violations

TEXT = plan_text(grpo_plan())
SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def refused(text: str) -> str:
    with pytest.raises(InvalidInputError) as caught:
        parse_plan(text, where="p.json")
    assert "p.json" in str(caught.value)
    return str(caught.value)


def changed(**sections: object) -> str:
    """The saved plan with other top-level values."""
    return json.dumps({**json.loads(TEXT), **sections})


# ---------------------------------------------------------------------------------------------- writing


def test_round_trip_is_exact(tmp_path: Path) -> None:
    for plan in (grpo_plan(), split_plan()):
        path = tmp_path / "plan.json"
        write_plan(plan, path)
        again = read_plan(path)
        assert again == plan
        assert plan_text(again) == path.read_text(encoding="utf-8")


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(0, 1e15, allow_subnormal=False), min_size=1, max_size=6))
def test_any_number_survives(values: list[float]) -> None:
    terms = tuple(NamedValue(name=f"t{len(values) - i}", value=value) for i, value in enumerate(values))
    plan = grpo_plan()
    plan = replace(plan, placements=(replace(plan.placements[0], time_terms=terms), *plan.placements[1:]))
    again = parse_plan(plan_text(plan), where="p")
    assert again == plan
    assert again.placements[0].time_s == plan.placements[0].time_s


def test_equal_plans_have_equal_bytes_whatever_the_run() -> None:
    assert plan_text(grpo_plan(run=True)) == TEXT
    assert plan_digest(grpo_plan(run=True)) == plan_digest(grpo_plan())
    assert plan_digest(split_plan()) != plan_digest(grpo_plan())


def test_integral_floats_and_integers_are_written_alike() -> None:
    plan = grpo_plan()
    assert plan_text(replace(plan, bound=400.0)) == plan_text(replace(plan, bound=400))


def test_keys_are_those_that_others_build_on() -> None:
    document = json.loads(TEXT)
    assert list(document) == sorted(document)
    assert document["format_version"] == "1.0"
    assert {"kind", "value", "unit", "bound", "gap_ratio"} == set(document["objective"])
    assert {"time_s", "time_band_s", "usd", "tokens_per_s_per_gpu", "staleness"} <= set(document["iteration"])
    assert {"id", "pool", "gpu", "num_gpus", "num_nodes", "ranks"} <= set(document["device_groups"][0])
    rollout = document["placements"][0]
    assert {"stage", "role", "model", "device_group", "strategy", "time_s", "terms", "bound_by"} <= set(rollout)
    assert {"instant", "peak_bytes", "usable_bytes", "terms"} <= set(rollout["gpu_memory"])
    assert {"tp", "pp", "cp", "dp", "ep", "etp"} <= set(rollout["strategy"])
    assert sum(rollout["terms"].values()) == pytest.approx(rollout["time_s"])
    assert {"stage", "device_group", "start_s", "end_s"} <= set(document["schedule"][0])
    assert {"num_priced", "num_rejected", "num_pruned", "solver"} <= set(document["search"])
    assert {"what", "value", "source"} <= set(document["assumptions"][0])
    assert "run" not in document


def test_run_is_in_json_output_only() -> None:
    printed = json.loads(json_output(grpo_plan(run=True)))
    assert set(printed["run"]) == {"time_s", "time_to_first_s", "peak_rss_bytes"}
    assert parse_plan(json_output(grpo_plan(run=True)), where="p") == grpo_plan(run=True)


def test_terms_with_equal_names_are_a_fault() -> None:
    twice = (NamedValue(name="gemm", value=1.0), NamedValue(name="gemm", value=2.0))
    plan = grpo_plan()
    with pytest.raises(ValueError, match="not unique"):
        plan_document(replace(plan, placements=(replace(plan.placements[0], time_terms=twice),)))


# ---------------------------------------------------------------------------------------------- schema


def test_published_schemas_are_current() -> None:
    for name, text in schemas().items():
        published = json.loads((SCHEMAS / name).read_text(encoding="utf-8"))
        assert published == json.loads(text), f"run: python -m planner.files.schema {SCHEMAS}"


@pytest.mark.parametrize("plan", [grpo_plan(), split_plan()])
def test_saved_plan_validates(plan: object) -> None:
    schema = json.loads((SCHEMAS / "plan.schema.json").read_text(encoding="utf-8"))
    document = json.loads(TEXT if plan == grpo_plan() else plan_text(split_plan()))
    assert violations(document, schema) == []
    document["num_gpus"] = "many"
    del document["search"]["solver"]
    assert len(violations(document, schema)) == 2


# ---------------------------------------------------------------------------------------------- reading


def test_every_truncation_is_refused() -> None:
    body = TEXT.rstrip()
    for end in range(1, len(body), max(1, len(body) // 300)):
        refused(body[:end])
    assert "truncated" in refused(body[: len(body) // 2])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not json", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("3", "is not a JSON object"),
        ("{}", "format_version: is missing"),
        ('{"format_version": 1}', "format_version: '1' is no version"),
        ('{"format_version": "x.y"}', "is no version"),
        ('{"format_version": "2.0"}', "format 2.0 is not readable"),
        ('{"format_version": "0.9"}', "format 0.9 is not readable"),
        ('{"format_version": "1.0", "format_version": "1.0"}', "is given twice"),
        ('{"format_version": "1.0", "x": NaN}', "NaN"),
        ('{"format_version": "1.0", "x": 1e999}', "x: is not a finite number"),
        ('{"format_version": "1.0", "x": ' + "[" * 100 + "]" * 100 + "}", "nested too deeply"),
        ("[" * 200_000, "nested too deeply"),
        ('{"format_version": "1.0", "x": ' + "9" * 5000 + "}", "is not a plan"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, expected: str) -> None:
    assert expected in refused(text)


@pytest.mark.parametrize(
    ("section", "value", "expected"),
    [
        ("num_gpus", "32", "p.json: num_gpus: '32' is not accepted; accepted: integer"),
        ("num_gpus", -1, "p.json: num_gpus"),
        ("status", "great", "p.json: status: 'great' is not accepted"),
        ("placements", {}, "p.json: placements"),
        ("placements", [{}], "p.json: placements[0].stage: is missing"),
        ("objective", None, "p.json: objective"),
        ("inputs", {}, "p.json: inputs.workload: is missing"),
    ],
)
def test_wrong_types_name_the_place(section: str, value: object, expected: str) -> None:
    assert expected in refused(changed(**{section: value}))


@pytest.mark.parametrize(
    ("old", "new", "section"),
    [
        ('"gemm": 88.5', '"gemm": 8.5', "placements"),
        ('"usd_per_gpu_hour": 6.88', '"usd_per_gpu_hour": 0.88', "inputs"),
        ('"end_s": 154.875', '"end_s": 100', "schedule"),
        ('"num_pruned": 132870', '"num_pruned": 0', "search"),
        ('"source": "default"', '"source": "measured"', "assumptions"),
    ],
)
def test_a_changed_number_is_found_and_named(old: str, new: str, section: str) -> None:
    assert old in TEXT
    assert f"was changed after it was saved (in {section}" in refused(TEXT.replace(old, new, 1))


def test_missing_and_wrong_digests_are_refused() -> None:
    document = json.loads(TEXT)
    document["digests"]["plan"] = "0" * 64
    assert "digest does not match" in refused(json.dumps(document))
    del document["digests"]
    assert "digests: is missing" in refused(json.dumps(document))


def test_formatting_does_not_matter() -> None:
    assert parse_plan(json.dumps(json.loads(TEXT)), where="p") == grpo_plan()


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, len(TEXT) - 1), character=st.sampled_from('0123456789{}[]",:xe- '))
def test_one_wrong_character_is_refused_or_harmless(position: int, character: str) -> None:
    text = TEXT[:position] + character + TEXT[position + 1 :]
    try:
        plan = parse_plan(text, where="p.json")
    except InvalidInputError as error:
        assert "p.json" in str(error)
    else:
        # Only white space between values may differ.
        assert plan == grpo_plan()


def test_binary_and_empty_files(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for content, expected in ((b"", "is empty"), (b"\x80\x81", "is not UTF-8"), (b"{\0}", "is a binary file")):
        path.write_bytes(content)
        with pytest.raises(InvalidInputError, match=expected):
            read_plan(path)


# ---------------------------------------------------------------------------------------------- atomic files


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is a directory"):
        write_atomic(tmp_path, b"")
    with pytest.raises(InvalidInputError, match="cannot be written"):
        write_atomic(tmp_path / "none" / "plan.json", b"")
