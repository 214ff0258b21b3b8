"""Profile files: what `rlplan calibrate` writes and `--profile` reads (schema in docs/calibrate.md)."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path

from planner.domain.profile import Parameter, Profile, ProfileSource, ProfileValue
from planner.errors import InvalidInputError, nearest
from planner.files.atomic import write_atomic
from planner.files.fields import Fields
from planner.files.yaml_text import read_yaml

FORMAT = 1
MAX_VALUE = 1e15
MAX_COUNT = 2**53
_PARAMETERS = {item.value: item for item in Parameter}


def read_profile(path: Path) -> Profile:
    """The profile in a YAML file; raises InvalidInputError that names the key for anything that is none."""
    fields = Fields(read_yaml(path, kind="profile"), where=str(path))
    version = fields.raw("rlplan_profile")
    if version != FORMAT or isinstance(version, bool):
        raise InvalidInputError(
            f"{str(version)[:40]!r} is no version that can be read",
            where=fields.place("rlplan_profile"),
            accepted=f"{FORMAT}, as rlplan calibrate writes",
        )
    values = tuple(_value(item) for item in fields.sections("values"))
    sources = tuple(_source(item) for item in fields.sections("sources"))
    day = checked_date(fields.optional_text("date"), fields.place("date"))
    fields.finish()
    try:
        return Profile(values=values, sources=sources, date=day, name=path.name)
    except ValueError as error:
        raise InvalidInputError(str(error), where=str(path)) from None


def checked_date(text: str, where: str) -> str:
    """`text` if it is an ISO date or empty; InvalidInputError otherwise."""
    if text:
        try:
            date.fromisoformat(text)
        except ValueError:
            raise InvalidInputError(f"{text[:40]!r} is no date", where=where, accepted="such as 2026-05-31") from None
    return text


def _value(fields: Fields) -> ProfileValue:
    name = fields.text("parameter")
    if name not in _PARAMETERS:
        raise InvalidInputError(
            f"{name[:60]!r} is no parameter", where=fields.place("parameter"), suggestion=nearest(name, _PARAMETERS)
        )
    result = {
        "value": _number(fields, "value"), "low": _number(fields, "low"), "high": _number(fields, "high"),
        "catalog": _number(fields, "catalog"),
    }  # fmt: skip
    gpu = fields.optional_text("gpu") or None
    fields.finish()
    try:
        return ProfileValue(
            parameter=_PARAMETERS[name], gpu=gpu, value=result["value"], low=result["low"], high=result["high"],
            catalog=result["catalog"],
        )  # fmt: skip
    except ValueError as error:
        raise InvalidInputError(str(error), where=fields.where) from None


def _number(fields: Fields, key: str) -> float:
    """A finite number above 0; YAML reads `6e9` as text, so text that is a number counts too."""
    raw = fields.raw(key)
    value = math.nan
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        value = float(raw) if abs(raw) <= MAX_VALUE else math.inf
    elif isinstance(raw, str):
        try:
            value = float(raw)
        except ValueError:
            value = math.nan
    if not 0 < value <= MAX_VALUE:
        raise InvalidInputError(
            f"{str(raw)[:40]!r} is not accepted",
            where=fields.place(key),
            accepted=f"a number above 0, up to {MAX_VALUE:g}",
        )
    return value


def _source(fields: Fields) -> ProfileSource:
    result = ProfileSource(
        name=fields.text("name"),
        sha256=fields.text("sha256"),
        kind=fields.text("kind"),
        num_used=fields.count("num_used", limit=MAX_COUNT),
    )
    fields.finish()
    return result


def write_profile(profile: Profile, path: Path) -> None:
    """Writes the file in one piece; raises InvalidInputError where it cannot."""
    write_atomic(path, profile_text(profile).encode())


def profile_text(profile: Profile) -> str:
    """The YAML text of a profile."""
    import yaml

    document: dict[str, object] = {"rlplan_profile": FORMAT}
    if profile.date:
        document["date"] = profile.date
    document["values"] = [_value_document(item) for item in profile.values]
    document["sources"] = [
        {"name": item.name, "sha256": item.sha256, "kind": item.kind, "num_used": item.num_used}
        for item in profile.sources
    ]
    head = (
        "# Calibration of rlplan from own runs; use it with --profile. Values whose name ends in _factor multiply the\n"
        "# catalog's efficiencies of one GPU type, others replace the catalog's value. low to high: 90 % interval.\n"
    )
    return head + yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=120)


def _value_document(item: ProfileValue) -> dict[str, object]:
    document: dict[str, object] = {"parameter": item.parameter.value}
    if item.gpu is not None:
        document["gpu"] = item.gpu
    numbers = {"value": item.value, "low": item.low, "high": item.high, "catalog": item.catalog}
    return document | {key: _short(value) for key, value in numbers.items()}


def _short(value: float) -> float:
    """Six digits: more would be noise in a file that people read."""
    return float(f"{value:.6g}")
