"""The spool: pages of large plans, on storage that the service, its replicas and the executors share."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.io import load_file_io

from sparkmeta.errors import NotFoundError
from sparkmeta.service.pages import SUFFIX, spool_error
from sparkmeta.storage.access import executor_writer
from sparkmeta.storage.files import IOFiles, LocalFiles
from sparkmeta.storage.location import is_local, join, local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkmeta.storage.executors import ExecutorWriter
    from sparkmeta.storage.files import Files

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
        """Return the folder of a plan, made if it is a local one.

        Raises:
            FileAccessError: it can't be made.
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
        # No reader knows the names of incomplete pages, except that of the record.
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
