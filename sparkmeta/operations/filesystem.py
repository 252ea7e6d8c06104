"""File system tables, in which a commit publishes the next `v<N>.metadata.json` only if it is absent."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sparkmeta.errors import (
    CommitFailedError,
    NoSuchTableError,
    NotFoundError,
    TableAlreadyExistsError,
    UnsupportedError,
)
from sparkmeta.operations.metadata_files import (
    METADATA,
    VERSIONED_FILES,
    hint_location,
    hinted_version,
    newest_listed,
    version_of,
    versioned_location,
)
from sparkmeta.operations.table_operations import (
    Outcome,
    TableVersion,
    encoded,
    failure,
    has_any_snapshot,
    is_compressed,
    load_version,
    new_snapshot_ids,
    next_version,
    outcome_of,
    refuse_other_table,
)
from sparkmeta.spec.metadata import parse_table_uuid
from sparkmeta.spec.table_properties import METADATA_PATH
from sparkmeta.storage.location import file_name, is_local, join
from sparkmeta.storage.writing import discard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files

# Attempts to load the newest version. Only several other commits can delete a listed version before it is read.
_LOADS = 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileSystemOperations:
    """The operations of a table in a folder.

    The next file's name has the codec of the base, so that all commits on one base compete for one name. A new
    `write.metadata.compression-codec` takes effect with the commit after the one that sets it.

    Attributes:
        table_uuid: the UUID of the expected table; None for any.
        refusal: the reason why the table can't be committed to, if it belongs to a catalog; else None.
    """

    replaces_metadata: ClassVar[bool] = True

    files: Files
    folder: str
    table_uuid: UUID | None = None
    refusal: str | None = None

    def refresh(self) -> TableVersion:
        """See `TableOperations.refresh`. Lists the folder, since hints may be outdated and versions may have gaps."""
        for _ in range(_LOADS - 1):
            # The newest listed version may be deleted before it is read.
            with suppress(NotFoundError):
                return self._load_newest()
        return self._load_newest()

    def commit(self, base: TableVersion | None, new: TableMetadata) -> TableVersion:
        """See `TableOperations.commit`.

        Also raises UnsupportedError if the table would move, or belongs to a catalog.
        """
        _refuse_move(self.folder, base, new)
        metadata, dropped = next_version(base, new)
        version = 1 if base is None else _version(base.metadata_location) + 1
        compressed = base is not None and is_compressed(base.metadata.properties)
        location = versioned_location(self.folder, version, compressed)
        is_compressed(new.properties)
        attempt = _Attempt(
            base,
            TableVersion(location, metadata),
            encoded(metadata, compressed, location, base),
            new_snapshot_ids(base, metadata),
        )
        self._refuse_stale(base)
        self._publish(attempt)
        self._tidy(version, dropped)
        return attempt.version

    def drop(self) -> str:
        """Drop the table: write its current metadata to a file that is not a version, and delete all versions.

        The newest version is deleted last, so that the table exists until then. A version that is committed after the
        listing stays.

        Returns:
            The location of the file with the current metadata.

        Raises:
            NoSuchTableError, ValidationError: see `refresh`.
            CommitFailedError: other commits come first repeatedly. Nothing is deleted.
            OSError: not all versions are deleted.
        """
        (newest, metadata), older = self._all_versions()
        folder = join(self.folder, METADATA)
        dropped = join(folder, f"dropped-{uuid.uuid4()}.json")
        self.files.write_new(dropped, encoded(metadata, compressed=False, location=dropped))
        for batch in ([hint_location(self.folder), *older], [newest]):
            for location, reason in self.files.delete_many(batch):
                raise OSError(f"{location}: not deleted: {reason}")
        return dropped

    def _all_versions(self) -> tuple[TableVersion, list[str]]:
        """Return the current version, and the files of all older versions, oldest first."""
        for _ in range(_LOADS):
            newest = self.refresh()
            listed = (status.location for status in self.files.list(join(self.folder, METADATA), VERSIONED_FILES))
            versions = {location: version for location in listed if (version := version_of(location)) is not None}
            older = sorted(versions.keys() - {newest.metadata_location}, key=versions.__getitem__)
            if not older or versions[older[-1]] <= _version(newest.metadata_location):
                return newest, older
        raise CommitFailedError(f"{self.folder}: was not dropped: each of {_LOADS} listings has a newer version")

    def _load_newest(self) -> TableVersion:
        return load_version(self.files, newest_listed(self.files, self.folder).location, self.table_uuid)

    def _refuse_stale(self, base: TableVersion | None) -> None:
        """Raise CommitFailedError if the base is not the newest version.

        Publishing does not detect a base so old that the next version has been deleted.
        """
        try:
            newest = newest_listed(self.files, self.folder).location
        except NoSuchTableError:
            if base is None:
                return
            raise
        if base is None:
            raise TableAlreadyExistsError(f"{self.folder}: there is a table already: {newest}")
        stale = f"{base.metadata_location} is no longer the current version"
        if file_name(newest) != file_name(base.metadata_location):
            raise CommitFailedError(f"{stale}: {newest} is")
        try:
            table_uuid = parse_table_uuid(self.files.read(newest), newest)
        except NotFoundError as error:
            raise CommitFailedError(f"{stale}: it is deleted") from error
        refuse_other_table(newest, table_uuid, base.metadata.table_uuid)

    def _publish(self, attempt: _Attempt) -> None:
        cause: Exception | None = None
        try:
            self.files.publish(attempt.version.metadata_location, attempt.data)
        except UnsupportedError:
            raise
        except Exception as error:  # noqa: BLE001 - after any other error, the file may have been written
            cause = error
        try:
            if cause is None and self._is_newest(attempt.version.metadata_location):
                return
            # Other commits have followed, on this version or on a deleted one with the same name.
        except Exception as error:  # noqa: BLE001 - the file has been written
            cause = error
        outcome = outcome_of(lambda: self._outcome(attempt), attempt.version.metadata.properties)
        if outcome is Outcome.LOST:
            self._withdraw(attempt)
        if outcome is not Outcome.WON:
            raise failure(outcome, attempt.version.metadata_location, cause) from cause

    def _is_newest(self, location: str) -> bool:
        """Return whether neither the listing nor the hint names a later version.

        A listing alone may miss concurrent changes.
        """
        listed = newest_listed(self.files, self.folder)
        return listed.location == location and (hinted_version(self.files, self.folder) or 0) <= listed.version

    def _outcome(self, attempt: _Attempt) -> Outcome:
        ours = self._is_ours(attempt)
        if ours is False:
            return Outcome.LOST
        try:
            newest = self.refresh()
        except NoSuchTableError:
            is_settled = attempt.base is None and is_local(self.folder)
            return Outcome.LOST if is_settled else Outcome.UNKNOWN
        if attempt.is_in(newest, ours is True):
            return Outcome.WON
        if ours is None:
            # A write to a disk has ended, but a request to a store may still be under way.
            is_unmoved = attempt.base is not None and newest.metadata_location == attempt.base.metadata_location
            return Outcome.LOST if is_unmoved and is_local(self.folder) else Outcome.UNKNOWN
        return Outcome.LOST if attempt.snapshot_ids else Outcome.UNKNOWN

    def _is_ours(self, attempt: _Attempt) -> bool | None:
        """Return whether the attempt wrote the file at its location; None if there is no file."""
        try:
            return self.files.read(attempt.version.metadata_location) == attempt.data
        except NotFoundError:
            return None

    def _withdraw(self, attempt: _Attempt) -> None:
        """Delete the file of a lost attempt, which could be written because an old version had been deleted."""
        with suppress(Exception):
            if self._is_ours(attempt):
                self.files.delete_many([attempt.version.metadata_location])

    def _tidy(self, version: int, dropped: Sequence[str]) -> None:
        """Write the hint and delete old metadata files. Failures are logged, since the hint may be outdated."""
        try:
            hinted = hinted_version(self.files, self.folder)
            if hinted is None or hinted < version:
                # Readers list the folder if a crash tears or loses the hint.
                self.files.overwrite(hint_location(self.folder), str(version).encode(), syncs=False)
            discard(self.files, dropped)
        except Exception as error:  # noqa: BLE001 - the commit has succeeded
            _log.warning("%s: version %d is committed; after it: %s", self.folder, version, error)


@dataclass(frozen=True)
class _Attempt:
    """An attempt to commit: its base, the version that it writes, and the snapshots that it adds."""

    base: TableVersion | None
    version: TableVersion
    data: bytes
    snapshot_ids: set[int]

    def is_in(self, newest: TableVersion, ours: bool) -> bool:
        """Return whether the newest version is the attempt's own, or follows from it.

        A version follows if it has the attempt's snapshots. If the attempt adds none, the version's metadata log must
        have both the name and the time of the attempt's version, since another version may have had the name.

        Args:
            ours: whether the file at the attempt's location exists and was written by it.
        """
        if ours and newest.metadata_location == self.version.metadata_location:
            return True
        if has_any_snapshot(newest.metadata, self.snapshot_ids):
            return True
        if self.snapshot_ids and not ours:
            return False
        mine = (file_name(self.version.metadata_location), self.version.metadata.last_updated_ms)
        logged = {(file_name(entry.metadata_file), entry.timestamp_ms) for entry in newest.metadata.metadata_log}
        return mine in logged


def _version(base_location: str) -> int:
    if (version := version_of(base_location)) is None:
        raise UnsupportedError(f"{base_location}: it belongs to a catalog's table: commit through the catalog")
    return version


def _refuse_move(folder: str, base: TableVersion | None, new: TableMetadata) -> None:
    if base is not None and base.metadata.location != new.location:
        raise UnsupportedError(f"{folder}: a file system table can't move to {new.location}")
    if METADATA_PATH in new.properties:
        raise UnsupportedError(f"{folder}: a file system table can't have the property {METADATA_PATH}")
