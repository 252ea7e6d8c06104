"""How many requests tasks send to a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkmeta.storage.executors import ExecutorReader


@dataclass(frozen=True)
class LoggingReader(ExecutorReader):
    """Adds a line to the file `log` for each request, in whatever process."""

    log: str = ""

    def read(self, location: str) -> bytes:
        self._add(f"{location} whole")
        return super().read(location)

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        self._add(f"{location} {offset} {size}")
        return super().read_range(location, offset, size)

    def __reduce__(self) -> tuple[type[LoggingReader], tuple[object, ...]]:
        return LoggingReader, (self.io_properties, [], self.log)

    @property
    def requests(self) -> list[str]:
        log = Path(self.log)
        return log.read_text().splitlines() if log.exists() else []

    def _add(self, line: str) -> None:
        with Path(self.log).open("a") as log:
            log.write(f"{line}\n")
