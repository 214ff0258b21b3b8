"""The command line: arguments reach the pipeline, answers reach the right stream, errors the right exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from planner import __version__, cli
from planner.cli_commands import COMMANDS, build_app
from planner.domain.plan import Assumption, Plan, Status
from planner.domain.request import FixedWorker, PlanRequest
from planner.domain.stages import WorkerName
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.files.plan import plan_text, read_plan, write_plan
from planner.files.spec import PLACES
from tests.golden.sample import grpo_plan, split_plan

ROOT = Path(__file__).parents[2]


class FakePipeline(types.ModuleType):
    """Stands for planner.pipeline: remembers what it was asked, and answers with a fixed plan."""

    def __init__(self) -> None:
        super().__init__("planner.pipeline")
        self.requests: list[PlanRequest] = []
        self.fixed: list[tuple[FixedWorker, ...]] = []
        self.answer: Callable[[], Plan] = lambda: grpo_plan(run=True)

    def make_plan(self, request: PlanRequest) -> Plan:
        self.requests.append(request)
        return self.answer()

    def plan_with_search(self, request: PlanRequest) -> types.SimpleNamespace:
        return types.SimpleNamespace(plan=self.make_plan(request))

    def estimate(self, request: PlanRequest, strategies: tuple[FixedWorker, ...]) -> Plan:
        self.requests.append(request)
        self.fixed.append(strategies)
        return self.answer()


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> FakePipeline:
    fake = FakePipeline()
    monkeypatch.setitem(sys.modules, "planner.pipeline", fake)
    return fake


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.json"
    write_plan(grpo_plan(), path)
    return path


def failing(error: Exception) -> Callable[[], Plan]:
    def answer() -> Plan:
        raise error

    return answer


def process(*arguments: str, debug: bool = False, code: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RLPLAN_DEBUG": "1" if debug else ""}
    start = ["-c", code] if code else ["-m", "planner"]
    return subprocess.run(
        [sys.executable, *start, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


# ---------------------------------------------------------------------------------------------- plan


def test_every_flag_reaches_the_request(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    flags = (
        "plan qwen3-8b --algorithm ppo --gpus 16xh100,8xh200 --prompt 500 --prompt-mean 200 --response 2000 "
        "--response-mean 700 --response-cv 0.4 --prompts 100 --group 2 --optimizer-steps 5 --epochs 2 --kl 0.5 "
        "--oversampling 1.25 --critic qwen3-4b --reward judge --reward-model qwen3-1.7b --judge-tokens 33 "
        "--precision bf16 --rollout-precision fp8 --lora 16 --framework verl --objective cost --deadline 10h "
        "--steps 100 --max-gpus 20 --memory-margin 7% --price h100=2 --price h200=3 --time-limit 5s --solver ilp "
        "--seed 3"
    )
    arguments = [*flags.split(), "--budget", "1000 USD", "--inter-pool", "50 Gbit/s"]
    assert cli.run(arguments) == 0, capsys.readouterr().err
    (request,) = pipeline.requests
    work, limits, cluster = request.workload, request.limits, request.cluster
    assert cluster is not None
    assert [(p.num_gpus, p.usd_per_gpu_hour) for p in cluster.pools] == [(16, 2.0), (8, 3.0)]
    assert cluster.inter_pool_bytes_per_s == pytest.approx(6.25e9)
    assert (work.algorithm.name, work.algorithm.oversampling_ratio) == ("ppo", 1.25)
    assert (work.prompt_max_tokens, work.prompt_mean_tokens) == (500, 200)
    assert (work.response.max_tokens, work.response.mean_tokens, work.response.cv) == (2000, 700, 0.4)
    assert (work.num_prompts, work.group_size, work.num_optimizer_steps, work.num_epochs) == (100, 2, 5, 2)
    assert (work.kl_coefficient, work.lora_rank) == (0.5, 16)
    assert work.critic is not None and work.critic.id == "qwen3-4b"
    assert work.reward.model is not None and work.reward.model.id == "qwen3-1.7b"
    assert work.reward.judge_tokens == 33
    assert work.rollout_precision.value == "fp8"
    assert work.memory_margin_ratio == pytest.approx(0.07)
    assert (limits.objective.value, limits.framework, limits.solver, limits.seed) == ("cost", "verl", "ilp", 3)
    assert limits.max_iteration_s == pytest.approx(360)
    assert limits.max_usd_per_iteration == pytest.approx(10)
    assert (limits.max_gpus, limits.time_limit_s) == (20, 5)
    assert request.assumptions == () or {a.what for a in request.assumptions} <= {"node of h100", "node of h200"}


def test_plan_prints_saves_and_says_where(
    pipeline: FakePipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    assert cli.run(["plan", "qwen3-8b", "--gpus", "8xh100", "-o", str(path)]) == 0
    printed = capsys.readouterr()
    assert "per iteration" in printed.out
    assert "saved" not in printed.out and str(path) in printed.err
    assert read_plan(path) == grpo_plan()
    assert "\033" not in printed.out


def test_json_is_the_only_thing_on_stdout(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "qwen3-8b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["time_s"] == 0.84


def test_workload_file_and_overriding_flag(pipeline: FakePipeline, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("model: qwen3-8b\ngpus: 8xh100\nbatch: {prompts: 64, group: 4}\n")
    assert cli.run(["plan", str(path), "--prompts", "32"]) == 0
    work = pipeline.requests[0].workload
    assert (work.num_prompts, work.group_size) == (32, 4)


def test_output_that_cannot_be_written_is_found_before_the_search(
    pipeline: FakePipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    places = (tmp_path, tmp_path / "none" / "plan.json", "/dev/null", tmp_path / "nowhere", tmp_path / "pipe")
    for place in places:
        assert cli.run(["plan", "qwen3-8b", "-o", str(place)]) == 2
        assert str(place) in capsys.readouterr().err
    for wrong in ("", " ", "new/", "y" * 5000, "z" * 300):
        assert cli.run(["plan", "qwen3-8b", "-o", wrong]) == 2
        printed = capsys.readouterr().err
        assert printed.startswith("error: --output") and printed.count("\n") == 1
    assert pipeline.requests == []


def test_a_model_path_that_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    directory.mkdir()
    shipped = json.loads((ROOT / "models_catalog" / "qwen3-8b.json").read_text())
    (directory / "config.json").write_text(json.dumps(shipped.get("config", shipped)))
    assert cli.run(["plan", str(directory)]) == 2
    assert "is not UTF-8" in capsys.readouterr().err


def test_control_characters_of_arguments_and_names_are_shown_as_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b[31m\x9bred\u202e"
    (tmp_path / hostile).mkdir()
    for arguments in (
        ["show", str(tmp_path / hostile)],
        ["plan", str(tmp_path / hostile)],
        ["plan", f"{tmp_path}/{hostile}.yaml"],
        ["plan", "qwen3-8b", "--gpus", hostile],
        ["plan", "qwen3-8b", "-o", f"{tmp_path}/{hostile}/none/p"],
        [hostile],
        ["plan", f"--{hostile}"],
    ):
        assert cli.run(arguments) == 2
        message = capsys.readouterr().err
        assert message.replace("\n", "").isprintable(), message
        assert "\\x1b[31m" in message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInputError("bad"), 2),
        (InfeasibleError("stage 'actor update': too large"), 3),
        (NoPlanFoundError("time is up"), 4),
    ],
)
def test_errors_become_exit_codes(
    pipeline: FakePipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    pipeline.answer = failing(error)
    path = tmp_path / "plan.json"
    assert cli.run(["plan", "qwen3-8b", "-o", str(path)]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"error: {error}\n"
    assert not path.exists()


def test_a_plan_without_an_answer_is_no_success(pipeline: FakePipeline) -> None:
    pipeline.answer = lambda: replace(grpo_plan(), status=Status.UNKNOWN)
    assert cli.run(["plan", "qwen3-8b"]) == 4


def test_interrupt_is_quiet(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> Plan:
        raise KeyboardInterrupt

    pipeline.answer = interrupted
    assert cli.run(["plan", "qwen3-8b"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pln"], "did you mean 'plan'"),
        (["plan", "qwen3-8b", "--gpu", "8xh100"], "did you mean '--gpus'"),
        (["plan", "qwen3-8b", "--kl", "much"], "'much' is not a number"),
        (["plan", "qwen3-8b", "--gpus=8xh100", "--respnse=9"], "did you mean '--response'"),
        (["plan", "qwen3-8b", "-x"], "no option '-x'; see rlplan plan --help"),
        (["--verison"], "did you mean '--version'"),
        (["--version=1"], "--version"),
        (["plan", "qwen3-8b", "--prompts", "many"], "--prompts: 'many' is not an integer"),
        (["plan", "qwen3-8b", "--prompts", "9" * 5000], "--prompts"),
        (["plan", "qwen3-8b", "--prompts"], "--prompts"),
        (["plan", "qwen3-8b", "--kl", "-0.5"], "--kl: -0.5 is out of range"),
        (["plan", "qwen3-8b", "--gpus", "--json"], "--gpus: needs a value before '--json'"),
        (["plan", "qwen3-8b", "-o", "--json"], "--output: needs a value before '--json'"),
        (["plan", "qwen3-8b", "-o", "-"], "--output: '-' is not a file name"),
        (["plan", "qwen3-8b", "--json=yes"], "--json"),
        (["plan", "a", "b"], "unexpected extra argument"),
        (["show"], "'PLAN'; see rlplan show --help"),
        (["export", "p.json", "-o", "out"], "'--to'"),
        (["plan"], "MODEL: is missing"),
        (["plan", "none.yaml"], "none.yaml: does not exist"),
        (["plan", "qwen3-33b"], "did you mean 'qwen3-32b'"),
        (["show", "none.json"], "none.json: does not exist"),
        (["models", "qwen3-33b"], "did you mean"),
        (["hardware", "h10"], "did you mean 'h100'"),
        (["frameworks", "vrel"], "did you mean 'verl'"),
        (["export", "p.json", "--to", "vrel", "-o", "out"], "did you mean 'verl'"),
    ],
)
def test_wrong_input_is_exit_2_with_one_message(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert cli.run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err


def test_no_command_is_help_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(name in printed.err for name in COMMANDS)
    assert "plan qwen3-32b --gpus 32xh100   a first plan" in printed.err


def test_the_list_of_commands_is_not_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert "..." not in text.partition("Commands:")[2]
    assert max(len(line) for line in text.splitlines()) <= 80


def test_only_the_command_that_was_asked_for_is_registered() -> None:
    def names(first: str) -> list[str | None]:
        return [command.name for command in build_app(first).registered_commands]

    assert names("show") == ["show"]
    assert names("") == names("--help") == list(COMMANDS)


def test_options_are_spelled_as_messages_spell_them() -> None:
    command = typer.main.get_command(build_app("plan"))
    plan = command.commands["plan"]  # type: ignore[attr-defined]
    spelled = {parameter.name: parameter.opts for parameter in plan.params}
    # Pools and strategies can only come from a file.
    fields = PLACES.keys() - {"model", "pools", "strategies"}
    assert {field: [PLACES[field][0]] for field in fields} == {field: spelled.get(field) for field in fields}


# ---------------------------------------------------------------------------------------------- other commands


def test_estimate_passes_the_fixed_strategies(pipeline: FakePipeline, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "model: qwen3-8b\ngpus: 8xh100\nbatch: {kl: 0}\n"
        "strategies: [{worker: rollout engine, tp: 2}, {worker: actor trainer, tp: 4}]\n"
    )
    assert cli.run(["estimate", str(path)]) == 0
    assert [item.worker for item in pipeline.fixed[0]] == [WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER]


def test_options_of_estimate_override_the_file(pipeline: FakePipeline, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "model: qwen3-8b\ngpus: 8xh100\nbatch: {kl: 0, prompts: 64}\n"
        "strategies: [{worker: rollout engine, tp: 2}, {worker: actor trainer, tp: 4}]\n"
    )
    flags = (
        "--gpus 16xh200 --price h200=3 --prompt 500 --prompt-mean 200 --response 2000 --response-mean 700 "
        "--response-cv 0.4 --prompts 32 --group 2 --memory-margin 7%"
    )
    saved = tmp_path / "plan.json"
    assert cli.run(["estimate", str(path), *flags.split(), "-o", str(saved)]) == 0
    (request,) = pipeline.requests
    work = request.workload
    assert request.cluster is not None
    assert [(p.num_gpus, p.usd_per_gpu_hour) for p in request.cluster.pools] == [(16, 3.0)]
    assert [item.num_gpus for item in pipeline.fixed[0]] == [16, 16]
    assert (work.prompt_max_tokens, work.prompt_mean_tokens) == (500, 200)
    assert (work.response.max_tokens, work.response.mean_tokens, work.response.cv) == (2000, 700, 0.4)
    assert (work.num_prompts, work.group_size, work.kl_coefficient) == (32, 2, 0)
    assert work.memory_margin_ratio == pytest.approx(0.07)
    assert saved.exists()


def test_estimate_shows_what_does_not_fit_and_fails(
    pipeline: FakePipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "model: qwen3-8b\ngpus: 8xh100\nbatch: {kl: 0}\n"
        "strategies: [{worker: rollout engine}, {worker: actor trainer}]\n"
    )
    misfit = Assumption(what="does not fit", value="actor update: 99 GiB of 72 GiB", source="cost model")
    plan = grpo_plan()
    search = replace(plan.search, solver="none (fixed configuration)")
    pipeline.answer = lambda: replace(plan, status=Status.INFEASIBLE, assumptions=(misfit,), search=search)
    assert cli.run(["estimate", str(path)]) == 3
    printed = capsys.readouterr()
    assert "does not fit: actor update: 99 GiB of 72 GiB" in printed.out
    assert "nothing was searched" in printed.out
    assert printed.err == "error: actor update: 99 GiB of 72 GiB\n"


def test_show_prints_what_plan_printed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["show", str(saved)]) == 0
    assert "of the proven optimum" in capsys.readouterr().out
    assert cli.run(["show", str(saved), "--json"]) == 0
    assert capsys.readouterr().out == plan_text(grpo_plan())


def test_diff(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    write_plan(split_plan(), other)
    assert cli.run(["diff", str(saved), str(saved)]) == 0
    assert "the same" in capsys.readouterr().out
    assert cli.run(["diff", str(saved), str(other)]) == 5
    assert "placements rollout.strategy.num_gpus" in capsys.readouterr().out
    assert cli.run(["diff", str(saved), str(other), "--json"]) == 5
    rows = json.loads(capsys.readouterr().out)
    assert {"place": "status", "before": "optimal", "after": "feasible"} in rows


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["models"], "qwen3-32b"),
        (["models", "Qwen/Qwen3-32B"], "32.762 B"),
        (["models", "qwen3-30b-a3b"], "8 of 128 experts"),
        (["hardware"], "aws-p5.48xlarge"),
        (["hardware", "h100"], "generic-h100-sxm"),
        (["hardware", "p5.48xlarge"], "400 Gbit/s"),
        (["frameworks"], "verl"),
        (["frameworks", "verl"], "verl/"),
        (["--help"], "estimate"),
        (["plan", "--help"], "--response-mean"),
    ],
)
def test_catalogs_and_help(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    assert cli.run(arguments) == 0
    out = capsys.readouterr().out
    assert expected in out
    assert max(len(line) for line in out.splitlines()) <= 100


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["plan", "--help"], ["plan", "--describe-space"], ["models"], ["hardware"], ["frameworks", "verl"]],
)
@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("60", 60), ("40", 60), ("", 100), ("many", 100)])
def test_text_fits_the_columns_that_are_asked_for(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    columns: str,
    width: int,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.run(arguments) == 0
    longest = max(len(line) for line in capsys.readouterr().out.splitlines())
    assert width - 20 < longest <= width


def test_piped_reports_may_be_wide(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert cli.run(["show", str(saved)]) == 0
    assert 100 < max(len(line) for line in capsys.readouterr().out.splitlines()) <= 140


# ---------------------------------------------------------------------------------------------- the process


def test_version_imports_next_to_nothing() -> None:
    code = (
        "import sys; from planner import cli\n"
        "assert cli.run(['--version']) == 0\n"
        "heavy = {'numpy', 'networkx', 'pydantic', 'rich', 'ortools', 'pulp', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = process(code=code)
    assert result.stderr == ""
    assert result.stdout == f"rlplan {__version__}\n"


def test_planning_by_flags_needs_no_pydantic() -> None:
    code = (
        "import sys; from planner.files.spec import WorkloadSpec\n"
        "from planner.files.workload import build_request\n"
        "build_request(WorkloadSpec(model='qwen3-8b', gpus='8xh100'))\n"
        "heavy = {'pydantic', 'rich', 'ortools', 'pulp'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert process(code=code).stderr == ""


def test_lists_of_the_catalogs_need_neither_numpy_nor_networkx() -> None:
    code = (
        "import sys; from planner import cli\n"
        "assert cli.run(['models']) == cli.run(['hardware', 'h100']) == 0\n"
        "heavy = {'numpy', 'networkx', 'ortools', 'pulp'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert process(code=code).stderr == ""


def test_internal_error_is_one_line_and_exit_1() -> None:
    code = (
        "import sys, types\n"
        "fake = types.ModuleType('planner.pipeline')\n"
        "def make_plan(request): raise ZeroDivisionError('boom')\n"
        "fake.plan_with_search = make_plan\n"
        "sys.modules['planner.pipeline'] = fake\n"
        "sys.argv = ['rlplan', 'plan', 'qwen3-8b']\n"
        "from planner.cli import main; main()\n"
    )
    result = process(code=code)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "ZeroDivisionError: boom" in result.stderr and "RLPLAN_DEBUG=1" in result.stderr
    debugged = process(code=code, debug=True)
    assert debugged.returncode == 1
    assert "Traceback" in debugged.stderr and "in make_plan" in debugged.stderr


def test_interrupt_of_the_process_is_quiet() -> None:
    code = (
        "import os, signal, sys, types\n"
        "fake = types.ModuleType('planner.pipeline')\n"
        "fake.plan_with_search = lambda request: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.modules['planner.pipeline'] = fake\n"
        "sys.argv = ['rlplan', 'plan', 'qwen3-8b']\n"
        "from planner.cli import main; main()\n"
    )
    result = process(code=code)
    assert (result.returncode, result.stdout, result.stderr) == (128 + signal.SIGINT, "", "")


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-", "> /dev/full 2>&1"])
@pytest.mark.parametrize("arguments", ["models", "--version", "--help", "show {saved}", "show {saved} --json"])
def test_output_that_cannot_be_written_is_one_line_and_exit_2(saved: Path, redirection: str, arguments: str) -> None:
    command = f"'{sys.executable}' -m planner {arguments.format(saved=saved)} {redirection}"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    if "2>&1" not in redirection:
        assert result.stderr.startswith("error: output: cannot be read or written: ")
        assert result.stderr.count("\n") == 1


def test_a_closed_stderr_does_not_turn_errors_into_output() -> None:
    command = f"'{sys.executable}' -m planner show none.json 2>&-"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")


def test_starting_needs_no_imports_that_an_interrupt_could_hit() -> None:
    code = "import sys; before = set(sys.modules)\nimport planner.cli\nprint(sorted(set(sys.modules) - before))"
    assert process(code=code).stdout == "['planner', 'planner.cli']\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"'{sys.executable}' -m planner models | head -n 1"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    assert result.stdout.startswith("model")


def test_output_without_unicode_is_no_error(saved: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(
        [sys.executable, "-m", "planner", "show", str(saved)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=True,
    )
    assert b"of the proven optimum" in result.stdout
