"""Manifests of any schema whose locations change: copied or encoded anew, all other values stay."""

from __future__ import annotations

import io
import json
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.avro import relocate
from sparkmeta.avro.container import inflate, read_blocks, read_header
from sparkmeta.avro.relocate import relocated_list, relocated_manifest, relocated_position_deletes
from sparkmeta.avro.schema import manifest_schema
from sparkmeta.entries.locations import relocated, relocated_bounds
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.spec.locations import Relocation
from tests.avro.avro_files import mislabelled_file
from tests.avro.decoders import LOCATION, Always, values_or_error
from tests.avro.random_manifests import SYNC, Writer, text
from tests.avro.test_container import varint
from tests.manifests.test_encoded import HYPOTHESIS

PATH_ID = 2147483546
OLD, NEW = "s3://büc.ket/t (1)", "file:///a\\1/new%20place/of t"
PATHS = [f"{OLD}/data/a=1/f.parquet", f"s3a{OLD[2:]}/x", f"{OLD}2/y", OLD[:9], f"gs{OLD[2:]}/z", "/z"]
RELOCATION = Relocation(OLD, NEW)


class PathWriter(Writer):
    """Writes locations below and beside the prefix, whole and cut, where a manifest has locations."""

    def bytes(self, kind: str, name: str, key: int | None) -> bytes:
        if name in ("file_path", "referenced_data_file") or key == PATH_ID:
            return self.chance.choice([*PATHS, *PATHS[:2]]).encode()
        return super().bytes(kind, name, key)


def delete_manifest(schema: dict[str, Any], blocks: list[tuple[int, bytes]]) -> bytes:
    pairs = {"avro.schema": json.dumps(schema), "content": "deletes", "unknown": "stays"}
    head = b"Obj\x01" + varint(len(pairs)) + b"".join(text(word.encode()) for pair in pairs.items() for word in pair)
    return head + b"\x00" + SYNC + b"".join(varint(count) + text(body) + SYNC for count, body in blocks)


def records(data: bytes, schema: dict[str, Any]) -> list[dict[str, Any]]:
    header, writer = read_header(data, LOCATION), manifest_schema(schema, LOCATION).writer
    rows = []
    for block in read_blocks(data, header, LOCATION):
        stream = io.BytesIO(data[block.offset : block.offset + block.size])
        rows += [fastavro.schemaless_reader(stream, writer, None) for _ in range(block.count)]
    return rows


def sizes_of(paths: pa.Array) -> pa.Array:
    return pc.add(pc.binary_length(paths), 1 << 40).cast(pa.int64())


def moved(path: str) -> str:
    for prefix in (OLD, f"s3a{OLD[2:]}", f"s3n{OLD[2:]}"):
        if path.startswith(f"{prefix}/"):
            return NEW + path[len(prefix) :]
    return path


def expected(row: dict[str, Any]) -> dict[str, Any]:
    file = dict(row["f2"])
    if row["f0"] != 2 and file.get("f134") == 1:
        file["f104"] = len(file["f100"].encode()) + (1 << 40)
    file["f100"] = moved(file["f100"])
    if file.get("f143") is not None:
        file["f143"] = moved(file["f143"])
    lower, upper = (bound_of(file.get(name)) for name in ("f125", "f128"))
    has_moved = all(bound is not None and moved(bound) != bound for bound in (lower, upper))
    if lower == upper or has_moved:
        lower, upper = (bound and moved(bound) for bound in (lower, upper))
    else:
        lower, upper = lower and "", upper and "\U0010ffff"
    return row | {"f2": with_bound(with_bound(file, "f125", lower), "f128", upper)}


def bound_of(items: Any) -> str | None:
    pairs = items.items() if isinstance(items, dict) else [(pair["k"], pair["v"]) for pair in items or ()]
    return next((value.decode() for key, value in pairs if int(key) == PATH_ID), None)


def with_bound(file: dict[str, Any], name: str, bound: str | None) -> dict[str, Any]:
    if bound is None:
        return file
    items: Any = file[name]
    if isinstance(items, dict):
        return file | {name: items | {str(PATH_ID): bound.encode()}}
    return file | {name: [pair | {"v": bound.encode()} if pair["k"] == PATH_ID else pair for pair in items]}


def flat(value: dict[str, Any], above: str = "") -> dict[str, str]:
    """Return the leaves of a record as texts, in which NaN equals NaN."""
    leaves: dict[str, str] = {}
    for name, item in value.items():
        leaves |= flat(item, f"{above}{name}.") if isinstance(item, dict) else {f"{above}{name}": repr(item)}
    return leaves


@HYPOTHESIS
@given(st.randoms(use_true_random=True))
def test_any_schema(chance: Random) -> None:
    writer = PathWriter(chance)
    schema = writer.schema()
    counts = [chance.randrange(4) for _ in range(3)]
    data = delete_manifest(schema, [(count, b"".join(writer.record(schema) for _ in range(count))) for count in counts])
    wanted = [expected(row) for row in records(data, schema)]
    for compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(relocate, "compiler", Always(compiled))
            try:
                new = relocated_manifest(data, LOCATION, RELOCATION, sizes_of)
            except UnsupportedError as error:
                assert "a union of several types" in str(error)  # noqa: PT017
                continue
            assert relocated_manifest(data, LOCATION, RELOCATION, sizes_of) == new
        for row, other in zip(records(new, schema), wanted, strict=True):
            assert flat(row) == flat(other)
        assert read_header(new, LOCATION) == read_header(data, LOCATION)
        # This reader skips maps by the sizes in their blocks.
        columns = EntryProjection.of({"location", "record_count"})
        assert (values_or_error(new, columns, True) == "refused") == (values_or_error(data, columns, True) == "refused")


def test_a_number_that_takes_more_bytes_than_necessary() -> None:
    """Avro allows it, no writer does it: the value can't be located by its end."""
    fields = [{"name": "file_path", "type": "string", "field-id": 100}]
    fields += [{"name": "file_size_in_bytes", "type": "long", "field-id": 104}]
    file = {"type": "record", "name": "r2", "fields": fields}
    status = {"name": "status", "type": "int", "field-id": 0}
    schema = {"type": "record", "name": "e", "fields": [status, {"name": "data_file", "type": file, "field-id": 2}]}
    path = PATHS[0].encode()
    long_varint = bytes([len(path) << 1 & 0x7F | 0x80, len(path) >> 6 | 0x80, 0])
    data = delete_manifest(schema, [(1, varint(1) + long_varint + path + varint(5))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relocate, "compiler", Always(True))
        new = relocated_manifest(data, LOCATION, RELOCATION, sizes_of)
    assert [row["f2"] for row in records(new, schema)] == [{"f100": moved(PATHS[0]), "f104": 5}]


PATH_TEXTS = st.sampled_from(PATHS) | st.text(max_size=4).map(lambda text: f"{OLD}/{text}") | st.text(max_size=9)


@HYPOTHESIS
@given(st.lists(PATH_TEXTS, min_size=1), st.booleans(), st.integers(0, 30))
def test_bounds_include_all_paths(paths: list[str], cut: bool, length: int) -> None:
    """Also bounds that a writer has cut, and of paths that do not move."""
    lower, upper = min(paths, key=str.encode), max(paths, key=str.encode)
    lower = lower[:length] if cut else lower
    for kind in (pa.string(), pa.binary()):
        arrays = [pa.array([bound]).cast(kind) for bound in (lower, upper)]
        new_lower, new_upper = (bound.cast(pa.string())[0].as_py() for bound in relocated_bounds(*arrays, RELOCATION))
        for path in paths:
            assert new_lower.encode() <= moved(path).encode() <= new_upper.encode()


@HYPOTHESIS
@given(PATH_TEXTS, st.booleans())
def test_the_same_in_arrow_and_python(path: str, encoded: bool) -> None:
    values = pa.array([path, None, path])
    new = relocated(values.dictionary_encode() if encoded else values, RELOCATION)
    assert new.to_pylist() == [moved(path), None, moved(path)]
    assert RELOCATION.of(path) == (NEW if path in (OLD, f"s3a{OLD[2:]}") else moved(path))


def content(data: bytes) -> list[dict[str, Any]]:
    """Return the records of a file, by the names in its header."""
    header, rows = read_header(data, LOCATION), []
    for block in read_blocks(data, header, LOCATION):
        stream = io.BytesIO(inflate(data, block, header, LOCATION))
        rows += [fastavro.schemaless_reader(stream, header.schema, None) for _ in range(block.count)]
    return rows


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_lists_and_position_deletes(codec: str) -> None:
    fields = [("manifest_path", "string", 500), ("manifest_length", "long", 501), ("partition_spec_id", "int", 502)]
    schema = {
        "type": "record", "name": "manifest_file",
        "fields": [{"name": name, "type": kind, "field-id": number} for name, kind, number in fields],
    }  # fmt: skip
    rows = [
        {"manifest_path": path, "manifest_length": 7, "partition_spec_id": place} for place, path in enumerate(PATHS)
    ]
    data = mislabelled_file(schema, schema, rows, codec=codec)
    new = content(relocated_list(data, LOCATION, RELOCATION, sizes_of))
    assert [row["manifest_path"] for row in new] == [moved(path) for path in PATHS]
    assert [row["manifest_length"] for row in new] == sizes_of(pa.array(PATHS)).to_pylist()
    assert [row["partition_spec_id"] for row in new] == [*range(len(PATHS))]
    for ids in (True, False):
        columns: list[dict[str, Any]] = [
            {"name": "file_path", "type": "string"}, {"name": "pos", "type": "long"},
            {"name": "row", "type": ["null", {"type": "record", "name": "r", "fields": []}]},
        ]  # fmt: skip
        if ids:
            columns = [column | {"field-id": PATH_ID - place} for place, column in enumerate(columns)]
        deletes = {"type": "record", "name": "delete", "fields": columns}
        of_paths = [{"file_path": path, "pos": place, "row": None} for place, path in enumerate(PATHS)]
        of_files = mislabelled_file(deletes, deletes, of_paths, codec=codec)
        new = content(relocated_position_deletes(of_files, LOCATION, RELOCATION))
        assert new == [row | {"file_path": moved(row["file_path"])} for row in of_paths]
    with pytest.raises(CorruptFileError, match="file_path"):
        relocated_position_deletes(data, LOCATION, RELOCATION)
