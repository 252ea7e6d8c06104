"""The tasks of a compaction: read leaves, drop masked entries, sort, and write leaves. Without Spark.

Entries stay in Arrow: Spark shuffles them as blobs of many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.commit.next_root import restamped
from sparkmeta.entries.live import is_live
from sparkmeta.entries.locations import table_with_locations
from sparkmeta.entries.manifest_records import PART_SCHEMA, part_of
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, PARTITION, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import from_stream, kept_rows, to_stream
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, inlined, unmasked
from sparkmeta.manifests.sorted_manifests import combined, cut, ordered, packed, range_tables, task_rows
from sparkmeta.manifests.v4.colocated import colocated_schema, with_resolved_vectors, with_vector_column
from sparkmeta.manifests.v4.convert import Adoption, conversion_projection, converted
from sparkmeta.manifests.v4.decode import colocated_entries, leaf_entries
from sparkmeta.manifests.v4.layout import TreeTypes, tree_schema
from sparkmeta.manifests.v4.write import LeafFormat, encode_leaf, leaf_count, pieces, put_behind
from sparkmeta.spec.entry import Status
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.executors import ExecutorReader

if TYPE_CHECKING:
    from sparkmeta.storage.files import Files

# A leaf to read, as a part of `PART_SCHEMA`, and its manifest DV, if any. file_format: the format of a manifest in the
# layout of versions 1 to 3; null for a leaf in the tree's layout.
_LEAF = pa.struct([*PART_SCHEMA, pa.field("record_count", pa.int64()), pa.field("dv", pa.struct([*DV_SCHEMA]))])

# Leaves and files that one task reads. group: the number of the group. parts: the number of leaves that the task
# writes. files: entries of the root, as an Arrow stream.
BIN_SCHEMA = pa.schema(
    [
        pa.field("group", pa.int32()),
        pa.field("spec_id", pa.int32()),
        pa.field("parts", pa.int32()),
        pa.field("leaves", pa.list_(pa.field("element", _LEAF))),
        pa.field("files", pa.binary()),
    ]
)

# The root's entry for a written leaf, as an Arrow stream.
GROUP_LEAF_SCHEMA = pa.schema([pa.field("group", pa.int32()), pa.field("leaf", pa.binary())])

_BATCH_ROWS = 8_192
# Maximum number of entries that a task cuts into ranges at once, unless one leaf has more.
CUT_ENTRIES = 400_000


@dataclass(frozen=True)
class Rewriting:
    """Reads, sorts and writes entries. Picklable.

    Attributes:
        types: the types of the table's V4 manifests.
        locations: resolves the locations in the table's manifests.
        keys: spec id -> ids of stats. Entries are sorted by the lower bounds of these stats, then by path.
        entry_bytes: the mean size of an entry in a leaf.
        adoption: converts entries to entries of the table that the new leaves belong to.
    """

    reader: ExecutorReader
    form: LeafFormat
    types: TreeTypes
    locations: Locations
    keys: Mapping[int, Sequence[int]]
    entry_bytes: float
    adoption: Adoption | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The row type of the entries that are read."""
        schema = tree_schema(self.types.stats)
        return colocated_schema(schema) if self.form.layout.colocates else schema

    # -- Whole bins -------------------------------------------------------------------------------------------------

    def write_bins(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write each bin, a row of `BIN_SCHEMA`, to leaves, and yield rows of `GROUP_LEAF_SCHEMA`."""
        yield from self._write(self._sorted_bins(batches))

    def _sorted_bins(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
        for row in task_rows(batches):
            entries = combined([self.schema.empty_table(), *self._entries(row)])
            sorted_entries = self._ordered(entries, row["spec_id"])
            for piece in pieces(sorted_entries, min(row["parts"], len(sorted_entries))):
                yield row["group"], piece

    def read_bins(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the live entries of bins as rows of `schema`."""
        for row in task_rows(batches):
            for table in self._entries(row):
                yield from table.to_batches(max_chunksize=_BATCH_ROWS)

    # -- Entries that change tasks ----------------------------------------------------------------------------------

    def cut_bins(self, spec_id: int, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut the entries of bins into ranges, rows of `RANGE_SCHEMA`, given the last key of each range."""
        for row in task_rows(batches):
            for table in map(combined, packed(self._entries(row), CUT_ENTRIES, len)):
                yield from cut(table, self._key_table(table, spec_id), bounds)

    def read_keys(self, spec_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the sort keys of all entries of bins, as from `key_table`, for leaves that Spark does not read."""
        keys, stats = self.keys[spec_id], self.types.stats
        fields = {source: field_id for field_id, source in self.types.sources[spec_id]}
        partition = {fields[key]: stats[key] for key in keys if key in fields}
        projection = EntryProjection.of(
            ("location",), partition, {key: stats[key] for key in keys if key not in fields}
        )
        schema = key_schema(keys, stats)
        for row in task_rows(batches):
            for leaf in row["leaves"]:
                if leaf["file_format"] is None:
                    entries = physical_entries(self.reader, leaf, self.types, self.locations, colocated=False)
                    for table in entries:
                        yield from self._key_table(table, spec_id).cast(schema).to_batches()
                    continue
                for batch in self._decoder.entries(leaf, projection):
                    paths = [
                        (PARTITION, str(fields[key])) if key in fields else (CONTENT_STATS, str(key), "lower_bound")
                        for key in keys
                    ]
                    columns = [pc.struct_field(batch.column(name), list(path)) for name, *path in paths]
                    yield pa.RecordBatch.from_arrays([*columns, batch.column("location")], names=schema.names).cast(
                        schema
                    )

    def write_ranges(self, spec_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write ranges, adjacent rows of `RANGE_SCHEMA`, to leaves, and yield rows of `GROUP_LEAF_SCHEMA`."""
        yield from self._write(self._sorted_ranges(spec_id, batches))

    def _sorted_ranges(self, spec_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
        for table in range_tables(batches):
            sorted_entries = self._ordered(table, spec_id)
            size = int(len(sorted_entries) * self.entry_bytes)
            for piece in pieces(sorted_entries, leaf_count(len(sorted_entries), size, self.form.target_bytes)):
                yield 0, piece

    # -- Entries ----------------------------------------------------------------------------------------------------

    def _entries(self, row: Mapping[str, Any]) -> Iterator[pa.Table]:
        """Yield the live entries of a bin as EXISTING ones, with their sequence numbers."""
        yield from self.live_entries(row["leaves"])
        if row["files"] is not None:
            yield from_stream(row["files"])

    def live_entries(self, leaves: Sequence[Mapping[str, Any]]) -> Iterator[pa.Table]:
        """Yield the live, unmasked entries of leaves as EXISTING ones.

        Raises:
            CorruptFileError: a leaf or a manifest DV is damaged, or the number of entries in a leaf differs from the
                count in the root.
        """
        dvs = [leaf["dv"] for leaf in leaves if leaf["dv"] is not None]
        masks = {dv[MANIFEST]: dv for dv in inlined(dvs, self.reader)}
        for leaf in leaves:
            yield from self._live_entries(leaf, masks.get(leaf[MANIFEST]))

    def _live_entries(self, leaf: Mapping[str, Any], mask: Mapping[str, Any] | None) -> Iterator[pa.Table]:
        unmasked_rows = None if mask is None else unmasked(leaf["record_count"], mask)
        count = 0
        colocated = self.form.layout.colocates
        for table in physical_entries(self.reader, leaf, self.types, self.locations, colocated=colocated):
            live = is_live(table)
            if unmasked_rows is not None and count + len(table) <= leaf["record_count"]:
                live = pc.and_(live, unmasked_rows.slice(count, len(table)))
            count += len(table)
            yield restamped(kept_rows(table, live), status=Status.EXISTING).cast(self.schema)
        # The prototype of the Iceberg project counts files that it adds with a deletion vector differently.
        if count != leaf["record_count"] and not colocated:
            problem = f"the root's entry for the leaf counts {leaf['record_count']} entries"
            raise CorruptFileError(leaf["location"], "entries", count, problem)

    @property
    def _decoder(self) -> EntryDecoder:
        """The decoder of manifests in the layout of versions 1 to 3."""
        return EntryDecoder(self.reader, None, self.locations)

    def _key_table(self, table: pa.Table, spec_id: int) -> pa.Table:
        return key_table(table, self.keys[spec_id])

    def _ordered(self, table: pa.Table, spec_id: int) -> pa.Table:
        return ordered(table, self._key_table(table, spec_id))

    def _write(self, leaves: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.RecordBatch]:
        """Write leaves, and yield the root's entries for them with the numbers of their groups."""
        encoded = ((group, encode_leaf(self._adopted(piece), self.form)) for group, piece in leaves)
        for group, row in put_behind(encoded, self.form.writer):
            yield pa.RecordBatch.from_pydict({"group": [group], "leaf": [to_stream(row)]}, schema=GROUP_LEAF_SCHEMA)

    def _adopted(self, entries: pa.Table) -> pa.Table:
        return entries if self.adoption is None else self.adoption(entries)


def physical_entries(
    reader: ExecutorReader | Files,
    leaf: Mapping[str, Any],
    types: TreeTypes,
    locations: Locations,
    *,
    colocated: bool,
) -> Iterator[pa.Table]:
    """Yield all entries of a leaf in physical order: as one table for the tree's layouts, otherwise in batches.

    Args:
        reader: opens the leaf.
        leaf: a part of `PART_SCHEMA`. `file_format` is null for leaves in the tree's layout.
        types: the types of the table's V4 manifests.
        locations: resolves the locations in the leaf.
        colocated: whether to return rows of `colocated_schema`.
    """
    spec_id = leaf["partition_spec_id"]
    if leaf["file_format"] is not None:
        batches = EntryDecoder(reader, None, locations).entries(leaf, conversion_projection(types, spec_id))
        for table in converted(batches, types, spec_id, leaf["location"]):
            yield with_vector_column(table) if colocated else table
        return
    data, part = reader.read(leaf["location"]), part_of(leaf)
    if colocated:
        yield with_resolved_vectors(colocated_entries(data, part, types), locations, leaf["location"])
    else:
        yield table_with_locations(leaf_entries(data, part, types), locations, leaf["location"])


# -- Order ----------------------------------------------------------------------------------------------------------


def key_table(table: pa.Table, keys: Sequence[int]) -> pa.Table:
    """Return the sort keys of entries: lower bounds `k0`, `k1`, ..., then `location`."""
    stats = table.column(CONTENT_STATS)
    columns = {f"k{index}": pc.struct_field(stats, [str(key), "lower_bound"]) for index, key in enumerate(keys)}
    return pa.table({**columns, "location": table.column("location")})


def key_schema(keys: Sequence[int], stats: Mapping[int, str]) -> pa.Schema:
    """Return the schema of `key_table`."""
    fields = [pa.field(f"k{index}", bound_arrow_type(stats[key])) for index, key in enumerate(keys)]
    return pa.schema([*fields, pa.field("location", pa.string())])
