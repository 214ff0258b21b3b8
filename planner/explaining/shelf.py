"""What has been computed from option tables, kept as long as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.domain.hardware import Cluster
from planner.domain.strategy import FloatArray
from planner.explaining.shortlist import bounds_s
from planner.search.pricing import PricedWorker, PricingInputs
from planner.search.problem import OptionTable

MAX_ROWS = 1_000_000
"""Of tables: about 150 MB."""
MAX_BOUNDS = 6_000_000
"""About 50 MB; many have most of their tables in common."""


class Same:
    """A table as a key: tables are equal only to themselves."""

    __slots__ = ("table",)

    def __init__(self, table: OptionTable) -> None:
        self.table = table

    def __hash__(self) -> int:
        return id(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.table is self.table


class Shelf:
    """Option tables by what they depend on; those that were not asked for longest go first."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._num_rows = 0
        self._tables: OrderedDict[object, OptionTable] = OrderedDict()

    def get(self, key: object) -> OptionTable | None:
        found = self._tables.get(key)
        if found is not None:
            self._tables.move_to_end(key)
        return found

    def put(self, key: object, table: OptionTable) -> None:
        self._tables[key] = table
        self._num_rows += len(table)
        while self._num_rows > self._max_rows and len(self._tables) > 1:
            _, oldest = self._tables.popitem(last=False)
            self._num_rows -= len(oldest)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Tables of one part with the lower bounds of their options."""

    bounds_s: tuple[FloatArray, ...]
    num_rows: int
    left: dict[object, PricedWorker] = field(default_factory=dict)
    """What guesses have left of them."""


class BoundBook:
    """Lower bounds of options, for tables that several questions have in common."""

    def __init__(self, max_rows: int = MAX_BOUNDS) -> None:
        self._max_rows = max_rows
        self._num_rows = 0
        self._known: OrderedDict[object, Bounded] = OrderedDict()

    def of(self, items: Sequence[PricedWorker], inputs: PricingInputs, cluster: Cluster, *, keep: bool) -> Bounded:
        """The bounds of the options of all workers, as `planner.explaining.shortlist` has them; kept where they will
        be asked for again."""
        sizes = tuple((pool.name, pool.num_gpus) for pool in cluster.pools)
        key = (tuple(Same(item.options) for item in items), sizes, inputs.execution)
        found = self._known.get(key)
        if found is None:
            tables = [item.options for item in items]
            bounds = bounds_s(tables, dict(sizes), inputs.graph, inputs.execution)
            found = Bounded(bounds, sum(len(table) for table in tables))
            if not keep:
                return found
            self._known[key] = found
            self._num_rows += found.num_rows
            while self._num_rows > self._max_rows and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._num_rows -= oldest.num_rows
        self._known.move_to_end(key)
        return found
