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

import sparkmeta as sm
from sparkmeta.maintain.plans import Plan
from sparkmeta.session import SessionSource

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
ROWS = pa.table({"id": [1, 2], "part": ["a", "b"]}, SCHEMA)

# Arguments of methods that need some, by name; None for methods that are not called here.
ARGUMENTS: dict[str, dict[str, Any] | None] = {
    "add_files": None,  # needs files
    "at": None,
    "committed_version": {"application": "a"},
    "downgrade": {"format_version": 3},
    "append": {"df": ROWS},
    "as_of": {"timestamp": 4102444800000},
    "changelog": {"from_snapshot_id_exclusive": None},
    "create_temp_view": {"name": "v"},
    "delete": {"row_filter": "id = 1"},
    "dynamic_partition_overwrite": {"df": ROWS},
    "equality_delete": {"df": ROWS, "equality_cols": ["id", "part"]},
    "file_changes": {"from_snapshot_id_exclusive": None},
    "filter": {"row_filter": "id = 1"},
    "from_pyiceberg": None,
    "incremental": {"from_snapshot_id_exclusive": None},
    "limit": {"rows": 1},
    "merge": {"source": ROWS, "on": "target.id = source.id"},
    "overwrite": {"df": ROWS},
    "report_changes": None,
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
        for call, result in calls(partial(catalog.load_table, name)):
            print(f"v{version}.{call}: {result}")  # noqa: T201


def calls(load: Callable[[], sm.Table]) -> Iterator[tuple[str, str]]:
    """Yield the names of the public calls of a table's objects, with what came of them."""
    objects: dict[str, Callable[[], Any]] = {
        "table": load,
        "scan": lambda: load().scan("id > 1"),
        "changelog": lambda: load().changelog(None),
        "incremental": lambda: load().incremental(None),
        "table.arrow": lambda: load().arrow,
        "scan.arrow": lambda: load().scan("id > 1").arrow,
        "inspect": lambda: load().inspect,
        "inspect.arrow": lambda: load().inspect.arrow,
        "maintenance": lambda: load().maintenance,
    }
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
        for part in ("summary", "files", "commit"):  # of a plan of maintenance
            if isinstance(result, Plan) and hasattr(result, part):
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
