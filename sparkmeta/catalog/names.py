"""Identifiers of tables, views and namespaces."""

from __future__ import annotations

from typing import Any

from sparkmeta.errors import InvalidNameError, shown

# How many names the identifier of a table in a namespace has at least.
IN_NAMESPACE = 2


def as_names(identifier: Any, least: int = 0) -> tuple[str, ...]:
    """Return the names of an identifier, which is text with dots, or a tuple or list.

    Args:
        identifier: the identifier.
        least: how many names it must have.

    Raises:
        InvalidNameError: it is something else, a name is empty, or there are fewer names.
    """
    names = identifier.split(".") if isinstance(identifier, str) and identifier else identifier or ()
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name for name in names):
        expected = "names with dots between them, such as db.orders, or a tuple of names"
        raise InvalidNameError(f"the identifier is {shown(identifier)}: expected {expected}")
    if len(names) < least:
        expected = "a namespace and a name, such as db.orders" if names else "a name"
        raise InvalidNameError(f"the identifier is {shown(identifier)}: expected {expected}")
    return tuple(names)
