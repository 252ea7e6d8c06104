"""The driver's memory while sparkmeta plans, each table in a process of its own with a small heap.

    python -m tests.benchmarks.memory <metadata JSON> <heap, e.g. 1g>

prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.benchmarks.timing import consume

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20


@dataclass(frozen=True)
class DriverMemory:
    """In MiB: the Python driver's largest resident set, and of the JVM's heap the peak and what was left after a GC.

    In local mode the JVM's heap is the executors' too, so its peak is an upper bound of the driver's own.
    """

    files: int
    heap: str
    python_rss: int
    jvm_peak: int
    jvm_after_gc: int


def measure_in_process_of_its_own(location: str, heap: str) -> DriverMemory:
    """Plan and list the files of a table with `-Xmx<heap>` and say what memory the driver took."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", location, heap]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    if done.returncode:
        raise RuntimeError(f"planning {location} with a heap of {heap} failed:\n{done.stderr[-3000:]}")
    return DriverMemory(**json.loads(done.stdout.splitlines()[-1]))


def measure(spark: SparkSession, location: str, heap: str) -> DriverMemory:
    """Plan and list every file of the table, then look at this process and its JVM."""
    import sparkmeta as sm

    table = sm.load_table(location, spark=spark)
    plan, files = table.scan().plan_files(), table.inspect.files()
    for relation in (plan, files):
        consume(relation)
    peak, after = heap_use(spark)
    return DriverMemory(plan.count(), heap, peak_resident_set() // MIB, peak // MIB, after // MIB)


def peak_resident_set() -> int:
    """The largest resident set of this process so far, in bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()) if sys.platform == "linux" else None
    return int(match.group(1)) * 1024 if match else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def heap_use(spark: SparkSession) -> tuple[int, int]:
    """Bytes of the JVM's heap that were in use at its peak, and those that are after a collection."""
    jvm: Any = spark._jvm
    factory = jvm.java.lang.management.ManagementFactory
    pools = [pool for pool in factory.getMemoryPoolMXBeans() if pool.getType().name() == "HEAP"]
    peak = sum(pool.getPeakUsage().getUsed() for pool in pools)
    jvm.System.gc()
    return peak, factory.getMemoryMXBean().getHeapMemoryUsage().getUsed()


@dataclass
class Workers:
    """Looks at Spark's Python workers each 50 ms while it is entered. Linux only; elsewhere all stays 0.

    largest: resident set of one worker, in bytes. together: of all at one time.
    """

    largest: int = 0
    together: int = 0

    def __enter__(self) -> Self:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            sizes = [_resident(one) for one in Path("/proc").glob("[0-9]*")]
            self.largest = max([self.largest, *sizes])
            self.together = max(self.together, sum(sizes))


def _resident(process: Path) -> int:
    """Of a Python worker, in bytes; 0 for any other process, and for one that has ended."""
    try:
        command = (process / "cmdline").read_bytes()
        pages = int((process / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") if b"pyspark.daemon" in command or b"pyspark/daemon" in command else 0


def main(location: str, heap: str) -> None:
    from tests.benchmarks.session import bench_session

    spark = bench_session(heap)
    sys.stdout.write("\n" + json.dumps(asdict(measure(spark, location, heap))) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
