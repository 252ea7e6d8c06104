"""The instructions that records of Avro are read by, and the machine that executes them, compiled by numba.

A program is a flat array of integers: instructions of `WIDTH` words (operation and three operands), then the tables
that instructions point to. It runs once for every record, in one pass over the bytes of a block, and leaves what is
wanted in slots: two words for every column and record.

- A slot's first word is a number, or the place in the data where bytes, a list or a map begin. Its second word is -1
  for null, else a length or number of items (of a number 0). `take_bytes`, `take_pairs` and `take_numbers` copy what is
  at those places.
- Inside the machine all positions, of data, code and slots, are addresses: arrays would be counted as references at
  every call. Python hands over arrays, and gets no address.
- Positions are checked after every step: a step that fails answers with one behind any end (`_FAILED` plus the reason).
  A step reads no more than `PADDING` bytes beyond the end before that check, and data ends with as many to spare.
- Lengths are compared with the bytes that are left before they are added to a position, and numbers of items before
  they are looped over: an item takes at least a byte.

The operations are defined here, with the code that numba caches by this file's time and size, so that a cached machine
never meets a program made for another.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("numba is told not to compile (NUMBA_DISABLE_JIT): addresses are for compiled code only")

WIDTH = 4
PADDING = 16

# Control. The operands of an instruction, in order, are in parentheses. Targets and tables are given by their distance
# from the instruction, in bytes.
END = 0
JUMP = 1  # (target)
UNION = 2  # (branches, table of their targets)
LOOP = 3  # (target behind the loop, bytes of the smallest item, items left): begins every block of items
LOOP_END = 4  # (its LOOP)
FAIL = 5  # (reason)
# Values that nobody wants.
SKIP_NUMBER = 6
SKIP_FIXED = 7  # (size)
SKIP_BYTES = 8
SKIP_ITEMS = 9  # (shape, shape's parameter)
# Values that are wanted.
READ_NUMBER = 10  # (column)
READ_BITS = 11  # (column, size): little-endian, up to 8 bytes
READ_BYTES = 12  # (column)
READ_FIXED = 13  # (column, size)
READ_ITEMS = 14  # (column, shape, parameter)
BACK = 15  # (column): to where that column's items begin, to read them once more
READ_KEYS = 16  # (mask of a table of (key, column or -1), table, kinds of key and value as in PAIRS)

_LAST_CONTROL, _LAST_SKIP = FAIL, SKIP_ITEMS

# Shapes of a list's or map's items, and their parameter.
NUMBERS = 0  # numbers in one item
FIXED = 1  # size of an item
PAIRS = 2  # TEXT_KEY and BYTES_VALUE, or-ed

TEXT_KEY = 1
BYTES_VALUE = 2

# Reasons to fail.
TOO_SHORT, LONG_NUMBER, BAD_LENGTH, BAD_COUNT, BAD_BRANCH, BAD_KEY, NULL_FILE, LEFT_OVER = range(1, 9)
PROBLEMS = {
    TOO_SHORT: "its bytes end before its last record does",
    LONG_NUMBER: "a number is longer than 10 bytes",
    BAD_LENGTH: "a length that is negative or goes beyond the block",
    BAD_COUNT: "a number of items that the block has no room for",
    BAD_BRANCH: "a branch that its union does not have",
    BAD_KEY: "a key of a map that is no number",
    NULL_FILE: "a record whose data_file is null",
    LEFT_OVER: "there are bytes after its last record",
}
_FAILED = 1 << 62

# Places of `state`, by which a run continues where the one before it stopped.
BLOCK, POSITION, LEFT, REASON = range(4)

_MAX_LONG = (1 << 63) - 1
_ONES = 0x0101010101010101
# The bits of a number and a length that are not both of one byte and at least zero.
_LONG_PAIR = 0x8181

# What `copy_entries` writes of its own: the status, and a number of a union.
ENTRY_BYTES, NUMBER_BYTES = 1, 11
_EXISTING = 0

_DATA = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C")
_LONGS = types.Array(types.int64, 1, "C")
_ROWS = types.Array(types.int64, 2, "C")
_SLOTS = types.Array(types.int64, 3, "C")

Machine = Callable[..., Any]

_intrinsic: Any = intrinsic


def _part(function: Machine) -> Machine:
    """A piece of the machine, compiled into the functions that use it."""
    compiled: Machine = numba.njit(function, nogil=True)
    return compiled


def _machine(signature: Any) -> Callable[[Machine], Machine]:
    """A function that Python calls: of one signature, and kept compiled where numba finds a folder to write to."""

    def declared(function: Machine) -> Machine:
        made: Machine
        try:
            made = numba.njit(function, nogil=True, cache=True)
        except RuntimeError:  # neither the folder of this file nor the user's cache folder can be written
            made = numba.njit(function, nogil=True)
        _MACHINES.append((made, signature))
        return made

    return declared


_MACHINES: list[tuple[Any, Any]] = []


def is_kept() -> bool:
    """Whether the machine was compiled before and kept, so that `prepare` takes some hundredths of a second, not some
    seconds."""
    kept = [made.stats.cache_path for made, _ in _MACHINES]
    return all(
        path and any(Path(path).glob(f"*.{made.__name__}-*.nbi"))
        for path, (made, _) in zip(kept, _MACHINES, strict=True)
    )


def prepare() -> None:
    """Loads the machine, or compiles and keeps it."""
    for made, signature in _MACHINES:
        if not made.signatures:
            made.compile(signature)
        made.disable_compile()


@_intrinsic
def _byte(_typing, _address):  # type: ignore[no-untyped-def]
    """The byte at an address."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(place), ir.IntType(64))

    return types.int64(types.int64), generate


@_intrinsic
def _word(_typing, _address):  # type: ignore[no-untyped-def]
    """The eight bytes at an address, the first one lowest."""

    def generate(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.int64(types.int64), generate


@_intrinsic
def _put(_typing, _address, _value):  # type: ignore[no-untyped-def]
    """Sets the eight bytes at an address."""

    def generate(context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[1], place, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_part
def _long_number(p):  # type: ignore[no-untyped-def]
    value = 0
    for place in range(10):
        byte = _byte(p + place)
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return ((value >> 1) & _MAX_LONG) ^ -(value & 1), p + place + 1
    return 0, _FAILED + LONG_NUMBER


@_part
def _number(p):  # type: ignore[no-untyped-def]
    """A number in Avro's zigzag form, and the position behind it."""
    byte = _byte(p)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), p + 1
    return _long_number(p)


@_part
def _size(p, end):  # type: ignore[no-untyped-def]
    """The length of bytes or text, and where they begin; fails where there are not so many."""
    size, p = _number(p)
    if p > end:
        return 0, p
    if size < 0 or size > end - p:
        return 0, _FAILED + BAD_LENGTH
    return size, p


@_part
def _skip_numbers(p, end, count):  # type: ignore[no-untyped-def]
    """Passes over numbers by counting their last bytes, those below 128, eight at a time."""
    while count > 8 and p <= end:
        longer = (_word(p) >> 7) & _ONES
        count -= 8 - ((longer * _ONES) >> 56)
        p += 8
    while count > 0 and p < end:
        count -= _byte(p) < 0x80
        p += 1
    return p if count == 0 else _FAILED + TOO_SHORT


@_part
def _skip_one(is_bytes, p, end):  # type: ignore[no-untyped-def]
    if is_bytes:
        size, p = _size(p, end)
        return p + size
    return _number(p)[1]


@_part
def _skip_pairs(kinds, p, end, count):  # type: ignore[no-untyped-def]
    text_key, bytes_value = kinds & TEXT_KEY != 0, kinds & BYTES_VALUE != 0
    for _ in range(count):
        word = _word(p)
        if kinds == BYTES_VALUE and word & _LONG_PAIR == 0:
            p += 2 + (word >> 9 & 0x3F)
        else:
            p = _skip_one(text_key, p, end)
            if p <= end:
                p = _skip_one(bytes_value, p, end)
        if p > end:
            return p
    return p


@_part
def _block(p, end, smallest):  # type: ignore[no-untyped-def]
    """The head of a block of items: their number, their size in bytes (-1 if unknown) and where they begin."""
    size = -1
    count, p = _number(p)
    if count < 0 and p <= end:
        count = -count
        size, p = _size(p, end)
    if p <= end and (count < 0 or count > (end - p) // smallest):
        return 0, size, _FAILED + BAD_COUNT
    return count, size, p


@_part
def _skip_block(shape, parameter, p, end, count):  # type: ignore[no-untyped-def]
    if shape == NUMBERS:
        return _skip_numbers(p, end, count * parameter)
    if shape == FIXED:
        return p + count * parameter
    return _skip_pairs(parameter, p, end, count)


@_part
def _skip_items(shape, parameter, p, end, by_size):  # type: ignore[no-untyped-def]
    """Passes over a list or map, by the size of its blocks where they have one and `by_size` allows that.

    Gives the number of items and the position behind.
    """
    smallest = 2 if shape == PAIRS else parameter
    total = 0
    while True:
        count, size, p = _block(p, end, smallest)
        if count == 0 or p > end:
            return total, p
        p = p + size if by_size and size >= 0 else _skip_block(shape, parameter, p, end, count)
        if p > end:
            return total, p
        total += count


@_part
def _skip(op, pc, p, end):  # type: ignore[no-untyped-def]
    if op == SKIP_NUMBER:
        return _number(p)[1]
    if op == SKIP_FIXED:
        return p + _word(pc + 8)
    if op == SKIP_BYTES:
        return _skip_one(True, p, end)
    return _skip_items(_word(pc + 8), _word(pc + 16), p, end, True)[1]


@_part
def _control(op, pc, p, end):  # type: ignore[no-untyped-def]
    """The next instruction and position."""
    if op == UNION:
        branch, p = _number(p)
        if branch < 0 or branch >= _word(pc + 8):
            return pc, _FAILED + BAD_BRANCH
        return pc + _word(pc + _word(pc + 16) + 8 * branch), p
    if op == JUMP:
        return pc + _word(pc + 8), p
    if op == LOOP:
        return _loop(pc, p, end)
    if op == LOOP_END:
        loop = pc + _word(pc + 8)
        left = _word(loop + 24) - 1
        _put(loop + 24, left)
        return (loop + 8 * WIDTH if left > 0 else loop), p
    return pc, _FAILED + _word(pc + 8)


@_part
def _loop(pc, p, end):  # type: ignore[no-untyped-def]
    count, size, p = _block(p, end, _word(pc + 16))
    if count == 0 or p > end:
        return pc + _word(pc + 8), p
    if size >= 0:
        return pc, p + size
    _put(pc + 24, count)
    return pc + 8 * WIDTH, p


@_part
def _bits(p, end, size):  # type: ignore[no-untyped-def]
    value = 0
    if size <= end - p:
        for place in range(size):
            value |= _byte(p + place) << (8 * place)
    return value


@_part
def _read(op, pc, p, end, base, row, capacity):  # type: ignore[no-untyped-def]
    """Reads a value into the slot of its column. row: the record's slot of column 0, whose second word is `capacity`
    words further; the next column is as far again."""
    slot = row + 16 * capacity * _word(pc + 8)
    if op == BACK:
        return base + _word(slot)
    start, size = p - base, 0
    if op == READ_NUMBER:
        start, p = _number(p)
    elif op == READ_BYTES:
        size, p = _size(p, end)
        start, p = p - base, p + size
    elif op == READ_FIXED:
        size = _word(pc + 16)
        p += size
    elif op == READ_BITS:
        start, p = _bits(p, end, _word(pc + 16)), p + _word(pc + 16)
    else:
        size, p = _skip_items(_word(pc + 16), _word(pc + 24), p, end, False)
    _put(slot, start)
    _put(slot + 8 * capacity, size)
    return p


@_part
def _text_key(p, end):  # type: ignore[no-untyped-def]
    """A map's key that is text, as the number that it writes, as Java and Python write an int."""
    size, p = _size(p, end)
    if p > end:
        return 0, p
    stop, key, sign = p + size, 0, 1
    if size > 1 and _byte(p) == 0x2D:
        sign, p = -1, p + 1
    digits = stop - p
    if digits < 1 or digits > 10 or (_byte(p) == 0x30 and (digits > 1 or sign < 0)):
        return 0, _FAILED + BAD_KEY
    for place in range(digits):
        digit = _byte(p + place) - 0x30
        if digit < 0 or digit > 9:
            return 0, _FAILED + BAD_KEY
        key = 10 * key + digit
    return sign * key, stop


@_part
def _key(text, p, end):  # type: ignore[no-untyped-def]
    return _text_key(p, end) if text else _number(p)


@_part
def _column_of(table, mask, key):  # type: ignore[no-untyped-def]
    """The column of a wanted key, or -1: a table of open addresses, never more than half full."""
    place = key & mask
    while True:
        column = _word(table + 16 * place + 8)
        if column < 0 or _word(table + 16 * place) == key:
            return column
        place = (place + 1) & mask


@_part
def _pair(kinds, p, end):  # type: ignore[no-untyped-def]
    """A map's next key, its value (or where that begins), the value's size, and the position behind."""
    if kinds == BYTES_VALUE:
        word = _word(p)
        if word & _LONG_PAIR == 0:
            size = word >> 9 & 0x3F
            return word >> 1 & 0x3F, p + 2, size, p + 2 + size
    key, p = _key(kinds & TEXT_KEY != 0, p, end)
    if p > end:
        return 0, 0, 0, p
    if kinds & BYTES_VALUE:
        size, p = _size(p, end)
        return key, p, size, p + size
    value, p = _number(p)
    return key, value, 0, p


@_part
def _read_keys(pc, p, end, base, row, capacity):  # type: ignore[no-untyped-def]
    """Reads the values of wanted keys, each into the slot of its column. Of two values of one key the last stays."""
    mask, table, kinds = _word(pc + 8), pc + _word(pc + 16), _word(pc + 24)
    if not kinds & BYTES_VALUE:
        base = 0
    while True:
        count, _, p = _block(p, end, 2)
        if count == 0 or p > end:
            return p
        for _ in range(count):
            key, value, size, p = _pair(kinds, p, end)
            if p > end:
                return p
            column = _column_of(table, mask, key)
            if column >= 0:
                slot = row + 16 * capacity * column
                _put(slot, value - base)
                _put(slot + 8 * capacity, size)


@_part
def _record(pc, p, end, base, row, capacity):  # type: ignore[no-untyped-def]
    """Executes the program on the record at p. Gives the position behind it."""
    while True:
        op = _word(pc)
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


@_machine(types.int64(_LONGS, _DATA, _LONGS, _LONGS, _LONGS, types.int64, _SLOTS))
def run(code, data, ends, counts, state, until, slots):  # type: ignore[no-untyped-def]
    """Executes a program on records of neighbouring blocks, from where `state` says, and gives their number.

    It stops where the slots are full, and before a record that begins at `until` or later. ends, counts: where every
    block ends in the data, and how many records it has. slots: by column, word of the slot, record.
    state[REASON] is not 0 where a block, state[BLOCK], is corrupt.
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
                state[REASON] = p - _FAILED if p > _FAILED else TOO_SHORT
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


@_machine(types.void(_DATA, _LONGS, _LONGS, _BYTES))
def take_bytes(data, starts, sizes, taken):  # type: ignore[no-untyped-def]
    """Copies slices of the data side by side to `taken`, which has `PADDING` bytes more than they need."""
    base, p = types.int64(data.ctypes.data), types.int64(taken.ctypes.data)
    for row in range(len(starts)):
        start = base + starts[row]
        p = _copy(start, start + max(sizes[row], 0), p)


@_part
def _copy(source, end, p):  # type: ignore[no-untyped-def]
    """Copies the bytes up to an end to p. Gives the position behind them; up to 7 bytes there are overwritten too."""
    for place in range(0, end - source, 8):
        _put(p + place, _word(source + place))
    return p + (end - source)


@_part
def _put_number(p, value):  # type: ignore[no-untyped-def]
    """Writes a number in Avro's zigzag form. Gives the position behind it."""
    rest = (value << 1) ^ (value >> 63)
    while rest & ~0x7F:
        _put(p, rest & 0x7F | 0x80)
        rest = rest >> 7 & _MAX_LONG >> 6
        p += 1
    _put(p, rest)
    return p + 1


@_part
def _put_optional(p, value, size):  # type: ignore[no-untyped-def]
    """Writes a number or null, a slot's words, as a union of null and number."""
    if size < 0:
        _put(p, 0)
        return p + 1
    _put(p, 2)
    return _put_number(p + 1, value)


@_machine(types.void(_DATA, _ROWS, _SLOTS, types.int64, types.int64, _BYTES, _LONGS))
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
            _put(p, 0)
            p += 1
    offsets[marks.shape[1]] = p - first


@_machine(types.int64(_DATA, _LONGS, _LONGS, types.int64, _LONGS, _LONGS, _LONGS))
def take_pairs(data, starts, sizes, kinds, keys, words, lengths):  # type: ignore[no-untyped-def]
    """The keys and values of maps that READ_ITEMS has passed over, side by side: values that are bytes by place and
    length. Gives their number, which is less than it should be where a key is no number."""
    base = types.int64(data.ctypes.data)
    end = base + len(data) - PADDING
    item = 0
    for row in range(len(starts)):
        p, left = base + starts[row], sizes[row]
        while left > 0:
            count, _, p = _block(p, end, 2)
            if count == 0 or count > left or p > end:
                return item
            left -= count
            for _ in range(count):
                keys[item], words[item], lengths[item], p = _pair(kinds, p, end)
                if p > end:
                    return item
                if kinds & BYTES_VALUE:
                    words[item] -= base
                item += 1
    return item


@_machine(types.int64(_DATA, _LONGS, _LONGS, _LONGS))
def take_numbers(data, starts, sizes, words):  # type: ignore[no-untyped-def]
    """The numbers of lists that READ_ITEMS has passed over, side by side. Gives how many they are."""
    base = types.int64(data.ctypes.data)
    end = base + len(data) - PADDING
    item = 0
    for row in range(len(starts)):
        p, left = base + starts[row], sizes[row]
        while left > 0:
            count, _, p = _block(p, end, 1)
            if count == 0 or count > left or p > end:
                return item
            left -= count
            for _ in range(count):
                words[item], p = _number(p)
                if p > end:
                    return item
                item += 1
    return item
