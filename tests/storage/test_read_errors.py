"""Readers tell damaged files from files that could not be read."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkmeta.errors import CorruptFileError, FileAccessError, NotFoundError
from sparkmeta.manifests.v4.decode import RangedFile
from sparkmeta.manifests.v4.layout import open_manifest
from sparkmeta.storage.content import translated_read_errors
from sparkmeta.storage.files import LocalFiles
from tests.faults import Fault, FaultyFiles, Kind


def test_a_leaf_that_can_not_be_read_is_not_damaged(tmp_path: Path) -> None:
    location = str(tmp_path / "leaf.parquet")
    pq.write_table(pa.table({"a": range(10)}), location)
    files = FaultyFiles(fault=Fault(0, Kind.FAILS, "read"))
    source = pa.PythonFile(RangedFile(files, location, Path(location).stat().st_size), "r")
    with pytest.raises(FileAccessError, match=r"leaf.parquet: .*injected"), open_manifest(source, location):
        pytest.fail("the file was read")


def test_damage(tmp_path: Path) -> None:
    location = str(tmp_path / "leaf.parquet")
    Path(location).write_bytes(b"PAR1" + bytes(60) + b"PAR1")
    source = pa.PythonFile(RangedFile(LocalFiles(), location, 68), "r")
    says = r"leaf.parquet: file is .*: not a Parquet file: "
    with pytest.raises(CorruptFileError, match=says), open_manifest(source, location):
        pytest.fail("the file was read")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(errno.EIO, "Input/output error"), FileAccessError),
        (PermissionError(errno.EACCES, "Permission denied"), FileAccessError),
        (OSError("AWS Error NETWORK_CONNECTION: curlCode: 28, Timeout was reached"), FileAccessError),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), NotFoundError),
        (OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"), CorruptFileError),
        (pa.ArrowInvalid("Parquet magic bytes not found in footer"), CorruptFileError),
        (ValueError("connection"), CorruptFileError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value)[:20],
)
def test_errors_of_readers(raised: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected, match=r"^s3://bucket/file: ") as error, translated_read_errors("s3://bucket/file"):
        raise raised
    assert error.type is expected


def test_errors_of_sparkmeta_stay() -> None:
    refused = NotFoundError("s3://bucket/file: there is no such file")
    with pytest.raises(NotFoundError) as error, translated_read_errors("s3://bucket/other"):
        raise refused
    assert error.value is refused
