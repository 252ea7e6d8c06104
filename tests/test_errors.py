from __future__ import annotations

import pickle

import pyiceberg.exceptions
import pytest

from sparkmeta.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    CorruptFileError,
    FileAccessError,
    FileAlreadyExistsError,
    InvalidChangeError,
    InvalidFilterError,
    NoSuchNamespaceError,
    NoSuchSnapshotError,
    NoSuchTableError,
    NotFoundError,
    SessionError,
    SparkmetaError,
    TableAlreadyExistsError,
    UnsupportedError,
    ValidationError,
    from_spark,
)


@pytest.mark.parametrize(
    ("kind", "known_as"),
    [
        (ValidationError, pyiceberg.exceptions.ValidationError),
        (CorruptFileError, ValidationError),
        (UnsupportedError, NotImplementedError),
        (NoSuchTableError, pyiceberg.exceptions.NoSuchTableError),
        (NoSuchSnapshotError, ValueError),
        (NotFoundError, FileNotFoundError),
        (FileAccessError, OSError),
        (InvalidChangeError, ValidationError),
        (InvalidChangeError, ValueError),
        (InvalidFilterError, ValueError),
        (FileAlreadyExistsError, FileExistsError),
        (TableAlreadyExistsError, pyiceberg.exceptions.TableAlreadyExistsError),
        (NoSuchNamespaceError, pyiceberg.exceptions.NoSuchNamespaceError),
        (CommitFailedError, pyiceberg.exceptions.CommitFailedException),
        (CommitStateUnknownError, pyiceberg.exceptions.CommitStateUnknownException),
    ],
)
def test_one_family(kind: type[Exception], known_as: type[Exception]) -> None:
    assert issubclass(kind, SparkmetaError)
    assert issubclass(kind, known_as)


@pytest.mark.parametrize(
    "value", [7, None, "text", b"bytes", "x" * 10_000, b"\x00" * 10_000, {"a": [1, {"b": 2}]}, object]
)
def test_a_corrupt_file_is_named_and_travels(value: object) -> None:
    error = CorruptFileError("s3://b/f.avro", "schema.fields[0]", value, "it is wrong")
    assert str(error).startswith("s3://b/f.avro: schema.fields[0] is ")
    assert str(error).endswith(": it is wrong")
    assert len(str(error)) < 1000
    travelled = pickle.loads(pickle.dumps(error))
    assert str(travelled) == str(error)
    assert (travelled.location, travelled.field, travelled.problem) == (
        "s3://b/f.avro",
        "schema.fields[0]",
        "it is wrong",
    )


def test_a_long_field_is_shortened() -> None:
    error = CorruptFileError("f", ".".join(["element"] * 500) + ".id", 1, "p")
    assert len(error.field) < 210
    assert error.field.endswith(".id")


_IN_PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "entries.py", line 10, in read
sparkmeta.errors.{name}: s3://b/f.avro: manifest_length is 3: too short

	at org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [("CorruptFileError", ValidationError), ("NotFoundError", NotFoundError), ("NewerError", SparkmetaError)],
)
def test_an_error_of_a_python_task_is_ours_again(name: str, kind: type[Exception]) -> None:
    error = from_spark(RuntimeError(_IN_PYTHON.format(name=name)))
    assert type(error) is kind
    assert str(error) == "s3://b/f.avro: manifest_length is 3: too short"


@pytest.mark.parametrize(
    "text",
    [
        "[USER_RAISED_EXCEPTION] two deletion vectors for f.parquet SQLSTATE: P0001",
        ": SparkException: in awaitResult\n\tat a\n[USER_RAISED_EXCEPTION] two deletion vectors for f.parquet",
    ],
)
def test_an_error_of_a_query_is_ours_again(text: str) -> None:
    error = from_spark(RuntimeError(text))
    assert type(error) is ValidationError
    assert str(error) == "two deletion vectors for f.parquet"


_UNREAD = """An error occurred while calling o1.collectToPython.
: SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3://b/a%20.parquet.  SQLSTATE: KD001
\tat org.apache.spark.sql.execution.datasources.FileScanRDD
Caused by: {cause}
\tat org.apache.parquet.hadoop.ParquetFileReader.readFooter
Caused by: java.io.EOFException: the last of the causes
"""


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            _UNREAD.format(cause="java.lang.RuntimeException: s3://b/a%20.parquet is not a Parquet file"),
            ValidationError,
            "s3://b/a%20.parquet: Spark can't read the file: s3://b/a%20.parquet is not a Parquet file",
        ),
        (
            _UNREAD.format(cause="java.nio.file.AccessDeniedException: s3://b/a .parquet"),
            FileAccessError,
            "s3://b/a%20.parquet: Spark can't read the file: s3://b/a .parquet",
        ),
        (
            "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:///t/a.parquet. It is",
            NotFoundError,
            "file:///t/a.parquet: there is no such file",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///t/a.parquet.  SQLSTATE: KD001",
            ValidationError,
            "file:///t/a.parquet: Spark can't read the file: NO_HINT",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/t/a b.parquet. SQLSTATE: 42K03",
            NotFoundError,
            "file:/t/a b.parquet: there is no such file",
        ),
    ],
)
def test_a_file_that_spark_can_not_read_is_named(text: str, kind: type[Exception], message: str) -> None:
    error = from_spark(RuntimeError(text))
    assert type(error) is kind
    assert str(error) == message


@pytest.mark.parametrize(
    ("last", "kind", "message"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/t/m.avro'", FileAccessError, "denied: '/t/m.avro'"),
        ("OSError: [Errno 5] Input/output error: '/t/m.avro'", FileAccessError, "error: '/t/m.avro'"),
        ("FileNotFoundError: [Errno 2] No such file: '/t/m.avro'", NotFoundError, "file: '/t/m.avro'"),
        ("ModuleNotFoundError: No module named 'sparkmeta'", SessionError, "No module named 'sparkmeta': install"),
    ],
)
def test_errors_of_python_workers_are_explained(last: str, kind: type[Exception], message: str) -> None:
    text = _IN_PYTHON.format(name="_").replace(
        "sparkmeta.errors._: s3://b/f.avro: manifest_length is 3: too short", last
    )
    error = from_spark(RuntimeError(text))
    assert type(error) is kind
    assert message in str(error)
    assert from_spark(RuntimeError(last)) is None


_STACK = "\n\tat org.apache.hadoop.fs.FileSystem.getFileSystemClass(FileSystem.java:1)\n" * 200


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            'calling o1.load.\n: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"',
            UnsupportedError,
            "Spark has no file system for the scheme s3: open the table through a catalog",
        ),
        (
            ": java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            UnsupportedError,
            "Spark has no file system org.apache.hadoop.fs.s3a.S3AFileSystem: open the table through a catalog",
        ),
        (
            "(java.nio.file.AccessDeniedException) s3a://b/f.avro: getFileStatus",
            FileAccessError,
            "Spark can't open a file: java.nio.file.AccessDeniedException: s3a://b/f.avro: getFileStatus",
        ),
        (
            "An error occurred while calling o1.load.\n: java.net.UnknownHostException: nowhere",
            FileAccessError,
            "Spark can't open a file: java.net.UnknownHostException: nowhere",
        ),
    ],
)
def test_a_store_that_spark_can_not_open(text: str, kind: type[Exception], message: str) -> None:
    error = from_spark(RuntimeError(text + _STACK))
    assert type(error) is kind
    assert str(error).startswith(message)
    assert "\n" not in str(error)


def test_an_error_of_others_is_not_ours() -> None:
    assert from_spark(RuntimeError("java.io.IOException: no space left\nCaused by: sparkmeta.errors: x")) is None
