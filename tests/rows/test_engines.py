"""Other engines read the rows of scans like Spark, with every kind of delete applied, and never too early."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import sparkmeta as sm
from tests.conftest import configured
from tests.handmade import BY_PART
from tests.rows.row_table import RowTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

PART = {"partition": {"part": "x"}}


def numbered(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    columns = {"id": pa.array(ids, pa.int64()), "part": ["x"] * len(ids), "ratio": [n / 2 for n in ids]}
    return pa.table(columns)


@pytest.fixture
def rows(tmp_path: Path) -> RowTable:
    return RowTable(tmp_path / "a b%20[c]{d}", specs=(BY_PART,))


VERSIONS = (2, 3)
DELETED = {2: {1, 102, 203, 5, 105, 205}, 3: {1, 2, 3, 101, 102, 103, 201, 202, 203, 5, 105, 205}}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def table(version: int, rows: RowTable, spark: SparkSession) -> sm.Table:
    """Return a table with a file of each format, and all kinds of deletes that its format version supports."""
    rows.version = version
    files = [rows.data(f"{n}.{kind}", numbered(n * 100, n * 100 + 100), **PART)
             for n, kind in enumerate(("parquet", "orc", "avro"))]  # fmt: skip
    rows.add(0, 0, *files)
    if version == 2:
        rows.add(1, 0, rows.positions("p.parquet", (files[0], 1), (files[1], 2), (files[2], 3), **PART))
    else:
        rows.add(1, 0, *(rows.vector(file, [1, 2, 3], **PART) for file in files))
    keys = pa.table({"id": pa.array([5, 105, 205, 999], pa.int64())})
    rows.add(1, 0, rows.keys("k.parquet", keys, [1], **PART))
    return rows.load(spark)


def by_duckdb(scan: sm.Scan) -> pa.Table:
    """Query the rows by a view in DuckDB, which reads them for each query."""
    connection = scan.to_duckdb("kept")

    def query(text: str) -> pa.Table:
        relation = connection.sql(text)
        rows = relation.fetchall()
        return pa.table({name: [row[index] for row in rows] for index, name in enumerate(relation.columns)})

    rows = query("SELECT * FROM kept")
    joined = query("SELECT count(*) AS rows FROM kept AS a JOIN kept AS b USING (id)")
    assert joined.to_pylist() == [{"rows": len(rows)}]
    return rows


def by_ray(scan: sm.Scan) -> pa.Table:
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    return pa.concat_tables(ray.get(scan.to_ray().to_arrow_refs()))


def by_datafusion(scan: sm.Scan) -> pa.Table:
    from datafusion import SessionContext

    return SessionContext().from_arrow(scan, name="t").to_arrow_table()


ENGINES: dict[str, Callable[[sm.Scan], pa.Table]] = {
    "": lambda scan: scan.to_arrow_batch_reader().read_all(),
    "pyarrow": pa.table,
    "daft": lambda scan: scan.to_daft().to_arrow(),
    "datafusion": by_datafusion,
    "duckdb": by_duckdb,
    "polars": lambda scan: scan.to_polars().to_arrow(),
    "ray": by_ray,
}


def check(engine: Callable[[sm.Scan], pa.Table], table: sm.Table) -> None:
    """Compare the rows of an engine with the table's rows."""
    live = [number for number in range(300) if number not in DELETED[table.format_version]]
    rows = engine(table.scan())
    assert rows.column_names == ["id", "part", "ratio"]
    assert sorted(zip(*rows.to_pydict().values(), strict=True)) == [(number, "x", number / 2) for number in live]
    some = engine(table.scan("id > 3 and (ratio < 10 or id > 290)").select("id", "_pos"))
    expected = [(number, number % 100) for number in live if 3 < number < 20 or number > 290]
    assert sorted(zip(*some.to_pydict().values(), strict=True)) == expected
    none = engine(table.scan("id > 1000"))
    assert (none.column_names, len(none)) == (["id", "part", "ratio"], 0)
    few = engine(table.scan().limit(120)).column("id").to_pylist()
    assert len(few) == len({*few}) == 120
    assert {*few} <= {*live}
    flagged = engine(table.scan("id < 10").select("id", "_deleted")).to_pydict()
    assert dict(zip(flagged["id"], flagged["_deleted"], strict=True)) == {n: n not in live for n in range(10)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # their own
@pytest.mark.parametrize("name", ENGINES, ids=lambda name: name or "reader")
def test_an_engine_gets_the_live_rows(name: str, table: sm.Table) -> None:
    pytest.importorskip(name or "pyarrow", reason=f"needs {name}: pip install {name}")
    try:
        check(ENGINES[name], table)
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()


@pytest.mark.parametrize("version", [3])
def test_a_reader_of_files_that_spark_plans(table: sm.Table, by_spark: None) -> None:
    ids = table.scan().to_arrow_batch_reader().read_all().column("id").to_pylist()
    assert sorted(ids) == [number for number in range(300) if number not in DELETED[3]]


def test_a_reader_opens_a_file_when_it_is_due(rows: RowTable, spark: SparkSession) -> None:
    """A stream of any length keeps at most one batch in memory."""
    files = [rows.data(f"{n}.parquet", numbered(n * 10, n * 10 + 10), **PART) for n in range(200)]
    table = rows.add(0, 0, *files).load(spark)
    reader = table.scan().to_arrow_batch_reader()
    Path(rows.path("150.parquet")).unlink()
    for number in range(150):
        assert reader.read_next_batch().column(0)[0].as_py() == number * 10
    with pytest.raises(sm.NotFoundError, match=r"150\.parquet"):
        reader.read_next_batch()
    assert table.scan().limit(15).to_arrow_batch_reader().read_all().num_rows == 15


def test_a_task_of_daft_reads_only_what_it_needs(table: sm.Table) -> None:
    pytest.importorskip("daft", reason="needs daft: pip install daft")
    frame = table.scan("id >= 100").to_daft()
    assert frame.count_rows() == table.scan("id >= 100").count()
    ratios = [number / 2 for number in range(100, 104) if number not in DELETED[table.format_version]]
    assert frame.select("ratio").where(frame["ratio"] < 52).to_pydict() == {"ratio": ratios}
    assert table.scan("id < 10").select("id", "_deleted").to_daft().select("id").count_rows() == 10


@pytest.mark.parametrize("version", [2])
def test_what_is_refused(table: sm.Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with configured(spark, {"spark.sparkmeta.executor-reads": "spark"}):
        scan = sm.load_table(table.metadata_location, spark=spark).scan()
        with pytest.raises(sm.UnsupportedError, match="only Spark's own sources open files in this session"):
            scan.to_arrow_batch_reader()
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        scan = sm.load_table(table.metadata_location, spark=spark).scan()
        with pytest.raises(sm.UnsupportedError, match=r"the driver does not open files in this session.*: use to_df"):
            scan.to_arrow_batch_reader()
    monkeypatch.setitem(sys.modules, "duckdb", SimpleNamespace(__version__="1.4.4"))
    with pytest.raises(sm.UnsupportedError, match=r"to_duckdb needs duckdb 1\.5 or newer: this is 1\.4\.4"):
        table.scan().to_duckdb("t")
    monkeypatch.setitem(sys.modules, "daft", SimpleNamespace(__version__="0.6.14"))
    with pytest.raises(sm.UnsupportedError, match=r"to_daft needs daft 0\.7 or newer: this is 0\.6\.14"):
        table.scan().to_daft()
    for name in ("duckdb", "daft", "ray"):
        monkeypatch.setitem(sys.modules, name, None)
        arguments = ("t",) if name == "duckdb" else ()
        with pytest.raises(sm.UnsupportedError, match=f"to_{name} needs {name}: pip install {name}"):
            getattr(table.scan(), f"to_{name}")(*arguments)
