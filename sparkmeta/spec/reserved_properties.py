"""Reserved table properties: names that Iceberg's Java library shows with a table's own properties (semantics 11.4).

They are never stored, since their values follow from the rest of the metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparkmeta.errors import ValidationError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION_PROPERTY: Final = "format-version"

_RESERVED: Final = frozenset({
    VERSION_PROPERTY,
    "uuid",
    "snapshot-count",
    "current-snapshot-id",
    "current-snapshot-summary",
    "current-snapshot-timestamp-ms",
    "current-schema",
    "default-partition-spec",
    "default-sort-order",
})  # fmt: skip


def unreserved(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a new table stores.

    As in Java, reserved ones are dropped: engines show them, and users copy what they see.
    """
    return {name: value for name, value in properties.items() if name not in _RESERVED}


def refuse_reserved(properties: Mapping[str, str], table: str) -> None:
    """Refuse to set reserved properties of a table.

    Args:
        properties: The properties to set.
        table: The table's name, for the error.

    Raises:
        ValidationError: A property is reserved.
    """
    for name, value in properties.items():
        if name == VERSION_PROPERTY:
            raise ValidationError(
                f"{table}: {name} is {shown(value)}: it can't be set as a property: table.maintenance.upgrade "
                "changes the format version"
            )
        if name in _RESERVED:
            raise ValidationError(
                f"{table}: the table property {name} is {shown(value)}: it is reserved, and follows from the metadata"
            )
