"""The writers of the data source, by the interface of `pyspark.sql.datasource`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource

from sparkmeta.session import worker_call

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from sparkmeta.data_source.sink import Report, Sink

if hasattr(datasource, "DataSourceStreamArrowWriter"):
    _StreamWriters: tuple[type, ...] = (datasource.DataSourceStreamArrowWriter,)
else:  # PySpark 4.0, which also passes batches of Arrow to stream writers of the class for them
    _StreamWriters = (datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter)


class BatchWriter(datasource.DataSourceArrowWriter):
    """Writes the rows of `df.write`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> datasource.WriterCommitMessage:
        """Write the rows of a task."""
        with worker_call():
            return self._sink.tasks.report(iterator)

    def commit(self, messages: list[Any]) -> None:
        """Commit what the tasks have written."""
        with worker_call():
            self._sink.commit(messages)

    def abort(self, messages: list[Any]) -> None:
        """Delete what the tasks have written."""
        self._sink.abort(messages)


class StreamWriter(*_StreamWriters):  # type: ignore[misc]
    """Writes the rows of a batch of `df.writeStream`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        """Write the rows of a task."""
        with worker_call():
            return self._sink.tasks.report(iterator)

    def commit(self, messages: list[Report | None], batchId: int) -> None:  # noqa: N803
        """Commit what the tasks have written, unless the batch is committed already."""
        with worker_call():
            self._sink.commit(messages, batchId)

    def abort(self, messages: list[Report | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete what the tasks have written."""
        self._sink.abort(messages)
