"""Folds for cross-validation: what is held out together is never in the fit that is judged on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from planner.validation.records import Keys, Priced
from planner.validation.statistics import ErrorStatistics, error_statistics

IndexArray = NDArray[np.int64]


class HoldOut(StrEnum):
    """What is left out as a whole."""

    FAMILY = "family"
    GPU = "gpu"
    CONFIGURATION = "configuration"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Row indices of one split; `name` is what is held out."""

    name: str
    fit: IndexArray
    judged: IndexArray


def folds(keys: Sequence[Keys], held_out: HoldOut, *, max_folds: int = 20) -> tuple[Fold, ...]:
    """Leave-one-out folds over the values of a key; every row is judged exactly once.

    Values beyond `max_folds` are merged, the smallest first, so that thousands of configurations need few fits; rows
    of one value stay together. An empty value is a value of its own.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        members[_value(key, held_out)].append(index)
    bins: list[tuple[list[str], list[int]]] = [([], []) for _ in range(min(max_folds, len(members)))]
    # Largest first into the emptiest bin keeps the folds even; names break ties so that splits never change.
    for name in sorted(members, key=lambda name: (-len(members[name]), name)):
        names, indices = min(bins, key=lambda item: len(item[1]))
        names.append(name)
        indices.extend(members[name])
    everything = np.arange(len(keys))
    return tuple(
        Fold(
            name=", ".join(names[:3]) + (", ..." if len(names) > 3 else ""),
            fit=np.setdiff1d(everything, indices),
            judged=np.sort(np.asarray(indices, dtype=np.int64)),
        )
        for names, indices in bins
        if indices
    )


def cross_validate(
    rows: Sequence[Priced],
    held_out: HoldOut,
    fit_and_predict: Callable[[IndexArray, IndexArray], Sequence[float]],
    *,
    max_folds: int = 20,
) -> ErrorStatistics:
    """Errors of held-out rows.

    `fit_and_predict(fit, judged)` fits on the rows of the first indices only and returns the predictions of the second
    ones, in the rows' own unit.
    """
    signed: list[float] = []
    for fold, predicted in _predictions([row.keys for row in rows], held_out, fit_and_predict, max_folds):
        signed.extend(value / rows[index].measured - 1.0 for index, value in zip(fold.judged, predicted, strict=True))
    return error_statistics(signed)


def _predictions(
    keys: Sequence[Keys],
    held_out: HoldOut,
    fit_and_predict: Callable[[IndexArray, IndexArray], Sequence[float]],
    max_folds: int,
) -> Iterator[tuple[Fold, Sequence[float]]]:
    for fold in folds(keys, held_out, max_folds=max_folds):
        yield fold, fit_and_predict(fold.fit, fold.judged)


def _value(key: Keys, held_out: HoldOut) -> str:
    match held_out:
        case HoldOut.FAMILY:
            return key.family
        case HoldOut.GPU:
            return key.gpu
        case HoldOut.CONFIGURATION:
            return key.configuration
        case HoldOut.RELEASE:
            return key.release
