"""Data files of V4 trees: all types, defaults, transforms that tasks compute, and tasks that fail."""

from __future__ import annotations

import gc
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

import sparkmeta as sm
from sparkmeta.write.files import data_file_tasks
from sparkmeta.write.formats import OrcOutput, ParquetOutput, Written
from sparkmeta.write.tasks import PARTITION_COLUMN
from tests.conftest import configured
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

EVERY_TYPE = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "u", UUIDType()),
    NestedField(3, "fx", FixedType(3)),
    NestedField(4, "t", TimeType()),
    NestedField(6, "dec", DecimalType(38, 10)),
    NestedField(7, "small", DecimalType(9, 2)),
    NestedField(8, "ntz", TimestampType()),
    NestedField(9, "tz", TimestamptzType()),
    NestedField(10, "b", BinaryType()),
    NestedField(11, "d", DoubleType()),
    NestedField(
        12, "st", StructType(NestedField(13, "x", IntegerType(), required=True), NestedField(14, "y", StringType()))
    ),
    NestedField(15, "l", ListType(16, StructType(NestedField(17, "e", LongType())), element_required=False)),
    NestedField(18, "m", MapType(19, StringType(), 20, IntegerType(), value_required=True)),
)
# Columns are matched by name: their types may be narrower, and structs may have another order of fields.
QUERY = """
    SELECT id, m, l, st, f AS d, b, tz, ntz, CAST(id AS DECIMAL(5, 2)) small, dec, t, fx, u FROM (
        SELECT id, concat('00000000-0000-4000-8000-', lpad(hex(id), 12, '0')) u,
            IF(id % 4 = 0, null, unhex(lpad(hex(id), 6, '0'))) fx,
            id * 1000003L t, CAST(id * 1.1 AS DECIMAL(30, 10)) dec, CAST(id / 3D AS FLOAT) f,
            timestamp_ntz'1890-01-01 00:00:00.000001' ntz, timestamp_seconds(id * 1e9) tz, X'00ff' b,
            IF(id % 3 = 0, null, named_struct('y', 'text', 'x', id % 100)) st,
            IF(id % 5 = 0, null, array(named_struct('e', CAST(id AS INT)), null)) l,
            IF(id % 2 = 0, null, map('k', CAST(id AS INT))) m
        FROM (SELECT CAST(id AS INT) id FROM range(60)))
"""


def new_table(spark: SparkSession, folder: Path, schema: Schema, spec: PartitionSpec, **properties: str) -> sm.Table:
    catalog = sm.load_catalog("files", type="hadoop", warehouse=str(folder))
    catalog.create_namespace("db")
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    return catalog.create_table("db.t", schema, spec, format_version=4, properties=named, spark=spark)


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
def test_every_type_is_read_as_it_was_written(spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    table = new_table(spark, tmp_path, EVERY_TYPE, PartitionSpec(), write__format__default=file_format)
    rows = spark.sql(QUERY)
    table = table.append(rows)
    read = table.scan().to_df()
    assert read.columns == [field.name for field in EVERY_TYPE.fields]
    fields = {
        field.name: f"CAST({field.name} AS {field.dataType.simpleString()}) {field.name}" for field in read.schema
    }
    fields |= {"u": "lower(u) u", "st": "IF(st IS NULL, null, named_struct('x', st.x, 'y', st.y)) st"}
    assert row_texts(read) == row_texts(rows.selectExpr(*fields.values()))
    assert not table.check().collect()


UNFIT = {
    "'zz' u": "column u of type uuid: 'zz' is not a UUID",
    "X'00' fx": "column fx of type fixed[3]: b'\\x00' has 1 bytes, not 3",
    "86400000000L t": "column t of type time: 86400000000 is not a time",
    "named_struct('x', cast(null as int)) st": "column st.x is required, and has nulls in 1 rows",
    "map('k', cast(null as int)) m": "column m.value is required, and has nulls in 1 rows",
    "named_struct('y', 'text') st": "column st.x is required and has no write default, and the rows lack it",
    "named_struct('x', 1, 'z', 2) st": "column st.z is not in the table, which has 'x', 'y'",
    "array(named_struct('e', 'text')) l": "column l.element.e of the rows is string: the table has type long",
    "cast(1 as decimal(38, 9)) dec": "column dec of the rows is decimal(38,9): the table has type decimal",
}


@pytest.mark.parametrize("partitioned", [(), ("u", "fx", "t", "dec")], ids=str)
def test_values_that_do_not_fit(spark: SparkSession, tmp_path: Path, partitioned: tuple[str, ...]) -> None:
    sources = (EVERY_TYPE.find_field(name) for name in partitioned)
    fields = (
        PartitionField(source.field_id, 1000 + n, IdentityTransform(), source.name) for n, source in enumerate(sources)
    )
    table = new_table(spark, tmp_path, EVERY_TYPE, PartitionSpec(*fields))
    for value, message in UNFIT.items():
        with pytest.raises(sm.ValidationError) as caught:
            table.append(spark.sql(f"SELECT 1L id, {value}"))
        assert message in str(caught.value)
    assert not list(tmp_path.rglob("*.parquet"))


def test_write_defaults(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, Schema(NestedField(1, "id", LongType(), required=True)), PartitionSpec())
    with table.update_schema() as update:
        update.add_column("kind", StringType(), required=True, default_value="new")
        update.add_column("n", IntegerType(), default_value=7)
    with table.refresh().update_spec() as spec:
        spec.add_identity("kind")
    table = table.refresh()
    table = table.append(spark.sql("SELECT 1L id")).append(spark.sql("SELECT 2L id, 'given' kind, cast(null as int) n"))
    assert sorted(map(tuple, table.scan().to_df().collect())) == [(1, "new", 7), (2, "given", None)]
    assert sorted(row.kind for row in table.inspect.files().select("partition.kind").collect()) == ["given", "new"]


def test_partitions_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    names = ("u", "fx", "t", "dec", "small", "ntz", "tz", "b", "d", "id")
    fields = (EVERY_TYPE.find_field(name) for name in names)
    spec = PartitionSpec(
        *(PartitionField(field.field_id, 1000 + index, IdentityTransform(), field.name)
          for index, field in enumerate(fields))
    )  # fmt: skip
    table = new_table(spark, tmp_path, EVERY_TYPE, spec)
    table = table.append(spark.sql(QUERY).where("id < 8"))
    assert not table.check().collect()
    read = table.scan(selected_fields=(*names, "_partition")).to_df()
    rows = read.select(*names)
    assert row_texts(rows) == row_texts(read.select(*(f"_partition.{name}" for name in names)))
    assert rows.count() == 8
    assert table.scan("u = '00000000-0000-4000-8000-000000000003'").count_files() == 1


def test_transforms_that_tasks_compute(spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "s", StringType()), NestedField(2, "b", BinaryType()), NestedField(3, "d", DecimalType(38, 10))
    )
    fields = ((1, BucketTransform(4), "s4"), (2, BucketTransform(3), "b3"), (3, TruncateTransform(500), "d500"))
    spec = PartitionSpec(
        *(PartitionField(source, 1000 + source, transform, name) for source, transform, name in fields)
    )
    table = new_table(spark, tmp_path, schema, spec)
    rows = [
        (f"text {n}" if n % 5 else None, bytes([n]) if n % 7 else None, Decimal(n).scaleb(-9) if n % 3 else None)
        for n in range(40)
    ]
    table = table.append(spark.createDataFrame(rows, "s STRING, b BINARY, d DECIMAL(38, 10)"))
    values = table.scan(selected_fields=("s", "b", "d", "_partition")).to_df().collect()
    assert len(values) == 40
    for row in values:
        source = (row.s, None if row.b is None else bytes(row.b), row.d)
        expected = [
            transform.transform(schema.find_type(field))(value)
            for (field, transform, _), value in zip(fields, source, strict=True)
        ]
        assert list(row._partition) == expected


def test_rows_without_columns(spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StringType()))
    table = new_table(spark, tmp_path, schema, PartitionSpec()).append(spark.range(3).select())
    assert list(map(tuple, table.scan().to_df().collect())) == [(None, None)] * 3


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize(("precision", "width"), [(3, 10), (38, 10), (3, 1000)])
def test_truncated_decimals_that_do_not_fit(
    spark: SparkSession, tmp_path: Path, precision: int, width: int, ansi: str
) -> None:
    schema = Schema(NestedField(1, "d", DecimalType(precision, 0)))
    table = new_table(spark, tmp_path, schema, PartitionSpec(PartitionField(1, 1000, TruncateTransform(width), "p")))
    least = -(10**precision) + 1
    with configured(spark, {"spark.sql.ansi.enabled": ansi}):
        for value in (least, -1) if width == 1000 else (least,):
            with pytest.raises(
                sm.ValidationError, match=rf"column d is {value}: truncate\[{width}\] of it does not fit"
            ):
                table.append(spark.sql(f"SELECT CAST('{value}' AS DECIMAL({precision}, 0)) d"))
        assert table.refresh().current_snapshot() is None
        table = table.append(spark.sql(f"SELECT CAST('{-least}' AS DECIMAL({precision}, 0)) d UNION ALL SELECT NULL"))
    values = table.inspect.data_files().select("partition.p").toArrow().column(0).to_pylist()
    assert set(values) == {None, Decimal(-least // width * width)}


def written_files(table: sm.Table, batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return the files that a task writes, in the order of their names."""
    files = pa.Table.from_batches(data_file_tasks(table.state, table.schema()).write(batches)).to_pylist()
    return sorted(files, key=lambda file: str(file["file_path"].rpartition("/")[2]))


PARTITIONS = [None, 0.0, -0.0, float("nan"), float("inf"), *map(float, range(1, 36))]


@pytest.mark.parametrize(
    ("count", "group_bytes", "file_counts"),
    [
        pytest.param(3, 128 << 20, range(40, 41), id="whole files"),
        pytest.param(3, 1, range(120, 121), id="more files than can be open"),
        pytest.param(48, 128 << 20, range(41, 120), id="more rows than can be buffered"),
    ],
)
def test_rows_of_alternating_partitions(
    spark: SparkSession, tmp_path: Path, count: int, group_bytes: int, file_counts: range
) -> None:
    """A task divides rows by partition and keeps their order. If necessary, it ends files early."""
    schema = Schema(
        NestedField(1, "n", LongType()), NestedField(2, "s", StringType()), NestedField(3, "d", DoubleType())
    )
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "d"))
    table = new_table(spark, tmp_path, schema, spec, write__parquet__row_group_size_bytes=str(group_bytes))
    texts = pa.array(["x" * 60_000] * 300)

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 300 * count, 300):
            numbers = range(first, first + 300)
            values = pa.array([PARTITIONS[number % 40] for number in numbers])
            columns = [pa.array(numbers), texts, values, values]
            yield pa.RecordBatch.from_arrays(columns, [*schema.column_names, PARTITION_COLUMN.format(0)])

    files = written_files(table, batches())
    assert len(files) in file_counts
    numbers_by_partition: dict[int, list[int]] = {partition: [] for partition in range(40)}
    for file in files:
        path = file["file_path"].removeprefix("file://")
        numbers = pq.read_table(path, columns=["n"], partitioning=None)["n"].to_pylist()
        assert file["record_count"] == len(numbers)
        (partition,) = {number % 40 for number in numbers}
        assert repr(file["partition"]["d"]) == repr(PARTITIONS[partition])
        numbers_by_partition[partition] += numbers
    assert numbers_by_partition == {partition: [*range(partition, 300 * count, 40)] for partition in range(40)}


def test_sorted_rows_of_many_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """Each partition gets one file, though more partitions than files can be open end within a row group."""
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "p", IntegerType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    table = new_table(spark, tmp_path, schema, spec, write__parquet__row_group_size_bytes="20000")
    numbers = np.arange(20 * 30_000)
    partitions = pa.array(numbers // 30_000, pa.int32())
    batch = pa.RecordBatch.from_arrays(
        [pa.array(numbers), partitions, partitions], [*schema.column_names, PARTITION_COLUMN.format(0)]
    )
    files = written_files(table, iter([batch]))
    assert [(file["partition"]["p"], file["record_count"]) for file in files] == [(p, 30_000) for p in range(20)]
    assert all(len(file["split_offsets"]) > 1 for file in files)


def test_orc_stripes_of_null_structs(spark: SparkSession, tmp_path: Path) -> None:
    struct = StructType(
        NestedField(3, "x", LongType()), NestedField(4, "y", StructType(NestedField(5, "z", StringType())))
    )
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "st", struct))
    properties = {"write__format__default": "orc", "write__orc__stripe_size_bytes": "1"}
    table = new_table(spark, tmp_path, schema, PartitionSpec(), **properties)

    def value(number: int) -> dict[str, Any] | None:
        y = {"z": None if number % 5 == 0 else str(number)}
        return None if number % 3 == 0 else {"x": number, "y": None if number % 7 == 0 else y}

    rows = [{"n": number, "st": value(number)} for number in range(5_000)]
    batches = pa.RecordBatch.from_pylist(rows, data_file_tasks(table.state, schema).schema)
    (file,) = written_files(table, iter([batches]))
    assert orc.read_table(file["file_path"].removeprefix("file://")).to_pylist() == rows


OUTPUTS = {"parquet": ParquetOutput, "orc": OrcOutput}


@pytest.mark.parametrize("file_format", OUTPUTS)
@pytest.mark.parametrize("ending", ["error", "killed", "at the end"])
def test_a_task_that_does_not_end_leaves_no_file(
    spark: SparkSession, tmp_path: Path, ending: str, file_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Destructors of the open files raise no errors, and do not end the process."""
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    schema = Schema(NestedField(1, "n", IntegerType()), NestedField(2, "s", StringType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "n"))
    small = {"write__parquet__row_group_size_bytes": "1", "write__orc__stripe_size_bytes": "1"}
    table = new_table(spark, tmp_path, schema, spec, write__format__default=file_format, **small)
    tasks = data_file_tasks(table.state, table.schema())

    def close(output: Any) -> Written:
        output._sink.close()
        raise OSError("the disk is full")

    if ending == "at the end":
        monkeypatch.setattr(OUTPUTS[file_format], "close", close)

    def batches() -> Iterator[pa.RecordBatch]:
        values = pa.array(range(300), pa.int32())
        texts = pa.array(["x" * 60_000] * 300)
        yield pa.RecordBatch.from_arrays([values, texts, values], ["n", "s", PARTITION_COLUMN.format(0)])
        if ending == "error":
            raise OSError("the disk is full")

    results = tasks.write(batches())
    if ending != "at the end":
        assert len(next(results)) >= 256
        assert len(list(tmp_path.rglob(f"*.{file_format}"))) >= 256
    if ending == "killed":
        results.close()  # type: ignore[attr-defined]
    else:
        with pytest.raises(OSError, match="the disk is full"):
            next(results)
    assert not list(tmp_path.rglob(f"*.{file_format}"))
    del results
    gc.collect()
    assert not raised


_ADVISED = "write.spark.advisory-partition-size-bytes"
_SESSIONS = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
# The table property, the session's setting, and the number of 1 kB rows for which one file is written or several.
ADVISED: dict[str, tuple[str | None, str | None, int, bool]] = {
    "default": (None, None, 75_000, False),
    "smaller": ("1048576", None, 5000, True),
    "session": (None, "64k", 1000, True),
    "session first": ("16777216", "64k", 1000, True),
    "large session": ("65536", "16m", 1000, False),
}


@pytest.mark.parametrize("case", ADVISED)
def test_files_per_partition(spark: SparkSession, tmp_path: Path, case: str) -> None:
    by_table, by_session, rows, is_split = ADVISED[case]
    schema = Schema(NestedField(1, "p", IntegerType()), NestedField(2, "s", StringType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    table = new_table(spark, tmp_path, schema, spec)
    if by_table is not None:
        with table.transaction() as tx:
            tx.set_properties({_ADVISED: by_table})
    text = spark.range(0, rows, 1, 4).selectExpr("1 AS p", "randstr(1000, 0) AS s")
    with configured(spark, {} if by_session is None else {_SESSIONS: by_session}):
        table = table.refresh().append(text)
        assert spark.conf.get(_SESSIONS, None) == by_session
    files = table.inspect.files().count()
    assert files > 1 if is_split else files == 1


REFUSED = {
    "write.format.default=csv": "write.format.default is 'csv': expected parquet, orc or avro",
    "write.target-file-size-bytes=big": "write.target-file-size-bytes is 'big': expected a whole number of 1 or more",
    "write.distribution-mode=some": "write.distribution-mode is 'some': expected none, hash or range",
    "write.spark.advisory-partition-size-bytes=0": "expected a whole number of 1 or more",
    "encryption.key-id=k": "the table is encrypted",
}


UNKNOWN: dict[str, tuple[IcebergType, str]] = {
    "column": (UnknownType(), "the table has no column that a file can have"),
    "struct": (StructType(NestedField(2, "x", UnknownType())), "column u is a struct without fields"),
    "list": (ListType(2, UnknownType(), element_required=False), "column u is of type list<unknown>"),
    "map": (
        MapType(2, StringType(), 3, UnknownType(), value_required=False),
        "column u is of type map<string, unknown>",
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_types_that_files_leave_out(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    field_type, message = UNKNOWN[kind]
    table = new_table(spark, tmp_path, Schema(NestedField(1, "u", field_type)), PartitionSpec())
    with pytest.raises(sm.UnsupportedError, match=message):
        table.append(spark.range(1).select())


def test_a_column_that_files_leave_out(spark: SparkSession, tmp_path: Path) -> None:
    fields = NestedField(1, "n", LongType()), NestedField(2, "u", UnknownType())
    table = new_table(spark, tmp_path, Schema(*fields), PartitionSpec()).append(spark.sql("SELECT 1L n"))
    assert [tuple(row) for row in table.scan().to_df().collect()] == [(1, None)]


def test_a_transaction_that_encrypts_a_table_writes_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, Schema(NestedField(1, "n", IntegerType())), PartitionSpec())
    with table.transaction() as tx:
        tx.set_properties({"encryption.key-id": "k"})
        with pytest.raises(sm.UnsupportedError, match="the table is encrypted, and can't be committed to"):
            tx.append(spark.sql("SELECT 1 n"))
    assert not list(tmp_path.rglob("*.parquet"))


def test_properties_that_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, Schema(NestedField(1, "n", IntegerType())), PartitionSpec())
    for setting, message in REFUSED.items():
        name, _, value = setting.partition("=")
        with table.transaction() as tx:
            tx.set_properties({name: value})
        table = table.refresh()
        with pytest.raises((sm.ValidationError, sm.UnsupportedError)) as caught:
            table.append(spark.sql("SELECT 1 n"))
        assert message in str(caught.value)
        with table.transaction() as tx:
            tx.remove_properties(name)
        table = table.refresh()
