"""Catalogs: pyiceberg's, with its configuration, and folders of tables."""

from __future__ import annotations

from pyiceberg.utils.config import Config

from sparkmeta.catalog.base import Catalog
from sparkmeta.catalog.configuration import is_configured, spark_catalog
from sparkmeta.errors import InvalidArgumentError
from sparkmeta.storage.location import absolute

__all__ = ["Catalog", "load_catalog"]


def load_catalog(name: str | None = None, **properties: str) -> Catalog:
    """Load a catalog by pyiceberg's configuration: its file, environment variables and properties.

    There is one additional type: ``type="hadoop", warehouse=...`` serves the tables in the folders of a warehouse, like
    Iceberg's Hadoop catalog. A relative path starts at the current folder. With properties of a FileIO, such as
    ``s3.endpoint``, this FileIO opens a warehouse on a store. Otherwise Spark opens it, and the tables are read-only.

    If pyiceberg's configuration does not contain the catalog, Spark's is searched:
    ``load_catalog("prod")`` then opens the Iceberg catalog that ``spark.sql.catalog.prod`` and its properties define in
    the running session.

    Raises:
        InvalidArgumentError: properties are missing, or don't describe a catalog.
        UnsupportedError: a property of Spark's configuration has no counterpart in pyiceberg.
        CatalogError: the catalog does not respond, or refuses the credentials.
    """
    config = Config()
    catalog_name = name or config.get_default_catalog_name()
    all_properties = {**(config.get_catalog_config(catalog_name) or {}), **properties}
    if not is_configured(all_properties):
        if name is None:
            raise InvalidArgumentError(
                f"no catalog is named, and the configuration has no catalog {catalog_name}, pyiceberg's default: "
                "name one"
            )
        all_properties = {**(spark_catalog(catalog_name) or {}), **all_properties}
    if str(all_properties.get("type", "")).lower() != "hadoop":
        from sparkmeta.catalog.iceberg import IcebergCatalog

        return IcebergCatalog.load(catalog_name, all_properties)
    if not (warehouse := all_properties.get("warehouse")):
        raise InvalidArgumentError(f"catalog {catalog_name}: the property warehouse is missing")
    from sparkmeta.catalog.filesystem import FileSystemCatalog

    text_properties = {name: value for name, value in all_properties.items() if isinstance(value, str)}
    return FileSystemCatalog(catalog_name, absolute(str(warehouse)), text_properties)
