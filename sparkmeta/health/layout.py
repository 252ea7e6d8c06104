"""Measure the manifests of a snapshot by its manifest list or root alone: sizes, and overlaps by field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import SUMMARIES
from sparkmeta.compact.ranges import LeafRanges, leaf_ranges
from sparkmeta.entries.arrays import whole
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST
from sparkmeta.health.overlap_bars import PlacedBar, placed_bars
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT, MASKED
from sparkmeta.plan.prune import live_manifests
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.health.entries import ManifestBounds
    from sparkmeta.state import TableState

_MOST_BARS = 240


@dataclass(frozen=True)
class FieldDepth:
    """How data manifests overlap in one partition field or column.

    Attributes:
        kind: "partition field" or "column".
        manifests: the number of data manifests of the partition spec.
        overlaps: the mean number of others that a manifest overlaps.
        most_overlaps: the largest number of others that one overlaps.
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
        data_bytes: the bytes of the first.
        delete_bytes: the bytes of the second.
        masked: entries that deletion vectors of manifests mask.
        root_files: live files that a root lists itself.
        sizes: (exponent, manifests) of those from 2^exponent bytes up to twice that.
        depths: by partition field and column.
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
        bounds: bounds of columns by manifest, for manifest lists, which have none.
    """
    live = live_manifests(state.manifests)
    in_root = pc.equal(live.column("file_format"), IN_ROOT)
    files, root = live.filter(pc.invert(in_root)), live.filter(in_root)
    data, deletes = (_of(files, content) for content in (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST))
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
                mean, most = round(float(np.mean(overlaps)), 2), int(overlaps.max())
                depths.append(FieldDepth(name, kind, spec_id, len(overlaps), mean, most))
        return depths


def _summary_stats(manifests: pa.Table) -> dict[int, pa.Array]:
    """Return partition summaries as stats by partition field id. A null counts as one of two values."""
    if SUMMARIES not in manifests.column_names or not len(manifests):
        return {}
    summaries = whole(manifests.column(SUMMARIES))
    stats = {}
    for field, summary in zip(summaries.type, summaries.flatten(), strict=True):
        lower, upper, nulls = (summary.field(name) for name in ("lower_bound", "upper_bound", "contains_null"))
        # A child of a null struct has any value.
        lower, upper, nulls = (pc.if_else(summary.is_valid(), child, None) for child in (lower, upper, nulls))
        stats[int(field.name)] = _stats(lower, upper, nulls)
    return stats


def _column_stats(manifests: pa.Table, bounds: Mapping[int, ManifestBounds]) -> dict[int, pa.Array]:
    stats = {}
    for field_id, of_column in bounds.items():
        places = pc.index_in(manifests.column(MANIFEST).combine_chunks(), of_column.manifest)
        lower, upper = of_column.lower.take(places), of_column.upper.take(places)
        stats[field_id] = _stats(lower, upper, pa.repeat(False, len(lower)))
    return stats


def _stats(lower: pa.Array, upper: pa.Array, contains_null: pa.Array) -> pa.StructArray:
    nulls = contains_null.cast(pa.int64())
    values = pc.if_else(lower.is_valid(), pa.scalar(2, pa.int64()), pa.scalar(1, pa.int64()))
    names = ["lower_bound", "upper_bound", "null_value_count", "value_count"]
    return pa.StructArray.from_arrays([lower, upper, nulls, values], names=names)


def _of(manifests: pa.Table, content: ContentType) -> pa.Table:
    return manifests.filter(pc.equal(manifests.column("content_type"), int(content)))


def _total(manifests: pa.Table, name: str) -> int:
    return pc.sum(manifests.column(name)).as_py() or 0
