"""Broken manifests and manifest lists: one clear error or right rows, in bounded time, and never a crash."""

from __future__ import annotations

import random
import resource
import time
from typing import Any

import pytest

from sparkmeta.avro.container import Data, Windows
from sparkmeta.avro.decode import decode_manifest
from sparkmeta.avro.manifest_list import decode_manifest_list
from sparkmeta.entries.manifest_records import ManifestContext, ManifestPart
from sparkmeta.entries.projection import FILE_COLUMNS, EntryProjection
from sparkmeta.errors import SparkmetaError
from sparkmeta.spec.locations import Locations
from tests.avro.avro_files import SEQUENCES, avro_file, data_file, entry, entry_schema, field, pairs
from tests.avro.decoders import decoded
from tests.avro.test_manifest_list import V2, listed

PROJECTION = EntryProjection.of(
    [*FILE_COLUMNS, "value_counts", "lower_bounds"], {1000: "string"}, {1: "long", 2: "string"}
)
MIB = 1 << 20
MEMORY_LIMIT = 512 * MIB
SECONDS_LIMIT = 5.0


def manifest(codec: str) -> bytes:
    file = data_file(
        field("value_counts", 109, pairs(119, 120, "long")),
        field("lower_bounds", 125, pairs(126, 127, "bytes")),
        field("split_offsets", 132, ["null", {"type": "array", "items": "long"}]),
        partition=[field("p", 1000, ["null", "string"])],
    )
    bounds = [{"key": 1, "value": bytes(8)}, {"key": 2, "value": b"abc"}]
    counts = [{"key": 1, "value": 7}]
    rows = [
        entry(n, partition={"p": f"p{n}"}, value_counts=counts, lower_bounds=bounds, split_offsets=[4, 9])
        for n in range(40)
    ]
    return avro_file(entry_schema(file, *SEQUENCES), rows, codec, block_bytes=1500)


def manifest_list(codec: str) -> bytes:
    summary = {"contains_null": False, "contains_nan": None, "lower_bound": b"a", "upper_bound": b"b"}
    return listed(V2, *({"content": 0, "sequence_number": n, "partitions": [summary]} for n in range(20)))


def decode_list(data: bytes) -> Any:
    return decode_manifest_list(data, "file:///list.avro", Locations("file:///t", 4))


def decode_entries(data: Data) -> Any:
    part = ManifestPart(0, "file:///m.avro", 0, ManifestContext(1, 1, None))
    return list(decode_manifest(data, part, PROJECTION))


def decode_windows(data: bytes) -> Any:
    windows = Windows(lambda offset, size: data[offset : offset + size], len(data), "file:///m.avro")
    windows.SIZE = 700
    return decode_entries(windows)


def decode_compiled(data: bytes) -> Any:
    return decoded(data, PROJECTION, compiled=True)


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        place = chance.randrange(len(changed))
        kind = chance.random()
        if kind < 0.5:
            changed[place] ^= 1 << chance.randrange(8)
        elif kind < 0.7:
            changed[place : place + 1] = bytes([0xFF] * chance.randrange(1, 11))
        elif kind < 0.85:
            del changed[place : place + chance.randrange(1, 50)]
        else:
            changed[place:place] = chance.randbytes(chance.randrange(1, 20))
        if not changed:
            return b""
    return bytes(changed)


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize(
    ("make", "decode"),
    [
        (manifest, decode_entries),
        (manifest, decode_compiled),
        (manifest, decode_windows),
        (manifest_list, decode_list),
    ],
)
def test_mutated_files(make: Any, decode: Any, codec: str, soak: bool) -> None:
    data, chance = make(codec), random.Random(f"{make.__name__} {codec}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = named = 0
    slowest = 0.0
    rounds = 250_000 if soak else 1_500
    for _ in range(rounds):
        started = time.perf_counter()
        try:
            decode(mutated(data, chance))
        except SparkmetaError as error:
            named += "file:///" in str(error)
            refused += 1
        slowest = max(slowest, time.perf_counter() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    figures = f"{rounds} mutations, {refused} refused, slowest {slowest:.3f} s, grew {grown // MIB} MiB"
    print(f"{make.__name__} {codec}: {figures}")  # noqa: T201  the figures of `make soak`
    assert refused == named > rounds // 4
    assert grown < MEMORY_LIMIT


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_truncated_files(codec: str) -> None:
    data = manifest(codec)
    whole = sum(len(batch) for batch in decode_entries(data))
    for size in range(0, len(data), 5):
        try:
            assert sum(len(batch) for batch in decode_entries(data[:size])) < whole
        except SparkmetaError:
            continue
