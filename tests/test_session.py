from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary
from zipimport import zipimporter

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

import sparkmeta as sm
from sparkmeta import session
from sparkmeta.errors import SessionError
from sparkmeta.session import (
    SessionSource,
    is_connect,
    local_config,
    local_frame,
    local_session,
    map_arrow,
    materialize,
)


@pytest.fixture(autouse=True)
def _active(spark: SparkSession) -> None:
    """Make the session active: `createDataFrame` does so for any session, such as sessions of earlier tests."""
    spark.createDataFrame([(1,)], "number INT")


@pytest.mark.connect
def test_local_session_is_the_one_that_runs(spark: SparkSession) -> None:
    assert local_session(config={"spark.sparkmeta.split-manifest-bytes": "4m"}) is spark
    assert spark.conf.get("spark.sparkmeta.split-manifest-bytes") == "4m"
    spark.conf.unset("spark.sparkmeta.split-manifest-bytes")


def in_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


@pytest.mark.connect
def test_other_threads_have_the_session_with_its_settings(spark: SparkSession) -> None:
    before = {key: spark.conf.get(key) for key in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")}
    others = dict(zip(before, ("Asia/Tokyo", "37"), strict=True))
    try:
        for key, value in others.items():
            spark.conf.set(key, value)
        assert in_thread(local_session) is spark
        assert in_thread(lambda: SessionSource().get()) is spark
        assert {key: spark.conf.get(key) for key in before} == others
        assert in_thread(lambda: local_session(config={"spark.sql.shuffle.partitions": "38"})) is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "38"
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


@pytest.mark.connect
def test_settings_that_a_running_session_can_not_change(spark: SparkSession) -> None:
    for key in ("spark.driver.memory", "spark.sql.extensions"):
        with pytest.raises(SessionError, match=f"^config sets {key}: the running session can't change it"):
            local_session(config={key: "1g"})


STOPPED = """
import logging, os, sys, tempfile
import sparkmeta as sm
from sparkmeta.errors import SessionError
logging.basicConfig(stream=sys.stdout)
logging.getLogger("sparkmeta.session").setLevel("INFO")
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession, functions as F

on_connect = sys.argv[1] == "connect"

def start():
    return SparkSession.builder.remote("local[1]").getOrCreate() if on_connect else sm.local_session(cores=1)

catalog = sm.load_catalog("local", type="hadoop", warehouse=tempfile.mkdtemp())
catalog.create_namespace("db")
schema = Schema(NestedField(1, "id", LongType()))
unbound = catalog.create_table("db.unbound", schema)
if not on_connect:
    assert SparkSession.getActiveSession() is None
    assert (unbound.state.settings.planning, unbound.scan().plan_files().count()) == ("join", 0)
    assert SparkSession.getActiveSession().conf.get("spark.sparkmeta.planning") == "join"
session = start()
assert unbound.state.spark is session or unbound.state.spark.sparkContext is session.sparkContext
table = catalog.create_table("db.t", schema, format_version=3, spark=session).append(session.range(5).coalesce(1))
old_rows, scan, inspect, maintenance = session.range(3), table.scan("id = 1"), table.inspect, table.maintenance
assert (scan.count(), inspect.files().count(), scan.plan_files().count()) == (1, 1, 1)
lost = table.append(session.range(1))
before, after = ({*t.scan().plan_files().toArrow()["file_path"].to_pylist()} for t in (table, lost))
os.remove((after - before).pop().removeprefix("file://"))
for use in (
    lambda: table.update({"id": F.expr("nope + 1")}), lambda: lost.scan().to_arrow(),
    lambda: table.create_temp_view("a b"), lambda: sm.load_table("s3://bucket/table", session),
):
    try:
        use()
    except sm.SparkmetaError as error:
        print("error", str(error).count(chr(10)))
session.stop() if on_connect else session.sparkContext.stop()
uses = [
    scan.plan_files, scan.to_df, scan.count, scan.count_files, scan.report, table.scan().to_arrow,
    inspect.files, inspect.snapshots, inspect.partitions, inspect.refs,
    lambda: table.append(old_rows), lambda: table.delete("id = 1"), lambda: table.update({"id": 5}),
    lambda: table.upsert(old_rows, ["id"]), lambda: table.merge(old_rows, ["id"]).when_matched().delete().merge(),
    lambda: table.changelog(None).to_df(), lambda: table.file_changes(None), lambda: table.create_temp_view("t"),
    maintenance.health, maintenance.rewrite_data_files, lambda: maintenance.remove_orphan_files().to_df(), table.draw,
    lambda: catalog.load_table("db.t", session), lambda: sm.load_table(table.location(), session),
]

def refused():
    for use in uses:
        try:
            use()
        except SessionError as error:
            assert "was stopped" in str(error), error
        else:
            raise AssertionError(use)

refused()
assert table.schema() == table.refresh().schema()
if not on_connect:
    again = start()
    assert again is not session
    refused()
    assert unbound.state.spark.sparkContext is again.sparkContext
    assert unbound.append(again.range(2)).scan().count() == 2
    try:
        catalog.load_table("db.t").append(old_rows)
    except SessionError:
        print("rows", catalog.load_table("db.t").append(again.range(3)).scan().count())
else:
    print("rows 9")
"""


@pytest.mark.connect
def test_after_a_session_was_stopped(pytestconfig: pytest.Config) -> None:
    """Its tables and DataFrames raise one error, also beside a new session. Java logs no error that is raised.

    A table that was given no session starts one, which has the settings of the environment, and then uses the new one.
    """
    kind = "connect" if pytestconfig.option.spark_connect_url else "classic"
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARKMETA_PLANNING": "join"}
    command = [sys.executable, "-c", STOPPED, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "rows 9" in done.stdout, done.stderr
    assert done.stdout.count("error 0") == 4
    assert done.stdout.count("started a local Spark session") == (kind == "classic")
    if kind == "classic":
        assert not [line for line in done.stderr.splitlines() if line.startswith(("\tat ", "{", "Caused by"))]


@pytest.mark.classic
def test_a_session_is_asked_seldom_whether_it_was_stopped(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((0.0, 0.01, 0.03, 0.06))
    problems = iter((None, RuntimeError("busy"), ConnectionRefusedError()))
    asked: list[SparkSession] = []

    def asks(self: SparkSession) -> None:
        asked.append(self)
        if (problem := next(problems)) is not None:
            raise problem

    monkeypatch.setattr(session, "_last_in_use", WeakKeyDictionary())
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(type(spark), "newSession", asks)
    assert [session.in_use(spark) for _ in range(3)] == [spark] * 3
    assert len(asked) == 2
    with pytest.raises(SessionError, match="was stopped"):
        session.in_use(spark)


@pytest.mark.parametrize(("name", "usable"), [("short", True), ("long" * 20, False)])
def test_sockets_have_short_paths(monkeypatch: pytest.MonkeyPatch, name: str, usable: bool) -> None:
    monkeypatch.setattr("tempfile.tempdir", f"/tmp/{name}")
    config = local_config(2, "1g")
    assert config.get("spark.python.unix.domain.socket.dir") == (f"/tmp/{name}" if usable else None)
    assert ("spark.python.unix.domain.socket.enabled" in config) is usable


def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)


def test_a_local_session_beside_a_configured_server(monkeypatch: pytest.MonkeyPatch) -> None:
    no_session(monkeypatch)
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark.example.org/;token=secret")
    with pytest.raises(SessionError, match="SPARK_REMOTE names a Spark Connect server: unset it") as raised:
        local_session()
    assert "secret" not in str(raised.value)


def test_the_session_of_a_table(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = SessionSource()
    assert SessionSource(spark).get() is SessionSource(spark).running() is bound.get() is spark
    no_session(monkeypatch)
    unbound = SessionSource()
    assert unbound.running() is None
    assert SessionSource(start=lambda: spark).get() is bound.get() is bound.running() is spark
    no_session(monkeypatch)
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark.example.org")
    with pytest.raises(SessionError, match="SPARK_REMOTE"):
        unbound.get()


def test_a_table_that_a_server_does_not_see(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = sm.load_catalog("local", type="hadoop", warehouse=str(tmp_path))
    schema = Schema(NestedField(1, "id", LongType()))
    table = catalog.create_table("db.free", schema)
    given = catalog.create_table("db.given", schema, spark=spark)
    monkeypatch.setattr("sparkmeta.snapshot.state.is_connect", lambda _: True)
    monkeypatch.setattr("sparkmeta.storage.files.shares_disk", lambda *_: False)
    for use in (lambda: table.scan().plan_files(), table.inspect.refs):
        with pytest.raises(SessionError, match=r"^.*db/free: it was opened on this machine .*: load the table again$"):
            use()
    assert given.state.spark is spark


@pytest.mark.connect
def test_is_connect(spark: SparkSession, pytestconfig: pytest.Config) -> None:
    assert is_connect(spark) is bool(pytestconfig.option.spark_connect_url)


@pytest.mark.connect
def test_materialize_keeps_rows_and_recomputes_nothing(spark: SparkSession) -> None:
    random = spark.range(100).selectExpr("id", "uuid() AS value")
    materialized = materialize(random)
    assert materialized.collect() == materialized.collect()
    assert materialized.count() == 100


def test_local_rows_behind_empty_chunks_are_there(spark: SparkSession) -> None:
    rows = pa.table({"id": pa.array([7], pa.int64()), "name": ["x"]})
    table = pa.concat_tables([rows.slice(0, 0), rows.slice(0, 0), rows])
    assert [tuple(row) for row in local_frame(spark, table).collect()] == [(7, "x")]
    assert local_frame(spark, table.slice(0, 0)).collect() == []


WORKER = pa.schema([("pid", pa.int64()), ("archives", pa.list_(pa.string())), ("unix_sockets", pa.string())])


def look_at_worker(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        finders = [finder for finder in sys.path_importer_cache.values() if isinstance(finder, zipimporter)]
        archives = sorted({Path(finder.archive).name for finder in finders})
        # Looks into each archive of the path.
        assert importlib.util.find_spec("no_such_module") is None
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "pid": os.getpid(),
                    "archives": archives,
                    "unix_sockets": os.environ["PYTHON_UNIX_DOMAIN_ENABLED"].lower(),
                }
            ],
            WORKER,
        )


def test_what_spark_does_between_python_tasks(spark: SparkSession) -> None:
    """Before each task, Spark lets a worker's importers read their archives again, which must be none of its own."""
    looks = [map_arrow(spark.range(1).coalesce(1), look_at_worker, WORKER).collect()[0] for _ in range(5)]
    later = [look for place, look in enumerate(looks) if look.pid in {earlier.pid for earlier in looks[:place]}]
    assert later
    assert [look.archives for look in later] == [[]] * len(later)
    assert {look.unix_sockets for look in looks} == {"true"}
