"""Files are passed to Spark in two ways. Both return each row's file number and position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import sparkmeta as sm
from sparkmeta import Settings
from sparkmeta.errors import SettingError, from_spark
from sparkmeta.rows.planned import FILES, NUMBER, POSITION, read_files, understands_logs
from sparkmeta.session import is_connect
from tests.conftest import configured

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NAMES = (
    "plain",
    "a b%20c",
    "p=1 +x",
    "ünï日本😀",
    "[b]{r}*?",
    "#hash",
    'q"uo\\te',
    "it's;~!@$^()",
    "a%2Fb",
    "\x01\t",
    "=_x",
)
WAYS = (pytest.param("log", marks=pytest.mark.classic), "paths")
EXTRA = (NUMBER, POSITION)


def write(folder: Path, *names: str) -> pa.Table:
    """Write files of three rows, and return them with paths in several spellings and numbers that are far apart."""
    rows = []
    for index, name in enumerate(names):
        path = folder / name / "x.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([index * 10 + i for i in range(3)], pa.int64())}), path)
        spelled = ("file://", "file:", "")[index % 3] + str(path)
        rows.append((spelled, path.stat().st_size, index << 40))
    return pa.table([*map(list, zip(*rows, strict=True))], schema=FILES)


def schema(*names: str) -> StructType:
    return StructType([StructField(name, LongType()) for name in names])


@pytest.mark.connect
def test_connect_refuses_logs(spark: SparkSession, tmp_path: Path) -> None:
    if not is_connect(spark):
        pytest.skip("a classic session")
    files = write(tmp_path, "a")
    assert read_files(spark, files, schema("id"), Settings()).count() == 3
    with pytest.raises(SettingError, match="file-handover is log"):
        read_files(spark, files, schema("id"), Settings(file_handover="log"))


@pytest.mark.parametrize("way", WAYS)
def test_numbers_and_positions_of_files_with_any_name(way: str, spark: SparkSession, tmp_path: Path) -> None:
    names = [name for name in NAMES if way == "log" or name != "\x01\t"]
    files = write(tmp_path, *names)
    frame = read_files(spark, files, schema("id"), Settings(file_handover=way), EXTRA)  # type: ignore[arg-type]
    expected = {(index * 10 + i, index << 40, i) for index in range(len(names)) for i in range(3)}
    assert set(map(tuple, frame.collect())) == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_columns_named_like_spark_s_own(way: str, vectorized: str, spark: SparkSession, tmp_path: Path) -> None:
    names = ("_metadata", "number", "pos", "c0", "a.b`c", "_file")
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({name: pa.array([index], pa.int64()) for index, name in enumerate(names)}), path)
    files = pa.table([[str(path)], [path.stat().st_size], [5]], schema=FILES)
    with configured(spark, {"spark.sql.parquet.enableVectorizedReader": vectorized}):
        frame = read_files(spark, files, schema(*names), Settings(file_handover=way), EXTRA)  # type: ignore[arg-type]
        assert [tuple(row) for row in frame.collect()] == [(0, 1, 2, 3, 4, 5, 5, 0)]


@pytest.mark.classic
def test_a_log_lists_no_file_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    frame = read_files(spark, write(tmp_path, "a"), schema("id"), Settings(file_handover="log"))
    assert not list((tmp_path / "scratch").iterdir())
    assert frame.count() == 3


@pytest.mark.classic
def test_a_session_that_ignores_logs_fails_in_place_of_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    files = write(tmp_path, "a")
    with configured(spark, {"spark.sql.streaming.fileStreamSink.ignoreMetadata": "true"}):
        frame = read_files(spark, files, schema("id"), Settings(file_handover="log"))
        with pytest.raises(Exception, match="the-log-was-not-read"):
            frame.collect()


@pytest.mark.classic
def test_the_check_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    files = write(tmp_path, "a", "b")
    assert not understands_logs(session, files.filter(pa.array([False, False])))
    assert understands_logs(session, files)
    ignoring = spark.newSession()
    ignoring.conf.set("spark.sql.streaming.fileStreamSink.ignoreMetadata", "true")
    assert not understands_logs(ignoring, files)
    assert read_files(ignoring, files, schema("id"), Settings(), EXTRA).count() == 6


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_file(way: str, spark: SparkSession, tmp_path: Path) -> None:
    files = write(tmp_path, "a", "b")
    (tmp_path / "b" / "x.parquet").unlink()
    with configured(spark, {"spark.sql.files.ignoreMissingFiles": "true"}), pytest.raises(Exception) as raised:  # noqa: PT011
        read_files(spark, files, schema("id"), Settings(file_handover=way)).collect()  # type: ignore[arg-type]
    lazily = way == "log" or is_connect(spark)
    error = from_spark(raised.value) if lazily else raised.value
    assert isinstance(error, sm.NotFoundError)
    assert "/b/x.parquet" in str(error)


@pytest.mark.classic
def test_a_truncated_file(spark: SparkSession, tmp_path: Path) -> None:
    files = write(tmp_path, "a")
    path = tmp_path / "a" / "x.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with configured(spark, {"spark.sql.files.ignoreCorruptFiles": "true"}), pytest.raises(Exception) as raised:  # noqa: PT011
        read_files(spark, files, schema("id"), Settings(file_handover="log")).collect()
    assert "/a/x.parquet" in str(from_spark(raised.value))


def test_a_column_that_no_file_has_is_null(spark: SparkSession, tmp_path: Path) -> None:
    wanted = StructType([StructField("other", StringType())])
    frame = read_files(spark, write(tmp_path, "a"), wanted, Settings(), EXTRA)
    assert [tuple(row) for row in frame.collect()] == [(None, 0, 0), (None, 0, 1), (None, 0, 2)]
