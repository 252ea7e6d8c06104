"""ORC files with times before 1970, which Arrow's writer stores in a way that Java does not understand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from sparkmeta.errors import ValidationError
from sparkmeta.rows.orc import SECONDARY, OrcParts, OrcSeconds, decoded_runs, number_in, parsed
from sparkmeta.write.formats import OrcOutput

if TYPE_CHECKING:
    from pathlib import Path

STAMP, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("a", STAMP, metadata={"iceberg.id": "2"}),
        pa.field("s", pa.struct([pa.field("t", ZONED, metadata={"iceberg.id": "4"})])),
        pa.field("l", pa.list_(pa.field("element", STAMP))),
        pa.field("m", pa.map_(pa.int32(), ZONED)),
    ]
)
FRACTIONS = st.sampled_from([0, 1, 999, 1000, 998_999, 999_000, 999_999]) | st.integers(0, 999_999)
# Arrow reads the years 1677 to 2262.
SECONDS = st.sampled_from([-2, -3, 0, 1]) | st.integers(-9_000_000_000, 9_000_000_000)
MICROS = st.builds(lambda second, fraction: second * 10**6 + fraction, SECONDS, FRACTIONS)


def nested(micros: list[int | None]) -> pa.Table:
    """Times at the top, and in structs, lists and maps that are null here and there."""
    lists = [None if place % 5 == 1 else micros[place : place + place % 3] for place in range(len(micros))]
    maps = [None if values is None else list(enumerate(values)) for values in lists]
    structs = [None if place % 7 == 3 else {"t": value} for place, value in enumerate(micros)]
    columns = (range(len(micros)), micros, structs, lists, maps)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


def write(table: pa.Table, path: Path, codec: str = "zlib", rows: int = 10**6) -> None:
    options: Any = SimpleNamespace(codec=codec, group_bytes=1 << 16, orc_strategy="speed")
    output = OrcOutput(path.open("wb"), table.schema, options, "the table")
    try:
        for place in range(0, len(table), rows):
            output.write(table.slice(place, rows))
    except ValidationError:
        output.abort()
        raise
    assert output.close().size == path.stat().st_size


def least_nanos(path: Path) -> int:
    """The least number in the streams of nanoseconds of a file."""
    least = 0
    with pa.OSFile(str(path)) as source:
        parts = OrcParts(source, str(path))
        for stripe in [field.value for field in parts.footer if field.number == 3]:
            place, index, data, footer = (number_in(stripe, number) for number in (1, 2, 3, 4))
            for field in parsed(parts.decoded(parts.read(place + index + data, footer))):
                if field.number == 1:
                    length = number_in(field.value, 3)
                    if number_in(field.value, 1) == SECONDARY:
                        runs = decoded_runs(parts.decoded(parts.read(place, length)))
                        least = min([least, *(int(run.min()) for run in runs)])
                    place += length
    return least


def assert_stored(micros: list[int | None], path: Path, codec: str = "zlib") -> None:
    table = nested(micros)
    write(table, path, codec, rows=7000)
    assert orc.read_table(path).cast(SCHEMA).equals(table)
    file = orc.ORCFile(path)
    assert file.schema.field("s").type.field("t").metadata == {b"iceberg.id": b"4"}
    with pa.OSFile(str(path)) as source:
        seconds = OrcSeconds(source, str(path))
        stripes = [seconds.read_stripe(number, SCHEMA.names, file.schema) for number in range(file.nstripes)]
    assert pa.Table.from_batches(stripes).cast(SCHEMA).equals(table)
    assert least_nanos(path) == 0


def is_stored(value: int | None) -> bool:
    """Whether ORC can store a time: times in the last 999 ms before 1970 have the seconds of times after it."""
    return value is None or not -999_000 <= value < 0


@given(st.lists((MICROS | st.none()).filter(is_stored), min_size=1, max_size=60))
def test_times(tmp_path_factory: pytest.TempPathFactory, micros: list[int | None]) -> None:
    assert_stored(micros, tmp_path_factory.getbasetemp() / "times.orc")


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_times_in_stripes_of_every_codec(codec: str, tmp_path: Path) -> None:
    micros = [None if place % 11 == 0 else (place - 20_000) * 86_399_250_001 for place in range(20_000)]
    assert_stored([value for value in micros if is_stored(value)], tmp_path / "f.orc", codec)
    assert orc.ORCFile(tmp_path / "f.orc").nstripes > 1


@pytest.mark.parametrize("unit", ["us", "ns"])
@pytest.mark.parametrize("kind", ["a", "s.t", "l.element", "m.key", "m.value"])
def test_times_that_orc_cannot_store(kind: str, unit: str, tmp_path: Path) -> None:
    stamp, second = pa.timestamp(unit), {"us": 10**6, "ns": 10**9}[unit]
    shapes: dict[str, Any] = {
        "a": (stamp, lambda value: value),
        "s.t": (pa.struct([("t", stamp)]), lambda value: {"t": value}),
        "l.element": (pa.list_(stamp), lambda value: [None, value]),
        "m.key": (pa.map_(stamp, stamp), lambda value: [(value, 0)]),
        "m.value": (pa.map_(stamp, stamp), lambda value: [(0, value)]),
    }
    shape, shaped = shapes[kind]
    schema = pa.schema([(kind[0], shape)])
    for value in (-1, -second // 2, -second // 1000 * 999):
        table = pa.table([pa.array([None, shaped(value)], shape)], schema=schema)
        with pytest.raises(ValidationError, match=rf"^the table: column {kind} has the time 1969-12-31 23:59:59\.\d+:"):
            write(table, tmp_path / "f.orc")
    for value in (-second, -second // 1000 * 999 - 1, 0):
        table = pa.table([pa.array([None, shaped(value)], shape)], schema=schema)
        write(table, tmp_path / "f.orc")
        assert orc.read_table(tmp_path / "f.orc").cast(schema).equals(table)
