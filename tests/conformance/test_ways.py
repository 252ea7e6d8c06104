"""The driver in Arrow, tasks in Python, and Spark's own sources make the same plans, metadata tables and rows."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta import Scan
from sparkmeta.arrow_types import arrow_schema
from sparkmeta.entries.relation import exploded
from sparkmeta.errors import NotFoundError, SparkmetaError, translated_errors
from sparkmeta.plan.files import plan_schema
from sparkmeta.rows.file_rows import METADATA_COLUMNS
from sparkmeta.service.rest_tasks import rest_tasks
from tests.conftest import configured
from tests.frames import local_frame
from tests.inspect.comparison import assert_same_rows, collected
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.java import METADATA_TABLES
from tests.peers.slices import SOAK, slice_of
from tests.rows.row_table import RowTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from sparkmeta.entries.relation import Relation

BYTES, READS = "spark.sparkmeta.driver-manifest-bytes", "spark.sparkmeta.executor-reads"
BY_TASKS, BY_SPARK = ({BYTES: "0", READS: reads} for reads in ("direct", "spark"))
FILTERS = 3
# The slice compares metadata tables of every so many of its tables, and those that other code makes.
EVERY_NTH = 1 if SOAK else 4
ONCE = ("entries", "files", "partitions", "all_files", "all_manifests", "position_deletes")
INSPECTED = METADATA_TABLES if SOAK else ONCE
BY_SOURCES = INSPECTED if SOAK else ("entries", "position_deletes")


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of(peers.names()))
def test_plans_are_the_same(name: str, corpus: peers.Corpus, spark: SparkSession) -> None:
    peer = corpus.table(name)

    def scans() -> list[Scan]:
        table = sm.load_table(peer.metadata_location, spark=spark)
        chosen = filters(peer, FILTERS)
        return [table.scan()] + [table.scan(each.expression, case_sensitive=each.case_sensitive) for each in chosen]

    expected = [planned(lambda scan: scan.arrow.plan_files(), scan) for scan in scans()]
    for settings in ({}, BY_TASKS, BY_SPARK):
        with configured(spark, settings):
            assert [planned(by_frame, scan) for scan in scans()] == expected


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of(peers.names()))
def test_tasks_are_the_same(name: str, corpus: peers.Corpus, spark: SparkSession) -> None:
    """Splits, their JSON for Iceberg's libraries and for the REST protocol, and reports."""
    peer = corpus.table(name)

    def tasks() -> list[Any]:
        scan = sm.load_table(peer.metadata_location, spark=spark).scan()
        with_stats = {"stats_fields": [field.name for field in scan.schema().fields[:2]], "null_partitions": False}
        ways: list[Callable[[Scan], pa.Table]] = [
            lambda scan: exploded(scan.arrow.plan_tasks(), "tasks"),
            lambda scan: scan.arrow.plan_task_json(),
            lambda scan: in_memory(rest_tasks(scan)),
            lambda scan: in_memory(rest_tasks(scan, **with_stats)),
        ]
        return [*(planned(way, scan) for way in ways), reported(scan)]

    expected = tasks()
    with configured(spark, BY_TASKS):
        assert tasks() == expected


def in_memory(rows: Relation) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    with translated_errors():
        return rows.toArrow()


def reported(scan: Scan) -> Any:
    try:
        report = scan.report().to_dict()
    except SparkmetaError as error:
        return type(error), str(error)
    return {name: value for name, value in report.items() if not name.endswith("_seconds") and name != "strategy"}


def by_frame(scan: Scan) -> pa.Table:
    frame = scan.plan_files()
    with translated_errors():
        rows = frame.toArrow()
    assert frame.schema.simpleString() == plan_schema(scan.state).simpleString()
    return rows


def planned(plan: Callable[[Scan], pa.Table], scan: Scan) -> Any:
    """Return the rows of a plan in the order of their text, or its error."""
    try:
        return sorted(plan(scan).to_pylist(), key=str)
    except SparkmetaError as error:
        return type(error), str(error)


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of(peers.names()))
def test_rows_are_the_same(name: str, corpus: peers.Corpus, spark: SparkSession) -> None:
    peer = corpus.table(name)
    table = sm.load_table(peer.metadata_location, spark=spark)
    chosen = [table.scan(each.expression, case_sensitive=each.case_sensitive) for each in filters(peer, FILTERS)]
    assert_same_scans([table.scan(), with_metadata_columns(table), *chosen])


@pytest.mark.parametrize("seed", range(60 if SOAK else 4))
def test_rows_of_random_tables(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    """Files of all formats in two partitions, with every kind of delete."""
    chance = Random(seed)
    rows = RowTable(tmp_path)
    parts, files, deletes = {}, [], []
    for number in range(chance.randint(1, 6)):
        part = chance.choice("xy")
        name = f"{number}.{chance.choice(['parquet', 'parquet', 'orc', 'avro'])}"
        files.append(
            rows.data(name, random_rows(chance, part), sequence=chance.randint(1, 3), partition={"part": part})
        )
        parts[name] = part
    for number, file in enumerate(files):
        count, of = file["data_file"]["record_count"], file["data_file"]["partition"]
        if count and chance.random() < 0.4:
            positions = sorted(chance.sample(range(count), chance.randint(1, count)))
            deletes.append(rows.vector(file, positions, sequence=4))
        elif count and chance.random() < 0.6:
            pairs = [(chance.choice([file, "file:///gone"]), chance.randrange(count)) for _ in range(3)]
            deletes.append(rows.positions(f"p{number}.parquet", *pairs, sequence=chance.randint(2, 4), partition=of))
        if chance.random() < 0.4:
            keys = random_rows(chance, of["part"]).select(["id", "ratio"])
            deletes.append(rows.keys(f"e{number}.parquet", keys, [1, 3], sequence=chance.randint(2, 4), partition=of))
    table = rows.add(0, 1, *files).add(1, 1, *deletes).load(spark) if deletes else rows.add(0, 1, *files).load(spark)
    chosen = chance.sample(
        ["id < 5", "id >= 3 and ratio is null", "ratio != 1.5", "part = 'x'", "part = 'y' or id in (1, 2)"], 2
    )
    assert_same_scans([table.scan(), with_metadata_columns(table), *map(table.scan, chosen)])


def random_rows(chance: Random, part: str) -> pa.Table:
    count = chance.choice([0, 1, 9, 200])
    ratios = [chance.choice([None, -0.0, 0.0, 1.5, float("nan")]) for _ in range(count)]
    ids = [chance.choice([None, *range(8)]) for _ in range(count)]
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "part": [part] * count, "ratio": pa.array(ratios, pa.float64())},
        pa.schema([("id", pa.int64()), ("part", pa.string()), ("ratio", pa.float64())]),
    )


def with_metadata_columns(table: sm.Table) -> Scan:
    """Return a scan of two columns and all metadata columns, with the deleted rows."""
    shown = [name for name in METADATA_COLUMNS if name != "_partition" or table.spec().fields]
    names = [field.name for field in table.schema().fields if field.name not in METADATA_COLUMNS]
    return table.scan(selected_fields=(*names[:2], *shown))


def assert_same_scans(scans: list[Scan]) -> None:
    """Compare what the driver reads and counts with what Spark does."""
    for scan in scans:
        rows, expected = (read(way, scan) for way in (Scan.to_arrow, rows_by_spark))
        assert rows == expected, scan
        if isinstance(rows, list) and "_deleted" not in scan.selected_fields:
            assert scan.count() == len(rows) - 1, scan


def rows_by_spark(scan: Scan) -> pa.Table:
    with translated_errors():
        return scan.to_df().toArrow()


def read(way: Callable[[Scan], pa.Table], scan: Scan) -> Any:
    """Return the columns and the rows, in the order of their text, or the error; only its kind for missing files."""
    try:
        rows = way(scan)
    except SparkmetaError as error:
        return type(error), None if isinstance(error, NotFoundError) else str(error)
    columns = [(field.name, field.type) for field in rows.schema]
    return [columns, *sorted(str(list(row.values())) for row in rows.to_pylist())]


# -- metadata tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", slice_of(peers.names())[::EVERY_NTH])
def test_metadata_tables_are_the_same(name: str, corpus: peers.Corpus, interpreted: SparkSession) -> None:
    location, spark = corpus.table(name).metadata_location, interpreted

    def inspect() -> sm.InspectTable:
        return sm.load_table(location, spark=spark).inspect

    by_driver = {kind: metadata_table(inspect(), kind) for kind in INSPECTED}
    tables = {kind: table for kind, table in by_driver.items() if not isinstance(table, tuple)}
    frames = {("driver", kind): local_frame(spark, table) for kind, table in tables.items()}
    for kind, table in tables.items():
        assert arrow_schema(getattr(inspect(), kind)().schema) == table.schema, kind
    for way, settings, kinds in (("tasks", BY_TASKS, INSPECTED), ("Spark", BY_SPARK, BY_SOURCES)):
        with configured(spark, settings):
            for kind in kinds:
                if way == "Spark" and kind.startswith("all_") and inspect()._state.has_trees:
                    continue
                if kind in tables:
                    frames[way, kind] = getattr(inspect(), kind)()
                    assert arrow_schema(frames[way, kind].schema) == tables[kind].schema, (way, kind)
                else:
                    assert metadata_table(inspect(), kind) == by_driver[kind]
    rows = collected(frames)
    for way, kind in frames:
        assert_same_rows(rows["driver", kind], rows[way, kind], f"{name}.{kind} by {way}")


def metadata_table(inspect: sm.InspectTable, kind: str) -> Any:
    """Return a metadata table, or its error."""
    try:
        return getattr(inspect.arrow, kind)()
    except SparkmetaError as error:
        return type(error), str(error)
