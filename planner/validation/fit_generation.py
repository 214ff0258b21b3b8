"""Fits the few serving parameters to quality A rows of generation.csv and judges them on rows that were left out.

`python -m planner.validation.fit_generation` prints values beside their priors and the errors: as fitted, with whole
families, GPUs and deployments held out, each beside the errors of the priors alone. Nothing is written: values that
are kept stand in hardware_catalog.

Method: Gauss-Newton on log(predicted / measured) over the logarithms of the parameters, Huber weights, every parameter
drawn to its prior (a normal law of log(value / prior)), every family with equal total weight up to a power. See
docs/validation-protocol.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.hardware import KernelEfficiency, NodeType
from planner.domain.overheads import EngineProfile, Overheads
from planner.domain.strategy import FloatArray, IntArray
from planner.files.catalog import load_overheads
from planner.validation.generation import Deployment, exclude_by_rule, price_deployments, read_row
from planner.validation.read import Row, collect, read_tables
from planner.validation.records import Keys, Table

HUBER = 0.15
"""Log residuals beyond count linearly."""
NOISE = 0.12
"""Standard deviation of a log residual, against which priors are weighed."""
GROUP_POWER = 0.7
"""How far rows of one group are taken for one observation: 0 not at all, 1 wholly."""
_STEPS = 8
_REWEIGHTINGS = 4
_MAX_STEP = 0.5
_MAX_FOLDS = 12
_CONVERGED = 0.02
_DELTA = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A positive number with a prior: `sigma` is the standard deviation of log(value / prior)."""

    name: str
    prior: float
    sigma: float
    most: float = np.inf
    """Physical upper end (shares of a peak)."""


_ARCHITECTURES = {"hopper": ("Hopper",), "blackwell": ("Blackwell", "Blackwell Ultra")}


_FITTED: tuple[tuple[str, float, float, float], ...] = (
    # name, prior, sigma, most
    ("hopper.bf16.weight_only_launch_s", 25e-6, 0.4, np.inf),
    ("hopper.bf16.weight_only_flop_ratio", 0.3, 0.3, 0.95),
    ("hopper.fp8.gemm_hbm_ratio", 0.85, 0.08, 0.95),
    ("hopper.fp8.moe_launch_s", 30e-6, 0.4, np.inf),
    ("hopper.fp8.moe_hbm_ratio", 0.7, 0.2, 0.95),
    ("hopper.fp8.moe_gemm_flop_ratio", 0.25, 0.3, 0.95),
    ("hopper.fp8.decode_attention_hbm_ratio", 0.7, 0.25, 0.95),
    ("blackwell.bf16.weight_only_launch_s", 25e-6, 0.4, np.inf),
    ("blackwell.bf16.weight_only_hbm_ratio", 0.45, 0.25, 0.95),
    ("blackwell.fp8.gemm_hbm_ratio", 0.78, 0.1, 0.95),
    ("blackwell.fp8.gemm_flop_ratio", 0.4, 0.2, 0.95),
    ("blackwell.fp8.moe_launch_s", 25e-6, 0.4, np.inf),
    ("blackwell.fp8.moe_gemm_flop_ratio", 0.3, 0.3, 0.95),
    ("blackwell.fp4.gemm_launch_s", 6e-6, 0.3, np.inf),
    ("blackwell.fp4.gemm_hbm_ratio", 0.65, 0.15, 0.95),
    ("blackwell.fp4.gemm_flop_ratio", 0.35, 0.2, 0.95),
    ("blackwell.fp4.moe_hbm_ratio", 0.7, 0.2, 0.95),
    ("blackwell.fp4.moe_gemm_flop_ratio", 0.25, 0.3, 0.95),
    ("vllm.prefill_step_s", 4e-3, 0.5, np.inf),
    ("vllm.launch_ratio", 0.9, 0.15, np.inf),
    ("vllm.all_reduce_latency_ratio", 0.65, 0.25, np.inf),
    ("sglang.step_s", 0.5e-3, 0.5, np.inf),
    ("sglang.prefill_step_s", 4e-3, 0.5, np.inf),
    ("sglang.all_reduce_latency_ratio", 0.65, 0.25, np.inf),
    ("trtllm.step_s", 0.5e-3, 0.5, np.inf),
    ("trtllm.stream_per_sequence_s", 60e-6, 0.5, np.inf),
    ("trtllm.all_reduce_latency_ratio", 0.65, 0.25, np.inf),
)
DROPPED: Mapping[str, float] = {
    "overheads.expert_popularity_variance": 0.3,
    "hopper.bf16.moe_launch_s": 15e-6,
    "hopper.bf16.weight_only_hbm_ratio": 0.6,
    "hopper.fp8.gemm_launch_s": 7e-6,
    "blackwell.bf16.moe_launch_s": 20e-6,
    "blackwell.bf16.weight_only_flop_ratio": 0.3,
    "blackwell.fp8.gemm_launch_s": 6e-6,
    "blackwell.fp8.moe_hbm_ratio": 0.75,
    "blackwell.fp8.decode_attention_hbm_ratio": 0.8,
    "blackwell.fp4.moe_launch_s": 20e-6,
    "vllm.step_s": 0.5e-3,
    "vllm.stream_per_sequence_s": 60e-6,
    "sglang.stream_per_sequence_s": 60e-6,
    "sglang.launch_ratio": 0.9,
    "trtllm.prefill_step_s": 4e-3,
    "trtllm.launch_ratio": 0.9,
}
"""Kept at their priors: fitting them did not lower the errors on families that were left out, or no row depends on
them."""


HBM_SHARES = (("h200", 0.955), ("h20", 0.955))
"""HBM ratios of some GPUs over their architecture's: isolated kernels on H200 reach 0.95-0.96 of H100's shares."""


def parameters() -> tuple[Parameter, ...]:
    """All fitted parameters; docs/validation-protocol.md states the source of each prior."""
    return tuple(Parameter(name=name, prior=prior, sigma=sigma, most=most) for name, prior, sigma, most in _FITTED)


def with_parameters(node: NodeType, overheads: Overheads, values: Mapping[str, float]) -> tuple[NodeType, Overheads]:
    """A machine and overheads with the parameters that concern them."""
    gpu = node.gpu
    family = next((name for name, archs in _ARCHITECTURES.items() if gpu.architecture in archs), "")
    hbm = next((share for prefix, share in HBM_SHARES if gpu.id.startswith(prefix)), 1.0)
    kernels = tuple(
        (precision, _kernel(kernel, f"{family}.{precision.value}", values, hbm)) for precision, kernel in gpu.kernels
    )
    variance = values.get("overheads.expert_popularity_variance", overheads.expert_popularity_variance)
    changed = replace(
        overheads,
        engines=tuple(_engine(engine, values) for engine in overheads.engines),
        expert_popularity_variance=variance,
    )
    return replace(node, gpu=replace(gpu, kernels=kernels)), changed


def _kernel(kernel: KernelEfficiency, scope: str, values: Mapping[str, float], hbm: float) -> KernelEfficiency:
    def value(name: str, otherwise: float) -> float:
        return values.get(f"{scope}.{name}", otherwise)

    def share(name: str, otherwise: float) -> float:
        found = values.get(f"{scope}.{name}")
        return otherwise if found is None else found * hbm

    return replace(
        kernel,
        gemm_flop_ratio=value("gemm_flop_ratio", kernel.gemm_flop_ratio),
        gemm_hbm_ratio=share("gemm_hbm_ratio", kernel.gemm_hbm_ratio),
        gemm_launch_s=value("gemm_launch_s", kernel.gemm_launch_s),
        decode_attention_hbm_ratio=share("decode_attention_hbm_ratio", kernel.decode_attention_hbm_ratio),
        moe_gemm_flop_ratio=value("moe_gemm_flop_ratio", kernel.moe_gemm_flop_ratio),
        moe_hbm_ratio=share("moe_hbm_ratio", kernel.moe_hbm_ratio),
        moe_launch_s=value("moe_launch_s", kernel.moe_launch_s),
        weight_only_hbm_ratio=share("weight_only_hbm_ratio", kernel.weight_only_hbm_ratio),
        weight_only_flop_ratio=value("weight_only_flop_ratio", kernel.weight_only_flop_ratio),
        weight_only_launch_s=value("weight_only_launch_s", kernel.weight_only_launch_s),
    )


def _engine(engine: EngineProfile, values: Mapping[str, float]) -> EngineProfile:
    def value(name: str, otherwise: float) -> float:
        return values.get(f"{engine.name}.{name}", otherwise)

    return replace(
        engine,
        step_s=value("step_s", engine.step_s),
        stream_per_sequence_s=value("stream_per_sequence_s", engine.stream_per_sequence_s),
        prefill_step_s=value("prefill_step_s", engine.prefill_step_s),
        launch_ratio=value("launch_ratio", engine.launch_ratio),
        all_reduce_latency_ratio=value("all_reduce_latency_ratio", engine.all_reduce_latency_ratio),
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """Rows to fit, as deployments with their keys and measurements; arrays of shape (num_rows,)."""

    read: tuple[tuple[Row, Deployment], ...]
    keys: tuple[Keys, ...]
    deployments: tuple[str, ...]
    log_measured: FloatArray
    overheads: Overheads

    def log_predicted(self, values: Mapping[str, float], rows: IntArray | None = None) -> FloatArray:
        """log(predicted) of some rows (all by default) under parameter values."""
        chosen = range(len(self.read)) if rows is None else rows.tolist()
        nodes: dict[NodeType, NodeType] = {}
        overheads = self.overheads
        read: list[tuple[Row, Deployment]] = []
        for index in chosen:
            row, item = self.read[index]
            if item.node not in nodes:
                nodes[item.node], overheads = with_parameters(item.node, self.overheads, values)
            read.append((row, replace(item, node=nodes[item.node])))
        return np.log([priced.predicted for priced in price_deployments(read, overheads)])


def load_problem() -> Problem:
    """Quality A closed-loop rows that no rule excludes."""
    _, rest = exclude_by_rule(read_tables(None, [Table.GENERATION])[Table.GENERATION].rows)
    read, _ = collect([row for row in rest if row["quality"] == "A"], Table.GENERATION, read_row)
    kept = tuple((row, item) for row, item in read if not item.is_maximum_load)
    overheads = load_overheads()
    priced = price_deployments(kept, overheads)
    return Problem(
        read=kept,
        keys=tuple(item.keys for item in priced),
        deployments=tuple(_deployment(item.keys) for item in priced),
        log_measured=np.log([item.measured for item in priced]),
        overheads=overheads,
    )


def _deployment(keys: Keys) -> str:
    """Everything but lengths and concurrency."""
    return f"{keys.configuration.rpartition(' c')[0].rpartition(' ')[0]} {keys.release}"


def row_weights(problem: Problem, rows: IntArray) -> FloatArray:
    """Weight of each row: rows of one group (model, engine, release, precision, GPU) err together, so that a group of n
    rows counts as n ** (1 - GROUP_POWER) rows."""
    keys = [problem.keys[index] for index in rows]
    names = [(key.model, key.framework, key.release, key.precision, key.gpu) for key in keys]
    counts = Counter(names)
    return np.array([counts[name] ** -GROUP_POWER for name in names])


@dataclass(frozen=True, slots=True)
class Linear:
    """log(predicted) near a point: `base + jacobian @ (position - point)` for all rows."""

    point: FloatArray
    base: FloatArray
    jacobian: FloatArray


def linearise(problem: Problem, point: FloatArray) -> Linear:
    jacobian, base = _jacobian(problem, np.arange(len(problem.read)), point)
    return Linear(point=point, base=base, jacobian=jacobian)


def solve(problem: Problem, rows: IntArray, linear: Linear) -> FloatArray:
    """The most probable position on `rows` within the linear approximation; Huber weights by iteration."""
    known = parameters()
    prior = np.log([p.prior for p in known])
    precision = np.array([p.sigma for p in known]) ** -2.0
    most = np.log([p.most for p in known])
    weight = row_weights(problem, rows) / NOISE**2
    jacobian = linear.jacobian[rows]
    position = linear.point
    for _ in range(_REWEIGHTINGS):
        residual = linear.base[rows] + jacobian @ (position - linear.point) - problem.log_measured[rows]
        robust = weight * np.minimum(1.0, HUBER / np.maximum(np.abs(residual), 1e-9))
        gradient = jacobian.T @ (robust * residual) + precision * (position - prior)
        step = np.linalg.solve(jacobian.T @ (jacobian * robust[:, None]) + np.diag(precision), -gradient)
        position = np.minimum(position + step, most)
    return linear.point + np.clip(position - linear.point, -_MAX_STEP, _MAX_STEP)


def fit(problem: Problem) -> Linear:
    """Gauss-Newton from the priors on all rows; the linear approximation at its end, whose point is the fit."""
    linear = linearise(problem, np.log([p.prior for p in parameters()]))
    for _ in range(_STEPS):
        moved = solve(problem, np.arange(len(problem.read)), linear)
        is_done = float(np.abs(moved - linear.point).max()) < _CONVERGED
        linear = linearise(problem, moved)
        if is_done:
            break
    return linear


def _jacobian(problem: Problem, rows: IntArray, position: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(d log predicted / d log parameter of shape (num_rows, num_parameters), log predicted)."""
    base = problem.log_predicted(_values(position), rows)
    columns = np.zeros((len(rows), len(position)))
    for index, parameter in enumerate(parameters()):
        touched = np.array([place for place, row in enumerate(rows) if _concerns(parameter.name, problem.read[row][1])])
        if not len(touched):
            continue
        moved = position.copy()
        moved[index] += _DELTA
        columns[touched, index] = (problem.log_predicted(_values(moved), rows[touched]) - base[touched]) / _DELTA
    return columns, base


def _concerns(name: str, item: Deployment) -> bool:
    """False where a parameter surely does not act, to save time."""
    scope = name.split(".")[0]
    if scope in _ARCHITECTURES:
        return item.node.gpu.architecture in _ARCHITECTURES[scope]
    return scope == item.engine or (scope == "overheads" and item.model.is_moe)


def _values(position: FloatArray) -> dict[str, float]:
    fitted = {parameter.name: float(np.exp(value)) for parameter, value in zip(parameters(), position, strict=True)}
    return {**DROPPED, **fitted}


def held_out(problem: Problem, group: Sequence[str], linear: Linear, max_folds: int) -> FloatArray:
    """Log residuals of every row, predicted exactly with parameters fitted without its group.

    The fits of the folds use the linear approximation at the fit of all rows.
    """
    members: dict[str, list[int]] = {}
    for index in range(len(problem.read)):
        members.setdefault(group[index], []).append(index)
    bins: list[list[int]] = [[] for _ in range(min(max_folds, len(members)))]
    for name in sorted(members, key=lambda name: (-len(members[name]), name)):
        min(bins, key=len).extend(members[name])
    result = np.empty(len(problem.read))
    everything = np.arange(len(problem.read))
    for members_of_fold in bins:
        judged = np.sort(np.asarray(members_of_fold))
        position = solve(problem, np.setdiff1d(everything, judged), linear)
        result[judged] = problem.log_predicted(_values(position), judged) - problem.log_measured[judged]
    return result


def summary(log_residual: FloatArray) -> str:
    """`median / 90th percentile (bias)` in percent of |predicted / measured - 1|."""
    error = np.expm1(log_residual)
    return (
        f"{100 * np.median(np.abs(error)):5.1f} / {100 * np.quantile(np.abs(error), 0.9):5.1f}"
        f"  bias {100 * np.median(error):+5.1f}"
    )


def main(arguments: Sequence[str]) -> None:
    problem = load_problem()
    known = parameters()
    everything = np.arange(len(problem.read))
    prior = np.log([p.prior for p in known])
    print(f"{len(everything)} rows, {len(known)} parameters")
    print("priors             ", summary(problem.log_predicted(_values(prior)) - problem.log_measured))
    linear = fit(problem)
    position = linear.point
    for parameter, value in zip(known, position, strict=True):
        shift = (value - np.log(parameter.prior)) / parameter.sigma
        print(f"  {parameter.name:36s} prior {parameter.prior:9.3g}  fitted {np.exp(value):9.3g}  ({shift:+.1f} sigma)")
    residual = problem.log_predicted(_values(position)) - problem.log_measured
    print("fitted             ", summary(residual))
    for family in sorted({keys.family for keys in problem.keys}):
        chosen = np.array([keys.family == family for keys in problem.keys])
        print(f"  {family:16s} {int(chosen.sum()):5d}  {summary(residual[chosen])}")
    if "--fitted-only" in arguments:
        return
    families = [keys.family for keys in problem.keys]
    gpus = [keys.gpu for keys in problem.keys]
    _print_held_out("family held out", problem, families, linear, is_listed=True)
    _print_held_out("GPU held out", problem, gpus, linear, is_listed=True)
    _print_held_out("deployment held out", problem, problem.deployments, linear, is_listed=False)


def _print_held_out(title: str, problem: Problem, group: Sequence[str], linear: Linear, *, is_listed: bool) -> None:
    left_out = held_out(problem, group, linear, _MAX_FOLDS)
    print(f"{title:19s}", summary(left_out))
    for name in sorted(set(group)) if is_listed else ():
        chosen = np.array([value == name for value in group])
        print(f"  {name:16s} {int(chosen.sum()):5d}  {summary(left_out[chosen])}")


if __name__ == "__main__":
    main(sys.argv[1:])
