"""The files that a commit adds to a tree: few as rows on the driver, the others in new leaves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.commit.candidates import leaves_of_partitions, leaves_sharing_partitions
from sparkmeta.commit.search import SEARCH_COLUMNS, new_entries
from sparkmeta.edit.leaves import few_entries, leaf_frame
from sparkmeta.edit.tally import Tally
from sparkmeta.entries.arrays import whole
from sparkmeta.entries.projection import MANIFEST
from sparkmeta.manifests.v4.root import one_of
from sparkmeta.session import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.spec.entry import ContentType
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class NewFiles:
    """The files that a commit adds to a tree.

    Attributes:
        rows: entries for the root, rows of `tree_schema`.
        leaves: the root's entries for leaves with the other files.
        tally: counts of the files, for the snapshot's summary.
        named: locations of the manifests that the rows of deletion vectors name for their data files.
    """

    rows: pa.Table | None = None
    leaves: pa.Table | None = None
    tally: Tally = field(default_factory=Tally)
    named: frozenset[str] = frozenset()

    def plus(self, other: NewFiles) -> NewFiles:
        """Return the files of both."""
        rows, leaves = (
            pa.concat_tables(tables) if (tables := [table for table in pair if table is not None]) else None
            for pair in ((self.rows, other.rows), (self.leaves, other.leaves))
        )
        return replace(
            self, rows=rows, leaves=leaves, tally=self.tally.plus(other.tally), named=self.named | other.named
        )

    @property
    def on_driver(self) -> int:
        """The number of files in `rows`."""
        return 0 if self.rows is None else len(self.rows)

    @property
    def count(self) -> int:
        """The number of files."""
        return self.on_driver + (0 if self.leaves is None else self._count_in_leaves())

    def of(self, kinds: Collection[ContentType], leaves: ContentType) -> Self:
        """Return the files in `rows` of the given kinds, and the leaves of one type, which may hold other kinds."""
        rows = None if self.rows is None else self.rows.filter(one_of(self.rows, kinds))
        chosen = None if self.leaves is None else self._leaves_of(leaves)
        return replace(self, rows=rows or None, leaves=chosen or None, tally=Tally())

    def frame(self, state: TableState) -> DataFrame:
        """Return the files as entries of `SEARCH_COLUMNS`, without a manifest."""
        projection = state.projection(SEARCH_COLUMNS)
        rows = local_frame(state.spark, self._entries_of_rows(state)) if self.rows is not None else None
        in_leaves = self._frame_of_leaves(state, projection) if self.leaves is not None else None
        frames = [frame.drop(MANIFEST) for frame in (rows, in_leaves) if frame is not None]
        if not frames:
            return local_frame(state.spark, projection.schema.empty_table())
        union = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
        return union.withColumn(MANIFEST, F.lit(None).cast("int"))

    def entries(self, state: TableState) -> pa.Table:
        """Return the files as `frame` does, on the driver."""
        projection = state.projection(SEARCH_COLUMNS)
        tables = [projection.schema.empty_table()]
        if self.rows is not None:
            tables.append(self._entries_of_rows(state))
        if self.leaves is not None:
            tables.append(self._entries_of_leaves(state, projection))
        return pa.concat_tables(tables).combine_chunks()

    def sharing_partitions(self, state: TableState, manifests: pa.Table) -> pa.Table:
        """Return the rows of `state.manifests` that may share a partition with the files."""
        parts = []
        if self.rows is not None:
            parts.append(leaves_of_partitions(state, manifests, self._entries_of_rows(state)))
        if self.leaves is not None:
            parts.append(self._sharing_with_leaves(state, manifests))
        ids = [whole(part.column(MANIFEST)) for part in parts]
        chosen = pa.concat_arrays(ids) if ids else pa.array([], pa.int32())
        return manifests.filter(pc.is_in(manifests.column(MANIFEST), chosen))

    # -- how a tree holds them --------------------------------------------------------------------------------------

    def _count_in_leaves(self) -> int:
        assert self.leaves is not None
        return int(pc.sum(self.leaves.column("record_count")).as_py() or 0)

    def _leaves_of(self, content: ContentType) -> pa.Table:
        assert self.leaves is not None
        return self.leaves.filter(one_of(self.leaves, [content]))

    def _entries_of_rows(self, state: TableState) -> pa.Table:
        assert self.rows is not None
        return new_entries(state, self.rows)

    def _frame_of_leaves(self, state: TableState, projection: EntryProjection) -> DataFrame:
        assert self.leaves is not None
        return leaf_frame(state, self.leaves, projection)

    def _entries_of_leaves(self, state: TableState, projection: EntryProjection) -> pa.Table:
        assert self.leaves is not None
        return few_entries(state, self.leaves, projection)

    def _sharing_with_leaves(self, state: TableState, manifests: pa.Table) -> pa.Table:
        assert self.leaves is not None
        return leaves_sharing_partitions(state, manifests, self.leaves)
