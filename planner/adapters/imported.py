"""What a framework's configuration really says: the result of every import."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.findings import Finding, Severity
from planner.domain.execution import IN_STEP, Execution
from planner.domain.request import FixedWorker
from planner.domain.stages import WorkerName
from planner.domain.strategy import Strategy
from planner.files.spec import WorkloadSpec

POOL = "imported"
"""The pool of all imported workers: configurations say how many GPUs they take, not which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of what the configuration really does: `what` is in the words of a plan."""

    what: str
    value: str
    source: str
    """The key that says it, or why it is so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """How a field of a worker's strategy is written in the framework's configuration."""

    worker: WorkerName
    field: str
    keys: tuple[str, ...]
    divisor_field: str = ""
    """The written number is the field's divided by this one (token budgets per GPU: `cp`)."""
    factor_fields: tuple[str, ...] = ()
    """The written number is the field's times these (GPUs of a whole engine: `pp`, `attention_dp`)."""
    words: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """For enumerations: member -> the values of `keys`, in their order. A member without words cannot be written."""

    def written(self, strategy: Strategy) -> tuple[str, ...]:
        """`key=value` for each key; empty where the value cannot be written."""
        value = getattr(strategy, self.field)
        if self.words:
            values = dict(self.words).get(str(value), ())
            return tuple(f"{key}={text}" for key, text in zip(self.keys, values, strict=False))
        if self.divisor_field:
            value = -(-value // getattr(strategy, self.divisor_field))
        for field in self.factor_fields:
            value *= getattr(strategy, field)
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return tuple(f"{key}={text}" for key in self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A configuration in the terms of a plan.

    `spec` holds model, algorithm, batch and lengths; what the configuration does not say (mean lengths, the GPU type)
    is None. `workers` sit on GPUs 0 to num_nodes * gpus_per_node - 1 of the pool POOL; `check` moves them to the real
    one. With anything in `unresolved` the workers are those that could be made out, perhaps none.
    """

    framework: str
    """Name of the rules (`verl`)."""
    version: str
    """The version that the keys fit, such as `0.9`, or a range."""
    file: str
    spec: WorkloadSpec
    num_nodes: int
    gpus_per_node: int
    workers: tuple[FixedWorker, ...]
    execution: Execution = IN_STEP
    recomputes_old_logprob: bool | None = None
    """Whether the trainer computes log-probs of the generating policy again; None: where updates need them."""
    settings: tuple[Setting, ...] = ()
    findings: tuple[Finding, ...] = ()
    knobs: tuple[Knob, ...] = ()
    """How changes of strategies are written; without them they are told in the words of a plan."""
    engine_static_ratio: float | None = None
    """Share of GPU memory for weights and KV cache of the rollout engines, where the configuration counts it so: the
    engine fraction of `workers` is then that of a GPU of 80 GB."""
    layers_are_given: bool = False
    """Whether the configuration, or the framework, says how many layers each pipeline rank has: no rule on even
    pipelines is applied then."""
    unresolved: tuple[str, ...] = ()
    """Names to give with `--set NAME=VALUE`: variables of the script, or keys."""

    node_parts: tuple[tuple[int, int], ...] = ()
    """(nodes, GPUs of each) of workers that the configuration sizes on their own, where it does not say whether they
    share nodes: `num_nodes` and `gpus_per_node` then count on nodes of 8 GPUs, `node_shape` on those that are there."""

    def node_shape(self, gpus_per_node: int) -> tuple[int, int]:
        """Nodes and GPUs per node that the configuration takes on nodes of so many GPUs."""
        if not self.node_parts:
            return self.num_nodes, self.gpus_per_node
        together = sum(size for _, size in self.node_parts)
        if together <= gpus_per_node:
            return max(nodes for nodes, _ in self.node_parts), together
        size = max(size for _, size in self.node_parts)
        return -(-sum(nodes * part for nodes, part in self.node_parts) // size), size

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def has_errors(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)
