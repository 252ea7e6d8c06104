"""Settings of the session change no plan, and let none pass over a manifest that is missing or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import SettingError, SparkmetaError, from_spark
from tests.conftest import configured
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.java

# What users set, and what else changes results of Spark's readers, of SQL, or of what Python functions are handed.
SETTINGS: dict[str, dict[str, str]] = {
    "ANSI off": {"spark.sql.ansi.enabled": "false"},
    "ANSI names": {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
        "spark.sql.ansi.enforceReservedKeywords": "true",
    },
    "west of UTC": {"spark.sql.session.timeZone": "America/Los_Angeles"},
    "east of UTC": {"spark.sql.session.timeZone": "Asia/Kathmandu", "spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "case": {"spark.sql.caseSensitive": "true"},
    "rows, not vectors": {
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.recordLevelFilter.enabled": "true",
    },
    "small vectors": {
        "spark.sql.parquet.columnarReaderBatchSize": "2",
        "spark.sql.parquet.enableNestedColumnVectorizedReader": "false",
    },
    "interpreted": {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"},
    "compiled": {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"},
    "Arrow batches": {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.sql.execution.arrow.pyspark.selfDestruct.enabled": "true",
    },
    "Arrow types": {
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    },
    "lenient files": {
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.files.maxPartitionBytes": "1000",
    },
    "Julian dates": {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
    },
    "Parquet types": {
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
        "spark.sql.parquet.mergeSchema": "true",
        "spark.sql.parquet.fieldId.read.enabled": "true",
        "spark.sql.parquet.fieldId.read.ignoreMissing": "true",
        "spark.sql.parquet.aggregatePushdown": "true",
        "spark.sql.legacy.parquet.nanosAsLong": "true",
    },
    "nothing pushed": {
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.optimizer.nestedPredicatePushdown.supportedFileSources": "",
        "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
    },
    "legacy SQL": {
        "spark.sql.legacy.createEmptyCollectionUsingStringType": "true",
        "spark.sql.legacy.sizeOfNull": "true",
        "spark.sql.legacy.castComplexTypesToString.enabled": "true",
        "spark.sql.legacy.bangEqualsNot": "true",
        "spark.sql.legacy.literal.pickMinimumPrecision": "false",
        "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "true",
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.parser.quotedRegexColumnNames": "true",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    },
    "sort merge joins": {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.join.preferSortMergeJoin": "true",
    },
}
# The slice sets all at once; where two of them contradict each other, the one that differs more from Spark's defaults.
SLICE = {
    "all": {name: value for chosen in SETTINGS.values() for name, value in chosen.items()}
    | SETTINGS["interpreted"]
    | SETTINGS["ANSI off"],
}
CASES = SETTINGS | SLICE if SOAK else SLICE

# Java's tables of each format version with another way to be read, and a tree with masks in its leaves.
TABLES = ("v2", "v3", "v4", "tree")
BY_TASKS = {"spark.sparkmeta.driver-manifest-bytes": "0"}
BY_SPARK = BY_TASKS | {"spark.sparkmeta.executor-reads": "spark"}
FILTER = "ts < '1900-01-01T00:00:00' and d < '1950-01-01' and f < 5"


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The metadata files of `TABLES`."""
    locations = {f"v{version}": java_table(spark, version) for version in (2, 3, 4)}
    return locations | {"tree": tree_of(sm.load_table(locations["v3"], spark=spark), tmp_path_factory.mktemp("tree"))}


def java_table(spark: SparkSession, version: int) -> str:
    """Three appends and a delete of each kind, with values on both sides of the calendar's reform and of 1970."""
    shop = Workshop(Java(spark), f"under_settings_v{version}")
    columns = "id bigint, ts timestamp_ntz, tz timestamp, d date, p string, f double, s struct<x: string>"
    shop.create(columns, "p, days(tz), d", version=version, properties=MERGE_ON_READ)
    for start in (0, 10, 20):
        shop.insert(*(_row(start + place, place, year) for place, year in enumerate((1400, 1969, 2024))))
    shop.sql("DELETE FROM {t} WHERE id IN (1, 2, 10)")
    return shop.metadata_location


def _row(key: int, place: int, year: int) -> str:
    times = f"timestamp_ntz'{year}-0{1 + place}-10 01:02:03.004005', timestamp'{year}-02-03 23:30:00 UTC'"
    value = "NaN" if place == 2 else place
    return f"{key}L, {times}, date'{year}-03-01', 'p {place % 2}', double('{value}'), named_struct('x', 'é{key}')"


def tree_of(source: sm.Table, folder: Path) -> str:
    """A tree of the table's files with masks in its leaves, and with deletion vectors."""
    location = f"file://{folder}/t"
    metadata = json.loads(Path(source.metadata_location.removeprefix("file:")).read_text())
    for key in ("snapshots", "refs", "snapshot-log", "metadata-log", "statistics", "partition-statistics"):
        metadata.pop(key, None)
    (folder / "t" / "metadata").mkdir(parents=True)
    text = json.dumps(metadata | {"location": location, "current-snapshot-id": -1})
    (folder / "t" / "metadata" / "v1.metadata.json").write_text(text)
    table = sm.load_table(location, spark=source.state.spark).maintenance.upgrade(4).commit()
    files = source.inspect.files().localCheckpoint()
    data = files.where("content = 0")
    others = data.withColumn("file_path", F.concat("file_path", F.lit(".other")))
    with table.transaction() as tx:
        tx.set_properties({"write.tree.direct-files": "0"})
        tx.update_snapshot().append(data.unionByName(others))
        tx.update_snapshot().delete(others.select("file_path"))
        tx.update_snapshot().row_delta(deletes=files.where("content > 0"))
    table = table.refresh()
    assert table.state.tree is not None
    assert len(table.state.tree.manifest_dvs) > 0
    return table.metadata_location


def frames(spark: SparkSession, location: str) -> dict[str, Callable[[], DataFrame]]:
    table = sm.load_table(location, spark=spark)
    return {
        "plan": lambda: table.scan(FILTER).plan_files(),
        "files": table.inspect.files,
        "entries": table.inspect.entries,
        "changes": lambda: table.file_changes(None),
    }


def rows(frame: DataFrame) -> list[str]:
    """The rows as JSON, whatever the session has them shown as."""
    text = F.to_json(F.struct(*(f"`{name}`" for name in frame.columns)), {"timeZone": "UTC"})
    return sorted(row[0] for row in frame.select(text).collect())


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tables: dict[str, str]) -> dict[tuple[str, str], list[str]]:
    return {
        (name, kind): rows(make())
        for name, location in tables.items()
        for kind, make in frames(spark, location).items()
    }


@pytest.mark.parametrize("settings", CASES)
def test_settings_change_no_result(
    settings: str, spark: SparkSession, tables: dict[str, str], expected: dict[tuple[str, str], list[str]]
) -> None:
    assert {len(expected[name, "plan"]) for name in TABLES} == {2}
    with configured(spark, BY_TASKS | CASES[settings]):
        for name, location in tables.items():
            for kind, make in frames(spark, location).items():
                assert rows(make()) == expected[name, kind], f"{kind} of {name} under {settings}"


DAMAGES = ("missing", "cut", "changed", "empty")
LOST = [(damage, name) for damage in DAMAGES for name in TABLES]
LOST_SLICE = [("missing", "v4"), ("cut", "tree"), ("changed", "v4"), ("empty", "tree"), ("cut", "v2")]


@pytest.mark.parametrize("settings", [*SETTINGS, *SLICE] if SOAK else SLICE)
@pytest.mark.parametrize(("damage", "name"), LOST if SOAK else LOST_SLICE)
def test_no_setting_hides_a_lost_manifest(
    damage: str, name: str, settings: str, spark: SparkSession, tables: dict[str, str]
) -> None:
    table = sm.load_table(tables[name], spark=spark)
    manifest = table.state.manifests.column("location")[0].as_py()
    path = Path(manifest.removeprefix("file:").replace("///", "/", 1))
    hidden = path.with_name(f".{path.name}.crc")  # by which Hadoop's local file system finds damage before Parquet does
    saved = {file: file.read_bytes() for file in (path, hidden) if file.exists()}
    content = saved[path]
    try:
        hidden.unlink(missing_ok=True)
        path.unlink()
        if damage == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "changed":
            middle = len(content) // 3
            path.write_bytes(content[:middle] + bytes(byte ^ 0x5A for byte in content[middle:-500]) + content[-500:])
        elif damage == "empty":
            path.touch()
        with configured(spark, BY_SPARK | CASES[settings]):
            for kind, make in frames(spark, tables[name]).items():
                error = _raised_by(make)
                assert error is not None, kind
                assert path.name in str(error), f"{kind}: {error}"
    finally:
        for file, before in saved.items():
            file.write_bytes(before)


def _raised_by(make: Callable[[], DataFrame]) -> SparkmetaError | None:
    try:
        rows(make())
    except SparkmetaError as error:
        return error
    except (PySparkException, Py4JJavaError) as error:
        return from_spark(error)
    return None


def test_a_setting_by_which_spark_repeats_rows_is_refused(spark: SparkSession, tables: dict[str, str]) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerOutputBatch"
    with configured(spark, {name: "1"}), pytest.raises(SettingError, match=f"{name} is 1: Spark repeats rows"):
        sm.load_table(tables["v2"], spark=spark).scan().plan_files()
