"""Upsert a few rows on the driver: match them with rows of the table by key, as a merge does in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.arrow_types import arrow_type_of, spark_schema
from sparkmeta.expr import evaluate, sql
from sparkmeta.expr.arrays import narrowed, whole
from sparkmeta.expr.types import spark_type
from sparkmeta.rows.columns import projected_column
from sparkmeta.rows.data_file import column_values, file_columns
from sparkmeta.rows.resolve import resolve
from sparkmeta.write.delete_tasks import MASK_SCHEMA, position_masks
from sparkmeta.write.file_schema import FileColumns, file_schema
from sparkmeta.write.input import check_schema, written_columns
from sparkmeta.write.matching import FILE, POSITION, Matching
from sparkmeta.write.merge import has_incomparable, key_names, range_of_rows, upsert_keys

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.snapshot.state import TableState

# Any format whose types keep all values.
_FORMAT: Final = "avro"


def few_upsert(
    state: TableState,
    rows: pa.Table,
    keys: Sequence[str] | None,
    lineage: tuple[str, ...],
    *,
    updates: bool,
    inserts: bool,
    rewrites: bool,
) -> FewUpsert:
    """Check rows and return their upsert.

    Args:
        state: the table at the branch's head.
        rows: the rows; see `input_rows`.
        keys: the key columns; None for the schema's identifier fields.
        lineage: the metadata columns that rows keep.
        updates: whether to update existing rows.
        inserts: whether to insert new rows.
        rewrites: whether files of updated rows are rewritten.

    Raises:
        ValidationError: a column does not fit, or there is no key.
        UnsupportedError: a column has a type that can't be written.
    """
    metadata, schema, table = state.metadata, state.metadata.schema(), state.metadata.location
    names = upsert_keys(keys, schema, table)
    check_schema(spark_schema(rows.schema), schema, table)
    key_names(names, rows.column_names, schema, table)
    source = _as_in_table(rows, schema, metadata.location)
    matching = Matching(state, range_of_rows(source, schema, names), by_rows=True)
    value_columns = tuple(name for name in rows.column_names if name not in names)
    return FewUpsert(
        matching, source, names, value_columns, lineage, updates and bool(value_columns), inserts, rewrites
    )


@dataclass(frozen=True)
class FewUpsert:
    """The rows that an upsert changes and adds.

    Attributes:
        matching: the files of the table whose rows may have the keys.
        source: the rows to upsert, with the table's columns in Spark's types.
        keys: the key columns.
        value_columns: the other columns of the given rows.
        lineage: the metadata columns that rows keep.
        updates: whether existing rows are updated.
        inserts: whether new rows are inserted.
        rewrites: whether files of updated rows are rewritten, so that all of their rows are needed.
    """

    matching: Matching
    source: pa.Table
    keys: tuple[str, ...]
    value_columns: tuple[str, ...]
    lineage: tuple[str, ...]
    updates: bool
    inserts: bool
    rewrites: bool

    @cached_property
    def duplicate(self) -> dict[str, Any] | None:
        """A key that occurs in several rows; None if there is none."""
        codes = self._codes[0]
        distinct_codes, firsts, counts = np.unique(codes, return_index=True, return_counts=True)
        for row in firsts[(counts > 1) & (distinct_codes >= 0)].tolist():
            values = {name: self.source.column(name)[row].as_py() for name in self.keys}
            return {name: str(value) if hasattr(value, "isoformat") else value for name, value in values.items()}
        return None

    @cached_property
    def changed_files(self) -> pa.Array:
        """The paths of the files with rows that are updated."""
        return whole(self._rows.column(FILE).take(self._changed)).unique()

    @property
    def has_new_rows(self) -> bool:
        """Whether there are rows to write besides unchanged ones."""
        return bool(len(self._changed) or len(self._inserted))

    @property
    def depends_on_rows(self) -> bool:
        """Whether rows of the table that stay unchanged have kept rows of the source from being inserted."""
        return self.inserts and bool((self._matches >= 0).sum() > len(self._changed))

    @property
    def new_rows(self) -> pa.Table:
        """The updated rows with their new values and the inserted rows, with the columns of `lineage`."""
        sources = self.source.take(pa.array(self._matches[self._changed.to_numpy()]))
        old_rows = self._rows.take(self._changed)
        source_columns = {*self.keys, *self.value_columns}
        updated = [(sources if name in source_columns else old_rows).column(name) for name in self.source.column_names]
        inserted = self.source.take(self._inserted).columns
        if self.lineage:
            updated += [old_rows.column(self.lineage[0]), pa.nulls(len(old_rows), pa.int64())]
            inserted += [pa.nulls(len(self._inserted), pa.int64())] * len(self.lineage)
        names = [*self.source.column_names, *self.lineage]
        return pa.concat_tables([pa.table(updated, names), pa.table(inserted, names)])

    def rewritten(self, files: PlannedFiles) -> pa.Table:  # noqa: ARG002  they are the changed ones
        """Return the unchanged rows of files with changed rows, and the new rows."""
        in_files = pc.is_in(whole(self._rows.column(FILE)), self.changed_files)
        is_unchanged = np.asarray(in_files).copy()
        is_unchanged[self._changed.to_numpy()] = False
        new_rows = self.new_rows
        unchanged = self._rows.filter(pa.array(is_unchanged))
        columns = [narrowed(unchanged.column(field.name), field.type) for field in new_rows.schema]
        return pa.concat_tables([pa.Table.from_arrays(columns, schema=new_rows.schema), new_rows])

    def masks(self, files: PlannedFiles) -> pa.Table:  # noqa: ARG002  they are the changed ones
        """Return the updated rows as masks of their files."""
        changed = self._rows.select([FILE, POSITION]).take(self._changed)
        return pa.Table.from_batches(position_masks(changed.to_batches()), MASK_SCHEMA)

    # -- Match rows by key --------------------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> pa.Table:
        """The rows of the table that may have the keys, with `lineage`, `FILE` and `POSITION`."""
        keep = None if self.rewrites else self._with_source_keys
        return self.matching.every_row((*self.lineage, FILE, POSITION), keep)

    def _with_source_keys(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose key columns contain values of the source. The other rows would only take memory."""
        for name, values in self._source_key_values.items():
            rows = rows.filter(pc.is_in(rows.column(name), values))
        return rows

    @cached_property
    def _source_key_values(self) -> dict[str, pa.Array]:
        """The values of key columns. Floats are left out, since -0.0 equals 0.0."""
        values = {name: whole(self.source.column(name)) for name in self.keys}
        return {name: array.unique() for name, array in values.items() if not pa.types.is_floating(array.type)}

    @cached_property
    def _codes(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Codes of the keys of the source's rows and of the table's rows. Equal keys have equal codes; nulls are -1."""
        codes = np.zeros(len(self.source) + len(self._rows), np.int64)
        is_null = np.zeros(len(codes), bool)
        for name in self.keys:
            values = pa.concat_arrays([whole(rows.column(name)) for rows in (self.source, self._rows)])
            if pa.types.is_floating(values.type):  # -0.0 equals 0.0, and NaN equals NaN
                values = pc.if_else(pc.equal(values, 0), pa.scalar(0, values.type), values)
            coded = values.dictionary_encode(null_encoding="encode")
            is_null |= np.asarray(values.is_null())
            codes = np.unique(codes * len(coded.dictionary) + coded.indices.to_numpy(), return_inverse=True)[1]
        codes[is_null] = -1
        return codes[: len(self.source)], codes[len(self.source) :]

    @cached_property
    def _matches(self) -> np.ndarray[Any, Any]:
        """The index of the source's row with the same key, for each row of the table; -1 if there is none."""
        source, rows = self._codes
        row_of = np.full(max(source.max(initial=-1), rows.max(initial=-1)) + 2, -1)
        row_of[source] = np.arange(len(source))
        row_of[-1] = -1
        matches: np.ndarray[Any, Any] = row_of[rows]
        return matches

    @cached_property
    def _changed(self) -> pa.Array:
        """The indices of the table's rows to update: rows with a value that differs from the source's."""
        matched = np.flatnonzero(self._matches >= 0) if self.updates else np.empty(0, np.int64)
        candidate_rows = pa.array(matched)
        old_rows, new_rows = self._rows.take(candidate_rows), self.source.take(pa.array(self._matches[matched]))
        differs = np.zeros(len(matched), bool)
        kinds = {field.name: field.field_type for field in self.matching.state.metadata.schema().fields}
        for name in self.value_columns:
            if has_incomparable(kinds[name]):  # Spark can't compare these
                differs[:] = True
            else:
                pair = pa.table([old_rows.column(name), new_rows.column(name)], ["old", "new"])
                is_same = evaluate.values(pair, sql.col("old").eqNullSafe(sql.col("new")))
                differs |= ~np.asarray(is_same)
        return pa.array(matched[differs])

    @cached_property
    def _inserted(self) -> pa.Array:
        """The indices of the source's rows that match no row of the table."""
        unmatched = np.ones(len(self.source), bool)
        unmatched[self._matches[self._matches >= 0]] = False
        return pa.array(np.flatnonzero(unmatched) if self.inserts else np.empty(0, np.int64))


def _as_in_table(rows: pa.Table, schema: Schema, table: str) -> pa.Table:
    """Return rows in the form in which a reader returns the table's rows. Missing columns have their write default."""
    columns = FileColumns(table, written_columns(schema), _FORMAT)
    kinds = file_schema(columns.columns, _FORMAT)
    (batch,) = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
    (written,) = columns.table_of(batch, kinds).combine_chunks().to_batches() or [None]
    arrow_types = [arrow_type_of(spark_type(field.field_type)) for field in schema.fields]
    names = [field.name for field in schema.fields]
    if written is None:
        return pa.table([pa.nulls(0, kind) for kind in arrow_types], names)
    sources = resolve(file_columns(kinds), map(projected_column, schema.fields), table)
    arrays = [column_values(written, source, kind, {}) for source, kind in zip(sources, arrow_types, strict=True)]
    return pa.table(arrays, names)
