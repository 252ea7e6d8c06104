"""Draw an excerpt of a metadata tree as SVG, in the style of the V4 proposal's figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from sparkmeta.charts import document
from sparkmeta.inspect.excerpt import KINDS
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.storage.location import file_name
from sparkmeta.text import columns, middle_out, printable

if TYPE_CHECKING:
    from sparkmeta.inspect.excerpt import Entry, Excerpt, Node


# -- Draw an excerpt --------------------------------------------------------------------------------------------------
# The style follows the figures in the V4 proposal.
#
# The root is a table of its entries. Below it are columns of boxes: manifests with the manifests and deletion vectors
# that refer to them, and the root's files. Solid lines lead from the root to its entries, dashed ones from a deletion
# vector or affiliated manifest to its target. Text is inside boxes, so that it can be read on any background. There are
# no style sheets or ids, since several drawings may share a page.


_CHARACTER, _LINE, _PAD = 6.7, 16, 8
_WIDTH, _GUTTER, _GAP = 296, 40, 14
_MARGIN, _BUS = 24, 14
_COLUMNS, _STACK = 4, 8
_TEXT_COLUMNS = int((_WIDTH - 2 * _PAD) / _CHARACTER)

# Fill and stroke, as in the proposal's figures.
_BOXES = {
    ContentType.DATA: ("#fff8e1", "#f57f17"),
    ContentType.POSITION_DELETES: ("#fce4ec", "#c2185b"),
    ContentType.EQUALITY_DELETES: ("#fce4ec", "#c2185b"),
    ContentType.DATA_MANIFEST: ("#e8f5e8", "#2e7d32"),
    ContentType.DELETE_MANIFEST: ("#ffebee", "#c62828"),
    ContentType.MANIFEST_DELETION_VECTOR: ("#fed7aa", "#ea580c"),
}
_SNAPSHOT, _ROOT = ("#e1f5fe", "#01579b"), ("#f3e5f5", "#4a148c")
_STATUS = {Status.ADDED: "#1a7f37", Status.EXISTING: "#57606a", Status.DELETED: "#cf222e"}
_INK, _FAINT, _MASKED = "#1f2328", "#57606a", "#bc4c00"
_LEGEND = ("#f6f8fa", "#8c959f")
# Of middle lightness: lines are on the background.
_LINES = "#7d8590"


@dataclass
class _Line:
    """A line of a box, with text at the left and a status at the right."""

    text: str
    colour: str = _INK
    status: Status | None = None
    bold: bool = False
    struck: bool = False
    title: str = ""


@dataclass
class _Box:
    """A box, and its position once it is placed.

    Attributes:
        rows: location -> the index of the line that other boxes may point to.
    """

    lines: list[_Line]
    paint: tuple[str, str]
    gone: bool = False
    location: str = ""
    refers: str | None = None
    row_references: list[tuple[int, str]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    x: float = 0
    y: float = 0
    width: float = _WIDTH

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PAD - 4

    def line_y(self, index: int) -> float:
        return self.y + _PAD + index * _LINE + _LINE / 2 - 2


def svg_of(excerpt: Excerpt) -> str:
    """Return the excerpt as an SVG document without a background. All texts from the table are escaped."""
    snapshot = _Box([_Line(middle_out(excerpt.title, 110), bold=True)], _SNAPSHOT, x=_MARGIN, y=_MARGIN)
    snapshot.width = max(_WIDTH, columns(snapshot.lines[0].text) * _CHARACTER + 2 * _PAD)
    if not excerpt.root:
        return _document([*_drawn(snapshot)], snapshot.x + snapshot.width + _MARGIN, snapshot.height + 2 * _MARGIN)
    root = _root_box(excerpt)
    root.x, root.y = _MARGIN, snapshot.y + snapshot.height + 24
    stacks = _stacks(excerpt.nodes)
    bottom, shelves = _place(stacks, root.y + root.height + 36)
    boxes = [box for stack in stacks for box in stack]
    width = max([root.x + root.width, snapshot.x + snapshot.width, *(box.x + box.width for box in boxes)]) + _GUTTER
    parts = [_path(f"M{root.x + 40} {snapshot.y + snapshot.height}V{root.y}", _LINES)]
    parts += _branches(root, shelves)
    parts += _references(boxes)  # behind the boxes, so that they cross no text
    for box in (snapshot, root, *boxes):
        parts += _drawn(box)
    legend, height = _legend(_MARGIN, bottom + 10)
    return _document([*parts, *legend], max(width, 760), height)


def _document(parts: Iterable[str], width: float, height: float) -> str:
    font = "DejaVu Sans Mono, Menlo, Consolas, monospace"
    return document(parts, width, height, "max-width:none", font_family=font, font_size="11")


# -- Boxes ------------------------------------------------------------------------------------------------------------


def _root_box(excerpt: Excerpt) -> _Box:
    name = middle_out(printable(file_name(excerpt.location)), 50)
    lines = [_Line(f"{excerpt.root}  {name}".rstrip(), bold=True, title=printable(excerpt.location[:300]))]
    for node in excerpt.nodes:
        entry = node.entry
        text = f"{middle_out(entry.name, 40)}  {entry.what}"
        lines.append(_Line(text, status=entry.status, struck=entry.status == Status.DELETED, title=entry.where))
    lines += [_Line(f"… {line}", _FAINT) for line in excerpt.left_out]
    widest = max(columns(line.text) + (12 if line.status is not None else 0) for line in lines)
    return _Box(lines, _ROOT, width=max(_WIDTH, widest * _CHARACTER + 2 * _PAD))


def _box(node: Node) -> _Box:
    entry = node.entry
    numbered = bool(entry.label) and entry.kind != ContentType.POSITION_DELETES
    name = f"{entry.label}  {entry.what}" if numbered else entry.name
    gone = entry.status == Status.DELETED
    head = _Line(middle_out(name, _TEXT_COLUMNS - 10), status=entry.status, bold=True, struck=gone, title=entry.where)
    box = _Box([head], _BOXES[entry.kind], gone, entry.location, entry.refers)
    if entry.label and entry.file:
        box.lines.append(_Line(middle_out(entry.file, _TEXT_COLUMNS), _FAINT, title=entry.where))
    notes = entry.notes if numbered else (entry.what, *entry.notes)
    box.lines += [_Line(line, _FAINT) for line in _wrapped(notes)]
    for row in node.rows:
        _add_row(box, row)
    if node.left_out:
        box.lines.append(_Line(f"… {node.left_out}", _FAINT))
    return box


def _add_row(box: _Box, row: Entry) -> None:
    struck = bool(row.masked_by) or row.status == Status.DELETED
    text = middle_out(f"{row.ordinal:>2} {row.name}", _TEXT_COLUMNS - 10)
    title = "; ".join([row.where, *row.notes, *(f"masked by {label}" for label in row.masked_by)])
    index = len(box.lines)
    box.lines.append(_Line(text, _MASKED if row.masked_by else _INK, row.status, struck=struck, title=title))
    if row.kind == ContentType.DATA:
        box.rows[row.location] = index
    elif row.refers and not struck:
        box.row_references.append((index, row.refers))


def _wrapped(notes: Sequence[str]) -> list[str]:
    """Join notes to lines that fit the box."""
    lines: list[str] = []
    for note in notes:
        if lines and columns(lines[-1]) + columns(note) + 3 <= _TEXT_COLUMNS:
            lines[-1] += f" · {note}"
        else:
            lines.append(middle_out(note, _TEXT_COLUMNS))
    return lines


def _drawn(box: _Box) -> list[str]:
    parts = [_rect(box.x, box.y, box.width, box.height, box.paint, dashed=box.gone)]
    for index, line in enumerate(box.lines):
        y = box.line_y(index) + 4
        parts.append(_text(box.x + _PAD, y, line))
        if line.status is not None:
            status = _Line(line.status.name, _STATUS[line.status], bold=True)
            parts.append(_text(box.x + box.width - _PAD, y, status, anchor="end"))
    return parts


def _rect(x: float, y: float, width: float, height: float, paint: tuple[str, str], *, dashed: bool = False) -> str:
    fill, stroke = paint
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    geometry = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {geometry} rx="4" fill="{fill}" stroke="{stroke}" stroke-width="1.5"{dash}/>'


def _text(x: float, y: float, line: _Line, anchor: str = "start") -> str:
    style = ' font-weight="bold"' if line.bold else ""
    style += ' text-decoration="line-through"' if line.struck else ""
    title = f"<title>{escape(line.title)}</title>" if line.title else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{line.colour}" text-anchor="{anchor}" xml:space="preserve"{style}>'
        f"{title}{escape(line.text)}</text>"
    )


# -- Layout -----------------------------------------------------------------------------------------------------------


def _stacks(nodes: Sequence[Node]) -> list[list[_Box]]:
    """Return columns of boxes: manifests with the nodes that refer to them, then files with their deletion vectors."""
    owners = {node.entry.location for node in nodes if node.entry.location and not _is_vector(node)}
    below: dict[str, list[Node]] = {}
    free: list[Node] = []
    for node in nodes:
        owner = node.entry.refers
        if owner is not None and owner in owners and owner != node.entry.location:
            below.setdefault(owner, []).append(node)
        else:
            free.append(node)
    groups = [list(_with_referring(node, below)) for node in free]
    groups += [[node] for nodes in below.values() for node in nodes]  # nodes in a cycle of references
    stacks: list[list[_Box]] = []
    packed: list[_Box] = []
    for group in groups:
        boxes = [_box(node) for node in group]
        if group[0].entry.is_leaf:
            stacks.append(boxes)
            continue
        if packed and len(packed) + len(boxes) > _STACK:
            stacks.append(packed)
            packed = []
        packed = packed + boxes
    return [*stacks, packed] if packed else stacks


def _is_vector(node: Node) -> bool:
    """Return whether a node is a deletion vector. Others can't refer to it, since Puffin files are shared."""
    return node.entry.kind in (ContentType.MANIFEST_DELETION_VECTOR, ContentType.POSITION_DELETES)


def _with_referring(node: Node, below: dict[str, list[Node]]) -> Iterable[Node]:
    yield node
    if not _is_vector(node):
        for affiliated in below.pop(node.entry.location, []):
            yield from _with_referring(affiliated, below)


@dataclass
class _Shelf:
    """A row of columns, and the y coordinate of the line that leads to them."""

    y: float
    stacks: list[list[_Box]]


def _place(stacks: Sequence[list[_Box]], y: float) -> tuple[float, list[_Shelf]]:
    shelves = []
    for start in range(0, len(stacks), _COLUMNS):
        shelf = _Shelf(y - 12, list(stacks[start : start + _COLUMNS]))
        bottom = y
        for number, stack in enumerate(shelf.stacks):
            top = y
            for box in stack:
                box.x, box.y = _MARGIN + 2 * _BUS + number * (_WIDTH + _GUTTER + _BUS), top
                top += box.height + _GAP
            bottom = max(bottom, top)
        shelves.append(shelf)
        y = bottom + 20
    return y - 8, shelves


# -- Lines ------------------------------------------------------------------------------------------------------------


def _branches(root: _Box, shelves: Sequence[_Shelf]) -> list[str]:
    """Draw lines from the root to its entries: a trunk, a branch to each row of columns, and a twig to each box."""
    if not shelves:
        return []
    parts = [_path(f"M{_MARGIN + 4} {root.y + root.height:.1f}V{shelves[-1].y:.1f}", _LINES)]
    for shelf in shelves:
        last = shelf.stacks[-1][0].x - _BUS
        parts.append(_path(f"M{_MARGIN + 4} {shelf.y:.1f}H{last:.1f}", _LINES))
        for stack in shelf.stacks:
            bus = stack[0].x - _BUS
            twigs = "".join(f"M{bus:.1f} {box.line_y(0):.1f}H{box.x:.1f}" for box in stack)
            parts.append(_path(f"M{bus:.1f} {shelf.y:.1f}V{stack[-1].line_y(0):.1f}{twigs}", _LINES))
    return parts


def _references(boxes: Sequence[_Box]) -> list[str]:
    """Draw dashed lines from boxes to the boxes that they refer to."""
    whole = {box.location: box for box in boxes if box.location}
    rows = {location: (box, index) for box in boxes for location, index in box.rows.items()}
    parts: list[str] = []
    for box in boxes:
        references = [(0, box.refers), *box.row_references] if box.refers else list(box.row_references)
        for index, location in references:
            target, line = rows.get(location, (whole.get(location), 0))
            if target is not None and target is not box:
                parts.append(_reference(box, index, target, line, len(parts)))
    return parts


def _reference(source: _Box, index: int, target: _Box, line: int, number: int) -> str:
    colour = source.paint[1]
    x, y = source.x + source.width, source.line_y(index)
    end, height = target.x + target.width, target.line_y(line)
    if source.x == target.x and source.y > target.y:
        out = x + 10 + 4 * (number % 6)
        path = f"M{x:.1f} {y:.1f}H{out:.1f}V{height:.1f}H{end:.1f}"
    else:
        x = source.x if source.x > target.x else x
        bend = (x + end) / 2
        path = f"M{x:.1f} {y:.1f}C{bend:.1f} {y:.1f} {bend:.1f} {height:.1f} {end + 6:.1f} {height:.1f}H{end:.1f}"
    head = f"M{end:.1f} {height:.1f}l7 -3.5v7z"
    return _path(path, colour, dashed=True) + f'<path d="{head}" fill="{colour}"/>'


def _path(path: str, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.2"{dash}/>'


# -- The legend -------------------------------------------------------------------------------------------------------


def _legend(x: float, y: float) -> tuple[list[str], float]:
    parts: list[str] = []
    left = x + _PAD
    y += _PAD
    for status in (Status.ADDED, Status.EXISTING, Status.DELETED):
        parts.append(_text(left, y + 10, _Line(status.name, _STATUS[status], bold=True)))
        left += 80
    parts.append(_text(left, y + 10, _Line("masked entry", _MASKED, struck=True)))
    left += 110
    for text, dashed in (("holds", False), ("masks, applies to, is affiliated to", True)):
        parts.append(_path(f"M{left:.1f} {y + 6:.1f}h28", _LINES, dashed=dashed))
        parts.append(_text(left + 34, y + 10, _Line(text, _FAINT)))
        left += 34 + len(text) * _CHARACTER + 18
    right, left = left, x + _PAD
    kinds = [*_BOXES.items()]
    for kind, paint in [*kinds[3:], *kinds[:2]]:
        name = "delete file or DV" if kind == ContentType.POSITION_DELETES else KINDS[kind]
        parts.append(_rect(left, y + 22, 14, 12, paint))
        parts.append(_text(left + 20, y + 32, _Line(name, _FAINT)))
        left += 20 + len(name) * _CHARACTER + 18
    width, height = max(right, left) - x, 40.0 + _PAD
    return [_rect(x, y - _PAD, width, height, _LEGEND), *parts], y - _PAD + height + _MARGIN
