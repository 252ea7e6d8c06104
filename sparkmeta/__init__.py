"""Apache Iceberg table metadata as Spark DataFrames.

    import sparkmeta as sm

    table = sm.load_table("file:///warehouse/db/events")
    table.scan(row_filter="id = 7").plan_files().show()

Names are imported when they are first used, so that a Spark task that needs one module loads only that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkmeta.catalog import Catalog, load_catalog
    from sparkmeta.changes.range_scan import ChangelogScan, IncrementalScan
    from sparkmeta.commit.manage_snapshots import ManageSnapshots
    from sparkmeta.commit.snapshot_update import SnapshotUpdate
    from sparkmeta.data_source.register import register
    from sparkmeta.data_source.source import DataSource
    from sparkmeta.errors import (
        CatalogError,
        CommitConflictError,
        CommitFailedError,
        CommitStateUnknownError,
        InvalidFilterError,
        NoSuchSnapshotError,
        NoSuchTableError,
        NotFoundError,
        SparkmetaError,
        TableAlreadyExistsError,
        UnsupportedError,
        ValidationError,
    )
    from sparkmeta.fleet.health import FleetHealth
    from sparkmeta.inspect.draw import Drawing
    from sparkmeta.inspect.inspect_table import InspectTable
    from sparkmeta.maintain.health import HealthReport
    from sparkmeta.maintain.leaf_map import LeafMap
    from sparkmeta.maintain.maintenance import Maintenance
    from sparkmeta.maintain.plans import Plan
    from sparkmeta.plan.report import ScanReport
    from sparkmeta.scan import Scan
    from sparkmeta.service.access import ServeOptions
    from sparkmeta.service.server import Service, serve
    from sparkmeta.session import local_session, materialize
    from sparkmeta.settings import Settings
    from sparkmeta.table import Table, load_table
    from sparkmeta.views.view import View
    from sparkmeta.write.merge import Merge
    from sparkmeta.write.transaction import RowTransaction

__all__ = [
    "Catalog",
    "CatalogError",
    "ChangelogScan",
    "CommitConflictError",
    "CommitFailedError",
    "CommitStateUnknownError",
    "DataSource",
    "Drawing",
    "FleetHealth",
    "HealthReport",
    "IncrementalScan",
    "InspectTable",
    "InvalidFilterError",
    "LeafMap",
    "Maintenance",
    "ManageSnapshots",
    "Merge",
    "NoSuchSnapshotError",
    "NoSuchTableError",
    "NotFoundError",
    "Plan",
    "RowTransaction",
    "Scan",
    "ScanReport",
    "ServeOptions",
    "Service",
    "Settings",
    "SnapshotUpdate",
    "SparkmetaError",
    "Table",
    "TableAlreadyExistsError",
    "UnsupportedError",
    "ValidationError",
    "View",
    "load_catalog",
    "load_table",
    "local_session",
    "materialize",
    "register",
    "serve",
]

# The modules of the names that are not errors.
_HOMES = {
    "Catalog": "catalog",
    "ChangelogScan": "changes.range_scan",
    "DataSource": "data_source.source",
    "Drawing": "inspect.draw",
    "FleetHealth": "fleet.health",
    "HealthReport": "maintain.health",
    "IncrementalScan": "changes.range_scan",
    "InspectTable": "inspect.inspect_table",
    "LeafMap": "maintain.leaf_map",
    "Maintenance": "maintain.maintenance",
    "ManageSnapshots": "commit.manage_snapshots",
    "Merge": "write.merge",
    "Plan": "maintain.plans",
    "RowTransaction": "write.transaction",
    "Scan": "scan",
    "ScanReport": "plan.report",
    "ServeOptions": "service.access",
    "Service": "service.server",
    "Settings": "settings",
    "SnapshotUpdate": "commit.snapshot_update",
    "Table": "table",
    "View": "views.view",
    "load_catalog": "catalog",
    "load_table": "table",
    "local_session": "session",
    "materialize": "session",
    "register": "data_source.register",
    "serve": "service.server",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
