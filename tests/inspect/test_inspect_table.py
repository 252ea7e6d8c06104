"""What can be asked of `table.inspect`: snapshots, columns; who reads, and when; and answers to wrong questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.types import BinaryType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

import sparkmeta as sm
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.errors import CorruptFileError
from sparkmeta.inspect.manifest_rows import all_manifests_rows, manifest_rows
from sparkmeta.inspect.position_deletes import row_field
from sparkmeta.plan.file_columns import leaf_columns
from sparkmeta.spec.schema import schema_from_json
from tests.inspect.comparison import assert_same_rows, collected
from tests.peers.java import METADATA_TABLES
from tests.small_table import LOADS, ROWS, write_small_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_small_table(tmp_path_factory.mktemp("inspect") / "warehouse").metadata_location


@pytest.fixture
def table(spark: SparkSession, location: str) -> sm.Table:
    return sm.load_table(location, spark=spark)


@pytest.fixture
def through_spark(spark: SparkSession) -> Iterator[None]:
    """Executors open no file themselves: Spark's own sources read for them."""
    spark.conf.set("spark.sparkmeta.executor-reads", "spark")
    yield
    spark.conf.unset("spark.sparkmeta.executor-reads")


def test_a_snapshot_by_id_ref_or_time(table: sm.Table) -> None:
    first = table.snapshots()[0]
    by_id = table.inspect.files(first.snapshot_id, columns=["file_path"])
    by_ref = table.inspect.files(ref="first", columns=["file_path"])
    by_time = table.inspect.files(as_of=first.timestamp_ms, columns=["file_path"])
    counts = {name: len(rows) for name, rows in collected({"id": by_id, "ref": by_ref, "time": by_time}).items()}
    assert counts == {"id": 2, "ref": 2, "time": 2}
    assert table.inspect.manifests(ref="first").count() == 1


def test_questions_without_an_answer(table: sm.Table) -> None:
    with pytest.raises(sm.NoSuchSnapshotError, match="no snapshot 7"):
        table.inspect.entries(7)
    with pytest.raises(sm.NoSuchSnapshotError, match="'second'"):
        table.inspect.partitions(ref="second")
    with pytest.raises(sm.NoSuchSnapshotError):
        table.inspect.manifests(as_of=1)
    with pytest.raises(ValueError, match="'noon' is not an ISO 8601 time"):
        table.inspect.files(as_of="noon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give one of them"):
        table.inspect.files(1, ref="first")
    for wrong in ("nonsense", "readable_metrics.nonsense", "data_file", "file"):
        with pytest.raises(
            ValueError,
            match=f"no column {wrong!r} in the metadata table(: did|, which has 'content', 'file)",
        ):
            table.inspect.files(columns=[wrong])
    with pytest.raises(sm.ValidationError, match="columns is 'file_path': expected a list of strings"):
        table.inspect.files(columns="file_path")


def test_only_the_columns_that_are_asked_for(table: sm.Table) -> None:
    files = table.inspect.files(columns=["readable_metrics.id", "record_count", "partition"])
    assert files.columns == ["partition", "record_count", "readable_metrics"]
    assert files.schema["readable_metrics"].dataType.names == ["id"]
    row = files.orderBy("readable_metrics.id.lower_bound").first()
    assert (row.partition.country, row.readable_metrics.id.lower_bound, row.readable_metrics.id.upper_bound) == (
        "SE",
        0,
        8,
    )
    entries = table.inspect.entries(columns=["data_file.file_format", "status"])
    assert entries.columns == ["status", "data_file"]
    assert entries.schema["data_file"].dataType.names == ["file_format"]
    assert table.inspect.all_entries(columns=["status"]).columns == ["status"]


def test_what_is_not_asked_for_is_not_read(table: sm.Table) -> None:
    from sparkmeta.plan.file_columns import files_selection

    paths = files_selection(table.state, ["file_path"]).projection
    assert set(paths.columns) == {"location", "version_info"}
    assert paths.stats == ()
    metrics = files_selection(table.state, ["readable_metrics.id"]).projection
    assert metrics.stats == ((1, "long"),)
    assert "column_sizes" in metrics.columns


def test_history_is_counted_once(table: sm.Table) -> None:
    assert table.inspect.all_manifests().count() == LOADS * (LOADS + 1) // 2
    files = table.inspect.all_files(columns=["file_path", "record_count"])
    assert files.count() == files.select("file_path").distinct().count() == 2 * LOADS
    assert files.groupBy().sum("record_count").first()[0] == ROWS * LOADS


@pytest.mark.usefixtures("by_spark")
def test_history_is_read_without_splits(
    spark: SparkSession, table: sm.Table, location: str, request: pytest.FixtureRequest
) -> None:
    spark.conf.set("spark.sparkmeta.split-manifest-bytes", "0")
    request.addfinalizer(lambda: spark.conf.unset("spark.sparkmeta.split-manifest-bytes"))
    unsplit = sm.load_table(location, spark=spark).inspect
    assert unsplit.all_files().count() == table.inspect.all_files().count() == 2 * LOADS


def test_what_spark_reads_is_read_when_it_is_used(
    spark: SparkSession, location: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The lists and manifests of old snapshots are gone, which a listing of tables does not notice."""
    metadata = json.loads(Path(location.removeprefix("file://")).read_text())
    for snapshot in metadata["snapshots"][:-1]:
        snapshot["manifest-list"] = f"file://{tmp_path}/gone.avro"
    changed = tmp_path / "changed.metadata.json"
    changed.write_text(json.dumps(metadata))
    with pytest.raises(sm.NotFoundError, match=r"gone\.avro"):
        sm.load_table(changed.as_uri(), spark=spark).inspect.all_files()
    request.getfixturevalue("by_spark")
    inspect = sm.load_table(changed.as_uri(), spark=spark).inspect
    frames = {name: getattr(inspect, name)() for name in METADATA_TABLES}
    assert frames["files"].select("file_path").count() == 2 * LOADS
    with pytest.raises(Exception, match=r"gone\.avro"):
        frames["all_files"].select("file_path").count()


def test_read_by_spark_itself_it_is_the_same(spark: SparkSession, table: sm.Table, location: str, request: Any) -> None:
    names = ["entries", "all_manifests", "all_data_files", "position_deletes"]
    direct = collected({name: getattr(table.inspect, name)() for name in names})
    request.getfixturevalue("through_spark")
    fresh = sm.load_table(location, spark=spark)
    assert fresh.state.access.tasks is None
    by_spark = collected({name: getattr(fresh.inspect, name)() for name in names})
    for name in names:
        assert_same_rows(by_spark[name], direct[name], name)


def test_leaf_columns_in_the_order_of_java() -> None:
    names = ["b", "B", "a.b", "a", "\U0001f600", "￮"]
    fields = [
        {"id": number, "name": name, "required": False, "type": "int"} for number, name in enumerate(names, start=1)
    ]
    nested = [
        {"id": 20, "name": "v", "required": False, "type": "variant"},
        {
            "id": 21,
            "name": "m",
            "required": False,
            "type": {
                "type": "map", "key-id": 22, "key": "string", "value-id": 23, "value-required": False,
                "value": {"type": "list", "element-id": 24, "element": "int", "element-required": False},
            },
        },
    ]  # fmt: skip
    schema = schema_from_json({"type": "struct", "schema-id": 0, "fields": [*fields, *nested]})
    # Java compares UTF-16: the surrogates of an emoji sort before U+FFEE.
    assert list(leaf_columns(schema)) == ["B", "a", "a.b", "b", "m.key", "m.value.element", "\U0001f600", "￮"]


def test_row_fields() -> None:
    struct = StructType(
        NestedField(1, "a", LongType(), required=False, initial_default=5),
        NestedField(2, "l", ListType(3, BinaryType(), False), required=False),
        NestedField(4, "m", MapType(5, StringType(), 6, IntegerType(), False), required=False),
    )
    field = row_field(0, struct)
    assert [(child.id, child.type, child.default) for child in field.children] == [
        (1, "long", 5),
        (2, "list", None),
        (4, "map", None),
    ]
    assert [(nested.id, nested.type) for child in field.children[1:] for nested in child.children] == [
        (3, "binary"), (5, "string"), (6, "int")
    ]  # fmt: skip


def manifest(**fields: Any) -> pa.RecordBatch:
    counts = {f"{status}_files_count": 1 for status in ("added", "existing", "deleted")}
    row = {"manifest_path": "m", "manifest_length": 5, "partition_spec_id": 1, "content": 0, "added_snapshot_id": 3}
    return pa.RecordBatch.from_pylist([row | counts | fields], MANIFEST_FILE_SCHEMA)


def summary(contains_nan: bool | None, lower: bytes | None) -> dict[str, Any]:
    return {"contains_null": False, "contains_nan": contains_nan, "lower_bound": lower, "upper_bound": None}


def test_summaries_as_text() -> None:
    listed = manifest(partitions=[summary(None, (54).to_bytes(4, "little"))])
    [row] = manifest_rows(listed, {1: [("year", "int")]}, "list").to_pylist()
    expected = {"contains_null": False, "contains_nan": None, "lower_bound": "2024", "upper_bound": "null"}
    assert row["partition_summaries"] == [expected]
    assert (row["added_data_files_count"], row["added_delete_files_count"]) == (1, 0)
    [deletes] = manifest_rows(manifest(content=1, partitions=[]), {1: []}, "list").to_pylist()
    assert (deletes["added_data_files_count"], deletes["added_delete_files_count"]) == (0, 1)


def test_all_manifests_add_the_snapshot() -> None:
    listed = manifest(partitions=[summary(None, None)], key_metadata=b"k")
    [row] = all_manifests_rows({1: [("identity", "double")]}, listed, 8, "list").to_pylist()
    assert row["partition_summaries"][0]["contains_nan"] is None
    assert (row["reference_snapshot_id"], row["key_metadata"]) == (8, b"k")


@pytest.mark.parametrize(
    ("listed", "field"),
    [
        (manifest(partition_spec_id=4), "partition_spec_id"),
        (manifest(partitions=[]), "0 field summaries"),
        (manifest(content=1, added_files_count=None), "added_delete_files_count"),
    ],
)
def test_lists_that_contradict_the_table(listed: pa.RecordBatch, field: str) -> None:
    with pytest.raises(CorruptFileError, match=field):
        all_manifests_rows({1: [("identity", "int")]}, listed, 8, "list")
