"""pyiceberg's catalogs. They only locate metadata files, since pyiceberg can't read all of them."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyiceberg.exceptions
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import load_catalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from sparkmeta.catalog.names import as_names
from sparkmeta.catalog.views import HoldsViews, RestViews
from sparkmeta.errors import NoSuchTableError, UnsupportedError
from sparkmeta.session import resolve_session
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.storage.access import files_for
from sparkmeta.table import open_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from sparkmeta.operations.table_operations import TableOperations
    from sparkmeta.storage.files import Files
    from sparkmeta.table import Table


class Located(NamedTuple):
    """The location of a table's current metadata file, and the FileIO for the table's files."""

    metadata_location: str
    io: FileIO


@dataclass(frozen=True)
class IcebergCatalog(HoldsViews):
    """A catalog that pyiceberg loaded."""

    pyiceberg: PyIcebergCatalog

    @staticmethod
    def load(name: str, properties: Mapping[str, str]) -> IcebergCatalog:
        """Load a catalog by pyiceberg's configuration and ``properties``."""
        return IcebergCatalog(load_catalog(name, **properties))

    @property
    def name(self) -> str:
        return self.pyiceberg.name

    def load_table(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> Table:
        """Load a table, with the FileIO that the catalog provides for it. Raises NoSuchTableError."""
        names = as_names(identifier)
        try:
            located = locate(self.pyiceberg, names)
        except (pyiceberg.exceptions.NoSuchTableError, pyiceberg.exceptions.NoSuchNamespaceError) as error:
            raise NoSuchTableError(f"{'.'.join(names)}: {error}") from error
        table = open_metadata(located.metadata_location, spark, io=located.io, identifier=names)
        operations = self._operations(names, table.state.files, table.metadata.table_uuid)
        return table if operations is None else replace(table, operations=operations)

    def create_table(  # noqa: PLR0913  pyiceberg's own parameters
        self,
        identifier: str | tuple[str, ...],
        schema: Schema,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Mapping[str, str] | None = None,
        *,
        format_version: int | None = None,
        location: str | None = None,
        spark: SparkSession | None = None,
    ) -> Table:
        """Create an empty table in a SQL catalog; see `Catalog.create_table`.

        Args:
            location: the folder of its files. Defaults to the catalog's location for the table.

        Raises:
            NoSuchNamespaceError: the catalog has no such namespace.
            UnsupportedError: not a SQL catalog. Others can't hold tables of version 4; create the others with their own
                tools.
        """
        names = as_names(identifier)
        folder = location or self._default_location(names)
        session = resolve_session(spark)
        files = files_for(session, folder, self.pyiceberg._load_file_io(location=folder))
        operations = self._operations(names, files)
        if operations is None:
            raise UnsupportedError(
                f"{'.'.join(names)}: {type(self.pyiceberg).__name__} can't hold tables of format version 4: SQL "
                "catalogs and file system tables can"
            )
        metadata = new_metadata(folder, schema, partition_spec, sort_order, properties or {}, format_version)
        operations.commit(None, metadata)
        return self.load_table(names, session)

    def _default_location(self, names: tuple[str, ...]) -> str:
        catalog: Any = self.pyiceberg
        return str(catalog._resolve_table_location(None, ".".join(names[:-1]), names[-1]))

    def _operations(
        self, names: tuple[str, ...], files: Files, table_uuid: UUID | None = None
    ) -> TableOperations | None:
        """Return the operations of a table in this catalog; None if the catalog's commits can't be used."""
        try:
            from pyiceberg.catalog.sql import SqlCatalog

            from sparkmeta.operations.sql import SqlOperations
        except ImportError:  # without SQLAlchemy
            return None
        if not isinstance(self.pyiceberg, SqlCatalog):
            return None
        return SqlOperations(self.pyiceberg, names, files, table_uuid)

    def _views(self, spark: SparkSession | None) -> RestViews:  # noqa: ARG002  views are metadata alone
        from pyiceberg.catalog.rest import RestCatalog

        if not isinstance(self.pyiceberg, RestCatalog):
            raise UnsupportedError(
                f"catalog {self.name}: {type(self.pyiceberg).__name__} can't hold views: REST catalogs and file system "
                "warehouses can"
            )
        return RestViews(self.pyiceberg)

    def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the identifiers of the tables in a namespace."""
        return self.pyiceberg.list_tables(namespace)

    def list_namespaces(self, namespace: str | tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """Return the namespaces in a namespace."""
        return self.pyiceberg.list_namespaces(namespace)


def locate(catalog: PyIcebergCatalog, identifier: tuple[str, ...]) -> Located:
    """Return the location of a table's metadata file in a catalog.

    pyiceberg's ``load_table`` would also read the file, with models that refuse format version 4, variant columns and
    new operations.
    """
    from pyiceberg.catalog.rest import RestCatalog

    if isinstance(catalog, RestCatalog):
        return _locate_rest(catalog, identifier)
    probe = copy.copy(catalog)
    probe.properties = {**catalog.properties, "py-io-impl": f"{__name__}.{_Locating.__name__}"}
    try:
        table = probe.load_table(identifier)
    except _LocatedError as located:
        return Located(located.location, catalog._load_file_io(location=located.location))
    return Located(table.metadata_location, catalog._load_file_io(table.metadata.properties, table.metadata_location))


def _locate_rest(catalog: RestCatalog, identifier: tuple[str, ...]) -> Located:
    """Send the request of RestCatalog.load_table, and read only the properties of the metadata in the answer."""
    from pyiceberg.catalog.rest import Capability, Endpoints
    from pyiceberg.catalog.rest.response import _handle_non_200_response
    from pyiceberg.catalog.rest.scan_planning import StorageCredential
    from requests import HTTPError

    catalog._check_endpoint(Capability.V1_LOAD_TABLE)
    url = catalog.url(Endpoints.load_table, prefixed=True, **catalog._split_identifier_for_path(identifier))
    response = catalog._session.get(url)
    try:
        response.raise_for_status()
    except HTTPError as error:
        _handle_non_200_response(error, {404: pyiceberg.exceptions.NoSuchTableError})
    answer: dict[str, Any] = json.loads(response.text)
    location = answer.get("metadata-location")
    if not location:
        raise UnsupportedError(f"{'.'.join(identifier)}: the catalog names no metadata file")
    credentials = [StorageCredential(**credential) for credential in answer.get("storage-credentials") or []]
    properties = (answer.get("metadata") or {}).get("properties") or {}
    return Located(
        location,
        catalog._load_file_io(
            {
                **properties,
                **(answer.get("config") or {}),
                **catalog._resolve_storage_credentials(credentials, location),
            },
            location,
        ),
    )


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
