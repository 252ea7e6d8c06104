"""A table: what a notebook holds. Metadata as pyiceberg names it, bulk results as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.changes.check import check
from sparkmeta.changes.file_changes import file_changes
from sparkmeta.commit.transaction import Transaction
from sparkmeta.errors import NoSuchSnapshotError
from sparkmeta.inspect.draw import draw
from sparkmeta.inspect.inspect_table import InspectTable
from sparkmeta.maintain.maintenance import Maintenance
from sparkmeta.operations.base_table import BaseTable
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.operations.metadata_files import is_metadata_file, latest_metadata
from sparkmeta.operations.table_operations import StaticOperations, load_version
from sparkmeta.scan import ALL_FIELDS, Scan, table_scan
from sparkmeta.session import resolve_session
from sparkmeta.state import TableState
from sparkmeta.storage.access import files_for

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.table.update.sorting import UpdateSortOrder
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.commit.manage_snapshots import ManageSnapshots
    from sparkmeta.inspect.drawing import Drawing
    from sparkmeta.operations.table_operations import TableOperations, TableVersion
    from sparkmeta.spec.metadata import Snapshot, SnapshotRef
    from sparkmeta.spec.snapshot import SnapshotLogEntry
    from sparkmeta.spec.updates import UpdateSpec
    from sparkmeta.storage.files import Files


@dataclass(frozen=True)
class Table(BaseTable):
    """One version of a table's metadata, and what can be asked of it and done to it."""

    @staticmethod
    def from_pyiceberg(table: PyIcebergTable, spark: SparkSession | None = None) -> Table:
        """The table that pyiceberg loaded, read through its FileIO."""
        return open_metadata(table.metadata_location, spark, io=table.io, identifier=table.name())

    # -- reading ----------------------------------------------------------------------------------------------------

    def scan(
        self,
        row_filter: str | BooleanExpression = AlwaysTrue(),  # noqa: B008  an immutable singleton
        selected_fields: tuple[str, ...] = ALL_FIELDS,
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Scan:
        """A scan of the rows that match the filter: `table.scan("ts >= '2026-01-01' and id = 7").plan_files()`.

        Raises:
            InvalidFilterError: the filter is no filter.
            NoSuchSnapshotError: the table has no snapshot of that id.
        """
        return table_scan(self.state, row_filter, selected_fields, case_sensitive, snapshot_id, options or {})

    @cached_property
    def inspect(self) -> InspectTable:
        """The metadata tables: `table.inspect.files()`, `.partitions()`, ..."""
        return InspectTable(self.state, self.metadata_location)

    def file_changes(
        self,
        from_snapshot_id_exclusive: int | None,
        to_snapshot_id_inclusive: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        lenient: bool = False,
    ) -> DataFrame:
        """The data and delete files that the snapshots after one, up to another, added and removed; lazy.

        Snapshots are followed along their parents. A compaction that changes no data is no change. A file that came and
        went within the range is there twice. Only manifests that a snapshot added or newly masked are opened.

        Args:
            from_snapshot_id_exclusive: an ancestor of the other, which may have expired if its child is there; None:
                all changes since the table was empty.
            to_snapshot_id_inclusive: None: the current snapshot.
            columns: of `inspect.files`, as it takes them; all by default.
            lenient: read also trees that strict readers refuse, as drafts of format version 4 had them: several live
                deletion vectors of one manifest, as if they were one, and an added manifest with removed files.

        Columns: change_type string (added, removed), snapshot_id long (the one that made the change), the columns of
        `inspect.files`, and added_positions array<long>: of an added deletion vector the positions that the one removed
        with it did not have (all of them where none was), else null. A deletion vector that changes is a removed and an
        added row; one that goes with its data file is a removed row.

        Raises:
            NoSuchSnapshotError: a snapshot that the table does not have.
            ValidationError: the first is no ancestor of the second, or what is needed to tell has expired.
            CorruptFileError: a root that contradicts itself, and, when it runs, a file that is not what it should be.
        """
        ids = (from_snapshot_id_exclusive, to_snapshot_id_inclusive)
        return file_changes(self.state, *ids, columns, lenient=lenient)

    def check(self, snapshot_id: int | None = None) -> DataFrame:
        """Every invariant of a snapshot's metadata tree that does not hold, over the whole tree; lazy. No row: sound.

        Columns: rule string, location string (of the manifest, file or root), value string, problem string. The rules:
        entry-fields (an entry lacks what its content type must have; where the root itself does, nothing else is
        looked at), leaf-content, manifest-counts, added-manifest, sequence-numbers, partition-bound,
        one-entry-per-file, one-vector-per-file, one-vector-per-manifest, vector-target, vector-content, ordinal-range,
        ordinal-deleted, carried-entries (left out where the parent snapshot has expired), affinity-target,
        affinity-vector, affinity-equality-deletes.

        Raises:
            NoSuchSnapshotError: the table has no snapshot of that id.
            UnsupportedError: a snapshot that a manifest list describes.
            CorruptFileError: its root is no manifest; and, when it runs, errors for leaves that can't be read.
        """
        if snapshot_id is None:
            return check(self.state)
        snapshot = self.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise NoSuchSnapshotError(f"{self.location()} has no snapshot {snapshot_id}")
        return check(self.state.at(snapshot))

    def draw(self, snapshot_id: int | None = None) -> Drawing:
        """The metadata tree of a snapshot, by default of the current one, as a notebook shows it and `print` gives it.

        Root, leaves, files and deletion vectors, with their statuses; of a large tree an excerpt, what the snapshot
        changed first. Runs one small job, for the leaves that are drawn. Has `.svg`, `.text` and `.save(path)`.

        Raises:
            NoSuchSnapshotError: the table has no snapshot of that id.
            CorruptFileError: a file of the tree is not what it should be.
        """
        return draw(self.state, snapshot_id)

    # -- changing ---------------------------------------------------------------------------------------------------

    def transaction(self) -> Transaction[Table]:
        """Several changes that one commit makes: `with table.transaction() as tx: tx.update_snapshot().append(files)`.

        The table is not changed by it: `refresh()`, or what `commit()` returns, is the table as it is then.
        """
        return Transaction(self)

    @cached_property
    def maintenance(self) -> Maintenance[Table]:
        """What keeps the table in shape: `table.maintenance.upgrade(4)`; plans that do nothing before `commit()`."""
        return Maintenance(self)

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        """Return pyiceberg's builder of schema changes: `with table.update_schema() as update: update.add_column(...)`.

        Its end commits the change. `refresh()` returns the table with it; the same holds for the builders below.
        """
        return self._change().update_schema(allow_incompatible_changes, case_sensitive)

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """Return pyiceberg's builder of a partition spec."""
        return self._change().update_spec(case_sensitive)

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        """Return pyiceberg's builder of a sort order."""
        return self._change().update_sort_order(case_sensitive)

    def manage_snapshots(self) -> ManageSnapshots:
        """Return pyiceberg's builder of branches and tags, which has `fast_forward` and `cherry_pick` as well."""
        return self._change().manage_snapshots()

    def _change(self) -> Transaction[Table]:
        return Transaction(self, autocommit=True)

    # -- metadata ---------------------------------------------------------------------------------------------------

    def name(self) -> tuple[str, ...]:
        """Return the names by which a catalog knows the table; else its folder or metadata file, as the one name."""
        return self.identifier

    @property
    def read_only(self) -> bool:
        """Whether the table takes no commits, since it was opened by the path of a metadata file."""
        return self.operations.read_only

    @property
    def format_version(self) -> int:
        return self.metadata.format_version

    @property
    def properties(self) -> dict[str, str]:
        return self.metadata.properties

    def location(self) -> str:
        """The table's base location."""
        return self.metadata.location

    def schema(self) -> Schema:
        """The current schema."""
        return self.metadata.schema()

    def schemas(self) -> dict[int, Schema]:
        """All schemas by id."""
        return self.state.types.schemas

    def spec(self) -> PartitionSpec:
        """The default partition spec."""
        return self.metadata.spec()

    def specs(self) -> dict[int, PartitionSpec]:
        """All partition specs by id."""
        return self.metadata.specs()

    def sort_order(self) -> SortOrder:
        """The default sort order."""
        return self.metadata.sort_order()

    def sort_orders(self) -> dict[int, SortOrder]:
        """All sort orders by id."""
        return {order.order_id: order for order in self.metadata.sort_orders}

    @property
    def last_sequence_number(self) -> int:
        """The highest sequence number that a snapshot of the table had; 0 in format version 1."""
        return self.metadata.last_sequence_number

    def refs(self) -> dict[str, SnapshotRef]:
        """Branches and tags by name."""
        return self.metadata.refs

    def snapshots(self) -> list[Snapshot]:
        """All snapshots that the table still has."""
        return self.metadata.snapshots

    def history(self) -> list[SnapshotLogEntry]:
        """When which snapshot became the current one, the oldest first."""
        return self.metadata.snapshot_log

    def snapshot_as_of_timestamp(self, timestamp_ms: int, inclusive: bool = True) -> Snapshot | None:
        """The snapshot that was current at a time, or None; see `Scan.as_of`.

        Args:
            timestamp_ms: milliseconds since 1970.
            inclusive: count a snapshot that became current at that very time.
        """
        entries = (entry for entry in self.history() if entry.timestamp_ms < timestamp_ms + inclusive)
        latest = max(entries, key=lambda entry: entry.timestamp_ms, default=None)
        return None if latest is None else self.snapshot_by_id(latest.snapshot_id)

    def current_snapshot(self) -> Snapshot | None:
        """The head of main; None for an empty table."""
        return self.metadata.current_snapshot()

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        """The snapshot of that id, or None."""
        return self.metadata.snapshot_by_id(snapshot_id)

    def snapshot_by_name(self, name: str) -> Snapshot | None:
        """The head of a branch, or a tag's snapshot, or None."""
        return self.metadata.snapshot_by_name(name)

    def __repr__(self) -> str:
        return f"Table({self.full_name}, v{self.format_version}, {self.metadata_location})"

    def _repr_html_(self) -> str:
        """The table for a notebook: facts of its metadata file only; starts no job."""
        snapshot = self.current_snapshot()
        summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
        facts = {
            "location": self.location(),
            "format version": self.format_version,
            "current snapshot": snapshot.snapshot_id if snapshot else "none",
            "snapshots": len(self.snapshots()),
            "refs": ", ".join(list(self.refs())[:10]),
            "columns": len(self.schema().fields),
            "partitioned by": ", ".join(str(field) for field in self.spec().fields[:10]) or "nothing",
            "data files": summary.get("total-data-files", "unknown"),
            "delete files": summary.get("total-delete-files", "unknown"),
            "records": summary.get("total-records", "unknown"),
        }
        rows = "".join(f"<tr><th>{name}</th><td>{escape(str(value)[:300])}</td></tr>" for name, value in facts.items())
        return f"<table><caption>{escape(self.full_name[:300])}</caption>{rows}</table>"


def load_table(location: str, spark: SparkSession | None = None) -> Table:
    """The table in a folder, or at a metadata file (`.metadata.json`, also gzip) of any name.

    spark: any session, classic or Connect; None takes the active one.

    Raises:
        NoSuchTableError: nothing there is a table.
        CorruptFileError: its metadata contradicts itself, or two files claim to be the newest.
        SessionError: no session is active.
    """
    session = resolve_session(spark)
    return open_metadata(location, session) if is_metadata_file(location) else open_table(location, session)


def open_table(folder: str, spark: SparkSession, files: Files | None = None) -> Table:
    """Open the table in a folder at its newest metadata file (table spec, File System Tables)."""
    files = files or files_for(spark, folder)
    newest = latest_metadata(files, folder)
    version = load_version(files, newest.location)
    operations = FileSystemOperations(files, folder, version.metadata.table_uuid, newest.read_only)
    return table_of(version, spark, files, (folder,), operations)


def open_metadata(location: str, spark: SparkSession | None, io: Any = None, identifier: tuple[str, ...] = ()) -> Table:
    """Open a table as one metadata file describes it, through a pyiceberg FileIO where one is given."""
    session = resolve_session(spark)
    files = files_for(session, location, io)
    version = load_version(files, location)
    names = identifier or (version.metadata.location,)
    return table_of(version, session, files, names, StaticOperations(version))


def table_of(
    version: TableVersion, spark: SparkSession, files: Files, identifier: tuple[str, ...], operations: TableOperations
) -> Table:
    """Return the table at a version that has been loaded."""
    location, metadata = version
    return Table(TableState(spark, files, metadata, metadata.current_snapshot()), location, identifier, operations)
