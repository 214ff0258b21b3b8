"""Where a calibration profile enters: requests and overheads get its values in place of the catalog's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.domain.overheads import Overheads
from planner.domain.plan import Assumption, Plan
from planner.domain.profile import Profile, ProfileValue
from planner.domain.request import PlanRequest
from planner.errors import InvalidInputError
from planner.files.catalog import load_overheads
from planner.files.profile import read_profile

CALIBRATED = "calibration"
"""The assumption that names the profile of a plan."""
MAX_SHOWN = 6


def with_profile(request: PlanRequest, file: str) -> PlanRequest:
    """`request` priced with the profile in `file`; raises InvalidInputError when the file is none.

    Factors for GPU types that the request does not use have no effect; the assumption says so.
    """
    profile = read_profile(Path(file).expanduser())
    cluster = None if request.cluster is None else profile.cluster(request.cluster)
    node = None if request.gpu_type_when_open is None else profile.node(request.gpu_type_when_open)
    nodes = [node] if node is not None else [pool.node for pool in cluster.pools] if cluster is not None else []
    return replace(
        request,
        cluster=cluster,
        gpu_type_when_open=node,
        overheads=profile.overheads(request.overheads or load_overheads()),
        assumptions=(*request.assumptions, _assumption(profile, {item.gpu.id for item in nodes})),
    )


def overheads_with(file: str | None, plan: Plan) -> Overheads:
    """Software costs for a saved plan: those of the profile in `file`, or the catalog's.

    The plan's nodes hold their efficiencies, calibrated or not. Raises InvalidInputError when the plan was made with
    a profile and `file` is None, because its times would then be compared with those of another machine.
    """
    if file is not None:
        return read_profile(Path(file).expanduser()).overheads(load_overheads())
    for item in plan.assumptions:
        if item.what == CALIBRATED:
            raise InvalidInputError(f"the plan is {item.value}: give the same profile", where="--profile")
    return load_overheads()


def _assumption(profile: Profile, gpus: set[str]) -> Assumption:
    used = [item for item in profile.values if item.gpu is None or item.gpu in gpus]
    unused = sorted({item.gpu for item in profile.values if item.gpu is not None} - gpus)
    shown = ", ".join(_shown(item) for item in used[:MAX_SHOWN]) + (", ..." if len(used) > MAX_SHOWN else "")
    effect = f"{shown or 'no value applies'} in place of the catalog's"
    if unused:
        effect += f"; not used: values of {', '.join(unused)}"
    when = f" of {profile.date}" if profile.date else ""
    return Assumption(
        what=CALIBRATED, value=f"calibrated by profile {profile.name}{when}", source="--profile", effect=effect
    )


def _shown(item: ProfileValue) -> str:
    return f"{item.parameter.value} {item.value:.3g}"
