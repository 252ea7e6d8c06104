"""Write ORC files with Arrow. Spark tasks import this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import orc

from sparkmeta.data_files.parquet_file import Written

if TYPE_CHECKING:
    from sparkmeta.data_files.options import WriteOptions


class OrcOutput:
    """An ORC file being written. Arrow reports neither stripe offsets nor column sizes."""

    def __init__(self, sink: Any, options: WriteOptions) -> None:
        """Open the file.

        Args:
            sink: the output stream.
            options: how to write it.
        """
        self._sink = sink
        self._writer = orc.ORCWriter(sink, compression=options.codec, stripe_size=options.group_bytes)

    @property
    def size(self) -> int:
        """The bytes written so far, in whole stripes."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows whose schema has the field ids as attributes."""
        # Arrow's writer ignores the offsets of slices of structs that have nulls: it writes other rows.
        self._writer.write(table.take(pa.array(np.arange(len(table)))))

    def close(self) -> Written:
        """Write the footer."""
        self._writer.close()
        size = self.size
        self._sink.close()
        return Written(size, [], {})

    def abort(self) -> None:
        """Release the file without finishing it."""
        # The writer's destructor would end the file, and on the closed stream the process.
        self._writer.is_open = False
        self._sink.close()
