"""The instructions that read Avro records, and the machine that executes them, compiled by numba.

A program is a flat array of integers: instructions of `WIDTH` words (operation and three operands), then the tables
that instructions point to. It runs once per record, in one pass over the bytes of a block, and stores projected values
in slots, two words for each column and record.

- A slot's first word is a number, or the offset at which bytes, a list or a map begin. Its second word is -1 for null,
  or else a length or number of items (0 for numbers). `take_bytes`, `take_pairs` and `take_numbers` copy the values.
- Positions of data, code and slots are addresses, and are checked after every step. A step that fails returns a
  position after any end (see `machine`).

The operations are defined together with the code that executes them, so that cached code of numba always matches them.
"""

from __future__ import annotations

from numba import types

from sparkmeta.avro.machine import (
    BAD_BRANCH,
    BAD_COUNT,
    BAD_KEY,
    BAD_LENGTH,
    BYTES_VALUE,
    DATA,
    FAILED,
    LEFT_OVER,
    LONG_NUMBER,
    LONG_PAIR,
    LONGS,
    NULL_FILE,
    SLOTS,
    TEXT_KEY,
    TOO_SHORT,
    byte_at,
    entry_point,
    piece,
    put,
    read_block,
    read_number,
    read_pair,
    read_size,
    word_at,
)
from sparkmeta.avro.machine import (
    is_cached as is_cached,  # noqa: PLC0414  decoders ask `execute`
)
from sparkmeta.avro.machine import (
    prepare as prepare,  # noqa: PLC0414
)

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
        for place in range(size):
            value |= byte_at(p + place) << (8 * place)
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
    place = key & mask
    while True:
        column = word_at(table + 16 * place + 8)
        if column < 0 or word_at(table + 16 * place) == key:
            return column
        place = (place + 1) & mask


@piece
def _read_keys(pc, p, end, base, row, capacity):  # type: ignore[no-untyped-def]
    """Read the values of projected keys into the slots of their columns. Of a repeated key, the last value stays."""
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
