"""Prices of GPU-hours: from the catalog, from a file of the user, and from `--price`.

A file is YAML (a list `prices`), or CSV with either our columns or those of gpuhunt's catalogs, of which each provider
has one file named after it (`aws.csv`). Every price keeps where and when it was valid.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from planner.domain.hardware import NodeType, Price
from planner.errors import InvalidInputError, nearest, printable
from planner.files import catalog
from planner.files.atomic import read_limited
from planner.files.fields import Fields
from planner.files.yaml_text import read_yaml
from planner.units import Dimension, parse

ON_DEMAND, SPOT = "on-demand", "spot"
NOT_STATED = "not stated"
MAX_BYTES = 64 * 2**20
MAX_USD_PER_HOUR = 1e6
COLUMNS = ("gpu", "node", "usd_per_gpu_hour", "kind", "provider", "region", "date")
"""Our own CSV; `gpu` or `node`, and `usd_per_gpu_hour` are needed."""
GPUHUNT_COLUMNS = frozenset({"instance_name", "location", "price", "gpu_count", "gpu_name", "spot"})
_SIZED = re.compile(r"[^a-z0-9]+")
_MEMORY_RANGE = (0.8, 1.25)
"""Memory of a GPU in a price list over that in the catalog: marketing numbers, GB and GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A price and what it is for: a GPU of the catalog (any machine with it), or machines of one name."""

    price: Price
    gpu: str
    """Id of the catalog; empty where only the machine is named."""
    node: str
    """Name of the machine at its provider; empty for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFile:
    """The quotes of a file, and the GPUs in it that the catalog does not know."""

    quotes: tuple[Quote, ...]
    unknown_gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPrice:
    """`--price NAME=USD`."""

    name: str
    usd_per_gpu_hour: float


def price_words(price: Price | None) -> str:
    """`'3.90 USD per GPU-hour (Crusoe, on-demand, region not stated, 2025-12)'`."""
    if price is None:
        return "no price known"
    region = f"region {NOT_STATED}" if price.region == NOT_STATED else price.region
    parts = [part for part in (price.provider, price.kind, region, price.date) if part]
    return f"{price.usd_per_gpu_hour:.2f} USD per GPU-hour ({', '.join(parts)})"


def read_given_prices(texts: Iterable[str], kinds: Sequence[str], *, where: str) -> tuple[GivenPrice, ...]:
    """`h100=2.50` for kinds of the sweep; raises InvalidInputError for other names and for what is no price."""
    result = []
    for text in texts:
        name, separator, value = text.partition("=")
        key, amount = name.strip().lower(), value.strip()
        if not separator or not amount:
            raise InvalidInputError(f"{text[:60]!r} is not understood", where=where, accepted="h100=2.50")
        if key not in kinds:
            raise InvalidInputError(
                f"no type of this sweep is called {name[:60]!r}",
                where=where,
                accepted=", ".join(kinds),
                suggestion=nearest(key, kinds),
            )
        # The flag is in USD per GPU-hour, so that its number may stand alone.
        quantity = amount if any(c.isalpha() and c not in "eE" for c in amount) else f"{amount} USD/hour"
        result.append(GivenPrice(name=key, usd_per_gpu_hour=parse(quantity, Dimension.MONEY_RATE, where=where)))
    return tuple(result)


def find_price(
    kind: str, node: NodeType, *, spot: bool, given: Sequence[GivenPrice], listed: Sequence[Quote]
) -> Price | None:
    """The price of a kind of node: given, else the least of the user's file, else that of the catalog.

    A GPU type may be rented from whoever is cheapest; a node type only where its name is offered. `spot` asks for
    spot prices alone.
    """
    for item in reversed(given):
        if item.name == kind:
            return Price(
                usd_per_gpu_hour=item.usd_per_gpu_hour, provider="given with --price", region="", date="",
                kind=SPOT if spot else "",
            )  # fmt: skip
    own = _least(listed, kind, node, spot=spot)
    if own is not None:
        return own
    if not spot and node.price is not None:
        # The catalog has chosen among its own prices already: a dated one before an undated one.
        return node.price
    return _least(_catalog_quotes(node.gpu.id), kind, node, spot=spot)


def _least(quotes: Sequence[Quote], kind: str, node: NodeType, *, spot: bool) -> Price | None:
    """The lowest of the prices that fit a kind of node."""
    wanted = SPOT if spot else ON_DEMAND
    is_generic = node.id.startswith("generic-")
    names = frozenset[str]() if is_generic else _names_of(node, kind)
    fitting = [
        quote.price
        for quote in quotes
        if quote.price.kind == wanted and (quote.gpu == node.gpu.id if is_generic else _plain(quote.node) in names)
    ]
    return min(fitting, key=lambda price: price.usd_per_gpu_hour, default=None)


def _names_of(node: NodeType, kind: str) -> frozenset[str]:
    """All names of a node type; those of gpuhunt and of the user may leave out the provider."""
    aliases = next((entry.aliases for entry in _nodes() if entry.id == node.id), ())
    return frozenset(_plain(name) for name in (node.id, kind, *aliases, node.id.partition("-")[2]) if name)


@cache
def _nodes() -> tuple[catalog.NodeEntry, ...]:
    return catalog.list_nodes()


def _plain(name: str) -> str:
    return _SIZED.sub("", name.lower())


@cache
def _catalog_quotes(gpu_id: str) -> tuple[Quote, ...]:
    """On-demand and spot prices of all node types with a GPU, as the files of the catalog state them."""
    import yaml

    result = []
    for entry in _nodes():
        if entry.gpu != gpu_id or entry.id.startswith("generic-"):
            continue
        name = f"node-{entry.id}.yaml"
        text = files("hardware_catalog").joinpath(name).read_text(encoding="utf-8")
        fields = Fields(yaml.load(text, Loader=yaml.CSafeLoader), where=name)
        for item in fields.sections("prices"):
            price = Price(
                usd_per_gpu_hour=item.quantity("per_gpu", Dimension.MONEY_RATE),
                provider=item.optional_text("provider") or fields.text("provider"),
                region=item.optional_text("region") or NOT_STATED,
                date=item.text("date"),
                kind=item.text("kind"),
            )
            result.append(Quote(price=price, gpu=gpu_id, node=entry.id))
    return tuple(result)


# ---------------------------------------------------------------------------------------------- files of the user


def read_price_file(path: Path) -> PriceFile:
    """The prices in a CSV or YAML file; raises InvalidInputError with file and line for what is no price."""
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_yaml(path)
    text = read_limited(path, MAX_BYTES, kind="price file")
    where = printable(str(path))[:200]
    try:
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise InvalidInputError(f"is not CSV: {error}", where=where) from None
    columns = set(rows[0]) if rows else set()
    if columns >= GPUHUNT_COLUMNS:
        return _gpuhunt(rows, path, where)
    if "usd_per_gpu_hour" in columns and columns & {"gpu", "node"}:
        return _own(rows, where, 2)
    raise InvalidInputError(
        "has other columns" if rows else "has no rows",
        where=where,
        accepted=f"{', '.join(COLUMNS)}; or those of gpuhunt: {', '.join(sorted(GPUHUNT_COLUMNS))}",
    )


def _from_yaml(path: Path) -> PriceFile:
    where = printable(str(path))[:200]
    fields = Fields(read_yaml(path, kind="price file"), where=where)
    rows = []
    for i, item in enumerate(fields.items("prices")):
        if not isinstance(item, Mapping):
            raise InvalidInputError(f"price {i + 1} is no mapping", where=where, accepted=", ".join(COLUMNS))
        rows.append({str(key): "" if value is None else str(value) for key, value in item.items()})
    fields.finish()
    if not rows:
        raise InvalidInputError("holds no prices", where=where, accepted="a list 'prices'")
    return _own(rows, where, 1)


def _own(rows: Sequence[Mapping[str, str | None]], where: str, first: int) -> PriceFile:
    quotes = []
    for number, row in enumerate(rows, start=first):
        place = f"{where}: row {number}"
        values = {key: (value or "").strip() for key, value in row.items() if isinstance(key, str)}
        unknown = set(values) - set(COLUMNS)
        if unknown or None in row:
            wrong = printable(", ".join(sorted(unknown)))[:80] or "more values than columns"
            raise InvalidInputError(f"{wrong} is not known", where=place, accepted=", ".join(COLUMNS))
        gpu, node = values.get("gpu", ""), values.get("node", "")
        if bool(gpu) == bool(node):
            raise InvalidInputError("needs either 'gpu' or 'node'", where=place)
        kind = values.get("kind", "") or ON_DEMAND
        if kind not in (ON_DEMAND, SPOT):
            raise InvalidInputError(f"kind {kind[:40]!r} is not known", where=place, accepted=f"{ON_DEMAND} or {SPOT}")
        gpu_id = catalog.load_gpu(gpu).id if gpu else ""
        quotes.append(
            Quote(
                price=Price(
                    usd_per_gpu_hour=_amount(values.get("usd_per_gpu_hour", ""), place, "usd_per_gpu_hour"),
                    provider=values.get("provider", "") or f"file {where}",
                    region=values.get("region", "") or NOT_STATED,
                    date=values.get("date", "") or "date not stated",
                    kind=kind,
                ),
                gpu=gpu_id,
                node=node,
            )
        )
    return PriceFile(quotes=tuple(quotes), unknown_gpus=())


def _gpuhunt(rows: Sequence[Mapping[str, str | None]], path: Path, where: str) -> PriceFile:
    quotes, unknown = [], set[str]()
    known: dict[tuple[str, str], str | None] = {}
    for number, row in enumerate(rows, start=2):
        place = f"{where}: row {number}"
        name, count = row.get("gpu_name") or "", row.get("gpu_count") or "0"
        if not count.isascii() or not count.isdigit():
            raise InvalidInputError(f"gpu_count {count[:40]!r} is no number", where=place)
        if not int(count) or not name:
            continue
        key = (name, row.get("gpu_memory") or "")
        if key not in known:
            known[key] = _gpu_named(*key)
        found = known[key]
        if found is None:
            unknown.add(printable(name)[:40])
            continue
        spot = (row.get("spot") or "").strip().lower()
        if spot not in ("true", "false"):
            raise InvalidInputError(f"spot {spot[:40]!r}", where=place, accepted="True or False")
        usd = _amount(row.get("price") or "", place, "price") / int(count)
        price = Price(
            usd_per_gpu_hour=usd, provider=path.stem, region=row.get("location") or NOT_STATED,
            date=f"file {path.name}, date not stated", kind=SPOT if spot == "true" else ON_DEMAND,
        )  # fmt: skip
        quotes.append(Quote(price=price, gpu=found, node=row.get("instance_name") or ""))
    return PriceFile(quotes=tuple(quotes), unknown_gpus=tuple(sorted(unknown)))


def _amount(text: str, where: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= MAX_USD_PER_HOUR:
        raise InvalidInputError(
            f"{what} {text[:40]!r} is no price", where=where, accepted=f"USD, above 0 and up to {MAX_USD_PER_HOUR:g}"
        )
    return value


@cache
def _gpu_names() -> Mapping[str, tuple[str, float]]:
    """Id and memory in bytes by every name of a GPU, without punctuation."""
    return {
        _plain(name): (entry.id, entry.memory_bytes)
        for entry in catalog.list_gpus()
        for name in (entry.id, *entry.aliases)
    }


def _gpu_named(name: str, memory_gb: str) -> str | None:
    """The GPU of a price list: gpuhunt writes A100 and 40, H100NVL and 94; None where none has this name and memory."""
    try:
        memory = float(memory_gb) if memory_gb else math.nan
    except ValueError:
        memory = math.nan
    sized = f"{name}{memory:.0f}g" if memory == memory else name
    for candidate in (sized, name):
        found = _gpu_names().get(_plain(candidate))
        if found is None:
            continue
        low, high = _MEMORY_RANGE
        if memory != memory or low <= memory * 1e9 / found[1] <= high:
            return found[0]
    return None
