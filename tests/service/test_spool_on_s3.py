"""The spool of a service on a store, which tasks write to and replicas read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sparkmeta.service.pages import Spool
from sparkmeta.storage.files import IOFiles
from tests.s3 import ACCESS_KEY, BUCKET, FILE_IOS, SECRET_KEY
from tests.service.serving import Client, eventually, served
from tests.service.test_requests import BY_TASKS, FILES, many_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from tests.s3 import S3Server


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"many": many_files(tmp_path_factory.mktemp("many"))}


@pytest.fixture(params=FILE_IOS)
def shared(request: pytest.FixtureRequest, s3: S3Server) -> dict[str, Any]:
    """The options of replicas with a spool on S3."""
    kind: str = request.param
    folder = f"s3://{BUCKET}/spool-{kind}-{request.node.name.partition('[')[0]}"
    properties = s3.properties | {"py-io-impl": FILE_IOS[kind]}
    return {"spool": folder, "spool_properties": properties, "secret": b"of all the replicas", **BY_TASKS}


def spooled(s3: S3Server, shared: Mapping[str, Any]) -> list[str]:
    """The files of the spool, without the empty objects that PyArrow leaves for folders."""
    locations = IOFiles(s3.io("fsspec")).glob(shared["spool"], "*/*")
    return sorted(location for location in locations if not location.endswith("/"))


def test_replicas_share_pages(
    tables: Mapping[str, str], spark: SparkSession, s3: S3Server, shared: dict[str, Any]
) -> None:
    with served(tables, spark, **shared) as first:
        document = Client(first).plan("many").json()
        pages = spooled(s3, shared)
        assert len(pages) >= len(document["plan-tasks"]) > 1
        assert not [page for page in pages if "tmp" in page]
    # The first one is gone.
    with served(tables, spark, **shared) as second:
        client = Client(second)
        for _ in range(2):
            fetched = client.fetched("many", document["plan-tasks"])
            assert len(fetched) + len(document.get("file-scan-tasks", [])) == FILES
        assert ACCESS_KEY not in str(document)


def test_pages_are_deleted(
    tables: Mapping[str, str], spark: SparkSession, s3: S3Server, shared: dict[str, Any]
) -> None:
    with served(tables, spark, **shared, cached_bytes=0) as service:
        client = Client(service)
        plan = client.plan("many").json()
        assert spooled(s3, shared)
        assert client.cancel("many", plan["plan-id"]).status_code == 204
        eventually(lambda: not spooled(s3, shared))
        assert client.tasks("many", plan["plan-tasks"][0]).status_code == 404


def test_the_spool_deletes_what_is_old(s3: S3Server, shared: dict[str, Any]) -> None:
    spool = Spool(shared["spool"], shared["spool_properties"])
    result = spool.new_result()
    spool.write(result, "plan", b"{}")
    other = f"{shared['spool']}/other/file"
    IOFiles(s3.io("fsspec")).write_new(other, b"")
    spool.delete_older(60)
    assert spool.read(result, "plan") == b"{}"
    spool.delete_older(-2)
    assert spool.read(result, "plan") is None
    assert spooled(s3, shared) == [other]


@pytest.mark.parametrize(("status", "by_tasks"), [(403, True), (503, False)])
def test_a_store_that_refuses_pages(
    tables: Mapping[str, str], spark: SparkSession, s3: S3Server, shared: dict[str, Any], status: int, by_tasks: bool
) -> None:
    options = shared if by_tasks else {name: value for name, value in shared.items() if name != "driver_files"}
    with served(tables, spark, **options) as service:
        client = Client(service)
        with s3.faulty(refuses=lambda request: status if request.method in ("PUT", "POST") else 0):
            refused = client.plan("many")
        assert refused.status_code == 503, refused.text
        assert int(refused.headers["retry-after"]) > 0
        assert "a page can't be written to the spool" in refused.json()["error"]["message"]
        assert not [secret for secret in (ACCESS_KEY, SECRET_KEY, shared["spool"]) if secret in refused.text]
        # Once the store is well again, so is the service.
        assert len(client.planned("many")) == FILES
