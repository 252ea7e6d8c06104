"""Decode and encode variants, and rebuild shredded ones (Parquet format, Variant Encoding and Variant Shredding).

Spark tasks import this module.
Primitive values are encoded in Arrow. Objects and arrays are joined in Python, one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import ValidationError

FILE_VARIANT: Final = pa.struct(
    [
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""The type of variants in data files, with the order of fields of Iceberg's Java library."""

NULL: Final = b"\0"
"""The variant null."""

# The basic types: the lowest two bits of a value.
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_TRUE, _FALSE = b"\x04", b"\x08"
TRUE_ID, BINARY_ID, STRING_ID, _UUID_ID = 1, 15, 16, 20
INTEGER_IDS: Final = (3, 4, 5, 6)
DECIMAL_IDS: Final = (8, 9, 10)
OBJECT: Final = "object"
ARRAY: Final = "array"
# Width of a decimal in bytes -> the id of its type.
_DECIMALS: Final = {4: 8, 8: 9, 16: 10}
_FLOATS: Final = {7: "<d", 14: "<f"}
# Type id -> width in bytes, for the other types that are stored as integers.
_WIDTHS: Final = {3: 1, 4: 2, 5: 4, 6: 8, 11: 4, 12: 8, 13: 8, 17: 8, 18: 8, 19: 8}
_FIXED: Final = {
    pa.int8(): 3,
    pa.int16(): 4,
    pa.int32(): 5,
    pa.int64(): 6,
    pa.float64(): 7,
    pa.date32(): 11,
    pa.timestamp("us"): 13,
    pa.float32(): 14,
    pa.time64("us"): 17,
    pa.timestamp("ns"): 19,
}
_ZONED: Final = {"us": 12, "ns": 18}
_SHORT_STRING_LIMIT: Final = 64
_MAX_SMALL_COUNT: Final = 255
_NO_NAMES: Final = b"\x01\0\0"

Numbers = np.ndarray[Any, Any]


def is_file_variant(kind: pa.DataType) -> bool:
    """Return whether a type is `FILE_VARIANT`, with or without an additional `typed_value`."""
    index = kind.get_field_index("metadata") if pa.types.is_struct(kind) else -1
    return index >= 0 and bool(kind.field(index).metadata == FILE_VARIANT.field("metadata").metadata)


def rebuilt(variants: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    """Return the metadata and the values of shredded variants. They are arbitrary where the variant is null.

    Raises:
        ValueError: the fields do not make a variant, or a value contradicts the specification.
    """
    stored = dict(zip((field.name for field in variants.type), variants.flatten(), strict=True))
    metadata = stored.pop("metadata", None)
    if metadata is None or not stored or not stored.keys() <= {"value", "typed_value"}:
        raise ValueError(f"a variant of the fields {', '.join(field.name for field in variants.type)}")
    metadata = metadata.cast(pa.binary())
    if metadata.null_count > variants.null_count:
        raise ValueError("a variant has no metadata")
    if "typed_value" not in stored:
        return metadata, pc.fill_null(stored["value"].cast(pa.binary()), NULL)
    encoded = pc.fill_null(metadata, _NO_NAMES).dictionary_encode()
    names = [VariantNames(each) for each in encoded.dictionary.to_pylist()]
    values = _values(stored, len(variants), names, encoded.indices.to_numpy())
    return metadata, pa.array([value or NULL for value in values], pa.binary())


class VariantNames:
    """The names in a variant's metadata, and their ids.

    Attributes:
        end: the length of the metadata in bytes.
        texts: the names, in the order of their ids.
        ids: name -> id.
    """

    def __init__(self, metadata: bytes) -> None:
        size = (metadata[0] >> 6) + 1
        (count,) = _numbers(metadata, 1, size, 1)
        offsets = _numbers(metadata, 1 + size, size, count + 1)
        start = 1 + size * (count + 2)
        self.end = start + offsets[-1]
        self.texts = [metadata[start + begin : start + end] for begin, end in pairwise(offsets)]
        self.ids = {text: number for number, text in enumerate(self.texts)}


def _values(
    stored: Mapping[str, pa.Array], count: int, names: Sequence[VariantNames], codes: Numbers
) -> Sequence[bytes | None]:
    """Return the values of groups of the fields `value` and `typed_value`; None where a value is missing.

    Args:
        stored: the fields of the groups, by name.
        count: the number of groups.
        names: the names of each distinct metadata.
        codes: the index of each group in `names`.
    """
    unshredded = stored["value"].cast(pa.binary()).to_pylist() if "value" in stored else [None] * count
    typed = stored.get("typed_value")
    if typed is None:
        return unshredded
    if isinstance(typed, pa.ExtensionArray):
        typed = typed.storage
    if pa.types.is_struct(typed.type):
        return _objects(typed, unshredded, names, codes)
    is_list = pa.types.is_list(typed.type)
    values = _arrays(typed, names, codes) if is_list else primitives(typed).to_pylist()
    for value, other in zip(values, unshredded, strict=True):
        if value is not None and other is not None:
            raise ValueError("a shredded variant has two values")
    return [other if value is None else value for value, other in zip(values, unshredded, strict=True)]


def _objects(
    typed: pa.StructArray, unshredded: Sequence[bytes | None], names: Sequence[VariantNames], codes: Numbers
) -> list[bytes | None]:
    """Return objects that join their shredded fields with the fields in `unshredded`."""
    fields = {}
    for field, group in zip(typed.type, typed.flatten(), strict=True):
        children = dict(zip((child.name for child in group.type), group.flatten(), strict=True))
        fields[field.name.encode()] = _values(children, len(typed), names, codes)
    result: list[bytes | None] = []
    for row, is_object in enumerate(typed.is_valid().to_pylist()):
        other = unshredded[row]
        if not is_object:
            result.append(other)
            continue
        row_names = names[codes[row]]
        row_fields = {} if other is None else fields_of(other, row_names)
        for name, values in fields.items():
            if (value := values[row]) is not None:
                row_fields[name] = value
        result.append(object_of(row_fields, row_names))
    return result


def _arrays(typed: pa.ListArray, names: Sequence[VariantNames], codes: Numbers) -> list[bytes | None]:
    offsets = typed.offsets.to_numpy()
    elements = typed.values.slice(offsets[0], offsets[-1] - offsets[0])
    children = dict(zip((child.name for child in elements.type), elements.flatten(), strict=True))
    values = _values(children, len(elements), names, np.repeat(codes, np.diff(offsets)))
    bounds = zip((offsets[:-1] - offsets[0]).tolist(), (offsets[1:] - offsets[0]).tolist(), strict=True)
    return [
        _array([value or NULL for value in values[start:end]]) if is_array else None
        for (start, end), is_array in zip(bounds, typed.is_valid().to_pylist(), strict=True)
    ]


# -- Encode values ----------------------------------------------------------------------------------------------------


def primitives(values: pa.Array) -> pa.Array:
    """Encode primitive values; null for nulls.

    Raises:
        ValueError: variants can't have values of the type.
    """
    kind = values.type
    if pa.types.is_boolean(kind):
        return pc.if_else(values, _TRUE, _FALSE)
    if pa.types.is_decimal128(kind):
        width = 4 if kind.precision <= 9 else 8 if kind.precision <= 18 else 16
        return _with_header(values, bytes([_DECIMALS[width] << 2, kind.scale]), width)
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return _with_header(values, bytes([_UUID_ID << 2]), kind.byte_width)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(values)
    is_zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    type_id = _ZONED.get(kind.unit) if is_zoned else _FIXED.get(kind)
    if type_id is None:
        raise ValueError(f"a variant has a typed_value of the type {kind}")
    return _with_header(values, bytes([type_id << 2]), kind.byte_width)


def _with_header(values: pa.Array, header: bytes, width: int) -> pa.Array:
    """Return a header and the first `width` bytes of each value. The values have a fixed width."""
    count, size = len(values), values.type.byte_width
    content = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * size :][: count * size].reshape(count, size)
    encoded = np.empty((count, len(header) + width), np.uint8)
    encoded[:, : len(header)] = np.frombuffer(header, np.uint8)
    encoded[:, len(header) :] = content[:, :width]
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * encoded.shape[1])
    buffers = [None, offsets.buffers()[1], pa.py_buffer(encoded.tobytes())]
    return pc.if_else(values.is_valid(), pa.Array.from_buffers(pa.binary(), count, buffers), None)


def _texts(values: pa.Array) -> pa.Array:
    content = values.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(content), 0)
    type_id = STRING_ID if pa.types.is_string(values.type) else BINARY_ID
    headers = _with_header(lengths, bytes([type_id << 2]), 4)
    if type_id == STRING_ID:
        short = pa.array((lengths.to_numpy() << 2 | _SHORT_STRING).astype(np.uint8))
        headers = pc.if_else(pc.less(lengths, _SHORT_STRING_LIMIT), _with_header(short, b"", 1), headers)
    return pc.binary_join_element_wise(headers, content, b"")


def object_of(fields: Mapping[bytes, bytes], names: VariantNames) -> bytes:
    """Encode an object. Its fields are sorted by name.

    Raises:
        ValueError: the metadata lacks the name of a field.
    """
    ordered = sorted(fields)
    for name in ordered:
        if name not in names.ids:
            raise ValueError(f"the metadata of a variant lacks the field {name.decode(errors='replace')}")
    ids, values = [names.ids[name] for name in ordered], [fields[name] for name in ordered]
    id_size = _size(max(ids, default=0))
    encoded_ids = b"".join(name_id.to_bytes(id_size, "little") for name_id in ids)
    return _nested(_OBJECT | id_size - 1 << 4, 6, encoded_ids, values)


def sorted_metadata(names: Sequence[bytes]) -> bytes:
    """Return the metadata of sorted names."""
    ends = [0, *accumulate(map(len, names))]
    size = _size(max(ends[-1], len(names)))
    numbers = b"".join(number.to_bytes(size, "little") for number in (len(names), *ends))
    return bytes([size - 1 << 6 | 0x11]) + numbers + b"".join(names)


def _array(values: Sequence[bytes]) -> bytes:
    return _nested(_ARRAY, 4, b"", values)


def _nested(header: int, large_bit: int, ids: bytes, values: Sequence[bytes]) -> bytes:
    """Encode an object or array.

    Args:
        header: its first byte, without the size of the offsets and without `large_bit`.
        large_bit: the number of the bit in the header that says that there are more than 255 values.
        ids: the encoded ids of an object's names.
        values: the encoded values.
    """
    is_large = len(values) > _MAX_SMALL_COUNT
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value))
    size = _size(offsets[-1])
    encoded_offsets = b"".join(offset.to_bytes(size, "little") for offset in offsets)
    count = len(values).to_bytes(4 if is_large else 1, "little")
    return b"".join((bytes([header | size - 1 << 2 | is_large << large_bit]), count, ids, encoded_offsets, *values))


def _size(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


# -- Decode values ----------------------------------------------------------------------------------------------------


def kind_of(value: bytes) -> int | str:
    """Return `OBJECT`, `ARRAY`, or the id of a value's primitive type. Booleans have the id of true."""
    basic, number = value[0] & 3, value[0] >> 2
    if basic == _PRIMITIVE:
        return TRUE_ID if number == _FALSE[0] >> 2 else number
    return (STRING_ID, OBJECT, ARRAY)[basic - 1]


def primitive_of(value: bytes) -> Any:
    """Decode a primitive value for Arrow: dates and times are integers.

    Raises:
        ValueError: the value is too short, or its text is not UTF-8.
    """
    if value[0] & 3 == _SHORT_STRING:
        return _part(value, 1, value[0] >> 2).decode()
    type_id = value[0] >> 2
    if value[:1] in (_TRUE, _FALSE):
        return value[:1] == _TRUE
    if type_id in _FLOATS:
        return struct.unpack_from(_FLOATS[type_id], value, 1)[0]
    if type_id in (BINARY_ID, STRING_ID):
        (length,) = _numbers(value, 1, 4, 1)
        content = _part(value, 5, length)
        return content if type_id == BINARY_ID else content.decode()
    if type_id in DECIMAL_IDS:
        width = 4 << DECIMAL_IDS.index(type_id)
        unscaled = int.from_bytes(_part(value, 2, width), "little", signed=True)
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -value[1]))
    return int.from_bytes(_part(value, 1, _WIDTHS[type_id]), "little", signed=True)


def _part(value: bytes, start: int, length: int) -> bytes:
    if len(value) < start + length:
        raise ValueError(f"a variant of {len(value)} bytes lacks bytes")
    return value[start : start + length]


def elements_of(value: bytes) -> list[bytes]:
    """Return the elements of an array."""
    header = value[0]
    size, count_size = (header >> 2 & 3) + 1, 4 if header >> 4 & 1 else 1
    (count,) = _numbers(value, 1, count_size, 1)
    offsets = _numbers(value, 1 + count_size, size, count + 1)
    start = 1 + count_size + (count + 1) * size
    return [value[start + begin : start + end] for begin, end in pairwise(offsets)]


def fields_of(value: bytes, names: VariantNames) -> dict[bytes, bytes]:
    """Return the fields of an object.

    Raises:
        ValueError: the value is not an object.
    """
    header = value[0]
    if header & 3 != _OBJECT:
        raise ValueError("a shredded object has fields of another value that is no object")
    offset_size, id_size, count_size = (header >> 2 & 3) + 1, (header >> 4 & 3) + 1, 4 if header >> 6 & 1 else 1
    (count,) = _numbers(value, 1, count_size, 1)
    position = 1 + count_size
    ids = _numbers(value, position, id_size, count)
    position += count * id_size
    offsets = _numbers(value, position, offset_size, count + 1)
    position += (count + 1) * offset_size
    # The values may be in a different order than the ids.
    ends = dict(zip(ordered := sorted(set(offsets)), ordered[1:], strict=False))
    return {
        names.texts[number]: value[position + offset : position + ends[offset]]
        for number, offset in zip(ids, offsets, strict=False)
    }


# -- Extract fields ---------------------------------------------------------------------------------------------------


# Name of a type -> its Arrow type, and the ids of the variant types that are extracted as it.
_EXTRACTED: Final[dict[str, tuple[pa.DataType, tuple[int | str, ...]]]] = {
    "boolean": (pa.bool_(), (TRUE_ID,)),
    "long": (pa.int64(), INTEGER_IDS),
    "double": (pa.float64(), (*INTEGER_IDS, *DECIMAL_IDS, *_FLOATS)),
    "string": (pa.string(), (STRING_ID,)),
    "date": (pa.date32(), (11,)),
    "timestamptz": (pa.timestamp("us", "UTC"), (12,)),
    "timestamp": (pa.timestamp("us"), (13,)),
}


# The errors of decoding bytes that are not a variant.
_MALFORMED: Final = (LookupError, ValueError, struct.error)


def extracted(variants: pa.StructArray, path: Sequence[bytes], kind: str) -> pa.Array:
    """Extract a field from variants. Values are null where the field is missing or has another type.

    Args:
        variants: structs with the fields `metadata` and `value`.
        path: the names of the fields, from the outermost object down.
        kind: the name of a type in `spec.functions.EXTRACTED`.

    Raises:
        ValidationError: the bytes are not a variant.
    """
    names_by_metadata: dict[bytes, VariantNames] = {}
    rows = zip(*(pc.struct_field(variants, name).to_pylist() for name in ("metadata", "value")), strict=True)
    results: list[Any] = []
    for metadata, value in rows:
        if metadata is None or value is None:
            results.append(None)
            continue
        try:
            names = names_by_metadata.get(metadata)
            if names is None:
                names = names_by_metadata[metadata] = VariantNames(metadata)
            results.append(_extracted(value, names, path, kind))
        except _MALFORMED as error:
            raise ValidationError(
                f"0x{value[:20].hex()} is no variant with metadata 0x{metadata[:20].hex()}"
            ) from error
    return _to_arrow(results, kind)


def bounds_of_field(bounds: pa.Array, path: str, kind: str) -> pa.Array:
    """Return the bounds of a field of shredded variants, null where they are missing or have another type.

    Args:
        bounds: bounds of variants, in binary form.
        path: the path of the field; see `normalized_path`.
        kind: the name of a type in `spec.functions.EXTRACTED`.
    """
    results: list[Any] = []
    for bound in bounds.to_pylist():
        try:
            names = None if bound is None else VariantNames(bound)
            results.append(None if names is None else _extracted(bound[names.end :], names, [path.encode()], kind))
        except _MALFORMED:  # such a bound is unknown
            results.append(None)
    return _to_arrow(results, kind)


def _extracted(value: bytes, names: VariantNames, path: Sequence[bytes], kind: str) -> Any:
    current: bytes | None = value
    for name in path:
        current = fields_of(current, names).get(name) if current is not None and kind_of(current) == OBJECT else None
    if current is None or kind_of(current) not in _EXTRACTED[kind][1]:
        return None
    result = primitive_of(current)
    return float(result) if kind == "double" else result


def _to_arrow(results: list[Any], kind: str) -> pa.Array:
    arrow_type = _EXTRACTED[kind][0]
    if not pa.types.is_temporal(arrow_type):
        return pa.array(results, arrow_type)
    return pa.array(results, pa.int32() if pa.types.is_date(arrow_type) else pa.int64()).view(arrow_type)


# The escapes of normalized paths (RFC 9535).
_ESCAPES: Final = {code: f"\\u{code:04x}" for code in range(32)} | {
    8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 39: "\\'", 92: "\\\\",
}  # fmt: skip


def normalized_path(names: Iterable[str]) -> str:
    """Return the path of a field, from the outermost object down, as in bounds (table spec, Bounds for Variant)."""
    return "$" + "".join(f"['{name.translate(_ESCAPES)}']" for name in names)


def _numbers(data: bytes, start: int, size: int, count: int) -> list[int]:
    """Return `count` unsigned integers of `size` bytes each.

    Raises:
        ValueError: the data is too short.
    """
    if start + size * count > len(data):
        raise ValueError(f"a variant of {len(data)} bytes lacks bytes")
    return [
        int.from_bytes(data[position : position + size], "little")
        for position in range(start, start + count * size, size)
    ]
