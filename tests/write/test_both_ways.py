"""Changes of rows in memory on the driver write the same table as changes of DataFrames by Spark."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import sparkmeta as sm
from sparkmeta.entries.projection import FILE_COLUMNS
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import uuid_bytes, uuid_texts, whole
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.expr.transforms import partition_value
from sparkmeta.session import SessionSource
from sparkmeta.spec.entry import METRICS_MAP_IDS
from sparkmeta.write.delete_tasks import read_masks
from sparkmeta.write.few_rows import transformed
from tests.conftest import configured
from tests.frames import local_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import SnapshotUpdate, Table

BY_SPARK = {"spark.sparkmeta.driver-manifest-bytes": "0"}


def schema(version: int) -> Schema:
    """Return a schema, with defaults if the format version supports them."""
    default = {"write_default": "new", "initial_default": "new"} if version >= 3 else {}
    address = StructType(
        NestedField(10, "zip", StringType()),
        NestedField(11, "lines", ListType(12, StringType(), element_required=False)),
        NestedField(13, "country", StringType(), **default),
    )
    return Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "day", DateType()),
        NestedField(3, "name", StringType()),
        NestedField(4, "price", DecimalType(9, 2)),
        NestedField(5, "ratio", DoubleType()),
        NestedField(6, "at", TimestamptzType()),
        NestedField(7, "key", UUIDType()),
        NestedField(8, "address", address),
        NestedField(9, "kind", StringType(), **default),
    )


SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "day"), PartitionField(3, 1001, TruncateTransform(1), "initial")
)
ASC, DESC = SortDirection.ASC, SortDirection.DESC
FIRST_NULLS, LAST_NULLS = NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST
ORDER = SortOrder(
    SortField(source_id=5, transform=IdentityTransform(), direction=DESC, null_order=LAST_NULLS),
    SortField(source_id=1, transform=BucketTransform(3), direction=ASC, null_order=FIRST_NULLS),
    SortField(source_id=1, transform=IdentityTransform(), direction=ASC, null_order=FIRST_NULLS),
)


def rows(seed: int, ids: range) -> pa.Table:
    rng = random.Random(seed)
    kinds = {
        "id": pa.int64(), "day": pa.date32(), "name": pa.large_string(), "price": pa.decimal128(8, 2),
        "ratio": pa.float64(), "at": pa.timestamp("ns", "Europe/Oslo"), "key": pa.uuid(),
    }  # fmt: skip
    values: dict[str, list[Any]] = {
        "id": [*ids],
        "day": [date(2026, 1, 1 + number % 3) for number in ids],
        "name": [rng.choice(["ada", "åse", "bo", None]) for _ in ids],
        "price": [rng.choice([None, Decimal(rng.randrange(10**6)) / 100]) for _ in ids],
        "ratio": [rng.choice([None, float("nan"), -0.0, rng.random()]) for _ in ids],
        "at": [datetime.fromtimestamp(rng.randrange(-(10**9), 10**9), UTC) for _ in ids],
        "key": [uuid.UUID(int=rng.getrandbits(128)).bytes for _ in ids],
    }
    address = [{"zip": str(number), "lines": ["a", None][: number % 3]} if number % 4 else None for number in ids]
    columns = {name: pa.array(values[name], kind) for name, kind in kinds.items()}
    return pa.table({**columns, "address": pa.array(address)})


def some(names: str, ids: range, kind: str) -> pa.Table:
    """Return rows of fewer columns, in another order."""
    day = [date(2026, 1, 1 + number % 3) for number in ids]
    return pa.table({"kind": [kind] * len(ids), "name": [*names], "id": pa.array([*ids], pa.int32()), "day": day})


FIRST, SECOND = rows(1, range(40)), rows(2, range(40, 60))
MODES = tuple(f"write.{command}.mode" for command in ("delete", "merge"))
CHANGES: dict[str, Callable[[Table, Callable[[pa.Table], Any]], Table]] = {
    "append": lambda table, given: table.append(given(FIRST)),
    "append of some columns": lambda table, given: table.append(given(some("ab", range(60, 62), "short"))),
    "delete of whole files": lambda table, _: table.delete("day = '2026-01-03' and name = 'bo'"),
    "delete of rows": lambda table, _: table.delete("id in (1, 2, 5, 30) or ratio < 0.1"),
    "another delete of rows": lambda table, _: table.delete("price > 5000.5 and id < 20 and at is not null"),
    "delete of keys": lambda table, given: table.equality_delete(given(FIRST.slice(13, 3)), ["id", "address.zip"]),
    "overwrite of rows": lambda table, given: table.overwrite(given(SECOND), "id >= 20 and id <= 30"),
    "overwrite of files": lambda table, given: table.overwrite(given(SECOND.slice(2, 6)), "day = '2026-01-02'"),
    "overwrite of partitions": lambda table, given: table.dynamic_partition_overwrite(given(SECOND.slice(0, 3))),
    "upsert": lambda table, given: table.upsert(given(rows(3, range(50, 64))), ["id"]),
    "upsert of some columns": lambda table, given: table.upsert(given(some("cå", range(4, 6), "other")), ["id", "day"]),
    "delete of nothing": lambda table, _: table.delete("id = 1000"),
    "append of files": lambda table, given: files(table, lambda update: update.append(given(others(table, "ab")))),
    "delete of files": lambda table, given: files(table, lambda update: update.delete(given(planned(table, 3)))),
    "replacement of partitions": lambda table, given: files(
        table, lambda update: update.replace_partitions(given(others(table, "c")))
    ),
    "replacement of files": lambda table, given: files(
        table, lambda update: update.overwrite(given(others(table, "d")), given(planned(table, 2)))
    ),
    "delete of everything": lambda table, _: table.delete(),
}


def files(table: Table, change: Callable[[SnapshotUpdate], object]) -> Table:
    with table.transaction() as transaction:
        change(transaction.update_snapshot())
    return table.refresh()


def planned(table: Table, count: int) -> pa.Table:
    """Return some files of a plan. Tables with equal files give the same ones."""
    plan = table.scan().arrow.plan_files().drop_columns(["deletes"])
    order = sorted(range(len(plan)), key=lambda place: str(_rows(plan.column("file_path")[place].as_py())))
    return plan.take(pa.array(order[:count]))


def others(table: Table, names: str) -> pa.Table:
    """Return descriptions of other files in the partition of the first rows."""
    partition = pa.array([{"day": date(2026, 1, 1), "initial": "a"}] * len(names))
    return pa.table(
        {
            "file_path": [f"{table.location()}/data/{name}.parquet" for name in names],
            "file_format": ["PARQUET"] * len(names),
            "partition": partition,
            "record_count": [*range(1, len(names) + 1)],
            "file_size_in_bytes": [100] * len(names),
        }
    )


@pytest.mark.parametrize(
    ("version", "mode"),
    [(2, "merge-on-read"), (3, "copy-on-write"), (4, "merge-on-read")],
)
def test_changes(version: int, mode: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = sm.load_catalog("lake", type="hadoop", warehouse=str(tmp_path), spark=spark)
    lake.create_namespace("db")
    properties = dict.fromkeys(MODES, mode) | {"write.distribution-mode": "hash"}
    names = ("spark", "driver")
    layout = (schema(version), SPEC, ORDER, properties)
    by_spark, on_driver = (lake.create_table(f"db.{name}", *layout, format_version=version) for name in names)
    for name, change in CHANGES.items():
        with configured(spark, BY_SPARK):
            by_spark = change(by_spark, lambda rows: frame(spark, rows))
        with monkeypatch.context() as patch:
            patch.setattr(SessionSource, "get", _refuse)
            on_driver = change(on_driver, lambda rows: rows)
        expected, actual = described(by_spark), described(on_driver)
        for part, value in expected.items():
            assert actual[part] == value, (name, part)
    assert len(by_spark.snapshots()) == len(CHANGES) - 1


def _refuse(_: SessionSource) -> SparkSession:
    raise AssertionError("a session is asked for")


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return the rows as a DataFrame of one task."""
    supported = {"name": pa.string(), "at": pa.timestamp("us", "UTC"), "key": pa.binary()}
    for index, name in enumerate(table.column_names):
        if name in supported:
            column = table.column(name)
            stored = pa.chunked_array([chunk.storage for chunk in column.chunks]) if name == "key" else column
            table = table.set_column(index, name, stored.cast(supported[name]))
    return local_frame(spark, table).coalesce(1)


def described(table: Table) -> dict[str, Any]:
    """Return a table's metadata, manifests and files, without ids, names, times and sizes."""
    state, parts = table.state, (table.schemas(), table.specs(), table.properties, table.last_sequence_number)
    snapshots = {snapshot.snapshot_id: number for number, snapshot in enumerate(table.snapshots())}
    read = state.reader.driver_table(state.manifests, state.projection((*FILE_COLUMNS, *METRICS_MAP_IDS)))
    assert read is not None
    entries = read.drop_columns(["manifest", "ordinal"]).to_pylist()
    contents = {entry["location"]: _rows(entry["location"]) for entry in entries if entry["content_type"] == 0}
    manifests = state.manifests.drop_columns(["manifest"]).to_pylist()
    return {
        "metadata": [*map(str, parts)],
        "summaries": [_summary(snapshot) for snapshot in table.snapshots()],
        "row ids": [(snapshot.first_row_id, snapshot.added_rows) for snapshot in table.metadata.snapshots],
        "manifests": sorted(str(_comparable(row, snapshots, {})) for row in manifests),
        "entries": sorted(str(_comparable(row, snapshots, contents)) for row in entries),
        "deleted": _deleted(table, contents),
    }


def _summary(snapshot: Any) -> dict[str, str]:
    known = snapshot.summary.additional_properties | {"operation": str(snapshot.summary.operation)}
    return {name: value for name, value in known.items() if "size" not in name}


def _rows(location: str) -> str:
    """Return the rows of a data file in their order, with row ids only as null or not.

    A row's id depends on the order of files in a manifest.
    """
    path = location.removeprefix("file://")
    if not Path(path).exists():
        return Path(path).name
    rows = pq.read_table(path).to_pylist()
    return str([row | ({"_row_id": row["_row_id"] is None} if "_row_id" in row else {}) for row in rows])


def _deleted(table: Table, contents: dict[str, str]) -> list[str]:
    """Return the positions that are deleted in each file."""
    state = table.state
    deleted = []
    for row in table.scan().arrow.plan_files().to_pylist():
        for delete in row["deletes"]:
            if delete["content"] == 2:  # of keys
                deleted.append(f"{contents[row['file_path']]} {_rows(delete['file_path'])}")
                continue
            vector = [
                {
                    "referenced_file": row["file_path"],
                    "offset": delete["content_offset"],
                    "size_in_bytes": delete["content_size_in_bytes"],
                    "record_count": delete["record_count"],
                }
            ]
            unit = {"location": delete["file_path"], "file_format": delete["file_format"], "vectors": vector}
            batches = pa.Table.from_pylist([unit]).to_batches()
            masks = pa.Table.from_batches(read_masks(state.files, state.types.locations, batches)).to_pylist()
            deleted += [
                f"{contents[row['file_path']]} {mask['vector'].hex()}"
                for mask in masks
                if mask["data_path"] == row["file_path"]
            ]
    return sorted(deleted)


# Ids, names and times differ between any two tables, and so do sizes and offsets.
_DIFFERENT = {"location", "file_size_in_bytes", "column_sizes", "split_offsets", "key_metadata", "first_row_id"}
# Statistics of position delete files contain the names of data files.
_OF_DATA = {"lower_bounds", "upper_bounds", "content_stats"}


def _comparable(value: Any, snapshots: dict[int, int], contents: dict[str, str]) -> Any:
    """Return a value of an entry, with the rows of files instead of their names."""
    if not isinstance(value, dict):
        return value
    left_out = _DIFFERENT if value.get("content_type") in (0, 4, None) else _DIFFERENT | _OF_DATA
    comparable = {
        name: _comparable(child, snapshots, contents) for name, child in value.items() if name not in left_out
    }
    if "snapshot_id" in comparable:
        comparable["snapshot_id"] = snapshots.get(value["snapshot_id"])
    if "referenced_file" in comparable:
        comparable["referenced_file"] = contents.get(value["referenced_file"], value["referenced_file"] is not None)
    if "deletion_vector" in comparable:
        comparable["deletion_vector"] = comparable["deletion_vector"] is not None
    if value.get("location") in contents:
        comparable["rows"] = contents[value["location"]]
    return comparable


# -- Partition values -------------------------------------------------------------------------------------------------


LONGS = [0, 1, -1, 9, -10, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), -(2**63) + 5]
TEXTS = ["", "a", "åse", "a𐍈b", "plain", "z" * 30]
TYPES: dict[Any, list[Any]] = {
    IntegerType(): [value for value in LONGS if abs(value) <= 2**31],
    LongType(): LONGS,
    DateType(): [0, -1, 19000, -719162, 2932896],
    TimestampType(): [0, -1, 1, 1_700_000_000_123_456, -62_135_596_800_000_000],
    TimestamptzType(): [0, -1, 1, 1_700_000_000_123_456, -62_135_596_800_000_000],
    TimestampNanoType(): [0, -1, 999, 1_700_000_000_123_456_789, -1_000_000_001],
    TimeType(): [0, 1, 86_399_999_999],
    StringType(): TEXTS,
    BinaryType(): [text.encode() for text in TEXTS],
    FixedType(4): [b"abcd", b"\x00\xff\x00\xff"],
    UUIDType(): [uuid.UUID(int=7).bytes, uuid.UUID(int=2**127 + 3).bytes],
    DecimalType(9, 2): [Decimal("0.00"), Decimal("-0.01"), Decimal("9999999.99"), Decimal("-9999999.99")],
}
TIMES = [YearTransform(), MonthTransform(), DayTransform(), HourTransform()]


def test_partition_values(spark: SparkSession) -> None:
    expected, actual = [], []
    for source, given in TYPES.items():
        kind = bound_arrow_type(str(source))
        values = pa.array([*given, None], kind) if not pa.types.is_temporal(kind) else _instants(given, kind)
        transforms: list[Any] = [IdentityTransform(), BucketTransform(5), BucketTransform(16)]
        transforms += [TruncateTransform(3), TruncateTransform(10)]
        transforms += TIMES
        for transform in (each for each in transforms if each.can_transform(source)):
            result = transformed(transform, source, values)
            column = pa.table([_of_spark(values, source)], ["value"])
            by_spark = partition_value(transform, source, sql.col("value"))
            if by_spark is None:
                continue
            actual.append((str(source), str(transform), _bound(result, transform, source).to_pylist()))
            rows = local_frame(spark, column).selectExpr(by_spark.alias("value").selected).toArrow().column(0)
            expected.append((str(source), str(transform), _bound(rows, transform, source).to_pylist()))
    assert actual == expected
    assert len(actual) > 40


def _instants(numbers: list[int], kind: pa.DataType) -> pa.Array:
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pa.array([*numbers, None], width).view(kind)


def _of_spark(values: pa.Array, source: Any) -> pa.Array:
    return uuid_texts(values) if isinstance(source, UUIDType) else values


def _bound(values: Any, transform: Any, source: Any) -> pa.Array:
    array = whole(values) if isinstance(values, pa.ChunkedArray) else values
    if str(source) == "uuid" and isinstance(transform, IdentityTransform):
        return uuid_bytes(array) if pa.types.is_string(array.type) else array
    return array.cast(bound_arrow_type(str(transform.result_type(source))))
