"""Parquet manifests decoded by a task: by field ids, in the shape that Avro manifests give, damage included."""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkmeta.entries.manifest_records import ManifestContext, ManifestPart
from sparkmeta.entries.projection import FILE_COLUMNS, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests import decoder as parquet_decode
from sparkmeta.manifests.decoder import decode_parquet_manifest

DAY = dt.datetime(2020, 1, 1)  # noqa: DTZ001
PART = ManifestPart(4, "s3://b/m.parquet", 2, ManifestContext(77, 9, 1000))
ALL = EntryProjection.of(
    [*FILE_COLUMNS, "value_counts", "lower_bounds"], {1000: "string", 1001: "int"}, {1: "long", 2: "string"}
)


def field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


FILE = pa.struct(
    [
        field("any name", pa.string(), 100),
        field("file_format", pa.string(), 101),
        field("partition", pa.struct([field("a.b", pa.string(), 1000)]), 102),
        field("record_count", pa.int64(), 103),
        field("size", pa.int64(), 104),
        field("value_counts", pa.map_(pa.int32(), pa.int64()), 109),
        field("lower_bounds", pa.map_(pa.int32(), pa.binary()), 125),
    ]
)
SCHEMA = pa.schema([field("status", pa.int32(), 0), field("snapshot", pa.int64(), 1), field("file", FILE, 2)])


def entry(number: int, status: int = 1, **file: Any) -> dict[str, Any]:
    known = {
        "any name": f"f{number}",
        "file_format": "parquet",
        "partition": {"a.b": f"p{number}"},
        "record_count": 10,
        "size": 100,
        "value_counts": [(1, 10)],
        "lower_bounds": [(1, (5).to_bytes(8, "little")), (2, b"x")],
    }
    return {"status": status, "snapshot": None, "file": known | file}


def manifest(*entries: dict[str, Any], schema: pa.Schema = SCHEMA) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(entries), schema), target)
    return target.getvalue()


def decoded(data: bytes, projection: EntryProjection = ALL) -> list[dict[str, Any]]:
    batches = list(decode_parquet_manifest(data, PART, projection))
    assert all(batch.schema == projection.schema for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_entries() -> None:
    first, second = decoded(manifest(entry(0), entry(1, status=2)))
    assert first["location"] == "f0"
    assert first["file_format"] == "PARQUET"
    assert first["version_info"] == {"status": 1, "snapshot_id": 77, "sequence_number": 9, "file_sequence_number": 9}
    assert first["partition"] == {"1000": "p0", "1001": None}
    assert first["content_stats"]["1"]["lower_bound"] == 5
    assert first["content_stats"]["2"] == {
        "lower_bound": "x", "upper_bound": None, "value_count": None, "null_value_count": None, "nan_value_count": None
    }  # fmt: skip
    assert first["value_counts"] == [(1, 10)]
    assert (first["partition_spec_id"], first["content_type"], first["manifest"], first["ordinal"]) == (2, 0, 4, 0)
    assert (second["version_info"]["sequence_number"], second["ordinal"]) == (None, 1)


def test_counters_go_on_from_batch_to_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_decode, "BATCH_RECORDS", 2)
    rows = decoded(manifest(*(entry(number) for number in range(5))))
    assert [(row["ordinal"], row["first_row_id"]) for row in rows] == [(n, 1000 + 10 * n) for n in range(5)]


def test_only_what_is_asked_for() -> None:
    [row] = decoded(manifest(entry(0)), EntryProjection.of(["version_info"]))
    assert row.keys() == {"version_info", "manifest", "ordinal"}


@pytest.mark.parametrize(("later", "expected"), [("timestamp", DAY), ("timestamp_ns", 18_262 * 86_400 * 10**9)])
def test_partition_values_from_before_a_promotion(later: str, expected: Any) -> None:
    tuple_field = field("partition", pa.struct([field("d", pa.date32(), 1000)]), 102)
    file = pa.struct([tuple_field if each.name == "partition" else each for each in FILE])
    schema = SCHEMA.set(2, field("file", file, 2))
    data, beyond = (manifest(entry(0, partition={"d": day}), schema=schema) for day in (18_262, 2**31 - 1))
    projection = EntryProjection.of(("location",), {1000: later})
    assert decoded(data, projection)[0]["partition"]["1000"] == expected
    with pytest.raises(CorruptFileError, match=r"m\.parquet.*1000.*2147483647"):
        decoded(beyond, projection)


def test_damage() -> None:
    good = manifest(entry(0))
    no_file = manifest({"status": 1}, schema=pa.schema([field("status", pa.int32(), 0)]))
    for bad in (
        b"",
        b"PAR1",
        good[:-5],
        b"PAR1" + bytes(50) + b"PAR1",
        no_file,
        manifest(entry(0, status=9)),
    ):
        with pytest.raises(CorruptFileError, match=r"m\.parquet"):
            decoded(bad)
