"""`python -m tests.benchmarks.rows`: rows read by sparkmeta and by Iceberg's Spark runtime, in one session, in turns.

Tables of 11 columns, written by Iceberg's runtime and kept in build/bench/rows. Those of 100 files in 10 partitions are
without deletes; with 5 % of the rows deleted by deletion vectors, and by position delete files of both granularities;
with equality deletes of 10,000 keys; and after renames, promotions and columns dropped and added. Each run opens, plans
and reads the table. Another table has 100,000 files of 20 rows, which are planned and handed over to tasks that do not
run. Before the first run both must give the same sums, or counts. Prints Iceberg's seconds, wall and CPU, divided by
ours, and writes build/bench/rows-<time>.json.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as F
from rich.console import Console

import sparkmeta as sm
from sparkmeta import local_session
from tests.benchmarks.report import write_runs
from tests.benchmarks.timing import consume
from tests.benchmarks.workload import BUILD, class_path
from tests.conftest import ICEBERG, iceberg_catalog
from tests.peers.java import Java
from tests.peers.workshop import MERGE_ON_READ, Workshop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

ROWS = 20_000_000
PARTITIONS = 10
LOADS = 10
KEYS = 10_000
ROWS_PER_SMALL_FILE = 20
COLUMNS = {
    "id": ("BIGINT", "id"),
    "grp": ("INT", f"CAST(pmod(xxhash64(id, 1), {PARTITIONS}) AS INT)"),
    "ts": ("TIMESTAMP", "timestamp_seconds(1700000000 + id div 10)"),
    "amt": ("DECIMAL(12, 2)", "CAST(pmod(xxhash64(id, 2), 100000000) / 100 AS DECIMAL(12, 2))"),
    "d": ("DOUBLE", "IF(id % 101 = 0, NULL, pmod(xxhash64(id, 3), 1000000007) / 97.0D)"),
    "n": ("INT", "CAST(pmod(xxhash64(id, 4), 100000) AS INT)"),
    "name": ("STRING", "concat('name-', pmod(xxhash64(id, 5), 5000))"),
    "note": ("STRING", "concat(substr(md5(CAST(id AS STRING)), 1, 12), ' note')"),
    "flag": ("BOOLEAN", "id % 3 = 0"),
    "day": ("DATE", "date_add(date'2020-01-01', CAST(id div 20000 AS INT))"),
    "f": ("FLOAT", "CAST(pmod(xxhash64(id, 6), 1000) / 7 AS FLOAT)"),
}
DELETED = "pmod(xxhash64(id, 77), 20) = 0"

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Measured:
    """Seconds of one query on one table, by run."""

    table: str
    query: str
    rows: int
    contender: str
    wall: list[float]
    cpu: list[float]


# -- tables -----------------------------------------------------------------------------------------------------------


def make_table(shop: Workshop, kind: str, rows: int) -> None:
    """Create one of the tables; those with deletes have the data files of the one without."""
    if kind == SMALL_FILES:
        make_small_files(shop, rows // 10)
        return
    version = 3 if kind in ("no deletes", "deletion vectors", "evolved") else 2
    granularity = {"write.delete.granularity": "partition" if kind.startswith("positions of partitions") else "file"}
    create(shop, "grp", version=version, properties=MERGE_ON_READ | granularity)
    if kind == "no deletes":
        insert(shop, 0, rows, LOADS)
    elif kind == "evolved":
        insert(shop, 0, rows // 2, LOADS // 2)
        evolve(shop)
        insert(shop, rows // 2, rows, LOADS // 2)
    else:
        append_files_of(shop, table_of("no deletes", shop.java, rows))
    if kind in ("deletion vectors", "evolved") or kind.startswith("positions"):
        shop.sql(f"DELETE FROM {{t}} WHERE {DELETED}")
    if kind == "equality deletes":
        delete_keys(shop, rows)


def create(shop: Workshop, partitioned: str, *, version: int, properties: Mapping[str, str]) -> None:
    columns = ", ".join(f"{name} {kind_of}" for name, (kind_of, _) in COLUMNS.items())
    shop.create(columns, partitioned, version=version, properties=properties)


def append_files_of(shop: Workshop, other: Workshop) -> None:
    append = shop.table.newAppend()
    tasks = other.table.newScan().planFiles().iterator()
    while tasks.hasNext():
        append.appendFile(tasks.next().file())
    append.commit()


def make_small_files(shop: Workshop, rows: int) -> None:
    create(shop, "bucket(1000, id)", version=3, properties={"write.spark.fanout.enabled": "false"})
    insert(shop, 0, rows, rows // (1000 * ROWS_PER_SMALL_FILE))


def evolve(shop: Workshop) -> None:
    """Rename, promote, drop and add columns; the names of two columns are swapped."""
    for change in (
        "RENAME COLUMN name TO label", "RENAME COLUMN note TO name", "RENAME COLUMN label TO note",
        "ALTER COLUMN n TYPE BIGINT", "ALTER COLUMN f TYPE DOUBLE", "DROP COLUMN flag", "ADD COLUMN flag BOOLEAN",
    ):  # fmt: skip
        shop.sql(f"ALTER TABLE {{t}} {change}")


def insert(shop: Workshop, start: int, end: int, tasks: int) -> None:
    """Append rows; each task writes a file to each partition."""
    names = [field.name for field in shop.sql("SELECT * FROM {t}").schema]
    selected = ", ".join(COLUMNS[name][1] for name in names)
    shop.sql(f"INSERT INTO {{t}} SELECT {selected} FROM range({start}, {end}, 1, {tasks})")


def delete_keys(shop: Workshop, rows: int) -> None:
    """Delete by pairs of keys in every partition, some of them null."""
    step = rows // KEYS
    keys = shop.spark.range(0, rows, step).selectExpr(*(f"{COLUMNS[name][1]} AS {name}" for name in ("grp", "id", "d")))
    by_partition: dict[int, list[Any]] = {}
    for row in keys.collect():
        by_partition.setdefault(row.grp, []).append(row)
    shop.row_delta(
        *(
            shop.equality_delete(f"eq-{grp}.parquet", {"id": [r.id for r in of], "d": [r.d for r in of]}, [grp])
            for grp, of in by_partition.items()
        )
    )


def table_of(kind: str, java: Java, rows: int) -> Workshop:
    """Return one of the tables, made if it does not exist yet."""
    shop = Workshop(java, f"{kind.replace(' ', '_')}_{rows}", catalog_name="bench")
    if not (BUILD / "rows" / "peers" / shop.name / "complete").exists():
        shop.spark.sql(f"DROP TABLE IF EXISTS {shop.sql_name}")
        make_table(shop, kind, rows)
        (shop.folder / "complete").touch()
    return shop


SMALL_FILES = "small files"
KINDS = (
    "no deletes", "deletion vectors", "positions of files", "positions of partitions", "equality deletes", "evolved",
    SMALL_FILES,
)  # fmt: skip


# -- queries ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """A filter, the columns, and what is done with the rows."""

    name: str
    row_filter: str
    columns: tuple[str, ...]
    action: Callable[[DataFrame], object]

    def is_for(self, kind: str) -> bool:
        return (self.name == HAND_OVER) == (kind == SMALL_FILES)


def make_tasks(rows: DataFrame) -> object:
    """Plan a query down to its tasks, and run none."""
    return rows._jdf.queryExecution().toRdd().getNumPartitions()


HAND_OVER = "planned, handed over"
QUERIES = (
    Query("all columns", "", (), consume),
    Query("sum of one column", "", ("n",), lambda rows: rows.agg(F.sum("n")).collect()),
    Query("1 %, pushed", "n < 1000", (), consume),
    Query("count", "", (), lambda rows: rows.count()),
    Query(HAND_OVER, "", (), make_tasks),
)


def by_sparkmeta(shop: Workshop, query: Query) -> object:
    scan = sm.load_table(f"file://{shop.folder}", spark=shop.spark).scan()
    if query.row_filter:
        scan = scan.filter(query.row_filter)
    if query.name == "count":
        return scan.count()
    return query.action((scan.select(*query.columns) if query.columns else scan).to_df())


def by_iceberg(shop: Workshop, query: Query) -> object:
    rows = shop.spark.table(shop.sql_name)
    if query.row_filter:
        rows = rows.where(query.row_filter)
    return query.action(rows.select(*query.columns) if query.columns else rows)


CONTENDERS = {"Iceberg": by_iceberg, "sparkmeta": by_sparkmeta}


def require_equal_rows(shop: Workshop, kind: str) -> None:
    """Compare sums over all columns; of small files, which take minutes to read, counts."""
    sums = (F.count("*"), F.sum("id"), F.bit_xor(F.xxhash64("*")))
    scan, rows = sm.load_table(f"file://{shop.folder}", spark=shop.spark).scan(), shop.spark.table(shop.sql_name)
    if kind == SMALL_FILES:
        ours, theirs = [(scan.count(),)], [(rows.count(),)]
    else:
        ours, theirs = scan.to_df().agg(*sums).collect(), rows.agg(*sums).collect()
    if ours != theirs:
        raise AssertionError(f"{shop.name}: sparkmeta reads {ours}, Iceberg {theirs}")


# -- measuring --------------------------------------------------------------------------------------------------------


def measured_run(result: Measured, work: Callable[[], None], java: Java, *, counts: bool) -> None:
    """Add a run."""
    gc.collect()
    java.jvm.System.gc()
    cpu, start = cpu_seconds(), time.perf_counter()
    work()
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    if counts:
        result.wall.append(wall)
        result.cpu.append(cpu)


def cpu_seconds() -> float:
    """CPU time of this process and all of its descendants, the JVM and Python's workers among them."""
    stats = {int(entry.name): _stat(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    family, ticks = {os.getpid()}, 0
    while more := {pid for pid, fields in stats.items() if fields and int(fields[1]) in family} - family:
        family |= more
    for pid in family:
        ticks += sum(map(int, (stats.get(pid) or _stat(Path(f"/proc/{pid}")))[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(process: Path) -> list[str]:
    """Fields of a process from its state on; none where it has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def compare(shop: Workshop, kind: str, rows: int, rounds: int, queries: Sequence[Query]) -> list[Measured]:
    """Measure queries, each by both in turns after a run that does not count."""
    require_equal_rows(shop, kind)
    measured: list[Measured] = []
    for query in queries:
        results = [Measured(kind, query.name, rows, name, [], []) for name in CONTENDERS]
        for number in range(rounds + 1):
            for result in results:
                gc.collect()
                shop.java.jvm.System.gc()
                cpu, start = cpu_seconds(), time.perf_counter()
                CONTENDERS[result.contender](shop, query)
                wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
                if number:
                    result.wall.append(wall)
                    result.cpu.append(cpu)
        measured += results
        show(results)
    return measured


def show(results: list[Measured]) -> None:
    theirs, ours = results
    cells = [f"{ours.table:24}", f"{ours.query:20}"]
    for name in ("wall", "cpu"):
        medians = [statistics.median(getattr(result, name)) for result in (theirs, ours)]
        cells.append(f"{name} {medians[0]:6.2f} / {medians[1]:6.2f} s = {medians[0] / max(medians[1], 0.01):5.2f}x")
    console.print("  ".join(cells))


def session(heap: str) -> SparkSession:
    """A local session as users get it, with Iceberg's runtime beside it."""
    config = {
        "spark.driver.extraClassPath": class_path(),
        "spark.sql.extensions": f"{ICEBERG}.extensions.IcebergSparkSessionExtensions",
        "spark.driver.extraJavaOptions": f"-Xms{heap}",
        **{f"spark.sql.catalog.{key}": value for key, value in iceberg_catalog("bench", BUILD / "rows").items()},
    }
    spark = local_session("sparkmeta benchmarks", memory=heap, config=config)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@click.command()
@click.option("--rows", type=int, default=ROWS, show_default=True, help="Rows of each table.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Measured runs of each query.")
@click.option("--heap", default="3g", show_default=True, help="Of the one JVM, e.g. 4g.")
@click.option("--table", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this table; repeatable.")
@click.option(
    "--query", "names", multiple=True, type=click.Choice([query.name for query in QUERIES]), help="As --table."
)
def main(rows: int, rounds: int, heap: str, kinds: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Read tables with Iceberg's Spark runtime and with sparkmeta, in one run."""
    spark = session(heap)
    java = Java(spark)
    measured: list[Measured] = []
    for kind in kinds or KINDS:
        shop = table_of(kind, java, rows)
        queries = [query for query in QUERIES if query.is_for(kind) and (not names or query.name in names)]
        measured += compare(shop, kind, rows, rounds, queries)
    console.print(f"written: {write_runs(BUILD, 'rows', measured)}")


if __name__ == "__main__":
    main()
