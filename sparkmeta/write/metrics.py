"""Compute metrics of data files as Java's writers do, and read them from footers. Spark tasks import this module."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.errors import CorruptFileError, ValidationError
from sparkmeta.expr.bounds import UNORDERED, bound_arrow_type, encode_bounds, reads_as
from sparkmeta.expr.evaluate import values as evaluated
from sparkmeta.expr.sql import Sql
from sparkmeta.rows.data_file import file_columns, row_group_start
from sparkmeta.rows.resolve import TYPE_OF_COLUMN, FromFile, IcebergColumn, MappedName, Source, has_ids, resolve
from sparkmeta.spec.avro_name import avro_name
from sparkmeta.spec.metrics_modes import COUNTS_ONLY, FULL, NO_METRICS
from sparkmeta.write.file_schema import written
from sparkmeta.write.formats import Written, leaf_names, parquet_kind, refuse

# -- Compute metrics of a data file (table spec, Metrics) -------------------------------------------------------------
# Java's writers compute the same counts and truncated bounds. Spark tasks import this module, so it imports little.


_MIN_SURROGATE: Final = 0xD800
_MAX_SURROGATE: Final = 0xDFFF
_MAX_CODE_POINT: Final = 0x10FFFF
_TRUNCATED: Final = ("string", "binary")


@dataclass(frozen=True)
class MeasuredColumn:
    """A primitive column with metrics, which is not inside a list or map, or a function of one.

    Attributes:
        id: the field id, or the id of the expression.
        type: the Iceberg type name.
        path: the field indices from the top-level struct down.
        length: the maximum length of a bound in characters or bytes, or a mode of `metrics_modes`.
        function: the function of `MEASURED`; None for the column itself.
    """

    id: int
    type: str
    path: tuple[int, ...]
    length: int
    function: Sql | None = None


MEASURED: Final = "value"
"""The name of the column that functions are applied to."""


def metric_leaves(columns: Sequence[IcebergColumn], modes: Mapping[int, int]) -> tuple[MeasuredColumn, ...]:
    """Return the columns with metrics. Columns inside lists and maps have no metrics."""

    def leaves(children: Sequence[IcebergColumn], path: tuple[int, ...]) -> Iterator[MeasuredColumn]:
        for index, column in enumerate(written(children)):
            if column.type == "struct":
                yield from leaves(column.children, (*path, index))
            elif column.type not in ("list", "map"):
                assert column.id is not None
                if (length := modes[column.id]) != NO_METRICS:
                    yield MeasuredColumn(column.id, column.type, (*path, index), length)

    return tuple(leaves(columns, ()))


def sized_leaves(columns: Sequence[IcebergColumn], modes: Mapping[int, int]) -> frozenset[int]:
    """Return the ids of all primitive columns that have metrics."""

    def leaves(children: Sequence[IcebergColumn]) -> Iterator[int]:
        for column in written(children):
            if column.children:
                yield from leaves(column.children)
            elif column.id is not None and modes[column.id] != NO_METRICS:
                yield column.id

    return frozenset(leaves(columns))


def leaf_ids(columns: Sequence[IcebergColumn]) -> tuple[int, ...]:
    """Return the ids of the primitive columns outside of lists and maps, in file order."""
    return tuple(leaf.id for leaf in metric_leaves(columns, defaultdict(int)))


@dataclass
class FileMetrics:
    """Collects the metrics of the rows of one file.

    Attributes:
        leaves: the columns that have metrics.
        rows: the number of rows.
    """

    leaves: tuple[MeasuredColumn, ...]
    rows: int = 0
    _nulls: dict[int, int] = field(default_factory=dict)
    _nans: dict[int, int] = field(default_factory=dict)
    _least: dict[int, pa.Scalar] = field(default_factory=dict)
    _greatest: dict[int, pa.Scalar] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)
    _written: Written | None = None

    def add_written(self, written: Written) -> None:
        """Add what only the writer of the file knows: bounds of geometries, and of fields of shredded variants."""
        self._written = written

    def add(self, table: pa.Table) -> None:
        """Add rows in the schema of the file."""
        self.rows += len(table)
        for leaf in self.leaves:
            values = _leaf_values(table, leaf.path)
            if leaf.function is not None:
                values = _function_values(values, leaf.function, table.column_names[leaf.path[0]])
            self._nulls[leaf.id] = self._nulls.get(leaf.id, 0) + values.null_count
            if leaf.type in _TRUNCATED:
                self._bytes[leaf.id] = self._bytes.get(leaf.id, 0) + (pc.sum(pc.binary_length(values)).as_py() or 0)
            has_bounds = leaf.length != COUNTS_ONLY and not leaf.type.startswith(UNORDERED)
            if pa.types.is_floating(values.type):
                is_nan = pc.is_nan(values)
                self._nans[leaf.id] = self._nans.get(leaf.id, 0) + (pc.sum(is_nan).as_py() or 0)
                least, greatest = _float_extremes(values) if has_bounds else (None, None)
            else:
                least, greatest = _extremes(values) if has_bounds else (None, None)
            if least is not None and greatest is not None:
                self._widen(self._least, leaf.id, least, 0)
                self._widen(self._greatest, leaf.id, greatest, 1)

    def _widen(self, bounds: dict[int, pa.Scalar], field_id: int, value: pa.Scalar, side: int) -> None:
        bound = bounds.get(field_id)
        if bound is not None:
            pair = pa.concat_arrays([pa.repeat(bound, 1), pa.repeat(value, 1)])
            extremes = _float_extremes(pair) if pa.types.is_floating(bound.type) else _extremes(pair)
            value = extremes[side]
        bounds[field_id] = value

    def counts(self) -> dict[str, dict[int, int]]:
        """Return value_counts, null_value_counts and nan_value_counts."""
        return {
            "value_counts": {leaf.id: self.rows for leaf in self.leaves},
            "null_value_counts": dict(self._nulls),
            "nan_value_counts": dict(self._nans),
        }

    def value_sizes(self) -> dict[int, int]:
        """Return the average size in memory of the values of strings and binaries in bytes, rounded up."""
        values = {field_id: self.rows - self._nulls[field_id] for field_id in self._bytes}
        return {field_id: -(-size // values[field_id]) for field_id, size in self._bytes.items() if values[field_id]}

    def nulls(self, field_id: int) -> int:
        """Return the number of nulls in a column."""
        return self._nulls.get(field_id, 0)

    def nans(self, field_id: int) -> int | None:
        """Return the number of NaNs in a column; None if it is not floating-point."""
        return self._nans.get(field_id)

    def extremes(self, field_id: int) -> tuple[pa.Scalar | None, pa.Scalar | None]:
        """Return the minimum and maximum of a column; None if there is none."""
        return self._least.get(field_id), self._greatest.get(field_id)

    def bounds(self) -> dict[str, dict[int, bytes]]:
        """Return lower_bounds and upper_bounds, serialized."""
        lower: dict[int, bytes] = {}
        upper: dict[int, bytes] = {}
        for leaf in self.leaves:
            if self._written is not None and leaf.length != COUNTS_ONLY:
                least, greatest = self._written_bounds(self._written, leaf)
                lower |= {} if least is None else {leaf.id: least}
                upper |= {} if greatest is None else {leaf.id: greatest}
            if leaf.id not in self._least:
                continue
            least, greatest = (bound_of(bounds[leaf.id]) for bounds in (self._least, self._greatest))
            least, greatest = truncated_bounds(leaf, least, greatest)
            lower[leaf.id] = _encoded(least, leaf.type)
            if greatest is not None:
                upper[leaf.id] = _encoded(greatest, leaf.type)
        return {"lower_bounds": lower, "upper_bounds": upper}

    @staticmethod
    def _written_bounds(written: Written, leaf: MeasuredColumn) -> tuple[bytes | None, bytes | None]:
        if (fields := written.shredded.get(leaf.id)) is not None:
            return fields.encoded(lambda value: _cut(value, leaf.length), lambda value: _cut_up(value, leaf.length))
        return written.boxes.get(leaf.id, (None, None))


def _leaf_values(table: pa.Table, path: tuple[int, ...]) -> pa.ChunkedArray:
    """Return the values of a column; null where an enclosing struct is null."""
    values = table.column(path[0])
    for index in path[1:]:
        values = pa.chunked_array([chunk.flatten()[index] for chunk in values.chunks], values.type.field(index).type)
    if isinstance(values.type, pa.BaseExtensionType):
        storage = values.type.storage_type
        return pa.chunked_array([chunk.storage for chunk in values.chunks], storage)
    return values


def _function_values(values: pa.ChunkedArray, function: Sql, column: str) -> pa.Array:
    try:
        return evaluated(pa.table({MEASURED: values}), function)
    except ValidationError as error:
        raise ValidationError(f"column {column}: {error}") from error


_Extremes = tuple[pa.Scalar | None, pa.Scalar | None]


def _extremes(values: pa.ChunkedArray | pa.Array) -> _Extremes:
    if values.null_count == len(values):
        return None, None
    extremes = pc.min_max(values)
    return extremes["min"], extremes["max"]


def _float_extremes(values: pa.ChunkedArray | pa.Array) -> _Extremes:
    """Return the minimum and maximum, ignoring NaN. -0.0 is less than 0.0."""
    least, greatest = _extremes(values)
    if least is None or greatest is None or np.isnan(least.as_py()):
        return None, None
    if least.as_py() == 0 or greatest.as_py() == 0:
        signs = np.signbit(np.asarray(pc.filter(values, pc.equal(values, 0))))
        if least.as_py() == 0:
            least = pa.scalar(-0.0 if signs.any() else 0.0, values.type)
        if greatest.as_py() == 0:
            greatest = pa.scalar(-0.0 if signs.all() else 0.0, values.type)
    return least, greatest


def bound_of(value: pa.Scalar | None) -> Any:
    """Return a bound for `_encoded`. Dates and times become numbers, since Python's dates end in the year 9999."""
    if value is None:
        return None
    kind = value.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return value.value
    return value.as_py()


def truncated_bounds(leaf: MeasuredColumn, least: Any, greatest: Any) -> tuple[Any, Any]:
    """Return the bounds of a column whose values are from `least` to `greatest`.

    Bounds of text and binary are truncated. The upper bound is None if no truncated value is above `greatest`.
    """
    if leaf.type not in _TRUNCATED:
        return least, greatest
    return _cut(least, leaf.length), _cut_up(greatest, leaf.length)


def _encoded(value: Any, type_name: str) -> bytes:
    kind = bound_arrow_type(type_name)
    if pa.types.is_date(kind):
        array = pa.array([value], pa.int32())
    elif pa.types.is_timestamp(kind):
        array = pa.array([value], pa.int64())
    else:
        array = pa.array([value], kind)
    encoded: bytes = encode_bounds(array)[0].as_py()
    return encoded


def _cut(value: str | bytes, length: int) -> str | bytes:
    """Truncate text or bytes to a lower bound of the value."""
    return value[:length] if length < FULL else value


def _cut_up(value: str | bytes, length: int) -> str | bytes | None:
    """Truncate text or bytes to an upper bound of the value; None if there is none."""
    if len(value) <= length:
        return value
    return _next_text(value[:length]) if isinstance(value, str) else _next_bytes(value[:length])


def _next_text(text: str) -> str | None:
    for index in range(len(text) - 1, -1, -1):
        code = ord(text[index]) + 1
        if _MIN_SURROGATE <= code <= _MAX_SURROGATE:
            code = _MAX_SURROGATE + 1
        if code <= _MAX_CODE_POINT:
            return text[:index] + chr(code)
    return None


def _next_bytes(data: bytes) -> bytes | None:
    stripped = data.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


# -- Read metrics from the footers of Parquet files -------------------------------------------------------------------


_INT96: Final = "INT96"
_INSTANTS: Final = ("timestamp", "timestamptz")
_DAY_MICROS: Final = 86_400_000_000
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_PLAIN: Final = "PLAIN"
_PARQUET: Final = "PARQUET"


@dataclass(frozen=True)
class Facts:
    """The metrics of a column in a file. Dates and times are numbers, as in bounds.

    Attributes:
        values: the number of values, including nulls.
        nulls: the number of nulls; None if unknown.
        least: a lower bound; None if it is unknown or there are no values.
        greatest: an upper bound; None as for `least`.
        nans: the number of NaNs, which the bounds ignore; None if unknown.
    """

    values: int
    nulls: int | None
    least: Any = None
    greatest: Any = None
    nans: int | None = None


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, with which files are compared. Picklable.

    Attributes:
        columns: the columns.
        names: the table's name mapping, or a mapping of its current names if it has none.
        all_names: field id -> all names that the column has had.
        leaves: the columns that have metrics.
        sized: the ids of all primitive columns that have metrics.
        refuses_others: whether files may have no columns that the table lacks.
    """

    columns: tuple[IcebergColumn, ...]
    names: tuple[MappedName, ...]
    all_names: Mapping[int, frozenset[str]]
    leaves: tuple[MeasuredColumn, ...]
    sized: frozenset[int]
    refuses_others: bool = True

    def sources(
        self, columns: Sequence[IcebergColumn], location: str, in_folders: frozenset[int]
    ) -> tuple[Source, ...]:
        """Return the sources of the table's columns in a file.

        Args:
            columns: the columns of the file.
            location: the file, for errors.
            in_folders: ids of columns whose values come from the file's folders.

        Raises:
            CorruptFileError: a column has an incompatible type, or a required column is missing.
            ValidationError: a column of the file is not in the table, or has the field id of another column.
        """
        names_and_ids = {column.name for column in columns} | {column.id for column in columns}
        names = {entry.id: entry.names for entry in self.names}
        missing_ids = {
            field_id for field_id in in_folders if not names_and_ids.intersection((field_id, *names.get(field_id, ())))
        }
        sources = resolve(
            columns, self.columns, location, names=self.names, partition_ids=missing_ids, by_position=False
        )
        if self.refuses_others:
            self._check(columns, sources, location, ())
        return sources

    def _check(
        self, columns: Sequence[IcebergColumn], sources: Sequence[Source], location: str, path: tuple[str, ...]
    ) -> None:
        source_by_name = {source.physical.name: source for source in sources if isinstance(source, FromFile)}
        for physical in columns:
            name = ".".join((*path, physical.name))
            source = source_by_name.get(physical.name)
            if source is None:
                unmapped = physical.id is None and any(column.name == name for column in self.columns)
                container = "the table's name mapping (schema.name-mapping.default)" if unmapped else "the table"
                raise ValidationError(f"{location}: column {name} of type {physical.type} is not in {container}")
            column = source.column
            column_names = self.all_names.get(column.id or 0, frozenset())
            if physical.id is not None and column_names and physical.name not in column_names:
                problem = f"column {name} has the field id {physical.id}, which is column {column.name} of the table"
                raise ValidationError(f"{location}: {problem}")
            if source.children:
                self._check(physical.children, source.children, location, (*path, physical.name))


@dataclass(frozen=True)
class _FileLeaf:
    """A primitive column of a file that has metrics.

    Attributes:
        leaf: the table's column.
        index: the column's index among the leaves of the file.
        value: converts a raw statistics value to the table's type; None for a column of nulls.
        is_required: whether a null is an error.
    """

    leaf: MeasuredColumn
    index: int
    value: Callable[[Any], Any] | None
    is_required: bool


@dataclass(frozen=True)
class FooterLayout:
    """The layout of a table's columns in files with one schema.

    Attributes:
        has_ids: whether the files have field ids.
        columns: field ids of the table's columns that are in the files.
    """

    has_ids: bool
    columns: frozenset[int]
    _leaves: tuple[_FileLeaf, ...]
    _sized: tuple[tuple[int, int], ...]
    _booleans: tuple[tuple[int, str], ...]

    @staticmethod
    def of(table: TableColumns, footer: pq.FileMetaData, location: str, in_folders: frozenset[int]) -> FooterLayout:
        """Return the layout of a file, given its footer; see `TableColumns.sources`."""
        schema = footer.schema.to_arrow_schema()
        columns = file_columns(schema)
        sources = table.sources(columns, location, in_folders)
        index_by_id = {source.column.id: index for source, index, _ in leaf_sources(columns, sources, 0)}
        kinds = dict(enumerate(leaf_types(schema)))
        names = [*leaf_names(columns)]
        leaves = []
        measured = {leaf.id: leaf for leaf in table.leaves}
        for source, index, required in leaf_sources(columns, sources, 0):
            column, physical = source.column, source.physical
            is_int96 = footer.schema.column(index).physical_type == _INT96
            if not _fits(physical.type, column.type, is_int96=is_int96):
                problem = f"the table has type {column.type} (field id {column.id})"
                raise CorruptFileError(location, f"{TYPE_OF_COLUMN}{names[index]}", physical.type, problem)
            if kind := parquet_kind(footer.schema.column(index), physical.type, column.type):
                refuse(location, _PARQUET, names[index], kind, column.type)
            if column.id in measured:
                is_optional = footer.schema.column(index).max_definition_level > 0
                value = None if physical.type == "unknown" else _reader(kinds[index], physical.type, column.type)
                leaves.append(_FileLeaf(measured[column.id], index, value, required and is_optional))
        sized = tuple((field_id, index) for field_id, index in index_by_id.items() if field_id in table.sized)
        present_ids = frozenset(
            source.column.id for source in sources if isinstance(source, FromFile) and source.column.id
        )
        booleans = tuple((index, names[index]) for index, kind in kinds.items() if pa.types.is_boolean(kind))
        return FooterLayout(
            has_ids(columns), present_ids | frozenset(filter(None, index_by_id)), tuple(leaves), sized, booleans
        )

    def facts(self, footer: pq.FileMetaData, location: str) -> dict[int, Facts]:
        """Read the facts of columns with metrics from a footer. Return them by field id.

        Raises:
            ValidationError: a required column has nulls, or the footer does not count them.
        """
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        self._refuse_encodings(groups, location)
        facts = {}
        for leaf in self._leaves:
            column_facts = facts[leaf.leaf.id] = _facts(groups, leaf)
            if leaf.is_required and column_facts.nulls != 0:
                problem = (
                    "has no count of nulls" if column_facts.nulls is None else f"has nulls in {column_facts.nulls} rows"
                )
                path = footer.schema.column(leaf.index).path
                raise ValidationError(f"{location}: column {path} is required, and {problem}")
        return facts

    def _refuse_encodings(self, groups: Sequence[pq.RowGroupMetaData], location: str) -> None:
        for group in groups:
            for index, name in self._booleans:
                if _PLAIN not in group.column(index).encodings:
                    # Spark's reader of vectors fails.
                    refuse(location, _PARQUET, name, "encoded as RLE", "boolean")

    def with_nans(
        self, file: pa.NativeFile, footer: pq.FileMetaData, facts: Mapping[int, Facts], field_ids: frozenset[int]
    ) -> dict[int, Facts]:
        """Read some floating-point columns, and return the facts with their NaN counts."""
        counted = dict(facts)
        for leaf in self._leaves:
            if leaf.leaf.id in field_ids and leaf.value is not None:
                nans = _nans(file, footer, leaf.index)
                counted[leaf.leaf.id] = replace(facts[leaf.leaf.id], nans=nans)
        return counted

    def sizes(self, footer: pq.FileMetaData) -> dict[int, int]:
        """Return the compressed sizes of columns in bytes, by field id."""
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        return {
            field_id: sum(group.column(index).total_compressed_size for group in groups)
            for field_id, index in self._sized
        }


def split_offsets(footer: pq.FileMetaData) -> list[int]:
    """Return the start offsets of a file's row groups."""
    return sorted(row_group_start(footer.row_group(number)) for number in range(footer.num_row_groups))


def metrics_of(leaves: Sequence[MeasuredColumn], facts: Mapping[int, Facts]) -> dict[str, dict[int, Any]]:
    """Return metrics maps without NaN counts, which are unknown."""
    maps: dict[str, dict[int, Any]] = {
        name: {} for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    }
    for leaf in leaves:
        column_facts = facts.get(leaf.id)
        if column_facts is None:
            continue
        maps["value_counts"][leaf.id] = column_facts.values
        if column_facts.nulls is not None:
            maps["null_value_counts"][leaf.id] = column_facts.nulls
        if column_facts.least is None or leaf.length == COUNTS_ONLY or leaf.type.startswith(UNORDERED):
            continue
        least, greatest = truncated_bounds(leaf, column_facts.least, column_facts.greatest)
        maps["lower_bounds"][leaf.id] = _encoded_bound(least, leaf.type)
        if greatest is not None:
            maps["upper_bounds"][leaf.id] = _encoded_bound(greatest, leaf.type)
    return maps


# -- Statistics -----------------------------------------------------------------------------------------------------


def _facts(groups: Sequence[pq.RowGroupMetaData], leaf: _FileLeaf) -> Facts:
    if leaf.value is None:
        total = sum(group.num_rows for group in groups)
        return Facts(total, total)
    values, nulls, is_counted = 0, 0, True
    least = greatest = None
    is_bounded = True
    for group in groups:
        chunk = group.column(leaf.index)
        count = chunk.num_values
        values += count
        statistics = chunk.statistics if chunk.is_stats_set else None
        if statistics is None or not statistics.has_null_count:
            is_counted = False
        else:
            nulls += statistics.null_count
            if statistics.null_count == count:
                continue
        if statistics is None or not statistics.has_min_max:
            is_bounded = False
        elif is_bounded:
            low, high = leaf.value(statistics.min_raw), leaf.value(statistics.max_raw)
            if low is None or high is None:
                is_bounded = False
                continue
            least = low if least is None or low < least else least
            greatest = high if greatest is None or high > greatest else greatest
    if not is_bounded:
        least = greatest = None
    if isinstance(least, float) and isinstance(greatest, float):
        # Footers do not preserve the sign of zero (Parquet format, Statistics).
        least, greatest = -0.0 if least == 0 else least, 0.0 if greatest == 0 else greatest
    return Facts(values, nulls if is_counted else None, least, greatest)


def _nans(file: pa.NativeFile, footer: pq.FileMetaData, index: int) -> int:
    """Count the NaNs of a column that is not inside a list or map."""
    parquet = pq.ParquetFile(file, metadata=footer)
    count = 0
    for batch in parquet.iter_batches(columns=[footer.schema.column(index).path]):
        values = batch.column(0)
        while pa.types.is_struct(values.type):
            values = values.flatten()[0]
        count += pc.sum(pc.is_nan(values)).as_py() or 0
    return count


def _reader(kind: pa.DataType, file_type: str, type_name: str) -> Callable[[Any], Any]:
    """Return a function that converts raw statistics values to bounds of the table's type, or to None if unusable."""
    if type_name == "string":
        return _text
    if type_name.startswith("decimal"):
        scale = kind.scale
        return lambda raw: _decimal(raw, scale)
    if type_name in ("float", "double"):
        return lambda raw: None if math.isnan(raw) else raw
    if file_type == "date" and type_name != "date":
        unit = _DAY_MICROS * (1000 if type_name.endswith("_ns") else 1)
        return lambda raw: raw * unit
    if pa.types.is_uint32(kind):
        return lambda raw: raw & 0xFFFFFFFF
    if (pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit in _MICROS:
        factor = _MICROS[kind.unit]
        return lambda raw: raw * factor
    return lambda raw: raw


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _decimal(raw: int | bytes, scale: int) -> Decimal:
    unscaled = raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
    # Decimal arithmetic would round to 28 digits.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


_PACKED: Final = {
    "boolean": struct.Struct("<?"),
    "int": struct.Struct("<i"),
    "date": struct.Struct("<i"),
    "long": struct.Struct("<q"),
    "time": struct.Struct("<q"),
    "timestamp": struct.Struct("<q"),
    "timestamptz": struct.Struct("<q"),
    "timestamp_ns": struct.Struct("<q"),
    "timestamptz_ns": struct.Struct("<q"),
    "float": struct.Struct("<f"),
    "double": struct.Struct("<d"),
}


def _encoded_bound(value: Any, type_name: str) -> bytes:
    if (packed := _PACKED.get(type_name)) is not None:
        return packed.pack(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Decimal):
        sign, digits, _ = value.as_tuple()
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return unscaled.to_bytes(size, "big", signed=True)
    return bytes(value)


# -- Schemas --------------------------------------------------------------------------------------------------------


def _fits(file_type: str, type_name: str, *, is_int96: bool) -> bool:
    """Return whether every engine can read values of a Parquet type as the table's type."""
    if is_int96:
        return type_name in _INSTANTS
    pair = (file_type, type_name)
    return reads_as(*pair) or pair in (("fixed[16]", "uuid"), ("time32[ms]", "time"))


def leaf_sources(
    columns: Sequence[IcebergColumn], sources: Sequence[Source], start: int, *, required: bool = True
) -> Iterator[tuple[FromFile, int, bool]]:
    """Yield the file's primitive columns that are in the table, with their indices and whether nulls are errors."""
    ends = list(accumulate(map(_leaf_count, columns), initial=start))
    index_by_name = {column.name: index for column, index in zip(columns, ends, strict=False)}
    for source in sources:
        if not isinstance(source, FromFile):
            continue
        physical, index = source.physical, index_by_name[source.physical.name]
        is_required = required and source.column.required
        if physical.children:
            repeats = source.column.type in ("list", "map")
            yield from leaf_sources(physical.children, source.children, index, required=is_required and not repeats)
        else:
            yield source, index, is_required


def _leaf_count(column: IcebergColumn) -> int:
    return sum(map(_leaf_count, column.children)) if column.children else 1


def leaf_types(schema: pa.Schema) -> Iterator[pa.DataType]:
    """Yield the types of a file's primitive columns in file order."""

    def leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
        if isinstance(kind, pa.BaseExtensionType):
            yield from leaves(kind.storage_type)
        elif pa.types.is_map(kind):
            yield from leaves(kind.key_type)
            yield from leaves(kind.item_type)
        elif pa.types.is_struct(kind):
            for field in kind:
                yield from leaves(field.type)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            yield from leaves(kind.value_type)
        else:
            yield kind

    for column in schema:
        yield from leaves(column.type)


def names_of(columns: Sequence[IcebergColumn]) -> Iterator[tuple[int, str]]:
    """Yield the ids and names of columns and nested fields, including their names in Avro and Parquet."""
    for column in columns:
        if column.id is not None:
            yield column.id, column.name
            yield column.id, avro_name(column.name)
        yield from names_of(column.children)
