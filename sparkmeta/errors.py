"""One family of errors, each also the pyiceberg or Python exception that fits it."""

from __future__ import annotations

import builtins
import re
import reprlib

import pyiceberg.exceptions as iceberg

_SHOWN = 200
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, 60, _SHOWN

_RAISED_BY_PYTHON = re.compile(r"^sparkmeta\.\w+(?:\.\w+)*\.(\w+Error): (.+)$", re.MULTILINE)
_RAISED_BY_SQL = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)

_UNREAD_BY_SPARK = re.compile(r"\[FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (\S+)\.(?=\s)")
_MISSED_BY_SPARK = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (.+?)\.(?: SQLSTATE|$)", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: ([\w.$]+): (?!\[FAILED_READ_FILE)(.+)$", re.MULTILINE)
# What a cause says where a store gave no answer, or not the file: it says nothing of the file's content.
_NO_ANSWER = re.compile(
    r"access|permission|forbidden|credential|auth|timeout|timed out|connect|host|socket|ssl|throttl|slow ?down|"
    r"unavailable|no space|interrupted",
    re.IGNORECASE,
)
_PYTHON_ERROR = re.compile(r"^(\w+Error): (.+)$", re.MULTILINE)


class SparkmetaError(Exception):
    """Base of every error that sparkmeta raises on purpose."""


class ValidationError(SparkmetaError, iceberg.ValidationError):
    """Metadata that is corrupt, or that contradicts itself."""


class CorruptFileError(ValidationError):
    """A file whose content can't be what it says it is.

    Args:
        location: the file, as it was asked for.
        field: what in it is wrong, e.g. ``snapshots[3].snapshot-id``.
        value: what stands there; shown shortened.
        problem: why that can't be.
    """

    def __init__(self, location: str, field: str, value: object, problem: str) -> None:
        self.location = location
        self.field = field if len(field) <= _SHOWN else f"{field[: _SHOWN // 2]}...{field[-_SHOWN // 2 :]}"
        self.value = value if isinstance(value, int | float | None) else _Text(shown(value))
        self.problem = problem
        super().__init__(f"{location}: {field} is {self.value}: {problem}")

    def __reduce__(self) -> tuple[type[CorruptFileError], tuple[str, str, object, str]]:
        return type(self), (self.location, self.field, self.value, self.problem)


class CommitConflictError(ValidationError):
    """What a commit was to change has been changed by another one: trying the same again can't succeed."""


class UnsupportedError(SparkmetaError, NotImplementedError):
    """Something valid that this version of sparkmeta does not do."""


class NoSuchTableError(SparkmetaError, iceberg.NoSuchTableError):
    """No table at that place, or of that name."""


class NoSuchNamespaceError(SparkmetaError, iceberg.NoSuchNamespaceError):
    """No namespace of that name."""


class TableAlreadyExistsError(SparkmetaError, iceberg.TableAlreadyExistsError):
    """A table that was to be created is there already."""


class CommitFailedError(SparkmetaError, iceberg.CommitFailedException):
    """Nothing was committed, for certain: another commit came first, or a write failed. Refresh, and try again."""


class CommitStateUnknownError(SparkmetaError, iceberg.CommitStateUnknownException):
    """A commit may have succeeded, and that could not be found out: nothing that it wrote may be deleted."""


class NoSuchSnapshotError(SparkmetaError, ValueError):
    """No snapshot of that id, name or time."""


class NotFoundError(SparkmetaError, FileNotFoundError):
    """A file that metadata names, or that was asked for, is not there."""


class FileAccessError(SparkmetaError, OSError):
    """A file that could not be opened or read, whatever it holds: no permission, or no answer from its store."""


class FileAlreadyExistsError(SparkmetaError, FileExistsError):
    """A file that was to be made stands there already."""


class InvalidFilterError(SparkmetaError, ValueError):
    """A filter that can't be read, or that does not fit the table's schema."""


class SettingError(SparkmetaError, ValueError):
    """A setting whose name or value can't be used."""


class SessionError(SparkmetaError, RuntimeError):
    """No Spark session can be had."""


def from_spark(error: BaseException) -> SparkmetaError | None:
    """The error of ours that one of Spark's stands for, as it arrives on the driver.

    None where the task failed of something else. What our code raised in a task is that again, a ValidationError for
    those whose parts are not in their message (CorruptFileError), and for what `raise_error` says inside a query. A
    file that Spark's reader or Python could not read is a NotFoundError, a FileAccessError, or, where its content is to
    blame, a ValidationError.
    """
    text = str(error)
    if raised := _RAISED_BY_PYTHON.findall(text):
        name, message = raised[-1]
        kind = globals().get(name, SparkmetaError)
        return ValidationError(message) if kind is CorruptFileError else kind(message)
    if by_sql := _RAISED_BY_SQL.search(text):
        return ValidationError(by_sql.group(1))
    return _unread_by_spark(text) or _raised_by_a_worker(text)


def _unread_by_spark(text: str) -> SparkmetaError | None:
    missed, unread = _MISSED_BY_SPARK.search(text), _UNREAD_BY_SPARK.search(text)
    if missed or unread is None:
        return NotFoundError(f"{missed.group(1)}: there is no such file") if missed else None
    condition, location = unread.groups()
    if condition == "FILE_NOT_EXIST":
        return NotFoundError(f"{location}: there is no such file")
    cause = _CAUSE.search(text, unread.end())
    reason = cause.group(2).strip() if cause else text[unread.end() :].partition("SQLSTATE")[0].strip()
    kind = FileAccessError if cause and _NO_ANSWER.search(" ".join(cause.groups())) else ValidationError
    return kind(f"{location}: Spark can't read the file: {reason or condition}")


def _raised_by_a_worker(text: str) -> SparkmetaError | None:
    """What Python raised in a task for a file that it could not open, or a package that is not there."""
    raised = _PYTHON_ERROR.findall(text) if "Traceback (most recent call last)" in text else []
    for name, message in reversed(raised):
        kind = getattr(builtins, name, Exception)
        if issubclass(kind, ModuleNotFoundError):
            return SessionError(f"Spark's Python workers lack a package: {message}: install sparkmeta where they run")
        if issubclass(kind, OSError):
            return (NotFoundError if issubclass(kind, FileNotFoundError) else FileAccessError)(message)
    return None


class _Text(str):
    """A value that is text for messages already, so that a pickled error shows it as the first one did."""

    __slots__ = ()


def shown(value: object) -> str:
    """The value as text for an error message; of a large one the beginning."""
    if isinstance(value, _Text):
        return value
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}..."
    text = _REPR.repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
