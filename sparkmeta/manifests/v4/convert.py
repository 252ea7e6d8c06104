"""Turn entries of other manifests, of other tables and of new files into entries of V4 leaves. Tasks import this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.live import is_live
from sparkmeta.entries.manifest_records import column_metric, derived_stats, true_where
from sparkmeta.entries.projection import CONTENT_STATS, FILE_COLUMNS, PARTITION, EntryProjection
from sparkmeta.errors import CorruptFileError, ValidationError, shown
from sparkmeta.expr.arrays import narrowed, whole
from sparkmeta.manifests.v4.fields import tree_stats_type
from sparkmeta.manifests.v4.layout import TreeTypes, tree_schema
from sparkmeta.manifests.v4.root import entry_problems
from sparkmeta.spec.entry import ContentType, Status

# -- From other manifests and new files to V4 entries -----------------------------------------------------------------


# Column id -> child of `content_stats` -> values.
Metrics = dict[int, dict[str, pa.Array]]


class PartitionValues(NamedTuple):
    """The values of a partition field, in the rows of one spec.

    Attributes:
        source: the id of the stats that hold them.
        rows: which rows have the spec.
        values: the values of all rows.
    """

    source: int
    rows: pa.Array
    values: pa.Array


def conversion_projection(types: TreeTypes, spec_id: int) -> EntryProjection:
    """Return the projection of a v1 to v3 manifest of a spec for `converted`."""
    columns = {field_id: types.stats[field_id] for field_id in types.columns}
    return EntryProjection.of(FILE_COLUMNS, dict(types.spec_fields[spec_id]), columns, types.spec_tuples)


def converted(batches: Iterable[pa.RecordBatch], types: TreeTypes, spec_id: int, location: str) -> Iterator[pa.Table]:
    """Yield the entries of a manifest of one spec as rows of `tree_schema`.

    A file sequence number that the manifest does not know is the data sequence number.

    Args:
        batches: rows of `conversion_projection`.
        types: the types of the table's V4 manifests.
        spec_id: the manifest's partition spec.
        location: the manifest's location, for errors.

    Raises:
        CorruptFileError: a live entry without a sequence number.
    """
    schema = tree_schema(types.stats)
    for batch in batches:
        columns = content_columns(batch)
        columns["version_info"] = _complete_version(batch, location)
        columns["file_format"] = pc.utf8_lower(batch.column("file_format"))
        columns[CONTENT_STATS] = _stats(batch, types, spec_id)
        arrays = [
            narrowed(columns[field.name], field.type) if field.name in columns else pa.nulls(len(batch), field.type)
            for field in schema
        ]
        yield pa.Table.from_arrays(arrays, schema=schema)


def content_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns, with null in fields that the content type of an entry does not have."""
    columns = {name: batch.column(name) for name in FILE_COLUMNS if name in batch.schema.names}
    for name, content in _ONLY_OF.items():
        if name not in columns:
            continue
        has_field = pc.equal(columns["content_type"], int(content))
        columns[name] = pc.if_else(has_field, columns[name], pa.scalar(None, columns[name].type))
    return columns


_ONLY_OF = {
    "deletion_vector": ContentType.POSITION_DELETES,
    "referenced_file": ContentType.POSITION_DELETES,
    "equality_ids": ContentType.EQUALITY_DELETES,
    "first_row_id": ContentType.DATA,
    "sort_order_id": ContentType.DATA,
}


def _complete_version(batch: pa.RecordBatch, location: str) -> pa.StructArray:
    info = batch.column("version_info")
    fields = dict(zip(info.type.names, info.flatten(), strict=True))
    fields["file_sequence_number"] = pc.coalesce(fields["file_sequence_number"], fields["sequence_number"])
    live = is_live(batch)
    for name, values in fields.items():
        if len(lacking := batch.column("location").filter(pc.and_(live, values.is_null()))):
            path = lacking[0].as_py()
            raise CorruptFileError(location, f"version_info.{name}", None, f"the entry of {path} has none")
    return pa.StructArray.from_arrays([*fields.values()], fields=list(info.type))


def _stats(batch: pa.RecordBatch, types: TreeTypes, spec_id: int) -> pa.StructArray:
    metrics: Metrics = {}
    if CONTENT_STATS in batch.schema.names:
        stats = batch.column(CONTENT_STATS)
        for field, values in zip(stats.type, stats.flatten(), strict=True):
            children = dict(zip(values.type.names, values.flatten(), strict=True))
            present = {name: child for name, child in children.items() if child.null_count < len(child)}
            if present:
                metrics[int(field.name)] = present
    rows, sources = pa.repeat(pa.scalar(True), len(batch)), types.sources[spec_id]
    partitions = [PartitionValues(source, rows, _value(batch, field_id)) for field_id, source in sources]
    return content_stats(metrics, None, partitions, batch.column("record_count"), types.stats)


def _value(batch: pa.RecordBatch, field_id: int) -> pa.Array:
    return pc.struct_field(batch.column(PARTITION), str(field_id))


def content_stats(
    metrics: Metrics,
    value_sizes: pa.MapArray | None,
    partitions: Iterable[PartitionValues],
    records: pa.Array,
    types: Mapping[int, str],
) -> pa.StructArray:
    """Return metrics and partition values of files as `content_stats` of V4 entries.

    Partition values replace the bounds and null counts of the stats that hold them.

    Args:
        metrics: the metrics of columns. They are changed.
        value_sizes: the maps `VALUE_SIZES`; None if they are unknown.
        partitions: the values of the partition fields.
        records: the record counts of the files.
        types: ids that may have stats -> Iceberg type names.
    """
    rows = len(records)
    sizes = {} if value_sizes is None else dict(column_metric(value_sizes, types, rows))
    for field_id, children in metrics.items():
        children.update(derived_stats(children, types[field_id], sizes.get(field_id)))
    present = {field_id: _any_valid(children.values(), rows) for field_id, children in metrics.items()}
    for source, mask, values in partitions:
        _replace_stats(values, records, mask, metrics.setdefault(source, {}))
        present[source] = pc.or_(present.get(source, pa.repeat(pa.scalar(False), rows)), mask)
    kind = tree_stats_type(types)
    structs = [_struct(metrics.get(int(child.name)), present, child, rows) for child in kind]
    return pa.StructArray.from_arrays(structs, fields=list(kind)) if structs else pa.array([{}] * rows, kind)


def _replace_stats(value: pa.Array, records: pa.Array, mask: pa.Array, stats: dict[str, pa.Array]) -> None:
    """Replace stats of a partition field's column or expression by its value, for the rows of one spec."""
    nan = pc.fill_null(pc.is_nan(value), False) if pa.types.is_floating(value.type) else None
    bound = value if nan is None else pc.if_else(nan, pa.scalar(None, value.type), value)
    exact = {
        "lower_bound": bound,
        "upper_bound": bound,
        "tight_bounds": true_where(bound.is_valid()),
        "value_count": pc.coalesce(stats["value_count"], records) if "value_count" in stats else records,
        "null_value_count": pc.if_else(value.is_null(), records, pa.scalar(0, pa.int64())),
    }
    if nan is not None:
        exact["nan_value_count"] = pc.if_else(nan, records, pa.scalar(0, pa.int64()))
    for child, exact_values in exact.items():
        other_values = stats.get(child, pa.nulls(len(records), exact_values.type))
        stats[child] = pc.if_else(mask, exact_values, other_values)


def _struct(
    stats: Mapping[str, pa.Array] | None, present: Mapping[int, pa.Array], field: pa.Field, rows: int
) -> pa.StructArray:
    if stats is None:
        return pa.nulls(rows, field.type)
    children = [stats.get(child.name, pa.nulls(rows, child.type)).cast(child.type) for child in field.type]
    absent = pc.invert(present[int(field.name)])
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=absent)


def _any_valid(arrays: Iterable[pa.Array], rows: int) -> pa.Array:
    some = pa.repeat(pa.scalar(False), rows)
    for array in arrays:
        some = pc.or_(some, whole(array).is_valid())
    return some


# -- From one table to another ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableMatch:
    """The ids of a table in another one that adds its files. Picklable.

    Attributes:
        table: the location of the table that has the entries, for errors.
        columns: ids of all columns that any schema of this table has had.
        specs: partition spec of the entries -> the same spec of the other table.
        sort_orders: sort order of the entries -> the same sort order of the other table, if it has one.
    """

    table: str
    columns: frozenset[int]
    specs: Mapping[int, int]
    sort_orders: Mapping[int, int]

    def sort_orders_of(self, ids: pa.Array) -> pa.Array:
        """Return the other table's sort orders; null for sort orders that it lacks."""
        return _mapped(ids, self.sort_orders)

    def check(self, entries: pa.Table) -> None:
        """Check live entries with their sequence numbers, rows of a `tree_schema`.

        Raises:
            ValidationError: an entry breaks a rule of the field matrix.
        """
        for broken in entry_problems(entries, self.specs, self.columns):
            path = entries.column("location")[broken.row].as_py()
            raise ValidationError(
                f"{self.table}: {broken.field} of file {path} is {shown(broken.value)}: {broken.problem}"
            )


@dataclass(frozen=True)
class Adoption(TableMatch):
    """A function that turns live entries of a table into entries of new files of a tree. Picklable.

    Attributes:
        stats: the ids that may have stats in the other table -> Iceberg type names.
        sources: id of stats in the other table -> id of the same stats in the entries.
    """

    stats: Mapping[int, str]
    sources: Mapping[int, int]

    @cached_property
    def schema(self) -> pa.Schema:
        """The row type of the other table's entries."""
        return tree_schema(self.stats)

    def __call__(self, entries: pa.Table) -> pa.Table:
        """Return entries as rows of `schema` with status ADDED, without snapshot id, sequence numbers and row ids.

        Args:
            entries: live rows of a `tree_schema`, with their sequence numbers.

        Raises:
            ValidationError: an entry breaks a rule of the field matrix, so that readers would refuse it.
        """
        self.check(entries)
        rows = len(entries)
        columns = {name: whole(entries.column(name)) for name in entries.column_names}
        columns["version_info"] = added_version(rows, self.schema)
        columns["first_row_id"] = pa.nulls(rows, pa.int64())
        columns["partition_spec_id"] = _mapped(columns["partition_spec_id"], self.specs)
        columns["sort_order_id"] = self.sort_orders_of(columns["sort_order_id"])
        columns[CONTENT_STATS] = self._stats(columns[CONTENT_STATS])
        return pa.Table.from_arrays([columns[field.name] for field in self.schema], schema=self.schema)

    def _stats(self, stats: pa.StructArray) -> pa.StructArray:
        by_id = dict(zip((int(field.name) for field in stats.type), stats.flatten(), strict=True))
        kind = self.schema.field(CONTENT_STATS).type
        children = []
        for field in kind:
            values = by_id.get(self.sources.get(int(field.name), -1))
            children.append(pa.nulls(len(stats), field.type) if values is None else _as(values, field.type))
        return (
            pa.StructArray.from_arrays(children, fields=list(kind)) if children else pa.array([{}] * len(stats), kind)
        )


def added_version(rows: int, schema: pa.Schema, numbers: pa.Array | None = None) -> pa.StructArray:
    """Return the `version_info` of new files: the commit sets snapshot id and sequence numbers.

    Args:
        rows: the number of files.
        schema: the schema of the entries.
        numbers: the data sequence numbers of files whose rows are older than the commit; null for others.
    """
    status, unset = pa.repeat(pa.scalar(int(Status.ADDED), pa.int32()), rows), pa.nulls(rows, pa.int64())
    children = [status, unset, unset if numbers is None else numbers, unset]
    return pa.StructArray.from_arrays(children, fields=list(schema.field("version_info").type))


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else narrowed(values, kind)


def _mapped(ids: pa.Array, other_ids: Mapping[int, int]) -> pa.Array:
    """Return the other table's ids; null for ids that it lacks."""
    indices = pc.index_in(ids, pa.array(list(other_ids), ids.type))
    return pa.array(list(other_ids.values()), ids.type).take(indices)
