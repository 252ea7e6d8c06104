"""Define the exceptions of sparkmeta.

Most are also subclasses of a matching exception of pyiceberg or Python.
"""

from __future__ import annotations

import builtins
import re
import reprlib
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

import pyiceberg.exceptions as iceberg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_CHARS = 200
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, 60, _MAX_CHARS

_RAISED_BY_PYTHON = re.compile(r"^sparkmeta\.\w+(?:\.\w+)*\.(\w+Error): (.+)$", re.MULTILINE)
_RAISED_BY_SQL = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)

_FAILED_READ_FILE = re.compile(r"\[FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (\S+)\.(?=\s)")
_PATH_NOT_FOUND = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (.+?)\.(?: SQLSTATE|$)", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: ([\w.$]+): (?!\[FAILED_READ_FILE)(.+)$", re.MULTILINE)
# Words in an error's cause that blame the store, which refused or did not respond, not the content of the file.
_ACCESS_PROBLEM = re.compile(
    r"access|permission|forbidden|credential|auth|timeout|timed out|connect|host|socket|ssl|throttl|slow ?down|"
    r"unavailable|no space|interrupted",
    re.IGNORECASE,
)
_WITHOUT_IDS = (
    "set the table property schema.name-mapping.default, or spark.sparkmeta.data-file-footers to always, which takes "
    "columns by their positions"
)
_NO_FILE_SYSTEM = re.compile(
    r"No FileSystem for scheme \W?([\w+.-]+)|ClassNotFoundException: Class ([\w.$]*FileSystem) not found"
)
_ADD_FILE_SYSTEM = (
    "open the table through a catalog, whose FileIO reads it, or add the file system to Spark: hadoop-aws for s3a"
)
# Errors of Hadoop's file systems, as in the first line of py4j's or Spark Connect's message.
_JAVA_ACCESS_ERROR = re.compile(
    r"^(?::\s|\()?(java\.(?:nio\.file|net)\.\w+Exception|org\.apache\.hadoop\.[\w.$]+Exception|"
    r"software\.amazon\.awssdk\.[\w.$]+Exception)[:)]\s(.+)$",
    re.MULTILINE,
)
_PYTHON_ERROR = re.compile(r"^(\w+Error): (.+)$", re.MULTILINE)


class SparkmetaError(Exception):
    """Base class of all errors that sparkmeta raises."""

    # The message for users of the command line, if the usual message advises a Python call.
    _on_command_line: str | None = None


class ValidationError(SparkmetaError, iceberg.ValidationError):
    """Metadata is corrupt or contradicts itself, or a request contradicts the metadata."""


class CorruptFileError(ValidationError):
    """A file has invalid content.

    Attributes:
        location: The requested file.
        field: The invalid field, such as ``snapshots[3].snapshot-id``.
        value: The value of the field. Long values are truncated.
        problem: What is wrong with the value.
    """

    def __init__(self, location: str, field: str, value: object, problem: str) -> None:
        self.location = location
        half = _MAX_CHARS // 2
        self.field = field if len(field) <= _MAX_CHARS else f"{field[:half]}...{field[-half:]}"
        self.value = value if isinstance(value, int | float | None) else _Text(shown(value))
        self.problem = problem
        super().__init__(f"{location}: {field} is {self.value}: {problem}")

    def __reduce__(self) -> tuple[type[CorruptFileError], tuple[str, str, object, str]]:
        return type(self), (self.location, self.field, self.value, self.problem)


class InvalidChangeError(ValidationError, ValueError):
    """pyiceberg's builders refuse a change of a table's schema, partition spec, sort order, branches or tags."""


class InvalidNameError(ValidationError, ValueError):
    """A name can't be used for a table, view or namespace in this catalog."""


class InvalidArgumentError(ValidationError, ValueError):
    """An argument does not fit the table or the session, such as an unknown column or a time without a zone."""


class CommitConflictError(ValidationError):
    """Another commit changed data that this one depends on. A retry of the same commit can't succeed."""


class UnsupportedError(SparkmetaError, NotImplementedError):
    """The request or the table is valid, but this version of sparkmeta does not support it."""


class NoSessionError(UnsupportedError):
    """Work needs Spark jobs, and the process has no session, like Spark's Python workers."""


class NoSuchTableError(SparkmetaError, iceberg.NoSuchTableError):
    """There is no table at the location or with the name."""


class NoSuchViewError(SparkmetaError, iceberg.NoSuchViewError):
    """There is no view with the name."""


class NoSuchNamespaceError(SparkmetaError, iceberg.NoSuchNamespaceError):
    """There is no namespace with the name."""


class NamespaceAlreadyExistsError(SparkmetaError, iceberg.NamespaceAlreadyExistsError):
    """A namespace to create exists already."""


class NamespaceNotEmptyError(SparkmetaError, iceberg.NamespaceNotEmptyError):
    """A namespace to drop has tables or namespaces."""


class TableAlreadyExistsError(SparkmetaError, iceberg.TableAlreadyExistsError):
    """A table to create exists already."""


class ViewAlreadyExistsError(SparkmetaError, iceberg.ViewAlreadyExistsError):
    """A view to create exists already."""


class CommitFailedError(SparkmetaError, iceberg.CommitFailedException):
    """Nothing was committed, since another commit came first or a write failed. Refresh the table and try again."""


class CommitStateUnknownError(SparkmetaError, iceberg.CommitStateUnknownException):
    """It is unknown whether a commit succeeded. None of the files that it wrote may be deleted."""


class NoSuchSnapshotError(SparkmetaError, ValueError):
    """There is no snapshot with the id or name, or at the time."""


class NotFoundError(SparkmetaError, FileNotFoundError):
    """A file that was requested, or that metadata refers to, does not exist."""


class FileAccessError(SparkmetaError, OSError):
    """A file could not be opened or read, because permission is missing or its store does not respond."""


class EncryptionError(SparkmetaError):
    """An encrypted file can't be decrypted, since its key is missing, wrong or refused, or the file was changed."""


class CatalogError(SparkmetaError, OSError):
    """A catalog refuses a request, fails or does not respond."""


class FileAlreadyExistsError(SparkmetaError, FileExistsError):
    """A file to create exists already."""


class InvalidFilterError(SparkmetaError, ValueError):
    """A filter can't be parsed, or does not fit the table's schema."""


class SettingError(SparkmetaError, ValueError):
    """A setting has an unknown name or an invalid value."""


class SessionError(SparkmetaError, RuntimeError):
    """A Spark session is missing, can't be started, or lacks something that sparkmeta requires."""


ErrorT = TypeVar("ErrorT", bound=SparkmetaError)


def with_command_line_message(error: ErrorT, message: str) -> ErrorT:
    """Set another message for users of the command line, and return the error."""
    error._on_command_line = message
    return error


def command_line_message(error: SparkmetaError) -> str | None:
    """Return the message for users of the command line; None if it is the usual one."""
    return error._on_command_line


def proves_failure(error: BaseException) -> bool:
    """Return whether an error of a commit proves that nothing was committed, so that its files can be deleted.

    All other errors, such as an interrupt, may come after the commit.
    """
    return isinstance(error, SparkmetaError | OSError) and not isinstance(error, CommitStateUnknownError)


def is_from_spark(error: BaseException) -> bool:
    """Return whether Spark raised an error, or the error that it was translated from."""
    return any(type(raised).__module__.startswith(("pyspark.", "py4j.")) for raised in (error, error.__cause__))


def is_conflict(error: BaseException) -> bool:
    """Return whether an error says that other commits came first, so that a new plan may succeed.

    A commit whose metadata file could not be written also raises CommitFailedError.
    """
    if not isinstance(error, CommitFailedError):
        return isinstance(error, CommitConflictError)
    cause = error.__cause__
    # The file of another commit, or the refusal of a catalog, is in the way.
    return not isinstance(cause, OSError) or isinstance(cause, FileExistsError | CatalogError)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that says what is wrong, or else the name of its class."""
    lines = str(error).strip().splitlines()
    # py4j's message begins with the name of a py4j object; the exception of the JVM follows.
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__


def problem_line(error: BaseException) -> str:
    """Return an error in one line. The name of its class precedes the message if it is not an error of this module."""
    known = from_spark(error) or error
    text = " ".join(str(known).splitlines()[:1]) or "no message"
    return text if isinstance(known, SparkmetaError) else f"{type(known).__name__}: {text}"


def is_access_problem(message: str) -> bool:
    """Return whether an error says that a file could not be reached, not that its content is invalid."""
    return _ACCESS_PROBLEM.search(message) is not None


def lacks_file_system(message: str) -> bool:
    """Return whether an error says that Spark has no file system for a scheme, or lacks the file system's class."""
    return _NO_FILE_SYSTEM.search(message) is not None


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate errors that Spark raises within the block into errors of this package, where `from_spark` knows one."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SparkmetaError) or (translated := from_spark(error)) is None:
            raise
        raise translated from error


def from_spark(error: BaseException) -> SparkmetaError | None:
    """Translate an exception of Spark into an error of this module.

    - An error of this module that was raised in a task is returned as the same class, but a CorruptFileError as a
      ValidationError, since its attributes are lost.
    - An error raised by `raise_error` in a query is returned as a ValidationError.
    - A file that Spark or Python could not read is returned as a NotFoundError, a FileAccessError or, if its content is
      invalid, a ValidationError.
    - If Spark has no file system for a file's scheme, an UnsupportedError is returned; if the file's store refused or
      did not respond, a FileAccessError.

    Args:
        error: The exception that Spark raised on the driver.

    Returns:
        The error, or None if the exception has another cause.
    """
    text = str(error)
    if raised := _RAISED_BY_PYTHON.findall(text):
        name, message = raised[-1]
        kind = globals().get(name, SparkmetaError)
        return ValidationError(message) if kind is CorruptFileError else kind(message)
    if by_sql := _RAISED_BY_SQL.search(text):
        return ValidationError(by_sql.group(1))
    return _from_file_reader(text) or _from_python_worker(text) or _from_file_system(text)


def _from_file_reader(text: str) -> SparkmetaError | None:
    missing, failed = _PATH_NOT_FOUND.search(text), _FAILED_READ_FILE.search(text)
    if missing or failed is None:
        return NotFoundError(f"{missing.group(1)}: there is no such file") if missing else None
    condition, location = failed.groups()
    if condition == "FILE_NOT_EXIST":
        return NotFoundError(f"{location}: there is no such file")
    cause = _CAUSE.search(text, failed.end())
    reason = cause.group(2).strip() if cause else text[failed.end() :].partition("SQLSTATE")[0].strip()
    if "expects field Ids" in reason:
        reason = "its columns have no field ids: " + _WITHOUT_IDS
    kind = FileAccessError if cause and is_access_problem(" ".join(cause.groups())) else ValidationError
    return kind(f"{location}: Spark can't read the file: {reason or condition}")


def _from_file_system(text: str) -> SparkmetaError | None:
    """Translate an error of Hadoop's file systems, outside of a file's reader."""
    if (lacking := _NO_FILE_SYSTEM.search(text)) is not None:
        what = f"for the scheme {lacking[1]}" if lacking[1] else lacking[2]
        return UnsupportedError(f"Spark has no file system {what}: {_ADD_FILE_SYSTEM}")
    failed = _JAVA_ACCESS_ERROR.search(text)
    return FileAccessError(f"Spark can't open a file: {': '.join(failed.groups())}") if failed else None


def _from_python_worker(text: str) -> SparkmetaError | None:
    """Translate an error of Python in a task: a file that it could not open, or a missing package."""
    raised = _PYTHON_ERROR.findall(text) if "Traceback (most recent call last)" in text else []
    for name, message in reversed(raised):
        kind = getattr(builtins, name, Exception)
        if issubclass(kind, ModuleNotFoundError):
            return SessionError(f"Spark's Python workers lack a package: {message}: install sparkmeta where they run")
        if issubclass(kind, OSError):
            return (NotFoundError if issubclass(kind, FileNotFoundError) else FileAccessError)(message)
    return None


class _Text(str):
    """A value that `shown` has formatted, so that an unpickled error does not format it again."""

    __slots__ = ()


# An error about an unknown name lists at most this many.
_NAMED = 20


def hint_at(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: similar names, or else the first known names."""
    known = list(names)
    similar = [candidate for candidate in known if candidate.lower() == name.lower()] or get_close_matches(name, known)
    if similar:
        return f": did you mean {' or '.join(map(shown, similar))}?"
    suffix = f" and {len(known) - _NAMED:,} more" if len(known) > _NAMED else ""
    return f", which has {', '.join(map(shown, known[:_NAMED]))}{suffix}" if known else ""


def shown(value: object) -> str:
    """Return a value as text for an error message: times in ISO 8601, long text truncated."""
    if isinstance(value, _Text):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= _MAX_CHARS else f"{value[:_MAX_CHARS]!r}..."
    text = _REPR.repr(value)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
