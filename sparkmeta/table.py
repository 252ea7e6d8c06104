"""`Table`: a table with pyiceberg's API for metadata and DataFrames for bulk results.

Scans, changes and metadata tables are imported when they are used, so that a table is opened quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.checks import NAME
from sparkmeta.errors import NoSuchTableError, ValidationError, shown, with_command_line_message
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.operations.metadata_files import is_metadata_file, latest_metadata
from sparkmeta.operations.table_operations import OPENED_BY_PATH, BaseTable, StaticOperations, load_version
from sparkmeta.reports import Reports
from sparkmeta.session import SessionSource
from sparkmeta.settings import iceberg_catalogs
from sparkmeta.snapshot.state import TableState
from sparkmeta.spec.metadata import snapshot_of
from sparkmeta.spec.stream_epochs import earlier_epoch
from sparkmeta.spec.summary import last_version, summary_of
from sparkmeta.storage.files import files_for
from sparkmeta.storage.keys import TableKeys
from sparkmeta.storage.location import absolute
from sparkmeta.write.changes import RequestedChange, RowChanges

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.table.sorting import SortOrder
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.changes.range_scan import ChangelogScan, IncrementalScan
    from sparkmeta.commit.manage_snapshots import ManageSnapshots
    from sparkmeta.commit.transaction import Transaction
    from sparkmeta.inspect.draw import Drawing
    from sparkmeta.inspect.inspect_table import InspectTable
    from sparkmeta.inspect.metadata_rows import MetadataRows
    from sparkmeta.maintain.maintenance import Maintenance
    from sparkmeta.operations.table_operations import TableOperations, TableVersion
    from sparkmeta.reports import ReportedCatalog
    from sparkmeta.scan import Scan
    from sparkmeta.spec.metadata import Snapshot, SnapshotRef
    from sparkmeta.spec.metadata_model import SnapshotLogEntry
    from sparkmeta.spec.update_expressions import UpdateExpressions
    from sparkmeta.spec.update_schema import UpdateSchema, UpdateSortOrder
    from sparkmeta.spec.updates import UpdateSpec
    from sparkmeta.storage.files import Files
    from sparkmeta.write.transaction import RowTransaction


# An identifier of a table in a catalog, which may also be the name of a folder.
_IDENTIFIER = re.compile(r"\w[\w-]*(?:\.\w[\w-]*)+")


@dataclass(frozen=True)
class Table(BaseTable, RowChanges):
    """One version of a table."""

    @staticmethod
    def from_pyiceberg(table: PyIcebergTable, spark: SparkSession | None = None) -> Table:
        """Wrap a table that pyiceberg loaded, and read it through its FileIO. It can't be committed to."""
        opened = open_metadata(table.metadata_location, SessionSource(spark), io=table.io, identifier=table.name())
        refusal = "the table was loaded by pyiceberg: load it with a catalog of sparkmeta.load_catalog to commit to it"
        return replace(opened, operations=StaticOperations(opened.version, refusal))

    # -- reading ----------------------------------------------------------------------------------------------------

    def scan(
        self,
        row_filter: str | BooleanExpression = AlwaysTrue(),  # noqa: B008  an immutable singleton
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        ref: str | None = None,
        as_of: datetime | str | int | None = None,
    ) -> Scan:
        """Return a scan of the rows that match a filter: `table.scan("day >= '2026-01-01' and id = 7").plan_files()`.

        It reads the current snapshot unless `snapshot_id`, `ref` (a branch or tag), `as_of` (see `Scan.as_of`) or a
        method of the scan chooses another one. As in Iceberg's Spark reader, it reads the branch `spark.wap.branch` of
        the session instead, if the table has this branch and the property `write.wap.enabled`.

        As in SQL, a comparison with null is unknown, and so is its NOT: `s != 'a'` matches no row whose `s` is null.

        Raises:
            InvalidFilterError: the filter is invalid, or fits no schema of the table.
            NoSuchSnapshotError: the table has no such snapshot.
            ValidationError: the session has both `spark.wap.branch` and `spark.wap.id`, or several arguments choose a
                snapshot.
        """
        if [snapshot_id, ref, as_of].count(None) < 2:
            raise ValidationError(
                f"{self.full_name}: snapshot_id is {shown(snapshot_id)}, ref {shown(ref)} and as_of {shown(as_of)}: "
                "expected at most one of them"
            )
        from sparkmeta.commit.write_target import session_branch_to_read
        from sparkmeta.scan import table_scan

        scan = table_scan(self.state, row_filter, selected_fields, case_sensitive, snapshot_id, options or {})
        if snapshot_id is not None:
            return scan
        if as_of is not None:
            return scan.as_of(as_of)
        scan = replace(scan, session_branch=session_branch_to_read(self.state))
        return scan if ref is None else scan.use_ref(ref)

    def incremental(
        self, from_snapshot_id_exclusive: int | None, to_snapshot_id_inclusive: int | None = None
    ) -> IncrementalScan:
        """Return a scan of the rows that snapshots appended: `table.incremental(1234).filter("id > 7").to_df()`.

        Args:
            from_snapshot_id_exclusive: an ancestor of the end snapshot. It may have expired if its child has not. None
                for the whole history.
            to_snapshot_id_inclusive: the end snapshot. Defaults to the current one.
        """
        from sparkmeta.changes.range_scan import IncrementalScan
        from sparkmeta.scan import Scan

        return IncrementalScan(Scan(self.state), from_snapshot_id_exclusive, to_snapshot_id_inclusive)

    def changelog(
        self,
        from_snapshot_id_exclusive: int | None,
        to_snapshot_id_inclusive: int | None = None,
        *,
        net_changes: bool = False,
        compute_updates: bool = False,
        identifier_columns: Iterable[str] = (),
    ) -> ChangelogScan:
        """Return a scan of the rows that snapshots inserted and deleted: `table.changelog(1234).to_df()`.

        A snapshot's changes are the difference between the table's rows before and after it. All kinds of deletes are
        applied, and rows that are copied from one file to another are not changes. Snapshots of the operation
        `replace`, such as compactions, are skipped. Rows are read with the table's schema.

        Args:
            from_snapshot_id_exclusive: an ancestor of the end snapshot, or None for the whole history.
            to_snapshot_id_inclusive: the end snapshot. Defaults to the current one.
            net_changes: leave out rows that are both inserted and deleted within the range. The remaining rows have the
                ordinal of the first change that no later one undoes.
            compute_updates: label a deleted and an inserted row of one snapshot `UPDATE_BEFORE` and `UPDATE_AFTER` if
                they have the same identifier.
            identifier_columns: the columns that identify a row. Defaults to the schema's identifier fields. Implies
                `compute_updates`.

        Raises:
            ValidationError: updates are requested together with net changes, or without identifier columns.
        """
        from sparkmeta.changes.range_scan import changelog_scan
        from sparkmeta.scan import Scan

        ids = (from_snapshot_id_exclusive, to_snapshot_id_inclusive)
        return changelog_scan(Scan(self.state), *ids, net_changes, compute_updates, identifier_columns)

    def create_temp_view(self, name: str) -> None:
        """Register a temporary view of the table's current rows; see `Scan.create_temp_view`."""
        self.scan().create_temp_view(name)

    @cached_property
    def inspect(self) -> InspectTable:
        """The metadata tables: `table.inspect.files()`, `.partitions()`, ..."""
        from sparkmeta.inspect.inspect_table import InspectTable

        return InspectTable(self.state, self.metadata_location)

    def file_changes(
        self,
        from_snapshot_id_exclusive: int | None,
        to_snapshot_id_inclusive: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        lenient: bool = False,
    ) -> DataFrame:
        """Return the data and delete files that a range of snapshots added and removed, lazily.

        The range follows parent snapshots. A compaction of metadata is not a change. A file that was added and removed
        within the range has two rows. Only manifests that a snapshot added or masked are opened. For snapshots with
        manifest lists, the manifests record the changes: if a writer dropped a manifest without recording DELETED
        entries, the removal of its files is not detected.

        Args:
            from_snapshot_id_exclusive: an ancestor of the end snapshot. It may have expired if its child has not. None
                for the whole history.
            to_snapshot_id_inclusive: the end snapshot. Defaults to the current one.
            columns: the columns of `inspect.files` to return. Defaults to all.
            lenient: accept two things in trees of draft version 4 that strict readers refuse: several live deletion
                vectors for one manifest, which are merged, and added manifests with removed files.

        Returns:
            Columns: change_type string (added, removed), snapshot_id long (of the change), the columns of
            `inspect.files`, and added_positions array<long>: the positions in an added deletion vector that are not in
            the removed one of the same data file, if any; null for other rows. A replaced deletion vector has a removed
            and an added row; one that is removed with its data file has a removed row.

        Raises:
            NoSuchSnapshotError: the table does not have one of the snapshots.
            ValidationError: the first is not an ancestor of the second, or required history has expired.
            CorruptFileError: a root contradicts itself. When the DataFrame runs: a file is damaged.
            NotFoundError: when the DataFrame runs with added_positions: a replaced deletion vector is gone, as after
                the expiry of the snapshot before.
        """
        from sparkmeta.changes.file_changes import file_changes

        ids = (from_snapshot_id_exclusive, to_snapshot_id_inclusive)
        return file_changes(self.state, *ids, columns, lenient=lenient)

    def check(self, snapshot_id: int | None = None) -> DataFrame:
        """Check the metadata of a snapshot for contradictions that would break plans or other engines.

        The driver checks few entries at once, without a job. Everything else is lazy.

        Rules for a manifest list:

        - manifest-list; if the list violates it, no other rule is checked
        - manifest-content: a manifest that can't be read
        - manifest-header: the key-value metadata of a manifest contradicts the list
        - manifest-length, manifest-counts, field-ids, leaf-content, sequence-numbers, entry-fields
        - partition-spec: a live file has values of partition fields that its manifest's spec lacks
        - one-entry-per-file, one-vector-per-file, vector-target
        - bounds-value: bounds that are not values of their type
        - bounds-order: a lower bound above the upper one

        Rules for a metadata tree:

        - entry-fields: required fields of a content type; if the root violates it, no other rule is checked
        - leaf-content, manifest-counts, added-manifest, sequence-numbers, partition-bound
        - one-entry-per-file, one-vector-per-file, one-vector-per-manifest
        - vector-target, vector-content, ordinal-range, ordinal-deleted
        - carried-entries; not checked if the parent snapshot has expired
        - affinity-target, affinity-vector, affinity-equality-deletes, bounds-order

        Returns:
            Columns: rule string, location string (of the list, manifest, file or root), value string, problem string.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            CorruptFileError: the root is not a manifest, or the driver can't read a leaf. When the DataFrame runs,
                unreadable leaves raise errors.
        """
        return table_violations(self, snapshot_id).frame()

    @property
    def arrow(self) -> ArrowTable:
        """The rows of `check` as an Arrow table: `table.arrow.check()`. A check of few entries needs no Spark."""
        return ArrowTable(self)

    def draw(self, snapshot_id: int | None = None) -> Drawing:
        """Draw the metadata tree of a snapshot, by default the current one, for a notebook or `print`.

        The drawing shows the root, leaves, files and deletion vectors with their statuses. For a large tree, it shows
        an excerpt that prefers the snapshot's changes. The drawn leaves are read, in a small job if only Spark can
        open them. The result has `.svg`, `.text` and `.save(path)`.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            CorruptFileError: a file of the tree is damaged.
        """
        from sparkmeta.inspect.draw import draw

        return draw(self.state, snapshot_id)

    # -- changing ---------------------------------------------------------------------------------------------------

    @cached_property
    def maintenance(self) -> Maintenance[Table]:
        """The maintenance operations: `table.maintenance.upgrade(4)`. Each returns a plan, which `commit()` applies."""
        from sparkmeta.maintain.maintenance import Maintenance

        return Maintenance(self)

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        """Return pyiceberg's builder of schema changes: `with table.update_schema() as update: update.add_column(...)`.

        The change is committed when the builder's `commit` is called or its `with` block ends. `refresh()` then returns
        the new version of the table. The same holds for the builders below.
        """
        return self._change().update_schema(allow_incompatible_changes, case_sensitive)

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """Return pyiceberg's builder of a partition spec."""
        return self._change().update_spec(case_sensitive)

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        """Return pyiceberg's builder of a sort order."""
        return self._change().update_sort_order(case_sensitive)

    def update_expressions(self, case_sensitive: bool = True) -> UpdateExpressions:
        """Return a builder of expressions: functions of columns for which a tree stores statistics."""
        return self._change().update_expressions(case_sensitive)

    def manage_snapshots(self) -> ManageSnapshots:
        """Return pyiceberg's builder of branches and tags, with `fast_forward`, `cherry_pick` and `publish_changes`."""
        return self._change().manage_snapshots()

    def transaction(self) -> RowTransaction[Self]:
        """Begin a transaction, which commits several changes at once: `with table.transaction() as tx: tx.append(df)`.

        This object does not change. `refresh()`, or the transaction's `commit()`, returns the new version.
        """
        from sparkmeta.write.transaction import RowTransaction

        return RowTransaction(self)

    def committed_version(self, application: str, *, branch: str | None = None) -> int | None:
        """Return the highest version of an application that snapshots of a branch have recorded by idempotency keys.

        The result is None if there is none. Expired snapshots count only for streams, by their query id: the last one
        counts if none of the branch's remaining snapshots records the stream.
        """
        from sparkmeta.commit.write_target import write_target

        NAME.check("application", application)
        target = write_target(self.state, branch)
        history = [*target.history(self.metadata)]
        version = last_version(history, application)
        return earlier_epoch(self.metadata, target.branch, history, application) if version is None else version

    def _change_rows(self, change: RequestedChange) -> Self:
        return self.transaction()._change_rows(change).commit()

    def _change(self) -> Transaction[Table]:
        from sparkmeta.commit.transaction import Transaction

        return Transaction(self, _autocommit=True)

    # -- metadata ---------------------------------------------------------------------------------------------------

    def name(self) -> tuple[str, ...]:
        """Return the table's identifier in its catalog, or else its folder or base location as a single name."""
        return self.identifier

    @property
    def read_only(self) -> bool:
        """Whether the table can't be committed to, for example because it was opened at a metadata file."""
        return self.operations.refusal is not None

    @property
    def format_version(self) -> int:
        """The version of the table format: 1 to 4."""
        return self.metadata.format_version

    @property
    def properties(self) -> dict[str, str]:
        """The table properties."""
        return self.metadata.properties

    def location(self) -> str:
        """Return the table's base location."""
        return self.metadata.location

    def schema(self) -> Schema:
        """Return the current schema."""
        return self.metadata.schema()

    def schemas(self) -> dict[int, Schema]:
        """Return all schemas by id."""
        return self.state.types.schemas

    def spec(self) -> PartitionSpec:
        """Return the default partition spec."""
        return self.metadata.spec()

    def specs(self) -> dict[int, PartitionSpec]:
        """Return all partition specs by id."""
        return self.metadata.specs()

    def sort_order(self) -> SortOrder:
        """Return the default sort order."""
        return self.metadata.sort_order()

    def sort_orders(self) -> dict[int, SortOrder]:
        """Return all sort orders by id."""
        return {order.order_id: order for order in self.metadata.sort_orders}

    @property
    def last_sequence_number(self) -> int:
        """The highest sequence number of the table's snapshots; 0 in format version 1."""
        return self.metadata.last_sequence_number

    def refs(self) -> dict[str, SnapshotRef]:
        """Return branches and tags by name."""
        return self.metadata.refs

    def snapshots(self) -> list[Snapshot]:
        """Return all snapshots that have not expired."""
        return [*self.metadata.snapshots]

    def history(self) -> list[SnapshotLogEntry]:
        """Return the snapshot log: when each snapshot became current, oldest first."""
        return self.metadata.snapshot_log

    def snapshot_as_of_timestamp(self, timestamp_ms: int, inclusive: bool = True) -> Snapshot | None:
        """Return the snapshot that was current at a time, or None; see `Scan.as_of`.

        Args:
            timestamp_ms: milliseconds since 1970.
            inclusive: whether a snapshot that became current at exactly this time counts.
        """
        entries = (entry for entry in self.history() if entry.timestamp_ms < timestamp_ms + inclusive)
        latest = max(entries, key=lambda entry: entry.timestamp_ms, default=None)
        return None if latest is None else self.snapshot_by_id(latest.snapshot_id)

    def current_snapshot(self) -> Snapshot | None:
        """Return the head of main; None for an empty table."""
        return self.metadata.current_snapshot()

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        """Return the snapshot with an id, or None."""
        return self.metadata.snapshot_by_id(snapshot_id)

    def snapshot_by_name(self, name: str) -> Snapshot | None:
        """Return the head of a branch or the snapshot of a tag, or None."""
        return self.metadata.snapshot_by_name(name)

    def __repr__(self) -> str:
        return f"Table({self.full_name}, v{self.format_version}, {self.metadata_location})"

    def _repr_html_(self) -> str:
        """Describe the table in a notebook by its metadata file, without a job."""
        from sparkmeta.charts import timeline
        from sparkmeta.inspect.timeline import snapshots_by_time
        from sparkmeta.text import fact_table, partition_terms

        snapshot = self.current_snapshot()
        summary = summary_of(snapshot)
        facts = {
            "location": self.location(),
            "format version": self.format_version,
            "current snapshot": snapshot.snapshot_id if snapshot else "none",
            "snapshots": len(self.metadata.snapshots),
            "refs": ", ".join(list(self.refs())[:10]),
            "columns": len(self.schema().fields),
            "partitioned by": ", ".join(partition_terms(self.spec(), self.schema())[:10]) or "nothing",
            "data files": summary.get("total-data-files", "unknown"),
            "delete files": summary.get("total-delete-files", "unknown"),
            "records": summary.get("total-records", "unknown"),
        }
        history = snapshots_by_time(self.metadata, limit=50)
        return fact_table(self.full_name, facts) + (timeline(history) if len(history) > 1 else "")


def load_table(
    location: str, spark: SparkSession | None = None, *, properties: Mapping[str, Any] | None = None
) -> Table:
    """Load a table from its folder or from one of its metadata files (`.metadata.json`, possibly gzipped).

    Args:
        location: the folder, or the metadata file. A relative path starts at the current folder.
        spark: a session, classic or Connect. Defaults to the session that is active when a session is first needed, or
            else to a new local session. Metadata in files that Python opens needs no session.
        properties: for an encrypted table, the properties of a catalog that name its key client, such as
            `encryption.kms-type`.

    Raises:
        NoSuchTableError: there is no table.
        CorruptFileError: the metadata contradicts itself.
        ValidationError: two metadata files have the highest version.
        SessionError: the session was stopped.
    """
    return open_location(location, SessionSource(spark), TableKeys.of(properties or {}))


def open_location(location: str, sessions: SessionSource, keys: TableKeys | None = None) -> Table:
    """Load a table; see `load_table`."""
    absolute_location = absolute(location)
    if is_metadata_file(absolute_location):
        return open_metadata(absolute_location, sessions, keys=keys)
    try:
        return open_table(absolute_location, sessions, files_for(sessions, absolute_location, keys=keys))
    except NoSuchTableError as error:
        if _IDENTIFIER.fullmatch(location) is None:
            raise
        names = list(iceberg_catalogs(sessions.running()))
        call = f'load_catalog("{names[0] if names else "name"}").load_table("{location}")'
        known = f"; catalogs of Spark's configuration: {', '.join(names)}" if names else ""
        options = f"--catalog {names[0] if names else 'NAME'} {location}"
        raise with_command_line_message(
            NoSuchTableError(f"{error}. Load a table of a catalog by {call}{known}"),
            f"{error}. Name a table of a catalog by {options}{known}",
        ) from None


def open_table(folder: str, sessions: SessionSource, files: Files | None = None) -> Table:
    """Open the table in a folder at its newest metadata file (table spec, File System Tables)."""
    files = files or files_for(sessions, folder)
    newest = latest_metadata(files, folder)
    version = load_version(files, newest.location)
    refusal = OPENED_BY_PATH if newest.read_only else None
    operations = FileSystemOperations(files, folder, version.metadata.table_uuid, refusal)
    return table_of(version, sessions, files, (folder,), operations)


def open_metadata(
    location: str,
    sessions: SessionSource,
    io: Any = None,
    identifier: tuple[str, ...] = (),
    keys: TableKeys | None = None,
) -> Table:
    """Open a table at one of its metadata files, through a pyiceberg FileIO unless it is None."""
    files = files_for(sessions, location, io, keys)
    version = load_version(files, location)
    names = identifier or (version.metadata.location,)
    return table_of(version, sessions, files, names, StaticOperations(version))


def table_of(
    version: TableVersion,
    sessions: SessionSource,
    files: Files,
    identifier: tuple[str, ...],
    operations: TableOperations,
    reported: ReportedCatalog | None = None,
) -> Table:
    """Return the table at a loaded version.

    Args:
        version: the version.
        sessions: the source of the session.
        files: opens the table's files.
        identifier: the parts of the table's name.
        operations: loads and commits newer versions.
        reported: the catalog that receives reports on the table; None if it receives none.
    """
    location, metadata = version
    reports = Reports(".".join(identifier), reported)
    state = TableState(sessions, files, metadata, metadata.current_snapshot(), reports=reports)
    return Table(state, location, identifier, operations)


@dataclass(frozen=True)
class ArrowTable:
    """Results about a table as Arrow tables in memory.

    Attributes:
        table: the table.
    """

    table: Table

    def check(self, snapshot_id: int | None = None) -> pa.Table:
        """Return the rows of `Table.check`.

        Raises:
            NoSuchSnapshotError: the table has no such snapshot.
            CorruptFileError: the root is not a manifest, or a leaf is unreadable.
        """
        return table_violations(self.table, snapshot_id).table()


def table_violations(table: Table, snapshot_id: int | None) -> MetadataRows:
    """Return the violations that `Table.check` finds."""
    from sparkmeta.inspect.check import violations

    state = table.state if snapshot_id is None else table.state.at(snapshot_of(table.metadata, snapshot_id))
    return violations(state)
