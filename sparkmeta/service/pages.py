"""Pages of scan tasks, and the spool that stores them. Light: Spark tasks import this."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import load_file_io

from sparkmeta.errors import FileAccessError, NotFoundError
from sparkmeta.expr.arrays import to_stream
from sparkmeta.storage.files import IOFiles, LocalFiles, executor_writer
from sparkmeta.storage.location import is_local, join, local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkmeta.storage.executors import ExecutorWriter
    from sparkmeta.storage.files import Files


# -- Pages of scan tasks ----------------------------------------------------------------------------------------------


PAGE_SCHEMA = pa.schema([("page", pa.string()), ("tasks", pa.int64()), ("bytes", pa.int64()), ("rows", pa.binary())])
"""The result of a Spark task: a page that it has written, or its few scan tasks (`rows`, an Arrow stream)."""

SUFFIX = ".page"
"""The suffix of files of compressed text. PyArrow would compress a file named `.gz` again."""

# isal takes a sixth of zlib's time.
_gzip = import_module("isal.igzip" if find_spec("isal") else "gzip")

_COLUMNS = ["task", "delete_files"]


def page_text(rows: pa.Table) -> bytes:
    """Return the members of a ScanTasks object: `"delete-files":[...],"file-scan-tasks":[...]`.

    References to delete files are indices into the same text, which contains each delete file once.
    """
    tasks = pc.cast(rows.column("task").combine_chunks(), pa.large_string())
    deletes = pc.cast(rows.column("delete_files").combine_chunks(), pa.list_(pa.large_string()))
    occurrences = deletes.flatten()
    if not len(occurrences):
        return b'"file-scan-tasks":[' + _joined(tasks) + b"]"
    encoded = occurrences.dictionary_encode()
    indices = pc.cast(encoded.indices, pa.large_string())
    lengths = pc.fill_null(pc.list_value_length(deletes), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(pc.cumulative_sum(lengths), pa.int32())])
    references = pc.binary_join(pa.ListArray.from_arrays(offsets, indices), pa.scalar(",", pa.large_string()))
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

    Bytes are counted by row. A page contains each delete file once, but all of its copies are in memory while the page
    is made.
    """
    start = 0
    if len(rows) <= tasks and rows.nbytes <= size:
        yield from [rows] if len(rows) else ()
        return
    ends = _running_bytes(rows)
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        fitting = int(ends.searchsorted(before + size, side="right"))
        end = max(start + 1, min(start + tasks, fitting))
        yield rows.slice(start, end - start)
        start = end


def _running_bytes(rows: pa.Table) -> np.ndarray:
    """Return the total bytes of the tasks up to each row, with their delete files."""
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
        page_tasks: the maximum number of tasks on a page.
        page_bytes: the maximum size of a page in bytes.
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
            yield _page_row(None, count, 0, to_stream(rest))
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


# -- The spool --------------------------------------------------------------------------------------------------------


_RESULT = re.compile(r"([0-9a-f]{10})-[0-9a-f]{32}")
_PAGE = re.compile(r"[0-9a-f]{32}|plan|polled")
RECORD = "plan"
"""The name of the file with the result of a plan, for clients that poll other replicas."""

POLLED = "polled"
"""The name of the file that says that a plan has such clients, and was not forgotten."""

_log = logging.getLogger(__name__)


class Spool:
    """A folder of plans, each a folder of pages.

    A plan's name begins with the time at which it was made, so that every replica knows how old it is.

    Attributes:
        folder: its location.
        writer: writes pages in Spark tasks.
    """

    def __init__(self, folder: str | None, properties: Mapping[str, str]) -> None:
        self._temporary = tempfile.mkdtemp(prefix="sparkmeta-spool-") if folder is None else None
        self.folder = (self._temporary or folder or "").rstrip("/")
        local = is_local(self.folder)
        self._files: Files = LocalFiles() if local else IOFiles(load_file_io(dict(properties), self.folder))
        self.writer: ExecutorWriter = executor_writer(self._files)

    def new_result(self) -> str:
        """Return the name of a new plan."""
        return f"{int(time.time()):010x}-{uuid.uuid4().hex}"

    def prepare(self, result: str) -> str:
        """Return the folder of a plan. A local folder is created.

        Raises:
            FileAccessError: the folder can't be created.
        """
        folder = join(self.folder, result)
        if is_local(folder):
            try:
                Path(local_path(folder)).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise spool_error(error) from error
        return folder

    def write(self, result: str, page: str, data: bytes) -> None:
        """Write a page.

        Raises:
            FileAccessError: the spool is full, or can't be reached.
        """
        # No reader knows the names of incomplete pages, except for the record.
        write = self._files.write_new if page == RECORD else self.writer.write_temporary
        folder = self.prepare(result)
        try:
            write(f"{folder}/{page}{SUFFIX}", data)
        except OSError as error:
            raise spool_error(error) from error

    def read(self, result: str, page: str) -> bytes | None:
        """Return a page; None if there is none."""
        if not _RESULT.fullmatch(result) or not _PAGE.fullmatch(page):
            return None
        with suppress(NotFoundError):
            return self._files.read(f"{self.folder}/{result}/{page}{SUFFIX}")
        return None

    def delete(self, result: str) -> None:
        """Delete the pages of a plan. Failures are harmless: age deletes them too."""
        with suppress(Exception):
            if is_local(self.folder):
                shutil.rmtree(local_path(join(self.folder, result)), ignore_errors=True)
                return
            listed = self._files.list(join(self.folder, result))
            self._files.delete_many([status.location for status in listed])

    def delete_older(self, seconds: float) -> None:
        """Delete the plans, of all replicas, that are older than this many seconds."""
        limit = time.time() - seconds
        for result in self._results():
            match = _RESULT.fullmatch(result)
            if match is not None and int(match[1], 16) < limit:
                _log.info("delete the pages of plan %s, which are older than %s seconds", result, seconds)
                self.delete(result)

    def _results(self) -> set[str]:
        if is_local(self.folder):
            folder = Path(local_path(self.folder))
            return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        return {location.split("/")[-2] for location in self._files.glob(self.folder, f"*/*{SUFFIX}")}

    def close(self) -> None:
        """Remove the folder if it is a temporary one."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
