"""The Spark jobs of a compaction: they turn groups of leaves and files into leaves of EXISTING entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.commit.compact.choose import Group, Scope
from sparkmeta.commit.compact.tasks import (
    BIN_SCHEMA,
    WRITTEN_SCHEMA,
    Rewriting,
    key_schema,
    key_table,
)
from sparkmeta.commit.exchange import RANGE_SCHEMA, exchanged, range_bounds
from sparkmeta.commit.file_writer import leaf_format
from sparkmeta.commit.flush import existing
from sparkmeta.commit.new_leaves import leaf_frame
from sparkmeta.commit.tree import FileKey, file_keys
from sparkmeta.errors import UnsupportedError
from sparkmeta.manifests.projection import CONTENT_STATS, EntryProjection
from sparkmeta.manifests.v4.root import version
from sparkmeta.manifests.v4.write import read_rows_stream, rows_stream
from sparkmeta.session import local_frame, read_tasks, spark_schema
from sparkmeta.storage.access import executor_reader
from sparkmeta.storage.executors import ExecutorReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.manifests.v4.write import LeafFormat
    from sparkmeta.state import TableState

# More ranges are too many streams for one task to cut its entries into.
_MOST_RANGES = 1_024
# What a task cuts into ranges at once: bytes of leaves, which are several times as many in memory, and entries, of
# which very many are in few bytes where their columns hardly differ.
_CUT_BYTES, _CUT_ENTRIES = 64 << 20, 400_000
# Entries of a range in a sample.
_SAMPLED = 60
_LARGEST_SAMPLE = 50_000


@dataclass(frozen=True)
class Rewritten:
    """A group as it was rewritten.

    leaves: location -> the root's entry for its deletion vector when it was read, or None. files: of the root, with
    their sequence numbers. made: the root's entries for the leaves that take their place.
    """

    leaves: Mapping[str, Mapping[str, Any] | None]
    files: Mapping[FileKey, int]
    made: pa.Table


def executor_reader_of(state: TableState) -> ExecutorReader:
    """How executors open the table's files. Raises UnsupportedError where they can't by themselves."""
    reader = executor_reader(state.files)
    if reader is None:
        raise UnsupportedError(
            f"{state.metadata.location}: its executors can't open its files: open the table through a catalog, whose "
            "FileIO they can use"
        )
    return reader


@dataclass(frozen=True)
class RewriteJob:
    """What the jobs of one compaction share."""

    state: TableState
    scope: Scope
    reader: ExecutorReader
    name: str

    @property
    def root(self) -> pa.Table:
        return self.scope.root.table

    def data(self, groups: Sequence[Group]) -> list[Rewritten]:
        """Groups of data leaves."""
        bins = [number for number, one in enumerate(groups) if not one.exchanged]
        made: dict[int, list[pa.Table]] = {}
        if bins:
            rows = [self._bin(number, groups[number], groups[number].leaves) for number in bins]
            made = self._write_bins(rows)
        for number, group in enumerate(groups):
            if group.exchanged:
                made[number] = self._exchange(group)
        return [self.rewritten(group, made.get(number, [])) for number, group in enumerate(groups)]

    def rewritten(self, group: Group, made: Sequence[pa.Table]) -> Rewritten:
        """The group with the root's entries for its new leaves."""
        locations = [self.root.column("location")[place].as_py() for place in group.leaves]
        files = self.root.take(pa.array(group.files, pa.int64()))
        sequences = version(files, "file_sequence_number").to_pylist()
        return Rewritten(
            {location: self.scope.root.vector_of.get(location) for location in locations},
            dict(zip(file_keys(files), sequences, strict=True)),
            pa.concat_tables([self.form.schema.empty_table(), *made]),
        )

    def rewriting(self, places: Sequence[int]) -> Rewriting:
        """What tasks need to rewrite some leaves."""
        return Rewriting(self.reader, self.form, self.scope.keys, self.entry_bytes(places))

    @cached_property
    def form(self) -> LeafFormat:
        """How the new leaves are written."""
        return leaf_format(self.state, self.name, self.scope.limits.target_bytes)

    def entry_bytes(self, places: Sequence[int]) -> float:
        """Of an entry in leaves, at the mean; of any where there are none."""
        leaves = self.root.take(pa.array(places, pa.int64()))
        entries, size = (pc.sum(leaves.column(one)).as_py() or 0 for one in ("record_count", "file_size_in_bytes"))
        return size / entries if entries else 40.0 + 8 * len(self.state.types.stats_types)

    # -- bins -------------------------------------------------------------------------------------------------------

    def _leaf_sources(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """Leaves as tasks take them: the structs of `BIN_SCHEMA`."""
        vectors = self.scope.root.vector_of
        found = []
        for row in self.root.select(_LEAF_COLUMNS).take(pa.array(places, pa.int64())).to_pylist():
            vector = vectors.get(row["location"])
            place = vector["deletion_vector"] if vector else {}
            found.append(
                {
                    "location": row["location"],
                    "snapshot_id": row["version_info"]["snapshot_id"],
                    "sequence_number": row["version_info"]["sequence_number"],
                    "first_row_id": row["first_row_id"],
                    "record_count": row["record_count"],
                    "vector_location": vector["location"] if vector else None,
                    "vector_offset": place.get("offset"),
                    "vector_size": place.get("size_in_bytes"),
                    "vector_content": place.get("inline_content"),
                    "masked": vector["record_count"] if vector else 0,
                }
            )
        return found

    def _bin(self, number: int, group: Group, leaves: Sequence[int], *, files: bool = True) -> dict[str, Any]:
        return {
            "group": number,
            "spec_id": group.spec_id,
            "parts": group.parts,
            "leaves": self._leaf_sources(leaves),
            "files": rows_stream(self.files(group)) if files and group.files else None,
        }

    def files(self, group: Group) -> pa.Table:
        """The group's files of the root, EXISTING."""
        return existing(self.root.take(pa.array(group.files, pa.int64())))

    def entries(self, group: Group) -> DataFrame:
        """The live entries of a group as rows of `tree_schema`."""
        return self._frame(self._chunks(group)).mapInArrow(self.rewriting([]).read_bins, spark_schema(self.form.schema))

    def _frame(self, rows: list[dict[str, Any]]) -> DataFrame:
        """Bins, each the work of one task, which has others too where there are many."""
        frame = local_frame(self.state.spark, pa.Table.from_pylist(rows, schema=BIN_SCHEMA))
        return frame.repartition(min(len(rows), self._tasks))

    @property
    def _tasks(self) -> int:
        """Of a job, at most: each has several leaves to write, since it makes one while another is on its way."""
        return 8 * read_tasks(self.state.spark)

    def _write_bins(self, rows: list[dict[str, Any]]) -> dict[int, list[pa.Table]]:
        written = self._frame(rows).mapInArrow(self.rewriting([]).write_bins, spark_schema(WRITTEN_SCHEMA))
        return made_leaves(written)

    # -- entries that are sorted among tasks ------------------------------------------------------------------------

    def _exchange(self, group: Group) -> list[pa.Table]:
        """The group in ranges of its clustering columns. Spark moves blobs of entries, one for a bin and range."""
        assert group.spec_id is not None
        rewriting = self.rewriting(group.leaves)
        ranges = min(group.parts, _MOST_RANGES)
        bounds = self._bounds(group, ranges)
        cut = self._frame(self._chunks(group)).mapInArrow(
            partial(rewriting.cut_bins, group.spec_id, bounds), spark_schema(RANGE_SCHEMA)
        )
        written = exchanged(cut, min(ranges, self._tasks)).mapInArrow(
            partial(rewriting.write_ranges, group.spec_id), spark_schema(WRITTEN_SCHEMA)
        )
        return made_leaves(written).get(0, [])

    def _chunks(self, group: Group) -> list[dict[str, Any]]:
        """The group's leaves in bins of what a task takes at once."""
        names = ("file_size_in_bytes", "record_count")
        sizes, counts = (self.root.column(name).take(pa.array(group.leaves, pa.int64())).to_pylist() for name in names)
        chunks: list[list[int]] = [[]]
        size = entries = 0
        for place, of_leaf, in_leaf in zip(group.leaves, sizes, counts, strict=True):
            if chunks[-1] and (size + of_leaf > _CUT_BYTES or entries + in_leaf > _CUT_ENTRIES):
                chunks.append([])
                size = entries = 0
            chunks[-1].append(place)
            size, entries = size + of_leaf, entries + in_leaf
        return [self._bin(0, group, one, files=not number) for number, one in enumerate(chunks)]

    def _bounds(self, group: Group, ranges: int) -> pa.Table:
        """The keys that end the ranges, by a sample of the entries' keys; runs a job that reads nothing else."""
        assert group.spec_id is not None
        keys, stats = self.scope.keys[group.spec_id], self.state.types.stats_types
        schema = key_schema(keys, stats)
        own = key_table(self.files(group), keys).cast(schema)
        if ranges < 2:
            return schema.empty_table()
        entries = pc.sum(self.root.take(pa.array(group.leaves, pa.int64())).column("record_count")).as_py()
        wanted = min(_LARGEST_SAMPLE, max(2_000, ranges * _SAMPLED))
        projection = EntryProjection.of(("location",), None, {one: stats[one] for one in keys})
        frame = leaf_frame(self.state, self.root.take(pa.array(group.leaves, pa.int64())), projection)
        columns = [F.col(f"{CONTENT_STATS}.`{one}`.lower_bound").alias(f"k{place}") for place, one in enumerate(keys)]
        sample = frame.select(*columns, "location").sample(min(1.0, wanted / max(entries, 1)), seed=7).toArrow()
        return range_bounds(pa.concat_tables([sample.cast(schema), own]), ranges)


_LEAF_COLUMNS = ["location", "version_info", "first_row_id", "record_count"]


def made_leaves(written: DataFrame) -> dict[int, list[pa.Table]]:
    """The root's entries for new leaves by group; runs the job that writes them."""
    rows = written.toArrow()
    made: dict[int, list[pa.Table]] = {}
    for group, leaf in zip(rows.column("group").to_pylist(), rows.column("leaf"), strict=True):
        made.setdefault(group, []).append(read_rows_stream(leaf.as_buffer()))
    return made
