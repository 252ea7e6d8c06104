"""Combine deletion vectors and position delete files of many data files in one bit array of masked positions.

A file with masked rows has a run of 64-bit words in the array, with one bit per row. Spark gets each file with a number
that encodes where the run is: `first word << 24 | count of words`. Other files have no words and a unique number. One
look-up by number and position, in an array that every task has, tests a row. This needs no join, and only a comparison
for rows of files without words.

Bitmaps are decoded on the driver if they are few and small, otherwise in tasks. A delete file is decoded once, however
many data files it covers. The driver assembles the words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.errors import CorruptFileError, translated_errors
from sparkmeta.expr.arrays import whole
from sparkmeta.rows.delete_rows import deleted_positions
from sparkmeta.rows.planned import NUMBER, POSITION, Flags, Indices, PlannedFiles
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.content import FileRange, read_ranges, request_count
from sparkmeta.storage.location import spark_path_key
from sparkmeta.storage.reading import binary_files
from sparkmeta.storage.vectors import vector_of, vector_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.settings import Settings
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.storage.content import RangeReader

Words = np.ndarray[Any, np.dtype[np.int64]]
_MaskedWords = tuple[Words, Words]
"""The indices of nonzero words, ascending, and these words."""

DRIVER_REQUESTS: Final = 256
"""Maximum number of requests by the driver. Its threads take half a second for them, like a job that runs Python."""

_COUNT_BITS: Final = 24
_ALL_BITS: Final = (1 << 64) - 1
_NO_WORDS: Final = np.zeros(0, np.int64)
_MASK, _MASKED = "mask", "is_masked"
_UNITS: Final = pa.schema(
    [
        pa.field("unit", pa.int64()),
        pa.field("location", pa.string()),
        pa.field("file_format", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("size_in_bytes", pa.int64()),
        pa.field("record_count", pa.int64()),
        pa.field("data_file", pa.string()),
    ]
)
"""Deletes to decode; `data_file` is null for a position delete file that names no data file."""
_MASKED_WORDS: Final = pa.schema(
    [
        pa.field("unit", pa.int64()),
        pa.field("data_file", pa.string()),
        pa.field("indices", pa.list_(pa.int64())),
        pa.field("words", pa.list_(pa.int64())),
    ]
)
"""The mask of a data file by a unit: the nonzero words, and their indices, ascending."""


@dataclass(frozen=True)
class MaskLimits:
    """Memory limits, in words of 8 bytes.

    Attributes:
        literal: maximum words in a query literal, which each task has a copy of; more words are broadcast.
        batch: maximum words of files that are read together. Files that need more on their own can't use masks.
        total: maximum words of all files of a scan, which the driver holds as long as the DataFrame lives.
    """

    literal: int = 2 << 20
    batch: int = 8 << 20
    total: int = 64 << 20


LIMITS = MaskLimits()


def word_counts(files: PlannedFiles) -> Indices:
    """Return the number of words that each file needs; 0 for files without position deletes.

    A file with an unknown number of rows (-1) gets a count that exceeds the limits.
    """
    rows = files.numbers("record_count")
    words = np.where(rows < 0, LIMITS.batch + 1, np.maximum(-(-rows // 64), 1))
    return np.where(files.have(ContentType.POSITION_DELETES), words, 0)


def fits(counts: Indices) -> Flags:
    """Return which files can use masks within the limits. Files without words always can."""
    is_small = counts <= LIMITS.batch
    is_fitting = is_small & (np.cumsum(np.where(is_small, counts, 0)) <= LIMITS.total)
    can_be_masked: Flags = is_fitting | (counts == 0)
    return can_be_masked


def batches(rows: Indices, counts: Indices) -> list[Indices]:
    """Divide files into batches to read together, each of consecutive files with at most `LIMITS.batch` words.

    Args:
        rows: the rows of the files.
        counts: the number of words of every file.
    """
    parts: list[Indices] = []
    start, batch_words = 0, 0
    for index, count in enumerate(counts[rows].tolist()):
        if batch_words and batch_words + count > LIMITS.batch:
            parts.append(rows[start:index])
            start, batch_words = index, 0
        batch_words += count
    return [*parts, rows[start:]]


def numbers(counts: Indices) -> Indices:
    """Return ascending numbers for files that are read together, files with words first.

    Args:
        counts: the number of words of each file, in the order in which to number them.
    """
    total = int(counts.sum())
    ends = np.cumsum(counts)
    unmasked = total + np.cumsum(counts == 0)
    return np.where(counts > 0, (ends - counts) << _COUNT_BITS | counts, unmasked << _COUNT_BITS)


def masked_words(state: TableState, files: PlannedFiles, rows: Indices, file_numbers: Indices) -> Words:
    """Decode the position deletes of files that are read together.

    Args:
        state: the table.
        files: the planned files.
        rows: the rows of the files that are read together.
        file_numbers: the `numbers` of the files.

    Raises:
        CorruptFileError: a deletion vector or delete file is damaged, or masks a row that the data file does not have.
            If a task finds this, the error is a ValidationError.
        NotFoundError: a delete file is missing.
    """
    firsts, counts = _words_of(file_numbers)
    words = np.zeros(int(counts.sum()), np.int64)
    batch_files = files.take(rows)
    units, set_indices = _units(batch_files)
    masked = _decoded(state, units, batch_files)
    file_indices = _masked_files(masked, set_indices, batch_files)
    paths, record_counts = batch_files.table.column("file_path"), batch_files.numbers("record_count")
    (starts, word_indices), (_, values) = map(_flat, (masked.column("indices"), masked.column("words")))
    for row in np.flatnonzero((file_indices >= 0) & (np.diff(starts) > 0)).tolist():
        file_index, row_slice = file_indices[row], slice(starts[row], starts[row + 1])
        position = _position_out_of_range(word_indices[row_slice], values[row_slice], int(record_counts[file_index]))
        if position is not None:
            location = units.column("location")[masked.column("unit")[row].as_py()].as_py()
            problem = f"{paths[file_index].as_py()} has {record_counts[file_index]} rows"
            raise CorruptFileError(location, "position", position, problem)
        words[firsts[file_index] + word_indices[row_slice]] |= values[row_slice]
    return words


def _flat(lists: pa.ChunkedArray) -> tuple[Indices, Words]:
    """Return list offsets, including the end of the last list, and the concatenated values."""
    column = whole(lists)
    return column.offsets.to_numpy(), column.values.to_numpy()


def _words_of(file_numbers: Indices) -> tuple[Indices, Indices]:
    """Return the first word and the number of words of each file."""
    return file_numbers >> _COUNT_BITS, file_numbers & ((1 << _COUNT_BITS) - 1)


def masks_any(words: Words, file_numbers: Indices) -> Flags:
    """Return which files have a masked row, given their numbers."""
    firsts, counts = _words_of(file_numbers)
    masked = np.concatenate([[0], np.cumsum(words != 0)])
    ends = np.minimum(firsts + counts, len(words))
    has_masked: Flags = (counts > 0) & (masked[ends] > masked[np.minimum(firsts, ends)])
    return has_masked


def without_masked(frame: DataFrame, words: Words) -> DataFrame:
    """Return the rows, with `number` and `pos`, that `words` do not mask."""
    return with_masked(frame, words, _MASKED).where(f"NOT {_MASKED}").drop(_MASKED) if len(words) else frame


def with_masked(frame: DataFrame, words: Words, name: str) -> DataFrame:
    """Add a column that tells whether `words` mask a row, by its `number` and `pos`."""
    if not len(words):
        return frame.withColumn(name, F.lit(False))
    mask_row = local_frame(frame.sparkSession, pa.table({_MASK: pa.array([words], pa.list_(pa.int64()))}))
    if len(words) <= LIMITS.literal:
        mask = mask_row.scalar()
    else:
        frame, mask = frame.crossJoin(F.broadcast(mask_row)), F.col(_MASK)
    number, position = F.col(NUMBER), F.col(POSITION)
    word_index = F.shiftright(position, 6)
    word = F.get(mask, F.shiftright(number, _COUNT_BITS) + word_index)
    bit = F.call_function("shiftright", word, position.bitwiseAND(63).cast("int")).bitwiseAND(1)
    has_word = word_index < number.bitwiseAND((1 << _COUNT_BITS) - 1)
    return frame.withColumn(name, has_word & (bit == 1)).drop(_MASK)


def _units(files: PlannedFiles) -> tuple[pa.Table, Indices]:
    """Return the units to decode for files, and the index of each unit in the deletes of `sets`, or -1."""
    file_deletes = files.file_deletes
    shared = np.flatnonzero(files.shared_deletes(ContentType.POSITION_DELETES))
    data_files = files.table.column("file_path").take(file_deletes.column("owner"))
    deletes = pa.concat_tables([
        file_deletes.drop_columns(["owner"]).append_column("data_file", data_files),
        files.sets.deletes.take(pa.array(shared)).append_column("data_file", pa.nulls(len(shared), pa.string())),
    ])  # fmt: skip
    order = pc.sort_indices(deletes, [("file_path", "ascending"), ("content_offset", "ascending")])
    deletes = deletes.take(order)
    columns = {
        "unit": pa.array(np.arange(len(deletes))),
        "location": deletes.column("file_path"),
        "offset": deletes.column("content_offset"),
        "size_in_bytes": pc.coalesce(deletes.column("content_size_in_bytes"), deletes.column("file_size_in_bytes")),
        **{name: deletes.column(name) for name in ("file_format", "record_count", "data_file")},
    }
    set_indices = np.concatenate([np.full(len(file_deletes), -1), shared])[order.to_numpy()]
    return pa.table([columns[name] for name in _UNITS.names], schema=_UNITS).combine_chunks(), set_indices


def _masked_files(masked: pa.Table, set_indices: Indices, files: PlannedFiles) -> Indices:
    """Return the index of the file of each row of `_MASKED_WORDS`; -1 if the row's unit does not apply to the file.

    A position delete file may have positions of files that are not read, do not exist any more, or are newer.
    """
    paths = whole(files.table.column("file_path"))
    file_indices = pc.fill_null(pc.index_in(whole(masked.column("data_file")), value_set=paths), -1).to_numpy()
    in_sets = set_indices[masked.column("unit").to_numpy()]
    used_sets = np.unique(files.set_codes)
    set_rows, members = files.sets.members_of(used_sets)
    deletes = len(files.sets.deletes)
    is_member = np.isin(files.set_codes[file_indices] * deletes + in_sets, used_sets[set_rows] * deletes + members)
    return np.where((in_sets < 0) | is_member, file_indices, -1)


def _position_out_of_range(indices: Words, words: Words, rows: int) -> int | None:
    """Return a masked position that is not a row of the file; None if there is none."""
    first_position = (int(indices[0]) << 6) + (int(words[0]) & -int(words[0])).bit_length() - 1
    last_position = (int(indices[-1]) << 6) + (int(words[-1]) & _ALL_BITS).bit_length() - 1
    return next((position for position in (first_position, last_position) if not 0 <= position < rows), None)


def _decoded(state: TableState, units: pa.Table, files: PlannedFiles) -> pa.Table:
    """Decode units to `_MASKED_WORDS`. Jobs leave out the words of files that are not read; the driver does not."""
    access, locations = state.access, state.types.locations
    if not len(units):
        return _MASKED_WORDS.empty_table()
    if access.driver is not None and _driver_decodes(units, state.settings):
        return pa.Table.from_batches([*_decode(access.driver, locations, units.to_batches())], _MASKED_WORDS)
    spark = state.spark
    if access.tasks is not None:
        decoded = map_arrow(local_frame(spark, units), partial(_decode, access.tasks, locations), _MASKED_WORDS)
    else:
        delete_files = units.column("location").unique().to_pylist()
        keys = pa.table({"path": [*map(spark_path_key, delete_files)], "units": _by_location(units)})
        contents = binary_files(spark, delete_files).join(F.broadcast(local_frame(spark, keys)), "path")
        decoded = map_arrow(contents.select("content", "units"), partial(_decode_contents, locations), _MASKED_WORDS)
    if units.column("data_file").null_count:
        paths = files.table.select(["file_path"]).rename_columns(["data_file"])
        decoded = decoded.join(local_frame(spark, paths), "data_file", "left_semi").select(_MASKED_WORDS.names)
    with translated_errors():
        return decoded.toArrow()


# Maximum number of units that the driver decodes. A job decodes more units faster.
_MOST_UNITS = 10_000


def _driver_decodes(units: pa.Table, limits: Settings) -> bool:
    """Return whether the driver can decode units faster than a job."""
    if len(units) > _MOST_UNITS or pc.sum(units.column("size_in_bytes")).as_py() > limits.driver_manifest_bytes:
        return False
    return request_count([*_by_range(units.to_pylist())]) <= DRIVER_REQUESTS


def _by_location(units: pa.Table) -> pa.ListArray:
    """Group units, which are sorted by location, into one list per location."""
    ends = np.cumsum(units.column("location").combine_chunks().value_counts().field("counts").to_numpy())
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, units.to_struct_array().combine_chunks())


# -- Decode delete files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Content:
    """A file in memory, as a `RangeReader`."""

    data: pa.Buffer

    def read_range(self, _: str, offset: int, size: int) -> bytes:
        return bytes(self.data[max(offset, 0) : max(offset, 0) + max(size, 0)])


def _decode_contents(locations: Locations, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for content, units in zip(*map(batch.column, ("content", "units")), strict=True):
            rows = pa.RecordBatch.from_struct_array(units.values)
            yield from _decode(_Content(content.as_buffer()), locations, [rows])


def _decode(reader: RangeReader, locations: Locations, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        by_range = _by_range(batch.to_pylist())
        ranges = [*by_range]
        for index, data in read_ranges(reader, ranges):
            units = by_range[ranges[index]]
            if _is_vector(units[0]):
                yield from (_row(unit, unit["data_file"], _vector_words(unit, data)) for unit in units)
                continue
            masked = _file_words(data, units[0], locations)
            for unit in units:
                _refuse_foreign(unit, masked)
                yield from (_row(unit, path, words) for path, words in masked.items())


def _by_range(units: Iterable[dict[str, Any]]) -> dict[FileRange, list[dict[str, Any]]]:
    """Group units by the range to read for them: a deletion vector, or a whole position delete file."""
    by_range: dict[FileRange, list[dict[str, Any]]] = {}
    for unit in units:
        by_range.setdefault(_range(unit), []).append(unit)
    return by_range


def _is_vector(unit: Mapping[str, Any]) -> bool:
    return bool(unit["file_format"] == "PUFFIN")


def _row(unit: Mapping[str, Any], data_file: str, masked: _MaskedWords) -> pa.RecordBatch:
    values = ([unit["unit"]], [data_file], *([part] for part in masked))
    columns = [pa.array(value, kind) for value, kind in zip(values, _MASKED_WORDS.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_MASKED_WORDS)


def _range(unit: Mapping[str, Any]) -> FileRange:
    location, size = unit["location"], unit["size_in_bytes"]
    return vector_range(location, unit["offset"], size) if _is_vector(unit) else FileRange(location, 0, size)


def _vector_words(unit: Mapping[str, Any], blob: bytes) -> _MaskedWords:
    vector = vector_of(blob, _range(unit), unit["record_count"])
    return _merged([_masked_words(positions) for positions in vector.positions()])


def _file_words(data: bytes, unit: Mapping[str, Any], locations: Locations) -> dict[str, _MaskedWords]:
    """Return the mask of each data file in a position delete file, by path."""
    parts: dict[str, list[_MaskedWords]] = {}
    for paths, positions in deleted_positions(data, unit["file_format"], unit["location"], locations):
        for path, path_positions in _by_path(paths, positions):
            parts.setdefault(path, []).append(_masked_words(path_positions))
    return {path: _merged(path_words) for path, path_words in parts.items()}


def _refuse_foreign(unit: Mapping[str, Any], data_files: Iterable[str]) -> None:
    expected = unit["data_file"]
    for path in data_files:
        if expected not in (None, path):
            problem = f"the manifest says that all deletes are of {expected}"
            raise CorruptFileError(unit["location"], "file_path", path, problem)


def _by_path(paths: pa.DictionaryArray, positions: pa.Array) -> Iterator[tuple[str, Words]]:
    codes = paths.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    values = positions.to_numpy()[order]
    for start, path_positions in zip(starts, np.split(values, starts[1:]), strict=True):
        yield paths.dictionary[int(codes[order[start]])].as_py(), path_positions


def _masked_words(positions: Words) -> _MaskedWords:
    """Return the indices of nonzero words, ascending, and these words."""
    positions = np.sort(positions, kind="stable")
    return _combined(positions >> 6, np.left_shift(np.int64(1), positions & 63))


def _merged(parts: Sequence[_MaskedWords]) -> _MaskedWords:
    if len(parts) == 1:
        return parts[0]
    indices, words = (np.concatenate([_NO_WORDS, *(part[side] for part in parts)]) for side in (0, 1))
    order = np.argsort(indices, kind="stable")
    return _combined(indices[order], words[order])


def _combined(indices: Words, words: Words) -> _MaskedWords:
    """Merge the words of equal indices by OR. `indices` are ascending."""
    if not len(indices):
        return indices, words
    starts = np.flatnonzero(np.concatenate([[True], np.diff(indices) != 0]))
    return indices[starts], np.bitwise_or.reduceat(words, starts)
