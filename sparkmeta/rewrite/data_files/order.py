"""Sort orders that a rewrite is given: as objects, or as text that Iceberg's procedure takes.

The text is `id DESC NULLS LAST, bucket(16, name)`, or `zorder(x, y)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyiceberg import transforms
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.types import PrimitiveType

from sparkmeta.errors import ValidationError, shown
from sparkmeta.rewrite.data_files.curve import MOST_COLUMNS
from sparkmeta.write.input import way_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.schema import Schema
    from pyiceberg.transforms import Transform
    from pyiceberg.types import NestedField

    from sparkmeta.spec.metadata import TableMetadata

_TERM: Final = re.compile(
    r"(?P<term>.+?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE | re.DOTALL
)
# A part of a column's name, with its backquotes.
_QUOTED: Final = re.compile(r"`((?:[^`]|``)*)`")
_CALL: Final = re.compile(rf"(?P<name>\w+)\s*\((?P<arguments>(?:{_QUOTED.pattern}|[^()`])*)\)")
_UNSIZED: Final[tuple[Transform[Any, Any], ...]] = (
    transforms.IdentityTransform(), transforms.YearTransform(), transforms.MonthTransform(),
    transforms.DayTransform(), transforms.HourTransform(),
)  # fmt: skip
# As in partition specs, and as functions of Spark.
_PLAIN: Final = {name: transform for transform in _UNSIZED for name in (str(transform), f"{transform}s")}
_Identity = transforms.IdentityTransform
_SIZED: Final[dict[str, Any]] = {"bucket": transforms.BucketTransform, "truncate": transforms.TruncateTransform}
_ZORDER: Final = "zorder"


@dataclass(frozen=True)
class RowOrder:
    """The order of the rows of new files.

    Attributes:
        order: the sort order, unsorted if there are curve columns; its id is 0 unless the table has the same order.
        curve: the columns of a z-order, without those that are the same in all rows of a partition.
    """

    order: SortOrder
    curve: tuple[NestedField, ...] = ()


def row_order(metadata: TableMetadata, wanted: SortOrder | str | None) -> RowOrder:
    """Return the order that an option of a rewrite names; None is the table's sort order.

    Raises:
        ValidationError: the table has no sort order, or the order is of another type or not one of the table's columns.
    """
    if wanted is None:
        order = metadata.sort_order()
        if not order.fields:
            problem = "the table has no sort order: give sort_order, or use the strategy binpack"
            raise ValidationError(f"{metadata.location}: {problem}")
        return RowOrder(order)
    if isinstance(wanted, SortOrder):
        return RowOrder(_checked(metadata, wanted))
    if not isinstance(wanted, str):
        raise ValidationError(f"sort_order is {shown(wanted)}: expected text, or a SortOrder of pyiceberg")
    schema, terms = metadata.schema(), list(_terms(wanted))
    calls = [_CALL.fullmatch(term) for term in terms]
    curves = [call for call in calls if call is not None and call["name"].lower() == _ZORDER]
    if not curves:
        return RowOrder(_known(metadata, tuple(_field(schema, term, wanted) for term in terms)))
    if len(terms) > 1:
        raise ValidationError(f"sort_order is {shown(wanted)}: zorder(...) can't be combined with other columns")
    columns = [_column(schema, name, wanted) for name in _terms(curves[0]["arguments"])]
    if len(set(columns)) < len(columns):
        raise ValidationError(f"sort_order is {shown(wanted)}: a column occurs twice")
    identities = {field.source_id for field in metadata.spec().fields if isinstance(field.transform, _Identity)}
    chosen = tuple(column for column in columns if column.field_id not in identities)
    if not 0 < len(chosen) <= MOST_COLUMNS:
        problem = f"expected 1 to {MOST_COLUMNS} columns that are not the source of an identity partition field"
        raise ValidationError(f"sort_order is {shown(wanted)}: {problem}")
    return RowOrder(SortOrder(order_id=0), chosen)


def _checked(metadata: TableMetadata, wanted: SortOrder) -> SortOrder:
    """Return an order whose fields the table's rows have values of."""
    whole, schema = ", ".join(map(str, wanted.fields)), metadata.schema()
    if not wanted.fields:
        raise ValidationError("sort_order is unsorted: it has no fields")
    for field in wanted.fields:
        try:
            column = schema.find_field(field.source_id)
        except ValueError:
            problem = f"the table has no column with the id {field.source_id}"
            raise ValidationError(f"sort_order is {shown(whole)}: {problem}") from None
        _check(schema, column, field.transform, whole)
    return _known(metadata, tuple(wanted.fields))


def _known(metadata: TableMetadata, fields: tuple[SortField, ...]) -> SortOrder:
    """Return the table's order of these fields; else one with the id of unsorted files."""
    for order in metadata.sort_orders:
        if [*order.fields] == [*fields]:
            return order
    return SortOrder(*fields, order_id=0)


def _terms(text: str) -> Iterator[str]:
    """Yield the parts between commas that are not in parentheses or backquotes."""
    depth, start, is_quoted = 0, 0, False
    for place, character in enumerate(text):
        is_quoted ^= character == "`"
        if is_quoted:
            continue
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()


def _field(schema: Schema, text: str, whole: str) -> SortField:
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValidationError(f"sort_order is {shown(whole)}: a part of it is empty")
    column, transform = _transformed(schema, match["term"], whole)
    direction = SortDirection.DESC if (match["direction"] or "").lower() == "desc" else SortDirection.ASC
    nulls = match["nulls"] or ("first" if direction == SortDirection.ASC else "last")
    null_order = NullOrder.NULLS_FIRST if nulls.lower() == "first" else NullOrder.NULLS_LAST
    return SortField(source_id=column.field_id, transform=transform, direction=direction, null_order=null_order)


def _transformed(schema: Schema, term: str, whole: str) -> tuple[NestedField, Transform[Any, Any]]:
    call = _CALL.fullmatch(term)
    if call is None:
        return _column(schema, term, whole), transforms.IdentityTransform()
    name, arguments = call["name"].lower(), list(_terms(call["arguments"]))
    numbers = [argument for argument in arguments if argument.isdecimal()]
    columns = [argument for argument in arguments if not argument.isdecimal()]
    if len(columns) == 1 and name in _SIZED and len(numbers) == 1 and int(numbers[0]):
        transform = _SIZED[name](int(numbers[0]))
    elif len(columns) == 1 and name in _PLAIN and not numbers:
        transform = _PLAIN[name]
    else:
        raise ValidationError(f"sort_order is {shown(whole)}: {term} is not a transform of a column")
    column = _column(schema, columns[0], whole)
    _check(schema, column, transform, whole)
    return column, transform


def _column(schema: Schema, name: str, whole: str) -> NestedField:
    """Return a primitive column that is in no list and no map."""
    plain = _QUOTED.sub(lambda part: part[1].replace("``", "`"), name)
    try:
        field = schema.find_field(plain)
    except ValueError:
        raise ValidationError(f"sort_order is {shown(whole)}: the table has no column {shown(plain)}") from None
    _check(schema, field, transforms.IdentityTransform(), whole)
    return field


def _check(schema: Schema, column: NestedField, transform: Transform[Any, Any], whole: str) -> None:
    """Raise ValidationError for a column that can't be sorted by, or one without this transform."""
    structs = all(parent.field_type.is_struct for parent in way_to(schema, column.field_id)[:-1])
    problem = None
    if not isinstance(column.field_type, PrimitiveType) or not structs:
        name = schema.find_column_name(column.field_id)
        problem = f"column {name} of type {column.field_type} can't be sorted by"
    elif not transform.can_transform(column.field_type):
        problem = f"values of type {column.field_type} have no transform {transform}"
    if problem:
        raise ValidationError(f"sort_order is {shown(whole)}: {problem}")
