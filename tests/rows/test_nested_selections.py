"""Random selections by path from random tables whose schemas change, read in every public way, against a model.

The model is plain Python. It knows types as the JSON of schemas, and structs as dicts by field id.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate

import sparkmeta as sm
from sparkmeta.arrow_types import spark_schema
from sparkmeta.errors import InvalidArgumentError
from sparkmeta.rows.file_rows import CHANGE_COLUMNS
from sparkmeta.spec.schema import schema_from_json, schema_to_json
from tests.data_source.test_sql import read as read_source
from tests.data_source.test_stream import Query, Stream
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

METADATA_TYPES = {
    "_file": pa.string(), "_pos": pa.int64(), "_spec_id": pa.int32(), "_row_id": pa.int64(),
    "_last_updated_sequence_number": pa.int64(), "_change_type": pa.string(), "_change_ordinal": pa.int32(),
    "_commit_snapshot_id": pa.int64(),
}  # fmt: skip
METADATA = tuple(name for name in METADATA_TYPES if name not in CHANGE_COLUMNS)
PARTS = ("a", "Bc", "d.e", "f,g", 'h"i', "J k", "l\\m", "Ö", "`n`")
SHOWN = ("id", *METADATA)
SKIP = {f"streaming-skip-{operation}-snapshots": "true" for operation in ("overwrite", "delete")}
ALL = "*"
PRIMITIVES = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}

# -- types and values -------------------------------------------------------------------------------------------------


@dataclass
class Maker:
    """Makes random types and values, and changes types."""

    rng: random.Random
    ids: Iterator[int] = field(default_factory=lambda: count(2))
    numbers: Iterator[int] = field(default_factory=count)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def name(self) -> str:
        return f"{self.rng.choice(PARTS)}{next(self.numbers)}"

    def field(self, depth: int, *, is_added: bool = False) -> dict[str, Any]:
        """Return a field. An added one has a default, or is optional."""
        name, field_id = self.name(), next(self.ids)
        kind = self.kind(depth, is_added=is_added)
        column = {"id": field_id, "name": name, "type": kind, "required": False}
        if is_added and (isinstance(kind, str) or kind["type"] == "struct") and self.chance(0.7):
            default = self.value(kind, True) if isinstance(kind, str) else {}
            column |= {"initial-default": default, "write-default": default}
        if not is_added or "initial-default" in column:
            column["required"] = self.chance(0.3)
        return column

    def kind(self, depth: int, *, is_added: bool = False) -> Any:
        """Return a type."""
        shape = self.rng.choice(("struct", "struct", "list", "map", "long")) if depth else "long"
        inner = partial(self.kind, depth - 1, is_added=is_added)
        match shape:
            case "struct":
                fields = [self.field(depth - 1, is_added=is_added) for _ in range(self.rng.randint(1, 3))]
                if len(fields) > 1 and self.chance(0.2):
                    fields[-1]["name"] = fields[0]["name"].swapcase()
                return {"type": "struct", "fields": fields}
            case "list":
                return {"type": "list", "element-id": next(self.ids), "element": inner(), "element-required": False}
            case "map":
                ids = {"key-id": next(self.ids), "value-id": next(self.ids)}
                return {"type": "map", "key": "string", "value": inner(), "value-required": False, **ids}
        return self.rng.choice([*PRIMITIVES])

    def value(self, kind: Any, required: bool = False) -> Any:
        if not required and self.chance(0.25):
            return None
        match kind:
            case {"fields": fields}:
                return {each["id"]: self.value(each["type"], each["required"]) for each in fields}
            case {"element": element}:
                return [self.value(element) for _ in range(self.rng.randint(0, 3))]
            case {"value": item}:
                return [(f"k{number}", self.value(item)) for number in range(self.rng.randint(0, 3))]
        number = self.rng.randrange(100)
        return f"text {number}" if kind == "string" else number

    def changed(self, kind: Any, depth: int) -> Any:
        """Return a type after a change of a schema: fields are added, dropped, renamed, moved and promoted."""
        match kind:
            case {"fields": fields}:
                remaining = [each for each in fields if not self.chance(0.1)] or fields[:1]
                changed = [
                    each
                    | {"type": self.changed(each["type"], depth - 1)}
                    | ({"name": self.name()} if self.chance(0.1) else {})
                    for each in remaining
                ]
                if self.chance(0.6):
                    changed.insert(self.rng.randint(0, len(changed)), self.field(max(depth, 0), is_added=True))
                return kind | {"fields": changed}
            case {"element": element}:
                return kind | {"element": self.changed(element, depth - 1)}
            case {"value": item}:
                return kind | {"value": self.changed(item, depth - 1)}
        return "long" if kind == "int" and self.chance(0.3) else kind


def default_of(of: dict[str, Any]) -> Any:
    """Return the value of a field in files that lack it."""
    if of.get("initial-default") is None or isinstance(of["type"], str):
        return of.get("initial-default")
    return {each["id"]: default_of(each) for each in of["type"]["fields"]}


def migrated(value: Any, kind: Any) -> Any:
    """Return a value of an earlier schema as rows of a later one have it."""
    if value is None:
        return None
    match kind:
        case {"fields": fields}:
            return {
                each["id"]: migrated(value[each["id"]], each["type"]) if each["id"] in value else default_of(each)
                for each in fields
            }
        case {"element": element}:
            return [migrated(each, element) for each in value]
        case {"value": item}:
            return [(key, migrated(each, item)) for key, each in value]
    return value


def named(value: Any, kind: Any) -> Any:
    """Return a value with the fields of a type by their names."""
    if value is None:
        return None
    match kind:
        case {"fields": fields}:
            return {each["name"]: named(value[each["id"]], each["type"]) for each in fields}
        case {"element": element}:
            return [named(each, element) for each in value]
        case {"value": item}:
            return [(key, named(each, item)) for key, each in value]
    return value


def arrow_type(kind: Any) -> pa.DataType:
    match kind:
        case {"fields": fields}:
            return pa.struct([(each["name"], arrow_type(each["type"])) for each in fields])
        case {"element": element}:
            return pa.list_(pa.field("element", arrow_type(element)))
        case {"value": item}:
            return pa.map_(pa.string(), arrow_type(item))
    return PRIMITIVES[kind]


# -- selections -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A field that a selection can name.

    Attributes:
        names: its full name, and the one without `element` and `value`.
        ids: its id, and the ids of all that is inside it.
        path: the ids from the top-level column to it, if it is in no list or map.
        kind: its type.
    """

    names: tuple[str, ...]
    ids: frozenset[int]
    path: tuple[int, ...]
    kind: Any


def children(kind: Any) -> list[tuple[int, str, Any]]:
    """Return the ids, names and types of what is directly inside a type."""
    match kind:
        case {"fields": fields}:
            return [(each["id"], each["name"], each["type"]) for each in fields]
        case {"element-id": field_id, "element": element}:
            return [(field_id, "element", element)]
        case {"key-id": key_id, "value-id": value_id, "value": item}:
            return [(key_id, "key", "string"), (value_id, "value", item)]
    return []


def ids_inside(kind: Any) -> Iterator[int]:
    for field_id, _, inner in children(kind):
        yield from (field_id, *ids_inside(inner))


def places(kind: Any, above: tuple[str, ...] = ("",), path: tuple[int, ...] | None = ()) -> Iterator[Place]:
    is_struct = isinstance(kind, dict) and kind["type"] == "struct"
    for field_id, name, inner in children(kind):
        names = tuple(f"{each}{name}" for each in above)
        at = (*path, field_id) if path is not None and is_struct else None
        yield Place(names, frozenset((field_id, *ids_inside(inner))), at or (), inner)
        is_short = not is_struct and name != "key" and isinstance(inner, dict) and inner["type"] == "struct"
        yield from places(inner, (*(f"{each}." for each in names), *(above if is_short else ())), at)


def part(kind: Any, ids: Iterable[int]) -> Any:
    """Return a type with some of its fields; None if there are none. A map always has its keys."""

    def of_child(field_id: int, inner: Any) -> Any:
        return (inner if field_id in ids else None) if isinstance(inner, str) else part(inner, ids)

    match kind:
        case {"fields": fields}:
            parts = [each | {"type": of_child(each["id"], each["type"])} for each in fields]
            parts = [each for each in parts if each["type"] is not None]
            return kind | {"fields": parts} if parts else None
        case {"element-id": element_id, "element": element}:
            inner = of_child(element_id, element)
            return None if inner is None else kind | {"element": inner}
        case {"key-id": key_id, "value-id": value_id, "value": item}:
            inner = of_child(value_id, item)
            return kind | {"value": inner} if inner is not None else kind if key_id in ids else None
    return None


@dataclass(frozen=True)
class Selection:
    """Selections, one after another.

    Attributes:
        steps: the names of each.
        ids: the fields that all of them have.
        metadata: the metadata columns that all of them have.
        case_sensitive: whether names are case-sensitive.
    """

    steps: tuple[tuple[str, ...], ...]
    ids: frozenset[int]
    metadata: tuple[str, ...]
    case_sensitive: bool

    @staticmethod
    def of(
        rng: random.Random, schema: Any, *, is_option: bool = False, metadata: tuple[str, ...] = METADATA
    ) -> Selection:
        """Return random selections, or one for the option of the data source.

        Args:
            rng: the source of random numbers.
            schema: the type of the rows.
            is_option: whether there is one selection, by the exact names.
            metadata: the metadata columns to select from.
        """
        every, known = list(places(schema)), metadata
        spelled = {name for each in every for name in each.names}
        is_ambiguous = len({name.lower() for name in spelled}) < len(spelled)
        case_sensitive = is_option or is_ambiguous or rng.random() < 0.6
        ids, steps = frozenset(ids_inside(schema)), list[tuple[str, ...]]()
        for step in range(1 if is_option else rng.choice((1, 1, 1, 2, 3))):
            # A further selection is mostly of what the earlier one has.
            fitting = [each for each in every if each.ids & ids] if rng.random() < 0.8 else every
            chosen = [rng.choice(fitting) for _ in range(rng.randint(1, 4))] if fitting else []
            names = [rng.choice(each.names) for each in chosen]
            columns = [name for name in known if rng.random() < 0.15]
            names += columns
            rng.shuffle(names)
            columns.sort(key=names.index)
            if not names or rng.random() < 0.05:
                names.append(ALL)
            if ALL not in names:
                ids &= frozenset().union(*(each.ids for each in chosen))
            if ALL not in names or step == 0:
                metadata = tuple(name for name in columns if name in metadata)
            steps.append(tuple(names if case_sensitive else [any_case(rng, name) for name in names]))
        return Selection(tuple(steps), ids, metadata, case_sensitive)

    def on(self, scan: Any) -> Any:
        """Return a scan with these selections."""
        for names in self.steps:
            scan = scan.select(*names)
        return scan


def any_case(rng: random.Random, name: str) -> str:
    return rng.choice((name, name.upper(), name.lower(), name.swapcase()))


def quoted(name: str) -> str:
    """Return a name as filters and lists of names have it."""
    return name if name == ALL else '"{}"'.format(name.replace("\\", "\\\\").replace('"', '\\"'))


# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """What a snapshot did with a row."""

    kind: str
    row: dict[int, Any]
    snapshot: int


class History:
    """A table with random rows and changes of its schema, and the model of them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.maker = Maker(self.rng)
        columns = [self.maker.field(3) for _ in range(self.rng.randint(2, 4))]
        self.schema: Any = {
            "type": "struct",
            "fields": [{"id": 1, "name": "id", "type": "long", "required": True}, *columns],
        }
        mode = self.rng.choice(("copy-on-write", "merge-on-read"))
        properties = {f"write.{command}.mode": mode for command in ("delete", "update", "merge")}
        lake = sm.load_catalog("lake", type="hadoop", warehouse=str(folder))
        self.table = lake.create_table(
            "db.t", schema_from_json({"schema-id": 0} | self.schema), format_version=3, properties=properties
        )
        self.schema = {"type": "struct", "fields": schema_to_json(self.table.schema())["fields"]}
        self.ids, self.numbers = count(self.table.schema().highest_field_id + 1), count()
        self.maker.ids = self.ids
        self.live: dict[int, dict[int, Any]] = {}
        self.changes: list[Change] = []
        self.appended: list[dict[int, Any]] = []
        self.append()
        for _ in range(3):
            if self.maker.chance(0.8):
                self.change_schema()
            self.append()
            self.rng.choice((self.delete, self.update, self.append))()
        if self.maker.chance(0.7):
            self.change_schema()

    def append(self) -> None:
        numbers = [next(self.numbers) for _ in range(self.rng.randint(1, 4))]
        rows = {number: self.row(number) for number in numbers}
        file_format = self.rng.choice(("parquet", "parquet", "parquet", "orc", "avro"))
        with self.table.transaction() as transaction:
            transaction.set_properties({"write.format.default": file_format})
        self.table = self.table.refresh().append(self.arrow(rows.values()))
        self.note([("INSERT", row) for row in rows.values()])
        self.appended += rows.values()
        self.live |= rows

    def delete(self) -> None:
        number = self.rng.choice([*self.live])
        self.table = self.table.delete(f"id = {number}")
        self.note([("DELETE", self.live.pop(number))])

    def update(self) -> None:
        number = self.rng.choice([*self.live])
        row = self.row(number)
        if row == self.live[number]:
            return
        self.table = self.table.upsert(self.arrow([row]), ["id"])
        self.note([("DELETE", self.live[number]), ("INSERT", row)])
        self.live[number] = row

    def change_schema(self) -> None:
        first, *others = self.schema["fields"]
        changed = self.maker.changed({"type": "struct", "fields": others}, 2)
        self.schema = {"type": "struct", "fields": [first, *changed["fields"]]}
        schema = schema_from_json({"schema-id": len(self.table.schemas())} | self.schema)
        updates = AddSchemaUpdate.model_validate({"schema": schema}), SetCurrentSchemaUpdate(schema_id=-1)
        with self.table.transaction() as transaction:
            transaction._apply(updates)
        self.table = self.table.refresh()
        self.live = {number: migrated(row, self.schema) for number, row in self.live.items()}
        self.appended = [migrated(row, self.schema) for row in self.appended]
        self.changes = [Change(each.kind, migrated(each.row, self.schema), each.snapshot) for each in self.changes]

    def row(self, number: int) -> dict[int, Any]:
        return self.maker.value(self.schema, required=True) | {1: number}

    def arrow(self, rows: Iterable[dict[int, Any]]) -> pa.Table:
        return pa.Table.from_pylist([named(row, self.schema) for row in rows], pa.schema(arrow_type(self.schema)))

    def note(self, changes: list[tuple[str, dict[int, Any]]]) -> None:
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        self.changes += [Change(kind, row, snapshot.snapshot_id) for kind, row in changes]


# -- readers ----------------------------------------------------------------------------------------------------------


def schema_of(kind: Any, others: Iterable[str]) -> pa.Schema:
    return pa.schema([*arrow_type(kind), *((name, METADATA_TYPES[name]) for name in others)])


def assert_rows(rows: pa.Table, kind: Any, others: Iterable[str], expected: Iterable[dict[str, Any]], of: str) -> None:
    """Compare rows and their schema with a type, further columns, and rows of the model."""
    assert str(rows.schema) == str(schema_of(kind, others)), of
    assert texts(rows.to_pylist()) == texts(expected), of


def texts(rows: Iterable[Any]) -> list[str]:
    return sorted(map(repr, rows))


class Reading:
    """The options and the model of a reading with a random selection and condition."""

    def __init__(self, history: History, selection: Selection) -> None:
        rng, self.selection = history.rng, selection
        self.kind = part(history.schema, selection.ids) or {"type": "struct", "fields": []}
        self.of = f"{history.seed} {selection}"
        self.filter, self.path, self.is_null = None, (), False
        tested = [each for each in places(history.schema) if each.path and isinstance(each.kind, str)]
        if rng.random() < 0.4 and tested:
            place = rng.choice(tested)
            self.path, self.is_null = place.path, rng.random() < 0.3
            self.filter = f"{quoted(place.names[0])} IS {'' if self.is_null else 'NOT '}NULL"
            self.of += f" {self.filter}"

    @property
    def options(self) -> dict[str, str]:
        names = ", ".join(map(quoted, self.selection.steps[0]))
        return {"columns": names} | ({} if self.filter is None else {"filter": self.filter})

    def on(self, scan: Any) -> Any:
        """Return a scan with the condition and the selections."""
        return self.selection.on(scan if self.filter is None else scan.filter(self.filter))

    def has(self, row: Any) -> bool:
        """Return whether a row meets the condition."""
        for field_id in self.path:
            row = None if row is None else row[field_id]
        return self.filter is None or (row is None) == self.is_null

    def rows(self, rows: Iterable[dict[int, Any]], others: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the expected rows of a read, with the values of other selected columns by the ids of rows."""
        return [
            named(row, self.kind) | {name: others[row[1]][name] for name in self.selection.metadata}
            for row in rows
            if self.has(row)
        ]

    def changes(self, history: History) -> list[dict[str, Any]]:
        """Return the rows of the changelog."""
        ordinals = {
            snapshot: number for number, snapshot in enumerate(dict.fromkeys(c.snapshot for c in history.changes))
        }
        return [
            named(change.row, self.kind)
            | dict(zip(CHANGE_COLUMNS, (change.kind, ordinals[change.snapshot], change.snapshot), strict=True))
            for change in history.changes
            if self.has(change.row)
        ]


def by_source(reading: Reading, kind: Any, others: Iterable[str], place: str, **options: str) -> list[dict[str, Any]]:
    """Return the rows that the data source reads in this process, whose schema is compared."""
    assert sm.DataSource({"path": place, **reading.options, **options}).schema() == spark_schema(
        schema_of(kind, others)
    )
    return read_source(path=place, **reading.options, **options)[0]


def readings(history: History, number: int, **limits: Any) -> Iterator[Reading]:
    for _ in range(number):
        yield Reading(history, Selection.of(history.rng, history.schema, **limits))


def metadata_of(rows: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("seed", range(500 if SOAK else 20))
def test_rows_in_one_process(seed: int, tmp_path: Path) -> None:
    history = History(seed, tmp_path)
    table, place = history.table, history.table.metadata_location
    metadata = metadata_of(table.scan().select(*SHOWN).to_arrow().to_pylist())
    for reading in readings(history, 15):
        selection, kind, of = reading.selection, reading.kind, reading.of
        scan = table.scan(case_sensitive=selection.case_sensitive)
        if not kind["fields"] and not selection.metadata:
            with pytest.raises(InvalidArgumentError, match="is not among the columns"):
                selection.on(scan)
            continue
        expected = reading.rows(history.live.values(), metadata)
        assert_rows(reading.on(scan).to_arrow(), kind, selection.metadata, expected, of)
        batches = reading.on(scan).to_arrow_batch_reader()
        assert_rows(batches.read_all(), kind, selection.metadata, expected, of)
        if selection.case_sensitive and len(selection.steps) == 1:
            assert texts(by_source(reading, kind, selection.metadata, place)) == texts(expected), of
    with pytest.raises(InvalidArgumentError, match="select names no column"):
        table.scan().select()


@pytest.mark.parametrize("seed", range(500 if SOAK else 12))
def test_changes_in_one_process(seed: int, tmp_path: Path) -> None:
    history = History(seed, tmp_path)
    place = str(history.table.location())
    metadata = metadata_of(dict(zip(SHOWN, row, strict=True)) for row in streamed(place, columns=", ".join(SHOWN)))
    for number, reading in enumerate(readings(history, 5, is_option=True, metadata=())):
        expected = reading.changes(history)
        if number % 2:
            rows = Stream(place, table="changelog", **reading.options).drain()
            assert texts(rows) == texts(tuple(row.values()) for row in expected), reading.of
        else:
            rows = by_source(reading, reading.kind, CHANGE_COLUMNS, place, table="changelog")
            assert texts(rows) == texts(expected), reading.of
    for reading in readings(history, 2, is_option=True):
        expected = reading.rows(history.appended, metadata)
        assert texts(streamed(place, **reading.options)) == texts(tuple(row.values()) for row in expected), reading.of


def streamed(place: str, **options: str) -> list[tuple[Any, ...]]:
    """Return the appended rows that a stream reads in this process."""
    return Stream(place, **options, **SKIP).drain()


@pytest.mark.parametrize("seed", range(200 if SOAK else 8))
def test_jobs(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    history = History(seed, tmp_path)
    table, place = sm.load_table(history.table.metadata_location, spark=spark), history.table.metadata_location
    metadata = metadata_of(history.table.scan().select(*SHOWN).to_arrow().to_pylist())
    for reading in readings(history, 4):
        if not reading.kind["fields"] and not reading.selection.metadata:
            continue
        scan = reading.on(table.scan(case_sensitive=reading.selection.case_sensitive))
        expected = reading.rows(history.live.values(), metadata)
        assert_rows(scan.to_df().toArrow(), reading.kind, reading.selection.metadata, expected, reading.of)
    appended = metadata_of(table.incremental(None).select(*SHOWN).to_df().toArrow().to_pylist())
    for reading in readings(history, 1, is_option=True):
        rows = reading.on(table.incremental(None)).to_df().toArrow()
        expected = reading.rows(history.appended, appended)
        assert_rows(rows, reading.kind, reading.selection.metadata, expected, reading.of)
    sm.register(spark)
    for reading in readings(history, 1, is_option=True):
        rows = spark.read.format("sparkmeta").options(**reading.options).load(place).toArrow()
        expected = reading.rows(history.live.values(), metadata)
        assert_rows(rows, reading.kind, reading.selection.metadata, expected, reading.of)
    for reading in readings(history, 2, is_option=True, metadata=()):
        rows = reading.on(table.changelog(None)).to_df().toArrow()
        assert_rows(rows, reading.kind, CHANGE_COLUMNS, reading.changes(history), reading.of)
    source = spark.read.format("sparkmeta").option("table", "changelog").options(**reading.options)
    assert_rows(source.load(place).toArrow(), reading.kind, CHANGE_COLUMNS, reading.changes(history), reading.of)


@pytest.mark.parametrize("seed", range(20 if SOAK else 3))
def test_queries(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    history = History(seed, tmp_path / "table")
    (reading,) = readings(history, 1, is_option=True, metadata=())
    query = Query(spark, str(history.table.location()), tmp_path / "log", table="changelog", **reading.options)
    query.drain()
    # Spark's reader of Parquet.
    rows = spark.read.parquet(str(tmp_path / "log" / "out")).toArrow()
    assert_rows(rows, reading.kind, CHANGE_COLUMNS, reading.changes(history), reading.of)
