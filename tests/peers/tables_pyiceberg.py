"""Tables that pyiceberg wrote, in a SQL catalog: metadata files named by a metastore's rule."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, GreaterThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from tests.peers.corpus import recipe
from tests.peers.file_maker import local_path

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from tests.peers.workshop import Workshop

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "s", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "x", DoubleType()),
    NestedField(5, "dec", DecimalType(9, 2)),
    NestedField(6, "day", DateType()),
    NestedField(7, "b", BooleanType()),
    NestedField(8, "st", StructType(NestedField(9, "y", IntegerType()))),
)
# pyiceberg computes only identities of rows without its optional Rust extension, and any transform of a file's bounds.
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "s"), PartitionField(6, 1001, IdentityTransform(), "a day")
)


@cache
def catalog(warehouse: str) -> SqlCatalog:
    folder = Path(local_path(warehouse)) / "pyiceberg"
    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("peers", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("peers")
    return catalog


def create(shop: Workshop, version: int, spec: PartitionSpec = SPEC, schema: Schema = SCHEMA, **more: str) -> Table:
    properties = {"format-version": str(version)} | {
        key.replace("__", ".").replace("_", "-"): value for key, value in more.items()
    }
    return catalog(shop.warehouse).create_table(
        f"peers.{shop.name}", schema, partition_spec=spec, properties=properties
    )


def rows(table: Table, start: int, stop: int) -> pa.Table:
    moments = [dt.datetime(1969, 12, 30, tzinfo=dt.UTC) + dt.timedelta(hours=11 * i) for i in range(start, stop)]
    values: list[dict[str, Any]] = [
        {
            "id": i,
            "s": [None, "a b", "c%d"][i % 3],
            "ts": moment if i % 4 else None,
            "x": float("nan") if i % 5 == 0 else i - 3.5,
            "dec": Decimal(i) / 4,
            "day": moment.date(),
            "b": bool(i % 2),
            "st": {"y": i} if i % 2 else None,
        }
        for i, moment in zip(range(start, stop), moments, strict=True)
    ]
    schema = table.schema().as_arrow()
    return pa.Table.from_pylist([{key: value.get(key) for key in schema.names} for value in values], schema=schema)


def add_file(shop: Workshop, table: Table, name: str, added: pa.Table) -> None:
    """Writes a file and adds it to the table: its partition follows from its bounds."""
    path = Path(local_path(shop.warehouse)) / "pyiceberg" / shop.name / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(added, path)
    table.add_files([f"file://{path}"])


@recipe("pyiceberg", "partitions", versions=(1, 2))
def pyiceberg_partitioned(shop: Workshop, version: int) -> str:
    """Identity partitions; appends, a delete of whole files and one that rewrites some, a partition overwritten."""
    table = create(shop, version)
    table.append(rows(table, 0, 7))
    table.append(rows(table, 7, 12))
    table.delete(EqualTo("s", "a b"))
    table.delete(GreaterThan("id", 9))
    table.append(rows(table, 20, 23))
    table.dynamic_partition_overwrite(rows(table, 2, 3))
    return table.metadata_location


@recipe("pyiceberg", "partitions", versions=(1, 2))
def pyiceberg_transforms(shop: Workshop, version: int) -> str:
    """Truncated, daily and hourly partitions of existing files."""
    spec = PartitionSpec(
        PartitionField(1, 1000, TruncateTransform(10), "ten"),
        PartitionField(2, 1001, TruncateTransform(1), "letter"),
        PartitionField(3, 1002, HourTransform(), "hour"),
    )
    table = create(shop, version, spec)
    for number in range(1, 8):
        add_file(shop, table, f"f{number}", rows(table, number, number + 1))
    return table.metadata_location


@recipe("pyiceberg", "types", versions=(1, 2))
def pyiceberg_flat(shop: Workshop, version: int) -> str:
    """Not partitioned, merging its manifests; overwritten by a filter."""
    merging = {"commit__manifest__min_count_to_merge": "2", "commit__manifest_merge__enabled": "true"}
    table = create(shop, version, PartitionSpec(), **merging)
    for start in range(0, 12, 3):
        table.append(rows(table, start, start + 3))
    table.overwrite(rows(table, 30, 33), overwrite_filter=GreaterThan("id", 8))
    return table.metadata_location


@recipe("pyiceberg", "evolved", "schema", "partitions", versions=(1, 2))
def pyiceberg_evolved(shop: Workshop, version: int) -> str:
    """Schema and spec changed, version 1 upgraded on the way, tagged and branched."""
    table = create(shop, version, PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s")))
    table.append(rows(table, 0, 5))
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.rename_column("x", "ratio")
        schema.update_column("dec", DecimalType(18, 2))
        schema.add_column("extra", StringType())
        schema.delete_column("b")
        schema.move_first("ts")
    with table.update_spec() as spec:
        if version > 1:  # else it would turn void, and pyiceberg can't tell a file's partition from a void field
            spec.remove_field("s")
        spec.add_field("ts", DayTransform(), "on")
    for number in (5, 6, 7):
        add_file(shop, table, f"f{number}", rows(table, number, number + 1))
    if version == 1:
        with table.transaction() as transaction:
            transaction.upgrade_table_version(2)
    add_file(shop, table, "f9", rows(table, 9, 10))
    snapshot = table.current_snapshot()
    assert snapshot
    with table.manage_snapshots() as snapshots:
        snapshots.create_tag(snapshot.snapshot_id, "tagged").create_branch(snapshot.snapshot_id, "side")
    with table.update_spec() as spec:
        spec.remove_field("on")
    table.append(rows(table, 14, 16), branch="side")
    return table.metadata_location
