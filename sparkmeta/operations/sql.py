"""Tables of a SQL catalog: rows of `iceberg_tables`, as in Iceberg's JDBC catalog and pyiceberg."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables
from sqlalchemy import insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from sparkmeta.errors import CommitFailedError, NoSuchTableError, TableAlreadyExistsError
from sparkmeta.operations.pointer import PointerCommit, PointerOperations
from sparkmeta.operations.table_operations import Outcome, failure, load_version, outcome_of
from sparkmeta.storage.writing import discard

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import ColumnElement, Connection, CursorResult, Insert, Update


@dataclass(frozen=True)
class SqlOperations(PointerOperations):
    """The operations of a table in a pyiceberg SQL catalog; see `PointerOperations`."""

    catalog: SqlCatalog

    def _move(self, attempt: PointerCommit) -> None:
        """Point the catalog to the attempt's file. Delete the file if the catalog certainly does not point to it."""
        is_committing = False
        try:
            with self.catalog.engine.connect() as connection:
                self._execute(connection, attempt)
                is_committing = True
                _commit(connection)
        except Exception as error:
            # A transaction that fails before its COMMIT was sent is rolled back.
            outcome = outcome_of(lambda: self._outcome(attempt), attempt.properties) if is_committing else Outcome.LOST
            if outcome is Outcome.LOST:
                discard(self.files, [attempt.version.metadata_location])
            if outcome is not Outcome.WON:
                raise self._failure(attempt, outcome, error) from error

    def _execute(self, connection: Connection, attempt: PointerCommit) -> None:
        """Execute the statement of a commit. Raises CommitFailedError if the base is not the current version."""
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

    def _outcome(self, attempt: PointerCommit) -> Outcome:
        """Return the outcome of a transaction whose COMMIT got no response."""
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

    def _failure(self, attempt: PointerCommit, outcome: Outcome, error: Exception) -> Exception:
        if isinstance(error, CommitFailedError | NoSuchTableError):
            return error
        if isinstance(error, IntegrityError) and attempt.base is None and outcome is Outcome.LOST:
            return TableAlreadyExistsError(f"{'.'.join(self.identifier)}: the table exists already")
        return failure(outcome, attempt.version.metadata_location, error)

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
        values = {"metadata_location": location, "previous_metadata_location": base_location}
        return update(IcebergTables).where(*self._is_table(), is_base).values(**values)

    def _is_table(self) -> list[ColumnElement[bool]]:
        namespace, name = self._names()
        type_filter = self.catalog._iceberg_type_filter()
        return [
            IcebergTables.catalog_name == self.catalog.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == name,
            *([] if type_filter is None else [type_filter]),
        ]

    def _names(self) -> tuple[str, str]:
        return Catalog.namespace_to_string(self.identifier[:-1]), self.identifier[-1]


def _commit(connection: Connection) -> None:
    """Commit. After a failure, the connection is not used again, since it may still show its uncommitted changes."""
    try:
        connection.commit()
    except BaseException:
        with suppress(Exception):
            connection.invalidate()
        raise
