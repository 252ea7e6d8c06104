"""Where manifests are read, and what the driver reads sooner than a job would.

Starting a Spark job that runs Python takes some 50 to 100 ms, whatever it reads. Threads of the driver read what they
get done in that time; what they have decoded then has to be brought into Spark, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from sparkmeta.manifests.manifest_list import entry_count
from sparkmeta.spec.entry import METRICS_MAP_IDS

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkmeta.manifests.projection import EntryProjection

MOST_ENTRIES = 10_000
"""Decoded entries that had better be brought into Spark from the driver."""

MOST_TESTED_ENTRIES = 150_000
"""Decoded entries of which tests of statistics leave few, or that stay on the driver."""

MOST_REQUESTS = 64
"""Files or ranges of files of which the driver reads a little each: leaves to search, bitmaps."""

# An entry with metrics maps, or with more than `_WIDE_STATS` columns of statistics, takes `_WIDE` times as long to
# decode; where the manifest list does not count entries, they may be `_UNCOUNTED` times as many as usual.
_WIDE_STATS = 16
_WIDE = 16
_UNCOUNTED = 8


class Placement(Enum):
    """Where manifests are opened and decoded."""

    DRIVER = "driver"
    """By threads of this process, when the read is made."""

    TASKS = "tasks"
    """By Python in Spark tasks, when the DataFrame runs."""

    SPARK = "spark"
    """By Spark's own sources, when the DataFrame runs."""


@dataclass(frozen=True)
class ManifestLoad:
    """What decoding some manifests takes.

    Args:
        size_in_bytes: of their files.
        entries: that they have; None where the manifest list does not tell.
        wide: whether metrics maps, or very many statistics, are decoded.
        most_entries: that the driver may decode.
    """

    size_in_bytes: int
    entries: int | None
    wide: bool
    most_entries: int

    @staticmethod
    def of(manifests: pa.Table, projection: EntryProjection, most_entries: int | None = None) -> ManifestLoad:
        """Return the load of manifests, rows of `TableState.manifests`.

        Args:
            manifests: the manifests.
            projection: what is read of their entries.
            most_entries: that the driver may decode; by default as many as had better be brought into Spark.
        """
        if most_entries is None:
            selective = projection.entry_filter is not None and projection.entry_filter.selective
            most_entries = MOST_TESTED_ENTRIES if selective else MOST_ENTRIES
        maps = not METRICS_MAP_IDS.keys().isdisjoint(projection.columns)
        size = pc.sum(manifests.column("file_size_in_bytes")).as_py() or 0
        return ManifestLoad(size, entry_count(manifests), maps or len(projection.stats) > _WIDE_STATS, most_entries)

    def fits_driver(self, driver_bytes: int) -> bool:
        """Return whether threads of the driver decode the manifests sooner than tasks do.

        Args:
            driver_bytes: the setting `driver_manifest_bytes`.
        """
        factor = (_WIDE if self.wide else 1) * (_UNCOUNTED if self.entries is None else 1)
        return self.size_in_bytes <= driver_bytes // factor and (self.entries or 0) <= self.most_entries
