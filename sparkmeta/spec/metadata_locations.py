"""The fields of table metadata that name files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# Array -> the fields of its elements.
_FIELDS = {
    "snapshots": ("manifest-list", "root-manifest", "manifests"),
    "statistics": ("statistics-path",),
    "partition-statistics": ("statistics-path",),
    "metadata-log": ("metadata-file",),
}


def with_locations(document: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """Return the JSON of table metadata with changed locations of files. Values of other types stay.

    Args:
        document: the JSON object.
        change: takes a location and the path of its field, and returns another location.
    """
    changed = dict(document)
    for array, fields in _FIELDS.items():
        elements = document.get(array)
        if isinstance(elements, list):
            changed[array] = [_changed(each, fields, f"{array}[{i}]", change) for i, each in enumerate(elements)]
    return changed


def _changed(element: Any, fields: tuple[str, ...], path: str, change: Callable[[str, str], str]) -> Any:
    if not isinstance(element, dict):
        return element
    known = {field: element[field] for field in fields if field in element}
    return element | {field: _value(value, f"{path}.{field}", change) for field, value in known.items()}


def _value(value: Any, path: str, change: Callable[[str, str], str]) -> Any:
    if isinstance(value, list):
        return [_value(each, f"{path}[{i}]", change) for i, each in enumerate(value)]
    return change(value, path) if isinstance(value, str) else value
