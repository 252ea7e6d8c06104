"""Compiled programs read manifests as fastavro does, value by value, and fastavro reads what they can't."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkmeta import avro
from sparkmeta.avro import decode, program
from sparkmeta.avro.program import NotCompilable, compile_program
from sparkmeta.avro.schema import manifest_schema
from sparkmeta.entries.projection import FILE_COLUMNS, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.entry import METRICS_MAPS
from tests.avro.avro_files import avro_file, data_file, entry, entry_schema, field, pairs, plain_map
from tests.avro.decoders import LOCATION, PART, decoded, values_or_error
from tests.avro.random_manifests import container, random_manifest, text
from tests.avro.test_container import varint
from tests.handmade import (
    HandmadeTable,
    data,
    deletion_vector,
    equality_deletes,
    long_bounds,
    position_deletes,
)

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"


@settings(
    max_examples=20_000 if SOAK else 150,
    deadline=None,
    derandomize=not SOAK,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.randoms(use_true_random=True))
def test_equal_to_fastavro_on_any_schema(chance: Random) -> None:
    manifest = random_manifest(chance)
    data, projection = manifest.data, manifest.projection
    compile_program(manifest_schema(manifest.schema, LOCATION), projection)
    expected = values_or_error(data, projection, compiled=False)
    assert expected != "refused"
    assert values_or_error(data, projection, compiled=True) == expected


@pytest.mark.parametrize("stats", [{}, {1: "long"}, {1: "long", 2: "string", 3: "double"}], ids=["no", "one", "all"])
def test_equal_to_fastavro_on_manifests_of_every_content(stats: dict[int, str], tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path)
    bounds = long_bounds(-3, 2**40)
    table.add(
        0, 1, data("file:///a", partition={"part": "é=/"}, **bounds), data("file:///b", None, partition={"part": None})
    )
    table.add(0, 2, *(data(f"file:///{n}", partition={"ratio": -0.5 * n}, status=n % 3) for n in range(100)))
    table.add(
        1, 0, deletion_vector("file:///a"), position_deletes("file:///p"), equality_deletes("file:///e", ids=(1, 3))
    )
    table.write()
    maps = [name for name, _ in METRICS_MAPS.values()]
    manifests = sorted((tmp_path / "metadata").glob("m*.avro"))
    assert len(manifests) == 3
    for manifest in manifests:
        for columns in (["location"], [*FILE_COLUMNS, *maps]):
            read = partial(values_or_error, manifest.read_bytes())
            projection = EntryProjection.of(columns, {1000: "string", 1001: "double"}, stats)
            assert read(projection, compiled=True) == read(projection, compiled=False) != "refused"


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
@pytest.mark.parametrize(("batch_records", "batch_bytes"), [(8192, 1 << 23), (100, 1 << 23), (8192, 1500), (1, 1)])
@pytest.mark.parametrize("block_bytes", [1, 700, 1 << 20])
def test_batches_of_any_size_hold_all_records(
    codec: str, batch_records: int, batch_bytes: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "BATCH_RECORDS", batch_records)
    monkeypatch.setattr(program, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(program, "_LEAST_RECORDS", 1)
    file = data_file(field("split_offsets", 132, ["null", {"type": "array", "items": "long"}]))
    records = [entry(number, split_offsets=[number, 2**40] if number % 3 else None) for number in range(1000)]
    data = avro_file(entry_schema(file), records, codec, block_bytes)
    batches = decoded(data, EntryProjection.of(["location", "split_offsets"]), compiled=True)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["ordinal"] for row in rows] == list(range(1000))
    assert [row["location"] for row in rows] == [f"file:///t/{number}.parquet" for number in range(1000)]
    assert [row["split_offsets"] for row in rows] == [record["data_file"]["split_offsets"] for record in records]
    assert max(map(len, batches)) <= batch_records


@pytest.mark.parametrize("compiled", [False, True], ids=["fastavro", "compiled"])
@pytest.mark.parametrize("more", [0, 9], ids=["few keys", "many keys"])
def test_the_last_of_two_values_of_a_key_counts(compiled: bool, more: int) -> None:
    file = data_file(field("value_counts", 109, pairs(119, 120, "long")))
    items = [{"key": 1, "value": 5}, {"key": 2, "value": 6}, {"key": 1, "value": 7}]
    data = avro_file(entry_schema(file), [entry(value_counts=items)])
    projection = EntryProjection.of(["value_counts"], stats=dict.fromkeys([1, *range(100, 100 + more)], "long"))
    (row,) = (row for batch in decoded(data, projection, compiled) for row in batch.to_pylist())
    assert row["content_stats"]["1"]["value_count"] == 7
    assert row["value_counts"] == [(1, 5), (2, 6), (1, 7)]


@pytest.mark.parametrize(
    ("extra", "partition", "values"),
    [
        (field("value_counts", 109, plain_map("double")), [], {"value_counts": {"1": 3.0}}),
        (field("sort_order_id", 140, ["null", "int", "long"]), [], {"sort_order_id": 4}),
        (field("key_metadata", 131, "string"), [], {"key_metadata": "k"}),
        (field("equality_ids", 135, {"type": "array", "items": ["null", "int"]}), [], {"equality_ids": [3]}),
        (field("content", 134, "int"), [field("p", 1000, ["null", "double"])], {"content": 0, "partition": {"p": 1.5}}),
    ],
    ids=["values", "union", "text as bytes", "optional items", "a wider partition value"],
)
def test_what_cannot_be_compiled_is_left_to_fastavro(
    extra: dict[str, Any], partition: list[Any], values: dict[str, Any]
) -> None:
    schema = entry_schema(data_file(extra, partition=partition))
    projection = EntryProjection.of([*FILE_COLUMNS, "value_counts"], {1000: "float"} if partition else {})
    with pytest.raises(NotCompilable):
        compile_program(manifest_schema(schema, LOCATION), projection)
    data = avro_file(schema, [entry(**values)])
    assert values_or_error(data, projection, compiled=True) == values_or_error(data, projection, compiled=False)


def one_block(body: bytes, *extra: dict[str, Any], count: int = 1, records: int | None = None) -> bytes:
    """A file of one record that ends with `body`, the values of extra fields of its data_file."""
    schema = entry_schema(data_file(*extra))
    start = varint(1) + varint(0) + text(b"file:///x") + text(b"PARQUET") + varint(1) + varint(2)
    return container(schema, [(count if records is None else records, (start + body) * count)])


COUNTS = field("value_counts", 109, pairs(119, 120, "long")[1])
BOUNDS = field("lower_bounds", 125, pairs(126, 127, "bytes")[1])
TEXT_COUNTS = field("value_counts", 109, plain_map("long")[1])
OFFSETS = field("split_offsets", 132, {"type": "array", "items": "long"})


@pytest.mark.parametrize(
    ("extra", "body", "problem"),
    [
        ([COUNTS], varint(1 << 40), "a number of items that the block has no room for"),
        ([COUNTS], varint(-(2**63)) + varint(0), "a number of items"),
        ([COUNTS], varint(-1) + varint(1 << 50), "a length that is negative or goes beyond"),
        ([COUNTS], varint(1) + b"\xff" * 11, "longer than 10 bytes"),
        ([BOUNDS], varint(1) + varint(7) + varint(-1) + b"\x00", "a length that is negative"),
        ([BOUNDS], varint(1) + varint(7) + varint(9) + b"\x00", "its bytes end before"),
        ([BOUNDS], varint(1) + varint(7) + varint(99) + b"\x00", "a length that"),
        # The length that the block's end cuts in two would lead back, were it added to the position.
        ([BOUNDS], varint(1) + varint(7) + b"\x81", "its bytes end before"),
        ([OFFSETS], varint(1) + b"\xff" * 11 + b"\x00\x00", "longer than 10 bytes"),
        ([TEXT_COUNTS], varint(1) + text(b"0x7") + varint(1) + b"\x00", "a key"),
        ([TEXT_COUNTS], varint(1) + text(b"007") + varint(1) + b"\x00", "a key"),
        ([], b"\x00", "bytes after its last record"),
        ([field("sort_order_id", 140, ["null", "int"])], varint(2), "a branch that its union does not have"),
        ([field("file_name", 900, "bytes")], varint(-3), "a length that is negative"),
        ([field("size", 900, "double")], bytes(7), "its bytes end before"),
    ],
)
def test_bytes_that_no_record_has(extra: list[dict[str, Any]], body: bytes, problem: str) -> None:
    for stats in ({7: "binary"}, {}):
        projection = EntryProjection.of([*FILE_COLUMNS, "value_counts", "lower_bounds"], stats=stats)
        with pytest.raises(CorruptFileError, match=f"{LOCATION}: .*({problem})"):
            decoded(one_block(body, *extra), projection, compiled=True)


def test_more_records_than_a_block_has_room_for_are_refused_before_they_are_read() -> None:
    data = one_block(b"", count=3, records=12)
    with pytest.raises(CorruptFileError, match="block record count is 12"):
        decoded(data, EntryProjection.of(["location"]), compiled=True)


def test_text_that_is_not_utf_8_is_refused() -> None:
    data = one_block(text(b"\xff\xfe"), field("referenced_data_file", 143, "string"))
    with pytest.raises(CorruptFileError, match=f"{LOCATION}: referenced_file .*UTF-?8"):
        decoded(data, EntryProjection.of(["referenced_file"]), compiled=True)
    assert len(decoded(data, EntryProjection.of(["location"]), compiled=True)) == 1


@pytest.mark.parametrize("compiled", [False, True], ids=["fastavro", "compiled"])
def test_an_entry_without_a_data_file_is_refused(compiled: bool) -> None:
    file = data_file()
    schema = entry_schema({**file, "type": ["null", file["type"]]})
    data = container(schema, [(1, varint(1) + varint(0) + varint(0))])
    with pytest.raises(CorruptFileError, match=f"{LOCATION}: .*data_file"):
        decoded(data, EntryProjection.of(["version_info"]), compiled)


def test_numbers_that_32_bits_cannot_hold_are_refused() -> None:
    data = one_block(varint(1 << 40), field("sort_order_id", 140, "long"))
    with pytest.raises(CorruptFileError, match=f"{LOCATION}: sort_order_id"):
        decoded(data, EntryProjection.of(["sort_order_id"]), compiled=True)


def test_arrays_of_nothing_are_refused() -> None:
    nothing = {"type": "record", "name": "n", "fields": [field("x", 901, "null")]}
    with pytest.raises(CorruptFileError, match="has no end"):
        manifest_schema(entry_schema(data_file(field("y", 900, {"type": "array", "items": nothing}))), LOCATION)


class TestCompiler:
    """Who decodes: what a process is given to decode, and what is installed, decide it."""

    @pytest.fixture
    def prepared(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """A machine that only says whether it was compiled before, and whether it was asked for."""
        state: dict[str, Any] = {"kept": True, "prepared": 0}

        def prepare() -> None:
            state["prepared"] += 1

        fake = SimpleNamespace(is_cached=lambda: state["kept"], prepare=prepare)
        monkeypatch.setattr(avro, "machine", fake, raising=False)
        monkeypatch.setitem(sys.modules, "sparkmeta.avro.machine", fake)
        return state

    def test_small_manifests_never_load_it(self, prepared: dict[str, Any]) -> None:
        compiler = decode.Compiler()
        assert not any(compiler.pays_for(20_000) for _ in range(10))
        assert not prepared["prepared"]

    def test_a_large_manifest_loads_it_at_once_and_only_once(self, prepared: dict[str, Any]) -> None:
        compiler = decode.Compiler()
        assert compiler.pays_for(decode.LOADING_BYTES)
        assert compiler.pays_for(decode.SMALL_BYTES)
        assert not compiler.pays_for(decode.SMALL_BYTES - 1)
        assert prepared["prepared"] == 1

    def test_many_small_ones_load_it_in_the_end(self, prepared: dict[str, Any]) -> None:
        compiler = decode.Compiler()
        chosen = [compiler.pays_for(decode.LOADING_BYTES // 4) for _ in range(5)]
        assert chosen == [False, False, False, True, True]

    def test_where_it_was_not_compiled_before_more_must_be_at_hand(self, prepared: dict[str, Any]) -> None:
        prepared["kept"] = False
        compiler = decode.Compiler()
        assert not compiler.pays_for(decode.COMPILING_BYTES - 1)
        assert compiler.pays_for(decode.SMALL_BYTES)
        assert prepared["prepared"] == 1

    def test_without_numba_fastavro_decodes_everything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(avro, "machine", raising=False)
        monkeypatch.setitem(sys.modules, "sparkmeta.avro.machine", None)
        monkeypatch.setattr(decode, "compiler", compiler := decode.Compiler())
        assert not compiler.pays_for(1 << 40)
        assert pa.Table.from_batches(
            decode.decode_manifest(
                avro_file(entry_schema(data_file()), [entry()]), PART, EntryProjection.of(["location"])
            )
        )["location"].to_pylist() == ["file:///t/0.parquet"]


def test_a_compiled_machine_is_known_to_be_cached() -> None:
    from sparkmeta.avro import machine

    machine.prepare()
    assert machine.is_cached()
    for compiled in (machine.run, machine.take_bytes, machine.take_pairs, machine.take_numbers):
        assert len(compiled.signatures) == 1


def test_where_numba_must_not_compile_fastavro_decodes_everything() -> None:
    code = "from sparkmeta.avro.decode import compiler; assert not compiler.pays_for(1 << 40)"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
