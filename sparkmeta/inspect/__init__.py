"""Iceberg's metadata tables as DataFrames, one module a family.

Light, since Spark tasks import modules of this package: `InspectTable` is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkmeta.inspect.inspect_table import InspectTable

__all__ = ["InspectTable"]


def __getattr__(name: str) -> Any:
    if name != "InspectTable":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparkmeta.inspect.inspect_table import InspectTable

    return InspectTable
