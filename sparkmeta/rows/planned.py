"""Collect the files of a plan on the driver, as an Arrow table for row readers.

A row takes about 200 bytes, as does each deletion vector or position delete file of a single data file and each delete
shared by several files. A pair of a file and a shared delete takes eight bytes until sets are deduplicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.changes.entry_changes import at_most_one
from sparkmeta.columns import sql
from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.columns.sql import Aliased, Sql
from sparkmeta.entries.arrays import whole, with_plain_types
from sparkmeta.errors import translated_errors
from sparkmeta.plan.deletes.views import delete_struct, partition_key
from sparkmeta.plan.entries import read_entries
from sparkmeta.plan.files import file_columns, planned_rows
from sparkmeta.plan.match import match_deletes
from sparkmeta.plan.rows import DELETES, public_delete
from sparkmeta.rows.delete_sets import ENTRY, ENTRY_ID, DeleteSets, Flags, Indices, delete_sets
from sparkmeta.rows.file_rows import CHANGE_COLUMNS, SELECTED_BY
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.manifests.types import TableTypes
    from sparkmeta.plan.choose import Choice
    from sparkmeta.plan.deletes.entries import DeleteEntries
    from sparkmeta.state import TableState

PARTITION: Final = "partition"
FILE_DELETES: Final = "file_deletes"
"""Deletes that name their data file: deletion vectors, and position delete files of one data file."""
DELETE_SET: Final = "delete_set"
"""The set of other deletes that apply to a data file."""
SELECTING: Final = {FILE_DELETES: "selecting_deletes", DELETE_SET: "selecting_set"}
"""The columns of deletes in `SELECTED_BY`."""

PARTITION_KEY: Final = "partition_key"
"""A column of row plans: the key of a file's partition."""
_DELETE: Final = "delete"
_OF_SET, _OF_SET_DELETES = "of_set", "deletes_of_set"
_COLUMNS = (
    "file_path", "file_format", "spec_id", "record_count", "file_size_in_bytes", "split_offsets", "first_row_id",
    "data_sequence_number",
)  # fmt: skip
_DELETES: Final = pa.schema(
    [
        pa.field("content", pa.int32()),
        pa.field("file_path", pa.string()),
        pa.field("file_format", pa.string()),
        pa.field("file_size_in_bytes", pa.int64()),
        pa.field("referenced_data_file", pa.string()),
        pa.field("content_offset", pa.int64()),
        pa.field("content_size_in_bytes", pa.int64()),
        pa.field("record_count", pa.int64()),
        pa.field("data_sequence_number", pa.int64()),
        pa.field("equality_ids", pa.list_(pa.field("element", pa.int32()))),
    ]
)
"""The fields of a delete that readers need."""


@dataclass(frozen=True)
class RowPlan:
    """A plan for row readers that has not run.

    Attributes:
        frame: columns of `plan_files`, and a key that identifies the partition.
        deletes: the delete entries that the plan matches.
    """

    frame: DataFrame
    deletes: tuple[DeleteEntries, ...] = ()

    @staticmethod
    def union(plans: Sequence[RowPlan]) -> RowPlan:
        """Return the union of one or more plans."""
        (frame,) = at_most_one([plan.frame for plan in plans])
        return RowPlan(frame, tuple(deletes for plan in plans for deletes in plan.deletes))

    def shared_deletes(self, state: TableState) -> list[pa.Table]:
        """Read the deletes that name no data file: `ENTRY_ID`, `ENTRY` and others. An entry may occur twice.

        Returns:
            A list with at most one table.
        """
        delete = sql.col(_DELETE)
        fields = [_entry_id(delete).alias(ENTRY_ID), *(delete[name].alias(name) for name in (*ENTRY, *_DELETES.names))]
        frames = [
            deletes.entries.selectExpr(public_delete(delete_struct(state), deletes.manifests).alias(_DELETE).selected)
            for deletes in self.deletes
            if deletes.entries is not None and not deletes.only_dvs
        ]
        return [
            every.where((~names_file(delete)).text).selectExpr(*sql.texts(fields)).toArrow()
            for every in at_most_one(frames)
        ]


def plan_rows(choice: Choice, *others: Aliased) -> RowPlan:
    """Plan a scan for a row reader.

    Args:
        choice: how the scan is planned.
        others: further columns of the data entry.
    """
    entries = read_entries(choice)
    partition = _partition_column(choice.pruned.filter.state)
    return RowPlan(planned_rows(match_deletes(entries), partition, *others), (entries.deletes,))


def plan_of_entries(
    matched: DataFrame, state: TableState, *others: str, deletes: DeleteEntries | None = None
) -> RowPlan:
    """Return a plan of data entries with `DELETES`.

    Args:
        matched: the data entries.
        state: the table.
        others: names of further columns to keep.
        deletes: the delete entries that were matched; None if there are none.
    """
    columns = [value.alias(name) for name, value in file_columns(state).items()]
    frame = matched.selectExpr(*sql.texts([*columns, _partition_column(state)]), DELETES, *others)
    return RowPlan(frame, () if deletes is None else (deletes,))


def _partition_column(state: TableState) -> Aliased:
    """Return the key of a file's partition."""
    return partition_key(state).alias(PARTITION_KEY)


@dataclass(frozen=True)
class PlannedFiles:
    """Planned data files with their deletes.

    Attributes:
        table: one row per data file, with the columns of `plan_files` that row readers need, and `FILE_DELETES` and
            `DELETE_SET` for the deletes. It may have the columns of `SELECTING`, and those of `CHANGE_COLUMNS`, which
            are constant for all rows of a file.
        sets: sets of deletes that name no data file.
    """

    table: pa.Table
    sets: DeleteSets

    @staticmethod
    def of(plans: Sequence[RowPlan], state: TableState, *others: str) -> PlannedFiles:
        """Run plans and collect their rows on the driver.

        Args:
            plans: one or more plans.
            state: the table.
            others: further columns to keep.

        Raises:
            ValidationError: a plan fails with it.
        """
        partition = [PARTITION] if state.types.partition_type.fields else []
        deletes = sql.col(DELETES)
        named = sql.transform(sql.filter(deletes, names_file), _needed).alias(FILE_DELETES)
        unnamed = sql.filter(deletes, lambda delete: ~names_file(delete))
        ids = sql.transform(unnamed, _entry_id).alias(ENTRY_ID)
        columns = (*_COLUMNS, *partition, PARTITION_KEY, *others, named.selected, ids.selected)
        with translated_errors():
            tables = [plan.frame.selectExpr(*columns).toArrow() for plan in plans]
            table = with_plain_types(pa.concat_tables(tables, promote_options="permissive")).combine_chunks()
            ids_of_files = whole(table.column(ENTRY_ID))
            if len(ids_of_files.flatten()):
                tables = [table for plan in plans for table in plan.shared_deletes(state)]
                shared = with_plain_types(pa.concat_tables(tables, promote_options="permissive"))
                codes, sets = delete_sets(ids_of_files, shared, _DELETES)
            else:
                codes, sets = np.zeros(len(table), np.int64), DeleteSets.none(_DELETES)
        return PlannedFiles(table.drop_columns([ENTRY_ID]).append_column(DELETE_SET, pa.array(codes)), sets)

    def __len__(self) -> int:
        return len(self.table)

    def filter(self, flags: Flags) -> PlannedFiles:
        """Return some of the files."""
        return replace(self, table=self.table.filter(pa.array(flags)))

    def take(self, rows: Indices) -> PlannedFiles:
        """Return the files at some rows."""
        return replace(self, table=self.table.take(pa.array(rows)))

    def numbers(self, column: str) -> Indices:
        """Return a column of integers, with 0 for null."""
        values: Indices = pc.fill_null(self.table.column(column), 0).to_numpy().astype(np.int64)
        return values

    @cached_property
    def selecting(self) -> PlannedFiles | None:
        """The same files with the deletes that select rows; None if files are not read for their deleted rows."""
        if SELECTING[DELETE_SET] not in self.table.column_names:
            return None
        names = {selecting: name for name, selecting in SELECTING.items()}
        table = self.table.drop_columns([*SELECTING])
        return replace(self, table=table.rename_columns([names.get(name, name) for name in table.column_names]))

    @cached_property
    def partition_codes(self) -> Indices:
        """A number for each file, equal for files with the same spec and partition and deletes from the same plan."""
        codes = np.zeros(len(self), np.int64)
        plan = [self.table.column(name).combine_chunks() for name in CHANGE_COLUMNS if name in self.table.column_names]
        for values in [*self.table.column(PARTITION_KEY).combine_chunks().flatten(), *plan]:
            encoded = values.dictionary_encode(null_encoding="encode")
            pairs = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
            codes = np.unique(pairs, return_inverse=True)[1].reshape(-1)
        return codes

    def partitions(self, types: TableTypes) -> pa.StructArray | None:
        """Return the partition tuples of the files, with the fields of all specs; None if the table has no fields."""
        key = self.table.column(PARTITION_KEY).combine_chunks()
        values = {}
        for field_id, name in types.partition_field_names.items():
            value, kind = key.field(f"p{field_id}"), bound_arrow_type(types.partition_fields[field_id])
            values[name] = value.cast(kind) if pa.types.is_floating(kind) else value  # keys have floats as text
        return pa.StructArray.from_arrays([*values.values()], names=[*values]) if values else None

    @cached_property
    def file_deletes(self) -> pa.Table:
        """The deletes that name their data file, with `owner`, the row of the file."""
        lists = whole(self.table.column(FILE_DELETES))
        owners = np.repeat(np.arange(len(self)), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
        return _file_deletes(self.table).append_column("owner", pa.array(owners, pa.int64()))

    @cached_property
    def set_codes(self) -> Indices:
        """The index of each file's set in `sets`."""
        return self.numbers(DELETE_SET)

    def shared_deletes(self, content: ContentType) -> Flags:
        """Return which deletes of `sets` have a content type and are in a set of one of the files."""
        flags: Flags = self._is_used & np.asarray(pc.equal(self.sets.deletes.column("content"), int(content)))
        return flags

    @cached_property
    def _is_used(self) -> Flags:
        is_used = np.zeros(len(self.sets.deletes), np.bool_)
        is_used[self.sets.members_of(np.unique(self.set_codes))[1]] = True
        return is_used

    def have(self, content: ContentType) -> Flags:
        """Return which files have deletes of a content type."""
        flags = self.sets.any(self.shared_deletes(content))[self.set_codes]
        if content is ContentType.POSITION_DELETES:
            flags[self.file_deletes.column("owner").to_numpy()] = True
        return flags

    @property
    def sides(self) -> list[PlannedFiles]:
        """The files with each of their arrays of deletes."""
        return [self] if self.selecting is None else [self, self.selecting]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the files with `DELETES` and, where deletes select rows, `SELECTED_BY`.

        Spark assembles these arrays, so the driver holds the deletes of a set once, not once per file.
        """
        frame = local_frame(spark, self.table)
        for name, side in zip((DELETES, SELECTED_BY), self.sides, strict=False):
            columns = SELECTING if name == SELECTED_BY else {column: column for column in SELECTING}
            of_file = sql.col(columns[FILE_DELETES])
            used = np.unique(side.set_codes)
            places, members = self.sets.members_of(used)
            if len(members):
                offsets = np.searchsorted(places, np.arange(len(used) + 1)).astype(np.int32)
                deletes = self.sets.deletes.take(pa.array(members)).to_struct_array()
                lists = pa.ListArray.from_arrays(pa.array(offsets), whole(deletes))
                sets = local_frame(spark, pa.table({_OF_SET: used, _OF_SET_DELETES: lists}))
                frame = frame.join(sets, F.col(columns[DELETE_SET]) == F.col(_OF_SET))
                of_file = sql.concat(of_file, sql.col(_OF_SET_DELETES))
            frame = frame.selectExpr("*", of_file.alias(name).selected).drop(
                *columns.values(), _OF_SET, _OF_SET_DELETES
            )
        return frame


def names_file(delete: Sql) -> Sql:
    """Return whether a public delete applies to a single data file, by its entry."""
    is_of_file = delete["referenced_data_file"].isNotNull() | (delete["file_format"] == "PUFFIN")
    return (delete["content"] == int(ContentType.POSITION_DELETES)) & is_of_file


def _entry_id(delete: Sql) -> Sql:
    return sql.call("xxhash64", *(delete[name] for name in ENTRY))


def _needed(delete: Sql) -> Sql:
    return sql.struct(*(delete[name].alias(name) for name in _DELETES.names))


def _file_deletes(table: pa.Table) -> pa.Table:
    """Return the concatenated `FILE_DELETES` of all files."""
    return pa.Table.from_struct_array(whole(table.column(FILE_DELETES)).flatten()).cast(_DELETES)
