"""The atomic swap of table metadata: what every way to do it shares (table spec, Optimistic Concurrency)."""

from __future__ import annotations

import gzip
import time
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sparkmeta.errors import CommitFailedError, CommitStateUnknownError, ValidationError, shown
from sparkmeta.spec.metadata import MetadataLogEntry, parse_table_metadata, serialize_table_metadata
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files

METADATA_PATH = "write.metadata.path"
_CODEC = "write.metadata.compression-codec"
_PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
_STATUS_CHECK = "commit.status-check."


class TableVersion(NamedTuple):
    """One version of a table: its metadata file, and what is in it."""

    metadata_location: str
    metadata: TableMetadata


class Swap(Protocol):
    """A table's pointer to its current metadata file, moved by one committer at a time."""

    def load(self) -> TableVersion:
        """The current version.

        Raises NoSuchTableError, and ValidationError where another table has taken the place of the one that is known.
        """

    def commit(self, base_location: str | None, base: TableMetadata | None, new: TableMetadata) -> TableVersion:
        """Puts ``new`` in the place of ``base``, if that is the current version still; the base of a new table is None.

        What is returned is what was written: ``new`` and its metadata log, which now ends with the base's file; the
        next commit's base. With ``write.metadata.delete-after-commit.enabled`` the files that the log drops
        (``write.metadata.previous-versions-max``) are deleted after a success, never otherwise.

        Raises:
            CommitFailedError: nothing was committed, since another commit came first or the write failed: refresh
                and try again.
            CommitStateUnknownError: the commit may have succeeded. Nothing that it names may be deleted.
            TableAlreadyExistsError: there is a table, and no base.
            NoSuchTableError, ValidationError, UnsupportedError, OSError: nothing was committed, nor will it be.
        """


class Outcome(Enum):
    """Whether an attempt to commit succeeded."""

    WON = "won"
    LOST = "lost"
    UNKNOWN = "unknown"


class NextVersion(NamedTuple):
    """What a commit writes, and the metadata files that it leaves to nobody: to delete after a success."""

    metadata: TableMetadata
    dropped: list[str]


def next_version(base_location: str | None, base: TableMetadata | None, new: TableMetadata) -> NextVersion:
    """``new`` with the base's file at the end of its metadata log, of which the last
    ``write.metadata.previous-versions-max`` files stay, at least one.

    Raises ValidationError for a property that is not what it has to be, and where base and new are different tables.
    """
    if base_location is None or base is None:
        return NextVersion(new.model_copy(update={"metadata_log": []}), [])
    if base.table_uuid is not None and base.table_uuid != new.table_uuid:
        raise ValidationError(f"{base_location}: table-uuid is {base.table_uuid}: it can't become {new.table_uuid}")
    entry = MetadataLogEntry.model_validate({"metadata-file": base_location, "timestamp-ms": base.last_updated_ms})
    log = [*base.metadata_log, entry]
    kept = log[-max(1, _integer(new.properties, _PREVIOUS_VERSIONS, 100)) :]
    dropped = [one.metadata_file for one in log[: -len(kept)]] if _deletes(new.properties) else []
    kept_files = {one.metadata_file for one in kept}
    return NextVersion(
        new.model_copy(update={"metadata_log": kept}), [location for location in dropped if location not in kept_files]
    )


def metadata_folder(metadata: TableMetadata) -> str:
    """The folder of a table's metadata files, roots and manifests: `write.metadata.path`, which no table of a file
    system may have, or the one below its location."""
    return metadata.properties.get(METADATA_PATH) or join(metadata.location, "metadata")


def is_compressed(properties: Mapping[str, str]) -> bool:
    """Whether metadata files are gzip. Raises ValidationError for another codec."""
    codec = properties.get(_CODEC, "none").lower()
    if codec not in {"none", "gzip"}:
        raise ValidationError(f"the table property {_CODEC} is {shown(codec)}: it takes none or gzip")
    return codec == "gzip"


def encoded(metadata: TableMetadata, compressed: bool) -> bytes:
    """The bytes of a metadata file; the same ones for the same metadata."""
    text = serialize_table_metadata(metadata).encode()
    return gzip.compress(text, mtime=0) if compressed else text


def load_version(files: Files, location: str, table_uuid: UUID | None) -> TableVersion:
    """The version in a metadata file. Raises ValidationError where it is not of the table that is known."""
    metadata = parse_table_metadata(files.read(location), location)
    refuse_other_table(location, metadata.table_uuid, table_uuid)
    return TableVersion(location, metadata)


def refuse_other_table(location: str, found: UUID | None, known: UUID | None) -> None:
    """Raises ValidationError where a table has been dropped and another made in its place."""
    if known is not None and found is not None and found != known:
        raise ValidationError(f"{location}: table-uuid is {found}: the table that is committed to is {known}")


def new_snapshot_ids(base: TableMetadata | None, new: TableMetadata) -> set[int]:
    """The snapshots that a commit adds: no other commit has their ids."""
    before = {snapshot.snapshot_id for snapshot in base.snapshots} if base is not None else set()
    return {snapshot.snapshot_id for snapshot in new.snapshots} - before


def has_any_snapshot(metadata: TableMetadata, snapshot_ids: set[int]) -> bool:
    """Whether one of these snapshots is in a table's metadata, or was its current one."""
    logged = (entry.snapshot_id for entry in metadata.snapshot_log)
    return bool(snapshot_ids.intersection(logged) or any(metadata.snapshot_by_id(one) for one in snapshot_ids))


def outcome_of(check: Callable[[], Outcome], properties: Mapping[str, str]) -> Outcome:
    """What a check finds out about a commit whose answer was lost, asked again while it finds out nothing.

    ``commit.status-check.`` ``num-retries``, ``min-wait-ms``, ``max-wait-ms``, ``total-timeout-ms``: how often, and
    how long between. A check that fails finds out nothing.
    """
    wait = _integer(properties, f"{_STATUS_CHECK}min-wait-ms", 1_000)
    longest = _integer(properties, f"{_STATUS_CHECK}max-wait-ms", 60_000)
    end = time.monotonic() + _integer(properties, f"{_STATUS_CHECK}total-timeout-ms", 1_800_000) / 1000
    for again in reversed(range(1 + max(0, _integer(properties, f"{_STATUS_CHECK}num-retries", 3)))):
        outcome = _checked(check)
        if outcome is not Outcome.UNKNOWN or not again or time.monotonic() > end:
            return outcome
        time.sleep(min(wait, longest) / 1000)
        wait *= 2
    return Outcome.UNKNOWN


def failure(
    outcome: Outcome, location: str, cause: BaseException | None
) -> CommitFailedError | CommitStateUnknownError:
    """The error for an attempt to write ``location`` that was not won."""
    reason = f": {cause}" if cause is not None else ""
    if outcome is Outcome.LOST:
        return CommitFailedError(f"{location} was not committed{reason}")
    return CommitStateUnknownError(f"{location} may have been committed, and that can't be found out{reason}")


def _checked(check: Callable[[], Outcome]) -> Outcome:
    try:
        return check()
    except Exception:  # noqa: BLE001 - whatever keeps the check from an answer, there is none
        return Outcome.UNKNOWN


def _deletes(properties: Mapping[str, str]) -> bool:
    return properties.get(_DELETE_AFTER_COMMIT, "false").lower() == "true"


def _integer(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ValidationError(f"the table property {name} is {shown(text)}: it takes a whole number") from None
