"""Catalogs of small tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

import sparkmeta as sm

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
ROWS = pa.table({"id": [1, 2], "part": ["a", "b"]}, SCHEMA)
VERSIONS = (1, 2, 3, 4)


def properties_of(kind: str, folder: Path) -> dict[str, str]:
    if kind == "hadoop":
        return {"type": "hadoop", "warehouse": str(folder)}
    if kind == "in-memory":
        return {"type": "in-memory", "warehouse": f"file://{folder}"}
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def catalog_of(kind: str, folder: Path) -> Any:
    catalog = sm.load_catalog("prod", **properties_of(kind, folder))
    catalog.create_namespace("db")
    return catalog


def new_table(catalog: Any, name: str, version: int = 2, appends: int = 2) -> Any:
    table = catalog.create_table(name, SCHEMA, partition_by=["part"], format_version=version)
    for _ in range(appends):
        table = table.append(ROWS)
    return table
