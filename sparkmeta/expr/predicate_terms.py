"""The terms of predicates: fields of a schema by name, and transforms of columns."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pyiceberg.expressions import (
    AlwaysTrue,
    BooleanExpression,
    BoundLiteralPredicate,
    BoundPredicate,
    BoundReference,
    BoundSetPredicate,
    BoundUnaryPredicate,
    UnboundTerm,
)
from pyiceberg.schema import Accessor
from pyiceberg.transforms import Transform, UnknownTransform, VoidTransform
from pyiceberg.types import ListType, MapType, NestedField, PrimitiveType, StructType

from sparkmeta.errors import InvalidArgumentError, InvalidFilterError, hint_at, shown
from sparkmeta.expr.conditions import fold, junction_of
from sparkmeta.expr.variants import normalized_path
from sparkmeta.spec.functions import Function, VariantGet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyiceberg.expressions import BoundTerm
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema


# -- Fields of a schema by name ---------------------------------------------------------------------------------------


class FieldReference(BoundReference):
    """A bound reference that knows its field's full name.

    Its field is optional if the field itself or a parent struct is optional.
    """

    def __init__(self, field: NestedField, accessor: Accessor, name: str) -> None:
        super().__init__(field, accessor)
        self.name = name


class SchemaFields:
    """All fields of a schema that a filter can name.

    Args:
        schema: the schema.
        case_sensitive: whether names are case-sensitive.
    """

    def __init__(self, schema: Schema, case_sensitive: bool = True) -> None:
        self.case_sensitive = case_sensitive
        self._schema = schema
        self._by_name: dict[str, list[_LocatedField]] = defaultdict(list)
        for located in _located_fields(schema.as_struct(), (), (), False, None):
            self._by_name[self._key(located.name)].append(located)

    def _key(self, name: str) -> str:
        return name if self.case_sensitive else name.lower()

    def _hint(self, name: str) -> str:
        """Return a hint at existing names, for the end of an error message."""
        return hint_at(name, [fields[0].name for fields in self._by_name.values() if fields[0].container is None])

    def field_id(self, name: str) -> int:
        """Return the id of the field with a full name, also inside lists and maps.

        pyiceberg's short names omit `element` and `value`.

        Raises:
            InvalidArgumentError: the field does not exist or is ambiguous.
        """
        candidates = self._by_name.get(self._key(name), [])
        if len(candidates) > 1:
            raise InvalidArgumentError(self._ambiguous(name, candidates))
        try:
            return (candidates[0].field if candidates else self._schema.find_field(name, self.case_sensitive)).field_id
        except ValueError:
            raise InvalidArgumentError(f"no column {shown(name)} in the schema{self._hint(name)}") from None

    def _ambiguous(self, name: str, candidates: list[_LocatedField]) -> str:
        names = ", ".join(f"{candidate.name} (id {candidate.field.field_id})" for candidate in candidates)
        return f"column {shown(name)} is ambiguous: {names}"

    def find(self, name: str) -> FieldReference:
        """Return the field with a full name.

        Raises:
            InvalidFilterError: the field does not exist, is ambiguous, or is inside a list or map.
        """
        candidates = self._by_name.get(self._key(name), [])
        if not candidates:
            raise InvalidFilterError(f"no column {shown(name)} in the schema{self._hint(name)}")
        if len(candidates) > 1:
            raise InvalidFilterError(self._ambiguous(name, candidates))
        (located,) = candidates
        if located.container is not None:
            raise InvalidFilterError(f"column {located.name} is inside {located.container}: filters can't test it")
        field = located.field.model_copy(update={"required": not located.optional})
        return FieldReference(field, _accessor(located.positions), located.name)


class _LocatedField(NamedTuple):
    """A field in a schema.

    Attributes:
        field: the field.
        name: its full name.
        positions: the positions of the field and its parents.
        optional: whether the field or a parent is optional.
        container: the name of the list or map that contains it, or None.
    """

    field: NestedField
    name: str
    positions: tuple[int, ...]
    optional: bool
    container: str | None


def _located_fields(
    struct: StructType, names: tuple[str, ...], positions: tuple[int, ...], optional: bool, container: str | None
) -> Iterator[_LocatedField]:
    """Yield every field in a struct."""
    for position, field in enumerate(struct.fields):
        path, steps = (*names, field.name), (*positions, position)
        located = _LocatedField(field, ".".join(path), steps, optional or not field.required, container)
        yield located
        match field.field_type:
            case StructType() as inner:
                yield from _located_fields(inner, path, steps, located.optional, container)
            case ListType() as elements:
                inside = container or f"list {located.name}"
                yield from _located_fields(StructType(elements.element_field), path, steps, True, inside)
            case MapType() as entries:
                inside = container or f"map {located.name}"
                pair = StructType(entries.key_field, entries.value_field)
                yield from _located_fields(pair, path, steps, True, inside)


def _accessor(positions: tuple[int, ...]) -> Accessor:
    position, *inner_positions = positions
    return Accessor(position, _accessor(tuple(inner_positions)) if inner_positions else None)


# -- Predicates on transforms and functions of columns ----------------------------------------------------------------
# Engines send predicates such as day(ts) = '2026-01-31' to select partitions. A partition field of the same
# transform decides them. Statistics say nothing about them, and rows can't be tested for them.
#
# Functions such as lower(name) are computed for rows. Trees may have expressions, whose statistics decide predicates on
# them (`measured`).


NO_FIELD = -1
"""The field id of a transformed value. No column has it."""


AppliedTransform = Transform[Any, Any] | Function


class TransformedColumn(UnboundTerm):
    """The transform or function of a column in an unbound predicate.

    Args:
        transform: the transform or function.
        name: the full name of the column.
    """

    def __init__(self, transform: AppliedTransform, name: str) -> None:
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
        transform = self.transform
        return transform.of(self.name) if isinstance(transform, Function) else f"{transform}({self.name})"

    __repr__ = __str__


class TransformReference(FieldReference):
    """A bound transform or function of a column. Its field is the transformed value, with the id `NO_FIELD`.

    Args:
        source: the column.
        transform: the transform or function.
    """

    def __init__(self, source: FieldReference, transform: AppliedTransform) -> None:
        is_required = source.field.required and not isinstance(transform, VariantGet)
        kind = transform.result_type(source.field.field_type)
        value = NestedField(NO_FIELD, str(TransformedColumn(transform, source.name)), kind, required=is_required)
        super().__init__(value, source.accessor, source.name)
        self.source_id = source.field.field_id
        self.transform = transform

    def is_value_of(self, field: PartitionField) -> bool:
        """Return whether a partition field holds these values."""
        return field.source_id == self.source_id and field.transform == self.transform

    def __eq__(self, other: object) -> bool:
        is_same_column = isinstance(other, TransformReference) and other.source_id == self.source_id
        return is_same_column and other.transform == self.transform  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.source_id, str(self.transform)))


def bound_transform(term: TransformedColumn, source: FieldReference) -> TransformReference:
    """Bind a transform to its column.

    Raises:
        InvalidFilterError: the transform is unknown, or does not apply to the column's type.
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
    """Return whether a bound filter contains predicates on transforms that are not functions."""
    return _has(bound, lambda reference: not isinstance(reference.transform, Function))


def _has(bound: BooleanExpression, holds: Callable[[TransformReference], bool]) -> bool:
    def of_leaf(leaf: BooleanExpression, _negated: bool) -> bool:
        reference = transform_of(leaf)
        return reference is not None and holds(reference)

    return fold(bound, of_leaf, lambda _, operands: any(operands))


def measured(bound: BooleanExpression, expressions: Mapping[tuple[int, str], int]) -> BooleanExpression:
    """Return a bound filter whose predicates on functions test the values of expressions, if there are any.

    Args:
        bound: a bound filter without NOT.
        expressions: (id of the column, function) -> id of the expression; see `TableTypes.expressions`.
    """
    if not expressions:
        return bound

    def leaf_on_expression(leaf: BooleanExpression, _negated: bool) -> BooleanExpression:
        reference = transform_of(leaf)
        expr_id = expressions.get((reference.source_id, str(reference.transform))) if reference else None
        if not isinstance(leaf, BoundPredicate) or reference is None or expr_id is None:
            return leaf
        field = reference.field.model_copy(update={"field_id": expr_id})
        return with_term(leaf, FieldReference(field, reference.accessor, reference.name))

    return fold(bound, leaf_on_expression, junction_of)


class ShreddedReference(FieldReference):
    """A bound reference to a field of shredded variants. Its field has the id of the column of variants.

    Args:
        reference: the function that extracts the field.
        function: this function.

    Attributes:
        path: the path of the field in bounds of variants.
    """

    def __init__(self, reference: TransformReference, function: VariantGet) -> None:
        field = reference.field.model_copy(update={"field_id": reference.source_id, "required": False})
        super().__init__(field, reference.accessor, reference.name)
        self.path = normalized_path(function.path)


def path_of(predicate: BoundPredicate) -> str:
    """Return the path of the field of shredded variants that a predicate tests; empty if it tests a column."""
    reference = predicate.term.ref()
    return reference.path if isinstance(reference, ShreddedReference) else ""


def on_columns(bound: BooleanExpression) -> BooleanExpression:
    """Return the inclusive projection of a bound filter without NOT to columns and fields of shredded variants."""
    if not _has(bound, lambda _: True):
        return bound

    def leaf_on_column(leaf: BooleanExpression, _negated: bool) -> BooleanExpression:
        reference = transform_of(leaf)
        if not isinstance(leaf, BoundPredicate) or reference is None:
            return leaf
        function = reference.transform
        return (
            with_term(leaf, ShreddedReference(reference, function))
            if isinstance(function, VariantGet) and not isinstance(leaf, BoundUnaryPredicate)
            else AlwaysTrue()
        )

    return fold(bound, leaf_on_column, junction_of)


def with_term(predicate: BoundPredicate, term: FieldReference) -> BooleanExpression:
    """Return a bound predicate of another term."""
    kind: Any = type(predicate)
    match predicate:
        case BoundLiteralPredicate():
            return cast("BooleanExpression", kind(term, predicate.literal))
        case BoundSetPredicate():
            return cast("BooleanExpression", kind(term, set(predicate.literals)))
    return cast("BooleanExpression", kind(term))
