"""Write the Avro object container: its header, and blocks of encoded records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkmeta.avro.container import MAGIC

# Inflated bytes of a block, as in Java's library. Readers split a file at its blocks.
_BLOCK_BYTES: Final = 64_000


def container_header(schema: Mapping[str, Any], codec: str, properties: Mapping[str, str], sync: bytes) -> bytes:
    """Return the header of a file.

    Args:
        schema: the Avro schema of its records.
        codec: the name of the codec in Avro.
        properties: more key-value metadata.
        sync: the sync marker, 16 random bytes.
    """
    pairs = {"avro.schema": json.dumps(schema), "avro.codec": codec, **properties}
    texts = (_text(part) for pair in pairs.items() for part in pair)
    return MAGIC + _long(len(pairs)) + b"".join(texts) + _long(0) + sync


def container_blocks(records: pa.BinaryArray, pack: Callable[[Any], bytes], sync: bytes) -> Iterator[bytes]:
    """Yield the blocks of encoded records.

    Args:
        records: the records.
        pack: compresses; see `container.deflater`.
        sync: the sync marker of the header.
    """
    for count, packed in packed_blocks(records, pack):
        yield _long(count) + _long(len(packed)) + packed + sync


def packed_blocks(records: pa.BinaryArray, pack: Callable[[Any], bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of records in each block, and their compressed bytes, which are adjacent in Arrow."""
    offsets = np.frombuffer(records.buffers()[1], np.int32)[records.offset : records.offset + len(records) + 1]
    data = memoryview(records.buffers()[2])
    first = 0
    while first < len(records):
        end = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _BLOCK_BYTES, "right")) - 1)
        yield end - first, pack(data[offsets[first] : offsets[end]])
        first = end


def _text(value: str) -> bytes:
    return _long(len(value.encode())) + value.encode()


def _long(value: int) -> bytes:
    """Encode a non-negative number in Avro's zigzag form."""
    remaining, encoded = value << 1, bytearray()
    while remaining > 0x7F:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    return bytes([*encoded, remaining])
