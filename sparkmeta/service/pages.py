"""Pages of scan tasks: their text, and the Spark tasks that write them to the spool. Light: Spark tasks import this."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import FileAccessError

if TYPE_CHECKING:
    from sparkmeta.storage.executors import ExecutorWriter

PAGE_SCHEMA = pa.schema([("page", pa.string()), ("tasks", pa.int64()), ("bytes", pa.int64()), ("rows", pa.binary())])
"""The result of a Spark task: a page that it has written, or a few scan tasks themselves (`rows`, an Arrow stream)."""

SUFFIX = ".page"
"""Of files of compressed text. PyArrow would compress a file named `.gz` again."""

# isal takes a sixth of zlib's time.
_gzip = import_module("isal.igzip" if find_spec("isal") else "gzip")

_COLUMNS = ["task", "delete_files"]


def page_text(rows: pa.Table) -> bytes:
    """Return the members of a ScanTasks object: `"delete-files":[...],"file-scan-tasks":[...]`.

    References to delete files are their places in the same text, where each delete file occurs once.
    """
    tasks = pc.cast(rows.column("task").combine_chunks(), pa.large_string())
    deletes = pc.cast(rows.column("delete_files").combine_chunks(), pa.list_(pa.large_string()))
    occurrences = deletes.flatten()
    if not len(occurrences):
        return b'"file-scan-tasks":[' + _joined(tasks) + b"]"
    encoded = occurrences.dictionary_encode()
    places = pc.cast(encoded.indices, pa.large_string())
    lengths = pc.fill_null(pc.list_value_length(deletes), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(pc.cumulative_sum(lengths), pa.int32())])
    references = pc.binary_join(pa.ListArray.from_arrays(offsets, places), pa.scalar(",", pa.large_string()))
    empty = pa.scalar("", pa.large_string())
    cut = pc.utf8_slice_codeunits(tasks, 0, -1)
    head, tail = (pa.scalar(text, pa.large_string()) for text in (',"delete-file-references":[', "]}"))
    with_references = pc.binary_join_element_wise(cut, head, references, tail, empty)
    texts = pc.if_else(pc.greater(lengths, 0), with_references, tasks)
    return b'"delete-files":[' + _joined(encoded.dictionary) + b'],"file-scan-tasks":[' + _joined(texts) + b"]"


def _joined(texts: pa.Array) -> bytes:
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts)
    joined = pc.binary_join(whole, pa.scalar(",", pa.large_string()))[0].as_py()
    encoded: bytes = joined.encode()
    return encoded


def packed(text: bytes) -> bytes:
    """Return the ScanTasks object of a page as a file of the spool."""
    return compressed(b"{" + text + b"}")


def compressed(data: bytes) -> bytes:
    """Return data in gzip's format, quickly."""
    result: bytes = _gzip.compress(data, 1)
    return result


def cut_pages(rows: pa.Table, tasks: int, size: int) -> Iterator[pa.Table]:
    """Cut rows into pages of at most `tasks` tasks and `size` bytes, but at least one task.

    The bytes are those of the rows: a page has a delete file only once, but making the page holds all copies.
    """
    start = 0
    if not len(rows):
        return
    ends = _running_bytes(rows)
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        fitting = int(ends.searchsorted(before + size, side="right"))
        end = max(start + 1, min(start + tasks, fitting))
        yield rows.slice(start, end - start)
        start = end


def _running_bytes(rows: pa.Table) -> np.ndarray:
    """Return how many bytes the tasks up to each row have, with their delete files."""
    tasks = np.cumsum(pc.binary_length(rows.column("task")).to_numpy(), dtype=np.int64)
    deletes = rows.column("delete_files").combine_chunks()
    sums = np.cumsum(pc.binary_length(deletes.flatten()).to_numpy(zero_copy_only=False), dtype=np.int64)
    counts = pc.fill_null(pc.list_value_length(deletes), 0).to_numpy(zero_copy_only=False)
    running: np.ndarray = tasks + np.insert(sums, 0, 0)[np.cumsum(counts)]
    return running


def spool_error(error: OSError) -> FileAccessError:
    """Return the error for a page that can't be written. Clients see its message, so it names no path."""
    return FileAccessError(
        f"a page can't be written to the spool: {error.strerror or 'its store refuses, or does not respond'}"
    )


@dataclass(frozen=True)
class PageWriter:
    """Writes the scan tasks of a Spark task to the spool, or returns them if they are few.

    Attributes:
        folder: the plan's folder in the spool.
        writer: writes its files.
        page_tasks: the limit of tasks of a page.
        page_bytes: the limit of bytes of a page.
        returned_tasks: if a Spark task has at most this many scan tasks, it returns them instead.
    """

    folder: str
    writer: ExecutorWriter
    page_tasks: int
    page_bytes: int
    returned_tasks: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pending: list[pa.RecordBatch] = []
        count = size = 0
        written = False
        for batch in batches:
            pending.append(batch.select(_COLUMNS))
            count, size = count + len(batch), size + batch.nbytes
            if count >= self.page_tasks or size >= self.page_bytes:
                *pages, last = cut_pages(pa.Table.from_batches(pending), self.page_tasks, self.page_bytes)
                yield from map(self._page, pages)
                written = written or bool(pages)
                pending, count, size = last.to_batches(), len(last), last.nbytes
        if not count:
            return
        rest = pa.Table.from_batches(pending)
        if not written and count <= self.returned_tasks:
            yield _page_row(None, count, 0, _stream(rest))
            return
        for page in cut_pages(rest, self.page_tasks, self.page_bytes):
            yield self._page(page)

    def _page(self, rows: pa.Table) -> pa.RecordBatch:
        name, data = uuid.uuid4().hex, packed(page_text(rows))
        try:
            self.writer.write_temporary(f"{self.folder}/{name}{SUFFIX}", data)
        except OSError as error:
            raise spool_error(error) from error
        return _page_row(name, len(rows), len(data), None)


def _page_row(page: str | None, tasks: int, size: int, rows: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"page": page, "tasks": tasks, "bytes": size, "rows": rows}], PAGE_SCHEMA)


def _stream(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def from_stream(data: bytes) -> pa.Table:
    """Return the rows in an Arrow stream."""
    return pa.ipc.open_stream(data).read_all()
