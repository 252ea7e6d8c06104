"""Plans as scan tasks of the REST protocol: what pyiceberg's models of the protocol read of them."""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter
from pyiceberg import expressions as e
from pyiceberg.catalog.rest.scan_planning import RESTDeleteFile, RESTFileScanTask
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import NestedField, UUIDType

import sparkmeta as sm
from sparkmeta.errors import translated_errors
from sparkmeta.expr.predicate_terms import TransformedColumn
from sparkmeta.service.rest_tasks import to_rest_tasks
from tests.conftest import configured
from tests.handmade import (
    BY_DAY_AND_BUCKET,
    BY_PART,
    BY_RATIO,
    COLUMNS,
    HandmadeTable,
    data,
    deletion_vector,
    equality_deletes,
    position_deletes,
)
from tests.small_table import write_small_table

if TYPE_CHECKING:
    from pyiceberg.table import Table as PyIcebergTable
    from pyspark.sql import SparkSession

DAYS = (-2, -1, 0, 1, 20_000, None)
TIME = {"id": 4, "name": "ts", "required": False, "type": "timestamp"}
DELETES = TypeAdapter(RESTDeleteFile)


def tasks(scan: Any, **options: Any) -> list[tuple[RESTFileScanTask, list[Any], int]]:
    """The tasks of a scan, by path, as pyiceberg's models, with their deletes and the rows that match for sure."""
    rows = to_rest_tasks(scan, **options).collect()
    parsed = [
        (
            RESTFileScanTask.model_validate(_known(row.task)),
            [*map(DELETES.validate_json, row.delete_files)],
            row.sure_rows,
        )
        for row in rows
    ]
    return sorted(parsed, key=lambda each: each[0].data_file.file_path)


def _known(task: str) -> dict[str, Any]:
    """Return a task without a residual of transforms, which pyiceberg does not support."""
    parsed: dict[str, Any] = json.loads(task)
    if '"transform"' in json.dumps(parsed["residual-filter"]):
        del parsed["residual-filter"]
    return parsed


@pytest.fixture(scope="module")
def by_day(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> sm.Table:
    """A file in each of four buckets for each of `DAYS`, and a file of a spec without fields."""
    handmade = HandmadeTable(
        tmp_path_factory.mktemp("by-day"),
        specs=((), BY_PART, BY_RATIO, BY_DAY_AND_BUCKET),
        schemas=((*COLUMNS, TIME),),
    )
    places = [{"ts_day": day, "id_bucket": bucket} for day in DAYS for bucket in range(4)]
    files = [data(f"file:///t/{number}.parquet", partition=place) for number, place in enumerate(places)]
    handmade.add(0, 3, *files).add(0, 0, data("file:///t/other.parquet"))
    return sm.load_table(handmade.write(), spark=spark)


@pytest.mark.parametrize(
    ("predicate", "two_valued", "holds"),
    [
        (e.EqualTo, False, lambda day, value: day == value),
        (e.NotEqualTo, False, lambda day, value: day is not None and day != value),
        (e.NotEqualTo, True, lambda day, value: day != value),
        (e.LessThan, False, lambda day, value: day is not None and day < value),
        (e.GreaterThanOrEqual, False, lambda day, value: day is not None and day >= value),
    ],
)
@pytest.mark.parametrize("value", [-1, 1])
def test_transforms_select_partitions_exactly(by_day: sm.Table, predicate, two_valued, holds, value):
    scan = by_day.scan(predicate(TransformedColumn(DayTransform(), "ts"), value))
    scan = replace(scan, two_valued=two_valued)
    planned = tasks(scan, null_partitions=False)
    partitioned = [task.data_file.file_path for task, _, _ in planned if task.data_file.spec_id == 3]
    wanted = [place for place, day in enumerate(DAYS) if holds(day, value)]
    assert sorted(partitioned) == sorted(
        f"file:///t/{4 * place + bucket}.parquet" for place in wanted for bucket in range(4)
    )
    (other,) = [row.task for row in to_rest_tasks(scan).collect() if "other.parquet" in row.task]
    residual = json.loads(other)["residual-filter"]
    leaves = [residual] if "term" in residual else [residual["left"], residual["right"]]
    assert len(leaves) == (2 if predicate is e.NotEqualTo and not two_valued else 1)
    assert all(leaf["term"] == {"type": "transform", "transform": "day", "term": "ts"} for leaf in leaves)
    assert all(sure == (task.data_file.record_count if task.data_file.spec_id else 0) for task, _, sure in planned)


def test_transforms_with_other_predicates(by_day: sm.Table):
    bucket = e.In(TransformedColumn(BucketTransform(4), "id"), {0, 1, 2})
    other_width = e.EqualTo(TransformedColumn(BucketTransform(8), "id"), 0)
    last_day = e.EqualTo(TransformedColumn(DayTransform(), "ts"), 20_000)
    count = len(DAYS)
    for row_filter, files in (
        (bucket, 3 * count),
        (e.Not(bucket), count),
        (other_width, 4 * count),
        (e.And(bucket, last_day), 3),
        (e.Or(e.Not(bucket), last_day), count + 3),
        (e.And(bucket, e.StartsWith("part", "x")), 3 * count),
    ):
        assert len(tasks(by_day.scan(row_filter), null_partitions=False)) == files + 1, row_filter
    for read in (sm.Scan.to_df, sm.Scan.count):
        with pytest.raises(sm.UnsupportedError, match="select files to plan, not rows"):
            read(by_day.scan(bucket))


def test_null_in_a_partition(by_day: sm.Table):
    scan = by_day.scan(e.IsNull(TransformedColumn(DayTransform(), "ts")))
    partitions = [json.loads(row.task)["data-file"]["partition"] for row in to_rest_tasks(scan).collect()]
    assert sorted(partitions) == [[], [None, 0], [None, 1], [None, 2], [None, 3]]
    assert all(task.data_file.partition == [] for task, _, _ in tasks(scan, null_partitions=False))


def test_tasks_of_all_kinds_of_deletes(spark: SparkSession, tmp_path: Path):
    a, b = "file:///t/a.parquet", "file:///t/b.parquet"
    handmade = HandmadeTable(tmp_path)
    handmade.add(0, 1, data(a, partition={"part": 'x"y'}), data(b, partition={"part": None}))
    handmade.add(1, 1, deletion_vector(a, partition={"part": 'x"y'}))
    handmade.add(1, 0, equality_deletes("file:///t/e.parquet", 3))
    handmade.add(1, 1, position_deletes("file:///t/p.parquet", 3, partition={"part": None}))
    table = sm.load_table(handmade.write(), spark=spark)
    plan = {row.file_path: row for row in table.scan().plan_files().collect()}
    by_path = {
        task.data_file.file_path: (task, deletes, sure)
        for task, deletes, sure in tasks(table.scan(), null_partitions=False)
    }
    assert set(by_path) == set(plan) == {a, b}
    for path, (task, deletes, sure) in by_path.items():
        row, file = plan[path], task.data_file
        assert (file.record_count, file.file_size_in_bytes) == (row.record_count, row.file_size_in_bytes)
        assert (file.spec_id, file.first_row_id, file.sort_order_id) == (
            row.spec_id,
            row.first_row_id,
            row.sort_order_id,
        )
        assert (file.file_format, file.split_offsets) == (row.file_format, row.split_offsets)
        shown = [(d.file_path, d.record_count, d.file_size_in_bytes) for d in deletes]
        assert shown == [(d.file_path, d.record_count, d.file_size_in_bytes) for d in row.deletes]
        assert sure == 0
    assert by_path[a][0].data_file.partition == ['x"y']
    assert by_path[b][0].data_file.partition == []
    equality, vector = by_path[a][1]
    assert (equality.content, equality.equality_ids) == ("equality-deletes", [1])
    place = (vector.referenced_data_file, vector.content_offset, vector.content_size_in_bytes, vector.file_format)
    assert place == (a, 4, 40, "PUFFIN")
    assert by_path[b][1][1].content == "position-deletes"


def test_residuals_have_no_infinities(spark: SparkSession, tmp_path: Path):
    """Java reads infinities as text. A residual that is true for this reason proves no row."""
    handmade = HandmadeTable(tmp_path)
    handmade.add(0, 1, data("file:///t/a.parquet", partition={"part": "x"}))
    location = handmade.write()
    table = sm.load_table(location, spark=spark)
    finite = {"type": "gt", "term": "id", "value": 3}
    infinite = e.LessThan("ratio", math.inf)
    for row_filter, residual in (
        (infinite, True),
        (e.And(infinite, e.GreaterThan("id", 3)), finite),
        (e.Or(e.In("ratio", {1.0, -math.inf}), e.GreaterThan("id", 3)), True),
        (e.And(e.EqualTo("part", "x"), e.Not(infinite)), True),
    ):
        (row,) = to_rest_tasks(table.scan(row_filter)).collect()
        assert (json.loads(row.task)["residual-filter"], row.sure_rows) == (residual, 0), row_filter
    (row,) = to_rest_tasks(table.scan(e.EqualTo("part", "x"))).collect()
    assert row.sure_rows > 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_partitions_that_json_lacks_are_refused(spark: SparkSession, tmp_path: Path, value: float):
    handmade = HandmadeTable(tmp_path)
    handmade.add(0, 2, *(data(f"file:///t/{part}.parquet", partition={"ratio": part}) for part in (1.5, -0.0, value)))
    location = handmade.write()
    table = sm.load_table(location, spark=spark)
    finite = [task.data_file.partition for task, _, _ in tasks(table.scan("ratio < 2 and ratio > -1"))]
    assert sorted(map(str, finite)) == ["[-0.0]", "[1.5]"]
    shown = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    for size in ("1g", "1"):
        with (
            configured(spark, {"spark.sparkmeta.driver-manifest-bytes": size}),
            pytest.raises(sm.ValidationError, match=f"can't express partition field ratio of {shown}"),
            translated_errors(),
        ):
            to_rest_tasks(sm.load_table(location, spark=spark).scan()).collect()


def test_plans_that_are_refused(spark: SparkSession, tmp_path: Path):
    keys = {"encryption-keys": [{"key-id": "k", "encrypted-key-metadata": "AAAA"}]}
    for encryption in (keys, {"properties": {"encryption.key-id": "k"}}):
        location = HandmadeTable(tmp_path / "encrypted").add(0, 0, data("file:///t/a")).write()
        path = Path(location.removeprefix("file://"))
        path.write_text(json.dumps(json.loads(path.read_text()) | encryption))
        with pytest.raises(sm.UnsupportedError, match=r"can't express the keys of encrypted tables$"):
            to_rest_tasks(sm.load_table(location, spark=spark).scan())
    shuffled = ({"source-id": 1, "field-id": 1002, "name": "s", "transform": "shuffle[3]"},)
    unknown = HandmadeTable(tmp_path / "unknown", specs=((), shuffled)).add(0, 0, data("file:///t/a"))
    with pytest.raises(sm.UnsupportedError, match="unknown transforms: partition field s of spec 1"):
        to_rest_tasks(sm.load_table(unknown.write(), spark=spark).scan())
    catalog = SqlCatalog("u", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "u"))
    by_uuid = catalog.create_table("db.u", Schema(NestedField(1, "u", UUIDType())), partition_spec=spec)
    table = sm.load_table(by_uuid.metadata_location, spark=spark)
    assert not to_rest_tasks(table.scan(e.EqualTo("u", uuid.UUID(int=7)))).collect()
    with pytest.raises(sm.UnsupportedError, match="partition column u, is different in different engines"):
        to_rest_tasks(table.scan(e.LessThan("u", uuid.UUID(int=7))))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> PyIcebergTable:
    return write_small_table(tmp_path_factory.mktemp("small"))


def test_appended_files(spark: SparkSession, small: PyIcebergTable):
    first, second, last = (snapshot.snapshot_id for snapshot in small.snapshots())
    table = sm.load_table(small.metadata_location, spark=spark)
    added = tasks(table.incremental(first, last))
    assert [(task.data_file.record_count, deletes, sure) for task, deletes, sure in added] == [(5, [], 5)] * 4
    assert len(tasks(table.incremental(second, last).filter("country = 'NO'"))) == 1
    assert not tasks(table.incremental(last, last))
    assert not tasks(table.incremental(first, last).filter("id = 7"))


def test_by_the_schema_of_the_table_or_of_the_snapshot(spark: SparkSession, small: PyIcebergTable):
    first = small.snapshots()[0].snapshot_id
    with small.update_schema() as update:
        update.rename_column("note", "renamed")
    scan = sm.load_table(small.metadata_location, spark=spark).scan("renamed = 'b'", snapshot_id=first)
    with pytest.raises(sm.InvalidFilterError, match="no column 'renamed'"):
        to_rest_tasks(scan)
    assert not to_rest_tasks(scan.with_table_schema()).collect()
    assert scan.with_table_schema().with_table_schema(False).schema() == scan.schema()


def test_most_files(spark: SparkSession, small: PyIcebergTable):
    table = sm.load_table(small.metadata_location, spark=spark)
    assert table.scan().plan.most_files() == 6
    assert table.scan(e.AlwaysFalse()).plan.most_files() == 0
