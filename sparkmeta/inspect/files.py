"""The metadata tables of manifest entries: entries, files, data_files, delete_files, partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import (
    StructType,
    TimestampType,
)

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, manifests_of_list
from sparkmeta.entries.live import FILE_COUNTS, is_live_entry
from sparkmeta.entries.manifest_records import PART_SCHEMA, part_bytes
from sparkmeta.entries.projection import MANIFEST, PARTITION
from sparkmeta.entries.relation import (
    beside,
    collected,
    frame_of,
    grouped,
    select,
    some_columns,
    where,
    with_columns,
)
from sparkmeta.errors import UnsupportedError
from sparkmeta.expr import sql
from sparkmeta.expr.conditions import identity
from sparkmeta.expr.types import spark_type
from sparkmeta.inspect.manifest_rows import REACHABLE, reachable_rows
from sparkmeta.inspect.manifests import listed_manifests, spec_transforms
from sparkmeta.inspect.metadata_rows import MetadataRows, few_files
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.plan.file_columns import (
    _INT,
    _LONG,
    DATA_FILE,
    Selection,
    entries_selection,
    files_selection,
)
from sparkmeta.plan.filter import partition_value, public_partition, public_partition_type
from sparkmeta.session import map_arrow, map_on_driver, read_tasks
from sparkmeta.snapshot.search import live_manifests
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.transforms import has_unknown_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Aliased, Sql
    from sparkmeta.snapshot.state import TableState


# -- `entries`, `files`, `data_files`, `delete_files` -----------------------------------------------------------------


def files_of(entries: Relation, selection: Selection) -> MetadataRows:
    """Return live content entries as rows of `files`."""
    columns = [*selection.file_columns(), *selection.metrics_columns()]
    return MetadataRows(selection.state, select(where(entries, is_live_entry()), columns), selection.files_type())


def entries_of(entries: Relation, selection: Selection) -> MetadataRows:
    """Return content entries, DELETED ones included, as rows of `entries`."""
    data_file = [sql.struct(*selection.file_columns()).alias(DATA_FILE)] if selection.file else []
    columns = [*selection.entry_columns(), *data_file, *selection.metrics_columns()]
    return MetadataRows(selection.state, select(entries, columns), selection.entries_type())


def files(state: TableState, manifests: pa.Table, columns: Sequence[str] | None) -> MetadataRows:
    """Return a row for each live file in manifests, rows of `state.manifests`."""
    selection = files_selection(state, columns)
    return files_of(state.relation(live_manifests(manifests), selection.projection), selection)


def entries(state: TableState, columns: Sequence[str] | None) -> MetadataRows:
    """Return a row for each entry in the snapshot's manifests."""
    selection = entries_selection(state, columns)
    return entries_of(state.relation(state.manifests, selection.projection), selection)


# -- `all_*`: files and entries of all snapshots ----------------------------------------------------------------------
# Each manifest is read once.


_NEWEST = "newest"
_OTHERS = [name for name in REACHABLE.names if name not in ("manifest_path", "content", "file_format", "first_row_id")]


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
    if not state.has_trees:
        return _entries_of_reachable(state, projection, manifests, most_entries)
    columns = tuple(dict.fromkeys([*projection.columns, "content_type"]))
    read = _entries_of_reachable(state, replace(projection, columns=columns), manifests, most_entries)
    # A root is listed once for its data files and once for its deletes.
    is_data = sql.col("content_type") == int(ContentType.DATA)
    return some_columns(where(read, (sql.col(MANIFEST) == 0) == is_data), projection.schema.names)


def _entries_of_reachable(
    state: TableState, projection: EntryProjection, manifests: Relation, most_entries: int
) -> Relation:
    """Return the entries of manifests, rows of `REACHABLE`. `manifest` is the content of their manifest."""
    trees = state.types.tree_types if state.has_trees else None
    if isinstance(manifests, pa.Table) and state.access.driver_opens(_are_few(state, manifests, most_entries)):
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
    listed = collected(manifests)
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
    keys = sql.columns("manifest_path", "content", "file_format")
    newest = sql.struct(*sql.columns("first_row_id", *_OTHERS))
    chosen = grouped(listed, keys, [sql.call("max", newest).alias(_NEWEST)])
    return select(chosen, [*keys, *(sql.col(_NEWEST)[name].alias(name) for name in ("first_row_id", *_OTHERS))])


def _are_few(state: TableState, manifests: pa.Table, most_entries: int) -> bool:
    """Return whether the driver decodes manifests, rows of `REACHABLE`, faster than tasks would."""
    counts = [manifests.column(name) for name in FILE_COUNTS]
    entries = None if any(count.null_count for count in counts) else sum(pc.sum(count).as_py() or 0 for count in counts)
    size = pc.sum(manifests.column("manifest_length")).as_py() or 0
    return few_files(state, 0, size, entries or 0, most_entries)  # it opens any number of them


_PART_COLUMNS = {
    "location": "manifest_path",
    "file_format": "file_format",
    "partition_spec_id": "partition_spec_id",
    "snapshot_id": "added_snapshot_id",
    "sequence_number": "sequence_number",
    "first_row_id": "first_row_id",
    "file_size_in_bytes": "manifest_length",
    "key_metadata": "key_metadata",
}


def _whole_parts(manifests: Relation) -> Relation:
    """Return manifests, rows of `REACHABLE`, as rows of `PART_SCHEMA` for all of a manifest."""
    numbers = {MANIFEST: sql.col("content"), "part": sql.lit(0), "parts": sql.lit(1)}
    columns = [number.alias(name) for name, number in numbers.items()]
    return select(manifests, [*(sql.col(path).alias(name) for name, path in _PART_COLUMNS.items()), *columns])


def _task_parts(state: TableState, manifests: DataFrame, projection: EntryProjection) -> DataFrame:
    """Return the parts of manifests, rows of `REACHABLE`, as rows of `PART_SCHEMA`, distributed among tasks."""
    counted = F.lit("first_row_id" in projection.columns) & F.col("first_row_id").isNotNull()
    needed = F.ceil(F.col("file_size_in_bytes") / part_bytes(state.settings.split_manifest_bytes))
    is_whole = counted | (F.col("file_format") != "AVRO")
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

        SELECT partition, max(update).spec_id, sum(records), ... FROM
            (SELECT partition, spec_id, snapshot_id, sum(record_count) FILTER (WHERE content_type = 0) records, ...
             FROM entries WHERE status <> 2 GROUP BY ALL)
        LEFT JOIN snapshots USING (snapshot_id) GROUP BY partition, number of fields of the spec

    The sums come first, since Spark sorts the rows that it groups to find a maximum of structs.

    Raises:
        UnsupportedError: an unknown partition transform.
    """
    refuse_unknown_transforms(state)
    manifests = live_manifests(state.manifests)
    # Even as a DataFrame, the result has far fewer rows than there are entries.
    read = state.relation(manifests, state.projection(_COLUMNS))
    snapshot_id = sql.col("version_info.snapshot_id").alias(_ADDED_BY)
    live, keys = with_columns(where(read, is_live_entry()), snapshot_id), _keys(state)
    sums = _sums()
    summed = grouped(live, [*keys, *sql.columns("partition_spec_id", _ADDED_BY)], sums)
    known = beside(summed, _snapshots(state), _ADDED_BY, "snapshot_id")
    update = sql.struct(*sql.columns("committed_at", "sequence_number", "snapshot_id", "partition_spec_id"))
    newest = sql.call("max", sql.when(sql.col("committed_at").isNotNull(), update)).alias(_UPDATE)
    totals = [sql.call("sum", sql.col(part.name)).alias(part.name) for part in sums]
    by_key = grouped(known, sql.columns(*(key.name for key in keys)), [*totals, newest])
    rows = with_columns(by_key, *_partition(state))
    return MetadataRows(state, select(rows, _result(state)), partitions_type(state))


def _snapshots(state: TableState) -> pa.Table:
    """Return snapshot_id, committed_at and sequence_number of the snapshots."""
    snapshots = state.metadata.stored_snapshots
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
    """Return the number of partition fields in the spec of an entry."""
    shown = {field.field_id for field in state.types.partition_type.fields}
    of_entry = sql.col("partition_spec_id")
    counts = {spec_id: sum(field.field_id in shown for field in spec.fields) for spec_id, spec in state.specs.items()}
    return sql.coalesce(*(sql.when(of_entry == spec_id, count) for spec_id, count in counts.items()))


def _partition(state: TableState) -> list[Aliased]:
    """Return the partition tuple, made from the columns that identify it."""
    values = []
    for field in state.types.partition_type.fields:
        key, kind = sql.col(f"key_{field.field_id}"), field.field_type
        is_text = str(kind) in ("float", "double")
        values.append((key.cast(spark_type(kind)) if is_text else key).alias(str(field.field_id)))
    return [sql.struct(*values).alias(PARTITION)] if values else []


def _sums() -> list[Aliased]:
    content, records = sql.col("content_type"), sql.col("record_count")
    summed = []
    for name, kind in _CONTENTS.items():
        is_one = content == int(kind)
        summed.append(sql.call("sum", sql.when(is_one, records)).alias(f"{name}_records"))
        summed.append(sql.count_if(is_one).alias(f"{name}_files"))
    size = sql.when(content == int(ContentType.DATA), sql.col("file_size_in_bytes"))
    return [*summed, sql.call("sum", size).alias(_SIZE)]


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
