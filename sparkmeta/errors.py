"""One family of errors, each also the pyiceberg or Python exception that fits it."""

from __future__ import annotations

import re
import reprlib

import pyiceberg.exceptions as iceberg

_SHOWN = 200
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, 60, _SHOWN

_RAISED_BY_PYTHON = re.compile(r"^sparkmeta\.\w+(?:\.\w+)*\.(\w+Error): (.+)$", re.MULTILINE)
_RAISED_BY_SQL = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


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


class FileAlreadyExistsError(SparkmetaError, FileExistsError):
    """A file that was to be made stands there already."""


class InvalidFilterError(SparkmetaError, ValueError):
    """A filter that can't be read, or that does not fit the table's schema."""


class SettingError(SparkmetaError, ValueError):
    """A setting whose name or value can't be used."""


class SessionError(SparkmetaError, RuntimeError):
    """No Spark session can be had."""


def from_spark(error: BaseException) -> SparkmetaError | None:
    """The error of ours that a Spark task raised, out of the one of Spark's that it arrives in on the driver.

    None where the task failed of something else. A ValidationError stands for each whose parts are not in its message
    (CorruptFileError), and for what `raise_error` says inside a query.
    """
    text = str(error)
    if raised := _RAISED_BY_PYTHON.findall(text):
        name, message = raised[-1]
        kind = globals().get(name, SparkmetaError)
        return ValidationError(message) if kind is CorruptFileError else kind(message)
    by_sql = _RAISED_BY_SQL.search(text)
    return ValidationError(by_sql.group(1)) if by_sql else None


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
