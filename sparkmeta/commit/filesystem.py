"""Commits to file system tables: the next ``v<N>.metadata.json``, published whole and only if it is absent."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.catalog.filesystem import (
    METADATA,
    VERSION_HINT,
    hinted_version,
    newest_listed,
    version_of,
    versioned_location,
)
from sparkmeta.commit.swap import (
    METADATA_PATH,
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
from sparkmeta.errors import (
    CommitFailedError,
    NoSuchTableError,
    NotFoundError,
    TableAlreadyExistsError,
    UnsupportedError,
)
from sparkmeta.spec.metadata import parse_table_uuid
from sparkmeta.storage.location import file_name, is_local, join

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files

# Each finds a version that is deleted before it is read only where others have made several commits in between.
_LOADS = 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileSystemSwap:
    """The table in a folder. ``table_uuid``, where given, is the table that is expected there.

    The codec of the base, not of the new metadata, names the next file: all who commit on one base contend for one
    name. So ``write.metadata.compression-codec`` takes effect with the commit after the one that sets it.
    """

    files: Files
    folder: str
    table_uuid: UUID | None = None

    def load(self) -> TableVersion:
        """See ``Swap.load``."""
        for _ in range(_LOADS - 1):
            # It was the current one when it was listed, and an old one, deleted, when it was to be read.
            with suppress(NotFoundError):
                return self._load()
        return self._load()

    def commit(self, base_location: str | None, base: TableMetadata | None, new: TableMetadata) -> TableVersion:
        """See ``Swap.commit``. Raises UnsupportedError also where the table would move, and for a catalog's table."""
        _refuse_move(self.folder, base, new)
        metadata, dropped = next_version(base_location, base, new)
        version = 1 if base_location is None else _version(base_location) + 1
        compressed = base is not None and is_compressed(base.properties)
        location = versioned_location(self.folder, version, compressed)
        is_compressed(new.properties)
        attempt = _Attempt(
            base_location,
            TableVersion(location, metadata),
            encoded(metadata, compressed),
            new_snapshot_ids(base, metadata),
        )
        self._refuse_stale(base_location, base)
        self._publish(attempt)
        self._tidy(version, dropped)
        return attempt.version

    def _load(self) -> TableVersion:
        return load_version(self.files, newest_listed(self.files, self.folder).location, self.table_uuid)

    def _refuse_stale(self, base_location: str | None, base: TableMetadata | None) -> None:
        """The publication decides who wins, but for a base so old that the next version has been deleted since."""
        try:
            newest = newest_listed(self.files, self.folder).location
        except NoSuchTableError:
            if base_location is None:
                return
            raise
        if base_location is None:
            raise TableAlreadyExistsError(f"{self.folder}: there is a table already: {newest}")
        if file_name(newest) != file_name(base_location):
            raise CommitFailedError(f"{base_location} is no longer the current version: {newest} is")
        try:
            found = parse_table_uuid(self.files.read(newest), newest)
        except NotFoundError as error:
            raise CommitFailedError(f"{base_location} is no longer the current version: it is deleted") from error
        refuse_other_table(newest, found, None if base is None else base.table_uuid)

    def _publish(self, attempt: _Attempt) -> None:
        cause: Exception | None = None
        try:
            self.files.publish(attempt.version.metadata_location, attempt.data)
            if self._is_newest(attempt.version.metadata_location):
                return
            # Others have committed since: on this version, or on one that had its name before and was deleted.
        except UnsupportedError:
            raise
        except Exception as error:  # noqa: BLE001 - of whatever kind, the file may have been written
            cause = error
        outcome = outcome_of(lambda: self._outcome(attempt), attempt.version.metadata.properties)
        if outcome is Outcome.LOST:
            self._withdraw(attempt)
        if outcome is not Outcome.WON:
            raise failure(outcome, attempt.version.metadata_location, cause) from cause

    def _is_newest(self, location: str) -> bool:
        """Whether there is no later version. By the hint as well: a listing may miss what comes while it is made."""
        listed = newest_listed(self.files, self.folder)
        return listed.location == location and (hinted_version(self.files, self.folder) or 0) <= listed.version

    def _outcome(self, attempt: _Attempt) -> Outcome:
        ours = self._is_ours(attempt)
        if ours is False:
            return Outcome.LOST
        try:
            newest = self.load()
        except NoSuchTableError:
            nothing = attempt.base_location is None and is_local(self.folder)
            return Outcome.LOST if nothing else Outcome.UNKNOWN
        if attempt.is_in(newest, ours is True):
            return Outcome.WON
        if ours is None:
            # A disk has answered before it is asked again; a request to a store may still be under way.
            unmoved = newest.metadata_location == attempt.base_location and is_local(self.folder)
            return Outcome.LOST if unmoved else Outcome.UNKNOWN
        return Outcome.LOST if attempt.snapshot_ids else Outcome.UNKNOWN

    def _is_ours(self, attempt: _Attempt) -> bool | None:
        """Whether the file of the attempt is its own; None where there is none."""
        try:
            return self.files.read(attempt.version.metadata_location) == attempt.data
        except NotFoundError:
            return None

    def _withdraw(self, attempt: _Attempt) -> None:
        """Deletes the file of an attempt that was lost although it was written: its name had been free again."""
        with suppress(Exception):
            if self._is_ours(attempt):
                self.files.delete_many([attempt.version.metadata_location])

    def _tidy(self, version: int, dropped: Sequence[str]) -> None:
        """What may fail after a commit: the hint, which may lag, and old files, of which none is hinted any more."""
        try:
            hinted = hinted_version(self.files, self.folder)
            if hinted is None or hinted < version:
                hint = join(join(self.folder, METADATA), VERSION_HINT)
                self.files.overwrite(hint, str(version).encode())
            for failed in self.files.delete_many(dropped) if dropped else ():
                _log.warning("%s: not deleted: %s", *failed)
        except Exception as error:  # noqa: BLE001 - the commit has succeeded
            _log.warning("%s: version %d is committed; after it: %s", self.folder, version, error)


@dataclass(frozen=True)
class _Attempt:
    """One try to commit: its base, what it writes, and the snapshots that it adds."""

    base_location: str | None
    version: TableVersion
    data: bytes
    snapshot_ids: set[int]

    def is_in(self, newest: TableVersion, ours: bool) -> bool:
        """Whether a later version follows from this one: that is, from a file which is ours, or which is gone.

        By the new snapshots; without any by the name and time in the log, since a name may be another's.
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
        raise UnsupportedError(
            f"{base_location}: is of a catalog's table, which takes commits through its catalog only"
        )
    return version


def _refuse_move(folder: str, base: TableMetadata | None, new: TableMetadata) -> None:
    if base is not None and base.location != new.location:
        raise UnsupportedError(f"{folder}: a file system table can't move to {new.location}")
    if METADATA_PATH in new.properties:
        raise UnsupportedError(f"{folder}: a file system table can't have the property {METADATA_PATH}")
