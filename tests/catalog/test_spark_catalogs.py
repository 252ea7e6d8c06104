"""Catalogs of Spark's own configuration: what pyiceberg's properties are, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

import sparkmeta as sm
from sparkmeta.catalog.configuration import spark_catalog
from sparkmeta.errors import InvalidArgumentError
from tests.peers.java import Java
from tests.peers.workshop import Workshop

ICEBERG = "org.apache.iceberg"
JDBC = {"catalog-impl": f"{ICEBERG}.jdbc.JdbcCatalog", "warehouse": "/w"}
REST = {"type": "rest", "uri": "https://host"}
SAME = {"credential": "id:secret", "header.x": "y", "s3.access-key-id": "key", "client.region": "eu-north-1"}


def configured_catalog(monkeypatch: pytest.MonkeyPatch, **properties: str) -> dict[str, str] | None:
    """The catalog `prod`, besides one of another kind."""
    conf = {f"spark.sql.catalog.prod.{name}": value for name, value in properties.items()} | {
        "spark.sql.catalog.prod": f"{ICEBERG}.spark.SparkCatalog",
        "spark.sql.catalog.other": "org.example.Catalog",
        "spark.sql.catalog.other.uri": "https://other",
    }
    session = SimpleNamespace(conf=SimpleNamespace(getAll=conf))
    monkeypatch.setattr("sparkmeta.catalog.configuration.running_session", lambda: session)
    assert spark_catalog("other") is spark_catalog("prod.uri") is spark_catalog("missing") is None
    return spark_catalog("prod")


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({"type": "hadoop", "warehouse": "s3://b/w"}, {"type": "hadoop", "warehouse": "s3://b/w"}),
        ({"uri": "thrift://host:9083"}, {"type": "hive", "uri": "thrift://host:9083"}),
        ({"type": "glue", "io-impl": f"{ICEBERG}.aws.s3.S3FileIO"}, {"type": "glue"}),
        (REST | SAME, REST | SAME),
        (REST | {"rest.auth.type": "sigv4"}, REST | {"rest.sigv4-enabled": "true"}),
        (REST | {"s3.endpoint": "e"}, REST | {"s3.endpoint": "e", "s3.force-virtual-addressing": "true"}),
        (REST | {"s3.endpoint": "e", "s3.path-style-access": "true"}, REST | {"s3.endpoint": "e"}),
        (
            JDBC | {"uri": "jdbc:postgresql://host:5432/db?sslmode=require", "jdbc.user": "me", "jdbc.password": "p@"},
            {"type": "sql", "uri": "postgresql+psycopg2://me:p%40@host:5432/db?sslmode=require", "warehouse": "/w"},
        ),
        (JDBC | {"uri": "jdbc:sqlite:file:/w/c.db"}, {"type": "sql", "uri": "sqlite:////w/c.db", "warehouse": "/w"}),
        (
            JDBC | {"uri": "jdbc:sqlite:/w/c.db", "jdbc.schema-version": "V1"},
            {"type": "sql", "uri": "sqlite:////w/c.db", "warehouse": "/w", "schema_version": "v1"},
        ),
    ],
)
def test_properties(monkeypatch: pytest.MonkeyPatch, configured: dict[str, str], expected: dict[str, str]) -> None:
    assert configured_catalog(monkeypatch, **configured) == expected


@pytest.mark.parametrize(
    ("configured", "named"),
    [
        ({"type": "nessie", "uri": "u"}, "type is 'nessie'"),
        ({"catalog-impl": "org.example.Catalog"}, "catalog-impl is 'org.example.Catalog'"),
        ({"type": "glue", "io-impl": "org.example.IO"}, "io-impl is 'org.example.IO'"),
        ({"type": "glue", "client.assume-role.arn": "secret"}, "client.assume-role.arn is set"),
        ({"type": "hadoop", "warehouse": "w", "hadoop.fs.s3a.secret.key": "secret"}, "hadoop.fs.s3a.secret.key is set"),
        (JDBC | {"uri": "jdbc:mysql://host/db?password=secret"}, "uri is 'jdbc:mysql'"),
        (REST | {"rest.auth.type": "basic"}, "rest.auth.type is 'basic'"),
    ],
)
def test_what_has_no_equal_is_named(monkeypatch: pytest.MonkeyPatch, configured: dict[str, str], named: str) -> None:
    with pytest.raises(sm.UnsupportedError, match=rf"catalog prod: spark\.sql\.catalog\.prod\.{named}") as refused:
        configured_catalog(monkeypatch, **configured)
    assert "secret" not in str(refused.value).replace("secret.key", "")
    with pytest.raises(InvalidArgumentError, match=r"spark\.sql\.catalog\.prod\.warehouse is not set"):
        configured_catalog(monkeypatch, type="hadoop")


@pytest.mark.java
def test_a_catalog_of_the_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg's own configuration wins, and so do properties that say what catalog it is."""
    shop = Workshop(Java(spark), "by_spark_catalog")
    shop.create("id BIGINT")
    shop.insert("7")
    catalog = sm.load_catalog("java")
    table = catalog.load_table(f"peers.{shop.name}").append(spark.range(2))
    assert shop.sql("SELECT count(*) FROM {t}").collect() == [(3,)]
    assert table.scan().count() == 3
    assert sm.load_catalog("java", type="hadoop", warehouse="/elsewhere").warehouse == "/elsewhere"  # type: ignore[attr-defined]
    monkeypatch.setenv("PYICEBERG_CATALOG__JAVA__TYPE", "hadoop")
    monkeypatch.setenv("PYICEBERG_CATALOG__JAVA__WAREHOUSE", "/configured")
    assert sm.load_catalog("java").warehouse == "/configured"  # type: ignore[attr-defined]
