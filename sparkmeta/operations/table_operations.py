"""`BaseTable` and `TableOperations`: a table's state, and the protocol to load and commit its metadata."""

from __future__ import annotations

import gzip
import re
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn, Protocol, Self, TypeVar

from sparkmeta.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    CorruptFileError,
    InvalidArgumentError,
    UnsupportedError,
    ValidationError,
    first_line,
    shown,
    with_command_line_message,
)
from sparkmeta.snapshot.state import TableState
from sparkmeta.spec.metadata import (
    MetadataLogEntry,
    TableMetadataV4,
    has_tree,
    metadata_file_text,
    note_parsed,
    parse_table_metadata,
)
from sparkmeta.spec.table_properties import METADATA_PATH, RELATIVE_LOCATIONS, flag_property, status_checks
from sparkmeta.storage.location import file_name, join, normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files


# -- Load and commit table metadata -----------------------------------------------------------------------------------
# See Optimistic Concurrency in the table spec.


_CODEC = "write.metadata.compression-codec"
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
OPENED_BY_PATH = (
    "the table was opened by its path: open it through its catalog or, if it is a file system table, by its folder"
)
# Why a catalog that writes metadata files itself refuses a metadata tree.
TREES_ELSEWHERE = (
    "this catalog can't hold tables of format version 4 with a metadata tree: "
    "SQL catalogs, Glue and file system tables can"
)


class TableVersion(NamedTuple):
    """A version of a table: its metadata file, and the metadata in it."""

    metadata_location: str
    metadata: TableMetadata


class TableOperations(Protocol):
    """A table's pointer to its current metadata file, which one committer at a time can move."""

    @property
    def refusal(self) -> str | None:
        """The reason why the table can't be committed to; None if it can."""

    @property
    def replaces_metadata(self) -> bool:
        """Whether a commit replaces the whole metadata, which may then describe a metadata tree (format version 4).

        Otherwise the catalog receives updates, with requirements for some parts of the base. It accepts them even if
        other parts have changed.
        """

    def refresh(self) -> TableVersion:
        """Load the current version.

        Raises:
            NoSuchTableError: the table is gone.
            ValidationError: another table has taken its place.
        """

    def commit(self, base: TableVersion | None, new: TableMetadata) -> TableVersion:
        """Replace `base` with `new`, if the base is still the current version.

        With `write.metadata.delete-after-commit.enabled`, the files that the metadata log drops
        (`write.metadata.previous-versions-max`) are deleted after a success, never otherwise.

        Args:
            base: the version that `new` was made from; None creates the table.
            new: the metadata to commit.

        Returns:
            The version that was written, with the base's file at the end of its metadata log.

        Raises:
            CommitFailedError: nothing was committed, since another commit came first or the write failed. Refresh and
                try again.
            CommitStateUnknownError: the commit may have succeeded. None of its files may be deleted.
            TableAlreadyExistsError: the table to create exists.
            NoSuchTableError, ValidationError, UnsupportedError, OSError: nothing was committed, and retries are futile.
        """


@dataclass(frozen=True)
class StaticOperations:
    """The operations of one metadata file, for which newer versions are unknown.

    Attributes:
        refusal: the reason why the table can't be committed to.
    """

    replaces_metadata: ClassVar[bool] = True

    version: TableVersion
    refusal: str = OPENED_BY_PATH

    def refresh(self) -> TableVersion:
        """Return the version itself."""
        return self.version

    def commit(self, base: TableVersion | None, new: TableMetadata) -> NoReturn:  # noqa: ARG002  the protocol's
        """Raise UnsupportedError."""
        raise UnsupportedError(f"{self.version.metadata_location}: {self.refusal}")


@dataclass(frozen=True)
class NewTableOperations:
    """The operations of a table that does not exist yet: the first commit creates it.

    Attributes:
        version: the metadata that the table begins with, and a location that names it in errors.
        operations: the operations of the table once it exists.
    """

    refusal: ClassVar[str | None] = None
    # The first commit sends all metadata.
    replaces_metadata: ClassVar[bool] = True

    version: TableVersion
    operations: TableOperations

    def refresh(self) -> TableVersion:
        """Return the metadata that the table begins with."""
        return self.version

    def commit(self, base: TableVersion | None, new: TableMetadata) -> TableVersion:  # noqa: ARG002  the protocol's
        """Create the table; see `TableOperations.commit`."""
        return self.operations.commit(None, new)


def new_version(metadata: TableMetadata) -> TableVersion:
    """Return the metadata of a table that does not exist yet, and a location that names it in errors."""
    return TableVersion(join(metadata_folder(metadata), "new.metadata.json"), metadata)


class Outcome(Enum):
    """The outcome of an attempt to commit."""

    WON = "won"
    LOST = "lost"
    UNKNOWN = "unknown"


class NextVersion(NamedTuple):
    """The metadata that a commit writes, and the files that its log drops, to delete after a success."""

    metadata: TableMetadata
    dropped: list[str]


def next_version(base: TableVersion | None, new: TableMetadata) -> NextVersion:
    """Append the base's file to the metadata log of `new`, and truncate the log.

    The last `write.metadata.previous-versions-max` entries stay, at least one. A tree changes to absolute locations if
    its table property requires them.

    Raises:
        ValidationError: a property has an invalid value, or base and new are different tables.
    """
    if isinstance(new, TableMetadataV4):
        is_relative = flag_property(new.properties, RELATIVE_LOCATIONS, default=True, location=new.location)
        new = new if is_relative or not new.relative_locations else new.model_copy(update={"relative_locations": False})
    if base is None:
        return NextVersion(new.model_copy(update={"metadata_log": []}), [])
    location, before = base
    if before.table_uuid is not None and before.table_uuid != new.table_uuid:
        raise ValidationError(f"{location}: table-uuid is {before.table_uuid}: it can't become {new.table_uuid}")
    file = _as_in_table(location, new)
    entry = MetadataLogEntry.model_validate({"metadata-file": file, "timestamp-ms": before.last_updated_ms})
    log = [*before.metadata_log, entry]
    remaining = log[-max(1, _integer(new.properties, _PREVIOUS_VERSIONS, 100)) :]
    remaining_files = {logged.metadata_file for logged in remaining}
    removed = log[: -len(remaining)] if _deletes(new.properties) else []
    dropped = [logged.metadata_file for logged in removed if logged.metadata_file not in remaining_files]
    return NextVersion(new.model_copy(update={"metadata_log": remaining}), dropped)


def _as_in_table(location: str, metadata: TableMetadata) -> str:
    """Return the location of a metadata file, in the spelling of the table's location.

    Otherwise the log of a tree with relative locations would name the location before the table moved.
    """
    if not isinstance(metadata, TableMetadataV4) or not metadata.relative_locations:
        return location
    in_table = join(metadata_folder(metadata), file_name(location))
    return in_table if normalize(in_table) == normalize(location) else location


def metadata_folder(metadata: TableMetadata) -> str:
    """Return the folder of a table's metadata files, roots and manifests.

    This is the property `write.metadata.path`, which file system tables can't have, or the folder `metadata`.
    """
    return metadata.properties.get(METADATA_PATH) or join(metadata.location, "metadata")


def is_compressed(properties: Mapping[str, str], default: str = "none") -> bool:
    """Return whether metadata files are gzipped. Raises ValidationError for another codec."""
    codec = properties.get(_CODEC, default).lower()
    if codec not in {"none", "gzip"}:
        raise ValidationError(f"the property {_CODEC} is {shown(codec)}: expected none or gzip")
    return codec == "gzip"


def readable_text(metadata: TableMetadata, location: str, base: TableVersion | None) -> bytes:
    """Return the JSON of new metadata, after it has been parsed as readers do.

    Args:
        location: the file to write, for error messages.
        base: the version that the metadata was made from.

    Raises:
        ValidationError: no reader could read the file.
    """
    try:
        return metadata_file_text(metadata, None if base is None else base.metadata, location)
    except CorruptFileError as error:
        problem = f"{error.field} is {error.value}: {error.problem}"
        raise ValidationError(f"{location}: the new metadata could not be read again: {problem}") from error
    except ValueError as error:  # of pydantic, or text that UTF-8 can't encode
        raise ValidationError(f"{location}: the new metadata can't be written: {first_line(error)}") from error


def encoded(metadata: TableMetadata, compressed: bool, location: str, base: TableVersion | None = None) -> bytes:
    """Return the bytes of a metadata file. They are deterministic. Raises ValidationError, see `readable_text`."""
    text = readable_text(metadata, location, base)
    data = gzip.compress(text, mtime=0) if compressed else text
    note_parsed(data, location, metadata)
    return data


def load_version(files: Files, location: str, table_uuid: UUID | None = None) -> TableVersion:
    """Read a metadata file.

    Raises:
        ValidationError: its table-uuid is not `table_uuid`.
    """
    metadata = parse_table_metadata(files.read(location), location)
    refuse_other_table(location, metadata.table_uuid, table_uuid)
    return TableVersion(location, metadata)


def refuse_other_table(location: str, table_uuid: UUID | None, expected: UUID | None) -> None:
    """Raise ValidationError if a table was dropped and another one created in its place."""
    if expected is not None and table_uuid is not None and table_uuid != expected:
        raise ValidationError(f"{location}: table-uuid is {table_uuid}: the table that was opened here is {expected}")


def new_snapshot_ids(base: TableVersion | None, new: TableMetadata) -> set[int]:
    """Return the ids of the snapshots that a commit adds, which no other commit has."""
    before = {snapshot.snapshot_id for snapshot in base.metadata.stored_snapshots} if base is not None else set()
    return {snapshot.snapshot_id for snapshot in new.stored_snapshots} - before


def has_any_snapshot(metadata: TableMetadata, snapshot_ids: set[int]) -> bool:
    """Return whether the table has one of the snapshots, or had it as its current one."""
    logged = (entry.snapshot_id for entry in metadata.snapshot_log)
    return bool(snapshot_ids.intersection(logged) or not snapshot_ids.isdisjoint(metadata.stored_by_id))


def outcome_of(check: Callable[[], Outcome], properties: Mapping[str, str]) -> Outcome:
    """Repeat the check of a commit that got no response, until its outcome is known or the retries are used up.

    A check that fails leaves the outcome unknown: callers would take an error for a proof that nothing was committed.
    The table properties `commit.status-check.*` control retries and waits.
    """
    limits = status_checks(properties)
    end = time.monotonic() + limits.total_ms / 1000
    for attempt in range(limits.count + 1):
        outcome = _checked(check)
        if outcome is not Outcome.UNKNOWN or attempt == limits.count or time.monotonic() > end:
            return outcome
        time.sleep(limits.longest_wait_ms(attempt) / 1000)
    return Outcome.UNKNOWN


def failure(
    outcome: Outcome, location: str, cause: BaseException | None
) -> CommitFailedError | CommitStateUnknownError:
    """Return the error of an unsuccessful attempt to commit the metadata file at `location`."""
    reason = f": {cause}" if cause is not None else ""
    if outcome is Outcome.LOST:
        return CommitFailedError(f"{location} was not committed{reason}")
    return CommitStateUnknownError(f"{location} may have been committed: its outcome is unknown{reason}")


def _checked(check: Callable[[], Outcome]) -> Outcome:
    try:
        return check()
    except Exception:  # noqa: BLE001 - after any error, the outcome stays unknown
        return Outcome.UNKNOWN


def _deletes(properties: Mapping[str, str]) -> bool:
    return properties.get(_DELETE_AFTER_COMMIT, "false").lower() == "true"


def _integer(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default))
    if not _INTEGER.fullmatch(text):
        raise ValidationError(f"the table property {name} is {shown(text)}: expected a whole number")
    return int(text)


# -- `BaseTable` ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BaseTable:
    """One version of a table.

    Attributes:
        state: the version's metadata and current snapshot.
        metadata_location: the metadata file that the version was read from.
        identifier: the table's identifier in its catalog, or else its folder or metadata file.
        operations: loads and commits newer versions.
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
        """The metadata of this version."""
        return self.state.metadata

    @property
    def version(self) -> TableVersion:
        """The metadata and its file, which is the base of the next commit."""
        return TableVersion(self.metadata_location, self.metadata)

    def at(self, version: TableVersion) -> Self:
        """Return the table at another version of its metadata.

        Raises:
            InvalidArgumentError: the argument is not a version but, for example, the id of a snapshot.
        """
        if not isinstance(version, TableVersion):
            problem = "expected a TableVersion; scan(snapshot_id=...) reads a snapshot"  # type: ignore[unreachable]
            raise InvalidArgumentError(f"{self.full_name}: at is {shown(version)}: {problem}")
        location, metadata = version
        state = replace(self.state, metadata=metadata, snapshot=metadata.current_snapshot(), root=None)
        return replace(self, state=state, metadata_location=location)

    def refresh(self) -> Self:
        """Return the current version of the table, or the same one if it was opened by the path of a metadata file.

        Raises:
            NoSuchTableError: the table is gone.
            ValidationError: another table has taken its place.
        """
        current = self.operations.refresh()
        return self if current == self.version else self.at(current)


def refuse_read_only(table: BaseTable, *, as_tree: bool = False) -> None:
    """Raise UnsupportedError if a table can't be committed to.

    Args:
        table: the table.
        as_tree: whether the commit converts the table to a metadata tree, if it is not one already.
    """
    if table.operations.refusal is not None:
        raise UnsupportedError(f"{table.full_name}: {table.metadata_location}: {table.operations.refusal}")
    if not table.operations.replaces_metadata and (as_tree or has_tree(table.metadata)):
        raise UnsupportedError(f"{table.full_name}: {TREES_ELSEWHERE}")


def refuse_lists(metadata: TableMetadata, name: str) -> None:
    """Raise UnsupportedError if a table has manifest lists, not a metadata tree.

    Args:
        metadata: the table's metadata.
        name: the table's name.
    """
    if has_tree(metadata):
        return
    problem = f"{name}: it is a table of format version {metadata.format_version} with manifest lists"
    needed = "commits need" if metadata.format_version > 3 else "this operation needs"

    def message(rewrite: str, upgrade: str) -> str:
        other = f"{rewrite} rewrites its manifests; " if metadata.format_version <= 3 else ""
        return f"{problem}: {other}{needed} a metadata tree, which {upgrade} makes"

    in_python = message("table.maintenance.rewrite_manifests()", "table.maintenance.upgrade(4)")
    on_command_line = message("`sparkmeta rewrite-manifests`", "`sparkmeta upgrade --format-version 4`")
    raise with_command_line_message(UnsupportedError(in_python), on_command_line)


def refuse_lists_of_version_4(metadata: TableMetadata, name: str) -> None:
    """Raise UnsupportedError for a table of format version 4 with manifest lists, as other libraries write it."""
    if metadata.format_version > 3:
        refuse_lists(metadata, name)


TableT = TypeVar("TableT", bound=BaseTable)
