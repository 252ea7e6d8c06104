"""Write entries as V4 leaves of a target size in tasks, and aggregate them to the root's entries."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache, cached_property, partial, reduce
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.live import is_live, manifest_counts
from sparkmeta.entries.locations import written_locations
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.expr.arrays import extremes, from_stream, kept_rows, to_stream, whole
from sparkmeta.expr.bounds import UNORDERED
from sparkmeta.manifests.v4.colocated import VECTOR, colocated_schema, with_vector_column, written_vectors
from sparkmeta.manifests.v4.iceberg_writer import Moves, RootStamp, write_iceberg_leaf, write_iceberg_root
from sparkmeta.manifests.v4.layout import DATA, DELETE, TreeTypes, tree_schema, write_manifest
from sparkmeta.manifests.v4.root import one_of, write_root
from sparkmeta.spec.entry import COUNTS, ContentType
from sparkmeta.spec.locations import LAYOUT_REVISION_KEY, Locations
from sparkmeta.spec.tree_layout import PROPOSAL, TreeLayout
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.manifests.types import TableTypes
    from sparkmeta.storage.executors import ExecutorWriter


# -- Aggregate the entries of a leaf ----------------------------------------------------------------------------------


def leaf_row(
    entries: pa.Table, location: str, size: int, sources: Collection[int], unordered: Collection[int] = ()
) -> pa.Table:
    """Return the root's entry for a leaf, a row of `tree_schema`.

    The commit sets its version, affinity and first row id.

    Args:
        entries: the leaf's entries, rows of `tree_schema`. They have one partition spec, and are either data files or
            delete files.
        size: the leaf's file size in bytes.
        sources: ids of the stats that hold the spec's partition values. A null upper bound of these equals the lower
            one; if both are null, the value is null.
        unordered: ids of stats whose bounds have no agreed order (UUIDs), or none as bytes. They are aggregated only if
            all are equal.
    """
    live = kept_rows(entries, is_live(entries))
    data = bool(len(entries)) and entries.column("content_type")[0].as_py() == ContentType.DATA
    row: dict[str, Any] = {
        "content_type": int(ContentType.DATA_MANIFEST if data else ContentType.DELETE_MANIFEST),
        "location": location,
        "file_format": "parquet",
        "partition_spec_id": entries.column("partition_spec_id")[0].as_py(),
        "record_count": len(entries),
        "file_size_in_bytes": size,
        "manifest_stats": manifest_counts(entries),
    }
    without_stats = pa.Table.from_pylist([row], schema=entries.schema.remove(len(entries.schema) - 1))
    stats = whole(live.column(CONTENT_STATS))
    kind = entries.schema.field(CONTENT_STATS).type
    children = [
        _aggregate(values, field.type, int(field.name) in sources, int(field.name) in unordered)
        for field, values in zip(kind, stats.flatten(), strict=True)
    ]
    aggregate = pa.StructArray.from_arrays(children, fields=list(kind)) if children else pa.array([{}], kind)
    return without_stats.append_column(entries.schema.field(CONTENT_STATS), aggregate)


def _aggregate(stats: pa.StructArray, kind: pa.StructType, is_source: bool, unordered: bool) -> pa.StructArray:
    """Return a column's stats over all files, a struct array of one row; null if no file has any."""
    values = dict(zip((field.name for field in kind), stats.flatten(), strict=True))
    if stats.null_count == len(stats):
        return pa.nulls(1, kind)
    lower, upper = values["lower_bound"], values["upper_bound"]
    if is_source:
        upper = pc.coalesce(upper, lower)
    counts = {name: _total(values[name]) for name in COUNTS}
    contributes = pc.invert(_without_values(values, lower, stats, is_source))
    least = _extreme(lower, contributes, unordered, smallest=True)
    greatest = _extreme(upper, contributes, unordered, smallest=False)
    if unordered and least != greatest:
        least = greatest = pa.scalar(None, lower.type)
    tight = values["tight_bounds"].filter(contributes)
    all_tight = len(tight) > 0 and tight.null_count == 0 and pc.all(tight).as_py()
    row = {"lower_bound": least, "upper_bound": greatest, "tight_bounds": pa.scalar(all_tight or None, pa.bool_())}
    row |= counts
    children = [
        pa.array([row[field.name].as_py()], field.type) if field.name in row else pa.nulls(1, field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind))


def _total(counts: pa.Array) -> pa.Scalar:
    return pa.scalar(None if counts.null_count else pc.sum(counts).as_py() or 0, pa.int64())


def _without_values(values: dict[str, pa.Array], lower: pa.Array, stats: pa.StructArray, is_source: bool) -> pa.Array:
    """Return whether each file holds only nulls and NaNs, and does not contribute to bounds."""
    missing = reduce(pc.add, (pc.fill_null(values[name], 0) for name in COUNTS[1:]))
    empty = pc.fill_null(pc.equal(missing, values["value_count"]), False)
    if is_source:
        empty = pc.or_(empty, pc.and_(stats.is_valid(), lower.is_null()))
    return pc.and_(empty, lower.is_null())


def _extreme(bounds: pa.Array, contributes: pa.Array, unordered: bool, *, smallest: bool) -> pa.Scalar:
    chosen = bounds.filter(contributes)
    nan = pa.types.is_floating(chosen.type) and pc.any(pc.is_nan(chosen)).as_py()
    unknown = pa.scalar(None, chosen.type)
    if not len(chosen) or chosen.null_count or nan:
        return unknown
    if unordered:
        return chosen[0] if len(pc.unique(chosen)) == 1 else unknown
    least, greatest = extremes(chosen)
    return least if smallest else greatest


# -- Write leaves in Spark tasks --------------------------------------------------------------------------------------


# The bytes of a leaf, and the root's entry for it.
EncodedLeaf = tuple[bytes, pa.Table]

_WriteTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

T = TypeVar("T")

# Files that a task writes at a time while it encodes the next leaf.
_PUTS = 2

# Estimated bytes of an entry's fields and of a column's stats, used until a leaf has been written.
_ENTRY_BYTES, _STATS_BYTES = 40, 8
_SMALLEST_LEAF = 1_000


@dataclass(frozen=True)
class LeafFormat:
    """The format of a table's leaves. Picklable.

    Attributes:
        folder: the folder of the table's metadata files.
        name: the beginning of the files' names.
        stats: ids of columns and expressions that may have stats -> Iceberg type names.
        sources: spec id -> ids of the stats that hold its partition values.
        target_bytes: the target size of a leaf.
        writer: writes the files.
        properties: further key-value metadata of the files.
        locations: how to write locations; None to write them unchanged.
        layout: the layout of the leaves. Entries may have the column `vector` if it colocates.
        types: the types of the table's manifests, for a layout that colocates.
    """

    folder: str
    name: str
    stats: Mapping[int, str]
    sources: Mapping[int, frozenset[int]]
    target_bytes: int
    writer: ExecutorWriter
    properties: Mapping[str, str] = field(default_factory=dict)
    locations: Locations | None = None
    layout: TreeLayout = PROPOSAL
    types: TreeTypes | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The row type of the root's entries for leaves."""
        return tree_schema(self.stats)

    def entries(self, rows: pa.Table) -> pa.Table:
        """Return rows as entries of leaves: rows of `schema`, with the column `vector` in the layout that has it."""
        if not self.layout.colocates:
            return rows.cast(self.schema)
        if VECTOR not in rows.column_names:
            return with_vector_column(rows.cast(self.schema))
        return rows.cast(colocated_schema(self.schema))

    @property
    def unordered(self) -> frozenset[int]:
        """Ids of stats whose bounds have no agreed order, or none as bytes; see `leaf_row`."""
        kinds = ("uuid", *UNORDERED)
        return frozenset(field_id for field_id, name in self.stats.items() if name.startswith(kinds))


def write_leaves(entries: DataFrame, form: LeafFormat) -> pa.Table:
    """Write entries as leaves, and return the root's entries for them. Runs a job.

    Args:
        entries: sorted rows of `form.schema`. Each partition is written by one task.
    """
    return _run(entries, partial(_write, form), form)


def leaves_on_driver(entries: pa.Table, form: LeafFormat) -> pa.Table:
    """Write sorted entries as `write_leaves` does, in this process."""
    return written_rows(pa.Table.from_batches(_write(form, entries.to_batches()), LEAF_SCHEMA), form)


def _run(entries: DataFrame, write: _WriteTask, form: LeafFormat) -> pa.Table:
    from sparkmeta.session import map_arrow

    return written_rows(map_arrow(entries, write, LEAF_SCHEMA).toArrow(), form)


def written_rows(written: pa.Table, form: LeafFormat) -> pa.Table:
    """Return the root's entries for leaves that tasks have written, rows of `LEAF_SCHEMA`."""
    rows = [from_stream(stream) for stream in written.column("leaf").to_pylist()]
    return pa.concat_tables(rows) if rows else form.schema.empty_table()


LEAF_SCHEMA = pa.schema([pa.field("leaf", pa.binary())])
"""The root's entry for a leaf, as an Arrow stream, so that Spark needs no schema of entries."""


OWNER = "owner"
"""A column in addition to an entry's: the data leaf that the row's delete leaf is affiliated with, or null."""


def write_owned_leaves(entries: DataFrame, form: LeafFormat, entry_bytes: float) -> pa.Table:
    """Write entries as leaves affiliated with their owners, and return the root's entries for them. Runs a job.

    Args:
        entries: rows of `form.schema` and `owner`. Rows of one owner, spec and kind are adjacent in one partition.
        entry_bytes: the expected size of an entry. It determines how many leaves of equal length an owner's entries
            fill.
    """
    return _run(entries, partial(_write_owned, form, entry_bytes), form)


def _write_owned(form: LeafFormat, entry_bytes: float, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for owner, row in put_behind(_encoded_owned(form, entry_bytes, batches), form.writer):
        index = row.column_names.index("referenced_file")
        owned = row.set_column(index, row.schema.field(index), pa.array([owner], pa.string()))
        yield pa.RecordBatch.from_pydict({"leaf": [to_stream(owned)]}, schema=LEAF_SCHEMA)


def _encoded_owned(
    form: LeafFormat, entry_bytes: float, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[str | None, EncodedLeaf]]:
    for (owner, *_), runs in groupby(_owned(form, batches), key=lambda run: run[0]):
        table = pa.concat_tables([rows for _, rows in runs])
        for piece in pieces(table, leaf_count(len(table), int(len(table) * entry_bytes), form.target_bytes)):
            yield owner, encode_leaf(piece, form)


def _owned(
    form: LeafFormat, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[tuple[str | None, tuple[int, bool]], pa.Table]]:
    """Yield runs of rows of one owner, spec and kind, with these as key."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        owners = table.column(OWNER).combine_chunks()
        entries = form.entries(table.drop_columns([OWNER]))
        for owner in owners.unique().to_pylist():
            is_owned = owners.is_null() if owner is None else pc.equal(owners, owner)
            for key, rows in _kinds(entries.filter(is_owned)):
                yield (owner, key), rows


def leaf_count(entries: int, size: int, target_bytes: int) -> int:
    """Return the number of leaves that entries with a total size in bytes fill, 0 for no entries."""
    return min(entries, max(1, round(size / target_bytes))) if entries else 0


def pieces(table: pa.Table, count: int) -> Iterator[pa.Table]:
    """Yield the rows in parts of equal length."""
    ends = [len(table) * number // count for number in range(count + 1)] if count else []
    for start, end in pairwise(ends):
        yield table.slice(start, end - start).combine_chunks()


def put_behind(
    leaves: Iterable[tuple[T, EncodedLeaf]], writer: ExecutorWriter, location: str = "location"
) -> Iterator[tuple[T, pa.Table]]:
    """Write leaves in background threads, and yield the parent's row for each after its file is written. For tasks.

    Args:
        location: the row's column with the file's location.
    """
    pending: deque[tuple[T, pa.Table, Future[None]]] = deque()

    def oldest() -> tuple[T, pa.Table]:
        key, row, put = pending.popleft()
        put.result()
        return key, row

    try:
        for key, (data, row) in leaves:
            put = _threads().submit(writer.write_new, row.column(location)[0].as_py(), data)
            pending.append((key, row, put))
            if len(pending) > _PUTS:
                yield oldest()
        while pending:
            yield oldest()
    finally:
        # After an error, wait for writes that have begun, and write nothing more.
        wait([put for _, _, put in pending if not put.cancel()])


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads that all tasks of a worker share, since some FileIOs keep connections by thread."""
    return ThreadPoolExecutor(_PUTS, "leaves")


def _write(form: LeafFormat, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, row in put_behind(((None, leaf) for leaf in _leaves(form, batches)), form.writer):
        yield pa.RecordBatch.from_pydict({"leaf": [to_stream(row)]}, schema=LEAF_SCHEMA)


def _leaves(form: LeafFormat, batches: Iterable[pa.RecordBatch]) -> Iterator[EncodedLeaf]:
    """Yield the leaves of one task. For each spec and kind, one leaf is open at a time."""
    open_leaves: dict[tuple[int, bool], _Leaf] = {}
    for batch in batches:
        table = form.entries(pa.Table.from_batches([batch]))
        for key, rows in _kinds(table):
            leaf = open_leaves.setdefault(key, _Leaf(form))
            yield from leaf.take(rows)
    for leaf in open_leaves.values():
        yield from leaf.close()


def _kinds(table: pa.Table) -> Iterator[tuple[tuple[int, bool], pa.Table]]:
    """Yield rows by spec and by whether they are data files. Each combination has separate leaves."""
    data = one_of(table, [ContentType.DATA])
    for spec_id in table.column("partition_spec_id").unique().to_pylist():
        of_spec = pc.equal(table.column("partition_spec_id"), spec_id)
        for is_data, mask in ((True, data), (False, pc.invert(data))):
            rows = table.filter(pc.and_(of_spec, mask))
            if len(rows):
                yield (spec_id, is_data), rows


class _Leaf:
    """A buffer of rows for leaves of one spec and kind."""

    def __init__(self, form: LeafFormat) -> None:
        self._form = form
        self._rows: list[pa.Table] = []
        self._count = 0
        self._entry_bytes = float(_ENTRY_BYTES + _STATS_BYTES * len(form.stats))

    def take(self, rows: pa.Table) -> Iterator[EncodedLeaf]:
        self._rows.append(rows)
        self._count += len(rows)
        while self._count >= (size := self._target_rows()):
            table = pa.concat_tables(self._rows)
            self._rows, self._count = [table.slice(size)], self._count - size
            yield self._encoded(table.slice(0, size))

    def close(self) -> Iterator[EncodedLeaf]:
        if self._count:
            yield self._encoded(pa.concat_tables(self._rows))

    def _target_rows(self) -> int:
        return max(_SMALLEST_LEAF, int(self._form.target_bytes / self._entry_bytes))

    def _encoded(self, table: pa.Table) -> EncodedLeaf:
        data, row = encode_leaf(table.combine_chunks(), self._form)
        self._entry_bytes = max(1.0, len(data) / len(table))
        return data, row


def encode_leaf(table: pa.Table, form: LeafFormat) -> EncodedLeaf:
    """Return entries of one spec and kind as the bytes of a leaf, and the root's entry for it with a new location."""
    is_data = table.column("content_type")[0].as_py() == ContentType.DATA
    content = DATA if is_data else DELETE
    if not form.layout.colocates:
        written = table if form.locations is None else written_locations(table, form.locations)
        data = write_manifest(written, content, form.properties)
    else:
        rows = form.entries(table)
        located = rows if form.locations is None else written_vectors(rows, form.locations)
        assert form.types is not None
        data = write_iceberg_leaf(located, form.types)
        table = rows.drop_columns([VECTOR])
    location = join(form.folder, f"{form.name}-{content}-{uuid.uuid4()}.parquet")
    spec_id = table.column("partition_spec_id")[0].as_py()
    sources = form.sources.get(spec_id, frozenset())
    return data, leaf_row(table, location, len(data), sources, form.unordered)


# -- Encode roots -----------------------------------------------------------------------------------------------------


def encode_root(
    table: pa.Table,
    layout: TreeLayout,
    types: TableTypes,
    moves: Moves,
    stamp: RootStamp,
    properties: Mapping[str, str],
) -> bytes:
    """Return the bytes of a root in a layout.

    Args:
        table: the root's entries, rows of `tree_schema`.
        layout: the layout of the root.
        types: the types of the table.
        moves: the files that the commit moves out of their leaves.
        stamp: the commit's numbers.
        properties: key-value metadata of the file.
    """
    if layout.colocates:
        located = written_locations(table, types.locations)
        return write_iceberg_root(located, types.tree_types, moves, stamp, properties)
    revision = str(getattr(types.metadata, "layout_revision", None))
    return write_root(table, {**properties, LAYOUT_REVISION_KEY: revision}, types.locations)
