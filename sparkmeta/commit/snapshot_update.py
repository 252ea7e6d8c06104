"""Build a new snapshot: the files that it adds and removes, and how they are written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import functions as F

from sparkmeta.changes.history import snapshots_since
from sparkmeta.commit.conflicts import (
    Isolation,
    Operation,
    Validation,
    refuse_missing_data,
    refuse_new_deletes,
    refuse_newer_data,
    refuse_replaced_data,
    validate,
)
from sparkmeta.commit.duplicates import refuse_duplicates
from sparkmeta.commit.filtered import FilteredFiles, ReplacedFiles
from sparkmeta.commit.list_writer import ListWriter
from sparkmeta.commit.named import NotLiveError, Searches, find_files, find_live_deletes
from sparkmeta.commit.removal import Removal
from sparkmeta.commit.table_files import frame_of, table_of
from sparkmeta.commit.tree_writer import TreeWriter
from sparkmeta.commit.vector_targets import replaced_deletes
from sparkmeta.edit.new_snapshot import SnapshotNames, branch_head
from sparkmeta.edit.summary import ManifestCounts, snapshot_summary
from sparkmeta.errors import CommitConflictError, ValidationError, shown
from sparkmeta.operations.base_table import BaseTable, refuse_lists_of_version_4
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import has_tree, refuse_encrypted
from sparkmeta.spec.summary import FileKind
from sparkmeta.state import TableState

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame

    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.commit.snapshot_writer import SnapshotWriter
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.snapshot import Summary

_DATA = (int(ContentType.DATA),)
_DELETES = (int(ContentType.POSITION_DELETES), int(ContentType.EQUALITY_DELETES))

# What a rewrite may add only if it removes some.
_REWRITTEN = {"data files": {FileKind.DATA}, "deletes": {*FileKind} - {FileKind.DATA}}


@dataclass(frozen=True)
class _Added:
    """Files to add.

    Attributes:
        files: the files; all those of a table.
        kinds: the content types that they may have.
        data_sequence_number: theirs, if it is not that of the commit.
    """

    files: DataFrame | TableState
    kinds: tuple[int, ...]
    data_sequence_number: int | None = None


@dataclass(frozen=True)
class _Replaced:
    """Files to replace. Deletes of their rows by other commits conflict.

    Attributes:
        files: the files.
        data_sequence_number: that of the new files, if it is not that of the commit. New equality deletes do not
            conflict then, since they apply to the new files as well.
    """

    files: DataFrame
    data_sequence_number: int | None = None


@dataclass
class SnapshotUpdate:
    """Collects changes of files, which become one snapshot when the transaction commits. Methods can be chained.

    Files are DataFrames with the columns of `inspect.files`. To remove a file, `file_path` is enough, with
    `content_offset` for a deletion vector. Rows of `plan_files` are found faster, by their `manifest_path`.

    New data files may also be a table: the live files of its snapshot. Its manifests are decoded straight into new
    leaves, which takes less time than a DataFrame of its files.
    """

    _started: TableState
    _branch: str
    _properties: dict[str, str]
    _added: list[_Added] = field(default_factory=list)
    _removed: list[DataFrame] = field(default_factory=list)
    _filters: list[FilteredFiles] = field(default_factory=list)
    _partitions_of: list[ReplacedFiles] = field(default_factory=list)
    _rewrites: bool = False
    _overwrites: bool = False
    _replaced: list[_Replaced] = field(default_factory=list)
    _superseded: list[DataFrame] = field(default_factory=list)
    _are_new: bool = False
    _referenced: list[tuple[DataFrame, bool]] = field(default_factory=list)
    _validations: list[Validation] = field(default_factory=list)
    _progress: _Progress = field(default_factory=lambda: _Progress())  # noqa: PLW0108  defined below
    _closed: bool = False

    # -- operations -------------------------------------------------------------------------------------------------

    def append(self, files: DataFrame | BaseTable | TableState) -> Self:
        """Add data files.

        Args:
            files: the files, or a table whose live data files are added. They get new row ids and the sequence number
                of this commit. The columns of both tables must have the same ids and types, and partition specs the
                same fields. A table with deletes is refused: see `row_delta`.

        Raises:
            ValidationError: `files` is neither. The commit raises it for a table that does not fit this one.
        """
        self._refuse_closed()
        self._added.append(_Added(table_of(files), _DATA))
        return self

    def delete(self, files: DataFrame | None = None, row_filter: BooleanExpression | str | None = None) -> Self:
        """Remove the given data and delete files, or the data files of which all rows match a filter.

        The commit raises ValidationError if some rows of a file match and others may not: CommitConflictError if others
        have committed meanwhile, who may have added the file.
        """
        self._refuse_closed()
        if (files is None) == (row_filter is None):
            raise ValidationError("delete takes either files or a row_filter")
        if files is not None:
            self._removed.append(frame_of(files))
        if row_filter is not None:
            self._filters.append(FilteredFiles(row_filter))
        return self

    def overwrite(
        self,
        added: DataFrame | BaseTable | TableState,
        removed: DataFrame | None = None,
        row_filter: BooleanExpression | str | None = None,
    ) -> Self:
        """Replace the given files, or the data files of which all rows match a filter, with new data files."""
        self._refuse_closed()
        self._overwrites = True
        self.append(added)
        return self.delete(removed, row_filter)

    def row_delta(
        self,
        added: DataFrame | BaseTable | TableState | None = None,
        deletes: DataFrame | BaseTable | TableState | None = None,
        removed: DataFrame | None = None,
        superseded: DataFrame | None = None,
    ) -> Self:
        """Add data files, deletes of rows (deletion vectors, position and equality delete files), and remove files.

        A deletion vector replaces an earlier one of its data file, and must contain all of its positions, and those of
        position delete files that apply to the data file: readers would pass over these. `superseded` are position
        delete files whose positions the new ones have as well; those that are still live are removed.

        With the same table as `added` and `deletes`, its live data files are added with their deletion vectors. Its
        equality deletes can't be: they would apply to older files of this table, and not to the added ones.

        Raises:
            ValidationError: `deletes` is a table, and `added` is not the same one.
        """
        self._refuse_closed()
        if isinstance(deletes, BaseTable | TableState) and (added is None or table_of(added) is not table_of(deletes)):
            raise ValidationError("deletes is a table: added must be the same one, whose data files they apply to")
        if added is not None:
            self.append(added)
        if deletes is not None:
            self._added.append(_Added(table_of(deletes), _DELETES))
        if removed is not None:
            self._removed.append(frame_of(removed))
            self._replaced.append(_Replaced(removed))
        if superseded is not None:
            self._superseded.append(frame_of(superseded))
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

        `deletes` are deletion vectors that delete the same rows as removed deletes. Without removed data files there
        can be no new ones, and without removed deletes no new deletes (semantics 4.10).

        The commit raises CommitConflictError if others deleted rows of the replaced files meanwhile. Equality deletes
        do not conflict if the new files have a data sequence number, which is less than theirs.

        Args:
            removed: the files to replace.
            added: the new files.
            deletes: the new deletion vectors.
            data_sequence_number: that of the snapshot whose rows the files of `added` have; by default they get that
                of the commit. It is not less than those of the replaced data files.

        Raises:
            ValidationError: the number is not one from 0 to that of the branch's head when the transaction began. The
                commit raises it for one that is less than a replaced data file's.
        """
        self._refuse_closed()
        if data_sequence_number is not None:
            self._check_sequence_number(data_sequence_number)
        self._rewrites = True
        self._removed.append(frame_of(removed))
        self._replaced.append(_Replaced(removed, data_sequence_number))
        if added is not None:
            self._added.append(_Added(frame_of(added), (*_DATA, *_DELETES), data_sequence_number))
        if deletes is not None:
            self._added.append(_Added(frame_of(deletes), _DELETES))
        return self

    def replace_partitions(self, files: DataFrame) -> Self:
        """Add data files, and remove all other files of their partitions, or of an unpartitioned table."""
        self._refuse_closed()
        self._overwrites = True
        self._partitions_of.append(ReplacedFiles(frame_of(files)))
        return self.append(files)

    def validate_no_conflicts(
        self,
        row_filter: BooleanExpression | str | None = None,
        *,
        from_snapshot_id: int | None = None,
        isolation: Isolation = "serializable",
        ignore_deletes: bool = False,
    ) -> Self:
        """Fail the commit if other commits changed the data that this one is based on (semantics 4.7-4.9).

        Conflicts are:

        - new deletes that apply to files which this update removes by name;
        - new deletes of rows that may match, unless this update removes files by name only and adds no deletes, or
          `ignore_deletes` says that it only deletes rows, which others may have deleted as well;
        - removed data files that may match, if this update removes files by a filter or by partitions, or neither
          removes files by name nor adds deletes;
        - added data files that may match, if `isolation` is "serializable".

        Args:
            row_filter: the rows that were read to make this change; only changes that may match it are conflicts.
                Defaults to the filters or partitions that the update replaces, or to the whole table if there are none.
                Added data defaults to the whole table also if the update removes files by name or adds deletes.
            from_snapshot_id: the snapshot that was read. Defaults to the branch's head when the transaction began.
            isolation: "serializable" or "snapshot".
            ignore_deletes: whether new deletes of rows that may match do not conflict for the deletes that this adds.

        Raises:
            ValidationError: an unknown isolation.
        """
        self._refuse_closed()
        if isolation not in ("serializable", "snapshot"):
            raise ValidationError(f"isolation is {isolation!r}: it is serializable or snapshot")
        start = from_snapshot_id if from_snapshot_id is not None else self._start
        self._validations.append(Validation(start, row_filter, isolation, ignore_deletes))
        return self

    def validate_data_files_exist(self, files: DataFrame, *, with_deletes: bool = False) -> Self:
        """Fail the commit if others replaced data files that the position delete files of this update are about.

        Without it, this holds for those that a delete file names in `referenced_data_file`; and delete files that name
        none are refused after any commit that replaced files. Names of files that the table never had are not refused.
        Data files of deletion vectors must exist in any case.

        Args:
            files: the data files, rows with `file_path`.
            with_deletes: whether they must not have been deleted either.
        """
        self._refuse_closed()
        self._referenced.append((frame_of(files), with_deletes))
        return self

    def assume_new_files(self) -> Self:
        """Do not check whether added files are in the table already, or are added twice.

        For files that have just been written under names that no other file has: the check reads the paths in all
        manifests that may hold files of their partitions.
        """
        self._refuse_closed()
        self._are_new = True
        return self

    def close(self) -> None:
        """Take no more changes, since the transaction is committed. For `Transaction`."""
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ValidationError(
                f"{self._started.metadata.location}: the transaction is committed: the update takes no more changes"
            )

    def _check_sequence_number(self, number: object) -> None:
        """Raise ValidationError for a number that later equality deletes may not exceed."""
        head = self._started.metadata.snapshot_by_name(self._branch)
        most = 0 if head is None else head.sequence_number or 0
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
            raise ValidationError(
                f"{self._started.metadata.location}: data_sequence_number is {shown(number)}: expected a whole number "
                f"from 0 to {most}, the sequence number of the snapshot that was read"
            )

    @property
    def _start(self) -> int | None:
        head = self._started.metadata.snapshot_by_name(self._branch)
        return None if head is None else head.snapshot_id

    @property
    def _conflicting(self) -> Operation:
        """The parts of this update that decide whether other commits conflict with it."""
        adds_deletes = any(part.kinds == _DELETES for part in self._added)
        filters = [matching.row_filter for matching in self._filters]
        partitions_of = [replaced.files for replaced in self._partitions_of]
        return Operation(filters, partitions_of, bool(self._removed), adds_deletes)

    # -- the commit -------------------------------------------------------------------------------------------------

    def apply(self, state: TableState) -> TableMetadata:
        """Write the snapshot's manifests. Return the table's metadata with the snapshot. For `Transaction`."""
        if self.names.discarded:
            self._progress = _Progress()
        # Another commit may have changed the format since the transaction began.
        refuse_lists_of_version_4(state.metadata, state.metadata.location)
        refuse_encrypted(state.metadata, "and can't be committed to")
        return _Attempt(self, branch_head(state, self._branch)).apply()

    @property
    def names(self) -> SnapshotNames:
        """The names of the files that the update writes. For `Transaction`."""
        return self._progress.names

    @property
    def operation(self) -> str:
        """The operation of the snapshot's summary (semantics 3.2-6)."""
        if self._rewrites:
            return "replace"
        adds_data = any(_DATA[0] in part.kinds for part in self._added)
        adds_deletes = any(_DATA[0] not in part.kinds for part in self._added)
        removes = bool(self._removed or self._filters or self._partitions_of)
        if self._partitions_of or (self._overwrites and removes) or (adds_data and (adds_deletes or removes)):
            return "overwrite"
        return "append" if adds_data else "delete"


@dataclass
class _Progress:
    """The results of an attempt that the next one reuses.

    Attributes:
        names: the snapshot id, and the files that have been written.
        searches: the results of searches, by leaf.
        writer: writes the snapshot.
        added: the entries and manifests of new files.
        replaced: identifies the deletes that the new deletion vectors replaced in the first attempt.
    """

    names: SnapshotNames = field(default_factory=SnapshotNames)
    searches: Searches = field(default_factory=Searches)
    writer: SnapshotWriter | None = None
    added: NewFiles | None = None
    replaced: Any = None

    def writer_for(self, head: TableState, branch: str) -> SnapshotWriter:
        """Return the writer of a snapshot, a new one if the results of the last attempt do not fit the head."""
        if self.writer is not None and not self.writer.fits(head):
            self.writer = self.added = self.replaced = None
        if self.writer is None:
            kind: Callable[[str, SnapshotNames, Searches], SnapshotWriter]
            kind = TreeWriter if has_tree(head.metadata) else ListWriter
            self.writer = kind(branch, self.names, self.searches)
        return self.writer


@dataclass
class _Attempt:
    """An attempt to make the snapshot on one state of the table."""

    update: SnapshotUpdate
    head: TableState

    @property
    def progress(self) -> _Progress:
        return self.update._progress

    def apply(self) -> TableMetadata:
        update, progress = self.update, self.progress
        for validation in update._validations:
            validate(self.head, validation, update._conflicting)
        progress.names.next_attempt(self.head.metadata)
        writer = progress.writer_for(self.head, update._branch)
        state = writer.begin(self.head)
        if progress.added is None:
            progress.added = self._add(writer)
        added = progress.added
        removal = self._removal(state, added)
        if not update._are_new:
            refuse_duplicates(state, added, removal, progress.searches)
        return writer.commit(added, removal, lambda manifests: self._summary(added, removal, manifests))

    def _add(self, writer: SnapshotWriter) -> NewFiles:
        added = writer.nothing
        tables = [part.files for part in self.update._added if part.kinds == _DELETES]
        for part in self.update._added:
            files = part.files
            if not isinstance(files, TableState):
                new = writer.add(files, part.kinds, added, part.data_sequence_number)
            elif part.kinds == _DELETES:
                new = writer.add_vectors(files, added)
            else:
                new = writer.add_table(files, added, with_deletes=any(files is table for table in tables))
            added = added.plus(new)
        return added

    def _removal(self, state: TableState, added: NewFiles) -> Removal:
        update, searches = self.update, self.progress.searches
        parts = [self._named(state, files) for files in update._removed]
        parts += [self._filtered(state, matching) for matching in update._filters]
        parts += [replaced.find(state, searches) for replaced in update._partitions_of]
        parts += [find_live_deletes(state, files, searches) for files in update._superseded]
        removal = reduce(Removal.plus, parts, Removal())
        if update._rewrites:
            self._refuse_more_kinds(state, added, removal)
        if FileKind.POSITION_DELETES in added.tally.counts:
            self._check_referenced(state, added)
        if FileKind.DELETION_VECTOR not in added.tally.counts:
            return removal
        deletes = replaced_deletes(state, added, removal, searches)
        if self.progress.replaced is not None and self.progress.replaced != deletes.names:
            raise CommitConflictError(
                f"{state.metadata.location}: another commit has added a deletion vector for the same data file"
            )
        self.progress.replaced = deletes.names
        return removal.plus(deletes.removal)

    @staticmethod
    def _refuse_more_kinds(state: TableState, added: NewFiles, removal: Removal) -> None:
        """Refuse a rewrite that adds data files, or deletes, and removes none."""
        for what, kinds in _REWRITTEN.items():
            if kinds & added.tally.counts.keys() and not kinds & removal.tally.counts.keys():
                raise ValidationError(f"{state.metadata.location}: a rewrite adds {what} and removes none")

    def _check_referenced(self, state: TableState, added: NewFiles) -> None:
        """Refuse position delete files whose data files others have replaced."""
        update = self.update
        for files, with_deletes in update._referenced:
            refuse_missing_data(state, files, update._start, with_deletes=with_deletes)
        if update._referenced or not snapshots_since(state, update._start):
            return
        deletes = added.of([ContentType.POSITION_DELETES], ContentType.DELETE_MANIFEST).frame(state)
        positional = deletes.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
        if positional.where("referenced_file IS NULL").limit(1).collect():
            refuse_replaced_data(state, update._start)
        named = positional.select(F.col("referenced_file").alias("file_path"))
        refuse_missing_data(state, named, update._start, with_deletes=False)

    def _filtered(self, state: TableState, matching: FilteredFiles) -> Removal:
        """Find files by a filter. Raises CommitConflictError if others may have added one of which some rows match."""
        try:
            return matching.find(state, self.progress.searches)
        except ValidationError as error:
            if snapshots_since(state, self.update._start):
                raise CommitConflictError(f"{error}: others have committed since") from error
            raise

    def _named(self, state: TableState, files: DataFrame) -> Removal:
        """Find files by name. Raises CommitConflictError if others removed them, or rows of files that are replaced."""
        update = self.update
        try:
            removal = find_files(state, files, self.progress.searches)
        except NotLiveError as error:
            if snapshots_since(state, update._start):
                raise CommitConflictError(f"{error} any more") from error
            raise
        for replaced in update._replaced:
            if replaced.files is files:
                number = replaced.data_sequence_number
                refuse_new_deletes(state, files, removal, update._start, by_position=number is not None)
                if number is not None:
                    refuse_newer_data(state, files, removal, number)
        for validation in update._validations:
            refuse_new_deletes(state, files, removal, validation.start, validation.row_filter)
        return removal

    def _summary(self, added: NewFiles, removal: Removal, manifests: ManifestCounts) -> Summary:
        update = self.update
        return snapshot_summary(
            update.operation,
            added.tally,
            removal.tally,
            self.head.snapshot,
            update._properties,
            manifests,
            replaces_partitions=bool(update._partitions_of),
        )
