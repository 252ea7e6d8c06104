"""Tables of catalogs that hold the location of the current metadata file, which sparkmeta writes."""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sparkmeta.errors import NoSuchNamespaceError, NoSuchTableError
from sparkmeta.operations.catalog_errors import catalog_errors
from sparkmeta.operations.table_operations import (
    Outcome,
    TableVersion,
    encoded,
    failure,
    has_any_snapshot,
    is_compressed,
    load_version,
    metadata_folder,
    new_snapshot_ids,
    next_version,
)
from sparkmeta.storage.location import file_name, join
from sparkmeta.storage.writing import discard

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PointerOperations(ABC):
    """The operations of a table in a pyiceberg catalog that holds the location of its metadata file.

    Every format version is supported, since the catalog does not read the file.

    Attributes:
        identifier: the names of the namespace, and the table's name.
        table_uuid: the UUID of the expected table; None for any.
    """

    refusal: ClassVar[str | None] = None
    replaces_metadata: ClassVar[bool] = True

    catalog: Any
    identifier: tuple[str, ...]
    files: Files
    table_uuid: uuid.UUID | None = None

    def refresh(self) -> TableVersion:
        """See `TableOperations.refresh`."""
        with catalog_errors(self.catalog, self.identifier):
            location = self._current_location()
        if location is None:
            raise self._no_such_table()
        return load_version(self.files, location, self.table_uuid)

    def commit(self, base: TableVersion | None, new: TableMetadata) -> TableVersion:
        """See `TableOperations.commit`. Also raises NoSuchNamespaceError for a new table in an unknown namespace."""
        if base is None:
            refuse_missing_namespace(self.catalog, self.identifier)
        metadata, dropped = next_version(base, new)
        compressed = is_compressed(metadata.properties)
        base_location = None if base is None else base.metadata_location
        location = next_location(base_location, metadata_folder(metadata), compressed)
        attempt = PointerCommit(base, TableVersion(location, metadata), new_snapshot_ids(base, metadata))
        data = encoded(metadata, compressed, location, base)
        try:
            self.files.write_new(location, data)
        except OSError as error:
            discard(self.files, [location])
            raise failure(Outcome.LOST, location, error) from error
        self._move(attempt)
        discard(self.files, dropped)
        return attempt.version

    @abstractmethod
    def _current_location(self) -> str | None:
        """Return the location in the catalog; None if it has no such table."""

    @abstractmethod
    def _move(self, attempt: PointerCommit) -> None:
        """Point the catalog to the attempt's file. Delete the file if the catalog certainly does not point to it."""

    def _no_such_table(self) -> NoSuchTableError:
        return NoSuchTableError(
            f"{'.'.join(self.identifier)}: there is no such table in the catalog {self.catalog.name}"
        )


@dataclass(frozen=True)
class PointerCommit:
    """An attempt to commit: its base, the version that it writes, and the snapshots that it adds."""

    base: TableVersion | None
    version: TableVersion
    snapshot_ids: set[int]

    @property
    def properties(self) -> dict[str, str]:
        """The table properties that the attempt commits."""
        return self.version.metadata.properties

    def outcome_in(self, current: TableMetadata) -> Outcome:
        """Return the outcome if the catalog points to a third version: won if it follows from this one."""
        logged = {entry.metadata_file for entry in current.metadata_log}
        if self.version.metadata_location in logged or has_any_snapshot(current, self.snapshot_ids):
            return Outcome.WON
        if self.base is None:
            return Outcome.LOST if current.table_uuid != self.version.metadata.table_uuid else Outcome.WON
        return Outcome.LOST if self.base.metadata_location in logged else Outcome.UNKNOWN


def refuse_missing_namespace(catalog: Any, identifier: tuple[str, ...]) -> None:
    """Raise NoSuchNamespaceError if a catalog lacks the namespace of a new table or view."""
    with catalog_errors(catalog, identifier):
        if not catalog.namespace_exists(identifier[:-1]):
            raise NoSuchNamespaceError(f"{'.'.join(identifier)}: there is no such namespace")


def next_location(base: str | None, folder: str, compressed: bool) -> str:
    """Return `<version>-<uuid>.metadata.json` with the version after the base's, or 0 if the base has none."""
    number = file_name(base or "").partition("-")[0]
    version = int(number) + 1 if number.isdecimal() else 0
    extension = ".gz.metadata.json" if compressed else ".metadata.json"
    return join(folder, f"{version:05d}-{uuid.uuid4()}{extension}")
