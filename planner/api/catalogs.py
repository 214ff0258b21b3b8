"""What is known: models, hardware, frameworks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.api.shown import Shown
from planner.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.domain.framework import FrameworkRules
    from planner.domain.hardware import NodeType
    from planner.domain.model import Model
    from planner.files.catalog import GpuEntry, ModelEntry, NodeEntry


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelsResult(Shown):
    """All models of the catalog."""

    entries: tuple[ModelEntry, ...]

    def _summary(self) -> str:
        return f"{len(self.entries)} models"

    def _report(self, width: int) -> RenderableType:
        from planner.report.catalog import model_table

        return model_table()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelResult(Shown):
    """One model with its layers."""

    model: Model
    name: str

    def _summary(self) -> str:
        return f"{self.model.id}, {self.model.num_params / 1e9:.1f} B parameters"

    def _report(self, width: int) -> RenderableType:
        from planner.report.catalog import model_details

        return model_details(self.name)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HardwareResult(Shown):
    """All GPUs and node types of the catalog."""

    gpus: tuple[GpuEntry, ...]
    nodes: tuple[NodeEntry, ...]

    def _summary(self) -> str:
        return f"{len(self.gpus)} GPUs, {len(self.nodes)} node types"

    def _report(self, width: int) -> RenderableType:
        from planner.report.catalog import hardware_table

        return hardware_table()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NodeResult(Shown):
    """One node type and its GPU (`node.gpu`)."""

    node: NodeType
    name: str

    def _summary(self) -> str:
        return f"{self.node.id}, {self.node.gpus_per_node} x {self.node.gpu.id}"

    def _report(self, width: int) -> RenderableType:
        from planner.report.catalog import hardware_details

        return hardware_details(self.name)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FrameworksResult(Shown):
    """All frameworks with rules."""

    frameworks: tuple[FrameworkRules, ...]

    def _summary(self) -> str:
        return ", ".join(rules.name for rules in self.frameworks)

    def _report(self, width: int) -> RenderableType:
        from planner.report.frameworks import framework_table

        return framework_table()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FrameworkResult(Shown):
    """The rules of one framework, with their evidence."""

    rules: FrameworkRules

    def _summary(self) -> str:
        return f"{self.rules.title} {self.rules.version}"

    def _report(self, width: int) -> RenderableType:
        from planner.report.frameworks import framework_details

        return framework_details(self.rules.name)


def models() -> ModelsResult:
    """The models of the catalog: `rlplan models`."""
    from planner.files.catalog import list_models

    return ModelsResult(entries=list_models())


def model(name: str) -> ModelResult:
    """One model by catalog id, Hugging Face id, alias or path of a `config.json`: `rlplan models NAME`.

    Raises InvalidInputError for an unknown one, with the nearest names.
    """
    from planner.files.catalog import load_model

    return ModelResult(model=load_model(name), name=name)


def hardware() -> HardwareResult:
    """The GPUs and node types of the catalog: `rlplan hardware`."""
    from planner.files.catalog import list_gpus, list_nodes

    return HardwareResult(gpus=list_gpus(), nodes=list_nodes())


def node(name: str) -> NodeResult:
    """One node type, or the generic node of a GPU type: `rlplan hardware NAME`.

    Raises InvalidInputError for an unknown name.
    """
    from planner.files.catalog import generic_node, load_node

    try:
        found = generic_node(name)
    except InvalidInputError:
        # No GPU type.
        found = load_node(name)
    return NodeResult(node=found, name=name)


def frameworks() -> FrameworksResult:
    """The frameworks whose rules are known: `rlplan frameworks`."""
    from planner.files.framework import load_frameworks

    return FrameworksResult(frameworks=load_frameworks())


def framework(name: str) -> FrameworkResult:
    """The rules of one framework: `rlplan frameworks NAME`. Raises InvalidInputError for an unknown one."""
    from planner.files.framework import load_framework

    return FrameworkResult(rules=load_framework(name))
