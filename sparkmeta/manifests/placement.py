"""Where manifests and other files are read: limits up to which the driver is faster than a Spark job.

A Spark job that runs Python takes 50 to 100 ms to start. Threads of the driver can decode small manifests in this time,
but their entries then have to be converted to Spark rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.live import entry_count
from sparkmeta.entries.relation import frame_of
from sparkmeta.expr.arrays import whole
from sparkmeta.session import in_tasks, map_arrow, map_on_driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from sparkmeta.entries.relation import HasAccess, Relation
    from sparkmeta.session import MapFunction
    from sparkmeta.storage.files import Files


MOST_ENTRIES = 150_000
"""Maximum entries that the driver decodes."""

MOST_WIDE_ENTRIES = 10_000
"""Maximum entries that the driver decodes if it passes all of their columns to Spark, although a query may need only a
few."""

MOST_REQUESTS = 64
"""Maximum small reads of files or ranges by the driver: leaves to search, bitmaps."""

MOST_REQUESTS_UNSTARTED = 1_000
"""The same if no session runs: while Spark would start, threads of the driver read several thousand files."""


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

        A leaf counts once, even if its vectors are a manifest of their own.

        Args:
            manifests: the manifests.
            most_entries: the maximum entries that the driver may decode; by default `MOST_ENTRIES`.
        """
        most_entries = MOST_ENTRIES if most_entries is None else most_entries
        paths = whole(manifests.column("location")).dictionary_encode().indices
        files = manifests.take(pa.array(np.unique(paths, return_index=True)[1]))
        size = pc.sum(files.column("file_size_in_bytes")).as_py() or 0
        return ManifestLoad(size, entry_count(files), most_entries)

    def fits_driver(self, driver_bytes: int) -> bool:
        """Return whether the driver decodes the manifests faster than tasks would.

        Args:
            driver_bytes: the setting `driver_manifest_bytes`.
        """
        return self.size_in_bytes <= driver_bytes and (self.entries or 0) <= self.most_entries


def few_requests(files: pa.Table) -> bool:
    """Return whether the driver opens files that take one small read each."""
    return len(files) <= MOST_REQUESTS


def mapped_files(
    rows: Relation,
    function: Callable[[Files | None], MapFunction],
    schema: pa.Schema | StructType,
    source: HasAccess,
    *,
    are_few: Callable[[pa.Table], bool] = few_requests,
    runs: bool = False,
    tasks: Callable[[SparkSession], int] | None = None,
) -> Relation:
    """Apply a function that opens files to rows with their locations: few on the driver, others lazily in tasks.

    Args:
        rows: the rows. Tasks open the files of a DataFrame.
        function: given the `Files` of the driver, or None in tasks, returns a function that takes batches of rows and
            yields batches of `schema`.
        schema: the schema of the result.
        source: opens the files.
        are_few: returns whether the driver opens the files of a table faster than tasks.
        runs: whether the driver passes consecutive rows to one call, because neighbours share work.
        tasks: returns the number of tasks; None leaves it to Spark.
    """
    access = source.access
    if isinstance(rows, pa.Table) and (not len(rows) or access.driver_opens(access.alone or are_few(rows))):
        if not isinstance(schema, pa.Schema):
            from sparkmeta.arrow_types import arrow_schema

            schema = arrow_schema(schema)
        return map_on_driver(rows, function(access.driver), schema, runs=runs)
    frame = frame_of(rows, source)
    return map_arrow(frame if tasks is None else in_tasks(frame, tasks(source.spark)), function(None), schema)
