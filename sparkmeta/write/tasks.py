"""Tasks that write data files and equality delete files, and choose the locations of these files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

import numpy as np
import pyarrow as pa
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StructType

from sparkmeta.entries.manifest_records import VALUE_SIZES, VALUE_SIZES_TYPE, map_type
from sparkmeta.entries.relation import distinct_rows, head, mapped
from sparkmeta.errors import UnsupportedError, ValidationError, first_line, proves_failure
from sparkmeta.expr.arrays import identities, uuid_bytes
from sparkmeta.expr.bounds import bound_arrow_type, encode_bounds
from sparkmeta.expr.partition_text import NULL, human_strings
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.table_properties import flag_property
from sparkmeta.spec.transforms import ColumnsBucket
from sparkmeta.storage.encryption import KEY_METADATA
from sparkmeta.storage.files import executor_writer
from sparkmeta.storage.location import join
from sparkmeta.storage.writing import discard
from sparkmeta.write.buckets import buckets
from sparkmeta.write.file_schema import FileColumns, file_schema
from sparkmeta.write.formats import AvroOutput, OrcOutput, ParquetOutput
from sparkmeta.write.metrics import MeasuredColumn
from sparkmeta.write.partition_file import MOST_BUFFERED, ClosedFile, Output, PartitionFile

if TYPE_CHECKING:
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType

    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.executors import ExecutorWriter
    from sparkmeta.write.options import WriteOptions


# -- The locations of data files --------------------------------------------------------------------------------------
# Iceberg's location providers choose the same locations.


DATA_PATHS = _DATA, _OBJECTS, _OLD_DATA = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
_ENABLED, _PARTITIONED = "write.object-storage.enabled", "write.object-storage.partitioned-paths"
# Folders of hash bits in a location, so that object stores spread requests.
_BITS, _FOLDER_BITS, _FOLDERS = 20, 4, 3


@dataclass(frozen=True)
class PartitionField:
    """A field of the partition spec of new files.

    Attributes:
        name: the name of the field.
        transform: the name of the transform.
        type: the Iceberg type name of the partition values.
    """

    name: str
    transform: str
    type: str


@dataclass(frozen=True)
class LocationProvider:
    """Names the locations of data files. Picklable.

    Attributes:
        folder: the folder of all data files.
        fields: the partition fields.
        hashed: whether folders of hash bits come first.
        with_partitions: whether there are partition folders.
        context: the last two folders of the table's location, which follow the hash bits if tables share `folder`.
    """

    folder: str
    fields: tuple[PartitionField, ...] = ()
    hashed: bool = False
    with_partitions: bool = True
    context: str = ""

    @staticmethod
    def of(metadata: TableMetadata, fields: Sequence[PartitionField]) -> LocationProvider:
        """Return the location provider of a table.

        Raises:
            ValidationError: a table property has an invalid value.
        """
        properties = metadata.properties
        hashed = _flag(metadata, _ENABLED, default=False)
        keys = (_DATA, _OBJECTS, _OLD_DATA) if hashed else (_DATA, _OLD_DATA)
        configured = next((properties[key] for key in keys if key in properties), join(metadata.location, "data"))
        folder = configured.rstrip("/")
        is_in_table = folder.startswith(metadata.location.rstrip("/"))
        context = "" if is_in_table or not hashed else "/".join(metadata.location.rstrip("/").split("/")[-2:])
        with_partitions = not hashed or _flag(metadata, _PARTITIONED, default=True)
        return LocationProvider(folder, tuple(fields), hashed, with_partitions, context)

    def location(self, values: Sequence[pa.Scalar], name: str) -> str:
        """Return the location of a file.

        Args:
            values: the file's partition values, in `bound_arrow_type`.
            name: the name of the file.
        """
        path = self._partition_folder(values)
        relative_path = f"{path}/{name}" if path else name
        if not self.hashed:
            return f"{self.folder}/{relative_path}"
        bits = _hash_folders(relative_path)
        if self.context:
            return f"{self.folder}/{bits}/{self.context}/{relative_path}"
        separator = "/" if self.with_partitions else "-"
        return f"{self.folder}/{bits}{separator}{relative_path}"

    def _partition_folder(self, values: Sequence[pa.Scalar]) -> str:
        if not self.with_partitions:
            return ""
        folders = (
            f"{_escaped(field.name)}={_escaped(_text(value, field))}"
            for field, value in zip(self.fields, values, strict=True)
        )
        return "/".join(folders)

    @cached_property
    def is_partitioned(self) -> bool:
        return bool(self.fields)


def _text(value: pa.Scalar, field: PartitionField) -> str:
    if not value.is_valid:
        return NULL
    text: str = human_strings(encode_bounds(pa.repeat(value, 1)), field.transform, field.type)[0].as_py()
    return text


def _escaped(text: str) -> str:
    """Escape text as java.net.URLEncoder does, which escapes ~ but not *."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def _hash_folders(name: str) -> str:
    import mmh3

    text = f"{mmh3.hash(name) & ((1 << _BITS) - 1):0{_BITS}b}"
    folders = [text[start : start + _FOLDER_BITS] for start in range(0, _FOLDERS * _FOLDER_BITS, _FOLDER_BITS)]
    return "/".join([*folders, text[_FOLDERS * _FOLDER_BITS :]])


def _flag(metadata: TableMetadata, name: str, *, default: bool) -> bool:
    return flag_property(metadata.properties, name, default=default, location=metadata.location)


# -- Transforms that have no exact form in Spark SQL ------------------------------------------------------------------


@dataclass(frozen=True)
class TaskValue:
    """A column of source values to replace with transformed values.

    Attributes:
        name: the column.
        transform: the transform.
        source: the Iceberg type of the source values: a struct for a transform of several columns.
    """

    name: str
    transform: Transform[Any, Any]
    source: IcebergType


@dataclass(frozen=True)
class TaskValues:
    """Replaces source values with transformed values. Picklable.

    Truncated decimals become null if they have more digits than their type.
    """

    values: tuple[TaskValue, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values = {value.name: value for value in self.values}
        for batch in batches:
            arrays = [
                _transformed(array, values[column.name]) if column.name in values else array
                for column, array in zip(batch.schema, batch.columns, strict=True)
            ]
            fields = [
                column.with_type(array.type) if column.name in values else column
                for column, array in zip(batch.schema, arrays, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _transformed(array: pa.Array, value: TaskValue) -> pa.Array:
    """Return the transform of source values. To truncate decimals, transform each distinct value once."""
    match value.transform:
        case BucketTransform():
            return buckets(value.transform.num_buckets, [(array, value.source)])
        case ColumnsBucket():
            assert isinstance(value.source, StructType)
            kinds = [column.field_type for column in value.source.fields]
            return buckets(value.transform.num_buckets, [*zip(array.flatten(), kinds, strict=True)])
    function, coded = value.transform.transform(value.source), array.dictionary_encode("encode")
    distinct = [_fitting(function(source), array.type) for source in coded.dictionary.to_pylist()]
    return pa.array(distinct, array.type).take(coded.indices)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value; None for a decimal with too many digits."""
    is_valid = not isinstance(value, Decimal) or value.copy_abs() < Decimal(10) ** (kind.precision - kind.scale)
    return value if is_valid else None


# -- Write data files and equality delete files -----------------------------------------------------------------------
# Tasks write rows and return one row per file.


PARTITION_COLUMN: Final = "_partition_value_{}"
"""The name of a column with a partition value, by the index of the field in the spec."""

PROBLEM: Final = "problem"

METRICS_MAPS: Final = (
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
)
# Files per batch of results.
_BATCH_FILES: Final = 256
# Arrow bytes of rows that are divided by partition at a time.
_POOL: Final = 16 << 20
# Maximum number of open files. Each may hold a buffer of its store, 50 MB with s3fs, and in ORC an unfinished stripe.
_MAX_OPEN: Final = 8


def files_schema(partition: pa.StructType | None) -> pa.Schema:
    """Return the columns of `inspect.files` that tasks report for new files, and `VALUE_SIZES`.

    Args:
        partition: the type of partition tuples; None if no spec of the table has fields.
    """
    tuples = [] if partition is None else [pa.field("partition", partition)]
    return pa.schema(
        [
            pa.field("content", pa.int32()),
            pa.field("file_path", pa.string()),
            pa.field("file_format", pa.string()),
            pa.field("spec_id", pa.int32()),
            *tuples,
            pa.field("record_count", pa.int64()),
            pa.field("file_size_in_bytes", pa.int64()),
            *(pa.field(name, map_type(name)) for name in METRICS_MAPS),
            pa.field(VALUE_SIZES, VALUE_SIZES_TYPE),
            pa.field("split_offsets", pa.list_(pa.int64())),
            pa.field("sort_order_id", pa.int32()),
        ]
    )


@dataclass(frozen=True)
class DataFileTasks:
    """Writes data files. Picklable.

    Attributes:
        writer: opens files.
        columns: converts rows to rows of files.
        options: the options of the files.
        location_provider: names the locations of files.
        name: the prefix of the files' names, unique to this write.
        leaves: the columns with metrics.
        sized: the ids of the primitive columns that have metrics.
        spec_id: the partition spec.
        partition: the type of partition tuples in the result; None if no spec of the table has fields.
        tuple_indices: for each field of `partition`, its index in the spec; None for fields of other specs.
        sort_order_id: the sort order of each file's rows.
        equality_ids: the columns that equality deletes compare; empty for data files.
    """

    writer: ExecutorWriter
    columns: FileColumns
    options: WriteOptions
    location_provider: LocationProvider
    name: str
    leaves: tuple[MeasuredColumn, ...]
    sized: frozenset[int]
    spec_id: int
    partition: pa.StructType | None
    tuple_indices: tuple[int | None, ...]
    sort_order_id: int
    equality_ids: tuple[int, ...] = ()

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the files."""
        return file_schema(self.columns.columns, self.options.file_format)

    @cached_property
    def result_schema(self) -> pa.Schema:
        """The schema of the results: `files_schema`, the equality ids of deletes, and a problem instead of a file."""
        schema = files_schema(self.partition)
        if self.equality_ids:
            schema = schema.append(pa.field("equality_ids", pa.list_(pa.int32())))
        if self.options.data_key_length is not None:
            schema = schema.append(pa.field(KEY_METADATA, pa.binary()))
        return schema.append(pa.field(PROBLEM, pa.string()))

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write rows to files and yield a row of `result_schema` for each.

        The rows of a partition keep their order. They go to one file at a time; other partitions have open files at the
        same time. If the task fails, the files that it wrote are deleted. Rows that don't fit the table do not fail the
        task, since Spark would retry it. Instead, the last yielded row names the problem.

        Args:
            batches: the rows, with the columns `PARTITION_COLUMN` after the table's columns.
        """
        yield from self.write_apart([batches])

    def write_apart(self, groups: Iterable[Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Write groups of rows as `write` does, each group to separate files."""
        task = _Task(self)
        try:
            for batches in groups:
                for _ in chain(map(task.add, filter(len, batches)), task.end_files()):
                    if len(task.closed_files) >= _BATCH_FILES:
                        yield task.take_closed()
            if task.closed_files:
                yield task.take_closed()
        except ValidationError as error:
            task.abort()
            yield _problem(self.result_schema, str(error))
        except BaseException:
            # Also on GeneratorExit: the files of a killed attempt are useless.
            task.abort()
            raise

    def open(self, location: str) -> Output:
        """Open a new file."""
        sink = self.writer.open_new(location)
        if self.options.file_format == "orc":
            return OrcOutput(sink, self.schema, self.options, self.columns.table)
        if self.options.file_format == "avro":
            return AvroOutput(sink, self.columns.columns, self.options, self._notes)
        return ParquetOutput(sink, self.schema, self.options, self.sized, self._notes)

    @property
    def _notes(self) -> Mapping[str, str]:
        """The key-value metadata that Java's writers put into the footers of equality delete files."""
        if not self.equality_ids:
            return {}
        return {"delete-type": "equality", "delete-field-ids": ", ".join(map(str, self.equality_ids))}


@dataclass
class _Task:
    """The files of one task attempt."""

    tasks: DataFileTasks
    closed_files: list[ClosedFile] = field(default_factory=list)
    locations: list[str] = field(default_factory=list)
    _pooled: list[pa.RecordBatch] = field(default_factory=list)
    _pooled_bytes: int = 0
    # By partition.
    _files: dict[tuple[pa.Scalar, ...], PartitionFile] = field(default_factory=dict)
    # The open files, least recently written first.
    _open: dict[PartitionFile, None] = field(default_factory=dict)
    _ratio: float = 1.0

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        if batch.nbytes >= _POOL:
            # Rows of 2 GB can't be combined.
            self._distribute()
            self._divide(batch)
            return
        self._pooled.append(batch)
        self._pooled_bytes += batch.nbytes
        if self._pooled_bytes >= _POOL:
            self._distribute()

    def _distribute(self) -> None:
        """Pass the pooled rows to the files of their partitions."""
        if not self._pooled:
            return
        (batch,) = pa.Table.from_batches(self._pooled).combine_chunks().to_batches()
        self._pooled, self._pooled_bytes = [], 0
        self._divide(batch)

    def _divide(self, batch: pa.RecordBatch) -> None:
        """Pass rows to the files of their partitions."""
        fields = self.tasks.location_provider.fields
        count = batch.num_columns - len(fields)
        # This comes first, since its error names the column of a value that is not valid.
        table = self.tasks.columns.table_of(batch.select([*range(count)]), self.tasks.schema)
        # By position: the table may have columns of the same names.
        values = [_bound(batch.column(count + index), field.type) for index, field in enumerate(fields)]
        keys = [*map(identities, values)]
        for first_row, rows in _by_partition(keys, table):
            identity = tuple(array[first_row] for array in keys)
            file = self._files.get(identity)
            if file is None:
                file = PartitionFile(self.tasks, tuple(array[first_row] for array in values), ratio=self._ratio)
                self._files[identity] = file
            self._write(file, rows)
        while sum(file.memory for file in self._files.values()) > MOST_BUFFERED:
            self._flush(max(self._files.values(), key=lambda file: file.memory))

    def _write(self, file: PartitionFile, rows: pa.Table) -> None:
        """Write rows in parts that end at the end of a row group or file."""
        while len(rows):
            rows = file.buffer(rows)
            if file.room() > 0:
                continue
            self._flush(file)
            if file.output is not None and file.output.size >= self.tasks.options.target_bytes:
                self._close(file)

    def _flush(self, file: PartitionFile) -> None:
        if file.output is None and len(self._open) >= _MAX_OPEN:
            oldest = next(iter(self._open))
            oldest.flush(self._new_location)
            self._close(oldest)
        file.flush(self._new_location)
        self._ratio = file.ratio
        if file.output is not None:
            self._open.pop(file, None)
            self._open[file] = None

    def _close(self, file: PartitionFile) -> None:
        self.closed_files.append(file.close())
        del self._open[file]

    def end_files(self) -> Iterator[None]:
        """Finish all files, one at each step."""
        self._distribute()
        while self._files:
            identity, file = next(iter(self._files.items()))
            self._flush(file)
            if file.output is not None:
                self._close(file)
            del self._files[identity]
            yield

    def abort(self) -> None:
        """Delete the files of the attempt."""
        for file in self._files.values():
            file.abort()
        discard(self.tasks.writer, self.locations)

    def take_closed(self) -> pa.RecordBatch:
        """Return the closed files as rows of `files_schema` and forget them."""
        files, self.closed_files = self.closed_files, []
        return _result(self.tasks, files)

    def _new_location(self, key: tuple[pa.Scalar, ...]) -> str:
        tasks = self.tasks
        kind = "-deletes" if tasks.equality_ids else ""
        name = f"{_task_name()}-{tasks.name}-{len(self.locations) + 1:05d}{kind}.{tasks.options.file_format}"
        location = tasks.location_provider.location(key, name)
        self.locations.append(location)
        return location


def _task_name() -> str:
    """Return a name of the task and its attempt that is unique within a Spark application."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "00000-0" if context is None else f"{context.partitionId():05d}-{context.taskAttemptId()}"


def _bound(values: pa.Array, type_name: str) -> pa.Array:
    """Convert partition values from Spark to `bound_arrow_type`."""
    if type_name == "uuid" and not pa.types.is_binary(values.type):
        values = uuid_bytes(values.cast(pa.string()))
    return values.cast(bound_arrow_type(type_name))


def partition_codes(array: pa.Array) -> Any:
    """Return integers that are equal for equal partition values. Nulls are equal."""
    return identities(array).dictionary_encode("encode").indices.to_numpy(zero_copy_only=False)


def _by_partition(values: Sequence[pa.Array], rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the index of the first row, and the rows, of each partition.

    Args:
        values: for each partition field, the values of all rows.
        rows: at least 1.
    """
    groups = np.zeros(len(rows), np.int64)
    for array in values:
        codes = partition_codes(array).astype(np.int64)
        groups = np.unique(groups * (int(codes.max()) + 1) + codes, return_inverse=True)[1]
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    if len(starts) == 1:
        yield 0, rows
        return
    for row_indices in np.split(order, starts[1:]):
        # A slice would keep the rows of all partitions in memory.
        yield int(row_indices[0]), rows.take(pa.array(row_indices))


def _result(tasks: DataFileTasks, files: Sequence[ClosedFile]) -> pa.RecordBatch:
    schema = tasks.result_schema
    columns: dict[str, Any] = {
        "content": [int(ContentType.EQUALITY_DELETES if tasks.equality_ids else ContentType.DATA)] * len(files),
        "file_path": [file.location for file in files],
        "file_format": [tasks.options.file_format.upper()] * len(files),
        "spec_id": [tasks.spec_id] * len(files),
        "record_count": [file.metrics.rows for file in files],
        "file_size_in_bytes": [file.written.size for file in files],
        "column_sizes": [file.written.column_sizes or None for file in files],
        "split_offsets": [file.written.split_offsets or None for file in files],
        "sort_order_id": [tasks.sort_order_id] * len(files),
    }
    metrics = [file.metrics.counts() | file.metrics.bounds() for file in files]
    columns["equality_ids"] = [tasks.equality_ids] * len(files)
    columns[PROBLEM] = [None] * len(files)
    columns[KEY_METADATA] = [file.written.key_metadata for file in files]
    columns |= {name: [file_metrics[name] for file_metrics in metrics] for name in METRICS_MAPS[1:]}
    columns[VALUE_SIZES] = [file.metrics.value_sizes() for file in files]
    arrays = []
    for kind in schema:
        if kind.name == "partition":
            arrays.append(_tuples(tasks, files, kind.type))
        elif pa.types.is_map(kind.type):
            maps = [None if value is None else sorted(value.items()) for value in columns[kind.name]]
            arrays.append(pa.array(maps, kind.type))
        else:
            arrays.append(pa.array(columns[kind.name], kind.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _problem(schema: pa.Schema, text: str) -> pa.RecordBatch:
    arrays = [pa.array([text]) if field.name == PROBLEM else pa.nulls(1, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _tuples(tasks: DataFileTasks, files: Sequence[ClosedFile], kind: pa.StructType) -> pa.Array:
    children = []
    for index, child in zip(tasks.tuple_indices, kind, strict=True):
        if index is None:
            children.append(pa.nulls(len(files), child.type))
        else:
            children.append(pa.concat_arrays([pa.repeat(file.key[index], 1).cast(child.type) for file in files]))
    return pa.StructArray.from_arrays(children, fields=list(kind))


# -- Delete the files of uncommitted writes in tasks ------------------------------------------------------------------


_log = logging.getLogger(__name__)

_FAILURES = pa.schema([pa.field("path", pa.string()), pa.field("reason", pa.string())])
# Maximum number of files that a log message names.
_MAX_NAMED = 1000


def delete_written(state: TableState, files: Relation) -> None:
    """Delete files that no snapshot references. Failures are logged; such files become orphans.

    Args:
        state: the table.
        files: the result of `write_files`.
    """
    try:
        deleter = _Deleter(executor_writer(state.files))
        failures = mapped(distinct_rows(files, ["file_path"]), deleter, _FAILURES)
        for failure in head(failures, _MAX_NAMED).to_pylist():
            _log.warning("%s: not deleted: %s", failure["path"], failure["reason"])
    except Exception as error:  # noqa: BLE001  deleting is best effort
        location, names_text = state.metadata.location, _file_names(files)
        _log.warning("%s: the files of a write that failed are not deleted: %s: %s", location, error, names_text)


@contextmanager
def named_on_failure(table: str, pattern: str) -> Iterator[None]:
    """Log the name pattern of the files that may be left if the block fails, since its tasks may still run.

    Args:
        table: the table's location.
        pattern: the pattern of the files' names.
    """
    try:
        yield
    except UnsupportedError:
        raise
    except Exception:
        _log.warning("%s: files named %s may be left of a write that failed", table, pattern)
        raise


@contextmanager
def deleted_on_failure(state: TableState, written: Sequence[Relation]) -> Iterator[None]:
    """Delete files if the commit in the block is known to have failed. After any other error, keep them.

    Args:
        state: the table.
        written: results of `write_files`.
    """
    try:
        yield
    except BaseException as error:
        if proves_failure(error):
            for files in written:
                delete_written(state, files)
        elif written:
            location, reason, names_text = (
                state.metadata.location,
                first_line(error),
                ", ".join(map(_file_names, written)),
            )
            problem = "the files of the write stay, since this does not rule out a commit"
            _log.warning("%s: %s: %s: %s", location, problem, reason, names_text)
        raise


def _file_names(files: Relation) -> str:
    """Return the locations of files, up to a limit."""
    try:
        paths = head(distinct_rows(files, ["file_path"]), _MAX_NAMED + 1).column(0).to_pylist()
    except Exception as error:  # noqa: BLE001  the log is best effort
        return f"their names are not known: {first_line(error)}"
    return ", ".join([*paths[:_MAX_NAMED], *(["..."] if len(paths) > _MAX_NAMED else [])])


@dataclass(frozen=True)
class _Deleter:
    """Deletes files in tasks. Picklable."""

    writer: ExecutorWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            failures = self.writer.delete_many(batch.column(0).to_pylist())
            columns = [[failure.location for failure in failures], [failure.reason for failure in failures]]
            yield pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], schema=_FAILURES)
