"""Where manifests are read: limits up to which the driver is faster than a Spark job.

A Spark job that runs Python takes 50 to 100 ms to start. Threads of the driver can decode small manifests in this time,
but their entries then have to be converted to Spark rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from sparkmeta.entries.live import entry_count

if TYPE_CHECKING:
    import pyarrow as pa


MOST_ENTRIES = 150_000
"""Maximum entries that the driver decodes."""

MOST_WIDE_ENTRIES = 10_000
"""Maximum entries that the driver decodes if Spark gets all of their columns, though a query may need only a few of
them."""

MOST_REQUESTS = 64
"""Maximum small reads of files or ranges by the driver: leaves to search, bitmaps."""

MOST_REQUESTS_UNSTARTED = 1_000
"""The same if no session runs: in the time in which Spark starts, threads of the driver read several thousand files."""


class Placement(Enum):
    """Where manifests are opened and decoded."""

    DRIVER = "driver"
    """In threads of the driver, when the plan is made."""

    TASKS = "tasks"
    """By Python in Spark tasks, when the DataFrame runs."""

    SPARK = "spark"
    """By Spark's own sources, when the DataFrame runs."""


@dataclass(frozen=True)
class ManifestLoad:
    """The amount of work to decode manifests.

    Attributes:
        size_in_bytes: the total size of the files.
        entries: the number of entries; None if the manifest list does not count them.
        most_entries: the maximum entries that the driver may decode.
    """

    size_in_bytes: int
    entries: int | None
    most_entries: int

    @staticmethod
    def of(manifests: pa.Table, most_entries: int | None = None) -> ManifestLoad:
        """Return the load of manifests, rows of `TableState.manifests`.

        Args:
            manifests: the manifests.
            most_entries: the maximum entries that the driver may decode; by default `MOST_ENTRIES`.
        """
        most_entries = MOST_ENTRIES if most_entries is None else most_entries
        size = pc.sum(manifests.column("file_size_in_bytes")).as_py() or 0
        return ManifestLoad(size, entry_count(manifests), most_entries)

    def fits_driver(self, driver_bytes: int) -> bool:
        """Return whether the driver decodes the manifests faster than tasks would.

        Args:
            driver_bytes: the setting `driver_manifest_bytes`.
        """
        return self.size_in_bytes <= driver_bytes and (self.entries or 0) <= self.most_entries
