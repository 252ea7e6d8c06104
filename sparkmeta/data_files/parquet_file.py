"""Write Parquet files with Arrow. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.rows.data_file import row_group_start

if TYPE_CHECKING:
    from sparkmeta.data_files.options import WriteOptions


@dataclass(frozen=True)
class Written:
    """Facts of a closed file.

    Attributes:
        size: its size in bytes.
        split_offsets: the offsets at which it can be split.
        column_sizes: the size in bytes of each primitive column with metrics, by field id.
    """

    size: int
    split_offsets: list[int]
    column_sizes: dict[int, int]


class ParquetOutput:
    """A Parquet file being written, one row group at a time."""

    def __init__(
        self, sink: Any, schema: pa.Schema, options: WriteOptions, sized: Sequence[int | None], notes: Mapping[str, str]
    ) -> None:
        """Open the file.

        Args:
            sink: the output stream.
            schema: the schema of the rows, with field ids.
            options: how to write it.
            sized: the field ids of all primitive columns in order; None for those whose size is not reported.
            notes: key-value metadata of the footer.
        """
        self._sink, self._sized = sink, sized
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            compression=options.codec,
            compression_level=options.level if options.codec != "none" else None,
            data_page_size=options.page_bytes,
            max_rows_per_page=options.page_rows,
            dictionary_pagesize_limit=options.dictionary_bytes,
            store_schema=False,
            store_decimal_as_integer=True,
            metadata_collector=self._footers,
        )
        self._writer.add_key_value_metadata(dict(notes))

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows as a row group."""
        self._writer.write_table(table, row_group_size=max(len(table), 1))

    def close(self) -> Written:
        """Write the footer."""
        self._writer.close()
        size = self.size
        self._sink.close()
        (footer,) = self._footers
        sizes: dict[int, int] = {}
        offsets = []
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            offsets.append(row_group_start(group))
            for place, field_id in enumerate(self._sized):
                if field_id is not None:
                    sizes[field_id] = sizes.get(field_id, 0) + group.column(place).total_compressed_size
        return Written(size, offsets, sizes)

    def abort(self) -> None:
        """Release the file without finishing it."""
        # The writer's destructor would try to write the footer to the closed stream.
        self._writer.is_open = False
        self._sink.close()
