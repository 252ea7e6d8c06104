"""The metadata tables of manifest entries: entries, files, data_files, delete_files, and all_* over all snapshots.

Rows are content entries with Iceberg's column names. A `Selection` has both the projection with which manifests are
read and the columns that are made from it, so that only selected columns are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.checks import NAMES
from sparkmeta.errors import InvalidArgumentError
from sparkmeta.inspect.readable_metrics import READABLE_METRICS, SOURCE, leaf_columns, readable_metrics
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.plan.rows import public_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.types import NestedField
    from pyspark.sql import Column, DataFrame

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.state import TableState

PARTITION = "partition"
DATA_FILE = "data_file"

# The columns of `files` and of `entries.data_file` -> their field in a content entry.
_FILE_COLUMNS = {
    "content": "content_type",
    "file_path": "location",
    "file_format": "file_format",
    "spec_id": "partition_spec_id",
    PARTITION: PARTITION,
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
        sources = {_FILE_COLUMNS[name].partition(".")[0] for name in self.file} - {PARTITION}
        sizes = {SOURCE} if self.metrics else set()
        stats = [field.field_id for field in self.metrics.values()]
        return replace(self.state.projection({*_ALWAYS_READ, *sources, *sizes}, stats), as_written=True)

    def entry_columns(self) -> list[Column]:
        return [F.col(_ENTRY_COLUMNS[name]).alias(name) for name in self.entry]

    def file_columns(self) -> list[Column]:
        return [
            (public_partition(self.state).column() if name == PARTITION else F.col(_FILE_COLUMNS[name])).alias(name)
            for name in self.file
        ]

    def metrics_columns(self) -> list[Column]:
        return [readable_metrics(self.metrics)] if self.metrics else []


def files_selection(state: TableState, columns: Sequence[str] | None) -> Selection:
    """Return the selected columns of `files`, by default all. `readable_metrics.<column>` selects one field.

    Raises:
        InvalidArgumentError: a name is not a column.
    """
    return _selection(state, columns, {name: name for name in _file_names(state)}, ())


def entries_selection(state: TableState, columns: Sequence[str] | None) -> Selection:
    """Return the selected columns of `entries`, like `files_selection`. `data_file.<column>` selects one field."""
    return _selection(state, columns, {f"{DATA_FILE}.{name}": name for name in _file_names(state)}, (*_ENTRY_COLUMNS,))


def files_of(entries: DataFrame, selection: Selection) -> DataFrame:
    """Return live content entries as rows of `files`."""
    return entries.where(is_live().text).select(*selection.file_columns(), *selection.metrics_columns())


def entries_of(entries: DataFrame, selection: Selection) -> DataFrame:
    """Return content entries, DELETED ones included, as rows of `entries`."""
    data_file = [F.struct(*selection.file_columns()).alias(DATA_FILE)] if selection.file else []
    return entries.select(*selection.entry_columns(), *data_file, *selection.metrics_columns())


def files(state: TableState, manifests: pa.Table, columns: Sequence[str] | None) -> DataFrame:
    """Return a row for each live file in manifests, rows of `state.manifests`."""
    selection = files_selection(state, columns)
    return files_of(state.entries(live_manifests(manifests), selection.projection), selection)


def entries(state: TableState, columns: Sequence[str] | None) -> DataFrame:
    """Return a row for each entry in the snapshot's manifests."""
    selection = entries_selection(state, columns)
    return entries_of(state.entries(state.manifests, selection.projection), selection)


def _file_names(state: TableState) -> list[str]:
    return [name for name in _FILE_COLUMNS if name != PARTITION or state.types.partition_type.fields]


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
    """Return names of columns, with structs replaced by their fields."""
    NAMES.check("columns", columns)
    selected: set[str] = set()
    for column in columns:
        matching = [name for name in known if name == column or name.startswith(f"{column}.")]
        if not matching:
            tops = dict.fromkeys(name.partition(".")[0] for name in known)
            raise InvalidArgumentError(f"{column!r} is not a column; the columns are {', '.join(tops)}")
        selected.update(matching)
    return selected
