"""Folders of tables, views and namespaces in a warehouse, a level for each name."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from sparkmeta.errors import InvalidNameError, shown
from sparkmeta.storage.location import join, path_of

if TYPE_CHECKING:
    from sparkmeta.storage.files import Files

# Of most file systems. Object stores have a limit for the whole key only.
_LONGEST_NAME = 255


def folder_of(warehouse: str, names: tuple[str, ...]) -> str:
    """Return the folder of an identifier, which is below the warehouse.

    Raises:
        InvalidNameError: a name is not that of a single folder.
    """
    for name in names:
        if name in ("", ".", "..") or {"/", "\\", "\0"} & set(name) or len(name.encode()) > _LONGEST_NAME:
            raise InvalidNameError(f"{shown(name)} can't be the name of a folder, which a file system catalog needs")
    return reduce(join, names, warehouse)


def first_names(files: Files, folder: str, pattern: str, leaf: str | None = None) -> list[str]:
    """Return the sorted names directly in a folder below which files match a pattern; see `Files.glob`."""
    above = len(path_of(folder).split("/"))
    return sorted({path_of(location).split("/")[above] for location in files.glob(folder, pattern, leaf)})
