"""`SnapshotUpdate`: the file changes that become one snapshot, their checks, and the attempts to create it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from sparkmeta.changes.file_changes import snapshots_since
from sparkmeta.checks import FLAG, WHOLE, is_whole
from sparkmeta.commit.conflicts import (
    ISOLATION,
    Isolation,
    Operation,
    Validation,
    refuse_added_paths,
    refuse_deletes_of_moved_rows,
    refuse_duplicates,
    refuse_missing_data,
    refuse_new_deletes,
    refuse_new_dvs,
    refuse_new_row_ids,
    refuse_newer_data,
    refuse_other_specs,
    refuse_replaced_data,
    validate,
)
from sparkmeta.commit.file_rows import SEQUENCE_NUMBER
from sparkmeta.commit.input_files import rows_of_files, table_of
from sparkmeta.commit.new_snapshot import LeafCounts, SnapshotNames, snapshot_summary
from sparkmeta.commit.removed_files import (
    FilteredFiles,
    NotLiveError,
    Removal,
    ReplacedFiles,
    Searches,
    find_files,
    find_live_deletes,
    refuse_other_columns,
)
from sparkmeta.commit.snapshot_writer import ListWriter, TreeWriter
from sparkmeta.commit.vector_targets import replaced_deletes
from sparkmeta.commit.write_target import WAP_ID
from sparkmeta.entries.live import is_kind
from sparkmeta.entries.relation import columns_of, first, where, with_columns
from sparkmeta.errors import CommitConflictError, ValidationError, shown
from sparkmeta.expr import sql
from sparkmeta.operations.table_operations import BaseTable, refuse_lists_of_version_4
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.snapshot.state import TableState
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.file_kind import FileKind
from sparkmeta.spec.metadata import ancestors_of, has_tree, lacks_definitions
from sparkmeta.spec.stream_epochs import earlier_repetition, with_epoch
from sparkmeta.spec.summary import STREAM
from sparkmeta.storage.keys import refuse_encrypted_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.expressions import BooleanExpression

    from sparkmeta.commit.input_files import InputFiles
    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.commit.snapshot_writer import SnapshotWriter
    from sparkmeta.commit.write_target import WriteTarget
    from sparkmeta.entries.relation import Relation
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.spec.metadata_model import Summary
    from sparkmeta.spec.summary import IdempotencyKey


# -- The file changes that become one snapshot ------------------------------------------------------------------------


DATA = (int(ContentType.DATA),)
DELETES = (int(ContentType.POSITION_DELETES), int(ContentType.EQUALITY_DELETES))


@dataclass(frozen=True)
class AddedPart:
    """Files to add.

    Attributes:
        files: the files, or a table whose live files are added.
        kinds: the content types that they may have.
    """

    files: Relation | TableState = field(repr=False)
    kinds: tuple[int, ...]


@dataclass(frozen=True)
class ReplacedPart:
    """Files to replace. Deletes of their rows by other commits conflict.

    Attributes:
        files: the files.
        data_sequence_number: the data sequence number of the new files; None for the commit's number. Unless it is
            None, new equality deletes do not conflict, since they apply to the new files as well.
    """

    files: Relation
    data_sequence_number: int | None = None


@dataclass
class ChangeSet:
    """File changes that become one snapshot.

    Attributes:
        started: the table when the transaction began.
        target: where the snapshot goes.
        properties: extra properties for the snapshot's summary.
        added: the files to add.
        removed: rows that name files to remove.
        filters: filters that find data files to remove.
        partitions_of: files whose partitions are replaced.
        rewrites: whether the table's rows stay the same.
        overwrites: whether added files replace the removed ones.
        replaced: the removed files whose rows the added ones hold.
        superseded: position delete files that are removed if they are live.
        are_new: whether no added file can be in the table already.
        new_paths: whether it is a conflict if other commits added the same data files, however their paths are spelled.
        referenced: data files of position delete files, and whether it is a conflict if others have deleted them.
        validations: the checks against other commits.
        specs: the partition specs of data files that other commits may add; None for any.
        from_snapshot_id: the snapshot that was read; None for the branch's head when the transaction began.
    """

    started: TableState
    target: WriteTarget
    properties: dict[str, str]
    added: list[AddedPart] = field(default_factory=list)
    removed: list[Relation] = field(default_factory=list)
    filters: list[FilteredFiles] = field(default_factory=list)
    partitions_of: list[ReplacedFiles] = field(default_factory=list)
    rewrites: bool = False
    overwrites: bool = False
    replaced: list[ReplacedPart] = field(default_factory=list)
    superseded: list[Relation] = field(default_factory=list)
    are_new: bool = False
    new_paths: bool = False
    referenced: list[tuple[Relation, bool]] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    specs: frozenset[int] | None = None
    from_snapshot_id: int | None = None

    @property
    def start(self) -> int | None:
        """The id of the snapshot that was read; None for an empty table. Later commits may conflict."""
        if self.from_snapshot_id is not None:
            return self.from_snapshot_id
        return self.target.head_id(self.started.metadata)

    @property
    def read_snapshot(self) -> Snapshot | None:
        """The snapshot that was read, unless it has expired."""
        return None if self.start is None else self.started.metadata.snapshot_by_id(self.start)

    @property
    def conflicting(self) -> Operation:
        """The parts of this update that decide whether other commits conflict with it."""
        adds_deletes = any(part.kinds == DELETES for part in self.added)
        filters = [matching.row_filter for matching in self.filters]
        partitions_of = [replaced.files for replaced in self.partitions_of]
        return Operation(filters, partitions_of, bool(self.removed), adds_deletes)

    @property
    def appended_tables(self) -> list[pa.Table]:
        """The data files that the update adds, if they are in memory and it does nothing else; otherwise nothing."""
        tables = [part.files for part in self.added if part.kinds == DATA and isinstance(part.files, pa.Table)]
        others = replace(self, added=[], properties={}, are_new=False)
        is_append = len(tables) == len(self.added) and others == ChangeSet(self.started, self.target, {})
        return tables if is_append else []

    @property
    def moves_rows(self) -> bool:
        """Whether added data files hold rows of the table, with their row ids."""
        adds_data = any(DATA[0] in part.kinds for part in self.added)
        return adds_data and bool(self.replaced or (self.validations and self.conflicting.adds_deletes))

    @property
    def operation(self) -> str:
        """The operation of the snapshot's summary (semantics 10.4)."""
        if self.rewrites:
            return "replace"
        adds_data = any(DATA[0] in part.kinds for part in self.added)
        adds_deletes = any(DATA[0] not in part.kinds for part in self.added)
        removes = bool(self.removed or self.filters or self.partitions_of)
        if self.partitions_of or (self.overwrites and removes) or (adds_data and (adds_deletes or removes)):
            return "overwrite"
        return "append" if adds_data else "delete"


# -- Attempts to create a snapshot from file changes ------------------------------------------------------------------


# File kinds that a rewrite may add only if it removes some of them.
_REWRITTEN = {"data files": {FileKind.DATA}, "deletes": {*FileKind} - {FileKind.DATA}}


@dataclass
class Progress:
    """The results of an attempt that the next one reuses.

    Attributes:
        names: the snapshot id and the files written so far.
        searches: the results of searches, by leaf.
        writer: writes the snapshot.
        added: the entries and manifests of new files.
        validated: the head of the last attempt, up to which other commits don't conflict.
    """

    names: SnapshotNames = field(default_factory=SnapshotNames)
    searches: Searches = field(default_factory=Searches)
    writer: SnapshotWriter | None = None
    added: NewFiles | None = None
    validated: Snapshot | None = None

    def writer_for(self, head: TableState, branch: str | None) -> SnapshotWriter:
        """Return the snapshot writer, a new one if the last attempt's files can't be used for this head."""
        if self.writer is not None and not self.writer.fits(head):
            self.writer = self.added = None
        if self.writer is None:
            kind: Callable[[str | None, SnapshotNames, Searches], SnapshotWriter]
            kind = TreeWriter if has_tree(head.metadata) else ListWriter
            self.writer = kind(branch, self.names, self.searches)
        return self.writer


@dataclass
class Attempt:
    """An attempt to create a snapshot on one state of the table.

    Attributes:
        changes: the file changes.
        progress: the results of earlier attempts.
        head: the table at the branch's head.
    """

    changes: ChangeSet
    progress: Progress
    head: TableState

    @cached_property
    def start(self) -> int | None:
        """The snapshot after which other commits may conflict: the last attempt's head, if the history still has it.

        An earlier change of the same transaction creates its snapshot anew in each attempt, perhaps with the same id.
        The location of its manifests tells whether it is the validated one.
        """
        validated, head = self.progress.validated, self.head.snapshot
        if validated is not None and head is not None:
            for snapshot in ancestors_of(self.head.metadata, head.snapshot_id):
                if snapshot.snapshot_id == validated.snapshot_id:
                    is_same = snapshot.manifests_location == validated.manifests_location
                    return validated.snapshot_id if is_same else self.changes.start
        return self.changes.start

    def apply(self) -> TableMetadata:
        """Write the snapshot's manifests and return the table's metadata with the snapshot."""
        changes, progress = self.changes, self.progress
        refuse_other_columns(self._filters(), changes.started.metadata, self.head.metadata)
        for validation in changes.validations:
            validate(self.head, validation, changes.conflicting, self.start)
        if changes.specs is not None:
            refuse_other_specs(self.head, changes.specs, self.start)
        if changes.moves_rows:
            refuse_new_row_ids(self.head, changes.read_snapshot)
        progress.names.next_attempt(self.head.metadata)
        target = changes.target
        writer = progress.writer_for(self.head, None if target.wap_id is not None else target.branch)
        state = writer.begin(self.head)
        if progress.added is None:
            try:
                progress.added = self._add(writer)
            except ValidationError as error:
                head, started = self.head.metadata, changes.started.metadata
                if head.format_version != started.format_version:
                    raise CommitConflictError(f"{error}: others have upgraded the table since") from error
                if lacks_definitions(head, started):
                    raise CommitConflictError(f"{error}: others have removed schemas or partition specs") from error
                raise
        added = progress.added
        removal = self._removal(state, added)
        if not changes.are_new:
            refuse_duplicates(state, added, removal, progress.searches)
        if changes.new_paths:
            refuse_added_paths(self.head, state, added, self.start)
        progress.validated = self.head.snapshot
        return writer.write(added, removal, lambda manifests: self._summary(added, removal, manifests))

    def _filters(self) -> Iterator[BooleanExpression | str]:
        """Yield the filters that this attempt binds."""
        yield from (matching.row_filter for matching in self.changes.filters)
        for validation in self.changes.validations:
            if validation.row_filter is not None and snapshots_since(self.head, self.start):
                yield validation.row_filter

    def _add(self, writer: SnapshotWriter) -> NewFiles:
        all_added = writer.nothing
        tables = [part.files for part in self.changes.added if part.kinds == DELETES]
        # Deletion vectors may be written to the entries of new data files.
        for part in sorted(self.changes.added, key=lambda part: part.kinds == DELETES):
            files = part.files
            if not isinstance(files, TableState):
                new_files = writer.add(files, part.kinds, all_added)
            elif part.kinds == DELETES:
                new_files = writer.add_vectors(files, all_added)
            else:
                new_files = writer.add_table(files, all_added, with_deletes=any(files is table for table in tables))
            all_added = all_added.plus(new_files)
        return all_added

    def _removal(self, state: TableState, added: NewFiles) -> Removal:
        changes, searches = self.changes, self.progress.searches
        parts = [self._named(state, files, added) for files in changes.removed]
        parts += [self._filtered(state, matching) for matching in changes.filters]
        parts += [replaced.find(state, searches) for replaced in changes.partitions_of]
        parts += [find_live_deletes(state, files, searches) for files in changes.superseded]
        removal = reduce(Removal.plus, parts, Removal())
        if FileKind.POSITION_DELETES in added.tally.counts:
            self._check_referenced(state, added)
        if FileKind.DELETION_VECTOR in added.tally.counts:
            removal = removal.plus(self._replaced(state, added, removal))
        if changes.rewrites:
            self._refuse_more_kinds(state, added, removal)
        return removal

    def _replaced(self, state: TableState, added: NewFiles, removal: Removal) -> Removal:
        """Find the deletes that new deletion vectors replace."""
        refuse_new_dvs(self.head, state, added, self.changes.removed, self.start)
        with self._conflicting():
            return replaced_deletes(state, added, removal, self.progress.searches)

    @staticmethod
    def _refuse_more_kinds(state: TableState, added: NewFiles, removal: Removal) -> None:
        """Refuse a rewrite that adds data files but removes none, or adds deletes but removes none."""
        for kinds_text, kinds in _REWRITTEN.items():
            if kinds & added.tally.counts.keys() and not kinds & removal.tally.counts.keys():
                raise ValidationError(f"{state.metadata.location}: a rewrite adds {kinds_text} and removes none")

    def _check_referenced(self, state: TableState, added: NewFiles) -> None:
        """Refuse position delete files whose data files were replaced by other commits."""
        changes = self.changes
        for files, with_deletes in changes.referenced:
            refuse_missing_data(state, files, self.start, with_deletes=with_deletes)
        if changes.referenced or not snapshots_since(state, self.start):
            return
        deletes = added.of([ContentType.POSITION_DELETES], ContentType.DELETE_MANIFEST).relation(state)
        positional = where(deletes, is_kind(ContentType.POSITION_DELETES))
        if first(positional, sql.col("referenced_file").isNull()):
            refuse_replaced_data(state, self.start)
        named = columns_of(positional, {"file_path": "referenced_file"})
        refuse_missing_data(state, named, self.start, with_deletes=False)

    def _filtered(self, state: TableState, matching: FilteredFiles) -> Removal:
        """Find files by a filter. Raises CommitConflictError if others may have added a partly matching file."""
        with self._conflicting():
            return matching.find(state, self.progress.searches)

    @contextmanager
    def _conflicting(self) -> Iterator[None]:
        """Raise CommitConflictError for a change that does not fit the table after others have committed."""
        try:
            yield
        except CommitConflictError:
            raise
        except ValidationError as error:
            if snapshots_since(self.head, self.changes.start):
                raise CommitConflictError(f"{error}: others have committed since") from error
            raise

    def _named(self, state: TableState, files: Relation, added: NewFiles) -> Removal:
        """Find files by name. Raises CommitConflictError if others removed them, or deleted rows of replaced files."""
        changes = self.changes
        try:
            removal = find_files(state, files, self.progress.searches)
        except NotLiveError as error:
            if snapshots_since(state, changes.start):
                raise CommitConflictError(f"{error} any more") from error
            raise
        for replaced in changes.replaced:
            if replaced.files is files:
                number = replaced.data_sequence_number
                refuse_new_deletes(self.head, state, files, removal, self.start, by_position=number is not None)
                if number is not None:
                    refuse_newer_data(state, files, removal, number)
                    refuse_deletes_of_moved_rows(self.head, state, files, removal, added, self.start)
        for validation in changes.validations:
            refuse_new_deletes(self.head, state, files, removal, self.start, validation.row_filter)
        return removal

    def _summary(self, added: NewFiles, removal: Removal, manifests: LeafCounts) -> Summary:
        changes = self.changes
        return snapshot_summary(
            changes.operation,
            added.tally,
            removal.tally,
            self.head.snapshot,
            changes.properties,
            manifests,
            replaces_partitions=bool(changes.partitions_of),
        )


# -- The step of a transaction ----------------------------------------------------------------------------------------


class SnapshotStep:
    """The step of a transaction that creates a snapshot from file changes.

    Attributes:
        changes: the file changes.
        target: where the snapshot goes.
        key: the idempotency key, which the snapshot records; None for no key.
        repetition_of: the snapshot that has recorded the key; None if none is known.
        closed: whether the transaction is committed, after which there are no more changes.
    """

    def __init__(
        self, started: TableState, target: WriteTarget, properties: dict[str, str], key: IdempotencyKey | None = None
    ) -> None:
        """Create a step without changes.

        Args:
            started: the table when the transaction began.
            target: where the snapshot goes.
            properties: extra properties for the snapshot's summary.
            key: the idempotency key, which the snapshot records.
        """
        properties = properties | ({} if key is None else key.properties)
        if target.wap_id is not None:
            properties[WAP_ID] = target.wap_id
        self.target, self.key, self.closed = target, key, False
        is_stream = key is not None and properties.get(STREAM) == key.application and target.wap_id is None
        self._stream = key if is_stream else None
        self.repetition_of: Snapshot | None = None
        self.changes = ChangeSet(started, target, properties)
        self._progress = Progress()

    def apply(self, state: TableState) -> TableMetadata:
        """Write the snapshot's manifests and return the table's metadata with the snapshot."""
        if self.names.discarded:
            self._progress = Progress()
        # Another commit may have upgraded the table since the transaction began.
        refuse_lists_of_version_4(state.metadata, state.metadata.location)
        refuse_encrypted_commit(state.files, state.metadata)
        self.target.refuse_used_id(state.metadata)
        metadata = Attempt(self.changes, self._progress, self.target.head(state)).apply()
        return metadata if self._stream is None else with_epoch(metadata, self.target.branch, self._stream)

    def repeats(self, metadata: TableMetadata) -> bool:
        """Return whether a snapshot has recorded the idempotency key: `repetition_of`."""
        if self.key is not None:
            history = [*self.target.history(metadata)]
            recorded = self.key.recorded_by(history)
            self.repetition_of = recorded or earlier_repetition(metadata, self.target.branch, history, self.key)
        return self.repetition_of is not None

    @property
    def is_small_append(self) -> bool:
        """Whether the snapshot only adds data files that are in memory, and records no idempotency key."""
        return self.key is None and self.target.wap_id is None and bool(self.changes.appended_tables)

    @property
    def head(self) -> TableState:
        """The table at the snapshot that the update is based on, when the transaction began."""
        return self.target.head(self.changes.started)

    @property
    def names(self) -> SnapshotNames:
        """The names of the files that the update writes."""
        return self._progress.names


# -- `SnapshotUpdate` -------------------------------------------------------------------------------------------------


class SnapshotUpdate:
    """Collects file changes, which become one snapshot when the transaction commits. Methods can be chained.

    Files are rows with the columns of `inspect.files`, as a DataFrame or an Arrow table, or `DataFile`s of pyiceberg.
    To remove a file, `file_path` is enough, with `content_offset` for a deletion vector. Rows of `plan_files` and
    `arrow.plan_files` are found faster because they have a `manifest_path`. A commit of a few files needs no Spark
    unless they are a DataFrame.

    New data files can also be a table: its live files are added. Its manifests are decoded directly into new ones,
    which is faster than a DataFrame of its files.
    """

    def __init__(self, step: SnapshotStep) -> None:
        """Create an update that adds its changes to a step of a transaction."""
        self._step, self._changes = step, step.changes

    def __enter__(self) -> Self:
        """Return the update, so that a block can collect its changes: `with tx.update_snapshot() as update`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the changes to the transaction, which commits them at its end."""

    # -- Operations -------------------------------------------------------------------------------------------------

    def append(self, files: InputFiles | BaseTable | TableState) -> Self:
        """Add data files.

        Args:
            files: the files, or a table whose live data files are added with this commit's sequence number and new row
                ids, except those stored in files. The columns of both tables must have the same ids and types, and the
                partition specs the same fields. A table with deletes is refused: see `row_delta`.

        Raises:
            ValidationError: `files` is neither files nor a table. The commit raises it for a table that does not
                fit this one.
        """
        self._refuse_closed()
        self._changes.added.append(AddedPart(self._table(files), DATA))
        return self

    def delete(self, files: InputFiles | None = None, row_filter: BooleanExpression | str | None = None) -> Self:
        """Remove the given data and delete files, or the data files whose rows all match a filter.

        The commit raises ValidationError if a file may match only partly. It raises CommitConflictError if concurrent
        commits may have added the file, or have renamed, deleted or replaced a column of the filter.
        """
        self._refuse_closed()
        if (files is None) == (row_filter is None):
            raise ValidationError("delete takes either files or a row_filter")
        if files is not None:
            self._changes.removed.append(self._rows(files))
        if row_filter is not None:
            self._changes.filters.append(FilteredFiles(row_filter))
        return self

    def overwrite(
        self,
        added: InputFiles | BaseTable | TableState,
        removed: InputFiles | None = None,
        row_filter: BooleanExpression | str | None = None,
    ) -> Self:
        """Replace the given files, or the data files whose rows all match a filter, with new data files."""
        self._refuse_closed()
        self._changes.overwrites = True
        self.append(added)
        return self.delete(removed, row_filter)

    def row_delta(
        self,
        added: InputFiles | BaseTable | TableState | None = None,
        deletes: InputFiles | BaseTable | TableState | None = None,
        removed: InputFiles | None = None,
        superseded: InputFiles | None = None,
    ) -> Self:
        """Add data files and deletes (deletion vectors, position and equality delete files), and remove files.

        A deletion vector replaces an earlier one of its data file. It must contain all positions of the earlier one and
        of position delete files that apply to the data file, since readers ignore these. `superseded` are position
        delete files whose positions the new ones include. They are removed if they are still live.

        If `added` and `deletes` are the same table, its live data files are added with their deletion vectors. Its
        equality deletes can't be added: they would apply to older files of this table, and not to the added ones.

        Raises:
            ValidationError: `deletes` is a table, and `added` is not the same table.
        """
        self._refuse_closed()
        if isinstance(deletes, BaseTable | TableState) and (
            added is None or self._table(added) is not self._table(deletes)
        ):
            raise ValidationError("deletes is a table: added must be the same one, whose data files they apply to")
        if added is not None:
            self.append(added)
        if deletes is not None:
            self._changes.added.append(AddedPart(self._table(deletes), DELETES))
        if removed is not None:
            removed = self._rows(removed)
            self._changes.removed.append(removed)
            self._changes.replaced.append(ReplacedPart(removed))
        if superseded is not None:
            self._changes.superseded.append(self._rows(superseded))
        return self

    def rewrite(
        self,
        removed: InputFiles,
        added: InputFiles | None = None,
        deletes: InputFiles | None = None,
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
            data_sequence_number: the sequence number of the snapshot whose rows the `added` files hold. Defaults to the
                commit's number. It must not be lower than the number of a replaced data file.

        Raises:
            ValidationError: the number is not between 0 and the number of the branch's head when the transaction began.
                The commit raises it for a number that is lower than a replaced data file's.
        """
        self._refuse_closed()
        if data_sequence_number is not None:
            self._check_sequence_number(data_sequence_number)
        self._changes.rewrites = True
        removed = self._rows(removed)
        self._changes.removed.append(removed)
        self._changes.replaced.append(ReplacedPart(removed, data_sequence_number))
        if added is not None:
            number = sql.lit(data_sequence_number).cast("bigint").alias(SEQUENCE_NUMBER)
            self._changes.added.append(AddedPart(with_columns(self._rows(added), number), (*DATA, *DELETES)))
        if deletes is not None:
            self._changes.added.append(AddedPart(self._rows(deletes), DELETES))
        return self

    def replace_partitions(self, files: InputFiles) -> Self:
        """Add data files and remove all other files of their partitions, or of an unpartitioned table."""
        self._refuse_closed()
        self._changes.overwrites = True
        self._changes.partitions_of.append(ReplacedFiles(self._rows(files)))
        return self.append(files)

    def validate_no_conflicts(
        self,
        row_filter: BooleanExpression | str | None = None,
        *,
        from_snapshot_id: int | None = None,
        isolation: Isolation = "serializable",
        ignore_deletes: bool = False,
        depends_on_rows: bool = False,
    ) -> Self:
        """Fail the commit if other commits changed the data that this update is based on (semantics 12.3 to 12.5).

        Conflicts are:

        - new deletes that apply to files that this update removes by name;
        - new deletes of rows that may match. Exceptions: this update only removes files by name and adds no deletes; or
          it only deletes or adds rows, and `ignore_deletes` lets others delete rows as well;
        - removed data files that may match, if this update removes files by filter or partition or only adds data
          files, and `ignore_deletes` is not set;
        - added data files that may match, if `isolation` is "serializable";
        - new deletes of rows that may match, and removed data files that may match, except those that rewrites replace,
          if `isolation` is "serializable" and `depends_on_rows` is set.

        Args:
            row_filter: the rows that were read to make this change; only changes that may match it are conflicts. As in
                Iceberg's Java library, a null matches `!=`, NOT IN and NOT LIKE. Defaults to the filters or partitions
                that the update replaces, or to the whole table if there are none. For added data, also defaults to the
                whole table if the update removes files by name or adds deletes.
            from_snapshot_id: the snapshot that was read. All checks of this update start from it. Defaults to the
                branch's head when the transaction began.
            isolation: "serializable" or "snapshot".
            ignore_deletes: whether deletes and removals of matching rows do not conflict with the deletes that this
                update adds, nor with an update that removes files by filter or only adds data files.
            depends_on_rows: whether this update depends on matching rows that it does not replace. A merge, for
                example, does not insert rows whose keys it has found.

        Raises:
            InvalidFilterError: the filter can't be parsed, or does not fit the table's schema.
            ValidationError: an argument has a wrong type, the isolation is unknown, or `from_snapshot_id` differs from
                an earlier call's.
        """
        self._refuse_closed()
        location = self._changes.started.metadata.location
        ISOLATION.check(f"{location}: isolation", isolation)
        FLAG.check(f"{location}: ignore_deletes", ignore_deletes)
        FLAG.check(f"{location}: depends_on_rows", depends_on_rows)
        if row_filter is not None:
            ScanFilter.of(self._changes.started, row_filter)
        if from_snapshot_id is not None:
            WHOLE.check(f"{location}: from_snapshot_id", from_snapshot_id)
            if self._changes.from_snapshot_id not in (None, from_snapshot_id):
                earlier = self._changes.from_snapshot_id
                problem = f"from_snapshot_id is {from_snapshot_id} and was {earlier}: they must be equal"
                raise ValidationError(f"{location}: {problem}")
            self._changes.from_snapshot_id = from_snapshot_id
        self._changes.validations.append(Validation(row_filter, isolation, ignore_deletes, depends_on_rows))
        return self

    def validate_data_files_exist(self, files: InputFiles, *, with_deletes: bool = False) -> Self:
        """Fail the commit if others replaced data files that the position delete files of this update reference.

        Without this call, the check covers the data files in `referenced_data_file`. Delete files without this field
        are then refused after any commit that replaced files. Names of files that the table never had are not refused.
        Data files of deletion vectors must always exist.

        Args:
            files: the data files, rows with `file_path`.
            with_deletes: whether the commit also fails if others deleted the data files.
        """
        self._refuse_closed()
        self._changes.referenced.append((self._rows(files), with_deletes))
        return self

    def validate_partition_specs(self, spec_ids: Iterable[int]) -> Self:
        """Fail the commit if other commits added data files of another partition spec.

        Use this for partitioned equality deletes: they apply only to data files of their spec.

        Raises:
            ValidationError: no partition spec of the table has one of the ids.
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

    def _table(self, files: InputFiles | BaseTable | TableState) -> Relation | TableState:
        return table_of(files, self._changes.started)

    def _rows(self, files: InputFiles) -> Relation:
        return rows_of_files(files, self._changes.started)

    def _refuse_closed(self) -> None:
        if self._step.closed:
            location = self._changes.started.metadata.location
            raise ValidationError(f"{location}: the transaction is committed: the update takes no more changes")

    def _check_sequence_number(self, number: object) -> None:
        """Raise ValidationError if the number exceeds the head's: later equality deletes must have higher numbers."""
        metadata, head = self._changes.started.metadata, self._step.head.snapshot
        maximum = 0 if head is None else head.sequence_number or 0
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= maximum:
            raise ValidationError(
                f"{metadata.location}: data_sequence_number is {shown(number)}: expected a whole number "
                f"from 0 to {maximum}, the sequence number of the snapshot that was read"
            )

    def _checked_specs(self, spec_ids: object) -> frozenset[int]:
        """Return ids of partition specs. Raises ValidationError unless they are an iterable of the table's ids."""
        metadata = self._changes.started.metadata
        ids, known = tuple(spec_ids) if isinstance(spec_ids, Iterable) else spec_ids, metadata.specs()
        if not isinstance(ids, tuple) or not all(is_whole(spec_id) and spec_id in known for spec_id in ids):
            problem = f"spec_ids is {shown(ids)}: expected ids of its partition specs, {sorted(known)}"
            raise ValidationError(f"{metadata.location}: {problem}")
        return frozenset(ids)
