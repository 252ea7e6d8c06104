"""List the files below a location by Spark tasks, or take them from an inventory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkmeta.edit.range_sort import most_tasks
from sparkmeta.errors import ValidationError, shown
from sparkmeta.session import local_frame, map_arrow, materialize
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.walking import WALKED, with_status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The types of an inventory's columns.
_INVENTORY = {"file_path": T.StringType, "last_modified": T.TimestampType, "size": T.LongType}
_OPTIONAL = "size"

# Levels of folders to list one by one, so that there are enough folders for all tasks.
_LEVELS = 3

_FOLDERS = pa.schema([WALKED.field("path")])

FILES = ("path", "length", "modified_ms")
"""The columns of listed files: those of `WALKED` without folders."""


def walked_files(spark: SparkSession, reader: ExecutorReader, location: str, hidden: str) -> DataFrame:
    """List the files below a location, and return their `FILES` columns. Runs jobs.

    Tasks list the folders of the upper levels each by itself, then whole folders with all levels below.

    Args:
        spark: the session.
        reader: lists folders in tasks.
        location: the folder.
        hidden: a pattern of hidden names; see `hidden_pattern`. Folders of such names in the upper levels are left out.
    """
    tasks = most_tasks(spark)
    folders = local_frame(spark, pa.table([[location]], _FOLDERS))
    levels: list[DataFrame] = []
    for _ in range(_LEVELS):
        level = materialize(map_arrow(folders, _Walker(reader, recursive=False), WALKED))
        levels.append(level.where("NOT is_folder").select(*FILES))
        below = level.where("is_folder").where(~F.substring_index("path", "/", -1).rlike(hidden)).select("path")
        count = below.count()
        folders = below.repartition(min(max(count, 1), tasks))
        if count >= tasks or not count:
            break
    if count:
        levels.append(map_arrow(folders, _Walker(reader, recursive=True), WALKED).select(*FILES))
    return reduce(lambda above, level: above.union(level), levels)


def inventory_files(inventory: DataFrame) -> DataFrame:
    """Return the files of an inventory as `FILES`.

    Args:
        inventory: has the columns file_path (string), last_modified (timestamp) and optionally size (bigint).

    Raises:
        ValidationError: it is no DataFrame, or a column is missing, or has another type.
    """
    if not hasattr(inventory, "toArrow"):
        raise ValidationError(f"files is {shown(inventory)}: expected a DataFrame")
    types = {field.name: field.dataType for field in inventory.schema}
    for name, expected in _INVENTORY.items():
        if name not in types and name != _OPTIONAL:
            problem = f"files has no column {name}: expected file_path, last_modified and, if known, size"
            raise ValidationError(f"{problem}, and has {shown(', '.join(types))}")
        if name in types and not isinstance(types[name], expected):
            simple = types[name].simpleString()
            raise ValidationError(f"files.{name} is of type {simple}: expected {expected().simpleString()}")
    size = F.col(_OPTIONAL) if _OPTIONAL in types else F.lit(None).cast("long")
    modified = F.unix_millis("last_modified").alias("modified_ms")
    return inventory.select(F.col("file_path").alias("path"), size.alias("length"), modified)


def with_local_status(files: DataFrame) -> DataFrame:
    """Return local files with their lengths and times, which a listing leaves out, except for those that are gone.

    Args:
        files: `FILES`, and other columns.
    """
    return map_arrow(files, _statuses, files.schema)


def _statuses(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from map(with_status, batches)


@dataclass(frozen=True)
class _Walker:
    """Lists folders in tasks. Picklable."""

    reader: ExecutorReader
    recursive: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for folder in batch.column("path").to_pylist():
                yield from self.reader.walk(folder, recursive=self.recursive)
