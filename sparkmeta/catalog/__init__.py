"""Catalogs: pyiceberg's, by its configuration and names, and folders of tables."""

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

__all__ = ["Catalog", "load_catalog"]


class Catalog(Protocol):
    """Tables by name: a text with dots, or a tuple of names. ``spark`` None takes the active session."""

    @property
    def name(self) -> str:
        """What the catalog was loaded as."""

    def load_table(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> Table:
        """Return the table of a name. Raises NoSuchTableError."""

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
            format_version: 2, which all engines read, 3, or 4 (the metadata tree); by default what the property
                `format-version` says, else 2.

        Raises:
            TableAlreadyExistsError: there is a table of this name.
            UnsupportedError: the catalog can't hold such tables, or the format version is another.
        """

    def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the identifiers of the tables in a namespace."""

    def list_namespaces(self, namespace: str | tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """Return the namespaces in a namespace."""


def load_catalog(name: str | None = None, **properties: str) -> Catalog:
    """Return a catalog by pyiceberg's names and properties, from its configuration file and environment as well.

    One type more: ``type="hadoop", warehouse=...`` are the tables in the folders of a warehouse, as Iceberg's Hadoop
    catalog lays them out. Raises ValueError where properties are missing.
    """
    config = Config()
    known = name or config.get_default_catalog_name()
    merged = {**(config.get_catalog_config(known) or {}), **properties}
    if str(merged.get("type", "")).lower() != "hadoop":
        return IcebergCatalog.load(known, properties)
    if not (warehouse := merged.get("warehouse")):
        raise ValueError(f"catalog {known}: the property warehouse is missing")
    return FileSystemCatalog(known, str(warehouse))
