"""Compiled programs on broken blocks, whose last spare byte is the last of a page: a read beyond it ends the process.

`make test` runs a seeded slice; SPARKMETA_SOAK=1 a million blocks.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import time
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkmeta.avro import machine
from sparkmeta.avro import program as programs
from sparkmeta.avro.container import Block, Header, read_header
from sparkmeta.avro.program import Program, compile_program, compiled_records
from sparkmeta.avro.schema import manifest_schema
from sparkmeta.entries.manifest_records import EntryBuilder
from sparkmeta.errors import CorruptFileError
from tests.avro.decoders import LOCATION, PART
from tests.avro.random_manifests import RandomManifest, random_manifest
from tests.properties.test_fuzz_manifests import MEMORY_LIMIT, MIB, SECONDS_LIMIT, mutated

MUTATIONS_OF_ONE = 100


class LastBytesOfAPage:
    """Memory whose end is followed by a page that no one may touch."""

    SIZE = 64 * mmap.PAGESIZE

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self.SIZE + mmap.PAGESIZE)
        self._array = np.frombuffer(self._memory, np.uint8)
        forbidden = ctypes.c_void_p(self._array.ctypes.data + self.SIZE)
        assert ctypes.CDLL(None).mprotect(forbidden, mmap.PAGESIZE, 0) == 0

    def readable(self, buffer: Any, size: int) -> Any:
        data = self._array[self.SIZE - size - machine.PADDING : self.SIZE]
        data[:size] = buffer[:size]
        data[size:] = 0
        data.flags.writeable = False
        return data


@pytest.fixture(scope="module")
def memory() -> LastBytesOfAPage:
    machine.prepare()
    return LastBytesOfAPage()


def test_mutated_blocks(memory: LastBytesOfAPage, monkeypatch: pytest.MonkeyPatch, soak: bool) -> None:
    monkeypatch.setattr(programs, "_readable", memory.readable)
    chance = Random("blocks")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    for _ in range(20_000 if soak else 120):
        manifest = random_manifest(chance, most_blocks=1, most_records=8)
        schema = manifest_schema(manifest.schema, LOCATION)
        program = compile_program(schema, manifest.projection)
        header = read_header(manifest.data, LOCATION)
        for _ in range(MUTATIONS_OF_ONE if manifest.blocks else 0):
            started = time.perf_counter()
            outcomes[read_broken(manifest, header, program, chance)] += 1
            slowest = max(slowest, time.perf_counter() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"{dict(outcomes)}, slowest {slowest:.3f} s, grew {grown // MIB} MiB")  # noqa: T201  the figures of `make soak`
    assert min(outcomes["rows"], outcomes["refused"]) > sum(outcomes.values()) // 20
    assert slowest < SECONDS_LIMIT
    assert grown < MEMORY_LIMIT


def read_broken(manifest: RandomManifest, header: Header, program: Program, chance: Random) -> str:
    """Reads a manifest's one block, in which something is wrong, into Arrow arrays."""
    count, body = manifest.blocks[0]
    data = mutated(body or b"x", chance)
    block = Block(0, len(data), count + (chance.random() < 0.2), 0)
    builder = EntryBuilder(PART, manifest.projection)
    try:
        for first, records in compiled_records(data, [block], header, program, LOCATION, 8192):
            ordinals = pa.array(range(first, first + len(records)), pa.int64())
            builder.batch(ordinals, records).validate(full=True)
    except CorruptFileError as error:
        assert LOCATION in str(error)  # noqa: PT017
        return "refused"
    return "rows"
