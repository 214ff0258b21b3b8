"""Reading tables of measurements: files, cells, and what names of models and machines mean.

A cell that cannot be understood is the fault of its row only: the helpers raise RowError with the reason, and the
row is reported as Unpriced. A file that is no table at all is an InvalidInputError.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from planner.domain.hardware import NodeType
from planner.domain.model import Model
from planner.errors import InvalidInputError
from planner.files.architecture import build_model
from planner.files.atomic import read_limited
from planner.files.catalog import find_catalog_model, generic_node, load_node
from planner.validation.records import Table, Unpriced

T = TypeVar("T")

Row = Mapping[str, str]
"""A row of a table: cells by column; a column that the file does not have reads as empty."""

FILES: Mapping[Table, str] = {
    Table.TRAIN: "train.csv",
    Table.RL: "rl.csv",
    Table.MEMORY: "memory.csv",
    Table.GENERATION: "generation.csv",
    Table.FITS: "fit.csv",
}
"""Table -> file; RL_STAGES are read from the file of RL."""
MEASUREMENTS = "measurements"
MAX_FILE_BYTES = 64 * 2**20
MAX_INTEGER = 10**9
MAX_DEGREE = 4_000_000
"""Of degrees, batches and sequence lengths; more would only make huge tables of collectives that nobody has."""
MAX_LAYERS = 10_000
"""Each layer is built; more would only take minutes."""
MAX_NUMBER = 1e18
"""Of any cell: beyond it products overflow."""
_SHOWN = 60
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off", "none"))


class RowError(ValueError):
    """A row cannot be priced; the text is the reason, as shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTable:
    """The rows of a file that have the shape of their header, and those that have not."""

    rows: tuple[Row, ...]
    malformed: tuple[Unpriced, ...]


# ---------------------------------------------------------------------------------------------- files


def read_tables(directory: Path | None, tables: Iterable[Table]) -> dict[Table, RawTable]:
    """The tables of a directory, or those that come with rlplan for None. Files that are not there are left out.

    Raises InvalidInputError when the directory has none of them or a file is no table.
    """
    found: dict[Table, RawTable] = {}
    wanted = tuple(table for table in tables if table in FILES)
    for table in wanted:
        text, where = _text(directory, FILES[table])
        if text is not None:
            found[table] = parse_table(text, table, where=where)
    if not found:
        names = ", ".join(FILES[table] for table in wanted)
        raise InvalidInputError("holds no table of measurements", where=str(directory), accepted=f"any of {names}")
    return found


def _text(directory: Path | None, name: str) -> tuple[str | None, str]:
    if directory is None:
        return files(MEASUREMENTS).joinpath(name).read_text(encoding="utf-8"), f"{MEASUREMENTS}/{name}"
    if not directory.is_dir():
        raise InvalidInputError("is no directory", where=str(directory), accepted="a directory with tables (CSV)")
    path = directory / name
    if not path.exists():
        return None, str(path)
    return read_limited(path, MAX_FILE_BYTES, kind="table (CSV)"), str(path)


def parse_table(text: str, table: Table, *, where: str) -> RawTable:
    """The rows of a CSV text with a header line.

    Raises InvalidInputError when it is no CSV, its header has no `id` column or names a column twice.
    """
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = [cells for cells in reader if cells]
    except csv.Error as error:
        raise InvalidInputError(f"is no CSV: {error}", where=where) from None
    header = [name.strip() for name in lines[0]] if lines else []
    if "id" not in header:
        raise InvalidInputError("has no column 'id'", where=where, accepted="a CSV with a header line")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise InvalidInputError(f"names columns twice: {', '.join(twice[:5])}", where=where)
    rows: list[Row] = []
    malformed: list[Unpriced] = []
    for number_, cells in enumerate(lines[1:], start=1):
        if len(cells) == len(header):
            rows.append(_Cells(zip(header, (cell.strip() for cell in cells), strict=True)))
            continue
        named = dict(zip(header, cells, strict=False))
        malformed.append(
            Unpriced(
                table=table,
                row=named.get("id", "").strip() or f"row {number_}",
                quality=named.get("quality", "").strip(),
                reason=f"{len(cells)} cells, the header has {len(header)}",
            )
        )
    return RawTable(rows=tuple(rows), malformed=tuple(malformed))


class _Cells(dict[str, str]):
    """A missing column is empty, like a cell that says nothing."""

    def __missing__(self, key: str) -> str:
        return ""


# ---------------------------------------------------------------------------------------------- cells


def text(row: Row, key: str) -> str:
    """The cell without spaces around it; empty for a missing column."""
    return (row.get(key) or "").strip()


def required(row: Row, key: str) -> str:
    """The cell; RowError when it is empty."""
    value = text(row, key)
    if not value:
        raise RowError(f"{key} not stated")
    return value


def number(row: Row, key: str) -> float | None:
    """A finite number of at least 0, None for an empty cell; RowError for anything else."""
    value = text(row, key)
    if not value:
        return None
    try:
        # Python also takes digits of other scripts and 1_000, which other readers of a table do not.
        parsed = float(value) if value.isascii() and "_" not in value else math.nan
    except ValueError:
        raise RowError(f"{key} = {value[:_SHOWN]!r} is no number") from None
    if not math.isfinite(parsed) or parsed < 0:
        raise RowError(f"{key} = {value[:_SHOWN]!r} is no number of at least 0")
    if parsed > MAX_NUMBER:
        raise RowError(f"{key} = {value[:_SHOWN]!r} is above {MAX_NUMBER:g}")
    return parsed


def positive(row: Row, key: str) -> float:
    """A number above 0; RowError when it is empty, zero or no number."""
    parsed = number(row, key)
    if parsed is None:
        raise RowError(f"{key} not stated")
    if parsed == 0:
        raise RowError(f"{key} is 0")
    return parsed


def integer(row: Row, key: str, default: int | None = None) -> int | None:
    """A whole number of at least 0 (`8` or `8.0`), `default` for an empty cell; RowError for anything else."""
    parsed = number(row, key)
    if parsed is None:
        return default
    if parsed != int(parsed) or parsed > MAX_INTEGER:
        raise RowError(f"{key} = {text(row, key)[:_SHOWN]!r} is no whole number")
    return int(parsed)


def degree(row: Row, key: str, default: int = 1) -> int:
    """A whole number of at least 1; `default` for an empty cell."""
    parsed = integer(row, key, default)
    if not parsed or parsed > MAX_DEGREE:
        raise RowError(f"{key} = {text(row, key)[:_SHOWN]!r} must be 1 to {MAX_DEGREE:,}")
    return parsed


def required_degree(row: Row, key: str) -> int:
    """A whole number of at least 1; RowError when the row does not say it."""
    required(row, key)
    return degree(row, key)


def flag(row: Row, key: str) -> bool | None:
    """1/0, true/false, yes/no, on/off; None for an empty cell."""
    value = text(row, key).lower()
    if not value:
        return None
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    raise RowError(f"{key} = {value[:_SHOWN]!r} is neither yes nor no")


def collect(
    rows: Sequence[Row], table: Table, convert: Callable[[Row], T]
) -> tuple[list[tuple[Row, T]], list[Unpriced]]:
    """Converts every row; those that raise RowError or InvalidInputError become Unpriced with the reason."""
    converted: list[tuple[Row, T]] = []
    unpriced: list[Unpriced] = []
    for row in rows:
        try:
            converted.append((row, convert(row)))
        except (RowError, InvalidInputError) as error:
            unpriced.append(Unpriced(table=table, row=text(row, "id"), quality=quality(row), reason=str(error)))
    return converted, unpriced


def quality(row: Row) -> str:
    """A, B or C; empty where the table has no such column."""
    return text(row, "quality").upper()


# ---------------------------------------------------------------------------------------------- models

_SUFFIX = re.compile(
    r"[-_ ](?:instruct|base|chat|it|hf|bf16|fp16|fp8|nvfp4|fp4|mxfp4|mxfp8|int4|int8|awq|gptq|rtn|w4a16|thinking|"
    r"preview|pretrained|sft|rl|reasoning|\d{4})$",
    re.IGNORECASE,
)
"""Endings that name a fine-tune or a number format, never another shape."""
_REMARK = re.compile(r"\s*\([^()]*\)\s*$")
_STATED = {
    "hidden_size": re.compile(r"\bhidden (\d+)"),
    "num_hidden_layers": re.compile(r"\blayers (\d+)"),
    "num_attention_heads": re.compile(r"\bheads (\d+)"),
    "intermediate_size": re.compile(r"\bffn (\d+)"),
    "vocab_size": re.compile(r"\bvocab (\d+)"),
}
_GPT_VOCABULARY = 51200
_GPT_HEAD = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    """models.yaml with names in lower case."""

    same_as: Mapping[str, str]
    notes: Mapping[str, str]
    configs: Mapping[str, Mapping[str, object]]
    families: tuple[tuple[str, str], ...]


def find_model(
    name: str, *, num_layers: int | None = None, stated_shape: str = "", max_positions: int | None = None
) -> Model:
    """The network that a row's model name means; RowError when it is not known.

    `num_layers` is the number of layers of a truncated benchmark model. `stated_shape` is text like `heads 32,
    hidden 4096, layers 30, vocab 131072`, used for names that are known nowhere else; `max_positions` sets the learned
    positions of such networks.
    """
    if not name:
        raise RowError("model not stated")
    check_layers(num_layers)
    return _find_model(name, num_layers, stated_shape, max_positions)


def check_layers(num_layers: int | None) -> None:
    """RowError for more layers than can be priced."""
    if num_layers is not None and num_layers > MAX_LAYERS:
        raise RowError(f"{num_layers:,} layers; at most {MAX_LAYERS:,} can be priced")


def model_note(name: str) -> str:
    """What is assumed about a name that is not in the catalog; empty for catalog models."""
    shapes = _shapes()
    return next((shapes.notes[key] for key in _candidates(name) if key in shapes.notes), "")


def model_family(model: Model) -> str:
    """The family of a model, the unit of leave-one-family-out."""
    return family_of(model.id)


def family_of(model_id: str) -> str:
    """The same for the id of a model; the id itself when no family is listed."""
    known = model_id.lower().rpartition("/")[2]
    return next((family for prefix, family in families() if known.startswith(prefix)), known)


def families() -> tuple[tuple[str, str], ...]:
    """(prefix of a model id, family), the first match counts."""
    return _shapes().families


@cache
def _find_model(name: str, num_layers: int | None, stated_shape: str, max_positions: int | None) -> Model:
    shapes = _shapes()
    try:
        for key in _candidates(name):
            if key in shapes.configs:
                return _from_config(shapes.configs[key], _bare(name), num_layers, max_positions)
            found = find_catalog_model(shapes.same_as.get(key, key), num_layers=num_layers)
            if found is not None:
                return found
        stated = _stated_config(stated_shape)
        if stated is not None:
            return _from_config(stated, _bare(name), num_layers, max_positions)
    except InvalidInputError as error:
        raise RowError(f"model {name[:_SHOWN]!r}: {error}") from None
    raise RowError(f"model {name[:_SHOWN]!r} is not known")


def _bare(name: str) -> str:
    return _REMARK.sub("", name).rpartition("/")[2]


def _candidates(name: str) -> tuple[str, ...]:
    """The name in lower case, then without remarks and endings, each with and without the organisation."""
    found: list[str] = []
    current = name.strip().lower()
    while current:
        found.append(current)
        shorter = _REMARK.sub("", current)
        if shorter == current:
            shorter = _SUFFIX.sub("", current)
        if shorter == current:
            break
        current = shorter
    return tuple(dict.fromkeys([*found, *(key.rpartition("/")[2] for key in found)]))


def _stated_config(stated: str) -> Mapping[str, object] | None:
    """A GPT of the shape that a remark states; None when hidden size or layers are missing."""
    found = {key: int(match.group(1)) for key, pattern in _STATED.items() if (match := pattern.search(stated))}
    if "hidden_size" not in found or "num_hidden_layers" not in found:
        return None
    hidden = found["hidden_size"]
    return {
        "model_type": "gpt_megatron",
        "num_attention_heads": max(1, hidden // _GPT_HEAD),
        "intermediate_size": 4 * hidden,
        "vocab_size": _GPT_VOCABULARY,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "max_position_embeddings": 2048,
        "hidden_act": "gelu",
        **found,
    }


def _from_config(
    config: Mapping[str, object], model_id: str, num_layers: int | None, max_positions: int | None
) -> Model:
    changed = dict(config)
    if num_layers is not None:
        changed["num_hidden_layers"] = num_layers
    if max_positions is not None and config["model_type"] == "gpt_megatron":
        changed["max_position_embeddings"] = max_positions
    return build_model(changed, model_id=model_id.lower(), hf_repo="", where=f"shape of {model_id[:_SHOWN]}")


@cache
def _shapes() -> _Shapes:
    data = own_data("models.yaml")
    same, configs = _sections(data["same_as"]), _sections(data["configs"])
    families = data["families"]
    assert isinstance(families, list)
    notes = {name.lower(): str(entry["why"]) for name, entry in (*same.items(), *configs.items())}
    shapes: dict[str, Mapping[str, object]] = {}
    for name, entry in configs.items():
        config = entry["config"]
        assert isinstance(config, dict)
        shapes[name.lower()] = config
    return _Shapes(
        same_as={name.lower(): str(entry["model"]) for name, entry in same.items()},
        notes=notes,
        configs=shapes,
        families=tuple((str(item["prefix"]), str(item["family"])) for item in families),
    )


# ---------------------------------------------------------------------------------------------- machines


def find_node(gpu: str, system: str = "", *, default_gpu: str = "") -> NodeType:
    """The machine of a row: its `system` where the row names one, else the generic node of its GPU.

    `default_gpu` is taken when the row states neither; RowError when there is none or the GPU is not known.
    """
    return _find_node(gpu.strip().lower() or default_gpu, system.strip())


def find_node_of_size(gpu: str, system: str, num_gpus: int, gpus_per_node: int | None = None) -> tuple[NodeType, int]:
    """(node, number of nodes) for a run on `num_gpus`; a run smaller than a node gets its share of it."""
    node = find_node(gpu, system)
    per_node = min(gpus_per_node or node.gpus_per_node, num_gpus)
    if num_gpus % per_node:
        raise RowError(f"{num_gpus} GPUs are no whole number of nodes of {per_node}")
    if per_node < node.gpus_per_node:
        node = node.with_gpus(per_node)
    elif per_node > node.gpus_per_node:
        # A board with more GPUs than the generic one: same links, larger domain.
        domain = max(per_node, node.scale_up_domain_gpus)
        node = replace(node, gpus_per_node=per_node, scale_up_domain_gpus=domain)
    return node, num_gpus // per_node


@cache
def _find_node(gpu: str, system: str) -> NodeType:
    data = own_data("hardware.yaml")
    systems = data["systems"]
    assert isinstance(systems, list)
    for item in systems:
        if system.lower().startswith(str(item["prefix"]).lower()):
            return load_node(str(item["node"]))
    if not gpu:
        raise RowError("GPU not stated")
    unknown, codes = data["unknown"], _sections(data["gpus"])
    assert isinstance(unknown, dict)
    if gpu in unknown:
        raise RowError(str(unknown[gpu]))
    try:
        entry = codes.get(gpu, {})
        return load_node(str(entry["node"])) if "node" in entry else generic_node(str(entry.get("gpu", gpu)))
    except InvalidInputError:
        raise RowError(f"GPU {gpu[:_SHOWN]!r} is not known") from None


# ---------------------------------------------------------------------------------------------- own data files


@cache
def own_data(name: str) -> Mapping[str, object]:
    """A YAML file of planner/validation/data."""
    import yaml

    content = files("planner.validation").joinpath("data", name).read_text(encoding="utf-8")
    data = yaml.load(content, Loader=yaml.CSafeLoader)
    assert isinstance(data, dict)
    return data


def _sections(value: object) -> Mapping[str, Mapping[str, object]]:
    assert isinstance(value, dict)
    return value
