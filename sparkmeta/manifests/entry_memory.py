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
        """Add a table, and drop the least recently used ones while all tables take more than `most_bytes`."""
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
        most_bytes: the maximum size in bytes of the entries that all readers remember together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes

    def of(self, part: Hashable, projection: EntryProjection, read: Callable[[EntryProjection], pa.Table]) -> pa.Table:
        """Return all entries of a manifest or a part of one, without applying the projection's filter.

        Args:
            part: identifies the manifest or its part.
            projection: the columns to read.
            read: reads the entries if they are not in memory.
        """
        unfiltered = replace(projection, entry_filter=None)
        key = (self, unfiltered, part)
        if (table := _tables.get(key)) is None:
            table = read(unfiltered)
            _tables.add(key, table, self._most_bytes)
        return table
