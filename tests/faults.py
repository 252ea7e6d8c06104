"""Faults at every file operation: a commit is run once for each operation that it does and each way it can go wrong.

for fault in faults(lambda files: commit(files)):
    files = FaultyFiles(LocalFiles(), fault)
    ...
"""

from __future__ import annotations

import errno
import sys
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from sparkmeta.storage.files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pytest

    from sparkmeta import Table
    from sparkmeta.storage.files import Files, FileStatus
    from sparkmeta.storage.writing import DeleteFailure

T = TypeVar("T")


class Kind(Enum):
    """How an operation goes wrong."""

    FAILS = "not done, and an error says so"
    ANSWER_LOST = "done, but the answer is an error"
    KILLED_BEFORE = "the process dies before it is done"
    KILLED_AFTER = "the process dies when it is done"


class Killed(BaseException):
    """The process is dead: no `except Exception` catches this, and every later file operation fails."""


@dataclass(frozen=True)
class Fault:
    """The operation that fails, by its number since the process began; ``lasting``: later operations fail too."""

    number: int
    kind: Kind
    operation: str = ""
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.number} {self.operation} {self.kind.name}{' lasting' if self.lasting else ''}"


@dataclass
class FaultyFiles:
    """Files that do what ``real`` ones do until the fault; ``operations`` are the names and locations of all calls."""

    real: Files = field(default_factory=LocalFiles)
    fault: Fault | None = None
    operations: list[tuple[str, str]] = field(default_factory=list)

    def read(self, location: str) -> bytes:
        return self._do("read", location, lambda: self.real.read(location))

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        return self._do("read", location, lambda: self.real.read_range(location, offset, size))

    def exists(self, location: str) -> bool:
        return self._do("exists", location, lambda: self.real.exists(location))

    def length(self, location: str) -> int:
        return self._do("length", location, lambda: self.real.length(location))

    def glob(self, folder: str, pattern: str, leaf: str | None = None) -> Sequence[str]:
        return self._do("glob", folder, lambda: self.real.glob(folder, pattern, leaf))

    def write_new(self, location: str, data: bytes, *, syncs_name: bool = True) -> None:
        self._do("write_new", location, lambda: self.real.write_new(location, data, syncs_name=syncs_name))

    def publish(self, location: str, data: bytes) -> None:
        self._do("publish", location, lambda: self.real.publish(location, data))

    def overwrite(self, location: str, data: bytes, *, syncs: bool = True) -> None:
        self._do("overwrite", location, lambda: self.real.overwrite(location, data, syncs=syncs))

    def delete_many(self, locations: Iterable[str]) -> Sequence[DeleteFailure]:
        listed = [*locations]
        return self._do("delete_many", " ".join(listed), lambda: self.real.delete_many(listed))

    def list(self, folder: str, pattern: str = "*") -> list[FileStatus]:
        return self._do("list", folder, lambda: self.real.list(folder, pattern))

    def names(self, folder: str, pattern: str) -> Sequence[str]:
        return self._do("list", folder, lambda: self.real.names(folder, pattern))

    @property
    def is_killed(self) -> bool:
        """Whether the process is dead by now."""
        fault = self.fault
        is_kill = fault is not None and fault.kind in {Kind.KILLED_BEFORE, Kind.KILLED_AFTER}
        return is_kill and fault is not None and len(self.operations) > fault.number

    @property
    def deleted(self) -> set[str]:
        """The locations that were to be deleted."""
        return {
            location for name, locations in self.operations if name == "delete_many" for location in locations.split()
        }

    def _do(self, name: str, location: str, act: Callable[[], T]) -> T:
        self.operations.append((name, location))
        number = len(self.operations) - 1
        fault = self.fault
        if fault is None or number < fault.number:
            return act()
        is_killed = fault.kind in {Kind.KILLED_BEFORE, Kind.KILLED_AFTER}
        if number > fault.number and not is_killed and not fault.lasting:
            return act()
        if number == fault.number and fault.kind in {Kind.ANSWER_LOST, Kind.KILLED_AFTER}:
            act()
        if is_killed:
            raise Killed(str(fault))
        raise OSError(errno.EIO, f"injected: {fault}", location)


def faults(run: Callable[[Any], object], real: Files | None = None) -> Iterator[Fault]:
    """Every fault of a run: it is done once without any, through the FaultyFiles that it is given, to see what it does.

    Failures come alone, and as the first of all operations from there on.
    """
    counting = FaultyFiles(real or LocalFiles())
    run(counting)
    assert counting.operations, "the run has no file operations"
    for number, (name, _) in enumerate(counting.operations):
        for kind in Kind:
            yield Fault(number, kind, name)
            if kind in {Kind.FAILS, Kind.ANSWER_LOST}:
                yield Fault(number, kind, name, lasting=True)


def through(table: Table, files: Files) -> Table:
    """The table in a folder, read and committed to through other files."""
    assert isinstance(table.operations, FileSystemOperations)
    return replace(table, state=replace(table.state, files=files), operations=replace(table.operations, files=files))


# -- in Spark tasks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FaultyWriter(ExecutorWriter):
    """Writes local files in Spark tasks until the fault. The tasks count their operations together, in a folder."""

    folder: str = ""
    fault: Fault | None = None

    def write_new(self, location: str, data: bytes) -> None:
        self._do("write_new", location, lambda: ExecutorWriter.write_new(self, location, data))

    def open_new(self, location: str) -> Any:
        return self._do("open_new", location, lambda: ExecutorWriter.open_new(self, location))

    def sync(self, location: str) -> None:
        self._do("sync", location, lambda: ExecutorWriter.sync(self, location))

    @property
    def operations(self) -> list[str]:
        """The names of the operations so far, in order."""
        return [path.read_text() for path in sorted(Path(self.folder).glob("task-*"))]

    def forget(self) -> None:
        """Count from zero."""
        for path in Path(self.folder).glob("task-*"):
            path.unlink()

    def _do(self, name: str, location: str, act: Callable[[], T]) -> T:
        number = 0
        while True:
            try:
                with (Path(self.folder) / f"task-{number:04}").open("x") as note:
                    note.write(name)
                break
            except FileExistsError:
                number += 1
        hit = self.fault is not None and self.fault.number == number
        if hit and self.fault is not None and self.fault.kind is not Kind.ANSWER_LOST:
            raise OSError(errno.EIO, f"injected: {self.fault}", location)
        done = act()
        if hit:
            raise OSError(errno.EIO, f"injected: {self.fault}", location)
        return done


def tasks_use(patch: pytest.MonkeyPatch, writer: ExecutorWriter) -> None:
    """Let the tasks of tables on `FaultyFiles` read local files, and write them by the given writer.

    The driver of a killed process starts no tasks.
    """

    def writer_of(files: object) -> ExecutorWriter:
        if isinstance(files, FaultyFiles) and files.is_killed:
            raise Killed
        return writer

    given: dict[str, Any] = {"executor_writer": writer_of, "executor_reader": lambda _: ExecutorReader()}
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("sparkmeta."):
            for name in given.keys() & vars(module).keys():
                patch.setattr(module, name, given[name])
