"""Identifiers of tables, views and namespaces."""

from __future__ import annotations


def as_names(identifier: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of an identifier, which is text with dots or already a tuple."""
    return tuple(identifier.split(".") if identifier else ()) if isinstance(identifier, str) else identifier
