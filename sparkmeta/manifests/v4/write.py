"""V4 leaf manifests written by Spark tasks: entries in, files of a target size out, and the root's entry for each."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.manifests.v4.aggregate import leaf_row
from sparkmeta.manifests.v4.layout import DATA, DELETE, tree_schema, write_manifest
from sparkmeta.manifests.v4.root import one_of
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.storage.executors import ExecutorWriter

# The bytes of a leaf, and the root's entry for it.
EncodedLeaf = tuple[bytes, pa.Table]

T = TypeVar("T")

# Files that a task puts at a time, beside the leaf that it makes.
_PUTS = 2

# What an entry takes in a file before one has been written: its own fields, and each column's stats.
_ENTRY_BYTES, _STATS_BYTES = 40, 8
_SMALLEST_LEAF = 1_000


@dataclass(frozen=True)
class LeafFormat:
    """How a table's leaves are written; it travels to executors.

    folder: of the table's metadata files. name: begins the names of one commit's files. stats: ids with stats -> their
    Iceberg types. sources: spec id -> ids of the stats that hold its partition values. target_bytes: of a leaf.
    """

    folder: str
    name: str
    stats: Mapping[int, str]
    sources: Mapping[int, frozenset[int]]
    target_bytes: int
    writer: ExecutorWriter
    properties: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def schema(self) -> pa.Schema:
        """The rows of entries, and of the root's entries for leaves."""
        return tree_schema(self.stats)

    @property
    def unordered(self) -> frozenset[int]:
        return frozenset(one for one, name in self.stats.items() if name == "uuid")


def write_leaves(entries: DataFrame, form: LeafFormat) -> pa.Table:
    """Writes entries as leaves, each task its own, and gives the root's entries for them; runs a job.

    entries: rows of `form.schema` in the order in which they are to stand, partitioned as tasks shall take them.
    """
    from sparkmeta.session import spark_schema

    written = entries.mapInArrow(partial(_write, form), spark_schema(_WRITTEN)).toArrow()
    rows = [read_rows_stream(one) for one in written.column("leaf").to_pylist()]
    return pa.concat_tables(rows) if rows else form.schema.empty_table()


# The root's entry for a leaf, as an Arrow stream: Spark would have to be told its type.
_WRITTEN = pa.schema([pa.field("leaf", pa.binary())])


OWNER = "owner"
"""A column beside those of entries: the data leaf that the delete leaf of a row belongs to; null for none."""


def write_owned_leaves(entries: DataFrame, form: LeafFormat, entry_bytes: float) -> pa.Table:
    """Writes entries as leaves of their owners, and gives the root's entries for them; runs a job.

    entries: rows of `form.schema` and `owner`; those of one owner, spec and kind stand together, in one task.
    entry_bytes: what one takes in a file, about: an owner's entries fill as many leaves as that makes, equally.
    """
    from sparkmeta.session import spark_schema

    written = entries.mapInArrow(partial(_write_owned, form, entry_bytes), spark_schema(_WRITTEN)).toArrow()
    rows = [read_rows_stream(one) for one in written.column("leaf").to_pylist()]
    return pa.concat_tables(rows) if rows else form.schema.empty_table()


def _write_owned(form: LeafFormat, entry_bytes: float, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for owner, row in put_behind(_encoded_owned(form, entry_bytes, batches), form.writer):
        index = row.column_names.index("referenced_file")
        owned = row.set_column(index, row.schema.field(index), pa.array([owner], pa.string()))
        yield pa.RecordBatch.from_pydict({"leaf": [rows_stream(owned)]}, schema=_WRITTEN)


def _encoded_owned(
    form: LeafFormat, entry_bytes: float, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[str | None, EncodedLeaf]]:
    for (owner, *_), parts in groupby(_owned(form, batches), key=lambda one: one[0]):
        table = pa.concat_tables([rows for _, rows in parts])
        for piece in pieces(table, leaf_count(len(table), int(len(table) * entry_bytes), form.target_bytes)):
            yield owner, encode_leaf(piece, form)


def _owned(
    form: LeafFormat, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[tuple[str | None, tuple[int, bool]], pa.Table]]:
    """Runs of rows with one owner, spec and kind, and these."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        owners = table.column(OWNER).combine_chunks()
        entries = table.drop_columns([OWNER]).cast(form.schema)
        for owner in owners.unique().to_pylist():
            same = owners.is_null() if owner is None else pc.equal(owners, owner)
            for key, rows in _kinds(entries.filter(same)):
                yield (owner, key), rows


def leaf_count(entries: int, size: int, target_bytes: int) -> int:
    """How many leaves entries of this size in bytes fill; none for no entries."""
    return min(entries, max(1, round(size / target_bytes))) if entries else 0


def pieces(table: pa.Table, count: int) -> Iterator[pa.Table]:
    """The rows in this many parts of equal length."""
    ends = [len(table) * one // count for one in range(count + 1)] if count else []
    for start, end in pairwise(ends):
        yield table.slice(start, end - start).combine_chunks()


def put_behind(
    leaves: Iterable[tuple[T, EncodedLeaf]], writer: ExecutorWriter, location: str = "location"
) -> Iterator[tuple[T, pa.Table]]:
    """Writes leaves, and gives the parent's row for each once its file is there. For tasks.

    location: the row's column that names the file. While one is on its way to the disk or store the next leaf is made.
    """
    pending: deque[tuple[T, pa.Table, Future[None]]] = deque()

    def first() -> tuple[T, pa.Table]:
        key, row, put = pending.popleft()
        put.result()
        return key, row

    try:
        for key, (data, row) in leaves:
            put = _threads().submit(writer.write_new, row.column(location)[0].as_py(), data)
            pending.append((key, row, put))
            if len(pending) > _PUTS:
                yield first()
        while pending:
            yield first()
    finally:
        # After an error: what has begun is waited for, and nothing more is written.
        wait([put for _, _, put in pending if not put.cancel()])


@cache
def _threads() -> ThreadPoolExecutor:
    """The same ones for all tasks of a worker, since some FileIOs keep connections by thread."""
    return ThreadPoolExecutor(_PUTS, "leaves")


def _write(form: LeafFormat, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, row in put_behind(((None, one) for one in _leaves(form, batches)), form.writer):
        yield pa.RecordBatch.from_pydict({"leaf": [rows_stream(row)]}, schema=_WRITTEN)


def rows_stream(rows: pa.Table, compression: str | None = None) -> bytes:
    """Entries as an Arrow stream, in which Spark moves them without knowing their type."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_rows_stream(data: bytes | pa.Buffer) -> pa.Table:
    """What `rows_stream` made."""
    return pa.ipc.open_stream(data).read_all()


def _leaves(form: LeafFormat, batches: Iterable[pa.RecordBatch]) -> Iterator[EncodedLeaf]:
    """Leaves of one task: one open at a time for each spec and kind."""
    open_leaves: dict[tuple[int, bool], _Leaf] = {}
    for batch in batches:
        table = pa.Table.from_batches([batch]).cast(form.schema)
        for key, rows in _kinds(table):
            leaf = open_leaves.setdefault(key, _Leaf(form))
            yield from leaf.take(rows)
    for leaf in open_leaves.values():
        yield from leaf.close()


def _kinds(table: pa.Table) -> Iterator[tuple[tuple[int, bool], pa.Table]]:
    """The rows by spec and by whether they are data: each combination has leaves of its own."""
    data = one_of(table, [ContentType.DATA])
    for spec_id in table.column("partition_spec_id").unique().to_pylist():
        of_spec = pc.equal(table.column("partition_spec_id"), spec_id)
        for is_data, mask in ((True, data), (False, pc.invert(data))):
            rows = table.filter(pc.and_(of_spec, mask))
            if len(rows):
                yield (spec_id, is_data), rows


class _Leaf:
    """Rows on their way into leaves of one spec and kind."""

    def __init__(self, form: LeafFormat) -> None:
        self._form = form
        self._rows: list[pa.Table] = []
        self._count = 0
        self._entry_bytes = float(_ENTRY_BYTES + _STATS_BYTES * len(form.stats))

    def take(self, rows: pa.Table) -> Iterator[EncodedLeaf]:
        self._rows.append(rows)
        self._count += len(rows)
        while self._count >= (wanted := self._wanted()):
            table = pa.concat_tables(self._rows)
            self._rows, self._count = [table.slice(wanted)], self._count - wanted
            yield self._encoded(table.slice(0, wanted))

    def close(self) -> Iterator[EncodedLeaf]:
        if self._count:
            yield self._encoded(pa.concat_tables(self._rows))

    def _wanted(self) -> int:
        return max(_SMALLEST_LEAF, int(self._form.target_bytes / self._entry_bytes))

    def _encoded(self, table: pa.Table) -> EncodedLeaf:
        data, row = encode_leaf(table.combine_chunks(), self._form)
        self._entry_bytes = max(1.0, len(data) / len(table))
        return data, row


def encode_leaf(table: pa.Table, form: LeafFormat) -> EncodedLeaf:
    """Entries of one spec and kind as the bytes of a leaf, and the root's entry for it, its new location in it."""
    is_data = table.column("content_type")[0].as_py() == ContentType.DATA
    content = DATA if is_data else DELETE
    data = write_manifest(table, content, form.properties)
    location = join(form.folder, f"{form.name}-{content}-{uuid.uuid4()}.parquet")
    spec_id = table.column("partition_spec_id")[0].as_py()
    sources = form.sources.get(spec_id, frozenset())
    return data, leaf_row(table, location, len(data), sources, form.unordered)
