"""What has been computed from option tables, kept as long as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from planner.domain.hardware import Cluster
from planner.domain.strategy import FloatArray
from planner.explaining.shortlist import bounds_s
from planner.search.pricing import PricedWorker, PricingInputs
from planner.search.problem import OptionTable

MAX_ROWS = 600_000
"""About 100 MB."""
MAX_BOUNDS = 40


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


class BoundBook:
    """Lower bounds of options, for tables that several questions have in common."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, tuple[FloatArray, ...]] = OrderedDict()

    def of(self, items: Sequence[PricedWorker], inputs: PricingInputs, cluster: Cluster) -> tuple[FloatArray, ...]:
        """The bounds of the options of all workers, as `planner.explaining.shortlist` has them."""
        sizes = tuple((pool.name, pool.num_gpus) for pool in cluster.pools)
        key = (tuple(Same(item.options) for item in items), sizes, inputs.execution)
        if key not in self._known:
            self._known[key] = self.anew(items, inputs, cluster)
            if len(self._known) > MAX_BOUNDS:
                self._known.popitem(last=False)
        return self._known[key]

    def anew(self, items: Sequence[PricedWorker], inputs: PricingInputs, cluster: Cluster) -> tuple[FloatArray, ...]:
        """The same for tables that nobody else asks about."""
        sizes = {pool.name: pool.num_gpus for pool in cluster.pools}
        return bounds_s([item.options for item in items], sizes, inputs.graph, inputs.execution)
