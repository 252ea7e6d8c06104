"""Apache Iceberg table metadata as Spark DataFrames.

    import sparkmeta as sm

    spark = sm.local_session()
    table = sm.load_table("file:///warehouse/db/events", spark=spark)
    table.scan(row_filter="id = 7").plan_files().show()

Names are imported when they are first used, so that a Spark task that needs one module loads only that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkmeta.catalog import Catalog, load_catalog
    from sparkmeta.errors import (
        CommitConflictError,
        CommitFailedError,
        CommitStateUnknownError,
        CorruptFileError,
        FileAccessError,
        FileAlreadyExistsError,
        InvalidFilterError,
        NoSuchNamespaceError,
        NoSuchSnapshotError,
        NoSuchTableError,
        NotFoundError,
        SessionError,
        SettingError,
        SparkmetaError,
        TableAlreadyExistsError,
        UnsupportedError,
        ValidationError,
    )
    from sparkmeta.scan import Scan
    from sparkmeta.session import local_session, materialize
    from sparkmeta.table import Table, load_table

__all__ = [
    "Catalog",
    "CommitConflictError",
    "CommitFailedError",
    "CommitStateUnknownError",
    "CorruptFileError",
    "FileAccessError",
    "FileAlreadyExistsError",
    "InvalidFilterError",
    "NoSuchNamespaceError",
    "NoSuchSnapshotError",
    "NoSuchTableError",
    "NotFoundError",
    "Scan",
    "SessionError",
    "SettingError",
    "SparkmetaError",
    "Table",
    "TableAlreadyExistsError",
    "UnsupportedError",
    "ValidationError",
    "load_catalog",
    "load_table",
    "local_session",
    "materialize",
]

_HOMES = {
    "Catalog": "catalog",
    "Scan": "scan",
    "Table": "table",
    "load_catalog": "catalog",
    "load_table": "table",
    "local_session": "session",
    "materialize": "session",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
