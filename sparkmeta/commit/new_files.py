"""The files that a commit adds, as rows for the root and as leaves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.commit.search import SEARCH_COLUMNS, new_entries
from sparkmeta.edit.leaves import few_entries, leaf_frame
from sparkmeta.edit.summary import Tally
from sparkmeta.manifests.projection import MANIFEST
from sparkmeta.manifests.v4.root import one_of
from sparkmeta.session import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.spec.entry import ContentType
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class NewFiles:
    """The files that a commit adds.

    Attributes:
        rows: entries for the root, rows of `tree_schema`.
        leaves: the root's entries for leaves with the other files.
        tally: counts of the files, for the snapshot's summary.
        named: locations of manifests that rows of deletion vectors give for their data files.
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
        return NewFiles(rows, leaves, self.tally.plus(other.tally), self.named | other.named)

    @property
    def in_root(self) -> int:
        """The number of files that are entries of the root."""
        return 0 if self.rows is None else len(self.rows)

    @property
    def count(self) -> int:
        """The number of files."""
        in_leaves = 0 if self.leaves is None else pc.sum(self.leaves.column("record_count")).as_py() or 0
        return self.in_root + int(in_leaves)

    def of(self, kinds: Collection[ContentType], leaves: ContentType) -> NewFiles:
        """Return the files of the root that have one of `kinds`, and the leaves of one type, which may hold others."""
        rows = None if self.rows is None else self.rows.filter(one_of(self.rows, kinds))
        chosen = None if self.leaves is None else self.leaves.filter(one_of(self.leaves, [leaves]))
        return NewFiles(rows or None, chosen or None, named=self.named)

    def frame(self, state: TableState) -> DataFrame:
        """Return the files as entries of `SEARCH_COLUMNS`, without a manifest."""
        projection = state.projection(SEARCH_COLUMNS)
        rows = local_frame(state.spark, new_entries(state, self.rows)) if self.rows is not None else None
        in_leaves = leaf_frame(state, self.leaves, projection) if self.leaves is not None else None
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
            tables.append(new_entries(state, self.rows))
        if self.leaves is not None:
            tables.append(few_entries(state, self.leaves, projection))
        return pa.concat_tables(tables).combine_chunks()
