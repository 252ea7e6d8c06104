"""`df.write` and `df.writeStream` of the data source: what they write, and that a batch of a stream is written once.

The tables are in a folder that a Connect server sees too. Spark's Python processes have no session, wherever they run.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, StringType
from pyspark import TaskContext
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta.arrow_types import spark_schema
from sparkmeta.commit import file_writer, lists, snapshot_writer
from sparkmeta.data_source import sink
from sparkmeta.entries import relation
from sparkmeta.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidArgumentError,
    SparkmetaError,
    UnsupportedError,
)
from sparkmeta.manifests import placement
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.rows import arrow_reader
from sparkmeta.spec.summary import summary_of
from sparkmeta.write import options
from tests.conftest import configured
from tests.data_source.sink_tables import (
    COLUMNS,
    SCHEMA,
    SPEC,
    UPSERT,
    Batches,
    arrow,
    data_files,
    live_files,
    row,
    rows_of,
)
from tests.local_files import local_path
from tests.maintain.test_expire import soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

VERSIONS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    sm.register(spark)
    return spark


@pytest.fixture
def catalog(tmp_path: Path) -> sm.Catalog:
    catalog = sm.load_catalog("sink", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    return catalog


def new_table(catalog: sm.Catalog, version: int = 3, **properties: str) -> sm.Table:
    return catalog.create_table(f"db.t{version}", SCHEMA, SPEC, format_version=version, properties=properties)


# -- by Spark ---------------------------------------------------------------------------------------------------------


def frame(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame([tuple(each.values()) for each in rows], COLUMNS)


def write(rows: DataFrame, table: sm.Table, mode: str = "append", **options: str) -> None:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    rows.repartition(3).write.format("sparkmeta").options(**named).mode(mode).save(table.location())


@pytest.mark.connect
@pytest.mark.parametrize("version", VERSIONS)
def test_write(registered: SparkSession, catalog: sm.Catalog, version: int) -> None:
    """Append, overwrite, and upsert, into each version, as the table's methods do."""
    table = new_table(catalog, version)
    first = [row(1, "a", "x", None), row(2, None), row(3, "a"), row(4, "b", "y")]
    options = {"snapshot-property.loaded-by": "job"}
    frame(registered, *first).write.format("sparkmeta").options(**options).mode("append").save(table.location())
    assert rows_of(table) == first
    head = table.refresh().current_snapshot()
    assert {"loaded-by": "job", "added-records": "4"}.items() <= summary_of(head).items()
    parts = table.refresh().inspect.arrow.files().column("partition").to_pylist()
    assert {part["part"] for part in parts} == {"a", "b", None}
    new = [row(number, "b") for number in range(5, 13)]
    by_method = (
        catalog.create_table("db.like", SCHEMA, SPEC).append(arrow(*first)).dynamic_partition_overwrite(arrow(*new))
    )
    write(frame(registered, *new), table, "overwrite", overwrite_mode="dynamic")
    assert rows_of(table) == rows_of(by_method) == [*first[:3], *new]
    write(frame(registered, *first), table, "overwrite")
    assert rows_of(table) == first
    changes = frame(registered, row(2, "c", "new"), row(7, "a")).repartition(3).write.format("sparkmeta")
    changes.options(**UPSERT).mode("append").save(table.location())
    assert rows_of(table) == [first[0], row(2, "c", "new"), *first[2:], row(7, "a")]
    kinds = summary_of(table.refresh().current_snapshot())
    added = {1: None, 2: "added-position-delete-files", 3: "added-dvs", 4: "added-dvs"}[version]
    assert added is None or kinds[added] == "1"
    assert data_files(table) >= {path for path in live_files(table) if path.endswith(".parquet")}


@pytest.mark.connect
def test_inserts(registered: SparkSession, catalog: sm.Catalog) -> None:
    """By SQL only, into a view."""
    table = new_table(catalog)
    options = f"OPTIONS (path '{table.location()}')"
    registered.sql(f"CREATE OR REPLACE TEMPORARY VIEW inserted USING sparkmeta {options}")
    registered.sql("INSERT INTO inserted VALUES (1, 'a', array('x', NULL)), (2, NULL, NULL)")
    assert rows_of(table) == [row(1, "a", "x", None), row(2, None)]
    registered.sql("INSERT OVERWRITE inserted VALUES (3, 'a', NULL)")
    assert rows_of(table) == [row(3, "a")]


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def batches(registered: SparkSession, catalog: sm.Catalog, tmp_path: Path, request: pytest.FixtureRequest) -> Batches:
    return Batches(registered, tmp_path, new_table(catalog, getattr(request, "param", 3)).location())


@pytest.mark.connect
@pytest.mark.parametrize("batches", [1, 4], indirect=True)
def test_a_batch_is_appended_once(batches: Batches) -> None:
    """Also if it is repeated: at once, after other commits, and after its snapshot has expired."""
    expected = [row(number, "ab"[number % 2], str(number)) for number in range(6)]
    batches.add(*expected[:3])
    batches.add()  # an empty batch makes no snapshot
    batches.add(*expected[3:])
    batches.run()
    table = batches.table
    assert rows_of(table) == expected
    assert [summary_of(each)["idempotency.version"] for each in table.snapshots()] == ["0", "2"]
    assert table.committed_version(batches.query) == 2
    for expire in (False, True):
        if expire:
            table = table.append(arrow(row(100, "c")))
            expected.append(row(100, "c"))
            table = table.maintenance.expire_snapshots(older_than=soon()).commit()
            assert len(table.snapshots()) == 1
            assert table.committed_version(batches.query) == 2
        batches.forget()
        batches.run()
        assert rows_of(table) == expected
        assert table.refresh().current_snapshot() == table.current_snapshot()
        assert data_files(table) == live_files(table)
    batches.add(row(101, "a"))
    batches.run()
    assert rows_of(table) == [*expected, row(101, "a")]


@pytest.mark.connect
@pytest.mark.parametrize("batches", [2, 3, 4], indirect=True)
def test_a_batch_is_upserted_once(batches: Batches) -> None:
    batches.add(row(1, "a"), row(2, "a", "old"), row(3, None))
    batches.add(row(2, "b", "new"), row(4, "a"))
    batches.run(**UPSERT)
    expected = [row(1, "a"), row(2, "b", "new"), row(3, None), row(4, "a")]
    assert rows_of(batches.table) == expected
    batches.table.upsert(arrow(row(4, "later")), ["id"])
    batches.forget()
    batches.run(**UPSERT)
    assert rows_of(batches.table) == [*expected[:3], row(4, "later")]
    deletes = batches.table.inspect.arrow.delete_files().column("file_format").to_pylist()
    assert set(deletes) == {"PARQUET" if batches.table.format_version == 2 else "PUFFIN"}


@pytest.mark.connect
def test_complete_results_replace_the_table(batches: Batches) -> None:
    batches.add(row(1, "a"), row(2, "b"))
    batches.add(row(3, "a"))
    batches.run("complete")
    assert [(each["part"], each["id"]) for each in rows_of(batches.table)] == [("b", 1), ("a", 2)]
    assert len(live_files(batches.table)) == 2


@pytest.mark.connect
def test_a_stream_goes_on_after_the_mend(batches: Batches) -> None:
    """A column that the table has lost is one clear error, and so is a row that does not fit it."""
    table = batches.table
    batches.add(row(1, "a"))
    batches.run()
    with table.refresh().update_schema() as update:
        update.delete_column("notes")
    batches.add(row(2, "a", "x"))
    with pytest.raises(PySparkException, match=r"ValidationError: .*column notes is not in the table"):
        batches.run()
    with table.refresh().update_schema() as update:
        update.add_column("notes", ListType(5, StringType(), element_required=False))
    batches.run()
    batches.add(row(3, "b"), row(None, "b"))  # type: ignore[arg-type]
    with pytest.raises(PySparkException, match=r"ValidationError: .*column id is required, and has nulls in 1 rows"):
        batches.run()
    assert data_files(table) == live_files(table)
    with table.refresh().update_schema(allow_incompatible_changes=True) as update:
        update.make_column_optional("id")
    batches.run()
    assert sorted(str(each["id"]) for each in table.refresh().scan().to_arrow().to_pylist()) == ["1", "2", "3", "None"]


@pytest.mark.connect
def test_branches(registered: SparkSession, catalog: sm.Catalog) -> None:
    table = new_table(catalog, **{"write.wap.enabled": "true"}).append(arrow(row(1, "a")))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    with configured(registered, {"spark.wap.branch": "staged"}):
        with pytest.raises(PySparkException, match=r"spark.wap.branch is 'staged', which this write can't see: name"):
            write(frame(registered, row(2, "a")), table)
        write(frame(registered, row(2, "a")), table, branch="audit")
    assert rows_of(table) == [row(1, "a")]
    assert table.refresh().scan().use_ref("audit").count() == 2
    assert data_files(table) == {
        local_path(path) for path in table.refresh().inspect.arrow.all_files().column("file_path").to_pylist()
    }


# -- in this process --------------------------------------------------------------------------------------------------


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


class Write:
    """A write whose processes are this one; a task for each table of rows."""

    def __init__(self, table: sm.Table, overwrite: bool = False, **options: str) -> None:
        self.source = sm.DataSource({"path": table.location()} | {k.replace("_", "-"): v for k, v in options.items()})
        self.overwrite = overwrite
        self.writer = self.source.writer(spark_schema(arrow().schema), overwrite)

    def tasks(self, *tables: pa.Table) -> list[Any]:
        return [sent(self.task(number, iter(rows.to_batches()))) for number, rows in enumerate(tables)]

    def task(self, number: int, rows: Iterator[pa.RecordBatch]) -> Any:
        context = TaskContext._getOrCreate()
        context._partitionId = context._taskAttemptId = number
        context._localProperties = {}
        try:
            return sent(self.writer).write(rows)
        finally:
            TaskContext._setTaskContext(None)

    def commit(self, reports: list[Any]) -> None:
        sent(self.writer).commit(reports)

    def abort(self, reports: list[Any]) -> None:
        sent(self.writer).abort(reports)


def test_files_of_writes_that_fail(catalog: sm.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are deleted, unless they may be committed."""
    table = new_table(catalog)
    each = Write(table)
    reports = each.tasks(arrow(row(1, "a")), arrow(row(2, "b"), row(3, "a")))
    assert len(data_files(table)) == 3
    each.abort([*reports, None])
    assert data_files(table) == set()
    for error, left in ((CommitStateUnknownError("?"), 1), (CommitConflictError("no"), 0), (KeyboardInterrupt(), 1)):
        reports = each.tasks(arrow(row(1, "a")))

        def fail(*_: object, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(FileSystemOperations, "commit", fail)
            with pytest.raises(type(error)):
                each.commit(reports)
        each.abort(reports)  # as Spark does
        assert len(data_files(table)) == left, error
        for path in data_files(table):
            Path(path).unlink()
    with pytest.raises(ZeroDivisionError):
        each.task(0, failing(arrow(row(1, "a"), row(2, "b"))))
    assert data_files(table) == set()


def test_the_names_of_files_that_may_be_left(catalog: sm.Catalog, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the files of the write, even if no task has reported. An upsert's tasks write no files."""
    table = new_table(catalog)
    each = Write(table)
    (report,) = each.tasks(arrow(row(1, "a")))
    for reports in ([None, None], [report, None]):
        caplog.clear()
        each.abort(reports)
        assert f"files named *-{report.name}-* may be left" in caplog.text
    caplog.clear()
    upsert = Write(table, mode="upsert", keys="id")
    upsert.abort([*upsert.tasks(arrow(row(1, "a"))), None])
    assert not caplog.records


def failing(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from rows.to_batches()
    raise ZeroDivisionError


def test_tables_that_change_during_a_write(catalog: sm.Catalog) -> None:
    """Files of an earlier schema and spec are committed; files of a table that is gone are deleted."""
    table = new_table(catalog)
    each = Write(table)
    reports = each.tasks(arrow(row(1, "a", "x")), arrow())
    with table.update_schema() as update:
        update.rename_column("part", "kind").add_column("more", StringType())
    with table.refresh().update_spec() as update:
        update.remove_field("bucket").add_field("more", IdentityTransform(), "more")
    each.commit(reports)
    assert rows_of(table) == [{"id": 1, "kind": "a", "notes": ["x"], "more": None}]
    replaced = catalog.create_table("db.replaced", SCHEMA, SPEC)
    each = Write(replaced)
    reports = each.tasks(arrow(row(1, "a")))
    catalog.drop_table("db.replaced")
    catalog.create_table("db.replaced", SCHEMA, SPEC)
    with pytest.raises(sm.ValidationError, match="another table has replaced it since the write began"):
        each.commit(reports)
    assert data_files(replaced) == set()


def test_sorted_rows(catalog: sm.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task sorts as many rows as fit into memory, and writes them to separate files."""
    order = SortOrder(SortField(1, IdentityTransform()))
    table = catalog.create_table("db.sorted", SCHEMA, SPEC, sort_order=order, format_version=4)
    rows = [row((number * 7) % 20, "a") for number in range(20)]
    monkeypatch.setattr(options, "_SHUFFLED_BYTES", arrow(*rows[:10]).nbytes)
    each = Write(table)
    each.commit(each.tasks(pa.concat_tables([arrow(*rows[:5]), arrow(*rows[5:10]), arrow(*rows[10:])])))
    files = table.refresh().inspect.arrow.files()
    assert set(files.column("sort_order_id").to_pylist()) == {1}
    assert len(files) >= 4  # two buckets, twice
    for path in live_files(table):
        ids = pq.read_table(path, partitioning=None).column("id").to_pylist()
        assert ids == sorted(ids)
    assert len(rows_of(table)) == 20


@pytest.mark.parametrize("version", VERSIONS)
def test_many_files_without_jobs(catalog: sm.Catalog, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a session would do by jobs, a process without one does itself."""
    limits = [(placement, "MOST_REQUESTS"), (lists, "MOST_REQUESTS")]
    limits += [(file_writer, "MOST_ON_DRIVER"), (relation, "FEW_ROWS"), (arrow_reader, "DRIVER_REQUESTS")]

    def run_limited(write: Write, *tables: pa.Table) -> None:
        with monkeypatch.context() as patch:
            for module, name in limits:
                patch.setattr(module, name, 0)
            run(write, *tables)

    properties = {"write.tree.flush-data-files": "1", "write.tree.affiliated-deletes": "1"}
    table = new_table(catalog, version, **properties, **{"commit.manifest.min-count-to-merge": "2"})
    first = [row(number, "abc"[number % 3], str(number)) for number in range(12)]
    model = {each["id"]: each for each in first}
    run_limited(Write(table), arrow(*first[:6]), arrow(*first[6:]))
    for number in (1, 2):
        changed = [row(3, "a", f"new {number}"), row(4, "c"), row(12 + number, "b")]
        model |= {each["id"]: each for each in changed}
        run_limited(Write(table, mode="upsert", keys="id"), arrow(*changed[:1]), arrow(*changed[1:]))
        assert rows_of(table) == [model[key] for key in sorted(model)]
    new = [row(number, "a") for number in range(20, 28)]
    run_limited(Write(table, True, overwrite_mode="dynamic"), arrow(*new[:4]), arrow(*new[4:]))
    assert [each for each in rows_of(table) if each["part"] == "a"] == new
    run_limited(Write(table, True), arrow(row(30, "z")))
    assert rows_of(table) == [row(30, "z")]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_merges_of_manifests_are_small(catalog: sm.Catalog, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark, a commit merges the newest manifests, up to a number of entries, and leaves larger ones."""
    limit = 5
    monkeypatch.setattr(snapshot_writer, "MOST_MERGED", limit)
    table = new_table(catalog, version, **{"commit.manifest-merge.enabled": "false"})
    entries = [7, 2, 2, 2]
    for number, files in enumerate(entries):
        # Each row is in its own partition, so it gets its own file.
        run(Write(table), arrow(*(row(100 * number + part, f"{part}") for part in range(files))))
    with table.refresh().transaction() as tx:
        tx.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    count = sum(entries)
    for number in range(12):
        before = manifests_of(table)
        run(Write(table), arrow(row(1000 + number, "new")))
        count += 1
        after = manifests_of(table)
        assert sum(after.values()) == count == len(live_files(table)) == len(rows_of(table))
        rewritten = [size for path, size in before.items() if path not in after]
        assert sum(rewritten) <= limit
        assert max(rewritten, default=0) < limit
    sizes = sorted(manifests_of(table).values())
    assert sizes[-1] == entries[0]
    # At most the newest manifest is small.
    assert sum(size < limit // 2 for size in sizes) <= 1


def manifests_of(table: sm.Table) -> dict[str, int]:
    """Return the number of live files of each manifest."""
    listed = table.refresh().inspect.arrow.manifests()
    counts = [listed.column(f"{kind}_data_files_count").to_pylist() for kind in ("added", "existing")]
    return dict(zip(listed.column("path").to_pylist(), map(sum, zip(*counts, strict=True)), strict=True))


def run(write: Write, *tables: pa.Table) -> None:
    write.commit(write.tasks(*tables))


def test_an_upsert_is_made_again_after_a_conflict(catalog: sm.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(catalog).append(arrow(row(1, "a")))
    others, commit = [row(2, "other"), row(3, "other")], FileSystemOperations.commit

    def beaten(self: FileSystemOperations, *versions: Any) -> Any:
        if others:
            new = others.pop()
            with monkeypatch.context() as patch:
                patch.setattr(FileSystemOperations, "commit", commit)
                sm.load_table(table.location()).append(arrow(new))
        return commit(self, *versions)

    monkeypatch.setattr(FileSystemOperations, "commit", beaten)
    run(Write(table, mode="upsert", keys="id"), arrow(row(1, "b"), row(2, "b"), row(3, "b")))
    assert rows_of(table) == [row(1, "b"), row(2, "b"), row(3, "b")]


def test_a_job_that_is_repeated(catalog: sm.Catalog) -> None:
    """Properties that are a key make it write once."""
    table = new_table(catalog)
    key = {"snapshot-property.idempotency.application": "loader", "snapshot-property.idempotency.version": "7"}
    run(Write(table, **key), arrow(row(1, "a")))
    run(Write(table, **key), arrow(row(1, "a")))
    assert rows_of(table) == [row(1, "a")]
    assert data_files(table) == live_files(table)
    assert table.refresh().committed_version("loader") == 7


def test_upserts_that_are_too_large(catalog: sm.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(catalog).append(arrow(*(row(number, "a") for number in range(10))))
    each = Write(table, mode="upsert", keys='"id"')
    monkeypatch.setattr(sink, "MOST_UPSERTED", 100)
    with pytest.raises(UnsupportedError, match=r"use table.upsert\(df, ...\), in foreachBatch for a stream"):
        each.commit(each.tasks(arrow(*(row(number, "a") for number in range(100)))))
    with pytest.raises(UnsupportedError, match="rows of an upsert"):
        each.commit(each.tasks(*[arrow(row(number, "a")) for number in range(10)]))
    monkeypatch.setattr(sink, "MOST_UPSERTED", 1000)
    monkeypatch.setattr(arrow_reader, "ALONE_BYTES", 100)
    with pytest.raises(UnsupportedError, match=r"keys may be in files of more than .*: use table.upsert\(df, ...\)"):
        each.commit(each.tasks(arrow(row(1, "b"))))
    with pytest.raises(sm.ValidationError, match="two of the rows have the key"):
        each.commit(each.tasks(arrow(row(20, "b")), arrow(row(20, "b"))))


@pytest.mark.parametrize(
    ("options", "overwrite", "kind", "error"),
    [
        ({"path": "/nowhere"}, False, sm.NoSuchTableError, "/nowhere"),
        ({"path": ""}, False, InvalidArgumentError, "path is missing"),
        (
            {"brunch": "a"},
            False,
            InvalidArgumentError,
            "'brunch' is not an option of writes; options are path, catal",
        ),
        ({"mode": "merge"}, False, InvalidArgumentError, "mode is 'merge': expected append or upsert"),
        (
            {"overwrite-mode": "all"},
            True,
            InvalidArgumentError,
            "overwrite-mode is 'all': expected static or dynamic",
        ),
        ({"keys": "id"}, False, InvalidArgumentError, "keys is 'id', which is for the mode upsert"),
        ({"mode": "upsert"}, False, sm.ValidationError, "keys is missing, and the schema names"),
        ({"mode": "upsert", "keys": "id,ix"}, False, sm.ValidationError, "ix"),
        ({"mode": "upsert", "keys": "id"}, True, sm.ValidationError, "mode is upsert, .*: expected append"),
        ({"branch": "none"}, False, sm.ValidationError, "none"),
        ({"snapshot-property.operation": "x"}, False, sm.ValidationError, "property operation is computed"),
        ({"snapshot-id": "5"}, False, InvalidArgumentError, "'snapshot-id' is not an option of writes"),
    ],
)
def test_bad_options(
    catalog: sm.Catalog, options: dict[str, str], overwrite: bool, kind: type[SparkmetaError], error: str
) -> None:
    table = new_table(catalog).append(arrow(row(1, "a")))
    with pytest.raises(kind, match=error):
        Write(table, overwrite, **options)
    assert len(data_files(table)) == 1


def test_what_can_not_be_written_to(catalog: sm.Catalog) -> None:
    table = new_table(catalog)
    source = sm.DataSource({"path": table.metadata_location})
    with pytest.raises(UnsupportedError, match="was opened by its path"):
        source.writer(spark_schema(arrow().schema), False)
    flat = catalog.create_table("db.flat", SCHEMA)
    with pytest.raises(sm.ValidationError, match="overwrite-mode is dynamic, and the table has no partitions"):
        Write(flat, True, overwrite_mode="dynamic")
    with pytest.raises(sm.ValidationError, match="column ids is not in the table"):
        sm.DataSource({"path": flat.location()}).writer(spark_schema(pa.schema([("ids", pa.int64())])), False)
