from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError as PyIcebergNoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from sparkmeta import load_catalog
from sparkmeta.catalog.iceberg import IcebergCatalog
from sparkmeta.errors import NoSuchTableError, UnsupportedError, ValidationError
from tests.served import served
from tests.spec.table_metadata import encoded, v4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))


@pytest.fixture
def catalog(tmp_path: Path) -> IcebergCatalog:
    catalog = load_catalog("sql", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    assert isinstance(catalog, IcebergCatalog)
    catalog.pyiceberg.create_namespace("ns")
    catalog.pyiceberg.create_table("ns.t", SCHEMA, properties={"owner": "me"})
    return catalog


def test_a_sql_catalog(spark: SparkSession, catalog: IcebergCatalog) -> None:
    assert catalog.name == "sql"
    assert catalog.list_namespaces() == [("ns",)]
    assert catalog.list_tables("ns") == [("ns", "t")]
    table = catalog.load_table("ns.t", spark)
    assert (table.name(), table.read_only, table.properties["owner"]) == (("ns", "t"), False, "me")
    assert table.schema() == SCHEMA
    assert table.metadata_location == catalog.pyiceberg.load_table("ns.t").metadata_location


def test_no_such_table(spark: SparkSession, catalog: IcebergCatalog) -> None:
    with pytest.raises(NoSuchTableError, match=r"ns\.none: Table does not exist") as caught:
        catalog.load_table(("ns", "none"), spark)
    assert isinstance(caught.value, PyIcebergNoSuchTableError)


def test_refreshing(spark: SparkSession, catalog: IcebergCatalog) -> None:
    table = catalog.load_table("ns.t", spark)
    assert table.refresh() is table, "nothing has changed"
    catalog.pyiceberg.load_table("ns.t").transaction().set_properties(owner="you").commit_transaction()
    assert table.refresh().properties["owner"] == "you"
    catalog.pyiceberg.drop_table("ns.t")
    catalog.pyiceberg.create_table("ns.t", SCHEMA)
    with pytest.raises(ValidationError, match=f"the table that was opened here is {table.metadata.table_uuid}"):
        table.refresh()


def test_what_pyiceberg_can_not_read(spark: SparkSession, catalog: IcebergCatalog) -> None:
    """Format version 4, variant columns, unknown operations."""
    location = catalog.pyiceberg.load_table("ns.t").metadata_location
    with open(location.removeprefix("file://"), "wb") as file:  # noqa: PTH123
        file.write(encoded(v4()))
    table = catalog.load_table("ns.t", spark)
    assert table.format_version == 4
    assert str(table.schema().find_type("v")) == "variant"
    assert catalog.pyiceberg.properties.get("py-io-impl") is None


class _Server(BaseHTTPRequestHandler):
    """The three answers of a REST catalog that loading a table asks for."""

    location = ""

    def do_GET(self) -> None:
        answers: dict[str, Any] = {
            "/v1/config": {"defaults": {}, "overrides": {}},
            "/v1/namespaces/ns/tables/t": {
                "metadata-location": self.location,
                "metadata": v4() | {"properties": {"owner": "me"}},
            },
        }
        answer = answers.get(self.path.partition("?")[0])
        error = {"error": {"message": "Table does not exist", "type": "NoSuchTableException", "code": 404}}
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(error if answer is None else answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[IcebergCatalog]:
    (tmp_path / "v1.metadata.json").write_bytes(encoded(v4()))
    _Server.location = f"file://{tmp_path}/v1.metadata.json"
    with served(_Server) as uri:
        catalog = load_catalog("rest", type="rest", uri=uri)
        assert isinstance(catalog, IcebergCatalog)
        yield catalog


def test_a_rest_catalog_that_shows_a_newer_version(spark: SparkSession, rest: IcebergCatalog) -> None:
    table = rest.load_table("ns.t", spark)
    assert (table.format_version, table.metadata_location) == (4, _Server.location)
    assert table.properties == {"owner": "me"}, "of the answer, not of the file"
    with pytest.raises(NoSuchTableError, match=r"ns\.none: "):
        rest.load_table("ns.none", spark)


class _Foreign(NoopCatalog):
    """An unknown catalog that loads the tables of another one."""

    tables: Any

    def load_table(self, identifier: Any) -> Any:
        return self.tables.load_table(identifier)


def test_an_unknown_catalog(spark: SparkSession, catalog: IcebergCatalog) -> None:
    """Its tables are read-only."""
    foreign = _Foreign("foreign")
    foreign.tables = catalog.pyiceberg
    table = IcebergCatalog(foreign).load_table("ns.t", spark)
    assert (table.metadata, table.read_only) == (catalog.load_table("ns.t", spark).metadata, True)
    with pytest.raises(
        UnsupportedError, match=r"ns\.t: .*SQL, Glue and REST catalogs.* not through pyiceberg's _Foreign"
    ):
        table.maintenance.rewrite_manifests()


def test_no_such_type() -> None:
    with pytest.raises(ValueError, match=r"catalog \w+: type is 'nothing': expected one of rest, .*, hadoop"):
        load_catalog("x", type="nothing")
    with pytest.raises(ValueError, match=r"catalog x: no uri is configured in .*PYICEBERG_CATALOG__X__URI"):
        load_catalog("x")
