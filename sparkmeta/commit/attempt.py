"""Attempts to create a snapshot from file changes, each on the newest state of the table."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.changes.history import snapshots_since
from sparkmeta.commit.change_set import DELETES
from sparkmeta.commit.conflicts import (
    refuse_deletes_of_moved_rows,
    refuse_missing_data,
    refuse_new_deletes,
    refuse_new_dvs,
    refuse_new_row_ids,
    refuse_newer_data,
    refuse_other_specs,
    refuse_replaced_data,
    validate,
)
from sparkmeta.commit.duplicates import refuse_added_paths, refuse_duplicates
from sparkmeta.commit.filtered import refuse_other_columns
from sparkmeta.commit.list_writer import ListWriter
from sparkmeta.commit.named import NotLiveError, Searches, find_files, find_live_deletes
from sparkmeta.commit.removal import Removal
from sparkmeta.commit.tree_writer import TreeWriter
from sparkmeta.commit.vector_targets import replaced_deletes
from sparkmeta.edit.new_snapshot import SnapshotNames
from sparkmeta.edit.summary import ManifestCounts, snapshot_summary
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.spec.entry import ContentType, FileKind
from sparkmeta.spec.metadata import has_tree, lacks_definitions
from sparkmeta.state import TableState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame

    from sparkmeta.commit.change_set import ChangeSet
    from sparkmeta.commit.filtered import FilteredFiles
    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.commit.snapshot_writer import SnapshotWriter
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.snapshot import Summary

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
    """

    names: SnapshotNames = field(default_factory=SnapshotNames)
    searches: Searches = field(default_factory=Searches)
    writer: SnapshotWriter | None = None
    added: NewFiles | None = None

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
        changes: the changes of files.
        progress: the results of earlier attempts.
        head: the table at the branch's head.
    """

    changes: ChangeSet
    progress: Progress
    head: TableState

    def apply(self) -> TableMetadata:
        """Write the snapshot's manifests and return the table's metadata with the snapshot."""
        changes, progress = self.changes, self.progress
        refuse_other_columns(self._filters(), changes.started.metadata, self.head.metadata)
        for validation in changes.validations:
            validate(self.head, validation, changes.conflicting, changes.start)
        if changes.specs is not None:
            refuse_other_specs(self.head, changes.specs, changes.start)
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
            refuse_added_paths(self.head, state, added, changes.start)
        return writer.commit(added, removal, lambda manifests: self._summary(added, removal, manifests))

    def _filters(self) -> Iterator[BooleanExpression | str]:
        """Yield the filters that this attempt binds."""
        yield from (matching.row_filter for matching in self.changes.filters)
        for validation in self.changes.validations:
            if validation.row_filter is not None and snapshots_since(self.head, self.changes.start):
                yield validation.row_filter

    def _add(self, writer: SnapshotWriter) -> NewFiles:
        added = writer.nothing
        tables = [part.files for part in self.changes.added if part.kinds == DELETES]
        for part in self.changes.added:
            files = part.files
            if not isinstance(files, TableState):
                new = writer.add(files, part.kinds, added, part.data_sequence_number)
            elif part.kinds == DELETES:
                new = writer.add_vectors(files, added)
            else:
                new = writer.add_table(files, added, with_deletes=any(files is table for table in tables))
            added = added.plus(new)
        return added

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
        refuse_new_dvs(self.head, state, added, self.changes.removed, self.changes.start)
        with self._conflicting():
            return replaced_deletes(state, added, removal, self.progress.searches)

    @staticmethod
    def _refuse_more_kinds(state: TableState, added: NewFiles, removal: Removal) -> None:
        """Refuse a rewrite that adds data files or deletes but removes none of these."""
        for what, kinds in _REWRITTEN.items():
            if kinds & added.tally.counts.keys() and not kinds & removal.tally.counts.keys():
                raise ValidationError(f"{state.metadata.location}: a rewrite adds {what} and removes none")

    def _check_referenced(self, state: TableState, added: NewFiles) -> None:
        """Refuse position delete files whose data files were replaced by other commits."""
        changes = self.changes
        for files, with_deletes in changes.referenced:
            refuse_missing_data(state, files, changes.start, with_deletes=with_deletes)
        if changes.referenced or not snapshots_since(state, changes.start):
            return
        deletes = added.of([ContentType.POSITION_DELETES], ContentType.DELETE_MANIFEST).frame(state)
        positional = deletes.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
        if positional.where("referenced_file IS NULL").limit(1).collect():
            refuse_replaced_data(state, changes.start)
        named = positional.select(F.col("referenced_file").alias("file_path"))
        refuse_missing_data(state, named, changes.start, with_deletes=False)

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

    def _named(self, state: TableState, files: DataFrame, added: NewFiles) -> Removal:
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
                refuse_new_deletes(self.head, state, files, removal, changes.start, by_position=number is not None)
                if number is not None:
                    refuse_newer_data(state, files, removal, number)
                    refuse_deletes_of_moved_rows(self.head, state, files, removal, added, changes.start)
        for validation in changes.validations:
            refuse_new_deletes(self.head, state, files, removal, changes.start, validation.row_filter)
        return removal

    def _summary(self, added: NewFiles, removal: Removal, manifests: ManifestCounts) -> Summary:
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
