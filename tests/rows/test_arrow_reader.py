"""Spark tasks that read rows in Python return the rows of Iceberg's Spark runtime, type by type."""

from __future__ import annotations

import re
from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta.errors import NotFoundError, UnsupportedError, from_spark
from sparkmeta.rows.arrow_reader import read_by_tasks
from tests.conftest import configured
from tests.peers import corpus as peers
from tests.peers.java import Java
from tests.peers.slices import SOAK, slice_of
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts, typed_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import Scan
    from tests.peers.corpus import Corpus

pytestmark = pytest.mark.java

FORMATS = ("parquet", "orc", "avro")

# Tables with various types, formats, evolutions, deletes and names, and with files of other libraries.
TAGS = ("types", "formats", "defaults", "schema", "deletes", "equality", "imported", "names", "locations", "retyped")
# In `equality_void` a delete file was written over a data file.
NAMES = sorted(
    {name for tag in TAGS for name in peers.names(tag, without=("made_up", "not_spark"))}
    - {"equality_void_v2", "equality_void_v3"}
)
# Iceberg's Java library finds two columns of one name if deletes compare a dropped column whose name is reused.
REFUSED_BY_JAVA = {"equality_evolved_v2", "equality_evolved_v3"}


def rows_of(scan: Scan, *metadata_columns: str) -> DataFrame:
    return read_by_tasks(scan.plan.filter, scan.plan_files(), scan.projection(), metadata_columns)


@pytest.mark.parametrize("name", slice_of(NAMES))
def test_rows(name: str, corpus: Corpus, spark: SparkSession) -> None:
    peer = corpus.table(name)
    ours, theirs = rows_of(sm.load_table(peer.metadata_location, spark=spark).scan()), peer.java.rows()
    assert typed_columns(ours) == typed_columns(theirs)
    if name in REFUSED_BY_JAVA:
        assert ours.collect()
        return
    assert comparable(ours, name) == comparable(theirs, name)


def comparable(frame: DataFrame, name: str) -> list[tuple[str | None, ...]]:
    """Return the rows as texts, without signs of zeros in ORC.

    Java's ORC reader reads a batch of zeros of both signs as a repeated value.
    """
    rows = row_texts(frame)
    if "orc" not in name:
        return rows
    return sorted((tuple("0.0" if text == "-0.0" else text for text in row) for row in rows), key=repr)


# -- formats and evolutions -------------------------------------------------------------------------------------------


def evolved_table(spark: SparkSession, kind: str, version: int) -> Workshop:
    """Create a table that changes in every way between its writes, in one file format or in all of them in turns.

    Iceberg's Java library reads no defaults from ORC, so the tables of version 3 have no such files.
    """
    shop = Workshop(Java(spark), f"evolved_{kind}_v{version}")
    formats = cycle(FORMATS if kind == "mixed" else [kind])

    def insert(*rows: str) -> None:
        shop.set(write__format__default=next(formats))
        shop.insert(*rows)

    columns = (
        "id INT NOT NULL, p STRING, i INT, f FLOAT, d DECIMAL(9, 2), day DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, "
        "b BINARY, gone INT, st STRUCT<x: INT, y: STRING, z: STRUCT<q: FLOAT>>, l ARRAY<STRUCT<e: INT>>, "
        "m MAP<STRING, STRUCT<v: INT>>, mi MAP<INT, ARRAY<STRING>>"
    )
    nulls = ", ".join(["null"] * 12)
    shop.create(columns, "p", version=version, properties=MERGE_ON_READ)
    for n in range(4):
        insert(
            f"{n}, 'a', {n}, float('{n}.5'), {n}.25, date'1500-01-0{n + 1}', "
            f"timestamp'1600-02-03 04:05:06.00000{n} UTC', timestamp_ntz'9999-12-31 23:59:59.99999{n}', X'0{n}', {n}, "
            f"named_struct('x', {n}, 'y', 'y', 'z', named_struct('q', float('{n}'))), "
            f"array(named_struct('e', {n}), null), map('k', named_struct('v', {n}), 'n', null), "
            f"map({n}, array('a', null))",
            f"{n + 10}, null, {nulls}",
        )
    shop.sql("DELETE FROM {t} WHERE id IN (1, 12)")
    for column, wider in (("i", "BIGINT"), ("f", "DOUBLE"), ("d", "DECIMAL(20, 2)"), ("st.x", "BIGINT"),
                          ("st.z.q", "DOUBLE"), ("l.element.e", "BIGINT"), ("m.value.v", "BIGINT")):  # fmt: skip
        shop.sql(f"ALTER TABLE {{t}} ALTER COLUMN {column} TYPE {wider}")
    shop.sql("ALTER TABLE {t} RENAME COLUMN i TO f2")
    shop.sql("ALTER TABLE {t} RENAME COLUMN f TO i")
    shop.sql("ALTER TABLE {t} DROP COLUMN gone")
    shop.sql("ALTER TABLE {t} ADD COLUMN gone STRING AFTER id")
    shop.sql("ALTER TABLE {t} ADD COLUMN st.new STRING FIRST")
    shop.sql("ALTER TABLE {t} RENAME COLUMN st.y TO w")
    shop.sql("ALTER TABLE {t} ADD COLUMN l.element.more INT")
    shop.sql("ALTER TABLE {t} ADD COLUMN m.value.more INT FIRST")
    shop.sql("ALTER TABLE {t} ALTER COLUMN b FIRST")
    shop.sql("ALTER TABLE {t} REPLACE PARTITION FIELD p WITH truncate(1, p)")
    if version > 2:
        types, literals = shop.java.iceberg.types.Types, shop.java.iceberg.expressions.Expressions
        update = shop.table.updateSchema()
        update.addColumn("n", types.IntegerType.get(), "a default", literals.lit(7))
        update.addColumn("st", "dflt", types.StringType.get(), "a default", literals.lit("seven"))
        update.commit()
    more, inside = (", 8", ", 'dflt', 'eight'") if version > 2 else ("", "")
    for n in range(4, 7):
        insert(
            f"X'0{n}', {n}, 'back', 'b', {2**40 + n}, double('{n}.5'), cast(1e15 as decimal(20, 2)), "
            f"date'2020-01-01', timestamp_micros({n}), timestamp_ntz'2020-01-01 00:00:00', "
            f"named_struct('new', 'n', 'x', {n}L, 'w', 'w', 'z', named_struct('q', double('{n}')){inside}), "
            f"array(named_struct('e', {n}L, 'more', {n})), map('k', named_struct('more', {n}, 'v', {n}L)), "
            f"map({n}, array()){more}"
        )
    shop.sql("DELETE FROM {t} WHERE id IN (2, 5)")
    shop.row_delta(shop.equality_delete("eq.parquet", {"f2": [0, 2**40 + 6], "gone": [None, "back"]}, ["a"]))
    shop.row_delta(shop.equality_delete("eq2.parquet", {"f2": [0, 2**40 + 6], "gone": [None, "back"]}, ["b"], 1))
    return shop


@pytest.fixture(scope="module")
def evolved(spark: SparkSession) -> Callable[[str], Workshop]:
    """Return a function that returns the table of a format and version, such as `orc 2`, created on first use."""

    @cache
    def table(name: str) -> Workshop:
        kind, version = name.split()
        return evolved_table(spark, kind, int(version))

    return table


TABLES = ("mixed 2", "avro 3", "parquet 3", "orc 2") if SOAK else ("mixed 2", "avro 3")
SETTINGS: dict[str, dict[str, str]] = {
    "ANSI": {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "Asia/Kathmandu"},
    "not ANSI": {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "America/Los_Angeles"},
    "case": {"spark.sql.caseSensitive": "true", "spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "Arrow": {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    },
}


def table_scan(shop: Workshop, **more: Any) -> Scan:
    return sm.load_table(shop.metadata_location, spark=shop.spark).scan(**more)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", TABLES)
def test_evolved(name: str, settings: str, evolved: Callable[[str], Workshop], spark: SparkSession) -> None:
    shop = evolved(name)
    with configured(spark, SETTINGS[settings]):
        ours, theirs = rows_of(table_scan(shop)), spark.table(shop.sql_name)
        assert typed_columns(ours) == typed_columns(theirs)
        assert row_texts(ours) == row_texts(theirs)


@pytest.mark.parametrize("name", TABLES)
def test_snapshots(name: str, evolved: Callable[[str], Workshop], spark: SparkSession) -> None:
    """Each snapshot has its rows and its schema."""
    shop = evolved(name)
    table = sm.load_table(shop.metadata_location, spark=spark)
    for snapshot in table.metadata.snapshots[::2]:
        theirs = spark.sql(f"SELECT * FROM {shop.sql_name} VERSION AS OF {snapshot.snapshot_id}")
        ours = rows_of(table.scan(snapshot_id=snapshot.snapshot_id))
        assert typed_columns(ours) == typed_columns(theirs)
        assert row_texts(ours) == row_texts(theirs)


@pytest.mark.parametrize(
    "row_filter",
    [
        "i >= 1.5 and id < 6",
        "st.x >= 3 or gone = 'back'",
        "st is null",
        "st is not null and st.w = 'w'",
        "ts < '1700-01-01T00:00:00+00:00'",
        "ntz >= '9999-12-31T23:59:59.999993'",
        "day < '1900-01-01' and id = 3",
        "d = 3.25",
        "p = 'a' and f2 in (2, 3)",
    ],
)
@pytest.mark.parametrize("name", TABLES)
def test_filters(name: str, row_filter: str, evolved: Callable[[str], Workshop], spark: SparkSession) -> None:
    """The columns of a filter need not be projected."""
    shop = evolved(name)
    ours = rows_of(table_scan(shop, row_filter=row_filter, selected_fields=("id", "l")))
    sql = re.sub(r"'(\d+-\d\d-\d\dT.*?)'", r"timestamp'\1'", row_filter)
    sql = sql.replace("ntz >= timestamp", "ntz >= timestamp_ntz")
    assert row_texts(ours) == row_texts(spark.table(shop.sql_name).where(sql).select("id", "l"))
    assert ours.count()


@pytest.mark.parametrize("name", TABLES)
def test_metadata_columns(name: str, evolved: Callable[[str], Workshop], spark: SparkSession) -> None:
    shop = evolved(name)
    names = ["_file", "_pos", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"]
    shown = names if name.endswith("3") else names[:4]
    for columns in (shown, [*shown[:2], "_deleted"]):
        ours = rows_of(table_scan(shop, selected_fields=("id",)), *columns)
        theirs = spark.table(shop.sql_name).select("id", *columns)
        assert typed_columns(ours) == typed_columns(theirs)
        assert row_texts(ours) == row_texts(theirs)


def test_names_that_differ_in_case(evolved: Callable[[str], Workshop], spark: SparkSession) -> None:
    """A session that is not case-sensitive shows both columns."""
    with configured(spark, {"spark.sql.caseSensitive": "true"}):
        shop = Workshop(Java(spark), "names_in_case")
        shop.create("a INT, A INT, s STRUCT<x: INT, X: INT>", properties={"write.format.default": "avro"})
        shop.insert("1, 2, named_struct('x', 3, 'X', 4)", "5, 6, null")
    rows = rows_of(table_scan(shop, row_filter="A >= 2 and s.X = 4")).collect()
    assert [tuple(row) for row in rows] == [(1, 2, (3, 4))]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_missing_file(kind: str, spark: SparkSession) -> None:
    shop = Workshop(Java(spark), f"missing_{kind}")
    shop.create("id INT", properties={"write.format.default": kind})
    shop.insert("1")
    (path,) = (shop.folder / "data").glob(f"*.{kind}")
    path.unlink()
    with pytest.raises(PySparkException) as error:
        rows_of(table_scan(shop)).collect()
    translated = from_spark(error.value)
    assert isinstance(translated, NotFoundError)
    assert path.name in str(translated)


def test_sessions_in_which_tasks_open_no_files(spark: SparkSession) -> None:
    shop = Workshop(Java(spark), "not_by_tasks")
    shop.create("id INT", properties={"write.format.default": "orc"})
    with (
        configured(spark, {"spark.sparkmeta.executor-reads": "spark"}),
        pytest.raises(UnsupportedError, match=r"set spark\.sparkmeta\.executor-reads to direct"),
    ):
        rows_of(table_scan(shop))
