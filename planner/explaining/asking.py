"""From what the user names, a saved plan or a request, to what there is to say about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InvalidInputError
from planner.explaining.explanation import Explanation, explain_plan
from planner.explaining.watch import Watch
from planner.files.atomic import read_limited
from planner.files.calibrated import overheads_with
from planner.files.catalog import load_overheads
from planner.files.plan import MAX_BYTES, read_plan
from planner.files.spec import PLACES, WorkloadSpec
from planner.files.workload import build_request
from planner.pipeline import make_plan
from planner.units import Dimension, parse

if TYPE_CHECKING:
    from planner.explaining.conflict import Conflict

PLAN_SUFFIX = ".json"
_OWN_KEY = "format_version"
"""A key of plans that no model configuration has."""


def is_plan_file(path: Path) -> bool:
    """Whether a path names a saved plan, intact or not, rather than the configuration of a model."""
    if path.suffix.lower() != PLAN_SUFFIX or not path.is_file():
        return False
    try:
        document = json.loads(read_limited(path, MAX_BYTES, kind="file"))
    except (ValueError, RecursionError):
        # Whoever reads it as what it claims to be says what is wrong.
        return False
    return isinstance(document, dict) and _OWN_KEY in document


def explain_plan_file(spec: WorkloadSpec) -> Explanation:
    """Explains the plan that `spec.model` names; its request is in the file, so that other options are refused."""
    assert spec.model is not None
    others = spec.flags - {"model", "profile", "time_limit"}
    if others:
        raise InvalidInputError(
            f"has no effect on {spec.model}, a saved plan whose request is in the file",
            where=", ".join(PLACES[name][0] for name in sorted(others)),
            accepted="a plan, --profile and --time-limit, or a model and the options of rlplan plan",
        )
    plan = read_plan(Path(spec.model))
    limit_s = plan.limits.time_limit_s
    if spec.time_limit is not None:
        limit_s = parse(spec.time_limit, Dimension.TIME, where="--time-limit")
    return explain_plan(plan, overheads_with(spec.profile, plan), Watch(limit_s))


def explain_request(spec: WorkloadSpec) -> Explanation | Conflict:
    """Explains the best plan of a request, or why there is none.

    Raises InfeasibleError, with the smallest changes that work, where the cluster is left open and none is enough.
    """
    from planner.explaining.conflict import explain_conflict

    request = build_request(spec)
    watch = Watch(request.limits.time_limit_s)
    if request.cluster is not None:
        conflict = explain_conflict(request, watch)
        if conflict is not None:
            return conflict
    return explain_plan(make_plan(request), request.overheads or load_overheads(), watch)
