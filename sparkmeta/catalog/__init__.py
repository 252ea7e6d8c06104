"""Catalogs: pyiceberg's, with its configuration, and folders of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyiceberg.utils.config import Config

from sparkmeta.catalog.filesystem import FileSystemCatalog
from sparkmeta.catalog.iceberg import IcebergCatalog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder
    from pyspark.sql import SparkSession

    from sparkmeta.table import Table
    from sparkmeta.views.view import Definition, View

__all__ = ["Catalog", "load_catalog"]


class Catalog(Protocol):
    """Tables by identifier: text with dots, or a tuple of names. ``spark`` defaults to the active session."""

    @property
    def name(self) -> str:
        """The name that the catalog was loaded with."""

    def load_table(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> Table:
        """Load a table. Raises NoSuchTableError."""

    def create_table(
        self,
        identifier: str | tuple[str, ...],
        schema: Schema,
        partition_spec: PartitionSpec = ...,
        sort_order: SortOrder = ...,
        properties: Mapping[str, str] | None = None,
        *,
        format_version: int | None = None,
        spark: SparkSession | None = None,
    ) -> Table:
        """Create an empty table.

        Args:
            format_version: 2, which all engines read, 3, or 4 (the metadata tree). Defaults to the property
                `format-version`, or else to 2.

        Raises:
            TableAlreadyExistsError: the table exists.
            UnsupportedError: the catalog can't hold such tables, or an unsupported format version.
        """

    def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the identifiers of the tables in a namespace."""

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
        """Create a view; see `HoldsViews.create_view`."""

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
        """Create or replace a view; see `HoldsViews.create_or_replace_view`."""

    def load_view(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> View:
        """Load a view. Raises NoSuchViewError."""

    def view_exists(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> bool:
        """Return whether there is a view of the name."""

    def list_views(self, namespace: str | tuple[str, ...], spark: SparkSession | None = None) -> list[tuple[str, ...]]:
        """Return the identifiers of the views in a namespace."""

    def rename_view(
        self,
        from_identifier: str | tuple[str, ...],
        to_identifier: str | tuple[str, ...],
        spark: SparkSession | None = None,
    ) -> View:
        """Rename a view; see `HoldsViews.rename_view`."""

    def drop_view(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> None:
        """Drop a view. Raises NoSuchViewError."""

    def list_namespaces(self, namespace: str | tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """Return the namespaces in a namespace."""


def load_catalog(name: str | None = None, **properties: str) -> Catalog:
    """Load a catalog by pyiceberg's configuration: its file, environment variables and properties.

    There is one additional type: ``type="hadoop", warehouse=...`` has the tables in the folders of a warehouse, like
    Iceberg's Hadoop catalog.

    Raises:
        ValueError: properties are missing.
    """
    config = Config()
    known = name or config.get_default_catalog_name()
    merged = {**(config.get_catalog_config(known) or {}), **properties}
    if str(merged.get("type", "")).lower() != "hadoop":
        return IcebergCatalog.load(known, properties)
    if not (warehouse := merged.get("warehouse")):
        raise ValueError(f"catalog {known}: the property warehouse is missing")
    return FileSystemCatalog(known, str(warehouse))
