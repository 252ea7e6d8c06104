"""Requests to the service by plain HTTP: pages, tokens, limits, users, errors, and invalid requests."""

from __future__ import annotations

import errno
import json
import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.rest.scan_planning import PlanCompleted, ScanTasks, StorageCredential
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField

import sparkmeta as sm
from sparkmeta import ServeOptions
from sparkmeta.errors import FileAccessError, SettingError
from sparkmeta.operations.rest import RestOperations
from sparkmeta.service import app, plans
from sparkmeta.service.access import (
    ANYBODY,
    Principal,
    Principals,
    check_options,
    one_token,
    principals_from_json,
)
from sparkmeta.service.pages import PageWriter, Spool, cut_pages
from sparkmeta.service.plans import Tables
from sparkmeta.service.requests import ApiError, parse_plan_request
from sparkmeta.service.rest_tasks import to_rest_tasks
from sparkmeta.session import SessionSource
from tests.conftest import configured
from tests.handmade import HandmadeTable, data, deletion_vector
from tests.service.serving import Client, Gate, LocatedTables, eventually, served
from tests.small_table import orders, write_small_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

FILES = 60
TOKEN, OTHER = "a-token-of-many-characters", "another-token-of-many-characters"
PLAN = "/v1/namespaces/db/tables/{}/plan"
# Every plan is made by Spark's tasks, and has many pages.
BY_TASKS = {"driver_files": 0, "page_tasks": 7}
SCHEMA = Schema(NestedField(1, "id", LongType()))
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`many`, and `small`: three appends by pyiceberg."""
    small = write_small_table(tmp_path_factory.mktemp("small"))
    return {"many": many_files(tmp_path_factory.mktemp("many")), "small": small.metadata_location}


def many_files(folder: Path) -> str:
    """A table of `FILES` files of a partition each, half of them with a deletion vector."""
    many = HandmadeTable(folder)
    paths = [f"file:///t/{number:03}.parquet" for number in range(FILES)]
    parts = [{"part": f"p{number % 3}"} for number in range(FILES)]
    for start in range(0, FILES, 20):
        places = range(start, start + 20)
        many.add(0, 1, *(data(paths[n], partition=parts[n], record_count=10) for n in places))
        many.add(1, 1, *(deletion_vector(paths[n], partition=parts[n]) for n in places if n % 2))
    return many.write()


@pytest.fixture(scope="module")
def client(tables: Mapping[str, str], spark: SparkSession) -> Iterator[Client]:
    with served(tables, spark) as service:
        yield Client(service)


@pytest.fixture(scope="module")
def paged(tables: Mapping[str, str], spark: SparkSession) -> Iterator[Client]:
    with served(tables, spark, **BY_TASKS) as service:
        yield Client(service)


@dataclass(frozen=True)
class Elsewhere(PageWriter):
    """Writes pages to a folder that the service does not see."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from PageWriter.__call__(replace(self, folder=f"{self.folder}/elsewhere"), batches)


@dataclass(frozen=True)
class Endless(PageWriter):
    """Writes no page, and never ends."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(self.folder).parent.with_name("started").touch()
        while True:
            time.sleep(0.05)
        yield from batches


def eq(term: str, value: Any) -> dict[str, Any]:
    return {"type": "eq", "term": term, "value": value}


def paths(tasks: list[dict[str, Any]]) -> list[str]:
    return sorted(task["data-file"]["file-path"] for task in tasks)


# -- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.connect
@pytest.mark.parametrize("row_filter", [True, eq("part", "p1"), eq("part", "none"), False], ids=str)
def test_pages_have_the_tasks_of_one_answer(row_filter: Any, client: Client, paged: Client):
    whole, in_pages = client.planned("many", filter=row_filter), paged.planned("many", filter=row_filter)
    by_path = {task["data-file"]["file-path"]: task for task in whole}
    assert {task["data-file"]["file-path"]: task for task in in_pages} == by_path
    assert (
        len(in_pages) == len(whole) == {"True": FILES, "False": 0}.get(str(row_filter), 20 * ("p1" in str(row_filter)))
    )
    for task in whole:
        number = int(task["data-file"]["file-path"][-11:-8])
        assert [delete["referenced-data-file"] for delete in task["deletes"]] == (
            [task["data-file"]["file-path"]] if number % 2 else []
        )


def test_answers_are_what_pyiceberg_s_models_read(paged: Client):
    answer = paged.plan("many")
    completed = PlanCompleted.model_validate_json(answer.text)
    assert completed.plan_id
    assert completed.plan_tasks
    for token in completed.plan_tasks:
        page = paged.tasks("many", token)
        assert page.headers["content-encoding"] == "gzip"
        assert 1 <= len(ScanTasks.model_validate_json(page.text).file_scan_tasks) <= BY_TASKS["page_tasks"]
        uncompressed = paged.tasks("many", token, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in uncompressed.headers
        assert uncompressed.json() == page.json()


def test_limits_need_few_files(client: Client, paged: Client):
    for asked in (client, paged):
        partition = eq("part", "p1")
        assert len(asked.planned("many", filter=partition, min_rows_requested=25)) == 3
        assert len(asked.planned("many", min_rows_requested=1)) == 1
        # Only files without deletes hold their rows for sure: 300 of them.
        assert len(asked.planned("many", min_rows_requested=301)) == FILES
        # It is not known which rows match.
        assert len(asked.planned("many", filter=eq("id", 7), min_rows_requested=1)) == FILES


def test_pages_of_bytes(tables: Mapping[str, str], spark: SparkSession):
    with served(tables, spark, page_bytes=1) as service:
        client = Client(service)
        for table, files in (("many", FILES), ("small", 6)):
            document = client.plan(table).json()
            assert len(document["plan-tasks"]) + len(document.get("file-scan-tasks", [])) == files
            assert len(client.planned(table)) == files
    with served(tables, spark, page_bytes=1, max_pages=5) as service:
        refused = Client(service).plan("many")
        assert (refused.status_code, "are the limit: use a more selective filter" in refused.text) == (400, True)


def test_replicas_serve_each_other_s_pages(tables: Mapping[str, str], spark: SparkSession, tmp_path: Path):
    shared: dict[str, Any] = {"spool": str(tmp_path / "spool"), "secret": b"of all the replicas", **BY_TASKS}
    with served(tables, spark, **shared) as first:
        document = Client(first).plan("many").json()
    # The first one is gone.
    with served(tables, spark, **shared) as second, served(tables, spark, **BY_TASKS) as stranger:
        client = Client(second)
        fetched = client.fetched("many", document["plan-tasks"])
        assert len(fetched) + len(document.get("file-scan-tasks", [])) == FILES
        assert len(client.fetched("many", document["plan-tasks"])) == len(fetched)
        assert Client(stranger).tasks("many", document["plan-tasks"][0]).status_code == 404


def test_pages_are_deleted(tables: Mapping[str, str], spark: SparkSession, tmp_path: Path):
    """By the client, where the service does not keep the plan."""
    spool = tmp_path / "spool"
    with served(tables, spark, spool=str(spool), cached_bytes=0, **BY_TASKS) as service:
        client = Client(service)
        first, second = (client.plan("many").json() for _ in range(2))
        assert client.cancel("many", first["plan-id"]).status_code == 204
        eventually(lambda: len(list(spool.iterdir())) == 1)
        assert client.tasks("many", first["plan-tasks"][0]).status_code == 404
        assert len(client.fetched("many", second["plan-tasks"])) <= FILES
        assert client.cancel("many", second["plan-id"]).status_code == 204
        assert client.cancel("many", second["plan-id"]).status_code == 204
        eventually(lambda: not list(spool.iterdir()))
        assert client.metric("sparkmeta_plans_known") == 0
        assert client.request("GET", f"{PLAN.format('many')}/{second['plan-id']}").status_code == 404


def test_the_spool_deletes_what_is_old(tmp_path: Path):
    spool = Spool(str(tmp_path), {})
    result = spool.new_result()
    spool.write(result, "plan", b"{}")
    (tmp_path / "other").mkdir()
    spool.delete_older(60)
    assert spool.read(result, "plan") == b"{}"
    spool.delete_older(-2)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert spool.read(result, "plan") is None
    assert spool.read("../other", "plan") is spool.read(result, "../plan") is None


def test_a_page_that_can_not_be_written_says_why(tmp_path: Path):
    (tmp_path / "spool").write_text("no folder")
    spool = Spool(str(tmp_path / "spool"), {})
    with pytest.raises(FileAccessError, match=r"^a page can't be written to the spool: Not a directory$"):
        spool.write(spool.new_result(), "plan", b"{}")


def test_a_full_spool_is_a_clear_refusal(tables: Mapping[str, str], spark: SparkSession, tmp_path: Path):
    (tmp_path / "spool").write_text("no folder")
    for options in (BY_TASKS, {"page_tasks": 7}):
        with served(tables, spark, spool=str(tmp_path / "spool"), **options) as service:
            refused = Client(service).plan("many")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert "a page can't be written to the spool" in refused.json()["error"]["message"]
            assert str(tmp_path) not in refused.text


def test_a_spool_that_tasks_do_not_share(tables: Mapping[str, str], spark: SparkSession, monkeypatch):
    monkeypatch.setattr(plans, "PageWriter", Elsewhere)
    with served(tables, spark, **BY_TASKS) as service:
        refused = Client(service).plan("many")
        assert (refused.status_code, "the spool must be shared" in refused.text) == (500, True)


def test_plans_that_clients_ask_for_later(tables: Mapping[str, str], spark: SparkSession, tmp_path: Path, monkeypatch):
    shared: dict[str, Any] = {"spool": str(tmp_path / "spool"), "secret": b"of all the replicas", **BY_TASKS}
    with served(tables, spark, wait_seconds=0, **shared) as service, served(tables, spark, **shared) as replica:
        gate, asked = Gate(monkeypatch), [Client(service), Client(replica)]
        bodies: list[dict[str, Any]] = [{}, {"filter": eq("nothing", 1)}, {"filter": eq("id", 1)}]
        submitted = [asked[0].plan("many", **body).json() for body in bodies]
        assert [answer["status"] for answer in submitted] == ["submitted"] * 3
        good, bad, unwanted = (answer["plan-id"] for answer in submitted)
        for client in asked:
            assert client.request("GET", f"{PLAN.format('many')}/{good}").json()["status"] == "submitted"
        assert asked[0].cancel("many", unwanted).status_code == 204
        gate.open()
        for client in asked:
            document = client.polled("many", good)
            assert document["status"] == "completed"
            tasks = asked[1].fetched("many", document["plan-tasks"])
            assert len(tasks) + len(document.get("file-scan-tasks", [])) == FILES
            failed = client.polled("many", bad)
            assert (failed["status"], failed["error"]["code"]) == ("failed", 400)
            assert client.polled("many", unwanted) == {"status": "cancelled"}
        # pyiceberg can't ask again.
        pyiceberg = Client(service, X_Client_Version="PyIceberg 0.12.0")
        assert pyiceberg.plan("many", filter=eq("id", 2)).json()["status"] == "completed"


def test_a_cancelled_plan_leaves_spark(tables: Mapping[str, str], spark: SparkSession, tmp_path: Path, monkeypatch):
    """Its tasks would never end by themselves."""
    monkeypatch.setattr(plans, "PageWriter", Endless)
    spool = tmp_path / "spool"
    with served(tables, spark, wait_seconds=0, spool=str(spool), **BY_TASKS) as service:
        client = Client(service)
        plan_id = client.plan("many").json()["plan-id"]
        eventually((tmp_path / "started").exists)
        assert client.cancel("many", plan_id).status_code == 204
        assert client.polled("many", plan_id) == {"status": "cancelled"}
        eventually(lambda: client.metric("sparkmeta_plans_unfinished") == 0)
        assert client.cancel("many", "nonsense").status_code == 404


def test_too_many_plans(tables: Mapping[str, str], spark: SparkSession, monkeypatch):
    with served(tables, spark, slots=1, queued=1, wait_seconds=0) as service:
        gate, client = Gate(monkeypatch), Client(service)
        answers = [client.plan("many", filter=eq("id", number)) for number in (0, 1, 2, 1)]
        assert [answer.status_code for answer in answers] == [200, 200, 503, 200]
        assert int(answers[2].headers["retry-after"]) > 0
        gate.open()
        assert client.polled("many", answers[3].json()["plan-id"])["status"] == "completed"


def test_a_plan_that_is_too_long_for_the_spool(tables: Mapping[str, str], spark: SparkSession, tmp_path: Path):
    spool = tmp_path / "spool"
    with served(tables, spark, spool=str(spool), max_spool_bytes=100, **BY_TASKS) as service:
        refused = Client(service).plan("many")
        assert (refused.status_code, "more selective" in refused.text) == (400, True)
        eventually(lambda: not list(spool.iterdir()))


# -- users ----------------------------------------------------------------------------------------------------------


def test_users(tables: Mapping[str, str], spark: SparkSession):
    principals = Principals({TOKEN: Principal("all"), OTHER: Principal("some", ("db.small", "other.*"))})
    with served(tables, spark, principals=principals, **BY_TASKS) as service:
        everybody, some = (Client(service, Authorization=f"Bearer {token}") for token in (TOKEN, OTHER))
        nobody = (
            Client(service),
            Client(service, Authorization=f"Bearer {TOKEN}x"),
            Client(service, Authorization=TOKEN),
        )
        for stranger in nobody:
            for path in ("/v1/config", "/metrics", "/v1/namespaces", "/v1/namespaces/db/tables/small"):
                answer = stranger.request("GET", path)
                assert (answer.status_code, answer.json()["error"]["type"]) == (401, "NotAuthorizedException")
            assert stranger.request("GET", "/healthz").status_code in (200, 503)
        assert len(everybody.request("GET", "/v1/namespaces/db/tables").json()["identifiers"]) == 2
        assert [each["name"] for each in some.request("GET", "/v1/namespaces/db/tables").json()["identifiers"]] == [
            "small"
        ]
        document = everybody.plan("many").json()
        token, plan_id = document["plan-tasks"][0], document["plan-id"]
        for answer in (
            some.request("GET", "/v1/namespaces/db/tables/many"),
            some.request("HEAD", "/v1/namespaces/db/tables/many"),
            some.plan("many"),
            some.tasks("many", token),
            some.request("GET", f"{PLAN.format('many')}/{plan_id}"),
            some.request("DELETE", f"{PLAN.format('many')}/{plan_id}"),
        ):
            assert answer.status_code == 403
        # Another user's token, and another table's.
        assert some.tasks("small", token).status_code == 404
        assert everybody.tasks("small", token).status_code == 404
        assert everybody.request("GET", f"{PLAN.format('small')}/{plan_id}").status_code == 404
        answer = some.plan("small").json()
        for token in answer["plan-tasks"]:
            assert everybody.tasks("small", token).status_code == 404
            assert some.tasks("small", token).status_code == 200


class Vending(LocatedTables):
    """Tables of a REST catalog that vends credentials, each time others."""

    def __init__(self, locations: Mapping[str, str]) -> None:
        super().__init__(locations)
        self.vended = 0

    def load_table(self, identifier: Any, spark: SparkSession | None = None) -> sm.Table:
        table = super().load_table(identifier, spark)
        self.vended += 1
        credential = StorageCredential(prefix="s3://bucket/", config={"s3.session-token": f"secret-{self.vended}"})
        return replace(table, operations=RestOperations(None, identifier, credentials=(credential,)))  # type: ignore[arg-type]


def test_credentials_that_do_not_renew_themselves(tables: Mapping[str, str], spark: SparkSession):
    """A table is read by those that the catalog has vended last."""
    for catalog, is_kept in ((Vending(tables), False), (LocatedTables(tables), True)):
        served_tables = Tables(catalog, SessionSource(spark))
        first, second = (served_tables.load(("db", "small"), ANYBODY).table for _ in range(2))
        assert (first is second) is is_kept


def test_credentials_that_the_catalog_vends(tables: Mapping[str, str], spark: SparkSession):
    """Only clients that ask get them, and only if the service is configured to."""
    asks = {"X_Iceberg_Access_Delegation": "vended-credentials"}
    path = "/v1/namespaces/db/tables/small"
    for vends in (False, True):
        with served(Vending(tables), spark, vend_credentials=vends) as service:
            for client, gets in ((Client(service), False), (Client(service, **asks), vends)):
                for _ in range(2):
                    loaded, planned = client.request("GET", path), client.plan("small")
                    again = client.request("GET", f"{PLAN.format('small')}/{planned.json()['plan-id']}")
                    secrets = [re.findall(r"secret-\d+", answer.text) for answer in (loaded, planned, again)]
                    assert ("etag" in loaded.headers) != gets
                    if not gets:
                        assert secrets == [[], [], []]
                        continue
                    assert len({secret for (secret,) in secrets}) == 3
                    assert loaded.json()["storage-credentials"][0]["prefix"] == "s3://bucket/"
                    assert PlanCompleted.model_validate_json(planned.text).storage_credentials


def test_users_of_a_proxy(tables: Mapping[str, str], spark: SparkSession):
    with served(tables, spark, principals=one_token(TOKEN, "X-Forwarded-User")) as service:
        assert Client(service, Authorization=f"Bearer {TOKEN}").request("GET", "/v1/config").status_code == 401
        assert Client(service, X_Forwarded_User="ann").request("GET", "/v1/config").status_code == 401
        ann, bob = (Client(service, Authorization=f"Bearer {TOKEN}", X_Forwarded_User=name) for name in ("ann", "bob"))
        plan_id = ann.plan("small").json()["plan-id"]
        assert ann.request("GET", f"{PLAN.format('small')}/{plan_id}").status_code == 200
        assert bob.request("GET", f"{PLAN.format('small')}/{plan_id}").status_code == 404


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "others can reach needs a bearer token"),
        ({"host": "example.com"}, "others can reach needs a bearer token"),
        ({"secret": b"short"}, "the secret has 5 bytes"),
        ({"page_tasks": 0}, "page_tasks is 0"),
        ({"queued": -1}, "queued is -1"),
        ({"port": 99_999}, "port is 99999: expected a number from 0 to 65535"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str, spark: SparkSession, tables):
    with pytest.raises(SettingError, match=message):
        sm.serve(LocatedTables({}), spark, **options)
    check_options(ServeOptions(host="0.0.0.0", principals=one_token(TOKEN)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"a": "token"}',
        '{"a": {"token": "short"}}',
        '{"a": {"token": 7}}',
        f'{{"a": {{"token": "{TOKEN}", "tables": "db.*"}}}}',
        f'{{"a": {{"token": "{TOKEN}", "table": []}}}}',
        f'{{"a": {{"token": "{TOKEN}"}}, "b": {{"token": "{TOKEN}"}}}}',
        f'{{"a": {{"token": "{TOKEN}"}}, "b": {{"token": " {TOKEN} "}}}}',
        f'{{"a": {{"token": "{TOKEN}"}}, "a": {{"token": "{OTHER}"}}}}',
        f'{{"a": {{"token": "{TOKEN}é"}}}}',
    ],
)
def test_invalid_principals(text: str):
    with pytest.raises(SettingError):
        principals_from_json(text)


# -- the catalog ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("sales.[!s]*", "sales.Orders", "sales.SECRET"),
        ("sales.[!S]*", "sales.orders", "sales.secret"),
        ("Sales.[A-Z]*", "Sales.Orders", "sales.Orders"),
    ],
)
def test_patterns_and_case(pattern: str, allowed: str, refused: str):
    """Some catalogs ignore case, so what a pattern excludes is excluded in both cases."""
    principal = Principal("some", (pattern,))
    principal.check(tuple(allowed.split(".")))
    with pytest.raises(ApiError, match=f"some may not read {refused}"):
        principal.check(tuple(refused.split(".")))


def test_the_catalog(client: Client):
    assert client.request("GET", "/v1/namespaces").json() == {"namespaces": [["db"]]}
    assert client.request("GET", "/v1/namespaces?parent=db").json() == {"namespaces": []}
    assert client.request("GET", "/v1/namespaces/db").json() == {"namespace": ["db"], "properties": {}}
    assert client.request("HEAD", "/v1/namespaces/db").status_code == 204
    assert client.request("HEAD", "/v1/namespaces/db/tables/small").status_code == 204
    for method, path, kind in (
        ("GET", "/v1/namespaces/x", "NoSuchNamespaceException"),
        ("GET", "/v1/namespaces/x/tables", "NoSuchNamespaceException"),
        ("GET", "/v1/namespaces/db/tables/x", "NoSuchTableException"),
        ("POST", PLAN.format("x"), "NoSuchTableException"),
    ):
        answer = client.request(method, path, **({"json": {}} if method == "POST" else {}))
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, kind)
    assert client.request("HEAD", "/v1/namespaces/db/tables/x").status_code == 404
    for method, path in (
        ("POST", "/v1/namespaces"),
        ("POST", "/v1/namespaces/db/tables"),
        ("POST", "/v1/namespaces/db/tables/small"),
        ("DELETE", "/v1/namespaces/db/tables/small"),
        ("DELETE", "/v1/namespaces/db"),
        ("POST", "/v1/namespaces/db/register"),
        ("POST", "/v1/namespaces/db/tables/small/metrics"),
    ):
        answer = client.request(method, path, json={})
        assert answer.status_code == 406, (method, path)
        assert "read-only" in answer.json()["error"]["message"]
    assert client.request("POST", "/v1/transactions/commit", json={}).status_code == 404


def test_loading_again(client: Client):
    path = "/v1/namespaces/db/tables/small"
    answer = client.request("GET", path)
    again = client.request("GET", path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.text) == (304, "")
    assert client.request("GET", path, headers={"If-None-Match": '"other"'}).status_code == 200
    refs = client.request("GET", f"{path}?snapshots=refs").json()["metadata"]["snapshots"]
    assert len(refs) == 2 < len(answer.json()["metadata"]["snapshots"])


def test_a_table_without_refs(tables: Mapping[str, str], spark: SparkSession, tmp_path: Path):
    """Its current snapshot is the head of main."""
    metadata = json.loads(Path(tables["small"].removeprefix("file://")).read_text())
    del metadata["refs"]
    (tmp_path / "v1.metadata.json").write_text(json.dumps(metadata))
    with served({"t": f"file://{tmp_path}/v1.metadata.json"}, spark) as service:
        document = Client(service).request("GET", "/v1/namespaces/db/tables/t?snapshots=refs").json()
    snapshots = [each["snapshot-id"] for each in document["metadata"]["snapshots"]]
    assert snapshots == [metadata["current-snapshot-id"]]


def test_a_table_that_is_created_anew(spark: SparkSession, tmp_path: Path):
    """Its metadata file may have the name of the old one."""
    catalog = folders(tmp_path, spark, "db.t")
    path = "/v1/namespaces/db/tables/t"
    with served(catalog, spark) as service:
        client = Client(service)
        old = client.request("GET", path)
        catalog.drop_table("db.t", spark)
        catalog.create_table("db.t", SCHEMA, spark=spark)
        new = client.request("GET", path, headers={"If-None-Match": old.headers["etag"]})
    assert new.status_code == 200
    assert new.json()["metadata-location"] == old.json()["metadata-location"]
    assert new.json()["metadata"]["table-uuid"] != old.json()["metadata"]["table-uuid"]


def folders(warehouse: Path, spark: SparkSession, *tables: str) -> sm.Catalog:
    """A warehouse of folders with empty tables."""
    catalog = sm.load_catalog("folders", type="hadoop", warehouse=str(warehouse))
    for name in tables:
        catalog.create_table(name, SCHEMA, spark=spark)
    return catalog


@pytest.mark.parametrize(
    "path",
    [
        "/sales/tables/..%2Fhr%2Fsecret",
        "/sales%1F..%1Fhr/tables/secret",
        "/..%1Foutside%1Fdb/tables/t",
        "/sales/tables/%2E%2E",
        "/sales/tables/a%00b",
        f"/sales/tables/{'a' * 300}",
        f"/{'a' * 300}",
        f"/{'a' * 300}/tables",
        "/sales%1F/tables",
    ],
)
def test_names_that_are_no_folders(path: str, spark: SparkSession, tmp_path: Path):
    """They are refused, and never lead to another table or out of the warehouse."""
    folders(tmp_path / "outside", spark, "db.t")
    catalog = folders(tmp_path / "warehouse", spark, "sales.orders", "hr.secret")
    principals = Principals({TOKEN: Principal("sales", ("sales.*",)), OTHER: Principal("all")})
    with served(catalog, spark, principals=principals) as service:
        for token in (TOKEN, OTHER):
            client = Client(service, Authorization=f"Bearer {token}")
            requested = [("GET", path)]
            if path.count("/") == 3:
                requested += [("HEAD", path), ("POST", f"{path}/plan")]
            for method, requested_path in requested:
                answer = client.request(method, f"/v1/namespaces{requested_path}", json={})
                assert answer.status_code in (400, 403), (method, answer.text)
        assert client.request("GET", "/v1/namespaces?parent=..").status_code == 400
        assert client.request("GET", "/v1/namespaces?parent=nosuch").status_code == 404


def test_hosts(client: Client):
    """A web page that has its own name lead to this machine reads nothing."""
    refused = [
        "evil.example",
        "evil.example:",
        "evil.example:70000",
        "a@evil.example",
        "evil.example, localhost",
        "a[b",
    ]
    accepted = ["localhost", "127.0.0.1:80", "[::1]:80"]
    for host, status in [*((host, 200) for host in accepted), *((host, 403) for host in (*refused, "a[b"))]:
        assert client.request("GET", "/v1/namespaces", headers={"Host": host}).status_code == status, host


def test_a_table_that_changes(spark: SparkSession, tmp_path: Path):
    table = write_small_table(tmp_path)
    tables = LocatedTables({"t": table.metadata_location})
    with served(tables, spark) as service:
        client = Client(service)
        etag = client.request("GET", "/v1/namespaces/db/tables/t").headers["etag"]
        assert len(client.planned("t")) == 6
        table.append(orders(3))
        tables.locations["t"] = table.metadata_location
        assert len(client.planned("t")) == 8
        path = "/v1/namespaces/db/tables/t"
        assert client.request("GET", path, headers={"If-None-Match": etag}).status_code == 200
        etag = client.request("GET", path).headers["etag"]
        for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            assert client.request("GET", path, headers={"If-None-Match": known}).status_code == 304, known


def test_names_of_two_meanings(spark: SparkSession, tmp_path: Path):
    """Spark asks for the snapshot's schema always, but knows the table's where it reads the head of a branch."""
    table = write_small_table(tmp_path)
    with table.update_schema() as update:
        update.rename_column("note", "renamed")
    with table.update_schema() as update:
        update.add_column("note", LongType())
    first, head = (table.snapshots()[place].snapshot_id for place in (0, -1))
    text, number, renamed = eq("note", "note 3"), eq("note", 3), eq("renamed", "note 3")
    with served({"t": table.metadata_location}, spark) as service:
        client = Client(service)

        def status(row_filter: Any, snapshot_id: int, by_snapshot: bool) -> int:
            body = {"filter": row_filter, "snapshot_id": snapshot_id, "use_snapshot_schema": by_snapshot}
            return client.plan("t", **body).status_code

        assert [status(each, head, True) for each in (text, number, renamed)] == [406, 406, 200]
        assert [status(each, head, False) for each in (text, number, renamed)] == [400, 200, 200]
        assert [status(each, first, True) for each in (text, number, renamed)] == [200, 400, 400]
        assert status(eq("country", "NO"), head, True) == 200
        refused = client.plan("t", filter=number, snapshot_id=head, use_snapshot_schema=True).json()
        assert f"is field 3 or field 4: the schema of snapshot {head} and" in refused["error"]["message"]


def test_a_snapshot_that_was_the_head(spark: SparkSession, tmp_path: Path):
    """A client may have loaded the table before the branch went on, and still mean the table's schema."""
    table = write_small_table(tmp_path)
    with table.update_schema() as update:
        update.add_column("extra", LongType())
    for name, new_name in (("note", "other"), ("id", "note"), ("other", "id")):
        with table.update_schema() as update:
            update.rename_column(name, new_name)
    head = table.current_snapshot().snapshot_id
    table.append(pa.table({"country": ["SE"], "extra": [1]}))
    is_null = {"type": "is-null", "term": "extra"}
    with served({"t": table.metadata_location}, spark) as service:
        client = Client(service)

        def asked(row_filter: Any) -> requests.Response:
            return client.plan("t", filter=row_filter, snapshot_id=head, use_snapshot_schema=True)

        assert len(asked(is_null).json()["file-scan-tasks"]) == 6
        assert len(asked(eq("country", "NO")).json()["file-scan-tasks"]) == 3
        assert asked(eq("note", "note 3")).status_code == 406
        assert asked(eq("nothing", 1)).status_code == 400


def test_a_promoted_column_at_the_head(spark: SparkSession, tmp_path: Path):
    """A literal is rounded to a float, or it is not: the request does not say which."""
    table = located_table(tmp_path, pa.table({"id": pa.array([1], pa.int32()), "x": pa.array([0.1], pa.float32())}))
    with table.update_schema() as update:
        update.update_column("x", DoubleType())
        update.update_column("id", LongType())
    head = table.current_snapshot().snapshot_id
    with served({"t": table.metadata_location}, spark) as service:
        client = Client(service)
        above = {"type": "gt", "term": "x", "value": 0.1}
        refused = client.plan("t", filter=above, snapshot_id=head, use_snapshot_schema=True)
        assert (refused.status_code, "field 2 of type double or field 2 of type float" in refused.text) == (406, True)
        assert len(client.planned("t", filter=above, snapshot_id=head)) == 1
        assert len(client.planned("t", filter=eq("id", 1), snapshot_id=head, use_snapshot_schema=True)) == 1


def test_a_dropped_partition_column(spark: SparkSession, tmp_path: Path):
    """Clients take its values from partition tuples, in which the protocol has none for it."""
    table = located_table(tmp_path, pa.table({"id": [1, 2], "s": ["x", "y"]}), partition="s")
    before = table.current_snapshot().snapshot_id
    with table.update_spec() as update:
        update.remove_field("s")
    with table.update_schema() as update:
        update.delete_column("s")
    with served({"t": table.metadata_location}, spark) as service:
        client = Client(service)

        def asked(**body: Any) -> requests.Response:
            return client.plan("t", snapshot_id=before, use_snapshot_schema=True, **body)

        assert len(asked(select=["id"]).json()["file-scan-tasks"]) == 2
        assert len(asked(select=["id"], filter=eq("s", "x")).json()["file-scan-tasks"]) == 1
        for body in ({}, {"select": ["id", "s"]}, {"select": ["S"], "case_sensitive": False}):
            refused = asked(**body)
            assert (refused.status_code, "partition values of s" in refused.text) == (406, True), body
        assert len(client.planned("t", snapshot_id=before)) == 2
    loaded = sm.load_table(table.metadata_location, spark=spark)
    with pytest.raises(sm.UnsupportedError, match="partition values of s, which the table's current schema lacks"):
        to_rest_tasks(loaded.scan(snapshot_id=before))
    assert to_rest_tasks(loaded.scan(snapshot_id=before).select("id")).count() == 2


def test_a_partition_column_of_another_type(spark: SparkSession, tmp_path: Path):
    """Iceberg's REPLACE TABLE may give a column's id another type, by which clients would read older partitions."""
    table = located_table(tmp_path, pa.table({"id": [1, 2], "s": ["x", "y"]}), partition="s")
    before = table.current_snapshot().snapshot_id
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    (old,) = metadata["schemas"]
    fields = [field | ({"type": "long"} if field["name"] == "s" else {}) for field in old["fields"]]
    metadata["schemas"].append(old | {"schema-id": 1, "fields": fields})
    # Scans begin with the table's current snapshot.
    later = {"snapshot-id": before + 1, "parent-snapshot-id": before, "schema-id": 1, "sequence-number": 2}
    later = metadata["snapshots"][0] | later
    metadata |= {"snapshots": [*metadata["snapshots"], later], "last-sequence-number": 2}
    metadata |= {"current-snapshot-id": before + 1, "current-schema-id": 1, "snapshot-log": []}
    metadata["refs"]["main"]["snapshot-id"] = before + 1
    path.write_text(json.dumps(metadata))
    with served({"t": table.metadata_location}, spark) as service:
        client = Client(service)
        asked: dict[str, Any] = {"snapshot_id": before, "use_snapshot_schema": True}
        for body in ({}, {"select": ["id"]}):
            refused = client.plan("t", **asked, **body)
            assert (refused.status_code, "has another type in the table's current" in refused.text) == (406, True), body


def located_table(folder: Path, rows: pa.Table, partition: str | None = None, version: int = 2) -> Any:
    """A table of pyiceberg's, with these rows."""
    catalog = SqlCatalog("t", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", rows.schema, properties={"format-version": str(version)})
    if partition is not None:
        with table.update_spec() as update:
            update.add_field(partition, IdentityTransform(), partition)
    table.append(rows)
    return table


def test_a_null_satisfies_not_equal(spark: SparkSession, tmp_path: Path):
    """In the protocol, expressions have two values, unlike filters of this library's users."""
    rows = pa.table({"id": [1, 2], "note": pa.array([None, None], pa.string())})
    table = located_table(tmp_path, rows)
    first = table.current_snapshot().snapshot_id
    table.append(rows)
    appended = {"start_snapshot_id": first, "end_snapshot_id": table.current_snapshot().snapshot_id}
    with served({"t": table.metadata_location}, spark) as service:
        client = Client(service)
        for leaf in ({"type": "not-eq", "value": "a"}, {"type": "not-in", "values": ["a", "b"]},
                     {"type": "not-starts-with", "value": "a"}):  # fmt: skip
            sent = leaf | {"term": "note"}
            for body, files in (({}, 2), ({"snapshot_id": first}, 1), (appended, 1)):
                tasks = client.planned("t", filter=sent, **body)
                assert [task["residual-filter"] for task in tasks] == [sent] * files, (sent, body)
    ours = sm.load_table(table.metadata_location, spark=spark).scan("note != 'a'")
    assert (ours.plan_files().count(), ours.count()) == (0, 0)


def test_a_table_without_uuid_that_is_created_anew(spark: SparkSession, tmp_path: Path):
    """Version 1 allows it. Plans of the old table are not reused."""
    folder = tmp_path / "t" / "metadata"
    folder.mkdir(parents=True)
    with served({"t": str(tmp_path / "t")}, spark) as service:
        client = Client(service)
        for number in (1, 2):
            (tmp_path / str(number)).mkdir()
            written = located_table(tmp_path / str(number), pa.table({"id": [number]}), version=1)
            metadata = json.loads(Path(written.metadata_location.removeprefix("file://")).read_text())
            del metadata["table-uuid"]
            (folder / "v1.metadata.json").write_text(json.dumps(metadata))
            (task,) = client.planned("t")
            assert task["data-file"]["file-path"].startswith(f"{tmp_path.as_uri()}/{number}/")


def test_settings_of_the_session(tables: Mapping[str, str], spark: SparkSession, tmp_path: Path):
    """Plans use them, also those that Spark does not know."""
    cache = tmp_path / "cache"
    with configured(spark, {"spark.sparkmeta.manifest-cache": str(cache)}), served(tables, spark) as service:
        assert len(Client(service).planned("many")) == FILES
    assert any(path.is_file() for path in cache.rglob("*.parquet"))


def test_methods_of_endpoints_without_tables(client: Client):
    for path in ("/v1/config", "/metrics", "/healthz"):
        for method in ("POST", "PUT", "DELETE"):
            assert client.request(method, path).status_code == 405, (method, path)


def test_damaged_metadata(spark: SparkSession, tmp_path: Path):
    """It is an error of the table, not of the request."""
    (tmp_path / "v1.metadata.json").write_text("{}")
    with served({"t": f"file://{tmp_path}/v1.metadata.json"}, spark) as service:
        answer = Client(service).plan("t")
        assert (answer.status_code, "format-version" in answer.text) == (500, True)


def test_a_catalog_that_does_not_answer(spark: SparkSession, caplog: pytest.LogCaptureFixture):
    """Clients don't learn where it is; the log says."""
    catalog = LocatedTables({})

    def load_table(*_: Any) -> Any:
        raise sm.CatalogError("connection to db.internal refused")

    catalog.load_table = load_table  # type: ignore[method-assign]
    with served(catalog, spark) as service:
        answer = Client(service).request("GET", "/v1/namespaces/db/tables/t")
    assert (answer.status_code, "the catalog does not answer" in answer.text, "internal" in answer.text) == (
        503,
        True,
        False,
    )
    assert "db.internal" in caplog.text


def test_storage_that_times_out(spark: SparkSession):
    """The client gets an answer at once."""
    catalog = LocatedTables({})

    def load_table(*_: Any) -> Any:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    catalog.load_table = load_table  # type: ignore[method-assign]
    with served(catalog, spark) as service:
        answer = requests.get(f"{service.uri}/v1/namespaces/db/tables/t", timeout=60)
    assert (answer.status_code, "has not answered in time" in answer.text) == (503, True)


def test_answers_that_come_while_the_client_is_looked_for(
    tables: Mapping[str, str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    """The catalog's answer is not lost if the service stops waiting at that moment, to see whether the client waits."""
    monkeypatch.setattr(app, "_LOOK_SECONDS", 1e-4)
    with served(tables, spark) as service, ThreadPoolExecutor(8) as pool:
        ask = Client(service).request
        answers = pool.map(lambda _: ask("GET", "/v1/namespaces/db/tables/small"), range(400))
        assert {answer.status_code for answer in answers} == {200}


def test_a_warehouse_that_spark_opens(spark: SparkSession, tmp_path: Path):
    """The threads of a service have no active session."""
    table = HandmadeTable(tmp_path / "db" / "t")
    table.add(0, 1, data("file:///t/0.parquet"))
    table.write()
    catalog = sm.load_catalog("mounted", type="hadoop", warehouse="viewfs://mounted/lake")
    mounted = {"fs.viewfs.mounttable.mounted.link./lake": f"file://{tmp_path}"}
    with configured(spark, mounted), served(catalog, spark) as service:
        client = Client(service)
        assert client.request("GET", "/v1/namespaces").json() == {"namespaces": [["db"]]}
        listed = client.request("GET", "/v1/namespaces/db/tables").json()
        assert listed["identifiers"] == [{"namespace": ["db"], "name": "t"}]
        assert client.request("HEAD", "/v1/namespaces/db/tables/t").status_code == 204
        assert client.request("HEAD", "/v1/namespaces/db/tables/u").status_code == 404


def test_a_slow_catalog(tables: Mapping[str, str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    """Pages are served meanwhile, further loads are refused, and those whose clients have left are not made."""
    catalog, gate, loads = LocatedTables(tables), threading.Event(), list[Any]()
    load_table = catalog.load_table

    def slow(identifier: Any, spark: Any = None) -> Any:
        loads.append(identifier)
        if identifier[-1] == "small":
            assert gate.wait(300)
        return load_table(identifier, spark)

    catalog.load_table = slow  # type: ignore[method-assign]
    monkeypatch.setattr(app, "_MOST_CATALOG_CALLS", app._HANDLERS + 2)
    with served(catalog, spark, **BY_TASKS) as service:
        tokens = Client(service).plan("many").json()["plan-tasks"]
        with ThreadPoolExecutor(app._HANDLERS + 2) as clients:
            path = f"{service.uri}/v1/namespaces/db/tables/small"
            running = [clients.submit(requests.get, path, timeout=300) for _ in range(app._HANDLERS)]
            eventually(lambda: len(loads) == 1 + app._HANDLERS)
            leaving = [clients.submit(requests.get, path, timeout=1) for _ in range(2)]
            eventually(lambda: service._app._catalog_calls == app._HANDLERS + 2)
            refused = Client(service).request("GET", "/v1/namespaces/db/tables/small")
            assert (refused.status_code, "wait for the catalog" in refused.text) == (503, True)
            assert Client(service).fetched("many", tokens)
            assert all(isinstance(left.exception(), requests.Timeout) for left in leaving)
            eventually(lambda: service._app._catalog_calls == app._HANDLERS)
            gate.set()
            assert all(each.result().status_code == 200 for each in running)
    assert len(loads) == 1 + app._HANDLERS


@given(st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(1, 9), max_size=4)), min_size=1, max_size=12))
@QUIET
def test_bytes_of_pages(sizes: list[tuple[int, list[int]]]):
    """A page of several tasks has at most so many bytes, including its delete files; no task is lost."""
    tasks, deletes = ["t" * task for task, _ in sizes], [["d" * size for size in each] for _, each in sizes]
    rows = pa.table({"task": tasks, "delete_files": pa.array(deletes, pa.list_(pa.string()))})
    pages = [page.to_pylist() for page in cut_pages(rows, 5, 12)]
    assert [row for page in pages for row in page] == rows.to_pylist()

    def held(page: list[dict[str, Any]]) -> int:
        return sum(len(row["task"]) + sum(map(len, row["delete_files"])) for row in page)

    for page, following in zip(pages, [*pages[1:], []], strict=True):
        assert len(page) == 1 or held(page) <= 12
        assert len(page) <= 5
        assert not following or len(page) == 5 or held([*page, following[0]]) > 12


def test_what_a_plan_is_kept_by():
    """A hash, since a filter may have a megabyte; equal for equal requests only."""
    bodies: list[dict[str, Any]] = [
        {"filter": {"type": "in", "term": "id", "values": [*range(10_000)]}},
        {},
        {"snapshot-id": 1},
        {"snapshot-id": 1, "use-snapshot-schema": True},
        {"case-sensitive": False},
        {"min-rows-requested": 1},
        {"stats-fields": ["a"]},
        {"start-snapshot-id": 1, "end-snapshot-id": 2},
    ]
    digests = [parse_plan_request(json.dumps(body).encode()).digest for body in (*bodies, *bodies)]
    assert digests[: len(bodies)] == digests[len(bodies) :]
    assert len({*digests}) == len(bodies)
    assert {len(digest) for digest in digests} == {32}


def test_health_and_metrics(client: Client):
    eventually(lambda: client.request("GET", "/healthz").status_code == 200)
    assert client.request("GET", "/healthz").json() == {"status": "ok"}
    client.planned("small")
    text = client.request("GET", "/metrics").text
    assert 'sparkmeta_requests_total{endpoint="plan",status="200"}' in text
    assert "sparkmeta_scan_tasks_total" in text


# -- invalid requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("{", 400),
        ("[]", 400),
        ('{"filter": NaN}', 400),
        ("[" * 100_000, 400),
        ('{"filter": ' + '{"type":"not","child":' * 20_000 + "true" + "}" * 20_000 + "}", 400),
        ('{"filter": "id = 7"}', 400),
        ('{"filter": {"type": "eq", "term": "nothing", "value": 1}}', 400),
        ('{"filter": {"type": "eq", "term": "id", "value": "x"}}', 400),
        ('{"filter": {"type": "is-null", "child": {"type": "apply", "function": "f", "arguments": []}}}', 406),
        ('{"snapshot-id": 7}', 400),
        ('{"snapshot-id": "7"}', 400),
        ('{"snapshot-id": true}', 400),
        ('{"snapshot-id": 99999999999999999999}', 400),
        ('{"start-snapshot-id": 7}', 400),
        ('{"snapshot-id": 7, "start-snapshot-id": 7, "end-snapshot-id": 8}', 400),
        ('{"end-snapshot-id": 7}', 406),
        ('{"select": "id"}', 400),
        ('{"select": ["_Last_Updated_Sequence_Number"]}', 406),
        ('{"case-sensitive": 1}', 400),
        ('{"min-rows-requested": -1}', 400),
        ('{"stats-fields": [1]}', 400),
        ('{"x": "' + "x" * 2_000_000 + '"}', 413),
    ],
    ids=lambda value: str(value)[:60],
)
def test_requests_that_are_refused(body: str, status: int, client: Client):
    answer = client.request("POST", PLAN.format("small"), data=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == status
    assert error["message"]


def test_stats_of_columns(client: Client, paged: Client, tables: Mapping[str, str], spark: SparkSession):
    """Only of those that the client names, as Iceberg's Java library writes them: bounds in hexadecimal digits."""
    table = sm.load_table(tables["small"], spark=spark)
    files = {row.file_path: row for row in table.inspect.files().collect()}
    names = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    first, _, last = (each.snapshot_id for each in table.snapshots())
    appended = {"start_snapshot_id": first, "end_snapshot_id": last}
    for asked, fields, body in (
        (client, ["id"], {}),
        (paged, ["ID", "note"], {"case_sensitive": False, "filter": eq("country", "NO")}),
        (client, ["id"], appended),
        (client, [], {}),
    ):
        ids = {table.schema().find_field(name, case_sensitive=False).field_id for name in fields}
        planned = asked.planned("small", stats_fields=fields, **body)
        assert planned
        for task in planned:
            data_file = task["data-file"]
            for name in names:
                whole = dict(getattr(files[data_file["file-path"]], name) or {})
                expected = {key: value.hex().upper() if isinstance(value, bytes | bytearray) else value
                            for key, value in whole.items() if key in ids}  # fmt: skip
                shown = data_file.get(name.replace("_", "-"), {"keys": [], "values": []})
                assert dict(zip(shown["keys"], shown["values"], strict=True)) == expected, (name, fields)
    assert client.plan("small", stats_fields=["nothing"]).status_code == 400


def test_appends(client: Client, tables: Mapping[str, str], spark: SparkSession):
    first, _, last = (each.snapshot_id for each in sm.load_table(tables["small"], spark=spark).snapshots())
    tasks = client.planned("small", start_snapshot_id=first, end_snapshot_id=last)
    assert (len(tasks), [task["deletes"] for task in tasks]) == (4, [[]] * 4)
    assert len(client.planned("small", start_snapshot_id=first, end_snapshot_id=last, filter=eq("country", "NO"))) == 2
    refused = client.plan("small", start_snapshot_id=last, end_snapshot_id=first)
    assert (refused.status_code, "ancestor" in refused.text) == (400, True)


TERMS = st.one_of(
    st.sampled_from(["id", "country", "note", "nothing", ""]),
    st.fixed_dictionaries({"type": st.just("reference"), "term": st.sampled_from(["id", "country"])}),
    st.fixed_dictionaries(
        {
            "type": st.just("transform"),
            "transform": st.sampled_from(["day", "bucket[4]", "identity", "truncate[2]", "void", "x"]),
            "term": st.sampled_from(["id", "country"]),
        }
    ),
    st.none(),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
)
TYPES = st.sampled_from(
    ["eq", "not-eq", "lt", "lt-eq", "gt", "gt-eq", "in", "not-in", "is-null", "not-null", "is-nan", "not-nan",
     "starts-with", "not-starts-with", "literal", "x"]
)  # fmt: skip
LEAVES = st.one_of(
    st.booleans(),
    SCALARS,
    st.fixed_dictionaries(
        {"type": TYPES, "term": TERMS},
        optional={
            "value": SCALARS,
            "values": st.lists(SCALARS, max_size=3),
            "child": TERMS,
            "left": TERMS,
            "right": SCALARS,
        },
    ),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.sampled_from(["and", "or"]), "left": inner, "right": inner}),
        st.fixed_dictionaries({"type": st.just("not"), "child": inner}),
    ),
    max_leaves=6,
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "filter": FILTERS,
        "snapshot-id": st.one_of(SCALARS, st.just(1)),
        "select": st.one_of(SCALARS, st.lists(st.text(max_size=3), max_size=2)),
        "case-sensitive": st.one_of(st.booleans(), SCALARS),
        "use-snapshot-schema": st.one_of(st.booleans(), SCALARS),
        "min-rows-requested": SCALARS,
        "start-snapshot-id": SCALARS,
        "end-snapshot-id": SCALARS,
        "stats-fields": SCALARS,
    },
)


def test_no_request_breaks_the_service(client: Client, soak: bool):
    @settings(
        max_examples=2_000 if soak else 40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=not soak
    )
    @given(REQUESTS)
    def ask(body: dict[str, Any]) -> None:
        answer = client.request("POST", PLAN.format("small"), data=json.dumps(body))
        if answer.status_code == 200:
            PlanCompleted.model_validate_json(answer.text)
            return
        error = answer.json()["error"]
        assert error["code"] == answer.status_code
        assert answer.status_code in (400, 406), (body, error)

    ask()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD"]),
    path=st.text(max_size=30),
    body=st.binary(max_size=40),
)
def test_no_path_breaks_the_service(method: str, path: str, body: bytes, client: Client):
    for start in ("/", "/v1/namespaces/", "/v1/namespaces/db/tables/", "/v1/namespaces/db/tables/small/"):
        answer = client.request(method, start + requests.utils.quote(path), data=body)
        assert answer.status_code < 500, (method, start, path, answer.text)
        if answer.status_code >= 400 and method != "HEAD":
            assert answer.json()["error"]["code"] == answer.status_code


@pytest.mark.parametrize("token", ["", "x", "a.b", "a.b.c", "é.é", None, 7, {"a": 1}, "." * 1000])
def test_invalid_tokens(token: Any, client: Client):
    answer = client.tasks("small", token)
    assert answer.status_code == (404 if isinstance(token, str) else 400)


def test_a_token_that_was_changed(paged: Client):
    token = paged.plan("many").json()["plan-tasks"][0]
    for place in (*range(0, len(token), 7), len(token) - 1):
        other = chr(ord(token[place]) + 1)
        changed = token[:place] + other + token[place + 1 :]
        assert paged.tasks("many", changed).status_code == 404, place


def test_clients_that_go(tables: Mapping[str, str], spark: SparkSession, monkeypatch):
    with served(tables, spark, **BY_TASKS) as service:
        gate, client = Gate(monkeypatch), Client(service)
        for number in range(3):
            with pytest.raises(requests.Timeout):
                requests.post(f"{service.uri}{PLAN.format('many')}", json={"filter": eq("id", number)}, timeout=0.1)
        eventually(lambda: client.metric('sparkmeta_requests_total{endpoint="plan",status="499"}') == 3)
        gate.open()
        eventually(lambda: client.metric("sparkmeta_plans_known") == 0)
        assert len(client.planned("many")) == FILES


def test_the_spool_of_a_service_goes_with_it(tables: Mapping[str, str], spark: SparkSession):
    with served(tables, spark, **BY_TASKS) as service:
        Client(service).planned("many")
        folder = Path(service.spool)
        assert list(folder.iterdir())
    assert not folder.exists()
