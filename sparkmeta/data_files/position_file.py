"""Write position delete files in Parquet (table spec, Position Delete Files). Does not use Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.entries.field_ids import with_field_id
from sparkmeta.rows.data_file import row_group_start
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID

_PATH = pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), nullable=False)
_POS = pa.field("pos", pa.int64(), nullable=False)
_SCHEMA = pa.schema([with_field_id(_PATH, DELETE_FILE_PATH_ID), with_field_id(_POS, DELETE_FILE_POS_ID)])
# Rows per row group.
_GROUP_ROWS = 1 << 20
_POSITION_BYTES = 8


class PositionFile:
    """A position delete file in memory. Data files are added in order of their paths.

    Attributes:
        records: the number of positions.
        first_path: the first data file.
        last_path: the last data file.
        first_position: the lowest position of any data file.
        last_position: the highest position of any data file.
        split_offsets: the offsets of row groups; like `column_sizes`, known when the file is closed.
        column_sizes: the size in bytes of each column by field id.
    """

    def __init__(self, codec: str) -> None:
        self._sink = pa.BufferOutputStream()
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._sink,
            _SCHEMA,
            compression=codec,
            use_dictionary=["file_path"],
            store_schema=False,
            write_page_index=True,
            metadata_collector=self._footers,
        )
        self._writer.add_key_value_metadata({"delete-type": "position"})
        self._paths: list[str] = []
        self._positions: list[np.ndarray[Any, Any]] = []
        self._pending = 0
        self.records = 0
        self.first_path: str | None = None
        self.last_path: str | None = None
        self.first_position: int | None = None
        self.last_position: int | None = None
        self.split_offsets: list[int] = []
        self.column_sizes: dict[int, int] = {}

    @property
    def size(self) -> int:
        """The approximate size of the file in bytes. Positions not yet compressed count in full."""
        return int(self._sink.tell()) + self._pending * _POSITION_BYTES

    def add(self, path: str, positions: PositionBitmap) -> None:
        """Add the deleted positions of a data file."""
        for part in positions.positions():
            if not len(part):
                continue
            first, last = int(part[0]), int(part[-1])
            self.first_position = first if self.first_position is None else min(first, self.first_position)
            self.last_position = last if self.last_position is None else max(last, self.last_position)
            self._paths.append(path)
            self._positions.append(part)
            self._pending += len(part)
            if self._pending >= _GROUP_ROWS:
                self._flush()
        self.first_path = path if self.first_path is None else self.first_path
        self.last_path = path

    def close(self) -> bytes:
        """Return the bytes of the file."""
        self._flush()
        self._writer.close()
        (footer,) = self._footers
        for group in map(footer.row_group, range(footer.num_row_groups)):
            self.split_offsets.append(row_group_start(group))
            for place, field_id in enumerate((DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID)):
                size = group.column(place).total_compressed_size
                self.column_sizes[field_id] = self.column_sizes.get(field_id, 0) + size
        data: bytes = self._sink.getvalue().to_pybytes()
        return data

    def _flush(self) -> None:
        if not self._pending:
            return
        names = list(dict.fromkeys(self._paths))
        code_of = {name: code for code, name in enumerate(names)}
        codes = np.repeat([code_of[path] for path in self._paths], [*map(len, self._positions)]).astype(np.int32)
        paths = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))
        positions = pa.array(np.concatenate(self._positions), pa.int64())
        self._writer.write_table(pa.Table.from_arrays([paths, positions], schema=_SCHEMA), row_group_size=_GROUP_ROWS)
        self.records += self._pending
        self._paths, self._positions, self._pending = [], [], 0
