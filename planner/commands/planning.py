"""Commands that plan: plan, analyze, estimate."""

from __future__ import annotations

from planner import cli_options as opt
from planner.commands.baselines import Baselines, Pareto, deliver_with_more
from planner.commands.common import (
    check_output,
    deliver,
    input_files,
    print_table,
    progress,
    read_workload,
    width,
    wrapped,
)
from planner.commands.workload import OPTIONS, with_spec
from planner.files.spec import WorkloadSpec, override

NOT_ANALYZED = frozenset({"objective", "deadline", "budget", "steps", "prices", "solver", "seed"})


@with_spec(*OPTIONS)
def plan(
    spec: WorkloadSpec,
    output: opt.Output = None,
    as_json: opt.AsJson = False,
    describe_space: opt.DescribeSpace = False,
    baselines: Baselines = False,
    pareto: Pareto = False,
) -> None:
    """Find the best plan. What is not given has a default, and is printed as an assumption."""
    if describe_space:
        from planner.search.space import describe

        print(wrapped(describe()))
        return
    check_output(output, *input_files(spec))
    from planner.adapters.registry import check_workload
    from planner.files.workload import build_request

    request = check_workload(build_request(spec))
    with progress("searching"):
        from planner.pipeline import plan_with_search

        planned = plan_with_search(request)
    if baselines or pareto:
        deliver_with_more(planned, output, as_json=as_json, wants_baselines=baselines, wants_front=pareto)
        return
    deliver(planned.plan, output, as_json=as_json)


@with_spec(*(name for name in OPTIONS if name not in NOT_ANALYZED))
def analyze(spec: WorkloadSpec, no_plan: opt.NoPlan = False, as_json: opt.AsJson = False) -> None:
    """Show work, depth and bytes of each stage, and how near the best plan is to their lower bound."""
    from planner.files.workload import build_request

    request = build_request(spec)
    with progress("searching"):
        from planner.analysis import analyze as view_of
        from planner.pipeline import make_plan

        view = view_of(request, None if no_plan else make_plan(request))
    if as_json:
        import json

        from planner.report.analysis import analysis_document

        print(json.dumps(analysis_document(view), indent=1, ensure_ascii=False))
        return
    from planner.report.analysis import analysis_report

    print_table(analysis_report(view, width=width()))


def estimate(
    file: opt.WorkloadFile,
    gpus: opt.Gpus = None,
    cluster: opt.Cluster = None,
    prompt_max: opt.PromptMax = None,
    prompt_mean: opt.PromptMean = None,
    response_max: opt.ResponseMax = None,
    response_mean: opt.ResponseMean = None,
    response_cv: opt.ResponseCv = None,
    num_prompts: opt.NumPrompts = None,
    group_size: opt.GroupSize = None,
    memory_margin: opt.MemoryMargin = None,
    prices: opt.Prices = None,
    profile: opt.Profile = None,
    output: opt.Output = None,
    as_json: opt.AsJson = False,
) -> None:
    """Price a fixed configuration: all strategies given, nothing searched. Options override the file."""
    check_output(output, file, cluster, profile)
    flags = WorkloadSpec(
        gpus=gpus, cluster=cluster, prompt_max=prompt_max, prompt_mean=prompt_mean, response_max=response_max,
        response_mean=response_mean, response_cv=response_cv, num_prompts=num_prompts, group_size=group_size,
        memory_margin=memory_margin, prices=tuple(prices or ()), profile=profile,
    )  # fmt: skip
    spec = override(read_workload(file), flags)
    with progress("pricing"):
        from planner.api.planning import estimate as price_fixed

        made = price_fixed(spec).plan
    deliver(made, output, as_json=as_json)
