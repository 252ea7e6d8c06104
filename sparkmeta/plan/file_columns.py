"""The columns of files and entries that metadata tables and changes of files show.

Rows are content entries with Iceberg's column names. A `Selection` provides the projection to read manifests with and
the columns to derive from it, so that only selected columns are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from pyiceberg.schema import index_by_id, index_name_by_id
from pyiceberg.types import NestedField, PrimitiveType
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sparkmeta.checks import NAMES
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.errors import InvalidArgumentError, hint_at, shown
from sparkmeta.expr import sql
from sparkmeta.expr.types import public_value, spark_type
from sparkmeta.plan.filter import public_partition, public_partition_type
from sparkmeta.spec.schema import VariantType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.expr.sql import Aliased, Sql
    from sparkmeta.snapshot.state import TableState


READABLE_METRICS = "readable_metrics"
SOURCE = "column_sizes"
"""The column that `readable_metrics` needs in addition to the `content_stats` of the leaf columns."""

_COUNTS = ("column_size", "value_count", "null_value_count", "nan_value_count")
_BOUNDS = ("lower_bound", "upper_bound")


def leaf_columns(schema: Schema) -> dict[str, NestedField]:
    """Return the columns that have metrics, by full name, in the order of Java's strings (UTF-16 code units)."""
    names = index_name_by_id(schema)
    leaves = {
        names[field_id]: field
        for field_id, field in index_by_id(schema).items()
        if isinstance(field.field_type, PrimitiveType) and not isinstance(field.field_type, VariantType)
    }
    return dict(sorted(leaves.items(), key=lambda item: item[0].encode("utf-16-be", "surrogatepass")))


def readable_metrics(leaves: Mapping[str, NestedField]) -> Aliased:
    """Return a struct with a struct for each leaf column, from an entry's stats and `column_sizes`."""
    metrics = sql.struct(*(_metrics(field).alias(name) for name, field in leaves.items()))
    # Iceberg declares the column as optional, though it is never null.
    is_entry = sql.col("location").isNotNull()
    return sql.when(is_entry, metrics.cast(metrics_type(leaves))).alias(READABLE_METRICS)


def _metrics(field: NestedField) -> Sql:
    stats = sql.col(f"{CONTENT_STATS}.`{field.field_id}`")
    size = sql.call("try_element_at", sql.col(SOURCE), field.field_id)
    kind = cast("PrimitiveType", field.field_type)
    bounds = {name: public_value(stats[name], kind) for name in _BOUNDS}
    values = {_COUNTS[0]: size} | {name: stats[name] for name in _COUNTS[1:]} | bounds
    return sql.struct(*sql.named(values))


def metrics_type(leaves: Mapping[str, NestedField]) -> StructType:
    """Return the type of `readable_metrics`."""
    metrics = StructType()
    for name, field in leaves.items():
        kind = spark_type(field.field_type)
        column_metrics = StructType()
        for count in _COUNTS:
            column_metrics.add(count, LongType())
        for bound in _BOUNDS:
            column_metrics.add(bound, kind)
        metrics.add(name, column_metrics)
    return metrics


_PARTITION = "partition"
DATA_FILE = "data_file"

# The columns of `files` and of `entries.data_file` -> their field in a content entry.
_FILE_COLUMNS = {
    "content": "content_type",
    "file_path": "location",
    "file_format": "file_format",
    "spec_id": "partition_spec_id",
    _PARTITION: _PARTITION,
    "record_count": "record_count",
    "file_size_in_bytes": "file_size_in_bytes",
    "column_sizes": "column_sizes",
    "value_counts": "value_counts",
    "null_value_counts": "null_value_counts",
    "nan_value_counts": "nan_value_counts",
    "lower_bounds": "lower_bounds",
    "upper_bounds": "upper_bounds",
    "key_metadata": "key_metadata",
    "split_offsets": "split_offsets",
    "equality_ids": "equality_ids",
    "sort_order_id": "sort_order_id",
    "first_row_id": "first_row_id",
    "referenced_data_file": "referenced_file",
    "content_offset": "deletion_vector.offset",
    "content_size_in_bytes": "deletion_vector.size_in_bytes",
}
_TEXT, _INT, _LONG, _BYTES = StringType(), IntegerType(), LongType(), BinaryType()
_COUNTS_BY_ID, _BOUNDS_BY_ID = (MapType(_INT, kind, valueContainsNull=False) for kind in (_LONG, _BYTES))
_FILE_TYPES: dict[str, DataType] = {
    "content": _INT,
    "file_path": _TEXT,
    "file_format": _TEXT,
    "spec_id": _INT,
    "record_count": _LONG,
    "file_size_in_bytes": _LONG,
    "column_sizes": _COUNTS_BY_ID,
    "value_counts": _COUNTS_BY_ID,
    "null_value_counts": _COUNTS_BY_ID,
    "nan_value_counts": _COUNTS_BY_ID,
    "lower_bounds": _BOUNDS_BY_ID,
    "upper_bounds": _BOUNDS_BY_ID,
    "key_metadata": _BYTES,
    "split_offsets": ArrayType(_LONG, containsNull=False),
    "equality_ids": ArrayType(_INT, containsNull=False),
    "sort_order_id": _INT,
    "first_row_id": _LONG,
    "referenced_data_file": _TEXT,
    "content_offset": _LONG,
    "content_size_in_bytes": _LONG,
}
_REQUIRED = frozenset({"file_path", "file_format", _PARTITION, "record_count", "file_size_in_bytes", "status"})
_ENTRY_COLUMNS = {
    name: f"version_info.{name}" for name in ("status", "snapshot_id", "sequence_number", "file_sequence_number")
}
_ALWAYS_READ = ("version_info", "location")


@dataclass(frozen=True)
class Selection:
    """The selected columns.

    Attributes:
        entry: columns of `entries`.
        file: columns of `files`.
        metrics: fields of `readable_metrics` by the full names of columns.
    """

    state: TableState
    entry: tuple[str, ...]
    file: tuple[str, ...]
    metrics: dict[str, NestedField]

    @property
    def projection(self) -> EntryProjection:
        """The projection with which manifests are read."""
        sources = {_FILE_COLUMNS[name].partition(".")[0] for name in self.file} - {_PARTITION}
        sizes = {SOURCE} if self.metrics else set()
        stats = [field.field_id for field in self.metrics.values()]
        return replace(self.state.projection({*_ALWAYS_READ, *sources, *sizes}, stats), as_written=True)

    def entry_columns(self) -> list[Aliased]:
        return [sql.col(_ENTRY_COLUMNS[name]).alias(name) for name in self.entry]

    def file_columns(self) -> list[Aliased]:
        return [
            (public_partition(self.state) if name == _PARTITION else sql.col(_FILE_COLUMNS[name])).alias(name)
            for name in self.file
        ]

    def metrics_columns(self) -> list[Aliased]:
        return [readable_metrics(self.metrics)] if self.metrics else []

    def file_type(self) -> StructType:
        """Return the type of `file_columns`."""
        types = _FILE_TYPES | {_PARTITION: public_partition_type(self.state)}
        return StructType([StructField(name, types[name], name not in _REQUIRED) for name in self.file])

    def files_type(self) -> StructType:
        """Return the type of rows of `files`."""
        return StructType([*self.file_type().fields, *self._metrics_fields()])

    def entries_type(self) -> StructType:
        """Return the type of rows of `entries`."""
        types = {name: _INT if name == "status" else _LONG for name in self.entry}
        fields = [StructField(name, kind, name not in _REQUIRED) for name, kind in types.items()]
        data_file = [StructField(DATA_FILE, self.file_type(), nullable=False)] if self.file else []
        return StructType([*fields, *data_file, *self._metrics_fields()])

    def _metrics_fields(self) -> list[StructField]:
        return [StructField(READABLE_METRICS, metrics_type(self.metrics))] if self.metrics else []


def files_selection(state: TableState, columns: Sequence[str] | None) -> Selection:
    """Return the selected columns of `files`, by default all. `readable_metrics.<column>` selects one field.

    Raises:
        InvalidArgumentError: a name is not a column.
    """
    return _selection(state, columns, {name: name for name in _file_names(state)}, ())


def entries_selection(state: TableState, columns: Sequence[str] | None) -> Selection:
    """Return the selected columns of `entries`, like `files_selection`. `data_file.<column>` selects one field."""
    return _selection(state, columns, {f"{DATA_FILE}.{name}": name for name in _file_names(state)}, (*_ENTRY_COLUMNS,))


def _file_names(state: TableState) -> list[str]:
    return [name for name in _FILE_COLUMNS if name != _PARTITION or state.types.partition_type.fields]


def _selection(
    state: TableState, columns: Sequence[str] | None, file: dict[str, str], entry: tuple[str, ...]
) -> Selection:
    leaves = leaf_columns(state.types.typing_schema)
    metrics = {f"{READABLE_METRICS}.{name}": name for name in leaves}
    selected = {*entry, *file, *metrics} if columns is None else _expanded(columns, [*entry, *file, *metrics])
    return Selection(
        state,
        tuple(name for name in entry if name in selected),
        tuple(name for full, name in file.items() if full in selected),
        {name: leaves[name] for full, name in metrics.items() if full in selected},
    )


def _expanded(columns: Sequence[str], known: Sequence[str]) -> set[str]:
    """Check names of columns, and replace each name of a struct by the names of its fields."""
    NAMES.check("columns", columns)
    selected: set[str] = set()
    for column in columns:
        matching = [name for name in known if name == column or name.startswith(f"{column}.")]
        if not matching:
            names = known if "." in column else dict.fromkeys(name.partition(".")[0] for name in known)
            raise InvalidArgumentError(f"no column {shown(column)} in the metadata table{hint_at(column, names)}")
        selected.update(matching)
    return selected
