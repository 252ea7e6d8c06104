"""Equality deletes: an anti-join for each set of columns that they compare.

Files that are read together are numbered by partition and sequence number, so that a delete file applies to few ranges
of numbers. A row is deleted by a row of a delete file that has the same values, nulls included, if the row's file is in
one of the ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import DoubleType, FloatType
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.rows.handover import FILES, NUMBER, read_files
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyiceberg.types import IcebergType
    from pyspark.sql import DataFrame

    from sparkmeta.rows.columns import ReadColumns
    from sparkmeta.rows.delete_sets import Indices
    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.state import TableState

# Deleted keys that are broadcast, each some 100 bytes in memory; of more Spark chooses the join.
_BROADCAST_KEYS: Final = 2_000_000

IS_DELETED: Final = "is_deleted"

_ID_LIST, _RUN = "ids", "run"
_OF_NUMBER, _FIRST, _LAST, _HASH, _KEYS = "of_number", "first", "last", "key_hash", "keys"


@dataclass(frozen=True)
class EqualityDeletes:
    """Delete files that compare one set of columns, and the data files that each applies to.

    Attributes:
        field_ids: of the columns.
        files: the delete files, of `handover.FILES`; a number is the place in here.
        ranges: `of_number`, a delete file's number, `first` and `last`, numbers of data files.
        ranged_keys: how many rows the delete files have, each for every range of its file.
    """

    field_ids: tuple[int, ...]
    files: pa.Table
    ranges: pa.Table
    ranged_keys: int


def in_order(files: PlannedFiles, rows: Indices, counts: Indices) -> Indices:
    """Return files in the order of their numbers: those with masks first, then by partition and sequence number.

    Args:
        files: the planned files.
        rows: of the files to order.
        counts: how many words of masks each planned file has.
    """
    keys = (files.numbers("data_sequence_number")[rows], files.partition_codes[rows], counts[rows] == 0)
    return rows[np.lexsort(keys)]


def id_lists(deletes: pa.Table) -> pa.Array:
    """Return the field ids of each equality delete as a text, equal for equal sets: ascending, with commas between."""
    lists = deletes.column("equality_ids").combine_chunks()
    encoded = pc.binary_join(lists.cast(pa.list_(pa.string())), ",").dictionary_encode()
    texts = [",".join(map(str, sorted(map(int, text.split(","))))) for text in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def equality_deletes(files: PlannedFiles, rows: Indices, numbers: Indices) -> list[EqualityDeletes]:
    """Return the equality deletes of files that are read together.

    Args:
        files: the planned files.
        rows: of the files that are read together, `in_order`.
        numbers: the files' numbers.
    """
    is_compared = files.shared_deletes(ContentType.EQUALITY_DELETES)
    if not is_compared.any():
        return []
    order = _Order.of(files, rows, numbers)
    sets, runs = np.divmod(np.unique(files.set_codes[rows] * len(rows) + order.runs), len(rows))
    places, members = files.sets.members_of(sets)
    applied, runs = np.divmod(np.unique((members * len(rows) + runs[places])[is_compared[members]]), len(rows))
    deletes = files.sets.deletes.take(pa.array(applied))
    deletes = deletes.append_column(_ID_LIST, id_lists(deletes)).append_column(_RUN, pa.array(runs))
    return [
        _of_columns(deletes.filter(pc.equal(deletes.column(_ID_LIST), text)), text, order)
        for text in deletes.column(_ID_LIST).unique().to_pylist()
    ]


@dataclass(frozen=True)
class _Order:
    """Data files in the order of their numbers.

    Attributes:
        numbers: ascending.
        sequences: data sequence numbers.
        runs: for each file the place of the first one of its run: of the same partition and with adjoining numbers.
        ends: for each file the place behind the last one of its run.
    """

    numbers: Indices
    sequences: Indices
    runs: Indices
    ends: Indices

    @staticmethod
    def of(files: PlannedFiles, rows: Indices, numbers: Indices) -> _Order:
        sequences, partitions = files.numbers("data_sequence_number")[rows], files.partition_codes[rows]
        begins = np.diff(partitions, prepend=-1) != 0
        begins[1:] |= np.diff(sequences) < 0  # the files without masks
        starts = np.flatnonzero(begins)
        lengths = np.diff(starts, append=len(rows))
        return _Order(numbers, sequences, np.repeat(starts, lengths), np.repeat(starts + lengths, lengths))


def _of_columns(deletes: pa.Table, id_list: str, order: _Order) -> EqualityDeletes:
    """Return the deletes of one set of columns, with the data files to which they apply in ranges.

    A delete file that applies to a file applies to all of the same partition with lower sequence numbers. The plan may
    have left it out where no row can match.

    Args:
        deletes: a row for each delete and run of files to which it applies.
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
    """Return rows without those that equality deletes delete.

    The join is by one hash of the key, which takes less time than several columns, above all null-safe ones. Equality
    is part of the range, so that Spark does not take it for a key of the join.

    Args:
        frame: rows with `number`.
        deletes: what to apply.
        state: the table.
        columns: the columns that the deletes compare.
        value: gives a column's value in `frame`, by field id.
    """
    keys, number = _keys(deletes, state, columns), sql.col(NUMBER)
    is_equal = _is_equal(deletes, state, value, sql.col)
    last = sql.call("if", is_equal, sql.col(_LAST), -1)
    deleted = (_hash(map(value, deletes.field_ids)) == sql.col(_HASH)) & (number >= sql.col(_FIRST)) & (number <= last)
    return frame.join(keys, deleted.column(), "left_anti")


def with_equal(
    frame: DataFrame, deletes: EqualityDeletes, state: TableState, columns: ReadColumns, value: Callable[[int], Sql]
) -> DataFrame:
    """As `without_equal`, but with all rows, and the column `is_deleted` also true of those that are deleted so."""
    keys, number = _keys(deletes, state, columns), sql.col(NUMBER)
    of_hash = keys.groupBy(_HASH).agg(F.collect_list(F.struct("*")).alias(_KEYS))
    joined = frame.join(of_hash, (_hash(map(value, deletes.field_ids)) == sql.col(_HASH)).column(), "left")

    def deletes_row(key: Sql) -> Sql:
        in_range = (number >= key[_FIRST]) & (number <= key[_LAST])
        return in_range & _is_equal(deletes, state, value, lambda name: key[name])

    is_deleted = sql.col(IS_DELETED) | sql.coalesce(sql.exists(sql.col(_KEYS), deletes_row), False)
    return joined.withColumn(IS_DELETED, is_deleted.column()).drop(_HASH, _KEYS)


def _keys(deletes: EqualityDeletes, state: TableState, columns: ReadColumns) -> DataFrame:
    """Return deleted keys, `k0`, `k1` ..., their hash, and the range of data files that each is for."""
    frame = read_files(state.spark, deletes.files, columns.schema, state.settings, [NUMBER])
    values = [columns.values[field_id] for field_id in deletes.field_ids]
    named = [value.alias(_key(place)) for place, value in enumerate(values)]
    ranges = F.broadcast(local_frame(state.spark, deletes.ranges))
    hashed = frame.selectExpr(*sql.texts(named), _hash(values).alias(_HASH).selected, NUMBER)
    keys = hashed.join(ranges, F.col(NUMBER) == F.col(_OF_NUMBER)).drop(NUMBER, _OF_NUMBER)
    return F.broadcast(keys) if deletes.ranged_keys <= _BROADCAST_KEYS else keys


def _hash(values: Iterable[Sql]) -> Sql:
    return sql.call("xxhash64", *values)


def _is_equal(
    deletes: EqualityDeletes, state: TableState, value: Callable[[int], Sql], key: Callable[[str], Sql]
) -> Sql:
    """Return whether a row has the values of a key, whose columns `key` gives by their names."""
    fields = state.types.fields
    return reduce(and_, [
        _same(value(field_id), key(_key(place)), fields[field_id].field_type)
        for place, field_id in enumerate(deletes.field_ids)
    ])  # fmt: skip


def _same(value: Sql, key: Sql, kind: IcebergType) -> Sql:
    """Return whether values are equal, null to null and NaN to NaN; unlike in Spark, -0.0 and 0.0 are not."""
    equal = value.eqNullSafe(key)
    if not isinstance(kind, FloatType | DoubleType):
        return equal
    return equal & ((value != 0.0) | value.isNull() | (value.cast("string") == key.cast("string")))


def _key(place: int) -> str:
    return f"k{place}"
