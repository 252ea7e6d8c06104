"""Print measurements as tables and write them as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table as RichTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tests.benchmarks.decode import Decoding
    from tests.benchmarks.deletes import Written
    from tests.benchmarks.growth import Measured
    from tests.benchmarks.memory import DriverMemory
    from tests.benchmarks.timing import Plan

OURS = ("sparkmeta", "sparkmeta, V4 tree", "sparkmeta, Iceberg layout", "sparkmeta, manifest cache")


@dataclass
class Results:
    """All measurements of one run."""

    settings: dict[str, Any]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    plans: list[Plan] = field(default_factory=list)
    decodings: list[Decoding] = field(default_factory=list)
    growth: list[Measured] = field(default_factory=list)
    memory: list[DriverMemory] = field(default_factory=list)
    deletes: list[Written] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "started": self.started.isoformat(timespec="seconds"),
            "machine": machine(),
            "load_before": round(self.load_before, 2),
            "settings": self.settings,
            "plans": [plan.to_json() for plan in self.plans],
            "decoding": [decoding.to_json() for decoding in self.decodings],
            "growth": [asdict(measured) for measured in self.growth],
            "driver_memory": [asdict(memory) for memory in self.memory],
            "delete_of_one_file": [written.to_json() for written in self.deletes],
        }

    def write(self, folder: Path) -> Path:
        """Write the run to results-<date>T<time>.json and return the path."""
        folder.mkdir(parents=True, exist_ok=True)
        return _write(folder / f"results-{self.started:%Y-%m-%dT%H%M%S}.json", self.to_json())


def write_runs(folder: Path, name: str, runs: Sequence[Any]) -> Path:
    """Write dataclasses to <name>-<date>T<time>.json and return the path."""
    path = folder / f"{name}-{datetime.now(UTC):%Y-%m-%dT%H%M%S}.json"
    return _write(path, {"machine": machine(), "runs": [asdict(run) for run in runs]})


def _write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{package: _version(package) for package in ("pyspark", "pyarrow", "pyiceberg", "fastavro")},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def print_plans(console: Console, plans: Sequence[Plan]) -> None:
    """Print a table for each workload, with a row for each query and a column for each contender."""
    groups: dict[str, list[Plan]] = defaultdict(list)
    for plan in plans:
        groups[f"{plan.workload.name}: {plan.workload.files:,} data files"].append(plan)
    for title, group in groups.items():
        console.print(plan_table(title, group))


def plan_table(title: str, plans: Sequence[Plan]) -> RichTable:
    contenders = list(dict.fromkeys(plan.contender for plan in plans))
    brackets = "times sparkmeta's | its V4 tree's | its Iceberg layout's | its cache's"
    table = RichTable(title=f"{title} (seconds, median; in brackets: {brackets})", title_justify="left")
    for name in ("query", "files", "deletes", *contenders):
        table.add_column(name, justify="left" if name == "query" else "right")
    rows: dict[str, dict[str, Plan]] = defaultdict(dict)
    for plan in plans:
        rows[plan.query.name][plan.contender] = plan
    for query, row in rows.items():
        totals = next(iter(row.values())).totals
        ours = [row[name] for name in OURS if name in row]
        cells = [_cell(row[name], ours) if name in row else "" for name in contenders]
        table.add_row(query, f"{totals.files:,}", f"{totals.deletes:,}", *cells)
    return table


def _cell(plan: Plan, ours: Sequence[Plan]) -> str:
    seconds = f"{plan.median:.3f}"
    times = " | ".join(f"{plan.median / our.median:.2g}x" for our in ours)
    return seconds if not ours or plan in ours else f"{seconds} ({times})"


def print_decodings(console: Console, decodings: Sequence[Decoding]) -> None:
    table = RichTable("decoder", title="entries decoded per second by one core", title_justify="left")
    table.add_column("entries/s", justify="right")
    for decoding in decodings:
        table.add_row(decoding.decoder, f"{decoding.entries_per_second:,.0f}")
    console.print(table)


def print_growth(console: Console, growth: Sequence[Measured]) -> None:
    table = RichTable(title="V4 trees (seconds, median; Spark's own reading of the same leaves)", title_justify="left")
    for name in ("files", "5 % masked", "question", "found", "sparkmeta", "Spark"):
        table.add_column(name, justify="left" if name == "question" else "right")
    for run in growth:
        peer = "" if run.peer is None else f"{run.peer:.2f} ({run.peer / run.seconds:.2g}x)"
        masked = "yes" if run.masked else "no"
        table.add_row(f"{run.entries:,}", masked, run.question, f"{run.rows:,}", f"{run.seconds:.2f}", peer)
    console.print(table)


def print_memory(console: Console, memory: Sequence[DriverMemory]) -> None:
    table = RichTable(title="driver memory of plan_files() and inspect.files(), MiB", title_justify="left")
    for name in ("data files", "heap", "Python peak RSS", "JVM heap peak", "JVM heap after GC"):
        table.add_column(name, justify="right")
    for run in memory:
        table.add_row(f"{run.files:,}", run.heap, str(run.python_rss), str(run.jvm_peak), str(run.jvm_after_gc))
    console.print(table)


def print_deletes(console: Console, deletes: Sequence[Written]) -> None:
    table = RichTable(title="bytes written to delete one data file", title_justify="left")
    for name in ("table", "data files", "manifests", "files written", "bytes", "largest"):
        table.add_column(name, justify="left" if name == "table" else "right")
    for written in deletes:
        cells = (written.data_files, written.manifests, len(written.files), written.total, max(written.files.values()))
        table.add_row(written.table, *(f"{cell:,}" for cell in cells))
    console.print(table)
