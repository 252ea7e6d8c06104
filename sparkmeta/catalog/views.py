"""Views of catalogs: the methods that catalogs share, and the views of warehouses, SQL and REST catalogs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast
from uuid import uuid4

from sparkmeta.catalog.names import as_names, first_names, folder_of
from sparkmeta.checks import property_texts
from sparkmeta.errors import CatalogError, CommitFailedError, NoSuchViewError, UnsupportedError
from sparkmeta.operations.metadata_files import METADATA, METADATA_FILES, version_of
from sparkmeta.operations.view_operations import VIEW_MARKER, FileSystemViewOperations
from sparkmeta.spec.view_metadata import lifted_view, new_view, parse_view_metadata
from sparkmeta.storage.location import join
from sparkmeta.views.view import Definition, View, as_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from sparkmeta.operations.rest import RestViewOperations
    from sparkmeta.operations.sql import SqlViewOperations
    from sparkmeta.operations.view_operations import LoadedView, ViewOperations
    from sparkmeta.session import SessionSource
    from sparkmeta.storage.files import Files
    from sparkmeta.views.base import ViewCatalog


class ViewStore(Protocol):
    """The views of a catalog, which may be created, listed, renamed and dropped."""

    def operations(self, names: tuple[str, ...], view_uuid: UUID | None = None) -> ViewOperations:
        """Return the operations of a view, which need not exist."""

    def location(self, names: tuple[str, ...], location: str | None) -> str:
        """Return the location of a new view, given the requested one; empty if the server chooses it."""

    def list(self, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the sorted identifiers of the views in a namespace."""

    def register(self, names: tuple[str, ...], metadata_location: str) -> LoadedView:
        """Create the view of a metadata file."""

    def rename(self, names: tuple[str, ...], to: tuple[str, ...]) -> None:
        """Rename a view."""

    def drop(self, names: tuple[str, ...]) -> None:
        """Drop a view."""


class HoldsViews(ABC):
    """The methods of a catalog for its views. They need no Spark session if files are local or a server stores them.

    Attributes:
        sessions: the source of the session, when one is needed.
    """

    if TYPE_CHECKING:

        @property
        def sessions(self) -> SessionSource: ...

    @abstractmethod
    def _views(self, spark: SparkSession | None) -> ViewStore:
        """Return the catalog's views. Raises UnsupportedError if it can't hold any."""

    def create_view(
        self,
        identifier: str | tuple[str, ...],
        schema: Schema,
        view_version: Definition,
        location: str | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        spark: SparkSession | None = None,
    ) -> View:
        """Create a view.

        Args:
            identifier: the view's namespace and name.
            schema: the columns of its rows, in the order of the queries' columns. Field ids are kept.
            view_version: SQL text by dialect, in which names of tables without a namespace are in the view's namespace;
                or a version, sparkmeta's or pyiceberg's, with its own default catalog and namespace.
            location: the folder of its metadata. Defaults to the catalog's choice.
            properties: such as `comment`.
            spark: the session for the view's rows. Defaults to the session that is active when they are read, or else
                to a new local one.

        Raises:
            ViewAlreadyExistsError, TableAlreadyExistsError: the catalog has a view or a table of the name.
            NoSuchNamespaceError: the catalog has no such namespace.
            ValidationError: there is no query, or two in a dialect, or a property has an invalid value.
            UnsupportedError: the catalog can't hold views, or can't hold them at the location.
        """
        names, views = as_names(identifier, 1), self._views(spark)
        version = as_version(view_version, names[:-1])
        texts = property_texts(f"{'.'.join(names)}: properties", properties)
        metadata = new_view(views.location(names, location), schema, version, texts)
        loaded = views.operations(names).commit(None, metadata)
        return self._view(names, loaded, views, spark)

    def create_or_replace_view(
        self,
        identifier: str | tuple[str, ...],
        schema: Schema,
        view_version: Definition,
        location: str | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        spark: SparkSession | None = None,
    ) -> View:
        """Create a view, or replace its queries, schema and defaults, and add properties; see `create_view`.

        A view that exists stays at its location.

        Raises:
            ViewAlreadyExistsError: another client has created it at the same time.
            ValidationError: see also `View.replace`.
        """
        names = as_names(identifier, 1)
        try:
            view = self.load_view(names, spark)
        except NoSuchViewError:
            return self.create_view(names, schema, view_version, location, properties, spark=spark)
        return view.replace(as_version(view_version, names[:-1]), schema, properties)

    def register_view(
        self, identifier: str | tuple[str, ...], metadata_location: str, spark: SparkSession | None = None
    ) -> View:
        """Add the view of a metadata file to the catalog.

        A SQL catalog points to the file. In a REST catalog, the server decides. A file system warehouse copies
        the file into the view's folder. The view keeps its UUID and its versions.

        Raises:
            ViewAlreadyExistsError, TableAlreadyExistsError: the catalog has a view or a table of the name.
            NoSuchNamespaceError: the catalog has no such namespace.
            NoSuchViewError: the file is a table's.
            NotFoundError: there is no such file.
            UnsupportedError: the catalog can't hold views, or can't register them.
        """
        names, views = as_names(identifier, 1), self._views(spark)
        return self._view(names, views.register(names, metadata_location), views, spark)

    def load_view(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> View:
        """Load a view. Raises NoSuchViewError."""
        names, views = as_names(identifier, 1), self._views(spark)
        return self._view(names, views.operations(names).refresh(), views, spark)

    def view_exists(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> bool:
        """Return whether the catalog has a view of the name."""
        try:
            self.load_view(identifier, spark)
        except NoSuchViewError:
            return False
        return True

    def list_views(self, namespace: str | tuple[str, ...], spark: SparkSession | None = None) -> list[tuple[str, ...]]:
        """Return the sorted identifiers of the views in a namespace."""
        return self._views(spark).list(as_names(namespace))

    def rename_view(
        self,
        from_identifier: str | tuple[str, ...],
        to_identifier: str | tuple[str, ...],
        spark: SparkSession | None = None,
    ) -> View:
        """Rename a view.

        In a file system warehouse, the view is copied, then dropped. After a crash in between, it has both names.

        Raises:
            NoSuchViewError: there is no view of the old name.
            ViewAlreadyExistsError, TableAlreadyExistsError: there is a view or a table of the new name.
            CommitFailedError: a concurrent commit changed the view, which now has both names.
        """
        self._views(spark).rename(as_names(from_identifier, 1), as_names(to_identifier, 1))
        return self.load_view(to_identifier, spark)

    def drop_view(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> None:
        """Drop a view.

        Raises:
            NoSuchViewError: the view does not exist.
            CommitFailedError: a concurrent commit changed the view, which stays.
        """
        self._views(spark).drop(as_names(identifier, 1))

    def _view(self, names: tuple[str, ...], loaded: LoadedView, views: ViewStore, spark: SparkSession | None) -> View:
        location, metadata = loaded
        operations = views.operations(names, metadata.view_uuid)
        return View(names, metadata, location, operations, cast("ViewCatalog", self), self.sessions.for_caller(spark))


@dataclass(frozen=True)
class FileSystemViews:
    """The views of a warehouse: `<warehouse>/<namespace>/<view>/metadata/v<N>.metadata.json`."""

    warehouse: str
    files: Files

    def operations(self, names: tuple[str, ...], view_uuid: UUID | None = None) -> FileSystemViewOperations:
        return FileSystemViewOperations(self.files, self._folder(names), view_uuid)

    def location(self, names: tuple[str, ...], location: str | None) -> str:
        folder = self._folder(names)
        if location is not None and location.rstrip("/") != folder:
            raise UnsupportedError(
                f"{'.'.join(names)}: a view of a file system warehouse is in {folder}, not {location}"
            )
        return folder

    def list(self, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        names = first_names(self.files, self._folder(namespace), f"*/{METADATA}/{VIEW_MARKER}")
        identifiers = [(*namespace, name) for name in names]
        return [identifier for identifier in identifiers if self.operations(identifier).is_view()]

    def register(self, names: tuple[str, ...], metadata_location: str) -> LoadedView:
        metadata = parse_view_metadata(self.files.read(metadata_location), metadata_location)
        target = self.operations(names)
        identified = lifted_view(metadata, metadata.view_uuid or uuid4())
        return target.commit(None, replace(identified, location=target.folder))

    def rename(self, names: tuple[str, ...], to: tuple[str, ...]) -> None:
        loaded = self.operations(names).refresh()
        target = self.operations(to)
        target.commit(None, replace(loaded.metadata, location=target.folder))
        self._delete(names, loaded)

    def drop(self, names: tuple[str, ...]) -> None:
        self._delete(names, self.operations(names).refresh())

    def _delete(self, names: tuple[str, ...], newest: LoadedView) -> None:
        """Delete the metadata files, the newest last: until then, the view has its current version.

        A commit may publish another version meanwhile. The view survives with it and keeps its marker.
        """
        metadata_folder = join(self._folder(names), METADATA)
        newest_version = version_of(newest.metadata_location)
        if newest_version is None:
            problem = "belongs to a view of another catalog, which must drop it"
            raise UnsupportedError(f"{newest.metadata_location} {problem}")
        versions = self._versions(metadata_folder)
        if any(version > newest_version for version in versions.values()):
            raise CommitFailedError(f"{metadata_folder}: {newest.metadata_location} is no longer the current version")
        self._delete_all([location for location, version in versions.items() if version < newest_version])
        self._delete_all([newest.metadata_location])
        remaining = self._versions(metadata_folder)
        if late := [location for location, version in remaining.items() if version > newest_version]:
            raise CommitFailedError(f"{late[0]} was committed while the view was dropped: drop it again")
        if not remaining:  # a new view or table of the name may have been created
            self._delete_all([join(metadata_folder, VIEW_MARKER)])

    def _versions(self, metadata_folder: str) -> dict[str, int]:
        """Return the metadata files in a folder with their versions, 0 for files with names of other catalogs."""
        locations = [status.location for status in self.files.list(metadata_folder, METADATA_FILES)]
        return {location: version_of(location) or 0 for location in locations}

    def _delete_all(self, locations: Sequence[str]) -> None:
        for location, reason in self.files.delete_many(locations):
            raise CatalogError(f"{location}: not deleted: {reason}")

    def _folder(self, names: tuple[str, ...]) -> str:
        return folder_of(self.warehouse, names)


@dataclass(frozen=True)
class SqlViews:
    """The views of a SQL catalog: rows of `iceberg_tables` whose `iceberg_type` is VIEW, as in Iceberg's JDBC catalog.

    Attributes:
        files_at: returns the files at a location.
        default_location: returns the catalog's choice for a new view.
    """

    pyiceberg: SqlCatalog
    files_at: Callable[[str], Files]
    default_location: Callable[[tuple[str, ...]], str]

    def operations(self, names: tuple[str, ...], view_uuid: UUID | None = None) -> ViewOperations:
        return self._sql(names, view_uuid)

    def location(self, names: tuple[str, ...], location: str | None) -> str:
        return (location or self.default_location(names)).rstrip("/")

    def list(self, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        from sparkmeta.operations.sql import list_sql_views

        return list_sql_views(self.pyiceberg, namespace)

    def register(self, names: tuple[str, ...], metadata_location: str) -> LoadedView:
        return self._sql(names).register(metadata_location)

    def rename(self, names: tuple[str, ...], to: tuple[str, ...]) -> None:
        self._sql(names).rename(to)

    def drop(self, names: tuple[str, ...]) -> None:
        self._sql(names).drop()

    def _sql(self, names: tuple[str, ...], view_uuid: UUID | None = None) -> SqlViewOperations:
        from sparkmeta.operations.sql import SqlViewOperations

        return SqlViewOperations(self.pyiceberg, names, self.files_at, view_uuid)


@dataclass(frozen=True)
class RestViews:
    """The views of a REST catalog."""

    pyiceberg: RestCatalog

    def operations(self, names: tuple[str, ...], view_uuid: UUID | None = None) -> ViewOperations:
        return self._rest(names, view_uuid)

    def location(self, names: tuple[str, ...], location: str | None) -> str:  # noqa: ARG002  the protocol's
        return (location or "").rstrip("/")

    def list(self, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        from sparkmeta.operations.rest import list_rest_views

        return list_rest_views(self.pyiceberg, namespace)

    def register(self, names: tuple[str, ...], metadata_location: str) -> LoadedView:
        return self._rest(names).register(metadata_location)

    def rename(self, names: tuple[str, ...], to: tuple[str, ...]) -> None:
        self._rest(names).rename(to)

    def drop(self, names: tuple[str, ...]) -> None:
        self._rest(names).drop()

    def _rest(self, names: tuple[str, ...], view_uuid: UUID | None = None) -> RestViewOperations:
        from sparkmeta.operations.rest import RestViewOperations

        return RestViewOperations(self.pyiceberg, names, view_uuid)
