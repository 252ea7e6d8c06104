"""AWS Glue, moto's, whose entries point to metadata files of all versions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from tests.catalog.test_operations import SCHEMA, SPEC
from tests.s3 import ACCESS_KEY, BUCKET, SECRET_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.s3 import S3Server


@pytest.fixture
def catalog(s3: S3Server) -> sm.Catalog:
    return sm.load_catalog("aws", type="glue", warehouse=f"s3://{BUCKET}/glue", **s3.glue, **s3.properties)


def test_glue(spark: SparkSession, catalog: sm.Catalog) -> None:
    ns = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(ns)
    catalog.create_namespace_if_not_exists(ns)
    assert (ns,) in catalog.list_namespaces()
    assert catalog.namespace_exists(ns)
    created = catalog.create_table(f"{ns}.t", SCHEMA, SPEC, properties={"a": "1"}, spark=spark)
    assert (created.format_version, created.properties["a"]) == (2, "1")
    assert catalog.create_table_if_not_exists(f"{ns}.t", SCHEMA, spark=spark).metadata == created.metadata
    assert catalog.list_tables(ns) == [(ns, "t")]
    renamed = catalog.rename_table(f"{ns}.t", f"{ns}.u", spark)
    assert (renamed.name(), renamed.metadata.table_uuid) == ((ns, "u"), created.metadata.table_uuid)
    assert (catalog.table_exists(f"{ns}.t"), catalog.table_exists(f"{ns}.u")) == (False, True)
    with pytest.raises(sm.NamespaceNotEmptyError):
        catalog.drop_namespace(ns)
    catalog.drop_table(f"{ns}.u")
    registered = catalog.register_table(f"{ns}.w", created.metadata_location, spark)
    assert registered.metadata == created.metadata

    tree = catalog.create_table(f"{ns}.tree", SCHEMA, SPEC, format_version=4, spark=spark)
    with tree.transaction() as tx:
        tx.set_properties(a="2")
    moved = catalog.rename_table(f"{ns}.tree", f"{ns}.moved", spark)
    assert (moved.metadata.table_uuid, moved.properties["a"]) == (tree.metadata.table_uuid, "2")
    with pytest.raises(sm.TableAlreadyExistsError):
        catalog.rename_table(f"{ns}.w", f"{ns}.moved", spark)
    with pytest.raises(sm.NoSuchNamespaceError):
        catalog.rename_table(f"{ns}.w", "none.w", spark)
    catalog.drop_table(f"{ns}.moved")
    assert catalog.register_table(f"{ns}.tree", moved.metadata_location, spark).metadata == moved.metadata
    catalog.drop_table(f"{ns}.tree")
    for operation in (
        lambda: catalog.create_namespace(f"{ns}.deep"),
        lambda: catalog.create_table(f"{ns}.deep.t", SCHEMA, spark=spark),
        lambda: catalog.rename_table(f"{ns}.w", f"{ns}.deep.w", spark),
        lambda: catalog.register_table(f"{ns}.deep.w", created.metadata_location, spark),
    ):
        with pytest.raises(sm.UnsupportedError, match=rf"catalog aws: {ns}\.deep: Glue has no nested namespaces"):
            operation()
    with pytest.raises(sm.NoSuchTableError, match=r"catalog aws: \w+\.none: "):
        catalog.load_table(f"{ns}.none", spark)
    with pytest.raises(sm.NoSuchNamespaceError):
        catalog.list_tables("none")
    catalog.drop_table(f"{ns}.w")
    catalog.drop_namespace(ns)
    assert not catalog.namespace_exists(ns)


def test_a_glue_that_refuses(s3: S3Server, catalog: sm.Catalog) -> None:
    with s3.faulty(refuses=lambda _: 403), pytest.raises(sm.CatalogError, match=r"^catalog aws: ") as caught:
        catalog.list_namespaces()
    assert SECRET_KEY not in str(caught.value)
    assert ACCESS_KEY not in str(caught.value)
