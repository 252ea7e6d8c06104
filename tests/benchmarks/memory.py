"""The driver's memory while sparkmeta plans, each table in a process of its own with a small heap.

    python -m tests.benchmarks.memory <metadata JSON> <heap, e.g. 1g>

prints one JSON object.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        relation.write.format("noop").mode("overwrite").save()
    peak, after = _heap(spark)
    return DriverMemory(plan.count(), heap, peak_resident_set() // MIB, peak // MIB, after // MIB)


def peak_resident_set() -> int:
    """The largest resident set of this process so far, in bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()) if sys.platform == "linux" else None
    return int(match.group(1)) * 1024 if match else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _heap(spark: SparkSession) -> tuple[int, int]:
    jvm: Any = spark._jvm
    factory = jvm.java.lang.management.ManagementFactory
    pools = [pool for pool in factory.getMemoryPoolMXBeans() if pool.getType().name() == "HEAP"]
    peak = sum(pool.getPeakUsage().getUsed() for pool in pools)
    jvm.System.gc()
    return peak, factory.getMemoryMXBean().getHeapMemoryUsage().getUsed()


def main(location: str, heap: str) -> None:
    from tests.benchmarks.session import bench_session

    spark = bench_session(heap)
    sys.stdout.write("\n" + json.dumps(asdict(measure(spark, location, heap))) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
