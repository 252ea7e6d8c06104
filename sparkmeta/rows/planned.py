"""The files of a plan on the driver, as an Arrow table: what is needed to hand them over to a reader.

A row takes some 200 bytes, and as many for each of its deletes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Aliased, Sql
from sparkmeta.errors import SparkmetaError, from_spark
from sparkmeta.plan.deletes.views import partition_key
from sparkmeta.plan.files import file_columns, plan_files
from sparkmeta.plan.rows import DELETES
from sparkmeta.rows.file_rows import CHANGE_COLUMNS, SELECTED_BY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.plan.choose import Choice
    from sparkmeta.spec.entry import ContentType
    from sparkmeta.state import TableState

PARTITION: Final = "partition"

_PARTITION_KEY: Final = "partition_key"
_COLUMNS = (
    "file_path", "file_format", "spec_id", "record_count", "file_size_in_bytes", "split_offsets", "first_row_id",
    "data_sequence_number",
)  # fmt: skip
_DELETE_FIELDS = (
    "content", "file_path", "file_format", "file_size_in_bytes", "referenced_data_file", "content_offset",
    "content_size_in_bytes", "record_count", "data_sequence_number", "equality_ids",
)  # fmt: skip

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Indices = np.ndarray[Any, np.dtype[np.int64]]


def plan_rows(choice: Choice) -> DataFrame:
    """Return the rows of `plan_files`, with what tells files of one partition."""
    return plan_files(choice, _partition_column(choice.pruned.filter.state))


def rows_of_entries(entries: DataFrame, state: TableState, *others: str) -> DataFrame:
    """Return data entries with `DELETES`, and others of their columns, as what `PlannedFiles` need of `plan_rows`."""
    columns = [value.alias(name) for name, value in file_columns(state).items()]
    return entries.selectExpr(*sql.texts([*columns, _partition_column(state)]), DELETES, *others)


def _partition_column(state: TableState) -> Aliased:
    """Return what tells files of one partition, as a further column of `plan_files`."""
    return partition_key(state).alias(_PARTITION_KEY)


@dataclass(frozen=True)
class PlannedFiles:
    """Planned data files with their deletes.

    Attributes:
        table: columns of `plan_files`, those that readers of rows need; one row a data file. It may have `SELECTED_BY`,
            and columns of `CHANGE_COLUMNS`, which rows of the file have in common.
    """

    table: pa.Table

    @staticmethod
    def of(planned: DataFrame, state: TableState, *others: str) -> PlannedFiles:
        """Run a plan, and bring its rows to the driver.

        Args:
            planned: rows of `plan_rows`.
            state: the table.
            others: further columns to keep.

        Raises:
            ValidationError: as the plan does.
        """

        def needed(delete: Sql) -> Sql:
            return sql.struct(*(delete[name].alias(name) for name in _DELETE_FIELDS))

        partition = [PARTITION] if state.types.partition_type.fields else []
        deletes = sql.transform(sql.col(DELETES), needed).alias(DELETES)
        with translated_errors():
            table = planned.selectExpr(*_COLUMNS, *partition, _PARTITION_KEY, deletes.selected, *others).toArrow()
        return PlannedFiles(table.combine_chunks())

    def __len__(self) -> int:
        return len(self.table)

    def numbers(self, column: str) -> Indices:
        """Return a column of integers; a null is 0."""
        values: Indices = pc.fill_null(self.table.column(column), 0).to_numpy().astype(np.int64)
        return values

    @cached_property
    def selecting(self) -> PlannedFiles | None:
        """The same files with `SELECTED_BY` as their deletes; None where files are not read for deleted rows."""
        if SELECTED_BY not in self.table.column_names:
            return None
        table = self.table.drop_columns([DELETES])
        return PlannedFiles(table.rename_columns({SELECTED_BY: DELETES}))

    @cached_property
    def partition_codes(self) -> Indices:
        """A number for each file, the same for files of the same spec and partition whose deletes are of one plan."""
        codes = np.zeros(len(self), np.int64)
        plan = [self.table.column(name).combine_chunks() for name in CHANGE_COLUMNS if name in self.table.column_names]
        for values in [*self.table.column(_PARTITION_KEY).combine_chunks().flatten(), *plan]:
            encoded = values.dictionary_encode(null_encoding="encode")
            pairs = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
            codes = np.unique(pairs, return_inverse=True)[1].reshape(-1)
        return codes

    @cached_property
    def deletes(self) -> pa.Table:
        """The deletes of all files one after another, and `owner`, the row of the file that each applies to."""
        lists = self.table.column(DELETES).combine_chunks()
        owners = np.repeat(np.arange(len(self)), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
        flat = pa.Table.from_struct_array(lists.flatten())
        return flat.append_column("owner", pa.array(owners, pa.int64()))

    def deletes_of(self, content: ContentType) -> pa.Table:
        """Return the rows of `deletes` of a kind."""
        return self.deletes.filter(pc.equal(self.deletes.column("content"), int(content)))

    @property
    def sides(self) -> list[PlannedFiles]:
        """The files with each of their arrays of deletes."""
        return [self] if self.selecting is None else [self, self.selecting]


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise what Spark raises within the block as an error of this package, where it has one."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SparkmetaError) or (translated := from_spark(error)) is None:
            raise
        raise translated from error
