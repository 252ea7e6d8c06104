"""The health of many tables: examine them side by side, and report a row for each."""

from __future__ import annotations

import json
import shlex
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.checks import at_least, one_of
from sparkmeta.errors import problem_line
from sparkmeta.fleet.examined import FIGURES, ROWS, Examined, TableHealth, figures_of, rank
from sparkmeta.fleet.exposition import gauges, replace_file
from sparkmeta.fleet.history import append_run, open_history, past_of
from sparkmeta.fleet.listing import AT_ONCE, chosen_tables, side_by_side
from sparkmeta.fleet.page import page, ranking
from sparkmeta.maintain.health import examine, page_parts
from sparkmeta.maintain.health_findings import HealthOptions
from sparkmeta.session import local_frame
from sparkmeta.text import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.fleet.listing import Identifier, Tables

_KINDS = {".txt": "text", ".json": "json", ".prom": "prometheus"}
_MOST_LINES = 50


@dataclass(frozen=True, repr=False)
class FleetHealth(Examined):
    """The health of a catalog's tables, the most pressing first.

    `print` shows it as text, a notebook as a ranking.
    """

    def to_arrow(self) -> pa.Table:
        """Return a row for each table, without Spark.

        Columns: table string, severity string (`error`, `high`, `medium`, `low`, or null for a healthy table),
        finding_count int, the figures (format_version, data_files, records, data_bytes, partitions, manifests,
        plan_bytes long, overlap double, deletion_vectors, position_delete_files, equality_delete_files, snapshots,
        unneeded_bytes long), seconds double, findings array<struct<finding, severity string, items, bytes long,
        problem, gain, job, command string>>, error string (null for an examined table), worse array<string> (see
        `worse`; null without a history).
        """
        rows = pa.Table.from_pylist([table.row() for table in self.tables], schema=ROWS)
        worse = self.worse()
        lines = [None if self.past is None else worse.get(table.table, []) for table in self.tables]
        return rows.append_column("worse", pa.array(lines, pa.list_(pa.string())))

    def to_df(self) -> DataFrame:
        """Return the rows of `to_arrow` as a DataFrame, without a job."""
        return local_frame(self.sessions.get(), self.to_arrow())

    def to_dict(self) -> dict[str, Any]:
        """Return all values by name, in JSON-compatible types."""
        past = self.past
        return {
            "catalog": self.catalog,
            "pattern": self.pattern,
            "examined_at": self.examined_at.isoformat(timespec="milliseconds"),
            "seconds": self.seconds,
            "previous_run": None if past is None or past.run_at is None else past.run_at.isoformat(),
            "tables": self.to_arrow().to_pylist(),
        }

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_prometheus(self) -> str:
        """Return the figures and findings in Prometheus' text format, such as for node_exporter's text files."""
        samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        help_texts = {**FIGURES, "finding_items": "manifests, files or other objects that a finding concerns",
                  "examination_failed": "1 if the table could not be examined"}  # fmt: skip
        for table in self.tables:
            table_labels = {"catalog": self.catalog, "table": table.table}
            known = {name: value for name, value in table.figures.items() if value is not None}
            for name, value in {**known, "examination_failed": int(table.error is not None)}.items():
                samples.setdefault(name, []).append((table_labels, value))
            for finding in table.findings:
                labels = {**table_labels, "finding": finding.finding, "severity": finding.severity}
                samples.setdefault("finding_items", []).append((labels, finding.items))
        values = {
            f"sparkmeta_table_{name}": (f"The {help_text}.", samples[name])
            for name, help_text in help_texts.items()
            if name in samples
        }
        moment = ({"catalog": self.catalog}, round(self.examined_at.timestamp(), 3))
        return gauges({**values, "sparkmeta_examined_at_seconds": ("The time of the examination.", [moment])})

    def to_html(self) -> str:
        """Return one page that needs no network: a ranking of the tables, and the page of each."""
        return page(self)

    def save(self, path: str | Path, kind: str | None = None) -> None:
        """Write the result to a local file, which is replaced atomically.

        Args:
            path: the file.
            kind: `text`, `json`, `prometheus` or `html`. Defaults to the kind of a name that ends with `.txt`, `.json`
                or `.prom`, and else to a page.
        """
        target = Path(path)
        contents = {"text": lambda: f"{self}\n", "json": self.to_json, "prometheus": self.to_prometheus,
                    "html": self.to_html}  # fmt: skip
        chosen = _KINDS.get(target.suffix, "html") if kind is None else kind
        one_of(*contents).check("kind", chosen)
        replace_file(target, contents[chosen]())

    def __str__(self) -> str:
        shown = self.tables[:_MOST_LINES]
        width = max((len(table.table) for table in shown), default=0)
        lines = [f"  {table.severity or '':<6}  {table.table:<{width}}  {table.line}" for table in shown]
        more = len(self.tables) - len(shown)
        lines += [f"  ... {counted(more, 'more table')}"] if more else []
        for name, changes in self.worse().items():
            lines += [f"worse since the last run: {name}: {change}" for change in changes]
        return "\n".join([self.headline, *lines])

    def __repr__(self) -> str:
        return f"FleetHealth({self.headline})"

    def _repr_html_(self) -> str:
        return ranking(self)


# -- Examine tables ---------------------------------------------------------------------------------------------------


def examine_tables(
    catalog: Tables,
    pattern: str,
    spark: SparkSession | None,
    at_once: int | None,
    history: str | None,
    options: HealthOptions,
) -> FleetHealth:
    """Examine the tables that a pattern chooses; see `Catalog.health`."""
    options.check()
    if at_once is not None:
        at_least(1).check("at_once", at_once)
    sessions = catalog.sessions.for_caller(spark)
    running = sessions.running()  # raises SessionError if the caller's session was stopped
    started, examined_at = time.perf_counter(), datetime.now(UTC)
    chosen = chosen_tables(catalog, pattern)
    runs = None if history is None else open_history(catalog, history, running)
    examined = [TableHealth(name, error=problem_line(error)) for name, error in chosen.problems.items()]
    examine_one = partial(_examined, catalog, running, options)
    examined += side_by_side(catalog, chosen.tables, examine_one, at_once or AT_ONCE, "Examining tables")
    seconds = round(time.perf_counter() - started, 3)
    tables = tuple(sorted(examined, key=rank))
    past = None if runs is None else past_of(runs)
    health = FleetHealth(catalog.name, pattern, examined_at, seconds, tables, sessions, past)
    if runs is not None:
        append_run(runs, examined_at, health.to_arrow())
    return health


def _examined(
    catalog: Tables, spark: SparkSession | None, options: HealthOptions, identifier: Identifier
) -> TableHealth:
    name, started = ".".join(identifier), time.perf_counter()
    source = f"--catalog {shlex.quote(catalog.name)} {shlex.quote(name)}"
    try:
        report = examine(catalog.load_table(identifier, spark), options, source)
        health = TableHealth(
            name, figures_of(report), report.list_findings, page=zlib.compress(page_parts(report).encode())
        )
    except Exception as error:  # noqa: BLE001  the other tables are examined all the same
        health = TableHealth(name, error=problem_line(error))
    return replace(health, seconds=round(time.perf_counter() - started, 3))
