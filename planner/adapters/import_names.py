"""Models behind the names of checkpoints: precision at the end of a name, and shapes that flags spell out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from planner.adapters.findings import Severity
from planner.adapters.import_model import note_left_out, read_model
from planner.adapters.import_values import Values
from planner.adapters.shell_script import is_known, known_tail, shown
from planner.domain.model import Model
from planner.errors import InvalidInputError

_PRECISION = re.compile(r"[-_](fp8|int4|int8|bf16|nvfp4|w4a16|w8a8|awq|torch_dist)$", re.IGNORECASE)
_STAGE = re.compile(r"[-_](base|instruct|chat|it|thinking|reasoning)([-_]\d{4})?$", re.IGNORECASE)
"""Stages of training: all of them have the architecture of their family."""
Accepts = Callable[[Model], bool]


def precision_of(values: Values, key: str) -> str | None:
    """The precision that a checkpoint's name ends with, in lower case; None without one."""
    found = _PRECISION.search(_tail(values, key))
    return found[1].lower() if found is not None else None


def read_checkpoint(values: Values, key: str, accepts: Accepts | None = None) -> str | None:
    """The model of the catalog that a path or repository names, apart from the precision of its weights.

    `accepts` compares a model with what is known of its shape: then shorter beginnings of the name may be tried as
    well, which differ in their training only. None when the model is not known; then the key is asked for.
    """
    tail = _tail(values, key)
    whole = values.config.get(key)
    if isinstance(whole, str) and is_known(whole) and _accepted(whole, accepts):
        note_left_out(values, key, whole)
        return whole
    plain = _PRECISION.sub("", tail)
    for name in [*_shortened(plain)] if accepts is not None else []:
        if _accepted(name, accepts):
            return _noted(values, key, tail, name, ", whose shape is the one given")
    if accepts is not None:
        # The whole catalog, for shapes that only one model has.
        names = _same_shape(accepts)
        if len(names) == 1:
            return _noted(values, key, tail, names[0], ", the only model of the catalog with its shape")
    for name in _stages(plain, tail):
        if _accepted(name, None):
            return _noted(values, key, tail, name, "")
    return read_model(values, key)


def _accepted(name: str, accepts: Accepts | None) -> bool:
    model = _load(name)
    return model is not None and (accepts is None or accepts(model))


def _noted(values: Values, key: str, tail: str, name: str, why: str) -> str:
    if name != tail:
        values.find(key, Severity.NOTE, f"{shown(tail)[:100]} is read as {name}{why}")
    note_left_out(values, key, name)
    return name


def _tail(values: Values, key: str) -> str:
    value = values.config.get(key)
    text = value if isinstance(value, str) else ""
    parts = [part for part in known_tail(text).replace("\\", "/").split("/") if part]
    return parts[-1] if parts and is_known(parts[-1]) else ""


def _stages(plain: str, tail: str) -> list[str]:
    """The name without precision, and without the stage of training; nothing for a name that is complete."""
    base = _STAGE.sub("", plain)
    return [name for name in (plain, base, f"{base}-Instruct") if name and name != tail] if _load(tail) is None else []


def _shortened(name: str) -> Iterator[str]:
    parts = name.split("-")
    for count in range(len(parts), 1, -1):
        yield "-".join(parts[:count])


def _load(name: str) -> Model | None:
    from planner.files.catalog import find_catalog_model

    try:
        return find_catalog_model(name)
    except InvalidInputError:
        return None


def _same_shape(accepts: Accepts) -> list[str]:
    from planner.files.catalog import list_models, load_model

    return [entry.id for entry in list_models() if accepts(load_model(entry.id))]


def shape_of(sizes: Mapping[str, int]) -> Accepts | None:
    """Compares a model with sizes by the names of Megatron's flags; None when too few are given."""
    if not {"num-layers", "hidden-size", "num-attention-heads", "vocab-size"} <= sizes.keys():
        return None

    def accepts(model: Model) -> bool:
        heads = {layer.attention.num_heads for layer in model.layers if layer.attention.num_heads}
        found = {"num-layers": model.num_layers, "hidden-size": model.hidden_size, "vocab-size": model.vocab_size}
        same = all(sizes[name] == value for name, value in found.items())
        return same and (not heads or sizes["num-attention-heads"] in heads)

    return accepts
