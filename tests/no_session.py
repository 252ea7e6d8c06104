"""Call the public methods in a process without a Spark session: each works, or asks for a session.

`python -m tests.no_session FOLDER` prints a line for each call: its name, and `works`, `asks` or an error.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import sparkmeta as sm
from sparkmeta.maintain.plans import Plan
from sparkmeta.session import SessionSource

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
QUERY = {"spark": "SELECT id, part FROM v2"}
ROWS = pa.table({"id": [1, 2], "part": ["a", "b"]}, SCHEMA)

VIEW_SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
FILES = pa.table(
    {
        "file_path": ["file:///nowhere/1.parquet"],
        "file_format": ["PARQUET"],
        "partition": [{"part": "a"}],
        "record_count": [1],
        "file_size_in_bytes": [100],
    }
)

# Arguments of methods that need some, by name; None for methods that are not called here.
ARGUMENTS: dict[str, dict[str, Any] | None] = {
    "add_files": None,  # needs files
    "at": None,
    "committed_version": {"application": "a"},
    "convert_tree": {"layout": "iceberg"},
    "downgrade": {"format_version": 3},
    "append": {"df": ROWS, "files": FILES},
    "as_of": {"timestamp": 4102444800000},
    "changelog": {"from_snapshot_id_exclusive": None},
    "create_temp_view": {"name": "v"},
    "delete": {"row_filter": "id = 1"},
    "dynamic_partition_overwrite": {"df": ROWS},
    "equality_delete": {"df": ROWS, "equality_cols": ["id", "part"]},
    "expire_rows": None,  # needs a column of times
    "file_changes": {"from_snapshot_id_exclusive": None},
    "filter": {"row_filter": "id = 1"},
    "from_pyiceberg": None,
    "incremental": {"from_snapshot_id_exclusive": None},
    "limit": {"rows": 1},
    "merge": {"source": ROWS, "on": "target.id = source.id"},
    "overwrite": {"df": ROWS, "added": FILES},
    "report_changes": None,
    "rewrite_table_path": None,  # needs the folder of the table
    "snapshot_as_of_timestamp": {"timestamp_ms": 4102444800000},
    "snapshot_by_id": {"snapshot_id": 1},
    "snapshot_by_name": {"name": "main"},
    "to_daft": None,  # of packages that may not be installed, and below
    "to_duckdb": None,
    "to_pandas": None,
    "to_polars": None,
    "to_ray": None,
    "update": {"assignments": {"part": "x"}, "row_filter": "id = 1"},
    "upgrade": {"format_version": 4},
    "upsert": {"df": ROWS, "join_cols": ["id"]},
    "use_ref": {"name": "main"},
}


# Of catalogs and views, whose calls come in the order of the names of the methods.
ARGUMENTS |= {
    "add_dialect": {"dialect": "trino", "sql": "SELECT 1"},
    "create_namespace": {"namespace": "more"},
    "create_namespace_if_not_exists": {"namespace": "more"},
    "create_or_replace_view": {"identifier": "db.w", "schema": VIEW_SCHEMA, "view_version": QUERY},
    "create_table": {"identifier": "db.new", "schema": SCHEMA},
    "create_table_if_not_exists": {"identifier": "db.new", "schema": SCHEMA},
    "create_view": {"identifier": "db.new_view", "schema": VIEW_SCHEMA, "view_version": QUERY},
    "drop_namespace": {"namespace": "more"},
    "drop_table": {"identifier": "db.new"},
    "drop_view": {"identifier": "db.w"},
    "list_namespaces": {},
    "list_tables": {"namespace": "db"},
    "list_views": {"namespace": "db"},
    "migrate_table": None,  # needs files
    "load_table": {"identifier": "db.v2"},
    "load_view": {"identifier": "db.v"},
    "namespace_exists": {"namespace": "db"},
    "purge_table": {"identifier": "db.v2"},
    "register_table": None,  # needs a metadata file
    "register_view": None,
    "rename_table": {"from_identifier": "db.v4", "to_identifier": "db.renamed"},
    "rename_view": {"from_identifier": "db.new_view", "to_identifier": "db.renamed_view"},
    "replace": {"view_version": QUERY},
    "recover_table": {"identifier": "db.v2"},
    "snapshot_table": None,  # needs files
    "sql_for": {"dialect": "spark"},
    "table_exists": {"identifier": "db.v2"},
    "version": {"version_id": 1},
    "view_exists": {"identifier": "db.v"},
}
# Of what a transaction makes.
ARGUMENTS |= {
    "apply": None,  # of the commit itself
    "repeats": None,
    "replace_partitions": {"files": FILES, "rows": ROWS},
    "rewrite": {"removed": FILES},
    "validate_data_files_exist": {"files": FILES},
    "validate_partition_specs": {"spec_ids": [0]},
    "assign": {"assignments": {"part": "x"}, "where": "id = 1"},
    "create_branch": {"snapshot_id": 1, "branch_name": "b"},
    "create_tag": {"snapshot_id": 1, "tag_name": "t"},
    "cherry_pick": {"snapshot_id": 1},
    "delete_keys": {"rows": ROWS, "equality_cols": ["id", "part"]},
    "fast_forward": {"branch": "main", "to": "main"},
    "publish_changes": {"wap_id": "w"},
    "remove_branch": {"branch_name": "b"},
    "remove_tag": {"tag_name": "t"},
    "rename_branch": {"branch_name": "b", "new_name": "c"},
    "replace_branch": {"branch_name": "main", "snapshot_id": 1},
    "replace_tag": {"tag_name": "t", "snapshot_id": 1},
    "rollback_to_snapshot": {"snapshot_id": 1},
    "rollback_to_timestamp": {"timestamp_ms": 4102444800000},
    "set_max_ref_age_ms": {"name": "main", "max_ref_age_ms": 1},
    "set_max_snapshot_age_ms": {"branch_name": "main", "max_snapshot_age_ms": 1},
    "set_min_snapshots_to_keep": {"branch_name": "main", "min_snapshots_to_keep": 1},
}


class SessionNeededError(Exception):
    """A call asked for a Spark session."""


def main(folder: str) -> None:
    catalog = sm.load_catalog("none", type="hadoop", warehouse=folder)

    def refuse(_source: SessionSource) -> Any:
        raise SessionNeededError

    SessionSource.get = refuse  # type: ignore[method-assign]
    for version in (2, 4):
        name = f"db.v{version}"
        properties = {"write.delete.mode": "merge-on-read"}
        table = catalog.create_table(name, SCHEMA, partition_by=["part"], format_version=version, properties=properties)
        table.append(ROWS).append(pa.table({"id": [3, 4], "part": ["a", "a"]}, SCHEMA)).delete("id = 3")
        for call, result in calls(of_table(partial(catalog.load_table, name))):
            print(f"v{version}.{call}: {result}")  # noqa: T201
    catalog.create_view("db.v", catalog.load_table("db.v2").schema(), QUERY)
    objects = {"catalog": lambda: catalog, "view": lambda: catalog.load_view("db.v")}
    for call, result in calls(objects):
        print(f"v0.{call}: {result}")  # noqa: T201


def of_table(load: Callable[[], sm.Table]) -> dict[str, Callable[[], Any]]:
    """Return what makes a table's objects, by name."""
    return {
        "table": load,
        "scan": lambda: load().scan("id > 1"),
        "changelog": lambda: load().changelog(None),
        "incremental": lambda: load().incremental(None),
        "table.arrow": lambda: load().arrow,
        "scan.arrow": lambda: load().scan("id > 1").arrow,
        "inspect": lambda: load().inspect,
        "inspect.arrow": lambda: load().inspect.arrow,
        "maintenance": lambda: load().maintenance,
        "transaction": lambda: load().transaction(),
        "update_snapshot": lambda: load().transaction().update_snapshot(),
        "manage_snapshots": lambda: load().transaction().manage_snapshots(),
        "merge": lambda: load().merge(ROWS, ["id", "part"]),
    }


def calls(objects: dict[str, Callable[[], Any]]) -> Iterator[tuple[str, str]]:
    """Yield the names of the public calls of objects, with what came of them."""
    for name, make in objects.items():
        for method in public_methods(type(make())):
            yield f"{name}.{method}", outcome(make(), method)


def public_methods(kind: type) -> list[str]:
    return [name for name, value in inspect.getmembers(kind) if not name.startswith("_") and callable(value)]


def outcome(thing: Any, method: str) -> str:
    call = getattr(thing, method)
    needed = [
        parameter.name
        for parameter in inspect.signature(call).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    arguments = ARGUMENTS.get(method, {})
    if arguments is None:
        return "not called"
    if lacking := [name for name in needed if name not in arguments]:
        return f"error: give it {', '.join(lacking)} in ARGUMENTS of tests/no_session.py"
    known = inspect.signature(call).parameters
    names = ("id",) if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in known.values()) else ()
    try:
        result = call(*names, **{name: value for name, value in arguments.items() if name in known})
        for part in ("summary", "to_df", "commit") if isinstance(result, Plan) else ():
            getattr(result, part)()
    except SessionNeededError:
        return "asks"
    except sm.SparkmetaError as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001  a bare error is what the test looks for
        return f"error: {type(error).__name__}: {error}"
    return "works"


if __name__ == "__main__":
    main(sys.argv[1])
