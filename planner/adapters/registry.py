"""Which frameworks plans can be exported to, and the module of each; modules are imported when they are asked for.

A further framework is a data file in planner/adapters/data and a module here with a function `exported_files`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InfeasibleError

if TYPE_CHECKING:
    from planner.adapters.export import ExportFile
    from planner.domain.plan import Plan
    from planner.domain.request import PlanRequest
    from planner.domain.workload import Workload

EXPORTERS: dict[str, str] = {
    "verl": "verl",
    "nemo-rl": "nemo_rl",
    "openrlhf": "openrlhf",
    "areal": "areal",
    "slime": "slime",
}
"""Name of the framework as in `planner/adapters/data` -> module of `planner.adapters`."""


WORKLOAD_FAULTS: dict[str, str] = {"slime": "slime"}
"""Frameworks whose rules are not all that can be said against a workload before there is a plan: modules with a
function `workload_faults`."""


def check_workload(request: PlanRequest) -> PlanRequest:
    """The request itself; InfeasibleError where its framework could not start any plan for the workload, which only
    the adapter knows (values of the model's configuration for which there is no flag)."""
    name = request.limits.framework
    if name is None or name not in WORKLOAD_FAULTS:
        return request
    faults_of: Callable[[Workload], tuple[str, ...]] = import_module(
        f"planner.adapters.{WORKLOAD_FAULTS[name]}"
    ).workload_faults
    faults = faults_of(request.workload)
    if faults:
        raise InfeasibleError(f"{'; '.join(faults)}; plan without --framework, or choose another one")
    return request


def exported_files(name: str, plan: Plan, *, digest: str | None = None) -> tuple[ExportFile, ...]:
    """The files that start `plan` in the framework `name` of EXPORTERS.

    `digest` identifies the saved plan; a digest of the plan's values is taken when it is None. Raises
    InvalidInputError when the framework cannot run the plan, with every reason.
    """
    build: Callable[..., tuple[ExportFile, ...]] = import_module(f"planner.adapters.{EXPORTERS[name]}").exported_files
    return build(plan, digest=digest)


def export_plan(
    name: str, plan: Plan, directory: Path, *, digest: str | None = None, further: Sequence[ExportFile] = ()
) -> tuple[Path, ...]:
    """Writes `exported_files` and `further` ones (such as a cluster's job file) into `directory`: all or none.

    Raises InvalidInputError when the framework cannot run the plan, or when the directory cannot be written or holds
    anything but an earlier export that nobody has changed.
    """
    from planner.adapters.export import write_files

    return write_files(directory, (*exported_files(name, plan, digest=digest), *further))
