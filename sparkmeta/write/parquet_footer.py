"""Annotate groups of a Parquet file as variants, in its footer. Spark tasks import this module, so it imports little.

Arrow writes a variant as a group without an annotation. Spark needs it, and so does any reader that does not know the
table's schema. The footer is a structure of Thrift's compact protocol (Parquet format, File Format).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from sparkmeta.spec.varints import decoded_varint

MAGIC: Final = b"PAR1"
LENGTH_BYTES: Final = 4

# Kinds of values. Footers have no maps; all other kinds are lists.
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 12
# In the header of a list: its length follows.
_LONG: Final = 15
# Field numbers of FileMetaData and SchemaElement.
_SCHEMA: Final = 2
_NAME, _NUM_CHILDREN, _LOGICAL_TYPE = 4, 5, 10
# The field 16, VARIANT, of LogicalType, with the field 1, the version of the specification, and the ends of both.
_VARIANT: Final = bytes([_STRUCT, 16 << 1, 1 << 4 | _BYTE, 1, 0, 0])


class FooterSink:
    """A file of Arrow's writer whose footer is changed.

    Attributes:
        sink: the output stream.
        groups: the paths of the groups that are variants.
    """

    def __init__(self, sink: Any, groups: Collection[str]) -> None:
        self.sink, self.groups = sink, groups
        self._held: list[bytes] | None = None

    def write(self, data: bytes) -> int:
        """Write bytes, or hold them back after `hold`."""
        if self._held is None:
            self.sink.write(data)
        else:
            self._held.append(bytes(data))
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes that the writer has written."""
        return int(self.sink.tell()) + sum(map(len, self._held or ()))

    def hold(self) -> None:
        """Hold back what is written next, which ends with the footer."""
        self._held = []

    def release(self) -> None:
        """Write the bytes that are held back, with the changed footer."""
        assert self._held is not None
        data = b"".join(self._held)
        end = len(data) - LENGTH_BYTES - len(MAGIC)
        start = end - int.from_bytes(data[end : end + LENGTH_BYTES], "little")
        footer = annotated(data[start:end], self.groups)
        self.sink.write(data[:start] + footer + len(footer).to_bytes(LENGTH_BYTES, "little") + MAGIC)

    def flush(self) -> None:
        """Do nothing: the stream is flushed when it is closed."""

    def close(self) -> None:
        """Do nothing: the caller closes the stream."""

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return bool(self.sink.closed)


def annotated(footer: bytes, groups: Collection[str]) -> bytes:
    """Return a footer in which the groups of these paths have the logical type VARIANT."""
    count, _, position = _list_header(
        footer, next(start for number, start, _ in _fields(footer, 0) if number == _SCHEMA)
    )
    parts, copied = [], 0
    # The path of each open group, and the number of its children that are still to come. The root has no path.
    parents: list[tuple[str, int]] = []
    for index in range(count):
        last, end, name, children = 0, position, "", 0
        for number, start, field_end in _fields(footer, position):
            last, end = number, field_end
            if number == _NAME:
                length, begin = decoded_varint(footer, start)
                name = footer[begin : begin + length].decode()
            elif number == _NUM_CHILDREN:
                children = decoded_varint(footer, start)[0] >> 1
        path = ".".join(filter(None, (parents[-1][0], name))) if parents else ""
        if index and path in groups:
            parts += [footer[copied:end], bytes([_LOGICAL_TYPE - last << 4 | _STRUCT]), _VARIANT]
            copied = end
        position = end + 1
        if parents:
            parents[-1] = (parents[-1][0], parents[-1][1] - 1)
        parents.append((path, children))
        while parents and not parents[-1][1]:
            parents.pop()
    return b"".join((*parts, footer[copied:]))


def _fields(data: bytes, position: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number, start and end of each field of a structure."""
    number = 0
    while data[position]:
        kind, delta = data[position] & 15, data[position] >> 4
        position += 1
        if delta:
            number += delta
        else:
            encoded, position = decoded_varint(data, position)
            number = encoded >> 1
        end = _end(data, position, kind)
        yield number, position, end
        position = end


def _end(data: bytes, position: int, kind: int) -> int:
    """Return the end of a value of a field."""
    if kind in _BOOLEANS:
        return position
    if kind == _BYTE:
        return position + 1
    if kind in _INTEGERS:
        return decoded_varint(data, position)[1]
    if kind == _DOUBLE:
        return position + 8
    if kind == _BINARY:
        length, position = decoded_varint(data, position)
        return position + length
    if kind == _STRUCT:
        for _, _, end in _fields(data, position):
            position = end
        return position + 1
    count, item, position = _list_header(data, position)
    for _ in range(count):
        position = position + 1 if item in _BOOLEANS else _end(data, position, item)
    return position


def _list_header(data: bytes, position: int) -> tuple[int, int, int]:
    """Return the number and kind of a list's items, and the start of the first."""
    count, kind = data[position] >> 4, data[position] & 15
    position += 1
    if count == _LONG:
        count, position = decoded_varint(data, position)
    return count, kind, position
