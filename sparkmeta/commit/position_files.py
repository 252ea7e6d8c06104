"""Compare new deletion vectors with the position delete files that apply to their data files.

If a data file has a deletion vector, readers ignore its position delete files, including those of its partition
(semantics 6.5). The vector must therefore include their positions, as with Java's writers (semantics 13.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.edit.range_sort import task_rows
from sparkmeta.errors import CorruptFileError, NotFoundError, ValidationError
from sparkmeta.inspect.delete_rows import deleted_positions
from sparkmeta.plan.deletes.attach import attach_deletes
from sparkmeta.plan.deletes.entries import DeleteEntries
from sparkmeta.plan.deletes.kinds import DV_COLUMNS, only_dvs
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.rows import DELETES
from sparkmeta.session import map_arrow, materialize
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.vectors import stored_vector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState
    from sparkmeta.storage.executors import ExecutorReader

_LOST_SCHEMA = pa.schema(
    [pa.field("data_path", pa.string()), pa.field("position", pa.int64()), pa.field("delete_path", pa.string())]
)


def may_have_position_files(state: TableState, manifests: pa.Table) -> bool:
    """Return whether delete manifests may hold position delete files, and tasks can read these. May run a job."""
    return bool(len(manifests)) and state.access.tasks is not None and not only_dvs(state, manifests, by_job=True)


def refuse_lost_positions(state: TableState, dvs: DataFrame, data: DataFrame, manifests: pa.Table) -> None:
    """Refuse deletion vectors that lack positions of position delete files. Runs jobs.

    Damaged and missing delete files are ignored, since readers can't read their positions either.

    Args:
        state: the state to which the deletion vectors are added.
        dvs: the new deletion vectors, entries of `SEARCH_COLUMNS`.
        data: their live data files, entries of `SEARCH_COLUMNS`.
        manifests: the delete manifests that may apply to the data files, rows of `state.manifests`; see
            `may_have_position_files`.

    Raises:
        ValidationError: a deletion vector lacks a position.
    """
    assert state.access.tasks is not None
    projection = state.projection((*DV_COLUMNS, "equality_ids"), {DELETE_FILE_PATH_ID})
    entries = state.entries(manifests, projection).where(is_live().text)
    positional = entries.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    attached = attach_deletes(data, DeleteEntries(positional, manifests, frozenset()), state)
    pairs = attached.select(F.col("location").alias("data_path"), F.explode(DELETES).alias("delete"))
    place = F.col("deletion_vector")
    vectors = dvs.select(
        F.col("referenced_file").alias("data_path"),
        F.struct(
            F.col("referenced_file").alias("data_path"), "location", place["offset"].alias("offset"),
            place["size_in_bytes"].alias("size"), "record_count",
        ).alias("vector"),
    )  # fmt: skip
    of_files = pairs.where(F.upper("delete.file_format") != "PUFFIN").join(vectors, "data_path")
    units = of_files.groupBy(
        F.col("delete.file_path").alias("location"), F.col("delete.file_format").alias("file_format")
    ).agg(F.collect_list("vector").alias("vectors"))
    lost = map_arrow(
        materialize(units), partial(_lost_positions, state.access.tasks, state.types.locations), _LOST_SCHEMA
    )
    for row in lost.limit(1).toArrow().to_pylist():
        raise ValidationError(
            f"{state.metadata.location}: the deletion vector of {row['data_path']} lacks position {row['position']}, "
            f"which {row['delete_path']} deletes: readers of the vector would pass over that file"
        )


def _lost_positions(
    reader: ExecutorReader, locations: Locations, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the first missing position for each delete file and deletion vector that lacks any of its positions."""
    for unit in task_rows(batches):
        lost = []
        positions = _positions(reader, locations, unit["location"], unit["file_format"])
        for vector in unit["vectors"]:
            path = vector["data_path"]
            if path not in positions:
                continue
            new = stored_vector(reader, *(vector[name] for name in ("location", "offset", "size", "record_count")))
            first = next(positions[path].difference(new).positions(), np.empty(0, np.int64))
            if len(first):
                lost.append({"data_path": path, "position": int(first[0]), "delete_path": unit["location"]})
        yield pa.RecordBatch.from_pylist(lost, schema=_LOST_SCHEMA)


def _positions(
    reader: ExecutorReader, locations: Locations, location: str, file_format: str
) -> dict[str, PositionBitmap]:
    """Return the positions that a position delete file deletes, by data file."""
    by_path: dict[str, list[np.ndarray[Any, Any]]] = {}
    try:
        for paths, positions in deleted_positions(reader.read(location), file_format, location, locations):
            codes, values = paths.indices.to_numpy(), positions.to_numpy()
            for code in np.unique(codes):
                by_path.setdefault(paths.dictionary[int(code)].as_py(), []).append(values[codes == code])
    except (NotFoundError, CorruptFileError):
        return {}
    return {path: PositionBitmap.of(np.concatenate(parts)) for path, parts in by_path.items()}
