"""Read columns and transforms in text, such as `id DESC NULLS LAST` and `bucket(16, name)`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyiceberg import transforms
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.types import PrimitiveType

from sparkmeta.errors import ValidationError, hint_at, shown
from sparkmeta.spec.schema import path_to
from sparkmeta.spec.transforms import ColumnsBucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.schema import Schema
    from pyiceberg.transforms import Transform
    from pyiceberg.types import NestedField

_TERM: Final = re.compile(
    r"(?P<term>.+?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE | re.DOTALL
)
# A part of a column's name, with its backquotes.
_QUOTED: Final = re.compile(r"`((?:[^`]|``)*)`")
CALL: Final = re.compile(rf"(?P<name>\w+)\s*\((?P<arguments>(?:{_QUOTED.pattern}|[^()`])*)\)")
_PERIODS: Final[tuple[Transform[Any, Any], ...]] = (
    transforms.YearTransform(), transforms.MonthTransform(), transforms.DayTransform(), transforms.HourTransform(),
)  # fmt: skip
# The names of transforms in partition specs, and of functions in Spark.
_UNSIZED: Final[dict[str, Transform[Any, Any]]] = {
    "identity": transforms.IdentityTransform(),
    **{name: period for period in _PERIODS for name in (str(period), f"{period}s")},
    "void": transforms.VoidTransform(),
}
_SIZED: Final[dict[str, Any]] = {"bucket": transforms.BucketTransform, "truncate": transforms.TruncateTransform}
# A transform without its column, as text and in the form of partition specs.
_TRANSFORM: Final = re.compile(r"\s*(?P<name>\w+)\s*(?:\(\s*(?P<size>\d+)\s*\)|\[\s*(?P<size_in_spec>\d+)\s*\])?\s*")
_MAX_SIZE: Final = (1 << 31) - 1
_KNOWN: Final = "transforms: identity, bucket(N), truncate(W), year, month, day, hour, void"


def parts_of(text: str) -> Iterator[str]:
    """Split a text at the commas that are not in parentheses or backquotes, and yield the parts."""
    depth, start, is_quoted = 0, 0, False
    for index, character in enumerate(text):
        is_quoted ^= character == "`"
        if is_quoted:
            continue
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


def transform_of(transform: Any) -> Transform[Any, Any]:
    """Return a transform without its column: `bucket(16)`, `bucket[16]`, `day`, `days`, or a transform of pyiceberg.

    Raises:
        ValueError: there is no such transform.
    """
    if isinstance(transform, transforms.Transform) and not isinstance(transform, transforms.UnknownTransform):
        return transform
    match = _TRANSFORM.fullmatch(transform) if isinstance(transform, str) else None
    known = match and _named(match["name"], match["size"] or match["size_in_spec"])
    if known is None:
        text = str(transform) if isinstance(transform, transforms.Transform) else transform
        raise ValueError(f"{shown(text)} is not a transform; {_KNOWN}")
    return known


def _named(name: str, size: str | None) -> Transform[Any, Any] | None:
    if size is None:
        return _UNSIZED.get(name.lower())
    make = _SIZED.get(name.lower())
    return make(int(size)) if make is not None and 0 < int(size) <= _MAX_SIZE else None


@dataclass(frozen=True)
class Terms:
    """Terms of a schema: columns and their transforms.

    All methods raise ValidationError for a column that the schema lacks, or that a transform does not support.

    Attributes:
        schema: the schema.
        where: where the terms are, for error messages: the option and its value.
        use: what the columns are for, for error messages.
        case_sensitive: whether the names of columns are case-sensitive.
    """

    schema: Schema
    where: str
    use: str = "sorted"
    case_sensitive: bool = True

    def sort_field(self, text: str) -> SortField:
        """Return the sort field in a text, such as `id DESC NULLS LAST`."""
        match = _TERM.fullmatch(text)
        if match is None:
            raise ValidationError(f"{self.where}: a part of it is empty")
        column, transform = self.transformed(match["term"])
        direction = SortDirection.DESC if (match["direction"] or "").lower() == "desc" else SortDirection.ASC
        nulls = match["nulls"] or ("first" if direction == SortDirection.ASC else "last")
        null_order = NullOrder.NULLS_FIRST if nulls.lower() == "first" else NullOrder.NULLS_LAST
        return SortField(source_id=column.field_id, transform=transform, direction=direction, null_order=null_order)

    def transformed(self, term: str) -> tuple[NestedField, Transform[Any, Any]]:
        """Return the first column in a text such as `bucket(16, name)`, and the transform."""
        call = CALL.fullmatch(term)
        if call is None:
            return self.column(term), transforms.IdentityTransform()
        arguments = list(parts_of(call["arguments"]))
        sizes = [argument for argument in arguments if argument.isdecimal()]
        columns = [argument for argument in arguments if not argument.isdecimal()]
        transform = _named(call["name"], sizes[0] if sizes else None) if len(sizes) < 2 else None
        bucket = transform if len(columns) > 1 and isinstance(transform, transforms.BucketTransform) else None
        if transform is None or not (bucket or len(columns) == 1):
            raise ValidationError(f"{self.where}: {term} is not a transform of a column; {_KNOWN}")
        fields = [self.column(name) for name in columns]
        for field in fields:
            self.check(field, transform)
        if bucket is None:
            return fields[0], transform
        ids = [field.field_id for field in fields]
        if len(set(ids)) < len(ids):
            raise ValidationError(f"{self.where}: a column of {term} occurs twice")
        return fields[0], ColumnsBucket(bucket.num_buckets, ids)

    def column(self, name: str) -> NestedField:
        """Return a primitive column that is not in a list or map."""
        unquoted = _QUOTED.sub(lambda part: part[1].replace("``", "`"), name)
        try:
            field = self.schema.find_field(unquoted, self.case_sensitive)
        except ValueError:
            problem = f"no column {shown(unquoted)} in the table{hint_at(unquoted, self.schema.column_names)}"
            raise ValidationError(f"{self.where}: {problem}") from None
        self.check(field, transforms.IdentityTransform())
        return field

    def check(self, column: NestedField, transform: Transform[Any, Any]) -> None:
        """Raise ValidationError for a column that has no order or does not support the transform."""
        is_in_structs = all(parent.field_type.is_struct for parent in path_to(self.schema, column.field_id)[:-1])
        problem = None
        if not isinstance(column.field_type, PrimitiveType) or not is_in_structs:
            name = self.schema.find_column_name(column.field_id)
            problem = f"column {name} of type {column.field_type} can't be {self.use} by"
        elif not transform.can_transform(column.field_type):
            problem = f"values of type {column.field_type} have no transform {transform}"
        if problem:
            raise ValidationError(f"{self.where}: {problem}")
