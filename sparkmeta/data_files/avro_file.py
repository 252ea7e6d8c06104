"""Write Avro files. Spark tasks import this module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sparkmeta.avro.column_encoder import ColumnEncoder
from sparkmeta.avro.container import SYNC_SIZE, deflater
from sparkmeta.avro.container_writer import container_blocks, container_header
from sparkmeta.avro.schema import fixed_sizes, named_once
from sparkmeta.data_files.avro_schema import avro_schema
from sparkmeta.data_files.parquet_file import Written

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkmeta.data_files.options import WriteOptions
    from sparkmeta.rows.resolve import Column

# Rows encoded at a time.
_ROWS: Final = 20_000


class AvroOutput:
    """An Avro file being written. It reports no column sizes, and no split offsets since readers find its blocks."""

    def __init__(self, sink: Any, columns: Sequence[Column], options: WriteOptions, notes: Mapping[str, str]) -> None:
        """Open the file.

        Args:
            sink: the output stream.
            columns: the columns of the rows.
            options: how to write it.
            notes: key-value metadata of the header.
        """
        self._sink = sink
        self._sync = os.urandom(SYNC_SIZE)
        self._pack = deflater(options.codec, options.level)
        schema = avro_schema(columns)
        self._fields = schema["fields"]
        self._encoder = ColumnEncoder(fixed_sizes(schema))
        sink.write(container_header(named_once(schema), options.codec, notes, self._sync))

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows."""
        for start in range(0, len(table), _ROWS):
            batch = table.slice(start, _ROWS).combine_chunks().to_batches()[0]
            records = self._encoder.records(self._fields, batch.columns, len(batch))
            for block in container_blocks(records, self._pack, self._sync):
                self._sink.write(block)

    def close(self) -> Written:
        """Finish the file."""
        size = self.size
        self._sink.close()
        return Written(size, [], {})

    def abort(self) -> None:
        """Release the file without finishing it."""
        self._sink.close()
