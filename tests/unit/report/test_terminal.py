"""The report says everything that a reader needs, at any width, and nothing that is not so."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.table import Table

from planner.domain.plan import Assumption, Limits, Plan, ScheduledStage
from planner.domain.stages import StageName
from planner.files.workload import KEY_INPUTS
from planner.report.difference import change_table, differences
from planner.report.terminal import plain, plan_report, print_plan, print_renderable
from tests.golden.sample import grpo_plan, host, split_plan


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("plan", [grpo_plan(run=True), split_plan()], ids=["grpo", "split"])
def test_lines_fit_and_end_clean(plan: Plan, width: int) -> None:
    lines = plan_report(plan, width=width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [60, 70, 80])
def test_narrow_reports_lose_no_text(width: int) -> None:
    plan = grpo_plan(run=True)
    group = replace(plan.device_groups[0], gpu="a-gpu-with-a-long-name-80g", num_gpus=512, num_nodes=64)
    plan = replace(plan, device_groups=(group, *plan.device_groups[1:]))
    narrow, wide = plan_report(plan, width=width), plan_report(plan, width=400)
    assert "…" not in narrow
    # Tables interleave their columns: all words are there, however they are broken.
    outside = [part.split("\n\nGPU memory")[-1] for part in narrow.split("\n\nTimeline")]
    expected = [part.split("\n\nGPU memory")[-1] for part in wide.split("\n\nTimeline")]

    def letters(parts: list[str]) -> list[str]:
        return sorted("".join("".join(parts).split()))

    assert letters(outside) == letters(expected)


def test_a_table_that_is_too_wide_breaks_its_columns() -> None:
    table = Table(box=None)
    for name in ("first", "second"):
        table.add_column(name, no_wrap=True)
    table.add_row("a" * 50, "b" * 50)
    stream = io.StringIO()
    print_renderable(table, stream, width=60)
    text = stream.getvalue()
    assert (text.count("a"), text.count("b")) == (50, 50)
    assert max(len(line) for line in text.splitlines()) <= 60


def test_every_part_is_there() -> None:
    plan = grpo_plan(run=True)
    text = " ".join(plan_report(plan).split())
    for placement in plan.placements:
        assert placement.stage.value in text
        if placement.gpu_memory is not None:
            assert placement.gpu_memory.instant in text
    for assumption in plan.assumptions:
        assert assumption.what in text
    for part in (
        "415.1 s per iteration", "1,421 tokens/s/GPU", "25.39 USD",
        "within 0.06% of the proven optimum (time 414.9 s)", "71.7 GiB usable",
        "184,320 candidates", "132,870", "GPU memory 41,212",
        "5 groupings of stages; 1 sub-problem closed by cpsat", "first plan after 310 ms",
        "2.00 TiB", "can run this plan", "reference must share the layout", "+21.0%",
    ):  # fmt: skip
        assert part in text, part


def test_host_ram_is_that_of_the_fullest_placement() -> None:
    assert "h100, per node  328.0 GiB  ##-------- 16% of 2.00 TiB usable" in plan_report(grpo_plan())
    more = replace(grpo_plan().placements[0], host_ram=host(staging=1000.0))
    text = plan_report(replace(grpo_plan(), placements=(more, *grpo_plan().placements[1:])))
    assert "1000.0 GiB" in text or "0.98 TiB" in text
    assert "328.0 GiB" not in text


def test_unproven_unpriced_and_estimated_plans_say_so() -> None:
    text = plan_report(split_plan())
    assert "not proven optimal" in text and "no price known" in text
    plan = grpo_plan()
    fixed = replace(plan, search=replace(plan.search, solver="none (fixed configuration)"))
    text = plan_report(fixed)
    assert "nothing was searched" in text
    assert "proven optimal" not in text and "Search" not in text


def test_limits_and_unused_gpus() -> None:
    limits = Limits(max_iteration_s=500.0, max_usd_per_iteration=30.0, max_gpus=32)
    plan = grpo_plan()
    part = replace(plan, limits=limits, device_groups=(replace(plan.device_groups[0], num_gpus=16, num_nodes=2),))
    text = plan_report(part)
    assert "at most 500.0 s per iteration, 30.00 USD per iteration, 32 GPUs" in text
    assert "16 of 32 GPUs used" in text
    # Two nodes of four run: the plan costs half of what the cluster does.
    assert "12.69 USD per iteration (25.39 USD with idle nodes)" in text
    unpriced = replace(part, cluster=split_plan().cluster)
    words = " ".join(plan_report(unpriced).split())
    assert "1.84 GPU-hours (no price known) per iteration (3.69 GPU-hours with idle nodes)" in words
    assert "idle nodes" not in plan_report(plan)


def test_the_proof_is_exact_or_says_how_far_off() -> None:
    plan = grpo_plan()
    exact = plan_report(replace(plan, bound=plan.objective_value))
    assert "proven optimal in the declared space, time: lower bound 415.1 s\n" in exact
    near = plan_report(replace(plan, bound=plan.objective_value * 0.991))
    assert "within 0.90% of the proven optimum (time 411.4 s); preferred for fewer GPUs, headroom" in near
    assert "proven optimal" not in near


def test_a_plan_that_no_framework_runs_says_so_at_the_top() -> None:
    plan = grpo_plan()
    assert "No known framework" not in plan_report(plan)
    verdicts = tuple(replace(v, can_run=False, reasons=("it has no PPO",)) for v in plan.frameworks)
    text = plan_report(replace(plan, frameworks=verdicts))
    assert text.index("No known framework can run this plan as it is") < text.index("Device groups")
    assert "--framework NAME" in text


HOSTILE = "\x1b]0;pwned\x07\x1b[31m[bold]:smile:[/x]\n\u202eoptimal\x9b2J"


def test_text_of_a_plan_cannot_act_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = grpo_plan()
    group = replace(plan.device_groups[0], gpu=HOSTILE, id=HOSTILE)
    model = replace(plan.workload.actor, id=HOSTILE)
    hostile = replace(
        plan,
        workload=replace(plan.workload, actor=model),
        device_groups=(group,),
        placements=tuple(replace(p, device_group=HOSTILE, bound_by=HOSTILE) for p in plan.placements),
        assumptions=(Assumption(what=HOSTILE, value=HOSTILE, source=HOSTILE, effect=HOSTILE),),
    )
    text = plan_report(hostile)
    assert all(c.isprintable() for c in text.replace("\n", ""))
    assert r"\x1b[31m[bold]:smile:[/x]\n\u202eoptimal" in text
    changes = plain(change_table(differences(plan, hostile), before=HOSTILE, after="b"))
    assert all(c.isprintable() for c in changes.replace("\n", ""))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Terminal()
    print_plan(hostile, stream)
    assert "\x1b]" not in stream.getvalue() and "\x1b[31m" not in stream.getvalue()
    assert "\x9b" not in stream.getvalue() and "\u202e" not in stream.getvalue()


def test_defaults_alone_are_announced() -> None:
    assumed = tuple(Assumption(what=what, value="x", source="default") for what in sorted(KEY_INPUTS))
    assert "defaults alone" in plan_report(replace(grpo_plan(), assumptions=assumed))
    assert "defaults alone" not in plan_report(grpo_plan())


def test_timeline_shows_idle_time_and_host_stages() -> None:
    plan = split_plan()
    lane = next(line for line in plan_report(plan).splitlines() if line.startswith("  g0  ["))
    assert lane.count(".") > 20
    host = tuple(
        ScheduledStage(stage=item.stage, device_groups=("host",), start_s=item.start_s, end_s=item.start_s + 40)
        if item.stage is StageName.REWARD
        else item
        for item in plan.schedule
    )
    assert "  host  ...." in plan_report(replace(plan, schedule=host))


def test_a_pipe_gets_plain_text() -> None:
    stream = io.StringIO()
    print_plan(grpo_plan(), stream)
    assert stream.getvalue() == plan_report(grpo_plan())
    assert "\033" not in stream.getvalue()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colour_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = _Terminal()
    print_plan(grpo_plan(), stream)
    assert "\033[" in stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Terminal()
    print_plan(grpo_plan(), stream)
    assert "\033[3" not in stream.getvalue()


def test_differences() -> None:
    plan = grpo_plan()
    assert differences(plan, plan) == ()
    found = {change.place: (change.before, change.after) for change in differences(plan, split_plan())}
    assert found["device_groups g0.num_gpus"] == ("32", "16")
    assert found["inputs.cluster.pools h100.usd_per_gpu_hour"] == ("6.88", "-")
    assert found["objective.gap_ratio"] == ("0.06%", "10%")


def test_a_difference_in_single_terms_is_not_overlooked() -> None:
    plan = grpo_plan()
    first = plan.placements[0]
    swapped = (replace(first.time_terms[1], value=first.time_terms[0].value),
               replace(first.time_terms[0], name=first.time_terms[0].name, value=first.time_terms[1].value),
               *first.time_terms[2:])  # fmt: skip
    other = replace(plan, placements=(replace(first, time_terms=swapped), *plan.placements[1:]))
    changes = differences(plan, other)
    assert [change.place for change in changes] == ["placements"]


@pytest.mark.parametrize(("gpus_per_node", "is_said"), [(4, False), (5, True), (7, True), (8, False)])
def test_nodes_whose_parts_pack_badly_are_named(gpus_per_node: int, is_said: bool) -> None:
    plan = grpo_plan()
    pool = plan.cluster.pools[0]
    node = replace(pool.node, gpus_per_node=gpus_per_node)
    text = " ".join(
        plan_report(replace(plan, cluster=replace(plan.cluster, pools=(replace(pool, node=node),)))).split()
    )
    assert (f"h100: groups below a node of {gpus_per_node} GPUs take the whole node" in text) is is_said
    assert ("nodes of 4 may plan faster" in text) is is_said
