"""Credentials that a REST catalog vends for some time: replaced before they expire, on the driver and in tasks."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import load_file_io

import sparkmeta as sm
from sparkmeta.errors import FileAccessError
from sparkmeta.storage import content
from sparkmeta.storage.content import VendedIO
from sparkmeta.storage.files import IOFiles, executor_reader
from tests.conftest import configured
from tests.rest.proxy import rest_proxy
from tests.s3 import BUCKET, FILE_IOS, SECRET_KEY, S3Server
from tests.small_table import IDENTIFIER, LOADS
from tests.storage.test_s3_tables import CLIENTS, SCHEMA, paths, sql_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from sparkmeta import Table
    from tests.rest.proxy import Proxy, Request

HOUR = 3600.0
FILES = 2 * LOADS


class Clock:
    """The time of `vended`, which a test sets."""

    now = 4e9

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(content, "time", clock)
    return clock


class Vendor:
    """A REST catalog whose answers name a table on a store, with credentials that hold for an hour.

    Attributes:
        uri: its address.
        namespace: the namespace of its table `t`.
        vended: how often it has vended credentials. The newest session token is `token-<vended>`.
        tells: whether it says when they expire.
    """

    def __init__(self, proxy: Proxy, clock: Clock, s3: S3Server, table: Table, client: str) -> None:
        self.uri, self.namespace = proxy.uri, f"ns_{uuid.uuid4().hex[:8]}"
        self.clock, self.vended, self.tells = clock, 0, True
        self.properties = s3.properties | {"py-io-impl": FILE_IOS[client]}
        self.answer = {
            "metadata-location": table.metadata_location,
            "metadata": json.loads(table.state.files.read(table.metadata_location)),
        }
        proxy.edit = self.edit

    @property
    def token(self) -> str:
        return f"token-{self.vended}-of-session"

    def edit(self, request: Request, answer: Any) -> Any:
        if not request.path.endswith("/tables/t"):
            return answer
        self.vended += 1
        end = {"s3.session-token-expires-at-ms": str(int((self.clock.now + HOUR) * 1000))} if self.tells else {}
        credential = {"prefix": "s3", "config": self.properties | {"s3.session-token": self.token} | end}
        return self.answer | {"storage-credentials": [credential]}


@pytest.fixture(params=CLIENTS, ids=["pyarrow, tasks", "fsspec, driver"])
def vendor(
    request: pytest.FixtureRequest, spark: SparkSession, s3: S3Server, rest_uri: str, tmp_path: Path, clock: Clock
) -> Iterator[Vendor]:
    client, driver_bytes = request.param
    source = sql_catalog(s3, tmp_path, f"s3://{BUCKET}/{uuid.uuid4()}", client).load_table(IDENTIFIER, spark)
    with (
        rest_proxy(rest_uri) as proxy,
        configured(spark, {"spark.sparkmeta.driver-manifest-bytes": driver_bytes, "fs.s3a.impl": "no.such.FileSystem"}),
    ):
        vendor = Vendor(proxy, clock, s3, source, client)
        catalog = RestCatalog("lake", uri=proxy.uri)
        catalog.create_namespace(vendor.namespace)
        catalog.create_table((vendor.namespace, "t"), SCHEMA)
        with s3.faulty(refuses=lambda sent: 0 if sent.token == vendor.token else 400):
            yield vendor


def loaded(vendor: Vendor, spark: SparkSession) -> Table:
    catalog = sm.load_catalog("lake", type="rest", uri=vendor.uri, token="the-token-of-the-catalog")
    return catalog.load_table((vendor.namespace, "t"), spark)


def test_credentials_are_replaced(spark: SparkSession, vendor: Vendor, clock: Clock) -> None:
    """Only the newest ones open files. They are asked for again five minutes before they expire, and not earlier."""
    table = loaded(vendor, spark)
    before = vendor.vended
    assert len(paths(table)) == FILES
    clock.now += HOUR - 400
    assert len(paths(table)) == FILES
    assert vendor.vended == before
    clock.now += 200
    assert len(paths(table)) == FILES
    assert vendor.vended == before + 1
    clock.now += 2 * HOUR
    assert table.scan("id >= 15").to_df().count() == LOADS * 10 - 15
    assert vendor.vended == before + 2
    assert table.inspect.files().count() == FILES


def test_expired_credentials(
    spark: SparkSession, vendor: Vendor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names the catalog and the table, whether the catalog has said when they expire, or the store does."""
    monkeypatch.setattr(content, "_WAITS", ())
    # PyArrow asks for the file's size first, and the answer to HEAD has no text.
    for tells in (True,) if "pyarrow" in vendor.properties["py-io-impl"] else (True, False):
        vendor.tells = tells
        table = loaded(vendor, spark)
        assert isinstance(table.state.files, IOFiles)
        expired = IOFiles(table.state.files.io)
        vendor.vended += 1
        clock.now += HOUR
        name = rf"catalog lake has vended for the table {vendor.namespace}\.t have expired: a new plan or read gets"
        with pytest.raises(FileAccessError, match=rf"^s3://\S+: the credentials that {name}") as caught:
            expired.read(table.metadata_location)
        assert "\n" not in str(caught.value)
        assert SECRET_KEY not in str(caught.value)


def test_tasks_get_no_credentials_of_the_catalog(spark: SparkSession, vendor: Vendor) -> None:
    table = loaded(vendor, spark)
    reader = executor_reader(table.state.files)
    assert reader is not None
    assert reader.io_properties is not None
    assert reader.io_properties["s3.session-token"] == vendor.token
    assert "the-token-of-the-catalog" not in reader.io_properties.values()


def test_a_catalog_that_does_not_answer(clock: Clock) -> None:
    """The old credentials are used until they expire."""

    def fails() -> Any:
        raise sm.CatalogError("catalog lake: away")

    io = load_file_io({"s3.session-token-expires-at-ms": str(int((clock.now + HOUR) * 1000)), "s3.region": "x"})
    source = VendedIO(io, fails)
    clock.now += HOUR - 10
    assert source.current() is io
    clock.now += 10
    with pytest.raises(sm.CatalogError, match="away"):
        source.current()
