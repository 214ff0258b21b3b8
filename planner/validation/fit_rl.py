"""Fits the losses of whole RL steps on published runs: `python -m planner.validation.fit_rl`.

A few physical parameters, each with a narrow prior in log units, are fitted to log residuals of quality-A steps and of
stages, with a robust loss, by Gauss-Newton on a finite-difference Jacobian. Held-out errors use the parameters of a
fit without the held-out group (the Jacobian of the full fit is kept) and price the group's rows anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.overheads import Overheads
from planner.domain.strategy import BoolArray, FloatArray
from planner.files.catalog import load_overheads
from planner.validation.read import Row, read_tables
from planner.validation.records import Keys, Priced, Table
from planner.validation.rl import Conditions, load_conditions, price_with

STAGE_WEIGHT = 0.4
"""Weight of a quality-A stage against a whole step; stages of quality B count half of that."""
HUBER_RATIO = 0.25
"""Log residual beyond which a row pulls no harder."""
NOISE_RATIO = 0.15
"""Standard deviation of a log residual that the model cannot explain; sets the strength of priors."""
_FIXED_SPREAD = 1e-4
_STEP = 0.02
_ITERATIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything that the parameters change."""

    overheads: Overheads
    conditions: Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One fitted number: where it is, its prior mean and its prior standard deviation in log units."""

    name: str
    prior: float
    spread: float
    put: Callable[[State, float], State]


def _eager(state: State, value: float) -> State:
    return replace(state, conditions=replace(state.conditions, eager_kernel_s=value))


def _release(state: State, value: float) -> State:
    releases = tuple((name, newest, value) for name, newest, _ in state.conditions.releases)
    return replace(state, conditions=replace(state.conditions, releases=releases))


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(name="eager_kernel_s", prior=25e-6, spread=0.3, put=_eager),
    Parameter(name="release_slope", prior=0.08, spread=0.5, put=_release),
)
"""What lowers the error of left-out families. Everything else keeps a round value: docs/validation-protocol.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """log(predicted / measured) of steps and stages, in a fixed order, with weights and groups."""

    log_ratio: FloatArray
    weight: FloatArray
    is_step: FloatArray
    keys: tuple[Keys, ...]
    rows: tuple[str, ...]


def evaluate(rows: Sequence[Row], state: State) -> Residuals:
    """Residuals of all rows that can be priced; quality C is left out."""
    steps, stages = price_with(rows, state.overheads, state.conditions)
    kept = [item for item in (*steps.priced, *stages.priced) if _weight(item) > 0]
    return Residuals(
        log_ratio=np.array([np.log(item.predicted / item.measured) for item in kept]),
        weight=np.array([_weight(item) for item in kept]),
        is_step=np.array([float(item.table is Table.RL and item.quality == "A") for item in kept]),
        keys=tuple(item.keys for item in kept),
        rows=tuple(item.row for item in kept),
    )


def _weight(item: Priced) -> float:
    """Whole steps of quality A count; stages less. Steps of quality B have their stages."""
    if item.quality not in ("A", "B"):
        return 0.0
    if item.table is Table.RL:
        return 1.0 if item.quality == "A" else 0.0
    return STAGE_WEIGHT * (1.0 if item.quality == "A" else 0.5)


def with_values(state: State, theta: FloatArray) -> State:
    """`state` with every parameter at exp(theta)."""
    for parameter, value in zip(PARAMETERS, np.exp(theta), strict=True):
        state = parameter.put(state, float(value))
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    theta: FloatArray
    residuals: Residuals
    jacobian: FloatArray
    """d log ratio / d theta, of shape (num_rows, num_parameters)."""


def _priors() -> tuple[FloatArray, FloatArray]:
    """(means, standard deviations) in log units."""
    mean: FloatArray = np.array([math.log(parameter.prior) for parameter in PARAMETERS], dtype=np.float64)
    spread: FloatArray = np.array([parameter.spread for parameter in PARAMETERS], dtype=np.float64)
    return mean, spread


def _solve(
    residual: FloatArray, jacobian: FloatArray, weight: FloatArray, theta: FloatArray, fixed: int | None = None
) -> FloatArray:
    """The minimum of weighted Huber loss and prior of a linear model around `theta`; `fixed` stays at its prior."""
    mean, spread = _priors()
    if fixed is not None:
        spread[fixed] = _FIXED_SPREAD
    precision = np.diag((NOISE_RATIO / spread) ** 2)
    step: FloatArray = np.zeros_like(theta)
    for _ in range(30):
        current = residual + jacobian @ step
        robust = weight * np.minimum(1.0, HUBER_RATIO / np.maximum(np.abs(current), 1e-9))
        normal = jacobian.T @ (jacobian * robust[:, None]) + precision
        right = -jacobian.T @ (robust * residual) - precision @ (theta - mean)
        step = np.asarray(np.linalg.solve(normal, right), dtype=np.float64)
    return step


def fit(rows: Sequence[Row], state: State) -> Fit:
    """All parameters on all rows."""
    theta: FloatArray = _priors()[0]
    residuals = evaluate(rows, with_values(state, theta))
    jacobian = _jacobian(rows, state, theta, residuals)
    for _ in range(_ITERATIONS):
        solved = _solve(residuals.log_ratio, jacobian, residuals.weight, theta)
        step: FloatArray = np.asarray(np.clip(solved, -0.7, 0.7), dtype=np.float64)
        theta = theta + step
        residuals = evaluate(rows, with_values(state, theta))
        if float(np.abs(step).max()) < 0.02:
            break
        jacobian = _jacobian(rows, state, theta, residuals)
    return Fit(theta=theta, residuals=residuals, jacobian=jacobian)


def _jacobian(rows: Sequence[Row], state: State, theta: FloatArray, at: Residuals) -> FloatArray:
    columns = []
    for index in range(len(theta)):
        moved = theta.copy()
        moved[index] += _STEP
        columns.append((evaluate(rows, with_values(state, moved)).log_ratio - at.log_ratio) / _STEP)
    return np.stack(columns, axis=1)


def held_out(found: Fit, group_of: Callable[[Keys], str], fixed: int | None = None) -> FloatArray:
    """Log residuals of every row under a fit without its group (linear around the full fit).

    With `fixed`, that parameter keeps its prior mean.
    """
    groups = np.array([group_of(keys) for keys in found.residuals.keys])
    result = found.residuals.log_ratio.copy()
    for group in np.unique(groups):
        inside = groups == group
        weight = np.where(inside, 0.0, found.residuals.weight)
        step = _solve(found.residuals.log_ratio, found.jacobian, weight, found.theta, fixed)
        result[inside] += found.jacobian[inside] @ step
    return result


def _errors(log_ratio: FloatArray, chosen: BoolArray) -> str:
    error = np.abs(np.expm1(log_ratio[chosen]))
    if not len(error):
        return "    -"
    return f"{100 * np.median(error):5.1f} / {100 * np.quantile(error, 0.9):5.1f} ({len(error)})"


def main() -> None:
    rows = read_tables(None, (Table.RL,))[Table.RL].rows
    state = State(overheads=load_overheads(), conditions=load_conditions())
    found = fit(rows, state)
    print("parameter                      prior      fitted")
    for parameter, value in zip(PARAMETERS, np.exp(found.theta), strict=True):
        print(f"{parameter.name:28s} {parameter.prior:9.3g}  {value:9.3g}")
    ways: tuple[tuple[str, FloatArray], ...] = (
        ("fitted", found.residuals.log_ratio),
        ("configuration held out", held_out(found, lambda keys: keys.configuration)),
        ("family held out", held_out(found, lambda keys: keys.family)),
        ("GPU held out", held_out(found, lambda keys: keys.gpu)),
    )
    subsets = np.array([keys.subset for keys in found.residuals.keys])
    is_step = found.residuals.is_step > 0
    print("\nmedian / 90th percentile of absolute error in % (rows)")
    for name in ("synchronous", "asynchronous"):
        for way, residual in ways:
            print(f"{name:14s} {way:24s} {_errors(residual, is_step & (subsets == name))}")
    is_stage = found.residuals.weight == STAGE_WEIGHT
    for way, residual in ways:
        print(f"{'stages':14s} {way:24s} {_errors(residual, is_stage)}")
    print("\nfamily held out, synchronous and asynchronous steps, without each parameter (it keeps its prior)")
    for fixed, name in enumerate((*(parameter.name for parameter in PARAMETERS), "(none left out)")):
        residual = held_out(found, lambda keys: keys.family, fixed if fixed < len(PARAMETERS) else None)
        print(f"{name:28s} {_errors(residual, is_step)}")
    print()
    for name in sorted(set(subsets) - {"synchronous", "asynchronous"}):
        for way, residual in ways[:2]:
            print(f"{name:14s} {way:24s} {_errors(residual, subsets == name)}")


if __name__ == "__main__":
    main()
