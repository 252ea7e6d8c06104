"""REST catalogs: Iceberg's own, in a process of its own."""

from __future__ import annotations

import uuid

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from sparkmeta.catalog import load_catalog
from sparkmeta.catalog.iceberg import IcebergCatalog

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))


@pytest.fixture
def catalog(rest_uri: str) -> IcebergCatalog:
    catalog = load_catalog("rest", type="rest", uri=rest_uri)
    assert isinstance(catalog, IcebergCatalog)
    return catalog


@pytest.fixture
def namespace(catalog: IcebergCatalog) -> str:
    """A new namespace, since all tests share the catalog."""
    name = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.pyiceberg.create_namespace(name)
    return name


def test_listing(catalog: IcebergCatalog, namespace: str) -> None:
    catalog.pyiceberg.create_table(f"{namespace}.t", SCHEMA)
    assert (namespace,) in catalog.list_namespaces()
    assert catalog.list_tables(namespace) == [(namespace, "t")]
