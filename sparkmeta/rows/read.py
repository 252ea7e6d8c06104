"""Read and count the rows of a scan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import functions as F

from sparkmeta.entries.live import is_live
from sparkmeta.entries.relation import frame_of, with_columns
from sparkmeta.errors import translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.expression_json import TRUE_JSON
from sparkmeta.expr.predicate import referenced_ids, row_predicate
from sparkmeta.expr.sql import Sql
from sparkmeta.manifests.placement import Placement
from sparkmeta.plan.choose import result_of
from sparkmeta.plan.filter import DELETES, data_projection
from sparkmeta.plan.match import coplanned_table
from sparkmeta.rows import masks
from sparkmeta.rows.arrow_reader import (
    PART_BYTES,
    few_planned,
    matching_rows,
    parts_table,
    read_by_tasks,
    read_in_batches,
    read_on_driver,
    row_type,
    streamed_rows,
)
from sparkmeta.rows.columns import ReadColumns, names_tell, needed_fields
from sparkmeta.rows.equality import IS_DELETED, equality_deletes, id_lists, in_order, with_equal, without_equal
from sparkmeta.rows.file_rows import CHANGE_COLUMNS
from sparkmeta.rows.layouts import layouts
from sparkmeta.rows.planned import (
    FILES,
    NUMBER,
    PARTITION,
    POSITION,
    Flags,
    Indices,
    PlannedFiles,
    RowPlan,
    plan_rows,
    read_files,
)
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.settings import setting
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.encryption import KEY_METADATA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.plan.choose import Choice
    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.rows.equality import EqualityDeletes
    from sparkmeta.snapshot.state import TableState


# -- Read the rows of a scan ------------------------------------------------------------------------------------------
#     Choice -> PlannedFiles -> files that are read together -> a DataFrame for each group -> their union
#
# See docs/rows.md for what runs when, and for resource bounds.


_DELETED: Final = "_deleted"
# Metadata columns that rewritten files store (table spec, Reserved Field IDs).
_LINEAGE: Final = {
    "_row_id": NestedField(2147483540, "_row_id", LongType(), required=False),
    "_last_updated_sequence_number": NestedField(
        2147483539, "_last_updated_sequence_number", LongType(), required=False
    ),
}
# Metadata columns -> the columns of `PlannedFiles` that they show.
_SOURCES: Final = {
    "_file": ("file_path",),
    "_partition": (PARTITION,),
    "_spec_id": ("spec_id",),
    "_row_id": ("first_row_id",),
    "_last_updated_sequence_number": ("first_row_id", "data_sequence_number"),
    **{name: (name,) for name in CHANGE_COLUMNS},
}
_VALUES: Final = {
    "_file": sql.col("file_path"),
    "_pos": sql.nullable(sql.col(POSITION)),
    "_deleted": sql.nullable(sql.col(IS_DELETED)),
    "_spec_id": sql.col("spec_id"),
    "_partition": sql.col(PARTITION),
    "_row_id": sql.col("first_row_id") + sql.col(POSITION),
    "_last_updated_sequence_number": sql.col("data_sequence_number"),
    **{name: sql.col(name) for name in CHANGE_COLUMNS},
}
# With this setting, Spark returns Arrow's large types.
_LARGE_TYPES: Final = "spark.sql.execution.arrow.useLargeVarTypes"
# The store of a path. Local paths have none.
_STORE: Final = r"^(?P<store>[^:/]+://[^/]+)"
# Paths of files that Spark's sources ignore.
_HIDDEN: Final = r"(^|/)([_.][^/]*|[^/]*\._COPYING_)$"
# Local paths whose names contain a colon. Hadoop takes the name of such a file's checksum file for a URI.
_LOCAL_WITH_COLON: Final = r"^(file:)?/(.|\n)*:[^/]*$"


@dataclass(frozen=True)
class RowScan:
    """The rows and columns to read.

    Attributes:
        filter: the filter, bound to the table.
        projection: the table's columns in the result.
        metadata_columns: keys of `ALL_METADATA_COLUMNS`, which follow the other columns.
    """

    filter: ScanFilter
    projection: Schema
    metadata_columns: tuple[str, ...] = ()

    @property
    def state(self) -> TableState:
        return self.filter.state


def read_rows(scan: RowScan, choice: Choice) -> DataFrame:
    """Plan a scan and return its rows.

    The plan runs and delete bitmaps are decoded at once; rows are read when the DataFrame runs.

    Args:
        scan: the rows and columns to read.
        choice: how the scan is planned.

    Raises:
        ValidationError: metadata or deletes contradict each other.
        CorruptFileError: a file is damaged.
        NotFoundError: a manifest or delete file is missing.
    """
    return rows_of(scan, collected_files(choice))


def collected_files(choice: Choice) -> PlannedFiles:
    """Plan a scan for a row reader, and collect the planned files on the driver. Raises as `read_rows`."""
    started = time.perf_counter()
    return _collected(choice, plan_rows(choice), started)


def _collected(choice: Choice, plan: RowPlan, started: float, *others: str) -> PlannedFiles:
    """Collect the files of a plan and report on it; see `Choice.report`."""
    files = PlannedFiles.of([plan], choice.pruned.filter.state, *others)
    choice.report(started, lambda: files.result)
    return files


def read_rows_arrow(scan: RowScan, choice: Choice, row_limit: int | None = None) -> pa.Table:
    """Plan a scan and return its rows in memory, without Spark if the driver plans and reads the files.

    Args:
        scan: the rows and columns to read.
        choice: how the scan is planned.
        row_limit: the maximum number of rows; None for all.

    Raises:
        ValidationError: as `read_rows`.
    """
    started = time.perf_counter()
    plan = plan_rows(choice)
    has_large_types = (setting(scan.state.sessions.running(), _LARGE_TYPES) or "").lower() == "true"
    if not has_large_types and (planned := few_planned(plan.rows, scan.state)) is not None:
        choice.report(started, partial(result_of, planned))
        return read_on_driver(scan.filter, planned, scan.projection, scan.metadata_columns, row_limit)
    rows = rows_of(scan, _collected(choice, plan, started))
    with translated_errors():
        return (rows if row_limit is None else rows.limit(row_limit)).toArrow()


def read_rows_in_batches(scan: RowScan, choice: Choice, row_limit: int | None = None) -> pa.RecordBatchReader:
    """Plan a scan and return a reader of its rows. The driver reads them as the caller asks for batches.

    Args:
        scan: the rows and columns to read.
        choice: how the scan is planned.
        row_limit: the maximum number of rows; None for all.

    Raises:
        ValidationError: as `read_rows`.
        UnsupportedError: as `streamed_rows`.
    """
    rows = streamed_rows(scan.filter, scan.projection, scan.metadata_columns)
    return read_in_batches(rows, collected_files(choice).runs(), row_limit)


def rows_of(scan: RowScan, files: PlannedFiles) -> DataFrame:
    """Return the rows of planned files; see `read_rows`."""
    counts = reduce(np.maximum, map(masks.word_counts, files.sides))
    by_spark = np.flatnonzero(_spark_reads(scan.state, files) & masks.fits(counts))
    frames: list[DataFrame] = []
    for columns, group in _grouped(scan, files, by_spark):
        for unique_rows in _without_repeats(files, group):
            for rows in masks.batches(in_order(files, unique_rows, counts), counts):
                part = _Part(scan, files, columns, rows, masks.numbers(counts[rows]))
                if part.may_have_rows:
                    frames.append(part.frame())
                counts[rows] = -1
    task_files = files.filter(counts >= 0)
    if len(task_files):
        planned = task_files.frame(scan.state.spark)
        frames.append(read_by_tasks(scan.filter, planned, scan.projection, scan.metadata_columns))
    return union_of(scan, frames)


def are_few(scan: RowScan, files: Iterable[PlannedFiles]) -> bool:
    """Return whether a single task reads files in the time that Spark takes to start several tasks."""
    count, size = 0, 0
    for planned in files:
        count, size = count + len(planned), size + int(planned.numbers("file_size_in_bytes").sum())
    access = scan.state.access
    return access.tasks is not None and access.driver_opens(count <= masks.DRIVER_REQUESTS) and size <= PART_BYTES


def rows_of_few(scan: RowScan, files: PlannedFiles) -> DataFrame:
    """Return the rows of few planned files, as `rows_of` does, but read by one task."""
    units = local_frame(scan.state.spark, parts_table(files.with_deletes())[0]).coalesce(1)
    reader = matching_rows(scan.filter, scan.projection, scan.metadata_columns)
    return map_arrow(units, reader.read, row_type(scan.state, scan.projection, scan.metadata_columns))


def union_of(scan: RowScan, frames: Sequence[DataFrame]) -> DataFrame:
    """Return the union of frames with the columns of a scan, which may be empty."""
    return reduce(lambda left, right: left.union(right), frames) if frames else empty_rows(scan)


def empty_rows(scan: RowScan) -> DataFrame:
    """Return an empty DataFrame with the columns of a scan."""
    kind = row_type(scan.state, scan.projection, scan.metadata_columns)
    return scan.state.spark.createDataFrame([], kind)


def _grouped(scan: RowScan, files: PlannedFiles, rows: Indices) -> Iterator[tuple[ReadColumns, Indices]]:
    """Yield the files that Spark can read, grouped by the layout of their columns. Tasks read the others.

    Args:
        scan: the rows and columns to read.
        files: the planned files.
        rows: the rows of files with a format and name that Spark reads.
    """
    state, schema = scan.state, scan.filter.schema
    is_applied = reduce(np.logical_or, (side.shared_deletes(ContentType.EQUALITY_DELETES) for side in files.sides))
    deletes = files.sets.deletes.filter(pa.array(is_applied))
    compared = {int(field_id) for ids in id_lists(deletes).unique().to_pylist() for field_id in ids.split(",")}
    other_ids = referenced_ids(scan.filter.row_filter) | (compared & schema.field_ids)
    dropped = [state.types.fields[field_id] for field_id in sorted(compared - schema.field_ids)]
    lineage = [_LINEAGE[name] for name in scan.metadata_columns if name in _LINEAGE]
    fields = (*needed_fields(scan.projection, schema, other_ids), *dropped, *lineage)
    if state.settings.data_file_footers == "auto" and names_tell(state, fields):
        if len(rows):
            yield ReadColumns.by_names(fields, state.types.widened_decimals), rows
        return
    if state.access.tasks is None:
        return
    if compared and not names_tell(state, _compared(fields, compared)):
        has_keys = reduce(np.logical_or, (side.have(ContentType.EQUALITY_DELETES) for side in files.sides))
        rows = rows[~has_keys[rows]]
    for columns, group in layouts(state, files, rows, fields) if len(rows) else ():
        if columns is not None:
            yield columns, group


def _compared(fields: tuple[NestedField, ...], field_ids: Iterable[int]) -> tuple[NestedField, ...]:
    """Return the columns among `fields` that equality deletes compare."""
    ids = set(field_ids)
    return tuple(part for field in fields for part in needed_fields(Schema(), Schema(field), ids))


def _spark_reads(state: TableState, files: PlannedFiles) -> Flags:
    """Return which files Spark can read with all deletes that apply to them. It can't read encrypted files."""
    if KEY_METADATA in files.table.column_names:
        return np.zeros(len(files), np.bool_)
    flags = _spark_reads_files(state, files.table)
    for side in files.sides:
        unread = side.shared_deletes(ContentType.EQUALITY_DELETES)
        if unread.any():
            unread &= ~_spark_reads_files(state, side.sets.deletes)
            flags &= ~side.sets.any(unread)[side.set_codes]
    return flags


def _spark_reads_files(state: TableState, files: pa.Table) -> Flags:
    """Return which files Spark can read, by their store, format, name and length."""
    is_parquet = pc.equal(pc.utf8_upper(files.column("file_format")), "PARQUET")
    is_unfit = pc.match_substring_regex(files.column("file_path"), f"{_HIDDEN}|{_LOCAL_WITH_COLON}")
    has_bytes = pc.greater(files.column("file_size_in_bytes"), 0)
    flags: Flags = np.asarray(pc.and_(pc.and_not(is_parquet, is_unfit), has_bytes))
    return flags & _spark_opens(state, files.column("file_path"))


def _spark_opens(state: TableState, paths: pa.ChunkedArray) -> Flags:
    """Return which files are on a store that Spark can open, tested with the first file of each store."""
    stores = whole(pc.struct_field(pc.extract_regex(paths, _STORE), "store")).dictionary_encode("encode")
    codes, firsts = np.unique(stores.indices.to_numpy(), return_index=True)
    opens = np.array([state.access.spark_opens(paths[first].as_py()) for first in firsts.tolist()], np.bool_)
    flags: Flags = opens[np.searchsorted(codes, stores.indices.to_numpy())]
    return flags


def _without_repeats(files: PlannedFiles, rows: Indices) -> list[Indices]:
    """Divide files into parts without duplicate paths. A file that a table lists several times is read as often."""
    paths = files.table.column("file_path").combine_chunks().dictionary_encode()
    if len(rows) and len(paths.dictionary) == len(paths):
        return [rows]
    codes = paths.indices.to_numpy()[rows]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    occurrence = np.empty(len(rows), np.int64)
    occurrence[order] = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
    return [rows[occurrence == number] for number in range(int(occurrence.max(initial=-1)) + 1)]


@dataclass(frozen=True)
class _Deletes:
    """The deletes of files that Spark reads together: position bits, and equality deletes by column set."""

    words: masks.Words
    equality: list[EqualityDeletes]


@dataclass(frozen=True)
class _Part:
    """Files that Spark reads together.

    Attributes:
        scan: the rows and columns to read.
        files: the planned files.
        columns: the columns to read from the files.
        rows: the rows of the part's files in `files`, in the order of their numbers.
        numbers: the files' numbers.
    """

    scan: RowScan
    files: PlannedFiles
    columns: ReadColumns
    rows: Indices
    numbers: Indices

    @property
    def may_have_rows(self) -> bool:
        """Whether any row can be in the result, judging by the position bits."""
        return self._selecting is None or bool(len(self._selected))

    def frame(self) -> DataFrame:
        """Return the rows of the files in the scan's result, with its columns."""
        scan, state, deletes, selecting = self.scan, self.scan.state, self._deletes, self._selecting
        extra = self._extra(deletes) | (set() if selecting is None else self._extra(selecting))
        filtered = POSITION in extra and not scan.metadata_columns
        frame = read_files(
            state.spark, self._handed_over(), self.columns.schema, state.settings, extra, filtered=filtered
        )
        frame = self._with_file_columns(frame)
        if not scan.filter.keeps_all:
            frame = frame.where(row_predicate(scan.filter.row_filter, self._value).text)
        if _DELETED in scan.metadata_columns:
            frame = self._flagged(frame, deletes)
        else:
            frame = masks.without_masked(frame, deletes.words)
            for equality in deletes.equality:
                frame = without_equal(frame, equality, state, self._compared(equality), self._value)
        if selecting is not None:
            frame = self._flagged(frame, selecting).where(IS_DELETED)
        return frame.selectExpr(*sql.texts(self._shown()))

    def _flagged(self, frame: DataFrame, deletes: _Deletes) -> DataFrame:
        """Add `is_deleted`."""
        frame = masks.with_masked(frame, deletes.words, IS_DELETED)
        for equality in deletes.equality:
            frame = with_equal(frame, equality, self.scan.state, self._compared(equality), self._value)
        return frame

    @cached_property
    def _deletes(self) -> _Deletes:
        return self._deletes_of(self.files)

    @cached_property
    def _selecting(self) -> _Deletes | None:
        """Deletes that select rows: at least one must apply to each row. None if deletes do not select rows."""
        return None if self.files.selecting is None else self._deletes_of(self.files.selecting)

    def _deletes_of(self, side: PlannedFiles) -> _Deletes:
        words = masks.masked_words(self.scan.state, side, self.rows, self.numbers)
        return _Deletes(words, equality_deletes(side, self.rows, self.numbers))

    @cached_property
    def _selected(self) -> Indices:
        """The indices in `rows` of the files to read. Files whose selected rows are all deleted are left out."""
        selecting, deleted = self._selecting, self._deletes.words
        if selecting is None:
            return np.arange(len(self.rows))
        is_selected = masks.masks_any(selecting.words & ~deleted if len(deleted) else selecting.words, self.numbers)
        return np.flatnonzero(is_selected | self.files.sides[-1].have(ContentType.EQUALITY_DELETES)[self.rows])

    def _extra(self, deletes: _Deletes) -> set[str]:
        """Return which of `NUMBER` and `POSITION` the rows need."""
        words, equality = deletes.words, deletes.equality
        shows_position = not {"_pos", "_row_id"}.isdisjoint(self.scan.metadata_columns)
        extra = {NUMBER} if len(words) or equality or self._file_columns else set()
        return extra | ({POSITION} if len(words) or shows_position else set())

    def _compared(self, deletes: EqualityDeletes) -> ReadColumns:
        fields = _compared(self.columns.fields, deletes.field_ids)
        return ReadColumns.by_names(fields, self.scan.state.types.widened_decimals)

    def _value(self, field_id: int) -> Sql:
        return self.columns.values[field_id]

    def _handed_over(self) -> pa.Table:
        handed_files = self.files.table.select(FILES.names[:2]).take(pa.array(self.rows[self._selected]))
        return handed_files.append_column(NUMBER, pa.array(self.numbers[self._selected])).cast(FILES)

    def _shown(self) -> list[sql.Aliased]:
        return [
            *(self._column_value(field).alias(field.name) for field in self.scan.projection.fields),
            *(self._metadata_value(name).alias(name) for name in self.scan.metadata_columns),
        ]

    def _column_value(self, field: NestedField) -> Sql:
        """Return a column's value. Null in a required column is an error, since the file may lack the column."""
        value = self.columns.shown(field)
        if not field.required:
            return value
        problem = f"it is required, and a data file lacks it or has a null (field id {field.field_id})"
        message = f"{self.scan.state.metadata.location}: column {field.name} is None: {problem}"
        return sql.coalesce(value, sql.raise_error(message))

    def _metadata_value(self, name: str) -> Sql:
        if name not in _LINEAGE:
            return _VALUES[name]
        # Rows of a file without a first row id have no lineage, whatever the file stores (table spec, Row Lineage).
        lineage = sql.coalesce(self._value(_LINEAGE[name].field_id), _VALUES[name])
        return sql.when(sql.col("first_row_id").isNotNull(), lineage)

    def _with_file_columns(self, frame: DataFrame) -> DataFrame:
        """Add the columns of `files` that the result needs."""
        if not self._file_columns:
            return frame
        file_values = self.files.table.select(self._file_columns).take(pa.array(self.rows))
        file_values = file_values.append_column("of_number", pa.array(self.numbers))
        values_frame = F.broadcast(local_frame(frame.sparkSession, file_values))
        return frame.join(values_frame, F.col(NUMBER) == F.col("of_number"), "left").drop("of_number")

    @cached_property
    def _file_columns(self) -> list[str]:
        """The columns of `files` that the result needs."""
        needed_columns = {column for name in self.scan.metadata_columns for column in _SOURCES.get(name, ())}
        if self.columns.has_partition_values:
            needed_columns.add(PARTITION)
        return [name for name in self.files.table.column_names if name in needed_columns]


# -- Count the rows of a scan -----------------------------------------------------------------------------------------
# A file is counted without being read if its partition proves that the filter holds for all of its rows, and if no
# equality delete applies to it, since the matches of equality deletes are unknown. The positions in a deletion vector
# are distinct, and metadata contains their count. Position delete files are decoded, since they may list a row twice,
# or rows of other files. Of the remaining files, only the columns that are compared are read.


_PUFFIN: Final = "PUFFIN"
_MATCHES_WHOLE: Final = "matches_whole"
# The number of set bits in each 16-bit number.
_BITS_SET: Final = (
    np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8)).reshape(-1, 16).sum(axis=1, dtype=np.uint8)
)


def count_rows(choice: Choice) -> int:
    """Count the rows of a scan.

    The driver counts alone if it plans the files and few of them have to be read. Otherwise, a job runs the plan. If
    there is no filter and all deletes may be deletion vectors, the job adds up the rows; if not, it collects the files
    on the driver. If files have to be read, another job reads them.

    Raises:
        ValidationError: as `read_rows`.
        CorruptFileError: as `read_rows`.
        NotFoundError: as `read_rows`.
    """
    started = time.perf_counter()
    if (rows := _count_on_driver(choice)) is not None:
        choice.report(started, lambda: None)
        return rows
    plan, state = plan_rows(choice), choice.pruned.filter.state
    table = plan.rows if isinstance(plan.rows, pa.Table) else None
    if table is None and _vectors_may_be_all(choice):
        rows = _count_by_job(frame_of(plan.rows, state))
        if rows is not None:
            choice.report(started, lambda: None)
            return rows
    marked = replace(plan, rows=with_columns(plan.rows, _matches_whole().alias(_MATCHES_WHOLE)))
    files = _collected(choice, marked, started, _MATCHES_WHOLE)
    is_counted = _are_countable(files)
    exact, uncounted = files.filter(is_counted), files.filter(~is_counted)
    rows = _count_by_positions(exact, state)
    if len(uncounted):
        positions = RowScan(choice.pruned.filter, Schema(), ("_pos",))
        planned = None if table is None else few_planned(table.filter(pa.array(~is_counted)), state)
        if planned is not None:
            return rows + len(read_on_driver(positions.filter, planned, Schema(), positions.metadata_columns))
        with translated_errors():
            rows += rows_of(positions, uncounted).count()
    return rows


def _count_on_driver(choice: Choice) -> int | None:
    """Add up the rows of live entries in manifests that the driver decodes; return None if these don't suffice."""
    pruned = choice.pruned
    if not pruned.filter.keeps_all or len(choice.deletes):
        return None
    state = pruned.filter.state
    projection = state.projection(("version_info", "record_count"))
    entries = state.reader.driver_table(choice.data, projection)
    if entries is None:
        return None
    entries = entries.filter(is_live(entries))
    counts, deleted = entries.column("record_count"), 0
    if choice.coplanned is not None:
        if choice.coplanned.reading.placement is not Placement.DRIVER:
            return None
        joined = coplanned_table(pruned.filter, choice.coplanned, data_projection(pruned.filter))
        joined = joined.filter(is_live(joined))
        counts = pa.chunked_array([*counts.chunks, *joined.column("record_count").chunks], pa.int64())
        deleted = pc.sum(joined.column("dv_records"), min_count=0).as_py()
    is_known = pc.all(pc.greater_equal(counts, 0), min_count=0).as_py()
    return int(pc.sum(counts, min_count=0).as_py()) - deleted if is_known else None


def _vectors_may_be_all(choice: Choice) -> bool:
    """Return whether there is no filter and all deletes may be deletion vectors."""
    pruned, figures = choice.pruned, choice.figures
    may_be_vectors = figures.format_version >= 3 and figures.only_dvs is not False
    return pruned.filter.keeps_all and (may_be_vectors or not len(pruned.deletes))


def _count_by_job(planned: DataFrame) -> int | None:
    """Add up the rows of a plan; None if a file's count is inexact, or it has deletes other than deletion vectors."""
    deletes = sql.col(DELETES)
    only_vectors = sql.forall(deletes, lambda delete: sql.call("upper", delete["file_format"]) == _PUFFIN)
    is_exact = _matches_whole() & only_vectors
    deleted = sql.aggregate(deletes, sql.lit(0).cast("bigint"), lambda rows, delete: rows + delete["record_count"])
    rows = sql.when(is_exact, sql.col("record_count") - deleted)
    with translated_errors():
        ((total, are_exact),) = planned.select(
            F.coalesce(F.sum(rows.column()), F.lit(0)), F.coalesce(F.bool_and(is_exact.column()), F.lit(True))
        ).collect()
    return int(total) if are_exact else None


def _matches_whole() -> Sql:
    """Return whether the filter holds for all rows of a file and their number is known."""
    return (sql.col("residual") == TRUE_JSON) & (sql.col("record_count") >= 0)


def _are_countable(files: PlannedFiles) -> Flags:
    """Return which files' rows can be counted without reading them."""
    flags: Flags = files.table.column(_MATCHES_WHOLE).to_numpy() & masks.fits(_listed_word_counts(files))
    flags &= ~files.have(ContentType.EQUALITY_DELETES)
    paths = files.table.column("file_path").combine_chunks().dictionary_encode().indices.to_numpy()
    flags &= np.bincount(paths)[paths] == 1  # positions are found by path
    return flags


def _listed_word_counts(files: PlannedFiles) -> Indices:
    """Return the `word_counts` of files with position delete files; 0 for others."""
    is_listed = files.sets.any(files.shared_deletes(ContentType.POSITION_DELETES))[files.set_codes]
    file_deletes = files.file_deletes
    is_listed[file_deletes.filter(pc.invert(_are_vectors(file_deletes))).column("owner").to_numpy()] = True
    return np.where(is_listed, masks.word_counts(files), 0)


def _are_vectors(deletes: pa.Table) -> pa.ChunkedArray:
    return pc.equal(pc.utf8_upper(deletes.column("file_format")), _PUFFIN)


def _count_by_positions(files: PlannedFiles, state: TableState) -> int:
    """Count the rows of files by their deletion vectors and position delete files."""
    deleted = pc.sum(
        files.file_deletes.filter(_are_vectors(files.file_deletes)).column("record_count"), min_count=0
    ).as_py()
    counts = _listed_word_counts(files)
    for rows in masks.batches(np.flatnonzero(counts), counts):
        words = masks.masked_words(state, files, rows, masks.numbers(counts[rows]))
        deleted += int(_BITS_SET[words.view(np.uint16)].sum())
    return int(pc.sum(files.table.column("record_count"), min_count=0).as_py()) - int(deleted)
