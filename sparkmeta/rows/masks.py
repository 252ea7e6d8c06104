"""Positions that deletes mask, as bits: deletion vectors and position delete files of many data files in one array.

A file with masked rows has a run of 64-bit words in the array, one bit a row. The number that the file is handed over
with says where: `first word << 24 | count of words`; one without has no words, and a number of its own. Whether a row
is masked is one look-up, by number and position, in an array that every task has: no join, and of a row whose file has
no words a comparison.

Bitmaps are decoded by the driver if they are few and small, else by tasks. The driver puts the words together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.errors import CorruptFileError
from sparkmeta.inspect.delete_rows import deleted_positions
from sparkmeta.manifests.placement import MOST_ENTRIES
from sparkmeta.rows.handover import NUMBER, POSITION
from sparkmeta.rows.planned import Flags, Indices, PlannedFiles, translated_errors
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.bitmap import read_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.location import spark_path_key
from sparkmeta.storage.ranges import FileRange, read_ranges, request_count
from sparkmeta.storage.reading import binary_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.settings import Settings
    from sparkmeta.state import TableState
    from sparkmeta.storage.ranges import RangeReader

Words = np.ndarray[Any, np.dtype[np.int64]]

# Most requests by the driver: its threads take half a second for them, a job that runs Python as long.
_DRIVER_REQUESTS: Final = 256
_COUNT_BITS: Final = 24
_MASK, _MASKED = "mask", "is_masked"
_UNITS: Final = pa.schema(
    [
        pa.field("location", pa.string()),
        pa.field("file_format", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("size_in_bytes", pa.int64()),
        pa.field("record_count", pa.int64()),
        pa.field("referenced_data_file", pa.string()),
        pa.field("data_file", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("first_word", pa.int64()),
    ]
)
"""What a delete masks of a data file with so many rows."""
_WORDS: Final = pa.schema([pa.field("first_word", pa.int64()), pa.field("words", pa.list_(pa.int64()))])


@dataclass(frozen=True)
class Limits:
    """Bounds of memory, in words of 8 bytes.

    Attributes:
        literal: words that are a value of the query, of which each task has a copy; more are broadcast.
        batch: words of the files that are read together; a file with more of its own is not for masks.
        total: words of all files of a scan, which the driver holds as long as the DataFrame lives.
    """

    literal: int = 2 << 20
    batch: int = 8 << 20
    total: int = 64 << 20


LIMITS = Limits()


def word_counts(files: PlannedFiles) -> Indices:
    """Return how many words each file needs; 0 for those without deletes of positions."""
    needed = np.zeros(len(files), np.int64)
    owners = files.deletes_of(ContentType.POSITION_DELETES).column("owner").to_numpy()
    needed[owners] = np.maximum(-(-files.numbers("record_count")[owners] // 64), 1)
    return needed


def fits(counts: Indices) -> Flags:
    """Return which files masks are for, within the limits; those without words always."""
    small = counts <= LIMITS.batch
    fitting = small & (np.cumsum(np.where(small, counts, 0)) <= LIMITS.total)
    either: Flags = fitting | (counts == 0)
    return either


def batches(rows: Indices, counts: Indices) -> list[Indices]:
    """Cut files into those that are read together, all in few parts of at most `LIMITS.batch` words.

    Args:
        rows: of the files.
        counts: the words of every file.
    """
    parts: list[Indices] = []
    start, held = 0, 0
    for place, count in enumerate(counts[rows].tolist()):
        if held and held + count > LIMITS.batch:
            parts.append(rows[start:place])
            start, held = place, 0
        held += count
    return [*parts, rows[start:]]


def numbers(counts: Indices) -> Indices:
    """Return ascending numbers for files that are read together, those with words first.

    Args:
        counts: the words of these files, in the order of the numbers to be.
    """
    total = int(counts.sum())
    ends = np.cumsum(counts)
    unmasked = total + np.cumsum(counts == 0)
    return np.where(counts > 0, (ends - counts) << _COUNT_BITS | counts, unmasked << _COUNT_BITS)


def masked_words(state: TableState, files: PlannedFiles, rows: Indices, file_numbers: Indices) -> Words:
    """Decode the deletes of positions of files that are read together.

    Args:
        state: the table.
        files: the planned files.
        rows: of the files that are read together.
        file_numbers: their `numbers`.

    Raises:
        CorruptFileError: a deletion vector or delete file is not what it should be, or masks a row that the data file
            does not have; a ValidationError where a task found that.
        NotFoundError: a delete file is missing.
    """
    counts = file_numbers & ((1 << _COUNT_BITS) - 1)
    words = np.zeros(int(counts.sum()), np.int64)
    units = _units(files, rows, file_numbers)
    for batch in _decoded(state, units):
        ends = batch.column("words").offsets.to_numpy()
        values = batch.column("words").values.to_numpy()
        for start, first, end in zip(batch.column("first_word").to_pylist(), ends, ends[1:], strict=False):
            words[start : start + end - first] |= values[first:end]
    return words


def masks_any(words: Words, file_numbers: Indices) -> Flags:
    """Return which files have a masked row, by their numbers."""
    firsts, counts = file_numbers >> _COUNT_BITS, file_numbers & ((1 << _COUNT_BITS) - 1)
    masked = np.concatenate([[0], np.cumsum(words != 0)])
    ends = np.minimum(firsts + counts, len(words))
    either: Flags = (counts > 0) & (masked[ends] > masked[np.minimum(firsts, ends)])
    return either


def without_masked(frame: DataFrame, words: Words) -> DataFrame:
    """Return rows with `number` and `pos` without those that words mask."""
    return with_masked(frame, words, _MASKED).where(f"NOT {_MASKED}").drop(_MASKED) if len(words) else frame


def with_masked(frame: DataFrame, words: Words, name: str) -> DataFrame:
    """Add a column that tells whether words mask a row, by its `number` and `pos`."""
    if not len(words):
        return frame.withColumn(name, F.lit(False))
    mask_row = local_frame(frame.sparkSession, pa.table({_MASK: pa.array([words], pa.list_(pa.int64()))}))
    if len(words) <= LIMITS.literal:
        mask = mask_row.scalar()
    else:
        frame, mask = frame.crossJoin(F.broadcast(mask_row)), F.col(_MASK)
    number, position = F.col(NUMBER), F.col(POSITION)
    word_place = F.shiftright(position, 6)
    word = F.get(mask, F.shiftright(number, _COUNT_BITS) + word_place)
    bit = F.call_function("shiftright", word, position.bitwiseAND(63).cast("int")).bitwiseAND(1)
    has_word = word_place < number.bitwiseAND((1 << _COUNT_BITS) - 1)
    return frame.withColumn(name, has_word & (bit == 1)).drop(_MASK)


def _units(files: PlannedFiles, rows: Indices, file_numbers: Indices) -> pa.Table:
    deletes = files.deletes_of(ContentType.POSITION_DELETES)
    place = np.full(len(files), -1, np.int64)
    place[rows] = np.arange(len(rows))
    owners = deletes.column("owner").to_numpy()
    is_read = place[owners] >= 0
    deletes, owners = deletes.filter(pa.array(is_read)), owners[is_read]
    columns = {
        "location": deletes.column("file_path"),
        "offset": deletes.column("content_offset"),
        "size_in_bytes": pc.coalesce(deletes.column("content_size_in_bytes"), deletes.column("file_size_in_bytes")),
        **{name: deletes.column(name) for name in ("file_format", "record_count", "referenced_data_file")},
        "data_file": files.table.column("file_path").take(pa.array(owners)),
        "rows": files.table.column("record_count").take(pa.array(owners)),
        "first_word": pa.array(file_numbers[place[owners]] >> _COUNT_BITS),
    }
    units = pa.table([columns[name] for name in _UNITS.names], schema=_UNITS)
    return units.sort_by([("location", "ascending"), ("offset", "ascending")])


def _decoded(state: TableState, units: pa.Table) -> Iterable[pa.RecordBatch]:
    """Return `_WORDS` of units."""
    if not len(units):
        return []
    access, spark = state.access, state.spark
    if access.driver is not None and _are_few(units, state.settings):
        return _decode(access.driver, units.to_batches())
    with translated_errors():
        if access.tasks is not None:
            decoded = map_arrow(local_frame(spark, units), partial(_decode, access.tasks), _WORDS).toArrow()
            return list(decoded.to_batches())
        locations = units.column("location").unique().to_pylist()
        grouped = _by_location(units)
        keys = pa.table({"path": [*map(spark_path_key, locations)], "units": grouped})
        contents = binary_files(spark, locations).join(F.broadcast(local_frame(spark, keys)), "path")
        decoded = map_arrow(contents.select("content", "units"), _decode_contents, _WORDS).toArrow()
        return list(decoded.to_batches())


def _are_few(units: pa.Table, limits: Settings) -> bool:
    """Return whether the driver decodes units faster than a job would."""
    if len(units) > MOST_ENTRIES or pc.sum(units.column("size_in_bytes")).as_py() > limits.driver_manifest_bytes:
        return False
    return request_count([*_by_range(units.to_pylist())]) <= _DRIVER_REQUESTS


def _by_location(units: pa.Table) -> pa.ListArray:
    """Return units, which are sorted by location, in a list for each location."""
    ends = np.cumsum(units.column("location").combine_chunks().value_counts().field("counts").to_numpy())
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, units.to_struct_array().combine_chunks())


# -- decoding, by the driver or in tasks ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Content:
    """A file in memory, as a `RangeReader`."""

    data: pa.Buffer

    def read_range(self, _: str, offset: int, size: int) -> bytes:
        return bytes(self.data[max(offset, 0) : max(offset, 0) + max(size, 0)])


def _decode_contents(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for content, units in zip(*map(batch.column, ("content", "units")), strict=True):
            rows = pa.RecordBatch.from_struct_array(units.values)
            yield from _decode(_Content(content.as_buffer()), [rows])


def _decode(reader: RangeReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        by_range = _by_range(batch.to_pylist())
        ranges = [*by_range]
        for place, data in read_ranges(reader, ranges):
            units = by_range[ranges[place]]
            if _is_vector(units[0]):
                yield from (_row(unit, _vector_words(unit, data)) for unit in units)
            else:
                masked = _file_words(data, ranges[place].location, {unit["data_file"]: unit for unit in units})
                yield from (_row(unit, words) for unit, words in masked)


def _by_range(units: Iterable[dict[str, Any]]) -> dict[FileRange, list[dict[str, Any]]]:
    """Return units by what has to be read for them: a deletion vector, or the whole of another delete file."""
    by_range: dict[FileRange, list[dict[str, Any]]] = {}
    for unit in units:
        offset = _offset(unit) if _is_vector(unit) else 0
        by_range.setdefault(FileRange(unit["location"], offset, unit["size_in_bytes"]), []).append(unit)
    return by_range


def _is_vector(unit: Mapping[str, Any]) -> bool:
    return bool(unit["file_format"] == "PUFFIN")


def _row(unit: Mapping[str, Any], words: Words) -> pa.RecordBatch:
    columns = [pa.array([unit["first_word"]]), pa.array([words], pa.list_(pa.int64()))]
    return pa.RecordBatch.from_arrays(columns, schema=_WORDS)


def _offset(unit: Mapping[str, Any]) -> int:
    if unit["offset"] is None or unit["offset"] < 0 or unit["size_in_bytes"] is None:
        problem = "a deletion vector's entry must say where it is"
        raise CorruptFileError(unit["location"], "content_offset", unit["offset"], problem)
    return int(unit["offset"])


def _vector_words(unit: Mapping[str, Any], blob: bytes) -> Words:
    if len(blob) != unit["size_in_bytes"]:
        problem = f"{unit['size_in_bytes']} bytes there are not all in the file"
        raise CorruptFileError(unit["location"], "content_offset", unit["offset"], problem)
    words = np.zeros(_word_count(unit), np.int64)
    for positions in read_deletion_vector(blob, unit["location"], unit["record_count"]).positions():
        _set(words, positions, unit)
    return words


def _file_words(
    data: bytes, location: str, units: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Words]]:
    """Yield the words of data files, by their paths, that a position delete file has positions of.

    Other paths are of files that are not read, or no longer there; not so in a file about one data file only.
    """
    words: dict[str, Words] = {}
    for paths, positions in deleted_positions(data, next(iter(units.values()))["file_format"], location):
        for path, of_path in _by_path(paths, positions):
            unit = units.get(path)
            if unit is None:
                _refuse_foreign(path, location, units)
                continue
            if path not in words:
                words[path] = np.zeros(_word_count(unit), np.int64)
            _set(words[path], of_path, unit)
    for path, of_path in words.items():
        yield units[path], of_path


def _refuse_foreign(path: str, location: str, units: Mapping[str, Mapping[str, Any]]) -> None:
    referenced = next(iter(units.values()))["referenced_data_file"]
    if referenced is not None:
        raise CorruptFileError(location, "file_path", path, f"the manifest says that all deletes are of {referenced}")


def _by_path(paths: pa.DictionaryArray, positions: pa.Array) -> Iterator[tuple[str, Words]]:
    codes = paths.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    values = positions.to_numpy()[order]
    for start, of_path in zip(starts, np.split(values, starts[1:]), strict=True):
        yield paths.dictionary[int(codes[order[start]])].as_py(), of_path


def _word_count(unit: Mapping[str, Any]) -> int:
    return max(-(-int(unit["rows"]) // 64), 1)


def _set(words: Words, positions: Words, unit: Mapping[str, Any]) -> None:
    """Set the bits of positions."""
    if not len(positions):
        return
    positions = np.sort(positions, kind="stable")
    for extreme in (int(positions[0]), int(positions[-1])):
        if not 0 <= extreme < unit["rows"]:
            problem = f"{unit['data_file']} has {unit['rows']} rows"
            raise CorruptFileError(unit["location"], "position", extreme, problem)
    places = positions >> 6
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    words[places[starts]] |= np.bitwise_or.reduceat(np.left_shift(np.int64(1), positions & 63), starts)
