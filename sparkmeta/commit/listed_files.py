"""The files that a commit adds to a manifest list: few as rows on the driver, the others in new manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import manifests_of_list
from sparkmeta.commit.candidates import manifests_sharing_partitions
from sparkmeta.commit.new_files import NewFiles
from sparkmeta.commit.search import SEARCH_COLUMNS
from sparkmeta.entries.counts import entry_count
from sparkmeta.entries.projection import PARTITION
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class ListedFiles(NewFiles):
    """The files that a commit adds to a manifest list.

    Attributes:
        rows: entries, rows of `ListedRows.schema`.
        leaves: the manifests with the other files, rows of `MANIFEST_FILE_SCHEMA`.
    """

    def _count_in_leaves(self) -> int:
        assert self.leaves is not None
        return entry_count(self.leaves) or 0

    def _leaves_of(self, content: ContentType) -> pa.Table:
        assert self.leaves is not None
        return self.leaves.filter(pc.equal(self.leaves.column("content"), int(content - ContentType.DATA_MANIFEST)))

    def _entries_of_rows(self, state: TableState) -> pa.Table:
        assert self.rows is not None
        rows, schema = self.rows, state.projection(SEARCH_COLUMNS).schema
        if PARTITION in schema.names and PARTITION not in rows.column_names:
            # An earlier attempt made the rows, and another commit has partitioned the table since.
            kind = schema.field(PARTITION).type
            nulls = [pa.nulls(len(rows), field.type) for field in kind]
            rows = rows.append_column(PARTITION, pa.StructArray.from_arrays(nulls, fields=list(kind)))
        return rows.select(schema.names).cast(schema)

    def _frame_of_leaves(self, state: TableState, projection: EntryProjection) -> DataFrame:
        return state.entries(self._manifests(state), projection)

    def _entries_of_leaves(self, state: TableState, projection: EntryProjection) -> pa.Table:
        return self._frame_of_leaves(state, projection).toArrow().cast(projection.schema)

    def _sharing_with_leaves(self, state: TableState, manifests: pa.Table) -> pa.Table:
        return manifests_sharing_partitions(state, manifests, self._manifests(state))

    def _manifests(self, state: TableState) -> pa.Table:
        assert self.leaves is not None
        return manifests_of_list(self.leaves, state.types.spec_fields, state.metadata.location)
