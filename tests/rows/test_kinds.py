"""Rows of tables of every kind, made without Iceberg's runtime: for every PySpark, and on Spark Connect.

Spark's Parquet reader and tasks with Arrow together read tables with files of several formats.
"""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

import sparkmeta as sm
from tests.conftest import configured
from tests.handmade import BY_ID, BY_PART, BY_RATIO
from tests.rows.row_table import RowTable
from tests.small_table import ROWS, write_small_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PART_X, PART_Y = {"partition": {"part": "x"}}, {"partition": {"part": "y"}}
EXTENSIONS = ("parquet", "orc", "avro")

pytestmark = [pytest.mark.connect, pytest.mark.usefixtures("tasks_open_files")]


@pytest.fixture
def rows(tmp_path: Path) -> RowTable:
    return RowTable(tmp_path / "a b%20[c]{d}")


def numbered(start: int, stop: int, part: str = "x") -> pa.Table:
    """Return rows of the columns id, part and ratio."""
    ids = range(start, stop)
    return pa.table({"id": pa.array(ids, pa.int64()), "part": [part] * len(ids), "ratio": [n / 2 for n in ids]})


def tuples(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def ids_of(table: sm.Table) -> set[int]:
    """Return the ids of all rows, after checking that they are unique."""
    ids = [row.id for row in table.scan().to_df().collect()]
    assert len(ids) == len(set(ids)) == table.scan().count() == table.scan(selected_fields=("ratio",)).to_df().count()
    return set(ids)


# -- deletes ----------------------------------------------------------------------------------------------------------


def test_deletion_vectors(rows: RowTable, spark: SparkSession) -> None:
    files = [rows.data(f"{n}.{kind}", numbered(n * 200, n * 200 + 200)) for n, kind in enumerate(EXTENSIONS)]
    rows.add(0, 0, *files, rows.data("whole.parquet", numbered(600, 700)))
    rows.add(1, 0, *(rows.vector(file, [0, 63, 64, 190 + n]) for n, file in enumerate(files)))
    deleted = {n * 200 + position for n in range(3) for position in (0, 63, 64, 190 + n)}
    assert ids_of(rows.load(spark)) == set(range(700)) - deleted


def test_deletes_of_files_with_unknown_counts(rows: RowTable, spark: SparkSession) -> None:
    files = [
        rows.data(f"{n}.{kind}", numbered(n * 200, n * 200 + 200), record_count=-1) for n, kind in enumerate(EXTENSIONS)
    ]
    rows.add(0, 0, *files, rows.data("known.parquet", numbered(600, 700)))
    rows.add(1, 0, *(rows.vector(file, [0, 63, 64, 199]) for file in files))
    assert ids_of(rows.load(spark)) == set(range(700)) - {n * 200 + at for n in range(3) for at in (0, 63, 64, 199)}


def test_position_deletes(rows: RowTable, spark: SparkSession) -> None:
    """Deletes of a partition and of a file apply to older files, and not to newer ones."""
    files = [rows.data(f"{n}.{kind}", numbered(n * 10, n * 10 + 10), **PART_X) for n, kind in enumerate(EXTENSIONS)]
    rows.add(0, 1, *files, rows.data("late.parquet", numbered(30, 40), sequence=9, **PART_X))
    pairs = [(files[0], 3), (files[1], 0), (files[2], 2), ("file:///gone.parquet", 5)]
    about_one = {"referenced_data_file": files[0]["data_file"]["file_path"]}
    of_file = rows.positions("f.orc", (files[0], 9), **about_one, **PART_X)
    rows.add(1, 1, rows.positions("p.parquet", *pairs, **PART_X), of_file)
    assert ids_of(rows.load(spark)) == set(range(40)) - {3, 9, 10, 22}


def test_equality_deletes(rows: RowTable, spark: SparkSession) -> None:
    """Two sets of columns have nulls and a column that is not read.

    The deletes don't apply to another partition or newer rows.
    """
    rows.add(
        0, 1, *(rows.data(f"{n}.{kind}", numbered(n * 6, n * 6 + 6), **PART_X) for n, kind in enumerate(EXTENSIONS))
    )
    rows.add(0, 1, rows.data("y.parquet", numbered(50, 53, "y"), **PART_Y))
    with_null = pa.table({"id": [97, 97, 98], "part": pa.array([None] * 3, pa.string()), "ratio": [1.0, None, None]})
    late = numbered(0, 2)
    rows.add(0, 0, rows.data("n.parquet", with_null), rows.data("late.parquet", late, sequence=9))
    by_id = rows.keys("id.parquet", pa.table({"id": pa.array([1, 7, 16, 50], pa.int64())}), [1], **PART_X)
    pairs = pa.table({"id": pa.array([97, 15], pa.int64()), "ratio": pa.array([None, 7.5], pa.float64())})
    rows.add(1, 1, by_id).add(1, 0, rows.keys("pair.parquet", pairs, [1, 3]))
    table = rows.load(spark)
    expected = sorted([*set(range(18)) - {1, 7, 15, 16}, 50, 51, 52, 97, 98, 0, 1])
    assert sorted(row.id for row in table.scan(selected_fields=("id",)).to_df().collect()) == expected
    assert table.scan().count() == table.scan(selected_fields=("part",)).to_df().count() == len(expected)


def test_every_delete_of_one_file(rows: RowTable, spark: SparkSession) -> None:
    files = [rows.data("a.parquet", numbered(0, 100)), rows.data("a.orc", numbered(100, 110))]
    rows.add(0, 0, *files, rows.data("b.parquet", numbered(110, 120)))
    by_id = rows.keys("id.parquet", pa.table({"id": pa.array([6, 105, 115], pa.int64())}), [1])
    rows.add(1, 0, *(rows.vector(file, [1, 2], sequence=4) for file in files), by_id)
    table = rows.load(spark)
    assert ids_of(table) == set(range(120)) - {1, 2, 6, 101, 102, 105, 115}
    flagged = table.scan("id < 9", selected_fields=("id", "_deleted")).to_df()
    assert tuples(flagged) == [(number, number in (1, 2, 6)) for number in range(9)]


# -- evolution --------------------------------------------------------------------------------------------------------


def column(field_id: int, name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"id": field_id, "name": name, "required": False, "type": kind, **more}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


EVOLVED = (
    (column(1, "id", "int"), column(2, "part", "string"), column(3, "ratio", "float"), column(4, "old", "long")),
    (
        column(3, "old", "double"), column(1, "id", "long"), column(2, "Part", "string"),
        column(5, "added", "long", **{"initial-default": 5}), column(6, "ratio", "string"),
    ),
)  # fmt: skip


def test_an_evolved_schema(rows: RowTable, spark: SparkSession) -> None:
    """Columns were moved, widened, renamed to another column's old name, dropped, and added with a default."""
    rows.schemas = EVOLVED
    old = pa.table(
        {"id": pa.array([1, 2], pa.int32()), "part": ["x", None], "ratio": pa.array([0.5, 1.5], pa.float32()),
         "old": pa.array([8, 9], pa.int64())}
    )  # fmt: skip
    new = pa.table({"ratio": ["r"], "old": [2.5], "id": pa.array([3], pa.int64())})
    for kind in EXTENSIONS:
        rows.add(0, 0, rows.data(f"old.{kind}", old), rows.data(f"new.{kind}", new, [6, 3, 1]))
        rows.add(0, 1, rows.data(f"part.{kind}", old.drop_columns("part").slice(0, 1), [1, 3, 4], **PART_Y))
    table = rows.load(spark)
    expected = [(0.5, 1, "x", 5, None), (0.5, 1, "y", 5, None), (1.5, 2, None, 5, None), (2.5, 3, None, 5, "r")]
    assert tuples(table.scan().to_df()) == [row for row in expected for _ in EXTENSIONS]
    selected = table.scan("old >= 1.5 and added = 5", selected_fields=("ratio", "id")).to_df()
    assert tuples(selected) == [row for row in [(2, None), (3, "r")] for _ in EXTENSIONS]


@pytest.mark.parametrize("kind", EXTENSIONS[:2])
def test_nested_fields(kind: str, rows: RowTable, spark: SparkSession) -> None:
    before = column(1, "s", struct(column(2, "x", "int"), column(3, "y", "string")))
    after = column(1, "s", struct(column(3, "z", "string"), column(4, "new", "long"), column(2, "x", "long")))
    rows.schemas = ((before,), (after,))
    inner = pa.struct([ided("x", pa.int32(), 2, kind), ided("y", pa.string(), 3, kind)])
    rows.add(0, 0, rows.data(f"a.{kind}", pa.table({"s": pa.array([{"x": 1, "y": "a"}, None], inner)})))
    assert tuples(rows.load(spark).scan().to_df()) == [(None,), (("a", None, 1),)]


def ided(name: str, kind: pa.DataType, field_id: int, extension: str) -> pa.Field:
    key = "iceberg.id" if extension == "orc" else "PARQUET:field_id"
    return pa.field(name, kind, metadata={key: str(field_id)})


# -- metadata columns -------------------------------------------------------------------------------------------------


def test_metadata_columns(rows: RowTable, spark: SparkSession) -> None:
    files = [rows.data(f"{n}.{kind}", numbered(n * 10, n * 10 + 3), **PART_X) for n, kind in enumerate(EXTENSIONS)]
    rows.add(0, 1, *files).add(0, 0, rows.data("late.parquet", numbered(50, 51), sequence=4))
    rows.add(1, 1, *(rows.vector(file, [1]) for file in files))
    names = ("_file", "_pos", "_spec_id", "_row_id", "_last_updated_sequence_number", "_partition")
    shown = rows.load(spark).scan(selected_fields=("id", *names)).to_df()
    paths = [file["data_file"]["file_path"] for file in files]
    assert sorted(map(tuple, shown.where("id < 50").collect())) == [
        (n * 10 + position, path, position, 1, n * 3 + position, 1, ("x", None))
        for n, path in enumerate(paths) for position in (0, 2)
    ]  # fmt: skip
    assert tuples(shown.where("id = 50").drop("_file", "_row_id")) == [(50, 0, 0, 4, (None, None))]


# -- scans ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> sm.Table:
    """Return a table of three appends by pyiceberg."""
    return sm.Table.from_pyiceberg(write_small_table(tmp_path), spark)


def test_filters_and_columns(table: sm.Table) -> None:
    read = table.scan("country = 'SE' and id >= 10", selected_fields=("id", "note", "_pos", "_spec_id")).to_df()
    assert tuples(read) == sorted(
        ((number, f"note {number}", number // 2 % 5, 1) for number in range(10, 3 * ROWS, 2)), key=repr
    )


def test_columns_are_selected_as_names_are_looked_up(table: sm.Table) -> None:
    scan = table.scan(selected_fields=("ID", "Country"), case_sensitive=False)
    assert scan.select("country", "NOTE").to_df().columns == ["country"]
    assert scan.select("id").with_case_sensitive(True).select("ID").selected_fields == ("ID",)
    assert table.scan(selected_fields=("id", "country")).select("ID", "country").selected_fields == ("country",)


def test_counts_limits_and_small_results(table: sm.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert table.scan().count() == 3 * ROWS
    assert table.scan("id < 7").count() == 7
    assert table.scan("id < 7").limit(3).to_df().count() == table.scan().limit(3).count() == 3
    assert table.scan().use_ref("first").to_arrow().num_rows == ROWS
    assert sorted(table.scan("id < 3").to_pandas()["id"]) == [0, 1, 2]
    assert (table.scan("id < 7").limit(3).to_arrow().num_rows, table.scan().limit(0).to_arrow().num_rows) == (3, 0)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(sm.UnsupportedError, match="pip install polars"):
        table.scan().to_polars()
    monkeypatch.setitem(
        sys.modules, "polars", SimpleNamespace(__version__="2.1.0", from_arrow=lambda rows: rows.num_rows)
    )
    assert table.scan("id < 3").to_polars() == 3


def test_views(table: sm.Table, spark: SparkSession) -> None:
    table.scan("id < 7").create_temp_view("few")
    assert spark.sql("SELECT sum(id) FROM few").collect() == [(21,)]


def test_what_was_appended(table: sm.Table) -> None:
    first, _, last = table.metadata.snapshots
    assert {row.id for row in table.incremental(first.snapshot_id).to_df().collect()} == set(range(ROWS, 3 * ROWS))
    assert table.incremental(last.snapshot_id).to_df().collect() == []


def test_changelogs(tmp_path: Path, spark: SparkSession) -> None:
    """The changes are appends, and a delete that rewrote files."""
    written = write_small_table(tmp_path)
    start = written.metadata.current_snapshot_id
    written.delete("id < 3 and country = 'SE'")
    table = sm.Table.from_pyiceberg(written, spark)
    kinds = tuples(table.changelog(start, identifier_columns=["id"]).select("id", "country").to_df())
    assert [row[:3] for row in kinds] == [(0, "SE", "DELETE"), (2, "SE", "DELETE")]
    assert table.changelog(None).filter("id < 4").to_df().count() == 6
    assert table.changelog(None, net_changes=True).to_df().count() == 3 * ROWS - 2


def test_snapshots_in_their_schemas(tmp_path: Path, spark: SparkSession) -> None:
    source = write_small_table(tmp_path)
    with source.update_schema() as update:
        update.rename_column("note", "remark").move_first("country")
    source.append(pa.table({"country": ["SE"], "id": pa.array([99], pa.int64()), "remark": ["late"]}))
    table = sm.Table.from_pyiceberg(source, spark)
    assert tuples(table.scan("id >= 29").to_df()) == [("NO", 29, "note 29"), ("SE", 99, "late")]
    before = table.scan("id >= 29", snapshot_id=table.metadata.snapshots[-2].snapshot_id).to_df()
    assert tuples(before) == [(29, "NO", "note 29")]
    assert before.columns == ["id", "country", "note"]


def test_a_tree(tmp_path: Path, spark: SparkSession) -> None:
    """The table has a commit of ours, and a deletion vector from before."""
    rows = RowTable(tmp_path / "n" / "t")
    first, last = rows.data("a.parquet", numbered(0, 5)), rows.data("c.parquet", numbered(9, 12))
    rows.add(0, 0, first, rows.data("b.orc", numbered(5, 9)), last).add(1, 0, rows.vector(first, [0, 3]))
    rows.write()
    catalog = sm.load_catalog("trees", type="hadoop", warehouse=f"file://{tmp_path}", spark=spark)
    table = catalog.load_table("n.t").maintenance.upgrade(4).commit()
    with table.transaction() as tx:
        tx.update_snapshot().delete(table.inspect.data_files().where("file_path like '%c.parquet'"))
    table = table.refresh()
    assert table.state.tree is not None
    assert ids_of(table) == {1, 2, 4, 5, 6, 7, 8}


@pytest.mark.parametrize("handover", [pytest.param("log", marks=pytest.mark.classic), "paths"])
def test_names_of_files(rows: RowTable, spark: SparkSession, handover: str) -> None:
    """Names that Spark passes over, or that have a meaning in URIs and patterns, with and without deletes."""
    names = ["_a", ".b", "a:b", "x:y:z", ":", "%3A", "a b", "#", "?", "[b]", "{c,d}", "ä日", "+", "\\", "*", "\n", "&="]
    files = [rows.data(f"{name}.parquet", numbered(2 * n, 2 * n + 2)) for n, name in enumerate(names)]
    rows.add(0, 0, *files).add(1, 0, rows.positions("d:e.parquet", *((file, 0) for file in files[::2])))
    rows.add(1, 0, rows.keys("k:l.parquet", pa.table({"id": pa.array([3], pa.int64())}), [1]))
    expected = {2 * n + row for n in range(len(names)) for row in (0, 1) if n % 2 or row} - {3}
    with configured(spark, {"spark.sparkmeta.file-handover": handover}):
        table = rows.load(spark)
        assert ids_of(table) == expected == set(table.scan().to_arrow().column("id").to_pylist())
        shown = {row[0] for row in table.scan().select("_file").to_df().collect()}
        assert shown == {file["data_file"]["file_path"] for file in files}


def test_partition_values_that_files_lack(rows: RowTable, spark: SparkSession) -> None:
    assert rows.specs[1] == BY_PART
    rows.properties["schema.name-mapping.default"] = '[{"field-id": 1, "names": ["key"]}]'
    path = rows.path("no-ids.parquet")
    pa.parquet.write_table(pa.table({"key": pa.array([4], pa.int64())}), path)
    file = rows.data("other.parquet", numbered(0, 1), **PART_X)
    file["data_file"] |= {"file_path": f"file://{path}", "file_size_in_bytes": path.stat().st_size}
    rows.add(0, 1, file)
    assert tuples(rows.load(spark).scan().to_df()) == [(4, "x", None)]


def test_specs_that_give_one_id_to_different_fields(rows: RowTable, spark: SparkSession) -> None:
    """Specs of version 1 may share ids, since each spec counts its fields from 1000."""
    unused = {"source-id": 2, "field-id": 1000, "name": "unused", "transform": "truncate[1]"}
    rows.specs, rows.summaries, rows.version = ((), BY_PART, BY_RATIO, (unused,), BY_ID), True, 2
    rows.properties["schema.name-mapping.default"] = '[{"field-id": 1, "names": ["id"]}]'  # lets files lack a column
    of_ids = [{"partition": {"id": number}} for number in (1, 2)]
    lacks_id = rows.data("a.parquet", pa.table({"part": ["x", "y"]}), [2], **of_ids[0])
    rows.add(0, 4, lacks_id).add(0, 4, rows.data("b.orc", numbered(2, 3), **of_ids[1]))
    rows.add(0, 1, rows.data("c.parquet", numbered(1, 3), **PART_X)).add(
        0, 1, rows.data("d.avro", numbered(1, 3, "y"), **PART_Y)
    )
    rows.add(1, 4, rows.keys("e.parquet", pa.table({"part": ["y"]}), [2], **of_ids[0]))
    rows.add(1, 1, rows.keys("f.parquet", pa.table({"id": [2]}), [1], **PART_X))
    location = rows.write()
    (rows.folder / "metadata" / "version-hint.text").write_text("1")

    def check(table: sm.Table) -> None:
        by_filter = {
            "true": {("a", 1, "x"), ("b", 2, "x"), ("c", 1, "x"), ("d", 1, "y"), ("d", 2, "y")},
            "id = 2": {("b", 2, "x"), ("d", 2, "y")},
            "part >= 'y'": {("d", 1, "y"), ("d", 2, "y")},
            "id = 2 and part = 'x'": {("b", 2, "x")},
        }
        for row_filter, expected in by_filter.items():
            read = table.scan(row_filter, selected_fields=("id", "part", "_file")).to_df().collect()
            assert sorted((file_name(row["_file"]), row["id"], row["part"]) for row in read) == sorted(expected)
        planned = table.scan("id = 2 and part = 'x'").plan_files().collect()
        # The residual contains the conditions that a file's partition does not decide.
        assert {file_name(row["file_path"]): json.loads(row["residual"]) for row in planned} == {
            "b": {"type": "eq", "term": "part", "value": "x"},
            "c": {"type": "eq", "term": "id", "value": 2},
        }
        files = table.inspect.files().collect()
        assert files[0]["partition"].__fields__ == ["id", "ratio", "unused", "part"]
        shown = {(None, "x"): "c", (None, "y"): "d", (1, None): "a", (2, None): "b"}
        data_files = ((row["partition"], row["file_path"]) for row in files if row["content"] == 0)
        assert {(values["id"], values["part"]): file_name(path) for values, path in data_files} == shown
        counts = (
            table.inspect.partitions().select("partition.id", "partition.part", "spec_id", "record_count").collect()
        )
        assert set(map(tuple, counts)) == {(1, None, 4, 2), (2, None, 4, 1), (None, "x", 1, 2), (None, "y", 1, 2)}
        tasks = [json.loads(row["task"])["data-file"] for row in table.scan().plan_task_json().collect()]
        assert {(task["spec-id"], *task["partition"].items()) for task in tasks} == {
            (4, ("1000", 1)), (4, ("1000", 2)), (1, ("1000", "x")), (1, ("1000", "y")),
        }  # fmt: skip

    check(sm.load_table(location, spark=spark))
    with configured(spark, {"spark.sparkmeta.manifest-cache": str(rows.folder / "cache")}):
        check(sm.load_table(location, spark=spark))
    sm.load_table(str(rows.folder), spark=spark).maintenance.rewrite_manifests().commit()
    table = sm.load_table(str(rows.folder), spark=spark)
    check(table)
    written = [row["path"] for row in table.inspect.manifests().collect() if "/metadata/m" not in row["path"]]
    values_by_id = set()
    for manifest in (fastavro.reader(BytesIO(Path(path.removeprefix("file://")).read_bytes())) for path in written):
        (data_file,) = (field["type"] for field in manifest.writer_schema["fields"] if field["name"] == "data_file")
        ((field,),) = (field["type"]["fields"] for field in data_file["fields"] if field["name"] == "partition")
        values = (entry["data_file"]["partition"][field["name"]] for entry in manifest)
        values_by_id.add((field["field-id"], field["name"], *sorted(values)))
    assert values_by_id == {(1000, "id", 1, 2), (1000, "part", "x", "y")}
    table.maintenance.upgrade(4).commit()
    check(sm.load_table(str(rows.folder), spark=spark))
    sm.load_table(str(rows.folder), spark=spark).maintenance.compact_manifests().commit()
    check(sm.load_table(str(rows.folder), spark=spark))


def file_name(location: str) -> str:
    """Return the letter of a file."""
    return location.rpartition("/")[2][0]
