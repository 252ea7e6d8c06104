"""Folders of tables, views and namespaces in a warehouse, a level for each name."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from sparkmeta.storage.location import join, path_of

if TYPE_CHECKING:
    from sparkmeta.storage.files import Files


def folder_of(warehouse: str, names: tuple[str, ...]) -> str:
    """Return the folder of an identifier."""
    return reduce(join, names, warehouse)


def first_names(files: Files, folder: str, pattern: str) -> list[str]:
    """Return the sorted names directly in a folder below which files match a pattern."""
    above = len(path_of(folder).split("/"))
    return sorted({path_of(location).split("/")[above] for location in files.glob(folder, pattern)})
