"""`table.inspect`: Iceberg's metadata tables, with Iceberg's column names, types and order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from sparkmeta.arrow_types import spark_schema
from sparkmeta.checks import TEXT
from sparkmeta.errors import InvalidArgumentError
from sparkmeta.inspect import files, history, manifests, partition_statistics, position_deletes
from sparkmeta.inspect.metadata_rows import MetadataRows
from sparkmeta.manifests.placement import MOST_ENTRIES, MOST_WIDE_ENTRIES
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import MAIN, snapshot_of

if TYPE_CHECKING:
    from datetime import datetime

    from sparkmeta.snapshot.state import TableState

Columns = Sequence[str] | None


T = TypeVar("T")


class MetadataTables(ABC, Generic[T]):
    """The metadata tables of a table.

    Tables of one snapshot accept `snapshot_id`, `ref` (the name of a branch or tag) or `as_of` (the time at which it
    was current: a datetime with a zone, or milliseconds since 1970). The default is the current snapshot. They use the
    table's current schema and partition fields, not the snapshot's. The other tables show the whole history.

    Tables of files and entries accept the `columns` to return. Fields of structs are named with a dot, as in
    `readable_metrics.id`. Selecting columns makes them much faster, since nothing prunes unused columns here.

    All raise NoSuchSnapshotError for an unknown snapshot, ref or time, and EncryptionError if a key of an encrypted
    table is missing, refused or wrong. They raise CorruptFileError for a damaged file when they read it.
    """

    _most_entries: ClassVar[int]

    def __init__(self, state: TableState, metadata_location: str) -> None:
        self._state, self._metadata_location = state, metadata_location

    def __repr__(self) -> str:
        tables = [name for name in dir(MetadataTables) if not name.startswith("_")]
        return f"{type(self).__name__}({self._state.metadata.location}: {', '.join(tables)})"

    @abstractmethod
    def _shown(self, rows: MetadataRows) -> T:
        """Return the rows of a metadata table."""

    # -- of one snapshot --------------------------------------------------------------------------------------------

    def entries(
        self,
        snapshot_id: int | None = None,
        *,
        ref: str | None = None,
        as_of: datetime | int | None = None,
        columns: Columns = None,
    ) -> T:
        """Return a row for each entry of the snapshot's manifests, including deleted files.

        Columns: status int (0 existing, 1 added, 2 deleted), snapshot_id long, sequence_number long,
        file_sequence_number long, data_file struct (the columns of `files`), readable_metrics struct.
        """
        return self._shown(files.entries(self._at(snapshot_id, ref, as_of), columns))

    def files(
        self,
        snapshot_id: int | None = None,
        *,
        ref: str | None = None,
        as_of: datetime | int | None = None,
        columns: Columns = None,
    ) -> T:
        """Return a row for each live data or delete file.

        Columns: content int (0 data, 1 position deletes, 2 equality deletes), file_path string, file_format string,
        spec_id int, partition struct (if the table has partitions), record_count long, file_size_in_bytes long,
        column_sizes, value_counts, null_value_counts, nan_value_counts map<int, long>, lower_bounds, upper_bounds
        map<int, binary>, key_metadata binary, split_offsets array<long>, equality_ids array<int>, sort_order_id int,
        first_row_id long, referenced_data_file string, content_offset long, content_size_in_bytes long,
        readable_metrics struct (for each leaf column of the table, by its full name: column_size, value_count,
        null_value_count, nan_value_count long, lower_bound and upper_bound of the column's type).
        """
        state = self._at(snapshot_id, ref, as_of)
        return self._shown(files.files(state, state.manifests, columns))

    def data_files(
        self,
        snapshot_id: int | None = None,
        *,
        ref: str | None = None,
        as_of: datetime | int | None = None,
        columns: Columns = None,
    ) -> T:
        """Return a row for each live data file, with the columns of `files`."""
        state = self._at(snapshot_id, ref, as_of)
        return self._shown(files.files(state, state.data_manifests, columns))

    def delete_files(
        self,
        snapshot_id: int | None = None,
        *,
        ref: str | None = None,
        as_of: datetime | int | None = None,
        columns: Columns = None,
    ) -> T:
        """Return a row for each live delete file or deletion vector, with the columns of `files`."""
        state = self._at(snapshot_id, ref, as_of)
        return self._shown(files.files(state, state.delete_manifests, columns))

    def manifests(
        self, snapshot_id: int | None = None, *, ref: str | None = None, as_of: datetime | int | None = None
    ) -> T:
        """Return a row for each manifest of the snapshot.

        Columns: content int (0 data, 1 deletes), path string, length long, partition_spec_id int, added_snapshot_id
        long, added_data_files_count, existing_data_files_count, deleted_data_files_count, added_delete_files_count,
        existing_delete_files_count, deleted_delete_files_count int, partition_summaries array<struct<contains_null
        boolean, contains_nan boolean, lower_bound string, upper_bound string>> (for each field of the manifest's spec).
        """
        return self._shown(manifests.manifests(self._at(snapshot_id, ref, as_of)))

    def partitions(
        self, snapshot_id: int | None = None, *, ref: str | None = None, as_of: datetime | int | None = None
    ) -> T:
        """Return a row for each partition that has live files.

        Columns: partition struct (if the table has partitions), spec_id int (if the table has partitions), record_count
        long, file_count int, total_data_file_size_in_bytes long, position_delete_record_count long,
        position_delete_file_count int (deletion vectors included), equality_delete_record_count long,
        equality_delete_file_count int, last_updated_at timestamp, last_updated_snapshot_id long.
        """
        return self._shown(files.partitions(self._at(snapshot_id, ref, as_of)))

    def position_deletes(
        self, snapshot_id: int | None = None, *, ref: str | None = None, as_of: datetime | int | None = None
    ) -> T:
        """Return a row for each deleted position in position delete files and deletion vectors.

        Columns: file_path string (of the data file), pos long, row struct (the deleted row, if the file has it),
        partition struct (if the table has partitions), spec_id int, delete_file_path string, content_offset,
        content_size_in_bytes long (from format version 3 on).
        """
        return self._shown(position_deletes.position_deletes(self._at(snapshot_id, ref, as_of), self._most_entries))

    def partition_statistics(
        self, snapshot_id: int | None = None, *, ref: str | None = None, as_of: datetime | int | None = None
    ) -> T:
        """Return the rows of the snapshot's partition statistics file; see `maintenance.compute_partition_stats`.

        Columns: partition struct, spec_id int, data_record_count long, data_file_count int,
        total_data_file_size_in_bytes long, position_delete_record_count long, position_delete_file_count int,
        equality_delete_record_count long, equality_delete_file_count int, total_record_count long, last_updated_at long
        (milliseconds since 1970), last_updated_snapshot_id long, dv_count int (from format version 3 on).

        Raises:
            ValidationError: the snapshot has no such file, or the table no partitions.
        """
        return self._shown(partition_statistics.partition_statistics(self._at(snapshot_id, ref, as_of)))

    # -- of the whole history ---------------------------------------------------------------------------------------

    def snapshots(self) -> T:
        """Return a row for each snapshot that has not expired.

        Columns: committed_at timestamp, snapshot_id long, parent_id long, operation string, manifest_list string,
        summary map<string, string>.
        """
        return self._local(history.snapshots(self._state))

    def history(self) -> T:
        """Return a row for each change of the current snapshot.

        Columns: made_current_at timestamp, snapshot_id long, parent_id long, is_current_ancestor boolean.
        """
        return self._local(history.history(self._state))

    def refs(self) -> T:
        """Return a row for each branch or tag.

        Columns: name string, type string (BRANCH, TAG), snapshot_id long, max_reference_age_in_ms long,
        min_snapshots_to_keep int, max_snapshot_age_in_ms long.
        """
        return self._local(history.refs(self._state))

    def metadata_log_entries(self) -> T:
        """Return a row for each metadata file in the log, including the current one.

        Columns: timestamp timestamp, file string, latest_snapshot_id long, latest_schema_id int,
        latest_sequence_number long.
        """
        return self._local(history.metadata_log_entries(self._state, self._metadata_location))

    def all_manifests(self) -> T:
        """Return a row for each manifest of each snapshot, with the columns of `manifests` and two more.

        Columns: reference_snapshot_id long, key_metadata binary.
        """
        return self._shown(manifests.all_manifests(self._state, self._most_entries))

    def all_files(self, *, columns: Columns = None) -> T:
        """Return a row for each live file in each manifest of any snapshot, with the columns of `files`.

        Each manifest is read once. A file that several manifests list is repeated.
        """
        return self._shown(files.all_files(self._state, None, columns, self._most_entries))

    def all_data_files(self, *, columns: Columns = None) -> T:
        """Return the data files among `all_files`."""
        return self._shown(files.all_files(self._state, ContentType.DATA_MANIFEST, columns, self._most_entries))

    def all_delete_files(self, *, columns: Columns = None) -> T:
        """Return the delete files and deletion vectors among `all_files`."""
        return self._shown(files.all_files(self._state, ContentType.DELETE_MANIFEST, columns, self._most_entries))

    def all_entries(self, *, columns: Columns = None) -> T:
        """Return a row for each entry of each manifest of any snapshot, with the columns of `entries`."""
        return self._shown(files.all_entries(self._state, columns, self._most_entries))

    # -----------------------------------------------------------------------------------------------------------------

    def _local(self, rows: pa.Table) -> T:
        return self._shown(MetadataRows(self._state, rows, spark_schema(rows.schema)))

    def _at(self, snapshot_id: int | None, ref: str | None, as_of: datetime | int | None) -> TableState:
        state = self._state
        if sum(choice is not None for choice in (snapshot_id, ref, as_of)) > 1:
            raise InvalidArgumentError("snapshot_id, ref and as_of each name a snapshot: give one of them")
        if ref is not None:
            TEXT.check("ref", ref)
            if ref == MAIN and ref not in state.metadata.refs:  # the table is empty
                return state
            snapshot_id = state.metadata_ref(ref).snapshot_id
        elif as_of is not None:
            snapshot_id = state.snapshot_id_at(as_of)
        if snapshot_id is None:
            return state
        return state.at(snapshot_of(state.metadata, snapshot_id))


class InspectRows(MetadataTables[MetadataRows]):
    """The metadata tables of a table, as Arrow tables if the driver reads them, otherwise as DataFrames."""

    _most_entries = MOST_ENTRIES

    def _shown(self, rows: MetadataRows) -> MetadataRows:
        return rows


class InspectArrow(MetadataTables[pa.Table]):
    """The metadata tables of a table, as Arrow tables in memory.

    They need no session if the driver reads the manifests: up to 150,000 entries in at most 64 MiB (the setting
    `driver-manifest-bytes`), and for `all_manifests` and `position_deletes` up to 64 files. Otherwise a Spark job reads
    them. A local session is started if none was given and none is running.
    """

    _most_entries = MOST_ENTRIES

    def _shown(self, rows: MetadataRows) -> pa.Table:
        return rows.table()


class InspectTable(MetadataTables[DataFrame]):
    """The metadata tables of a table, as DataFrames.

    They are lazy, unless the driver reads the manifests: up to 10,000 entries, as for `arrow`.
    """

    _most_entries = MOST_WIDE_ENTRIES

    @property
    def arrow(self) -> InspectArrow:
        """The same metadata tables as Arrow tables: `table.inspect.arrow.files()`. Small ones need no Spark."""
        return InspectArrow(self._state, self._metadata_location)

    def _shown(self, rows: MetadataRows) -> DataFrame:
        return rows.frame()
