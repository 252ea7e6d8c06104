"""Entries as bytes of a new manifest: copied or encoded anew, they hold what they held, and what they inherited."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.types import IcebergType, NestedField, StructType

from sparkmeta.avro.container import inflate, read_blocks, read_header
from sparkmeta.avro.decode import decode_manifest
from sparkmeta.avro.schema import bytes_for_fixed, manifest_schema, parse
from sparkmeta.avro.write import COLUMNS, ENTRY, ManifestFormat, entry_schema, write_manifest
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.bounds import decode_bounds
from sparkmeta.manifests import raw_entries
from sparkmeta.manifests.raw_entries import encoded_entries
from sparkmeta.spec.entry import METRICS_MAPS, Status
from sparkmeta.storage.executors import ExecutorWriter
from tests.avro.avro_files import avro_file
from tests.avro.decoders import LOCATION, PART, Always
from tests.avro.random_manifests import PARTITION_TYPES, Writer, container

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"
HYPOTHESIS = settings(
    max_examples=10_000 if SOAK else 200,
    deadline=None,
    derandomize=not SOAK,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NUMBERS = {1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number"}


def form_of(version: int, partition: dict[int, str], codec: str = "gzip", target: int = 1 << 20) -> ManifestFormat:
    fields = [
        NestedField(field_id, f"p{field_id}", TYPES.validate_python(name), required=False)
        for field_id, name in partition.items()
    ]
    return ManifestFormat(
        version, 0, 0, tuple(partition.items()), entry_schema(version, StructType(*fields)), {}, codec, None,
        "file:///t/metadata", "m", target, ExecutorWriter({}),
    )  # fmt: skip


TYPES: TypeAdapter[Any] = TypeAdapter(IcebergType)


def entries_of(data: bytes, form: ManifestFormat, compiled: bool) -> pa.Table:
    """Entries in the columns of `encoded_entries`, by either decoder."""
    projection = EntryProjection.of(COLUMNS, dict(form.partition))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_entries, "compiler", Always(compiled))
        batches = list(encoded_entries(data, PART, projection, form))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches) if batches else pa.table({})


def read_back(table: pa.Table, form: ManifestFormat) -> list[dict[str, Any]]:
    """The entries' bytes as fastavro reads them, fields named by their ids; nothing is left of the bytes."""
    schema, entries = parse(form.encoded, "ours"), []
    for value in table.column(ENTRY).to_pylist() if ENTRY in table.column_names else []:
        stream = io.BytesIO(value)
        entries.append(fastavro.schemaless_reader(stream, schema, None))
        assert stream.tell() == len(value)
    return entries


def expected(data: bytes, schema: dict[str, Any], form: ManifestFormat, table: pa.Table) -> list[dict[str, Any]]:
    """The entries that the bytes should encode: the source's records, with the numbers of the table's columns."""
    header = read_header(data, LOCATION)
    writer, rows = manifest_schema(schema, LOCATION).writer, []
    for block in read_blocks(data, header, LOCATION):
        stream = io.BytesIO(data[block.offset : block.offset + block.size])
        rows += [fastavro.schemaless_reader(stream, writer, None) for _ in range(block.count)]
    live = [row for row in rows if row["f0"] != 2]
    record = next(field for field in form.encoded["fields"] if field["name"] == "f2")["type"]
    infos, row_ids = table.column("version_info").to_pylist(), table.column("first_row_id").to_pylist()
    entries = []
    for row, info, row_id in zip(live, infos, row_ids, strict=True):
        file = {field["name"]: value_of(field["name"], row["f2"], form) for field in record["fields"]}
        if "f142" in file:
            file["f142"] = row_id
        entries.append({"f0": 0, **{f"f{field_id}": info[NUMBERS[field_id]] for field_id in form.numbers}, "f2": file})
    return entries


def value_of(name: str, file: dict[str, Any], form: ManifestFormat) -> Any:
    value = file.get(name)
    if name == "f102":
        values = {f"f{field_id}": (value or {}).get(f"f{field_id}") for field_id, _ in form.partition}
        return values | {
            key: int.from_bytes(values[key], "big", signed=True).to_bytes(2, "big", signed=True)
            for key in (f"f{field_id}" for field_id, kind in form.partition if kind.startswith("decimal"))
            if values[key] is not None
        }
    if int(name[1:]) in METRICS_MAPS and isinstance(value, dict):
        return [{"k": int(key), "v": item} for key, item in value.items()]
    return {"f134": 0, "f105": 67_108_864}.get(name) if value is None else value


@HYPOTHESIS
@given(st.randoms(use_true_random=True), st.sampled_from([1, 2, 3]))
def test_any_schema(chance: Random, version: int) -> None:
    """Combinations that no writer makes; an error says which value does not fit the new manifest."""
    writer = Writer(chance)
    schema = writer.schema()
    form = form_of(version, writer.partition)
    blocks = [(count, b"".join(writer.record(schema) for _ in range(count))) for count in (chance.randrange(4), 2)]
    data = container(schema, blocks)
    check(data, schema, form, copied=None)


@HYPOTHESIS
@given(st.randoms(use_true_random=True), st.sampled_from([(1, 1), (2, 2), (2, 3), (3, 3)]))
def test_layouts_that_are_copied(chance: Random, versions: tuple[int, int]) -> None:
    """Entries of the same version, or of the one before, without fields that come last."""
    names = dict(chance.sample(sorted(PARTITION_TYPES.items()), chance.randrange(4)))
    partition = {1000 + place: name for place, name in enumerate(name for name in names if "fixed" not in name)}
    schema = form_of(versions[0], partition).schema
    outer = next(field for field in schema["fields"] if field["name"] == "data_file")
    keep = len(outer["type"]["fields"]) - chance.choice([0, 0, 1, 2]) * (
        versions == (2, 3) or versions[0] == versions[1] > 1
    )
    fields = outer["type"]["fields"][:keep]
    ids = [field["field-id"] for field in fields]
    copies = versions[1] < 3 or 140 in ids
    file = {**outer, "type": {**outer["type"], "fields": fields}}
    source = {**schema, "fields": [file if field is outer else field for field in schema["fields"]]}
    writer = Writer(chance)
    blocks = [(count, b"".join(writer.record(source) for _ in range(count))) for count in (chance.randrange(6), 3)]
    check(container(source, blocks), source, form_of(versions[1], partition), copied=copies)


def check(data: bytes, schema: dict[str, Any], form: ManifestFormat, copied: bool | None) -> None:
    assert copied in {None, raw_entries._copying(manifest_schema(schema, LOCATION), form, LOCATION) is not None}
    try:
        slow = entries_of(data, form, compiled=False)
    except CorruptFileError as error:
        if copied is not None or "can't be encoded" not in str(error):
            raise
        return
    entries = read_back(slow, form)
    if entries:
        assert repr(entries) == repr(expected(data, schema, form, slow))
    quick = entries_of(data, form, compiled=True)
    assert repr(read_back(quick, form)) == repr(entries)


def test_how_often_random_schemas_are_encoded() -> None:
    """`test_any_schema` would say nothing if values were refused mostly."""
    done = 0
    for seed in range(60):
        writer = Writer(Random(seed))
        schema = writer.schema()
        data = container(schema, [(2, writer.record(schema) + writer.record(schema))])
        try:
            entries_of(data, form_of(2, writer.partition), compiled=False)
        except CorruptFileError:
            continue
        done += 1
    assert done > 30


@pytest.mark.parametrize("codec", ["gzip", "uncompressed", "snappy", "zstd"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_manifest_is_read_as_it_was(codec: str, version: int) -> None:
    """fastavro and our own reader read every codec, more than one block, and all numbers."""
    form = form_of(version, {1000: "int"}, codec)
    source = avro_file(dict(form.schema), [sample(number, version) for number in range(2_000)], "deflate")
    table = entries_of(source, form, compiled=True)
    data, row = write_manifest(table, form)
    header = read_header(data, LOCATION)
    assert header.codec == {"gzip": "deflate", "uncompressed": "null", "zstd": "zstandard"}.get(codec, codec)
    blocks = list(read_blocks(data, header, LOCATION))
    assert len(blocks) > 1
    assert sum(block.count for block in blocks) == 2_000
    assert b"".join(inflate(data, block, header, LOCATION) for block in blocks) == b"".join(
        table.column(ENTRY).to_pylist()
    )
    if codec in {"gzip", "uncompressed"}:  # fastavro alone knows no others
        before, after = (list(fastavro.reader(io.BytesIO(manifest))) for manifest in (source, data))
        assert [entry["data_file"] for entry in after] == [entry["data_file"] for entry in before]
        assert {entry["status"] for entry in after} == {0}
    projection = EntryProjection.of(COLUMNS, {1000: "int"})
    again = pa.Table.from_batches(decode_manifest(data, PART, projection))
    numbers = [pc.struct_field(entries.column("version_info"), "sequence_number") for entries in (again, table)]
    assert numbers[0].equals(numbers[1])
    assert row.to_pylist()[0]["manifest_length"] == len(data)


def sample(number: int, version: int) -> dict[str, Any]:
    file = {
        "file_path": f"file:///t/{number:0100}.parquet",
        "file_format": "PARQUET",
        "partition": {"p1000": number % 7 if number % 5 else None},
        "record_count": number,
        "file_size_in_bytes": 10 * number,
        "block_size_in_bytes": 67_108_864,
        "content": 0,
        "lower_bounds": [{"key": 1, "value": bytes(8)}],
        "first_row_id": None if version < 3 else number,
    }
    versions = {"sequence_number": 1 + number % 3, "file_sequence_number": 3} if version > 1 else {}
    return {"status": 0, "snapshot_id": 5 + number, **versions, "data_file": file}


VALUES = {
    "int": st.integers(-5, 5),
    "double": st.sampled_from([-1.5, 0.0, 2.0, float("nan"), float("inf")]),
    "string": st.text(max_size=3),
    "boolean": st.booleans(),
    "decimal(4, 2)": st.decimals(-99, 99, places=2),
    "date": st.dates(),
}


def row_of(values: Sequence[Any], kind: str) -> pa.Table:
    """The manifest list's row for files of these partition values."""
    existing, sequence_number = (pa.repeat(pa.scalar(number), len(values)) for number in (int(Status.EXISTING), 4))
    info = pa.StructArray.from_arrays([existing, sequence_number], names=["status", "sequence_number"])
    table = pa.table(
        {
            "version_info": info,
            "record_count": pa.array(range(len(values)), pa.int64()),
            "partition": pa.array(
                [{"1000": value} for value in values], EntryProjection.of((), {1000: kind}).partition_type
            ),
            ENTRY: pa.array([b"x"] * len(values)),
        }
    )
    return write_manifest(table, form_of(2, {1000: kind}))[1]


@HYPOTHESIS
@given(st.data())
def test_summaries(draw: st.DataObject) -> None:
    """A summary has the least and the greatest value of each partition field, and whether null and NaN occur."""
    kind = draw.draw(st.sampled_from(sorted(VALUES)))
    values = draw.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=9))
    row = row_of(values, kind)
    (summary,) = row.to_pylist()[0]["partitions"]
    known = sorted(value for value in values if value is not None and str(value) != "nan")
    assert summary["contains_null"] == (None in values)
    assert summary["contains_nan"] == ("nan" in map(str, values) and kind == "double")
    bounds = decode_bounds(pa.array([summary["lower_bound"], summary["upper_bound"]], pa.binary()), kind).to_pylist()
    assert bounds == ([known[0], known[-1]] if known else [None, None])
    assert row.to_pylist()[0]["existing_rows_count"] == sum(range(len(values)))
    assert row.to_pylist()[0]["min_sequence_number"] == 4


def test_fixed_values_are_encoded_as_java_does() -> None:
    """A partition value of type fixed has its length before it, whoever wrote the source (pyiceberg: without)."""
    form = form_of(2, {1000: "fixed[3]"})
    source = {**sample(1, 2), "data_file": sample(1, 2)["data_file"] | {"partition": {"p1000": b"abc"}}}
    copied, stream = avro_file(dict(form.schema), [source]), io.BytesIO()
    fastavro.schemaless_writer(stream, parse(bytes_for_fixed(dict(form.schema)) or {}, LOCATION), source)
    lengthy = container(dict(form.schema), [(1, stream.getvalue())])
    for data in (copied, lengthy):
        table = entries_of(data, form, compiled=True)
        assert read_back(table, form)[0]["f2"]["f102"] == {"f1000": b"abc"}
        written, _ = write_manifest(table, form)
        (row,) = pa.Table.from_batches(
            decode_manifest(written, PART, EntryProjection.of(COLUMNS, {1000: "fixed[3]"}))
        ).to_pylist()
        assert row["partition"] == {"1000": b"abc"}


def test_a_long_number_of_records_is_copied_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_entries, "BATCH_RECORDS", 64)
    form = form_of(3, {1000: "int"})
    source = avro_file(
        dict(form.schema), [{**sample(number, 3), "status": number % 3} for number in range(1_000)], "null"
    )
    table = entries_of(source, form, compiled=True)
    assert table.column("ordinal").to_pylist() == [number for number in range(1_000) if number % 3 != 2]
    assert repr(read_back(table, form)) == repr(expected(source, dict(form.schema), form, table))


@pytest.mark.parametrize("kind", ["decimal(9, 2)", "uuid", "fixed[4]", "unknown"])
def test_two_fields_of_a_type(kind: str) -> None:
    """A fixed type is defined once and then named; a type without values is not a union of two nulls."""
    form = form_of(2, {1000: kind, 1001: kind})
    value = None if kind == "unknown" else bytes(16)[: 16 if kind == "uuid" else 4]
    source = sample(1, 2)
    source["data_file"]["partition"] = {"p1000": value, "p1001": None}
    schema = dict(form.schema)
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, parse(bytes_for_fixed(schema) or schema, LOCATION), source)
    data = container(schema, [(1, stream.getvalue())])
    for compiled in (False, True):
        table = entries_of(data, form, compiled)
        written, row = write_manifest(table, form)
        projection = EntryProjection.of(COLUMNS, {1000: kind, 1001: kind})
        (entry,) = pa.Table.from_batches(decode_manifest(written, PART, projection)).to_pylist()
        assert entry["partition"]["1001"] is None
        assert (entry["partition"]["1000"] is None) == (value is None)
        assert [summary["contains_null"] for summary in row.to_pylist()[0]["partitions"]] == [value is None, True]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("later", "per_day"), [("timestamp", 86_400 * 10**6), ("timestamp_ns", 86_400 * 10**9)])
def test_dates_that_were_promoted_are_not_copied(later: str, per_day: int, compiled: bool) -> None:
    """The new manifest declares a long, and must not have the days of the source's int."""
    sources = [sample(number, 3) for number in range(2)]
    for source, day in zip(sources, (-18_262, None), strict=True):
        source["data_file"]["partition"] = {"p1000": day}
    form = form_of(3, {1000: later})
    table = entries_of(avro_file(dict(form_of(3, {1000: "date"}).schema), sources), form, compiled)
    assert [entry["f2"]["f102"]["f1000"] for entry in read_back(table, form)] == [-18_262 * per_day, None]
    (summary,) = write_manifest(table, form)[1].to_pylist()[0]["partitions"]
    assert summary["lower_bound"] == (-18_262 * per_day).to_bytes(8, "little", signed=True)


@pytest.mark.parametrize(("values", "known"), [((b"\0" * 16, b"\1" * 16), True), ((b"\0" * 16, b"\xff" * 16), False)])
def test_uuids_that_readers_order_in_different_ways(values: tuple[bytes, ...], known: bool) -> None:
    """Without summaries nobody leaves out the manifest."""
    row = row_of(values, "uuid")
    assert (row.to_pylist()[0]["partitions"] is not None) == known


def test_mutated_manifests_are_refused_or_copied_whole() -> None:
    """Any bytes yield readable entries or one error, never a crash or bytes from outside the records."""
    form, chance, refused = form_of(3, {1000: "int"}), Random(3), 0
    schema = dict(form.schema)
    body = avro_file(schema, [sample(number, 3) for number in range(20)], "null")
    (block,) = read_blocks(body, read_header(body, LOCATION), LOCATION)
    records = body[block.offset : block.offset + block.size]
    for _ in range(20_000 if SOAK else 1_000):
        changed = bytearray(records)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            table = entries_of(container(schema, [(20, bytes(changed))]), form, compiled=True)
        except CorruptFileError:
            refused += 1
            continue
        for value in table.column(ENTRY).to_pylist():
            assert len(value) <= len(records) + 60
            assert bytes(changed).find(value[-20:]) >= 0, "what stands behind the row id was in the source"
    assert refused > 100
