"""Delete files in Spark tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.errors import translated_errors
from sparkmeta.maintain.reachable.tasks import MISSING
from sparkmeta.session import map_arrow, read_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.storage.executors import ExecutorWriter

# Most messages about files that could not be deleted.
_MESSAGES = 20

_DELETED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("length", pa.int64()),
        pa.field("failed", pa.bool_()),
        pa.field("problem", pa.string()),  # of some of the failures
    ]
)


@dataclass(frozen=True)
class Deletion:
    """The outcome of a deletion.

    Attributes:
        files: content -> the number of deleted files.
        bytes: content -> their bytes, as far as metadata says.
        failed: the number of files that could not be deleted; they are orphans now.
        problems: some of the reasons, with the files.
    """

    files: Mapping[str, int]
    bytes: Mapping[str, int]
    failed: int
    problems: tuple[str, ...]


def delete_files(files: DataFrame, writer: ExecutorWriter) -> Deletion:
    """Delete files by tasks. One that can't be deleted is not an error.

    Args:
        files: rows of `UNREACHABLE`; those of content `MISSING` are passed over.
        writer: deletes files in tasks.
    """
    present = files.where(F.col("content") != MISSING).repartition(read_tasks(files.sparkSession))
    outcomes = map_arrow(present, _Deleter(writer), _DELETED)
    counted = outcomes.groupBy("content").agg(
        F.count_if(~F.col("failed")).alias("files"),
        F.sum(F.when(~F.col("failed"), F.col("length"))).alias("bytes"),
        F.count_if("failed").alias("failed"),
        F.slice(F.collect_list("problem"), 1, _MESSAGES).alias("problems"),
    )
    # Without checkpoints, the job also computes which files these are.
    with translated_errors():
        rows = counted.orderBy("content").collect()
    return Deletion(
        files={row.content: row.files for row in rows},
        bytes={row.content: row.bytes or 0 for row in rows},
        failed=sum(row.failed for row in rows),
        problems=tuple(problem for row in rows for problem in row.problems)[:_MESSAGES],
    )


@dataclass(frozen=True)
class _Deleter:
    """Deletes files in tasks. Picklable."""

    writer: ExecutorWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            failures = dict(self.writer.delete_many(batch.column("path").to_pylist()))
            failed = pc.is_in(batch.column("path"), pa.array(failures, pa.string()))
            problems = {path: f"{path}: {reason}" for path, reason in [*failures.items()][:_MESSAGES]}
            texts = pa.array([problems.get(path) for path in batch.column("path").to_pylist()], pa.string())
            columns = [batch.column("content"), batch.column("length"), failed, texts]
            yield pa.RecordBatch.from_arrays(columns, schema=_DELETED)
