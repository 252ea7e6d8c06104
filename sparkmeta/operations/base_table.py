"""`BaseTable`: a table for commits, metadata tables and maintenance, with its state and operations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeVar

from sparkmeta.errors import InvalidArgumentError, UnsupportedError, shown
from sparkmeta.operations.table_operations import TREES_ELSEWHERE, TableVersion
from sparkmeta.spec.metadata import has_tree
from sparkmeta.state import TableState

if TYPE_CHECKING:
    from sparkmeta.operations.table_operations import TableOperations
    from sparkmeta.spec.metadata import TableMetadata


@dataclass(frozen=True)
class BaseTable:
    """One version of a table.

    Attributes:
        state: the version's metadata and current snapshot.
        metadata_location: the metadata file that the version was read from.
        identifier: the table's identifier in its catalog, or else its folder or metadata file.
        operations: load and commit newer versions.
    """

    state: TableState
    metadata_location: str
    identifier: tuple[str, ...]
    operations: TableOperations

    @property
    def full_name(self) -> str:
        """The identifier as text."""
        return ".".join(self.identifier)

    @property
    def metadata(self) -> TableMetadata:
        return self.state.metadata

    @property
    def version(self) -> TableVersion:
        """The metadata and its file, which is the base of the next commit."""
        return TableVersion(self.metadata_location, self.metadata)

    def at(self, version: TableVersion) -> Self:
        """Return the table at another version of its metadata.

        Raises:
            InvalidArgumentError: it is something else, such as the id of a snapshot.
        """
        if not isinstance(version, TableVersion):
            problem = "expected a TableVersion; scan(snapshot_id=...) reads a snapshot"  # type: ignore[unreachable]
            raise InvalidArgumentError(f"{self.full_name}: at is {shown(version)}: {problem}")
        location, metadata = version
        state = TableState(self.state.session, self.state.files, metadata, metadata.current_snapshot())
        return replace(self, state=state, metadata_location=location)

    def refresh(self) -> Self:
        """Return the current version of the table, or the same one if it was opened by the path of a metadata file.

        Raises:
            NoSuchTableError: the table is gone.
            ValidationError: another table has taken its place.
        """
        current = self.operations.refresh()
        return self if current == self.version else self.at(current)

    def refuse_read_only(self, *, as_tree: bool = False) -> None:
        """Raise UnsupportedError if the table can't be committed to.

        Args:
            as_tree: whether the commit makes the table a metadata tree, if it is none already.
        """
        if self.operations.refusal is not None:
            raise UnsupportedError(f"{self.full_name}: {self.metadata_location}: {self.operations.refusal}")
        if not self.operations.replaces_metadata and (as_tree or has_tree(self.metadata)):
            raise UnsupportedError(f"{self.full_name}: {TREES_ELSEWHERE}")

    def refuse_lists_of_version_4(self) -> None:
        """Raise UnsupportedError for a table of format version 4 with manifest lists, as another library makes it."""
        refuse_lists_of_version_4(self.metadata, self.full_name)

    def refuse_lists(self) -> None:
        """Raise UnsupportedError if the table has manifest lists, not a metadata tree."""
        _refuse_lists(self.metadata, self.full_name)


def refuse_lists_of_version_4(metadata: TableMetadata, name: str) -> None:
    """Raise UnsupportedError for a table of format version 4 with manifest lists, as another library makes it."""
    if metadata.format_version > 3:
        _refuse_lists(metadata, name)


def _refuse_lists(metadata: TableMetadata, name: str) -> None:
    if has_tree(metadata):
        return
    problem = f"{name}: it is a table of format version {metadata.format_version} with manifest lists"
    upgrade = "a metadata tree, which `sparkmeta upgrade` or table.maintenance.upgrade(4) makes"
    if metadata.format_version > 3:
        raise UnsupportedError(f"{problem}: commits need {upgrade}")
    rewrite = "`sparkmeta rewrite-manifests` or table.maintenance.rewrite_manifests() rewrites its manifests"
    raise UnsupportedError(f"{problem}: {rewrite}; this operation needs {upgrade}")


TableT = TypeVar("TableT", bound=BaseTable)
