"""Read and write files in Spark tasks. Light: tasks import this."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkmeta.storage import writing
from sparkmeta.storage.content import (
    NO_FILE,
    io_length,
    local_length,
    missing,
    open_io,
    read_io,
    read_io_range,
    read_local,
    read_local_range,
)
from sparkmeta.storage.encryption import FileKeys
from sparkmeta.storage.location import is_local, local_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.io import FileIO

    from sparkmeta.storage.writing import DeleteFailure


@dataclass(frozen=True)
class ExecutorReader:
    """A reader of files in Spark tasks: of local files by ``open``, of others by a FileIO with the given properties.

    It decrypts the streams whose keys it has learned. It does not decrypt Parquet files.
    """

    # The properties may contain credentials.
    io_properties: dict[str, str] | None = field(default=None, repr=False)
    keys: FileKeys = field(default_factory=FileKeys, repr=False, compare=False, kw_only=True)
    _io: list[Any] = field(default_factory=list, repr=False, compare=False)

    def read(self, location: str) -> bytes:
        """Return the content of a file. Raises NotFoundError."""
        content = read_local(location) if is_local(location) else read_io(self._opened(location), location)
        stream = self.keys.stream_of(location)
        return content if stream is None else stream.decrypted(content)

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        """Return a range of a file, up to its end. Raises NotFoundError."""
        read = partial(read_local_range, location)
        if not is_local(location):
            read = partial(read_io_range, self._opened(location), location)
        stream = self.keys.stream_of(location)
        return read(offset, size) if stream is None else stream.read_range(read, offset, size)

    def open(self, location: str) -> pa.NativeFile:
        """Open a file as an Arrow file that can be read at any offset. Raises NotFoundError."""
        import pyarrow as pa

        if self.keys.stream_of(location) is not None:
            return pa.BufferReader(self.read(location))
        if is_local(location):
            try:
                return pa.OSFile(local_path(location))
            except NO_FILE:
                missing(location)
        stream: Any = open_io(self._opened(location), location)
        return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")

    def length(self, location: str) -> int:
        """Return the length of a file in bytes. Raises NotFoundError."""
        if (stream := self.keys.stream_of(location)) is not None:
            return stream.length
        return local_length(location) if is_local(location) else io_length(self._opened(location), location)

    def walk(self, folder: str, *, recursive: bool) -> Iterator[pa.RecordBatch]:
        """Yield the files in a folder, none if it is missing; see `walk_local`."""
        # The module imports pyarrow, which not all tasks need.
        from sparkmeta.storage.walk import walk_io, walk_local

        if is_local(folder):
            return walk_local(folder, recursive=recursive)
        return walk_io(self._opened(folder), folder, recursive=recursive)

    def __reduce__(self) -> tuple[type[ExecutorReader], tuple[dict[str, str] | None]]:
        return ExecutorReader, (self.io_properties,)

    def _opened(self, location: str) -> FileIO:
        if not self._io:
            from pyiceberg.io import load_file_io

            self._io.append(load_file_io(self.io_properties or {}, location))
        io: FileIO = self._io[0]
        return io


@dataclass(frozen=True)
class ExecutorWriter:
    """A writer of files in Spark tasks."""

    io_properties: dict[str, str] | None = field(default=None, repr=False)

    def write_new(self, location: str, data: bytes) -> None:
        """Write a file with a unique name. A crash leaves only files for which ``writing.is_temporary`` is true."""
        if is_local(location):
            writing.write_new_local(location, data)
        else:
            writing.write_io(self._io(location), location, data)

    def write_temporary(self, location: str, data: bytes) -> None:
        """Write a file with a unique name, without syncing it. A crash may tear it; nothing may need it afterwards."""
        if is_local(location):
            with writing.open_new_local(location) as stream:
                stream.write(data)
        else:
            writing.write_io(self._io(location), location, data)

    def open_new(self, location: str) -> Any:
        """Begin a file with a unique name, for Arrow's writers. Call `sync` at its end.

        A crash leaves a torn file of this name.
        """
        if is_local(location):
            return writing.open_new_local(location)
        return writing.open_new_io(self._io(location), location)

    def sync(self, location: str) -> None:
        """Sync a complete file to disk. A file on a store is durable already."""
        if is_local(location):
            writing.sync_local(location)

    def overwrite(self, location: str, data: bytes) -> None:
        """Write a file atomically, replacing an existing one."""
        if is_local(location):
            writing.overwrite_local(location, data)
        else:
            writing.write_io(self._io(location), location, data)

    def delete_many(self, locations: Sequence[str]) -> list[DeleteFailure]:
        """Delete files, several at a time, and return the failures. Missing files are ignored."""
        local = [location for location in locations if is_local(location)]
        stored = [location for location in locations if not is_local(location)]
        failures = writing.failures(map(writing.delete_local, local))
        return failures + (writing.delete_io_many(self._io(stored[0]), stored) if stored else [])

    def _io(self, location: str) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(self.io_properties or {}, location)
