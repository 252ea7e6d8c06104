"""Find the partition of an existing data file from its folders and column bounds. Spark tasks import this module."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa
from pyiceberg.transforms import IdentityTransform, VoidTransform

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.columns.literals import bound_value
from sparkmeta.commit.partition_folders import NULL_FOLDERS, assignments, folder_value, readings
from sparkmeta.errors import ValidationError, shown

if TYPE_CHECKING:
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType

    from sparkmeta.data_files.footer_facts import Facts

_FLOATS: Final = ("float", "double")
_ZONED: Final = ("timestamptz", "timestamptz_ns")
# Stands for a value that column bounds do not prove.
_UNKNOWN: Final = object()
# How names of folders are compared: with case, and without.
_KEYS: Final[tuple[Callable[[str], str], ...]] = (str, str.lower)


@dataclass(frozen=True)
class FilePartitions:
    """Finds the partitions of files. Picklable.

    Attributes:
        fields: the fields of the partition spec.
        names: the names of columns by field id.
        defaults: the initial defaults of columns, in bound form, by field id.
        columns: the ids of all top-level columns by name.
        case_sensitive: whether the names of folders are compared with case.
    """

    fields: tuple[FileField, ...]
    names: Mapping[int, str]
    defaults: Mapping[int, Any]
    columns: Mapping[str, int]
    case_sensitive: bool
    _of_folders: dict[tuple[str, str], list[Any]] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def floats(self) -> frozenset[int]:
        """The ids of the floating-point partition source columns."""
        return frozenset(field.source for field in self.fields if field.is_identity and field.type in _FLOATS)

    def in_folders(self, location: str) -> frozenset[int]:
        """Return the ids of the columns whose values the folders of a file give.

        Raises:
            ValidationError: folders are ambiguous.
        """
        given = self._folders(location).given
        return frozenset(self.fields[place].source for place in given if self.fields[place].is_identity)

    def values(self, location: str, facts: Mapping[int, Facts], present: frozenset[int]) -> tuple[Any, ...]:
        """Return the partition values of a file, in bound form.

        Args:
            location: the file.
            facts: metrics of its columns, by field id.
            present: ids of the table's columns that are in the file.

        Raises:
            ValidationError: a value can't be determined, rows differ in it, a folder contradicts the rows, or a folder
                names a value that the rows would lack.
        """
        folders = self._folders(location)
        self._refuse_unused(folders, location, present)
        return tuple(
            self._value(field, location, folders.given.get(place), facts, present)
            for place, field in enumerate(self.fields)
        )

    def _folders(self, location: str) -> _Folders:
        given: dict[int, _Folder] = {}
        others = []
        for names, text in assignments(location.rpartition("/")[0]):
            folder = _Folder(names, text)
            places = self._places(names)
            if len(places) > 1:
                fields = " and ".join(self.fields[place].name for place in places)
                raise ValidationError(f"{location}: folder {folder} may be of the partition fields {fields}")
            if not places:
                others.append(folder)
                continue
            other = given.get(places[0], folder)
            if other.names != names and other.text != text:
                problem = f"are both of the partition field {self.fields[places[0]].name}"
                raise ValidationError(f"{location}: folders {other} and {folder} {problem}")
            # Of folders of one name, the innermost counts: outer ones may be of the place where the files lie.
            given[places[0]] = folder
        return _Folders(given, others)

    def _places(self, names: Sequence[str]) -> Sequence[int]:
        """Return the places of the partition fields that a folder's name may mean; of the same case, if any."""
        for key in _KEYS[: 1 if self.case_sensitive else 2]:
            wanted = {*map(key, names)}
            places = [place for place, field in enumerate(self.fields) if wanted.intersection(map(key, field.folders))]
            if places:
                return places
        return ()

    def _refuse_unused(self, folders: _Folders, location: str, present: frozenset[int]) -> None:
        """Raise ValidationError if a folder that gives no partition value seems to have a value that the rows lack."""
        key = _KEYS[0 if self.case_sensitive else 1]
        columns = {key(name): field_id for name, field_id in self.columns.items()}
        unknown = []
        for folder in folders.others:
            of_column = [columns[name] for name in map(key, folder.names) if name in columns]
            if not of_column:
                unknown.append(folder)
            elif not present.intersection(of_column):
                problem = "the file lacks this column, which is no identity field of the table's partition spec"
                raise ValidationError(f"{location}: folder {folder}: {problem}")
        for place, field in enumerate(self.fields):
            if unknown and field.is_identity and place not in folders.given and field.source not in present:
                problem = f"no partition field has this name, and the file lacks column {self.names[field.source]}"
                expected = " or ".join(f"{name}=..." for name in field.folders)
                raise ValidationError(f"{location}: folder {unknown[0]}: {problem}: expected a folder {expected}")

    def _value(
        self,
        field: FileField,
        location: str,
        folder: _Folder | None,
        facts: Mapping[int, Facts],
        present: frozenset[int],
    ) -> Any:
        if isinstance(field.transform, VoidTransform):
            return None
        by_folder = [] if folder is None else self._by_folder(field, folder, location)
        known = facts.get(field.source)
        if field.source in present:
            proven = self._proven(field, location, known, has_folder=bool(by_folder))
        elif by_folder and field.is_identity:
            return by_folder[0]
        else:
            # For transforms other than identity, readers use the column's default, not the folder's value.
            default = self.defaults.get(field.source)
            proven = None if default is None else field.of(default)
        if not by_folder:
            return proven
        if proven is _UNKNOWN:
            return by_folder[0]
        if not any(proven == value or (_is_nan(proven) and _is_nan(value)) for value in by_folder):
            problem = f"is {_shown(by_folder[0])} according to the file's folder, but {_shown(proven)} in its rows"
            raise ValidationError(f"{location}: partition field {field.name} {problem}")
        return proven

    def _by_folder(self, field: FileField, folder: _Folder, location: str) -> list[Any]:
        key = (field.name, folder.text)
        if key not in self._of_folders:
            self._of_folders[key] = _by_folder(field, folder, location)
        return self._of_folders[key]

    def _proven(self, field: FileField, location: str, facts: Facts | None, *, has_folder: bool) -> Any:
        """Return the partition value of all rows; `_UNKNOWN` if only the folder gives it."""
        column, transform = self.names[field.source], field.transform
        if facts is not None:
            if not facts.values or facts.nulls == facts.values:
                return _UNKNOWN if has_folder and not facts.values else None
            _refuse_mixed(facts, field, column, location)
            if facts.nans:
                return math.nan
        if facts is None or not _is_bounded(facts, field):
            if has_folder:
                return _UNKNOWN
            problem = f"there are no bounds and counts of column {column}, and no folder {field.name}=..."
            raise _undetermined(location, field, problem)
        if facts.least == facts.most and not _is_zero(facts.least, facts.most):
            return field.of(facts.least)
        if not transform.preserves_order:
            if has_folder:
                return _UNKNOWN
            problem = f"{transform} of values from {shown(facts.least)} to {shown(facts.most)} of column {column}"
            raise _undetermined(location, field, problem)
        least, most = field.of(facts.least), field.of(facts.most)
        if least != most or _is_zero(least, most):
            raise ValidationError(
                f"{location}: rows are of several partitions: {field.name} is {transform} of column {column}, whose "
                f"values are from {shown(facts.least)} to {shown(facts.most)}"
            )
        return least

    def tuples(self, rows: Sequence[tuple[Any, ...] | None]) -> list[pa.Array]:
        """Return the values of each field, of `bound_arrow_type`; null for a row without a partition."""
        return [
            _array([None if row is None else row[place] for row in rows], field.type)
            for place, field in enumerate(self.fields)
        ]


@dataclass(frozen=True)
class _Folder:
    """A folder `name=value` above a file.

    Attributes:
        names: the names that it may have.
        text: its value, escaped.
    """

    names: Sequence[str]
    text: str

    def __str__(self) -> str:
        return f"{self.names[0]}={self.text}"


@dataclass(frozen=True)
class _Folders:
    """The folders `name=value` above a file.

    Attributes:
        given: those that give the value of a partition field, by the field's place.
        others: the other ones.
    """

    given: Mapping[int, _Folder]
    others: Sequence[_Folder]


@dataclass(frozen=True)
class FileField:
    """A field of the partition spec.

    Attributes:
        name: its name.
        folders: the names of the folders that give its values.
        source: the id of its column.
        transform: its transform.
        source_type: the type of the column.
        type: the Iceberg type name of its values.
    """

    name: str
    folders: tuple[str, ...]
    source: int
    transform: Transform[Any, Any]
    source_type: IcebergType
    type: str

    @property
    def is_identity(self) -> bool:
        """Whether the transform is identity."""
        return isinstance(self.transform, IdentityTransform)

    def of(self, value: Any) -> Any:
        """Return the partition value of a value of the column."""
        return bound_value(self.transform.transform(self.source_type)(value))


def _is_zero(least: Any, most: Any) -> bool:
    """Return whether the bounds are -0.0 and 0.0, which are equal but belong to different partitions."""
    return isinstance(least, float) and least == most and math.copysign(1, least) != math.copysign(1, most)


def _refuse_mixed(facts: Facts, field: FileField, column: str, location: str) -> None:
    for count, value in ((facts.nulls, "null"), (facts.nans, "NaN")):
        if count and count < facts.values:
            some = f"{count} of {facts.values} values of column {column} are {value}"
            raise ValidationError(f"{location}: rows are of several partitions of {field.name}: {some}")


def _is_bounded(facts: Facts, field: FileField) -> bool:
    """Return whether all values of a column are known to be null or within its bounds."""
    is_counted = facts.nulls is not None and (facts.nans is not None or field.type not in _FLOATS)
    return is_counted and facts.least is not None


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _undetermined(location: str, field: FileField, problem: str) -> ValidationError:
    return ValidationError(f"{location}: the value of partition field {field.name} can't be determined: {problem}")


def _shown(value: Any) -> str:
    return "null" if value is None else shown(value)


def _by_folder(field: FileField, folder: _Folder, location: str) -> list[Any]:
    """Return the values that a folder name may stand for, the most likely first.

    Iceberg writes null as `null`; Spark and Hive do not.
    """
    kind = bound_arrow_type(field.type)
    values: list[Any] = []
    for text in readings(folder.text):
        if field.type == "string" and text == NULL_FOLDERS[0]:
            values.append(text)
        with suppress(ValueError, ArithmeticError, pa.ArrowException):
            values.append(bound_value(_parsed(text, field, kind)))
    if not values:
        # Spark writes times in the session's time zone, which the folder name does not contain.
        hint = ": expected an offset from UTC, such as +00:00" if field.type in _ZONED else ""
        raise ValidationError(f"{location}: folder {folder}: can't be parsed as {field.type}{hint}")
    return values


def _parsed(text: str, field: FileField, kind: pa.DataType) -> Any:
    if text in NULL_FOLDERS:
        return None
    if field.type == "uuid":
        return UUID(text)
    if field.type.startswith("decimal"):
        number = Decimal(text)
        return Decimal(str(pa.scalar(number).cast(kind).as_py()))
    if pa.types.is_binary(kind) or field.type == "time":
        raise ValueError(f"{field.type} is in no folder's name")
    if field.type.startswith("timestamp"):
        unit = "ns" if field.type.endswith("_ns") else "us"
        return pa.scalar(text).cast(pa.timestamp(unit, "UTC" if field.type in _ZONED else None)).value
    return folder_value(text, field.transform, kind)


def _array(values: Sequence[Any], type_name: str) -> pa.Array:
    kind = bound_arrow_type(type_name)
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, kind)
