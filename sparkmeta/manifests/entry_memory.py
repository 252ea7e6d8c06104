"""Remember entries of small manifests on the driver for further plans. Without Spark: tasks import this."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkmeta.entries.projection import EntryProjection

SMALL_MANIFEST_BYTES = 1 << 18
"""The entries of longer manifests are not remembered."""


class _Tables:
    """Tables of this process, the least recently used first. Threads share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[Hashable, pa.Table] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> pa.Table | None:
        with self._lock:
            if (table := self._tables.get(key)) is not None:
                self._tables.move_to_end(key)
            return table

    def add(self, key: Hashable, table: pa.Table, most_bytes: int) -> None:
        """Add a table, and drop others beyond a number of bytes."""
        with self._lock:
            if key not in self._tables:
                self._tables[key] = table
                self._bytes += table.nbytes
            while self._bytes > most_bytes:
                self._bytes -= self._tables.popitem(last=False)[1].nbytes


_tables = _Tables()


class EntryMemory:
    """The entries that plans of a reader have read. The process remembers the most recently used ones.

    Args:
        most_bytes: how many bytes the entries of all readers have together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes

    def of(self, place: Hashable, projection: EntryProjection, read: Callable[[EntryProjection], pa.Table]) -> pa.Table:
        """Return the entries of a place, whatever the filter of a projection is.

        Args:
            place: the manifest, or its part.
            projection: the columns to read.
            read: reads the entries, unless they are in memory.
        """
        every = replace(projection, entry_filter=None)
        key = (self, every, place)
        if (table := _tables.get(key)) is None:
            table = read(every)
            _tables.add(key, table, self._most_bytes)
        return table
