"""Damaged files and files that contradict the metadata: each reader raises one error, which names the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.errors import NotFoundError, SparkmetaError, from_spark
from sparkmeta.rows.arrow_reader import read_by_tasks
from sparkmeta.session import is_connect
from tests.conftest import configured
from tests.rows.row_table import RowTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "x": [f"x{n}" for n in range(100)]})
OPTIONAL = (
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "x", "required": False, "type": "string"},
)
REQUIRED = ({"id": 1, "name": "id", "required": True, "type": "long"}, OPTIONAL[1])


def by_tasks(table: sm.Table) -> DataFrame:
    scan = table.scan()
    return read_by_tasks(scan.plan.filter, scan.plan_files(), scan.projection())


def by_spark(table: sm.Table) -> DataFrame:
    return table.scan().to_df()


BY_LOG = "Spark, by log"
# The readers, and their settings.
READERS: dict[str, tuple[Callable[[sm.Table], DataFrame], dict[str, str]]] = {
    BY_LOG: (by_spark, {"file-handover": "log"}),
    "Spark, by paths": (by_spark, {"file-handover": "paths"}),
    "Spark, after footers": (by_spark, {"data-file-footers": "always"}),
    "tasks": (by_tasks, {}),
}
WITH_FOOTERS = ("Spark, after footers", "tasks")


pytestmark = pytest.mark.usefixtures("tasks_open_files")


@pytest.fixture
def rows(tmp_path: Path) -> RowTable:
    return RowTable(tmp_path / "t", schemas=(OPTIONAL,))


def path_of(entry: Any) -> Path:
    return Path(entry["data_file"]["file_path"].removeprefix("file://"))


def errors(table: sm.Table, *readers: str) -> dict[str, SparkmetaError | None]:
    """Return the error of each reader, raised when the rows are planned or read."""
    # The log is on the client's machine.
    chosen = [reader for reader in readers or READERS if not (is_connect(table.state.spark) and reader == BY_LOG)]
    return {reader: _error(table, *READERS[reader]) for reader in chosen}


def _error(table: sm.Table, read: Callable[[sm.Table], DataFrame], settings: dict[str, str]) -> SparkmetaError | None:
    with configured(table.state.spark, {f"spark.sparkmeta.{name}": value for name, value in settings.items()}):
        try:
            read(sm.load_table(table.metadata_location, spark=table.state.spark)).collect()
        except SparkmetaError as error:
            return error
        except Exception as error:  # noqa: BLE001  of several classes, on Spark Connect too
            return from_spark(error)
    return None


def assert_named(raised: dict[str, SparkmetaError | None], *parts: str) -> None:
    for reader, error in raised.items():
        assert error is not None, f"{reader} raises no error of ours"
        for part in parts:
            assert part in str(error), f"{reader}: {error}"


# -- data files -------------------------------------------------------------------------------------------------------


def test_a_missing_file(rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    table = rows.add(0, 0, file, rows.data("b.parquet", ROWS)).load(spark)
    path_of(file).unlink()
    raised = errors(table)
    assert_named(raised, "a.parquet")
    assert {type(error) for error in raised.values()} == {NotFoundError}


@pytest.mark.parametrize("length", [0, 8, 600, -3])
def test_a_truncated_file(length: int, rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    table = rows.add(0, 0, file, rows.data("b.parquet", ROWS)).load(spark)
    path = path_of(file)
    path.write_bytes(path.read_bytes()[:length])
    assert_named(errors(table), "a.parquet")


@pytest.mark.parametrize("record_count", [99, 101])
def test_another_number_of_rows(record_count: int, rows: RowTable, spark: SparkSession) -> None:
    table = rows.add(0, 0, rows.data("a.parquet", ROWS, record_count=record_count)).load(spark)
    assert_named(errors(table, *WITH_FOOTERS), "a.parquet", f"record_count is {record_count}", "the file has 100 rows")


def test_a_required_column_that_a_file_lacks(rows: RowTable, spark: SparkSession) -> None:
    rows.schemas = (REQUIRED,)
    table = rows.add(0, 0, rows.data("a.parquet", ROWS.select(["x"]), [2])).load(spark)
    raised = errors(table)
    assert_named(raised, str(rows.folder), "column id is None", "field id 1")
    assert_named({name: raised[name] for name in WITH_FOOTERS}, "a.parquet: column id is None: the file lacks")


def test_a_required_column_with_a_null(rows: RowTable, spark: SparkSession) -> None:
    rows.schemas = (REQUIRED,)
    nulls = pa.table({"id": pa.array([1, None, 3], pa.int64()), "x": ["a", "b", "c"]})
    table = rows.add(0, 0, rows.data("a.parquet", nulls)).load(spark)
    assert_named(errors(table), str(rows.folder), "column id", "required", "field id 1")
    # Every use of the column is an error. Without a use, there is none.
    frame = table.scan().to_df()
    for query in (frame.where("id > 2"), frame.groupBy("id").count(), frame.selectExpr("id + 1")):
        with pytest.raises(Exception, match="column id is None"):
            query.collect()
    assert [row.x for row in frame.select("x").orderBy("x").collect()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "column",
    [pa.array([b"\x01"] * 3), pa.array([1.5] * 3), pa.array([[1]] * 3), pa.array([{"y": 1}] * 3)],
    ids=lambda column: str(column.type),
)
def test_a_column_of_another_type(column: pa.Array, rows: RowTable, spark: SparkSession) -> None:
    table = rows.add(0, 0, rows.data("a.parquet", pa.table({"id": column, "x": ["a", "b", "c"]}))).load(spark)
    raised = errors(table)
    assert_named(raised, "a.parquet")
    assert_named({name: raised[name] for name in WITH_FOOTERS}, "type of column id is", "the table has type long")


def test_a_column_with_the_field_id_of_another(rows: RowTable, spark: SparkSession) -> None:
    """A column with the name and another id is another column."""
    rows.schemas = (REQUIRED,)
    table = rows.add(0, 0, rows.data("a.parquet", ROWS, [7, 2])).load(spark)
    assert_named(errors(table, *WITH_FOOTERS), "a.parquet", "the file lacks this required column (field id 1)")


def test_columns_without_field_ids(rows: RowTable, spark: SparkSession) -> None:
    """They are matched by position, not by name, so that readers that skip footers can't read them."""
    file = rows.data("a.parquet", ROWS)
    table = rows.add(0, 0, file).load(spark)
    pq.write_table(pa.table({"x": ROWS["id"], "id": ROWS["x"]}), path_of(file))
    raised = errors(table, BY_LOG, "Spark, by paths")
    assert_named(raised, "a.parquet", "no field ids", "schema.name-mapping.default")
    for name in WITH_FOOTERS:
        read, settings = READERS[name]
        with configured(spark, {f"spark.sparkmeta.{key}": value for key, value in settings.items()}):
            assert sorted(map(tuple, read(sm.load_table(table.metadata_location, spark=spark)).collect())) == sorted(
                zip(*ROWS.to_pydict().values(), strict=True)
            )


def test_field_ids_are_not_in_the_result(rows: RowTable, spark: SparkSession) -> None:
    schema = rows.add(0, 0, rows.data("a.parquet", ROWS)).load(spark).scan().to_df().schema
    assert [field.metadata for field in schema] == [{}, {}]


def test_two_columns_with_one_field_id(rows: RowTable, spark: SparkSession) -> None:
    table = rows.add(0, 0, rows.data("a.parquet", ROWS, [1, 1])).load(spark)
    assert_named(errors(table, *WITH_FOOTERS), "a.parquet", "field id of column x is 1: column id has the same id")


# -- deletes ----------------------------------------------------------------------------------------------------------


def test_a_vector_with_a_wrong_checksum(rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    vector = rows.vector(file, [5])
    path = path_of(vector)
    content = bytearray(path.read_bytes())
    content[4 + 12] ^= 1  # behind the file's magic and the blob's length and magic
    path.write_bytes(content)
    assert_named(errors(rows.add(0, 0, file).add(1, 0, vector).load(spark)), path.name, "CRC-32")


def test_a_vector_beyond_the_rows(rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    vector = rows.vector(file, [5, 100])
    table = rows.add(0, 0, file).add(1, 0, vector).load(spark)
    assert_named(errors(table), path_of(vector).name, "position is 100", "a.parquet has 100 rows")


@pytest.mark.parametrize("record_count", [1, 3])
def test_a_vector_with_another_number_of_positions(record_count: int, rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    vector = rows.vector(file, [5, 6], record_count=record_count)
    table = rows.add(0, 0, file).add(1, 0, vector).load(spark)
    assert_named(errors(table), path_of(vector).name, str(record_count))


def test_a_vector_that_is_not_all_there(rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    vector = rows.vector(file, [5, 6])
    table = rows.add(0, 0, file).add(1, 0, vector).load(spark)
    path_of(vector).write_bytes(path_of(vector).read_bytes()[:20])
    assert_named(errors(table), path_of(vector).name)


def test_a_position_delete_file_about_one_file_that_names_another(rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    about_one = {"referenced_data_file": file["data_file"]["file_path"]}
    deletes = rows.positions("d.parquet", (file, 1), ("file:///another/table.parquet", 5), **about_one)
    table = rows.add(0, 0, file).add(1, 0, deletes).load(spark)
    assert_named(errors(table), "d.parquet", "file:///another/table.parquet")


def test_positions_of_files_that_are_not_in_the_table(rows: RowTable, spark: SparkSession) -> None:
    """The position deletes may remain after the files are rewritten, so they are not an error."""
    file = rows.data("a.parquet", ROWS)
    deletes = rows.positions("d.parquet", ("file:///another/table.parquet", 500), (file, 1))
    table = rows.add(0, 0, file).add(1, 0, deletes).load(spark)
    assert sorted(row.id for row in table.scan().to_df().collect()) == [0, *range(2, 100)]
    assert set(errors(table).values()) == {None}


def test_a_position_beyond_the_rows(rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    table = rows.add(0, 0, file).add(1, 0, rows.positions("d.parquet", (file, 100))).load(spark)
    assert_named(errors(table), "d.parquet", "position is 100", "a.parquet has 100 rows")


@pytest.mark.parametrize("make", ["positions", "keys"])
def test_a_missing_delete_file(make: str, rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    keys = ROWS.select(["id"]).slice(0, 3)
    deletes = rows.keys("d.parquet", keys, [1]) if make == "keys" else rows.positions("d.parquet", (file, 1))
    table = rows.add(0, 0, file).add(1, 0, deletes).load(spark)
    path_of(deletes).unlink()
    raised = errors(table)
    assert_named(raised, "d.parquet")
    assert {type(error) for error in raised.values()} == {NotFoundError}


def test_an_equality_delete_file_without_its_column(rows: RowTable, spark: SparkSession) -> None:
    file = rows.data("a.parquet", ROWS)
    deletes = rows.keys("d.parquet", pa.table({"id": pa.array([1], pa.int64())}), [1])
    pq.write_table(pa.table({"other": ["q"]}), path_of(deletes))
    deletes["data_file"]["file_size_in_bytes"] = path_of(deletes).stat().st_size
    table = rows.add(0, 0, file).add(1, 0, deletes).load(spark)
    raised = errors(table)
    assert_named(raised, "d.parquet")
    assert_named({"tasks": raised["tasks"]}, "column id")


@pytest.mark.connect
def test_a_file_that_became_empty(rows: RowTable, spark: SparkSession) -> None:
    """Spark's own listing skips empty files."""
    file = rows.data("a.parquet", ROWS)
    table = rows.add(0, 0, file, rows.data("b.parquet", ROWS)).load(spark)
    path_of(file).write_bytes(b"")
    assert_named({"by default": _error(table, by_spark, {})}, "a.parquet")
