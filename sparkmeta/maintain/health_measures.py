"""Measure a table for its health report: sampled metrics, manifests, live entries and table metadata."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.transforms import HourTransform, MonthTransform, YearTransform
from pyiceberg.types import IntegerType

from sparkmeta.avro.manifest_list import SUMMARIES
from sparkmeta.commit.compaction_groups import LeafRanges, leaf_ranges
from sparkmeta.entries import relation
from sparkmeta.entries.live import is_live_entry, live_counts
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL
from sparkmeta.entries.relation import (
    beside,
    collected,
    columns_of,
    computed,
    exploded,
    grouped,
    select,
    some_columns,
    totals,
    where,
)
from sparkmeta.errors import UnsupportedError, translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.inspect.timeline import snapshots_by_time
from sparkmeta.maintain.dangling_deletes import ENTRY_COLUMNS
from sparkmeta.maintain.rewrite_position_deletes import SmallPuffinFiles, small_puffin_files
from sparkmeta.manifests.placement import ManifestLoad, Placement
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT, MASKED
from sparkmeta.plan.deletes.rules import SEQUENCE, data_path, is_dv, is_global_delete, partition_key
from sparkmeta.snapshot.search import live_manifests
from sparkmeta.spec.entry import BOUNDS, DELETE_FILE_PATH_ID, ContentType
from sparkmeta.spec.expiry import GC_ENABLED, Expired, ExpiryRules, choose_expired, without_expired
from sparkmeta.spec.metadata import ancestors_of
from sparkmeta.spec.summary import summary_number
from sparkmeta.text import byte_size, middle_out, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.partitioning import PartitionField

    from sparkmeta.charts import Moment
    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Aliased, Sql
    from sparkmeta.maintain.file_groups import FileSizes
    from sparkmeta.operations.table_operations import BaseTable
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata

DIGEST, INVERTED = "metrics", "inverted"
METRICS_MAPS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")

_BOUNDS = ("lower_bounds", "upper_bounds")
# Manifests are sampled until they have this many entries.
_MOST_ENTRIES = 20_000
_MOST_MANIFESTS = 4
_MOST_DIGESTS = 2_000
_MOST_COMPARED = 100
# Types whose bounds have no order, or several.
_UNORDERED = ("uuid", "unknown", "variant", "geometry", "geography")
# An entry of a metrics map has a column's id, and a value: a count or the length of a bound.
_COUNT_BYTES, _BOUND_BYTES = 4, 3


@dataclass(frozen=True)
class SampledMetrics:
    """The metrics of a column in sampled entries.

    Attributes:
        counts: the number of counts.
        bounds: the number of bounds.
        bytes: the approximate uncompressed bytes of all counts and bounds.
        longest: the bytes of the longest bound.
    """

    counts: int
    bounds: int
    bytes: int
    longest: int


@dataclass(frozen=True)
class SampledStats:
    """The metrics in the entries of some manifests.

    Attributes:
        manifests: the number of these manifests.
        of_manifests: the number of all data manifests.
        columns: metrics by column id.
        inverted: the number of entries with a lower bound above the upper one.
        first_inverted: the file and column of one inverted entry; None if there is none.
    """

    manifests: int = 0
    of_manifests: int = 0
    columns: Mapping[int, SampledMetrics] = field(default_factory=dict)
    inverted: int = 0
    first_inverted: str | None = None


def sampled(manifests: pa.Table) -> pa.Table:
    """Return an even sample of a snapshot's data manifests, without the files of a root."""
    files = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
    indices = np.unique(np.linspace(0, max(len(files) - 1, 0), _MOST_MANIFESTS).round().astype(np.int64))
    # The first sampled manifest is in the middle, where the files of neither the oldest nor the newest writer are.
    ordered = [int(index) for index in sorted(indices, key=lambda index: abs(int(index) - len(files) // 2))]
    counts = live_counts(files).to_pylist()
    chosen, entries = list[int](), 0
    for index in ordered if len(files) else []:
        if chosen and entries + (counts[index] or _MOST_ENTRIES) > _MOST_ENTRIES:
            break
        chosen.append(index)
        entries += counts[index] or _MOST_ENTRIES
    return files.take(pa.array(sorted(chosen), pa.int64()))


def digest(manifests: pa.Table) -> Aliased:
    """Return a column of an entry's metrics: structs of column id, bytes and whether it is a bound.

    If there are many entries, only an even sample of them has digests. Other entries have empty digests.
    """
    entries = sum(count or _MOST_ENTRIES for count in live_counts(manifests).to_pylist())
    step = max(1, entries // _MOST_DIGESTS)

    def metrics(name: str) -> Sql:
        is_bound = name in _BOUNDS
        return sql.transform(
            sql.call("map_entries", sql.col(name)),
            lambda entry: _metric(
                entry["key"],
                sql.call("length", entry["value"]) if is_bound else sql.lit(_COUNT_BYTES),
                is_bound=is_bound,
            ),
        )

    nothing = sql.empty_array(_metric(sql.lit(0), sql.lit(0), is_bound=False))
    filled = sql.concat(*(sql.coalesce(metrics(name), nothing) for name in METRICS_MAPS))
    return sql.when(sql.col(ORDINAL) % step == 0, filled).otherwise(nothing).alias(DIGEST)


def _metric(field_id: Sql, size: Sql, *, is_bound: bool) -> Sql:
    return sql.struct(field_id.alias("id"), size.alias("size"), sql.lit(is_bound).alias("is_bound"))


def compared_columns(types: Mapping[int, str]) -> dict[int, str]:
    """Return the columns whose bounds are compared, and their types: in wide tables, only the first columns."""
    ordered = sorted(field_id for field_id, name in types.items() if not name.startswith(_UNORDERED))
    return {field_id: types[field_id] for field_id in ordered[:_MOST_COMPARED]}


def inverted_bounds(columns: Mapping[int, str]) -> Aliased:
    """Return a column that names the file and its first column with inverted bounds; null if there is none."""
    cases: list[Sql] = []
    for field_id, type_name in columns.items():
        lower, upper = (sql.col(f"{CONTENT_STATS}.`{field_id}`.{name}") for name in BOUNDS)
        is_above = lower > upper
        if type_name in ("float", "double"):
            is_above &= ~sql.isnan(lower)
        cases += [is_above, sql.lit(field_id)]
    column = sql.Case(*cases) if cases else sql.lit(None)
    return sql.concat("column ", column.cast("string"), " of ", sql.col("location")).alias(INVERTED)


def sampled_stats(sample: Relation | None, manifests: int, of_manifests: int) -> SampledStats:
    """Aggregate the digests of sampled entries by column."""
    if sample is None:
        return SampledStats(0, of_manifests)
    is_bound, size = sql.col("is_bound"), sql.col("size")
    figures = {
        "counts": sql.count_if(~is_bound),
        "bounds": sql.count_if(is_bound),
        "bytes": sql.call("sum", size + sql.when(is_bound, _BOUND_BYTES).otherwise(0)),
        "longest": sql.call("max", sql.when(is_bound, size).otherwise(0)),
    }
    rows = collected(grouped(exploded(sample, DIGEST), sql.columns("id"), sql.named(figures))).to_pylist()
    columns = {row.pop("id"): SampledMetrics(**row) for row in rows}
    inverted = sql.col(INVERTED)
    figures = {"files": sql.count_if(inverted.isNotNull()), "first": sql.call("min", inverted)}
    of_inverted = totals(sample, sql.named(figures))
    return SampledStats(manifests, of_manifests, columns, of_inverted["files"] or 0, of_inverted["first"])


def _sum(name: str, condition: Sql | None = None) -> Sql:
    """Return the aggregate that adds a column in the rows for which a condition is true."""
    column = sql.col(name)
    return sql.call("sum", column if condition is None else sql.when(condition, column).otherwise(0))


# -- Arrange overlapping manifests as stacked bars --------------------------------------------------------------------


class PlacedBar(NamedTuple):
    """A manifest in a map of overlaps.

    Attributes:
        place: its row in the ranges.
        start: its start in the order, from 0 to 1.
        end: its end in the order, from 0 to 1.
        row: the row of the picture that has the bar. Bars in a row don't overlap.
    """

    place: int
    start: float
    end: float
    row: int


def placed_bars(ranges: LeafRanges, limit: int) -> Iterator[PlacedBar]:
    """Yield the bars of manifests. If there are more than `limit`, choose an even sample.

    A manifest with a single value is drawn with a width. It lies between the ranges that end with the value and the
    ranges that begin with it. Steps of the order that no range covers have no width.
    """
    order = ranges.order
    opened = np.zeros(int(ranges.upper.max(initial=0)) + 1, np.int64)
    np.add.at(opened, ranges.lower, 1)
    np.add.at(opened, ranges.upper, -1)
    positions = np.concatenate([[0], np.cumsum(np.cumsum(opened) > 0)])
    lower, upper = positions[ranges.lower[order]], positions[ranges.upper[order]]
    is_point = lower == upper
    starts = lower + np.cumsum(is_point) - is_point
    stops = np.where(is_point, starts + 1, upper + np.searchsorted(lower[is_point], upper))
    longest = int(stops.max(initial=1))
    ends: list[tuple[int, int]] = []
    for index in np.linspace(0, len(order) - 1, min(len(order), limit)).astype(np.int64):
        start, end = int(starts[index]), int(stops[index])
        row = heapq.heappop(ends)[1] if ends and ends[0][0] <= start else len(ends)
        heapq.heappush(ends, (end, row))
        yield PlacedBar(int(order[index]), start / longest, end / longest, row)


# -- Measure the sizes and overlaps of manifests ----------------------------------------------------------------------
# The manifest list or root is enough.


_MOST_BARS = 240


@dataclass(frozen=True)
class FieldDepth:
    """How data manifests overlap in one partition field or column.

    Attributes:
        kind: "partition field" or "column".
        manifests: the number of data manifests of the partition spec.
        overlaps: the mean number of other manifests that a manifest overlaps.
        most_overlaps: the maximum number of other manifests that a manifest overlaps.
    """

    name: str
    kind: str
    spec_id: int
    manifests: int
    overlaps: float
    most_overlaps: int


@dataclass(frozen=True)
class Layout:
    """The manifests of a snapshot in numbers.

    Attributes:
        data_manifests: the number of manifests with live data files.
        delete_manifests: the number of manifests with live deletes.
        data_bytes: the bytes of these data manifests.
        delete_bytes: the bytes of these delete manifests.
        masked: entries that deletion vectors of manifests mask.
        root_files: live files that a root lists itself.
        sizes: (exponent, the number of manifests from 2^exponent to less than twice as many bytes).
        depths: the overlaps by partition field and column.
        bars: a map of the data manifests of the most common partition spec, in its order.
        mapped: the number of these manifests.
    """

    data_manifests: int
    delete_manifests: int
    data_bytes: int
    delete_bytes: int
    masked: int
    root_files: int
    sizes: tuple[tuple[int, int], ...]
    depths: tuple[FieldDepth, ...]
    bars: tuple[PlacedBar, ...]
    mapped: int


def measure_layout(state: TableState, columns: Mapping[int, str], bounds: Mapping[int, ManifestBounds]) -> Layout:
    """Measure the manifests of a state's snapshot, without a job.

    Args:
        columns: ids of columns -> names.
        bounds: bounds of columns by manifest, since manifest lists have none.
    """
    live = live_manifests(state.manifests)
    in_root = pc.equal(live.column("file_format"), IN_ROOT)
    files, root = live.filter(pc.invert(in_root)), live.filter(in_root)
    data, deletes = (
        _of_content(files, content) for content in (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
    )
    keyed = ClusteredManifests.of(state, data, bounds)
    specs = Counter(data.column("partition_spec_id").to_pylist())
    spec_id = max(specs, key=lambda spec: (specs[spec], spec), default=state.metadata.default_spec_id)
    ranges = keyed.ranges(spec_id, keyed.partition_keys(spec_id) or list(columns))
    sizes = Counter((size or 1).bit_length() - 1 for size in files.column("file_size_in_bytes").to_pylist())
    return Layout(
        data_manifests=len(data),
        delete_manifests=len(deletes),
        data_bytes=_total(data, "file_size_in_bytes"),
        delete_bytes=_total(deletes, "file_size_in_bytes"),
        masked=_total(files, MASKED) if MASKED in files.column_names else 0,
        root_files=_total(root, "record_count") if len(root) else 0,
        sizes=tuple(sorted(sizes.items())),
        depths=tuple(keyed.depths(columns)),
        bars=tuple(placed_bars(ranges, _MOST_BARS)),
        mapped=len(ranges.lower),
    )


@dataclass(frozen=True)
class ClusteredManifests:
    """Data manifests with bounds of partition fields and columns, as `content_stats`.

    Attributes:
        manifests: the manifests; their stats are named by the ids of `keys` and of columns.
        keys: spec id -> (key, name) of its partition fields.
    """

    manifests: pa.Table
    keys: Mapping[int, Sequence[tuple[int, str]]]

    @staticmethod
    def of(state: TableState, manifests: pa.Table, bounds: Mapping[int, ManifestBounds]) -> ClusteredManifests:
        """Return data manifests, rows of `state.manifests`, with bounds of columns."""
        names = {part.field_id: part.name for spec in state.specs.values() for part in spec.fields}
        if CONTENT_STATS in manifests.column_names:
            sources = state.types.tuple_sources
            keys = {spec: [(source, names[field]) for field, source in pairs] for spec, pairs in sources.items()}
            return ClusteredManifests(manifests, keys)
        keys = {spec_id: [(part.field_id, part.name) for part in spec.fields] for spec_id, spec in state.specs.items()}
        stats = {**_summary_stats(manifests), **_column_stats(manifests, bounds)}
        if stats:
            column = pa.StructArray.from_arrays(list(stats.values()), names=[str(key) for key in stats])
        else:
            column = pa.nulls(len(manifests), pa.struct([]))
        return ClusteredManifests(manifests.append_column(CONTENT_STATS, column), keys)

    def partition_keys(self, spec_id: int) -> list[int]:
        """Return the keys of a spec's partition fields."""
        return [key for key, _ in self.keys[spec_id]]

    def ranges(self, spec_id: int, keys: Sequence[int]) -> LeafRanges:
        """Return the ranges of a spec's manifests in the order of keys."""
        of_spec = self.manifests.filter(pc.equal(self.manifests.column("partition_spec_id"), spec_id))
        return leaf_ranges(of_spec, keys, frozenset(self.partition_keys(spec_id)))

    def depths(self, columns: Mapping[int, str]) -> list[FieldDepth]:
        """Return the depths of all partition fields of specs with manifests, and of columns."""
        depths = []
        for spec_id in sorted(set(self.manifests.column("partition_spec_id").to_pylist())):
            fields = [(key, name, "partition field") for key, name in self.keys[spec_id]]
            fields += [(key, name, "column") for key, name in columns.items()]
            for key, name, kind in fields:
                overlaps = self.ranges(spec_id, [key]).overlaps
                mean, greatest = round(float(np.mean(overlaps)), 2), int(overlaps.max())
                depths.append(FieldDepth(name, kind, spec_id, len(overlaps), mean, greatest))
        return depths


def _summary_stats(manifests: pa.Table) -> dict[int, pa.Array]:
    """Return partition summaries as stats by partition field id. A null counts as one of two values."""
    if SUMMARIES not in manifests.column_names or not len(manifests):
        return {}
    summaries = whole(manifests.column(SUMMARIES))
    stats = {}
    for column, summary in zip(summaries.type, summaries.flatten(), strict=True):
        lower, upper, nulls = (summary.field(name) for name in ("lower_bound", "upper_bound", "contains_null"))
        # A child of a null struct may have any value.
        lower, upper, nulls = (pc.if_else(summary.is_valid(), child, None) for child in (lower, upper, nulls))
        stats[int(column.name)] = _stats(lower, upper, nulls)
    return stats


def _column_stats(manifests: pa.Table, bounds: Mapping[int, ManifestBounds]) -> dict[int, pa.Array]:
    stats = {}
    for field_id, of_column in bounds.items():
        rows = pc.index_in(manifests.column(MANIFEST).combine_chunks(), of_column.manifest)
        lower, upper = of_column.lower.take(rows), of_column.upper.take(rows)
        stats[field_id] = _stats(lower, upper, pa.repeat(False, len(lower)))
    return stats


def _stats(lower: pa.Array, upper: pa.Array, contains_null: pa.Array) -> pa.StructArray:
    nulls = contains_null.cast(pa.int64())
    values = pc.if_else(lower.is_valid(), pa.scalar(2, pa.int64()), pa.scalar(1, pa.int64()))
    names = ["lower_bound", "upper_bound", "null_value_count", "value_count"]
    return pa.StructArray.from_arrays([lower, upper, nulls, values], names=names)


def _of_content(manifests: pa.Table, content: ContentType) -> pa.Table:
    return manifests.filter(pc.equal(manifests.column("content_type"), int(content)))


def _total(manifests: pa.Table, name: str) -> int:
    return pc.sum(manifests.column(name)).as_py() or 0


# -- Measure the live entries of a snapshot ---------------------------------------------------------------------------
# Each manifest is read once, by the driver if there are few manifests, otherwise by Spark jobs. Deletes are read first.
# Then data files are read, and aggregated by manifest, partition and size. Spark keeps the result, and all figures are
# queries over it. If deletes name their data files, it also keeps hashes of all paths.


_KEY, _PATH, _SEQUENCE, _BIN, _FILE = "partition_key", "path", "sequence", "size_bin", "file"
_DATA_KEY, _DATA_PATH, _DATA_SEQUENCE = "data_key", "data_path", "data_sequence"
_DATA_COLUMNS = ("version_info", "partition_spec_id", "record_count", "file_size_in_bytes")
_POSITION, _EQUALITY = int(ContentType.POSITION_DELETES), int(ContentType.EQUALITY_DELETES)
_LARGEST_BIN = 62


@dataclass(frozen=True)
class SmallFileLimits:
    """The limits for small files and for deleted rows.

    Attributes:
        target_bytes: the target size of data files.
        small_bytes: smaller files are small.
        min_small_files: the number of small files at which a partition is crowded.
        max_deleted_ratio: the share of deleted rows at which a partition is dense.
        puffin_sizes: the sizes that Puffin files should have.
        partitions: the maximum number of partitions to list, per kind.
    """

    target_bytes: int
    small_bytes: int
    min_small_files: int
    max_deleted_ratio: float
    puffin_sizes: FileSizes
    partitions: int = 12


@dataclass(frozen=True)
class PartitionFigures:
    """A partition in numbers.

    Attributes:
        values: spec id and partition values, by partition field id.
        deleted: the rows deleted by deletion vectors and position deletes whose entries name the data file.
    """

    spec_id: int
    values: Mapping[int, Any]
    files: int
    bytes: int
    records: int
    small_files: int
    deleted: int

    @property
    def deleted_ratio(self) -> float:
        """The share of deleted rows, at most 1."""
        return min(1.0, self.deleted / self.records) if self.records else float(self.deleted > 0)


@dataclass(frozen=True)
class DeleteFigures:
    """Delete entries in numbers: files by kind, records, and bytes (of the blobs for deletion vectors)."""

    position_files: int = 0
    equality_files: int = 0
    vectors: int = 0
    records: int = 0
    bytes: int = 0

    @property
    def files(self) -> int:
        """The number of all delete entries."""
        return self.position_files + self.equality_files + self.vectors


@dataclass(frozen=True)
class ManifestBounds:
    """The bounds of a column in each data manifest, from its files; null if a file has no bounds."""

    manifest: pa.Array
    lower: pa.Array
    upper: pa.Array


@dataclass(frozen=True)
class EntryFigures:
    """The live entries of a snapshot in numbers.

    Attributes:
        sizes: (exponent, files, bytes) of the data files from 2^exponent to less than twice as many bytes.
        partitions: the number of partitions.
        crowded_partitions: the number of partitions with too many small files.
        small_files: the number of small files in crowded partitions.
        files_saved: the number of files that a merge of the small files would save.
        dense_partitions: the number of partitions with too many deleted rows.
        dense_files: the data files in dense partitions.
        crowded: the partitions with the most small files.
        densest: the partitions with the largest share of deleted rows.
        deletes: all delete entries.
        dangling: the delete entries that apply to no live data file.
        small_puffin: the Puffin files that are too small.
        bounds: bounds by column.
        stats: the metrics of some manifests' entries.
    """

    files: int
    bytes: int
    records: int
    sizes: tuple[tuple[int, int, int], ...]
    partitions: int
    crowded_partitions: int
    small_files: int
    files_saved: int
    dense_partitions: int
    dense_files: int
    crowded: tuple[PartitionFigures, ...]
    densest: tuple[PartitionFigures, ...]
    deletes: DeleteFigures
    dangling: DeleteFigures
    small_puffin: SmallPuffinFiles
    bounds: Mapping[int, ManifestBounds]
    stats: SampledStats


def measure_entries(state: TableState, limits: SmallFileLimits, columns: Sequence[int]) -> EntryFigures:
    """Measure the live entries of a state's snapshot.

    Args:
        columns: ids of columns whose bounds are aggregated by manifest.

    Raises:
        CorruptFileError: a manifest is damaged.
    """
    with translated_errors():
        return _Measurement(state, limits, tuple(columns)).figures()


@dataclass(frozen=True)
class _Measurement:
    state: TableState
    limits: SmallFileLimits
    columns: tuple[int, ...]

    def figures(self) -> EntryFigures:
        self._refuse_many()
        deletes = _figures(self._delete_counts)
        measured = self._totals()
        oldest = measured.pop("oldest")
        sizes = grouped(self._groups, sql.columns(_BIN), sql.named({name: _sum(name) for name in ("files", "bytes")}))
        return EntryFigures(
            **measured,
            sizes=tuple(tuple(row.values()) for row in collected(sizes).sort_by(_BIN).to_pylist()),
            crowded=self._partitions_by("small_files", self._is_crowded) if measured["crowded_partitions"] else (),
            densest=self._partitions_by("ratio", sql.col("deleted") > 0) if self._names_files else (),
            deletes=deletes,
            dangling=self._dangling(oldest) if deletes.files else DeleteFigures(),
            small_puffin=self._small_puffin() if deletes.vectors else SmallPuffinFiles(0, 0),
            bounds=self._bounds(),
            stats=sampled_stats(self._sample, len(self._sampled_manifests), len(self._data_manifests)),
        )

    # -- Read ---------------------------------------------------------------------------------------------------------

    def _refuse_many(self) -> None:
        """Refuse many entries where there is no Spark.

        Raises:
            UnsupportedError: the driver does not read them.
        """
        state, load = self.state, ManifestLoad.of(self._manifests)
        if state.access.alone and not load.fits_driver(state.settings.driver_manifest_bytes):
            size = f"{load.entries or 0:,} entries in {byte_size(load.size_in_bytes)} of manifests"
            raise UnsupportedError(
                f"{state.metadata.location}: the table has {size}: to measure its health needs jobs of Spark, which "
                "print(table.maintenance.health()) in Python starts"
            )

    @cached_property
    def _manifests(self) -> pa.Table:
        return live_manifests(self.state.manifests)

    @cached_property
    def _on_driver(self) -> bool:
        """Whether the driver reads all entries."""
        return self.state.reader.driver_reads(self._manifests, self.state.projection(_DATA_COLUMNS))

    def _entries(self, manifests: pa.Table, projection: EntryProjection) -> Relation:
        """Return the live entries of manifests."""
        state = self.state
        if self._on_driver:
            # Collect the entries: tasks read a manifest that the cache has evicted since, and the driver's keys are not
            # Spark's hashes.
            entries: Relation = collected(state.relation(manifests, projection, Placement.DRIVER))
        else:
            entries = state.entries(manifests, projection)
        return where(entries, is_live_entry())

    @cached_property
    def _deletes(self) -> Relation | None:
        """The live delete entries, computed once; None without any."""
        state = self.state
        manifests = live_manifests(state.delete_manifests)
        if not len(manifests):
            return None
        path = data_path()
        columns = {
            _KEY: partition_key(state),
            "content": sql.col("content_type"),
            "is_vector": is_dv(),
            "is_global": is_global_delete(state),
            _SEQUENCE: sql.col(SEQUENCE),
            _PATH: sql.when(path.isNotNull(), sql.call("xxhash64", path)),
            "is_named": sql.col("referenced_file").isNotNull(),
            _FILE: sql.when(is_dv(), sql.call("xxhash64", sql.col("location"))),
            "records": sql.col("record_count"),
            "bytes": sql.coalesce(sql.col("deletion_vector.size_in_bytes"), sql.col("file_size_in_bytes")),
        }
        entries = self._entries(manifests, state.projection(ENTRY_COLUMNS, {DELETE_FILE_PATH_ID}))
        return computed(select(entries, sql.named(columns)))

    @cached_property
    def _delete_counts(self) -> dict[str, int]:
        """The values of `DeleteFigures` for all deletes, and the number that name their data file, by name."""
        return _counted(self._deletes)

    @property
    def _names_files(self) -> bool:
        """Whether any delete names its data file."""
        return self._delete_counts[_NAMED] > 0

    @cached_property
    def _data_manifests(self) -> pa.Table:
        return live_manifests(self.state.data_manifests)

    @cached_property
    def _sampled_manifests(self) -> pa.Table:
        return sampled(self._data_manifests)

    @cached_property
    def _sample(self) -> Relation | None:
        """The data files of some manifests, with digests of their metrics maps, computed once."""
        if not len(self._sampled_manifests):
            return None
        compared = compared_columns(self.state.types.column_types)
        extra = (digest(self._sampled_manifests), inverted_bounds(compared))
        return computed(self._rows(self._sampled_manifests, METRICS_MAPS, extra, compared))

    @cached_property
    def _data(self) -> Relation:
        """The live data files, computed once if their paths are needed later."""
        ids = self._sampled_manifests.column(MANIFEST).combine_chunks()
        others = self._data_manifests.filter(pc.invert(pc.is_in(self._data_manifests.column(MANIFEST), ids)))
        parts = []
        if self._sample is not None:
            names = [name for name in relation.names(self._sample) if name not in (DIGEST, INVERTED)]
            parts.append(some_columns(self._sample, names))
        if len(others) or not parts:
            parts.append(self._rows(others, (), ()))
        rows = self._union(parts)
        return computed(rows) if self._names_files else rows

    def _rows(
        self, manifests: pa.Table, maps: Sequence[str], extra: Sequence[Aliased], compared: Iterable[int] = ()
    ) -> Relation:
        state = self.state
        paths = {_PATH: sql.call("xxhash64", sql.col("location"))} if self._names_files else {}
        columns = {*_DATA_COLUMNS, *maps, *(("location",) if extra or paths else ())}
        projection = replace(state.projection(columns, {*self.columns, *compared}), as_written=bool(extra))
        shown = {
            MANIFEST: sql.col(MANIFEST),
            _KEY: partition_key(state),
            _SEQUENCE: sql.col(SEQUENCE),
            "records": sql.col("record_count"),
            "bytes": sql.coalesce(sql.col("file_size_in_bytes"), 0),
            **paths,
            **{
                f"{end}_{field_id}": sql.col(f"{CONTENT_STATS}.`{field_id}`.{end}_bound")
                for field_id in self.columns
                for end in ("lower", "upper")
            },
        }
        return select(self._entries(manifests, projection), [*sql.named(shown), *extra])

    def _union(self, parts: Iterable[Relation]) -> Relation:
        first, *others = parts
        for rows in others:
            first = relation.union(first, rows, self.state)
        return first

    # -- Aggregate ----------------------------------------------------------------------------------------------------

    @cached_property
    def _groups(self) -> Relation:
        """The data files by manifest, partition and size, computed once."""
        size = sql.col("bytes")
        is_small = size < self.limits.small_bytes
        # Add a little, since the computed logarithm of a power of two may be slightly less than a whole number.
        logarithm = sql.call("floor", sql.call("log2", sql.call("greatest", size, 1)) + 1e-9)
        size_bin = sql.call("least", logarithm, _LARGEST_BIN).cast("int").alias(_BIN)
        figures = {
            "files": sql.call("sum", 1),
            "bytes": _sum("bytes"),
            "records": _sum("records"),
            "oldest": sql.call("min", sql.coalesce(sql.col(_SEQUENCE), 0)),
            "small_files": sql.count_if(is_small),
            "small_bytes": _sum("bytes", is_small),
        }
        for field_id in self.columns:
            lower, upper = sql.col(f"lower_{field_id}"), sql.col(f"upper_{field_id}")
            figures |= {
                f"lower_{field_id}": sql.call("min", lower),
                f"upper_{field_id}": sql.call("max", upper),
                f"without_{field_id}": sql.count_if(lower.isNull() | upper.isNull()),
            }
        return computed(grouped(self._data, [*sql.columns(MANIFEST, _KEY), size_bin], sql.named(figures)))

    @cached_property
    def _partitions(self) -> Relation:
        """A row for each partition with data files, computed once."""
        names, nothing = ("files", "bytes", "records", "small_files", "small_bytes"), sql.lit(0).cast("bigint")
        data = select(self._groups, [*sql.columns(_KEY, *names, "oldest"), nothing.alias("deleted")])
        if self._names_files:
            empty = {**dict.fromkeys(names, nothing), "oldest": sql.lit(None).cast("bigint")}
            deleted = select(self._deleted, [*sql.columns(_KEY), *sql.named(empty), *sql.columns("deleted")])
            data = relation.union(data, deleted, self.state)
        figures = {name: _sum(name) for name in (*names, "deleted")} | {"oldest": sql.call("min", sql.col("oldest"))}
        partitions = where(grouped(data, sql.columns(_KEY), sql.named(figures)), sql.col("files") > 0)
        share = sql.call("least", sql.lit(1.0), sql.col("deleted") / sql.col("records"))
        ratio = sql.when(sql.col("records") == 0, 0.0).otherwise(share).alias("ratio")
        return computed(relation.with_columns(partitions, ratio))

    @property
    def _is_crowded(self) -> Sql:
        return sql.col("small_files") >= self.limits.min_small_files

    def _totals(self) -> dict[str, Any]:
        small, target = sql.col("small_files"), self.limits.target_bytes
        is_dense = sql.col("ratio") >= self.limits.max_deleted_ratio
        # Small files become at least one file.
        merged = sql.call("greatest", sql.lit(1).cast("bigint"), (sql.col("small_bytes") + (target - 1)) // target)
        figures = {
            "files": _sum("files"),
            "bytes": _sum("bytes"),
            "records": _sum("records"),
            "partitions": sql.call("sum", 1),
            "crowded_partitions": sql.count_if(self._is_crowded),
            "small_files": _sum("small_files", self._is_crowded),
            "files_saved": sql.call("sum", sql.when(self._is_crowded, small - merged).otherwise(0)),
            "dense_partitions": sql.count_if(is_dense),
            "dense_files": _sum("files", is_dense),
        }
        oldest = sql.call("min", sql.col("oldest")).alias("oldest")
        row = totals(self._partitions, [*sql.named(figures), oldest])
        return {name: row[name] or 0 for name in figures} | {"oldest": row["oldest"]}

    def _partitions_by(self, order: str, condition: Sql) -> tuple[PartitionFigures, ...]:
        """Return the first partitions by a column, in descending order."""
        first = relation.largest(where(self._partitions, condition), (order, "files"), self.limits.partitions)
        rows = []
        for row in first.drop_columns(["small_bytes", "oldest", "ratio"]).to_pylist():
            spec_id, *values = row.pop(_KEY).values()
            by_field = dict(zip(self.state.types.partition_fields, values, strict=True))
            rows.append(PartitionFigures(spec_id, by_field, **row))
        return tuple(rows)

    def _bounds(self) -> dict[int, ManifestBounds]:
        if not self.columns:
            return {}
        ends = [
            (f"{end}_{field_id}", aggregate, f"without_{field_id}")
            for field_id in self.columns
            for aggregate, end in (("min", "lower"), ("max", "upper"))
        ]
        figures = {name: sql.call(aggregate, sql.col(name)) for name, aggregate, _ in ends}
        figures |= {without: _sum(without) for _, _, without in ends}
        known = {name: sql.when(sql.col(without) == 0, sql.col(name)) for name, _, without in ends}
        by_manifest = grouped(self._groups, sql.columns(MANIFEST), sql.named(figures))
        table = collected(select(by_manifest, [*sql.columns(MANIFEST), *sql.named(known)]))
        columns = {name: whole(table.column(name)) for name in table.column_names}
        return {
            field_id: ManifestBounds(columns[MANIFEST], columns[f"lower_{field_id}"], columns[f"upper_{field_id}"])
            for field_id in self.columns
        }

    # -- Deletes -----------------------------------------------------------------------------------------------------

    @cached_property
    def _file_deletes(self) -> Relation:
        """The deletes that name their data file, each with the file and whether it applies, computed once."""
        assert self._deletes is not None
        data = columns_of(self._data, {_DATA_PATH: _PATH, _DATA_SEQUENCE: _SEQUENCE, _DATA_KEY: _KEY})
        named = beside(where(self._deletes, sql.col(_PATH).isNotNull()), data, _PATH, _DATA_PATH)
        of_data, sequence = sql.col(_DATA_SEQUENCE), sql.col(_SEQUENCE)
        is_older = sql.coalesce(of_data, 0) <= sql.coalesce(sequence, of_data, 0)
        applies = sql.col(_DATA_PATH).isNotNull() & (sql.col("is_vector") | is_older)
        return computed(relation.with_columns(named, applies.alias(_APPLIES)))

    @property
    def _deleted(self) -> Relation:
        """The number of deleted rows of each data file, counted as rewrites of data files count them.

        Only deletes whose entry names the file count. A deletion vector supersedes its file's other deletes.
        """
        applied = where(self._file_deletes, sql.col("is_named") & sql.col(_APPLIES))
        records, keys = sql.col("records"), [sql.col(_DATA_KEY).alias(_KEY), *sql.columns(_DATA_PATH)]
        of_vectors = sql.call("sum", sql.when(sql.col("is_vector"), records))
        by_file = grouped(applied, keys, sql.named({"of_vectors": of_vectors, "records": sql.call("sum", records)}))
        return select(by_file, [*sql.columns(_KEY), sql.coalesce(sql.col("of_vectors"), records).alias("deleted")])

    def _small_puffin(self) -> SmallPuffinFiles:
        assert self._deletes is not None
        vectors = where(self._deletes, sql.col("is_vector"))
        return small_puffin_files(vectors, _FILE, sql.col("bytes"), self.limits.puffin_sizes)[1]

    def _dangling(self, oldest_of_table: int | None) -> DeleteFigures:
        """Count the deletes that apply to no data file, by the rules of `dangling_deletes`, with paths as hashes.

        Args:
            oldest_of_table: the least sequence number of all data files.
        """
        assert self._deletes is not None
        oldest = columns_of(self._partitions, {_DATA_KEY: _KEY, "oldest": "oldest"})
        scoped = beside(where(self._deletes, sql.col(_PATH).isNull()), oldest, _KEY, _DATA_KEY)
        whole_table = sql.lit(oldest_of_table).cast("bigint")
        known, sequence = sql.when(sql.col("is_global"), whole_table).otherwise(sql.col("oldest")), sql.col(_SEQUENCE)
        newer = sql.when(sql.col("content") == _EQUALITY, known < sequence).otherwise(known <= sequence)
        dangling = _deletes_of(where(scoped, ~(known.isNotNull() & sql.coalesce(newer, True))))
        if self._names_files:
            of_files = _deletes_of(where(self._file_deletes, ~sql.col(_APPLIES)))
            dangling = relation.union(dangling, of_files, self.state)
        return _figures(_counted(dangling))


def _deletes_of(rows: Relation) -> Relation:
    return some_columns(rows, ("content", "is_vector", "records", "bytes", _PATH))


def _counted(deletes: Relation | None) -> dict[str, int]:
    counts = {} if deletes is None else totals(deletes, sql.named(_DELETE_COUNTS))
    return {name: counts.get(name) or 0 for name in _DELETE_COUNTS}


_NAMED, _APPLIES = "naming_files", "applies"
_DELETE_COUNTS = {
    "position_files": sql.count_if((sql.col("content") == _POSITION) & ~sql.col("is_vector")),
    "equality_files": sql.count_if(sql.col("content") == _EQUALITY),
    "vectors": sql.count_if(sql.col("is_vector")),
    "records": _sum("records"),
    "bytes": _sum("bytes"),
    _NAMED: sql.count_if(sql.col(_PATH).isNotNull()),
}


def _figures(counts: Mapping[str, int]) -> DeleteFigures:
    return DeleteFigures(**{name: count for name, count in counts.items() if name != _NAMED})


# -- Partitions as text -----------------------------------------------------------------------------------------------


_PERIODS = (YearTransform, MonthTransform, HourTransform)
_MOST_CHARACTERS = 60


def partition_text(state: TableState, partition: PartitionFigures) -> str:
    """Return a partition as text such as `day=2026-01-31, country=NO`, shortened if it is long."""
    fields = state.specs[partition.spec_id].fields
    texts = [f"{field.name}={_value_text(field, partition.values.get(field.field_id))}" for field in fields]
    return middle_out(printable(", ".join(texts) or "whole table"), _MOST_CHARACTERS)


def _value_text(field: PartitionField, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(field.transform, _PERIODS) and isinstance(value, int):
        return str(field.transform.to_human_string(IntegerType(), value))
    return value.hex() if isinstance(value, bytes) else str(value)


# -- Measure the table metadata ---------------------------------------------------------------------------------------


_DAY_MS = 86_400_000


@dataclass(frozen=True)
class History:
    """The snapshots of a table in numbers.

    Attributes:
        snapshots: the number of all snapshots.
        expired: the number of snapshots that expire by the table's properties.
        expired_refs: the branches and tags that expire with them.
        pinned_bytes: the bytes of data files that only expired snapshots of main need, estimated from summaries.
        old_refs: branches and tags, other than main, whose snapshot is older than `max_ref_age_days`.
        kept_by_refs: the number of snapshots that would expire without `old_refs`.
        unused_schemas: the number of schemas that no remaining snapshot uses, if all partition specs stay.
        may_expire: whether the table property `gc.enabled` permits it.
        metadata_json_bytes: the size of the current metadata file.
        statistics_bytes: the bytes of statistics files.
        moments: snapshots by time; an even sample if there are many.
    """

    snapshots: int
    expired: int
    expired_refs: tuple[str, ...]
    pinned_bytes: int
    old_refs: tuple[str, ...]
    kept_by_refs: int
    unused_schemas: int
    may_expire: bool
    metadata_json_bytes: int
    statistics_bytes: int
    moments: tuple[Moment, ...]


def measure_history(table: BaseTable, max_ref_age_days: int, now_ms: int) -> History:
    """Measure the history of a table, without a job.

    Raises:
        ValidationError: a table property has an invalid value.
    """
    metadata = table.metadata
    may_expire = metadata.properties.get(GC_ENABLED, "true").lower() == "true"
    permitted = metadata.model_copy(update={"properties": {**metadata.properties, GC_ENABLED: "true"}})
    rules = ExpiryRules(now_ms)
    expired = choose_expired(permitted, rules)
    old = _old_refs(permitted, expired, now_ms - max_ref_age_days * _DAY_MS)
    others = {name: ref for name, ref in permitted.refs.items() if name not in old}
    without = choose_expired(permitted.model_copy(update={"refs": others}), rules) if old else expired
    gone = {snapshot.snapshot_id for snapshot in expired.snapshots}
    # Snapshots with trees do not record which specs they use. If there are any, expiry keeps all specs and schemas.
    specs = None if table.state.has_trees else {spec.spec_id for spec in metadata.partition_specs}
    remaining = without_expired(permitted, expired, specs, now_ms)
    statistics = [*metadata.statistics, *metadata.partition_statistics]
    return History(
        snapshots=len(metadata.snapshots),
        expired=len(gone),
        expired_refs=expired.refs,
        pinned_bytes=_pinned_bytes(metadata, gone),
        old_refs=old,
        kept_by_refs=len(without.snapshots) - len(gone),
        unused_schemas=len(metadata.schemas) - len(remaining.schemas),
        may_expire=may_expire,
        metadata_json_bytes=table.state.files.length(table.metadata_location),
        statistics_bytes=sum(file.file_size_in_bytes for file in statistics),
        moments=tuple(snapshots_by_time(metadata, gone)),
    )


def _old_refs(metadata: TableMetadata, expired: Expired, oldest_ms: int) -> tuple[str, ...]:
    times = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in metadata.snapshots}
    return tuple(
        name
        for name, ref in sorted(metadata.refs.items())
        if name not in (MAIN_BRANCH, *expired.refs) and times.get(ref.snapshot_id, oldest_ms) < oldest_ms
    )


def _pinned_bytes(metadata: TableMetadata, expired: set[int]) -> int:
    """Return the bytes of files that were removed by snapshots of main whose parents expire."""
    history = ancestors_of(metadata, metadata.current_snapshot_id)
    return sum(
        summary_number(snapshot, "removed-files-size") or 0
        for snapshot in history
        if snapshot.parent_snapshot_id in expired
    )
