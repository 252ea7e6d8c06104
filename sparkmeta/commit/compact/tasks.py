"""What Spark tasks do in a compaction: read leaves, leave out what is masked, sort, and write leaves. Free of Spark.

Entries stay in Arrow all the way: where tasks exchange entries, Spark moves them as blobs of many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.commit.tree import restamped
from sparkmeta.manifests.entries import ManifestPart
from sparkmeta.manifests.inherit import ManifestContext
from sparkmeta.manifests.layout import kept_rows
from sparkmeta.manifests.leaf_bytes import leaf_entries
from sparkmeta.manifests.leaf_writer import (
    LeafFormat,
    encode_leaf,
    leaf_count,
    pieces,
    put_behind,
    read_rows_stream,
    rows_stream,
)
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST
from sparkmeta.manifests.root import is_live
from sparkmeta.manifests.vectors import unmasked
from sparkmeta.spec.entry import Status
from sparkmeta.storage.files import ExecutorReader

# A leaf to read: what its entries inherit, and its deletion vector, if it has one.
_LEAF = pa.struct(
    [
        pa.field("location", pa.string()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        pa.field("record_count", pa.int64()),
        pa.field("vector_location", pa.string()),
        pa.field("vector_offset", pa.int64()),
        pa.field("vector_size", pa.int64()),
        pa.field("vector_content", pa.binary()),
        pa.field("masked", pa.int64()),
    ]
)

# What one task reads together. group: in the list of groups. parts: how many leaves come of it, where it writes them.
# files: entries of the root, as an Arrow stream.
BIN_SCHEMA = pa.schema(
    [
        pa.field("group", pa.int32()),
        pa.field("spec_id", pa.int32()),
        pa.field("parts", pa.int32()),
        pa.field("leaves", pa.list_(pa.field("element", _LEAF))),
        pa.field("files", pa.binary()),
    ]
)

# The root's entry for a leaf that was written, as an Arrow stream.
WRITTEN_SCHEMA = pa.schema([pa.field("group", pa.int32()), pa.field("leaf", pa.binary())])

# Entries of one range of the clustering columns, as an Arrow stream.
RANGE_SCHEMA = pa.schema([pa.field("range", pa.int32()), pa.field("rows", pa.binary())])

_BATCH_ROWS = 8_192


@dataclass(frozen=True)
class Rewriting:
    """How entries are read, sorted and written; it travels to executors.

    keys: spec id -> ids of the stats whose lower bounds order the entries; then their paths do. entry_bytes: of an
    entry in a leaf, at the mean.
    """

    reader: ExecutorReader
    form: LeafFormat
    keys: Mapping[int, Sequence[int]]
    entry_bytes: float

    # -- whole bins -------------------------------------------------------------------------------------------------

    def write_bins(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each bin, a row of `BIN_SCHEMA`, into leaves of its own: rows of `WRITTEN_SCHEMA`."""
        yield from self._write(self._of_bins(batches))

    def _of_bins(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
        for row in _rows(batches):
            ordered = self._ordered(self._entries(row), row["spec_id"])
            for piece in pieces(ordered, min(row["parts"], len(ordered))):
                yield row["group"], piece

    def read_bins(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The live entries of bins as rows of `form.schema`."""
        for row in _rows(batches):
            yield from self._entries(row).to_batches(max_chunksize=_BATCH_ROWS)

    # -- entries that change tasks ----------------------------------------------------------------------------------

    def cut_bins(self, spec_id: int, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The entries of bins by range: rows of `RANGE_SCHEMA`. bounds: the keys of the last entry of each range."""
        for row in _rows(batches):
            table = self._entries(row)
            if len(table):
                yield from _cut(table, self._key_table(table, spec_id), bounds)

    def write_ranges(self, spec_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Ranges, whose rows of `RANGE_SCHEMA` stand together, into leaves: rows of `WRITTEN_SCHEMA`."""
        yield from self._write(self._of_ranges(spec_id, batches))

    def _of_ranges(self, spec_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
        for _, blobs in groupby(_ranges(batches), key=lambda row: row[0]):
            ordered = self._ordered(_combined(read_rows_stream(blob) for _, blob in blobs), spec_id)
            size = int(len(ordered) * self.entry_bytes)
            for piece in pieces(ordered, leaf_count(len(ordered), size, self.form.target_bytes)):
                yield 0, piece

    # -- entries ----------------------------------------------------------------------------------------------------

    def _entries(self, row: Mapping[str, Any]) -> pa.Table:
        """The live entries of a bin: EXISTING, with all their numbers."""
        tables = [self.live_entries(leaf) for leaf in row["leaves"]]
        if row["files"] is not None:
            tables.append(read_rows_stream(row["files"]))
        return _combined(tables) if tables else self.form.schema.empty_table()

    def live_entries(self, leaf: Mapping[str, Any]) -> pa.Table:
        """The entries of a leaf that no deletion vector masks and that are not DELETED, as EXISTING ones.

        Raises CorruptFileError for a leaf, or a vector, that is none.
        """
        context = ManifestContext(leaf["snapshot_id"], leaf["sequence_number"], leaf["first_row_id"])
        part = ManifestPart(0, leaf["location"], 0, context)
        table = leaf_entries(self.reader.read(leaf["location"]), part, self.form.stats)
        wanted = is_live(table)
        if leaf["masked"]:
            wanted = pc.and_(wanted, unmasked(len(table), _vector_row(leaf), self.reader))
        return restamped(kept_rows(table, wanted), status=Status.EXISTING).cast(self.form.schema)

    def _key_table(self, table: pa.Table, spec_id: int) -> pa.Table:
        return key_table(table, self.keys[spec_id])

    def _ordered(self, table: pa.Table, spec_id: int) -> pa.Table:
        keys = self._key_table(table, spec_id)
        order = pc.sort_indices(keys, sort_keys=_sort_keys(keys))
        return table if pc.all(pc.equal(order, np.arange(len(table)))).as_py() else table.take(order)

    def _write(self, leaves: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.RecordBatch]:
        """The entries of leaves, each with the number of its group."""
        encoded = ((group, encode_leaf(piece, self.form)) for group, piece in leaves)
        for group, row in put_behind(encoded, self.form):
            yield pa.RecordBatch.from_pydict({"group": [group], "leaf": [rows_stream(row)]}, schema=WRITTEN_SCHEMA)


def _combined(tables: Iterable[pa.Table]) -> pa.Table:
    """The rows of all in one chunk: it takes twice as long to take rows of many."""
    return pa.concat_tables(tables).combine_chunks()


def _vector_row(leaf: Mapping[str, Any]) -> dict[str, Any]:
    return {
        MANIFEST: 0,
        "referenced_file": leaf["location"],
        "location": leaf["vector_location"],
        "offset": leaf["vector_offset"],
        "size_in_bytes": leaf["vector_size"],
        "inline_content": leaf["vector_content"],
        "record_count": leaf["masked"],
        "leaf_entries": leaf["record_count"],
    }


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        numbers = batch.column("range").to_pylist()
        for number, blob in zip(numbers, batch.column("rows"), strict=True):
            yield number, blob.as_buffer()


# -- order ----------------------------------------------------------------------------------------------------------


def key_table(table: pa.Table, keys: Sequence[int]) -> pa.Table:
    """What entries are ordered by: `k0`, `k1`, ... are lower bounds, `location` parts files that are equal in them."""
    stats = table.column(CONTENT_STATS)
    columns = {f"k{place}": pc.struct_field(stats, [str(key), "lower_bound"]) for place, key in enumerate(keys)}
    return pa.table({**columns, "location": table.column("location")})


def key_schema(keys: Sequence[int], stats: Mapping[int, str]) -> pa.Schema:
    """Of `key_table`."""
    fields = [pa.field(f"k{place}", bound_arrow_type(stats[key])) for place, key in enumerate(keys)]
    return pa.schema([*fields, pa.field("location", pa.string())])


def range_bounds(sample: pa.Table, ranges: int) -> pa.Table:
    """The keys that end each range but the last, so that ranges hold equal shares of a sample of keys."""
    ordered = sample.take(pc.sort_indices(sample, sort_keys=_sort_keys(sample)))
    ends = sorted({len(ordered) * one // ranges - 1 for one in range(1, ranges)} - {-1})
    return ordered.take(pa.array(ends, pa.int64()))


def _sort_keys(keys: pa.Table) -> list[tuple[str, str]]:
    return [(name, "ascending") for name in keys.column_names]


_IS_BOUND = "is_bound"


def _cut(table: pa.Table, keys: pa.Table, bounds: pa.Table) -> Iterator[pa.RecordBatch]:
    """Entries sorted, and split at the bounds. An entry that equals a bound is in the range that it ends."""
    rows = len(table)
    both = pa.concat_tables([keys.cast(bounds.schema), bounds])
    marked = both.append_column(_IS_BOUND, pa.array(np.arange(len(both)) >= rows).cast(pa.int8()))
    order = pc.sort_indices(marked, sort_keys=_sort_keys(marked)).to_numpy()
    is_bound = order >= rows
    numbers = np.cumsum(is_bound)[~is_bound]
    ordered = table.take(pa.array(order[~is_bound]))
    starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1, [rows]])
    for start, end in pairwise(starts.tolist()):
        blob = rows_stream(ordered.slice(start, end - start), compression="lz4")
        yield pa.RecordBatch.from_pydict({"range": [int(numbers[start])], "rows": [blob]}, schema=RANGE_SCHEMA)
