"""The Python API: it does what the command line does, shows itself, and costs nothing until it is used."""

from __future__ import annotations

import inspect
import io
import json
import pkgutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from rich.console import Console

import planner
from planner import api, cli
from planner.api.results import PlanResult
from planner.api.shown import Shown
from planner.cli_commands import COMMANDS
from planner.commands.workload import OPTIONS
from planner.domain.execution import Execution, ExecutionMode
from planner.domain.plan import Plan, Status
from planner.errors import InfeasibleError, InvalidInputError
from planner.files.plan import write_plan
from planner.files.spec import WorkloadSpec
from planner.report.notebook import Plainly, text_html
from tests.golden.sample import grpo_plan

ROOT = Path(__file__).parents[2]
FUNCTION_OF = {
    "plan": "plan", "estimate": "estimate", "analyze": "analyze", "show": "read_plan", "diff": "diff",
    "export": "export", "check": "check_config", "simulate": "simulate_plan", "report": "report_html",
    "models": "models", "hardware": "hardware", "frameworks": "frameworks", "budget": "budget",
    "validate": "validate", "explain": "explain_plan", "calibrate": "calibrate", "compare": "compare",
}  # fmt: skip
"""Command -> function. The names of `check`, `simulate` and `explain` are taken by modules of the package."""


@pytest.fixture(scope="module")
def made() -> PlanResult:
    return planner.plan("qwen3-1.7b", gpus="8xh100", response_max=2048, response_mean=1000, num_prompts=64)


def asynchronous(plan: Plan) -> Plan:
    execution = Execution(mode=ExecutionMode.STREAMING, staleness=1)
    return replace(plan, execution=execution, period_s=plan.makespan_s * 0.7)


# ---------------------------------------------------------------------------------------------- the package


def test_every_command_has_a_function() -> None:
    assert set(FUNCTION_OF) == set(COMMANDS)
    for command, function in FUNCTION_OF.items():
        assert callable(getattr(planner, function))
        assert f"rlplan {command}" in (inspect.getdoc(getattr(planner, function)) or "") or command == "show"


def test_names_are_those_of_the_api_and_no_modules() -> None:
    assert set(planner.__all__) == {*api.__all__, "__version__"}
    modules = {module.name for module in pkgutil.iter_modules(planner.__path__)}
    assert not modules & set(api.__all__), "an import of the module would hide the function"
    assert set(planner.__all__) <= set(dir(planner))
    for name in api.__all__:
        assert getattr(planner, name) is getattr(api, name)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        _ = planner.plann


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import planner, sys; print(sorted(m for m in sys.modules if m.split('.')[0] in ('planner', 'numpy', 'rich')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['planner']"


def test_importing_the_functions_imports_no_search_and_no_report() -> None:
    code = (
        "import sys; from planner import plan; print([m for m in ('ortools', 'rich', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("function", [planner.plan, planner.workload])
def test_arguments_are_the_options_of_the_command(function: object) -> None:
    assert callable(function)
    arguments = inspect.signature(function).parameters
    assert set(arguments) - {"strategies"} == set(OPTIONS)
    for name, parameter in arguments.items():
        assert parameter.default in (None, ()), name
        assert parameter.kind is (parameter.POSITIONAL_OR_KEYWORD if name == "model" else parameter.KEYWORD_ONLY)


def test_every_argument_reaches_the_spec() -> None:
    given: dict[str, object] = {}
    for number, field in enumerate(fields(WorkloadSpec), 1):
        if field.name in OPTIONS:
            given[field.name] = ("text",) if field.default == () else number
    given["model"], given["cluster"], given["profile"] = "m", "c.yaml", "p.yaml"
    spec = planner.workload(**given)  # type: ignore[arg-type]
    assert {name: getattr(spec, name) for name in given} == given


def test_plan_hands_all_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def fake(model: object, **values: object) -> WorkloadSpec:
        seen.update(values, model=model)
        raise InvalidInputError("seen")

    monkeypatch.setattr("planner.api.planning.workload", fake)
    given = {name: object() for name in OPTIONS}
    with pytest.raises(InvalidInputError, match="seen"):
        planner.plan(**given)  # type: ignore[arg-type]
    assert seen == given


def test_a_workload_file_is_overridden_by_arguments(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("model: qwen3-8b\ngpus: 8xh100\nbatch: {prompts: 32, group: 4}\n")
    spec = planner.workload(file, num_prompts=64, prices="h100=2")
    assert (spec.model, spec.num_prompts, spec.group_size, spec.prices) == ("qwen3-8b", 64, 4, ("h100=2",))
    again = planner.workload(spec, gpus="16xh200")
    assert (again.gpus, again.num_prompts, again.model) == ("16xh200", 64, "qwen3-8b")


def test_wrong_values_are_errors_that_say_where() -> None:
    with pytest.raises(InvalidInputError, match="--prompts: 0 is out of range"):
        planner.plan("qwen3-1.7b", gpus="8xh100", num_prompts=0)
    with pytest.raises(InvalidInputError, match="MODEL"):
        planner.plan()
    with pytest.raises(InfeasibleError):
        planner.plan("llama-3.1-405b", gpus="1xh100")


# ---------------------------------------------------------------------------------------------- plans


def test_plan_is_that_of_the_command_line(made: PlanResult, capsys: pytest.CaptureFixture[str]) -> None:
    command = "plan qwen3-1.7b --gpus 8xh100 --response 2048 --response-mean 1000 --prompts 64 --json"
    assert cli.run(command.split()) == 0
    document = json.loads(capsys.readouterr().out)
    document.pop("run")
    assert made.document() == document


def test_plans_are_saved_read_and_compared(made: PlanResult, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planner.write_plan(made, path)
    read = planner.read_plan(path)
    assert replace(made.plan, run=None) == read.plan
    assert not planner.diff(made, path)
    other = replace(read.plan, objective_value=read.plan.objective_value * 2)
    changed = planner.diff(path, other)
    assert changed and changed.names == ("plan.json", "after")
    assert "objective" in str(changed) and len(changed.document()) == len(changed.changes)


def test_more_of_the_same_search(made: PlanResult) -> None:
    points = made.pareto_front().points
    assert points[0].time_s <= made.time_s * (1 + 1e-9)
    with pytest.raises(InvalidInputError, match="no search"):
        PlanResult(plan=made.plan).pareto_front()


def test_estimate_prices_what_does_not_fit(tmp_path: Path) -> None:
    fits = planner.estimate(ROOT / "examples" / "fixed-qwen3-8b.yaml")
    assert fits.plan.status is Status.FEASIBLE and fits.problems == ()
    bad = planner.estimate(planner.workload(ROOT / "examples" / "fixed-qwen3-8b.yaml", gpus="8xrtx4090"))
    assert bad.plan.status is Status.INFEASIBLE and bad.problems


def test_analysis_with_and_without_a_plan() -> None:
    spec = planner.workload("qwen3-1.7b", gpus="8xh100", response_max=2048, response_mean=1000, num_prompts=64)
    assert planner.analyze(spec).analysis.stages[0].planned_s is not None
    assert planner.analyze(spec, with_plan=False).analysis.stages[0].planned_s is None


def test_simulation_and_trace(made: PlanResult, tmp_path: Path) -> None:
    replay = planner.simulate_plan(made, iterations=3, seed=1)
    assert replay.is_inside == replay.report.is_inside
    assert "95%" in repr(replay)
    replay.save_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_export_and_check(tmp_path: Path) -> None:
    plan = planner.plan("qwen3-1.7b", framework="verl", gpus="8xh100", response_max=2048, response_mean=1000)
    paths = planner.export(plan, to="VERL", directory=tmp_path)
    script = next(path for path in paths if path.name == "run.sh")
    found = planner.check_config(script, gpus="h100", response_mean=1000)
    assert not found.has_problem, str(found)
    assert found.view.plan is not None and found.view.plan.time_s == pytest.approx(plan.time_s, rel=1e-6)
    with pytest.raises(InvalidInputError, match="--gpus TYPE"):
        planner.check_config(script)
    with pytest.raises(InvalidInputError, match="did you mean 'verl'"):
        planner.export(plan, to="verll", directory=tmp_path)


def test_budget_and_page(tmp_path: Path) -> None:
    spec = planner.workload("qwen3-1.7b", response_max=2048, response_mean=1000, num_prompts=64, steps=10)
    seen: list[tuple[int, int]] = []
    rows = tmp_path / "rows.jsonl"
    found = planner.budget(
        spec, sizes="4,8", types="h100", output=rows, on_progress=lambda done, total: seen.append((done, total))
    )
    assert len(found.sweep.rows) == 2 and seen[-1] == (2, 2)
    assert found.view.choice.picks
    found.save_csv(tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 3
    page = planner.report_html(found, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page == planner.report_html(rows)
    with pytest.raises(InvalidInputError, match="resume"):
        planner.budget(spec, resume=True)
    with pytest.raises(InvalidInputError, match="executor"):
        planner.budget(spec, executor="dusk")


def test_explanation(made: PlanResult) -> None:
    found = planner.explain_plan(made)
    assert found.explanation.is_found_again and found.explanation.decisions
    assert found.document()["decisions"] and "alternative" in str(found)


def test_calibration_and_comparison(tmp_path: Path) -> None:
    log, config = ROOT / "examples/logs/verl-qwen3-8b.log", ROOT / "examples/fixed-qwen3-8b.yaml"
    found = planner.calibrate(log, config=config)
    assert found.report.runs and "parameter" in repr(found)
    found.save(tmp_path / "profile.yaml")
    priced = planner.estimate(planner.workload(config, profile=tmp_path / "profile.yaml"))
    assert any(item.what == "calibration" for item in priced.plan.assumptions)
    priced.save(tmp_path / "plan.json")
    beside = planner.compare(tmp_path / "plan.json", log, profile=tmp_path / "profile.yaml")
    assert beside.comparison.stages and beside.is_inside is not None
    assert isinstance(beside.document()["is_inside"], bool)


def test_validation_of_some_rows() -> None:
    found = planner.validate(tables="memory", model="qwen")
    assert [item.table.value for item in found.evaluations] == ["memory"]
    assert found.held_out == ()
    assert "memory" in str(found)


# ---------------------------------------------------------------------------------------------- how results look


def test_results_show_themselves(made: PlanResult, tmp_path: Path) -> None:
    results: list[Shown] = [
        made, made.pareto_front(), planner.read_plan(saved(tmp_path)), planner.diff(made, made), planner.models(),
        planner.model("qwen3-8b"), planner.hardware(), planner.node("h100"), planner.node("p5.48xlarge"),
        planner.frameworks(), planner.framework("verl"),
        planner.estimate(ROOT / "examples" / "fixed-qwen3-8b.yaml"),
    ]  # fmt: skip
    for result in results:
        line, text = repr(result), str(result)
        assert line.startswith(f"<{type(result).__name__}: ") and "\n" not in line
        assert text.strip() and max(map(len, text.splitlines())) <= 100
        console = Console(file=io.StringIO(), width=72, force_terminal=False)
        console.print(result)
        assert isinstance(console.file, io.StringIO)
        printed = console.file.getvalue()
        assert printed.strip() and max(len(row.rstrip()) for row in printed.splitlines()) <= 72
        html = result._repr_html_()
        assert html.startswith(("<pre", "<iframe")) and html.endswith(("</pre>", "</iframe>"))


def saved(directory: Path) -> Path:
    path = directory / "golden.json"
    write_plan(grpo_plan(), path)
    return path


def test_asynchronous_plans_show_themselves() -> None:
    shown = PlanResult(plan=asynchronous(grpo_plan()))
    assert "staleness 1" in str(shown)
    assert "<iframe" in shown._repr_html_()


def test_hostile_names_are_only_text(made: PlanResult) -> None:
    plan = made.plan
    name = '<script>alert(1)</script>"[red]\x1b[31m'
    hostile = replace(plan, workload=replace(plan.workload, actor=replace(plan.workload.actor, id=name)))
    result = PlanResult(plan=hostile)
    html = result._repr_html_()
    assert "<script>alert" not in html and html.count('"') % 2 == 0
    assert "\x1b" not in html + repr(result) + str(result)
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(result)
    assert isinstance(console.file, io.StringIO)
    assert "\x1b" not in console.file.getvalue() and "[red]" in console.file.getvalue()


def test_text_in_html_is_escaped_and_bold_stays() -> None:
    from rich.text import Text

    html = text_html(Text.assemble(("<b>&", "bold"), " [bold]x"), width=40)
    assert "<b>&lt;b&gt;&amp;</b> [bold]x</pre>" in html
    console = Console(file=io.StringIO(), width=40)
    console.print(Plainly(lambda width: Text(f"{width} [bold]\x9b")))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().strip() == "40 [bold]\\x9b"
