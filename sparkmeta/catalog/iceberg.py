"""Catalogs of pyiceberg, which only locate metadata files."""

from __future__ import annotations

import copy
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import pyiceberg.exceptions
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import CatalogType, load_catalog
from pyiceberg.io import FileIO, InputFile, OutputFile

from sparkmeta.catalog.base import NO_PROPERTIES, Catalog, Identifier
from sparkmeta.catalog.configuration import is_configured
from sparkmeta.catalog.names import IN_NAMESPACE, as_names
from sparkmeta.catalog.views import RestViews, SqlViews
from sparkmeta.checks import property_texts
from sparkmeta.errors import (
    CatalogError,
    CommitFailedError,
    CommitStateUnknownError,
    InvalidArgumentError,
    NoSuchTableError,
    SparkmetaError,
    UnsupportedError,
    ValidationError,
    first_line,
    shown,
)
from sparkmeta.operations.catalog_errors import catalog_errors, errors_of_catalog, settled
from sparkmeta.operations.metadata_files import METADATA
from sparkmeta.operations.rest import (
    LoadedTable,
    RestOperations,
    TimedRestCatalog,
    create_rest_table,
    load_rest_table,
    refuse_missing_namespace,
    refuse_without_register,
    register_rest_table,
    rename_rest_table,
    rest_table_exists,
)
from sparkmeta.operations.table_operations import (
    TREES_ELSEWHERE,
    NewTableOperations,
    StaticOperations,
    TableVersion,
    load_version,
    new_version,
)
from sparkmeta.session import SessionSource
from sparkmeta.spec.metadata import has_tree
from sparkmeta.storage.content import VendedIO, expiry
from sparkmeta.storage.files import files_for
from sparkmeta.storage.keys import TableKeys
from sparkmeta.storage.location import join, normalize, parents
from sparkmeta.table import open_metadata, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

    from sparkmeta.catalog.recovery import Recovery
    from sparkmeta.operations.pointer import PointerOperations
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files
    from sparkmeta.table import Table


class Located(NamedTuple):
    """The location of a table's current metadata file, and the FileIO for the table's files."""

    metadata_location: str
    io: FileIO


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IcebergCatalog(Catalog):
    """A catalog that pyiceberg loaded."""

    pyiceberg: PyIcebergCatalog
    sessions: SessionSource = field(default_factory=SessionSource, repr=False, compare=False)

    @property
    def _configuration(self) -> Mapping[str, str]:
        return self.pyiceberg.properties

    @cached_property
    def _keys(self) -> TableKeys | None:
        return TableKeys.of(self.pyiceberg.properties)

    def _with_sessions(self, sessions: SessionSource) -> IcebergCatalog:
        """See `with_sessions`."""
        return replace(self, sessions=sessions)

    @staticmethod
    def load(name: str, properties: Mapping[str, Any]) -> IcebergCatalog:
        """Load a catalog by pyiceberg's configuration and ``properties``."""
        _refuse_unknown(name, properties)
        is_rest = str(properties.get("uri", "")).startswith("http") and "py-catalog-impl" not in properties
        with errors_of_catalog(name, properties):
            if is_rest and str(properties.get("type", "rest")).lower() == "rest":
                return IcebergCatalog(TimedRestCatalog(name, **properties))
            try:
                return IcebergCatalog(load_catalog(name, **properties))
            except ValueError as error:
                raise InvalidArgumentError(f"catalog {name}: {first_line(error)}") from error

    @property
    def name(self) -> str:
        return self.pyiceberg.name

    def load_table(self, identifier: Identifier, spark: SparkSession | None = None) -> Table:
        """Load a table, with the FileIO that the catalog provides for it. Raises NoSuchTableError."""
        names = as_names(identifier, IN_NAMESPACE)
        if (rest := self._rest) is not None:
            return self._opened(load_rest_table(rest, names), names, spark)
        with catalog_errors(self.pyiceberg, names):
            located = locate(self.pyiceberg, names)
        sessions = self.sessions.for_caller(spark)
        table = open_metadata(located.metadata_location, sessions, located.io, names, self._keys)
        pointer = self._pointer_operations(names, table.state.files, table.metadata.table_uuid)
        return replace(table, operations=pointer or StaticOperations(table.version, self._refusal))

    def _create_table(
        self,
        identifier: Identifier,
        metadata_at: Callable[[str], TableMetadata],
        location: str | None,
        spark: SparkSession | None,
    ) -> Table:
        """See `Catalog.create_table`. SQL catalogs and Glue hold tables of version 4."""
        names = as_names(identifier, IN_NAMESPACE)
        self._refuse_nested(names[:-1])
        if (rest := self._rest) is not None:
            metadata = self._rest_metadata(names, metadata_at, location)
            return self._opened(create_rest_table(rest, names, metadata, location), names, spark)
        if self._is_sql or self._glue is not None:
            new_table = self._new_table(names, metadata_at, location, spark)
            with catalog_errors(self.pyiceberg, names):
                new_table.operations.commit(None, new_table.metadata)
            return self.load_table(names, spark)
        metadata = metadata_at(location or self._default_location(names))
        _refuse_tree(metadata, names)
        version = {"format-version": str(metadata.format_version)}
        layout = (metadata.schema(), location, metadata.spec(), metadata.sort_order())
        with catalog_errors(self.pyiceberg, names):
            self.pyiceberg.create_table(names, *layout, metadata.properties | version)
        return self.load_table(names, spark)

    def _new_table(
        self,
        names: tuple[str, ...],
        metadata_at: Callable[[str], TableMetadata],
        location: str | None,
        spark: SparkSession | None,
    ) -> Table:
        """See `Catalog._new_table`. A REST catalog gets a request that creates nothing, and chooses the location."""
        self._refuse_nested(names[:-1])
        if (rest := self._rest) is not None:
            metadata = self._rest_metadata(names, metadata_at, location)
            table = self._opened(create_rest_table(rest, names, metadata, location, staged=True), names, spark)
            # If others create the table meanwhile, it has another uuid.
            once_created = replace(cast("RestOperations", table.operations), table_uuid=None)
            return replace(table, operations=NewTableOperations(table.version, once_created))
        with catalog_errors(self.pyiceberg, names):
            refuse_missing_namespace(self.pyiceberg, names)
        folder = location or self._default_location(names)
        version, files = new_version(metadata_at(folder)), self._files_at(folder, spark)
        pointer = self._pointer_operations(names, files)
        if pointer is None:
            raise UnsupportedError(f"{'.'.join(names)}: {self._refusal}")
        operations = NewTableOperations(version, pointer)
        return table_of(version, self.sessions.for_caller(spark), files, names, operations)

    def _files_at(self, location: str, spark: SparkSession | None) -> Files:
        """See `Catalog._files_at`."""
        with catalog_errors(self.pyiceberg):
            io = self.pyiceberg._load_file_io(location=location)
        return files_for(self.sessions.for_caller(spark), location, io, self._keys)

    def _rest_metadata(
        self, names: tuple[str, ...], metadata_at: Callable[[str], TableMetadata], location: str | None
    ) -> TableMetadata:
        """Return the metadata of a new table of a REST catalog.

        The catalog may choose the location later: errors name the table.
        """
        metadata = metadata_at(location or f"rest:{'.'.join(names)}")
        _refuse_tree(metadata, names)
        return metadata

    def register_table(
        self, identifier: Identifier, metadata_location: str, spark: SparkSession | None = None
    ) -> Table:
        """Add the table of a metadata file to the catalog; see `Catalog.register_table`."""
        names = as_names(identifier, IN_NAMESPACE)
        self._refuse_nested(names[:-1])
        with catalog_errors(self.pyiceberg, names):
            io = self.pyiceberg._load_file_io(location=metadata_location)
            files = files_for(self.sessions.for_caller(spark), metadata_location, io, self._keys)
            if (glue := self._glue) is not None:
                from sparkmeta.operations.glue import register_glue_table

                register_glue_table(glue, names, load_version(files, metadata_location))
                return self.load_table(names, spark)
            try:
                metadata = load_version(files, metadata_location).metadata
                if not self._is_sql:
                    _refuse_tree(metadata, names)
                properties: Mapping[str, str] = metadata.properties
            except OSError:
                if self._is_sql:
                    raise
                # The catalog may have credentials for the file that this process lacks.
                properties = NO_PROPERTIES
            refuse_missing_namespace(self.pyiceberg, names)

            def is_done() -> bool:
                return self._location(names) == metadata_location

            with settled(self.pyiceberg, f"{'.'.join(names)} may have been registered", is_done, properties):
                if (rest := self._rest) is not None:
                    return self._opened(register_rest_table(rest, names, metadata_location), names, spark)
                if self._is_sql:
                    # Once it is registered, pyiceberg loads the table.
                    with suppress(_LocatedError):
                        _locating(self.pyiceberg).register_table(names, metadata_location)
                else:
                    self.pyiceberg.register_table(names, metadata_location)
        return self.load_table(names, spark)

    def _recovery(self, identifier: Identifier, location: str | None, spark: SparkSession | None) -> Recovery:
        """See `Catalog._recovery`. The chosen file is registered in place of the current one."""
        from sparkmeta.catalog.recovery import Recovery

        names = as_names(identifier, IN_NAMESPACE)
        name, current, is_unknown = ".".join(names), None, False
        try:
            with catalog_errors(self.pyiceberg, names):
                current = self._location(names)
        except CatalogError:
            # A REST catalog reads the metadata file itself, and fails.
            if self._rest is None:
                raise
            is_unknown = True
        if location is None and current is None:
            problem = "the catalog names no metadata file that can be read: location is needed, the folder of the table"
            raise ValidationError(f"{name}: {problem}")
        folder = parents(current or "")[0] if location is None else join(location, METADATA)
        if current is not None and normalize(parents(current)[0]) != normalize(folder):
            raise ValidationError(f"{name}: location is {location}: the catalog names {current}")
        files, sessions = self._files_at(folder, spark), self.sessions.for_caller(spark)

        def restore(chosen: TableVersion, newer: Sequence[str]) -> Table:  # noqa: ARG001  other files stay
            if chosen.metadata_location == current:
                return self.load_table(names, spark)
            pointer = self._pointer_operations(names, files)
            if current is not None and pointer is not None:
                pointer.commit(TableVersion(current, chosen.metadata), chosen.metadata)
                return self.load_table(names, spark)
            return self._registered_again(names, chosen.metadata_location, current, is_unknown, spark)

        return Recovery(name, folder, files, sessions, current, restore, is_unknown)

    def _registered_again(
        self, names: tuple[str, ...], location: str, current: str | None, is_unknown: bool, spark: SparkSession | None
    ) -> Table:
        """Register a metadata file in place of the table's current one, in a catalog that can't swap them.

        Raises:
            CommitFailedError: the catalog names another file by now.
            CatalogError: the catalog refused. The message says whether the name is gone.
        """
        name, now = ".".join(names), None
        with suppress(CatalogError), catalog_errors(self.pyiceberg, names):
            now = self._location(names)
        if now != current:
            raise CommitFailedError(f"{name}: the catalog names {now} by now: plan again")
        with catalog_errors(self.pyiceberg, names):
            refuse_missing_namespace(self.pyiceberg, names)
            if (rest := self._rest) is not None:
                refuse_without_register(rest)
        if current is not None or is_unknown:
            _log.warning("%s: its name is dropped, and registered again at %s", name, location)
            with suppress(NoSuchTableError):
                self.drop_table(names)
        try:
            return self.register_table(names, location, spark)
        except CommitStateUnknownError:
            raise
        except SparkmetaError as error:
            problem = f"the catalog no longer has the table, which was not registered at {location}"
            raise CatalogError(f"{name}: {problem}: {error}") from error

    def rename_table(
        self, from_identifier: Identifier, to_identifier: Identifier, spark: SparkSession | None = None
    ) -> Table:
        """Rename a table, and return it; see `Catalog.rename_table`."""
        names, new_names = as_names(from_identifier, IN_NAMESPACE), as_names(to_identifier, IN_NAMESPACE)
        self._refuse_nested(new_names[:-1])
        with catalog_errors(self.pyiceberg, names):
            if (glue := self._glue) is not None:
                from sparkmeta.operations.glue import rename_glue_table

                rename_glue_table(glue, names, new_names)
                return self.load_table(new_names, spark)
            before = self.load_table(names, spark)
            refuse_missing_namespace(self.pyiceberg, new_names)

            def is_done() -> bool:
                return (self._location(names), self._location(new_names)) == (None, before.metadata_location)

            problem = f"{'.'.join(names)} may have been renamed to {'.'.join(new_names)}"
            with settled(self.pyiceberg, problem, is_done, before.properties):
                if (rest := self._rest) is not None:
                    rename_rest_table(rest, names, new_names)
                elif self._is_sql:
                    # Once it is renamed, pyiceberg loads the table.
                    with suppress(_LocatedError):
                        _locating(self.pyiceberg).rename_table(names, new_names)
                else:
                    self.pyiceberg.rename_table(names, new_names)
        return self.load_table(new_names, spark)

    def drop_table(self, identifier: Identifier) -> None:
        """Remove a table from the catalog; see `Catalog.drop_table`."""
        names = as_names(identifier, IN_NAMESPACE)
        with catalog_errors(self.pyiceberg, names):
            self.pyiceberg.drop_table(names)

    @property
    def _deletes_files(self) -> bool:
        return self._rest is not None

    def _drop_to_purge(self, table: Table) -> list[str]:
        with catalog_errors(self.pyiceberg, table.identifier):
            drop = self.pyiceberg.purge_table if self._deletes_files else self.pyiceberg.drop_table
            drop(table.identifier)
        return []

    def table_exists(self, identifier: Identifier) -> bool:
        """Return whether the catalog has a table."""
        names = as_names(identifier, IN_NAMESPACE)
        with catalog_errors(self.pyiceberg, names):
            if (rest := self._rest) is not None:
                return rest_table_exists(rest, names)
            return self._location(names) is not None

    def list_tables(self, namespace: Identifier) -> list[tuple[str, ...]]:
        """Return the identifiers of the tables directly in a namespace. Raises NoSuchNamespaceError."""
        names = as_names(namespace, 1)
        with catalog_errors(self.pyiceberg, names):
            return sorted(self.pyiceberg.list_tables(names))

    def create_namespace(self, namespace: Identifier, properties: Mapping[str, str] = NO_PROPERTIES) -> None:
        """Create a namespace; see `Catalog.create_namespace`."""
        names = as_names(namespace, 1)
        self._refuse_nested(names)
        texts = property_texts(f"{'.'.join(names)}: properties", properties)
        with catalog_errors(self.pyiceberg, names):
            self.pyiceberg.create_namespace(names, texts)

    def drop_namespace(self, namespace: Identifier) -> None:
        """Drop an empty namespace; see `Catalog.drop_namespace`."""
        names = as_names(namespace, 1)
        with catalog_errors(self.pyiceberg, names):
            # pyiceberg's catalogs look for tables only.
            if self._rest is None and self.pyiceberg.list_namespaces(names):
                raise pyiceberg.exceptions.NamespaceNotEmptyError("it has namespaces")
            if self._holds_sql_views and self.list_views(names):
                raise pyiceberg.exceptions.NamespaceNotEmptyError("it has views")
            self.pyiceberg.drop_namespace(names)

    def namespace_exists(self, namespace: Identifier) -> bool:
        """Return whether the catalog has a namespace."""
        names = as_names(namespace, 1)
        with catalog_errors(self.pyiceberg, names):
            return self.pyiceberg.namespace_exists(names)

    def list_namespaces(self, namespace: Identifier = ()) -> list[tuple[str, ...]]:
        """Return the namespaces directly in a namespace. Raises NoSuchNamespaceError."""
        names = as_names(namespace)
        with catalog_errors(self.pyiceberg, names):
            return sorted(self.pyiceberg.list_namespaces(names))

    def _views(self, spark: SparkSession | None) -> RestViews | SqlViews:
        if (rest := self._rest) is not None:
            return RestViews(rest)
        if self._holds_sql_views:
            catalog = cast("SqlCatalog", self.pyiceberg)
            return SqlViews(catalog, lambda location: self._files_at(location, spark), self._default_location)
        if self._is_sql:
            problem = "its table iceberg_tables has no column iceberg_type, which views need"
            remedy = "the catalog property schema_version=v1 adds it"
            raise UnsupportedError(f"catalog {self.name}: {problem}: {remedy}")
        raise UnsupportedError(
            f"catalog {self.name}: {type(self.pyiceberg).__name__} can't hold views: SQL and REST catalogs and file "
            "system warehouses can"
        )

    @property
    def _holds_sql_views(self) -> bool:
        """Whether the database has the column that tells views from tables."""
        return self._is_sql and cast("SqlCatalog", self.pyiceberg)._schema_version == "v1"

    def _opened(self, loaded: LoadedTable, names: tuple[str, ...], spark: SparkSession | None) -> Table:
        """Return a table that a REST catalog has loaded."""
        rest = self._rest
        assert rest is not None
        location, metadata = loaded.version
        operations = RestOperations(rest, names, metadata.table_uuid, loaded.token, loaded.credentials)
        is_expiring = expiry(loaded.io.properties) is not None
        io = VendedIO(loaded.io, lambda: load_rest_table(rest, names).io) if is_expiring else loaded.io
        sessions = self.sessions.for_caller(spark)
        files = files_for(sessions, location, io, self._keys)
        return table_of(loaded.version, sessions, files, names, operations, operations)

    def _location(self, names: tuple[str, ...]) -> str | None:
        """Return the location of a table's metadata file; None if there is no such table."""
        with suppress(pyiceberg.exceptions.NoSuchTableError, pyiceberg.exceptions.NoSuchNamespaceError):
            if (rest := self._rest) is not None:
                return load_rest_table(rest, names).version.metadata_location
            return locate(self.pyiceberg, names).metadata_location
        return None

    @property
    def _rest(self) -> RestCatalog | None:
        from pyiceberg.catalog.rest import RestCatalog

        return self.pyiceberg if isinstance(self.pyiceberg, RestCatalog) else None

    def _default_location(self, names: tuple[str, ...]) -> str:
        catalog: Any = self.pyiceberg
        with catalog_errors(catalog, names):
            return str(catalog._resolve_table_location(None, ".".join(names[:-1]), names[-1]))

    def _refuse_nested(self, namespace: tuple[str, ...]) -> None:
        if self._glue is not None and len(namespace) != 1:
            raise UnsupportedError(f"catalog {self.name}: {'.'.join(namespace)}: Glue has no nested namespaces")

    @property
    def _refusal(self) -> str:
        kind = type(self.pyiceberg).__name__
        return (
            f"sparkmeta commits to tables of SQL, Glue and REST catalogs and in folders, not through pyiceberg's {kind}"
        )

    @property
    def _is_sql(self) -> bool:
        return _is_a(self.pyiceberg, "pyiceberg.catalog.sql", "SqlCatalog")

    @property
    def belongs_to_thread(self) -> bool:
        """Whether the catalog is a database in memory, since each thread would open a separate one."""
        if not self._is_sql:
            return False
        url = cast("SqlCatalog", self.pyiceberg).engine.url
        return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")

    @property
    def _glue(self) -> GlueCatalog | None:
        is_glue = _is_a(self.pyiceberg, "pyiceberg.catalog.glue", "GlueCatalog")
        return cast("GlueCatalog", self.pyiceberg) if is_glue else None

    def _pointer_operations(
        self, names: tuple[str, ...], files: Files, table_uuid: UUID | None = None
    ) -> PointerOperations | None:
        """Return the operations of a table whose catalog stores the location of any metadata file."""
        if self._is_sql:
            from sparkmeta.operations.sql import SqlOperations

            return SqlOperations(cast("SqlCatalog", self.pyiceberg), names, files, table_uuid)
        if (glue := self._glue) is not None:
            from sparkmeta.operations.glue import GlueOperations

            return GlueOperations(glue, names, files, table_uuid)
        return None


def locate(catalog: PyIcebergCatalog, identifier: tuple[str, ...]) -> Located:
    """Return the location of a table's metadata file in a catalog that stores locations.

    pyiceberg's ``load_table`` would also read the file, with models that refuse format version 4, variant columns and
    new operations.
    """
    try:
        table = _locating(catalog).load_table(identifier)
    except _LocatedError as located:
        return Located(located.location, catalog._load_file_io(location=located.location))
    return Located(table.metadata_location, catalog._load_file_io(table.metadata.properties, table.metadata_location))


def _refuse_unknown(name: str, properties: Mapping[str, Any]) -> None:
    kinds, kind = [*(catalog_type.value for catalog_type in CatalogType), "hadoop"], properties.get("type")
    if kind and str(kind).lower() not in kinds:
        raise InvalidArgumentError(f"catalog {name}: type is {shown(kind)}: expected one of {', '.join(kinds)}")
    if not is_configured(properties):
        sources = (
            f".pyiceberg.yaml, the variable PYICEBERG_CATALOG__{name.upper()}__URI, spark.sql.catalog.{name} of the "
            "running session or the properties"
        )
        raise InvalidArgumentError(f"catalog {name}: no uri is configured in {sources}")


def _locating(catalog: PyIcebergCatalog) -> PyIcebergCatalog:
    """Return a copy of a catalog that raises _LocatedError where pyiceberg would open a metadata file."""
    copied = copy.copy(catalog)
    copied.properties = {**catalog.properties, "py-io-impl": f"{__name__}.{_Locating.__name__}"}
    return copied


def _is_a(catalog: PyIcebergCatalog, module: str, name: str) -> bool:
    """Return whether a catalog is an instance of a class, whose module may need libraries that are not installed."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(catalog, getattr(loaded, name))


def _refuse_tree(metadata: TableMetadata, names: tuple[str, ...]) -> None:
    if has_tree(metadata):
        raise UnsupportedError(f"{'.'.join(names)}: {TREES_ELSEWHERE}")


class _LocatedError(Exception):
    """Carries the location of the file to be opened."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


class _Locating(FileIO):
    """A FileIO that opens no file, but raises its location."""

    def new_input(self, location: str) -> InputFile:
        raise _LocatedError(location)

    def new_output(self, location: str) -> OutputFile:
        self._refuse(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._refuse(location)

    def _refuse(self, location: object) -> NoReturn:
        raise UnsupportedError(f"{location}: only locates files")
