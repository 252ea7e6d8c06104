"""Work that needs no Spark session, for a process that has no Java and starts no other process: `python -m`."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers.java import METADATA_TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from sparkmeta import Catalog, Table


def catalogs(folder: Path) -> dict[str, Catalog]:
    """A SQL catalog with tables that pyiceberg wrote, and a new file system catalog."""
    import sparkmeta as sm

    sql = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}
    return {
        "sql": sm.load_catalog("shop", type="sql", **sql),
        "hadoop": sm.load_catalog("local", type="hadoop", warehouse=f"{folder}/lake"),
    }


def known(table: Table) -> dict[str, Any]:
    """What a table's metadata says, as text."""
    return {
        "facts": [str(table), table._repr_html_(), table.location(), table.read_only, table.last_sequence_number],
        "parts": [str(part) for part in (table.schemas(), table.specs(), table.sort_orders(), table.properties)],
        "snapshots": [str(part) for part in (table.refs(), table.snapshots(), table.history())],
        "drawing": table.draw().text,
    }


def read(table: Table) -> list[str]:
    """Rows and plans of scans, as text."""
    shown: list[Any] = []
    for row_filter in ("true", "id >= 5 and country = 'NO'", "note is null"):
        scan = table.scan(row_filter).select("id", "note", "_file", "_pos", "_partition")
        shown += [scan.to_arrow().sort_by("id").to_pylist(), scan.to_pandas().shape, scan.limit(3).to_arrow().num_rows]
        shown += [scan.count(), scan.count_files(), scan.arrow.plan_task_json().sort_by("task").to_pylist()]
        splits = [split for task in scan.arrow.plan_tasks().to_pylist() for split in task["tasks"]]
        shown.append(sorted(map(str, splits)))
        report = scan.report().to_dict()
        shown.append({name: value for name, value in report.items() if not name.endswith("_seconds")})
    shown += [table.arrow.check().to_pylist(), table.maintenance.health().arrow.findings().to_pylist()]
    return [str(each) for each in shown]


def served(catalog: Catalog) -> list[Any]:
    """What a service answers whose session can't start: health, a table, and plans of few files."""
    import requests

    import sparkmeta as sm

    with sm.serve(catalog, port=0) as service:
        table = f"{service.uri}/v1/namespaces/shop/tables/orders"
        loaded = requests.get(table, timeout=60).json()
        filters = (None, {"type": "gt", "term": "id", "value": 22}, {"type": "eq", "term": "id", "value": 99})
        plans = [
            requests.post(f"{table}/plan", json={"filter": each} if each else {}, timeout=60).json() for each in filters
        ]
        status = requests.get(f"{service.uri}/healthz", timeout=60).status_code
    return [status, loaded["metadata"]["format-version"], [len(plan.get("file-scan-tasks", [])) for plan in plans]]


def inspected(table: Table) -> dict[str, list[str]]:
    """All metadata tables, as text."""
    tables = {name: getattr(table.inspect.arrow, name)() for name in METADATA_TABLES}
    return {name: [str(rows.schema), *map(str, rows.to_pylist())] for name, rows in tables.items()}


def tree(folder: Path) -> Table:
    """A metadata tree."""
    import sparkmeta as sm

    return sm.load_table(f"{folder}/tree")


def change(table: Table) -> list[Any]:
    """Change everything in a table's metadata that needs no rows, upgrade it to a tree, and return its metadata."""
    from pyiceberg.transforms import BucketTransform, IdentityTransform
    from pyiceberg.types import LongType, StringType

    with table.update_schema() as schema:
        schema.add_column("added", LongType())
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "bucket")
    with table.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    table = table.refresh()
    with table.transaction() as tx:
        tx.set_properties({"write.wap.enabled": "true", "owner": "me"})
        with tx.update_schema() as schema:
            schema.add_column("second", StringType())
    table = table.refresh()
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    if ids:
        with table.manage_snapshots() as refs:
            refs.create_branch(ids[0], "b").create_tag(ids[1], "t").set_max_ref_age_ms("t", 1 << 40)
        table = table.refresh()
        with table.manage_snapshots() as refs:
            refs.fast_forward("b", "main").rename_branch("b", "c").remove_tag("t")
        table = table.refresh()
    assert table.committed_version("loader") is None
    versions = [table]
    for version in range(table.format_version + 1, 5):
        versions.append(versions[-1].maintenance.upgrade(version).commit())
    table = versions[-1]
    table.scan("id = 7").filter("added is null").select("id")
    return [_comparable(each) for each in versions]


def _comparable(table: Table) -> dict[str, Any]:
    """Metadata without what differs between equal tables: ids, times and places."""
    metadata = table.metadata
    numbers = {snapshot.snapshot_id: number for number, snapshot in enumerate(metadata.snapshots)}
    return {
        "version": metadata.format_version,
        "parts": [str(part) for part in (metadata.schemas, metadata.specs(), metadata.sort_orders)],
        "properties": table.properties,
        "refs": {name: [str(ref.snapshot_ref_type), numbers[ref.snapshot_id]] for name, ref in table.refs().items()},
        "drawn": table.draw().text.count("\n"),
    }


def in_a_lake(lake: Catalog) -> list[Any]:
    """Namespaces, tables and views of a file system catalog."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    from sparkmeta.errors import NoSuchTableError

    schema = Schema(NestedField(1, "id", LongType()))
    lake.create_namespace("db.inner")
    changes = [change(lake.create_table(f"db.v{version}", schema, format_version=version)) for version in (1, 4)]
    view = lake.create_view("db.view", schema, {"spark": "SELECT id FROM v1"}).add_dialect("trino", "SELECT 1")
    assert lake.load_view("db.view").versions == view.versions
    lake.drop_table("db.v1")
    try:
        lake.load_table("db.v1")
    except NoSuchTableError as error:
        changes.append("there is no Iceberg table" in str(error))
    return [changes, lake.list_namespaces(), lake.list_tables("db"), lake.list_views("db"), lake.table_exists("db.v4")]


def change_rows(lake: Catalog) -> list[Any]:
    """Change rows and files of tables of each version, against other commits too, and return what became of them."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    from sparkmeta.errors import CommitConflictError

    lake.create_namespace("rows")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    results: list[Any] = []
    for version in (1, 2, 3, 4):
        mode = "copy-on-write" if version % 2 else "merge-on-read"
        properties = {"write.delete.mode": mode, "write.merge.mode": mode, "write.tree.flush-data-files": "1"}
        table = lake.create_table(f"rows.v{version}", schema, properties=properties, format_version=version)
        empty = table.append(_rows(range(4), "a")).append(_rows(range(4, 8), "b").to_pandas()).delete("id >= 0")
        table = empty.append(_rows(range(10), "c")).delete("id = 1").overwrite(_rows(range(20, 22), "d"), "id > 7")
        table = table.upsert(_rows(range(6, 9), "e"), ["id"]).append(_rows(range(9, 10), "f"))
        files = table.scan("id = 9").arrow.plan_files()
        with table.transaction() as transaction:
            transaction.update_snapshot().delete(files.slice(0, 1))
        newest = table.refresh().append(_rows(range(9, 10), "g"))
        try:
            table.delete("id = 6", isolation="serializable")
            table.delete("id >= 6", isolation="serializable")
        except CommitConflictError as error:
            results.append(str(error).rpartition(":")[0].rpartition(", ")[2])
        results.append(newest.refresh().current_snapshot().summary.additional_properties["total-records"])
    return results


def _rows(ids: range, name: str) -> pa.Table:
    import pyarrow as pa

    return pa.table({"id": ids, "name": [name] * len(ids)})


def command(arguments: Sequence[str], folder: Path) -> str:
    """What a command prints: the text of its output, or its usual error."""
    import click

    from sparkmeta.cli import main

    printed = StringIO()
    try:
        with redirect_stdout(printed):
            main([each.replace("FOLDER", str(folder)) for each in arguments], standalone_mode=False)
    except click.ClickException as error:
        printed.write(f"error: {error.message}")
    return printed.getvalue()


SHOP = ("--catalog", "shop", "--property", "type=sql", "--property", "uri=sqlite:///FOLDER/catalog.db",
        "--property", "warehouse=file://FOLDER")  # fmt: skip
LAKE = ("--catalog", "local", "--property", "type=hadoop", "--property", "warehouse=FOLDER/lake")
TABLE = ("shop.orders", *SHOP)
PRINTED = ("describe", "schema", "snapshots", "refs", "history", "metadata-log", "files", "entries", "manifests",
           "partitions", "plan")  # fmt: skip
READING: tuple[tuple[str, ...], ...] = (
    *((name, *TABLE, *output) for name in PRINTED for output in ((), ("-o", "json"))),
    *((name, "FOLDER/tree", "-o", "json") for name in ("files", "entries", "manifests", "partitions", "plan")),
    ("files", *TABLE, "--where", "record_count > 4 and partition.country = 'NO'", "--limit", "2", "-o", "json"),
    ("files", *TABLE, "--columns", "file_path,readable_metrics.id.lower_bound,partition.country,content"),
    ("entries", *TABLE, "--columns", "data_file.record_count,snapshot_id", "--where", "status = 1", "-o", "json"),
    ("plan", *TABLE, "--filter", "id < 12 and country = 'NO'", "--where", "file_size_in_bytes < 0"),
    ("plan", *TABLE, "--filter", "id < 12 and country = 'NO'", "--columns", "record_count,residual,deletes"),
    ("plan", *TABLE, "--count"),
    ("plan", *TABLE, "--tasks"),
    ("plan", *TABLE, "--tasks", "--where", "files_count > 0", "-o", "json"),
    ("plan", *TABLE, "--task-json", "--limit", "3"),
    ("snapshots", *TABLE, "--where", "operation = 'append' and parent_id is not null"),
    ("files", *TABLE, "--columns", "nothing"),
    ("describe", "FOLDER/nothing"),
    ("plan", "FOLDER/nothing.metadata.json"),
    ("files", "shop.nothing", *SHOP),
    ("compact", "shop.orders", "--catalog", "unknown"),
    ("files", *TABLE, "--ref", "nothing"),
    ("snapshots", *TABLE, "--columns", "snapshot_id,summary", "--limit", "2"),
    ("snapshots", *TABLE, "--columns", "committed_at,parent_id", "--limit", "2", "-o", "json"),
    ("tree", *TABLE),
    ("tree", *TABLE, "--ref", "first"),
    ("health", *TABLE),
    ("health", "FOLDER/tree"),
    ("upgrade", *TABLE, "--format-version", "3", "-o", "json"),
    ("compact", "FOLDER/tree"),
    ("expire-snapshots", *TABLE, "--older-than", "2100-01-01", "--retain-last", "1"),
    ("tables", *SHOP),
    ("namespaces", *SHOP, "-o", "json"),
    ("tables", "db", *LAKE),
    ("namespaces", *LAKE),
    ("views", *LAKE),
    ("view", "db.view", *LAKE, "--sql", "trino"),
)
# Spark reports these in other words.
REFUSED = (
    ("partitions", *TABLE, "--where", "nothing = 1"),
    ("refs", *TABLE, "--columns", "nothing"),
)
CHANGING = (
    ("upgrade", "shop.upgraded", *SHOP, "--format-version", "4", "--commit"),
    ("tree", "shop.upgraded", *SHOP),
)


def main(folder: Path) -> dict[str, Any]:
    """All of the work. It changes the tables `changed` and `upgraded`, and writes a lake."""
    both = catalogs(folder)
    return {
        "known": known(both["sql"].load_table("shop.orders")),
        "read": read(both["sql"].load_table("shop.orders")),
        "drawn": tree(folder).draw().text,
        "inspected": [inspected(table) for table in (both["sql"].load_table("shop.orders"), tree(folder))],
        "changed": change(both["sql"].load_table("shop.changed")),
        "lake": in_a_lake(both["hadoop"]),
        "rows": change_rows(both["hadoop"]),
        "printed": [command(arguments, folder) for arguments in READING],
        "refused": [command(arguments, folder) for arguments in REFUSED],
        "tree": [command(arguments, folder) for arguments in CHANGING],
    }


STARTED: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"}:
        STARTED.append(f"{event} {arguments[:2]}")


if __name__ == "__main__":
    sys.addaudithook(_note)
    result = main(Path(sys.argv[1])) | {"started": list(STARTED)}
    # The service looks for Java.
    print(json.dumps(result | {"served": served(catalogs(Path(sys.argv[1]))["sql"])}))  # noqa: T201
