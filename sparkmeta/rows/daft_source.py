"""A data source of Daft, whose tasks read the rows of a scan. Imported only if Daft is installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from daft.io.source import DataSource, DataSourceTask
from daft.recordbatch import RecordBatch
from daft.schema import Schema

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pyarrow as pa
    from daft.io.pushdowns import Pushdowns

    from sparkmeta.rows.file_rows import MatchingRows


@dataclass(frozen=True)
class ScanSource(DataSource):  # type: ignore[misc]
    """The rows of a scan.

    Attributes:
        location: the table's location.
        rows: reads planned files.
        shares: the planned files, divided into shares. Each task reads one share.
    """

    location: str
    rows: MatchingRows
    shares: list[pa.Table]

    @property
    def name(self) -> str:
        return f"sparkmeta({self.location})"

    @property
    def schema(self) -> Schema:
        return Schema.from_pyarrow_schema(self.rows.schema)

    async def get_tasks(self, pushdowns: Pushdowns) -> AsyncIterator[ShareTask]:
        """Yield a task for each share. It reads only the columns that Daft needs; Daft does the rest itself."""
        rows = self.rows if pushdowns.columns is None else self.rows.select(pushdowns.columns)
        for share in self.shares:
            yield ShareTask(rows, share)


@dataclass(frozen=True)
class ShareTask(DataSourceTask):  # type: ignore[misc]
    """Reads a share of a scan's files."""

    rows: MatchingRows
    share: pa.Table

    @property
    def schema(self) -> Schema:
        return Schema.from_pyarrow_schema(self.rows.schema)

    async def read(self) -> AsyncIterator[RecordBatch]:
        """Yield the rows, batch by batch."""
        for batch in self.rows.read(self.share.to_batches()):
            yield RecordBatch.from_arrow_record_batches([batch], batch.schema)
