"""pyiceberg's catalogs, and the catalogs of Spark's configuration. They only locate metadata files."""

from __future__ import annotations

import copy
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, cast

import pyiceberg.exceptions
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import CatalogType, load_catalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from sparkmeta.catalog.base import NO_PROPERTIES, Catalog, Identifier
from sparkmeta.catalog.names import IN_NAMESPACE, as_names
from sparkmeta.catalog.views import RestViews
from sparkmeta.checks import property_texts
from sparkmeta.errors import InvalidArgumentError, UnsupportedError, first_line, shown
from sparkmeta.operations.catalog_errors import catalog_errors, errors_of_catalog, settled
from sparkmeta.operations.rest import (
    LoadedTable,
    RestOperations,
    TimedRestCatalog,
    create_rest_table,
    load_rest_table,
    refuse_missing_namespace,
    register_rest_table,
    rename_rest_table,
    rest_table_exists,
)
from sparkmeta.operations.table_operations import TREES_ELSEWHERE, StaticOperations, load_version
from sparkmeta.session import resolve_session, running_session
from sparkmeta.settings import ICEBERG_CATALOG, iceberg_catalogs
from sparkmeta.spec.metadata import has_tree
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.storage.content import VendedIO, expiry
from sparkmeta.storage.files import files_for
from sparkmeta.table import open_metadata, table_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from sparkmeta.operations.pointer import PointerOperations
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files
    from sparkmeta.table import Table


# -- Catalogs of Spark's configuration --------------------------------------------------------------------------------


_TYPES: Final = {"hadoop": "hadoop", "hive": "hive", "rest": "rest", "glue": "glue", "jdbc": "sql"}
_CLASSES: Final = {
    "org.apache.iceberg.hadoop.HadoopCatalog": "hadoop",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
}
# The type of Spark's catalog if neither its type nor its class is set.
_DEFAULT_TYPE: Final = "hive"
# FileIOs that choose by a location's scheme, or that its scheme chooses, as pyiceberg does.
_FILE_IOS: Final = {
    f"org.apache.iceberg.{name}"
    for name in ("aws.s3.S3FileIO", "hadoop.HadoopFileIO", "io.ResolvingFileIO", "gcp.gcs.GCSFileIO",
                 "azure.adlsv2.ADLSFileIO")
}  # fmt: skip
# Properties that decide who is trusted, what is opened or who may commit, and that pyiceberg lacks.
_UNMAPPED: Final = re.compile(
    r"client\.(?:factory|credentials-provider.*|assume-role\..+)|hadoop\..+|lock-impl|rest\.client\..+|"
    r"s3\.(?:client-factory-impl|access-grants\..+)"
)
_JDBC: Final = re.compile(r"jdbc:(?:(?P<server>postgresql)://(?P<place>.+)|sqlite:(?:file:)?(?P<file>/.+))")
_AUTH_TYPES: Final = {"none": {}, "oauth2": {}, "sigv4": {"rest.sigv4-enabled": "true"}}


def spark_catalog(name: str) -> dict[str, str] | None:
    """Return pyiceberg's properties for the Iceberg catalog of this name in the running session's configuration.

    Returns:
        None if no session runs, or Spark has no Iceberg catalog of the name.

    Raises:
        UnsupportedError: a type, class or property of the catalog has no counterpart in pyiceberg. The message names
            it.
        InvalidArgumentError: a property is missing.
    """
    session = running_session()
    properties = iceberg_catalogs(session).get(name) if session is not None else None
    return None if properties is None else _translated(name, properties)


def _translated(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    known = dict(properties)
    kind = _kind(name, known)
    for key in sorted(known):
        if _UNMAPPED.fullmatch(key):
            _refuse(name, key, known[key] if key.endswith(("-impl", "factory")) else None)
    if (file_io := known.pop("io-impl", None)) is not None and file_io not in _FILE_IOS:
        _refuse(name, "io-impl", file_io)
    if (auth := known.pop("rest.auth.type", None)) is not None:
        if auth.lower() not in _AUTH_TYPES:
            _refuse(name, "rest.auth.type", auth)
        known |= _AUTH_TYPES[auth.lower()]
    path_style = known.pop("s3.path-style-access", "false").lower() == "true"
    if "s3.endpoint" in known and not path_style:
        # By default, Java puts the bucket into the host, but pyiceberg puts it into the path if there is another
        # endpoint.
        known.setdefault("s3.force-virtual-addressing", "true")
    if kind == "jdbc":
        known["uri"] = _database(name, known)
    return known | {"type": _TYPES[kind]}


def _kind(name: str, known: dict[str, str]) -> str:
    declared, implementation = known.pop("type", ""), known.pop("catalog-impl", "")
    if implementation and implementation not in _CLASSES:
        _refuse(name, "catalog-impl", implementation)
    kind = _CLASSES[implementation] if implementation else declared.lower() or _DEFAULT_TYPE
    if kind not in _TYPES:
        _refuse(name, "type", declared)
    if kind != "glue" and not known.get(needed := "warehouse" if kind == "hadoop" else "uri"):
        raise InvalidArgumentError(f"catalog {name}: {ICEBERG_CATALOG}{name}.{needed} is not set")
    return kind


def _database(name: str, known: dict[str, str]) -> str:
    """Return the address of a database in SQLAlchemy's form, with the user and password of the properties."""
    from sqlalchemy import make_url

    match = _JDBC.fullmatch(known["uri"])
    if match is None:
        _refuse(name, "uri", known["uri"].partition("://")[0].partition("?")[0])
    if match["file"]:
        return f"sqlite:///{match['file']}"
    url = make_url(f"postgresql+psycopg2://{match['place']}")
    user, password = known.pop("jdbc.user", None), known.pop("jdbc.password", None)
    if user is not None:
        url = url.set(username=user, password=password)
    return url.render_as_string(hide_password=False)


def _refuse(name: str, key: str, value: str | None) -> NoReturn:
    what = f"{ICEBERG_CATALOG}{name}.{key} is " + ("set" if value is None else shown(value))
    raise UnsupportedError(
        f"catalog {name}: {what}, which has no counterpart in pyiceberg: load the catalog with pyiceberg's properties, "
        f"as in load_catalog({name!r}, type=..., uri=...)"
    )


# -- pyiceberg's catalogs ---------------------------------------------------------------------------------------------


class Located(NamedTuple):
    """The location of a table's current metadata file, and the FileIO for the table's files."""

    metadata_location: str
    io: FileIO


@dataclass(frozen=True)
class IcebergCatalog(Catalog):
    """A catalog that pyiceberg loaded."""

    pyiceberg: PyIcebergCatalog

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
        table = open_metadata(located.metadata_location, spark, io=located.io, identifier=names)
        pointer = self._pointer_operations(names, table.state.files, table.metadata.table_uuid)
        return replace(table, operations=pointer or StaticOperations(table.version, self._refusal))

    def create_table(  # noqa: PLR0913  pyiceberg's own parameters
        self,
        identifier: Identifier,
        schema: Schema,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Mapping[str, str] | None = None,
        *,
        format_version: int | None = None,
        location: str | None = None,
        spark: SparkSession | None = None,
    ) -> Table:
        """Create an empty table; see `Catalog.create_table`. SQL catalogs and Glue hold tables of version 4."""
        names, session = as_names(identifier, IN_NAMESPACE), resolve_session(spark)
        self._refuse_nested(names[:-1])
        rest = self._rest
        # A REST catalog chooses the location later: errors name the table.
        folder = location or (f"rest:{'.'.join(names)}" if rest is not None else self._default_location(names))
        metadata = new_metadata(folder, schema, partition_spec, sort_order, properties, format_version)
        if rest is not None:
            _refuse_tree(metadata, names)
            return self._opened(create_rest_table(rest, names, metadata, location), names, session)
        with catalog_errors(self.pyiceberg, names):
            files = files_for(session, folder, self.pyiceberg._load_file_io(location=folder))
            if (pointer := self._pointer_operations(names, files)) is not None:
                pointer.commit(None, metadata)
            else:
                _refuse_tree(metadata, names)
                version = {"format-version": str(metadata.format_version)}
                layout = (metadata.schema(), location, metadata.spec(), metadata.sort_order())
                self.pyiceberg.create_table(names, *layout, metadata.properties | version)
        return self.load_table(names, session)

    def register_table(
        self, identifier: Identifier, metadata_location: str, spark: SparkSession | None = None
    ) -> Table:
        """Add the table of a metadata file to the catalog; see `Catalog.register_table`."""
        names, session = as_names(identifier, IN_NAMESPACE), resolve_session(spark)
        self._refuse_nested(names[:-1])
        with catalog_errors(self.pyiceberg, names):
            files = files_for(session, metadata_location, self.pyiceberg._load_file_io(location=metadata_location))
            if (glue := self._glue) is not None:
                from sparkmeta.operations.glue import register_glue_table

                register_glue_table(glue, names, load_version(files, metadata_location))
                return self.load_table(names, session)
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
                    return self._opened(register_rest_table(rest, names, metadata_location), names, session)
                if self._is_sql:
                    # Once it is registered, pyiceberg loads the table.
                    with suppress(_LocatedError):
                        _locating(self.pyiceberg).register_table(names, metadata_location)
                else:
                    self.pyiceberg.register_table(names, metadata_location)
        return self.load_table(names, session)

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

    def _views(self, spark: SparkSession | None) -> RestViews:  # noqa: ARG002  views are metadata alone
        if (rest := self._rest) is None:
            raise UnsupportedError(
                f"catalog {self.name}: {type(self.pyiceberg).__name__} can't hold views: REST catalogs and file system "
                "warehouses can"
            )
        return RestViews(rest)

    def _opened(self, loaded: LoadedTable, names: tuple[str, ...], spark: SparkSession | None) -> Table:
        """Return a table that a REST catalog has loaded."""
        session = resolve_session(spark)
        rest = self._rest
        assert rest is not None
        location, metadata = loaded.version
        operations = RestOperations(rest, names, metadata.table_uuid, loaded.token, loaded.credentials)
        expires = expiry(loaded.io.properties) is not None
        io = VendedIO(loaded.io, lambda: load_rest_table(rest, names).io) if expires else loaded.io
        return table_of(loaded.version, session, files_for(session, location, io), names, operations)

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


def is_configured(properties: Mapping[str, Any]) -> bool:
    """Return whether properties say which kind of catalog they describe."""
    return any(properties.get(key) for key in ("type", "uri", "py-catalog-impl"))


def _refuse_unknown(name: str, properties: Mapping[str, Any]) -> None:
    kinds, kind = [*(each.value for each in CatalogType), "hadoop"], properties.get("type")
    if kind and str(kind).lower() not in kinds:
        raise InvalidArgumentError(f"catalog {name}: type is {shown(kind)}: expected one of {', '.join(kinds)}")
    if not is_configured(properties):
        places = (
            f".pyiceberg.yaml, the variable PYICEBERG_CATALOG__{name.upper()}__URI, spark.sql.catalog.{name} of the "
            "running session or the properties"
        )
        raise InvalidArgumentError(f"catalog {name}: no uri is configured in {places}")


def _locating(catalog: PyIcebergCatalog) -> PyIcebergCatalog:
    """Return a copy of a catalog that raises _LocatedError where pyiceberg would open a metadata file."""
    copied = copy.copy(catalog)
    copied.properties = {**catalog.properties, "py-io-impl": f"{__name__}.{_Locating.__name__}"}
    return copied


def _is_a(catalog: PyIcebergCatalog, module: str, name: str) -> bool:
    """Return whether a catalog is of a class whose module needs libraries that may not be installed."""
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
