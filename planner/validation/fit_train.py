"""Fit of the training-time parameters: `python -m planner.validation.fit_train`.

Gauss-Newton on log(predicted / measured) with Huber weights and log-normal priors. Prints each parameter with its
prior, and the errors of the fit beside those of rows that were held out: whole configurations, families and GPUs.
Held-out errors are exact: for every fold the parameters are fitted without its rows (started from the full fit) and
the rows are priced again with them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.hardware import Gpu, KernelEfficiency, Precision
from planner.domain.overheads import Overheads
from planner.domain.strategy import BoolArray, FloatArray, IntArray
from planner.files import catalog
from planner.validation import read
from planner.validation.holdout import HoldOut, folds
from planner.validation.records import Keys, Table
from planner.validation.train import keys, step_terms
from planner.validation.train_rows import TrainRow, read_row

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A positive constant with a log-normal prior: `prior` is its median, `width` the deviation of its logarithm."""

    name: str
    prior: float
    width: float
    limit: float = float("inf")


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(name="ampere_bf16", prior=0.75, width=0.1, limit=0.95),
    Parameter(name="hopper_bf16", prior=0.72, width=0.1, limit=0.95),
    Parameter(name="hopper_fp8", prior=0.62, width=0.2, limit=0.95),
    Parameter(name="blackwell_bf16", prior=0.62, width=0.2, limit=0.95),
    Parameter(name="blackwell_fp8", prior=0.60, width=0.2, limit=0.95),
    Parameter(name="blackwell_fp4", prior=0.50, width=0.3, limit=0.95),
    Parameter(name="ultra", prior=1.1, width=0.07),
    Parameter(name="ultra_fp4", prior=0.75, width=0.2),
    Parameter(name="hopper_bf16_moe", prior=0.43, width=0.2, limit=0.9),
    Parameter(name="hopper_fp8_moe", prior=0.25, width=0.2, limit=0.9),
    Parameter(name="blackwell_bf16_moe", prior=0.38, width=0.2, limit=0.9),
    Parameter(name="blackwell_fp8_moe", prior=0.34, width=0.2, limit=0.9),
    Parameter(name="block_scaled", prior=0.95, width=0.05, limit=1.0),
    Parameter(name="megatron_moe", prior=0.8, width=0.2, limit=1.0),
    Parameter(name="passes", prior=6.0, width=0.2),
    Parameter(name="quantisation_passes", prior=3.0, width=0.3),
    Parameter(name="recurrent", prior=0.1, width=0.25, limit=1.0),
    Parameter(name="moe_layer_host_s", prior=8e-3, width=0.3),
    Parameter(name="recurrent_layer_host_s", prior=5e-3, width=0.3),
    Parameter(name="fast_ep_overlap", prior=0.5, width=0.3, limit=0.95),
    Parameter(name="fsdp_attention", prior=0.7, width=0.2, limit=1.0),
    Parameter(name="overlap_tax", prior=0.15, width=0.5, limit=1.0),
    Parameter(name="optimizer_host_s", prior=0.012, width=0.4, limit=0.02),
)
PRIORS: Values = {p.name: p.prior for p in PARAMETERS}
_ARCHITECTURES = {"Ampere": "ampere", "Hopper": "hopper", "Blackwell": "blackwell", "Blackwell Ultra": "blackwell"}
_HUBER = 0.15
"""Log error beyond which a row counts as an outlier."""
_STEP = 0.02
_ITERATIONS = 6
_MAX_FOLDS = 12


def with_values(rows: Sequence[TrainRow], overheads: Overheads, values: Values) -> tuple[list[TrainRow], Overheads]:
    """Rows and overheads with the parameters in place of the catalog's."""
    gpus: dict[str, Gpu] = {}
    changed: list[TrainRow] = []
    for row in rows:
        gpu = row.node.gpu
        if gpu.id not in gpus:
            gpus[gpu.id] = _with_ratios(gpu, values)
        changed.append(replace(row, node=replace(row.node, gpu=gpus[gpu.id])))
    megatron = replace(
        overheads.megatron,
        moe_ratio=values["megatron_moe"],
        elementwise_passes=values["passes"],
        quantisation_passes=values["quantisation_passes"],
        moe_layer_host_s=values["moe_layer_host_s"],
        recurrent_layer_host_s=values["recurrent_layer_host_s"],
        overlap_tax_ratio=values["overlap_tax"],
    )
    return changed, replace(
        overheads,
        optimizer_host_s=values["optimizer_host_s"],
        recurrent_ratio=values["recurrent"],
        block_scaled_ratio=values["block_scaled"],
        megatron=megatron,
        megatron_graphs=replace(
            megatron, moe_ratio=1.0, moe_layer_host_s=0.0, ep_overlap_ratio=values["fast_ep_overlap"]
        ),
        fsdp=replace(megatron, attention_ratio=values["fsdp_attention"]),
    )


def _with_ratios(gpu: Gpu, values: Values) -> Gpu:
    name = _ARCHITECTURES[gpu.architecture]
    is_ultra = gpu.architecture == "Blackwell Ultra"
    base = catalog.load_gpu("h100-sxm").kernel(Precision.BF16).training_flop_ratio
    limited = gpu.kernel(Precision.BF16).training_flop_ratio / base if name == "hopper" else 1.0

    def changed(precision: Precision, kernel: KernelEfficiency) -> KernelEfficiency:
        scale = limited
        if is_ultra:
            scale = values["ultra_fp4" if precision is Precision.FP4 else "ultra"]
        return replace(
            kernel,
            training_flop_ratio=values[f"{name}_{precision.value}"] * scale,
            training_moe_flop_ratio=_moe_ratio(name, precision, values) * scale,
        )

    return replace(gpu, kernels=tuple((p, changed(p, kernel)) for p, kernel in gpu.kernels))


def _moe_ratio(name: str, precision: Precision, values: Values) -> float:
    """Grouped products: Ampere as Hopper in share of peak; 4 bit runs at the speed of 8 bit (twice the peak)."""
    if precision is Precision.FP4:
        return 0.5 * values["blackwell_fp8_moe"]
    return values[f"{'hopper' if name == 'ampere' else name}_{precision.value}_moe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows to fit with their weights."""

    rows: tuple[TrainRow, ...]
    keys: tuple[Keys, ...]
    measured_s: FloatArray
    weights: FloatArray
    overheads: Overheads

    def residuals(self, values: Values, rows: IntArray | None = None) -> FloatArray:
        """log(predicted / measured) of all rows (or of those with these indices)."""
        index = np.arange(len(self.rows)) if rows is None else rows
        chosen, overheads = with_values([self.rows[i] for i in index], self.overheads, values)
        predicted = np.array([sum(terms.values()) for terms in step_terms(chosen, overheads)])
        return np.asarray(np.log(predicted / self.measured_s[index]), dtype=np.float64)


def problem(rows: Sequence[TrainRow], overheads: Overheads) -> Problem:
    """Rows of quality A with weights that keep a family or a configuration with many rows from deciding alone."""
    chosen = tuple(r for r in rows if r.row["quality"] == "A")
    row_keys = tuple(keys(r) for r in chosen)
    families = Counter(k.family for k in row_keys)
    repeats = Counter(k.configuration for k in row_keys)
    counts = np.array([families[k.family] * repeats[k.configuration] for k in row_keys], dtype=np.float64)
    return Problem(
        rows=chosen,
        keys=row_keys,
        measured_s=np.array([r.measured_s for r in chosen]),
        weights=counts**-0.5 * np.sqrt(np.median(counts)),
        overheads=overheads,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """Residuals of some rows and their derivatives by the logarithms of all parameters."""

    theta: FloatArray
    residual: FloatArray
    jacobian: FloatArray


def _linear(task: Problem, theta: FloatArray, index: IntArray) -> _Linear:
    now = task.residuals(_values(theta), index)
    jacobian = np.empty((len(index), len(theta)))
    for j in range(len(theta)):
        moved = theta.copy()
        moved[j] -= _STEP
        jacobian[:, j] = (now - task.residuals(_values(moved), index)) / _STEP
    return _Linear(theta=theta, residual=now, jacobian=jacobian)


def _step(task: Problem, at: _Linear, index: IntArray) -> FloatArray:
    """Parameters after one Gauss-Newton step over rows `index`, whose linearisation is `at`."""
    prior = np.log([p.prior for p in PARAMETERS])
    width = np.array([p.width for p in PARAMETERS])
    top = np.log([p.limit for p in PARAMETERS])
    moved = _gauss_newton(at.theta, prior, width, at.residual, at.jacobian, task.weights[index])
    return np.asarray(np.minimum(moved, top), dtype=np.float64)


def fit(task: Problem, start: Values) -> dict[str, float]:
    """Parameters that minimise Huber loss plus priors over all rows."""
    theta = np.log([start[p.name] for p in PARAMETERS])
    index = np.arange(len(task.rows))
    for _ in range(_ITERATIONS):
        theta = _step(task, _linear(task, theta, index), index)
    return _values(theta)


def _gauss_newton(
    theta: FloatArray, prior: FloatArray, width: FloatArray, residual: FloatArray, jacobian: FloatArray,
    weights: FloatArray,
) -> FloatArray:  # fmt: skip
    """One step of iteratively reweighted least squares; residuals count in units of the Huber width."""
    robust = weights * np.minimum(1.0, _HUBER / np.maximum(np.abs(residual), 1e-12)) / _HUBER**2
    normal = jacobian.T @ (jacobian * robust[:, None]) + np.diag(width**-2.0)
    gradient = jacobian.T @ (robust * residual) + (theta - prior) / width**2
    step = np.clip(np.linalg.solve(normal, gradient), -0.3, 0.3)
    return np.asarray(theta - step, dtype=np.float64)


def _values(theta: FloatArray) -> dict[str, float]:
    return {p.name: float(np.exp(t)) for p, t in zip(PARAMETERS, theta, strict=True)}


def held_out_errors(task: Problem, at: _Linear, what: HoldOut) -> FloatArray:
    """log errors of every row when all rows of its group were left out of the fit.

    Each fold starts from the fit of all rows: its first step needs only the rows' known derivatives.
    """
    result = np.zeros(len(task.rows))
    for fold in folds(task.keys, what, max_folds=_MAX_FOLDS):
        known = _Linear(theta=at.theta, residual=at.residual[fold.fit], jacobian=at.jacobian[fold.fit])
        theta = _step(task, known, fold.fit)
        theta = _step(task, _linear(task, theta, fold.fit), fold.fit)
        result[fold.judged] = task.residuals(_values(theta), fold.judged)
    return result


def summary(name: str, errors: FloatArray, select: BoolArray) -> str:
    """Median and 90th percentile of |predicted / measured - 1|, and median bias, in percent."""
    ratio = np.exp(errors[select]) - 1.0
    if not ratio.size:
        return f"{name:34s} no rows"
    size = np.abs(ratio)
    return (
        f"{name:34s} n {ratio.size:4d}"
        f"  median {100 * np.median(size):5.1f} %  p90 {100 * np.quantile(size, 0.9):5.1f} %"
        f"  bias {100 * np.median(ratio):+6.1f} %"
    )


def main(arguments: Sequence[str]) -> int:
    """Fits, prints and holds out. `--quick` leaves the held-out fits away."""
    rows = read.read_tables(None, [Table.TRAIN])[Table.TRAIN].rows
    found, _ = read.collect(rows, Table.TRAIN, read_row)
    task = problem([row for _, row in found], catalog.load_overheads())
    fitted = fit(task, PRIORS)
    for p in PARAMETERS:
        print(f"{p.name:22s} prior {p.prior:9.4g}  fitted {fitted[p.name]:9.4g}")
    is_good = np.array([r.row["quality"] == "A" for r in task.rows])
    is_moe = np.array([k.subset == "moe" for k in task.keys])
    sets = {"dense": is_good & ~is_moe, "moe": is_good & is_moe}
    results = {"prior": task.residuals(PRIORS), "fitted": task.residuals(fitted)}
    if "--quick" not in arguments:
        theta = np.log([fitted[p.name] for p in PARAMETERS])
        at = _linear(task, theta, np.arange(len(task.rows)))
        for what in (HoldOut.CONFIGURATION, HoldOut.FAMILY, HoldOut.GPU):
            results[f"{what.value} held out"] = held_out_errors(task, at, what)
    for name, errors in results.items():
        for part, chosen in sets.items():
            print(summary(f"{name}, {part}", errors, chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
