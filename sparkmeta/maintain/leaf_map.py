"""Draw a map of data leaves in the order of the clustering columns, with overlapping leaves as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkmeta.charts import Span, figure, overlap_map, standalone
from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.compaction import CompactionOptions, scope_of
from sparkmeta.commit.compaction_groups import leaf_ranges
from sparkmeta.commit.new_snapshot import branch_head, with_root
from sparkmeta.maintain.health_measures import placed_bars
from sparkmeta.operations.table_operations import refuse_lists
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.location import file_name
from sparkmeta.text import middle_out

if TYPE_CHECKING:
    from sparkmeta.operations.table_operations import BaseTable

_MOST_BARS = 240


@dataclass(frozen=True)
class LeafBar:
    """A leaf on the map.

    Attributes:
        start: the start of the leaf in the order, from 0 to 1.
        end: the end of the leaf in the order, from 0 to 1.
        row: the row of the map that has the bar.
    """

    location: str
    start: float
    end: float
    row: int
    entries: int
    masked: int


@dataclass(frozen=True, repr=False)
class LeafMap:
    """A map of the leaves of one partition spec.

    Attributes:
        bars: the leaves that are drawn.
        overlaps: the mean number of other leaves that a leaf overlaps.
        leaves: the total number of leaves.
    """

    title: str
    bars: tuple[LeafBar, ...]
    overlaps: float
    leaves: int

    @property
    def svg(self) -> str:
        """The map as an SVG document. The part of a bar that is orange is the share of masked entries."""
        return standalone(self._chart)

    def save(self, path: str | Path) -> None:
        """Write the SVG document to a local file."""
        Path(path).write_text(self.svg, encoding="utf-8")

    @property
    def _chart(self) -> str:
        return overlap_map([_span(bar) for bar in self.bars], "Leaves in their order")

    @property
    def _headline(self) -> str:
        leaves = f"{self.leaves:,} {'leaf' if self.leaves == 1 else 'leaves'}"
        return f"{self.title}: {leaves}, each overlaps {self.overlaps:.1f} others"

    def __repr__(self) -> str:
        return f"LeafMap({self._headline})"

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        shown = f"{len(self.bars):,} of them are drawn. " if len(self.bars) < self.leaves else ""
        note = f"{shown}Leaves above each other overlap. The orange part of a leaf is masked."
        return figure(self._headline, note, self._chart)


def _span(bar: LeafBar) -> Span:
    name = middle_out(file_name(bar.location), 40)
    title = f"{name}: {bar.entries:,} entries, {bar.masked:,} masked"
    return Span(bar.start, bar.end, bar.row, bar.masked / bar.entries if bar.entries else 0.0, title)


def leaf_map(table: BaseTable, cluster_by: Sequence[str] | None, branch: str) -> LeafMap:
    """See `Maintenance.leaf_map`."""
    refuse_lists(table.metadata, table.full_name)
    head = branch_head(table.state, branch)
    base, spec_id = base_root(head), table.metadata.default_spec_id
    if base.root is None:
        return LeafMap(table.full_name, (), 0.0, 0)
    scope = scope_of(with_root(head, base), base.root, CompactionOptions(cluster_by=cluster_by))
    leaves = scope.leaves(ContentType.DATA_MANIFEST, spec_id)
    ranges = leaf_ranges(leaves.table, scope.keys[spec_id], scope.sources[spec_id])
    bars = [
        LeafBar(
            leaves.locations[bar.place], bar.start, bar.end, bar.row, int(leaves.records[bar.place]),
            int(leaves.masked[bar.place]),
        )
        for bar in placed_bars(ranges, _MOST_BARS)
    ]  # fmt: skip
    return LeafMap(table.full_name, tuple(bars), ranges.mean_overlaps(), len(leaves))
