"""`table.draw()`: select the parts of a snapshot's metadata tree, and draw them for notebooks and `print`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from html import escape
from itertools import islice
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.charts import standalone
from sparkmeta.entries.projection import MANIFEST, ORDINAL, EntryProjection
from sparkmeta.inspect.draw_svg import svg_of
from sparkmeta.inspect.excerpt import Entry, Excerpt, Node, counted, text_of
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.root import FILES, LEAVES, MANIFEST_DVS, Root, one_of
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.metadata import snapshot_of
from sparkmeta.storage.location import file_name
from sparkmeta.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.storage.files import Files


# -- Drawings for notebooks and `print` -------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Drawing:
    """A drawing of the metadata tree of a snapshot."""

    _excerpt: Excerpt

    @property
    def title(self) -> str:
        """A line about the snapshot."""
        return self._excerpt.title

    @property
    def entries(self) -> int:
        """The number of entries of the root or manifest list."""
        return self._excerpt.entries

    @cached_property
    def text(self) -> str:
        """The tree as lines of text."""
        return text_of(self._excerpt)

    @cached_property
    def svg(self) -> str:
        """The tree as an SVG document, in the style of the V4 proposal's figures."""
        return standalone(svg_of(self._excerpt))

    def save(self, path: str | Path) -> None:
        """Write the drawing to a local file: text if its name ends with `.txt`, else SVG."""
        content = f"{self.text}\n" if str(path).endswith(".txt") else self.svg
        Path(path).write_text(content, encoding="utf-8")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Drawing({self.title}: {self.entries:,} entries)"

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        """Return the SVG, without a background, in an element that scrolls if it is wider than the notebook."""
        return f'<div style="overflow-x: auto" title="{escape(self.title)}">{svg_of(self._excerpt)}</div>'


# -- `table.draw()` ---------------------------------------------------------------------------------------------------
# The root is on the driver. At most `_ROWS` entries of at most `_LEAVES` leaves are drawn, so the size of a drawing is
# limited for trees of any size.


_LEAVES = 8
_ROWS = 8
_VECTORS = 16
_FILES = 12
_ORDINALS = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ENTRY_COLUMNS = ("content_type", "location", "version_info", "record_count", "referenced_file", "deletion_vector")
_LABELS = {
    ContentType.DATA_MANIFEST: "M",
    ContentType.DELETE_MANIFEST: "X",
    ContentType.MANIFEST_DELETION_VECTOR: "DV",
}


def draw(state: TableState, snapshot_id: int | None = None) -> Drawing:
    """Return a drawing of the metadata tree of a snapshot, by default the state's.

    Raises:
        NoSuchSnapshotError: the table has no such snapshot.
        EncryptionError: the table is encrypted, and a key is missing, refused or wrong.
        CorruptFileError: the root, or a deletion vector that is drawn, is damaged.
    """
    if snapshot_id is not None:
        state = state.at(snapshot_of(state.metadata, snapshot_id))
    if state.snapshot is None:
        return Drawing(Excerpt("the table is empty: it has no snapshot"))
    state.sessions.running()  # raises SessionError if the caller's session was stopped
    if state.tree is None:
        return Drawing(_of_list(state, state.snapshot))
    return Drawing(_of_root(state, state.snapshot, state.tree.root))


def _title(snapshot: Snapshot) -> str:
    committed = _EPOCH + timedelta(milliseconds=snapshot.timestamp_ms)
    operation = str(snapshot.operation) if snapshot.operation else "unknown operation"
    return printable(
        f"snapshot {snapshot.snapshot_id}: {operation[:40]}, sequence number {snapshot.sequence_number or 0}, "
        f"{committed.replace(tzinfo=None).isoformat(sep=' ', timespec='seconds')}Z"
    )


# -- The root of a V4 tree --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Vector:
    """A manifest's deletion vector to draw."""

    label: str
    status: Status
    target: str
    bitmap: PositionBitmap


@dataclass(frozen=True)
class _Excerpt:
    """The entries of a root to draw, as rows with the root's columns, `ordinal` and `label`."""

    rows: list[dict[str, Any]]
    left_out: tuple[str, ...]

    @cached_property
    def labels(self) -> dict[str, str]:
        return {row["location"]: row["label"] for row in self.rows if row["content_type"] in LEAVES}


def _of_root(state: TableState, snapshot: Snapshot, root: Root) -> Excerpt:
    # A leaf is drawn once, with the deletion vectors in its entries.
    in_file = root.table.filter(pc.not_equal(root.table.column("file_format"), VECTORS))
    excerpt = _excerpt(replace(root, table=in_file))
    vectors = {
        row["ordinal"]: _Vector(row["label"], _status(row), row["referenced_file"], _bitmap(row, state.files))
        for row in excerpt.rows
        if row["content_type"] in MANIFEST_DVS
    }
    below = _leaf_rows(state, root, excerpt, list(vectors.values()))
    nodes = []
    for row in excerpt.rows:
        if row["content_type"] in MANIFEST_DVS:
            nodes.append(Node(_vector_entry(row, vectors, excerpt.labels)))
        elif row["content_type"] in LEAVES:
            rows, left_out = below.get(row["location"], ((), ""))
            nodes.append(Node(_leaf_entry(row, vectors.values(), excerpt.labels), rows, left_out))
        else:
            nodes.append(Node(_file_entry(row, row["ordinal"])))
    return Excerpt(_title(snapshot), "root manifest", root.location, len(in_file), tuple(nodes), excerpt.left_out)


def _excerpt(root: Root) -> _Excerpt:
    """Return the entries of a root to draw: entries that the snapshot changed, then the first others."""
    names = ("content_type", "location", "version_info", "record_count", "referenced_file", "file_size_in_bytes")
    table = root.table.select(names)
    kinds, targets = table.column("content_type").to_pylist(), table.column("referenced_file").to_pylist()
    statuses = pc.struct_field(table.column("version_info"), "status").to_pylist()
    locations = table.column("location").to_pylist()
    ordinals: dict[ContentType, list[int]] = {kind: [] for kind in ContentType}
    for ordinal, kind in enumerate(kinds):
        ordinals[ContentType(kind)].append(ordinal)
    masked_now = {
        targets[ordinal]
        for ordinal in ordinals[ContentType.MANIFEST_DELETION_VECTOR]
        if statuses[ordinal] == Status.ADDED
    }
    changed = [
        status != Status.EXISTING or (kind in LEAVES and location in masked_now)
        for status, kind, location in zip(statuses, kinds, locations, strict=True)
    ]
    leaves = _first(sorted(ordinal for kind in LEAVES for ordinal in ordinals[kind]), changed, _LEAVES)
    drawn, present = (
        {locations[ordinal] for ordinal in leaves},
        {locations[ordinal] for kind in LEAVES for ordinal in ordinals[kind]},
    )
    of_drawn = [
        ordinal
        for ordinal in ordinals[ContentType.MANIFEST_DELETION_VECTOR]
        if targets[ordinal] in drawn or targets[ordinal] not in present
    ]
    files = _first(sorted(ordinal for kind in FILES for ordinal in ordinals[kind]), changed, _FILES)
    chosen = sorted([*leaves, *_first(of_drawn, changed, _VECTORS), *files])
    labels = {
        ordinal: f"{prefix}{number}"
        for kind, prefix in _LABELS.items()
        for number, ordinal in enumerate(ordinals[kind], start=1)
    }
    rows = root.table.drop_columns(["content_stats"]).take(pa.array(chosen, pa.int64())).to_pylist()
    omitted = set(range(len(kinds))).difference(chosen)
    return _Excerpt(
        [
            row | {"ordinal": ordinal, "label": labels.get(ordinal, "")}
            for ordinal, row in zip(chosen, rows, strict=True)
        ],
        counted((ContentType(kinds[ordinal]), Status(statuses[ordinal])) for ordinal in sorted(omitted)),
    )


def _first(ordinals: Sequence[int], changed: Sequence[bool], limit: int) -> list[int]:
    """Return at most `limit` of the ordinals, preferring changed entries."""
    return sorted(sorted(ordinals, key=lambda ordinal: not changed[ordinal])[:limit])


def _status(row: Mapping[str, Any]) -> Status:
    return Status(row["version_info"]["status"])


def _bitmap(row: Mapping[str, Any], files: Files) -> PositionBitmap:
    vector = row["deletion_vector"]
    blob = vector["inline_content"]
    if blob is None:
        blob = files.read_range(row["location"], vector["offset"], vector["size_in_bytes"])
    where = f"{row['location'] or 'inline deletion vector'} of manifest {row['referenced_file']}"
    return read_inline_vector(blob, where, row["record_count"])


# -- Entries of the root ----------------------------------------------------------------------------------------------


def _vector_entry(row: Mapping[str, Any], vectors: Mapping[int, _Vector], labels: Mapping[str, str]) -> Entry:
    vector = vectors[row["ordinal"]]
    target = labels.get(vector.target) or printable(file_name(vector.target))
    notes = [f"masks {_ordinals(vector.bitmap)} of {target}"]
    replaced = [
        other.bitmap for other in vectors.values() if other.target == vector.target and other.status == Status.DELETED
    ]
    if vector.status == Status.ADDED and replaced:
        notes.append(f"new are {_ordinals(reduce(PositionBitmap.difference, replaced, vector.bitmap))}")
    notes.append("inline" if row["deletion_vector"]["inline_content"] is not None else "in a Puffin file")
    return _entry(row, row["ordinal"], tuple(notes), vector.target, row["label"])


def _leaf_entry(row: Mapping[str, Any], vectors: Iterable[_Vector], labels: Mapping[str, str]) -> Entry:
    notes = [_count(row["record_count"], "entry", "entries")]
    masked = sum(
        vector.bitmap.cardinality
        for vector in vectors
        if vector.target == row["location"] and vector.status != Status.DELETED
    )
    if masked:
        notes.append(f"{masked:,} masked")
    affiliated = row["referenced_file"]
    if affiliated:
        notes.append(f"affiliated to {labels.get(affiliated) or printable(file_name(affiliated))}")
    return _entry(row, row["ordinal"], tuple(notes), affiliated, row["label"])


def _file_entry(row: Mapping[str, Any], ordinal: int, masked_by: tuple[str, ...] = ()) -> Entry:
    """Return the entry of a data or delete file in a root or a leaf."""
    kind = ContentType(row["content_type"])
    label, note = "", _count(row["record_count"], "row", "rows")
    if kind == ContentType.POSITION_DELETES:
        note = _count(row["record_count"], "position", "positions")
        if row["deletion_vector"] is not None and row["referenced_file"]:
            label = f"DV of {printable(file_name(row['referenced_file']))}"
    return replace(_entry(row, ordinal, (note,), row["referenced_file"], label), masked_by=masked_by)


def _entry(row: Mapping[str, Any], ordinal: int, notes: tuple[str, ...], refers: str | None, label: str) -> Entry:
    kind = ContentType(row["content_type"])
    return Entry(kind, _status(row), ordinal, row["location"] or "", label, notes, refers)


def _ordinals(bitmap: PositionBitmap) -> str:
    """Return `{0, 7}`, or `{0, 1, 2, 3, 4, 5, … 1,200 in all}`."""
    shown = [f"{ordinal}" for ordinal in islice(_positions(bitmap), _ORDINALS)]
    more = [f"… {bitmap.cardinality:,} in all"] if bitmap.cardinality > _ORDINALS else []
    return "{" + ", ".join([*shown, *more]) + "}"


def _positions(bitmap: PositionBitmap) -> Iterator[int]:
    return (int(position) for part in bitmap.positions() for position in part)


def _count(number: int | None, singular: str, plural: str) -> str:
    return f"an unknown number of {plural}" if number is None else f"{number:,} {singular if number == 1 else plural}"


# -- Entries of leaves ------------------------------------------------------------------------------------------------


def _leaf_rows(
    state: TableState, root: Root, excerpt: _Excerpt, vectors: Sequence[_Vector]
) -> dict[str, tuple[tuple[Entry, ...], str]]:
    """Return the drawn entries of each drawn leaf, masked ones included, and a line about the others, by location."""
    leaves = {row["location"]: row for row in excerpt.rows if row["content_type"] in LEAVES}
    unmasked = replace(root, table=root.table.filter(pc.invert(one_of(root.table, MANIFEST_DVS))))
    whole = replace(state, root=unmasked)
    manifests = whole.manifests
    of_drawn = pc.is_in(manifests.column("location"), pa.array(list(leaves), pa.string()))
    ordinals = {
        location: _drawn_ordinals(row["record_count"], [vector for vector in vectors if vector.target == location])
        for location, row in leaves.items()
    }
    return _read(
        whole,
        manifests.filter(of_drawn),
        ordinals,
        vectors,
        {location: row["record_count"] for location, row in leaves.items()},
    )


def _drawn_ordinals(count: int | None, vectors: Sequence[_Vector]) -> list[int]:
    """Return the ordinals of a leaf to draw: some masked ones, preferring newly masked ones, and the first others."""
    replaced = [vector.bitmap for vector in vectors if vector.status == Status.DELETED]
    live = [vector.bitmap for vector in vectors if vector.status != Status.DELETED]
    new = [reduce(PositionBitmap.difference, replaced, vector) for vector in live]
    masked = [ordinal for bitmap in [*new, *live] for ordinal in islice(_positions(bitmap), _ROWS)]
    some = list(dict.fromkeys(masked))[: _ROWS // 2]
    first = range(_ROWS if count is None else min(count, _ROWS))
    return sorted(list(dict.fromkeys([*some, *first]))[:_ROWS])


def _read(
    state: TableState,
    manifests: pa.Table,
    ordinals: Mapping[str, Sequence[int]],
    vectors: Sequence[_Vector],
    counts: Mapping[str, int | None],
) -> dict[str, tuple[tuple[Entry, ...], str]]:
    names = dict(zip(manifests.column(MANIFEST).to_pylist(), manifests.column("location").to_pylist(), strict=True))
    if not names:
        return {}
    rows = _drawn_rows(state, manifests, {manifest: ordinals[location] for manifest, location in names.items()})
    drawn: dict[str, list[Entry]] = {location: [] for location in names.values()}
    for row in sorted(rows, key=lambda row: (row[MANIFEST], row[ORDINAL])):
        location, ordinal = names[row[MANIFEST]], row[ORDINAL]
        masked_by = tuple(
            vector.label
            for vector in vectors
            if vector.target == location and vector.status != Status.DELETED and vector.bitmap.contains(ordinal)
        )
        drawn[location].append(_file_entry(row, ordinal, masked_by))
    return {location: (tuple(rows), _more(counts[location], len(rows))) for location, rows in drawn.items()}


def _drawn_rows(
    state: TableState, manifests: pa.Table, ordinals: Mapping[int, Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """Yield some entries of each manifest. The driver reads one manifest at a time, or else a job reads them all.

    Args:
        state: the table.
        manifests: the manifests.
        ordinals: manifest -> the ordinals of its entries.
    """
    reader, projection = state.reader, EntryProjection.of(_ENTRY_COLUMNS)
    if not reader.driver_decodes(manifests) or reader.driver_parts(manifests, projection) is None:
        from pyspark.sql import functions as F

        conditions = [
            (F.col(MANIFEST) == manifest) & F.col(ORDINAL).isin(list(chosen)) for manifest, chosen in ordinals.items()
        ]
        yield from reader.entries(manifests, projection).where(reduce(or_, conditions)).toArrow().to_pylist()
        return
    for row, manifest in enumerate(manifests.column(MANIFEST).to_pylist()):
        entries = reader.table(manifests.slice(row, 1), projection)
        chosen = pa.array(ordinals[manifest], entries.schema.field(ORDINAL).type)
        yield from entries.filter(pc.is_in(entries.column(ORDINAL), chosen)).to_pylist()


def _more(count: int | None, drawn: int) -> str:
    if count is None:
        return "perhaps more" if drawn == _ROWS else ""
    return _count(count - drawn, "more entry", "more entries") if count > drawn else ""


# -- The manifest list of a v1 to v3 snapshot -------------------------------------------------------------------------


def _of_list(state: TableState, snapshot: Snapshot) -> Excerpt:
    """Return the excerpt of a manifest list. Manifests that the snapshot wrote are drawn as ADDED."""
    manifests = state.manifests
    kinds = manifests.column("content_type").to_pylist()
    written = pc.struct_field(manifests.column("version_info"), "snapshot_id").to_pylist()
    statuses = [Status.ADDED if writer == snapshot.snapshot_id else Status.EXISTING for writer in written]
    chosen = _first(range(len(manifests)), [status == Status.ADDED for status in statuses], _LEAVES)
    shown = manifests.take(pa.array(chosen, pa.int64()))
    stats = shown.column("manifest_stats").to_pylist()
    locations = shown.column("location").to_pylist()
    counts = {location: _entries(stat) for location, stat in zip(locations, stats, strict=True)}
    ordinals = {location: _drawn_ordinals(count, []) for location, count in counts.items()}
    below = _read(state, shown, ordinals, [], counts)
    labels = _numbered(kinds)
    nodes = []
    for ordinal, location in zip(chosen, locations, strict=True):
        kind, note = ContentType(kinds[ordinal]), _count(counts[location], "entry", "entries")
        nodes.append(
            Node(Entry(kind, statuses[ordinal], ordinal, location, labels[ordinal], (note,)), *below[location])
        )
    omitted = sorted(set(range(len(kinds))).difference(chosen))
    left_out = counted((ContentType(kinds[ordinal]), statuses[ordinal]) for ordinal in omitted)
    return Excerpt(
        _title(snapshot), "manifest list", snapshot.manifest_list or "", len(manifests), tuple(nodes), left_out
    )


def _numbered(kinds: Sequence[int]) -> list[str]:
    numbers = dict.fromkeys(_LABELS, 0)
    labels = []
    for kind in map(ContentType, kinds):
        numbers[kind] += 1
        labels.append(f"{_LABELS[kind]}{numbers[kind]}")
    return labels


def _entries(stats: Mapping[str, Any]) -> int | None:
    """Return the number of a manifest's entries; None if a v1 list does not count them."""
    counts = [stats[f"{status.name.lower()}_files_count"] for status in Status]
    return None if None in counts else sum(counts)
