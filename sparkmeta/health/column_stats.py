"""The size of metrics by column, in the entries of some manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.entries.counts import live_counts
from sparkmeta.entries.projection import ORDINAL
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DIGEST = "metrics"
METRICS_MAPS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")

_BOUNDS = ("lower_bounds", "upper_bounds")
# Manifests are sampled until they have this many entries.
_MOST_ENTRIES = 20_000
_MOST_MANIFESTS = 4
_MOST_DIGESTS = 2_000
# An entry of a metrics map has a column's id, and a value: a count or the length of a bound.
_COUNT_BYTES, _BOUND_BYTES = 4, 3


@dataclass(frozen=True)
class ColumnStats:
    """The metrics of a column in sampled entries.

    Attributes:
        counts: the number of counts.
        bounds: the number of bounds.
        bytes: about the uncompressed bytes of all of them.
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
    """

    manifests: int = 0
    of_manifests: int = 0
    columns: Mapping[int, ColumnStats] = field(default_factory=dict)


def sampled(manifests: pa.Table) -> pa.Table:
    """Return few of a snapshot's data manifests, evenly spread among them, without the files of a root."""
    files = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
    places = np.unique(np.linspace(0, max(len(files) - 1, 0), _MOST_MANIFESTS).round().astype(np.int64))
    # The first that is taken is in the middle, where neither the oldest nor the newest writer's files are.
    ordered = [int(place) for place in sorted(places, key=lambda place: abs(int(place) - len(files) // 2))]
    counts = live_counts(files).to_pylist()
    chosen, entries = list[int](), 0
    for place in ordered if len(files) else []:
        if chosen and entries + (counts[place] or _MOST_ENTRIES) > _MOST_ENTRIES:
            break
        chosen.append(place)
        entries += counts[place] or _MOST_ENTRIES
    return files.take(pa.array(sorted(chosen), pa.int64()))


def digest(manifests: pa.Table) -> tuple[str, ...]:
    """Return a column expression: the metrics of entries as structs of column id, bytes and whether it is a bound.

    Of many entries, some have a digest, evenly spread over the manifests, and the others an empty one.
    """
    entries = sum(count or _MOST_ENTRIES for count in live_counts(manifests).to_pylist())
    step = max(1, entries // _MOST_DIGESTS)
    parts = [
        f"transform(map_entries({name}), e -> struct(e.key AS id, length(e.value) AS size, true AS is_bound))"
        if name in _BOUNDS
        else f"transform(map_keys({name}), k -> struct(k AS id, {_COUNT_BYTES} AS size, false AS is_bound))"
        for name in METRICS_MAPS
    ]
    filled = [f"coalesce({part}, array())" for part in parts]
    return (f"if({ORDINAL} % {step} = 0, concat({', '.join(filled)}), array()) AS {DIGEST}",)


def sampled_stats(sample: DataFrame | None, manifests: int, of_manifests: int) -> SampledStats:
    """Aggregate the digests of sampled entries by column, in a job."""
    if sample is None:
        return SampledStats(0, of_manifests)
    metrics = sample.select(F.explode(DIGEST).alias("metric")).select("metric.*")
    figures = metrics.groupBy("id").agg(
        F.expr("count_if(NOT is_bound)").alias("counts"),
        F.expr("count_if(is_bound)").alias("bounds"),
        F.expr(f"sum(size + if(is_bound, {_BOUND_BYTES}, 0))").alias("bytes"),
        F.expr("coalesce(max(size) FILTER (WHERE is_bound), 0)").alias("longest"),
    )
    rows = figures.toArrow().to_pylist()
    return SampledStats(manifests, of_manifests, {row.pop("id"): ColumnStats(**row) for row in rows})
