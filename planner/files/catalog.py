"""The catalogs of GPUs, nodes and models: look-up by name, lists, and models from a user's `config.json`.

Names are compared without regard to case. Files come with the packages `hardware_catalog` and
`models_catalog`; one plan reads only the few that it needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from planner.domain.hardware import Gpu, NodeType
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from planner.errors import InvalidInputError, nearest
from planner.files.architecture import build_model
from planner.files.atomic import read_limited
from planner.files.fields import Fields, kind_of
from planner.files.hardware_files import read_gpu, read_node, read_overheads

MAX_CONFIG_BYTES = 8 * 2**20
_MAX_NAME = 80
_GENERIC = "generic-"
_HARDWARE = "hardware_catalog"
_MODELS = "models_catalog"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEntry:
    """One line of the list of GPUs."""

    id: str
    title: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    memory_bytes: float
    source: str
    date: str
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """One line of the list of node types. `usd_per_gpu_hour` is None where no price is known."""

    id: str
    title: str
    aliases: tuple[str, ...]
    gpu: str
    gpus_per_node: int
    usd_per_gpu_hour: float | None
    price_date: str
    source: str
    date: str
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCounts:
    """Parameter counts that the publisher states.

    `stored_total` is the exact number of stored parameters where one was found. `is_exact` is False when the
    label is a rounded name or counts something else; `note` says what.
    """

    total_billion: float
    active_billion: float | None
    stored_total: int | None
    is_exact: bool
    note: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One line of the list of models."""

    id: str
    title: str
    hf_repo: str
    aliases: tuple[str, ...]
    published: PublishedCounts
    source: str
    date: str
    confidence: str
    notes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelName:
    """A name of a model, and where its config differs from the catalog entry."""

    model_id: str
    hf_repo: str
    overrides: tuple[tuple[str, object], ...] = ()
    left_out: str = ""
    """Parts of the network behind this name that the config does not describe."""


def load_gpu(name: str) -> Gpu:
    """The GPU with this id or alias; InvalidInputError with the nearest names if there is none."""
    return _read_gpu(_hardware_id(name, "gpus", "GPU"))


def load_node(name: str) -> NodeType:
    """The node type with this id or alias."""
    return _read_node(_hardware_id(name, "nodes", "node type"))


def generic_node(gpu_name: str) -> NodeType:
    """The typical node of a GPU type; its values are assumptions that its provenance names."""
    return _read_node(_GENERIC + _hardware_id(gpu_name, "gpus", "GPU"))


def load_overheads() -> Overheads:
    """Costs of the software around the kernels."""
    return _overheads()


def load_model(reference: str) -> Model:
    """A model by catalog id, Hugging Face id or alias, or from a `config.json` or a directory that holds one.

    Raises InvalidInputError for an unknown name (with the nearest ones), a file that is no config, or an
    architecture that is not understood.
    """
    _check_name(reference, "model")
    found = _model_names().get(reference.strip().lower())
    if found is not None:
        return _catalog_model(found, None)
    if _looks_like_path(reference):
        return _model_from_path(Path(reference).expanduser())
    raise InvalidInputError(
        f"model {reference[:_MAX_NAME]!r} is not known",
        accepted="a name from 'rlplan models', or the path of a config.json",
        suggestion=nearest(reference, _model_names()),
    )


def find_catalog_model(name: str, *, num_layers: int | None = None) -> Model | None:
    """The catalog's model with this name, or None; never reads a file of the user.

    `num_layers` gives the network cut to its first layers, as benchmarks of a few GPUs use it. Raises
    InvalidInputError when the network has fewer.
    """
    found = _model_names().get(name.strip().lower())
    return None if found is None else _catalog_model(found, num_layers)


def left_out_of(reference: str) -> str:
    """Parts of a network of the catalog that its Model leaves out, such as `the vision tower`; empty for none."""
    found = _model_names().get(reference.strip().lower())
    if found is None or found.left_out:
        return "" if found is None else found.left_out
    return "all but the language model" if "text_config" in _catalog_config(found) else ""


def why_not_modelled(reference: str) -> str:
    """Why a model that is known by name is not in the catalog: what of its architecture has no formula; else empty."""
    fields = _model_file("not_modelled.json")
    wanted = reference.strip().lower()
    for name in fields.names():
        if wanted in (name.lower(), name.lower().rpartition("/")[2]):
            return fields.text(name)
    return ""


def model_config(model: Model) -> Mapping[str, object] | None:
    """The `config.json` that describes `model`: of the catalog, or from the directory that its `hf_repo` names.

    None when there is none, or when it describes another network by now. Raises InvalidInputError when the
    directory's file is there and cannot be understood.
    """
    names = _model_names()
    found = names.get(model.hf_repo.lower()) or names.get(model.id.lower())
    if found is not None:
        config = _catalog_config(found)
        where = f"{_MODELS}/{found.model_id}.json"
    else:
        path = Path(model.hf_repo) / "config.json"
        if not model.hf_repo.startswith("/") or not path.is_file():
            return None
        config = dict(_parse_json(read_limited(path, MAX_CONFIG_BYTES, kind="config.json"), str(path)))
        where = str(path)
    described = build_model(config, model_id=model.id, hf_repo=model.hf_repo, where=where)
    return config if described == model else None


def list_gpus() -> tuple[GpuEntry, ...]:
    """All GPUs, by id."""
    return tuple(_gpu_entry(gpu_id, aliases) for gpu_id, aliases in _hardware_names("gpus").items())


def list_nodes() -> tuple[NodeEntry, ...]:
    """All node types, generic ones included, by id."""
    return tuple(_node_entry(node_id, aliases) for node_id, aliases in _hardware_names("nodes").items())


def list_models() -> tuple[ModelEntry, ...]:
    """All models, by id."""
    aliases: dict[str, list[str]] = {}
    for model_id, names in _model_index().items():
        aliases[model_id] = [alias.hf_repo for alias in names]
    return tuple(_model_entry(model_id, aliases[model_id]) for model_id in sorted(aliases))


# --- hardware


@cache
def _yaml_text(name: str) -> Mapping[str, object]:
    import yaml

    text = files(_HARDWARE).joinpath(name).read_text(encoding="utf-8")
    # CSafeLoader builds plain values only and is an order of magnitude faster than the pure Python one.
    value = yaml.load(text, Loader=yaml.CSafeLoader)
    if not isinstance(value, dict):
        raise InvalidInputError(f"holds {kind_of(value)}", where=name, accepted="keys and values")
    return value


def _open(name: str) -> Fields:
    return Fields(_yaml_text(name), where=f"{_HARDWARE}/{name}")


@cache
def _hardware_names(section: str) -> Mapping[str, tuple[str, ...]]:
    """Ids and aliases of `gpus` or `nodes`, by id."""
    fields = _open("names.yaml").section(section)
    return {key: fields.texts(key) for key in sorted(fields.names())}


def _hardware_id(name: str, section: str, kind: str) -> str:
    _check_name(name, kind)
    wanted = name.strip().lower()
    known = _hardware_names(section)
    for hardware_id, aliases in known.items():
        if wanted == hardware_id or wanted in (alias.lower() for alias in aliases):
            return hardware_id
    names = [candidate for hardware_id, aliases in known.items() for candidate in (hardware_id, *aliases)]
    raise InvalidInputError(
        f"{kind} {name[:_MAX_NAME]!r} is not known",
        accepted="a name from 'rlplan hardware'",
        suggestion=nearest(wanted, names),
    )


@cache
def _read_gpu(gpu_id: str) -> Gpu:
    return read_gpu(_open, gpu_id)


@cache
def _read_node(node_id: str) -> NodeType:
    return read_node(_open, node_id)


@cache
def _overheads() -> Overheads:
    return read_overheads(_open)


def _gpu_entry(gpu_id: str, aliases: tuple[str, ...]) -> GpuEntry:
    gpu = _read_gpu(gpu_id)
    return GpuEntry(
        id=gpu.id,
        title=gpu.name,
        aliases=aliases,
        vendor=gpu.vendor,
        architecture=gpu.architecture,
        memory_bytes=gpu.memory_bytes,
        source=gpu.provenance.source,
        date=gpu.provenance.date,
        confidence=gpu.provenance.confidence,
    )


def _node_entry(node_id: str, aliases: tuple[str, ...]) -> NodeEntry:
    node = _read_node(node_id)
    return NodeEntry(
        id=node.id,
        title=node.name,
        aliases=aliases,
        gpu=node.gpu.id,
        gpus_per_node=node.gpus_per_node,
        usd_per_gpu_hour=node.price.usd_per_gpu_hour if node.price else None,
        price_date=node.price.date if node.price else "",
        source=node.provenance.source,
        date=node.provenance.date,
        confidence=node.provenance.confidence,
    )


# --- models


def _parse_json(text: str, where: str) -> Mapping[str, object]:
    """The object in a JSON text; refuses what is not JSON, not an object, or nested too deeply to be a config."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidInputError("is nested too deeply", where=where, accepted="a config.json") from None
    except ValueError as error:
        # Python refuses integers of thousands of digits, with advice that is of no use here.
        problem = str(error).partition("; use sys.")[0]
        raise InvalidInputError(f"is not JSON: {problem}", where=where, accepted="a config.json") from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"holds {kind_of(value)}", where=where, accepted="a JSON object, as in config.json")
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _model_file(name: str) -> Fields:
    text = files(_MODELS).joinpath(name).read_text(encoding="utf-8")
    where = f"{_MODELS}/{name}"
    return Fields(_parse_json(text, where), where=where)


@cache
def _model_index() -> Mapping[str, tuple[_ModelName, ...]]:
    """From names.json: per catalog id its other names, each with the config keys that differ."""
    fields = _model_file("names.json")
    return {model_id: tuple(_alias(model_id, item) for item in fields.items(model_id)) for model_id in fields.names()}


def _alias(model_id: str, item: object) -> _ModelName:
    if isinstance(item, str):
        return _ModelName(model_id=model_id, hf_repo=item)
    fields = Fields(item, where=f"{_MODELS}/names.json")
    overrides: tuple[tuple[str, object], ...] = ()
    if fields.has("overrides"):
        section = fields.section("overrides")
        overrides = tuple((key, section.value(key)) for key in section.names())
    left_out = fields.optional_text("left_out")
    return _ModelName(model_id=model_id, hf_repo=fields.text("name"), overrides=overrides, left_out=left_out)


@cache
def _model_names() -> Mapping[str, _ModelName]:
    """All names in lower case: catalog ids, Hugging Face ids, and these without their organisation."""
    full: dict[str, _ModelName] = {}
    short: dict[str, _ModelName] = {}
    for model_id, names in _model_index().items():
        first = names[0].hf_repo if names and "/" in names[0].hf_repo else ""
        full[model_id.lower()] = _ModelName(model_id=model_id, hf_repo=first)
        for alias in names:
            name = alias.hf_repo
            entry = alias if "/" in name else replace(alias, hf_repo=first)
            full.setdefault(name.lower(), entry)
            short.setdefault(name.lower().rpartition("/")[2], entry)
    return {**short, **full}


@cache
def _catalog_model(name: _ModelName, num_layers: int | None) -> Model:
    config = _catalog_config(name)
    if num_layers is not None:
        config.update(_first_layers(config, num_layers, name.model_id))
    where = f"{_MODELS}/{name.model_id}.json"
    return build_model(config, model_id=name.model_id, hf_repo=name.hf_repo, where=where)


def _catalog_config(name: _ModelName) -> dict[str, object]:
    section = _model_file(f"{name.model_id}.json").section("config")
    return {**{key: section.value(key) for key in section.names()}, **dict(name.overrides)}


def _first_layers(config: Mapping[str, object], num_layers: int, model_id: str) -> dict[str, object]:
    """The keys that change when only the first layers are kept: their number, lists and patterns of that length."""
    inner = config.get("text_config")
    if "num_hidden_layers" not in config and isinstance(inner, Mapping):
        # multimodal models keep the language model in a section of its own
        return {"text_config": {**inner, **_first_layers(inner, num_layers, model_id)}}
    whole = config.get("num_hidden_layers")
    if not isinstance(whole, int) or not 1 <= num_layers <= whole:
        raise InvalidInputError(f"{num_layers} layers of {model_id}", accepted=f"1 to {whole}")
    changed: dict[str, object] = {"num_hidden_layers": num_layers}
    shared = config.get("num_kv_shared_layers")
    if isinstance(shared, int):
        # the last layers are those that share
        changed["num_kv_shared_layers"] = max(0, shared - (whole - num_layers))
    for key, value in config.items():
        if isinstance(value, list | str) and len(value) == whole:
            changed[key] = value[:num_layers]
    return changed


def _model_entry(model_id: str, names: list[str]) -> ModelEntry:
    fields = _model_file(f"{model_id}.json")
    published = fields.section("published")
    sources = fields.sections("sources")
    return ModelEntry(
        id=fields.text("id"),
        title=fields.text("title"),
        hf_repo=fields.optional_text("hf_repo"),
        aliases=tuple(names),
        published=PublishedCounts(
            total_billion=published.number("total_billion", limit=1e5),
            active_billion=published.number("active_billion", limit=1e5) if published.has("active_billion") else None,
            stored_total=published.count("stored_total", limit=10**15) if published.has("stored_total") else None,
            is_exact=published.text("label") == "exact",
            note=published.optional_text("label_note"),
            source=published.text("where"),
        ),
        source="; ".join(f"{s.text('where')}: {s.text('what')}" for s in sources),
        date=fields.text("date"),
        confidence=fields.text("confidence"),
        notes=fields.optional_text("notes"),
    )


def _looks_like_path(reference: str) -> bool:
    """Whether a name that is not in the catalog is meant as a file: it exists, ends in .json or starts as a path."""
    if "\0" in reference:
        return False
    if reference.lower().endswith(".json") or reference.startswith(("/", "./", "../", "~")):
        return True
    try:
        return Path(reference).exists()
    except OSError:
        # A name too long for the file system is no file.
        return False


def _model_from_path(path: Path) -> Model:
    if path.is_dir():
        path = path / "config.json"
    config = _parse_json(read_limited(path, MAX_CONFIG_BYTES, kind="config.json"), str(path))
    directory = path.parent.resolve()
    model_id = directory.name if path.name == "config.json" else path.stem
    return build_model(config, model_id=model_id or "model", hf_repo=str(directory), where=str(path))


def _check_name(name: str, kind: str) -> None:
    if not name.strip():
        raise InvalidInputError(f"the name of the {kind} is empty")
