"""Cut planned files into splits, pack them into tasks, and write tasks as File Scan Task JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.entries.relation import select
from sparkmeta.expr import sql
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.types import public_value
from sparkmeta.plan.filter import partition_value
from sparkmeta.session import map_arrow
from sparkmeta.spec.iso_times import iso_date, iso_timestamp
from sparkmeta.spec.partitioning import partition_spec_to_json
from sparkmeta.spec.schema import schema_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema
    from pyspark.sql.types import StructType

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Aliased
    from sparkmeta.snapshot.state import TableState


# -- File Scan Task JSON (table spec, Appendix C) ---------------------------------------------------------------------
# Schema and specs are constants. All other values come from the split's columns.


PARTITION_JSON = "partition_json"

CONTENTS = ("data", "position-deletes", "equality-deletes")
_TO_THE_END = 2**31 - 1


def task_json(splits: Relation, state: TableState, schema: Schema) -> Relation:
    """Convert splits to JSON in the single column `task`.

    Args:
        splits: columns of `plan_files`, `start` and `length` in bytes, and `partition_json`.
        state: the table.
        schema: the schema that the scan reads.
    """
    keys = state.key_columns
    deletes = sql.call("array_join", sql.transform(sql.col("deletes"), partial(_delete_file, keys)), ",")
    members = [
        '{"schema":', sql.lit(json.dumps(schema_to_json(schema))),
        ',"spec":', _spec_json(state),
        ',"data-file":', _data_file(keys),
        ',"start":', sql.col("start").cast("string"),
        ',"length":', sql.col("length").cast("string"),
        ',"delete-files":[', deletes,
        '],"residual-filter":', sql.col("residual"), "}",
    ]  # fmt: skip
    return select(splits, [sql.concat(*members).alias("task")])


def partition_json(state: TableState) -> Sql:
    """Return an entry's partition tuple as a JSON object: partition field id -> single-value JSON, without nulls."""
    renumbered = dict(state.types.partition_ids)
    text = _tuple_json(state, {field_id: field_id for field_id in state.types.partition_fields})
    for spec_id, ids in renumbered.items():
        spec_json = _tuple_json(state, {unique: written for written, unique in ids})
        text = sql.when(sql.col("partition_spec_id") == spec_id, spec_json).otherwise(text)
    return text


def _tuple_json(state: TableState, ids: Mapping[int, int]) -> Sql:
    """Return partition values as a JSON object. `ids` maps unique partition field ids to the ids used as keys."""
    types = state.types.partition_types
    values = [
        single_value(partition_value(field_id), types[field_id]).alias(str(written))
        for field_id, written in ids.items()
    ]
    return json_object(values) if values else sql.lit("{}")


def _spec_json(state: TableState) -> Sql:
    chosen = sql.lit(None).cast("string")
    for spec_id, spec in state.specs.items():
        chosen = sql.when(sql.col("spec_id") == spec_id, json.dumps(partition_spec_to_json(spec))).otherwise(chosen)
    return chosen


def _data_file(keys: Iterable[str]) -> Sql:
    names = (
        "file_path", "file_format", "file_size_in_bytes", "record_count", "split_offsets", "sort_order_id",
        "first_row_id",
    )  # fmt: skip
    values = {name: sql.call("lower", sql.col(name)) if name == "file_format" else sql.col(name) for name in names}
    values |= {name: single_value(sql.col(name), BinaryType()) for name in keys}
    return content_file(_first_members(), "data", values)


def _delete_file(keys: Iterable[str], delete: Sql) -> Sql:
    names = (
        "file_path", "file_format", "file_size_in_bytes", "record_count", "equality_ids", "referenced_data_file",
        "content_offset", "content_size_in_bytes",
    )  # fmt: skip
    values = {name: sql.call("lower", delete[name]) if name == "file_format" else delete[name] for name in names}
    values |= {name: single_value(delete[name], BinaryType()) for name in keys}
    return content_file(_first_members(), content_name(delete), values)


def _first_members() -> Sql:
    """Return the first members of a content file: its spec and partition.

    A delete gets the spec and partition of the data file that it applies to, since a task has only one spec.
    """
    return sql.concat('{"spec-id":', sql.col("spec_id").cast("string"), ',"partition":', sql.col(PARTITION_JSON))


def content_name(delete: Sql) -> Sql:
    """Return the name of a delete's content."""
    return sql.lookup(CONTENTS, delete["content"])


def content_file(first_members: Sql, content: Sql | str, members: Mapping[str, Sql]) -> Sql:
    """Return the JSON object of a content file, without members that are null.

    Args:
        first_members: the text of its spec and partition.
        content: the name of its content.
        members: further members; underscores in their names become hyphens.
    """
    text = json_object([value.alias(name.replace("_", "-")) for name, value in members.items()])
    return sql.concat(first_members, ',"content":"', content, '",', sql.call("substring", text, 2, _TO_THE_END))


def json_object(members: Sequence[Aliased]) -> Sql:
    """Return a JSON object without members that are null."""
    return sql.call("to_json", sql.struct(*members), sql.call("map", "ignoreNullFields", "true"))


def single_value(value: Sql, kind: Any) -> Sql:
    """Return a value in JSON single-value serialization, before quoting (table spec, Appendix D)."""
    for kinds, by_spark, convert in _SINGLE_VALUES:
        if isinstance(kind, kinds):
            return sql.spelled(by_spark(value), "by value", value, convert)
    return public_value(value, kind) if isinstance(kind, PrimitiveType) else value


def _fixed(ticks: int, digits: int) -> str:
    """Return ticks since 1970 (10^digits per second) as ISO text with all digits of the fraction."""
    seconds, _, fraction = iso_timestamp(ticks, 10**digits).partition(".")
    return f"{seconds}.{fraction:0<{digits}}"


def _iso(ticks: Sql, digits: int, zone: str) -> Sql:
    """Return ticks since 1970 (10^digits per second) as ISO text in UTC, regardless of the session's time zone."""
    per_second = sql.lit(10**digits).cast("bigint")
    subsecond = sql.call("pmod", ticks, per_second)
    seconds = _div(ticks - subsecond, per_second)
    clock = sql.call("pmod", seconds, 86400)
    date = sql.call("date_from_unix_date", _div(seconds - clock, 86400).cast("int"))
    pieces = (_div(clock, 3600), sql.call("pmod", _div(clock, 60), 60), sql.call("pmod", clock, 60))
    time = sql.call("format_string", "%02d:%02d:%02d", *(piece.cast("int") for piece in pieces))
    fraction = sql.call("lpad", subsecond.cast("string"), digits, "0")
    return sql.concat(date.cast("string"), "T", time, ".", fraction, zone)


def _div(number: Sql, divisor: object) -> Sql:
    """Divide integers, exactly for every bigint."""
    return sql.call("div", number, divisor)


# Types, the Spark expression for the text of a value, and the Python function for it.
_SINGLE_VALUES: Final[Sequence[tuple[Any, Callable[[Sql], Sql], Callable[[Any], str]]]] = (
    (BinaryType | FixedType, partial(sql.call, "hex"), lambda value: value.hex().upper()),
    (DateType, lambda value: value.cast("string"), iso_date),
    (DecimalType, lambda value: value.cast("string"), lambda value: format(value, "f")),
    (TimestampType, lambda value: sql.call("replace", value.cast("string"), " ", "T"), iso_timestamp),
    (
        TimestamptzType,
        lambda value: _iso(sql.call("unix_micros", value), 6, "+00:00"),
        lambda micros: f"{_fixed(micros, 6)}+00:00",
    ),
    (TimestampNanoType, lambda value: _iso(value, 9, ""), lambda nanos: _fixed(nanos, 9)),
    (TimestamptzNanoType, lambda value: _iso(value, 9, "+00:00"), lambda nanos: f"{_fixed(nanos, 9)}+00:00"),
    (TimeType, lambda value: sql.call("substring", _iso(value, 6, ""), 12, 15), lambda micros: _fixed(micros, 6)[11:]),
)


# -- Split files, and pack the splits into tasks ----------------------------------------------------------------------
# Each Spark task packs the files that it holds with Iceberg's bin packing (first fit among a few open bins), so its
# last bins may stay partly filled.


SPLIT_COLUMNS = ("start", "length")


@dataclass(frozen=True)
class SplitPlanning:
    """Table properties `read.split.*`: bytes per task, open bins to look back at, cost of opening a file in bytes."""

    target_size: int = 128 * 1024 * 1024
    lookback: int = 10
    open_file_cost: int = 4 * 1024 * 1024


def plan_tasks(planned: Relation, row_type: StructType, splitting: SplitPlanning) -> Relation:
    """Pack rows of `plan_files`, of type `row_type`, into combined tasks, one row each. A DataFrame is packed lazily.

    Columns: size_in_bytes (data bytes to read), files_count, tasks (array of structs with start and length in bytes and
    the columns of `plan_files`). Contiguous splits of a file in one task are merged.
    """
    if isinstance(planned, pa.Table):
        start = pa.repeat(pa.scalar(0, pa.int64()), len(planned))
        columns = [start, planned.column("file_size_in_bytes"), *planned.columns]
        files = pa.table(columns, [*SPLIT_COLUMNS, *planned.column_names]).combine_chunks()
        packer = _Packer(splitting)
        batches = [batch for files_of in files.to_batches() for batch in packer.add(files_of)]
        schema = arrow_schema(task_type(row_type))
        packed = [pa.Table.from_batches([batch]).cast(schema) for batch in (*batches, *packer.finish())]
        return pa.concat_tables([schema.empty_table(), *packed])
    from pyspark.sql import functions as F

    row = F.struct(F.lit(0).cast("bigint").alias("start"), F.col("file_size_in_bytes").alias("length"), "*")
    files = planned.select(
        F.lit(0).cast("bigint").alias("size_in_bytes"),
        F.lit(0).cast("bigint").alias("files_count"),
        F.array(row).alias("tasks"),
    )
    return map_arrow(files, partial(pack, splitting), task_type(row_type))


def task_type(row_type: StructType) -> StructType:
    """Return the row type of `plan_tasks` over rows of `row_type`."""
    from pyspark.sql.types import ArrayType, LongType, StructField, StructType

    ranges = [StructField(name, LongType()) for name in SPLIT_COLUMNS]
    tasks = ArrayType(StructType([*ranges, *row_type.fields]))
    return StructType([StructField("size_in_bytes", LongType()), StructField("files_count", LongType()),
                       StructField("tasks", tasks)])  # fmt: skip


def pack(splitting: SplitPlanning, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack the files of a Spark partition, one per row in `tasks`; see `plan_tasks`."""
    packer = _Packer(splitting)
    for batch in batches:
        files = pa.RecordBatch.from_struct_array(batch.column("tasks").flatten())
        yield from packer.add(files)
    yield from packer.finish()


@dataclass
class _Bin:
    weight: int = 0
    splits: list[int] = field(default_factory=list)


@dataclass
class _Splits:
    """The splits of a batch's files: the file's row, first byte, length in bytes, and weight."""

    row: np.ndarray[Any, Any]
    start: np.ndarray[Any, Any]
    length: np.ndarray[Any, Any]
    weight: np.ndarray[Any, Any]


class _Packer:
    """First-fit packing of a stream of splits. `_rows` contains the rows of splits in open bins."""

    def __init__(self, splitting: SplitPlanning) -> None:
        self.splitting = splitting
        self._open: list[_Bin] = []
        self._rows: pa.Table | None = None

    def add(self, files: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        splits = cut(files, self.splitting)
        rows = _with_ranges(files, splits)
        base = 0 if self._rows is None else len(self._rows)
        self._rows = rows if self._rows is None else pa.concat_tables([self._rows, rows])
        full_bins = [
            full_bin
            for index, weight in enumerate(splits.weight.tolist())
            if (full_bin := self._place(base + index, weight))
        ]
        if full_bins:
            yield self._emit(full_bins)
            self._compact()

    def finish(self) -> Iterator[pa.RecordBatch]:
        if self._open:
            yield self._emit(self._open)

    def _place(self, split: int, weight: int) -> _Bin | None:
        """Put a split into the first open bin that it fits, or a new one. Return the bin that this closes, if any."""
        for open_bin in self._open:
            if open_bin.weight + weight <= self.splitting.target_size:
                open_bin.weight += weight
                open_bin.splits.append(split)
                return None
        self._open.append(_Bin(weight, [split]))
        if len(self._open) <= self.splitting.lookback:
            return None
        heaviest = max(self._open, key=lambda open_bin: open_bin.weight)
        self._open.remove(heaviest)
        return heaviest

    def _emit(self, bins: list[_Bin]) -> pa.RecordBatch:
        """Return a row for each bin, in which contiguous splits of a file are merged into a single one."""
        assert self._rows is not None
        rows = self._rows.take(pa.array([split for task_bin in bins for split in task_bin.splits], pa.int64()))
        number = np.repeat(np.arange(len(bins)), [len(task_bin.splits) for task_bin in bins])
        start, length = (rows.column(name).to_numpy() for name in SPLIT_COLUMNS)
        path = rows.column("file_path").combine_chunks().dictionary_encode().indices.to_numpy()
        continues = (np.diff(path) == 0) & (np.diff(number) == 0) & (start[1:] == start[:-1] + length[:-1])
        firsts = np.flatnonzero(np.concatenate([[True], ~continues]))
        length, number = np.add.reduceat(length, firsts), number[firsts]
        merged = rows.take(pa.array(firsts)) if len(firsts) < len(rows) else rows
        merged = merged.set_column(merged.schema.get_field_index("length"), "length", pa.array(length))
        offsets = np.searchsorted(number, np.arange(len(bins) + 1))
        files = np.unique(np.stack([number, path[firsts]]), axis=1)[0]
        columns = [
            pa.array(np.add.reduceat(length, offsets[:-1])),
            pa.array(np.bincount(files, minlength=len(bins))),
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), merged.combine_chunks().to_struct_array().chunk(0)),
        ]
        return pa.RecordBatch.from_arrays(columns, names=["size_in_bytes", "files_count", "tasks"])

    def _compact(self) -> None:
        """Keep only the rows of splits in open bins and renumber them."""
        assert self._rows is not None
        splits = [split for open_bin in self._open for split in open_bin.splits]
        self._rows = self._rows.take(pa.array(splits, pa.int64())).combine_chunks()
        numbers = iter(range(len(splits)))
        for open_bin in self._open:
            open_bin.splits = [next(numbers) for _ in open_bin.splits]


def cut(files: pa.RecordBatch, splitting: SplitPlanning) -> _Splits:
    """Cut planned files into splits: at their split offsets if these are usable, otherwise by the target size.

    Offsets are usable if they are strictly ascending and within the file. Other offsets are ignored.
    """
    sizes = files.column("file_size_in_bytes").to_numpy(False)
    lists = files.column("split_offsets")
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(False).astype(np.int64)
    # Empty lists at the end begin at the additional last value.
    offsets = np.append(lists.flatten().to_numpy(False), 0).astype(np.int64)
    first = np.cumsum(counts) - counts
    last = np.maximum(first + counts - 1, first)
    falls = np.concatenate([[0], np.cumsum(np.diff(offsets) <= 0)])
    usable = (counts > 0) & (falls[last] == falls[first]) & (offsets[last] < sizes)
    pieces = np.where(usable, counts, -(-sizes // splitting.target_size))
    row = np.repeat(np.arange(len(files)), pieces)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    offset_index = np.where(usable[row], first[row] + piece, 0)
    start = np.where(usable[row], offsets[offset_index], piece * splitting.target_size)
    is_last = piece == pieces[row] - 1
    length = np.where(is_last, sizes[row], np.append(start[1:], 0)) - start
    delete_bytes, delete_counts = _delete_weights(files)
    weight = np.maximum(length + delete_bytes[row], (1 + delete_counts[row]) * splitting.open_file_cost)
    return _Splits(row, start, length, weight)


def _delete_weights(files: pa.RecordBatch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the bytes and number of each file's deletes. A DV counts its own bytes, not its Puffin file's."""
    deletes = files.column("deletes")
    flat = deletes.flatten()
    size = pc.coalesce(pc.struct_field(flat, "content_size_in_bytes"), pc.struct_field(flat, "file_size_in_bytes"))
    count = pc.fill_null(pc.list_value_length(deletes), 0).to_numpy(False).astype(np.int64)
    ends = np.cumsum(count)
    running = np.concatenate([[0], np.cumsum(size.to_numpy(False))]) if len(flat) else np.zeros(1, np.int64)
    return (running[ends] - running[ends - count]).astype(np.int64), count


def _with_ranges(files: pa.RecordBatch, splits: _Splits) -> pa.Table:
    table = pa.Table.from_batches([files]).take(pa.array(splits.row))
    for name in SPLIT_COLUMNS:
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), pa.array(getattr(splits, name)))
    return table
