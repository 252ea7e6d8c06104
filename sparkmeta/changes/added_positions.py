"""The positions that a data file's new deletion vector adds to the one that it replaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from sparkmeta.changes.entry_changes import ADDED, CHANGE, FILE_LOCATION, FILE_OFFSET, REMOVED, SNAPSHOT, file_key
from sparkmeta.manifests.deletion_vectors import arrow_udf
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.storage.location import spark_path_key
from sparkmeta.storage.ranges import read_ranges
from sparkmeta.storage.reading import binary_files
from sparkmeta.storage.vectors import stored_vector, vector_of, vector_range

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.spec.bitmap import PositionBitmap
    from sparkmeta.state import TableState
    from sparkmeta.storage.executors import ExecutorReader

ADDED_POSITIONS = "added_positions"
POSITIONS_TYPE = ArrayType(LongType())

_POSITIONS = "_positions"


def with_added_positions(state: TableState, deletes: DataFrame) -> DataFrame:
    """Add `added_positions` to changes of delete files.

    Spark computes the column, and reads deletion vectors for it, only if it is selected. If only Spark's own sources
    can read the files, a job lists them when this is called.
    """
    is_vector = F.col("deletion_vector.offset").isNotNull()
    with_positions = _positions(state, deletes, is_vector)
    pair = Window.partitionBy(SNAPSHOT, F.coalesce("referenced_file", "location"))
    before = F.flatten(F.collect_list(F.when(F.col(CHANGE) == REMOVED, F.col(_POSITIONS))).over(pair))
    added = is_vector & (F.col(CHANGE) == ADDED)
    positions = F.when(added, F.array_except(F.col(_POSITIONS), before))
    return with_positions.withColumn(ADDED_POSITIONS, positions).drop(_POSITIONS)


def _positions(state: TableState, deletes: DataFrame, is_vector: Column) -> DataFrame:
    if state.access.tasks is None:
        return _positions_by_file(state, deletes, is_vector)
    reader = _PositionReader(state.access.tasks)
    read = arrow_udf(state.spark, reader.of_batches, POSITIONS_TYPE) or F.udf(
        reader.of_row, POSITIONS_TYPE, useArrow=True
    )
    place = ("location", "deletion_vector.offset", "deletion_vector.size_in_bytes", "record_count")
    return deletes.withColumn(_POSITIONS, F.when(is_vector, read(*place)))


@dataclass(frozen=True)
class _PositionReader:
    """Reads the positions of deletion vectors in Spark tasks."""

    reader: ExecutorReader

    # PySpark infers the kind of function from the annotations.
    def of_batches(self, batches: Iterator[tuple[pa.Array, pa.Array, pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        """Return positions, given location, offset, size and cardinality; null without an offset."""
        for batch in batches:
            rows = [*zip(*(column.to_pylist() for column in batch), strict=True)]
            places = [place for place, row in enumerate(rows) if row[1] is not None]
            ranges = [vector_range(*rows[place][:3]) for place in places]
            positions: list[pa.Array | None] = [None] * len(rows)
            for number, blob in read_ranges(self.reader, ranges):
                place = places[number]
                positions[place] = _values(vector_of(blob, ranges[number], rows[place][3]))
            yield pa.array(positions, pa.list_(pa.int64()))

    def of_row(self, location: str, offset: int | None, size: int | None, count: int) -> list[int] | None:
        """Return the positions of one deletion vector; None without an offset."""
        if offset is None:
            return None
        positions: list[int] = _values(stored_vector(self.reader, location, offset, size, count)).tolist()
        return positions


def _values(vector: PositionBitmap) -> np.ndarray[Any, Any]:
    return np.concatenate([*vector.positions(), _NO_POSITIONS])


_NO_POSITIONS = np.empty(0, np.int64)


def _positions_by_file(state: TableState, deletes: DataFrame, is_vector: Column) -> DataFrame:
    """Return positions by location and offset, with Spark's own source. Each file is read once."""
    vector = F.struct("deletion_vector.offset", "deletion_vector.size_in_bytes", "record_count")
    by_file = deletes.where(is_vector).groupBy("location").agg(F.collect_set(vector).alias("vectors"))
    locations = by_file.select("location").toArrow().column("location").to_pylist()
    paths = pa.array([spark_path_key(location) for location in locations], pa.string())
    keys = pa.table({"location": locations, "path": paths})
    contents = binary_files(state.spark, locations).join(F.broadcast(local_frame(state.spark, keys)), "path")
    read = by_file.join(contents, "location").select("location", "vectors", "content")
    schema = StructType().add(FILE_LOCATION, StringType()).add(FILE_OFFSET, LongType()).add(_POSITIONS, POSITIONS_TYPE)
    # The keys are distinct, so Spark drops the join where nothing selects the positions.
    positions = map_arrow(read, _positions_in_files, schema).dropDuplicates([FILE_LOCATION, FILE_OFFSET])
    joined = deletes.withColumns(file_key()).join(positions, [FILE_LOCATION, FILE_OFFSET], "left")
    return joined.drop(FILE_LOCATION, FILE_OFFSET)


def _positions_in_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for location, vectors, contents in zip(*batch.columns, strict=True):
            path, content = location.as_py(), contents.as_buffer()
            for offset, size, count in (row.values() for row in vectors.as_py()):
                place = vector_range(path, offset, size)
                vector = vector_of(content[offset : offset + size].to_pybytes(), place, count)
                positions = pa.array([_values(vector)], pa.list_(pa.int64()))
                columns = [pa.array([path]), pa.array([offset], pa.int64()), positions]
                yield pa.RecordBatch.from_arrays(columns, [FILE_LOCATION, FILE_OFFSET, _POSITIONS])
