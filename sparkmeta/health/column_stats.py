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
from sparkmeta.entries.projection import CONTENT_STATS, ORDINAL
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.spec.stats import BOUNDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        inverted: the number of entries with a lower bound above the upper one.
        first_inverted: the file and column of one of these; None if there is none.
    """

    manifests: int = 0
    of_manifests: int = 0
    columns: Mapping[int, ColumnStats] = field(default_factory=dict)
    inverted: int = 0
    first_inverted: str | None = None


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


def compared_columns(types: Mapping[int, str]) -> dict[int, str]:
    """Return the columns whose bounds are compared with each other, and their types: of wide tables, the first."""
    ordered = sorted(field_id for field_id, name in types.items() if not name.startswith(_UNORDERED))
    return {field_id: types[field_id] for field_id in ordered[:_MOST_COMPARED]}


def inverted_bounds(columns: Mapping[int, str]) -> tuple[str, ...]:
    """Return a column expression: the file and the first column whose lower bound is above the upper one, or null."""
    cases = ""
    for field_id, type_name in columns.items():
        lower, upper = (f"{CONTENT_STATS}.`{field_id}`.{name}" for name in BOUNDS)
        number = f" AND NOT isnan({lower})" if type_name in ("float", "double") else ""
        cases += f" WHEN {lower} > {upper}{number} THEN {field_id}"
    column = f"(CASE{cases} END)" if cases else "NULL"
    return (f"concat('column ', cast({column} AS string), ' of ', location) AS {INVERTED}",)


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
    columns = {row.pop("id"): ColumnStats(**row) for row in rows}
    inverted = sample.agg(F.count(INVERTED).alias("files"), F.min(INVERTED).alias("first")).toArrow().to_pylist()[0]
    return SampledStats(manifests, of_manifests, columns, inverted["files"], inverted["first"])
