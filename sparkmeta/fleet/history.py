"""The history of health: a table of the catalog with a row for each table and run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import ValidationError
from sparkmeta.fleet.examined import ROWS, TREND, Past

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.fleet.listing import Tables
    from sparkmeta.table import Table

_TIME: Final = "examined_at"
_SCHEMA: Final = pa.schema([pa.field(_TIME, pa.timestamp("us", "UTC")), *ROWS])
# The number of earlier runs whose figures are drawn.
_MOST_RUNS = 29


def open_history(catalog: Tables, name: str, spark: SparkSession | None) -> Table:
    """Open the table of a history, or create it.

    Raises:
        ValidationError: the table has other columns than a history.
    """
    if catalog.table_exists(name):
        table = catalog.load_table(name, spark)
        known = {column.name for column in table.schema().fields}
        if missing := [column for column in _SCHEMA.names if column not in known]:
            raise ValidationError(f"history is {name!r}: the table has no column {missing[0]}: name another one")
        return table
    namespace, _, _ = name.rpartition(".")
    if namespace:
        catalog.create_namespace_if_not_exists(namespace)
    return catalog.create_table_if_not_exists(name, _SCHEMA, partition_by=[f"month({_TIME})"], spark=spark)


def past_of(table: Table) -> Past:
    """Return the last runs of a history."""
    rows = _last_rows(table)
    if not len(rows):
        return Past()
    rows = rows.sort_by([("table", "ascending"), (_TIME, "ascending")])
    trends: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows.select(["table", "error", *TREND]).to_pylist():
        trends.setdefault(row["table"], []).append(row)
    names = rows.column("table").combine_chunks()
    is_newest = pa.concat_arrays([pc.not_equal(names[:-1], names[1:]), pa.array([True])])
    newest = rows.filter(is_newest).to_pylist()
    return Past(pc.max(rows.column(_TIME)).as_py(), {row["table"]: row for row in newest}, trends)


def _last_rows(table: Table) -> pa.Table:
    """Return the rows of the last runs, without reading the files of earlier ones."""
    metrics = table.inspect.arrow.data_files(columns=[f"readable_metrics.{_TIME}"]).column(0).combine_chunks()
    bounds = [pc.struct_field(metrics, [_TIME, name]) for name in ("lower_bound", "upper_bound")]
    # A file has one run or, after a rewrite, several. Its bounds are the times of the first and the last.
    times = sorted({time for bound in bounds for time in bound.to_pylist() if time is not None})
    since = times[-_MOST_RUNS:][:1]
    scan = table.scan(f"{_TIME} >= '{since[0].isoformat()}'" if since else "true")
    rows = scan.to_arrow().select(_SCHEMA.names).cast(_SCHEMA)
    runs = sorted(pc.unique(rows.column(_TIME)).to_pylist())[-_MOST_RUNS:][:1]
    return rows.filter(pc.greater_equal(rows.column(_TIME), runs[0])) if runs else rows


def append_run(table: Table, examined_at: datetime, rows: pa.Table) -> None:
    """Append the rows of a run."""
    time = pa.repeat(pa.scalar(examined_at, _SCHEMA.field(_TIME).type), len(rows))
    table.append(rows.select(ROWS.names).add_column(0, _SCHEMA.field(_TIME), time))
