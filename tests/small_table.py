"""A small table that pyiceberg writes, for tests of what stands above the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

IDENTIFIER = "shop.orders"
LOADS = 3
ROWS = 10


def small_catalog(folder: Path) -> SqlCatalog:
    folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("shop", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())


def write_small_table(folder: Path, identifier: str = IDENTIFIER) -> Table:
    """Three appends of ten rows, ids ascending, two countries; the tag `first` is on the first of the snapshots."""
    catalog = small_catalog(folder)
    catalog.create_namespace_if_not_exists("shop")
    table = catalog.create_table(identifier, orders(0).schema)
    with table.update_spec() as spec:
        spec.add_field("country", IdentityTransform(), "country")
    for load in range(LOADS):
        table.append(orders(load))
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "first").commit()
    return catalog.load_table(identifier)


def orders(load: int) -> pa.Table:
    ids = range(load * ROWS, (load + 1) * ROWS)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "country": ["NO" if order_id % 2 else "SE" for order_id in ids],
            "note": pa.array([None if load == 0 else f"note {order_id}" for order_id in ids], pa.string()),
        }
    )
