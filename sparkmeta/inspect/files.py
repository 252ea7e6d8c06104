"""The metadata tables of manifest entries: entries, files, data_files, delete_files, partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyiceberg.schema import index_by_id, index_name_by_id
from pyiceberg.types import NestedField, PrimitiveType
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, manifests_of_list
from sparkmeta.checks import NAMES
from sparkmeta.columns import sql
from sparkmeta.columns.conditions import identity
from sparkmeta.columns.types import public_value, spark_type
from sparkmeta.entries.arrays import is_live_entry
from sparkmeta.entries.projection import CONTENT_STATS, PARTITION
from sparkmeta.entries.records import PART_SCHEMA, part_bytes
from sparkmeta.errors import InvalidArgumentError, UnsupportedError
from sparkmeta.inspect.manifest_rows import REACHABLE, reachable_rows
from sparkmeta.inspect.manifests import listed_manifests, spec_transforms
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.plan.filter import partition_value, public_partition
from sparkmeta.plan.prune import live_manifests
from sparkmeta.session import local_frame, map_arrow, read_tasks
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.partitioning import has_unknown_values
from sparkmeta.spec.schema import VariantType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema
    from pyspark.sql import Column, DataFrame

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.state import TableState


# -- `readable_metrics` -----------------------------------------------------------------------------------------------


READABLE_METRICS = "readable_metrics"
SOURCE = "column_sizes"
"""The column that is read in addition to content_stats of the leaf columns."""

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


def readable_metrics(leaves: Mapping[str, NestedField]) -> Column:
    """Return a struct with a struct for each leaf column, from an entry's stats and `column_sizes`."""
    metrics = F.struct(*(_metrics(field).alias(name) for name, field in leaves.items()))
    # Iceberg declares the column as optional, though it is never null.
    return F.when(F.col("location").isNotNull(), metrics.cast(_type(leaves))).alias(READABLE_METRICS)


def _metrics(field: NestedField) -> Column:
    stats = f"{CONTENT_STATS}.`{field.field_id}`"
    size = F.try_element_at(F.col(SOURCE), F.lit(field.field_id))
    counts = (F.col(f"{stats}.{name}") for name in _COUNTS[1:])
    kind = cast("PrimitiveType", field.field_type)
    bounds = (public_value(sql.col(f"{stats}.{name}"), kind).column() for name in _BOUNDS)
    return F.struct(size, *counts, *bounds)


def _type(leaves: Mapping[str, NestedField]) -> StructType:
    metrics = StructType()
    for name, field in leaves.items():
        kind = spark_type(field.field_type)
        of_column = StructType()
        for count in _COUNTS:
            of_column.add(count, LongType())
        for bound in _BOUNDS:
            of_column.add(bound, kind)
        metrics.add(name, of_column)
    return metrics


# -- `entries`, `files`, `data_files`, `delete_files` -----------------------------------------------------------------
# Rows are content entries with Iceberg's column names. A `Selection` has both the projection with which manifests are
# read and the columns that are made from it, so that only selected columns are read.


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

    def entry_columns(self) -> list[Column]:
        return [F.col(_ENTRY_COLUMNS[name]).alias(name) for name in self.entry]

    def file_columns(self) -> list[Column]:
        return [
            (public_partition(self.state).column() if name == _PARTITION else F.col(_FILE_COLUMNS[name])).alias(name)
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
    return entries.where(is_live_entry().text).select(*selection.file_columns(), *selection.metrics_columns())


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


# -- `all_*`: files and entries of all snapshots ----------------------------------------------------------------------
# Each manifest is read once.


_OTHERS = [name for name in REACHABLE.names if name not in ("manifest_path", "content", "first_row_id")]


def all_files(state: TableState, content: ContentType | None, columns: Sequence[str] | None) -> DataFrame:
    """Return a row for each live file in each manifest of any snapshot, or only in manifests of one content."""
    selection = files_selection(state, columns)
    return files_of(all_entries_of(state, content, selection.projection), selection)


def all_entries(state: TableState, columns: Sequence[str] | None) -> DataFrame:
    """Return a row for each entry of each manifest of any snapshot."""
    selection = entries_selection(state, columns)
    return entries_of(all_entries_of(state, None, selection.projection), selection)


def all_entries_of(state: TableState, content: ContentType | None, projection: EntryProjection) -> DataFrame:
    """Return the entries of all manifests that any snapshot lists, as a DataFrame of `projection.schema`.

    It is lazy if tasks can open files. If only Spark's own sources can, a job collects the paths when this is called.
    """
    manifests = reachable_manifests(state, content)
    if state.access.tasks is not None:
        trees = state.types.tree_types if state.has_trees else None
        decoder = EntryDecoder(state.access.tasks, trees, state.types.locations)
        decode = partial(decoder.decode_parts, projection)
        return map_arrow(_parts(state, manifests, projection), decode, projection.schema)
    if state.has_trees:
        raise UnsupportedError(
            f"{state.metadata.location}: Spark's own sources can't read the files of all snapshots of a metadata tree"
        )
    listed = manifests.toArrow()
    columns = [
        listed[field.name].cast(field.type) if field.name in listed.column_names else pa.nulls(len(listed), field.type)
        for field in MANIFEST_FILE_SCHEMA
    ]
    table = pa.table(columns, MANIFEST_FILE_SCHEMA)
    return state.entries(manifests_of_list(table, state.types.spec_fields, state.metadata.location), projection)


def reachable_manifests(state: TableState, content: ContentType | None) -> DataFrame:
    """Return the distinct manifests of all snapshots, as `REACHABLE`.

    If lists differ about a manifest, as they do after a table gets row ids, the row with the highest first_row_id is
    returned.

        SELECT manifest_path, max(struct(first_row_id, ...)).* FROM listed GROUP BY manifest_path
    """
    listed = listed_manifests(state, partial(reachable_rows, spec_transforms(state)), REACHABLE)
    if content is not None:
        listed = listed.where(F.col("content") == int(content) - int(ContentType.DATA_MANIFEST))
    newest = F.max(F.struct("first_row_id", *_OTHERS)).alias("newest")
    return listed.groupBy("manifest_path", "content").agg(newest).select("manifest_path", "content", "newest.*")


def _parts(state: TableState, manifests: DataFrame, projection: EntryProjection) -> DataFrame:
    """Return the parts of manifests for tasks, as `PART_SCHEMA`, distributed among tasks."""
    counted = F.lit("first_row_id" in projection.columns) & F.col("first_row_id").isNotNull()
    is_parquet = F.lower("manifest_path").endswith(".parquet")
    needed = F.ceil(F.col("manifest_length") / part_bytes(state.settings.split_manifest_bytes))
    columns = {
        "manifest": F.lit(0),
        "location": F.col("manifest_path"),
        "snapshot_id": F.col("added_snapshot_id"),
        "file_size_in_bytes": F.col("manifest_length"),
        "file_format": F.when(is_parquet, "PARQUET").otherwise("AVRO"),
        "parts": F.when(counted | is_parquet, 1).otherwise(F.greatest(F.lit(1), needed)).cast("int"),
    }
    manifests = manifests.withColumns(columns)
    shares = manifests.withColumn("part", F.explode(F.sequence(F.lit(0), F.col("parts") - 1)))
    return shares.select(*PART_SCHEMA.names).repartition(read_tasks(state.spark))


# -- `partitions` -----------------------------------------------------------------------------------------------------


_COLUMNS = ("version_info", "content_type", "partition_spec_id", "record_count", "file_size_in_bytes")
_CONTENTS = {
    "data": ContentType.DATA,
    "position_delete": ContentType.POSITION_DELETES,
    "equality_delete": ContentType.EQUALITY_DELETES,
}
_SIZE = "data_size"
_UPDATE = "update"
_FIELDS = "number_of_fields"


def partitions(state: TableState) -> DataFrame:
    """Return a row for each partition, with counts of its live files and rows, and its last update.

    Tuples of two specs are the same partition if their values are equal and the specs have the same number of fields.
    `spec_id` is the spec of the files that were added last. `last_updated_*` describe the newest unexpired snapshot
    that added one of the live files.

        SELECT first(partition), max(update).spec_id, sum(record_count) FILTER (WHERE content_type = 0), ...
        FROM entries LEFT JOIN snapshots USING (snapshot_id) WHERE status <> 2
        GROUP BY partition, number of fields of the spec

    Raises:
        UnsupportedError: an unknown partition transform.
    """
    refuse_unknown_transforms(state)
    manifests = live_manifests(state.manifests)
    live = state.live_entries(manifests, state.projection(_COLUMNS))
    known = live.join(F.broadcast(_snapshots(state)), F.col("version_info.snapshot_id") == F.col("snapshot_id"), "left")
    return known.groupBy(*_keys(state)).agg(*_aggregates(state)).select(*_result(state))


def _snapshots(state: TableState) -> DataFrame:
    """Return snapshot_id, committed_at and sequence_number of the snapshots."""
    snapshots = state.metadata.snapshots
    columns = {
        "snapshot_id": pa.array([snapshot.snapshot_id for snapshot in snapshots], pa.int64()),
        "committed_at": pa.array([snapshot.timestamp_ms * 1000 for snapshot in snapshots], pa.timestamp("us", "UTC")),
        "sequence_number": pa.array([snapshot.sequence_number for snapshot in snapshots], pa.int64()),
    }
    return local_frame(state.spark, pa.table(columns))


def _keys(state: TableState) -> list[Column]:
    """Return the columns that identify a partition."""
    keys = [
        identity(partition_value(field.field_id), field.field_type).alias(f"key_{field.field_id}").column()
        for field in state.types.partition_type.fields
    ]
    return [*keys, _number_of_fields(state).alias(_FIELDS)]


def _number_of_fields(state: TableState) -> Column:
    """Return the number of partition fields that the spec of an entry has."""
    shown = {field.field_id for field in state.types.partition_type.fields}
    counts = {spec_id: sum(field.field_id in shown for field in spec.fields) for spec_id, spec in state.specs.items()}
    return F.coalesce(*(F.when(F.col("partition_spec_id") == spec_id, count) for spec_id, count in counts.items()))


def _aggregates(state: TableState) -> list[Column]:
    partition = [F.first(PARTITION).alias(PARTITION)] if state.types.partition_type.fields else []
    counted = []
    for name, content in _CONTENTS.items():
        is_one = F.col("content_type") == int(content)
        counted.append(F.sum(F.when(is_one, F.col("record_count"))).alias(f"{name}_records"))
        counted.append(F.count_if(is_one).alias(f"{name}_files"))
    is_data = F.col("content_type") == int(ContentType.DATA)
    size = F.sum(F.when(is_data, F.col("file_size_in_bytes"))).alias(_SIZE)
    update = F.struct("committed_at", "sequence_number", "snapshot_id", "partition_spec_id")
    return [*partition, *counted, size, F.max(F.when(F.col("committed_at").isNotNull(), update)).alias(_UPDATE)]


def _result(state: TableState) -> list[Column]:
    spec_id = F.coalesce(F.col(f"{_UPDATE}.partition_spec_id"), F.lit(0)).alias("spec_id")
    tuple_and_spec = (
        [public_partition(state).alias("partition").column(), spec_id] if state.types.partition_type.fields else []
    )
    counts = {name: (_sum(f"{name}_records"), F.col(f"{name}_files").cast("int")) for name in _CONTENTS}
    return [
        *tuple_and_spec,
        counts["data"][0].alias("record_count"),
        counts["data"][1].alias("file_count"),
        _sum(_SIZE).alias("total_data_file_size_in_bytes"),
        *(
            count.alias(f"{name}_{unit}_count")
            for name in ("position_delete", "equality_delete")
            for unit, count in zip(("record", "file"), counts[name], strict=True)
        ),
        F.col(f"{_UPDATE}.committed_at").alias("last_updated_at"),
        F.col(f"{_UPDATE}.snapshot_id").alias("last_updated_snapshot_id"),
    ]


def _sum(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0))


def refuse_unknown_transforms(state: TableState) -> None:
    """Raise UnsupportedError if a partition field has a transform that is not known."""
    for spec in state.specs.values():
        for field in spec.fields:
            if has_unknown_values(field.transform):
                where = f"{state.metadata.location}: partition field {field.name} of spec {spec.spec_id}"
                raise UnsupportedError(f"{where} has transform {field.transform}, which is not known")
