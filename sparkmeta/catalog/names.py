"""Identifiers of tables, views and namespaces, and their folders in a warehouse."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import InvalidNameError, shown
from sparkmeta.storage.location import join, path_of

if TYPE_CHECKING:
    from sparkmeta.storage.files import Files


# -- Identifiers ------------------------------------------------------------------------------------------------------


# The minimum number of names in the identifier of a table in a namespace.
IN_NAMESPACE = 2


def as_names(identifier: Any, least: int = 0) -> tuple[str, ...]:
    """Return the names of an identifier, which is text with dots, or a tuple or list.

    Args:
        identifier: the identifier.
        least: the minimum number of names.

    Raises:
        InvalidNameError: the identifier has another type, a name is empty, or there are too few names.
    """
    names = identifier.split(".") if isinstance(identifier, str) and identifier else identifier or ()
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name for name in names):
        expected = "names with dots between them, such as db.orders, or a tuple of names"
        raise InvalidNameError(f"the identifier is {shown(identifier)}: expected {expected}")
    if len(names) < least:
        expected = "a namespace and a name, such as db.orders" if names else "a name"
        raise InvalidNameError(f"the identifier is {shown(identifier)}: expected {expected}")
    return tuple(names)


# -- Folders in a warehouse -------------------------------------------------------------------------------------------


# The limit of most file systems. Object stores limit only the whole key.
_LONGEST_NAME = 255


def folder_of(warehouse: str, names: tuple[str, ...]) -> str:
    """Return the folder of an identifier, which is below the warehouse.

    Raises:
        InvalidNameError: a name can't be the name of a single folder.
    """
    for name in names:
        if name in ("", ".", "..") or {"/", "\\", "\0"} & set(name) or len(name.encode()) > _LONGEST_NAME:
            raise InvalidNameError(f"{shown(name)} can't be the name of a folder, which a file system catalog needs")
    return reduce(join, names, warehouse)


def first_names(files: Files, folder: str, pattern: str, leaf: str | None = None) -> list[str]:
    """Return the sorted names directly in a folder below which files match a pattern; see `Files.glob`."""
    above = len(path_of(folder).split("/"))
    return sorted({path_of(location).split("/")[above] for location in files.glob(folder, pattern, leaf)})
