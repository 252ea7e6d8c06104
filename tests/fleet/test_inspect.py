"""`catalog.inspect` and SQL: metadata tables over many tables have the rows of each table alone."""

from __future__ import annotations

import json
import logging
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)

import sparkmeta as sm
from sparkmeta.errors import InvalidArgumentError, NoSuchTableError, SparkmetaError
from sparkmeta.fleet import inspect as fleet_inspect
from tests.conftest import configured
from tests.fleet.broken import WAYS
from tests.fleet.catalogs import ROWS, SCHEMA, VERSIONS, catalog_of, new_table, properties_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NAMES = [name for name in vars(fleet_inspect.FleetTables) if not name.startswith("_")]
LEFT_OUT = {"readable_metrics", "row"}


def fill(catalog: Any) -> dict[str, Any]:
    """Tables of all versions, some with deletes, and one without partitions."""
    tables = {"db.flat": catalog.create_table("db.flat", SCHEMA).append(ROWS)}
    for version in VERSIONS:
        table = new_table(catalog, f"db.v{version}", version)
        if version > 1:
            more = pa.table({"id": [*range(9)], "part": ["c"] * 9}, SCHEMA)
            with table.transaction() as transaction:
                transaction.set_properties({"write.delete.mode": "merge-on-read"})
            table = table.refresh().append(more).delete("id = 4")
        tables[f"db.v{version}"] = table
    return tables


def as_json(partition: dict[str, Any] | None) -> str:
    return json.dumps(
        {name: value for name, value in (partition or {}).items() if value is not None}, separators=(",", ":")
    )


def expected(tables: dict[str, Any], name: str) -> list[str]:
    """The rows of a metadata table of each table alone, without what only some tables have."""
    rows = []
    for table_name, table in tables.items():
        for row in getattr(table.inspect.arrow, name)().to_pylist():
            compared = {key: value for key, value in row.items() if key not in LEFT_OUT}
            if name in ("entries", "all_entries"):
                compared["data_file"] = {
                    **compared["data_file"],
                    "partition": as_json(compared["data_file"].get("partition")),
                }
            elif "files" in name or name in ("partitions", "position_deletes"):
                compared["partition"] = as_json(compared.get("partition"))
            rows.append({"table": table_name, **compared})
    return sorted(map(comparable, rows))


def comparable(row: dict[str, Any]) -> str:
    """A row without nulls, in any order of its columns and of the keys of its maps."""
    values = {name: value for name, value in row.items() if value is not None}
    for name, value in values.items():
        if isinstance(value, dict):
            values[name] = comparable(value)
        elif isinstance(value, list) and all(isinstance(item, tuple) for item in value):
            values[name] = sorted(value)
    return repr(sorted(values.items()))


def rows_of(result: Any) -> list[str]:
    table = result if isinstance(result, pa.Table) else result.toArrow()
    assert table.column_names[0] == "table"
    return sorted(map(comparable, table.to_pylist()))


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return catalog_of("sql", tmp_path_factory.mktemp("inspect"))


@pytest.fixture(scope="module")
def tables(catalog: Any) -> dict[str, Any]:
    return fill(catalog)


@pytest.mark.parametrize("name", NAMES)
def test_arrow(catalog: Any, tables: dict[str, Any], name: str, no_session: None) -> None:
    result = getattr(catalog.inspect.arrow, name)("db.*")
    assert rows_of(result) == expected(tables, name)
    (flat,) = {table for table in result.column("table").to_pylist() if table == "db.flat"} or {"db.flat"}
    alone = getattr(catalog.inspect.arrow, name)(flat)
    assert alone.schema == result.schema, "a table without partitions has the same columns"


@pytest.mark.parametrize("name", NAMES)
def test_frames(spark: SparkSession, catalog: Any, tables: dict[str, Any], name: str, monkeypatch: Any) -> None:
    """The driver reads all tables; tasks read the later ones; and jobs read large ones."""
    names = getattr(catalog.inspect.arrow, name)("db.*").column_names
    read = getattr(catalog.inspect, name)
    of_driver = read("db.*")
    monkeypatch.setattr(fleet_inspect, "MOST_ENTRIES", 0)
    of_tasks = read("db.*")
    monkeypatch.undo()
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        by_jobs = read("db.*")
        results = {"driver": of_driver, "tasks": of_tasks, "jobs": by_jobs}
        for kind, result in results.items():
            assert result.columns == names, kind
            assert rows_of(result) == expected(tables, name), kind


def test_columns(catalog: Any, tables: dict[str, Any], no_session: None) -> None:
    inspect = catalog.inspect.arrow
    assert inspect.files("db.*", columns=["partition", "record_count"]).column_names == [
        "table",
        "partition",
        "record_count",
    ]
    rows = inspect.files("db.flat", columns=["partition"]).to_pylist()
    assert rows == [{"table": "db.flat", "partition": "{}"}]
    entries = inspect.entries("db.*", columns=["status", "data_file.partition"])
    assert entries.schema.field("data_file").type == pa.struct([("partition", pa.string())])
    assert {row["data_file"]["partition"] for row in entries.to_pylist()} == {
        "{}",
        *(f'{{"part":"{x}"}}' for x in "abc"),
    }
    with pytest.raises(InvalidArgumentError, match="no_such"):
        inspect.files("db.*", columns=["no_such"])
    with pytest.raises(
        InvalidArgumentError, match=r"columns is \['readable_metrics'\]: tables have none of them in common"
    ):
        inspect.files("db.*", columns=["readable_metrics"])
    with pytest.raises(NoSuchTableError, match="no table of prod"):
        inspect.files("none.*")
    with pytest.raises(SparkmetaError, match=r"db\.flat: .*no such ref|db\.\w+: .*nowhere"):
        inspect.files("db.*", ref="nowhere")


KINDS = {
    "text": (StringType(), 'a"\\\tü/=&', 'a"\\\tü/=&'),
    "whole": (LongType(), 1 << 60, 1 << 60),
    "flag": (BooleanType(), True, True),
    "real": (DoubleType(), 0.5, 0.5),
    "day": (DateType(), date(2026, 1, 31), "2026-01-31"),
    "moment": (TimestamptzType(), datetime(2026, 1, 31, 1, 2, 3, 4, UTC), "2026-01-31T01:02:03.000004+00:00"),
    "money": (DecimalType(9, 2), Decimal("12.50"), "12.50"),
    "key": (UUIDType(), UUID(int=5), str(UUID(int=5))),
    "blob": (BinaryType(), b"\x00\xff", "00FF"),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_as_json(spark: SparkSession, tmp_path: Path, version: int) -> None:
    catalog = catalog_of("hadoop", tmp_path)
    fields = [NestedField(place, name, kind) for place, (name, (kind, _, _)) in enumerate(KINDS.items(), 1)]
    parts = [
        PartitionField(field.field_id, 1000 + field.field_id, IdentityTransform(), f"p.{field.name}")
        for field in fields
    ]
    day = PartitionField(6, 1100, DayTransform(), "of day")
    table = catalog.create_table("db.t", Schema(*fields), PartitionSpec(*parts, day), format_version=version)
    schema = table.schema().as_arrow() if hasattr(table.schema(), "as_arrow") else None
    values = {name: (value.bytes if isinstance(value, UUID) else value) for name, (_, value, _) in KINDS.items()}
    rows = pa.Table.from_pylist([values, dict.fromkeys(values)], schema=schema)
    table.append(rows)
    expected = {f"p.{name}": text for name, (_, _, text) in KINDS.items()} | {"of day": "2026-01-31"}
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        by_jobs = catalog.inspect.files("db.t", columns=["partition"]).toArrow()
    for result in (catalog.inspect.arrow.files("db.t"), catalog.inspect.arrow.partitions("db.t"), by_jobs):
        texts = sorted(map(json.loads, result.column("partition").to_pylist()), key=len)
        assert texts == [{}, expected]


def test_broken_tables(
    catalog_folder: Any, caplog: pytest.LogCaptureFixture, spark: SparkSession, monkeypatch: Any
) -> None:
    catalog = catalog_folder
    new_table(catalog, "db.good")
    for name in ("garbled_manifest", "no_metadata", "no_list"):
        WAYS[name][0](new_table(catalog, f"db.{name}"))
    with pytest.raises(SparkmetaError, match=r"^db\.(garbled_manifest|no_metadata|no_list): "):
        catalog.inspect.arrow.files("db.*")
    with caplog.at_level(logging.WARNING, "sparkmeta"):
        rows = catalog.inspect.arrow.files("db.*", skip_broken=True)
    assert set(rows.column("table").to_pylist()) == {"db.good"}
    warned = {record.getMessage().partition(":")[0] for record in caplog.records}
    assert warned == {"db.garbled_manifest", "db.no_metadata", "db.no_list"}
    monkeypatch.setattr(fleet_inspect, "MOST_ENTRIES", 0)
    new_table(catalog, "db.another")
    frame = catalog.inspect.files("db.*", skip_broken=True)
    assert {row.table for row in frame.select("table").collect()} == {"db.good", "db.another"}
    with pytest.raises(SparkmetaError, match=r"db\.no_list: none of the tables can be read"):
        catalog.inspect.arrow.files("db.no_list", skip_broken=True)


@pytest.fixture
def catalog_folder(tmp_path: Path) -> Any:
    return catalog_of("sql", tmp_path)


# -- SQL --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sql_catalog(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    catalog = catalog_of("sql", tmp_path)
    sm.register(spark)
    return catalog


def options_of(folder: Path) -> dict[str, str]:
    return {f"property.{name}": value for name, value in properties_of("sql", folder).items()} | {"catalog": "prod"}


def named(folder: Path) -> str:
    pairs = ", ".join(f"'{name}', '{value}'" for name, value in properties_of("sql", folder).items())
    return f"catalog => 'prod', properties => map({pairs})"


@pytest.mark.classic
@pytest.mark.parametrize("name", [*NAMES, "health"])
def test_sql(spark: SparkSession, sql_catalog: Any, tmp_path: Path, name: str) -> None:
    tables = fill(sql_catalog)
    reader = spark.read.format("sparkmeta").options(**options_of(tmp_path))
    frame = reader.option("table", name).load("db.*")
    function = spark.sql(f"SELECT * FROM sparkmeta_{name}('db.*', {named(tmp_path)})")
    for result in (frame, function):
        if name == "health":
            assert result.columns[:2] == ["table", "finding"]
            continue
        assert result.columns == getattr(sql_catalog.inspect.arrow, name)("db.*").column_names
        assert rows_of(result) == expected(tables, name)


@pytest.mark.classic
def test_sql_of_partitions(spark: SparkSession, sql_catalog: Any, tmp_path: Path) -> None:
    fill(sql_catalog)
    rows = spark.sql(
        f"SELECT `table`, partition, record_count FROM sparkmeta_partitions('db.*', {named(tmp_path)}) "
        "ORDER BY record_count DESC, `table` LIMIT 3"
    ).collect()
    assert [tuple(row) for row in rows] == [(f"db.v{version}", '{"part":"c"}', 9) for version in (2, 3, 4)]
    two = spark.read.format("sparkmeta").options(**options_of(tmp_path), table="partitions", columns="partition")
    assert two.load("db.*").columns == ["table", "partition"]
    WAYS["garbled_manifest"][0](sql_catalog.load_table("db.v2"))
    WAYS["no_metadata"][0](sql_catalog.load_table("db.v3"))
    few = (
        f"SELECT DISTINCT `table` FROM sparkmeta_files('db.*', {named(tmp_path)}, skip_broken => true) ORDER BY `table`"
    )
    assert [row.table for row in spark.sql(few).collect()] == ["db.flat", "db.v1", "db.v4"]
    for query, error in {
        f"SELECT * FROM sparkmeta_files('db.*', {named(tmp_path)})": r"db\.v3: ",
        f"SELECT * FROM sparkmeta_files('no.*', {named(tmp_path)})": "no table of prod",
        f"SELECT * FROM sparkmeta_table('db.*', 'rows', {named(tmp_path)})": "rows is read of one table",
        f"SELECT * FROM sparkmeta_files('db.*', {named(tmp_path)}, skip_broken => 'maybe')": "skip-broken is 'maybe'",
    }.items():
        with pytest.raises(Exception, match=error):
            spark.sql(query).collect()
