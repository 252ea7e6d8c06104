"""Tables of a SQL catalog: rows of `iceberg_tables`, as in Iceberg's JDBC catalog and pyiceberg."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables
from sqlalchemy import insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from sparkmeta.errors import CommitFailedError, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
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
    outcome_of,
)
from sparkmeta.storage.location import file_name, join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import ColumnElement, Connection, CursorResult, Insert, Update

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SqlOperations:
    """The operations of a table in a pyiceberg SQL catalog.

    Every format version is supported, since the catalog stores only the location of the metadata file.

    Attributes:
        identifier: the names of the namespace, and the table's name.
        table_uuid: the expected table; None for any.
    """

    refusal: ClassVar[str | None] = None
    holds_trees: ClassVar[bool] = True

    catalog: SqlCatalog
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
            self._refuse_missing_namespace()
        metadata, dropped = next_version(base, new)
        compressed = is_compressed(metadata.properties)
        location = _next_location(base, metadata, compressed)
        attempt = _Attempt(base, TableVersion(location, metadata), new_snapshot_ids(base, metadata))
        try:
            self.files.write_new(location, encoded(metadata, compressed))
        except OSError as error:
            self._discard([location])
            raise failure(Outcome.LOST, location, error) from error
        self._move(attempt)
        self._discard(dropped)
        return attempt.version

    def _refuse_missing_namespace(self) -> None:
        with catalog_errors(self.catalog, self.identifier):
            if not self.catalog.namespace_exists(self.identifier[:-1]):
                raise NoSuchNamespaceError(f"{'.'.join(self.identifier)}: there is no such namespace")

    def _move(self, attempt: _Attempt) -> None:
        """Point the catalog to the attempt's file. Delete the file if the catalog certainly does not point to it."""
        committing = False
        try:
            with self.catalog.engine.connect() as connection:
                self._execute(connection, attempt)
                committing = True
                _commit(connection)
        except Exception as error:
            # A transaction that fails before its COMMIT was sent is rolled back.
            outcome = outcome_of(lambda: self._outcome(attempt), _properties(attempt)) if committing else Outcome.LOST
            if outcome is Outcome.LOST:
                self._discard([attempt.version.metadata_location])
            if outcome is not Outcome.WON:
                raise self._failure(attempt, outcome, error) from error

    def _execute(self, connection: Connection, attempt: _Attempt) -> None:
        """Execute the statement of a commit. Raises CommitFailedError if the base is no longer the current version."""
        location = attempt.version.metadata_location
        if attempt.base is None:
            connection.execute(self._insert(location))
            return
        count = cast(
            "CursorResult[Any]", connection.execute(self._update(attempt.base.metadata_location, location))
        ).rowcount
        if count == 1:
            return
        current = self._current(connection)
        if current is None:
            raise self._no_such_table()
        # Drivers that don't count rows return -1.
        if count >= 0 or current != location:
            raise CommitFailedError(f"{attempt.base.metadata_location} is no longer the current version: {current} is")

    def _outcome(self, attempt: _Attempt) -> Outcome:
        """Return the outcome of a transaction whose COMMIT got no answer."""
        # The lock waits for an unfinished COMMIT.
        location = self._location(lock=True)
        if location == attempt.version.metadata_location:
            return Outcome.WON
        if location is None:
            # A missing row can't be locked. sqlite has no unfinished COMMIT.
            is_settled = attempt.base is None and self.catalog.engine.dialect.name == "sqlite"
            return Outcome.LOST if is_settled else Outcome.UNKNOWN
        if attempt.base is not None and location == attempt.base.metadata_location:
            return Outcome.LOST
        return attempt.outcome_in(load_version(self.files, location).metadata)

    def _failure(self, attempt: _Attempt, outcome: Outcome, error: Exception) -> Exception:
        if isinstance(error, CommitFailedError | NoSuchTableError):
            return error
        if isinstance(error, IntegrityError) and attempt.base is None and outcome is Outcome.LOST:
            return TableAlreadyExistsError(f"{'.'.join(self.identifier)}: there is such a table already")
        return failure(outcome, attempt.version.metadata_location, error)

    def _no_such_table(self) -> NoSuchTableError:
        return NoSuchTableError(
            f"{'.'.join(self.identifier)}: there is no such table in the catalog {self.catalog.name}"
        )

    def _discard(self, locations: Sequence[str]) -> None:
        """Delete files that no table names any more. Failures are harmless."""
        with suppress(Exception):
            for failed in self.files.delete_many(locations) if locations else ():
                _log.warning("%s: not deleted: %s", *failed)

    def _current_location(self) -> str | None:
        """Return the location in the catalog, with a new connection if the server has closed an idle one."""
        try:
            return self._location()
        except DBAPIError as error:
            # The pool has renewed its connections.
            if not error.connection_invalidated:
                raise
            return self._location()

    def _location(self, *, lock: bool = False) -> str | None:
        with self.catalog.engine.connect() as connection:
            return self._current(connection, lock=lock)

    def _current(self, connection: Connection, *, lock: bool = False) -> str | None:
        """Return the location in the catalog; None if it has no such table."""
        query = select(IcebergTables.metadata_location).where(*self._is_table())
        return connection.execute(query.with_for_update() if lock else query).scalar()

    def _insert(self, location: str) -> Insert:
        namespace, name = self._names()
        return insert(IcebergTables).values(**self.catalog._create_table_row(namespace, name, location))

    def _update(self, base_location: str, location: str) -> Update:
        is_base = IcebergTables.metadata_location == base_location
        moved = {"metadata_location": location, "previous_metadata_location": base_location}
        return update(IcebergTables).where(*self._is_table(), is_base).values(**moved)

    def _is_table(self) -> list[ColumnElement[bool]]:
        namespace, name = self._names()
        no_view = self.catalog._iceberg_type_filter()
        return [
            IcebergTables.catalog_name == self.catalog.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == name,
            *([] if no_view is None else [no_view]),
        ]

    def _names(self) -> tuple[str, str]:
        return Catalog.namespace_to_string(self.identifier[:-1]), self.identifier[-1]


@dataclass(frozen=True)
class _Attempt:
    """An attempt to commit: its base, the version that it writes, and the snapshots that it adds."""

    base: TableVersion | None
    version: TableVersion
    snapshot_ids: set[int]

    def outcome_in(self, current: TableMetadata) -> Outcome:
        """Return the outcome if the catalog has a third version: won if that follows from this one."""
        logged = {entry.metadata_file for entry in current.metadata_log}
        if self.version.metadata_location in logged or has_any_snapshot(current, self.snapshot_ids):
            return Outcome.WON
        if self.base is None:
            return Outcome.LOST if current.table_uuid != self.version.metadata.table_uuid else Outcome.WON
        return Outcome.LOST if self.base.metadata_location in logged else Outcome.UNKNOWN


def _commit(connection: Connection) -> None:
    """Commit. After a failure, the connection is not used again, since it may still show its uncommitted changes."""
    try:
        connection.commit()
    except BaseException:
        with suppress(Exception):
            connection.invalidate()
        raise


def _properties(attempt: _Attempt) -> dict[str, str]:
    return attempt.version.metadata.properties


def _next_location(base: TableVersion | None, metadata: TableMetadata, compressed: bool) -> str:
    """Return `<version>-<uuid>.metadata.json` with the version after the base's, or 0 if that has none."""
    number = file_name("" if base is None else base.metadata_location).partition("-")[0]
    version = int(number) + 1 if number.isdecimal() else 0
    extension = ".gz.metadata.json" if compressed else ".metadata.json"
    return join(metadata_folder(metadata), f"{version:05d}-{uuid.uuid4()}{extension}")
