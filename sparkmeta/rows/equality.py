"""Apply equality deletes by an anti-join for each set of columns that they compare.

Files that are read together are numbered by partition and sequence number, so a delete file applies to a few ranges of
numbers. A row is deleted if its file is in one of these ranges and a row of the delete file has the same values,
including nulls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.expr import sql
from sparkmeta.expr.conditions import identity
from sparkmeta.expr.sql import Sql
from sparkmeta.rows.planned import FILES, NUMBER, read_files
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

    from sparkmeta.rows.columns import ReadColumns
    from sparkmeta.rows.planned import Indices, PlannedFiles
    from sparkmeta.snapshot.state import TableState

# Maximum number of deleted keys (about 100 bytes each) to broadcast. For more, Spark chooses the join.
_BROADCAST_KEYS: Final = 2_000_000

IS_DELETED: Final = "is_deleted"

_ID_LIST, _RUN = "ids", "run"
_OF_NUMBER, _FIRST, _LAST, _HASH, _KEYS = "of_number", "first", "last", "key_hash", "keys"


@dataclass(frozen=True)
class EqualityDeletes:
    """Delete files that compare one set of columns, and the data files that each applies to.

    Attributes:
        field_ids: the field ids of the columns.
        files: the delete files, rows of `FILES`. A file's number is its index.
        ranges: `of_number` (a delete file's number), `first` and `last` (numbers of data files, inclusive).
        ranged_keys: the number of rows in the delete files, each counted once per range of its file.
    """

    field_ids: tuple[int, ...]
    files: pa.Table
    ranges: pa.Table
    ranged_keys: int


def in_order(files: PlannedFiles, rows: Indices, counts: Indices) -> Indices:
    """Return files in the order of their numbers: files with masks first, then by partition and sequence number.

    Args:
        files: the planned files.
        rows: the rows of the files to order.
        counts: the number of mask words of each planned file.
    """
    keys = (files.numbers("data_sequence_number")[rows], files.partition_codes[rows], counts[rows] == 0)
    return rows[np.lexsort(keys)]


def id_lists(deletes: pa.Table) -> pa.Array:
    """Return the field ids of each equality delete as canonical text: ascending and comma-separated."""
    lists = deletes.column("equality_ids").combine_chunks()
    encoded = pc.binary_join(lists.cast(pa.list_(pa.string())), ",").dictionary_encode()
    texts = [",".join(map(str, sorted(map(int, text.split(","))))) for text in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def equality_deletes(files: PlannedFiles, rows: Indices, numbers: Indices) -> list[EqualityDeletes]:
    """Return the equality deletes of files that are read together.

    Args:
        files: the planned files.
        rows: the rows of the files that are read together, `in_order`.
        numbers: the files' numbers.
    """
    is_compared = files.shared_deletes(ContentType.EQUALITY_DELETES)
    if not is_compared.any():
        return []
    order = _Order.of(files, rows, numbers)
    sets, runs = np.divmod(np.unique(files.set_codes[rows] * len(rows) + order.runs), len(rows))
    set_rows, members = files.sets.members_of(sets)
    applied_rows, runs = np.divmod(np.unique((members * len(rows) + runs[set_rows])[is_compared[members]]), len(rows))
    deletes = files.sets.deletes.take(pa.array(applied_rows))
    deletes = deletes.append_column(_ID_LIST, id_lists(deletes)).append_column(_RUN, pa.array(runs))
    return [
        _ranged_deletes(deletes.filter(pc.equal(deletes.column(_ID_LIST), text)), text, order)
        for text in deletes.column(_ID_LIST).unique().to_pylist()
    ]


@dataclass(frozen=True)
class _Order:
    """Data files in the order of their numbers.

    Attributes:
        numbers: the numbers, ascending.
        sequences: the data sequence numbers.
        runs: the index of the first file in each file's run. A run is files of one partition with adjacent numbers.
        ends: the index after the last file in each file's run.
    """

    numbers: Indices
    sequences: Indices
    runs: Indices
    ends: Indices

    @staticmethod
    def of(files: PlannedFiles, rows: Indices, numbers: Indices) -> _Order:
        sequences, partitions = files.numbers("data_sequence_number")[rows], files.partition_codes[rows]
        begins = np.diff(partitions, prepend=-1) != 0
        begins[1:] |= np.diff(sequences) < 0  # the first file without a mask
        starts = np.flatnonzero(begins)
        lengths = np.diff(starts, append=len(rows))
        return _Order(numbers, sequences, np.repeat(starts, lengths), np.repeat(starts + lengths, lengths))


def _ranged_deletes(deletes: pa.Table, id_list: str, order: _Order) -> EqualityDeletes:
    """Return the deletes of one set of columns, with ranges of the data files that they apply to.

    A delete file that applies to a file applies to all files of the same partition with lower sequence numbers. The
    plan may have omitted it for files where no row can match.

    Args:
        deletes: one row per delete and run of files that it applies to.
        id_list: the columns.
        order: the data files.
    """
    paths = deletes.column("file_path").combine_chunks().dictionary_encode()
    delete = paths.indices.to_numpy().astype(np.int64)
    sequence = deletes.column("data_sequence_number").to_numpy()
    pairs = np.unique(np.stack([delete, sequence, deletes.column(_RUN).to_numpy()], axis=1), axis=0)
    ends = np.array(
        [run + np.searchsorted(order.sequences[run : order.ends[run]], number) for _, number, run in pairs.tolist()]
    )
    _, firsts = np.unique(delete, return_index=True)
    distinct = deletes.take(pa.array(firsts))
    return EqualityDeletes(
        tuple(map(int, id_list.split(","))),
        pa.table([paths.dictionary, distinct.column("file_size_in_bytes"), pa.array(range(len(firsts)))], schema=FILES),
        pa.table({_OF_NUMBER: pairs[:, 0], _FIRST: order.numbers[pairs[:, 2]], _LAST: order.numbers[ends - 1]}),
        int(distinct.column("record_count").to_numpy()[pairs[:, 0]].sum()),
    )


def without_equal(
    frame: DataFrame, deletes: EqualityDeletes, state: TableState, columns: ReadColumns, value: Callable[[int], Sql]
) -> DataFrame:
    """Return rows that no equality delete deletes.

    The join uses a hash of the key, which is faster than joining by several columns, especially by null-safe
    comparisons. Equality is part of the range condition, so that Spark does not use it as a join key.

    Args:
        frame: rows with `number`.
        deletes: the deletes to apply.
        state: the table.
        columns: the columns that the deletes compare.
        value: maps a field id to the column's value in `frame`.
    """
    keys, number = _keys(deletes, state, columns), sql.col(NUMBER)
    is_equal = _is_equal(deletes, state, value, sql.col)
    last_number = sql.call("if", is_equal, sql.col(_LAST), -1)
    deleted = (
        (_hash(map(value, deletes.field_ids)) == sql.col(_HASH)) & (number >= sql.col(_FIRST)) & (number <= last_number)
    )
    return frame.join(keys, deleted.column(), "left_anti")


def with_equal(
    frame: DataFrame, deletes: EqualityDeletes, state: TableState, columns: ReadColumns, value: Callable[[int], Sql]
) -> DataFrame:
    """Return all rows, with the column `is_deleted` also true for rows that `without_equal` would remove."""
    keys, number = _keys(deletes, state, columns), sql.col(NUMBER)
    keys_by_hash = keys.groupBy(_HASH).agg(F.collect_list(F.struct("*")).alias(_KEYS))
    joined = frame.join(keys_by_hash, (_hash(map(value, deletes.field_ids)) == sql.col(_HASH)).column(), "left")

    def deletes_row(key: Sql) -> Sql:
        in_range = (number >= key[_FIRST]) & (number <= key[_LAST])
        return in_range & _is_equal(deletes, state, value, lambda name: key[name])

    is_deleted = sql.col(IS_DELETED) | sql.coalesce(sql.exists(sql.col(_KEYS), deletes_row), False)
    return joined.withColumn(IS_DELETED, is_deleted.column()).drop(_HASH, _KEYS)


def _keys(deletes: EqualityDeletes, state: TableState, columns: ReadColumns) -> DataFrame:
    """Return deleted keys `k0`, `k1` ..., their hashes, and the ranges of data files that they apply to."""
    frame = read_files(state.spark, deletes.files, columns.schema, state.settings, [NUMBER])
    values = [columns.values[field_id] for field_id in deletes.field_ids]
    named = [value.alias(_key(index)) for index, value in enumerate(values)]
    ranges = F.broadcast(local_frame(state.spark, deletes.ranges))
    hashed = frame.selectExpr(*sql.texts(named), _hash(values).alias(_HASH).selected, NUMBER)
    keys = hashed.join(ranges, F.col(NUMBER) == F.col(_OF_NUMBER)).drop(NUMBER, _OF_NUMBER)
    return F.broadcast(keys) if deletes.ranged_keys <= _BROADCAST_KEYS else keys


def _hash(values: Iterable[Sql]) -> Sql:
    return sql.call("xxhash64", *values)


def _is_equal(
    deletes: EqualityDeletes, state: TableState, value: Callable[[int], Sql], key: Callable[[str], Sql]
) -> Sql:
    """Return the condition that a row equals a key. `key` maps the names of the key's columns to their values."""
    fields = state.types.fields
    return reduce(and_, [
        identity(value(field_id), fields[field_id].field_type).eqNullSafe(
            identity(key(_key(index)), fields[field_id].field_type)
        )
        for index, field_id in enumerate(deletes.field_ids)
    ])  # fmt: skip


def _key(index: int) -> str:
    return f"k{index}"
