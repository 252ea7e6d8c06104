"""Pass the rows of a scan to engines with tasks of their own, which read shares of files as Spark's tasks do."""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sparkmeta.errors import UnsupportedError
from sparkmeta.rows.arrow_reader import matching_rows, parts_table, row_shares
from sparkmeta.rows.file_rows import MatchingRows
from sparkmeta.rows.read import RowScan, collected_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkmeta.plan.choose import Choice


# The oldest versions that work, as in the extras of the package. DuckDB 1.4 can't read an Arrow stream again.
_OLDEST: Final = {"daft": (0, 7), "duckdb": (1, 5)}


def imported(module: str, method: str) -> Any:
    """Import an engine's module for a method. Raises UnsupportedError if it is not installed, or is too old."""
    package = module.partition(".")[0]
    try:
        version = import_module(package).__version__
        if (oldest := _OLDEST.get(package, ())) > tuple(map(int, re.findall(r"\d+", version)[:2])):
            oldest_text = ".".join(map(str, oldest))
            raise UnsupportedError(f"{method} needs {package} {oldest_text} or newer: this is {version}")
        return import_module(module)
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"{method} needs {package}: pip install {package}") from error


def duckdb_view(rows: object, name: str, connection: Any) -> Any:
    """Return a DuckDB connection with a view of an Arrow stream. See `imported` for errors."""
    duckdb = imported("duckdb", "to_duckdb")
    connection = duckdb.connect() if connection is None else connection
    connection.register(name, rows)
    return connection


def shares_of(scan: RowScan, choice: Choice) -> tuple[MatchingRows, Iterator[pa.Table]]:
    """Plan a scan. Return the reader of its files, and the files in shares, one for each task.

    A share repeats a delete of several files for each file. Shares are created one by one, as the caller consumes them.

    Raises:
        ValidationError: as `read_rows`.
        UnsupportedError: tasks can't open the table's files in this session.
    """
    rows = matching_rows(scan.filter, scan.projection, scan.metadata_columns)
    return rows, (share for run in collected_files(choice).runs() for share in row_shares(*parts_table(run)))


def read_share(rows: MatchingRows, share: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a share, after an empty table: Ray takes the columns from it if there are no rows."""
    yield rows.schema.empty_table()
    for batch in rows.read(share.to_batches()):
        yield pa.Table.from_batches([batch])


def daft_frame(scan: RowScan, choice: Choice, row_limit: int | None) -> Any:
    """Return a Daft DataFrame of the rows of a scan, whose tasks read the files. See `shares_of` for errors."""
    imported("daft.io.source", "to_daft")
    from sparkmeta.rows.daft_source import ScanSource

    rows, shares = shares_of(scan, choice)
    frame = ScanSource(scan.state.metadata.location, rows, list(shares)).read()
    return frame if row_limit is None else frame.limit(row_limit)


def ray_dataset(scan: RowScan, choice: Choice, row_limit: int | None) -> Any:
    """Return a Ray dataset of the rows of a scan, whose tasks read the files. See `shares_of` for errors."""
    data = imported("ray.data", "to_ray")
    rows, shares = shares_of(scan, choice)
    if not (blocks := list(shares)):
        return data.from_arrow(rows.schema.empty_table())
    # Without a batch size, each block is one batch.
    dataset = data.from_arrow(blocks).map_batches(partial(read_share, rows), batch_size=None, batch_format="pyarrow")
    return dataset if row_limit is None else dataset.limit(row_limit)
