"""Trees of another library, whose statistics are named and placed as in the proposal's other example (8.2-20 b)."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, TimestampType

import sparkmeta as sm
from sparkmeta.manifests.v4.tree_manifests import FOREIGN_KEY
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from tests.frames import local_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "ratio", DoubleType()), NestedField(3, "ts", TimestampType())
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "ratio"),
    PartitionField(3, 1001, DayTransform(), "ts_day"),
    PartitionField(1, 1002, BucketTransform(4), "b"),
)
TUPLE = pa.struct([("ratio", pa.float64()), ("ts_day", pa.int32()), ("b", pa.int32())])
# Expression -> its source column, and what the example calls it.
MOVED = {"5": ("3", "partition_1001_ts_day"), "6": ("1", "partition_1002_b")}
RENAMED = {"null_value_count": "null_count", "nan_value_count": "nan_count"}
ID = b"PARQUET:field_id"
STATS_ID, STRUCT_IDS = b"149", {"1": b"10200", "2": b"10400", "3": b"10600"}


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> sm.Table:
    """Two leaves, and a file in the root."""
    catalog = sm.load_catalog("foreign", type="hadoop", warehouse=f"file://{tmp_path}")
    properties = {"write.tree.direct-files": "1"}
    table = catalog.create_table("ns.t", SCHEMA, SPEC, properties=properties, format_version=4)
    assert [expression.expr_id for expression in table.metadata.expressions] == [4, 5, 6]  # type: ignore[union-attr]
    days = [[(0.5, 1, 0), (float("nan"), 2, 1), (None, None, 3)], [(0.5, 7, 2), (1.5, 8, None)], [(2.5, 9, 1)]]
    for number, values in enumerate(days):
        table = append(table, files(spark, f"f{number}", values))
    return table


def files(spark: SparkSession, name: str, values: list[tuple[Any, ...]]) -> DataFrame:
    tuples = pa.array([dict(zip(("ratio", "ts_day", "b"), value, strict=True)) for value in values], TUPLE)
    count = len(values)
    columns = {
        "file_path": [f"x:{name}-{place}" for place in range(count)],
        "file_format": ["PARQUET"] * count,
        "record_count": [10] * count,
        "file_size_in_bytes": [100] * count,
        "partition": tuples,
    }
    return local_frame(spark, pa.table(columns))


def append(table: sm.Table, added: DataFrame) -> sm.Table:
    with table.transaction() as tx:
        tx.update_snapshot().append(added)
    return table.refresh()


# -- the other layout -----------------------------------------------------------------------------------------------


def make_foreign(table: sm.Table) -> sm.Table:
    """The same table as another library would have written it: its newest root, and the leaves of that."""
    tree = table.state.tree
    assert tree is not None
    leaves = tree.root.leaves.column("location").to_pylist()
    for location in [tree.root.location, *leaves]:
        path = Path(location.removeprefix("file://"))
        path.write_bytes(foreign(path.read_bytes(), is_root=location == tree.root.location))
    return sm.load_table(table.location(), spark=table.state.spark)


def foreign(data: bytes, *, is_root: bool) -> bytes:
    file = pq.ParquetFile(pa.BufferReader(data))
    rows = file.read()
    place = next(i for i, field in enumerate(rows.schema) if field.metadata[ID] == STATS_ID)
    stats = rows.column(place).combine_chunks()
    columns = {field.name: children_of(values) for field, values in zip(stats.type, stats.flatten(), strict=True)}
    present = {field.name: values.is_valid() for field, values in zip(stats.type, stats.flatten(), strict=True)}
    for expression, (source, name) in MOVED.items():
        children = columns.pop(expression)
        lower, upper = children["lower_bound"], children.get("upper_bound", children["lower_bound"])
        moved_values = {f"{name}_lower_bound": lower, f"{name}_upper_bound": upper} if is_root else {name: lower}
        columns[source] = columns.get(source, {}) | moved_values
        present[source] = pc.or_(present.get(source, pa.repeat(False, len(rows))), present[expression])
    fields, arrays = [], []
    for number, (name, children) in enumerate(sorted(columns.items())):
        names = [RENAMED.get(child, child) for child in children]
        struct = pa.StructArray.from_arrays([*children.values()], names=names, mask=pc.invert(present[name]))
        # Children have no ids; every other struct is known by its name alone.
        fields.append(pa.field(name, struct.type, metadata={ID: STRUCT_IDS[name]} if number % 2 else None))
        arrays.append(struct)
    moved = pa.StructArray.from_arrays(arrays, fields=fields, mask=stats.is_null())
    field = pa.field("content_stats", moved.type, metadata={ID: STATS_ID})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema.set(place, field), store_schema=False) as writer:
        writer.write_table(rows.set_column(place, field, moved))
        metadata = file.metadata.metadata
        writer.add_key_value_metadata({key: metadata[key] for key in (b"content", b"format-version")})
    return sink.getvalue()


def children_of(values: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((field.name for field in values.type), values.flatten(), strict=True))


# -- tests ----------------------------------------------------------------------------------------------------------

# How many files each leaves.
FILTERS = {
    "true": 6,
    "ts >= '1970-01-08'": 3,
    "ts < '1970-01-03'": 1,
    "ratio is nan": 1,
    "ratio is null": 1,
    "ratio = 0.5": 2,
    "id = 5": None,
    "ts is null": 1,
}


@pytest.fixture(params=["here", "tasks", "spark"])
def read_by(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    settings = {"here": {}, "tasks": {"driver-manifest-bytes": "0"}, "spark": {"executor-reads": "spark"}}
    for name, value in settings[request.param].items():
        spark.conf.set(f"spark.sparkmeta.{name}", value)
    yield
    for name in settings[request.param]:
        spark.conf.unset(f"spark.sparkmeta.{name}")


def plan(table: sm.Table, row_filter: str) -> list[str]:
    rows = table.scan(row_filter).plan_files().select("file_path", "partition", "first_row_id").collect()
    return sorted(map(str, rows))


def plans(table: sm.Table) -> dict[str, list[str]]:
    return {row_filter: plan(table, row_filter) for row_filter in FILTERS}


@pytest.mark.usefixtures("read_by")
def test_a_foreign_tree_is_planned_alike(table: sm.Table) -> None:
    expected = plans(table)
    assert {row_filter: len(expected[row_filter]) for row_filter, count in FILTERS.items() if count} == {
        row_filter: count for row_filter, count in FILTERS.items() if count
    }
    report = table.scan("ts >= '1970-01-08'").report()
    theirs = make_foreign(table)
    assert plans(theirs) == expected
    assert theirs.scan("ts >= '1970-01-08'").report().data_manifests.scanned == report.data_manifests.scanned
    assert theirs.inspect.files().count() == 6


def test_commits_carry_foreign_leaves_on(table: sm.Table, spark: SparkSession) -> None:
    """Our next roots name them, since Spark can't read their statistics by the names of ours."""
    theirs = append(make_foreign(table), files(spark, "new", [(0.5, 20, 1), (None, 21, 2)]))
    with theirs.transaction() as tx:
        tx.update_snapshot().delete(theirs.scan("ts >= '1970-01-08' and ts < '1970-01-09'").plan_files())
    theirs = theirs.refresh()
    assert theirs.state.tree is not None
    assert theirs.state.tree.root.properties[FOREIGN_KEY] == "3"
    days = {row["file_path"]: row["partition"]["ts_day"] for row in theirs.scan().plan_files().collect()}
    assert sorted(days) == ["x:f0-0", "x:f0-1", "x:f0-2", "x:f1-1", "x:f2-0", "x:new-0", "x:new-1"]
    assert [name for name, day in days.items() if day is None] == ["x:f0-2"]
    assert [line for line in plan(theirs, "ratio is nan") if "f0-1" not in line] == []
    assert theirs.check().collect() == []
    compacted = theirs.maintenance.compact_manifests(min_masked_ratio=0.01).commit()
    assert plans(compacted) == plans(theirs)


def test_our_trees_have_no_foreign_leaves(table: sm.Table) -> None:
    tree = table.state.tree
    assert tree is not None
    assert FOREIGN_KEY not in tree.root.properties
    assert not pc.any(tree.is_foreign(table.state.manifests)).as_py()


# -- Compaction -------------------------------------------------------------------------------------------------------


def mask_rows(table: sm.Table, folder: Path, name: str, *paths: str) -> sm.Table:
    """Add a deletion vector for the first row of each file."""
    spark = table.state.spark
    bitmap = PositionBitmap.of([0])
    written = write_puffin([deletion_vector_blob(write_deletion_vector(bitmap), path, 1) for path in paths])
    (folder / name).write_bytes(written.data)
    tuples = "struct(partition.ratio, unix_date(partition.ts_day) AS ts_day, partition.b) AS tuple"
    listed = table.inspect.files().selectExpr("file_path", tuples).collect()
    partitions = {row["file_path"]: row["tuple"].asDict() for row in listed}
    rows = pa.table(
        {
            "content": pa.array([1] * len(paths), pa.int32()),
            "file_path": [str(folder / name)] * len(paths),
            "file_format": ["PUFFIN"] * len(paths),
            "record_count": [1] * len(paths),
            "file_size_in_bytes": [len(written.data)] * len(paths),
            "partition": pa.array([partitions[path] for path in paths], TUPLE),
            "referenced_data_file": [*paths],
            "content_offset": [blob.offset for blob in written.blobs],
            "content_size_in_bytes": [blob.length for blob in written.blobs],
        }
    )
    with table.transaction() as tx:
        tx.update_snapshot().row_delta(deletes=local_frame(spark, rows))
    return table.refresh()


def planned(table: sm.Table, row_filter: str) -> list[str]:
    """Return the planned files with their deletes and statistics, wherever their entries are."""
    columns = "file_path", "partition", "first_row_id", "data_sequence_number", "record_count"
    deletes = "transform(deletes, d -> struct(d.file_path, d.content_offset, d.data_sequence_number)) AS deletes"
    return sorted(map(str, table.scan(row_filter).plan_files().selectExpr(*columns, deletes).collect()))


def foreign_leaves(table: sm.Table) -> list[str]:
    tree = table.state.tree
    assert tree is not None
    manifests = table.state.manifests
    locations: list[str] = manifests.filter(tree.is_foreign(manifests)).column("location").to_pylist()
    return locations


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("affiliated", ["1", "100"])
def test_compaction_replaces_foreign_leaves(
    is_ordered: bool, affiliated: str, table: sm.Table, spark: SparkSession, tmp_path: Path
) -> None:
    """Afterwards, Spark reads all leaves, and an expiry removes the old ones."""
    with table.transaction() as tx:
        tx.set_properties({"write.tree.affiliated-deletes": affiliated})
    table = mask_rows(table.refresh(), tmp_path, "a.puffin", "x:f0-0", "x:f0-2", "x:f1-1")
    theirs = make_foreign(table)
    if not is_ordered:  # A foreign root, and one of ours that names foreign leaves.
        theirs = append(theirs, files(spark, "new", [(0.5, 20, 1), (None, 21, 2)]))
        with theirs.transaction() as tx:
            tx.update_snapshot().delete(theirs.scan("ts >= '1970-01-08' and ts < '1970-01-09'").plan_files())
        theirs = mask_rows(theirs.refresh(), tmp_path, "b.puffin", "x:f0-1", "x:new-0")
    before, old_leaves = {row_filter: planned(theirs, row_filter) for row_filter in FILTERS}, foreign_leaves(theirs)
    assert len(old_leaves) >= 3
    options: dict[str, Any] = {"max_root_files": 0}
    if is_ordered:
        options |= {"cluster_by": ["ts_day"], "max_overlap": 0, "target_leaf_bytes": 4_000}
    plan = theirs.maintenance.compact_manifests(**options)
    assert plan.summary().converted_leaves == len(old_leaves)
    text = f"{len(old_leaves)} leaves have the layout of versions 1 to 3 or of another library and get the tree's"
    assert text in str(plan.summary())
    compacted = plan.commit()
    assert foreign_leaves(compacted) == []
    assert {row_filter: planned(compacted, row_filter) for row_filter in FILTERS} == before
    assert compacted.check().collect() == []
    again = compacted.maintenance.compact_manifests(**options).summary()
    assert again.converted_leaves == 0
    listed = {row["path"] for row in compacted.inspect.manifests().collect()}
    assert not listed.intersection(old_leaves)
    expiry = compacted.maintenance.expire_snapshots(older_than=dt.datetime.now(dt.UTC), retain_last=1)
    assert {row["file_path"] for row in expiry.to_df().collect()} >= {*old_leaves}


def test_only_foreign_leaves_that_a_filter_may_match(table: sm.Table) -> None:
    theirs = make_foreign(table)
    filtered = theirs.maintenance.compact_manifests("ts >= '1970-01-08'", max_root_files=0).commit()
    assert len(foreign_leaves(filtered)) == 1
    assert plans(filtered) == plans(theirs)
    everything = filtered.maintenance.compact_manifests().commit()
    assert foreign_leaves(everything) == []
    assert plans(everything) == plans(theirs)
