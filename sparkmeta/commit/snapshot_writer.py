"""`SnapshotWriter`: the protocol for writing a change set as a metadata tree or a manifest list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import DataFrame

    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.commit.removal import Removal
    from sparkmeta.edit.summary import ManifestCounts
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.snapshot import Summary
    from sparkmeta.state import TableState


class SnapshotWriter(Protocol):
    """Writes the snapshot of a commit. Attempts share it and the files that earlier ones have written."""

    @property
    def nothing(self) -> NewFiles:
        """An empty set of new files."""

    def fits(self, head: TableState) -> bool:
        """Return whether the files of earlier attempts can be used for a commit onto `head`."""

    def begin(self, head: TableState) -> TableState:
        """Begin an attempt onto a branch's head and return the state that the commit edits."""

    def add(
        self, files: DataFrame, allowed: Collection[int], added: NewFiles, sequence_number: int | None = None
    ) -> NewFiles:
        """Convert new files to entries. Many are written to manifests by jobs.

        Args:
            files: columns of `inspect.files`. Rows of deletion vectors may have the `manifest_path` of their data file.
            allowed: the content types that the operation may add.
            added: the new files of the commit so far.
            sequence_number: the data sequence number of the files; None for that of the commit.

        Raises:
            ValidationError: a row does not describe a file of this table.
        """

    def add_table(self, source: TableState, added: NewFiles, *, with_deletes: bool) -> NewFiles:
        """Convert the live data files of another table to entries. Many are written to manifests by jobs.

        Args:
            source: the other table.
            added: the new files of the commit so far.
            with_deletes: whether the commit adds the table's deletes too.

        Raises:
            ValidationError: the files mean something else in this table, or have deletes that are not added, or that
                can't be.
            UnsupportedError: tasks can't open the table's files.
        """

    def add_vectors(self, source: TableState, added: NewFiles) -> NewFiles:
        """Convert the deletion vectors of another table, whose data files `added` has, to entries.

        Raises:
            ValidationError: a deletion vector is older than its data file.
            UnsupportedError: tasks can't open the table's files.
        """

    def commit(self, added: NewFiles, removal: Removal, summary: Callable[[ManifestCounts], Summary]) -> TableMetadata:
        """Write the snapshot and return the table's metadata with it."""
