"""Look up fields of a schema by name, for filters."""

from __future__ import annotations

from collections import defaultdict
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pyiceberg.expressions import BoundReference
from pyiceberg.schema import Accessor
from pyiceberg.types import ListType, MapType, NestedField, StructType

from sparkmeta.errors import InvalidFilterError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.schema import Schema


# Most columns that an error about an unknown column names.
_NAMED = 20


class FieldReference(BoundReference):
    """A bound reference that knows its field's full name.

    Its field is optional if the field itself or a parent struct is.
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
        self.by_name: dict[str, list[tuple[FieldReference, str | None]]] = defaultdict(list)
        for reference, container in _references(schema.as_struct(), (), (), False, None):
            self.by_name[self._key(reference.name)].append((reference, container))

    def _key(self, name: str) -> str:
        return name if self.case_sensitive else name.lower()

    def _hint(self, name: str) -> str:
        """Return a hint at existing names, for the end of an error message."""
        known = [matches[0][0].name for matches in self.by_name.values() if matches[0][1] is None]
        near = [other for other in known if other.lower() == name.lower()] or get_close_matches(name, known)
        if near:
            return f": did you mean {' or '.join(map(shown, near))}?"
        more = f" and {len(known) - _NAMED:,} more" if len(known) > _NAMED else ""
        return f", which has {', '.join(map(shown, known[:_NAMED]))}{more}" if known else ""

    def find(self, name: str) -> FieldReference:
        """Return the field with a full name.

        Raises:
            InvalidFilterError: the field does not exist, is ambiguous, or is inside a list or map.
        """
        matches = self.by_name.get(self._key(name), [])
        if not matches:
            raise InvalidFilterError(f"no column {shown(name)} in the schema{self._hint(name)}")
        if len(matches) > 1:
            names = ", ".join(f"{reference.name} (id {reference.field.field_id})" for reference, _ in matches)
            raise InvalidFilterError(f"column {shown(name)} is ambiguous: {names}")
        (reference, container) = matches[0]
        if container is not None:
            raise InvalidFilterError(f"column {reference.name} is inside {container}: filters can't test it")
        return reference


def _references(
    struct: StructType, names: tuple[str, ...], positions: tuple[int, ...], optional: bool, container: str | None
) -> Iterator[tuple[FieldReference, str | None]]:
    """Yield every field in a struct, with the name of the list or map that contains it, or None."""
    for position, field in enumerate(struct.fields):
        path, places = (*names, field.name), (*positions, position)
        nullable = optional or not field.required
        name = ".".join(path)
        reference = FieldReference(field.model_copy(update={"required": not nullable}), _accessor(places), name)
        yield reference, container
        yield from _nested(field, path, places, nullable, container)


def _nested(
    field: NestedField, path: tuple[str, ...], places: tuple[int, ...], nullable: bool, container: str | None
) -> Iterator[tuple[FieldReference, str | None]]:
    match field.field_type:
        case StructType() as struct:
            yield from _references(struct, path, places, nullable, container)
        case ListType() as elements:
            inside = container or f"list {'.'.join(path)}"
            yield from _references(StructType(elements.element_field), path, places, True, inside)
        case MapType() as entries:
            inside = container or f"map {'.'.join(path)}"
            yield from _references(StructType(entries.key_field, entries.value_field), path, places, True, inside)


def _accessor(positions: tuple[int, ...]) -> Accessor:
    first, *rest = positions
    return Accessor(first, _accessor(tuple(rest)) if rest else None)
