"""Catalogs of tables in the folders of a warehouse, like Iceberg's Hadoop catalog."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from sparkmeta.catalog.base import NO_PROPERTIES, Catalog, Identifier
from sparkmeta.catalog.names import as_names, first_names, folder_of
from sparkmeta.catalog.views import FileSystemViews
from sparkmeta.checks import property_texts
from sparkmeta.errors import (
    CatalogError,
    CorruptFileError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    UnsupportedError,
    ValidationError,
    shown,
)
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.operations.metadata_files import (
    METADATA,
    METADATA_FILES,
    VERSION_HINT,
    latest_metadata,
    version_of,
)
from sparkmeta.operations.table_operations import NewTableOperations, TableVersion, new_version
from sparkmeta.session import SessionSource
from sparkmeta.storage.files import files_for, warehouse_io
from sparkmeta.storage.keys import TableKeys
from sparkmeta.storage.location import join, normalize
from sparkmeta.table import open_table, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

    from sparkmeta.catalog.recovery import Recovery
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files
    from sparkmeta.table import Table

# Maximum levels of namespaces below a warehouse.
_MAX_LEVELS = 3
# The properties of a namespace. With this file, a folder without tables is a namespace too.
_NAMESPACE_FILE = "namespace.json"
# The pattern of files that the folder of every table or view contains.
_METADATA_PATTERN = f"{METADATA}/{METADATA_FILES}"


@dataclass(frozen=True)
class FileSystemCatalog(Catalog):
    """The tables in the folders of a warehouse: ``<warehouse>/<namespace>/<table>``, with a level for each name.

    A namespace is a folder that holds tables, or the file `namespace.json`, which `create_namespace` writes.
    """

    name: str
    warehouse: str
    # The properties may contain credentials.
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    sessions: SessionSource = field(default_factory=SessionSource, repr=False, compare=False)

    @property
    def _configuration(self) -> Mapping[str, str]:
        return {**self.properties, "type": "hadoop", "warehouse": self.warehouse}

    def _with_sessions(self, sessions: SessionSource) -> FileSystemCatalog:
        """See `with_sessions`."""
        return replace(self, sessions=sessions)

    def load_table(self, identifier: Identifier, spark: SparkSession | None = None) -> Table:
        """Load a table. Raises NoSuchTableError."""
        names = as_names(identifier, 1)
        sessions = self.sessions.for_caller(spark)
        files = files_for(sessions, self.warehouse, self._io, self._keys)
        return replace(open_table(self._folder(names), sessions, files), identifier=names)

    def _create_table(
        self,
        identifier: Identifier,
        metadata_at: Callable[[str], TableMetadata],
        location: str | None,
        spark: SparkSession | None,
    ) -> Table:
        """See `Catalog.create_table`."""
        names = as_names(identifier, 1)
        new_table = self._new_table(names, metadata_at, location, spark)
        new_table.operations.commit(None, new_table.metadata)
        return self.load_table(names, spark)

    def _new_table(
        self,
        names: tuple[str, ...],
        metadata_at: Callable[[str], TableMetadata],
        location: str | None,
        spark: SparkSession | None,
    ) -> Table:
        """See `Catalog._new_table`."""
        folder = self._folder(names)
        if location is not None and normalize(location.rstrip("/")) != normalize(folder):
            raise UnsupportedError(f"{'.'.join(names)}: the folder of the table is {folder}: it can't be {location}")
        version, files = new_version(metadata_at(folder)), self._views(spark).files
        operations = NewTableOperations(version, FileSystemOperations(files, folder))
        return table_of(version, self.sessions.for_caller(spark), files, names, operations)

    def _files_at(self, location: str, spark: SparkSession | None) -> Files:
        """See `Catalog._files_at`."""
        io = warehouse_io(self.properties, location)
        return files_for(self.sessions.for_caller(spark), location, io, self._keys)

    def register_table(
        self,
        identifier: Identifier,
        metadata_location: str,
        spark: SparkSession | None = None,  # noqa: ARG002  the parameters of all catalogs
    ) -> NoReturn:
        """Raise UnsupportedError."""
        self._refuse(identifier, f"{metadata_location} can't be registered here: open it by its path")

    def _recovery(self, identifier: Identifier, location: str | None, spark: SparkSession | None) -> Recovery:
        """See `Catalog._recovery`. The newest file is always current, so files after the chosen one are renamed."""
        from sparkmeta.catalog.recovery import Recovery

        names = as_names(identifier, 1)
        folder, files = self._folder(names), self._views(spark).files
        if location is not None and normalize(location) != normalize(folder):
            raise UnsupportedError(f"{'.'.join(names)}: the folder of the table is {folder}: it can't be {location}")
        metadata = join(folder, METADATA)

        def restore(chosen: TableVersion, newer: Sequence[str]) -> Table:
            version = version_of(chosen.metadata_location)
            if version is None:
                problem = f"{chosen.metadata_location} is of another catalog, which recovers the table"
                self._refuse(names, problem)
            for broken in newer:
                name = f"broken-v{version_of(broken)}-{uuid.uuid4()}.json"
                files.write_new(join(metadata, name), files.read(broken))
            files.overwrite(join(metadata, VERSION_HINT), str(version).encode())
            for failure in files.delete_many(newer):
                raise CatalogError(f"{'.'.join(names)}: {failure.location} can't be renamed: {failure.reason}")
            return self.load_table(names, spark)

        current = None
        with suppress(CorruptFileError, NoSuchTableError):
            current = latest_metadata(files, folder).location
        sessions = self.sessions.for_caller(spark)
        return Recovery(".".join(names), metadata, files, sessions, current, restore)

    def rename_table(
        self,
        from_identifier: Identifier,
        to_identifier: Identifier,
        spark: SparkSession | None = None,  # noqa: ARG002  the parameters of all catalogs
    ) -> NoReturn:
        """Raise UnsupportedError."""
        self._refuse(from_identifier, f"it can't be renamed to {'.'.join(as_names(to_identifier))}")

    def drop_table(self, identifier: Identifier, spark: SparkSession | None = None) -> None:
        """Drop the table in a folder. Raises NoSuchTableError.

        The current metadata file is renamed to `metadata/dropped-<uuid>.json`, and can still be opened by this name.
        Earlier metadata files are deleted. Other files stay.
        """
        self._drop_to_purge(self.load_table(identifier, spark))

    def _drop_to_purge(self, table: Table) -> list[str]:
        if table.operations.refusal is not None:
            self._refuse(table.identifier, "it belongs to another catalog, which drops it")
        return [
            FileSystemOperations(table.state.files, self._folder(table.identifier), table.metadata.table_uuid).drop()
        ]

    def table_exists(self, identifier: Identifier, spark: SparkSession | None = None) -> bool:
        """Return whether the folder of a table has a metadata file."""
        names = as_names(identifier, 1)
        folder = self._folder(names)
        try:
            latest_metadata(self._views(spark).files, folder)
        except NoSuchTableError:
            return False
        return not self._views(spark).operations(names).is_view()

    def list_tables(self, namespace: Identifier, spark: SparkSession | None = None) -> list[tuple[str, ...]]:
        """Return the sorted identifiers of the tables directly in a namespace. Raises NoSuchNamespaceError."""
        names = as_names(namespace)
        self._check_namespace(names, spark)
        identifiers = [(*names, name) for name in self._relations(names, spark)]
        views = set(self.list_views(names, spark))
        return [identifier for identifier in identifiers if identifier not in views]

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] = NO_PROPERTIES, spark: SparkSession | None = None
    ) -> None:
        """Create a namespace.

        Raises:
            NamespaceAlreadyExistsError: the namespace exists, or a table or view of the name.
            ValidationError: the namespace has no name, or too many levels; or see `Catalog.create_namespace`.
        """
        names = as_names(namespace)
        full_name = ".".join(names)
        texts = property_texts(f"{full_name}: properties", properties)
        if not 1 <= len(names) <= _MAX_LEVELS:
            problem = f"namespaces of a file system catalog have 1 to {_MAX_LEVELS}"
            raise ValidationError(f"the namespace {shown(full_name)} has {len(names)} levels: {problem}")
        if self.namespace_exists(names, spark):
            raise NamespaceAlreadyExistsError(f"{full_name}: the namespace already exists")
        if names[-1] in self._relations(names[:-1], spark):
            raise NamespaceAlreadyExistsError(f"{full_name}: a table or view of this name already exists")
        self._views(spark).files.overwrite(self._namespace_file(names), json.dumps(texts).encode())

    def drop_namespace(self, namespace: Identifier, spark: SparkSession | None = None) -> None:
        """Drop an empty namespace; see `Catalog.drop_namespace`."""
        names = as_names(namespace)
        self._check_namespace(names, spark)
        if self._relations(names, spark) or self._namespaces(names, spark):
            raise NamespaceNotEmptyError(f"{'.'.join(names)}: the namespace has tables, views or namespaces")
        for failure in self._views(spark).files.delete_many([self._namespace_file(names)]):
            raise CatalogError(f"{'.'.join(names)}: {failure.location} can't be deleted: {failure.reason}")

    def namespace_exists(self, namespace: Identifier, spark: SparkSession | None = None) -> bool:
        """Return whether a folder holds tables, at up to three levels, or was created as a namespace."""
        names = as_names(namespace)
        files = self._views(spark).files
        if files.exists(self._namespace_file(names)):
            return True
        if not names or files.glob(self._folder(names), _METADATA_PATTERN):
            return False
        return any(self._names_at(names, depth, spark) for depth in range(_MAX_LEVELS))

    def list_namespaces(self, namespace: Identifier = (), spark: SparkSession | None = None) -> list[tuple[str, ...]]:
        """Return the sorted namespaces directly in a namespace that hold tables at up to three levels, or are empty.

        Raises NoSuchNamespaceError.
        """
        names = as_names(namespace)
        self._check_namespace(names, spark)
        return self._namespaces(names, spark)

    def _namespaces(self, names: tuple[str, ...], spark: SparkSession | None) -> list[tuple[str, ...]]:
        names_below = set().union(*(self._names_at(names, depth, spark) for depth in range(1, _MAX_LEVELS + 1)))
        return [(*names, name) for name in sorted(names_below.difference(self._relations(names, spark)))]

    def _names_at(self, names: tuple[str, ...], depth: int, spark: SparkSession | None) -> set[str]:
        """Return the first names of the tables, views and empty namespaces `depth` levels below a namespace."""
        empty_namespaces = self._first_names(names, [*["*"] * depth, _NAMESPACE_FILE], spark) if depth else []
        return {*self._relations(names, spark, depth), *empty_namespaces}

    def _check_namespace(self, names: tuple[str, ...], spark: SparkSession | None) -> None:
        """Raise NoSuchNamespaceError if a namespace does not exist. The warehouse itself is one."""
        if names and not self.namespace_exists(names, spark):
            raise NoSuchNamespaceError(f"{'.'.join(names)}: there is no such namespace")

    def _views(self, spark: SparkSession | None) -> FileSystemViews:
        files = files_for(self.sessions.for_caller(spark), self.warehouse, self._io, self._keys)
        return FileSystemViews(self.warehouse, files)

    def _relations(self, names: tuple[str, ...], spark: SparkSession | None, depth: int = 0) -> list[str]:
        """Return the sorted first names of the tables and views `depth` levels below a namespace."""
        return self._first_names(names, [*["*"] * (depth + 1), _METADATA_PATTERN], spark)

    def _first_names(self, names: tuple[str, ...], pattern: list[str], spark: SparkSession | None) -> list[str]:
        # A table may have any number of folders.
        return first_names(self._views(spark).files, self._folder(names), "/".join(pattern), _METADATA_PATTERN)

    def _namespace_file(self, names: tuple[str, ...]) -> str:
        return join(self._folder(names), _NAMESPACE_FILE)

    @cached_property
    def _keys(self) -> TableKeys | None:
        return TableKeys.of(self.properties)

    @cached_property
    def _io(self) -> FileIO | None:
        return warehouse_io(self.properties, self.warehouse)

    def _folder(self, names: tuple[str, ...]) -> str:
        return folder_of(self.warehouse, names)

    def _refuse(self, identifier: Identifier, reason: str) -> NoReturn:
        raise UnsupportedError(f"{'.'.join(as_names(identifier))} in the file system catalog {self.name}: {reason}")
