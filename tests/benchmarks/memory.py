"""Measure the driver's memory while sparkmeta plans a table in a new process with a small heap.

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
    """Memory of the driver in MiB.

    Attributes:
        python_rss: Peak resident set of the driver's Python process.
        jvm_peak: Peak of the JVM's heap. In local mode driver and executors share the heap, so this is an upper bound.
        jvm_after_gc: The JVM's heap after a garbage collection.
    """

    files: int
    heap: str
    python_rss: int
    jvm_peak: int
    jvm_after_gc: int


def measure_in_new_process(location: str, heap: str) -> DriverMemory:
    """Plan and list the files of a table in a new process with `-Xmx<heap>`."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", location, heap]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    if done.returncode:
        raise RuntimeError(f"planning {location} with a heap of {heap} failed:\n{done.stderr[-3000:]}")
    return DriverMemory(**json.loads(done.stdout.splitlines()[-1]))


def measure(spark: SparkSession, location: str, heap: str) -> DriverMemory:
    """Plan and list the files of a table in this process."""
    import sparkmeta as sm

    table = sm.load_table(location, spark=spark)
    plan, files = table.scan().plan_files(), table.inspect.files()
    for relation in (plan, files):
        consume(relation)
    peak, after = heap_use(spark)
    return DriverMemory(plan.count(), heap, peak_resident_set() // MIB, peak // MIB, after // MIB)


def peak_resident_set() -> int:
    """Return the peak resident set of this process in bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()) if sys.platform == "linux" else None
    return int(match.group(1)) * 1024 if match else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def heap_use(spark: SparkSession) -> tuple[int, int]:
    """Return the peak of the JVM's heap and its use after a garbage collection, in bytes."""
    jvm: Any = spark._jvm
    factory = jvm.java.lang.management.ManagementFactory
    pools = [pool for pool in factory.getMemoryPoolMXBeans() if pool.getType().name() == "HEAP"]
    peak = sum(pool.getPeakUsage().getUsed() for pool in pools)
    jvm.System.gc()
    return peak, factory.getMemoryMXBean().getHeapMemoryUsage().getUsed()


@dataclass
class Workers:
    """A context manager that samples the memory of Spark's Python workers every 50 ms (on Linux only).

    Attributes:
        largest: Peak resident set of a single worker, in bytes.
        together: Peak of the sum over all workers, in bytes.
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
            sizes = [_resident(process) for process in Path("/proc").glob("[0-9]*")]
            self.largest = max([self.largest, *sizes])
            self.together = max(self.together, sum(sizes))


def _resident(process: Path) -> int:
    """Return the resident set of a Python worker in bytes, 0 for other processes."""
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
