"""The rows of a metadata table: an Arrow table if the driver reads the few files that hold them, or a DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.entries.relation import collected, frame_of
from sparkmeta.errors import translated_errors
from sparkmeta.expr.evaluate import typed
from sparkmeta.manifests.placement import MOST_REQUESTS, MOST_REQUESTS_UNSTARTED, ManifestLoad, Placement
from sparkmeta.session import local_frame, map_arrow, map_on_driver, read_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files


@dataclass(frozen=True)
class MetadataRows:
    """The rows of a metadata table.

    Attributes:
        state: the table.
        rows: the rows.
        row_type: their type.
    """

    state: TableState
    rows: Relation
    row_type: StructType

    def relation(self) -> Relation:
        """Return the rows as a table if the driver has read them, otherwise as a lazy DataFrame."""
        return self.table() if isinstance(self.rows, pa.Table) else self.rows

    def frame(self) -> DataFrame:
        """Return the rows as a DataFrame. It is lazy unless the driver has read the rows."""
        return frame_of(self.relation(), self.state)

    def table(self) -> pa.Table:
        """Return the rows in memory. Runs a job unless the driver has read them."""
        with translated_errors():
            return typed(collected(self.rows), arrow_schema(self.row_type))


def read_entries(state: TableState, manifests: pa.Table, projection: EntryProjection, most_entries: int) -> Relation:
    """Return the entries of some of the snapshot's manifests, as a table if the driver reads them.

    Args:
        state: the table.
        manifests: rows of `state.manifests`.
        projection: what to read.
        most_entries: the maximum entries that the driver decodes; see `manifests.placement`.
    """
    on_driver = state.reader.driver_reads(manifests, projection, most_entries)
    return state.relation(manifests, projection, Placement.DRIVER if on_driver else None)


class FileParser(Protocol):
    """Makes rows of the content of files, which are given by rows with their `location`."""

    def read(self, reader: ExecutorReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files that the task opens."""

    def read_contents(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files that have their bytes as `content`."""


def read_files(
    state: TableState, files: Relation, rows: FileParser, row_type: StructType, most_files: int | None = None
) -> DataFrame:
    """Return rows of files that tasks open, lazily. If only Spark's own sources can, a job collects the locations.

    Args:
        state: the table.
        files: rows with the `location` of a file.
        rows: makes the rows of files.
        row_type: of the result.
        most_files: the maximum number of files, if they are a DataFrame; None if it is unknown.
    """
    if state.access.tasks is None:
        from sparkmeta.storage.reading import with_content

        return map_arrow(with_content(state.spark, collected(files)), rows.read_contents, row_type)
    is_table = isinstance(files, pa.Table)
    frame = local_frame(state.spark, files) if is_table else files.repartition(read_tasks(state.spark, most_files))
    return map_arrow(frame, partial(rows.read, state.access.tasks), row_type)


def driver_opens(state: TableState, files: int, size_in_bytes: int, rows: int, most_rows: int) -> bool:
    """Return whether the driver opens files: if they are few and small, and hold few rows."""
    is_small = ManifestLoad(size_in_bytes, rows, most_rows).fits_driver(state.settings.driver_manifest_bytes)
    most = MOST_REQUESTS if state.sessions.running() else MOST_REQUESTS_UNSTARTED
    return state.access.driver is not None and (state.access.alone or (files <= most and is_small))


def read_on_driver(state: TableState, files: pa.Table, rows: FileParser, row_type: StructType) -> pa.Table:
    """Return rows of files that the driver opens."""
    driver = state.access.driver
    assert driver is not None
    return map_on_driver(files, partial(_opened, driver, rows), arrow_schema(row_type))


def _opened(driver: Files, rows: FileParser, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        contents = pa.array(map(driver.read, batch.column("location").to_pylist()), pa.binary())
        yield from rows.read_contents([batch.append_column("content", contents)])
