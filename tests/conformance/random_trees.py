"""Random tables with trees in the layout of the Iceberg project, and a model of their rows."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import sparkmeta as sm
from tests.conformance.test_manifest_reader import TYPES
from tests.peers.values import java_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from random import Random

    from pyiceberg.types import IcebergType
    from pyspark.sql import SparkSession

Rows = dict[int, dict[str, Any]]
"""Rows by the column `id`: values by column."""

KINDS = [java_type(name) for name, _, _ in TYPES]
VALUES: dict[str, list[Any]] = {str(java_type(name)): values for name, _, values in TYPES}
# As scans return them.
VALUES["uuid"] = [str(UUID(bytes=value)) for value in VALUES["uuid"]]
VALUES["decimal(9, 2)"] = [Decimal("-0.01"), Decimal("-9999998.00"), Decimal("1.00")]
VALUES["time"] = [86_400_000_000 - 1, 0, 3_600_000_000]
SMALL = {"write.tree.direct-files": "2", "write.tree.flush-data-files": "3", "write.tree.flush-delete-files": "3"}
CHANGES = {f"write.{change}.mode": "merge-on-read" for change in ("delete", "update", "merge")}
METRICS = ("full", "truncate(16)", "truncate(2)", "counts", "none")

_TEMPORAL = (DateType, TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)
_BUCKETED = (
    IntegerType, LongType, DecimalType, TimeType, StringType, UUIDType, FixedType, BinaryType, *_TEMPORAL
)  # fmt: skip
_PARTS: dict[str, type | tuple[type, ...]] = {
    "identity": PrimitiveType,
    "void": PrimitiveType,
    "bucket[3]": _BUCKETED,
    "truncate[2]": (IntegerType, LongType, DecimalType, StringType, BinaryType),
    **dict.fromkeys(("year", "month", "day"), _TEMPORAL),
    "hour": _TEMPORAL[1:],
}
# Scale -> the narrowest type.
_DECIMALS = {kind.scale: kind for kind in KINDS if isinstance(kind, DecimalType)}
_WIDER = {IntegerType: LongType(), FloatType: DoubleType()}


def new_schema(chance: Random) -> Schema:
    """Return a schema with the column `id` and some others."""
    ids = count(2)
    fields = [NestedField(1, "id", LongType(), required=chance.random() < 0.5)]
    fields += [NestedField(next(ids), f"c{number}", _kind(chance, ids, 2)) for number in range(chance.randint(2, 7))]
    return Schema(*fields)


def _kind(chance: Random, ids: Iterator[int], depth: int) -> IcebergType:
    draw = chance.random() if depth else 1.0
    if draw < 0.15:
        names = string.ascii_lowercase[: chance.randint(1, 3)]
        return StructType(*(NestedField(next(ids), name, _kind(chance, ids, depth - 1)) for name in names))
    if draw < 0.2:
        return ListType(next(ids), _kind(chance, ids, 0), element_required=chance.random() < 0.5)
    if draw < 0.25:
        return MapType(next(ids), StringType(), next(ids), _kind(chance, ids, 0), value_required=False)
    return chance.choice(KINDS)


def new_value(chance: Random, kind: IcebergType, required: bool = False) -> Any:
    """Return a random value."""
    if not required and chance.random() < 0.2:
        return None
    match kind:
        case StructType():
            return {child.name: new_value(chance, child.field_type, child.required) for child in kind.fields}
        case ListType():
            return [new_value(chance, kind.element_type, kind.element_required) for _ in range(chance.randint(0, 2))]
        case MapType():
            return [(key, new_value(chance, kind.value_type)) for key in "ab"[: chance.randint(0, 2)]]
    if isinstance(kind, FloatType | DoubleType) and chance.random() < 0.3:
        return float("nan")
    if isinstance(kind, DecimalType):
        kind = _DECIMALS[kind.scale]
    return chance.choice(VALUES[str(kind)])


def primitives(schema: Schema) -> dict[str, PrimitiveType]:
    """Return the columns of primitive types outside lists and maps."""
    columns: dict[str, PrimitiveType] = {}

    def add(fields: Sequence[NestedField], prefix: str) -> None:
        for child in fields:
            if isinstance(child.field_type, StructType):
                add(child.field_type.fields, f"{prefix}{child.name}.")
            elif isinstance(child.field_type, PrimitiveType):
                columns[prefix + child.name] = child.field_type

    add(schema.fields, "")
    return columns


@dataclass
class RandomTree:
    """A table, and what its rows must be.

    Attributes:
        chance: chooses.
        table: the table after the last change.
        rows: its rows.
        snapshots: the rows of each snapshot, and the names of their columns.
        steps: the changes.
    """

    chance: Random
    table: sm.Table
    rows: Rows = field(default_factory=dict)
    snapshots: dict[int, tuple[list[str], Rows]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    last_id: int = 0

    @staticmethod
    def create(
        chance: Random, folder: Path, spark: SparkSession | None = None, version: int = 4, **properties: str
    ) -> RandomTree:
        """Create a table.

        Args:
            chance: chooses.
            folder: the warehouse.
            spark: the session; None for a new one when it is needed.
            version: the format version.
            properties: more properties, by their names with `_` for `-` and `__` for the dot.
        """
        lake = sm.load_catalog("lake", type="hadoop", warehouse=f"file://{folder}")
        more = {name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()}
        settings = {"write.tree.layout": "iceberg", "write.metadata.metrics.default": chance.choice(METRICS)}
        if version < 4:
            kinds = {name: kind for name, kind in zip(VALUES, KINDS, strict=True) if version > 2 or "_ns" not in name}
            schema = Schema(
                NestedField(1, "id", LongType()),
                *(NestedField(2 + at, f"c{at}", chance.choice([*kinds.values()])) for at in range(4)),
            )
        else:
            schema = new_schema(chance)
        table = lake.create_table(
            "db.t", schema, properties=CHANGES | SMALL | settings | more, format_version=version, spark=spark
        )
        tree = RandomTree(chance, table)
        if chance.random() < 0.8:
            tree.change_spec()
        return tree

    def step(self) -> None:
        """Make a random change."""
        steps = [self.append] * 4 + [self.delete] * 5 + [self.remove_files] * 2 + [self.compact] * 2
        steps += [self.overwrite, self.change_schema, self.change_spec, self.delete_keys, self.upsert]
        change = self.chance.choice(steps)
        self.steps.append(change.__name__)
        change()

    def record(self) -> None:
        """Remember the rows of the table's snapshot."""
        snapshot = self.table.current_snapshot()
        if snapshot is not None and snapshot.snapshot_id not in self.snapshots:
            names = [column.name for column in self.table.schema().fields]
            self.snapshots[snapshot.snapshot_id] = names, {key: dict(row) for key, row in self.rows.items()}

    # -- Changes of rows ------------------------------------------------------------------------------------------

    def _new_rows(self, how_many: int) -> Rows:
        keys = range(self.last_id + 1, self.last_id + 1 + how_many)
        self.last_id += how_many
        return self._rows_with(keys)

    def _rows_with(self, keys: Sequence[int]) -> Rows:
        rows: Rows = {}
        for key in keys:
            columns = self.table.schema().fields
            rows[key] = {column.name: new_value(self.chance, column.field_type, column.required) for column in columns}
            rows[key]["id"] = key
        return rows

    def _frame(self, rows: Rows) -> pa.Table:
        """Return rows in the types that scans return; `rows` gets the values of the result."""
        schema = self.table.scan().to_arrow().schema
        stored = pa.schema([column.with_type(_stored(column.type)) for column in schema])
        frame = pa.Table.from_pylist([*rows.values()], schema=stored)
        rows |= dict(zip(rows, frame.to_pylist(), strict=True))
        return frame

    def append(self) -> None:
        """Append rows to many or few files."""
        for _ in range(self.chance.randint(1, 2)):
            rows = self._new_rows(self.chance.choice((1, 3, 8)))
            self.table = self.table.append(self._frame(rows))
            self.rows |= rows
            self.record()

    def overwrite(self) -> None:
        """Replace some rows."""
        chosen = self._some(self.chance.randint(1, 4))
        rows = self._new_rows(self.chance.randint(0, 3))
        self.table = self.table.overwrite(self._frame(rows), self._is_in(chosen))
        self._forget(chosen)
        self.rows |= rows
        self.record()

    def upsert(self) -> None:
        """Replace some rows by others with the same key, in one commit of vectors and data files."""
        if chosen := self._some(3):
            rows = self._rows_with(chosen)
            self.table = self.table.upsert(self._frame(rows), ["id"])
            self.rows |= rows
        self.record()

    def delete(self) -> None:
        """Delete some rows."""
        chosen = self._some(self.chance.choice((1, 2, 5)))
        if chosen:
            self.table = self.table.delete(self._is_in(chosen))
            self._forget(chosen)
        self.record()

    def delete_keys(self) -> None:
        """Delete some rows by equality deletes."""
        chosen = self._some(3)
        if chosen:
            self.table = self.table.equality_delete(self._frame({key: dict(self.rows[key]) for key in chosen}), ["id"])
            self._forget(chosen)
        self.record()

    def remove_files(self) -> None:
        """Remove some files."""
        files = self.table.scan().arrow.plan_files()
        if not len(files):
            return
        count = self.chance.randint(1, min(3, len(files)))
        chosen = files.take(self.chance.sample(range(len(files)), count)).select(["file_path"])
        rows = self.table.scan(selected_fields=("id", "_file")).to_arrow()
        gone = rows.filter(pc.is_in(rows.column("_file"), chosen.column("file_path").combine_chunks()))
        with self.table.transaction() as tx:
            tx.update_snapshot().delete(chosen)
        self.table = self.table.refresh()
        self._forget(gone.column("id").to_pylist())
        self.record()

    def _some(self, count: int) -> list[int]:
        return self.chance.sample(sorted(self.rows), min(count, len(self.rows)))

    def _is_in(self, keys: Sequence[int]) -> str:
        return f"id in ({', '.join(map(str, [-1, *keys]))})"

    def _forget(self, keys: Sequence[int]) -> None:
        for key in keys:
            del self.rows[key]

    # -- Other changes --------------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Rewrite leaves."""
        maintenance = self.table.maintenance
        is_tree = self.table.format_version == 4
        self.table = (maintenance.compact_manifests() if is_tree else maintenance.rewrite_manifests()).commit()
        self.record()

    def change_spec(self) -> None:
        """Add a partition field, or remove one."""
        spec, schema = self.table.spec(), self.table.schema()
        with self.table.update_spec() as update:
            if spec.fields and self.chance.random() < 0.4:
                update.remove_field(self.chance.choice(spec.fields).name)
            else:
                for name, transform in self._parts(schema):
                    update.add_field(name, parse_transform(transform), f"p{len(self.table.specs())}_{name}_{transform}")
        self.table = self.table.refresh()

    def _parts(self, schema: Schema) -> list[tuple[str, str]]:
        used = {(part.source_id, str(part.transform)) for part in self.table.spec().fields}
        of_id = (("id", "bucket[3]"), ("id", "truncate[2]"))
        columns = [(name, kind) for name, kind in primitives(schema).items() if name != "id"]
        parts = [(name, each) for name, kind in columns for each, kinds in _PARTS.items() if isinstance(kind, kinds)]
        chosen = self.chance.sample(parts, min(len(parts), self.chance.randint(1, 3))) or [self.chance.choice(of_id)]
        new: dict[tuple[int, bool], tuple[str, str]] = {}
        for name, transform in chosen:
            source = schema.find_field(name).field_id
            if not any(number == source for number, _ in used):
                new[source, transform in ("year", "month", "day", "hour")] = name, transform
        return [*new.values()]

    def change_schema(self) -> None:
        """Add, rename, widen or drop a column."""
        schema = self.table.schema()
        sources = {part.source_id for spec in self.table.specs().values() for part in spec.fields}
        free = [column for column in schema.fields[1:] if not sources & Schema(column).field_ids]
        change = self.chance.choice(("add", "rename", "widen", "drop"))
        column = self.chance.choice(schema.fields[1:]) if len(schema.fields) > 1 else None
        name = f"n{len(self.table.schemas())}"
        with self.table.update_schema() as update:
            if change == "add" or column is None:
                update.add_column(name, self.chance.choice(KINDS))
                self._each_row(lambda row: row | {name: None})
            elif change == "rename":
                old = column.name
                update.rename_column(old, name)
                self._each_row(lambda row: {name if key == old else key: value for key, value in row.items()})
            elif change == "widen":
                for path, kind in primitives(schema).items():
                    if isinstance(kind, DecimalType) and kind.precision < 30:
                        update.update_column(path, DecimalType(kind.precision + 3, kind.scale))
                    elif type(kind) in _WIDER:
                        update.update_column(path, _WIDER[type(kind)])
            elif free:
                dropped = self.chance.choice(free).name
                update.delete_column(dropped)
                self._each_row(lambda row: {key: value for key, value in row.items() if key != dropped})
        self.table = self.table.refresh()

    def _each_row(self, change: Any) -> None:
        self.rows = {key: change(row) for key, row in self.rows.items()}


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return a type without extension types."""
    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(_stored(child.type)) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_stored(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored(kind.value_type)))
    return kind.storage_type if isinstance(kind, pa.ExtensionType) else kind


def texts(rows: Mapping[int, Mapping[str, Any]], names: Sequence[str]) -> dict[int, str]:
    """Return rows as texts that can be compared."""
    return {key: repr([row[name] for name in names]) for key, row in rows.items()}


def scanned(rows: pa.Table) -> Rows:
    """Return the rows of a scan."""
    stored = pa.schema([column.with_type(_stored(column.type)) for column in rows.schema])
    assert len({*rows.column("id").to_pylist()}) == len(rows)
    return {row["id"]: row for row in rows.cast(stored).to_pylist()}
