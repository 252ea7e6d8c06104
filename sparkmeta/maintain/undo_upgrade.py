"""Revert an upgrade to the metadata tree, as long as no commit has written a root."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from sparkmeta.edit.attempts import commit_steps
from sparkmeta.errors import NotFoundError, ValidationError
from sparkmeta.operations.base_table import TableT
from sparkmeta.spec.metadata import parse_table_metadata
from sparkmeta.spec.metadata_model import TableMetadataV4
from sparkmeta.spec.upgrade import undo_upgrade

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class UndoUpgradePlan(Generic[TableT]):
    """A plan to revert an upgrade, carried out by `commit`.

    Attributes:
        to_version: the format version before the upgrade.
    """

    table: TableT
    to_version: int

    def __str__(self) -> str:
        snapshots = len(self.table.metadata.snapshots)
        return "\n".join(
            [
                f"{self.table.full_name}: the metadata tree becomes format version {self.to_version} again",
                f"{snapshots} snapshots keep their manifest lists; changes since the upgrade stay",
            ]
        )

    def commit(self) -> TableT:
        """Commit the metadata in the earlier version and return the new table.

        Raises:
            CommitFailedError: all attempts lost to concurrent commits (`commit.retry.num-retries`).
            CommitStateUnknownError: the commit may have succeeded.
            ValidationError: another commit has written a root.
        """
        return commit_steps(self.table, [self])

    def apply(self, state: TableState) -> TableMetadata:
        """Return the metadata of a state in the earlier version. For `commit`."""
        undone = undo_upgrade(_of_tree(state.metadata), self.to_version)
        now = max(int(time.time() * 1000), undone.last_updated_ms)
        return undone.model_copy(update={"last_updated_ms": now})


def plan_undo_upgrade(table: TableT, format_version: int | None) -> UndoUpgradePlan[TableT]:
    """See `Maintenance.undo_upgrade`."""
    metadata = _of_tree(table.metadata)
    if format_version is not None and format_version not in (1, 2, 3, 4):
        raise ValidationError(f"{table.full_name}: there is no format version {format_version} to go back to")
    version = _version_before(table.state) if format_version is None else format_version
    undo_upgrade(metadata, version)
    table.refuse_read_only()
    return UndoUpgradePlan(table, version)


def _of_tree(metadata: TableMetadata) -> TableMetadataV4:
    if not isinstance(metadata, TableMetadataV4) or metadata.layout_revision is None:
        raise ValidationError(f"{metadata.location}: the table has no metadata tree, so there is no upgrade to undo")
    return metadata


def _version_before(state: TableState) -> int:
    """Return the format version of the newest metadata file in the log that has no tree."""
    for entry in reversed(state.metadata.metadata_log):
        try:
            logged = parse_table_metadata(state.files.read(entry.metadata_file), entry.metadata_file)
        except NotFoundError:
            break
        if getattr(logged, "layout_revision", None) is None:
            return logged.format_version
    raise ValidationError(
        f"{state.metadata.location}: the metadata log does not show the table's format version before its "
        "upgrade: pass it as format_version"
    )
