"""Many clients at a time: every answer is right, and memory does not grow."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.handmade import HandmadeTable, data
from tests.service.serving import Client, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS, BATCH = 50, 60
FILES = 60
# How long the soak lasts, and how much more memory the service may have at its end.
SECONDS, GROWTH = 600, 64 << 20
# Spark keeps its last executions, so that what it has in memory is settled after so many plans.
SETTLED = 1_500


def test_many_clients(spark: SparkSession, tmp_path: Path, soak: bool, record_testsuite_property):
    """Mixed filters, of plans by the driver and by tasks, plans that are kept and plans that are not."""
    table = HandmadeTable(tmp_path / "t", summaries=True)
    for part in range(3):
        files = (f"file:///t/{part}-{number:03}.parquet" for number in range(FILES // 3))
        table.add(0, 1, *(data(path, partition={"part": f"p{part}"}, record_count=10) for path in files))
    wanted = {"p0": 20, "p1": 20, "p2": 20, None: FILES, "none": 0}
    options: dict[str, Any] = {"driver_files": 30, "page_tasks": 7, "queued": 500, "cached_bytes": 1 << 20}
    seconds: list[float] = []
    with served({"many": table.write()}, spark, **options) as service, ThreadPoolExecutor(CLIENTS) as pool:

        def ask(number: int) -> None:
            part = list(wanted)[number % len(wanted)]
            row_filter: Any = True if part is None else {"type": "eq", "term": "part", "value": part}
            if number % 7 == 0:
                other = {"type": "lt", "term": "id", "value": number}
                row_filter = {"type": "and", "left": row_filter, "right": other}
            started = time.perf_counter()
            client = Client(service)
            document = client.plan("many", filter=row_filter).json()
            first = [task["data-file"]["file-path"] for task in document.get("file-scan-tasks", [])]
            others = client.fetched("many", document["plan-tasks"])
            if number % 2:
                client.cancel("many", document["plan-id"])
            client.session.close()
            paths = [*first, *(task["data-file"]["file-path"] for task in others)]
            assert len(set(paths)) == len(paths) == wanted[part]
            seconds.append(time.perf_counter() - started)

        begin, settled, number = time.monotonic(), (0, 0), 0
        while number == 0 or (soak and time.monotonic() - begin < SECONDS):
            list(pool.map(ask, range(number, number + BATCH)))
            number += BATCH
            if settled == (0, 0) and number >= SETTLED:
                settled = memory(spark)
        if soak:
            ended, cuts = memory(spark), statistics.quantiles(seconds, n=100)
            figures = {"requests": number, "p50": cuts[49], "p99": cuts[98], "settled": settled, "ended": ended}
            record_testsuite_property("load", figures)
            assert settled != (0, 0)
            assert all(after - before < GROWTH for before, after in zip(settled, ended, strict=True))


def memory(spark: SparkSession) -> tuple[int, int]:
    """Bytes of this process, and of the JVM's live objects."""
    gc.collect()
    runtime = spark._jvm.Runtime.getRuntime()  # type: ignore[union-attr]
    for _ in range(3):
        runtime.gc()
        time.sleep(1)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize(), runtime.totalMemory() - runtime.freeMemory()
