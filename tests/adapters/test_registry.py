"""Every framework with rules can be exported to, and a command writes the files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from planner.adapters.export import ExportFile
from planner.adapters.registry import EXPORTERS, export_plan, exported_files
from planner.errors import InvalidInputError
from planner.files.framework import framework_names
from tests.adapters.plans import cases, colocated, engine, fsdp, make_plan
from tests.adapters.variants import catalog_workload

PLAN = cases()["grpo-fsdp"]


def test_names_are_those_of_the_rules() -> None:
    assert set(EXPORTERS) <= set(framework_names())
    for module in EXPORTERS.values():
        assert callable(import_module(f"planner.adapters.{module}").exported_files)


def test_further_files_appear_with_those_of_the_framework(tmp_path: Path) -> None:
    job = ExportFile(name="job.yaml", text="resources: {}\n")
    paths = export_plan("verl", PLAN, tmp_path / "out", digest="abc", further=(job,))
    assert [path.name for path in paths] == ["run.sh", "README.md", "job.yaml"]
    assert "from plan abc" in paths[0].read_text()
    assert paths[2].read_text().startswith("resources: {}\n# SHA-256")
    # An unchanged export is replaced as a whole.
    export_plan("verl", PLAN, tmp_path / "out", further=(job,))


@pytest.mark.parametrize("name", EXPORTERS)
def test_a_plan_that_cannot_be_expressed_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    # A model of the catalog: some frameworks need its config.json.
    load = catalog_workload("qwen3-8b", "remax")
    plan = make_plan(load, colocated(load, fsdp(32), engine(32)))
    with pytest.raises(InvalidInputError, match=f"--framework {name}"):
        export_plan(name, plan, tmp_path / "out")
    with pytest.raises(InvalidInputError):
        exported_files(name, plan)
    assert list(tmp_path.iterdir()) == []
