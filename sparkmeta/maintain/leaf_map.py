"""Draw a map of data leaves in the order of the clustering columns, with overlapping leaves as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.compaction import CompactionOptions, scope_of
from sparkmeta.commit.compaction_groups import leaf_ranges
from sparkmeta.commit.new_snapshot import branch_head, with_root
from sparkmeta.inspect import draw_svg
from sparkmeta.maintain.health_measures import placed_bars
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.operations.table_operations import BaseTable

_WIDTH, _MARGIN, _BAR, _MOST_BARS = 880, 16, 9, 2_000
_CLEAN, _MASKED, _INK = (46, 125, 50), (239, 108, 0), "#1f2328"


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


@dataclass(frozen=True)
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
        """The map as an SVG document. Leaves without masked entries are green; masked entries turn them orange."""
        rows = max((bar.row for bar in self.bars), default=0) + 1
        height = 2 * _MARGIN + 24 + rows * (_BAR + 2)
        drawn_text = f", {len(self.bars)} of them drawn" if len(self.bars) < self.leaves else ""
        text = f"{self.title}: {self.leaves} leaves{drawn_text}, each overlaps {self.overlaps:.1f} others"
        parts = [
            draw_svg.rect(0, 0, _WIDTH, height, fill="#ffffff"),
            draw_svg.text(_MARGIN, _MARGIN + 8, text, fill=_INK),
            *(_bar(bar) for bar in self.bars),
        ]
        return draw_svg.document(parts, _WIDTH, height, font_family="monospace", font_size="12")

    def save(self, path: str | Path) -> None:
        """Write the SVG document to a local file."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg


def _bar(bar: LeafBar) -> str:
    space = _WIDTH - 2 * _MARGIN
    x, width = _MARGIN + bar.start * space, max(2.0, (bar.end - bar.start) * space - 1)
    y = _MARGIN + 24 + bar.row * (_BAR + 2)
    share = bar.masked / bar.entries if bar.entries else 0.0
    colour = "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(_CLEAN, _MASKED, strict=True))
    title = f"{bar.location}: {bar.entries} entries, {bar.masked} masked"
    return draw_svg.rect(x, y, width, _BAR, title, fill=colour)


def leaf_map(table: BaseTable, cluster_by: Sequence[str] | None, branch: str) -> LeafMap:
    """See `Maintenance.leaf_map`."""
    table.refuse_lists()
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
