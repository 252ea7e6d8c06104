"""Tables, plans and rows by SQL only: the data source `sparkmeta` and the table functions.

The tables are in a folder that a Connect server sees too. Spark's Python processes have no session, wherever they run.
"""

from __future__ import annotations

import json
import os
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta import Settings, load_catalog
from sparkmeta.data_source import tables
from sparkmeta.data_source.functions import call
from sparkmeta.data_source.options import ReadOptions
from sparkmeta.errors import InvalidArgumentError
from sparkmeta.rows import arrow_reader
from sparkmeta.session import NoSession
from tests.conftest import configured
from tests.costs import limit
from tests.handmade import HandmadeTable
from tests.handmade import data as handmade_data
from tests.inspect.comparison import assert_same_rows, collected, plain_type
from tests.rows.row_table import RowTable
from tests.small_table import orders as orders_of
from tests.small_table import small_catalog, write_small_table
from tests.trees import BY_PART, TreeTable, data

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METADATA_TABLES = [*tables.OF_SNAPSHOT, *tables.OF_HISTORY]

pytestmark = pytest.mark.connect


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    sm.register(spark)
    return spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sql")


@pytest.fixture(scope="module")
def orders(folder: Path) -> str:
    """A table of version 2 in a SQL catalog."""
    return write_small_table(folder / "shop").metadata_location


@pytest.fixture(scope="module")
def deleted(folder: Path) -> str:
    """A table of version 3 with deletes of every kind, in several manifests and file formats."""
    table = RowTable(folder / "rows" / "t")
    x, y = {"partition": {"part": "x"}}, {"partition": {"part": "y"}}
    files = [table.data(f"{n}.{kind}", numbered(n * 10, n * 10 + 10), **x) for n, kind in enumerate(FORMATS)]
    table.add(0, 1, *files).add(0, 1, table.data("y.parquet", numbered(50, 60, "y"), **y))
    table.add(0, 0, table.data("n.parquet", numbered(70, 80, None)))
    by_id = table.keys("id.parquet", pa.table({"id": pa.array([1, 17, 55], pa.int64())}), [1], **x)
    table.add(1, 1, by_id, table.vector(files[0], [2, 3], sequence=4))
    table.add(1, 1, table.positions("p.parquet", (files[1], 5), (files[2], 0), **x))
    return table.write()


@pytest.fixture(scope="module")
def tree(folder: Path) -> str:
    """A metadata tree with files in its root and in two leaves, one of them masked."""
    table = TreeTable(folder / "tree" / "t", BY_PART)
    leaves = [table.leaf(part, *(data(f"x:{part}{n}", part) for n in range(3))) for part in "ab"]
    in_root = data("x:c0", "c")
    table.snapshot(added=[*leaves, in_root])
    table.snapshot(existing=[*leaves, in_root], added=[table.mask(leaves[0], [1])])
    return table.load(None).metadata_location


DELETED = {1, 17, 2, 3, 15, 20}
FORMATS = ("parquet", "orc", "avro")


def numbered(start: int, stop: int, part: str | None = "x") -> pa.Table:
    ids = range(start, stop)
    parts = pa.array([part] * len(ids), pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "part": parts, "ratio": [n / 2 for n in ids]})


# What can't be read: handmade lists have no counts, and the data files of the tree do not exist.
UNREADABLE = {"deleted": {"all_manifests"}, "tree": {"rows"}}


def expected(table: sm.Table, name: str) -> DataFrame:
    if name == "plan":
        return table.scan().plan_files()
    if name == "health":
        return table.maintenance.health().findings()
    return table.scan().to_df() if name == "rows" else getattr(table.inspect, name)()


@pytest.mark.parametrize("kind", ["orders", "deleted", "tree"])
def test_every_table(registered: SparkSession, kind: str, request: pytest.FixtureRequest) -> None:
    """By a view and, for one table, by a table function."""
    place = request.getfixturevalue(kind)
    table, frames, theirs = sm.load_table(place, spark=registered), {}, {}
    for name in sorted({*tables.TABLES} - {"partition_statistics"} - UNREADABLE.get(kind, set())):
        registered.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {name}_ USING sparkmeta OPTIONS (path '{place}', 'table' '{name}')"
        )
        frames[name, "view"] = registered.table(f"{name}_")
        if name != "rows" and kind == "orders":
            frames[name, "function"] = registered.sql(f"SELECT * FROM sparkmeta_table('{place}', '{name}')")
        theirs[name] = expected(table, name)
    for (name, way), frame in frames.items():
        assert frame.schema.simpleString() == theirs[name].schema.simpleString(), (name, way)
        if name not in {"plan", "rows"}:
            assert plain_type(frame.schema) == plain_type(theirs[name].schema), (name, way)
    rows = collected(frames | theirs)
    for name, way in frames:
        assert_same_rows(rows[name, way], rows[name], f"{name} by {way}")


@pytest.mark.parametrize("kind", ["orders", pytest.param("deleted", marks=pytest.mark.jvm), "tree"])
def test_shares(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read any cut of the manifests to the same rows, however large they are."""
    place = request.getfixturevalue(kind)
    monkeypatch.setattr(tables, "SHARE_ENTRIES", 1)
    monkeypatch.setattr(NoSession, "settings", lambda _: Settings(executor_reads="direct", driver_manifest_bytes=1))
    limit(monkeypatch, driver_pairs=0, driver_deletes=0)
    table = sm.load_table(place)
    if kind == "deleted":
        monkeypatch.setattr(arrow_reader, "_OPEN_FILE", arrow_reader.PART_BYTES)
        monkeypatch.setattr(arrow_reader, "PART_BYTES", 400)
        rows, shares = read(path=place)
        assert shares > 5  # files
        assert len(rows) == 44
        assert {row["id"] for row in rows} == {*range(30), *range(50, 60), *range(70, 80)} - DELETED
    dealt = ["plan", "entries", "files", "data_files", "delete_files", "position_deletes", "all_entries", "all_files"]
    for name in dealt:
        rows, shares = read(path=place, table=name)
        whole = table.scan().arrow.plan_files() if name == "plan" else getattr(table.inspect.arrow, name)()
        assert shares > 1 or "delete" in name, name
        assert sorted(map(str, whole.to_pylist())) == sorted(map(str, rows)), name


def read(**options: Any) -> tuple[list[dict[str, Any]], int]:
    """The rows that the data source reads in this process, and the number of its shares."""
    source = sm.DataSource({name.replace("_", "-"): str(value) for name, value in options.items()})
    reader = pickle.loads(pickle.dumps(source)).reader(source.schema())
    shares = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(pickle.dumps(reader))
    return [row for share in shares for batch in reader.read(share) for row in batch.to_pylist()], len(shares)


def test_a_view_keeps_its_version_of_the_table(registered: SparkSession, folder: Path) -> None:
    statement = "CREATE OR REPLACE TEMPORARY VIEW {} USING sparkmeta OPTIONS (path '{}')"
    catalog = write_small_table(folder / "versions").catalog
    properties = ", ".join(f"`property.{key}` '{catalog.properties[key]}'" for key in ("uri", "warehouse"))
    registered.sql(statement.format("before", f"shop.orders', catalog 'shop', {properties}, `property.type` 'sql"))
    catalog.load_table("shop.orders").append(orders_of(7))
    registered.sql(statement.format("after", f"shop.orders', catalog 'shop', {properties}, `property.type` 'sql"))
    assert (registered.table("before").count(), registered.table("after").count()) == (30, 40)


def test_uses_of_a_view_have_their_own_filters(registered: SparkSession, orders: str) -> None:
    """Spark would plan a source once for all uses, if the source took filters."""
    rows = registered.read.format("sparkmeta").load(orders)
    assert [rows.where("id = 7").count(), rows.count(), rows.where("id IN (3, 4)").count()] == [1, 30, 2]
    assert rows.where("id = 7").union(rows.where("id = 8")).select("id").collect() == [(7,), (8,)]


def test_a_filter_chooses_what_is_read(registered: SparkSession, folder: Path) -> None:
    """Files that the option rules out are not opened: they are gone."""
    table = RowTable(folder / "pruned" / "t")
    for part in ("x", "y"):
        table.add(0, 1, table.data(f"{part}.parquet", numbered(0, 10, part), partition={"part": part}))
    place = table.write()
    table.path("y.parquet").unlink()
    read = registered.read.format("sparkmeta")
    assert read.option("filter", "part = 'x' and id > 2 and ratio < 4").load(place).count() == 5
    planned = read.option("filter", "part = 'x'").option("table", "plan").load(place)
    assert [row.record_count for row in planned.collect()] == [10]


def test_columns_choose_what_is_read(registered: SparkSession, orders: str) -> None:
    read = registered.read.format("sparkmeta").option("table", "files")
    chosen = read.option("columns", '"file_path", readable_metrics."id"').load(orders)
    assert chosen.columns == ["file_path", "readable_metrics"]
    assert chosen.schema["readable_metrics"].dataType.names == ["id"]
    registered.sql(
        "CREATE OR REPLACE TEMPORARY VIEW narrow (record_count BIGINT, file_path STRING) "
        f"USING sparkmeta OPTIONS (path '{orders}', 'table' 'files')"
    )
    assert registered.sql("SELECT sum(record_count) FROM narrow").first()[0] == 30
    rows = registered.read.schema("note STRING, id BIGINT").format("sparkmeta").load(orders)
    assert rows.where("id = 25").collect() == [("note 25", 25)]
    assert registered.read.format("sparkmeta").option("columns", "id,_pos").load(orders).columns == ["id", "_pos"]


def test_snapshots(orders: str) -> None:
    first, second, _ = sorted(sm.load_table(orders).snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
    moment = datetime.fromtimestamp(second.timestamp_ms / 1000, UTC).isoformat()
    choices: list[tuple[dict[str, Any], int]] = [
        ({"ref": "first"}, 10),
        ({"tag": "first"}, 10),
        ({"branch": "main"}, 30),
        ({"snapshot_id": first.snapshot_id}, 10),
        ({"as_of_timestamp": second.timestamp_ms}, 20),
        ({"as_of_timestamp": moment}, 20),
    ]
    for chosen, records in choices:
        for name in ("files", "plan"):
            rows, _ = read(path=orders, table=name, **chosen)
            assert sum(row["record_count"] for row in rows) == records, chosen
        assert len(read(path=orders, filter="id >= 0", **chosen)[0]) == records


def test_names_of_catalogs(registered: SparkSession, folder: Path, orders: str) -> None:
    """Spark's own catalogs by the first part of a name, others by their properties."""
    uri, warehouse = f"sqlite:///{folder}/shop/catalog.db", (folder / "shop").as_uri()
    properties = f"properties => map('type', 'sql', 'uri', '{uri}', 'warehouse', '{warehouse}')"
    listed = registered.sql(f"SELECT count(*) FROM sparkmeta_files('shop.orders', catalog => 'shop', {properties})")
    assert listed.first()[0] == 6
    read = registered.read.format("sparkmeta").option("catalog", "shop").option("table", "plan")
    read = read.option("property.type", "sql").option("property.uri", uri).option("property.warehouse", warehouse)
    assert read.load("shop.orders").count() == 6
    prefix = "spark.sql.catalog.shop"
    values = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": f"jdbc:sqlite:file:{folder}/shop/catalog.db",
        f"{prefix}.warehouse": warehouse,
    }
    with configured(registered, values):
        sm.register(registered)
    assert registered.sql("SELECT count(*) FROM sparkmeta_snapshots('shop.shop.orders')").first()[0] == 3


@pytest.mark.parametrize(
    ("options", "kind", "error"),
    [
        ({"path": "/nowhere"}, sm.NoSuchTableError, "/nowhere"),
        ({"path": ""}, InvalidArgumentError, "path is missing"),
        ({"tabel": "files"}, InvalidArgumentError, "'tabel' is not an option; options are path, table, catalog"),
        ({"table": "fils"}, InvalidArgumentError, "table is 'fils': expected rows, plan, health, entries"),
        ({"table": "refs", "tag": "first"}, InvalidArgumentError, "table refs is of all snapshots"),
        ({"table": "files", "filter": "id = 1"}, InvalidArgumentError, "filter is for plan and rows"),
        (
            {"table": "files", "columns": "id"},
            InvalidArgumentError,
            "no column 'id' in the metadata table, which",
        ),
        (
            {"table": "refs", "columns": "id"},
            InvalidArgumentError,
            "no column 'id' in the table, which has 'name', 'type'",
        ),
        ({"columns": "ix"}, InvalidArgumentError, ".*ix"),
        ({"columns": 'id, "note'}, InvalidArgumentError, "has a quote without its end"),
        ({"filter": "nothing = 1"}, sm.InvalidFilterError, ".*nothing"),
        ({"snapshot-id": "5"}, sm.NoSuchSnapshotError, ".*5"),
        ({"snapshot-id": "five"}, InvalidArgumentError, "snapshot-id is 'five': expected a whole number"),
        ({"tag": "main"}, sm.NoSuchSnapshotError, ".*has no tag 'main': it is a branch"),
        ({"branch": "none"}, sm.NoSuchSnapshotError, ".*'none'"),
        ({"as-of-timestamp": "noon"}, InvalidArgumentError, "as-of-timestamp is 'noon': expected milliseconds"),
        ({"ref": "main", "tag": "first"}, InvalidArgumentError, "ref and tag each name a snapshot"),
    ],
)
def test_bad_options(orders: str, options: dict[str, str], kind: type[Exception], error: str) -> None:
    with pytest.raises(kind, match=error):
        sm.DataSource({"path": orders} | options).schema()


def test_errors_in_spark(registered: SparkSession, orders: str) -> None:
    """They end with the error, after few lines of calls."""
    with pytest.raises(PySparkException, match=r"sparkmeta\.errors\.InvalidArgumentError: 'tabel' is not") as refused:
        registered.read.format("sparkmeta").option("tabel", "files").load(orders).collect()
    assert str(refused.value).count("File ") <= 2
    queries = {
        "sparkmeta_files('/nowhere')": r"NoSuchTableError: /nowhere: there is no Iceberg table",
        f"sparkmeta_call('{orders}', 'rollback_to_snapshot', snapshot_id => 5)": "InvalidChangeError: .* id: 5",
    }
    for called, error in queries.items():
        with pytest.raises(PySparkException, match=rf"sparkmeta\.errors\.{error}") as refused:
            registered.sql(f"SELECT * FROM {called}").collect()
        before, _, after = str(refused.value).partition("sparkmeta.errors.")
        assert before.count("File ") <= 2
        assert "File " not in after
    # This setting of Spark leaves out all calls, in functions and sources of users too.
    registered.conf.set("spark.sql.execution.pyspark.udf.hideTraceback.enabled", "true")
    try:
        with pytest.raises(PySparkException, match=r"instance: sparkmeta\.errors\.NoSuchTableError: /nowhere"):
            registered.read.format("sparkmeta").load("/nowhere").collect()
    finally:
        registered.conf.unset("spark.sql.execution.pyspark.udf.hideTraceback.enabled")
    with pytest.raises(PySparkException, match=r"sparkmeta\.errors\.NoSuchSnapshotError: .* has no snapshot 5"):
        registered.sql(f"SELECT * FROM sparkmeta_files('{orders}', snapshot_id => 5)").collect()


def test_schemas_that_do_not_fit(registered: SparkSession, orders: str) -> None:
    read = registered.read.format("sparkmeta").option("table", "files")
    with pytest.raises(PySparkException, match=r"column record_count is string in the schema: expected bigint"):
        read.schema("record_count STRING").load(orders).collect()
    with pytest.raises(PySparkException, match=r"no column 'size' in the table, which has 'content'"):
        read.schema("size STRING").load(orders).collect()


# -- procedures -------------------------------------------------------------------------------------------------------


def test_procedures(registered: SparkSession, folder: Path) -> None:
    """Plan without a commit, and act with `commit => true`."""
    write_small_table(folder / "called")
    catalog = small_catalog(folder / "called")
    uri, warehouse = f"sqlite:///{folder}/called/catalog.db", (folder / "called").as_uri()
    properties = f"catalog => 'shop', properties => map('type', 'sql', 'uri', '{uri}', 'warehouse', '{warehouse}')"

    def called(arguments: str) -> Any:
        return registered.sql(f"SELECT * FROM sparkmeta_call('shop.orders', {arguments}, {properties})").first()

    def current() -> int | None:
        return catalog.load_table("shop.orders").metadata.current_snapshot_id

    first, _, last = (snapshot.snapshot_id for snapshot in catalog.load_table("shop.orders").snapshots())
    planned = called(f"'rollback_to_snapshot', snapshot_id => {first}")
    ids = {"previous_snapshot_id": str(last), "current_snapshot_id": str(first)}
    assert planned == ("rollback_to_snapshot", False, ids | {"refs": f'{{"main": {first}}}'})
    assert current() == last
    assert called(f"'rollback_to_snapshot', snapshot_id => {first}, commit => true").committed
    assert current() == first
    called(f"'set_current_snapshot', snapshot_id => {last}, commit => true")
    assert current() == last
    called("'set_current_snapshot', ref => 'first', commit => true")
    assert current() == first
    for arguments, moved in {
        "'create_tag', tag_name => 'a'": {"a": first},
        f"'replace_tag', tag_name => 'a', snapshot_id => {last}": {"a": last},
        "'create_branch', branch_name => 'b', min_snapshots_to_keep => 3": {"b": first},
        "'replace_branch', branch_name => 'b'": {},
        "'fast_forward', branch => 'b', `to` => 'a'": {"b": last},
        "'rename_branch', branch_name => 'b', new_name => 'c'": {"b": None, "c": last},
        "'remove_branch', branch_name => 'c'": {"c": None},
        "'remove_tag', tag_name => 'a'": {"a": None},
    }.items():
        before = catalog.load_table("shop.orders").refs()
        assert json.loads(called(arguments).result["refs"]) == moved
        assert catalog.load_table("shop.orders").refs() == before
        assert json.loads(called(f"{arguments}, commit => true").result["refs"]) == moved
    for arguments, error in {
        "'rollback_to_snapshot'": "InvalidArgumentError: rollback_to_snapshot needs the argument snapshot_id",
        f"'rollback_to_snapshot', id => {first}": "rollback_to_snapshot has no argument id; arguments are snapshot_id",
        "'rollback_to_snapshot', snapshot_id => 5": "unknown snapshot id: 5",
        "'rollback'": "'rollback' is not a procedure; procedures are rollback_to_snapshot",
        "'compute_table_stats'": r"compute_table_stats of .* is not for .*: table\.maintenance\.compute_table_stats\(",
        "'create_tag', tag_name => 'first'": "there is a tag 'first' already: replace_tag moves it",
        "'health'": "'health' is not a procedure",
        "'expire_snapshots', retain_last => 0": "retain_last is 0: expected",
        "'expire_snapshots', stream_results => true": "expire_snapshots has no argument stream_results",
    }.items():
        with pytest.raises(PySparkException, match=error):
            called(f"{arguments}, commit => true")


def test_maintenance_by_procedures(registered: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that one process can do plan and act."""
    catalog = load_catalog("shop", type="hadoop", warehouse=str(folder / "maintained"))
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", orders_of(0).schema)
    for load in range(3):
        table = table.append(orders_of(load))
    location = table.overwrite(orders_of(3)).location()

    def called(arguments: str) -> Any:
        return registered.sql(f"SELECT * FROM sparkmeta_call('{location}', {arguments})").first()

    older = "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1"
    planned = called(f"'expire_snapshots', {older}")
    assert not planned.committed
    assert planned.result | {"bytes": ""} == {
        "table": location, "snapshots": "3", "remaining": "1", "refs": "[]", "bytes": "", "missing": "0",
        "files": '{"data file": 3, "manifest": 3, "manifest list": 3}', "schemas": "0", "partition_specs": "0",
    }  # fmt: skip
    files = {path for path in Path(location.removeprefix("file:")).rglob("*.*") if path.suffix in (".parquet", ".avro")}
    manifests = called("'rewrite_manifests'").result
    assert (manifests["data_manifests"], manifests["manifests_after"]) == ("4", "1")
    orphans = [Path(location.removeprefix("file:"), f"data/day={day}/orphan.parquet") for day in range(100)]
    for orphan in orphans:
        orphan.parent.mkdir(parents=True)
        orphan.write_bytes(b"x")
        os.utime(orphan, (0, 0))
    for commit in (False, True):
        assert all(map(Path.exists, orphans))
        assert called(f"'remove_orphan_files', commit => {commit}").result["files"] == '{"data": 100}'
    assert not any(map(Path.exists, orphans))
    done = called(f"'expire_snapshots', {older}, commit => true")
    assert done.committed
    assert (done.result["files"], done.result["failed"]) == (planned.result["files"], "0")
    table = table.refresh()
    assert done.result["metadata_location"] == table.metadata_location
    assert len(table.snapshots()) == 1
    assert len([path for path in files if not path.exists()]) == 9
    assert table.scan().to_arrow().num_rows == len(orders_of(3))
    table.append(orders_of(4))
    rewritten = called("'rewrite_manifests', commit => true").result
    table = table.refresh()
    assert (rewritten["manifests_created"], rewritten["snapshot_id"]) == ("1", str(table.metadata.current_snapshot_id))
    assert len(table.state.manifests) == 1
    assert table.scan().to_arrow().num_rows == len(orders_of(3)) + len(orders_of(4))
    assert not table.arrow.check().num_rows
    before = sorted(map(str, table.scan().to_arrow().to_pylist()))
    assert called("'rewrite_data_files', min_input_files => 2").result["data_files"] == "2"
    assert called("'rewrite_data_files', min_input_files => 2, commit => true").result["added_data_files"] == "1"
    table = table.refresh()
    assert (table.scan().count_files(), sorted(map(str, table.scan().to_arrow().to_pylist()))) == (1, before)
    with pytest.raises(PySparkException, match=r"rewrite_data_files of .* is not for .*: table\.m"):
        called("'rewrite_data_files', strategy => 'sort', sort_order => 'id', rewrite_all => true, commit => true")
    monkeypatch.setattr(NoSession, "settings", lambda _: Settings(driver_manifest_bytes=1))
    with pytest.raises(sm.UnsupportedError, match=r"expire_snapshots of a table with .* of manifests is not for"):
        call(ReadOptions.of({"path": location}).open({}), "expire_snapshots", {}, commit=False)
    with pytest.raises(sm.UnsupportedError, match=r"rewrite_manifests of a table with .* of manifests is not for"):
        call(ReadOptions.of({"path": location}).open({}), "rewrite_manifests", {}, commit=True)


def test_the_health_of_a_large_table_is_for_python(registered: SparkSession, folder: Path) -> None:
    table = HandmadeTable(folder / "large", summaries=True).add(0, 0, handmade_data("x:d"))
    written = table._manifest
    vars(table)["_manifest"] = lambda *of: {**written(*of), "added_data_files_count": 1_000_000}
    with pytest.raises(PySparkException, match=r"1,000,000 entries .* print\(table.maintenance.health\(\)\) in Python"):
        registered.sql(f"SELECT * FROM sparkmeta_health('{table.write()}')").collect()
