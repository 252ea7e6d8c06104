"""What catalogs and their clients raise, as errors of sparkmeta that name the catalog and show no credentials."""

from __future__ import annotations

import socket
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import sparkmeta as sm
from sparkmeta.errors import InvalidNameError
from tests.rest.proxy import Fault, Way, rest_proxy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

SECRETS = {
    "token": "a-very-secret-token",
    "s3.access-key-id": "AKIA0123456789",
    "s3.secret-access-key": "a-very-secret-key",
    "s3.session-token": "a-session-token",
}
PASSWORD = "the-passw0rd"


def assert_hidden(error: BaseException) -> None:
    """No credential is in what a traceback, a log or a notebook shows of an error."""
    text = "".join(traceback.format_exception(error)) + repr(error)
    assert [secret for secret in [*SECRETS.values(), PASSWORD] if secret in text] == []


def test_a_refused_connection() -> None:
    uri = f"http://me:{PASSWORD}@127.0.0.1:1"
    with pytest.raises(sm.CatalogError, match=r"^catalog prod: .*127\.0\.0\.1.*refused") as caught:
        sm.load_catalog("prod", type="rest", uri=uri, **SECRETS)
    assert isinstance(caught.value, OSError)
    assert_hidden(caught.value)


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(sm.CatalogError, match=r"^catalog prod: .*Read timed out") as caught:
            sm.load_catalog("prod", uri=uri, **SECRETS, **{"rest.client.socket-timeout-ms": "100"})
    assert_hidden(caught.value)


@pytest.mark.parametrize("limit", ["0", "1.5", "soon"])
def test_an_invalid_time_limit(limit: str) -> None:
    name = "rest.client.connection-timeout-ms"
    with pytest.raises(sm.ValidationError, match=f"the catalog property {name} is '?{limit}'?: expected milliseconds"):
        sm.load_catalog("prod", type="rest", uri="http://127.0.0.1:1", **{name: limit})


@pytest.mark.parametrize("identifier", ["orders", ("orders",), "", "a..b", 5, None])
def test_what_is_no_identifier_of_a_table(identifier: Any, tmp_path: Path) -> None:
    catalog = sm.load_catalog("shop", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path))
    calls: list[Callable[[], object]] = [
        lambda: catalog.load_table(identifier),
        lambda: catalog.table_exists(identifier),
        lambda: catalog.drop_table(identifier),
        lambda: catalog.create_table(identifier, Schema()),
        lambda: catalog.rename_table("db.t", identifier),
        lambda: catalog.register_table(identifier, "/t/v1.metadata.json"),
    ]
    for call in calls:
        with pytest.raises(InvalidNameError, match=r"the identifier is .*: expected .*name"):
            call()


def test_no_database(tmp_path: Path) -> None:
    with pytest.raises(sm.CatalogError, match=r"^catalog prod: .*unable to open database file"):
        sm.load_catalog("prod", type="sql", uri=f"sqlite:///{tmp_path}/none/catalog.db")


OPERATIONS: list[Callable[[sm.Catalog], Any]] = [
    lambda catalog: catalog.list_namespaces(),
    lambda catalog: catalog.list_tables("ns"),
    lambda catalog: catalog.namespace_exists("ns"),
    lambda catalog: catalog.table_exists("ns.t"),
    lambda catalog: catalog.load_table("ns.t"),
    lambda catalog: catalog.drop_table("ns.t"),
    lambda catalog: catalog.drop_namespace("ns"),
    lambda catalog: catalog.create_namespace("ns"),
]


def test_every_operation_of_a_rest_catalog(rest_uri: str) -> None:
    with rest_proxy(rest_uri) as proxy:
        catalog = sm.load_catalog("prod", type="rest", uri=proxy.uri, **SECRETS)
        proxy.token = "another-token"
        for operation in OPERATIONS:
            with pytest.raises(sm.CatalogError, match=r"^catalog prod: .*(injected|Unauthorized)") as caught:
                operation(catalog)
            assert_hidden(caught.value)
    for operation in OPERATIONS:
        with pytest.raises(sm.CatalogError, match=r"^catalog prod: .*refused") as caught:
            operation(catalog)
        assert_hidden(caught.value)


def test_every_operation_of_a_sql_catalog(spark: SparkSession, tmp_path: Path) -> None:
    database = tmp_path / "catalog.db"
    catalog = sm.load_catalog("prod", type="sql", uri=f"sqlite:///{database}", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("here")
    schema = Schema(NestedField(1, "id", LongType(), required=True))
    table = catalog.create_table("here.t", schema, spark=spark)
    database.write_bytes(b"no database" * 1000)
    with pytest.raises(sm.CatalogError, match=r"^catalog prod: here\.t: .*file is not a database"):
        table.refresh()
    for operation in OPERATIONS:
        with pytest.raises(sm.CatalogError, match=r"^catalog prod: .*file is not a database"):
            operation(catalog)


def test_an_answer_that_shows_a_credential(rest_uri: str) -> None:
    """Servers may repeat what they were sent."""
    with rest_proxy(rest_uri) as proxy:
        catalog = sm.load_catalog("prod", type="rest", uri=proxy.uri, **SECRETS)
        proxy.faults.append(Fault(Way.REFUSED, 400))
        proxy.message = f"bad token {SECRETS['token']}"
        with pytest.raises(sm.ValidationError, match=r"^catalog prod: ns: .*bad token \*\*\*$") as caught:
            catalog.create_namespace("ns")
        assert_hidden(caught.value)


def test_no_repr_shows_credentials(rest_uri: str) -> None:
    catalog = sm.load_catalog("prod", type="rest", uri=rest_uri, **SECRETS)
    assert not [secret for secret in SECRETS.values() if secret in repr(catalog)]
