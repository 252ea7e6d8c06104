"""What a filter can't match is left out: manifests by partition summaries, entries by partition tuple and stats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.transforms import IdentityTransform

from sparkmeta.columns import sql
from sparkmeta.columns.array_skipping import partition_tests, stats_tests, summary_tests
from sparkmeta.columns.array_tests import AllOf, Columns, Source
from sparkmeta.columns.predicate import referenced_ids, row_predicate
from sparkmeta.columns.skipping import FieldStats, FieldSummary, might_match, residual, summary_might_match
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.transforms import inclusive_projection, undecided
from sparkmeta.manifests.entries import as_numbers
from sparkmeta.manifests.manifest_list import SUMMARIES, live_counts
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST, EntryFilter, EntryProjection
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT, MASKED
from sparkmeta.plan.rows import entry_stats, partition_value
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType, Status

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

_SUMMARY_COLUMNS = [MANIFEST, "partition_spec_id", SUMMARIES]

_DATA_COLUMNS = (
    "location",
    "file_format",
    "version_info",
    "partition_spec_id",
    "sort_order_id",
    "record_count",
    "file_size_in_bytes",
    "split_offsets",
    "first_row_id",
)


@dataclass(frozen=True)
class ScanFilter:
    """A row filter bound to a schema, with the partition predicates that it implies for every spec of the table.

    row_filter: bound and free of NOT. ignore_residuals: residuals are dropped, and deletes are not pruned by stats.
    """

    state: TableState
    row_filter: BooleanExpression
    schema: Schema
    ignore_residuals: bool = False

    @cached_property
    def partition_filters(self) -> dict[int, BooleanExpression]:
        """Spec id -> what the filter implies for a partition tuple of that spec (inclusive projection)."""
        specs = self.state.specs
        return {one: inclusive_projection(self.row_filter, spec, self.schema) for one, spec in specs.items()}

    @cached_property
    def filter_ids(self) -> frozenset[int]:
        """The columns of the filter that files have stats of."""
        return frozenset(self.state.primitive_fields).intersection(referenced_ids(self.row_filter))

    @cached_property
    def identities(self) -> dict[int, frozenset[int]]:
        """Spec id -> the columns that it partitions by their very values."""
        return {
            spec_id: frozenset(one.source_id for one in spec.fields if isinstance(one.transform, IdentityTransform))
            for spec_id, spec in self.state.specs.items()
        }

    @cached_property
    def undecided(self) -> BooleanExpression:
        """What of the filter is not known of entries whose tuple passes, whatever their spec: stats may tell."""
        return undecided(self.row_filter, frozenset.intersection(*self.identities.values()))

    @cached_property
    def undecided_ids(self) -> frozenset[int]:
        """The columns of `undecided` that files have stats of."""
        return frozenset(self.state.primitive_fields).intersection(referenced_ids(self.undecided))

    @property
    def partition_sources(self) -> frozenset[int]:
        """The ids of the stats that hold what the partition filters look at."""
        return frozenset(
            source
            for spec_id, one in self.partition_filters.items()
            for field_id, source in self.state.tuple_sources[spec_id]
            if field_id in referenced_ids(one)
        )

    @property
    def keeps_all(self) -> bool:
        return isinstance(self.row_filter, AlwaysTrue)


def live_manifests(manifests: pa.Table) -> pa.Table:
    """The manifests that hold live files, or may: unknown counts are not zero."""
    if MASKED in manifests.column_names:
        return manifests.filter(pc.greater(live_files(manifests), 0))
    stats = manifests.column("manifest_stats").combine_chunks()
    empty = [
        pc.fill_null(pc.equal(stats.field(one), 0), False) for one in ("added_files_count", "existing_files_count")
    ]
    return manifests.filter(pc.invert(pc.and_(*empty)))


def live_files(manifests: pa.Table) -> pa.Array | pa.ChunkedArray:
    """How many live files each manifest holds: without those that deletion vectors mask; null: unknown."""
    counts = live_counts(manifests)
    return pc.subtract(counts, manifests.column(MASKED)) if MASKED in manifests.column_names else counts


def matching_manifests(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Table:
    """The manifests whose partition summaries or stats don't rule out the filter; Spark tells what arrays can't."""
    if CONTENT_STATS in manifests.column_names:
        return _matching_leaves(manifests, scan_filter)
    if SUMMARIES not in manifests.column_names or all(
        isinstance(one, AlwaysTrue) for one in scan_filter.partition_filters.values()
    ):
        return manifests if not isinstance(scan_filter.row_filter, AlwaysFalse) else manifests.slice(0, 0)
    if (found := _by_arrays(manifests, scan_filter)) is not None:
        return manifests.filter(found)
    return _where(manifests, manifests.select(_SUMMARY_COLUMNS), _by_spec(scan_filter, _summary_predicate), scan_filter)


def _where(manifests: pa.Table, shown: pa.Table, condition: Sql, scan_filter: ScanFilter) -> pa.Table:
    """The manifests that Spark keeps. `collect` of local rows starts no job, which `toArrow` does."""
    kept = local_frame(scan_filter.state.spark, shown).where(condition.text).select(MANIFEST).collect()
    return manifests.filter(pc.is_in(manifests.column(MANIFEST), pa.array([row[0] for row in kept], pa.int32())))


def _by_arrays(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Array | None:
    """What `_summary_predicate` keeps, told without Spark; None where that takes more than a few comparisons."""
    summaries = manifests.column(SUMMARIES).combine_chunks()

    def columns(source: Source, field_id: int, type_name: str) -> pa.Array | None:
        known = scan_filter.state.partition_fields.get(field_id) == type_name
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
    """Which manifests are of one of these specs and among those that passed for it; None: all of the spec's did."""
    specs, kept = manifests.column("partition_spec_id").combine_chunks(), pa.repeat(False, len(manifests))
    for spec_id, of_spec in passed.items():
        found = pc.equal(specs, spec_id)
        kept = pc.or_(kept, found if of_spec is None else pc.and_(found, of_spec))
    return kept


def _matching_leaves(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Table:
    """The leaves of a V4 tree whose aggregated stats don't rule out the filter.

    Sound under deletion vectors: what no entry of a leaf can match, fewer entries can't either. The root's own files
    have no aggregate, and are kept.
    """
    if scan_filter.keeps_all or not len(manifests):
        return manifests
    if (found := _leaves_by_arrays(manifests, scan_filter)) is not None:
        return manifests.filter(found)
    looked_at = {*scan_filter.filter_ids, *scan_filter.partition_sources}
    stats = manifests.column(CONTENT_STATS).combine_chunks()
    known = [field.name for field in stats.type if int(field.name) in looked_at]
    narrow = pa.StructArray.from_arrays([stats.field(name) for name in known], names=known) if known else None
    shown = manifests.select([MANIFEST, "partition_spec_id", "file_format", "content_type"])
    shown = shown.append_column("rows", _row_total(manifests))
    if narrow is not None:
        shown = shown.append_column(CONTENT_STATS, narrow)
    sources = scan_filter.state.tuple_sources

    def by_partition(spec_id: int, partition_filter: BooleanExpression) -> Sql:
        places = dict(sources[spec_id])

        def stats(field_id: int) -> FieldStats:
            return (
                entry_stats(places[field_id]) if field_id in places else FieldStats(*[None] * len(FieldStats._fields))
            )

        return might_match(partition_filter, stats, sql.col("rows"))

    by_stats = might_match(scan_filter.row_filter, entry_stats, sql.col("rows"))
    if scan_filter.ignore_residuals:
        by_stats = by_stats | (sql.col("content_type") == int(ContentType.DELETE_MANIFEST))
    matches = _by_spec(scan_filter, by_partition) & by_stats
    return _where(manifests, shown, (sql.col("file_format") == IN_ROOT) | matches, scan_filter)


def _leaves_by_arrays(manifests: pa.Table, scan_filter: ScanFilter) -> pa.Array | None:
    """Leaves that a few comparisons of bounds don't rule out, told without Spark; None for filters of another kind."""
    filters = [scan_filter.row_filter, *scan_filter.partition_filters.values()]
    if scan_filter.ignore_residuals or any(
        summary_tests(one) is None for one in filters if not isinstance(one, AlwaysFalse)
    ):
        return None
    stats, types = manifests.column(CONTENT_STATS).combine_chunks(), scan_filter.state.stats_types

    def columns_by(sources: Mapping[int, int] | None) -> Columns:
        def columns(source: Source, field_id: int, type_name: str) -> pa.Array | None:
            place = field_id if sources is None else sources.get(field_id)
            known = place is not None and types.get(place) == type_name and stats.type.get_field_index(str(place)) >= 0
            return as_numbers(pc.struct_field(stats, [str(place), source])) if known else None

        return columns

    sources = scan_filter.state.tuple_sources
    by_spec = {
        spec_id: stats_tests(one).passes(columns_by(dict(sources[spec_id])))
        for spec_id, one in scan_filter.partition_filters.items()
        if not isinstance(one, AlwaysFalse)
    }
    kept = _of_specs(manifests, by_spec)
    passed = stats_tests(scan_filter.row_filter).passes(columns_by(None))
    kept = kept if passed is None else pc.and_(kept, passed)
    return pc.or_(kept, pc.equal(manifests.column("file_format").combine_chunks(), IN_ROOT))


def _row_total(manifests: pa.Table) -> pa.Array:
    """Rows of the live files of leaves; null for the root's own files, which stats say nothing of."""
    stats = manifests.column("manifest_stats").combine_chunks()
    total = pc.add(stats.field("added_rows_count"), stats.field("existing_rows_count"))
    return pc.if_else(pc.equal(manifests.column("file_format"), IN_ROOT), pa.scalar(None, pa.int64()), total)


def is_live() -> Sql:
    """`version_info.status <> 2`: DELETED entries are history."""
    return sql.col("version_info.status") != int(Status.DELETED)


def tuple_matches(scan_filter: ScanFilter) -> Sql:
    """False where an entry's partition tuple rules out the filter, by the spec of the entry."""
    return sql.lit(True) if scan_filter.keeps_all else _by_spec(scan_filter, _tuple_predicate)


def stats_match(scan_filter: ScanFilter) -> Sql:
    """False where an entry's stats rule out the filter. Without a filter even a file of no records is planned."""
    if scan_filter.keeps_all:
        return sql.lit(True)
    return might_match(scan_filter.undecided, entry_stats, sql.col("record_count"))


def matching_entries(entries: DataFrame, scan_filter: ScanFilter, *, by_stats: bool = True) -> DataFrame:
    """The live entries whose partition tuple and stats don't rule out the filter.

    Sound: each test is false only where no row of the file can satisfy the filter.
    """
    kept = is_live() & tuple_matches(scan_filter)
    return entries.where((kept & stats_match(scan_filter) if by_stats else kept).text)


def data_projection(scan_filter: ScanFilter, stats_ids: Iterable[int] = ()) -> EntryProjection:
    """What planning reads of data entries."""
    return scan_filter.state.projection(_DATA_COLUMNS, {*scan_filter.undecided_ids, *stats_ids})


def wanted_entries(scan_filter: ScanFilter, *, by_stats: bool = True) -> EntryFilter:
    """What of `matching_entries` tasks that decode manifests can tell: the rest never reaches Spark."""
    tuples = tuple((spec_id, partition_tests(one)) for spec_id, one in scan_filter.partition_filters.items())
    if not by_stats:
        return EntryFilter(AllOf(), tuples)
    tests = stats_tests(scan_filter.undecided)
    return EntryFilter(tests, tuples, selective=bool(tests.tests))


def residual_json(scan_filter: ScanFilter, literal: Callable[[str], Sql] = sql.lit) -> Sql:
    """What is left of the filter for an entry's rows, as Iceberg's expression JSON, by the spec of the entry: of those
    entries that `matching_entries` keeps.

    literal: a constant text -> the Sql that stands for it.
    """
    if scan_filter.ignore_residuals:
        return sql.lit("true")
    schema, identities = scan_filter.schema, scan_filter.identities
    texts = {
        spec_id: residual(
            undecided(scan_filter.row_filter, identities[spec_id]), spec, schema, partition_value, literal
        )
        for spec_id, spec in scan_filter.state.specs.items()
    }
    first, *others = texts.items()
    return reduce(lambda chosen, item: sql.when(sql.col("partition_spec_id") == item[0], item[1]).otherwise(chosen),
                  others, first[1])  # fmt: skip


def _by_spec(scan_filter: ScanFilter, matches: Callable[[int, BooleanExpression], Sql]) -> Sql:
    """A predicate on partitions, by spec id; specs that the filter says nothing about are kept."""
    kinds = scan_filter.partition_filters
    kept = [sql.col("partition_spec_id") == one for one, kind in kinds.items() if isinstance(kind, AlwaysTrue)]
    tested = [
        (sql.col("partition_spec_id") == one) & matches(one, kind)
        for one, kind in kinds.items()
        if not isinstance(kind, AlwaysTrue | AlwaysFalse)
    ]
    return reduce(or_, [*kept, *tested], sql.lit(False))


def _tuple_predicate(_: int, partition_filter: BooleanExpression) -> Sql:
    return row_predicate(partition_filter, partition_value)


def _summary_predicate(_: int, partition_filter: BooleanExpression) -> Sql:
    """A manifest without summaries may hold anything."""
    fields = [sql.col(f"{SUMMARIES}.`{one}`").isNull() for one in sorted(referenced_ids(partition_filter))]
    return reduce(or_, fields, sql.lit(False)) | summary_might_match(partition_filter, _summary)


def _summary(field_id: int) -> FieldSummary:
    base = f"{SUMMARIES}.`{field_id}`"
    return FieldSummary(*(sql.col(f"{base}.{name}") for name in FieldSummary._fields))
