"""Predicates on transforms of columns, such as day(ts) = '2026-01-31', which engines send to have partitions selected.

A partition field of the same transform decides them. Statistics say nothing of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression, BoundPredicate, UnboundTerm
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import NestedField, PrimitiveType

from sparkmeta.columns.fields import FieldReference
from sparkmeta.columns.junctions import fold, junction_of
from sparkmeta.errors import InvalidFilterError, shown

if TYPE_CHECKING:
    from pyiceberg.expressions import BoundTerm
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import Transform

NO_FIELD = -1
"""The field id of a transformed value, which no column has."""


class TransformedColumn(UnboundTerm):
    """The transform of a column in an unbound predicate.

    Args:
        transform: the transform.
        name: the full name of the column.
    """

    def __init__(self, transform: Transform[Any, Any], name: str) -> None:
        self.transform, self.name = transform, name

    def bind(self, schema: Schema, case_sensitive: bool = True) -> BoundTerm:
        raise InvalidFilterError(f"{self} can only be bound by sparkmeta, to {shown(schema)} ({case_sensitive=})")

    @property
    def as_bound(self) -> type[TransformReference]:
        return TransformReference

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransformedColumn) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return f"{self.transform}({self.name})"

    __repr__ = __str__


class TransformReference(FieldReference):
    """A bound transform of a column. Its field is the transformed value, of the id `NO_FIELD`.

    Args:
        source: the column.
        transform: the transform.
    """

    def __init__(self, source: FieldReference, transform: Transform[Any, Any]) -> None:
        value = NestedField(
            NO_FIELD, str(transform), transform.result_type(source.field.field_type), required=source.field.required
        )
        super().__init__(value, source.accessor, source.name)
        self.source_id = source.field.field_id
        self.transform = transform

    def is_value_of(self, field: PartitionField) -> bool:
        """Return whether a partition field holds these values."""
        return field.source_id == self.source_id and field.transform == self.transform

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, TransformReference) and other.source_id == self.source_id
        return same and other.transform == self.transform  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.source_id, str(self.transform)))


def bound_transform(term: TransformedColumn, source: FieldReference) -> TransformReference:
    """Bind a transform to its column.

    Raises:
        InvalidFilterError: the transform is unknown, or not one of such a column.
    """
    transform, kind = term.transform, source.field.field_type
    if isinstance(transform, UnknownTransform | VoidTransform):
        raise InvalidFilterError(f"{term}: filters know no transform {shown(str(transform))}")
    if not isinstance(kind, PrimitiveType) or not transform.can_transform(kind):
        raise InvalidFilterError(f"{term}: values of type {kind} have no transform {transform}")
    return TransformReference(source, transform)


def transform_of(leaf: BooleanExpression) -> TransformReference | None:
    """Return the transform that a bound predicate tests; None for a predicate on a column itself, and constants."""
    reference = leaf.term.ref() if isinstance(leaf, BoundPredicate) else None
    return reference if isinstance(reference, TransformReference) else None


def has_transforms(bound: BooleanExpression) -> bool:
    """Return whether a bound filter has predicates on transforms."""
    return fold(bound, lambda leaf, _: transform_of(leaf) is not None, lambda _, operands: any(operands))


def without_transforms(bound: BooleanExpression) -> BooleanExpression:
    """Return the inclusive projection of a bound filter without NOT to the columns themselves."""
    if not has_transforms(bound):
        return bound
    return fold(bound, lambda leaf, _: AlwaysTrue() if transform_of(leaf) else leaf, junction_of)
