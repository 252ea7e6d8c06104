"""`python -m tests.benchmarks.stores`: plans of a table of 1,020 Avro manifests on a store, beside Iceberg's Java.

Counts the requests of each plan, and measures its time, with and without a delay added to each request. Contenders take
turns. The store is a process of its own, `file_store`.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
import warnings
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import fastavro
from rich.console import Console
from rich.table import Table as Printed

from tests.benchmarks.contenders import IcebergJava, Sparkmeta, Totals
from tests.benchmarks.file_store import BUCKET, file_store
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import timed
from tests.benchmarks.workload import BUILD, PARTITIONS, QUERIES, generate
from tests.conftest import s3a_jars

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from tests.benchmarks.contenders import Contender
    from tests.benchmarks.file_store import FileStore

# Iceberg ends a manifest after a multiple of 250 entries.
FILES_PER_MANIFEST, MANIFESTS_PER_PARTITION = 250, 34
MEASURED = (QUERIES[0], QUERIES[2])
_KEYS = {"access-key-id": "bench", "secret-access-key": "bench-secret"}


class SparkmetaOnStore(Sparkmeta):
    """sparkmeta on a table of a SQL catalog, through a FileIO. Each plan opens the table."""

    def __init__(self, spark: SparkSession, store: FileStore, client: str, folder: Path) -> None:
        super().__init__(spark)
        self.name = f"sparkmeta, {client}"
        implementation = {"s3fs": "fsspec.FsspecFileIO", "pyarrow": "pyarrow.PyArrowFileIO"}[client]
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/{client}.db",
            "warehouse": f"s3://{BUCKET}",
            "py-io-impl": f"pyiceberg.io.{implementation}",
            "s3.endpoint": store.url,
            "s3.region": "us-east-1",
        } | {f"s3.{name}": value for name, value in _KEYS.items()}
        self.catalog: Any = None

    def _table(self, location: str) -> Any:
        import sparkmeta as sm

        if self.catalog is None:
            self.catalog = sm.load_catalog("bench", **self.properties)
            self.catalog.create_namespace("db")
            self.catalog.register_table("db.t", location, self.spark)
        return self.catalog.load_table("db.t", self.spark)


class IcebergJavaOnStore(IcebergJava):
    """Iceberg's local planner, with a FileIO of Java's. Each plan opens the table."""

    def __init__(self, spark: SparkSession, name: str, implementation: str, properties: Mapping[str, str]) -> None:
        super().__init__(spark)
        self.name = f"Iceberg Java, {name}"
        self.arguments = implementation, dict(properties), self.spark._jsparkSession.sessionState().newHadoopConf()

    def _open(self, location: str) -> Any:
        return self.jvm.IcebergPlanner(location, *self.arguments)


@click.command()
@click.option("--delay", default=0.03, help="Seconds that are added to each request.")
@click.option("--repeats", default=3, help="Measured runs of each plan; the median counts.")
@click.option("--heap", default="2g", help="Of the JVM.")
def main(delay: float, repeats: int, heap: str) -> None:
    """Compare requests and times of plans on a store."""
    if (jars := s3a_jars()) is None:
        raise SystemExit("no Hadoop client of S3 for this Spark: run `make s3a`")
    location = table_on_store()
    with file_store(BUILD / "stores") as store, tempfile.TemporaryDirectory() as folder:
        spark = bench_session(heap, [f"{jars}/*"])
        warnings.simplefilter("ignore")
        rows = [*_measured(spark, store, Path(folder), location, (0.0, delay), repeats)]
    printed = Printed("plan", "added to a request", "planner", "requests", "seconds", "runs")
    for row in rows:
        printed.add_row(*map(str, row))
    Console(width=None if sys.stdout.isatty() else 150).print(printed)
    (BUILD / "stores.json").write_text(json.dumps(rows))


def _measured(
    spark: SparkSession, store: FileStore, folder: Path, location: str, delays: tuple[float, ...], repeats: int
) -> Iterator[tuple[str, float, str, int, float, list[float]]]:
    planners = contenders(spark, store, folder)
    for query, delay in product(MEASURED, delays):
        totals, requests, seconds = {}, {}, {}
        store.delay(0)
        for planner in planners:
            # A table that Java has opened stays in no cache, but its connections do.
            totals[planner.name] = Totals(*planner.totals(location, query))
            planner.plan(location, query)
            seconds[planner.name] = list[float]()
        if len({*totals.values()}) > 1:
            raise SystemExit(f"{query.name}: {totals}")
        store.delay(delay)
        for _ in range(repeats):
            for planner in planners:
                spark._jvm.System.gc()
                store.count_requests()
                seconds[planner.name].append(round(timed(partial(planner.plan, location, query)), 3))
                requests[planner.name] = store.count_requests()
        store.delay(0)
        for name, runs in seconds.items():
            yield query.name, delay, name, requests[name], statistics.median(runs), runs


def contenders(spark: SparkSession, store: FileStore, folder: Path) -> list[Contender]:
    """Return the planners that are compared."""
    s3a = {
        "fs.s3a.endpoint": store.url,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.access.key": _KEYS["access-key-id"],
        "fs.s3a.secret.key": _KEYS["secret-access-key"],
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }
    for name, value in s3a.items():
        spark.conf.set(name, value)
    s3 = {"s3.endpoint": store.url, "s3.path-style-access": "true", "client.region": "us-east-1"}
    # The default factory needs the SDK's parts for KMS, Glue and DynamoDB as well.
    s3 |= {
        "s3.client-factory-impl": "org.apache.iceberg.aws.s3.DefaultS3FileIOAwsClientFactory",
        "http-client.type": "urlconnection",
    }
    s3 |= {f"s3.{name}": value for name, value in _KEYS.items()}
    return [
        SparkmetaOnStore(spark, store, "s3fs", folder),
        SparkmetaOnStore(spark, store, "pyarrow", folder),
        IcebergJavaOnStore(spark, "S3FileIO", "org.apache.iceberg.aws.s3.S3FileIO", s3),
        IcebergJavaOnStore(spark, "HadoopFileIO with s3a", "org.apache.iceberg.hadoop.HadoopFileIO", {}),
    ]


def table_on_store() -> str:
    """Return the location of the table's metadata JSON on the store; write the table if it does not exist yet."""
    folder = BUILD / "stores"
    result = folder / "states.txt"
    if not result.exists():
        generate(folder, result, 2, (PARTITIONS, MANIFESTS_PER_PARTITION * FILES_PER_MANIFEST - 1), "none", 1)
        _move(folder / "table" / "metadata", f"file:{folder}", f"s3://{BUCKET}")
    uri = result.read_text().splitlines()[0].partition("=")[2]
    return f"s3://{BUCKET}/table/metadata/{Path(uri).name}"


def _move(metadata: Path, before: str, after: str) -> None:
    """Let the newest metadata file and its manifest list name files by another prefix, and remove older ones."""
    versions = sorted(metadata.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].partition(".")[0]))
    table = json.loads(versions[-1].read_text())
    snapshot = table["snapshots"][-1]
    (metadata / Path(snapshot["manifest-list"]).name).write_bytes(
        _renamed(metadata / Path(snapshot["manifest-list"]).name, before, after)
    )
    table["snapshots"], table["metadata-log"] = [snapshot], []
    versions[-1].write_text(json.dumps(table).replace(f"file://{before[5:]}", after).replace(before, after))
    for path in versions[:-1]:
        path.unlink()


def _renamed(path: Path, before: str, after: str) -> bytes:
    with path.open("rb") as stream:
        reader = fastavro.reader(stream)
        schema, lists = reader.writer_schema, [*reader]
        known = {name: value for name, value in reader.metadata.items() if not name.startswith("avro.")}
    for manifest in lists:
        manifest["manifest_path"] = manifest["manifest_path"].replace("file://", "file:").replace(before, after)
    out = io.BytesIO()
    assert schema is not None
    fastavro.writer(out, schema, lists, metadata=known)
    return out.getvalue()


if __name__ == "__main__":
    main()
