"""Collect the files of a plan on the driver, and hand them over to readers of rows."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.entries.relation import at_most_one, frame_of, select, united, with_types
from sparkmeta.errors import SettingError, SparkmetaError, translated_errors
from sparkmeta.expr import evaluate, sql
from sparkmeta.expr.arrays import compact_lists, whole, with_plain_types
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.expr.sql import Aliased, Sql, quoted
from sparkmeta.plan.deletes.rules import delete_struct, partition_key
from sparkmeta.plan.files import file_columns, plan_schema, planned_rows
from sparkmeta.plan.filter import DELETES, public_delete
from sparkmeta.plan.match import match_deletes, read_entries
from sparkmeta.reports import ScanResult
from sparkmeta.rows.file_rows import CHANGE_COLUMNS, SELECTED_BY
from sparkmeta.session import is_connect, local_frame
from sparkmeta.settings import PREFIX
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.encryption import KEY_METADATA
from sparkmeta.storage.location import spark_path_key, spark_uri
from sparkmeta.storage.reading import STRICT_PARQUET, failing_if_skipped, read_parquet, spelled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from sparkmeta.entries.relation import Relation
    from sparkmeta.manifests.types import TableTypes
    from sparkmeta.plan.choose import Choice
    from sparkmeta.plan.deletes.groups import DeleteEntries
    from sparkmeta.settings import Settings
    from sparkmeta.snapshot.state import TableState


# -- Deduplicate shared deletes ---------------------------------------------------------------------------------------
# Thousands of equality deletes may apply to each of thousands of files, and the same deletes apply to all files of one
# partition and commit. A plan therefore sends the driver eight bytes per pair of a file and such a delete, and the
# driver keeps only the distinct sets.


Flags = np.ndarray[Any, np.dtype[np.bool_]]
Indices = np.ndarray[Any, np.dtype[np.int64]]

ENTRY_ID: Final = "entry_id"
ENTRY: Final = ("manifest_path", "manifest_pos")
"""The identity of an entry; its hash is the `ENTRY_ID`."""

_BYTES: Final = 8
# A manifest that the driver reads has fewer entries than 2 to this power.
_ORDINAL_BITS: Final = 32


@dataclass(frozen=True)
class DeleteSets:
    """Sets of deletes.

    Attributes:
        deletes: the deletes.
        members: the members of all sets, one set after another, as indices into `deletes`.
        offsets: the start of each set in `members`, followed by the end of the last one.
    """

    deletes: pa.Table
    members: Indices
    offsets: Indices

    @staticmethod
    def none(schema: pa.Schema) -> DeleteSets:
        """Return a single empty set and no deletes."""
        return DeleteSets(schema.empty_table(), np.zeros(0, np.int64), np.zeros(2, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def any(self, flagged: Flags) -> Flags:
        """Return which sets contain any of the flagged deletes."""
        counts = np.concatenate([[0], np.cumsum(flagged[self.members])])
        flags: Flags = counts[self.offsets[1:]] > counts[self.offsets[:-1]]
        return flags

    def members_of(self, sets: Indices) -> tuple[Indices, Indices]:
        """Return the index of each member's set in `sets`, and the members."""
        starts, lengths = self.offsets[sets], np.diff(self.offsets)[sets]
        ends = np.cumsum(lengths)
        member_rows = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
        return np.repeat(np.arange(len(sets)), lengths), self.members[member_rows]

    def only(self, flagged: Flags) -> DeleteSets:
        """Return the sets with only the flagged deletes as members."""
        is_member = flagged[self.members]
        counts = np.concatenate([[0], np.cumsum(is_member)])
        return replace(self, members=self.members[is_member], offsets=counts[self.offsets])

    def with_sets(self, lengths: Indices, members: Indices) -> DeleteSets:
        """Append further sets of the same deletes."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + np.cumsum(lengths)])
        return DeleteSets(self.deletes, np.concatenate([self.members, members]), offsets)


def delete_sets(ids: pa.Array, deletes: pa.Table, schema: pa.Schema) -> tuple[Indices, DeleteSets]:
    """Return the set of each file, and the distinct sets.

    Args:
        ids: the delete ids of each file.
        deletes: `ENTRY_ID`, `ENTRY` and the columns of `schema`. An entry may occur several times.
        schema: the schema of the deletes in the sets.

    Raises:
        SparkmetaError: two entries have the same hash.
    """
    known_ids, deletes = _distinct(deletes)
    lengths = pc.list_value_length(ids).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffers = [None, pa.py_buffer(ends * _BYTES), pa.py_buffer(ids.flatten().to_numpy())]
    encoded = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ids), buffers).dictionary_encode()
    distinct = encoded.dictionary
    offsets = np.frombuffer(distinct.buffers()[1], np.int64, len(distinct) + 1) // _BYTES
    members = np.frombuffer(distinct.buffers()[2] or b"", np.int64, int(offsets[-1]))
    delete_rows = np.searchsorted(known_ids, members)
    if not np.array_equal(known_ids[np.minimum(delete_rows, len(known_ids) - 1)], members):
        raise SparkmetaError("a plan has deletes that are in no manifest which it read")
    sets = DeleteSets(deletes.select(schema.names).cast(schema), delete_rows, offsets)
    return encoded.indices.to_numpy().astype(np.int64), sets


def _distinct(deletes: pa.Table) -> tuple[Indices, pa.Table]:
    """Return the distinct ids in ascending order, and a delete for each."""
    ids = deletes.column(ENTRY_ID).to_numpy()
    distinct_ids, firsts, codes = np.unique(ids, return_index=True, return_inverse=True)
    entries = [whole(deletes.column(name)) for name in ENTRY]
    for column in entries:
        if len(distinct_ids) < len(ids) and not column.equals(column.take(pa.array(firsts[codes]))):
            raise SparkmetaError("two entries of delete manifests have the same hash")
    return distinct_ids, deletes.take(pa.array(firsts))


# -- Hand Parquet files over to Spark ---------------------------------------------------------------------------------
# Spark lists files that are passed as paths, which takes longer than planning them. It does not list files in the log
# of a streaming sink: a file `_spark_metadata/0` in a folder, with one line of JSON per data file. The log also has a
# modification time for each file. Spark only exposes it as `_metadata.file_modification_time`, so it can carry the
# number. Spark reads the log when the DataFrame is created; the folder is removed right after.
#
# The log and the column `_tmp_metadata_row_index` are Spark internals, which `understands_logs` tests. If they do not
# work, or on Spark Connect, whose server may not see this machine's folders, files are passed as paths, numbers are
# joined by path, and positions come from the public `_metadata.row_index`.


NUMBER: Final = "number"
POSITION: Final = "pos"

FILES: Final = pa.schema(
    [pa.field("file_path", pa.string()), pa.field("file_size_in_bytes", pa.int64()), pa.field(NUMBER, pa.int64())]
)
"""Files to hand over, with numbers from 0 to 2**53 - 1."""

# Until numbers are joined, the column contains the path.
_EXTRA_TYPES: Final = {NUMBER: StringType(), POSITION: LongType()}

_LAST_NUMBER: Final = (1 << 53) - 1

ROW_INDEX: Final = "_tmp_metadata_row_index"
"""Spark's name for the position of a row: it reads no column of a file that has this name."""

_LOG: Final = "_spark_metadata"
# If Spark ignores the log and reads the folder, this file causes an error instead of an empty result.
_DECOY: Final = "the-log-was-not-read.parquet"
# Spellings of a path on a local disk.
_LOCAL: Final = r"^(file:)?/([^/])"
_S3_STORE: Final = r"^(?P<store>s3[an]?://[^/]+)/"
# Paths that need no escaping in JSON or as URIs.
_PLAIN: Final = r"^[a-z][a-z0-9]*://[A-Za-z0-9_./=:@+,-]*$"


def column_name(index: int) -> str:
    """Return the name of a column of `read_files` by its index in the schema."""
    return f"c{index}"


def read_files(
    spark: SparkSession,
    files: pa.Table,
    schema: StructType,
    settings: Settings,
    extra: Collection[str] = (),
    *,
    filtered: bool = False,
) -> DataFrame:
    """Return the rows of Parquet files.

    Columns: `c0`, `c1` ... (the schema's fields), `number` (the file's) and `pos` (the row's position in the file).

    Args:
        spark: the session.
        files: rows of `FILES`, without duplicate paths or names that Spark ignores.
        schema: columns with their names in the files, none of them `ROW_INDEX`. Columns that a file lacks are null.
        settings: the settings of the session.
        extra: the columns to add, `NUMBER` or `POSITION` or both. They have a cost even if they are not selected.
        filtered: whether a filter uses all of `extra`, regardless of what is selected. This makes positions cheaper.

    Raises:
        NotFoundError: a file is missing. With a log, Spark raises its own error when the DataFrame runs.
        SettingError: the setting asks for a log with Spark Connect.
    """
    handover = settings.file_handover
    if handover == "log" and is_connect(spark):
        raise SettingError(f"{PREFIX}file-handover is log: a Spark Connect server may not see its client's log")
    by_log = handover == "log" or (handover == "auto" and understands_logs(spark, files))
    if not by_log:
        return _by_paths(spark, files, schema, extra)
    return _by_log(spark, files, schema, extra, internal_index=filtered or NUMBER not in extra)


def understands_logs(spark: SparkSession, files: pa.Table) -> bool:
    """Return whether the session reads files of a log with correct numbers and positions.

    Runs a job that reads three rows of the first file, and remembers a conclusive result for the session. Returns False
    if the test is inconclusive because the file has no rows or can't be read.
    """
    if is_connect(spark) or not len(files):
        return False
    if spark not in _understood and (rows := _first_rows(spark, files)):
        _understood[spark] = rows == [(_LAST_NUMBER, index) for index in range(len(rows))]
    return _understood.get(spark, False)


_understood: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def _first_rows(spark: SparkSession, files: pa.Table) -> list[tuple[int, int]]:
    index = FILES.get_field_index(NUMBER)
    first_file = files.slice(0, 1).set_column(index, FILES.field(NUMBER), pa.array([_LAST_NUMBER], pa.int64()))
    try:
        frame = _by_log(spark, first_file, StructType(), (NUMBER, POSITION), internal_index=True)
        rows = frame.where(f"{NUMBER} + {POSITION} >= 0").limit(3).collect()
    except Exception:  # noqa: BLE001  whatever fails here, paths may work
        return []
    return [(row[NUMBER], row[POSITION]) for row in rows]


def _by_log(
    spark: SparkSession, files: pa.Table, schema: StructType, extra: Collection[str], *, internal_index: bool
) -> DataFrame:
    """Read the files of a log.

    Spark refuses a query with both its internal row index and the public one. If a query uses none of the selected
    metadata columns, Spark reads all file metadata, including the public index.
    """
    index = [StructField(ROW_INDEX, LongType())] if POSITION in extra and internal_index else []
    with tempfile.TemporaryDirectory(prefix="sparkmeta-rows-") as folder:
        (Path(folder) / _LOG).mkdir()
        (Path(folder) / _DECOY).write_bytes(b"no Parquet file")
        (Path(folder) / _LOG / "0").write_bytes(b"v1" + _log_lines(_spelled_for(spark, files)))
        reader = spark.read.options(**STRICT_PARQUET, recursiveFileLookup="true")
        frame = reader.schema(StructType([*schema.fields, *index])).parquet(Path(folder).as_uri())
    position = F.col(ROW_INDEX) if index else _metadata(frame, "row_index")
    values = {NUMBER: F.unix_millis(_metadata(frame, "file_modification_time")), POSITION: position}
    return _named(frame, schema, {name: values[name] for name in extra})


def _by_paths(spark: SparkSession, files: pa.Table, schema: StructType, extra: Collection[str]) -> DataFrame:
    locations = files.column("file_path").to_pylist()
    frame = read_parquet(spark, locations, schema)
    path = F.regexp_replace(_metadata(frame, "file_path"), "^s3[an]:", "s3:")
    values = {NUMBER: path, POSITION: _metadata(frame, "row_index")}
    named = _named(frame, schema, {name: values[name] for name in extra})
    columns = [StructField(column_name(index), field.dataType) for index, field in enumerate(schema.fields)]
    row_type = StructType([*columns, *(StructField(name, _EXTRA_TYPES[name]) for name in extra)])
    named = failing_if_skipped(spark, named, locations, row_type)
    if NUMBER not in extra:
        return named
    keys = pa.table({"path": [*map(spark_path_key, locations)], "of_path": files.column(NUMBER)})
    joined = named.join(F.broadcast(local_frame(spark, keys)), F.col(NUMBER) == F.col("path"), "left")
    unknown = F.raise_error(F.concat(F.col(NUMBER), F.lit(": Spark read a file that no plan names"))).cast("bigint")
    return joined.withColumn(NUMBER, F.coalesce("of_path", unknown)).drop("path", "of_path")


def _named(frame: DataFrame, schema: StructType, extra: Mapping[str, Column]) -> DataFrame:
    # `coalesce` has no other purpose than to drop column metadata, such as field ids.
    columns = [
        F.coalesce(F.col(quoted(name))).alias(column_name(index)) for index, name in enumerate(schema.fieldNames())
    ]
    return frame.select(*columns, *(value.alias(name) for name, value in extra.items()))


def _metadata(frame: DataFrame, field: str) -> Column:
    """Return a field of Spark's file metadata, even if a column of the files has the same name."""
    return frame.metadataColumn("_metadata").getField(field)


def _spelled_for(spark: SparkSession, files: pa.Table) -> pa.Table:
    """Return the files with paths in schemes for which Spark has a file system."""
    paths = files.column("file_path")
    for store in pc.unique(pc.struct_field(pc.extract_regex(paths, _S3_STORE), "store")).drop_null().to_pylist():
        paths = pc.replace_substring_regex(paths, f"^{re.escape(store)}/", f"{spelled(spark, store)}/")
    return files.set_column(0, FILES.field(0), paths)


def _log_lines(files: pa.Table) -> bytes:
    """Return the lines of a log. Python objects are created only for paths that need escaping."""
    if not len(files):
        return b""
    paths, sizes, numbers = (column.combine_chunks() for column in files.select(FILES.names).columns)
    paths = pc.replace_substring_regex(paths, _LOCAL, r"file:///\2")
    is_odd = pc.invert(pc.match_substring_regex(paths, _PLAIN))
    uris = pa.array(map(spark_uri, paths.filter(is_odd).to_pylist()), pa.string())
    paths = pc.replace_with_mask(paths, is_odd, uris)
    parts = ('\n{"path":"', paths, '","size":', sizes.cast(pa.string()), ',"isDir":false,"modificationTime":',
             numbers.cast(pa.string()), ',"blockReplication":1,"blockSize":134217728,"action":"add"}')  # fmt: skip
    lines = pc.binary_join_element_wise(*parts, "")
    return bytes(lines.buffers()[2])  # the data buffer: all strings concatenated


# -- Collect the files of a plan --------------------------------------------------------------------------------------
# A row takes about 200 bytes, as does each deletion vector or position delete file of a single data file and each
# delete shared by several files. A pair of a file and a shared delete takes eight bytes until sets are deduplicated.


PARTITION: Final = "partition"
FILE_DELETES: Final = "file_deletes"
"""Deletes that name their data file: deletion vectors, and position delete files of one data file."""
DELETE_SET: Final = "delete_set"
"""The set of other deletes that apply to a data file."""
SELECTING: Final = {FILE_DELETES: "selecting_deletes", DELETE_SET: "selecting_set"}
"""The columns of deletes in `SELECTED_BY`."""
_DELETE_COLUMNS: Final = (*SELECTING, *SELECTING.values())

PARTITION_KEY: Final = "partition_key"
"""A column of row plans: the key of a file's partition."""
_DELETE: Final = "delete"
# The number of files for which `runs` holds all deletes.
_RUN: Final = 64
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
_KEY: Final = pa.field(KEY_METADATA, pa.binary())


def _delete_schema(*, encrypted: bool) -> pa.Schema:
    """Return `_DELETES`, with the key metadata of delete files of encrypted tables."""
    return _DELETES.append(_KEY) if encrypted else _DELETES


@dataclass(frozen=True)
class RowPlan:
    """A plan for row readers.

    Attributes:
        rows: columns of `plan_files`, and a key that identifies the partition. A DataFrame has not run yet.
        deletes: the delete entries that the plan matches.
    """

    rows: Relation
    deletes: tuple[DeleteEntries, ...] = ()

    @staticmethod
    def union(plans: Sequence[RowPlan], state: TableState) -> RowPlan:
        """Return the union of one or more plans, as a table if all of them are tables."""
        (rows,) = united([plan.rows for plan in plans], state)
        return RowPlan(rows, tuple(deletes for plan in plans for deletes in plan.deletes))

    def shared_deletes(self, state: TableState) -> list[pa.Table]:
        """Read the deletes that name no data file, with `ENTRY_ID` and `ENTRY`. An entry may occur twice.

        Returns:
            A list with at most one table.
        """
        delete = sql.col(_DELETE)
        names = (*ENTRY, *_delete_schema(encrypted=state.is_encrypted).names)
        fields = [_entry_id(delete).alias(ENTRY_ID), *(delete[name].alias(name) for name in names)]
        frames = [
            frame_of(deletes.entries, state).selectExpr(
                public_delete(
                    delete_struct(state, encrypted=deletes.encrypted), deletes.manifests, encrypted=deletes.encrypted
                )
                .alias(_DELETE)
                .selected
            )
            for deletes in self.deletes
            if deletes.entries is not None and not deletes.only_dvs
        ]
        return [
            frame.where((~names_file(delete)).text).selectExpr(*sql.texts(fields)).toArrow()
            for frame in at_most_one(frames)
        ]


def plan_rows(choice: Choice, *others: Aliased) -> RowPlan:
    """Plan a scan for a row reader.

    Args:
        choice: how the scan is planned.
        others: further columns of the data entry.
    """
    entries = read_entries(choice)
    rows = planned_rows(match_deletes(entries), _partition_column(choice.pruned.filter.state), *others)
    return RowPlan(_as_planned(rows, choice.pruned.filter.state), (entries.deletes,))


def _as_planned(rows: Relation, state: TableState) -> Relation:
    """Return the rows of a plan with the types of `plan_files` if they are a table."""
    return with_types(rows, {field.name: field for field in arrow_schema(plan_schema(state))})


def plan_of_entries(
    matched: Relation, state: TableState, *others: str, deletes: DeleteEntries | None = None
) -> RowPlan:
    """Return a plan of data entries with `DELETES`.

    Args:
        matched: the data entries.
        state: the table.
        others: names of further columns to keep.
        deletes: the delete entries that were matched; None if there are none.
    """
    columns = sql.named(file_columns(state))
    columns += [_partition_column(state), *sql.columns(DELETES, *others)]
    return RowPlan(_as_planned(select(matched, columns), state), () if deletes is None else (deletes,))


def _partition_column(state: TableState) -> Aliased:
    """Return the key of a file's partition."""
    return partition_key(state).alias(PARTITION_KEY)


@dataclass(frozen=True)
class PlannedFiles:
    """Planned data files with their deletes.

    Attributes:
        table: one row per data file, with the columns of `plan_files` that row readers need, and `FILE_DELETES` and
            `DELETE_SET` for the deletes. It may have the columns of `SELECTING` and `CHANGE_COLUMNS`. The latter are
            constant for all rows of a file.
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
        schema = _delete_schema(encrypted=state.is_encrypted)
        needed = partial(_needed, schema.names)
        named = sql.transform(sql.filter(deletes, names_file), needed).alias(FILE_DELETES)
        unnamed = sql.filter(deletes, lambda delete: ~names_file(delete))
        names = (*_COLUMNS, *state.key_columns, *partition, PARTITION_KEY, *others)
        columns = [*sql.columns(*names), named]
        if all(isinstance(plan.rows, pa.Table) for plan in plans):
            rows = RowPlan.union(plans, state).rows
            assert isinstance(rows, pa.Table)
            table, (ids_of_files, shared) = select(rows, columns), _numbered(evaluate.values(rows, unnamed), schema)
        else:
            columns.append(sql.transform(unnamed, _entry_id).alias(ENTRY_ID))
            with translated_errors():
                tables = [frame_of(plan.rows, state).selectExpr(*sql.texts(columns)).toArrow() for plan in plans]
                table = with_plain_types(pa.concat_tables(tables, promote_options="permissive")).combine_chunks()
                ids_of_files, table = whole(table.column(ENTRY_ID)), table.drop_columns([ENTRY_ID])
                shared = (
                    [deletes_of_plan for plan in plans for deletes_of_plan in plan.shared_deletes(state)]
                    if _any(ids_of_files)
                    else []
                )
        codes, sets = np.zeros(len(table), np.int64), DeleteSets.none(schema)
        if _any(ids_of_files):
            all_deletes = with_plain_types(pa.concat_tables(shared, promote_options="permissive"))
            codes, sets = delete_sets(ids_of_files, all_deletes, schema)
        return PlannedFiles(table.append_column(DELETE_SET, pa.array(codes)), sets)

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

    def without(self, content: ContentType) -> PlannedFiles:
        """Return the files without the shared deletes of a content type."""
        return replace(self, sets=self.sets.only(~self._of_content(content)))

    def selected_by(self, content: ContentType) -> PlannedFiles:
        """Return the files with their shared deletes of a content type as the deletes that select rows.

        Reading them yields the rows that only these deletes delete.
        """
        others, selecting = self.without(content).sets, self.sets.only(self._of_content(content))
        lists = whole(self.table.column(FILE_DELETES))
        empty_lists = pa.ListArray.from_arrays(np.zeros(len(self) + 1, np.int32), lists.flatten().slice(0, 0))
        table = self.table.append_column(SELECTING[FILE_DELETES], empty_lists)
        table = table.append_column(SELECTING[DELETE_SET], pa.array(self.set_codes + len(others)))
        return PlannedFiles(table, others.with_sets(np.diff(selecting.offsets), selecting.members))

    def _of_content(self, content: ContentType) -> Flags:
        flags: Flags = np.asarray(pc.equal(self.sets.deletes.column("content"), int(content)))
        return flags

    @property
    def result(self) -> ScanResult:
        """The sums over the files and their deletes."""
        deletes, members = self.file_deletes, self.sets.members_of(self.set_codes)[1]
        data_sizes = self.table.column("file_size_in_bytes")
        sizes = pc.coalesce(deletes.column("content_size_in_bytes"), deletes.column("file_size_in_bytes"))
        set_sizes = self.sets.deletes.column("file_size_in_bytes").take(pa.array(members))
        data_bytes, file_bytes, set_bytes = (
            pc.sum(byte_counts, min_count=0).as_py() for byte_counts in (data_sizes, sizes, set_sizes)
        )
        return ScanResult(len(self), data_bytes, len(deletes) + len(members), file_bytes + set_bytes)

    @cached_property
    def partition_codes(self) -> Indices:
        """A number for each file. Files share it if their spec, partition and plan of deletes are the same."""
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
        return self._is_used & self._of_content(content)

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

    def with_deletes(self) -> pa.Table:
        """Return the files with `DELETES` and, where deletes select rows, `SELECTED_BY`, as `frame` does."""
        table = self.table.drop_columns([name for name in _DELETE_COLUMNS if name in self.table.column_names])
        for name, side in zip((DELETES, SELECTED_BY), self.sides, strict=False):
            set_owners, members = self.sets.members_of(side.set_codes)
            per_file = side.file_deletes
            owners = np.concatenate([per_file.column("owner").to_numpy(), set_owners])
            order = np.argsort(owners, kind="stable")
            deletes = pa.concat_tables([per_file.drop_columns(["owner"]), self.sets.deletes.take(pa.array(members))])
            ends = np.searchsorted(owners[order], np.arange(len(self) + 1))
            elements = whole(deletes.take(pa.array(order)).to_struct_array())
            table = table.append_column(name, pa.ListArray.from_arrays(pa.array(ends, pa.int32()), elements))
        return table

    def runs(self) -> Iterator[pa.Table]:
        """Yield runs of files `with_deletes`. Only the current one holds the deletes of a set once per file."""
        for start in range(0, len(self), _RUN):
            yield replace(self, table=self.table.slice(start, _RUN)).with_deletes()

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the files with `DELETES` and, where deletes select rows, `SELECTED_BY`.

        Spark assembles these arrays, so the driver holds the deletes of a set once, not once per file.
        """
        frame = local_frame(spark, self.table)
        for name, side in zip((DELETES, SELECTED_BY), self.sides, strict=False):
            columns = SELECTING if name == SELECTED_BY else {column: column for column in SELECTING}
            deletes_of_file = sql.col(columns[FILE_DELETES])
            used_sets = np.unique(side.set_codes)
            set_rows, members = self.sets.members_of(used_sets)
            if len(members):
                offsets = np.searchsorted(set_rows, np.arange(len(used_sets) + 1)).astype(np.int32)
                deletes = self.sets.deletes.take(pa.array(members)).to_struct_array()
                lists = pa.ListArray.from_arrays(pa.array(offsets), whole(deletes))
                sets = local_frame(spark, pa.table({_OF_SET: used_sets, _OF_SET_DELETES: lists}))
                frame = frame.join(sets, F.col(columns[DELETE_SET]) == F.col(_OF_SET))
                deletes_of_file = sql.concat(deletes_of_file, sql.col(_OF_SET_DELETES))
            frame = frame.selectExpr("*", deletes_of_file.alias(name).selected).drop(
                *columns.values(), _OF_SET, _OF_SET_DELETES
            )
        return frame


def names_file(delete: Sql) -> Sql:
    """Return whether the entry of a public delete says that it applies to a single data file."""
    is_of_file = delete["referenced_data_file"].isNotNull() | (delete["file_format"] == "PUFFIN")
    return (delete["content"] == int(ContentType.POSITION_DELETES)) & is_of_file


def _any(lists: pa.ListArray) -> bool:
    return len(lists.flatten()) > 0


def _numbered(deletes: pa.ListArray, schema: pa.Schema) -> tuple[pa.ListArray, list[pa.Table]]:
    """Return the deletes of files as `ENTRY_ID`s, and a table with these and the deletes; see `delete_sets`."""
    offsets, elements = compact_lists(deletes)
    entries = pa.Table.from_struct_array(elements)
    manifests = whole(entries.column(ENTRY[0])).dictionary_encode()
    numbers = manifests.indices.cast(pa.int64()).to_numpy()
    ids = pa.array(numbers << _ORDINAL_BITS | entries.column(ENTRY[1]).to_numpy())
    return pa.ListArray.from_arrays(offsets, ids), [
        entries.select([*ENTRY, *schema.names]).append_column(ENTRY_ID, ids)
    ]


def _entry_id(delete: Sql) -> Sql:
    return sql.call("xxhash64", *(delete[name] for name in ENTRY))


def _needed(names: Iterable[str], delete: Sql) -> Sql:
    return sql.struct(*(delete[name].alias(name) for name in names))


def _file_deletes(table: pa.Table) -> pa.Table:
    """Return the concatenated `FILE_DELETES` of all files."""
    schema = _delete_schema(encrypted=KEY_METADATA in table.column_names)
    return pa.Table.from_struct_array(whole(table.column(FILE_DELETES)).flatten()).cast(schema)
