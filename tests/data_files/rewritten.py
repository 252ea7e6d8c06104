"""Rows of data files that another library wrote, written again by us: file by file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.write.files import data_file_tasks
from sparkmeta.write.tasks import PARTITION_COLUMN

if TYPE_CHECKING:
    import sparkmeta as sm

METRICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def files_and_their_copies(table: sm.Table) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Rows of `inspect.files` of each data file with rows, and of the file that we write of the same rows."""
    names = tuple(field.name for field in table.schema().fields)
    fields = table.spec().fields
    tuples = ("_partition",) if fields else ()
    rows = table.scan(selected_fields=(*names, "_file", *tuples)).to_arrow()
    for place, field in enumerate(fields):
        values = pc.struct_field(rows.column("_partition"), field.name)
        rows = rows.append_column(PARTITION_COLUMN.format(place), values)
    theirs = {row["file_path"]: row for row in _described(table.inspect.files().where("content = 0").toArrow())}
    tasks = data_file_tasks(table.state, table.schema())
    pairs = []
    for path in rows.column("_file").unique().to_pylist():
        of_file = rows.filter(pc.equal(rows.column("_file"), path)).drop_columns(["_file", *tuples])
        (written,) = tasks.write(of_file.combine_chunks().to_batches())
        pairs.append((theirs[path], *_described(pa.Table.from_batches([written]))))
    return pairs


def _described(files: pa.Table) -> list[dict[str, Any]]:
    maps = (*METRICS, "column_sizes")
    return [row | {name: dict(row[name] or ()) for name in maps} for row in files.to_pylist()]
