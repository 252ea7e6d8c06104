"""Table statistics: sketches with the bytes of Iceberg's Spark action, which Java reads and merges."""

from __future__ import annotations

import json
import runpy
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.errors import NoSuchSnapshotError, UnsupportedError, ValidationError
from sparkmeta.maintain.sketches import value_hashes
from sparkmeta.spec.puffin import hash_bytes, read_blob, read_footer
from tests.command_line import invoke
from tests.maintain.clones import clone
from tests.maintain.test_compact import new_table
from tests.maintain.test_expire import opened
from tests.maintain.test_partition_statistics import JavaStatistics
from tests.peers import corpus as peers
from tests.peers.content_files import elements
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = Path(__file__).parents[2] / "jobs"
NAMES = peers.names(without=["made_up", "not_spark"]) if SOAK else ["types_v2", "deletes_by_file_v3"]


def blobs(location: str) -> dict[int, tuple[Any, bytes]]:
    """Return the metadata and content of the blobs in a Puffin file by field id, in the file's order."""
    data = Path(local_path(location)).read_bytes()
    footer = read_footer(data, location)
    return {blob.fields[0]: (blob, read_blob(data, blob, location)) for blob in footer.blobs}


def described(blob: Any) -> tuple[Any, ...]:
    return blob.type, blob.fields, blob.snapshot_id, blob.sequence_number, blob.compression_codec, blob.properties


def sketch(data: bytes) -> Any:
    return datasketches.compact_theta_sketch.deserialize(data)


def java_computes(java: JavaStatistics, snapshot_id: int, *columns: str) -> str:
    action = java.java.iceberg.spark.actions.SparkActions.get().computeTableStats(java.table).snapshot(snapshot_id)
    action = action.columns(java.java.strings(columns)) if columns else action
    return str(action.execute().statisticsFile().path())


@pytest.mark.java
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_java(name: str, corpus: peers.Corpus, spark: SparkSession, tmp_path: Path) -> None:
    """The blobs of all types are the same byte for byte, without deleted rows, and Java's table has the file."""
    peer = corpus.table(name)
    table = clone(peer, tmp_path / "ours")
    java = JavaStatistics(spark, clone(peer, tmp_path / "java").location())
    for snapshot in table.metadata.snapshots if SOAK else table.metadata.snapshots[-1:]:
        expected = blobs(java_computes(java, snapshot.snapshot_id))
        after = table.refresh().maintenance.compute_table_stats(snapshot.snapshot_id).commit()
        (file,) = (file for file in after.metadata.statistics if file.snapshot_id == snapshot.snapshot_id)
        ours = blobs(file.statistics_path)
        assert [*ours] == [*expected]
        for field_id, (blob, data) in ours.items():
            assert described(blob) == described(expected[field_id][0])
            assert data == expected[field_id][1], f"column {field_id}"
        read = {
            each.snapshotId(): each
            for each in elements(JavaStatistics(spark, after.location()).table.statisticsFiles())
        }
        by_java = read[snapshot.snapshot_id]
        assert (by_java.path(), by_java.fileSizeInBytes(), by_java.fileFooterSizeInBytes()) == (
            file.statistics_path, file.file_size_in_bytes, file.file_footer_size_in_bytes,
        )  # fmt: skip
        assert by_java.fileSizeInBytes() == Path(local_path(file.statistics_path)).stat().st_size
        assert_java_reads_puffin(java.java, file.statistics_path, ours)


def assert_java_reads_puffin(java: Java, location: str, expected: dict[int, tuple[Any, bytes]]) -> None:
    """Assert that Java's reader returns the blobs, and that Java's sketches return the counts."""
    reader = java.iceberg.puffin.Puffin.read(java.io.newInputFile(location)).build()
    blobs = {}
    for pair in elements(reader.readAll(reader.fileMetadata().blobs())):
        (field_id,) = elements(pair.first().inputFields())
        blobs[field_id] = bytes(pair.second().array())
    assert blobs == {field_id: data for field_id, (_, data) in expected.items()}


@pytest.mark.java
def test_many_values(spark: SparkSession) -> None:
    """Estimates are close, sketches merge with Java's, and Spark's optimizer uses the count."""
    shop = Workshop(Java(spark), "many_distinct_values")
    shop.create("id BIGINT, name STRING, s STRUCT<a: INT>", properties=MERGE_ON_READ)
    shop.sql("INSERT INTO {t} SELECT id, concat('n', id % 9000), named_struct('a', int(id % 7)) FROM range(40000)")
    shop.sql("DELETE FROM {t} WHERE id >= 30000")
    table = opened(shop)
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    theirs = blobs(java_computes(JavaStatistics(spark, table.location()), snapshot_id, "id", "name", "s.a"))
    plan = table.refresh().maintenance.compute_table_stats(columns=["id", "name", "s.a"])
    assert plan.summary().data_files == plan.to_df().count() > 0
    after = plan.commit()
    (file,) = after.metadata.statistics
    ours = blobs(file.statistics_path)
    counts = plan.result()["committed"]["distinct_values"]
    assert counts["s.a"] == 7
    assert abs(counts["id"] - 30_000) < 1_500
    assert abs(counts["name"] - 9_000) < 450
    for field_id, (_, data) in ours.items():
        union = datasketches.theta_union()
        union.update(sketch(data))
        union.update(sketch(theirs[field_id][1]))
        assert abs(union.get_result().get_estimate() - sketch(data).get_estimate()) < 0.1 * sketch(data).get_estimate()
    shop.sql("REFRESH TABLE {t}")
    before = spark.conf.get("spark.sql.cbo.enabled")
    spark.conf.set("spark.sql.cbo.enabled", "true")
    try:
        text = shop.sql("EXPLAIN COST SELECT DISTINCT name FROM {t}").collect()[0][0]
    finally:
        spark.conf.set("spark.sql.cbo.enabled", before)
    assert "rowCount" in text


def test_bytes_of_values() -> None:
    """Values are serialized as in the spec's Appendix D, Single-value serialization."""
    cases: list[tuple[pa.Array, list[bytes]]] = [
        (pa.array([True, False]), [b"\x01", b"\x00"]),
        (pa.array([-2], pa.int32()), [b"\xfe\xff\xff\xff"]),
        (pa.array([1], pa.date32()), [b"\x01\x00\x00\x00"]),
        (pa.array([1], pa.timestamp("us", "UTC")), [b"\x01" + bytes(7)]),
        (pa.array([-0.0, 0.0]), [bytes(7) + b"\x80", bytes(8)]),
        (pa.array([1.5], pa.float32()), [b"\x00\x00\xc0\x3f"]),
        (pa.array(["", "ü", None]), [b"\xc3\xbc"]),
        (pa.array([b"", b"\x00"]), [b"\x00"]),
        (
            pa.array([Decimal(text) for text in ("1.28", "-1.28", "-1.29", "0.00", "327.68")], pa.decimal128(38, 2)),
            [b"\x00\x80", b"\x80", b"\xff\x7f", b"\x00", b"\x00\x80\x00"],
        ),
    ]
    for values, expected in cases:
        ends = np.cumsum([0, *map(len, expected)])
        wanted = hash_bytes(np.frombuffer(b"".join(expected), np.uint8), ends[:-1], ends[1:])
        assert sorted(value_hashes(values)) == sorted(wanted), values
        sliced = pa.concat_arrays([values.slice(0, 1), values]).slice(1)
        assert sorted(value_hashes(sliced)) == sorted(wanted), values


@pytest.fixture(scope="module")
def small(spark: SparkSession, corpus: peers.Corpus, tmp_path_factory: pytest.TempPathFactory) -> sm.Table:
    return clone(corpus.table("types_v2"), tmp_path_factory.mktemp("small") / "t")


@pytest.mark.java
def test_bad_options(small: sm.Table, corpus: peers.Corpus, spark: SparkSession, tmp_path: Path) -> None:
    maintenance = small.maintenance
    with pytest.raises(NoSuchSnapshotError, match="has no snapshot 7"):
        maintenance.compute_table_stats(7)
    with pytest.raises(ValidationError, match="no column 'nothing' in the schema, which has"):
        maintenance.compute_table_stats(columns=["nothing"])
    for columns in ("id", []):
        with pytest.raises(ValidationError, match="expected the names of columns"):
            maintenance.compute_table_stats(columns=columns)
    nested = clone(corpus.table("nested_v2"), tmp_path / "nested")
    struct = next(field.name for field in nested.schema().fields if not field.field_type.is_primitive)
    with pytest.raises(UnsupportedError, match=f"column {struct} is of type"):
        nested.maintenance.compute_table_stats(columns=[struct])
    empty = new_table(spark, tmp_path / "empty")
    plan = empty.maintenance.compute_table_stats()
    assert plan.commit() is empty
    assert "the table is empty" in str(plan.summary())
    assert plan.result()["committed"] is None


@pytest.mark.java
def test_commands_and_jobs(small: sm.Table, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> str:
        result = invoke([*arguments])
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.output

    def job(name: str, *arguments: str) -> Any:
        assert runpy.run_path(str(JOBS / name))["main"](["--table", small.location(), *arguments]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    name = small.schema().fields[0].name
    text = command("compute-table-stats", small.location(), "--columns", name)
    assert text.splitlines()[1:] == [f"  {name}", "nothing is changed without --commit"]
    assert job("compute_table_stats.py", "--columns", name)["committed"] is None
    assert small.refresh().metadata_location == small.metadata_location
    counted = job("compute_table_stats.py", "--columns", name, "--commit")["committed"]["distinct_values"]
    text = command("compute-table-stats", small.location(), "--columns", name, "--commit")
    assert f"  {name}: {counted[name]}" in text.splitlines()
    files = command("compute-table-stats", small.location(), "--files", "-o", "json").splitlines()
    assert len(files) == small.scan().plan_files().count()
