"""What makes room in a root: files that it carries move into leaves, large deletion vectors into a Puffin file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.commit.addition import leaf_format
from sparkmeta.commit.swap import metadata_folder
from sparkmeta.commit.tree import FileKey, TreeChange, file_keys
from sparkmeta.manifests.avro.read import schema_of
from sparkmeta.manifests.leaf_writer import write_leaves
from sparkmeta.manifests.root import FILES, VECTORS, Root, is_live, one_of
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from sparkmeta.storage.files import ExecutorWriter, executor_writer
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from sparkmeta.commit.options import TreeOptions
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class Flush:
    """Files that move from the root into leaves, and the root's entries for these."""

    moved: frozenset[FileKey] = frozenset()
    leaves: pa.Table | None = None

    def into(self, change: TreeChange) -> TreeChange:
        """The change with the flush as part of it."""
        return replace(change, moved=self.moved, existing=self.leaves) if self.moved else change


def flush_of(base: Root | None, change: TreeChange, state: TableState, options: TreeOptions, name: str) -> Flush:
    """The flush that a commit has to make, by the thresholds for data files and for delete files; may run a job.

    What moves is what the commit carries over: new files stay in the root for now (semantics N10, N28).
    """
    if base is None:
        return Flush()
    live = base.table.filter(pc.and_(one_of(base.table, FILES), is_live(base.table)))
    keys = file_keys(live)
    kept = live.filter(pa.array([key not in change.removed for key in keys], pa.bool_()))
    data = one_of(kept, [ContentType.DATA])
    chosen = [
        rows
        for rows, most in (
            (kept.filter(data), options.flush_data_files),
            (kept.filter(pc.invert(data)), options.flush_delete_files),
        )
        if len(rows) > most
    ]
    if not chosen:
        return Flush()
    rows = pa.concat_tables(chosen)
    form = leaf_format(state, name, options.leaf_target_bytes)
    entries = local_frame(state.spark, existing(rows)).coalesce(1)
    return Flush(frozenset(file_keys(rows)), write_leaves(entries.sortWithinPartitions(*_ORDER), form))


_ORDER = ("content_type", "partition_spec_id", "location")


def existing(rows: pa.Table) -> pa.Table:
    """Entries as they stand in a leaf that a flush or a compaction writes: EXISTING, with all their numbers."""
    from sparkmeta.commit.tree import restamped
    from sparkmeta.spec.entry import Status

    return restamped(rows, status=Status.EXISTING)


def spill_vectors(table: pa.Table, state: TableState, options: TreeOptions, name: str) -> pa.Table:
    """A new root in which inline deletion vectors keep within their budget: the largest stand in one Puffin file."""
    vectors = pc.and_(one_of(table, VECTORS), is_live(table))
    blobs = pc.struct_field(table.column("deletion_vector"), "inline_content")
    sizes = pc.if_else(vectors, pc.fill_null(pc.binary_length(blobs), 0), 0).to_pylist()
    chosen = _too_large(sizes, options)
    if not chosen:
        return table
    location = join(metadata_folder(state.metadata), f"{name}.puffin")
    targets = table.column("referenced_file")
    contents = [
        deletion_vector_blob(blobs[row].as_py(), targets[row].as_py(), table.column("record_count")[row].as_py())
        for row in chosen
    ]
    file = write_puffin(contents)
    _write_by_task(state, executor_writer(state.files), location, file.data)
    places = dict(zip(chosen, file.blobs, strict=True))
    for column in ("location", "file_size_in_bytes", "deletion_vector"):
        values = table.column(column).to_pylist()
        for row, blob in places.items():
            values[row] = {
                "location": location,
                "file_size_in_bytes": len(file.data),
                "deletion_vector": {"offset": blob.offset, "size_in_bytes": blob.length, "inline_content": None},
            }[column]
        field = table.schema.field(column)
        table = table.set_column(table.column_names.index(column), field, pa.array(values, field.type))
    return table


def _too_large(sizes: list[int], options: TreeOptions) -> list[int]:
    """Rows whose vectors leave the root: those above the limit of one, then the largest until the budget holds."""
    order = sorted((row for row, size in enumerate(sizes) if size), key=lambda row: -sizes[row])
    total, chosen = sum(sizes), []
    for row in order:
        if sizes[row] <= options.inline_vector_bytes and total <= options.inline_vectors_bytes:
            break
        chosen.append(row)
        total -= sizes[row]
    return chosen


def _write_by_task(state: TableState, writer: ExecutorWriter, location: str, data: bytes) -> None:
    """The driver writes roots and table metadata only."""
    row = pa.table({"location": [location], "data": pa.array([data], pa.binary())})
    written = local_frame(state.spark, row).mapInArrow(partial(_write, writer), schema_of(_WRITTEN))
    written.collect()


_WRITTEN = pa.schema([pa.field("location", pa.string())])


def _write(writer: ExecutorWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            writer.write_new(row["location"], row["data"])
        yield batch.select(["location"])
