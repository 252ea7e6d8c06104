"""The rows of a metadata table: an Arrow table if the driver reads the few files that hold them, or a DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.entries.relation import collected, frame_of, typed
from sparkmeta.errors import translated_errors
from sparkmeta.manifests.placement import MOST_REQUESTS, MOST_REQUESTS_UNSTARTED, mapped_files
from sparkmeta.session import map_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from sparkmeta.entries.relation import Relation
    from sparkmeta.session import MapFunction
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
        with translated_errors():
            return typed(self.rows, arrow_schema(self.row_type))

    def frame(self) -> DataFrame:
        """Return the rows as a DataFrame. It is lazy unless the driver has read the rows."""
        return frame_of(self.relation(), self.state)

    def table(self) -> pa.Table:
        """Return the rows in memory. Runs a job unless the driver has read them."""
        with translated_errors():
            return typed(collected(self.rows), arrow_schema(self.row_type))


class FileParser(Protocol):
    """Parses files, given by rows with their `location`, into rows."""

    def read(self, reader: ExecutorReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files that the task opens."""

    def read_contents(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files that have their bytes as `content`."""


def read_files(
    state: TableState,
    files: Relation,
    rows: FileParser,
    row_type: StructType,
    are_few: Callable[[pa.Table], bool],
    tasks: Callable[[SparkSession], int] | None = None,
) -> Relation:
    """Return the rows of files, as a table if the driver opens the files; see `mapped_files`.

    Otherwise tasks open them, lazily. If only Spark's own sources can, a job collects the locations.

    Args:
        state: the table.
        files: rows with the `location` of a file.
        rows: parses the files.
        row_type: the type of the resulting rows.
        are_few: whether the driver opens the files of a table faster than tasks; see `few_files`.
        tasks: returns the number of tasks; None leaves it to Spark.
    """
    reader = state.access.tasks
    if reader is None:
        from sparkmeta.storage.reading import with_content

        return map_arrow(with_content(state.spark, collected(files)), rows.read_contents, row_type)

    def read(driver: Files | None) -> MapFunction:
        return partial(rows.read, reader) if driver is None else partial(_opened, driver, rows)

    return mapped_files(files, read, row_type, state, are_few=are_few, tasks=tasks)


def few_files(state: TableState, files: int, size_in_bytes: int, rows: int = 0, most_rows: int = 0) -> bool:
    """Return whether files are few and small, and hold few rows, so that the driver opens them faster than tasks."""
    allowed = MOST_REQUESTS if state.sessions.running() else MOST_REQUESTS_UNSTARTED
    return files <= allowed and size_in_bytes <= state.settings.driver_manifest_bytes and rows <= most_rows


def _opened(driver: Files, rows: FileParser, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        contents = pa.array(map(driver.read, batch.column("location").to_pylist()), pa.binary())
        yield from rows.read_contents([batch.append_column("content", contents)])
