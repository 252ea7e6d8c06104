"""Prune the manifests of a scan on the driver, by partition summaries and aggregated stats."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression

from sparkmeta.avro.manifest_list import SUMMARIES
from sparkmeta.entries.live import LIVE_ROWS, sums
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST
from sparkmeta.expr import sql
from sparkmeta.expr.evaluate import values
from sparkmeta.expr.predicate import referenced_ids
from sparkmeta.expr.skipping import UNKNOWN_STATS, FieldStats, FieldSummary, might_match, summary_might_match
from sparkmeta.expr.sql import Sql
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.filter import ScanFilter, by_spec, entry_stats
from sparkmeta.plan.pairs import deletes_by_affinity, deletes_by_partition
from sparkmeta.snapshot.search import live_manifests, manifests_where
from sparkmeta.spec.entry import ContentType

_ROWS = "live_rows"


@dataclass(frozen=True)
class PrunedManifests:
    """The manifests that a scan opens.

    Attributes:
        filter: the scan's filter.
        data: the data manifests that may list files for the filter.
        deletes: the delete manifests that may list deletes of these files.
        seconds: how long pruning took.
    """

    filter: ScanFilter
    data: pa.Table
    deletes: pa.Table
    seconds: float = 0.0


def prune_manifests(scan_filter: ScanFilter) -> PrunedManifests:
    """Prune the manifests of a scan without opening any: the manifest list or V4 root suffices."""
    started, state = time.perf_counter(), scan_filter.state
    live = live_manifests(state.manifests)
    matching = matching_manifests(live, scan_filter)
    data = _of_content(matching, ContentType.DATA_MANIFEST)
    # The stats of a tree's delete leaves describe the rows that their entries delete.
    may_delete = live if scan_filter.reads_all_rows and state.tree is not None else matching
    deletes = _of_content(may_delete, ContentType.DELETE_MANIFEST)
    deletes = deletes_by_affinity(state, data, deletes)
    if not scan_filter.keeps_all:
        deletes = deletes_by_partition(state, data, deletes)
    return PrunedManifests(scan_filter, data, deletes, time.perf_counter() - started)


def part_of(pruned: PrunedManifests, manifests: Collection[int]) -> PrunedManifests:
    """Restrict a scan to some data manifests, given by their small ids, and the deletes that may apply to them."""
    state = pruned.filter.state
    data = pruned.data.filter(pc.is_in(pruned.data.column(MANIFEST), pa.array(manifests, pa.int32())))
    deletes = deletes_by_partition(state, data, deletes_by_affinity(state, data, pruned.deletes))
    return PrunedManifests(pruned.filter, data, deletes)


def _of_content(manifests: pa.Table, content: ContentType) -> pa.Table:
    return manifests_where(manifests, pc.equal(manifests.column("content_type"), int(content)))


def matching_manifests(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Table:
    """Return the manifests whose partition summaries or stats don't rule out the filter."""
    if CONTENT_STATS in manifests.column_names:
        return _matching_leaves(manifests, scan_filter)
    if SUMMARIES not in manifests.column_names or all(
        isinstance(partition_filter, AlwaysTrue) for partition_filter in scan_filter.partition_filters.values()
    ):
        return manifests if not isinstance(scan_filter.row_filter, AlwaysFalse) else manifests.slice(0, 0)
    return manifests_where(manifests, values(manifests, by_spec(scan_filter, _summary_predicate)))


def _matching_leaves(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Table:
    """Return the leaves of a V4 tree whose aggregated stats don't rule out the filter.

    This is sound under manifest DVs: if no entry of a leaf can match, no subset can. The root's own files have no
    aggregated stats and are kept.
    """
    if scan_filter.keeps_all or pc.all(pc.equal(manifests.column("file_format"), IN_ROOT)).as_py():
        return manifests
    sources, known = scan_filter.state.types.tuple_sources, _stats_ids(manifests)

    def by_partition(spec_id: int, partition_filter: BooleanExpression) -> Sql:
        sources_of_fields = dict(sources[spec_id])
        return might_match(partition_filter, lambda field_id: stats(sources_of_fields.get(field_id)), sql.col(_ROWS))

    def stats(field_id: int | None) -> FieldStats:
        return entry_stats(field_id) if field_id in known else UNKNOWN_STATS

    by_stats = might_match(scan_filter.undecided, stats, sql.col(_ROWS))
    condition = (sql.col("file_format") == IN_ROOT) | (by_spec(scan_filter, by_partition) & by_stats)
    counted = manifests.append_column(_ROWS, _row_total(manifests))
    return manifests_where(manifests, values(counted, condition))


def _stats_ids(manifests: pa.Table) -> set[int]:
    return {int(field.name) for field in manifests.schema.field(CONTENT_STATS).type}


def _row_total(manifests: pa.Table) -> pa.Array:
    """Return the number of rows in the live files of leaves; null for the root's own files, which have no stats."""
    is_root = pc.equal(manifests.column("file_format"), IN_ROOT)
    return pc.if_else(is_root, pa.scalar(None, pa.int64()), sums(manifests, LIVE_ROWS))


def _summary_predicate(_: int, partition_filter: BooleanExpression) -> Sql:
    """Return a predicate on partition summaries. A manifest without summaries may hold anything."""
    fields = [sql.col(f"{SUMMARIES}.`{field_id}`").isNull() for field_id in sorted(referenced_ids(partition_filter))]
    return reduce(or_, fields, sql.lit(False)) | summary_might_match(partition_filter, _summary)


def _summary(field_id: int) -> FieldSummary:
    base = f"{SUMMARIES}.`{field_id}`"
    return FieldSummary(*(sql.col(f"{base}.{name}") for name in FieldSummary._fields))
