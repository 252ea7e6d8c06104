"""Count the files and rows of manifests whose counts are missing from the manifest list, as version 1 allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.entries.arrays import whole
from sparkmeta.entries.counts import FILE_COUNTS, ROW_COUNTS
from sparkmeta.spec.entry import Status

if TYPE_CHECKING:
    from sparkmeta.state import TableState

_STATUSES = (Status.ADDED, Status.EXISTING, Status.DELETED)
_COUNTS = (*FILE_COUNTS, *ROW_COUNTS)
_NOTHING = dict.fromkeys(_COUNTS, 0)


def known_counts(head: TableState, manifests: pa.Table) -> pa.StructArray:
    """Return `manifest_stats` for rows of `head.manifests`; read manifests without counts (semantics 19.2)."""
    stats = manifests.column("manifest_stats").combine_chunks()
    unknown = _lacks_counts({name: stats.field(name) for name in _COUNTS})
    if not pc.any(unknown).as_py():
        return stats
    counted = _count_entries(head, manifests.filter(unknown))
    rows = stats.to_pylist()
    ids = manifests.column("manifest").to_pylist()
    filled = [
        {**row, **counted.get(manifest, _NOTHING)} if lacks else row
        for row, manifest, lacks in zip(rows, ids, unknown.to_pylist(), strict=True)
    ]
    return pa.array(filled, stats.type)


def with_counts(head: TableState, rows: pa.Table) -> pa.Table:
    """Fill in missing counts of rows of `MANIFEST_FILE_SCHEMA`.

    Rows that lack counts must be manifests of `head`, which are read.
    """
    columns = {name: whole(rows.column(name)) for name in rows.column_names}
    unknown = _lacks_counts(columns)
    if not pc.any(unknown).as_py():
        return rows
    paths = pc.filter(columns["manifest_path"], unknown)
    manifests = head.manifests.filter(pc.is_in(head.manifests.column("location"), paths))
    stats = known_counts(head, manifests)
    places = pc.index_in(columns["manifest_path"], whole(manifests.column("location")))
    for name in _COUNTS:
        counted = pc.take(stats.field(name), places).cast(columns[name].type)
        columns[name] = pc.coalesce(columns[name], counted)
    return pa.table(columns, MANIFEST_FILE_SCHEMA)


def _lacks_counts(columns: dict[str, Any]) -> pa.Array:
    """Return which manifests lack at least one count."""
    unknown = pc.is_null(columns[_COUNTS[0]])
    for name in _COUNTS[1:]:
        unknown = pc.or_(unknown, pc.is_null(columns[name]))
    return unknown


def _count_entries(head: TableState, manifests: pa.Table) -> dict[int, dict[str, int]]:
    """Return the counts of files and rows by status, for each manifest."""
    entries = head.entries(manifests, head.projection(("version_info", "record_count")))
    status = F.col("version_info.status")
    sums = []
    for value, files, rows in zip(_STATUSES, FILE_COUNTS, ROW_COUNTS, strict=True):
        sums.append(F.sum(F.when(status == int(value), 1).otherwise(0)).alias(files))
        sums.append(F.sum(F.when(status == int(value), F.col("record_count")).otherwise(0)).alias(rows))
    counted = entries.groupBy("manifest").agg(*sums).toArrow().to_pylist()
    return {row.pop("manifest"): row for row in counted}
