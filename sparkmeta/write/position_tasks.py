"""Tasks that find the rows of data files to delete. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from sparkmeta.columns.row_tests import Junction
from sparkmeta.rows.file_rows import FileRows
from sparkmeta.write.vector_tasks import position_masks


@dataclass(frozen=True)
class PositionTasks:
    """Reads the columns of a filter and makes masks of the rows that match it. Picklable.

    Rows stay in Arrow: Spark sees only the files to read and the masks.

    Attributes:
        rows: reads the file path, row positions and the columns of the filter, in this order.
        tests: the filter.
    """

    rows: FileRows
    tests: Junction

    def masks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of `MASK_SCHEMA`.

        Args:
            batches: parts of data files; see `FileRows.read`.
        """
        return position_masks(self._matching(batches))

    def _matching(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = len(self.rows.columns)
        places = {leaf.id: first + place for place, leaf in enumerate(self.rows.leaves)}
        for batch in self.rows.read(batches):
            passed = self.tests.passes(partial(_value, batch, places))
            if passed is False:
                continue
            positions = batch.select([*range(first)])
            matching = positions if passed is True else positions.filter(passed)
            if len(matching):
                yield matching


def _value(batch: pa.RecordBatch, places: Mapping[int, int], field_id: int) -> pa.Array:
    return batch.column(places[field_id])
