"""Catalogs of tables in the folders of a warehouse, like Iceberg's Hadoop catalog."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from sparkmeta.catalog.names import as_names
from sparkmeta.catalog.views import FileSystemViews, HoldsViews
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.operations.metadata_files import METADATA, METADATA_FILES
from sparkmeta.session import resolve_session
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.storage.access import files_for
from sparkmeta.storage.location import join, path_of
from sparkmeta.table import open_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from sparkmeta.table import Table

# Most levels of namespaces below a warehouse.
_DEEPEST = 3


@dataclass(frozen=True)
class FileSystemCatalog(HoldsViews):
    """The tables in the folders of a warehouse: ``<warehouse>/<namespace>/<table>``, with a level for each name."""

    name: str
    warehouse: str

    def load_table(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> Table:
        """Load a table. Raises NoSuchTableError."""
        names = as_names(identifier)
        return replace(open_table(self._folder(names), resolve_session(spark)), identifier=names)

    def create_table(
        self,
        identifier: str | tuple[str, ...],
        schema: Schema,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Mapping[str, str] | None = None,
        *,
        format_version: int | None = None,
        spark: SparkSession | None = None,
    ) -> Table:
        """Create an empty table; see `Catalog.create_table`."""
        names = as_names(identifier)
        folder, session = self._folder(names), resolve_session(spark)
        metadata = new_metadata(folder, schema, partition_spec, sort_order, properties or {}, format_version)
        FileSystemOperations(files_for(session, folder), folder).commit(None, metadata)
        return self.load_table(names, session)

    def list_tables(self, namespace: str | tuple[str, ...], spark: SparkSession | None = None) -> list[tuple[str, ...]]:
        """Return the sorted identifiers of the tables directly in a namespace."""
        names = as_names(namespace)
        identifiers = [(*names, name) for name in self._first_names(names, 1, spark)]
        views = set(self.list_views(names, spark))
        return [identifier for identifier in identifiers if identifier not in views]

    def list_namespaces(
        self, namespace: str | tuple[str, ...] = (), spark: SparkSession | None = None
    ) -> list[tuple[str, ...]]:
        """Return the sorted namespaces directly in a namespace that hold tables at up to three levels."""
        names = as_names(namespace)
        names_below = {name for depth in range(2, _DEEPEST + 2) for name in self._first_names(names, depth, spark)}
        return [(*names, name) for name in sorted(names_below - set(self._first_names(names, 1, spark)))]

    def _views(self, spark: SparkSession | None) -> FileSystemViews:
        return FileSystemViews.of(self.warehouse, spark)

    def _first_names(self, names: tuple[str, ...], depth: int, spark: SparkSession | None) -> list[str]:
        folder = self._folder(names)
        pattern = "/".join([*["*"] * depth, METADATA, METADATA_FILES])
        locations = files_for(resolve_session(spark), folder).glob(folder, pattern)
        above = len(path_of(folder).split("/"))
        return sorted({path_of(location).split("/")[above] for location in locations})

    def _folder(self, names: tuple[str, ...]) -> str:
        folder = self.warehouse
        for name in names:
            folder = join(folder, name)
        return folder
