"""Tables and views of a SQL catalog: rows of `iceberg_tables`, as in Iceberg's JDBC catalog and pyiceberg."""

from __future__ import annotations

import gzip
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from sparkmeta.errors import (
    CommitFailedError,
    NoSuchTableError,
    NoSuchViewError,
    NotFoundError,
    SparkmetaError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from sparkmeta.operations.catalog_errors import catalog_errors, settled
from sparkmeta.operations.metadata_files import METADATA
from sparkmeta.operations.pointer import PointerCommit, PointerOperations, next_location, refuse_missing_namespace
from sparkmeta.operations.table_operations import Outcome, failure, is_compressed, load_version, outcome_of
from sparkmeta.operations.view_operations import DEFAULT_CODEC, LoadedView, refuse_other_view
from sparkmeta.spec.table_properties import METADATA_PATH, flag_property
from sparkmeta.spec.view_metadata import parse_view_metadata, serialize_view_metadata
from sparkmeta.storage.location import join
from sparkmeta.storage.writing import discard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import ColumnElement, Connection, Executable

    from sparkmeta.spec.view_metadata import ViewMetadata
    from sparkmeta.storage.files import Files

_VIEW = "VIEW"


class Pointer(NamedTuple):
    """The locations in a row."""

    location: str
    previous_location: str | None


@dataclass(frozen=True)
class SqlRow:
    """The row of a table or a view, which share the names of a namespace."""

    catalog: SqlCatalog
    identifier: tuple[str, ...]
    is_view: bool = False

    def pointer(self) -> Pointer | None:
        """Return the locations in the catalog, with a new connection if the server has closed an idle one."""
        try:
            return self._pointer()
        except DBAPIError as error:
            # The pool has renewed its connections.
            if not error.connection_invalidated:
                raise
            return self._pointer()

    def move(
        self,
        base: str | None,
        location: str,
        properties: Mapping[str, str],
        outcome_in: Callable[[Pointer], Outcome],
        written: Files | None = None,
    ) -> None:
        """Point the row to a metadata file.

        Args:
            base: the location that the row must have; None creates the row.
            location: the file.
            properties: the properties `commit.status-check.*`.
            outcome_in: returns the outcome of a lost commit if the row has a third location.
            written: deletes the file if the row certainly does not point to it. Defaults to keeping it.
        """
        is_committing = False
        try:
            with self.catalog.engine.connect() as connection:
                self._execute(connection, base, location)
                is_committing = True
                _commit(connection)
        except Exception as error:
            # A transaction that fails before its COMMIT was sent is rolled back.
            outcome = Outcome.LOST
            if is_committing:
                outcome = outcome_of(lambda: self._outcome(base, location, outcome_in), properties)
            if outcome is Outcome.LOST and written is not None:
                discard(written, [location])
            if outcome is not Outcome.WON:
                raise self._failure(base, location, outcome, error) from error

    def rename(self, identifier: tuple[str, ...]) -> None:
        """Rename the row. Raises an error if there is no such row, or another row has the new name."""
        namespace, name = _names(identifier)
        renamed = update(IcebergTables).where(*self._is_row()).values(table_namespace=namespace, table_name=name)
        try:
            count = self._changed(renamed)
        except IntegrityError as error:
            raise SqlRow(self.catalog, identifier, self.is_view)._name_conflict() from error
        if count == 0:
            raise self.missing()

    def drop(self, location: str) -> None:
        """Delete the row. Raises an error if there is no such row, or it has another location."""
        count = self._changed(delete(IcebergTables).where(*self._is_row(), _is_at(location)))
        # Drivers that don't count rows return -1.
        if count != 1 and (current := self._pointer()) is not None:
            raise _outdated(location, current.location)
        if count == 0:
            raise self.missing()

    def is_named(self, location: str) -> bool:
        """Return whether any row of the database has a location."""
        with self.catalog.engine.connect() as connection:
            return connection.execute(select(IcebergTables.table_name).where(_is_at(location))).first() is not None

    def missing(self) -> SparkmetaError:
        """Return the error for a missing row."""
        kind, error = ("view", NoSuchViewError) if self.is_view else ("table", NoSuchTableError)
        return error(f"{'.'.join(self.identifier)}: there is no such {kind} in the catalog {self.catalog.name}")

    def _changed(self, statement: Executable) -> int:
        with self.catalog.engine.begin() as connection:
            return _count(connection, statement)

    def _execute(self, connection: Connection, base: str | None, location: str) -> None:
        """Execute the statement of a commit. Raises CommitFailedError if the base is not the current location."""
        if base is None:
            row = self.catalog._create_table_row(*_names(self.identifier), location)
            connection.execute(insert(IcebergTables).values(**row | ({"iceberg_type": _VIEW} if self.is_view else {})))
            return
        values = {"metadata_location": location, "previous_metadata_location": base}
        count = _count(connection, update(IcebergTables).where(*self._is_row(), _is_at(base)).values(**values))
        if count == 1:
            return
        current = self._current(connection)
        if current is None:
            raise self.missing()
        # Drivers that don't count rows return -1.
        if count >= 0 or current.location != location:
            raise _outdated(base, current.location)

    def _outcome(self, base: str | None, location: str, outcome_in: Callable[[Pointer], Outcome]) -> Outcome:
        """Return the outcome of a transaction whose COMMIT got no response."""
        # The lock waits for an unfinished COMMIT.
        current = self._pointer(lock=True)
        if current is None:
            # A missing row can't be locked. sqlite has no unfinished COMMIT.
            is_settled = base is None and self.catalog.engine.dialect.name == "sqlite"
            return Outcome.LOST if is_settled else Outcome.UNKNOWN
        if current.location == location:
            return Outcome.WON
        if base is not None and current.location == base:
            return Outcome.LOST
        return outcome_in(current)

    def _failure(self, base: str | None, location: str, outcome: Outcome, error: Exception) -> Exception:
        if isinstance(error, CommitFailedError | NoSuchTableError | NoSuchViewError):
            return error
        if isinstance(error, IntegrityError) and base is None and outcome is Outcome.LOST:
            return self._name_conflict()
        return failure(outcome, location, error)

    def _name_conflict(self) -> Exception:
        """Return the error for a name that a table or a view already has."""
        has_view = self.catalog._schema_version == "v1" and SqlRow(self.catalog, self.identifier, True).pointer()
        kind = ViewAlreadyExistsError if self.is_view and has_view else TableAlreadyExistsError
        problem = f"there is a {'view' if has_view else 'table'} of this name already"
        return kind(f"{'.'.join(self.identifier)}: {problem}")

    def _pointer(self, *, lock: bool = False) -> Pointer | None:
        with self.catalog.engine.connect() as connection:
            return self._current(connection, lock=lock)

    def _current(self, connection: Connection, *, lock: bool = False) -> Pointer | None:
        """Return the locations in the catalog; None if there is no such row."""
        columns = IcebergTables.metadata_location, IcebergTables.previous_metadata_location
        query = select(*columns).where(*self._is_row())
        row = connection.execute(query.with_for_update() if lock else query).one_or_none()
        return None if row is None or row[0] is None else Pointer(row[0], row[1])

    def _is_row(self) -> list[ColumnElement[bool]]:
        namespace, name = _names(self.identifier)
        kind = IcebergTables.iceberg_type == _VIEW if self.is_view else self.catalog._iceberg_type_filter()
        return [
            IcebergTables.catalog_name == self.catalog.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == name,
            *([] if kind is None else [kind]),
        ]


@dataclass(frozen=True)
class SqlOperations(PointerOperations):
    """The operations of a table in a pyiceberg SQL catalog; see `PointerOperations`."""

    catalog: SqlCatalog

    def _move(self, attempt: PointerCommit) -> None:
        """Point the catalog to the attempt's file. Delete the file if the catalog certainly does not point to it."""

        def outcome_in(current: Pointer) -> Outcome:
            return attempt.outcome_in(load_version(self.files, current.location).metadata)

        base = None if attempt.base is None else attempt.base.metadata_location
        SqlRow(self.catalog, self.identifier).move(
            base, attempt.version.metadata_location, attempt.properties, outcome_in, self.files
        )

    def _current_location(self) -> str | None:
        """Return the location in the catalog; None if it has no such table."""
        current = SqlRow(self.catalog, self.identifier).pointer()
        return None if current is None else current.location


@dataclass(frozen=True)
class SqlViewOperations:
    """The operations of a view in a SQL catalog; see `ViewOperations`.

    A row holds its previous location, but no log. So the outcome of a commit that got no response stays unknown if two
    other commits followed.

    Attributes:
        files_at: returns the files at a location.
        view_uuid: the UUID of the expected view; None for any.
    """

    catalog: SqlCatalog
    names: tuple[str, ...]
    files_at: Callable[[str], Files]
    view_uuid: UUID | None = None

    @property
    def _row(self) -> SqlRow:
        return SqlRow(self.catalog, self.names, is_view=True)

    def refresh(self) -> LoadedView:
        """See `ViewOperations.refresh`."""
        return self._loaded(self._location())

    def commit(self, base: LoadedView | None, new: ViewMetadata) -> LoadedView:
        """See `ViewOperations.commit`. Also raises NoSuchNamespaceError for a new view in an unknown namespace."""
        if base is None:
            refuse_missing_namespace(self.catalog, self.names)
        compressed = is_compressed(new.properties, DEFAULT_CODEC)
        base_location = None if base is None else base.metadata_location
        folder = new.properties.get(METADATA_PATH) or join(new.location, METADATA)
        location = next_location(base_location, folder, compressed)
        text, files = serialize_view_metadata(new).encode(), self.files_at(location)
        try:
            files.write_new(location, gzip.compress(text, mtime=0) if compressed else text)
        except OSError as error:
            discard(files, [location])
            raise failure(Outcome.LOST, location, error) from error
        self._move(base_location, location, new.properties, files)
        return LoadedView(location, new)

    def register(self, location: str) -> LoadedView:
        """Create the view of a metadata file, which stays where it is."""
        refuse_missing_namespace(self.catalog, self.names)
        loaded = self._loaded(location)
        self._move(None, location, loaded.metadata.properties)
        return loaded

    def rename(self, names: tuple[str, ...]) -> None:
        """Rename the view. Raises NoSuchViewError, NoSuchNamespaceError, or an error for a name that is taken."""
        refuse_missing_namespace(self.catalog, names)
        before = self.refresh()
        target = SqlViewOperations(self.catalog, names, self.files_at)._row

        def is_done() -> bool:
            current = target.pointer()
            return current is not None and current.location == before.metadata_location and self._row.pointer() is None

        problem = f"{'.'.join(self.names)} may have been renamed to {'.'.join(names)}"
        with (
            catalog_errors(self.catalog, self.names),
            settled(self.catalog, problem, is_done, before.metadata.properties),
        ):
            self._row.rename(names)

    def drop(self) -> None:
        """Drop the view, and delete its current metadata file, as Java does.

        The file stays if `gc.enabled` is false, or if it is registered under another name.
        """
        location = self._location()
        deletes = False
        # The file may be lost.
        with suppress(NotFoundError, SparkmetaError):
            deletes = flag_property(
                self._loaded(location).metadata.properties, "gc.enabled", default=True, location=location
            )
        problem = f"{'.'.join(self.names)} may have been dropped"
        with (
            catalog_errors(self.catalog, self.names),
            settled(self.catalog, problem, lambda: self._row.pointer() is None, {}),
        ):
            self._row.drop(location)
        if deletes and not self._row.is_named(location):
            discard(self.files_at(location), [location])

    def _location(self) -> str:
        with catalog_errors(self.catalog, self.names):
            current = self._row.pointer()
        if current is None:
            raise self._row.missing()
        return current.location

    def _loaded(self, location: str) -> LoadedView:
        metadata = parse_view_metadata(self.files_at(location).read(location), location)
        refuse_other_view(location, metadata, self.view_uuid)
        return LoadedView(location, metadata)

    def _move(
        self, base: str | None, location: str, properties: Mapping[str, str], written: Files | None = None
    ) -> None:
        def outcome_in(current: Pointer) -> Outcome:
            if current.previous_location == location:
                return Outcome.WON
            return Outcome.LOST if current.previous_location == base is not None else Outcome.UNKNOWN

        self._row.move(base, location, properties, outcome_in, written)


def list_sql_views(catalog: SqlCatalog, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the sorted identifiers of the views in a namespace. Raises NoSuchNamespaceError."""
    refuse_missing_namespace(catalog, (*namespace, "*"))
    conditions = [
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == Catalog.namespace_to_string(namespace),
        IcebergTables.iceberg_type == _VIEW,
    ]
    with catalog_errors(catalog, namespace), catalog.engine.connect() as connection:
        names = connection.execute(select(IcebergTables.table_name).where(*conditions)).scalars()
        return sorted((*namespace, name) for name in names)


def _names(identifier: tuple[str, ...]) -> tuple[str, str]:
    return Catalog.namespace_to_string(identifier[:-1]), identifier[-1]


def _is_at(location: str) -> ColumnElement[bool]:
    return IcebergTables.metadata_location == location


def _count(connection: Connection, statement: Executable) -> int:
    """Execute a statement, and return the number of rows that it changed; -1 if the driver does not count them."""
    result: Any = connection.execute(statement)
    return int(result.rowcount)


def _outdated(base: str, current: str) -> CommitFailedError:
    return CommitFailedError(f"{base} is no longer the current version: {current} is")


def _commit(connection: Connection) -> None:
    """Commit. After a failure, the connection is not used again, since it may still show its uncommitted changes."""
    try:
        connection.commit()
    except BaseException:
        with suppress(Exception):
            connection.invalidate()
        raise
