"""The data source of `spark.read.format("sparkmeta")` and `CREATE TEMPORARY VIEW ... USING sparkmeta`.

Spark makes these objects in Python processes without a session. `schema` and `partitions` run in one on the driver, and
`read` in tasks. `pyspark.sql.datasource` is the interface.

The reader takes no filters from Spark. Spark 4.1 to 4.3 share one plan of a source among all uses of a DataFrame or
view: the plan with the filters that were pushed last. Another use could get the rows of these filters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import datasource

from sparkmeta.data_source.changes import ChangelogRead, read_of
from sparkmeta.data_source.fleet import FleetRead, tables_of
from sparkmeta.data_source.options import ReadOptions
from sparkmeta.data_source.sink import Sink, SinkOptions
from sparkmeta.data_source.stream import StreamOptions, StreamReader
from sparkmeta.data_source.tables import RowsRead, refuse_misfits, spark_batches
from sparkmeta.data_source.writers import BatchWriter, StreamWriter
from sparkmeta.fleet.opened import Opened
from sparkmeta.session import worker_call

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sparkmeta.data_source.options import Catalogs
    from sparkmeta.data_source.tables import Read


class DataSource(datasource.DataSource):
    """The data source `sparkmeta`; see docs/sql.md for its options. `sm.register(spark)` registers it."""

    _catalogs: ClassVar[Catalogs] = {}
    _opened: Opened | None = None
    _many: dict[str, Opened] | None = None
    _is_copy = False

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "sparkmeta"

    def schema(self) -> StructType:
        """Return the type of the rows. Readers then read this version of the table."""
        with worker_call():
            # Spark does not tell whether this is for a batch or a stream. The row type does not depend on a range of
            # snapshots.
            options = replace(StreamOptions.of(self.options), start_snapshot_id=None, end_snapshot_id=None)
            return self._read(options).row_type

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return a reader."""
        with worker_call():
            return _Reader(self._read(ReadOptions.of(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """Return the writer of `df.write`."""
        with worker_call():
            return BatchWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a batch of `df.writeStream`, which Spark makes twice: to plan it, and to commit it."""
        with worker_call():
            return StreamWriter(self._sink(schema, overwrite))

    def _sink(self, schema: StructType, overwrite: bool) -> Sink:
        sink = Sink(SinkOptions.of(self.options), self._catalogs, schema, overwrite)
        if not self._is_copy:
            sink.tasks  # noqa: B018  it refuses what can't be written
        return sink

    def __getstate__(self) -> dict[str, Any]:
        # Spark plans with a new object, and commits with a copy.
        return vars(self) | {"_is_copy": True}

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return a reader of a stream."""
        with worker_call():
            return StreamReader(StreamOptions.of(self.options), self._catalogs, schema)

    def _read(self, options: ReadOptions) -> Read:
        if self._opened is None and self._many is None:
            tables = tables_of(options, self._catalogs)
            self._many = (
                None if tables is None else {name: Opened.of(table, table.state) for name, table in tables.items()}
            )
        if self._many is not None:
            return FleetRead(options, {name: opened.open() for name, opened in self._many.items()})
        table = options.open(self._catalogs) if self._opened is None else self._opened.open()
        self._opened = self._opened or Opened.of(table, table.state)
        return read_of(options, table)


class _Reader(datasource.DataSourceReader):
    def __init__(self, read: Read, schema: StructType) -> None:
        refuse_misfits(read.row_type, schema)
        if isinstance(read, RowsRead | ChangelogRead):
            read.select(schema.names)
        self._row_read, self._schema = read, schema

    def partitions(self) -> list[datasource.InputPartition]:
        with worker_call():
            return [datasource.InputPartition(share) for share in self._row_read.shares()]

    def read(self, partition: datasource.InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Spark creates an empty partition for a read without shares.
        if partition is None or partition.value is None:
            return
        with worker_call():
            yield from spark_batches(self._row_read.rows(partition.value, self._schema.names), self._schema)
