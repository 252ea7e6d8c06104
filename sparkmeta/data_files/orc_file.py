"""Write ORC files with Arrow. Spark tasks import this module."""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import orc

from sparkmeta.data_files.orc_times_before_1970 import TimesBefore1970, copy_negated, has_times
from sparkmeta.data_files.parquet_file import Written

if TYPE_CHECKING:
    from sparkmeta.data_files.options import WriteOptions

_COPIED_BYTES = 1 << 20


class OrcOutput:
    """An ORC file being written. Arrow reports neither stripe offsets nor column sizes.

    A file with times is written to the local disk first, since it may have to be corrected.
    """

    def __init__(self, sink: Any, schema: pa.Schema, options: WriteOptions, table: str) -> None:
        """Open the file.

        Args:
            sink: the output stream.
            schema: the Arrow schema of the rows, which has the field ids as attributes.
            options: how to write it.
            table: the table, for errors.
        """
        self._sink, self._table = sink, table
        self._times = TimesBefore1970(table)
        has_any = any(has_times(column.type) for column in schema)
        self._spool = tempfile.TemporaryFile() if has_any else None  # noqa: SIM115
        self._writer = orc.ORCWriter(
            self._file,
            compression=options.codec,
            compression_strategy=options.orc_strategy,
            stripe_size=options.group_bytes,
        )

    @property
    def _file(self) -> Any:
        """What Arrow writes to."""
        return self._sink if self._spool is None else self._spool

    @property
    def size(self) -> int:
        """The bytes written so far, in whole stripes."""
        return int(self._file.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows.

        Raises:
            ValidationError: ORC can't store a time.
        """
        # Arrow's writer ignores the offsets of slices of structs that have nulls: it writes other rows.
        rows = table.take(pa.array(np.arange(len(table))))
        self._writer.write(self._times.replaced(rows))

    def close(self) -> Written:
        """Write the footer."""
        self._writer.close()
        if self._spool is not None:
            self._spool.seek(0)
            if self._times.seen:
                copy_negated(pa.PythonFile(self._spool, mode="r"), self._sink, self._table)
            else:
                shutil.copyfileobj(self._spool, self._sink, _COPIED_BYTES)
            self._spool.close()
        size = int(self._sink.tell())
        self._sink.close()
        return Written(size, [], {})

    def abort(self) -> None:
        """Release the file without finishing it."""
        # The writer's destructor would end the file, and on the closed stream the process.
        self._writer.is_open = False
        if self._spool is not None:
            self._spool.close()
        self._sink.close()
