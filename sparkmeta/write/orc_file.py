"""An ORC file being written by Arrow. Spark tasks import this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarrow import orc

from sparkmeta.write.parquet_file import Written

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkmeta.write.options import WriteOptions


class OrcOutput:
    """An ORC file. Arrow does not tell where its stripes begin, nor how long its columns are."""

    def __init__(self, sink: Any, options: WriteOptions) -> None:
        """Begin the file.

        Args:
            sink: takes the bytes.
            options: how to write it.
        """
        self._sink = sink
        self._writer = orc.ORCWriter(sink, compression=options.codec, stripe_size=options.group_bytes)

    @property
    def size(self) -> int:
        """The bytes written so far, those of whole stripes."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows, which have the field ids as attributes."""
        self._writer.write(table)

    def close(self) -> Written:
        """Write the footer."""
        self._writer.close()
        size = self.size
        self._sink.close()
        return Written(size, [], {})

    def abort(self) -> None:
        """Release the file, whose content is of no use."""
        self._sink.close()
