"""A plan file that somebody changed, digests and all, is refused or can be shown, compared and exported."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.adapters.verl import export_plan
from planner.errors import InvalidInputError
from planner.files.plan import Json, digests, json_output, parse_plan, plan_text
from planner.report.difference import change_table, differences
from planner.report.terminal import plain, plan_report
from tests.golden.sample import grpo_plan, split_plan

PLANS = (grpo_plan(), split_plan())
TEXTS = tuple(plan_text(plan) for plan in PLANS)
NAMES_PER_LIST = 6
VALUES: tuple[Json, ...] = (
    0,
    -1,
    3,
    7.5,
    1e-300,
    1e29,
    1e308,
    10**25,
    None,
    True,
    "",
    "none",
    "\x1b[31m",
    "a\nb",
    [],
    {},
)


def places(value: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths to everything in a document, of long lists only the first items."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:NAMES_PER_LIST]):
            yield from places(item, (*path, index))


PLACES = tuple(tuple(places({k: v for k, v in json.loads(text).items() if k != "digests"})) for text in TEXTS)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), number=st.integers(0, len(TEXTS) - 1), value=st.sampled_from(VALUES), is_removed=st.booleans())
def test_a_forged_plan_is_refused_or_usable(data: st.DataObject, number: int, value: Json, is_removed: bool) -> None:
    path = data.draw(st.sampled_from(PLACES[number]))
    document = json.loads(TEXTS[number])
    node = document
    for key in path[:-1]:
        node = node[key]
    if is_removed:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    text = json.dumps(document | {"digests": digests(document)})
    try:
        plan = parse_plan(text, where="p.json")
    except InvalidInputError as error:
        assert "p.json" in str(error)
        return
    changes = plain(change_table(differences(PLANS[number], plan), before="a", after="b"))
    for shown in (plan_report(plan), changes, json_output(plan)):
        assert shown.replace("\n", "").isprintable()
    with tempfile.TemporaryDirectory() as directory:
        try:
            export_plan(plan, Path(directory) / "out")
        except InvalidInputError as error:
            assert str(error)


def test_a_table_that_lacks_values_is_refused() -> None:
    document = json.loads(plan_text(grpo_plan()))
    law = {"num_ranks": [2, 4], "alpha_s": [1e-6, 1e-6], "bytes_per_s": [10**11, 10**11], "gamma_s": []}
    document["inputs"]["cluster"]["pools"][0]["node"]["gpu"]["collectives"] = [["all_reduce", law]]
    with pytest.raises(InvalidInputError, match="all_reduce: needs as many values"):
        parse_plan(json.dumps(document | {"digests": digests(document)}), where="p.json")


@pytest.mark.parametrize("ranks", [[-4, 8], [1, 8], [8, 8], [8, 4]])
def test_a_table_whose_numbers_of_ranks_do_not_ascend_is_refused(ranks: list[int]) -> None:
    document = json.loads(plan_text(grpo_plan()))
    law = {"num_ranks": ranks, "alpha_s": [1e-6, 1e-6], "bytes_per_s": [10**11, 10**11], "gamma_s": [1e-6, 1e-6]}
    document["inputs"]["cluster"]["pools"][0]["node"]["gpu"]["collectives"] = [["all_reduce", law]]
    with pytest.raises(InvalidInputError, match="ascending order"):
        parse_plan(json.dumps(document | {"digests": digests(document)}), where="p.json")
