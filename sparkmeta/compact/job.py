"""The Spark jobs of a compaction, which turn groups of leaves and files into leaves of EXISTING entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.compact.choose import Scope
from sparkmeta.compact.groups import Group
from sparkmeta.compact.tasks import (
    BIN_SCHEMA,
    CUT_ENTRIES,
    WRITTEN_SCHEMA,
    Rewriting,
    key_schema,
    key_table,
)
from sparkmeta.edit.flush import existing
from sparkmeta.edit.leaves import leaf_format, leaf_frame
from sparkmeta.edit.next_root import FileKey, file_keys
from sparkmeta.edit.range_sort import sampled_bounds, sorted_among_tasks, spread
from sparkmeta.entries.projection import CONTENT_STATS, EntryProjection
from sparkmeta.manifests.v4.root import version
from sparkmeta.manifests.v4.write import read_rows_stream, rows_stream
from sparkmeta.session import map_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.manifests.v4.adopt import Adoption
    from sparkmeta.manifests.v4.write import LeafFormat
    from sparkmeta.state import TableState
    from sparkmeta.storage.executors import ExecutorReader

# Most ranges into which a task cuts its entries.
_MOST_RANGES = 1_024
# Most bytes of leaves, with at most `CUT_ENTRIES`, that a task cuts into ranges at once. Leaves take several times
# their size in memory, and very compressible ones have many entries in few bytes.
_CUT_BYTES = 64 << 20


@dataclass(frozen=True)
class Rewritten:
    """A rewritten group.

    Attributes:
        leaves: location of a replaced leaf -> its manifest DV when it was read, or None.
        first_row_ids: location of a replaced leaf -> its first row id, from which its entries have theirs.
        files: the replaced files of the root, with their file sequence numbers.
        new_leaves: the root's entries for the new leaves.
    """

    leaves: Mapping[str, Mapping[str, Any] | None]
    first_row_ids: Mapping[str, int | None]
    files: Mapping[FileKey, int]
    new_leaves: pa.Table


@dataclass(frozen=True)
class RewriteJob:
    """The jobs of one compaction.

    Attributes:
        name: the beginning of the names of new leaves.
        adoption: makes the entries those of another table, in leaves of `adopted`.
        adopted: the format of the other table's leaves.
    """

    state: TableState
    scope: Scope
    reader: ExecutorReader
    name: str
    adoption: Adoption | None = field(default=None, kw_only=True)
    adopted: LeafFormat | None = field(default=None, kw_only=True)

    @property
    def root(self) -> pa.Table:
        return self.scope.root.table

    def data(self, groups: Sequence[Group]) -> list[Rewritten]:
        """Rewrite groups of data leaves."""
        bins = [number for number, group in enumerate(groups) if not group.exchanged]
        written: dict[int, list[pa.Table]] = {}
        if bins:
            rows = [self._bin(number, groups[number], groups[number].leaves) for number in bins]
            written = self._write_bins(rows)
        for number, group in enumerate(groups):
            if group.exchanged:
                written[number] = self._exchange(group)
        return [self.rewritten(group, written.get(number, [])) for number, group in enumerate(groups)]

    def rewritten(self, group: Group, new_leaves: Sequence[pa.Table]) -> Rewritten:
        """Return the group with the root's entries for its new leaves."""
        leaves = self.root.take(pa.array(group.leaves, pa.int64()))
        locations = leaves.column("location").to_pylist()
        files = self.root.take(pa.array(group.files, pa.int64()))
        sequences = version(files, "file_sequence_number").to_pylist()
        return Rewritten(
            {location: self.scope.root.manifest_dv_of.get(location) for location in locations},
            dict(zip(locations, leaves.column("first_row_id").to_pylist(), strict=True)),
            dict(zip(file_keys(files), sequences, strict=True)),
            pa.concat_tables([self.form.schema.empty_table(), *new_leaves]),
        )

    def rewriting(self, places: Sequence[int]) -> Rewriting:
        """Return the parameters of tasks that rewrite leaves."""
        types, size = self.state.types, self.entry_bytes(places)
        return Rewriting(
            self.reader, self.form, types.tree_types, types.locations, self.scope.keys, size, self.adoption
        )

    @cached_property
    def form(self) -> LeafFormat:
        """The format of the new leaves."""
        if self.adopted is not None:
            return self.adopted
        return leaf_format(self.state, self.name, self.scope.limits.target_bytes)

    def entry_bytes(self, places: Sequence[int]) -> float:
        """Return the mean size of an entry in leaves, or an estimate if there are none."""
        leaves = self.root.take(pa.array(places, pa.int64()))
        entries = pc.sum(leaves.column("record_count")).as_py() or 0
        sizes = np.asarray(leaves.column("file_size_in_bytes").to_pylist(), np.int64)
        size = int(self.scope.tree_bytes(np.asarray(places, np.int64), sizes).sum())
        return size / entries if entries else 40.0 + 8 * len(self.state.types.stats_types)

    # -- bins -------------------------------------------------------------------------------------------------------

    def _leaf_sources(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """Return leaves as structs of `BIN_SCHEMA`."""
        dvs = self.scope.root.manifest_dv_of
        sources = []
        for place, row in zip(
            places, self.root.select(_LEAF_COLUMNS).take(pa.array(places, pa.int64())).to_pylist(), strict=True
        ):
            dv = dvs.get(row["location"])
            blob = dv["deletion_vector"] if dv else {}
            sources.append(
                {
                    "location": row["location"],
                    "file_format": row["file_format"].upper() if place in self.scope.old else None,
                    "partition_spec_id": row["partition_spec_id"],
                    "file_size_in_bytes": row["file_size_in_bytes"],
                    "snapshot_id": row["version_info"]["snapshot_id"],
                    "sequence_number": row["version_info"]["sequence_number"],
                    "first_row_id": row["first_row_id"],
                    "record_count": row["record_count"],
                    "dv_location": dv["location"] if dv else None,
                    "dv_offset": blob.get("offset"),
                    "dv_size": blob.get("size_in_bytes"),
                    "dv_content": blob.get("inline_content"),
                    "masked": dv["record_count"] if dv else 0,
                }
            )
        return sources

    def _bin(self, number: int, group: Group, leaves: Sequence[int], *, files: bool = True) -> dict[str, Any]:
        return {
            "group": number,
            "spec_id": group.spec_id,
            "parts": group.parts,
            "leaves": self._leaf_sources(leaves),
            "files": rows_stream(self.files(group)) if files and group.files else None,
        }

    def files(self, group: Group) -> pa.Table:
        """Return the group's files of the root as EXISTING entries."""
        return existing(self.root.take(pa.array(group.files, pa.int64())))

    def entries(self, group: Group) -> DataFrame:
        """Return the live entries of a group as rows of the state's `tree_schema`."""
        rewriting = self.rewriting([])
        return map_arrow(self._frame(self._chunks(group)), rewriting.read_bins, rewriting.schema)

    def _frame(self, rows: list[dict[str, Any]]) -> DataFrame:
        """Return bins as a DataFrame with one bin per task."""
        return spread(self.state.spark, pa.Table.from_pylist(rows, schema=BIN_SCHEMA))

    def _write_bins(self, rows: list[dict[str, Any]]) -> dict[int, list[pa.Table]]:
        written = map_arrow(self._frame(rows), self.rewriting([]).write_bins, WRITTEN_SCHEMA)
        return written_leaves(written)

    # -- entries that are sorted among tasks ------------------------------------------------------------------------

    def _exchange(self, group: Group) -> list[pa.Table]:
        """Sort a group by its clustering columns. Spark shuffles a blob of entries for each bin and range."""
        assert group.spec_id is not None
        rewriting = self.rewriting(group.leaves)
        ranges = min(group.parts, _MOST_RANGES)
        bounds = self._bounds(group, ranges)
        written = sorted_among_tasks(
            self._frame(self._chunks(group)),
            partial(rewriting.cut_bins, group.spec_id, bounds),
            partial(rewriting.write_ranges, group.spec_id),
            WRITTEN_SCHEMA,
            ranges,
        )
        return written_leaves(written).get(0, [])

    def _chunks(self, group: Group) -> list[dict[str, Any]]:
        """Return the group's leaves in bins that a task processes at once."""
        names = ("file_size_in_bytes", "record_count")
        sizes, counts = (self.root.column(name).take(pa.array(group.leaves, pa.int64())).to_pylist() for name in names)
        chunks: list[list[int]] = [[]]
        size = entries = 0
        for place, of_leaf, in_leaf in zip(group.leaves, sizes, counts, strict=True):
            if chunks[-1] and (size + of_leaf > _CUT_BYTES or entries + in_leaf > CUT_ENTRIES):
                chunks.append([])
                size = entries = 0
            chunks[-1].append(place)
            size, entries = size + of_leaf, entries + in_leaf
        return [self._bin(0, group, leaves, files=not number) for number, leaves in enumerate(chunks)]

    def _bounds(self, group: Group, ranges: int) -> pa.Table:
        """Return the last keys of the ranges. Runs a job that reads only keys."""
        assert group.spec_id is not None
        keys, stats = self.scope.keys[group.spec_id], self.state.types.stats_types
        schema = key_schema(keys, stats)
        in_root = key_table(self.files(group), keys).cast(schema)
        frames = []
        if leaves := [place for place in group.leaves if place not in self.scope.old]:
            projection = EntryProjection.of(("location",), None, {key: stats[key] for key in keys})
            columns = [
                F.col(f"{CONTENT_STATS}.`{key}`.lower_bound").alias(f"k{place}") for place, key in enumerate(keys)
            ]
            rows = self.root.take(pa.array(leaves, pa.int64()))
            frames.append(leaf_frame(self.state, rows, projection).select(*columns, "location"))
        if old := [place for place in group.leaves if place in self.scope.old]:
            bins = self._frame([self._bin(0, group, [place], files=False) for place in old])
            frames.append(map_arrow(bins, partial(self.rewriting([]).read_keys, group.spec_id), schema))
        entries = pc.sum(self.root.column("record_count").take(pa.array(group.leaves, pa.int64()))).as_py()
        return sampled_bounds(reduce(lambda left, right: left.unionByName(right), frames), in_root, entries, ranges)


_LEAF_COLUMNS = [
    "location",
    "file_format",
    "partition_spec_id",
    "file_size_in_bytes",
    "version_info",
    "first_row_id",
    "record_count",
]


def written_leaves(written: DataFrame) -> dict[int, list[pa.Table]]:
    """Run the job that writes leaves, and return the root's entries for them by group."""
    rows = written.toArrow()
    by_group: dict[int, list[pa.Table]] = {}
    for group, leaf in zip(rows.column("group").to_pylist(), rows.column("leaf"), strict=True):
        by_group.setdefault(group, []).append(read_rows_stream(leaf.as_buffer()))
    return by_group
