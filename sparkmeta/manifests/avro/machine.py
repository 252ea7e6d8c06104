"""What compiled code is made of: pieces that read Avro's bytes, and functions that copy what a program found.

numba compiles them. Inside, all positions of data are addresses: arrays would be counted as references at every call.
Python hands over arrays, and gets no address.

- A piece that fails answers with a position behind any end (`FAILED` plus the reason).
- A piece reads no more than `PADDING` bytes beyond the end, and data ends with as many to spare.
- Lengths are compared with the bytes that are left before they are added to a position, and numbers of items before
  they are looped over: an item takes at least a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("numba is told not to compile (NUMBA_DISABLE_JIT): addresses are for compiled code only")

PADDING = 16

# Kinds of a map's keys and values, or-ed: numbers where they are neither.
TEXT_KEY = 1
BYTES_VALUE = 2

# Reasons to fail.
TOO_SHORT, LONG_NUMBER, BAD_LENGTH, BAD_COUNT, BAD_BRANCH, BAD_KEY, NULL_FILE, LEFT_OVER = range(1, 9)
FAILED = 1 << 62

_MAX_LONG = (1 << 63) - 1
# The bits of a number and a length that are not both of one byte and at least zero.
LONG_PAIR = 0x8181

# What `copy_entries` adds to an entry: the status, and a number of a union.
ENTRY_BYTES, NUMBER_BYTES = 1, 11
_EXISTING = 0

DATA = types.Array(types.uint8, 1, "C", readonly=True)
BYTES = types.Array(types.uint8, 1, "C")
LONGS = types.Array(types.int64, 1, "C")
ROWS = types.Array(types.int64, 2, "C")
SLOTS = types.Array(types.int64, 3, "C")

Machine = Callable[..., Any]

_intrinsic: Any = intrinsic
_MACHINES: list[tuple[Any, Any]] = []


def piece(function: Machine) -> Machine:
    """Compile a function into the functions that use it."""
    compiled: Machine = numba.njit(function, nogil=True)
    return compiled


def entry_point(signature: Any) -> Callable[[Machine], Machine]:
    """Compile a function that Python calls: of one signature, and kept where numba finds a folder to write to.

    numba keeps it by the time and size of the file that defines it; what was kept before this file changed is dropped.
    """

    def declared(function: Machine) -> Machine:
        compiled: Machine
        try:
            compiled = numba.njit(function, nogil=True, cache=True)
        except RuntimeError:  # neither the folder of the function's file nor the user's cache folder can be written
            compiled = numba.njit(function, nogil=True)
        _drop_older(compiled)
        _MACHINES.append((compiled, signature))
        return compiled

    return declared


def _kept(compiled: Any) -> list[Path]:
    """Return the index files of the compiled code that numba keeps of a function."""
    folder = compiled.stats.cache_path
    return [*Path(folder).glob(f"*.{compiled.__name__}-*.nbi")] if folder else []


def _drop_older(compiled: Any) -> None:
    changed = Path(__file__).stat().st_mtime
    for index in _kept(compiled):
        with suppress(OSError):
            if index.stat().st_mtime < changed:
                index.unlink()


def is_kept() -> bool:
    """Return whether all machines were compiled before and kept: `prepare` takes hundredths of a second then."""
    return all(_kept(compiled) for compiled, _ in _MACHINES)


def prepare() -> None:
    """Load the machines, or compile and keep them."""
    for compiled, signature in _MACHINES:
        if not compiled.signatures:
            compiled.compile(signature)
        compiled.disable_compile()


@_intrinsic
def byte_at(_typing, _address):  # type: ignore[no-untyped-def]
    """The byte at an address."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(place), ir.IntType(64))

    return types.int64(types.int64), generate


@_intrinsic
def word_at(_typing, _address):  # type: ignore[no-untyped-def]
    """The eight bytes at an address, the first one lowest."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.int64(types.int64), generate


@_intrinsic
def put(_typing, _address, _value):  # type: ignore[no-untyped-def]
    """Sets the eight bytes at an address."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[1], place, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@piece
def _long_number(p):  # type: ignore[no-untyped-def]
    value = 0
    for place in range(10):
        byte = byte_at(p + place)
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return ((value >> 1) & _MAX_LONG) ^ -(value & 1), p + place + 1
    return 0, FAILED + LONG_NUMBER


@piece
def read_number(p):  # type: ignore[no-untyped-def]
    """A number in Avro's zigzag form, and the position behind it."""
    byte = byte_at(p)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), p + 1
    return _long_number(p)


@piece
def read_size(p, end):  # type: ignore[no-untyped-def]
    """The length of bytes or text, and where they begin; fails where there are not so many."""
    size, p = read_number(p)
    if p > end:
        return 0, p
    if size < 0 or size > end - p:
        return 0, FAILED + BAD_LENGTH
    return size, p


@piece
def read_block(p, end, smallest):  # type: ignore[no-untyped-def]
    """The head of a block of items: their number, their size in bytes (-1 if unknown) and where they begin."""
    size = -1
    count, p = read_number(p)
    if count < 0 and p <= end:
        count = -count
        size, p = read_size(p, end)
    if p <= end and (count < 0 or count > (end - p) // smallest):
        return 0, size, FAILED + BAD_COUNT
    return count, size, p


@piece
def _text_key(p, end):  # type: ignore[no-untyped-def]
    """A map's key that is text, as the number that it writes, as Java and Python write an int."""
    size, p = read_size(p, end)
    if p > end:
        return 0, p
    stop, key, sign = p + size, 0, 1
    if size > 1 and byte_at(p) == 0x2D:
        sign, p = -1, p + 1
    digits = stop - p
    if digits < 1 or digits > 10 or (byte_at(p) == 0x30 and (digits > 1 or sign < 0)):
        return 0, FAILED + BAD_KEY
    for place in range(digits):
        digit = byte_at(p + place) - 0x30
        if digit < 0 or digit > 9:
            return 0, FAILED + BAD_KEY
        key = 10 * key + digit
    return sign * key, stop


@piece
def _key(text, p, end):  # type: ignore[no-untyped-def]
    return _text_key(p, end) if text else read_number(p)


@piece
def read_pair(kinds, p, end):  # type: ignore[no-untyped-def]
    """A map's next key, its value (or where that begins), the value's size, and the position behind."""
    if kinds == BYTES_VALUE:
        word = word_at(p)
        if word & LONG_PAIR == 0:
            size = word >> 9 & 0x3F
            return word >> 1 & 0x3F, p + 2, size, p + 2 + size
    key, p = _key(kinds & TEXT_KEY != 0, p, end)
    if p > end:
        return 0, 0, 0, p
    if kinds & BYTES_VALUE:
        size, p = read_size(p, end)
        return key, p, size, p + size
    value, p = read_number(p)
    return key, value, 0, p


# -- what a program found ----------------------------------------------------------------------------------------------


@entry_point(types.void(DATA, LONGS, LONGS, BYTES))
def take_bytes(data, starts, sizes, taken):  # type: ignore[no-untyped-def]
    """Copies slices of the data side by side to `taken`, which has `PADDING` bytes more than they need."""
    base, p = types.int64(data.ctypes.data), types.int64(taken.ctypes.data)
    for row in range(len(starts)):
        start = base + starts[row]
        p = _copy(start, start + max(sizes[row], 0), p)


@piece
def _copy(source, end, p):  # type: ignore[no-untyped-def]
    """Copies the bytes up to an end to p. Gives the position behind them; up to 7 bytes there are overwritten too."""
    for place in range(0, end - source, 8):
        put(p + place, word_at(source + place))
    return p + (end - source)


@piece
def _put_number(p, value):  # type: ignore[no-untyped-def]
    """Writes a number in Avro's zigzag form. Gives the position behind it."""
    rest = (value << 1) ^ (value >> 63)
    while rest & ~0x7F:
        put(p, rest & 0x7F | 0x80)
        rest = rest >> 7 & _MAX_LONG >> 6
        p += 1
    put(p, rest)
    return p + 1


@piece
def _put_optional(p, value, size):  # type: ignore[no-untyped-def]
    """Writes a number or null, a slot's words, as a union of null and number."""
    if size < 0:
        put(p, 0)
        return p + 1
    put(p, 2)
    return _put_number(p + 1, value)


@entry_point(types.void(DATA, ROWS, SLOTS, types.int64, types.int64, BYTES, LONGS))
def copy_entries(data, marks, numbers, divided, zeros, taken, offsets):  # type: ignore[no-untyped-def]
    """Writes EXISTING entries whose data_file is copied, side by side, and where each one begins to `offsets`.

    marks: of each entry, where its data_file begins, where it may be divided, where it goes on then, and where it ends.
    numbers: slots of what stands before the data_file, null or a number; the last one where it is divided, if
    `divided` is not 0. zeros: so many bytes of 0 are put behind it. taken: has `PADDING` bytes more than
    entries need, which take `ENTRY_BYTES` and `NUMBER_BYTES` for each number besides what is copied.
    """
    base, first = types.int64(data.ctypes.data), types.int64(taken.ctypes.data)
    last = len(numbers) - 1
    p = first
    for row in range(marks.shape[1]):
        offsets[row] = p - first
        p = _put_number(p, _EXISTING)
        for number in range(last):
            p = _put_optional(p, numbers[number, 0, row], numbers[number, 1, row])
        p = _copy(base + marks[0, row], base + marks[1, row], p)
        if divided:
            p = _put_optional(p, numbers[last, 0, row], numbers[last, 1, row])
        p = _copy(base + marks[2, row], base + marks[3, row], p)
        for _ in range(zeros):
            put(p, 0)
            p += 1
    offsets[marks.shape[1]] = p - first


@entry_point(types.int64(DATA, LONGS, LONGS, types.int64, LONGS, LONGS, LONGS))
def take_pairs(data, starts, sizes, kinds, keys, words, lengths):  # type: ignore[no-untyped-def]
    """The keys and values of maps that READ_ITEMS has passed over, side by side: values that are bytes by place and
    length. Gives their number, which is less than it should be where a key is no number."""
    base = types.int64(data.ctypes.data)
    end = base + len(data) - PADDING
    item = 0
    for row in range(len(starts)):
        p, left = base + starts[row], sizes[row]
        while left > 0:
            count, _, p = read_block(p, end, 2)
            if count == 0 or count > left or p > end:
                return item
            left -= count
            for _ in range(count):
                keys[item], words[item], lengths[item], p = read_pair(kinds, p, end)
                if p > end:
                    return item
                if kinds & BYTES_VALUE:
                    words[item] -= base
                item += 1
    return item


@entry_point(types.int64(DATA, LONGS, LONGS, LONGS))
def take_numbers(data, starts, sizes, words):  # type: ignore[no-untyped-def]
    """The numbers of lists that READ_ITEMS has passed over, side by side. Gives how many they are."""
    base = types.int64(data.ctypes.data)
    end = base + len(data) - PADDING
    item = 0
    for row in range(len(starts)):
        p, left = base + starts[row], sizes[row]
        while left > 0:
            count, _, p = read_block(p, end, 1)
            if count == 0 or count > left or p > end:
                return item
            left -= count
            for _ in range(count):
                words[item], p = read_number(p)
                if p > end:
                    return item
                item += 1
    return item
