"""Metrics of columns that the table's properties would not keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.spec.entry import FIRST_RESERVED_ID
from sparkmeta.spec.metrics_modes import COUNTS_ONLY, FULL, NO_METRICS, metrics_modes

if TYPE_CHECKING:
    from sparkmeta.health.column_stats import ColumnStats, SampledStats
    from sparkmeta.state import TableState

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
        """Compare sampled metrics with the table's properties, which do not govern those of metadata columns."""
        schema = state.metadata.schema()
        modes = metrics_modes(state.metadata, schema)
        columns = {field_id: column for field_id, column in stats.columns.items() if field_id < FIRST_RESERVED_ID}
        excess = {}
        for field_id, column in columns.items():
            type_name = str(schema.find_field(field_id).field_type) if field_id in modes else ""
            size = _excess_bytes(column, modes.get(field_id, NO_METRICS), type_name)
            if size:
                excess[schema.find_column_name(field_id) or f"dropped column {field_id}"] = size
        total = sum(column.bytes for column in columns.values())
        names = tuple(sorted(excess, key=lambda name: -excess[name]))
        return ExcessStats(names, sum(excess.values()) / total if total else 0.0)


def _excess_bytes(column: ColumnStats, mode: int, type_name: str) -> int:
    counts = column.counts * _COUNT_BYTES
    if mode == NO_METRICS:
        return column.bytes
    if mode == COUNTS_ONLY:
        return column.bytes - counts
    if mode == FULL or type_name not in _TRUNCATED:
        return 0
    longest = mode * (_CHARACTER_BYTES if type_name == "string" else 1)
    return max(0, column.bytes - counts - column.bounds * longest) if column.longest > longest else 0
