"""Prune the manifests of a scan on the driver, by partition summaries and aggregated stats."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression

from sparkmeta.avro.manifest_list import SUMMARIES
from sparkmeta.columns import sql
from sparkmeta.columns.bounds import Columns, Source
from sparkmeta.columns.implied_tests import stats_tests, summary_tests
from sparkmeta.columns.predicate import referenced_ids
from sparkmeta.columns.skipping import FieldStats, FieldSummary, might_match, summary_might_match
from sparkmeta.columns.sql import Sql
from sparkmeta.entries.arrays import LIVE_ROWS, live_counts, may_be_live, sums
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST
from sparkmeta.entries.records import as_numbers
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT, MASKED
from sparkmeta.plan.filter import ScanFilter, by_spec, entry_stats
from sparkmeta.plan.pairs import deletes_by_affinity, deletes_by_partition
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

_SUMMARY_COLUMNS = [MANIFEST, "partition_spec_id", SUMMARIES]


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


def _of_content(manifests: pa.Table, content: ContentType) -> pa.Table:
    return manifests.filter(pc.equal(manifests.column("content_type"), int(content)))


def live_manifests(manifests: pa.Table) -> pa.Table:
    """Return the manifests that may have live files that manifest DVs don't mask."""
    if MASKED in manifests.column_names:
        return manifests.filter(pc.greater(live_files(manifests), 0))
    return manifests.filter(may_be_live(manifests))


def live_files(manifests: pa.Table) -> pa.Array | pa.ChunkedArray:
    """Return the number of live files in each manifest, without those masked by manifest DVs; null if unknown."""
    counts = live_counts(manifests)
    return pc.subtract(counts, manifests.column(MASKED)) if MASKED in manifests.column_names else counts


def matching_manifests(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Table:
    """Return the manifests whose partition summaries or stats don't rule out the filter.

    A few comparisons are made in Arrow; more complex filters are evaluated by Spark over local rows.
    """
    if CONTENT_STATS in manifests.column_names:
        return _matching_leaves(manifests, scan_filter)
    if SUMMARIES not in manifests.column_names or all(
        isinstance(partition_filter, AlwaysTrue) for partition_filter in scan_filter.partition_filters.values()
    ):
        return manifests if not isinstance(scan_filter.row_filter, AlwaysFalse) else manifests.slice(0, 0)
    if (matches := _by_arrays(manifests, scan_filter)) is not None:
        return manifests.filter(matches)
    return _where(manifests, manifests.select(_SUMMARY_COLUMNS), by_spec(scan_filter, _summary_predicate), scan_filter)


def _where(manifests: pa.Table, shown: pa.Table, condition: Sql, scan_filter: ScanFilter) -> pa.Table:
    """Return the manifests that meet a condition. Unlike `toArrow`, `collect` of local rows starts no job."""
    rows = local_frame(scan_filter.state.spark, shown).where(condition.text).select(MANIFEST).collect()
    return manifests.filter(pc.is_in(manifests.column(MANIFEST), pa.array([row[0] for row in rows], pa.int32())))


def _by_arrays(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Array | None:
    """Evaluate `_summary_predicate` without Spark. Returns None if it needs more than a few comparisons."""
    summaries = manifests.column(SUMMARIES).combine_chunks()

    def columns(source: Source, field_id: int, type_name: str) -> pa.Array | None:
        known = scan_filter.state.types.partition_fields.get(field_id) == type_name
        return as_numbers(summaries.field(str(field_id)).field(source)) if known else None

    passed = {}
    for spec_id, partition_filter in scan_filter.partition_filters.items():
        if isinstance(partition_filter, AlwaysFalse):
            continue
        tests = summary_tests(partition_filter)
        if tests is None:
            return None
        passed[spec_id] = tests.passes(columns)
        if passed[spec_id] is None and tests.tests:
            return None
    return _of_specs(manifests, passed)


def _of_specs(manifests: pa.Table, passed: Mapping[int, pa.Array | None]) -> pa.Array:
    """Return which manifests have a spec in `passed` and passed its test. The value None means that all passed."""
    specs, matches = manifests.column("partition_spec_id").combine_chunks(), pa.repeat(False, len(manifests))
    for spec_id, passed_for_spec in passed.items():
        of_spec = pc.equal(specs, spec_id)
        matches = pc.or_(matches, of_spec if passed_for_spec is None else pc.and_(of_spec, passed_for_spec))
    return matches


def _matching_leaves(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Table:
    """Return the leaves of a V4 tree whose aggregated stats don't rule out the filter.

    This is sound under manifest DVs: if no entry of a leaf can match, no subset can. The root's own files have no
    aggregated stats and are kept.
    """
    if scan_filter.keeps_all or not len(manifests):
        return manifests
    if (matches := _leaves_by_arrays(manifests, scan_filter)) is not None:
        return manifests.filter(matches)
    looked_at = {*scan_filter.filter_ids, *scan_filter.partition_sources}
    stats = manifests.column(CONTENT_STATS).combine_chunks()
    known = [field.name for field in stats.type if int(field.name) in looked_at]
    narrow = pa.StructArray.from_arrays([stats.field(name) for name in known], names=known) if known else None
    shown = manifests.select([MANIFEST, "partition_spec_id", "file_format"])
    shown = shown.append_column("rows", _row_total(manifests))
    if narrow is not None:
        shown = shown.append_column(CONTENT_STATS, narrow)
    sources = scan_filter.state.types.tuple_sources

    def by_partition(spec_id: int, partition_filter: BooleanExpression) -> Sql:
        places = dict(sources[spec_id])

        def stats(field_id: int) -> FieldStats:
            return (
                entry_stats(places[field_id]) if field_id in places else FieldStats(*[None] * len(FieldStats._fields))
            )

        return might_match(partition_filter, stats, sql.col("rows"))

    by_stats = might_match(scan_filter.stats_filter, entry_stats, sql.col("rows"))
    condition = by_spec(scan_filter, by_partition) & by_stats
    return _where(manifests, shown, (sql.col("file_format") == IN_ROOT) | condition, scan_filter)


def _leaves_by_arrays(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Array | None:
    """Return which leaves a few comparisons of bounds don't rule out, without Spark; None for other filters."""
    filters = [scan_filter.stats_filter, *scan_filter.partition_filters.values()]
    if any(summary_tests(tested) is None for tested in filters if not isinstance(tested, AlwaysFalse)):
        return None
    stats, types = manifests.column(CONTENT_STATS).combine_chunks(), scan_filter.state.types.stats_types

    def columns_by(sources: Mapping[int, int] | None) -> Columns:
        def columns(source: Source, field_id: int, type_name: str) -> pa.Array | None:
            place = field_id if sources is None else sources.get(field_id)
            known = place is not None and types.get(place) == type_name and stats.type.get_field_index(str(place)) >= 0
            return as_numbers(pc.struct_field(stats, [str(place), source])) if known else None

        return columns

    sources = scan_filter.state.types.tuple_sources
    passed_by_spec = {
        spec_id: stats_tests(partition_filter).passes(columns_by(dict(sources[spec_id])))
        for spec_id, partition_filter in scan_filter.partition_filters.items()
        if not isinstance(partition_filter, AlwaysFalse)
    }
    matches = _of_specs(manifests, passed_by_spec)
    passed = stats_tests(scan_filter.stats_filter).passes(columns_by(None))
    matches = matches if passed is None else pc.and_(matches, passed)
    return pc.or_(matches, pc.equal(manifests.column("file_format").combine_chunks(), IN_ROOT))


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
