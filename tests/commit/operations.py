"""Operations on a small partitioned table, each for one of our V4 trees and for a table of Iceberg's Java library.

The table has the files a1 and a2 of the partition s = 'a', and b1 and b2 of s = 'b'. An operation concerns one of them,
or its partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from sparkmeta.errors import CommitFailedError, ValidationError
from sparkmeta.operations.table_operations import TableVersion, next_version
from sparkmeta.spec.metadata import TableMetadata
from tests.peers.content_files import elements
from tests.peers.file_maker import FileMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import SnapshotUpdate, Table
    from tests.peers.java import Java, JavaTable

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StringType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))

OPERATIONS = (
    "append",
    "delete_files",
    "delete_filter",
    "overwrite_filter",
    "overwrite_files",
    "vector",
    "equality",
    "rewrite",
    "replace_partitions",
    "compact_manifests",
)
# Operations that can be validated, and among them the operations whose validation may have a filter.
VALIDATED = ("overwrite_filter", "overwrite_files", "vector", "equality", "replace_partitions")
FILTERED = VALIDATED[:-1]
BY_PARTITION = ("append", "delete_filter", "overwrite_filter", "replace_partitions", "compact_manifests")


@dataclass(frozen=True)
class File:
    """A data or delete file of 10 rows.

    Attributes:
        content: see `inspect.files`.
        about: the data file that a delete file applies to.
    """

    name: str
    content: int = 0
    about: str = ""

    @property
    def part(self) -> str:
        return (self.about or self.name)[0]

    @property
    def ids(self) -> tuple[int, int]:
        """The least and the greatest value of the column id: 0 and 9 in a1 and its deletes, 10 and 19 in a2."""
        first = 10 * (int((self.about or self.name)[1]) - 1)
        return first, first + 9

    @property
    def path(self) -> str:
        return f"/data/{self.name}"


BASE = ((File("a1"), File("b1")), (File("a2"), File("b2")))


@dataclass(frozen=True)
class Change:
    """An operation, and the file that it concerns.

    Attributes:
        new: the suffix of the names of added files.
        isolation: the level of the validation; None for no validation.
        with_filter: whether the validation names the partition. Otherwise it has the default filter.
    """

    operation: str
    target: str
    new: str
    isolation: str | None = None
    with_filter: bool = False

    def __str__(self) -> str:
        options = [self.isolation or "", "filter" if self.with_filter else ""]
        return "-".join([self.operation, *filter(None, options)])

    @property
    def part(self) -> str:
        return self.target[0]

    @property
    def row_filter(self) -> str:
        return f"s = '{self.part}'"

    @property
    def added(self) -> File:
        """A new data file in the target's partition, with the target's ids."""
        return File(f"{self.target}{self.new}")

    @property
    def removed(self) -> File:
        return File(self.target)

    @property
    def vector(self) -> File:
        return File(f"{self.target}{self.new}.puffin", 1, self.target)

    @property
    def equality(self) -> File:
        return File(f"{self.target}{self.new}.eq", 2, self.target)


# -- ours -----------------------------------------------------------------------------------------------------------


def rows(spark: SparkSession, files: Iterable[File]) -> DataFrame:
    """Return files with the columns of `inspect.files`."""
    listed = []
    for file in files:
        lower, upper = file.ids
        bounds = {} if file.content == 1 else {
            "lower_bounds": [(1, lower.to_bytes(8, "little"))], "upper_bounds": [(1, upper.to_bytes(8, "little"))],
            "value_counts": [(1, 10)], "null_value_counts": [(1, 0)],
        }  # fmt: skip
        vector = {"referenced_data_file": f"/data/{file.about}", "content_offset": 4, "content_size_in_bytes": 40}
        listed.append(
            {
                "content": file.content,
                "file_path": file.path,
                "file_format": "PUFFIN" if file.content == 1 else "PARQUET",
                "record_count": 10,
                "file_size_in_bytes": 1000,
                "partition": {"s": file.part},
                "equality_ids": [1] if file.content == 2 else None,
                **bounds,
                **(vector if file.content == 1 else {}),
            }
        )
    return spark.createDataFrame(pa.Table.from_pylist(listed, schema=_ROWS))


_COUNTS, _BOUNDS = pa.map_(pa.int32(), pa.int64()), pa.map_(pa.int32(), pa.binary())
_ROWS = pa.schema(
    [
        ("content", pa.int32()),
        ("file_path", pa.string()),
        ("file_format", pa.string()),
        ("record_count", pa.int64()),
        ("file_size_in_bytes", pa.int64()),
        ("partition", pa.struct([("s", pa.string())])),
        ("equality_ids", pa.list_(pa.int32())),
        ("referenced_data_file", pa.string()),
        ("content_offset", pa.int64()),
        ("content_size_in_bytes", pa.int64()),
        ("value_counts", _COUNTS),
        ("null_value_counts", _COUNTS),
        ("lower_bounds", _BOUNDS),
        ("upper_bounds", _BOUNDS),
    ]
)


@dataclass
class Pointer:
    """A table's current version in memory, so that many commits can begin from one state of the table."""

    current: TableVersion

    refusal: ClassVar[str | None] = None
    replaces_metadata: ClassVar[bool] = True

    def refresh(self) -> TableVersion:
        return self.current

    def commit(self, base: TableVersion | None, new: TableMetadata) -> TableVersion:
        if base is None or base.metadata_location != self.current.metadata_location:
            raise CommitFailedError("another commit came first")
        self.current = TableVersion(f"{base.metadata_location}+", next_version(base, new).metadata)
        return self.current


def apply(table: Table, change: Change, branch: str = "main", **properties: str) -> Table:
    """Commit a change to one of our tables. Raises ValidationError if it is refused."""
    if change.operation == "compact_manifests":
        return table.maintenance.compact_manifests(min_masked_ratio=0.01, min_leaf_ratio=1.0, max_root_files=0).commit()
    with table.transaction() as tx:
        update = tx.update_snapshot(branch, properties)
        describe(update, change, table.state.spark)
        if change.isolation is not None:
            update.validate_no_conflicts(
                change.row_filter if change.with_filter else None,
                isolation=change.isolation,  # type: ignore[arg-type]
            )
    return tx.commit()


def describe(update: SnapshotUpdate, change: Change, spark: SparkSession) -> None:
    """Add a change to an update."""
    added, removed = rows(spark, [change.added]), rows(spark, [change.removed]).select("file_path")
    operations: dict[str, Callable[[], object]] = {
        "append": lambda: update.append(added),
        "delete_files": lambda: update.delete(removed),
        "delete_filter": lambda: update.delete(row_filter=change.row_filter),
        "overwrite_filter": lambda: update.overwrite(added, row_filter=change.row_filter),
        "overwrite_files": lambda: update.overwrite(added, removed),
        "vector": lambda: update.row_delta(deletes=rows(spark, [change.vector])),
        "equality": lambda: update.row_delta(deletes=rows(spark, [change.equality])),
        "rewrite": lambda: update.rewrite(removed, added),
        "replace_partitions": lambda: update.replace_partitions(added),
    }
    operations[change.operation]()


def outcome(table: Table, change: Change) -> dict[str, list[str]] | str:
    """Return the planned data files after a change, with their deletes, or "refused"."""
    try:
        after = apply(table, change)
    except ValidationError:
        return "refused"
    return planned(after)


def planned(table: Table) -> dict[str, list[str]]:
    """Return the live data files, with the deletes that apply to them."""
    planned_files = table.scan().plan_files().select("file_path", "deletes.file_path").toDF("path", "deletes").collect()
    return {row["path"]: sorted(row["deletes"]) for row in planned_files}


# -- Java's ---------------------------------------------------------------------------------------------------------


@dataclass
class JavaPeer(FileMaker):
    """A table of the Java library, with the same schema and partition spec."""

    java: Java
    _table: Any

    @staticmethod
    def in_memory(java: Java, format_version: int = 3) -> JavaPeer:
        """Create a table with the files of `BASE`."""
        iceberg = java.iceberg
        catalog = iceberg.inmemory.InMemoryCatalog()
        catalog.initialize("peers", {})
        catalog.createNamespace(iceberg.catalog.Namespace.of(java.strings(["db"])))
        identifier = iceberg.catalog.TableIdentifier.of(java.strings(["db", "t"]))
        schema = iceberg.SchemaParser.fromJson(SCHEMA.model_dump_json())
        spec = iceberg.PartitionSpecParser.fromJson(schema, SPEC.model_dump_json())
        peer = JavaPeer(java, catalog.createTable(identifier, schema, spec, {"format-version": str(format_version)}))
        for files in BASE:
            peer.append(*map(peer.file, files))
        return peer

    @staticmethod
    def in_folder(
        java: Java, folder: Path, format_version: int, properties: Mapping[str, str] | None = None
    ) -> JavaPeer:
        """Create a file system table with the files of `BASE`."""
        iceberg = java.iceberg
        tables = iceberg.hadoop.HadoopTables(java.session.sessionState().newHadoopConf())
        schema = iceberg.SchemaParser.fromJson(SCHEMA.model_dump_json())
        spec = iceberg.PartitionSpecParser.fromJson(schema, SPEC.model_dump_json())
        values = {"format-version": str(format_version), **(properties or {})}
        peer = JavaPeer(java, tables.create(schema, spec, values, f"file://{folder}"))
        for files in BASE:
            peer.append(*map(peer.file, files))
        return peer

    @property
    def current(self) -> JavaTable:
        """The newest state of the table."""
        self._table.refresh()
        return self.java.table(self._table.operations().current().metadataFileLocation())

    @property
    def table(self) -> Any:
        return self._table

    def file(self, file: File) -> Any:
        contents = ("data", "position-deletes", "equality-deletes")
        described: dict[str, Any] = {
            "file-path": file.path, "content": contents[file.content], "partition": {"1000": file.part},
        }  # fmt: skip
        if file.content == 1:
            described |= {
                "file-format": "puffin", "referenced-data-file": f"/data/{file.about}", "content-offset": 4,
                "content-size-in-bytes": 40,
            }  # fmt: skip
        else:
            bounds = [bound.to_bytes(8, "little").hex() for bound in file.ids]
            described |= {
                "lower-bounds": {"keys": [1], "values": [bounds[0]]},
                "upper-bounds": {"keys": [1], "values": [bounds[1]]},
                "value-counts": {"keys": [1], "values": [10]},
                "null-value-counts": {"keys": [1], "values": [0]},
            }
        if file.content == 2:
            described["equality-ids"] = [1]
        return self.content_file(described)

    def update(self, change: Change, start: int) -> Any:
        """Return the pending update of a change that began at a snapshot."""
        table, java = self._table, self.java
        row_filter = java.iceberg.expressions.Expressions.equal("s", change.part)
        added, removed = self.file(change.added), self.file(change.removed)
        unvalidated: dict[str, Callable[[], Any]] = {
            "append": lambda: table.newAppend().appendFile(added),
            "delete_files": lambda: table.newDelete().deleteFile(removed).validateFilesExist(),
            "delete_filter": lambda: table.newDelete().deleteFromRowFilter(row_filter),
            "rewrite": lambda: table.newRewrite().validateFromSnapshot(start).deleteFile(removed).addFile(added),
            "compact_manifests": lambda: table.rewriteManifests().clusterBy(
                java.jvm.java.util.function.Function.identity()
            ),
        }
        if change.operation in unvalidated:
            return unvalidated[change.operation]()
        validated: dict[str, Callable[[], Any]] = {
            "overwrite_filter": lambda: table.newOverwrite().overwriteByRowFilter(row_filter).addFile(added),
            "overwrite_files": lambda: table.newOverwrite().deleteFile(removed).addFile(added),
            "replace_partitions": lambda: table.newReplacePartitions().addFile(added),
            "vector": lambda: (
                table.newRowDelta()
                .addDeletes(self.file(change.vector))
                .validateDataFilesExist(java.jvm.java.util.List.of(change.removed.path))
            ),
            "equality": lambda: table.newRowDelta().addDeletes(self.file(change.equality)),
        }
        return self._validated(validated[change.operation]().validateFromSnapshot(start), change, row_filter)

    def _validated(self, update: Any, change: Change, row_filter: Any) -> Any:
        if change.isolation is None:
            return update
        if change.with_filter:
            update.conflictDetectionFilter(row_filter)
        if change.operation in ("vector", "equality"):
            update.validateDeletedFiles().validateNoConflictingDeleteFiles()
            return update.validateNoConflictingDataFiles() if change.isolation == "serializable" else update
        update.validateNoConflictingDeletes()
        return update.validateNoConflictingData() if change.isolation == "serializable" else update

    def outcome(self, change: Change, other: Change) -> dict[str, list[str]] | str:
        """Commit `other`, then the change, and return the planned data files, or "refused"."""
        start = self._table.currentSnapshot().snapshotId()
        update = self.update(change, start)
        self.update(other, start).commit()
        return self.planned() if self.commits(update.commit) else "refused"

    def commits(self, commit: Callable[[], object]) -> bool:
        """Call `commit`, and return whether Java commits; False for a ValidationException."""
        try:
            commit()
        except Py4JJavaError as error:
            refusal = "org.apache.iceberg.exceptions.ValidationException"
            if not is_instance_of(self.java.gateway, error.java_exception, refusal):
                raise
            return False
        return True

    def planned(self) -> dict[str, list[str]]:
        """Return the live data files, with the deletes that apply to them."""
        self._table.refresh()
        return {
            task.file().location(): sorted(delete.location() for delete in elements(task.deletes()))
            for task in elements(self._table.newScan().planFiles())
        }
