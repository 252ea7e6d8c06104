"""The metadata tables of manifest entries: entries, files, data_files, delete_files, partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import index_by_id, index_name_by_id
from pyiceberg.types import NestedField, PrimitiveType
from pyspark.sql import functions as F
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
    TimestampType,
)

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, manifests_of_list
from sparkmeta.checks import NAMES
from sparkmeta.columns import sql
from sparkmeta.columns.conditions import identity
from sparkmeta.columns.types import public_value, spark_type
from sparkmeta.entries.arrays import FILE_COUNTS, is_live_entry
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, PARTITION
from sparkmeta.entries.records import PART_SCHEMA, part_bytes
from sparkmeta.entries.relation import beside, frame_of, grouped, select, where, with_columns
from sparkmeta.errors import InvalidArgumentError, UnsupportedError
from sparkmeta.inspect.manifest_rows import REACHABLE, reachable_rows
from sparkmeta.inspect.manifests import listed_manifests, spec_transforms
from sparkmeta.inspect.metadata_rows import MetadataRows, read_entries
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.manifests.placement import MOST_ENTRIES, ManifestLoad
from sparkmeta.plan.filter import partition_value, public_partition, public_partition_type
from sparkmeta.plan.prune import live_manifests
from sparkmeta.session import map_arrow, map_on_driver, read_tasks
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.partitioning import has_unknown_values
from sparkmeta.spec.schema import VariantType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame

    from sparkmeta.columns.sql import Aliased, Sql
    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState


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


def files_of(entries: Relation, selection: Selection) -> MetadataRows:
    """Return live content entries as rows of `files`."""
    columns = [*selection.file_columns(), *selection.metrics_columns()]
    return MetadataRows(selection.state, select(where(entries, is_live_entry()), columns), selection.files_type())


def entries_of(entries: Relation, selection: Selection) -> MetadataRows:
    """Return content entries, DELETED ones included, as rows of `entries`."""
    data_file = [sql.struct(*selection.file_columns()).alias(DATA_FILE)] if selection.file else []
    columns = [*selection.entry_columns(), *data_file, *selection.metrics_columns()]
    return MetadataRows(selection.state, select(entries, columns), selection.entries_type())


def files(state: TableState, manifests: pa.Table, columns: Sequence[str] | None, most_entries: int) -> MetadataRows:
    """Return a row for each live file in manifests, rows of `state.manifests`.

    Args:
        most_entries: see `read_entries`, and so below.
    """
    selection = files_selection(state, columns)
    return files_of(read_entries(state, live_manifests(manifests), selection.projection, most_entries), selection)


def entries(state: TableState, columns: Sequence[str] | None, most_entries: int) -> MetadataRows:
    """Return a row for each entry in the snapshot's manifests."""
    selection = entries_selection(state, columns)
    return entries_of(read_entries(state, state.manifests, selection.projection, most_entries), selection)


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


_NEWEST = "newest"
_OTHERS = [name for name in REACHABLE.names if name not in ("manifest_path", "content", "first_row_id")]


def all_files(
    state: TableState,
    content: ContentType | None,
    columns: Sequence[str] | None,
    most_entries: int,
    manifests: Relation | None = None,
) -> MetadataRows:
    """Return a row for each live file in each manifest of any snapshot, or only in manifests of one content."""
    selection = files_selection(state, columns)
    return files_of(all_entries_of(state, content, selection.projection, most_entries, manifests), selection)


def all_entries(
    state: TableState, columns: Sequence[str] | None, most_entries: int, manifests: Relation | None = None
) -> MetadataRows:
    """Return a row for each entry of each manifest of any snapshot."""
    selection = entries_selection(state, columns)
    return entries_of(all_entries_of(state, None, selection.projection, most_entries, manifests), selection)


def all_entries_of(
    state: TableState,
    content: ContentType | None,
    projection: EntryProjection,
    most_entries: int,
    manifests: Relation | None = None,
) -> Relation:
    """Return the entries of all manifests that any snapshot lists, with the columns of `projection.schema`.

    The manifests may be given as rows of `reachable_manifests`.

    A DataFrame is lazy if tasks can open files. If only Spark's own sources can, a job collects the paths when this is
    called.
    """
    if manifests is None:
        manifests = reachable_manifests(state, content, most_entries)
    trees = state.types.tree_types if state.has_trees else None
    if isinstance(manifests, pa.Table) and _driver_decodes(state, manifests, most_entries):
        decoder = EntryDecoder(state.access.files, trees, state.types.locations)
        return map_on_driver(_whole_parts(manifests), partial(decoder.decode_parts, projection), projection.schema)
    if state.access.tasks is not None:
        decoder = EntryDecoder(state.access.tasks, trees, state.types.locations)
        decode = partial(decoder.decode_parts, projection)
        return map_arrow(_task_parts(state, frame_of(manifests, state), projection), decode, projection.schema)
    if state.has_trees:
        raise UnsupportedError(
            f"{state.metadata.location}: Spark's own sources can't read the files of all snapshots of a metadata tree"
        )
    listed = manifests if isinstance(manifests, pa.Table) else manifests.toArrow()
    columns = [
        listed[field.name].cast(field.type) if field.name in listed.column_names else pa.nulls(len(listed), field.type)
        for field in MANIFEST_FILE_SCHEMA
    ]
    table = pa.table(columns, MANIFEST_FILE_SCHEMA)
    return state.entries(manifests_of_list(table, state.types.spec_fields, state.metadata.location), projection)


def reachable_manifests(state: TableState, content: ContentType | None, most_manifests: int) -> Relation:
    """Return the distinct manifests of all snapshots, as `REACHABLE`.

    If lists differ about a manifest, as they do after a table gets row ids, the row with the highest first_row_id is
    returned.

        SELECT manifest_path, max(struct(first_row_id, ...)).* FROM listed GROUP BY manifest_path
    """
    listed = listed_manifests(state, partial(reachable_rows, spec_transforms(state)), REACHABLE, most_manifests)
    if content is not None:
        listed = where(listed, sql.col("content") == int(content) - int(ContentType.DATA_MANIFEST))
    keys = sql.columns("manifest_path", "content")
    newest = sql.struct(*sql.columns("first_row_id", *_OTHERS))
    chosen = grouped(listed, keys, [sql.call("max", newest).alias(_NEWEST)])
    return select(chosen, [*keys, *(sql.col(_NEWEST)[name].alias(name) for name in ("first_row_id", *_OTHERS))])


def _driver_decodes(state: TableState, manifests: pa.Table, most_entries: int) -> bool:
    """Return whether the driver decodes manifests, rows of `REACHABLE`; see `ManifestLoad`."""
    counts = [manifests.column(name) for name in FILE_COUNTS]
    entries = None if any(count.null_count for count in counts) else sum(pc.sum(count).as_py() or 0 for count in counts)
    load = ManifestLoad(pc.sum(manifests.column("manifest_length")).as_py() or 0, entries, most_entries)
    fits = state.access.alone or load.fits_driver(state.settings.driver_manifest_bytes)
    return state.access.driver is not None and fits


_PART_COLUMNS = {
    "location": "manifest_path",
    "file_format": "file_format",
    "partition_spec_id": "partition_spec_id",
    "snapshot_id": "added_snapshot_id",
    "sequence_number": "sequence_number",
    "first_row_id": "first_row_id",
    "file_size_in_bytes": "manifest_length",
}


def _whole_parts(manifests: Relation) -> Relation:
    """Return manifests, rows of `REACHABLE`, as rows of `PART_SCHEMA` for all of a manifest."""
    numbers = {MANIFEST: 0, "part": 0, "parts": 1}
    columns = [sql.lit(number).alias(name) for name, number in numbers.items()]
    return select(manifests, [*(sql.col(path).alias(name) for name, path in _PART_COLUMNS.items()), *columns])


def _task_parts(state: TableState, manifests: DataFrame, projection: EntryProjection) -> DataFrame:
    """Return the parts of manifests, rows of `REACHABLE`, as rows of `PART_SCHEMA`, distributed among tasks."""
    counted = F.lit("first_row_id" in projection.columns) & F.col("first_row_id").isNotNull()
    needed = F.ceil(F.col("file_size_in_bytes") / part_bytes(state.settings.split_manifest_bytes))
    is_whole = counted | (F.col("file_format") == "PARQUET")
    count = F.when(is_whole, 1).otherwise(F.greatest(F.lit(1), needed)).cast("int")
    manifests = frame_of(_whole_parts(manifests), state).withColumn("parts", count)
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
_ADDED_BY = "added_by"


def partitions(state: TableState) -> MetadataRows:
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
    # Even as a DataFrame, the result has far fewer rows than there are entries.
    read = read_entries(state, manifests, state.projection(_COLUMNS), MOST_ENTRIES)
    snapshot_id = sql.col("version_info.snapshot_id").alias(_ADDED_BY)
    live = with_columns(where(read, is_live_entry()), snapshot_id)
    snapshots: Relation = _snapshots(state)
    if not isinstance(live, pa.Table):
        snapshots = F.broadcast(frame_of(snapshots, state))
    known = beside(live, snapshots, _ADDED_BY, "snapshot_id")
    rows = select(grouped(known, _keys(state), _aggregates(state)), _result(state))
    return MetadataRows(state, rows, partitions_type(state))


def _snapshots(state: TableState) -> pa.Table:
    """Return snapshot_id, committed_at and sequence_number of the snapshots."""
    snapshots = state.metadata.snapshots
    columns = {
        "snapshot_id": pa.array([snapshot.snapshot_id for snapshot in snapshots], pa.int64()),
        "committed_at": pa.array([snapshot.timestamp_ms * 1000 for snapshot in snapshots], pa.timestamp("us", "UTC")),
        "sequence_number": pa.array([snapshot.sequence_number for snapshot in snapshots], pa.int64()),
    }
    return pa.table(columns)


def _keys(state: TableState) -> list[Aliased]:
    """Return the columns that identify a partition."""
    keys = [
        identity(partition_value(field.field_id), field.field_type).alias(f"key_{field.field_id}")
        for field in state.types.partition_type.fields
    ]
    return [*keys, _number_of_fields(state).alias(_FIELDS)]


def _number_of_fields(state: TableState) -> Sql:
    """Return the number of partition fields that the spec of an entry has."""
    shown = {field.field_id for field in state.types.partition_type.fields}
    of_entry = sql.col("partition_spec_id")
    counts = {spec_id: sum(field.field_id in shown for field in spec.fields) for spec_id, spec in state.specs.items()}
    return sql.coalesce(*(sql.when(of_entry == spec_id, count) for spec_id, count in counts.items()))


def _aggregates(state: TableState) -> list[Aliased]:
    content, records = sql.col("content_type"), sql.col("record_count")
    partition = [sql.call("first", sql.col(PARTITION)).alias(PARTITION)] if state.types.partition_type.fields else []
    counted = []
    for name, kind in _CONTENTS.items():
        is_one = content == int(kind)
        counted.append(sql.call("sum", sql.when(is_one, records)).alias(f"{name}_records"))
        counted.append(sql.count_if(is_one).alias(f"{name}_files"))
    size = sql.when(content == int(ContentType.DATA), sql.col("file_size_in_bytes"))
    fields = ("committed_at", "sequence_number", "snapshot_id", "partition_spec_id")
    update = sql.struct(*sql.columns(*fields))
    newest = sql.call("max", sql.when(sql.col("committed_at").isNotNull(), update))
    return [*partition, *counted, sql.call("sum", size).alias(_SIZE), newest.alias(_UPDATE)]


def _result(state: TableState) -> list[Aliased]:
    update = sql.col(_UPDATE)
    columns = {
        "partition": public_partition(state),
        "spec_id": sql.coalesce(update["partition_spec_id"], 0),
        "record_count": _sum("data_records"),
        "file_count": _sum("data_files").cast("int"),
        "total_data_file_size_in_bytes": _sum(_SIZE),
        **{
            f"{name}_{unit}_count": _sum(f"{name}_{unit}s").cast("int" if unit == "file" else "bigint")
            for name in ("position_delete", "equality_delete")
            for unit in ("record", "file")
        },
        "last_updated_at": update["committed_at"],
        "last_updated_snapshot_id": update["snapshot_id"],
    }
    return [columns[field.name].alias(field.name) for field in partitions_type(state).fields]


def partitions_type(state: TableState) -> StructType:
    """Return the row type of `partitions`."""
    row = StructType()
    if state.types.partition_type.fields:
        row.add("partition", public_partition_type(state), False).add("spec_id", _INT, False)
    row.add("record_count", _LONG, False).add("file_count", _INT, False)
    row.add("total_data_file_size_in_bytes", _LONG, False)
    for name in ("position_delete", "equality_delete"):
        row.add(f"{name}_record_count", _LONG, False).add(f"{name}_file_count", _INT, False)
    return row.add("last_updated_at", TimestampType()).add("last_updated_snapshot_id", _LONG)


def _sum(name: str) -> Sql:
    return sql.coalesce(sql.col(name), 0)


def refuse_unknown_transforms(state: TableState) -> None:
    """Raise UnsupportedError if a partition field has a transform that is not known."""
    for spec in state.specs.values():
        for field in spec.fields:
            if has_unknown_values(field.transform):
                where = f"{state.metadata.location}: partition field {field.name} of spec {spec.spec_id}"
                raise UnsupportedError(f"{where} has transform {field.transform}, which is not known")
