"""A Parquet file being written by Arrow. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.rows.data_file import row_group_start

if TYPE_CHECKING:
    from sparkmeta.write.options import WriteOptions


@dataclass(frozen=True)
class Written:
    """Facts of a closed file.

    Attributes:
        size: its bytes.
        split_offsets: where its parts begin.
        column_sizes: bytes of each primitive column by field id, without those that have no metrics.
    """

    size: int
    split_offsets: list[int]
    column_sizes: dict[int, int]


class ParquetOutput:
    """A Parquet file to which row groups are written."""

    def __init__(
        self, sink: Any, schema: pa.Schema, options: WriteOptions, sized: Sequence[int | None], notes: Mapping[str, str]
    ) -> None:
        """Begin the file.

        Args:
            sink: takes the bytes.
            schema: of the rows, with field ids.
            options: how to write it.
            sized: the field ids of all primitive columns in order; None for those whose size nobody asks for.
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
        """Release the file, whose content is of no use."""
        self._sink.close()
