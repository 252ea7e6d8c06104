"""Spark SQL with Iceberg's Java library and sparkmeta change a table at once: no row is lost, doubled or restored.

Both commit through a REST catalog, which is safe for several writers. A change that is reported as refused has not
happened. The slice is a few steps of one format version, and SPARKMETA_SOAK=1 runs more of every version.
"""

from __future__ import annotations

import threading
import uuid
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

import sparkmeta as sm
from tests.frames import local_frame
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, QUICK
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

SHARED = "s"
STEPS = 25 if SOAK else 4
LAYOUTS = [(version, isolation) for version in (3, 2, 1) for isolation in ("serializable", "snapshot")]
RETRIES = {"commit.retry.num-retries": "20", "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "50"}
_ids = count(1)


class Engine:
    """One of the two writers: the ids of its rows, and the number of its refused changes.

    Its rows are in the shared partition and in a separate one. It deletes only rows of its own, and rewrites data files
    of both partitions.
    """

    def __init__(self, name: str, run: Callable[[str, Any], None]) -> None:
        self.name, self._run = name, run
        self.rows: set[int] = set()
        self.refused: list[str] = []
        self.errors: list[BaseException] = []

    def work(self) -> None:
        try:
            for step in range(STEPS):
                added = [next(_ids) for _ in range(6)]
                if self._done("append", added):
                    self.rows |= {*added}
                gone = sorted(self.rows)[:: 2 + step % 2]
                if self._done("delete", gone):
                    self.rows -= {*gone}
                if step % 3 == 2:
                    self._done("rewrite", None)
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.errors.append(error)

    def _done(self, operation: str, argument: Any) -> bool:
        try:
            self._run(operation, argument)
        except sm.CommitConflictError:
            self.refused.append(operation)
            return False
        except Py4JJavaError as error:
            texts = (str(error.java_exception.toString()), str(error.java_exception.getCause()))
            if not any("ValidationException" in text for text in texts):
                raise AssertionError(texts) from error
            self.refused.append(operation)
            return False
        return True


@pytest.fixture
def names(spark: SparkSession, rest_uri: str) -> Iterator[tuple[str, sm.Catalog]]:
    """Yield the name of a Spark catalog of the REST catalog, and the catalog."""
    name = f"two_{uuid.uuid4().hex[:8]}"
    values = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": rest_uri, ".cache-enabled": "false"}
    for key, value in values.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    catalog = sm.load_catalog("rest", type="rest", uri=rest_uri)
    catalog.create_namespace(f"in_{name}")
    yield name, catalog
    for key in values:
        spark.conf.unset(f"spark.sql.catalog.{name}{key}")


def by_java(spark: SparkSession, table: str) -> Callable[[str, Any], None]:
    def run(operation: str, argument: Any) -> None:
        if operation == "append":
            rows = ", ".join(f"({i}, '{SHARED if i % 2 else 'java'}')" for i in argument)
            spark.sql(f"INSERT INTO {table} VALUES {rows}")
        elif operation == "delete":
            spark.sql(f"DELETE FROM {table} WHERE id IN ({', '.join(map(str, argument))})")
        else:
            catalog, _, rest = table.partition(".")
            spark.sql(
                f"CALL {catalog}.system.rewrite_data_files(`table` => '{rest}', options => map('rewrite-all', 'true'))"
            ).collect()

    return run


def by_us(spark: SparkSession, catalog: sm.Catalog, identifier: str) -> Callable[[str, Any], None]:
    def run(operation: str, argument: Any) -> None:
        table = catalog.load_table(identifier, spark)
        if operation == "append":
            parts = [SHARED if i % 2 else "ours" for i in argument]
            frame = pa.table({"id": pa.array(argument, pa.int32()), "part": parts})
            table.append(local_frame(spark, frame))
        elif operation == "delete":
            table.delete(f"id in ({', '.join(map(str, argument))})")
        else:
            table.maintenance.rewrite_data_files(rewrite_all=True).commit()

    return run


@pytest.mark.parametrize(("version", "isolation"), LAYOUTS if SOAK else LAYOUTS[:1])
def test_two_engines_at_once(spark: SparkSession, names: tuple[str, sm.Catalog], version: int, isolation: str) -> None:
    name, catalog = names
    table = f"{name}.in_{name}.t"
    modes = MERGE_ON_READ if version > 1 else {}
    properties = QUICK | RETRIES | modes | {"write.delete.isolation-level": isolation, "format-version": str(version)}
    listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
    spark.sql(
        f"CREATE TABLE {table} (id INT, part STRING) USING iceberg PARTITIONED BY (part) TBLPROPERTIES ({listed})"
    )
    identifier = f"in_{name}.t"
    engines = [Engine("java", by_java(spark, table)), Engine("ours", by_us(spark, catalog, identifier))]
    threads = [threading.Thread(target=engine.work) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in engines:
        if engine.errors:
            raise engine.errors[0]
        assert engine.refused.count("append") == 0, "appends conflict with nothing"
    expected = sorted(engines[0].rows | engines[1].rows)
    ours = catalog.load_table(identifier, spark)
    columns = ("id", "part", *(("_row_id", "_last_updated_sequence_number") if version >= 3 else ()))
    read = ours.scan(selected_fields=columns).to_df()
    theirs = spark.sql(f"SELECT {', '.join(columns)} FROM {table}")
    assert sorted(row.id for row in theirs.collect()) == expected
    assert row_texts(read) == row_texts(theirs)
    if version >= 3:
        assert len({row["_row_id"] for row in read.collect()}) == len(expected)
    numbers = [snapshot.sequence_number for snapshot in ours.snapshots()]
    assert numbers == sorted(numbers)
    parents = [snapshot.parent_snapshot_id for snapshot in ours.snapshots()]
    assert parents == [None, *(snapshot.snapshot_id for snapshot in ours.snapshots()[:-1])], "a linear history"
