"""A handmade table whose data files and delete files exist, made without an Iceberg runtime, so for any PySpark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sparkmeta as sm
from tests import handmade
from tests.handmade import HandmadeTable
from tests.rows.files import write, write_position_deletes, write_vector

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession


@dataclass
class RowTable(HandmadeTable):
    """A table with data files and delete files. Methods that write a file return its entry, for `add`."""

    def data(self, name: str, rows: pa.Table, ids: Sequence[int] = (), sequence: int = 1, **values: Any) -> Any:
        """Write a data file, whose columns have the given ids, or else 1, 2, 3 ..."""
        path = write(self.path(name), rows, ids)
        return handmade.data(f"file://{path}", sequence, **_facts(path, len(rows)) | values)

    def vector(self, of: Any, positions: list[int], sequence: int = 2, **values: Any) -> Any:
        """Write a deletion vector of a data file."""
        data_file = of["data_file"]
        path = self.path(f"{data_file['file_path'].rpartition('/')[2]}.puffin")
        stored = {"file_path": f"file://{path}", **write_vector(path, positions), "partition": data_file["partition"]}
        stored["file_size_in_bytes"] = path.stat().st_size
        return handmade.deletion_vector(data_file["file_path"], sequence, **stored | values)

    def positions(self, name: str, *deleted: tuple[Any, int], sequence: int = 2, **values: Any) -> Any:
        """Write a file of position deletes of data files, each an entry or a path."""
        pairs = [(of if isinstance(of, str) else of["data_file"]["file_path"], position) for of, position in deleted]
        path = write_position_deletes(self.path(name), pairs)
        return handmade.position_deletes(f"file://{path}", sequence, **_facts(path, len(pairs)) | values)

    def keys(self, name: str, rows: pa.Table, ids: Sequence[int], sequence: int = 2, **values: Any) -> Any:
        """Write a file of equality deletes."""
        path = write(self.path(name), rows, ids)
        facts = _facts(path, len(rows)) | {"ids": tuple(ids)}
        return handmade.equality_deletes(f"file://{path}", sequence, **facts | values)

    def load(self, spark: SparkSession) -> sm.Table:
        return sm.load_table(self.write(), spark=spark)

    def path(self, name: str) -> Path:
        """Return the path of a data file."""
        folder = self.folder / "data"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name


def _facts(path: Path, rows: int) -> dict[str, Any]:
    return {"file_format": path.suffix[1:], "file_size_in_bytes": path.stat().st_size, "record_count": rows}
