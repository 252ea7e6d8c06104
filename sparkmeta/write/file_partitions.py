"""Find the partition of an existing data file from its folders and column bounds. Spark tasks import this module."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa
from pyiceberg.transforms import IdentityTransform, VoidTransform

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.columns.literals import bound_value
from sparkmeta.commit.partition_folders import NULL_FOLDERS, folder_value, named_folders, readings
from sparkmeta.errors import ValidationError, shown

if TYPE_CHECKING:
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType

    from sparkmeta.data_files.footer_facts import Facts

_FLOATS: Final = ("float", "double")
_ZONED: Final = ("timestamptz", "timestamptz_ns")
# Stands for a value that column bounds do not prove.
_UNKNOWN: Final = object()


@dataclass(frozen=True)
class FilePartitions:
    """Finds the partitions of files. Picklable.

    Attributes:
        fields: the fields of the partition spec.
        names: the names of columns by field id.
        defaults: the initial defaults of columns, in bound form, by field id.
    """

    fields: tuple[FileField, ...]
    names: Mapping[int, str]
    defaults: Mapping[int, Any]
    _of_folders: dict[tuple[str, str], list[Any]] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def floats(self) -> frozenset[int]:
        """The ids of the floating-point partition source columns."""
        return frozenset(field.source for field in self.fields if field.is_identity and field.type in _FLOATS)

    def in_folders(self, location: str) -> frozenset[int]:
        """Return the ids of the columns whose values the folders of a file give."""
        folders = named_folders(location.rpartition("/")[0])
        return frozenset(field.source for field in self.fields if field.is_identity and field.name in folders)

    def values(self, location: str, facts: Mapping[int, Facts], present: frozenset[int]) -> tuple[Any, ...]:
        """Return the partition values of a file, in bound form.

        Args:
            location: the file.
            facts: metrics of its columns, by field id.
            present: ids of the table's columns that are in the file.

        Raises:
            ValidationError: a value can't be determined, rows differ in it, or a folder contradicts the rows.
        """
        folders = named_folders(location.rpartition("/")[0])
        return tuple(self._value(field, location, folders, facts, present) for field in self.fields)

    def _value(
        self,
        field: FileField,
        location: str,
        folders: Mapping[str, str],
        facts: Mapping[int, Facts],
        present: frozenset[int],
    ) -> Any:
        if isinstance(field.transform, VoidTransform):
            return None
        by_folder = self._by_folder(field, folders[field.name], location) if field.name in folders else []
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

    def _by_folder(self, field: FileField, escaped: str, location: str) -> list[Any]:
        key = (field.name, escaped)
        if key not in self._of_folders:
            self._of_folders[key] = _by_folder(field, escaped, location)
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
class FileField:
    """A field of the partition spec.

    Attributes:
        name: its name.
        source: the id of its column.
        transform: its transform.
        source_type: the type of the column.
        type: the Iceberg type name of its values.
    """

    name: str
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


def _by_folder(field: FileField, escaped: str, location: str) -> list[Any]:
    """Return the values that a folder name may stand for, the most likely first.

    Iceberg writes null as `null`; Spark and Hive do not.
    """
    kind = bound_arrow_type(field.type)
    values: list[Any] = []
    for text in readings(escaped):
        if field.type == "string" and text == NULL_FOLDERS[0]:
            values.append(text)
        with suppress(ValueError, ArithmeticError, pa.ArrowException):
            values.append(bound_value(_parsed(text, field, kind)))
    if not values:
        # Spark writes times in the session's time zone, which the folder name does not contain.
        hint = ": expected an offset from UTC, such as +00:00" if field.type in _ZONED else ""
        raise ValidationError(f"{location}: folder {field.name}={escaped}: can't be parsed as {field.type}{hint}")
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
