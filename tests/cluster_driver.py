"""A driver that changes and maintains tables on a cluster, and may be killed: `python cluster_driver.py seed`.

It goes on until there is a file `stop`. With `end` instead of a seed, it deletes the orphans of all tables and lists
them in `orphans.json`. `driver.json` has the session's configuration and the catalog's properties. It is copied to a
folder of the driver's own, as an application is, and imports nothing from the other tests.

Each table has a model: its rows before a change and, while the outcome is unknown, those after it.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.fleet.jobs import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

Rows = dict[int, int]

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()), NestedField(3, "n", LongType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
TABLES = {"db.v2": 2, "db.v3": 3, "db.v4": 4}
STREAMED = "db.streamed"
ROWS, MOST_ROWS, BATCH = 2000, 10_000, 500
JOBS: dict[str, dict[str, Any]] = {
    "rewrite_data_files": {"rewrite_all": True},
    "rewrite_position_delete_files": {"rewrite_all": True},
    "rewrite_manifests": {},
    "compact_manifests": {"min_masked_ratio": 0.02, "min_leaf_ratio": 1.0},
    "expire_snapshots": {"retain_last": 2},
    "remove_orphan_files": {"force": True},
}
CHANGES = ("append", "delete", "update", "upsert")
# What an error says if a job has failed because its processes were killed or starved.
LOST = re.compile(
    r"ExecutorLostFailure|exited unexpectedly|crashed|MemoryError|Cannot allocate memory|malloc|out of ?memory|"
    r"can't start new thread|FetchFailed|Connection reset|EOFException|Checkpoint block \S+ not found",
    re.IGNORECASE,
)
ATTEMPTS = 20


class Model:
    """The rows that a table must have, in a file."""

    def __init__(self, name: str) -> None:
        self.path = Path(f"{name}.json")
        if not self.path.exists():
            self._write({}, None)
        text = json.loads(self.path.read_text())
        self.rows: Rows = dict(text["before"])
        self.after: Rows | None = text["after"] and dict(text["after"])

    def begin(self, after: Rows) -> None:
        self._write(self.rows, after)
        self.after = after

    def settle(self, rows: Rows) -> None:
        """Take the rows of the table as the outcome of the change, if there is one."""
        assert rows in (self.rows, self.after), differences(rows, self.rows, self.after)
        self._write(rows, None)
        self.rows, self.after = rows, None

    def _write(self, before: Rows, after: Rows | None) -> None:
        text = {"before": [*before.items()], "after": after and [*after.items()]}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(text))
        new.replace(self.path)


def differences(rows: Rows, *models: Rows | None) -> str:
    """Return how rows differ from models, in short."""
    sides = [sorted({*rows.items()} ^ {*(model or {}).items()}) for model in models]
    return "; ".join(f"{len(side)} rows differ: {side[:10]}" for side in sides)


class Driver:
    """The tables, in a session of the cluster."""

    def __init__(self, seed: str) -> None:
        settings = json.loads(Path("driver.json").read_text())
        self.chance = random.Random(seed)
        # In half of the lives, tasks decode all manifests. In half of them, executors have little memory.
        conf = settings["spark"] | {
            "spark.executor.memory": self.chance.choice(["512m", "1g"]),
            "spark.sparkmeta.driver-manifest-bytes": self.chance.choice(["0", "64m"]),
        }
        self.spark = SparkSession.builder.config(map=conf).getOrCreate()
        sm.register(self.spark)
        places = self.spark.range(4).repartition(4).mapInArrow(package_places, "place STRING").toArrow()
        note("place", *{*places["place"].to_pylist()})
        self.properties: dict[str, str] = settings["catalog"]
        self.catalog = sm.load_catalog("cluster", **self.properties)
        self.catalog.create_namespace_if_not_exists("db")
        for name, version in {**TABLES, STREAMED: 4}.items():
            modes = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}
            if not self.catalog.table_exists(name):
                self.catalog.create_table(name, SCHEMA, SPEC, format_version=version, properties=modes)
        self.models = {name: Model(name) for name in TABLES}
        self.batches = 0

    def table(self, name: str) -> sm.Table:
        return self.catalog.load_table(name, self.spark)

    def frame(self, start: int, stop: int, n: int) -> DataFrame:
        return self.spark.range(start, stop, 1, 4).selectExpr("id", "concat('p', id % 3) part", f"{n}L n")

    def step(self) -> None:
        """Change or maintain a table, and check it; or stream into one."""
        kind = self.chance.choice([*CHANGES, *CHANGES, *JOBS, "stream"])
        if kind == "stream":
            self.stream()
            return
        name = self.chance.choice([*TABLES])
        model, table = self.models[name], self.table(name)
        if not model.rows:
            kind = "append"
        if kind in JOBS:
            if not BY_NAME[kind].suits(table, JOBS[kind]):
                return
            times = {"older_than": soon()} if kind in ("expire_snapshots", "remove_orphan_files") else {}
            after, act = model.rows, getattr(table.maintenance, kind)(**JOBS[kind], **times).commit
        else:
            after, act = self.change(kind, table, model.rows)
        model.begin(after)
        done = self.does(f"{kind} {name}", act)
        self.check(name)
        assert not done or model.rows == after, f"{kind} {name}: {differences(model.rows, after)}"

    def change(self, kind: str, table: sm.Table, rows: Rows) -> tuple[Rows, Callable[[], object]]:
        """Return the rows after a change, and the change."""
        new, n = max(rows, default=-1) + 1, self.chance.randrange(1_000_000)
        start = self.chance.randrange(new + 1)
        stop = start + self.chance.randrange(1, ROWS)
        if len(rows) > MOST_ROWS:
            kind, start, stop = "delete", 0, new // 2
        where = f"id >= {start} and id < {stop}"
        if kind == "delete":
            return {i: m for i, m in rows.items() if not start <= i < stop}, lambda: table.delete(where)
        if kind == "append":
            frame = self.frame(new, new + ROWS, n)
            return rows | dict.fromkeys(range(new, new + ROWS), n), lambda: table.append(frame)
        if kind == "update":
            after = {i: n if start <= i < stop else m for i, m in rows.items()}
            return after, lambda: table.update({"n": F.lit(n).cast("bigint")}, where)
        frame = self.frame(start, stop, n)
        return rows | dict.fromkeys(range(start, stop), n), lambda: table.upsert(frame, ["id"])

    def stream(self) -> None:
        """Write one more batch, or two after an interrupted one."""
        source = self.spark.readStream.format("rate-micro-batch").options(rowsPerBatch=BATCH, numPartitions=4)
        rows = source.load().selectExpr("value id", "concat('p', value % 3) part", "0L n")
        options = {f"property.{key}": value for key, value in self.properties.items()}
        options |= {"catalog": "cluster", "checkpointLocation": Path("checkpoint").resolve().as_uri()}
        sink = rows.writeStream.format("sparkmeta").options(**options).trigger(availableNow=True)
        done = self.does("stream", lambda: sink.start(STREAMED).awaitTermination())
        batches, rest = divmod(len(self.rows_of(STREAMED)), BATCH)
        assert not rest
        assert self.batches + done <= batches
        self.batches = batches

    def does(self, name: str, act: Callable[[], object]) -> bool:
        """Return whether something is done; False if it fails because of lost processes."""
        began, outcome = time.monotonic(), "done"
        note("begun", name)
        try:
            act()
        except Exception as error:
            if not LOST.search(str(error)):
                raise
            traceback.print_exc()
            outcome = "lost"
        note(outcome, name, f"{time.monotonic() - began:.1f} s")
        return outcome == "done"

    def check(self, name: str) -> None:
        """Compare the rows of a table with its model, and its files with its plan."""
        self.models[name].settle(self.rows_of(name))
        if self.chance.random() < 0.5:
            return
        limit = self.chance.randrange(MOST_ROWS)
        counted = self.tried(lambda: self.table(name).scan(f"id < {limit}").count())
        assert counted == sum(i < limit for i in self.models[name].rows), (name, limit, counted)
        planned = self.tried(lambda: self.table(name).scan().plan_files().select("file_path").toArrow())
        listed = self.tried(lambda: self.table(name).inspect.data_files().select("file_path").toArrow())
        assert sorted(planned["file_path"].to_pylist()) == sorted(listed["file_path"].to_pylist()), name

    def rows_of(self, name: str) -> Rows:
        read = self.tried(lambda: self.table(name).scan().to_df().select("id", "n").toArrow())
        rows = dict(zip(read["id"].to_pylist(), read["n"].to_pylist(), strict=True))
        assert len(rows) == read.num_rows, f"{name}: {read.num_rows} rows have {len(rows)} ids"
        if name == STREAMED:
            assert rows == dict.fromkeys(range(len(rows)), 0)
        return rows

    def tried(self, read: Callable[[], Any]) -> Any:
        results: list[Any] = []
        for _ in range(ATTEMPTS):
            if self.does("read", lambda: results.append(read())):
                return results[-1]
        raise AssertionError(f"a read has failed {ATTEMPTS} times")

    def recover(self) -> None:
        """Check all rows, and the metadata of the table whose change a killed driver may have committed."""
        interrupted = [name for name, model in self.models.items() if model.after is not None]
        for name in TABLES:
            self.check(name)
        self.batches = len(self.rows_of(STREAMED)) // BATCH
        self.check_metadata(*interrupted)

    def check_metadata(self, *names: str) -> None:
        for name in names:
            violations = self.tried(lambda name=name: self.table(name).check().collect())
            assert not violations, (name, violations)

    def end(self) -> None:
        """Check the metadata of all tables, and delete their orphans."""
        self.check_metadata(*TABLES, STREAMED)
        orphans: list[str] = []
        for name in (*TABLES, STREAMED):
            plan = self.table(name).maintenance.remove_orphan_files(older_than=soon(), force=True)
            orphans += plan.to_df().select("file_path").toArrow()["file_path"].to_pylist()
            plan.commit()
        Path("orphans.json").write_text(json.dumps(orphans))
        self.recover()


def note(*words: str) -> None:
    with Path("steps").open("a") as steps:
        steps.write(" ".join(words) + "\n")


def package_places(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield where tasks have the package."""
    for _ in batches:
        yield pa.record_batch({"place": [str(Path(sm.__file__).resolve())]})


def soon() -> int:
    return int(time.time() * 1000) + 3_600_000


def main(seed: str) -> None:
    driver = Driver(seed)
    driver.recover()
    if seed == "end":
        driver.end()
    while seed != "end" and not Path("stop").exists():
        driver.step()
    driver.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
