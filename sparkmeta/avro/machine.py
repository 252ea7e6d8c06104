"""The machine that decodes Avro records: instructions, and the pieces that read bytes. Numba compiles both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# -- Pieces that read bytes -------------------------------------------------------------------------------------------
# numba compiles them. Internally, positions of data are addresses, since numba would count references of arrays at
# every call. Python passes arrays, and gets no addresses.
#
# - A piece that fails returns a position after any end (`FAILED` plus the reason).
# - A piece reads at most `PADDING` bytes after the end; data has as much padding.
# - Lengths are compared with the remaining bytes before they are added to a position, and numbers of items before a
#   loop, as an item takes at least a byte.


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("NUMBA_DISABLE_JIT keeps numba from compiling: addresses are for compiled code only")

PADDING = 16

# Kinds of a map's keys and values, or-ed; numbers if neither is set.
TEXT_KEY = 1
BYTES_VALUE = 2

# Reasons to fail.
TOO_SHORT, LONG_NUMBER, BAD_LENGTH, BAD_COUNT, BAD_BRANCH, BAD_KEY, NULL_FILE, LEFT_OVER = range(1, 9)
FAILED = 1 << 62

_MAX_LONG = (1 << 63) - 1
# A mask that is not zero for a number and a length unless both take one byte and are not negative.
LONG_PAIR = 0x8181

# Maximum bytes that `copy_entries` adds to an entry: for the status, and for an optional number.
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
    """Compile a function for Python with one signature, and cache it if numba finds a writable folder.

    numba's cache depends on the time and size of the file that defines the function. Entries older than this file are
    dropped.
    """

    def declared(function: Machine) -> Machine:
        compiled: Machine
        try:
            compiled = numba.njit(function, nogil=True, cache=True)
        except RuntimeError:  # neither the folder of the function's file nor the user's cache folder is writable
            compiled = numba.njit(function, nogil=True)
        _drop_older(compiled)
        _MACHINES.append((compiled, signature))
        return compiled

    return declared


def _cached(compiled: Any) -> list[Path]:
    """Return the index files of a function's code in numba's cache."""
    folder = compiled.stats.cache_path
    return [*Path(folder).glob(f"*.{compiled.__name__}-*.nbi")] if folder else []


def _drop_older(compiled: Any) -> None:
    changed_at = Path(__file__).stat().st_mtime
    for index in _cached(compiled):
        with suppress(OSError):
            if index.stat().st_mtime < changed_at:
                index.unlink()


def is_cached() -> bool:
    """Return whether all machines are in numba's cache, so that `prepare` takes hundredths of a second."""
    return all(_cached(compiled) for compiled, _ in _MACHINES)


def prepare() -> None:
    """Load the machines from numba's cache, or compile them."""
    for compiled, signature in _MACHINES:
        if not compiled.signatures:
            compiled.compile(signature)
        compiled.disable_compile()


@_intrinsic
def byte_at(_typing, _address):  # type: ignore[no-untyped-def]
    """Return the byte at an address."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), generate


@_intrinsic
def word_at(_typing, _address):  # type: ignore[no-untyped-def]
    """Return the eight bytes at an address, in little-endian order."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.int64(types.int64), generate


@_intrinsic
def put(_typing, _address, _value):  # type: ignore[no-untyped-def]
    """Set the eight bytes at an address."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[1], pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@piece
def _long_number(p):  # type: ignore[no-untyped-def]
    value = 0
    for index in range(10):
        byte = byte_at(p + index)
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return ((value >> 1) & _MAX_LONG) ^ -(value & 1), p + index + 1
    return 0, FAILED + LONG_NUMBER


@piece
def read_number(p):  # type: ignore[no-untyped-def]
    """Return a number in Avro's zigzag form, and the position after it."""
    byte = byte_at(p)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), p + 1
    return _long_number(p)


@piece
def read_size(p, end):  # type: ignore[no-untyped-def]
    """Return the length and the beginning of bytes or text. Fails if fewer bytes remain."""
    size, p = read_number(p)
    if p > end:
        return 0, p
    if size < 0 or size > end - p:
        return 0, FAILED + BAD_LENGTH
    return size, p


@piece
def read_block(p, end, smallest):  # type: ignore[no-untyped-def]
    """Return the number of items in a block, their size in bytes (-1 if unknown) and their beginning."""
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
    """Return the number that a map's text key spells, like Java and Python format an int."""
    size, p = read_size(p, end)
    if p > end:
        return 0, p
    stop, key, sign = p + size, 0, 1
    if size > 1 and byte_at(p) == 0x2D:
        sign, p = -1, p + 1
    digits = stop - p
    if digits < 1 or digits > 10 or (byte_at(p) == 0x30 and (digits > 1 or sign < 0)):
        return 0, FAILED + BAD_KEY
    for index in range(digits):
        digit = byte_at(p + index) - 0x30
        if digit < 0 or digit > 9:
            return 0, FAILED + BAD_KEY
        key = 10 * key + digit
    return sign * key, stop


@piece
def _key(text, p, end):  # type: ignore[no-untyped-def]
    return _text_key(p, end) if text else read_number(p)


@piece
def read_pair(kinds, p, end):  # type: ignore[no-untyped-def]
    """Return a map's next key, its value or the value's beginning, the value's size, and the position after it."""
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


# -- Copy the values that a program has located -----------------------------------------------------------------------


@entry_point(types.void(DATA, LONGS, LONGS, BYTES))
def take_bytes(data, starts, sizes, output):  # type: ignore[no-untyped-def]
    """Copy slices of the data to `output`, one after the other. `output` has `PADDING` bytes more than they need."""
    base, p = types.int64(data.ctypes.data), types.int64(output.ctypes.data)
    for row in range(len(starts)):
        start = base + starts[row]
        p = _copy(start, start + max(sizes[row], 0), p)


@piece
def _copy(source, end, p):  # type: ignore[no-untyped-def]
    """Copy the bytes from `source` to `end` to p. Return the position after them: 7 bytes there may be overwritten."""
    for offset in range(0, end - source, 8):
        put(p + offset, word_at(source + offset))
    return p + (end - source)


@piece
def _put_number(p, value):  # type: ignore[no-untyped-def]
    """Write a number in Avro's zigzag form. Return the position after it."""
    remaining = (value << 1) ^ (value >> 63)
    while remaining & ~0x7F:
        put(p, remaining & 0x7F | 0x80)
        remaining = remaining >> 7 & _MAX_LONG >> 6
        p += 1
    put(p, remaining)
    return p + 1


@piece
def _put_optional(p, value, size):  # type: ignore[no-untyped-def]
    """Write a slot, a number or null, as a union of null and number."""
    if size < 0:
        put(p, 0)
        return p + 1
    put(p, 2)
    return _put_number(p + 1, value)


@entry_point(types.void(DATA, ROWS, SLOTS, types.int64, types.int64, BYTES, LONGS))
def copy_entries(data, marks, numbers, divided, zeros, output, offsets):  # type: ignore[no-untyped-def]
    """Write EXISTING entries with their data_file copied to `output`, one after the other, and their offsets.

    `marks` are four positions of each entry: where its data_file begins, where a number may be inserted, where it
    continues after that, and where it ends. `numbers` are slots of the numbers before the data_file and, if `divided`
    is not 0, of the inserted one, which is the last. `zeros` bytes of 0 are appended. `output` has room for the copied
    bytes, `ENTRY_BYTES` per entry, `NUMBER_BYTES` per number, and `PADDING`.
    """
    base, beginning = types.int64(data.ctypes.data), types.int64(output.ctypes.data)
    inserted = len(numbers) - 1
    p = beginning
    for row in range(marks.shape[1]):
        offsets[row] = p - beginning
        p = _put_number(p, _EXISTING)
        for number in range(inserted):
            p = _put_optional(p, numbers[number, 0, row], numbers[number, 1, row])
        p = _copy(base + marks[0, row], base + marks[1, row], p)
        if divided:
            p = _put_optional(p, numbers[inserted, 0, row], numbers[inserted, 1, row])
        p = _copy(base + marks[2, row], base + marks[3, row], p)
        for _ in range(zeros):
            put(p, 0)
            p += 1
    offsets[marks.shape[1]] = p - beginning


@entry_point(types.void(DATA, ROWS, SLOTS, BYTES, BYTES, LONGS))
def splice(data, records, edits, inserted, output, offsets):  # type: ignore[no-untyped-def]
    """Write records with replaced values to `output`, one after the other, and their offsets.

    `records` are the positions where each record begins and ends. `edits` are indexed by edit, word and record, in the
    order of the values in a record. Their words are the positions where a value begins and ends, the number that
    replaces it, and the position and size in `inserted` of the bytes that follow the number. A negative position is no
    edit. `output` has room for the records, the inserted bytes, `NUMBER_BYTES` per edit, and `PADDING`. `inserted` has
    `PADDING` bytes at its end, too.
    """
    base, beginning = types.int64(data.ctypes.data), types.int64(output.ctypes.data)
    source = types.int64(inserted.ctypes.data)
    p = beginning
    for row in range(records.shape[1]):
        offsets[row] = p - beginning
        copied = base + records[0, row]
        for edit in range(edits.shape[0]):
            if edits[edit, 0, row] >= 0:
                p = _copy(copied, base + edits[edit, 0, row], p)
                p = _put_number(p, edits[edit, 2, row])
                start = source + edits[edit, 3, row]
                p = _copy(start, start + edits[edit, 4, row], p)
                copied = base + edits[edit, 1, row]
        p = _copy(copied, base + records[1, row], p)
    offsets[records.shape[1]] = p - beginning


@entry_point(types.int64(DATA, LONGS, LONGS, types.int64, LONGS, LONGS, LONGS))
def take_pairs(data, starts, sizes, kinds, keys, words, lengths):  # type: ignore[no-untyped-def]
    """Copy the keys and values of maps that READ_ITEMS has located; bytes as their position and length.

    Return the number of items, which is too small if a key is not a number.
    """
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
    """Copy the numbers of lists that READ_ITEMS has located. Return their number."""
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


# -- Instructions, and the machine that executes them -----------------------------------------------------------------
# A program is a flat array of integers: instructions of `WIDTH` words (operation and three operands), then the tables
# that instructions point to. It runs once per record, in one pass over the bytes of a block, and stores projected
# values in slots, two words for each column and record.
#
# - A slot's first word is a number, or the offset at which bytes, a list or a map begin. Its second word is -1 for
#   null, or else a length or number of items (0 for numbers). `take_bytes`, `take_pairs` and `take_numbers` copy the
#   values.
# - Positions of data, code and slots are addresses, and are checked after every step. A step that fails returns a
#   position after any end.
#
# The operations are defined together with the code that executes them, so that cached code of numba always matches
# them.


WIDTH = 4

# Control. Operands are in parentheses, in order. Targets and tables are distances from the instruction in bytes.
END = 0
JUMP = 1  # (target)
UNION = 2  # (branches, table of their targets)
LOOP = 3  # (target after the loop, bytes of the smallest item, items left): begins every block of items
LOOP_END = 4  # (its LOOP)
FAIL = 5  # (reason)
# Values that are not projected.
SKIP_NUMBER = 6
SKIP_FIXED = 7  # (size)
SKIP_BYTES = 8
SKIP_ITEMS = 9  # (shape, shape's parameter)
# Projected values.
READ_NUMBER = 10  # (column)
READ_BITS = 11  # (column, size): little-endian, up to 8 bytes
READ_BYTES = 12  # (column)
READ_FIXED = 13  # (column, size)
READ_ITEMS = 14  # (column, shape, parameter)
BACK = 15  # (column): back to the beginning of the column's items, to read them again
READ_KEYS = 16  # (mask of a table of (key, column or -1), table, kinds of key and value as in PAIRS)

_LAST_CONTROL, _LAST_SKIP = FAIL, SKIP_ITEMS

# Shapes of a list's or map's items, and their parameter.
NUMBERS = 0  # numbers in one item
FIXED = 1  # size of an item
PAIRS = 2  # TEXT_KEY and BYTES_VALUE, or-ed

PROBLEMS = {
    TOO_SHORT: "its bytes end before its last record does",
    LONG_NUMBER: "a number is longer than 10 bytes",
    BAD_LENGTH: "a length that is negative or goes beyond the block",
    BAD_COUNT: "a number of items that the block has no room for",
    BAD_BRANCH: "a branch that its union does not have",
    BAD_KEY: "a key of a map that is not a number",
    NULL_FILE: "a record whose data_file is null",
    LEFT_OVER: "there are bytes after its last record",
}

# Indices of `state`, with which a run continues the previous one.
BLOCK, POSITION, LEFT, REASON = range(4)

_ONES = 0x0101010101010101


@piece
def _skip_numbers(p, end, count):  # type: ignore[no-untyped-def]
    """Skip numbers by counting their last bytes, which are below 128, eight at a time."""
    while count > 8 and p <= end:
        longer = (word_at(p) >> 7) & _ONES
        count -= 8 - ((longer * _ONES) >> 56)
        p += 8
    while count > 0 and p < end:
        count -= byte_at(p) < 0x80
        p += 1
    return p if count == 0 else FAILED + TOO_SHORT


@piece
def _skip_one(is_bytes, p, end):  # type: ignore[no-untyped-def]
    if is_bytes:
        size, p = read_size(p, end)
        return p + size
    return read_number(p)[1]


@piece
def _skip_pairs(kinds, p, end, count):  # type: ignore[no-untyped-def]
    text_key, bytes_value = kinds & TEXT_KEY != 0, kinds & BYTES_VALUE != 0
    for _ in range(count):
        word = word_at(p)
        if kinds == BYTES_VALUE and word & LONG_PAIR == 0:
            p += 2 + (word >> 9 & 0x3F)
        else:
            p = _skip_one(text_key, p, end)
            if p <= end:
                p = _skip_one(bytes_value, p, end)
        if p > end:
            return p
    return p


@piece
def _skip_block(shape, parameter, p, end, count):  # type: ignore[no-untyped-def]
    if shape == NUMBERS:
        return _skip_numbers(p, end, count * parameter)
    if shape == FIXED:
        return p + count * parameter
    return _skip_pairs(parameter, p, end, count)


@piece
def _skip_items(shape, parameter, p, end, by_size):  # type: ignore[no-untyped-def]
    """Skip a list or map, by the size of its blocks if they have one and `by_size` is set.

    Return the number of items and the position after it.
    """
    smallest = 2 if shape == PAIRS else parameter
    total = 0
    while True:
        count, size, p = read_block(p, end, smallest)
        if count == 0 or p > end:
            return total, p
        p = p + size if by_size and size >= 0 else _skip_block(shape, parameter, p, end, count)
        if p > end:
            return total, p
        total += count


@piece
def _skip(op, pc, p, end):  # type: ignore[no-untyped-def]
    if op == SKIP_NUMBER:
        return read_number(p)[1]
    if op == SKIP_FIXED:
        return p + word_at(pc + 8)
    if op == SKIP_BYTES:
        return _skip_one(True, p, end)
    return _skip_items(word_at(pc + 8), word_at(pc + 16), p, end, True)[1]


@piece
def _control(op, pc, p, end):  # type: ignore[no-untyped-def]
    """Return the next instruction and position."""
    if op == UNION:
        branch, p = read_number(p)
        if branch < 0 or branch >= word_at(pc + 8):
            return pc, FAILED + BAD_BRANCH
        return pc + word_at(pc + word_at(pc + 16) + 8 * branch), p
    if op == JUMP:
        return pc + word_at(pc + 8), p
    if op == LOOP:
        return _loop(pc, p, end)
    if op == LOOP_END:
        loop = pc + word_at(pc + 8)
        left = word_at(loop + 24) - 1
        put(loop + 24, left)
        return (loop + 8 * WIDTH if left > 0 else loop), p
    return pc, FAILED + word_at(pc + 8)


@piece
def _loop(pc, p, end):  # type: ignore[no-untyped-def]
    count, size, p = read_block(p, end, word_at(pc + 16))
    if count == 0 or p > end:
        return pc + word_at(pc + 8), p
    if size >= 0:
        return pc, p + size
    put(pc + 24, count)
    return pc + 8 * WIDTH, p


@piece
def _bits(p, end, size):  # type: ignore[no-untyped-def]
    value = 0
    if size <= end - p:
        for index in range(size):
            value |= byte_at(p + index) << (8 * index)
    return value


@piece
def _read(op, pc, p, end, base, row, capacity):  # type: ignore[no-untyped-def]
    """Read a value into the slot of its column.

    `row` is the record's slot of column 0. Its second word is `capacity` words further, the next column as far again.
    """
    slot = row + 16 * capacity * word_at(pc + 8)
    if op == BACK:
        return base + word_at(slot)
    start, size = p - base, 0
    if op == READ_NUMBER:
        start, p = read_number(p)
    elif op == READ_BYTES:
        size, p = read_size(p, end)
        start, p = p - base, p + size
    elif op == READ_FIXED:
        size = word_at(pc + 16)
        p += size
    elif op == READ_BITS:
        start, p = _bits(p, end, word_at(pc + 16)), p + word_at(pc + 16)
    else:
        size, p = _skip_items(word_at(pc + 16), word_at(pc + 24), p, end, False)
    put(slot, start)
    put(slot + 8 * capacity, size)
    return p


@piece
def _column_of(table, mask, key):  # type: ignore[no-untyped-def]
    """Return the column of a key, or -1, from a hash table with open addressing that is at most half full."""
    index = key & mask
    while True:
        column = word_at(table + 16 * index + 8)
        if column < 0 or word_at(table + 16 * index) == key:
            return column
        index = (index + 1) & mask


@piece
def _read_keys(pc, p, end, base, row, capacity):  # type: ignore[no-untyped-def]
    """Read the values of projected keys into the slots of their columns. If a key is repeated, the last value stays."""
    mask, table, kinds = word_at(pc + 8), pc + word_at(pc + 16), word_at(pc + 24)
    if not kinds & BYTES_VALUE:
        base = 0
    while True:
        count, _, p = read_block(p, end, 2)
        if count == 0 or p > end:
            return p
        for _ in range(count):
            key, value, size, p = read_pair(kinds, p, end)
            if p > end:
                return p
            column = _column_of(table, mask, key)
            if column >= 0:
                slot = row + 16 * capacity * column
                put(slot, value - base)
                put(slot + 8 * capacity, size)


@piece
def _record(pc, p, end, base, row, capacity):  # type: ignore[no-untyped-def]
    """Execute the program on the record at p. Return the position after it."""
    while True:
        op = word_at(pc)
        if op == END:
            return p
        if op <= _LAST_CONTROL:
            pc, p = _control(op, pc, p, end)
        else:
            if op <= _LAST_SKIP:
                p = _skip(op, pc, p, end)
            elif op == READ_KEYS:
                p = _read_keys(pc, p, end, base, row, capacity)
            else:
                p = _read(op, pc, p, end, base, row, capacity)
            pc += 8 * WIDTH
        if p > end:
            return p


@entry_point(types.int64(LONGS, DATA, LONGS, LONGS, LONGS, types.int64, SLOTS))
def run(code, data, ends, counts, state, until, slots):  # type: ignore[no-untyped-def]
    """Execute a program on records of adjacent blocks, from `state` on. Return the number of records.

    It stops when the slots are full, or before a record that begins at `until` or later. `ends` and `counts` are the
    end in the data and the number of records of each block. `slots` are indexed by column, word and record. If a block,
    state[BLOCK], is corrupt, state[REASON] is not 0.
    """
    base, start, first = data.ctypes.data, code.ctypes.data, slots.ctypes.data
    base, start, first = types.int64(base), types.int64(start), types.int64(first)
    capacity = slots.shape[2]
    row = 0
    p = base + state[POSITION]
    while state[BLOCK] < len(ends):
        end, left = base + ends[state[BLOCK]], state[LEFT]
        while left > 0 and row < capacity and (p < base + until or row == 0):
            p = _record(start, p, end, base, first + 8 * row, capacity)
            if p > end:
                state[REASON] = p - FAILED if p > FAILED else TOO_SHORT
                return row
            row += 1
            left -= 1
        state[POSITION], state[LEFT] = p - base, left
        if left > 0:
            return row
        if p != end:
            state[REASON] = LEFT_OVER
            return row
        state[BLOCK] += 1
        if state[BLOCK] < len(ends):
            state[LEFT] = counts[state[BLOCK]]
    return row
