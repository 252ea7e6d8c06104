"""Tasks that describe existing data files: their metrics, and their partition from folders and bounds."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.transforms import IdentityTransform, VoidTransform

from sparkmeta.commit.partition_folders import NULL_FOLDERS, assignments, folder_value, readings
from sparkmeta.entries.manifest_records import VALUE_SIZES
from sparkmeta.errors import CorruptFileError, FileAccessError, NotFoundError, UnsupportedError, ValidationError, shown
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.expr.types import bound_value
from sparkmeta.operations.metadata_files import METADATA, METADATA_FILE
from sparkmeta.rows.data_file import DataFile, open_data_file
from sparkmeta.rows.file_rows import START, STOP, RowReader
from sparkmeta.rows.resolve import TYPE_OF_COLUMN, FromFile, IcebergColumn, Source, has_ids
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.content import translated_read_errors
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.location import join, normalize, parents, scheme
from sparkmeta.write.file_schema import FileColumns, file_schema
from sparkmeta.write.formats import avro_kind, avro_leaves, conversion, leaf_names, orc_kind, refuse
from sparkmeta.write.metrics import (
    Facts,
    FileMetrics,
    FooterLayout,
    TableColumns,
    bound_of,
    leaf_sources,
    leaf_types,
    metric_leaves,
    metrics_of,
    split_offsets,
)
from sparkmeta.write.tasks import PROBLEM, files_schema

if TYPE_CHECKING:
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType


# -- The partition of an existing data file ---------------------------------------------------------------------------
# It follows from the file's folders and column bounds.


_FLOATS: Final = ("float", "double")
_ZONED: Final = ("timestamptz", "timestamptz_ns")
# A value that column bounds do not prove.
_UNKNOWN: Final = object()
# Comparison keys of folder names: case-sensitive, then case-insensitive.
_KEYS: Final[tuple[Callable[[str], str], ...]] = (str, str.lower)


@dataclass(frozen=True)
class FilePartitions:
    """Finds the partitions of files. Picklable.

    Attributes:
        fields: the fields of the partition spec.
        names: the names of columns by field id.
        required: the field ids of columns without nulls.
        defaults: the initial defaults of columns, in bound form, by field id.
        columns: the ids of all top-level columns by name.
        case_sensitive: whether folder names are case-sensitive.
    """

    fields: tuple[FileField, ...]
    names: Mapping[int, str]
    required: frozenset[int]
    defaults: Mapping[int, Any]
    columns: Mapping[str, int]
    case_sensitive: bool
    _folder_cache: dict[tuple[str, str], list[Any]] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def floats(self) -> frozenset[int]:
        """The ids of the floating-point partition source columns."""
        return frozenset(field.source for field in self.fields if field.is_identity and field.type in _FLOATS)

    def in_folders(self, location: str, folders: str) -> frozenset[int]:
        """Return the ids of the columns whose values come from the folders of a file.

        Args:
            location: the file.
            folders: the path of folders that name its partition.

        Raises:
            ValidationError: folders are ambiguous.
        """
        indices = self._folders(location, folders).by_field
        return frozenset(self.fields[index].source for index in indices if self.fields[index].is_identity)

    def values(
        self, location: str, folders: str, facts: Mapping[int, Facts], present: frozenset[int]
    ) -> tuple[Any, ...]:
        """Return the partition values of a file, in bound form.

        Args:
            location: the file.
            folders: the path of folders that name its partition.
            facts: metrics of its columns, by field id.
            present: ids of the table's columns that are in the file.

        Raises:
            ValidationError: a value can't be determined, rows have different values, a folder contradicts the rows, or
                a folder names a value that the rows would lack.
        """
        named = self._folders(location, folders)
        self._refuse_unused(named, location, present)
        return tuple(
            self._value(field, location, named.by_field.get(index), facts, present)
            for index, field in enumerate(self.fields)
        )

    def _folders(self, location: str, folders: str) -> _Folders:
        by_field: dict[int, _Folder] = {}
        unassigned = []
        for names, text in assignments(folders):
            folder = _Folder(names, text)
            indices = self._field_indices(names)
            if len(indices) > 1:
                fields = " and ".join(self.fields[index].name for index in indices)
                raise ValidationError(f"{location}: folder {folder} may be of the partition fields {fields}")
            if not indices:
                unassigned.append(folder)
                continue
            earlier = by_field.get(indices[0], folder)
            if earlier.names != names and earlier.text != text:
                problem = f"are both of the partition field {self.fields[indices[0]].name}"
                raise ValidationError(f"{location}: folders {earlier} and {folder} {problem}")
            # Among folders of the same name, the innermost takes precedence: outer ones may belong to the root path.
            by_field[indices[0]] = folder
        return _Folders(by_field, unassigned)

    def _field_indices(self, names: Sequence[str]) -> Sequence[int]:
        """Return the indices of the partition fields that a folder's name may mean. Exact names take precedence."""
        for key in _KEYS[: 1 if self.case_sensitive else 2]:
            folder_keys = {*map(key, names)}
            indices = [
                index for index, field in enumerate(self.fields) if folder_keys.intersection(map(key, field.folders))
            ]
            if indices:
                return indices
        return ()

    def _refuse_unused(self, folders: _Folders, location: str, present: frozenset[int]) -> None:
        """Raise ValidationError if a folder without a partition field seems to hold a value that the rows lack."""
        key = _KEYS[0 if self.case_sensitive else 1]
        columns = {key(name): field_id for name, field_id in self.columns.items()}
        unknown_folders = []
        for folder in folders.unassigned:
            column_ids = [columns[name] for name in map(key, folder.names) if name in columns]
            if not column_ids:
                unknown_folders.append(folder)
            elif not present.intersection(column_ids):
                problem = "the file lacks this column, which is no identity field of the table's partition spec"
                raise ValidationError(f"{location}: folder {folder}: {problem}")
        for index, spec_field in enumerate(self.fields):
            if (
                unknown_folders
                and spec_field.is_identity
                and index not in folders.by_field
                and spec_field.source not in present
            ):
                problem = f"no partition field has this name, and the file lacks column {self.names[spec_field.source]}"
                expected = " or ".join(f"{name}=..." for name in spec_field.folders)
                raise ValidationError(
                    f"{location}: folder {unknown_folders[0]}: {problem}: expected a folder {expected}"
                )

    def _value(
        self,
        field: FileField,
        location: str,
        folder: _Folder | None,
        facts: Mapping[int, Facts],
        present: frozenset[int],
    ) -> Any:
        if isinstance(field.transform, VoidTransform):
            return None
        folder_values = [] if folder is None else self._folder_values(field, folder, location)
        column_facts = facts.get(field.source)
        if field.source in present:
            proven = self._proven(field, location, column_facts, has_folder=bool(folder_values))
        elif folder_values and field.is_identity:
            if folder_values[0] is None and field.source in self.required:
                problem = f"folder {folder} is null, but column {self.names[field.source]} is required"
                raise ValidationError(f"{location}: {problem}")
            return folder_values[0]
        else:
            # For transforms other than identity, readers use the column's default, not the folder's value.
            default = self.defaults.get(field.source)
            proven = None if default is None else field.of(default)
        if not folder_values:
            return proven
        if proven is _UNKNOWN:
            return folder_values[0]
        if not any(proven == value or (_is_nan(proven) and _is_nan(value)) for value in folder_values):
            problem = f"is {_shown(folder_values[0])} according to the file's folder, but {_shown(proven)} in its rows"
            raise ValidationError(f"{location}: partition field {field.name} {problem}")
        return proven

    def _folder_values(self, field: FileField, folder: _Folder, location: str) -> list[Any]:
        key = (field.name, folder.text)
        if key not in self._folder_cache:
            self._folder_cache[key] = _folder_values(field, folder, location)
        return self._folder_cache[key]

    def _proven(self, field: FileField, location: str, facts: Facts | None, *, has_folder: bool) -> Any:
        """Return the partition value of all rows; `_UNKNOWN` if only the folder determines it."""
        column, transform = self.names[field.source], field.transform
        if facts is not None:
            if not facts.values or facts.nulls == facts.values:
                return _UNKNOWN if has_folder and not facts.values else None
            _refuse_mixed(facts, field, column, location)
            if facts.nans:
                return math.nan
        if facts is None or not _is_bounded(facts, field):
            if has_folder:
                return _UNKNOWN
            problem = f"there are no bounds and counts of column {column}, and no folder {field.name}=..."
            raise _undetermined(location, field, problem)
        if facts.least == facts.greatest and not _is_zero(facts.least, facts.greatest):
            return field.of(facts.least)
        if not transform.preserves_order:
            if has_folder:
                return _UNKNOWN
            problem = f"{transform} of values from {shown(facts.least)} to {shown(facts.greatest)} of column {column}"
            raise _undetermined(location, field, problem)
        least, greatest = field.of(facts.least), field.of(facts.greatest)
        if least != greatest or _is_zero(least, greatest):
            raise ValidationError(
                f"{location}: rows are of several partitions: {field.name} is {transform} of column {column}, whose "
                f"values are from {shown(facts.least)} to {shown(facts.greatest)}"
            )
        return least

    def tuples(self, rows: Sequence[tuple[Any, ...] | None]) -> list[pa.Array]:
        """Return the values of each field, of `bound_arrow_type`; null for a row without a partition."""
        return [
            _array([None if row is None else row[index] for row in rows], field.type)
            for index, field in enumerate(self.fields)
        ]


@dataclass(frozen=True)
class _Folder:
    """A folder `name=value` above a file.

    Attributes:
        names: the possible names of the folder.
        text: the value, escaped.
    """

    names: Sequence[str]
    text: str

    def __str__(self) -> str:
        return f"{self.names[0]}={self.text}"


@dataclass(frozen=True)
class _Folders:
    """The folders `name=value` above a file.

    Attributes:
        by_field: the folders with the value of a partition field, by the field's index in the spec.
        unassigned: the other folders.
    """

    by_field: Mapping[int, _Folder]
    unassigned: Sequence[_Folder]


@dataclass(frozen=True)
class FileField:
    """A field of the partition spec.

    Attributes:
        name: the name of the field.
        folders: the names of the folders that hold its values.
        source: the id of the source column.
        transform: the transform.
        source_type: the type of the source column.
        type: the Iceberg type name of the partition values.
    """

    name: str
    folders: tuple[str, ...]
    source: int
    transform: Transform[Any, Any]
    source_type: IcebergType
    type: str

    @property
    def is_identity(self) -> bool:
        """Whether the transform is identity."""
        return isinstance(self.transform, IdentityTransform)

    def of(self, value: Any) -> Any:
        """Return the partition value for a value of the source column."""
        return bound_value(self.transform.transform(self.source_type)(value))


def _is_zero(least: Any, greatest: Any) -> bool:
    """Return whether the bounds are -0.0 and 0.0, which are equal but belong to different partitions."""
    return isinstance(least, float) and least == greatest and math.copysign(1, least) != math.copysign(1, greatest)


def _refuse_mixed(facts: Facts, field: FileField, column: str, location: str) -> None:
    for count, value in ((facts.nulls, "null"), (facts.nans, "NaN")):
        if count and count < facts.values:
            problem = f"{count} of {facts.values} values of column {column} are {value}"
            raise ValidationError(f"{location}: rows are of several partitions of {field.name}: {problem}")


def _is_bounded(facts: Facts, field: FileField) -> bool:
    """Return whether all values of a column are known to be null or within its bounds."""
    is_counted = facts.nulls is not None and (facts.nans is not None or field.type not in _FLOATS)
    return is_counted and facts.least is not None


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _undetermined(location: str, field: FileField, problem: str) -> ValidationError:
    return ValidationError(f"{location}: the value of partition field {field.name} can't be determined: {problem}")


def _shown(value: Any) -> str:
    return "null" if value is None else shown(value)


def _folder_values(field: FileField, folder: _Folder, location: str) -> list[Any]:
    """Return the possible values of a folder name, the most likely first.

    Iceberg writes null as `null`; Spark and Hive do not.
    """
    kind = bound_arrow_type(field.type)
    values: list[Any] = []
    for text in readings(folder.text):
        if field.type == "string" and text == NULL_FOLDERS[0]:
            values.append(text)
        with suppress(ValueError, ArithmeticError, pa.ArrowException):
            values.append(bound_value(_parsed(text, field, kind)))
    if not values:
        # Spark writes times in the session's time zone, which the folder name does not contain.
        hint = ": expected an offset from UTC, such as +00:00" if field.type in _ZONED else ""
        raise ValidationError(f"{location}: folder {folder}: can't be parsed as {field.type}{hint}")
    return values


def _parsed(text: str, field: FileField, kind: pa.DataType) -> Any:
    if text in NULL_FOLDERS:
        return None
    if field.type == "uuid":
        return UUID(text)
    if field.type.startswith("decimal"):
        number = Decimal(text)
        return Decimal(str(pa.scalar(number).cast(kind).as_py()))
    if pa.types.is_binary(kind) or field.type == "time":
        raise ValueError(f"{field.type} is in no folder's name")
    if field.type.startswith("timestamp"):
        unit = "ns" if field.type.endswith("_ns") else "us"
        return pa.scalar(text).cast(pa.timestamp(unit, "UTC" if field.type in _ZONED else None)).value
    return folder_value(text, field.transform, kind)


def _array(values: Sequence[Any], type_name: str) -> pa.Array:
    kind = bound_arrow_type(type_name)
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, kind)


# -- Describe existing data files -------------------------------------------------------------------------------------
# Tasks return one row of `inspect.files` for each path. They read the footers of Parquet files and, since
# footers do not count NaNs, the floating-point columns of identity partitions. They read ORC and Avro files completely,
# because Arrow exposes no statistics of these formats.
#
# Spark tasks import this module.


FILE_PATH: Final = "file_path"
FOLDERS: Final = "folders"
"""The path of folders that name a file's partition. Without this column, these are the folders above the file."""
NEEDS_MAPPING: Final = "needs_name_mapping"
IS_MISSING: Final = "is_missing"

_SUFFIXES: Final = {"parquet": "PARQUET", "orc": "ORC", "avro": "AVRO"}
_MAGIC: Final = {b"PAR1": "PARQUET", b"ORC": "ORC", b"Obj\x01": "AVRO"}
_BATCH_FILES: Final = 256


@dataclass(frozen=True)
class ExistingFiles:
    """Describes existing data files as files of a table. Picklable.

    Attributes:
        table: the table, for errors.
        reader: opens files.
        columns: the table's columns.
        partitions: finds the partitions of files.
        rows: reads all columns of whole files.
        written: the columns in the form for writers. Metrics are computed from them.
        modes: the metrics modes of columns by field id.
        spec_id: the partition spec.
        partition: the type of partition tuples in the result; None if no spec of the table has fields.
        tuple_indices: for each field of `partition`, its index in the spec; None for fields of other specs.
        own_folder: the comparable location of the table, to refuse files of other tables; None to accept them.
    """

    table: str
    reader: ExecutorReader
    columns: TableColumns
    partitions: FilePartitions
    rows: RowReader
    written: tuple[IcebergColumn, ...]
    modes: Mapping[int, int]
    spec_id: int
    partition: pa.StructType | None
    tuple_indices: tuple[int | None, ...]
    own_folder: str | None
    _other_tables: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the results: `files_schema`, whether a file needs a name mapping, and its problem, if any."""
        flags = [pa.field(name, pa.bool_()) for name in (NEEDS_MAPPING, IS_MISSING)]
        return pa.schema([*files_schema(self.partition), *flags, pa.field(PROBLEM, pa.string())])

    def describe(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row of `schema` for each path in the `FILE_PATH` column of the batches."""
        layouts: list[tuple[pq.ParquetSchema, frozenset[int], FooterLayout]] = []
        for batch in batches:
            paths = batch.column(FILE_PATH).to_pylist()
            if FOLDERS in batch.schema.names:
                folders = batch.column(FOLDERS).to_pylist()
            else:
                folders = [path.rpartition("/")[0] for path in paths]
            for start in range(0, len(paths), _BATCH_FILES):
                files = [*zip(paths, folders, strict=True)][start : start + _BATCH_FILES]
                yield self._result([self._described(*file, layouts) for file in files])

    def _described(
        self, location: str, folders: str, layouts: list[tuple[pq.ParquetSchema, frozenset[int], FooterLayout]]
    ) -> _Described:
        file_format = None
        try:
            self._refuse_location(location)
            with translated_read_errors(location):
                file_format = format_of(self.reader, location)
                if file_format == "PARQUET":
                    return self._from_footer(location, folders, layouts)
                return self._from_rows(location, folders, file_format)
        except NotFoundError:
            return _Described(location, problem=f"{location}: there is no such file", is_missing=True)
        except (ValidationError, UnsupportedError) as error:
            is_type = isinstance(error, CorruptFileError) and error.field.startswith(TYPE_OF_COLUMN)
            hint = f": {conversion(location, file_format)}" if is_type and file_format else ""
            return _Described(location, problem=f"{error}{hint}")

    def _refuse_location(self, location: str) -> None:
        if not scheme(location) and not location.startswith("/"):
            raise ValidationError(
                f"{location}: the path of a file to add is relative: expected an absolute path or a URI"
            )
        if self.own_folder is not None and (other := self._other_table(parents(location))) is not None:
            problem = f"the file is in the folder of another Iceberg table, {other}, whose maintenance may delete it"
            raise ValidationError(f"{location}: {problem}: check_other_tables=False permits it")

    def _other_table(self, folders: Sequence[str]) -> str | None:
        """Return the first folder that belongs to a table; None if there is none or the table is this one."""
        if not folders or normalize(folders[0]) == self.own_folder:
            return None
        if folders[0] not in self._other_tables:
            is_table = self._has_metadata(join(folders[0], METADATA))
            self._other_tables[folders[0]] = folders[0] if is_table else self._other_table(folders[1:])
        return self._other_tables[folders[0]]

    def _has_metadata(self, folder: str) -> bool:
        try:
            names = chain.from_iterable(
                batch.column("path").to_pylist() for batch in self.reader.walk(folder, recursive=False)
            )
            return any(re.search(METADATA_FILE, name) for name in names)
        except (FileAccessError, NotFoundError, UnsupportedError):
            # The reader may have no access to folders above the files.
            return False

    # -- Parquet ----------------------------------------------------------------------------------------------------

    def _from_footer(
        self, location: str, folders: str, layouts: list[tuple[pq.ParquetSchema, frozenset[int], FooterLayout]]
    ) -> _Described:
        with self.reader.open(location) as file:
            size = file.size()
            footer = pq.read_metadata(file)
            layout = self._layout(footer, location, self.partitions.in_folders(location, folders), layouts)
            facts = layout.facts(footer, location)
            if float_ids := self.partitions.floats & facts.keys():
                facts = layout.with_nans(file, footer, facts, float_ids)
        described = _Described(location, "PARQUET", footer.num_rows, size)
        described.needs_mapping = self._needs_mapping(layout.columns, has_ids=layout.has_ids)
        described.partition = self.partitions.values(location, folders, facts, layout.columns)
        described.split_offsets = split_offsets(footer)
        described.maps = metrics_of(self.columns.leaves, facts) | {"column_sizes": layout.sizes(footer)}
        return described

    def _layout(
        self,
        footer: pq.FileMetaData,
        location: str,
        in_folders: frozenset[int],
        layouts: list[tuple[pq.ParquetSchema, frozenset[int], FooterLayout]],
    ) -> FooterLayout:
        """Return the layout of a file. Files often share a layout, which is compared with the table only once."""
        for schema, folders, layout in layouts:
            if folders == in_folders and schema.equals(footer.schema):
                return layout
        layout = FooterLayout.of(self.columns, footer, location, in_folders)
        layouts[:] = [(footer.schema, in_folders, layout), *layouts[:7]]
        return layout

    # -- ORC and Avro -----------------------------------------------------------------------------------------------

    def _from_rows(self, location: str, folders: str, file_format: str) -> _Described:
        """Read the rows of a file and compute its metrics."""
        file = open_data_file(self.reader, location, file_format)
        columns = file.columns
        sources = self.columns.sources(columns, location, self.partitions.in_folders(location, folders))
        _refuse_types(file, sources, location, file_format)
        # Columns that the file lacks have no metrics: their values may come from partitions.
        indices = [index for index, source in enumerate(sources) if isinstance(source, FromFile)]
        present_ids = frozenset(_present(sources))
        rows = replace(
            self.rows,
            columns=tuple(self.rows.columns[index] for index in indices),
            schema=pa.schema([self.rows.schema.field(index) for index in indices]),
            identities={self.spec_id: {}},
        )
        written = FileColumns(self.table, tuple(self.written[index] for index in indices), "parquet")
        metrics = FileMetrics(metric_leaves(written.columns, self.modes))
        schema = file_schema(written.columns, "parquet")
        for batch in rows.read([self._part(location, file_format)]):
            file_rows = pa.RecordBatch.from_arrays(batch.columns, names=[column.name for column in written.columns])
            try:
                metrics.add(written.table_of(file_rows, schema))
            except ValidationError as error:
                raise ValidationError(f"{location}: {error}") from error
        facts = {leaf.id: _facts(metrics, leaf.id) for leaf in metrics.leaves}
        described = _Described(location, file_format, metrics.rows, self.reader.length(location))
        described.needs_mapping = self._needs_mapping(present_ids, has_ids=has_ids(columns))
        described.partition = self.partitions.values(location, folders, facts, present_ids)
        described.maps = {**metrics.counts(), **metrics.bounds(), VALUE_SIZES: metrics.value_sizes()}
        return described

    def _needs_mapping(self, columns: frozenset[int], *, has_ids: bool) -> bool:
        """Return whether readers need a name mapping to read a file, or to tell which columns it lacks.

        Without a name mapping, columns are read by name, and missing ones as null, except that columns of identity
        partitions get the partition's value.
        """
        identities = {field.source for field in self.partitions.fields if field.is_identity}
        return not has_ids or not identities <= columns

    def _part(self, location: str, file_format: str) -> pa.RecordBatch:
        """Return a file as a row of a plan, without deletes."""
        columns = {
            "file_path": pa.array([location]), "file_format": pa.array([file_format]),
            "spec_id": pa.array([self.spec_id], pa.int32()), "record_count": pa.array([-1], pa.int64()),
            "first_row_id": pa.nulls(1, pa.int64()), "data_sequence_number": pa.array([0], pa.int64()),
            "deletes": pa.array([[]], pa.list_(pa.struct([("content", pa.int32())]))),
            START: pa.array([0], pa.int64()), STOP: pa.nulls(1, pa.int64()),
        }  # fmt: skip
        if self.partition is not None:
            columns["partition"] = pa.nulls(1, self.partition)
        return pa.RecordBatch.from_pydict(columns)

    # -- Results ----------------------------------------------------------------------------------------------------

    def _result(self, files: Sequence[_Described]) -> pa.RecordBatch:
        columns: dict[str, list[Any]] = {
            "content": [int(ContentType.DATA)] * len(files),
            "file_path": [file.location for file in files],
            "file_format": [file.file_format for file in files],
            "spec_id": [self.spec_id] * len(files),
            "record_count": [file.record_count for file in files],
            "file_size_in_bytes": [file.size for file in files],
            "split_offsets": [file.split_offsets or None for file in files],
            "sort_order_id": [0] * len(files),
            NEEDS_MAPPING: [file.needs_mapping for file in files],
            IS_MISSING: [file.is_missing for file in files],
            PROBLEM: [file.problem for file in files],
        }
        arrays = []
        for kind in self.schema:
            if kind.name == "partition":
                arrays.append(self._tuples(files, kind.type))
            elif pa.types.is_map(kind.type):
                maps = (file.maps.get(kind.name) for file in files)
                arrays.append(pa.array([sorted(metrics.items()) if metrics else None for metrics in maps], kind.type))
            else:
                arrays.append(pa.array(columns[kind.name], kind.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _tuples(self, files: Sequence[_Described], kind: pa.StructType) -> pa.Array:
        values = self.partitions.tuples([file.partition for file in files])
        children = [
            pa.nulls(len(files), child.type) if index is None else values[index].cast(child.type)
            for index, child in zip(self.tuple_indices, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind))


@dataclass
class _Described:
    """An existing file, or the reason why it can't be added."""

    location: str
    file_format: str | None = None
    record_count: int | None = None
    size: int | None = None
    needs_mapping: bool | None = None
    partition: tuple[Any, ...] | None = None
    split_offsets: list[int] | None = None
    maps: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    problem: str | None = None
    is_missing: bool = False


def format_of(reader: ExecutorReader, location: str) -> str:
    """Return the format of a data file, by its name or its first bytes. Raises ValidationError for other formats."""
    suffix = location.rpartition(".")[2].lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    first_bytes = reader.read_range(location, 0, 4)
    for magic, file_format in _MAGIC.items():
        if first_bytes.startswith(magic):
            return file_format
    raise ValidationError(f"{location}: the file is not Parquet, ORC or Avro")


def _refuse_types(file: DataFile, sources: Sequence[Source], location: str, file_format: str) -> None:
    """Raise UnsupportedError for a column of an ORC or Avro file that Java's readers misread or can't read."""
    names = [*leaf_names(file.columns)]
    kinds: list[Any] = [*(avro_leaves if file_format == "AVRO" else leaf_types)(file.schema)]
    kind_of = avro_kind if file_format == "AVRO" else orc_kind
    for source, index, _ in leaf_sources(file.columns, sources, 0):
        if kind := kind_of(kinds[index], source.physical.type, source.column.type):
            refuse(location, file_format, names[index], kind, source.column.type)


def _present(sources: Iterable[Source]) -> Iterator[int]:
    """Yield the ids of the columns, including nested ones, that a file has."""
    for source in sources:
        if isinstance(source, FromFile):
            yield source.column.id or 0
            yield from _present(source.children)


def _facts(metrics: FileMetrics, field_id: int) -> Facts:
    least, greatest = (bound_of(value) for value in metrics.extremes(field_id))
    return Facts(metrics.rows, metrics.nulls(field_id), least, greatest, metrics.nans(field_id))
