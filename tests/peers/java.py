"""Iceberg's own Java library as an oracle: what it plans, and the metadata tables that it shows.

Java is called through py4j, in the JVM of a classic Spark session that has the Iceberg runtime among its jars.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame

from tests.peers.classic import classic_session, moved
from tests.peers.content_files import ContentFiles, elements, items
from tests.peers.expressions import filter_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

# Java's names of the metadata tables, which are sparkmeta's `table.inspect` methods too.
METADATA_TABLES = (
    "entries",
    "files",
    "data_files",
    "delete_files",
    "history",
    "metadata_log_entries",
    "snapshots",
    "refs",
    "manifests",
    "partitions",
    "all_data_files",
    "all_delete_files",
    "all_files",
    "all_manifests",
    "all_entries",
    "position_deletes",
)


@dataclass(frozen=True)
class At:
    """What a scan reads: a snapshot, a branch or tag, what was current at a time, or (nothing set) what is current."""

    snapshot_id: int | None = None
    ref: str | None = None
    timestamp_ms: int | None = None

    def apply(self, scan: Any) -> Any:
        if self.snapshot_id is not None:
            scan = scan.useSnapshot(self.snapshot_id)
        if self.ref is not None:
            scan = scan.useRef(self.ref)
        return scan if self.timestamp_ms is None else scan.asOfTime(self.timestamp_ms)


NOW = At()


class Java:
    """Iceberg's Java classes in the JVM of a Spark session, or of a classic one beside it if it is of Spark Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.classic = classic_session(spark)
        self.jvm = cast("Any", self.classic._jvm)
        self.gateway: Any = self.classic.sparkContext._gateway
        self.iceberg: Any = self.jvm.org.apache.iceberg
        self.session: Any = self.classic._jsparkSession

    @cached_property
    def io(self) -> Any:
        return self.iceberg.hadoop.HadoopFileIO(self.session.sessionState().newHadoopConf())

    def strings(self, values: Sequence[str]) -> Any:
        """A Java String[]."""
        return self._array(self.jvm.java.lang.String, values)

    def ints(self, values: Sequence[int]) -> Any:
        """A Java int[]."""
        return self._array(self.jvm.int, values)

    def path(self, location: str) -> Any:
        """A path for `deleteFile`. Given a Java String, py4j calls another method of that name: it deletes the file."""
        return self.jvm.java.lang.StringBuilder(location)

    def _array(self, element: Any, values: Sequence[Any]) -> Any:
        array = self.gateway.new_array(element, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array

    def table(self, metadata_location: str, name: str = "peer") -> JavaTable:
        """The state of a table that a metadata.json describes; it never changes."""
        operations = self.iceberg.StaticTableOperations(metadata_location, self.io)
        return JavaTable(self, self.iceberg.BaseTable(operations, name))

    def catalog_table(self, name: str) -> Any:
        """The Java `Table` of a name like java.db.t, to be changed through Java's own API."""
        # Spark looks for catalogs in the thread's active session, which may be one of an earlier test.
        self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self.session)
        return self.iceberg.spark.Spark3Util.loadIcebergTable(self.session, name)

    def records(self, metadata_location: str, *columns: str) -> list[Any]:
        """The rows of a table as Java's Records, by Iceberg's generic reader: it has types that Spark has not."""
        scan = self.iceberg.data.IcebergGenerics.read(self.table(metadata_location).table)
        return [*iterate((scan.select(self.strings(columns)) if columns else scan).build())]

    @cached_property
    def expressions(self) -> Any:
        return self.iceberg.expressions.ExpressionParser

    @cached_property
    def content_files(self) -> Any:
        return self.iceberg.ContentFileParser

    @cached_property
    def anything(self) -> Any:
        """java.lang.Object's class."""
        return self.jvm.java.lang.Class.forName("java.lang.Object")

    def expression(self, row_filter: BooleanExpression) -> Any:
        return self.expressions.fromJson(filter_json(row_filter))

    def equivalent(self, left: str, right: str, schema: Schema, case_sensitive: bool = True) -> bool:
        """Java's ExpressionUtil.equivalent on two untyped JSONs: structural, so a False may still be equivalent."""
        struct = self.iceberg.SchemaParser.fromJson(schema.model_dump_json()).asStruct()
        left_expression, right_expression = (self.expressions.fromJson(text) for text in (left, right))
        return bool(
            self.iceberg.expressions.ExpressionUtil.equivalent(
                left_expression, right_expression, struct, case_sensitive
            )
        )


def iterate(iterable: Any) -> Iterator[Any]:
    """The elements of a Java CloseableIterable, which is closed at the end."""
    try:
        yield from elements(iterable)
    finally:
        iterable.close()


@dataclass
class JavaTable:
    """One state of a table, as Java sees it."""

    java: Java
    table: Any
    _files: dict[Any, dict[str, Any]] = field(default_factory=dict, repr=False)

    @cached_property
    def content(self) -> ContentFiles:
        return ContentFiles(self.java, self.table)

    @cached_property
    def snapshot_ids(self) -> list[int]:
        return [snapshot.snapshotId() for snapshot in elements(self.table.snapshots())]

    @cached_property
    def current_snapshot_id(self) -> int | None:
        snapshot = self.table.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    # --- planning

    def scan(
        self,
        row_filter: BooleanExpression | None = None,
        at: At = NOW,
        *,
        case_sensitive: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> Any:
        """A Java TableScan; `options` are Iceberg's read options."""
        scan = at.apply(self.table.newScan().caseSensitive(case_sensitive))
        for key, value in (options or {}).items():
            scan = scan.option(key, value)
        return scan if row_filter is None else scan.filter(self.java.expression(row_filter))

    def plan(
        self, row_filter: BooleanExpression | None = None, at: At = NOW, *, case_sensitive: bool = True
    ) -> list[dict[str, Any]]:
        """The planned files, sorted by path and offset.

        Each has file_path, file_format, spec_id, partition (every field of the table's common partition type, by
        name, as Spark shows its values), record_count, file_size_in_bytes, split_offsets, sort_order_id, first_row_id,
        data_sequence_number, file_sequence_number, manifest_path, manifest_pos, deletes (in Java's order, each with
        content, file_path, file_format, spec_id, file_size_in_bytes, referenced_data_file, content_offset,
        content_size_in_bytes, record_count, data_sequence_number, equality_ids, manifest_path, manifest_pos) and
        residual (Iceberg's expression JSON, untyped).
        """
        scan = self.scan(row_filter, at, case_sensitive=case_sensitive)
        rows = [self._row(task, at) for task in iterate(scan.planFiles())]
        return sorted(rows, key=lambda row: (row["file_path"], row["manifest_path"], row["manifest_pos"]))

    def paths(
        self, row_filter: BooleanExpression | None = None, at: At = NOW, *, case_sensitive: bool = True
    ) -> list[str]:
        """Only the paths of the planned files, sorted: a fraction of the cost of `plan`."""
        scan = self.scan(row_filter, at, case_sensitive=case_sensitive).ignoreResiduals()
        return sorted(task.file().location() for task in iterate(scan.planFiles()))

    def tasks(
        self,
        row_filter: BooleanExpression | None = None,
        at: At = NOW,
        *,
        options: Mapping[str, str] | None = None,
    ) -> list[list[tuple[str, int, int]]]:
        """Java's `planTasks()`: per combined task its (file, start, length), in its order.

        Which files come first is up to Java's threads where a plan reads several manifests.
        """
        scan = self.scan(row_filter, at, options=options)
        return [
            [(task.file().location(), task.start(), task.length()) for task in elements(combined.files())]
            for combined in iterate(scan.planTasks())
        ]

    def bounds(self, at: At = NOW) -> dict[int, list[bytes]]:
        """The lower and upper bounds of the planned files by field id, as stored."""
        by_field: dict[int, list[bytes]] = defaultdict(list)
        for task in iterate(self.scan(at=at).includeColumnStats().planFiles()):
            for bounds in (task.file().lowerBounds(), task.file().upperBounds()):
                for field_id, value in (items(bounds) if bounds else {}).items():
                    by_field[field_id].append(bytes(value.array()))
        return by_field

    def _row(self, task: Any, at: At) -> dict[str, Any]:
        deletes = [self._content_file(each, at) for each in elements(task.deletes())]
        residual = self.java.expressions.toJson(task.residual())
        return {**self._content_file(task.file(), at), "deletes": deletes, "residual": residual}

    def _content_file(self, file: Any, at: At) -> dict[str, Any]:
        key = (at, file.manifestLocation(), file.pos())
        if key not in self._files:
            self._files[key] = self.content.describe(file) | {"manifest_path": key[1], "manifest_pos": key[2]}
        return self._files[key]

    # --- metadata tables

    def metadata_table(self, kind: str, at: At = NOW) -> DataFrame:
        """A metadata table, such as "files", as Java's Spark integration shows it.

        Those over the whole history (all_*, and history, snapshots, refs, metadata_log_entries by their nature) are
        the same at every snapshot; Java refuses to travel in the all_* ones.
        """
        iceberg = self.java.iceberg
        kind_of_table = getattr(iceberg.MetadataTableType, kind.upper())
        return self._frame(iceberg.MetadataTableUtils.createMetadataTableInstance(self.table, kind_of_table), at)

    def rows(self, at: At = NOW, columns: Sequence[str] = ("*",), condition: str = "true") -> DataFrame:
        """The rows of the table, as Java's Spark integration reads them.

        columns: may name metadata columns.
        condition: in SQL. Java passes over files by it.
        """
        return self._frame(self.table, at, columns, condition)

    def _frame(self, table: Any, at: At, columns: Sequence[str] = ("*",), condition: str = "true") -> DataFrame:
        java, iceberg = self.java, self.java.iceberg
        spark_table = iceberg.spark.source.SparkTable
        read = spark_table(table) if at == NOW else spark_table.create(table, self._travel(at))
        none = java.jvm.scala.Option.empty()
        options = java.jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap({})
        relations = java.jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
        relation = relations.create(read, none, none, options, none)
        rows = DataFrame(java.jvm.org.apache.spark.sql.classic.Dataset.ofRows(java.session, relation), java.classic)
        return moved(rows.where(condition).selectExpr(*columns), java.spark)

    def _travel(self, at: At) -> Any:
        travel = self.java.iceberg.spark.TimeTravel
        if at.timestamp_ms is not None:
            return travel.timestampMillis(at.timestamp_ms)
        return travel.version(str(at.snapshot_id) if at.ref is None else at.ref)
