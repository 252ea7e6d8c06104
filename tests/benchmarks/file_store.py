"""`python -m tests.benchmarks.file_store FOLDER`: a folder as a read-only bucket of S3, in a process of its own.

Prints its port, and ends when its standard input is closed. `/-/delay/<seconds>` makes each later request take longer;
`/-/requests` answers with the number of requests since it was last asked.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "bench"


@dataclass(frozen=True)
class FileStore:
    """A running store."""

    url: str

    def delay(self, seconds: float) -> None:
        """Let each request take longer."""
        self._ask(f"delay/{seconds}")

    def count_requests(self) -> int:
        """Return the number of requests since the last call."""
        return int(self._ask("requests"))

    def _ask(self, what: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}/-/{what}") as answer:
            content: bytes = answer.read()
        return content


@contextmanager
def file_store(folder: Path) -> Iterator[FileStore]:
    """Run a store of the files in a folder."""
    with Popen([sys.executable, "-m", __name__, str(folder)], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        yield FileStore(f"http://127.0.0.1:{process.stdout.readline().strip()}")
        # The end of its standard input ends the process.


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and content in one packet.
    wbufsize = 1 << 16
    folder: Path
    delay = 0.0
    count = 0
    lock = threading.Lock()

    def _handle(self) -> None:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        if bucket == "-":
            self._control(key)
            return
        with self.lock:
            _Handler.count += 1
        time.sleep(_Handler.delay)
        path = self.folder / key
        if not path.is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {"Content-Type": "application/xml"})
            return
        data = path.read_bytes()
        common = {"ETag": f'"{len(data)}"', "Last-Modified": self.date_time_string(1), "Accept-Ranges": "bytes"}
        if (part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))) is None:
            self._answer(200, data, common)
            return
        start, end = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
        self._answer(206, data[start : end + 1], common | {"Content-Range": f"bytes {start}-{end}/{len(data)}"})

    def _control(self, what: str) -> None:
        name, _, value = what.partition("/")
        with self.lock:
            answer, _Handler.count = _Handler.count, 0
        if name == "delay":
            _Handler.delay = float(value)
        self._answer(200, str(answer).encode(), {})

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = _handle  # noqa: N815  the names that the server looks for

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    _Handler.folder = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main()
