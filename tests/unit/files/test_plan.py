"""Saved plans: exact round trip, equal bytes, JSON Schema, and every way in which a file can be broken."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.plan import NamedValue, Plan
from planner.errors import InvalidInputError
from planner.files.atomic import write_atomic
from planner.files.plan import (
    digests,
    json_output,
    parse_plan,
    plan_digest,
    plan_document,
    plan_text,
    read_plan,
    write_plan,
)
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


def rescheduled(plan: Plan) -> Plan:
    """The plan with its stages one after the other, as long as their terms say."""
    schedule, clock = [], 0.0
    for placement, item in zip(plan.placements, plan.schedule, strict=True):
        schedule.append(replace(item, start_s=clock, end_s=clock + placement.time_s))
        clock += placement.time_s
    return replace(plan, schedule=tuple(schedule), objective_value=clock, bound=clock)


def forged(*changes: tuple[str, object]) -> str:
    """The saved plan with other values at dotted places, and digests made anew."""
    document = json.loads(TEXT)
    for place, value in changes:
        node, *keys = document, *(int(key) if key.isdigit() else key for key in place.split("."))
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value
    return json.dumps({**document, "digests": digests(document)})


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
@given(values=st.lists(st.floats(0, 1e9, allow_subnormal=False), min_size=1, max_size=6))
def test_any_number_survives(values: list[float]) -> None:
    terms = tuple(NamedValue(name=f"t{len(values) - i}", value=value) for i, value in enumerate(values))
    plan = grpo_plan()
    changed = replace(plan.placements[0], time_terms=terms)
    plan = rescheduled(replace(plan, placements=(changed, *plan.placements[1:])))
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
    assert document["format_version"] == "1.3"
    assert {"kind", "value", "unit", "bound", "gap_ratio", "unrestricted_value"} == set(document["objective"])
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
        ("num_gpus", "32", "p.json: num_gpus: '32' is not accepted; accepted: a whole number"),
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


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("schedule.0.end_s", 0, "schedule[0]: lasts other than"),
        ("schedule.4.start_s", 1e29, "is no time"),
        ("placements.0.terms.kv_read", -1, "placements[0].terms.kv_read: -1 is out of range"),
        ("placements.0.terms.kv_read", 1e31, "placements[0].terms.kv_read: is too large"),
        ("placements.0.time_s", 1, "placements[0].time_s: 1, but 154.875 follows from the rest of the plan"),
        ("placements.0.gpu_memory.usable_bytes", 0, "placements[0].gpu_memory.usable_bytes: 0 is not within"),
        ("placements.0.gpu_memory.usable_bytes", 6 * 10**10, "the peak is above what is usable"),
        ("placements.0.host_ram.usable_bytes", -5, "placements[0].host_ram.usable_bytes: -5 is not within"),
        ("placements.0.device_group", "g7", "placements[0].device_group: there is no group 'g7'"),
        ("placements.0.worker", "reference", "placements[0]: stage 'rollout' is not run by this worker"),
        ("placements.0.strategy", None, "placements[0].strategy: is missing"),
        ("placements.0.strategy.tp", 3, "placements[0].strategy: tp x pp x dp is not num_gpus, 32"),
        ("placements.3.strategy.cp", 10**29, "placements[3].strategy: tp x pp x cp x dp is not num_gpus"),
        ("placements.3.strategy.tp", 4, "the actor trainer has another group or strategy than before"),
        ("placements.2.strategy.shard_ranks", 5, "shard_ranks: 5 does not divide dp x cp"),
        ("placements.2.strategy.ep", 7, "ep x etp x pp does not divide num_gpus, 32"),
        ("placements", [], "placements: stage 'rollout' is missing"),
        ("device_groups", [], "device_groups: there is none"),
        ("device_groups.0.pool", "a100", "device_groups[0].pool: there is no pool 'a100'"),
        ("device_groups.0.gpu", "mi300x", "device_groups[0].gpu: 'mi300x' is not the GPU of pool 'h100'"),
        ("device_groups.0.num_gpus", 64, "device_groups[0]: GPUs 0 to 63 are not all in pool 'h100' of 32"),
        ("device_groups.0.ranks", [0, 1], "device_groups[0].ranks: are not GPUs 0 to 31"),
        ("device_groups.0.num_nodes", 3, "device_groups[0].num_nodes: 3, but these GPUs are on 4"),
        ("num_gpus", 8, "num_gpus: 8, but 32 follows from the rest of the plan"),
        ("objective.bound", 10**6, "objective.bound: 1e+06 is no lower bound"),
        ("objective.value", 1, "objective.value: 1 s, but the plan has"),
        ("iteration.time_s", 1, "iteration.time_s: 1, but"),
        ("search.num_pruned", 10**9, "search.num_pruned: 1000000000 is above num_priced"),
        ("alternatives.0.time_s", 0, "alternatives[0]: 0 s on 32 GPUs is impossible"),
        ("inputs.workload.num_optimizer_steps", 7, "num_optimizer_steps: 7 does not divide 256 prompts"),
        ("inputs.workload.memory_margin_ratio", 1, "memory_margin_ratio: 1 is no share below 1"),
        ("inputs.workload.kl_coefficient", 0, "the workload has no stage 'reference log-prob'"),
        ("inputs.cluster.pools.0.node.gpus_per_node", 0, "gpus_per_node: 0 is not a positive size"),
        ("inputs.cluster.pools.0.num_nodes", 10**12, "num_nodes: more than 100,000 GPUs"),
        ("inputs.cluster.pools.0.name", "a\x1b", "pools[0].name: 'a\\x1b' is no name"),
        ("inputs.limits.time_limit_s", -1, "inputs.limits.time_limit_s: -1 is out of range"),
    ],
)
def test_a_forged_plan_that_contradicts_itself_is_refused(place: str, value: object, expected: str) -> None:
    assert expected in refused(forged((place, value)))


def test_all_contradictions_are_named_and_a_truthful_forgery_is_read() -> None:
    message = refused(forged(("placements.0.device_group", "g7"), ("device_groups.0.ranks", [0])))
    assert "placements[0].device_group" in message and "device_groups[0].ranks" in message
    assert parse_plan(forged(("assumptions.0.effect", "none")), where="p").assumptions[0].effect == "none"


def test_control_characters_are_written_as_escapes() -> None:
    plan = grpo_plan()
    model = replace(plan.workload.actor, id="a\x1b\x7f\x9b\u202eb")
    plan = replace(plan, workload=replace(plan.workload, actor=model))
    assert all(c.isprintable() for c in plan_text(plan).replace("\n", ""))
    assert parse_plan(plan_text(plan), where="p") == plan


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
    with pytest.raises(InvalidInputError, match=r"none' does not exist"):
        write_atomic(tmp_path / "none" / "plan.json", b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "there").symlink_to(tmp_path)
    for name, expected in (
        ("pipe", "is a pipe"),
        ("nowhere", "is a symbolic link to nothing"),
        ("circle", "link"),
        ("there", "is a directory"),
        ("x" * 300, "too long"),
        ("a\0b", "not a usable file name"),
    ):
        with pytest.raises(InvalidInputError, match=expected):
            write_atomic(tmp_path / name, b"new")
    with pytest.raises(InvalidInputError, match="is a device"):
        write_atomic(Path("/dev/null"), b"new")
    assert Path("/dev/null").is_char_device()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["circle", "nowhere", "pipe", "there"]


def test_a_link_keeps_pointing_at_the_file_that_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("real.json")
    write_atomic(link, b"new")
    assert link.is_symlink() and target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_the_longest_legal_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("p" * 255)
    write_atomic(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_input_that_may_not_end_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as stream:
        # A hole: nothing is written, and nothing may be read.
        stream.truncate(2**40)
    for path, expected in ((tmp_path / "pipe", "is a pipe"), (Path("/dev/zero"), "is a device"), (huge, "is larger")):
        with pytest.raises(InvalidInputError, match=expected):
            read_plan(path)
