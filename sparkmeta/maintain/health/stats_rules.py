"""Metrics of columns that the table's properties would not keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.spec.metrics_modes import MetricsMode, metrics_modes

if TYPE_CHECKING:
    from sparkmeta.maintain.health.column_stats import ColumnStats, SampledStats
    from sparkmeta.state import TableState

_NOTHING = MetricsMode(counts=False, bounds=False)
# The most bytes of a character in a truncated bound.
_CHARACTER_BYTES = 4
_TRUNCATED = ("string", "binary")
_COUNT_BYTES = 4


@dataclass(frozen=True)
class ExcessStats:
    """Metrics in sampled manifests that the properties `write.metadata.metrics.*` would not keep.

    Attributes:
        columns: the names of their columns, those with most bytes first; the id of a dropped column.
        ratio: their share of the bytes of all metrics.
    """

    columns: tuple[str, ...]
    ratio: float

    @staticmethod
    def of(state: TableState, stats: SampledStats) -> ExcessStats:
        """Compare sampled metrics with the table's properties.

        Raises:
            ValidationError: a property has an invalid value.
        """
        modes, schema = metrics_modes(state.metadata), state.metadata.schema()
        excess = {}
        for field_id, column in stats.columns.items():
            type_name = str(schema.find_field(field_id).field_type) if field_id in modes else ""
            size = _excess_bytes(column, modes.get(field_id, _NOTHING), type_name)
            if size:
                excess[schema.find_column_name(field_id) or f"dropped column {field_id}"] = size
        total = sum(column.bytes for column in stats.columns.values())
        names = tuple(sorted(excess, key=lambda name: -excess[name]))
        return ExcessStats(names, sum(excess.values()) / total if total else 0.0)


def _excess_bytes(column: ColumnStats, mode: MetricsMode, type_name: str) -> int:
    counts = column.counts * _COUNT_BYTES
    if not mode.counts:
        return column.bytes
    if not mode.bounds:
        return column.bytes - counts
    if mode.length is None or type_name not in _TRUNCATED:
        return 0
    longest = mode.length * (_CHARACTER_BYTES if type_name == "string" else 1)
    return max(0, column.bytes - counts - column.bounds * longest) if column.longest > longest else 0
