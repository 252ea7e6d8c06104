"""The metadata tables of manifest entries: entries, files, data_files, delete_files, and all_* over all snapshots.

Their rows are content entries under Iceberg's names. Only what is shown is read: a `Selection` is both the projection
that manifests are read with and the columns that are made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.inspect.readable_metrics import READABLE_METRICS, SOURCE, leaf_columns, readable_metrics
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.plan.rows import public_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.types import NestedField
    from pyspark.sql import Column, DataFrame

    from sparkmeta.manifests.projection import EntryProjection
    from sparkmeta.state import TableState

PARTITION = "partition"
DATA_FILE = "data_file"

# The columns of `files`, and of `entries.data_file`: name -> where its value stands in a content entry.
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
    """What is shown of entries: columns of the entry, columns of its file, and leaf columns in readable_metrics."""

    state: TableState
    entry: tuple[str, ...]
    file: tuple[str, ...]
    metrics: dict[str, NestedField]

    @property
    def projection(self) -> EntryProjection:
        """What to read of the manifests."""
        sources = {_FILE_COLUMNS[name].partition(".")[0] for name in self.file} - {PARTITION}
        sizes = {SOURCE} if self.metrics else set()
        stats = [field.field_id for field in self.metrics.values()]
        return self.state.projection({*_ALWAYS_READ, *sources, *sizes}, stats)

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
    """What `files` shows: all columns, or those asked for; `readable_metrics.<column>` is one field of that struct.

    Raises ValueError for a name that is no column.
    """
    return _selection(state, columns, {name: name for name in _file_names(state)}, ())


def entries_selection(state: TableState, columns: Sequence[str] | None) -> Selection:
    """Return what `entries` shows, as `files_selection`; `data_file.<column>` is one field of that struct."""
    return _selection(state, columns, {f"{DATA_FILE}.{name}": name for name in _file_names(state)}, (*_ENTRY_COLUMNS,))


def files_of(entries: DataFrame, selection: Selection) -> DataFrame:
    """Content entries as rows of `files`: the live ones."""
    return entries.where(is_live().text).select(*selection.file_columns(), *selection.metrics_columns())


def entries_of(entries: DataFrame, selection: Selection) -> DataFrame:
    """Content entries as rows of `entries`: those of deleted files too."""
    data_file = [F.struct(*selection.file_columns()).alias(DATA_FILE)] if selection.file else []
    return entries.select(*selection.entry_columns(), *data_file, *selection.metrics_columns())


def files(state: TableState, manifests: pa.Table, columns: Sequence[str] | None) -> DataFrame:
    """One row a live file in some of the snapshot's manifests (rows of `state.manifests`)."""
    selection = files_selection(state, columns)
    return files_of(state.entries(live_manifests(manifests), selection.projection), selection)


def entries(state: TableState, columns: Sequence[str] | None) -> DataFrame:
    """One row an entry in the snapshot's manifests."""
    selection = entries_selection(state, columns)
    return entries_of(state.entries(state.manifests, selection.projection), selection)


def _file_names(state: TableState) -> list[str]:
    return [name for name in _FILE_COLUMNS if name != PARTITION or state.types.partition_type.fields]


def _selection(
    state: TableState, columns: Sequence[str] | None, file: dict[str, str], entry: tuple[str, ...]
) -> Selection:
    leaves = leaf_columns(state.types.typing_schema)
    metrics = {f"{READABLE_METRICS}.{name}": name for name in leaves}
    wanted = {*entry, *file, *metrics} if columns is None else _expanded(columns, [*entry, *file, *metrics])
    return Selection(
        state,
        tuple(name for name in entry if name in wanted),
        tuple(name for full, name in file.items() if full in wanted),
        {name: leaves[name] for full, name in metrics.items() if full in wanted},
    )


def _expanded(columns: Sequence[str], known: Sequence[str]) -> set[str]:
    """Names of columns, with the fields of a struct for the struct."""
    wanted: set[str] = set()
    for column in columns:
        matching = [name for name in known if name == column or name.startswith(f"{column}.")]
        if not matching:
            tops = dict.fromkeys(name.partition(".")[0] for name in known)
            raise ValueError(f"{column!r} is not a column; there are: {', '.join(tops)}")
        wanted.update(matching)
    return wanted
