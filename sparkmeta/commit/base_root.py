"""Load the root that a commit edits, or convert the manifest list of an upgraded table to a root (semantics 19.2)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, SUMMARIES
from sparkmeta.entries.live import FILE_COUNTS, LIVE_ROWS, ROW_COUNTS, sums
from sparkmeta.errors import UnsupportedError
from sparkmeta.expr.arrays import whole
from sparkmeta.manifests.v4.layout import conform, tree_schema
from sparkmeta.manifests.v4.root import Root
from sparkmeta.manifests.v4.tree_manifests import FOREIGN_KEY, UPGRADED_KEY
from sparkmeta.spec.entry import ContentType, Status

if TYPE_CHECKING:
    from sparkmeta.snapshot.state import TableState


# -- Count the files and rows of manifests ----------------------------------------------------------------------------
# Version 1 allows manifest lists without these counts.


_STATUSES = (Status.ADDED, Status.EXISTING, Status.DELETED)
_COUNTS = (*FILE_COUNTS, *ROW_COUNTS)
_ZERO_COUNTS = dict.fromkeys(_COUNTS, 0)


def known_counts(head: TableState, manifests: pa.Table) -> pa.StructArray:
    """Return `manifest_stats` for rows of `head.manifests`; read manifests without counts (semantics 19.2)."""
    stats = manifests.column("manifest_stats").combine_chunks()
    lacks_counts = _lacks_counts({name: stats.field(name) for name in _COUNTS})
    if not pc.any(lacks_counts).as_py():
        return stats
    counted = _count_entries(head, manifests.filter(lacks_counts))
    rows = stats.to_pylist()
    ids = manifests.column("manifest").to_pylist()
    filled = [
        {**row, **counted.get(manifest, _ZERO_COUNTS)} if lacks else row
        for row, manifest, lacks in zip(rows, ids, lacks_counts.to_pylist(), strict=True)
    ]
    return pa.array(filled, stats.type)


def with_counts(head: TableState, rows: pa.Table) -> pa.Table:
    """Fill in missing counts of rows of `MANIFEST_FILE_SCHEMA`.

    Rows that lack counts must be manifests of `head`. These manifests are read.
    """
    columns = {name: whole(rows.column(name)) for name in rows.column_names}
    lacks_counts = _lacks_counts(columns)
    if not pc.any(lacks_counts).as_py():
        return rows
    paths = pc.filter(columns["manifest_path"], lacks_counts)
    manifests = head.manifests.filter(pc.is_in(head.manifests.column("location"), paths))
    stats = known_counts(head, manifests)
    rows_of_paths = pc.index_in(columns["manifest_path"], whole(manifests.column("location")))
    for name in _COUNTS:
        counted = pc.take(stats.field(name), rows_of_paths).cast(columns[name].type)
        columns[name] = pc.coalesce(columns[name], counted)
    return pa.table(columns, MANIFEST_FILE_SCHEMA)


def _lacks_counts(columns: dict[str, Any]) -> pa.Array:
    """Return whether each manifest lacks at least one count."""
    is_missing = pc.is_null(columns[_COUNTS[0]])
    for name in _COUNTS[1:]:
        is_missing = pc.or_(is_missing, pc.is_null(columns[name]))
    return is_missing


def _count_entries(head: TableState, manifests: pa.Table) -> dict[int, dict[str, int]]:
    """Return the counts of files and rows by status, for each manifest."""
    entries = head.entries(manifests, head.projection(("version_info", "record_count")))
    status = F.col("version_info.status")
    sums = []
    for code, files, rows in zip(_STATUSES, FILE_COUNTS, ROW_COUNTS, strict=True):
        sums.append(F.sum(F.when(status == int(code), 1).otherwise(0)).alias(files))
        sums.append(F.sum(F.when(status == int(code), F.col("record_count")).otherwise(0)).alias(rows))
    counted = entries.groupBy("manifest").agg(*sums).toArrow().to_pylist()
    return {row.pop("manifest"): row for row in counted}


# -- The root that a commit edits -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BaseRoot:
    """The root that a commit edits.

    Attributes:
        root: None for a branch without snapshots.
        properties: key-value metadata that all later roots repeat.
        assigned_row_ids: the number of row ids assigned to manifests when a manifest list was converted.
    """

    root: Root | None
    properties: Mapping[str, str] = field(default_factory=dict)
    assigned_row_ids: int = 0


def base_root(head: TableState, *, converts: bool = False) -> BaseRoot:
    """Return the root to edit for a commit onto `head`.

    Args:
        head: the table at the head of a branch.
        converts: whether the commit converts the tree to the table's layout.

    Raises:
        UnsupportedError: the tree's layout differs from the table's, as after a rollback to an earlier snapshot.
    """
    if head.snapshot is None:
        return BaseRoot(None)
    if head.tree is not None:
        layout, expected = head.tree.root.layout, head.layout
        if layout != expected and not converts:
            raise UnsupportedError(
                f"{head.metadata.location}: the tree of snapshot {head.snapshot.snapshot_id} has the layout {layout}, "
                f"and the table has {expected}: table.maintenance.convert_tree({expected.name!r}) converts it"
            )
        repeated = {key: value for key, value in head.tree.root.properties.items() if key in _REPEATED}
        if head.tree.foreign_sequence_number == sys.maxsize and expected.spark_reads:
            repeated[FOREIGN_KEY] = str(head.metadata.last_sequence_number)
        return BaseRoot(_conformed(head.tree.root, head), repeated)
    return _from_list(head)


_REPEATED = (UPGRADED_KEY, FOREIGN_KEY)


def _conformed(root: Root, head: TableState) -> Root:
    return replace(root, table=conform(root.table, tree_schema(head.types.stats_types)))


def _from_list(head: TableState) -> BaseRoot:
    """Return a root with a list's manifests as EXISTING leaves, without rewriting any (semantics 19.2).

    Data manifests without first row ids get them, as in the first commit of format version 3.
    """
    stats = known_counts(head, head.manifests)
    manifests = head.manifests.set_column(head.manifests.column_names.index("manifest_stats"), "manifest_stats", stats)
    version = manifests.column("version_info").combine_chunks()
    sequence = version.field("sequence_number")
    first_row_ids, assigned = _row_ids(manifests, int(getattr(head.metadata, "next_row_id", None) or 0))
    schema = tree_schema(head.types.stats_types)
    row_count = len(manifests)
    info = schema.field("version_info").type
    existing = pa.repeat(pa.scalar(int(Status.EXISTING), pa.int32()), row_count)
    columns: dict[str, Any] = {
        "content_type": manifests.column("content_type"),
        "location": manifests.column("location"),
        "file_format": pc.utf8_lower(manifests.column("file_format")),
        "version_info": pa.StructArray.from_arrays(
            [existing, version.field("snapshot_id"), sequence, sequence], fields=list(info)
        ),
        "partition_spec_id": manifests.column("partition_spec_id"),
        "record_count": sums(manifests, FILE_COUNTS),
        "file_size_in_bytes": manifests.column("file_size_in_bytes"),
        "manifest_stats": stats,
        "key_metadata": manifests.column("key_metadata"),
        "first_row_id": first_row_ids,
        "content_stats": _stats(head, manifests, schema.field("content_stats").type),
    }
    arrays = [columns.get(field.name, pa.nulls(row_count, field.type)) for field in schema]
    table = pa.Table.from_arrays([whole(array) for array in arrays], schema=schema)
    properties = {UPGRADED_KEY: str(int(getattr(head.metadata, "last_sequence_number", 0) or 0))}
    location = head.snapshot.manifest_list if head.snapshot is not None else None
    return BaseRoot(Root(location or head.metadata.location, table, properties), properties, assigned)


def _row_ids(manifests: pa.Table, start: int) -> tuple[pa.Array, int]:
    """Return first row ids of the manifests, in list order, and the number of assigned ids.

    Data manifests without a first row id get the next ids, from `start`.
    """
    ids, assigned = [], 0
    rows = zip(
        manifests.column("content_type").to_pylist(),
        manifests.column("first_row_id").to_pylist(),
        sums(manifests, LIVE_ROWS).to_pylist(),
        strict=True,
    )
    for kind, first_row_id, live_rows in rows:
        if kind != ContentType.DATA_MANIFEST or first_row_id is not None:
            ids.append(first_row_id)
            continue
        ids.append(start + assigned)
        assigned += live_rows
    return pa.array(ids, pa.int64()), assigned


def _stats(head: TableState, manifests: pa.Table, kind: pa.StructType) -> pa.StructArray:
    """Convert the list's partition summaries to stats, keyed by the ids of the fields' columns or expressions."""
    row_count = len(manifests)
    bounds: dict[int, pa.StructArray] = {}
    if SUMMARIES in manifests.column_names:
        summaries = manifests.column(SUMMARIES).combine_chunks()
        specs = manifests.column("partition_spec_id")
        for spec_id, sources in head.types.tuple_sources.items():
            in_spec = whole(pc.equal(specs, spec_id))
            for field_id, source in sources:
                stats = _stats_of_summary(summaries.field(str(field_id)), kind.field(str(source)).type, in_spec)
                bounds[source] = stats if source not in bounds else pc.if_else(in_spec, stats, bounds[source])
    children = [bounds.get(int(field.name), pa.nulls(row_count, field.type)) for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind)) if children else pa.array([{}] * row_count, kind)


def _stats_of_summary(summary: pa.StructArray, kind: pa.StructType, in_spec: pa.Array) -> pa.StructArray:
    """Convert a field's summary to stats. Null and NaN counts are 0 or unknown (semantics 19.2)."""
    row_count = len(summary)
    zero, unknown = pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64())

    def zero_or_unknown(name: str) -> pa.Array:
        return pc.if_else(pc.fill_null(summary.field(name), True), unknown, zero)

    values = {
        "lower_bound": summary.field("lower_bound"),
        "upper_bound": summary.field("upper_bound"),
        "null_value_count": zero_or_unknown("contains_null"),
        "nan_value_count": zero_or_unknown("contains_nan"),
    }
    children = [
        values[field.name].cast(field.type) if field.name in values else pa.nulls(row_count, field.type)
        for field in kind
    ]
    is_absent = pc.invert(pc.and_(in_spec, summary.is_valid()))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=is_absent)
