"""fastavro and the reader of manifests read the same entries that Arrow encoded."""

from __future__ import annotations

import io
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimeType,
    UUIDType,
)  # fmt: skip

from sparkmeta.avro.write import ManifestFormat, encode_entries, entry_schema
from sparkmeta.entries.projection import FILE_COLUMNS, EntryProjection
from sparkmeta.expr.bounds import encode_bounds
from sparkmeta.storage.executors import ExecutorWriter

INTS, LONGS = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
KINDS: list[tuple[IcebergType, Any]] = [
    (BooleanType(), st.booleans()),
    (IntegerType(), INTS),
    (LongType(), LONGS),
    (FloatType(), st.floats(width=32, allow_nan=False)),
    (DoubleType(), st.floats(allow_nan=False)),
    (DateType(), st.dates()),
    (TimeType(), st.integers(0, 86_399_999_999)),
    (TimestampType(), st.datetimes()),
    (StringType(), st.text(max_size=300)),
    (UUIDType(), st.binary(min_size=16, max_size=16)),
    (FixedType(3), st.binary(min_size=3, max_size=3)),
    (BinaryType(), st.binary()),
    (DecimalType(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    (DecimalType(38, 0), st.integers(1 - 10**38, 10**38 - 1).map(Decimal)),
]
PARTITION = {1000 + place: kind for place, (kind, _) in enumerate(KINDS)}
STATS = {1: "long", 2: "string", 3: "double"}
PROJECTION = EntryProjection.of(FILE_COLUMNS, {key: str(kind) for key, kind in PARTITION.items()}, STATS)
BOUNDS = {1: LONGS, 2: st.text(max_size=5), 3: st.floats(allow_nan=False)}
COUNTS = {"value_counts": "value_count", "null_value_counts": "null_value_count", "nan_value_counts": "nan_value_count"}


def optional(values: Any) -> Any:
    return st.none() | values


def stats(bound: Any) -> Any:
    counts = {name: optional(st.integers(0, 1 << 40)) for name in COUNTS.values()}
    return optional(st.fixed_dictionaries({"lower_bound": optional(bound), "upper_bound": optional(bound), **counts}))


ENTRIES = st.fixed_dictionaries(
    {
        "content_type": st.integers(0, 2),
        "location": st.text(min_size=1),
        "file_format": st.sampled_from(["PARQUET", "PUFFIN"]),
        "version_info": st.fixed_dictionaries(
            {"status": st.integers(0, 1)}
            | dict.fromkeys(("snapshot_id", "sequence_number", "file_sequence_number"), optional(LONGS))
        ),
        "deletion_vector": optional(st.fixed_dictionaries({"offset": LONGS, "size_in_bytes": LONGS})),
        "partition_spec_id": st.just(0),
        "sort_order_id": optional(INTS),
        "record_count": LONGS,
        "file_size_in_bytes": LONGS,
        "referenced_file": optional(st.text()),
        "key_metadata": optional(st.binary()),
        "split_offsets": optional(st.lists(LONGS)),
        "equality_ids": optional(st.lists(INTS)),
        "first_row_id": optional(LONGS),
        "partition": st.fixed_dictionaries(
            {str(key): optional(values) for key, (_, values) in zip(PARTITION, KINDS, strict=True)}
        ),
        "content_stats": optional(st.fixed_dictionaries({str(key): stats(bound) for key, bound in BOUNDS.items()})),
        "manifest": st.just(0),
        "ordinal": st.just(0),
    }
)


def partition_type() -> StructType:
    return StructType(*(NestedField(key, f"p{key}.x", kind) for key, kind in PARTITION.items()))


FORM = ManifestFormat(
    3, 0, 0, PROJECTION.partition, entry_schema(3, partition_type()), {}, "gzip", None, "", "", 1, ExecutorWriter({})
)


def expected_map(row: dict[str, Any], child: str) -> dict[int, Any] | None:
    known = {int(key): each[child] for key, each in (row["content_stats"] or {}).items() if each}
    return {key: value for key, value in known.items() if value is not None} or None


def as_bound(field_id: int, value: Any) -> bytes:
    kind = {1: pa.int64(), 2: pa.string(), 3: pa.float64()}[field_id]
    encoded: bytes = encode_bounds(pa.array([value], kind))[0].as_py()
    return encoded


def as_number(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1)) // datetime.resolution  # noqa: DTZ001  Iceberg's timestamps have no zone
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(ENTRIES, min_size=1, max_size=4))
def test_as_fastavro_reads_them(rows: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=PROJECTION.schema)
    encoded = encode_entries(batch, FORM).to_pylist()
    many = pa.Table.from_batches([batch] * 33).combine_chunks().to_batches()[0]
    assert encode_entries(many, FORM).to_pylist() == encoded * 33, "more rows are encoded in another way"
    schema = fastavro.parse_schema(dict(FORM.encoded))
    for row, data in zip(rows, encoded, strict=True):
        stream = io.BytesIO(data)
        entry: Any = fastavro.schemaless_reader(stream, schema, None)  # type: ignore[misc]
        assert stream.read() == b""
        file, info = entry["f2"], row["version_info"]
        numbers = {0: "status", 1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number"}
        assert {name: entry[f"f{key}"] for key, name in numbers.items()} == info
        names = {
            134: "content_type", 100: "location", 101: "file_format", 103: "record_count", 104: "file_size_in_bytes",
            131: "key_metadata", 132: "split_offsets", 135: "equality_ids", 140: "sort_order_id", 142: "first_row_id",
            143: "referenced_file",
        }  # fmt: skip
        assert {name: file[f"f{key}"] for key, name in names.items()} == {name: row[name] for name in names.values()}
        vector = row["deletion_vector"] or {"offset": None, "size_in_bytes": None}
        assert [file["f144"], file["f145"]] == [vector["offset"], vector["size_in_bytes"]]
        for key, kind in PARTITION.items():
            value = as_number(row["partition"][str(key)])
            if isinstance(kind, DecimalType) and value is not None:
                size = len(file["f102"][f"f{key}"])
                value = int(value.scaleb(kind.scale, Context(prec=38))).to_bytes(size, "big", signed=True)
            assert file["f102"][f"f{key}"] == value, kind
        maps = {109: "value_count", 110: "null_value_count", 137: "nan_value_count"}
        for key, child in maps.items():
            pairs = file[f"f{key}"]
            assert (None if pairs is None else {pair["k"]: pair["v"] for pair in pairs}) == expected_map(row, child)
        for key, child in ((125, "lower_bound"), (128, "upper_bound")):
            known = expected_map(row, child)
            bounds = None if known is None else {each: as_bound(each, value) for each, value in known.items()}
            pairs = file[f"f{key}"]
            assert (None if pairs is None else {pair["k"]: pair["v"] for pair in pairs}) == bounds
        assert file["f108"] is None
