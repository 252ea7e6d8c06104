"""Rows of scans equal the rows of Iceberg's runtime: selected, filtered, deleted, counted, at any time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.errors import NoSuchSnapshotError, NotFoundError, UnsupportedError, ValidationError, from_spark
from sparkmeta.rows import masks
from sparkmeta.service.rest_tasks import to_rest_tasks
from sparkmeta.session import is_connect
from tests.conftest import configured
from tests.peers.java import Java
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts, typed_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.peers.corpus import Corpus

pytestmark = pytest.mark.java

METADATA_COLUMNS = ("_file", "_pos", "_spec_id", "_partition", "_deleted")
LINEAGE = ("_row_id", "_last_updated_sequence_number")
DELETES = (
    "deletes_by_file_v2",
    "deletes_by_file_v3",
    "deletes_by_partition_v2",
    "equality_by_java_v2",
    "equality_by_java_v4",
)


def load(spark: SparkSession, corpus: Corpus, name: str) -> sm.Table:
    return sm.load_table(corpus.table(name).metadata_location, spark=spark)


@pytest.fixture
def shop(request: pytest.FixtureRequest, spark: SparkSession) -> Workshop:
    """Return a table of Java's for the test, with the test's name."""
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    return Workshop(Java(spark), name)


def table_of(shop: Workshop) -> sm.Table:
    return sm.load_table(shop.metadata_location, spark=shop.spark)


def assert_same(ours: DataFrame, theirs: DataFrame) -> None:
    assert typed_columns(ours) == typed_columns(theirs)
    assert row_texts(ours) == row_texts(theirs)


# -- metadata columns -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DELETES)
def test_metadata_columns(name: str, corpus: Corpus, spark: SparkSession) -> None:
    columns = METADATA_COLUMNS + (LINEAGE if name.endswith(("v3", "v4")) else ())
    scan = load(spark, corpus, name).scan(selected_fields=("id", *columns))
    assert_same(scan.to_df(), corpus.table(name).java.rows(columns=("id", *columns)))


def test_partition_fields_of_one_name(shop: Workshop) -> None:
    """The field of the newest spec has the name, and the older one has its id as a suffix."""
    shop.create("id INT, s STRING", "bucket(2, id)", version=2)
    shop.insert("1, 'a'", "2, 'b'")
    bucket = shop.java.iceberg.expressions.Expressions.bucket("id", 4)
    shop.table.updateSpec().removeField("id_bucket").addField("id_bucket", bucket).commit()
    shop.insert("3, 'c'", "4, 'd'")
    scan = table_of(shop).scan(selected_fields=("id", "s", "_spec_id", "_partition"))
    assert_same(scan.to_df().select("id", "s"), shop.sql("SELECT id, s FROM {t}"))
    rows = scan.to_arrow().to_pylist()
    assert {
        (row["_spec_id"], *(name for name, value in row["_partition"].items() if value is not None)) for row in rows
    } == {
        (0, "id_bucket_1000"),
        (1, "id_bucket"),
    }


@pytest.mark.parametrize("name", DELETES)
def test_rows_without_those_that_are_flagged(name: str, corpus: Corpus, spark: SparkSession) -> None:
    table = load(spark, corpus, name)
    names = [field.name for field in table.schema().fields]
    flagged = table.scan(selected_fields=(*names, "_deleted")).to_df()
    assert row_texts(flagged.where("NOT _deleted").drop("_deleted")) == row_texts(table.scan().to_df())
    assert flagged.where("_deleted").count()


@pytest.mark.parametrize("columns", [METADATA_COLUMNS, ("_pos", "_deleted")], ids=["all", "two"])
@pytest.mark.parametrize("name", DELETES)
def test_metadata_columns_that_are_not_used(
    name: str, columns: tuple[str, ...], corpus: Corpus, spark: SparkSession
) -> None:
    rows = load(spark, corpus, name).scan(selected_fields=("id", *columns)).to_df()
    all_ids = row_texts(rows.select("id"))
    assert all_ids == row_texts(rows.select("id", "_deleted").drop("_deleted"))
    assert row_texts(rows.select("id", "_pos").drop("_pos")) == all_ids
    assert rows.where("_pos >= 0").select("id").count() == len(all_ids)
    assert row_texts(rows.select("id").distinct()) == sorted(set(all_ids), key=repr)
    assert rows.count() == len(all_ids)


def test_stored_row_ids_win(shop: Workshop) -> None:
    shop.create("id INT, x INT", version=3, properties=MERGE_ON_READ)
    shop.insert("1, 1", "2, 2", "3, 3")
    shop.insert("4, 4")
    shop.sql("UPDATE {t} SET x = 10 WHERE id = 2")
    shop.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    ours = table_of(shop).scan(selected_fields=("id", *LINEAGE)).to_df()
    assert_same(ours, shop.sql(f"SELECT id, {', '.join(LINEAGE)} FROM {{t}}"))


# -- deletes ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["literal", "broadcast", "batches", "tasks"])
def _limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass masks as a literal of the query, broadcast, in batches of files, or by tasks if they are too large."""
    limits = {
        "literal": masks.LIMITS,
        "broadcast": replace(masks.LIMITS, literal=0),
        "batches": replace(masks.LIMITS, batch=1),
        "tasks": replace(masks.LIMITS, total=0),
    }
    monkeypatch.setattr(masks, "LIMITS", limits[request.param])


@pytest.mark.usefixtures("_limits")
@pytest.mark.parametrize("name", ["deletes_by_file_v3", "deletes_by_partition_v2", "equality_by_java_v2"])
def test_masks_of_any_size(name: str, corpus: Corpus, spark: SparkSession) -> None:
    assert_same(load(spark, corpus, name).scan().to_df(), corpus.table(name).java.rows())


@pytest.mark.parametrize(
    "setting",
    [
        "driver-manifest-bytes=0",
        "executor-reads=spark",
        "file-handover=paths",
        pytest.param("file-handover=log", marks=pytest.mark.classic),
    ],
)
@pytest.mark.parametrize("name", ["deletes_by_file_v3", "deletes_by_partition_v2", "equality_by_java_v2"])
def test_rows_with_each_reader(name: str, setting: str, corpus: Corpus, spark: SparkSession) -> None:
    key, value = setting.split("=")
    with configured(spark, {f"spark.sparkmeta.{key}": value}):
        assert_same(load(spark, corpus, name).scan().to_df(), corpus.table(name).java.rows())


def test_many_rows_with_every_kind_of_delete(shop: Workshop) -> None:
    """Files have several bitmap words and row groups.

    Deletes overlap, and equality deletes compare a column that is not read.
    """
    shop.create("id BIGINT, k INT, s STRING", version=2, properties=MERGE_ON_READ)
    for start in (0, 5000):
        rows = (
            f"SELECT /*+ COALESCE(1) */ id, cast(id % 100 as int), concat('s', id) FROM range({start}, {start + 5000})"
        )
        shop.sql(f"INSERT INTO {{t}} {rows}")
    shop.sql("DELETE FROM {t} WHERE id % 7 = 0")
    shop.row_delta(shop.equality_delete("k.parquet", {"k": [3, 50, 1000]}))
    shop.sql("DELETE FROM {t} WHERE id BETWEEN 4000 AND 6000")
    shop.sql("INSERT INTO {t} SELECT id, 3, 'late' FROM range(10000, 10100)")
    table = table_of(shop)
    assert_same(table.scan().to_df(), shop.sql("SELECT * FROM {t}"))
    scan = table.scan("id >= 100", selected_fields=("s",))
    assert_same(scan.to_df(), shop.sql("SELECT s FROM {t} WHERE id >= 100"))
    assert scan.count() == shop.sql("SELECT s FROM {t} WHERE id >= 100").count()


def test_null_and_nan_keys_of_two_columns(shop: Workshop) -> None:
    shop.create("id INT, a STRING, x DOUBLE", version=2)
    values = ("'u', 1.0D", "'u', null", "null, 1.0D", "null, null", "'u', double('NaN')", "'u', 0.0D", "'u', -0.0D")
    shop.insert(*(f"{number}, {value}" for number, value in enumerate(values)))
    keys = {"a": ["u", None, None, "u", "u"], "x": [None, None, 2.0, float("nan"), 0.0]}
    shop.row_delta(shop.equality_delete("two.parquet", keys))
    assert_same(table_of(shop).scan().to_df(), shop.sql("SELECT * FROM {t}"))


# -- errors -----------------------------------------------------------------------------------------------------------


def with_vector(shop: Workshop) -> Path:
    shop.create("id BIGINT", version=3, properties=MERGE_ON_READ)
    shop.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id FROM range(100)")
    shop.sql("DELETE FROM {t} WHERE id = 50")
    (puffin,) = shop.folder.glob("data/**/*.puffin")
    return puffin


def both_ways(shop: Workshop, kind: type[Exception], match: str) -> None:
    """Check that the driver and tasks raise the error."""
    for size in ("64m", "0"):
        with (
            configured(shop.spark, {"spark.sparkmeta.driver-manifest-bytes": size}),
            pytest.raises(kind, match=match),
        ):
            table_of(shop).scan().to_df()


def test_a_vector_with_a_wrong_checksum(shop: Workshop) -> None:
    puffin = with_vector(shop)
    data = bytearray(puffin.read_bytes())
    data[4 + 12] ^= 1  # behind the file's magic and the blob's length and magic
    puffin.write_bytes(data)
    both_ways(shop, ValidationError, "CRC-32")


def test_a_missing_vector(shop: Workshop) -> None:
    with_vector(shop).unlink()
    both_ways(shop, NotFoundError, "puffin")


def delete_positions(shop: Workshop, path: str | None, position: int) -> None:
    """Make a table of one file of three rows, with a position delete file of one row for it."""
    shop.create("id BIGINT")
    shop.insert("1", "2", "3")
    (data_file,) = (row.file_path for row in shop.sql("SELECT file_path FROM {t}.files").collect())
    location = shop.folder / "data" / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [path or data_file], "pos": [position]}), location)
    builder = shop.java.iceberg.FileMetadata.deleteFileBuilder(shop.table.spec()).ofPositionDeletes()
    builder = builder.withPath(f"file:{location}").withFormat("parquet").withRecordCount(1)
    shop.row_delta(builder.withFileSizeInBytes(location.stat().st_size).withReferencedDataFile(data_file).build())


def test_positions_beyond_the_rows_of_the_file(shop: Workshop) -> None:
    delete_positions(shop, None, 3)
    both_ways(shop, ValidationError, "position is 3: .* has 3 rows")


def test_a_delete_file_about_one_file_that_names_another(shop: Workshop) -> None:
    delete_positions(shop, "file:///another/table.parquet", 0)
    both_ways(shop, ValidationError, "file:///another/table.parquet")


@pytest.mark.parametrize("size", ["64m", "0"])
def test_positions_of_other_files(size: str, shop: Workshop) -> None:
    """A position delete file deletes rows of older files of its partition, whichever other files it names."""
    shop.create("id BIGINT, p STRING", "p")
    old, other, new = (
        shop.data_file(f"{name}.parquet", {"id": [0, 1, 2], "p": [name[0]] * 3}, [name[0]])
        for name in ("a_old", "b_old", "a_new")
    )
    shop.append(old, other)
    paths = [str(file.location()) for file in (old, new, other)]
    rows = sorted([(path, 1) for path in paths] + [("file:///gone.parquet", 1 << 50)] + [(paths[0], 2)])
    ids = {"file_path": b"2147483546", "pos": b"2147483545"}
    schema = pa.schema(
        [
            pa.field(name, kind, nullable=False, metadata={b"PARQUET:field_id": ids[name]})
            for name, kind in (("file_path", pa.string()), ("pos", pa.int64()))
        ]
    )
    location = shop.folder / "data" / "deletes.parquet"
    pq.write_table(pa.table([*map(list, zip(*rows, strict=True))], schema=schema), location)
    builder = shop.java.iceberg.FileMetadata.deleteFileBuilder(shop.table.spec()).ofPositionDeletes()
    builder = builder.withPath(f"file:{location}").withFormat("parquet").withRecordCount(len(rows))
    shop.row_delta(builder.withFileSizeInBytes(location.stat().st_size).withPartitionPath("p=a").build())
    shop.append(new)
    with configured(shop.spark, {"spark.sparkmeta.driver-manifest-bytes": size}):
        scan = table_of(shop).scan()
        assert_same(scan.to_df(), shop.sql("SELECT * FROM {t}"))
        assert scan.count() == 7


def test_a_missing_data_file(shop: Workshop) -> None:
    shop.create("id BIGINT")
    shop.insert("1")
    (path,) = shop.folder.glob("data/*.parquet")
    frame = table_of(shop).scan().to_df()
    path.unlink()
    with pytest.raises(Exception, match="PATH_NOT_FOUND" if is_connect(shop.spark) else "FILE_NOT_EXIST") as raised:
        frame.collect()
    assert isinstance(from_spark(raised.value), NotFoundError)


# -- scans ------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_listed_twice_has_its_rows_twice(shop: Workshop) -> None:
    shop.create("id BIGINT", properties=MERGE_ON_READ)
    file = shop.data_file("twice.parquet", {"id": [1, 2]})
    for _ in range(2):
        shop.table.newFastAppend().appendFile(file).commit()
    assert sorted(row.id for row in table_of(shop).scan().to_df().collect()) == [1, 1, 2, 2]
    shop.sql("DELETE FROM {t} WHERE id = 1")
    assert [row.id for row in table_of(shop).scan().to_df().collect()] == [2, 2]
    assert table_of(shop).scan().count() == 2


@pytest.mark.parametrize("file_name", ["_x.parquet", ".x.parquet", "x._COPYING_"], ids=["underscore", "dot", "copying"])
def test_files_that_spark_passes_over(file_name: str, shop: Workshop) -> None:
    shop.create("id BIGINT")
    shop.insert("1")
    shop.table.newFastAppend().appendFile(shop.data_file(file_name, {"id": [2]})).commit()
    assert_same(table_of(shop).scan().to_df(), shop.sql("SELECT * FROM {t}"))


@pytest.mark.parametrize(
    ("kind", "values"),
    [("ARRAY<INT>", [[1, None], None, []]), ("MAP<STRING, INT>", [[("k", 1)], None, []]), ("STRUCT<a: INT>", None)],
    ids=["list", "map", "struct"],
)
def test_files_without_ids(kind: str, values: list[Any] | None, shop: Workshop) -> None:
    """Columns are matched by position. Java reads fields of structs as null, which we refuse."""
    shop.create(f"id INT, nested {kind}")
    types = {"A": pa.list_(pa.int32()), "M": pa.map_(pa.string(), pa.int32()), "S": pa.struct([("a", pa.int32())])}
    nested = pa.array(values or [{"a": 1}, None, {"a": 2}], types[kind[0]])
    path = shop.folder / "data" / "no-ids.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"nested": pa.array([1, 2, 3], pa.int32()), "id": nested}), path)
    builder = shop.java.iceberg.DataFiles.builder(shop.table.spec()).withPath(f"file:{path}").withFormat("parquet")
    shop.append(builder.withRecordCount(3).withFileSizeInBytes(path.stat().st_size).build())
    with configured(shop.spark, {"spark.sparkmeta.data-file-footers": "always"}):
        if values is None:
            with pytest.raises(UnsupportedError, match=r"no-ids\.parquet: the fields of column nested have no ids"):
                table_of(shop).scan().to_df()
        else:
            assert_same(table_of(shop).scan().to_df(), shop.sql("SELECT * FROM {t}"))
        ids = table_of(shop).scan(selected_fields=("id",)).to_df()
        assert_same(ids, shop.sql("SELECT id FROM {t}"))


def test_filters_and_columns(corpus: Corpus, spark: SparkSession) -> None:
    table, java = load(spark, corpus, "deletes_by_file_v3"), corpus.table("deletes_by_file_v3").java
    for row_filter in (
        "p = 'a'",
        "x > 10 and x is not nan and id < 60",
        "p is null",
        "x is nan",
        "not (p = 'b' or x < 5 or x is nan)",
        "id in (4, 5)",
    ):
        expected = java.rows(
            condition=row_filter.replace("x is nan", "isnan(x)").replace("x is not nan", "not isnan(x)")
        )
        assert row_texts(table.scan(row_filter).to_df()) == row_texts(expected), row_filter
        ours = table.scan(row_filter).select("x").to_df()
        assert row_texts(ours) == row_texts(expected.select("x")), row_filter
        assert table.scan(row_filter).count() == expected.count(), row_filter


def test_filters_are_pushed_into_parquet(
    corpus: Corpus, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    load(spark, corpus, "deletes_by_file_v3").scan("id > 3 and x < 7").to_df().explain()
    pushed = next(line for line in capsys.readouterr().out.splitlines() if "PushedFilters" in line)
    assert "GreaterThan(id,3)" in pushed
    assert "IsNotNull(x)" in pushed


@pytest.mark.parametrize(
    ("way", "index"),
    [pytest.param("log", "MetadataLogFileIndex", marks=pytest.mark.classic), ("paths", "InMemoryFileIndex")],
)
def test_the_setting_of_the_handover(
    way: str, index: str, corpus: Corpus, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with configured(spark, {"spark.sparkmeta.file-handover": way}):
        load(spark, corpus, "types_v2").scan().to_df().explain()
    assert index in capsys.readouterr().out


@pytest.mark.classic  # with Spark Connect, each read checks for files that Spark has skipped
def test_files_without_deletes_are_read_as_they_are(
    corpus: Corpus, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    load(spark, corpus, "types_v2").scan().to_df().explain()
    plan = capsys.readouterr().out
    assert "_metadata" not in plan
    assert "Filter [" not in plan


@pytest.mark.classic
@pytest.mark.parametrize(
    "name", ["schema_evolution_v2", "evolution_with_deletes_v3", "defaults_v3", "spec_nested_source_v2"]
)
def test_evolved_files_are_read_by_spark(
    name: str, corpus: Corpus, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    load(spark, corpus, name).scan().to_df().explain()
    plan = capsys.readouterr().out
    assert "FileScan parquet" in plan
    assert "MapInArrow" not in plan


@pytest.mark.parametrize("name", ["branches_and_tags_v2", "replaced_v2", "schema_evolution_v2"])
def test_every_snapshot_in_its_schema(name: str, corpus: Corpus, spark: SparkSession) -> None:
    from tests.peers.java import At

    table, peer = load(spark, corpus, name), corpus.table(name)
    for snapshot_id in peer.java.snapshot_ids:
        assert_same(table.scan(snapshot_id=snapshot_id).to_df(), peer.java.rows(At(snapshot_id)))
    for ref in table.refs():
        assert_same(table.scan().use_ref(ref).to_df(), peer.java.rows(At(ref=ref)))


def test_a_name_that_was_used_before_in_a_schema_that_is_forgotten(shop: Workshop, tmp_path: Path) -> None:
    shop.create("id INT, x INT")
    shop.insert("1, 10")
    shop.sql("ALTER TABLE {t} DROP COLUMN x")
    shop.sql("ALTER TABLE {t} ADD COLUMN x INT")
    metadata = json.loads(Path(shop.metadata_location.removeprefix("file:")).read_text())
    metadata["schemas"] = metadata["schemas"][-1:]
    metadata["snapshots"][0].pop("schema-id")
    (tmp_path / "v9.metadata.json").write_text(json.dumps(metadata))
    table = sm.load_table(f"file://{tmp_path}/v9.metadata.json", spark=shop.spark)
    assert [tuple(row) for row in table.scan().to_df().collect()] == [(1, None)]


def test_small_results_and_views(corpus: Corpus, spark: SparkSession) -> None:
    table = load(spark, corpus, "deletes_by_file_v2")
    expected = corpus.table("deletes_by_file_v2").java.rows()
    ids = sorted(row.id for row in expected.collect())
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == ids
    assert sorted(table.scan(selected_fields=("id",)).to_pandas()["id"]) == ids
    assert table.scan().limit(5).limit(3).to_df().count() == table.scan().limit(3).count() == 3
    table.create_temp_view("rows_of_all")
    table.scan("id < 10").create_temp_view("rows_of_some")
    assert spark.sql("SELECT count(*) FROM rows_of_all").collect() == [(len(ids),)]
    rows = spark.sql("SELECT id FROM rows_of_all WHERE id IN (SELECT id FROM rows_of_some) ORDER BY id").collect()
    assert [row.id for row in rows] == [number for number in ids if number < 10]
    for wrong in (-1, "5", 1.5, True, None, 2**31):
        with pytest.raises(ValidationError, match=f"limit is {wrong!r}: expected a whole number from 0 to 2147483647"):
            table.scan().limit(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="selected_fields is 'id': expected a list of strings"):
        table.scan(selected_fields="id")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=r"options is .*: expected a mapping of names to values"):
        table.scan(options=["read.split.target-size"])  # type: ignore[arg-type]
    known = "split-size, lookback, file-open-cost"
    with pytest.raises(ValidationError, match=f"options has 'read.split.target-size': expected {known}"):
        table.scan(options={"read.split.target-size": "300"})
    for names, asked in (
        ("select", lambda: table.scan().select(["id"])),  # type: ignore[arg-type]
        ("use_ref", lambda: table.scan().use_ref(["main"])),  # type: ignore[arg-type]
        ("stats_fields", lambda: to_rest_tasks(table.scan(), stats_fields="id")),
        ("split-size", lambda: table.scan(options={"split-size": 10**30}).plan_tasks()),
    ):
        with pytest.raises(ValidationError, match=f"{names} is .*: expected"):
            asked()


def test_an_empty_table(corpus: Corpus, spark: SparkSession) -> None:
    scan = load(spark, corpus, "empty_v2").scan()
    assert scan.use_ref("main").count() == 0
    with pytest.raises(NoSuchSnapshotError):
        scan.use_ref("other")
    assert_same(scan.to_df(), corpus.table("empty_v2").java.rows())
    assert scan.count() == 0


@pytest.mark.parametrize("size", ["64m", "0"])
@pytest.mark.parametrize("name", ["types_v2", "data_rewritten_v2", "imported_v1"])
def test_counts_without_deletes(name: str, size: str, corpus: Corpus, spark: SparkSession) -> None:
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": size}):
        assert load(spark, corpus, name).scan().count() == corpus.table(name).java.rows().count()


COUNTED: dict[str, Callable[[sm.Scan], sm.Scan]] = {
    "all": lambda scan: scan,
    "by partition": lambda scan: scan.filter("p = 'a'"),
    "by values": lambda scan: scan.filter("x > 5"),
}


@pytest.mark.parametrize("of", COUNTED)
@pytest.mark.parametrize("name", DELETES)
def test_counts(name: str, of: str, corpus: Corpus, spark: SparkSession) -> None:
    scan = COUNTED[of](load(spark, corpus, name).scan())
    assert scan.count() == scan.to_df().count()


@pytest.mark.parametrize("name", DELETES[:3])
def test_deleted_positions_are_counted_without_reading_rows(
    name: str, corpus: Corpus, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load(spark, corpus, name)
    expected = [table.scan(row_filter).to_df().count() for row_filter in ("id > -1", "p = 'a'")]

    def read(*_: object) -> None:
        pytest.fail("rows are read")

    monkeypatch.setattr("sparkmeta.rows.read.rows_of", read)
    assert [table.scan().count(), table.scan("p = 'a'").count()] == expected


def test_few_vectors_are_counted_without_a_job(
    corpus: Corpus, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load(spark, corpus, "deletes_by_file_v3")
    expected = table.scan().to_df().count()
    monkeypatch.setattr("sparkmeta.rows.read.plan_rows", lambda _: pytest.fail("a job runs"))
    with configured(spark, {"spark.sparkmeta.planning": "auto"}):
        assert table.scan().count() == expected


def test_a_filter_on_a_column_that_was_replaced(spark: SparkSession) -> None:
    """A branch of files from before the replacement is read with the table's schema."""
    shop = Workshop(Java(spark), "filters_retyped")
    shop.create("id BIGINT, p INT, s STRING", "p")
    shop.insert("1, 1, 'a'", "2, 2, 'b'")
    shop.sql("ALTER TABLE {t} CREATE BRANCH old")
    shop.sql("CREATE OR REPLACE TABLE {t} (id BIGINT, p STRING, s INT) USING iceberg PARTITIONED BY (p)")
    shop.insert("5, 'x', 3")
    table = sm.load_table(shop.metadata_location, spark=spark)
    for text, column in (("p = 'x'", "p has type string, and type int"), ("s = 3", "s has type int, and type string")):
        scan = table.scan(text).use_ref("old")
        for ask in (scan.plan_files, scan.to_df, scan.count, scan.report):
            with pytest.raises(ValidationError, match=f"column {column} in the files that are read"):
                ask()
        assert table.scan(text).count() == 1
    assert table.scan("id = 1").use_ref("old").select("id").to_df().collect() == [(1,)]
