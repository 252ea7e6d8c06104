"""`SnapshotUpdate`: the files that a new snapshot adds and removes, and its checks against concurrent commits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from sparkmeta.checks import FLAG, WHOLE, is_whole
from sparkmeta.commit.attempt import Attempt, Progress
from sparkmeta.commit.change_set import DATA, DELETES, AddedPart, ChangeSet, ReplacedPart
from sparkmeta.commit.conflicts import ISOLATION, Isolation, Validation
from sparkmeta.commit.filtered import FilteredFiles, ReplacedFiles
from sparkmeta.commit.table_files import frame_of, table_of
from sparkmeta.commit.write_target import WAP_ID
from sparkmeta.errors import ValidationError, shown
from sparkmeta.operations.base_table import BaseTable, refuse_lists_of_version_4
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.spec.metadata import refuse_encrypted
from sparkmeta.state import TableState
from sparkmeta.storage.location_columns import with_schemes

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame

    from sparkmeta.commit.write_target import WriteTarget
    from sparkmeta.edit.new_snapshot import SnapshotNames
    from sparkmeta.spec.idempotency import IdempotencyKey
    from sparkmeta.spec.metadata import Snapshot, TableMetadata


class SnapshotUpdate:
    """Collects changes of files, which become one snapshot when the transaction commits. Methods can be chained.

    Files are DataFrames with the columns of `inspect.files`. To remove a file, `file_path` is enough, with
    `content_offset` for a deletion vector. Rows of `plan_files` are found faster because they have a `manifest_path`.

    New data files can also be given as a table, whose live files are added. Its manifests are decoded directly into new
    ones, which is faster than a DataFrame of its files.
    """

    def __init__(
        self, started: TableState, target: WriteTarget, properties: dict[str, str], key: IdempotencyKey | None = None
    ) -> None:
        """Create an update without changes. For `Transaction`.

        Args:
            started: the table when the transaction began.
            target: where the snapshot goes.
            properties: extra properties for the snapshot's summary.
            key: the idempotency key, which the snapshot records.
        """
        properties = properties | ({} if key is None else key.properties)
        if target.wap_id is not None:
            properties[WAP_ID] = target.wap_id
        self.target, self.key = target, key
        self.repetition_of: Snapshot | None = None
        self._changes = ChangeSet(started, target, properties)
        self._progress = Progress()
        self._closed = False

    # -- operations -------------------------------------------------------------------------------------------------

    def append(self, files: DataFrame | BaseTable | TableState) -> Self:
        """Add data files.

        Args:
            files: the files, or a table whose live data files are added with this commit's sequence number and new row
                ids, except those stored in files. The columns of both tables must have the same ids and types, and the
                partition specs the same fields. A table with deletes is refused: see `row_delta`.

        Raises:
            ValidationError: `files` is neither. The commit raises it for a table that does not fit this one.
        """
        self._refuse_closed()
        self._changes.added.append(AddedPart(self._table(files), DATA))
        return self

    def delete(self, files: DataFrame | None = None, row_filter: BooleanExpression | str | None = None) -> Self:
        """Remove the given data and delete files, or the data files whose rows all match a filter.

        The commit raises ValidationError if a file may match only partly, or CommitConflictError if concurrent commits
        may have added the file, or have renamed, deleted or replaced a column of the filter.
        """
        self._refuse_closed()
        if (files is None) == (row_filter is None):
            raise ValidationError("delete takes either files or a row_filter")
        if files is not None:
            self._changes.removed.append(self._frame(files))
        if row_filter is not None:
            self._changes.filters.append(FilteredFiles(row_filter))
        return self

    def overwrite(
        self,
        added: DataFrame | BaseTable | TableState,
        removed: DataFrame | None = None,
        row_filter: BooleanExpression | str | None = None,
    ) -> Self:
        """Replace the given files, or the data files whose rows all match a filter, with new data files."""
        self._refuse_closed()
        self._changes.overwrites = True
        self.append(added)
        return self.delete(removed, row_filter)

    def row_delta(
        self,
        added: DataFrame | BaseTable | TableState | None = None,
        deletes: DataFrame | BaseTable | TableState | None = None,
        removed: DataFrame | None = None,
        superseded: DataFrame | None = None,
    ) -> Self:
        """Add data files and deletes (deletion vectors, position and equality delete files), and remove files.

        A deletion vector replaces an earlier one of its data file. It must contain all positions of the earlier one and
        of position delete files that apply to the data file, since readers ignore these. `superseded` are position
        delete files whose positions are included in the new ones; those that are still live are removed.

        If `added` and `deletes` are the same table, its live data files are added with their deletion vectors. Its
        equality deletes can't be added: they would apply to older files of this table, and not to the added ones.

        Raises:
            ValidationError: `deletes` is a table, and `added` is not the same one.
        """
        self._refuse_closed()
        if isinstance(deletes, BaseTable | TableState) and (added is None or table_of(added) is not table_of(deletes)):
            raise ValidationError("deletes is a table: added must be the same one, whose data files they apply to")
        if added is not None:
            self.append(added)
        if deletes is not None:
            self._changes.added.append(AddedPart(self._table(deletes), DELETES))
        if removed is not None:
            removed = self._frame(removed)
            self._changes.removed.append(removed)
            self._changes.replaced.append(ReplacedPart(removed))
        if superseded is not None:
            self._changes.superseded.append(self._frame(superseded))
        return self

    def rewrite(
        self,
        removed: DataFrame,
        added: DataFrame | None = None,
        deletes: DataFrame | None = None,
        *,
        data_sequence_number: int | None = None,
    ) -> Self:
        """Replace files with others that hold the same rows, so that readers see no change.

        `deletes` are deletion vectors that delete the same rows as the removed deletes. New data files require removed
        data files, and new deletes require removed deletes (semantics 12.6).

        The commit raises CommitConflictError if concurrent commits deleted rows of the replaced files. Equality deletes
        do not conflict if a data sequence number is given, since it is lower than theirs.

        Args:
            removed: the files to replace.
            added: the new files.
            deletes: the new deletion vectors.
            data_sequence_number: the sequence number of the snapshot whose rows the `added` files hold. Defaults to
                that of the commit. It must not be lower than those of the replaced data files.

        Raises:
            ValidationError: the number is not between 0 and that of the branch's head when the transaction began. The
                commit raises it for one that is lower than a replaced data file's.
        """
        self._refuse_closed()
        if data_sequence_number is not None:
            self._check_sequence_number(data_sequence_number)
        self._changes.rewrites = True
        removed = self._frame(removed)
        self._changes.removed.append(removed)
        self._changes.replaced.append(ReplacedPart(removed, data_sequence_number))
        if added is not None:
            self._changes.added.append(AddedPart(self._frame(added), (*DATA, *DELETES), data_sequence_number))
        if deletes is not None:
            self._changes.added.append(AddedPart(self._frame(deletes), DELETES))
        return self

    def replace_partitions(self, files: DataFrame) -> Self:
        """Add data files and remove all other files of their partitions, or of an unpartitioned table."""
        self._refuse_closed()
        self._changes.overwrites = True
        self._changes.partitions_of.append(ReplacedFiles(self._frame(files)))
        return self.append(files)

    def validate_no_conflicts(
        self,
        row_filter: BooleanExpression | str | None = None,
        *,
        from_snapshot_id: int | None = None,
        isolation: Isolation = "serializable",
        ignore_deletes: bool = False,
    ) -> Self:
        """Fail the commit if other commits changed the data that this one is based on (semantics 12.3 to 12.5).

        Conflicts are:

        - new deletes that apply to files that this update removes by name;
        - new deletes of rows that may match, unless this update only removes files by name and adds no deletes, or
          `ignore_deletes` is set because it only deletes or adds rows, so that others may delete rows as well;
        - removed data files that may match, if this update removes files by filter or partition or only adds data
          files, and `ignore_deletes` is not set;
        - added data files that may match, if `isolation` is "serializable".

        Args:
            row_filter: the rows that were read to make this change; only changes that may match it are conflicts. As in
                Iceberg's Java library, a null matches `!=`, NOT IN and NOT LIKE here. Defaults to the filters or
                partitions that the update replaces, or to the whole table if there are none. For added data, also
                defaults to the whole table if the update removes files by name or adds deletes.
            from_snapshot_id: the snapshot that was read, from which all checks of this update start. Defaults to the
                branch's head when the transaction began.
            isolation: "serializable" or "snapshot".
            ignore_deletes: whether deletes and removals of matching rows do not conflict with the deletes that this
                update adds, nor with an update that removes files by filter or only adds data files.

        Raises:
            InvalidFilterError: the filter can't be parsed, or does not fit the table's schema.
            ValidationError: an argument of a wrong type, an unknown isolation, or another `from_snapshot_id` than in an
                earlier call.
        """
        self._refuse_closed()
        location = self._changes.started.metadata.location
        ISOLATION.check(f"{location}: isolation", isolation)
        FLAG.check(f"{location}: ignore_deletes", ignore_deletes)
        if row_filter is not None:
            ScanFilter.of(self._changes.started, row_filter)
        if from_snapshot_id is not None:
            WHOLE.check(f"{location}: from_snapshot_id", from_snapshot_id)
            if self._changes.from_snapshot_id not in (None, from_snapshot_id):
                before = self._changes.from_snapshot_id
                problem = f"from_snapshot_id is {from_snapshot_id} and was {before}: they must be equal"
                raise ValidationError(f"{location}: {problem}")
            self._changes.from_snapshot_id = from_snapshot_id
        self._changes.validations.append(Validation(row_filter, isolation, ignore_deletes))
        return self

    def validate_data_files_exist(self, files: DataFrame, *, with_deletes: bool = False) -> Self:
        """Fail the commit if others replaced data files that the position delete files of this update reference.

        Without this call, the check covers the data files in `referenced_data_file`, and delete files that reference
        none are refused after any commit that replaced files. Names of files that the table never had are not refused.
        Data files of deletion vectors must exist in any case.

        Args:
            files: the data files, rows with `file_path`.
            with_deletes: whether the commit also fails if others deleted the data files.
        """
        self._refuse_closed()
        self._changes.referenced.append((self._frame(files), with_deletes))
        return self

    def validate_partition_specs(self, spec_ids: Iterable[int]) -> Self:
        """Fail the commit if other commits added data files of another partition spec.

        Use this for partitioned equality deletes: they apply only to data files of their spec.

        Raises:
            ValidationError: an id is not that of a partition spec of the table.
        """
        self._refuse_closed()
        specs = self._checked_specs(spec_ids)
        self._changes.specs = specs if self._changes.specs is None else self._changes.specs & specs
        return self

    def validate_new_paths(self) -> Self:
        """Fail the commit if other commits added the same data files, to any partition and however they are spelled.

        Without this call, only exact paths in the same partition are compared, with all files of the table.
        """
        self._refuse_closed()
        self._changes.new_paths = True
        return self

    def assume_new_files(self) -> Self:
        """Skip the check that added files are not in the table already and are not added twice.

        Use this for files just written under unique names: the check reads the paths in all manifests that may hold
        files of their partitions.
        """
        self._refuse_closed()
        self._changes.are_new = True
        return self

    def close(self) -> None:
        """Refuse further changes, since the transaction is committed. For `Transaction`."""
        self._closed = True

    def _table(self, files: DataFrame | BaseTable | TableState) -> DataFrame | TableState:
        table = table_of(files)
        return table if isinstance(table, TableState) else self._frame(table)

    def _frame(self, files: DataFrame) -> DataFrame:
        return with_schemes(frame_of(files), self._changes.started.types.locations)

    def _refuse_closed(self) -> None:
        if self._closed:
            location = self._changes.started.metadata.location
            raise ValidationError(f"{location}: the transaction is committed: the update takes no more changes")

    def _check_sequence_number(self, number: object) -> None:
        """Raise ValidationError unless the number is at most the head's, so that later equality deletes exceed it."""
        metadata, head = self._changes.started.metadata, self.head.snapshot
        most = 0 if head is None else head.sequence_number or 0
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
            raise ValidationError(
                f"{metadata.location}: data_sequence_number is {shown(number)}: expected a whole number "
                f"from 0 to {most}, the sequence number of the snapshot that was read"
            )

    def _checked_specs(self, spec_ids: object) -> frozenset[int]:
        """Return ids of partition specs. Raises ValidationError for what is no list of those of the table."""
        metadata = self._changes.started.metadata
        given, known = tuple(spec_ids) if isinstance(spec_ids, Iterable) else spec_ids, metadata.specs()
        if not isinstance(given, tuple) or not all(is_whole(spec_id) and spec_id in known for spec_id in given):
            problem = f"spec_ids is {shown(given)}: expected ids of its partition specs, {sorted(known)}"
            raise ValidationError(f"{metadata.location}: {problem}")
        return frozenset(given)

    # -- the commit -------------------------------------------------------------------------------------------------

    def apply(self, state: TableState) -> TableMetadata:
        """Write the snapshot's manifests and return the table's metadata with the snapshot. For `Transaction`."""
        if self.names.discarded:
            self._progress = Progress()
        # Another commit may have upgraded the table since the transaction began.
        refuse_lists_of_version_4(state.metadata, state.metadata.location)
        refuse_encrypted(state.metadata, "and can't be committed to")
        self.target.refuse_used_id(state.metadata)
        return Attempt(self._changes, self._progress, self.target.head(state)).apply()

    def repeats(self, metadata: TableMetadata) -> bool:
        """Return whether a snapshot has recorded the idempotency key: `repetition_of`. For `Transaction`."""
        self.repetition_of = None if self.key is None else self.key.recorded_by(self.target.history(metadata))
        return self.repetition_of is not None

    @property
    def head(self) -> TableState:
        """The table at the snapshot that the update is based on, when the transaction began."""
        return self.target.head(self._changes.started)

    @property
    def names(self) -> SnapshotNames:
        """The names of the files that the update writes. For `Transaction`."""
        return self._progress.names
