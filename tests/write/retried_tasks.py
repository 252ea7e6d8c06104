"""A process whose Spark starts tasks twice: `python -m tests.write.retried_tasks master folder fails|hangs`.

It changes rows of a table, while an attempt of a task fails, or hangs once it has begun its file. Spark then starts
another attempt; for a task that hangs, by speculation on another host. The process prints the ids of the rows, the
files that the table does not name, and the orphans.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta import local_session
from sparkmeta.storage.files import LocalFiles
from tests.faults import Fault, FaultyFiles, FaultyWriter, Kind, tasks_use, through
from tests.frames import local_frame
from tests.maintain.test_expire import planned_paths, soon
from tests.write.list_files import unreached_files
from tests.write.test_changes import BY_PART, MODES, SCHEMA

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "1s",
    # For a job with no more tasks than cores.
    "spark.speculation.task.duration.threshold": "5s",
    "spark.executor.memory": "512m",
}
HANGING_SECONDS = 120


@dataclass(frozen=True)
class HangingWriter(FaultyWriter):
    """A writer that hangs where `FaultyWriter` fails."""

    def _do(self, name: str, location: str, act: Callable[[], Any]) -> Any:
        try:
            return super()._do(name, location, act)
        except OSError as error:
            if "injected" not in str(error):
                raise
            time.sleep(HANGING_SECONDS)
            raise


def main(master: str, folder: Path, kind: str) -> None:
    config = {"spark.master": master, "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    config |= SPECULATION if kind == "hangs" else {}
    spark = local_session("retried tasks", cores=2, memory="1g", config=config)
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=f"{folder}/warehouse")
    catalog.create_namespace("db")
    properties = {f"write.{command}.mode": MODES[1] for command in ("delete", "update", "merge")}
    table: Any = catalog.create_table("db.t", SCHEMA, BY_PART, format_version=3, properties=properties, spark=spark)

    def frame(ids: range) -> Any:
        parts = pa.array("abcd"[number % 4] for number in ids)
        rows = pa.table({"id": pa.array(ids, pa.int64()), "part": parts, "n": pa.array([0] * len(ids), pa.int32())})
        return local_frame(spark, rows).repartition(4, "id")

    noted = {}
    changes: dict[str, Any] = {
        "append": lambda table: table.append(frame(range(40))),
        "update": lambda table: table.update({"n": F.lit(1)}, "id < 20"),
        "upsert": lambda table: table.upsert(frame(range(30, 50)), ["id"]),
    }
    for name, change in changes.items():
        notes = folder / name
        notes.mkdir()
        fault = Fault(1, Kind.ANSWER_LOST, "any")
        writer = (HangingWriter if kind == "hangs" else FaultyWriter)(folder=str(notes), fault=fault)
        began = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            tasks_use(patch, writer)
            change(through(table, FaultyFiles(LocalFiles())))
        assert time.monotonic() - began < HANGING_SECONDS, "Spark waited for the task that hangs"
        table = table.refresh()
        noted[name] = sorted(path.name for path in notes.iterdir())
    read = [tuple(row) for row in table.scan().to_df().select("id", "n").collect()]
    left = unreached_files(table)
    orphans = planned_paths(table.maintenance.remove_orphan_files(older_than=soon(), force=True).to_df())
    print(json.dumps({"rows": sorted(read), "left": sorted(left), "orphans": sorted(orphans), "notes": noted}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
