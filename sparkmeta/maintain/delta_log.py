"""Read the current files of a Delta table from its log: commits in JSON, and checkpoints in Parquet.

Tables with features that change how files are read are refused (Delta Transaction Log Protocol, Reader Version
Requirements).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.session import materialize
from sparkmeta.storage.location import escape_glob, file_name, join
from sparkmeta.storage.reading import STRICT
from sparkmeta.write.existing_tasks import FILE_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, SparkSession

LOG = "_delta_log"
LOG_FILE = rf"(?:^|/){LOG}/[0-9]{{20}}\.(?:json|checkpoint(?:\.[0-9]{{10}}\.[0-9]{{10}})?\.parquet)$"
"""The paths of commits and checkpoints that are read."""

_NAME = re.compile(r"(?P<version>[0-9]{20})\.(?:json|checkpoint(?:\.[0-9]{10}\.(?P<parts>[0-9]{10}))?\.parquet)")
_ACTIONS = """
    protocol STRUCT<minReaderVersion: INT, readerFeatures: ARRAY<STRING>>,
    metaData STRUCT<schemaString: STRING, partitionColumns: ARRAY<STRING>, configuration: MAP<STRING, STRING>>,
    add STRUCT<path: STRING, partitionValues: MAP<STRING, STRING>, deletionVector: STRUCT<storageType: STRING>>,
    remove STRUCT<path: STRING>
"""
_VERSION = "version"
# Features that don't change how files are read if they have no deletion vectors and no mapped columns.
_KNOWN_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck", "deletionVectors", "columnMapping"})
_MAPPING = "delta.columnMapping.mode"


class DeltaTable(NamedTuple):
    """The current version of a Delta table.

    Attributes:
        schema: the columns, as the JSON of a Spark schema.
        partition_columns: the names of the partition columns.
        files: a row for each file: `FILE_PATH` and `partitionValues`, texts by column.
    """

    schema: str
    partition_columns: list[str]
    files: DataFrame


def delta_table(spark: SparkSession, location: str, log_files: Iterable[str]) -> DeltaTable:
    """Read the current version of a Delta table.

    Args:
        spark: the session.
        location: the table.
        log_files: the commits and checkpoints in its log.

    Raises:
        UnsupportedError: the table has a feature that is not supported. The message names it.
        CorruptFileError: the log lacks a commit.
    """
    from pyspark.sql import functions as F

    actions = _actions(spark, location, log_files)
    last = actions.agg(
        *(
            F.max_by(name, F.when(F.col(name).isNotNull(), F.col(_VERSION))).alias(name)
            for name in ("protocol", "metaData")
        )
    )
    current = last.toArrow().to_pylist()[0]
    _refuse_features(location, current)
    action = F.struct(_VERSION, F.col("add").isNotNull())
    by_path = actions.groupBy(F.coalesce("add.path", "remove.path").alias("path")).agg(
        F.max_by("add", action).alias("add")
    )
    added = materialize(by_path.where("path IS NOT NULL AND add IS NOT NULL"))
    if vectors := added.where("add.deletionVector IS NOT NULL").select("path").limit(1).toArrow().to_pylist():
        raise UnsupportedError(f"{location}: file {vectors[0]['path']} has a deletion vector, which is not supported")
    path = unquoted(F.col("path"))
    is_absolute = path.rlike("^([A-Za-z][A-Za-z0-9+.-]*:)?/")
    full_path = F.when(is_absolute, path).otherwise(F.concat(F.lit(join(location, "")), path))
    metadata = current["metaData"]
    files = added.select(full_path.alias(FILE_PATH), "add.partitionValues")
    return DeltaTable(metadata["schemaString"], metadata["partitionColumns"], files)


def unquoted(path: Column) -> Column:
    """Decode paths that are quoted as URIs. A plus sign stands for itself."""
    from pyspark.sql import functions as F

    return F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))


def _actions(spark: SparkSession, location: str, log_files: Iterable[str]) -> DataFrame:
    """Return the actions of the newest checkpoint and of later commits, with the versions of their files."""
    from pyspark.sql import functions as F

    commits: dict[int, str] = {}
    checkpoints: dict[tuple[int, int], list[str]] = defaultdict(list)
    for path in log_files:
        match = _NAME.fullmatch(file_name(path))
        assert match is not None
        if path.endswith(".json"):
            commits[int(match[_VERSION])] = path
        else:
            checkpoints[int(match[_VERSION]), int(match["parts"] or 1)].append(path)
    version, parts = max((key for key, paths in checkpoints.items() if len(paths) == key[1]), default=(-1, 0))
    later = sorted(number for number in commits if number > version)
    expected = range(version + 1, version + 1 + max(len(later), 1 if version < 0 else 0))
    if (missing := next((number for number in expected if number not in commits), None)) is not None:
        raise CorruptFileError(join(location, LOG), "commits", len(commits), f"there is no commit {missing}")
    frames = []
    if later:
        rows = (
            spark.read.schema(_ACTIONS)
            .options(**STRICT, mode="FAILFAST")
            .json([escape_glob(commits[number]) for number in later])
        )
        number = F.substring(F.col("_metadata.file_name"), 1, 20).cast("long")
        frames.append(rows.select("*", number.alias(_VERSION)))
    if parts:
        rows = spark.read.schema(_ACTIONS).options(**STRICT).parquet(*map(escape_glob, checkpoints[version, parts]))
        frames.append(rows.select("*", F.lit(version).cast("long").alias(_VERSION)))
    return materialize(frames[0].union(frames[-1]) if len(frames) > 1 else frames[0])


def _refuse_features(location: str, current: dict[str, Any]) -> None:
    protocol, metadata = current["protocol"], current["metaData"]
    if protocol is None or metadata is None:
        raise CorruptFileError(join(location, LOG), "actions", None, "there is no protocol or no metaData")
    unknown = sorted({*(protocol["readerFeatures"] or ())} - _KNOWN_FEATURES)
    if unknown or protocol["minReaderVersion"] > 3:
        feature = ", ".join(unknown) or f"reader version {protocol['minReaderVersion']}"
        raise UnsupportedError(f"{location}: the Delta table needs {feature}, which is not supported")
    mode = dict(metadata["configuration"] or {}).get(_MAPPING, "none")
    if mode != "none":
        raise UnsupportedError(f"{location}: {_MAPPING} is {mode}: column mapping is not supported")
