"""The scope of a delete (a data file, a partition or the whole table), and the keys by which deletes are joined.

Keys are hashes, which Spark groups and joins much faster than paths and tuples. Joined rows are therefore compared in
full afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparkmeta.columns import sql
from sparkmeta.plan.deletes.rules import NO_COLUMNS, NOT_A_DV
from sparkmeta.plan.deletes.views import data_path, entry_view, is_global_delete, partition_key

if TYPE_CHECKING:
    from sparkmeta.columns.sql import Sql
    from sparkmeta.plan.deletes.entries import DeleteEntries
    from sparkmeta.state import TableState

KEY: Final = "delete_key"

# The scopes of deletes. Each is also the name of the column with a data file's group of them.
OF_FILE: Final = "deletes_of_file"
OF_PARTITION: Final = "deletes_of_partition"
OF_TABLE: Final = "deletes_of_table"


def _hash(value: object) -> Sql:
    return sql.call("xxhash64", value)


def file_key(path: Sql) -> Sql:
    """Return the key of the deletes of one data file."""
    return _hash(path)


def data_key(scope: str, state: TableState) -> Sql:
    """Return the key by which a data entry finds the deletes of a scope."""
    if scope == OF_TABLE:
        return table_key()
    return file_key(sql.col("location")) if scope == OF_FILE else _hash(partition_key(state))


def table_key() -> Sql:
    """Return the key of the deletes of the whole table."""
    return _hash("every data file")


def delete_key(deletes: DeleteEntries, state: TableState) -> Sql:
    """Return the key of a delete entry. It fails for an entry that contradicts the known kinds of deletes."""
    if deletes.only_dvs:
        return file_key(dv_path())
    path = data_path()
    by_scope = sql.when(path.isNotNull(), file_key(path)).when(is_global_delete(state), table_key())
    key = by_scope.otherwise(_hash(partition_key(state)))
    if deletes.equality_ids:
        return key
    broken = NO_COLUMNS.broken({}, entry_view())
    return sql.when(broken, NO_COLUMNS.raised(sql.col("location"), as_type="bigint")).otherwise(key)


def is_of_file(delete: Sql) -> Sql:
    """Return whether a delete of a group applies only to the data entry's file."""
    return delete["data_path"] == sql.col("location")


def is_of_partition(delete: Sql, state: TableState) -> Sql:
    """Return whether a delete of a group applies to the data entry's partition."""
    return (
        delete["data_path"].isNull() & ~delete["is_global"] & delete["partition_key"].eqNullSafe(partition_key(state))
    )


def dv_path() -> Sql:
    """Return the data file of a deletion vector. It fails for other deletes, which would be lost."""
    refused = NOT_A_DV.raised(sql.col("location"), as_type="string")
    return sql.when(~NOT_A_DV.broken({}, entry_view()), sql.col("referenced_file")).otherwise(refused)
