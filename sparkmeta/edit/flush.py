"""Keep a root small: move its files into leaves, and large manifest deletion vectors into a Puffin file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.edit.leaves import leaf_format, partition_columns
from sparkmeta.edit.next_root import FileKey, TreeChange, file_keys, file_versions, restamped
from sparkmeta.manifests.v4.root import FILES, MANIFEST_DVS, Root, is_live, one_of, version
from sparkmeta.manifests.v4.write import write_leaves
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from sparkmeta.storage.access import executor_writer
from sparkmeta.storage.executors import ExecutorWriter
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from sparkmeta.edit.options import TreeOptions
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class Flush:
    """The files that a commit moves from the root into leaves.

    Attributes:
        moved: the files with their file sequence numbers, since a path may be added again with other rows.
        leaves: the root's entries for the leaves.
    """

    moved: Mapping[FileKey, int] = field(default_factory=dict)
    leaves: pa.Table | None = None

    def into(self, change: TreeChange) -> TreeChange:
        """Return the change with the flush added to it."""
        return replace(change, moved=frozenset(self.moved), existing=self.leaves) if self.moved else change

    def fits(self, base: Root | None, change: TreeChange) -> bool:
        """Return whether the flush, computed for another root, can be applied to this one."""
        if base is None or not change.removed.isdisjoint(self.moved):
            return False
        versions = file_versions(base)
        return all(versions.get(key) == sequence for key, sequence in self.moved.items())


def flush_of(base: Root | None, change: TreeChange, state: TableState, options: TreeOptions, name: str) -> Flush:
    """Return the flush that the thresholds for data and delete files require. May run a job.

    Only carried-over files are moved; the commit's new files stay in the root (semantics 16.6).
    """
    if base is None:
        return Flush()
    live = base.table.filter(pc.and_(one_of(base.table, FILES), is_live(base.table)))
    carried = live.filter(pa.array([key not in change.removed for key in file_keys(live)], pa.bool_()))
    data = one_of(carried, [ContentType.DATA])
    chosen = [
        rows
        for rows, most in (
            (carried.filter(data), options.flush_data_files),
            (carried.filter(pc.invert(data)), options.flush_delete_files),
        )
        if len(rows) > most
    ]
    if not chosen:
        return Flush()
    rows = pa.concat_tables(chosen)
    form = leaf_format(state, name, options.leaf_target_bytes)
    entries = local_frame(state.spark, existing(rows)).coalesce(1)
    versions = dict(zip(file_keys(rows), version(rows, "file_sequence_number").to_pylist(), strict=True))
    keys = [F.col("content_type"), F.col("partition_spec_id"), *partition_columns(state), F.col("location")]
    return Flush(versions, write_leaves(entries.sortWithinPartitions(*keys), form))


def existing(rows: pa.Table) -> pa.Table:
    """Return entries for a leaf written by a flush or compaction: EXISTING, with their own version numbers."""
    return restamped(rows, status=Status.EXISTING)


def spill_manifest_dvs(
    table: pa.Table,
    state: TableState,
    options: TreeOptions,
    name: str,
    spilled: dict[tuple[str, bytes], Mapping[str, Any]],
) -> pa.Table:
    """Move the largest inline manifest DVs of a new root into a Puffin file, so that the others fit the size budget.

    Args:
        table: the new root.
        name: the prefix of the file's name.
        spilled: (leaf, bitmap) -> entry columns of a DV that earlier attempts moved. Updated with newly moved DVs.
    """
    manifest_dvs = pc.and_(one_of(table, MANIFEST_DVS), is_live(table))
    blobs = pc.struct_field(table.column("deletion_vector"), "inline_content")
    sizes = pc.if_else(manifest_dvs, pc.fill_null(pc.binary_length(blobs), 0), 0).to_pylist()
    chosen = _too_large(sizes, options)
    if not chosen:
        return table
    targets = table.column("referenced_file")
    keys = {row: (targets[row].as_py(), blobs[row].as_py()) for row in chosen}
    fresh = [row for row, key in keys.items() if key not in spilled]
    if fresh:
        counts = [table.column("record_count")[row].as_py() for row in fresh]
        spilled |= _write_puffin(state, name, [(*keys[row], count) for row, count in zip(fresh, counts, strict=True)])
    for column in ("location", "file_size_in_bytes", "deletion_vector"):
        values = table.column(column).to_pylist()
        for row, key in keys.items():
            values[row] = spilled[key][column]
        field_of = table.schema.field(column)
        table = table.set_column(table.column_names.index(column), field_of, pa.array(values, field_of.type))
    return table


def _write_puffin(
    state: TableState, name: str, dvs: list[tuple[str, bytes, int]]
) -> dict[tuple[str, bytes], Mapping[str, Any]]:
    """Write DVs, (leaf, bitmap, cardinality), to one Puffin file and return the changed columns of their entries."""
    location = join(metadata_folder(state.metadata), f"{name}.puffin")
    file = write_puffin([deletion_vector_blob(blob, target, count) for target, blob, count in dvs])
    _write_by_task(state, executor_writer(state.files), location, file.data)
    return {
        (target, blob): {
            "location": location,
            "file_size_in_bytes": len(file.data),
            "deletion_vector": {"offset": place.offset, "size_in_bytes": place.length, "inline_content": None},
        }
        for (target, blob, _), place in zip(dvs, file.blobs, strict=True)
    }


def _too_large(sizes: list[int], options: TreeOptions) -> list[int]:
    """Return the rows of DVs to move: all above the size limit, then the largest until the others fit the budget."""
    order = sorted((row for row, size in enumerate(sizes) if size), key=lambda row: -sizes[row])
    total, chosen = sum(sizes), []
    for row in order:
        if sizes[row] <= options.inline_vector_bytes and total <= options.inline_vectors_bytes:
            break
        chosen.append(row)
        total -= sizes[row]
    return chosen


def _write_by_task(state: TableState, writer: ExecutorWriter, location: str, data: bytes) -> None:
    """Write a file in a Spark task, since the driver writes only roots and table metadata."""
    row = pa.table({"location": [location], "data": pa.array([data], pa.binary())})
    written = map_arrow(local_frame(state.spark, row), partial(_write, writer), _WRITTEN)
    written.collect()


_WRITTEN = pa.schema([pa.field("location", pa.string())])


def _write(writer: ExecutorWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            writer.write_new(row["location"], row["data"])
        yield batch.select(["location"])
