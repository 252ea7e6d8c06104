"""A map of data leaves in the order of the clustering columns, where overlapping leaves are bars above each other."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparkmeta.compact.options import CompactionOptions, scope_of
from sparkmeta.compact.ranges import leaf_ranges
from sparkmeta.edit.base_root import base_root
from sparkmeta.edit.new_snapshot import branch_head, with_root
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.operations.base_table import BaseTable

_WIDTH, _MARGIN, _BAR, _MOST_BARS = 880, 16, 9, 2_000
_CLEAN, _MASKED, _INK = (46, 125, 50), (239, 108, 0), "#1f2328"


@dataclass(frozen=True)
class LeafBar:
    """A leaf on the map.

    Attributes:
        start: its beginning in the order, from 0 to 1.
        end: its end in the order, from 0 to 1.
        row: the row in which it is drawn.
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
        overlaps: the mean number of others that a leaf overlaps.
        leaves: the number of all leaves.
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
        shown = f", {len(self.bars)} of them drawn" if len(self.bars) < self.leaves else ""
        text = f"{self.title}: {self.leaves} leaves{shown}, each overlaps {self.overlaps:.1f} others"
        box = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="monospace" font-size="12">',
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="{_MARGIN}" y="{_MARGIN + 8}" fill="{_INK}">{escape(text)}</text>',
            *(_bar(bar) for bar in self.bars),
            "</svg>",
        ]
        return "\n".join(parts)

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
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"><title>{escape(title)}</title>'
        "</rect>"
    )


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
    order = ranges.order
    if len(order) > _MOST_BARS:
        order = order[np.linspace(0, len(order) - 1, _MOST_BARS).astype(np.int64)]
    longest = max(int(ranges.upper.max(initial=0)), 1)
    bars, ends = [], list[tuple[float, int]]()
    for place in order.tolist():
        start, end = int(ranges.lower[place]), int(ranges.upper[place])
        row = heapq.heappop(ends)[1] if ends and ends[0][0] <= start else len(ends)
        heapq.heappush(ends, (max(end, start + 0.5), row))
        counts = int(leaves.records[place]), int(leaves.masked[place])
        bars.append(LeafBar(leaves.locations[place], start / longest, end / longest, row, *counts))
    return LeafMap(table.full_name, tuple(bars), ranges.mean_overlaps(), len(ranges.order))
