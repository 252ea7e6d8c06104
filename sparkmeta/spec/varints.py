"""Encode numbers with seven bits per byte, as in Avro, ORC and Parquet's footers. Spark tasks import this module."""

from __future__ import annotations


def encoded_varint(value: int) -> bytes:
    """Encode an unsigned number."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def decoded_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned number at a position, and its end. Raise IndexError if the data ends before the number."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def encoded_long(value: int) -> bytes:
    """Encode a number of 64 bits in Avro's zigzag form."""
    return encoded_varint((value << 1) ^ (value >> 63))


def decoded_long(data: bytes, position: int) -> tuple[int, int]:
    """Return the number in zigzag form at a position, and its end. Raise IndexError if the data ends before it."""
    value, end = decoded_varint(data, position)
    return (value >> 1) ^ -(value & 1), end
