"""Write the tables of Iceberg's PlanningBenchmark with Iceberg's Java library. They are kept in build/bench."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyspark

from sparkmeta.java import java_home
from tests.conftest import iceberg_jar

ROOT = Path(__file__).parents[2]
BUILD = (ROOT / "build" / "bench").resolve()
JAVA = Path(__file__).parent / "java"
CLASSES = BUILD / "classes"

PARTITIONS = 30
FILES_PER_PARTITION = 50_000
POSITION_DELETES_PER_PARTITION = 50
_MANIFEST_BYTES = 11 << 20

Deletes = Literal["none", "partition", "dv"]


@dataclass(frozen=True)
class Query:
    """A filter in pyiceberg's syntax and as Iceberg's expression JSON."""

    name: str
    row_filter: str
    expression: str


_MIN_MAX = ("ss_sold_date_sk = 5", '{"type": "eq", "term": "ss_sold_date_sk", "value": 5}')
_PARTITION = ("ss_ticket_number = 10", '{"type": "eq", "term": "ss_ticket_number", "value": 10}')

QUERIES = (
    Query("no filter", "true", "true"),
    Query("min/max", *_MIN_MAX),
    Query("one partition", *_PARTITION),
    Query(
        "partition, min/max",
        f"{_PARTITION[0]} and {_MIN_MAX[0]}",
        f'{{"type": "and", "left": {_PARTITION[1]}, "right": {_MIN_MAX[1]}}}',
    ),
)

NEEDLE = QUERIES[3].row_filter
"""Selects one file of one partition."""


@dataclass(frozen=True)
class Workload:
    """A generated table. `scale` 1 is 50,000 data files a partition, and one more: 1.5 million."""

    format_version: int
    deletes: Deletes
    scale: float
    partitions: int = PARTITIONS

    @property
    def name(self) -> str:
        what = {"none": "no deletes", "partition": "50 position deletes a partition", "dv": "a DV per file"}
        return f"v{self.format_version}, {what[self.deletes]}"

    @property
    def files_per_partition(self) -> int:
        return round(FILES_PER_PARTITION * self.scale)

    @property
    def files(self) -> int:
        return self.partitions * (self.files_per_partition + 1)

    def expected(self, query: Query) -> tuple[int, int]:
        """Return the number of data files of a plan, and the number of their deletes.

        One file of each partition matches the min/max filter. It has no DV.
        """
        partitions = 1 if "ss_ticket_number" in query.row_filter else self.partitions
        others = 0 if "ss_sold_date_sk" in query.row_filter else partitions * self.files_per_partition
        files = partitions + others
        return files, {"none": 0, "partition": files * POSITION_DELETES_PER_PARTITION, "dv": others}[self.deletes]


WORKLOADS: tuple[tuple[int, Deletes], ...] = ((2, "none"), (2, "partition"), (3, "none"), (3, "dv"))
SMALL = (
    (Workload(3, "none", 0, 1), QUERIES[:2]),
    (Workload(3, "none", 4 / FILES_PER_PARTITION, 20), (QUERIES[0], QUERIES[3])),
    (Workload(3, "none", 249 / FILES_PER_PARTITION, 20), (QUERIES[0], QUERIES[3])),
)
"""Tables of 1, 100 and 5,000 files; without a filter, and with one that selects one file."""


def metadata_location(workload: Workload) -> str:
    """Return the location of the table's metadata JSON; write the table if it does not exist yet."""
    deletes = "partition" if workload.format_version == 2 else "dv"
    folder = BUILD / "tables" / f"v{workload.format_version}-{workload.files}"
    result = folder / "states.txt"
    if not result.exists():
        shape = (workload.partitions, workload.files_per_partition)
        generate(folder, result, workload.format_version, shape, deletes, _MANIFEST_BYTES)
    states = dict(line.split("=", 1) for line in result.read_text().splitlines())
    return states["plain" if workload.deletes == "none" else "deletes"]


def class_path() -> str:
    """Return the class path of the Java programs without Spark's jars: their classes and Iceberg's runtime."""
    return os.pathsep.join([str(_compiled()), str(_iceberg())])


def generate(
    folder: Path, result: Path, format_version: int, shape: tuple[int, int], deletes: Deletes, manifest_bytes: int
) -> None:
    """Write a table in a folder; see `java/PlanningWorkload.java`.

    Args:
        shape: the number of partitions, each appended by a commit of its own, and of data files in each.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    arguments = [str(format_version), f"file://{folder}/table", *map(str, shape)]
    arguments += [deletes, str(manifest_bytes)]
    # A fixed number of writer threads distributes the files to manifests in the same way on every machine.
    java = ["java", "-Xmx3g", "-Diceberg.worker.num-threads=2", "-cp", f"{class_path()}{os.pathsep}{spark_jars()}"]
    unfinished = folder / "states.unfinished"
    _run([*java, "PlanningWorkload", *arguments, str(unfinished)])
    unfinished.rename(result)


def _compiled() -> Path:
    sources = sorted(JAVA.glob("*.java"))
    classes = [CLASSES / f"{source.stem}.class" for source in sources]
    newest = max(source.stat().st_mtime for source in sources)
    if not all(path.exists() and path.stat().st_mtime >= newest for path in classes):
        CLASSES.mkdir(parents=True, exist_ok=True)
        jars = f"{_iceberg()}{os.pathsep}{spark_jars()}"
        _run(["javac", "-nowarn", "-Xlint:none", "-d", str(CLASSES), "-cp", jars, *map(str, sources)])
    return CLASSES


def _iceberg() -> Path:
    if (jar := iceberg_jar()) is None:
        raise SystemExit("no Iceberg runtime: run `make jars`, or name a jar in SPARKMETA_JARS")
    return jar


def spark_jars() -> str:
    return str(Path(pyspark.__file__).parent / "jars" / "*")


def _run(command: list[str]) -> None:
    program = java_home() / "bin" / command[0]
    if not program.exists():
        raise SystemExit(f"{program} does not exist: the benchmark compiles a Java program and needs a JDK")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stderr[-3000:]}")
