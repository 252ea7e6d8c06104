"""Read deletion vectors from the ranges of Puffin files that entries name. Light: Spark tasks import this."""

from __future__ import annotations

from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.bitmap import PositionBitmap, read_deletion_vector
from sparkmeta.storage.content import FileRange, RangeReader


def stored_vector(
    reader: RangeReader, location: str, offset: int | None, size: int | None, record_count: int
) -> PositionBitmap:
    """Read a deletion vector.

    Args:
        reader: Opens the Puffin file.
        location: The Puffin file.
        offset: The entry's content_offset.
        size: The entry's content_size_in_bytes.
        record_count: The entry's record_count.

    Raises:
        NotFoundError: The file is missing.
        CorruptFileError: The entry does not say where the vector is, or the vector is not there.
    """
    file_range = vector_range(location, offset, size)
    return vector_of(reader.read_range(*file_range), file_range, record_count)


def vector_range(location: str, offset: int | None, size: int | None) -> FileRange:
    """Return the range with a deletion vector. Raises CorruptFileError if its entry does not say where it is."""
    for name, value in (("content_offset", offset), ("content_size_in_bytes", size)):
        if value is None or value < 0:
            raise CorruptFileError(location, name, value, "a deletion vector's entry must say where it is")
    assert offset is not None
    assert size is not None
    return FileRange(location, offset, size)


def vector_of(blob: bytes, file_range: FileRange, record_count: int) -> PositionBitmap:
    """Return the positions in the bytes of a deletion vector.

    Raises:
        CorruptFileError: The file ends too early, or the bytes are not this deletion vector.
    """
    if len(blob) != file_range.size:
        problem = f"{file_range.size} bytes there are not all in the file"
        raise CorruptFileError(file_range.location, "content_offset", file_range.offset, problem)
    return read_deletion_vector(blob, file_range.location, record_count)
