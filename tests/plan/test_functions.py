"""Filters on functions of columns: rows, and plans by the statistics of expressions and of shredded variants."""

from __future__ import annotations

import datetime as dt
import json
import math
import operator
import os
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType
from pyspark.sql.types import StringType as SparkString
from pyspark.sql.types import StructField as SparkField
from pyspark.sql.types import StructType as SparkStruct
from pyspark.sql.types import TimestampType, VariantVal
from pyspark.sql.types import VariantType as SparkVariant

import sparkmeta as sm
from sparkmeta.errors import (
    CommitConflictError,
    InvalidChangeError,
    InvalidFilterError,
    UnsupportedError,
    ValidationError,
)
from sparkmeta.expr import evaluate, sql
from sparkmeta.expr.expression_json import expression_from_json
from sparkmeta.expr.filter_text import as_text
from sparkmeta.expr.functions import function_value
from sparkmeta.expr.predicate import bind_filter, expression_to_json, parse_filter
from sparkmeta.expr.variants import FILE_VARIANT, VariantNames, bounds_of_field, object_of, primitives, sorted_metadata
from sparkmeta.spec.functions import EXTRACTED, Cased, VariantGet
from sparkmeta.spec.schema import VariantType
from tests.conftest import configured
from tests.data_source.test_stream import Stream
from tests.master_keys import NAME
from tests.peers.java import Java
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"
PROFILE = settings(
    max_examples=150 if SOAK else 12,
    deadline=None,
    derandomize=not SOAK,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
BY_TASKS = {"spark.sparkmeta.driver-manifest-bytes": "0"}
SHRED = {"write.parquet.shred-variants": "true"}
FIELDS = (
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "s", StructType(NestedField(4, "n", StringType(), required=False))),
    NestedField(5, "v", VariantType()),
    NestedField(6, "list", ListType(7, StringType(), element_required=False)),
)
CALLS = (
    "lower(name)", "upper(s.n)", "variant_get(v, '$.a', 'long')", "variant_get(v, '$.o.d', 'double')",
    "variant_get(v, '$.a', 'string')",
)  # fmt: skip
# A table of version 3, and trees of version 4 without and with statistics of `CALLS`.
KINDS = pytest.mark.parametrize(
    ("version", "measured"), [(3, ()), (4, ()), (4, CALLS)], ids=["lists", "tree", "expressions"]
)
NOON = dt.datetime(2026, 1, 31, 12, 0, 0, 5, dt.UTC)


# -- Variants ---------------------------------------------------------------------------------------------------------


def encoded(value: Any, names: VariantNames) -> bytes:
    """A value, an object or an Arrow scalar as a variant."""
    if value is None:
        return b"\0"
    if isinstance(value, dict):
        return object_of({name.encode(): encoded(inside, names) for name, inside in value.items()}, names)
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    return primitives(pa.repeat(scalar, 1))[0].as_py()


def variant(value: Any) -> dict[str, bytes]:
    """A variant whose objects have fields of the names a, d and o, and it's."""
    metadata = sorted_metadata([b"a", b"d", b"it's", b"o"])
    return {"metadata": metadata, "value": encoded(value, VariantNames(metadata))}


# What variants hold at a path -> what each type extracts from it. Other types extract null.
VALUES: list[tuple[Any, dict[str, Any]]] = [
    (None, {}),
    (True, {"boolean": True}),
    (False, {"boolean": False}),
    (pa.scalar(-5, pa.int8()), {"long": -5, "double": -5.0}),
    (pa.scalar(300, pa.int16()), {"long": 300, "double": 300.0}),
    (pa.scalar(70_000, pa.int32()), {"long": 70_000, "double": 70_000.0}),
    (pa.scalar(2**62 + 1, pa.int64()), {"long": 2**62 + 1, "double": float(2**62)}),
    (pa.scalar(Decimal("1.10")), {"double": 1.1}),
    (pa.scalar(Decimal(3)), {"double": 3.0}),
    (pa.scalar(Decimal(10**30)), {"double": 1e30}),
    (pa.scalar(0.1, pa.float32()), {"double": 0.10000000149011612}),
    (-2.5, {"double": -2.5}),
    (float("inf"), {"double": float("inf")}),
    ("", {"string": ""}),
    ("5", {"string": "5"}),
    ("ü" * 70, {"string": "ü" * 70}),
    (b"x", {}),
    (dt.date(1969, 12, 31), {"date": dt.date(1969, 12, 31)}),
    (pa.scalar(NOON, pa.timestamp("us", "UTC")), {"timestamptz": NOON}),
    (pa.scalar(NOON.replace(tzinfo=None), pa.timestamp("us")), {"timestamp": NOON.replace(tzinfo=None)}),
    ({"d": 1}, {}),
]


@pytest.mark.parametrize("timestamps", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
@pytest.mark.parametrize("path", [("a",), ("o", "it's")], ids=".".join)
def test_extracted_values(spark: SparkSession, path: tuple[str, ...], timestamps: str) -> None:
    """Spark and the driver extract the same values, of the exact type only."""
    inside = [{path[-1]: value} for value, _ in VALUES]
    values = [variant(value if len(path) == 1 else {path[0]: value}) for value in inside]
    values += [variant({}), variant(7), variant({path[0]: 8} if len(path) > 1 else {"d": 9}), None]
    vals = [None if value is None else VariantVal(value["value"], value["metadata"]) for value in values]
    frame = spark.createDataFrame([(val,) for val in vals], SparkStruct([SparkField("v", SparkVariant())]))
    column = sql.col("v")
    functions = {kind: function_value(VariantGet(path, kind), column) for kind in EXTRACTED}
    with configured(spark, {"spark.sql.timestampType": timestamps}):
        extracted_values = frame.selectExpr(*(f"{value.text} AS {kind}_" for kind, value in functions.items()))
        by_spark = extracted_values.collect()
    assert extracted_values.schema["timestamptz_"].dataType == TimestampType()
    rows = pa.table({"v": pa.array(values, FILE_VARIANT)})
    for kind, value in functions.items():
        expected = [extracted.get(kind) for _, extracted in VALUES] + [None] * 4
        assert evaluate.values(rows, value).to_pylist() == expected, kind
        shown = [row[f"{kind}_"] for row in by_spark]
        if kind == "timestamptz":  # in the zone of this process
            shown = [value and value.astimezone(dt.UTC) for value in shown]
        assert shown == expected, kind


@pytest.mark.parametrize("name", ["lower", "upper"])
def test_letters(spark: SparkSession, name: str) -> None:
    """Each character is replaced by itself, by Spark and by the driver. Most are as in Python."""
    characters = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x10000), 0x10400, 0x1F600)]
    value = function_value(Cased(name), sql.col("t"))
    changed = evaluate.values(pa.table({"t": characters}), value).to_pylist()
    in_python = [getattr(character, name)() for character in characters]
    differing = [each for each, text, other in zip(characters, changed, in_python, strict=True) if text != other]
    assert "İ" in differing or "ß" in differing
    assert not {*differing}.intersection(map(chr, range(0x80)), "äÖéÑжЖσΣıſ")
    assert len(differing) < 700
    texts = ["".join(characters[start : start + 100]) for start in range(0, len(characters), 100)]
    frame = spark.createDataFrame([(text,) for text in texts], SparkStruct([SparkField("t", SparkString())]))
    by_spark = [row[0] for row in frame.selectExpr(value.text).collect()]
    assert by_spark == ["".join(changed[start : start + 100]) for start in range(0, len(characters), 100)]


# -- Random tables and filters ----------------------------------------------------------------------------------------


TEXTS = st.sampled_from(["", "A", "a", "Ab", "aB", "Öx", "öX", "z", "İ", None])
INSIDE = st.sampled_from(
    [None, 1, 2, -3, 2**40, 1.5, -0.0, math.nan, "A", "b", "", True, {"d": 1}, pa.scalar(Decimal("2.5")), "missing"]
)
NUMBERS = {"long": [1, 2, 0, 2**40], "double": [1.5, 1.0, 2.5, -3.0], "string": ["A", "b", "", "c"]}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne,
}  # fmt: skip


def ordered(value: Any) -> Any:
    """A key by which NaN is greater than all numbers."""
    return (math.isnan(value), value) if isinstance(value, float) else (False, value)


@st.composite
def rows_of_file(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of a file. Many files have variants of a single type."""
    inside = draw(st.sampled_from([INSIDE, st.sampled_from([1, 2, 3]), st.sampled_from(["A", "b"]), st.just(1.5)]))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        a, d = draw(inside), draw(inside)
        value: dict[str, Any] = {} if isinstance(a, str) and a == "missing" else {"a": a}
        value |= {} if isinstance(d, str) and d == "missing" else {"o": {"d": d}}
        struct = draw(st.sampled_from([None, {"n": draw(TEXTS)}]))
        whole = draw(st.sampled_from([value, value, value, None]))
        rows.append({"name": draw(TEXTS), "s": struct, "v": whole})
    return rows


def value_of(row: dict[str, Any], call: str) -> Any:
    """The value of a function of a row, as `semantics.md` says."""
    if call == "lower(name)":
        return row["name"] and "".join(each if each == "İ" else each.lower() for each in row["name"])
    if call == "upper(s.n)":
        return row["s"] and row["s"]["n"] and row["s"]["n"].upper()
    kind = call.rpartition(", ")[2][1:-2]
    inside = row["v"] or {}
    inside = inside.get("o", {}).get("d") if "$.o.d" in call else inside.get("a")
    value = inside.as_py() if isinstance(inside, pa.Scalar) else inside
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    match kind:
        case "long":
            return value if number and isinstance(value, int) else None
        case "double":
            return float(value) if number else None
    return value if isinstance(value, str) else None


@st.composite
def leaves(draw: st.DrawFn) -> tuple[str, Callable[[dict[str, Any]], bool | None]]:
    """A predicate as text, and as a function of rows that returns None for unknown."""
    call = draw(st.sampled_from(CALLS))
    kind = "string" if "variant" not in call else call.rpartition(", ")[2][1:-2]
    literal = draw(st.sampled_from(["a", "AB", "öx", "z", "i"] if "variant" not in call else NUMBERS[kind]))
    shown = f"'{literal}'" if isinstance(literal, str) else str(literal)
    match draw(st.sampled_from([*COMPARISONS, "IN", "IS NULL", "LIKE"])):
        case "IN":
            other = draw(st.sampled_from(["b", "ab"] if kind == "string" else [3, 7]))
            shown_other = f"'{other}'" if isinstance(other, str) else str(other)
            return (
                f"{call} IN ({shown}, {shown_other})",
                lambda row: None if (v := value_of(row, call)) is None else v in (literal, other),
            )
        case "IS NULL":
            return f"{call} IS NULL", lambda row: value_of(row, call) is None
        case "LIKE" if kind == "string":
            return (
                f"{call} LIKE '{literal[:1]}%'",
                lambda row: None if (v := value_of(row, call)) is None else v.startswith(literal[:1]),
            )
        case symbol:
            symbol = "<" if symbol == "LIKE" else symbol
            compare = COMPARISONS[symbol]
            return (
                f"{call} {symbol} {shown}",
                lambda row: None if (v := value_of(row, call)) is None else compare(ordered(v), ordered(literal)),
            )


Predicate = tuple[str, "Callable[[dict[str, Any]], bool | None]"]


def joined(left: Predicate, right: Predicate, word: str) -> Predicate:
    def holds(row: dict[str, Any]) -> bool | None:
        values = left[1](row), right[1](row)
        decisive = word == "OR"
        return decisive if decisive in values else None if None in values else not decisive

    return f"({left[0]}) {word} ({right[0]})", holds


def negated(inside: Predicate) -> Predicate:
    return f"NOT ({inside[0]})", lambda row: None if (value := inside[1](row)) is None else not value


FILTERS: st.SearchStrategy[Predicate] = st.recursive(
    leaves(),
    lambda inside: inside.map(negated) | st.builds(joined, inside, inside, st.sampled_from(["AND", "OR"])),
    max_leaves=4,
)


def arrow_rows(rows: Sequence[dict[str, Any]], first: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, first + len(rows)), pa.int64()),
            "name": pa.array([row["name"] for row in rows], pa.string()),
            "s": pa.array([row["s"] for row in rows], pa.struct([("n", pa.string())])),
            "v": pa.array([None if row["v"] is None else variant(row["v"]) for row in rows], FILE_VARIANT),
        }
    )


def new_table(
    folder: Path, version: int = 4, layout: str = "proposal", catalog: str = "sql", **properties: str
) -> sm.Table:
    folder.mkdir(parents=True, exist_ok=True)
    lake = sm.load_catalog("lake", type=catalog, uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    lake.create_namespace("db")
    properties |= {"write.tree.layout": layout} if version == 4 else {}
    return lake.create_table("db.t", Schema(*FIELDS), format_version=version, properties=SHRED | properties)


def with_expressions(table: sm.Table, *calls: str) -> sm.Table:
    with table.update_expressions() as update:
        for call in calls:
            update.add(call)
    return table.refresh()


def filled(table: sm.Table, files: Sequence[Sequence[dict[str, Any]]]) -> tuple[sm.Table, dict[str, list[int]]]:
    """A table with files, and the ids of the rows of each file."""
    ids: dict[str, list[int]] = {}
    known = {*table.inspect.arrow.files().column("file_path").to_pylist()}
    first = table.scan().count()
    for rows in files:
        table = table.append(arrow_rows(rows, first))
        paths = {*table.inspect.arrow.files().column("file_path").to_pylist()}
        (path,) = paths - known
        ids[path], known, first = [*range(first, first + len(rows))], paths, first + len(rows)
    return table, ids


@KINDS
@PROFILE
@given(files=st.lists(rows_of_file(), min_size=1, max_size=4), filters=st.lists(FILTERS, min_size=6, max_size=6))
def test_plans_hold_matching_rows(
    tmp_path_factory: pytest.TempPathFactory,
    version: int,
    measured: tuple[str, ...],
    files: list[list[dict[str, Any]]],
    filters: list[Predicate],
) -> None:
    table = new_table(tmp_path_factory.mktemp("t"), version)
    table, ids = filled(with_expressions(table, *measured) if measured else table, files)
    rows = [row for part in files for row in part]
    for text, holds in filters:
        scan = table.scan(text)
        matching = {index for index, row in enumerate(rows) if holds(row)}
        planned = {*scan.arrow.plan_files().column("file_path").to_pylist()}
        assert {path for path, of_file in ids.items() if matching.intersection(of_file)} <= planned, text
        assert {*scan.to_arrow().column("id").to_pylist()} == matching, text
        assert scan.count() == len(matching), text
    if measured:
        for text, leaf in _exact_tests(files):
            planned = {*table.scan(text).arrow.plan_files().column("file_path").to_pylist()}
            assert planned == {path for path, part in zip(ids, files, strict=True) if leaf(part)}, text
    text, holds = filters[0]
    table = table.delete(text)
    assert {*table.scan().to_arrow().column("id").to_pylist()} == {i for i, row in enumerate(rows) if not holds(row)}


def bounds_of(part: list[dict[str, Any]], call: str) -> list[Any]:
    values = [value for row in part if (value := value_of(row, call)) is not None]
    return [value for value in values if not isinstance(value, float) or not math.isnan(value)]


def _exact_tests(files: list[list[dict[str, Any]]]) -> list[tuple[str, Callable[[list[dict[str, Any]]], bool]]]:
    """Comparisons, and what exact bounds of a file say of them."""
    tests: list[tuple[str, Callable[[list[dict[str, Any]]], bool]]] = []
    for call in CALLS:
        values = [value for part in files for value in bounds_of(part, call)]
        for literal in values[:2]:
            shown = f"'{literal}'" if isinstance(literal, str) else repr(literal)

            def below(part: list[dict[str, Any]], literal: Any = literal, call: str = call) -> bool:
                return bool(values := bounds_of(part, call)) and min(values) < literal

            def equal(part: list[dict[str, Any]], literal: Any = literal, call: str = call) -> bool:
                return bool(values := bounds_of(part, call)) and min(values) <= literal <= max(values)

            tests += [(f"{call} < {shown}", below), (f"{call} = {shown}", equal)]
    return tests


# -- The same answers on every path -----------------------------------------------------------------------------------


def row_of(number: int) -> dict[str, Any]:
    return {"name": f"Name{number:02}", "s": {"n": f"x{number:02}"}, "v": {"a": number, "o": {"d": number + 0.5}}}


ROWS = [[row_of(start + offset) for offset in range(3)] for start in (0, 10, 20, 30)]
QUESTIONS = {
    "lower(name) = 'name11'": {4},
    "upper(s.n) IN ('X20', 'X22')": {6, 8},
    "variant_get(v, '$.a', 'long') >= 31": {10, 11},
    "variant_get(v, '$.o.d', 'double') < 1.6": {0, 1},
    "lower(name) LIKE 'name1%' AND variant_get(v, '$.a', 'long') != 11": {3, 5},
    "NOT (lower(name) <= 'name30')": {10, 11},
}


@KINDS
def test_every_path(spark: SparkSession, tmp_path: Path, version: int, measured: tuple[str, ...]) -> None:
    """The driver and tasks plan the same files, and the driver and Spark read the same rows."""
    table = new_table(tmp_path, version)
    table, _ = filled(with_expressions(table, *measured) if measured else table, ROWS)
    table = sm.load_table(table.metadata_location, spark=spark)
    for text, ids in QUESTIONS.items():
        scan = table.scan(text)
        planned = {*scan.arrow.plan_files().column("file_path").to_pylist()}
        with configured(spark, BY_TASKS):
            by_tasks = {row["file_path"] for row in table.refresh().scan(text).plan_files().collect()}
        # Tasks test bounds of fields of variants, except doubles. Spark, which reads the leaves of trees, tests none.
        is_tested = measured or (version == 3 and "double" not in text)
        assert by_tasks == planned if is_tested else by_tasks >= planned, text
        assert {row["id"] for row in table.scan(text).to_df().collect()} == ids, text
        assert {*scan.to_arrow().column("id").to_pylist()} == ids, text
        if measured:
            assert len(planned) == len({identifier // 3 for identifier in ids}), text


@pytest.mark.parametrize("change", ["append", "delete"])
@KINDS
def test_streams(tmp_path: Path, version: int, measured: tuple[str, ...], change: str) -> None:
    """Streams of rows and of changes have the rows that a filter keeps."""
    table = new_table(tmp_path, version, catalog="hadoop", **{"write.delete.mode": "merge-on-read"})
    table, _ = filled(with_expressions(table, *measured) if measured else table, ROWS)
    if change == "delete":
        table.delete("id IN (1, 4, 11)")
    for text, ids in QUESTIONS.items():
        stream = Stream(table.location(), filter=text, **({"table": "changelog"} if change == "delete" else {}))
        changes = [(row[0], "INSERT") for row in stream.drain()]
        expected = [(identifier, "INSERT") for identifier in ids]
        if change == "delete":
            kind = sm.DataSource(stream.options).schema().names.index("_change_type")
            changes = [(row[0], row[kind].upper()) for row in stream.rows]
            expected += [(identifier, "DELETE") for identifier in ids & {1, 4, 11}]
        assert sorted(changes) == sorted(expected), text


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_encrypted_tables(tmp_path: Path, file_format: str) -> None:
    """Encrypted columns are filtered as others. Encrypted Parquet files have no variants."""
    store = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    lake = sm.load_catalog("lake", type="sql", **store, **{"encryption.kms-impl": NAME})
    lake.create_namespace("db")
    properties = {"encryption.key-id": "master", "write.format.default": file_format}
    fields = [field for field in FIELDS if file_format == "avro" or field.name != "v"]
    table = lake.create_table("db.t", Schema(*fields), format_version=3, properties=properties)
    for number, part in enumerate(ROWS):
        table = table.append(arrow_rows(part, 3 * number).select([field.name for field in fields[:-1]]))
    for text, ids in QUESTIONS.items():
        if file_format == "avro" or "variant" not in text:
            assert {*table.scan(text).to_arrow().column("id").to_pylist()} == ids, text
            assert table.scan(text).count() == len(ids), text
    table.delete("upper(s.n) IN ('X20', 'X22')")
    assert table.refresh().scan("lower(name) >= 'name20'").count() == 4


def planned(table: sm.Table, text: str) -> int:
    return len(table.scan(text).arrow.plan_files())


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_statistics_of_expressions_last(spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    """Every writer computes statistics of expressions, and rewrites keep them. Earlier files have none."""
    table = new_table(tmp_path, **{"write.format.default": file_format})
    table, _ = filled(table, ROWS[:1])
    table = with_expressions(table, *CALLS[:3])
    table, _ = filled(table, ROWS[1:])
    table = table.append(spark.sql("SELECT 100L AS id, 'ZED' AS name, parse_json('{\"a\": 900}') AS v"))
    assert planned(table, "lower(name) = 'zed'") == planned(table, "variant_get(v, '$.a', 'long') > 800") == 2
    assert planned(table, "lower(name) = 'none'") == 1
    table = table.maintenance.compact_manifests().commit()
    assert planned(table, "lower(name) = 'zed'") == 2
    assert not table.check().num_rows if isinstance(table.check(), pa.Table) else not table.check().count()
    table = table.delete("lower(name) = 'name12'").upsert(arrow_rows([row_of(50)], 7), ["id"])
    assert planned(table, "upper(s.n) = 'X50'") == 2
    assert table.scan("lower(name) >= 'name1'").count() == 9
    assert table.maintenance.repair(kinds=["wrong-statistics", "wrong-counts"]).summary().is_empty
    table = table.maintenance.rewrite_data_files(rewrite_all=True).commit()
    assert planned(table, "lower(name) = 'a'") == planned(table, "variant_get(v, '$.a', 'long') < 0") == 0
    lists = table.maintenance.downgrade(3).commit()
    assert planned(lists, "lower(name) = 'a'") == 1
    assert lists.scan("lower(name) = 'name22'").count() == 1


def test_columns_change(tmp_path: Path) -> None:
    """Expressions follow their columns, and columns that are deleted have none."""
    table = with_expressions(new_table(tmp_path), *CALLS[:2])
    table, _ = filled(table, ROWS[:2])
    with table.update_schema() as update:
        update.rename_column("name", "title").delete_column("s")
    table = table.refresh()
    assert planned(table, "lower(title) = 'none'") == 0
    with pytest.raises(InvalidFilterError, match="no column 'name'"):
        planned(table, "lower(name) = 'none'")
    table = table.append(pa.table({"id": [50], "title": ["Z"]}))
    assert planned(table, "lower(title) = 'z'") == 1
    with table.update_schema() as update:
        update.add_column("name", StringType())
    table = table.refresh()
    assert planned(table, "lower(name) = 'none'") == 3
    with table.update_expressions() as update:
        update.remove("lower_name")
    table = table.refresh()
    assert planned(table, "lower(title) = 'none'") == 3
    expressions = with_expressions(table, "lower(title)").metadata.expressions
    assert [(each.expr_id, each.transform) for each in expressions] == [(8, "void"), (9, "upper"), (11, "lower")]
    assert planned(with_expressions(table.refresh(), "upper(title)"), "lower(title) = 'none'") == 3


def test_concurrent_expressions(tmp_path: Path) -> None:
    """Files that a transaction writes have statistics under the ids of its expressions, so no other may take them."""
    table = new_table(tmp_path)
    earlier = table.refresh()
    tx = earlier.transaction()
    tx.update_expressions().add("lower(name)").commit()
    with_expressions(table, "upper(name)")
    tx.append(arrow_rows([row_of(1)], 0))
    with pytest.raises(CommitConflictError, match="last assigned field id has changed: expected 7, found 8"):
        tx.commit()
    table = with_expressions(table.refresh(), "lower(name)").append(arrow_rows([row_of(1)], 0))
    assert [each.expr_id for each in table.metadata.expressions] == [8, 9]
    assert planned(table, "upper(name) = 'NAME01'") == planned(table, "lower(name) = 'name01'") == 1
    with pytest.raises(InvalidChangeError, match=r"there is an expression lower_name = lower\(name\) already"):
        with_expressions(table, "lower(name)")
    with table.update_schema() as update:
        update.add_column("next", StringType())
    assert table.refresh().schema().find_field("next").field_id == 10


@pytest.mark.parametrize("version", [3, 4])
def test_files_of_another_table(spark: SparkSession, tmp_path: Path, version: int) -> None:
    """Statistics go to the expression with the same function, whatever its id, or are left out."""
    theirs = with_expressions(new_table(tmp_path / "theirs"), "lower(name)", "upper(s.n)")
    theirs = theirs.append(arrow_rows([row_of(1)], 0))
    for row in theirs.inspect.arrow.files().to_pylist():
        assert {8, 9}.isdisjoint([*dict(row["lower_bounds"]), *dict(row["value_counts"])])
    for index, expressions in enumerate([(), ("upper(s.n)", "lower(name)"), ("upper(name)", "lower(name)")]):
        if version == 3 and expressions:
            continue
        ours = new_table(tmp_path / f"ours{index}", version)
        ours = with_expressions(ours, *expressions) if expressions else ours
        with ours.transaction() as tx:
            tx.update_snapshot().append(theirs)
        ours = ours.refresh()
        for text in ("lower(name) = 'name01'", "upper(name) = 'NAME01'", "upper(s.n) = 'X01'"):
            assert ours.scan(text).count() == planned(ours, text) == 1, (text, expressions)
        assert planned(ours, "lower(name) = 'a'") == (0 if expressions else 1)
        assert ours.delete("upper(name) = 'name01'").scan().count() == 1


def test_malformed_variants(tmp_path: Path) -> None:
    """Bounds that are no variants are unknown. Rows that are none are refused where their values are needed."""
    value = variant({"a": 2**40})
    bound = variant({"o": "text"})
    good = sorted_metadata([b"$['a']"])
    good += object_of({b"$['a']": encoded(5, VariantNames(good))}, VariantNames(good))
    cut = sorted_metadata([b"$['a']"])
    cut += object_of({b"$['a']": b"\x18\x01"}, VariantNames(cut))  # an int64 of one byte
    broken = [b"", b"\x01", bound["metadata"], good[:-3], cut, b"\xff" * 30, None]
    assert bounds_of_field(pa.array([*broken, good], pa.binary()), "$['a']", "long").to_pylist() == [None] * 7 + [5]
    whole = {"write.parquet.shred-variants": "false"}
    table = new_table(tmp_path, **whole)
    for cut_value in (value["value"][:-3], b"\x06"):
        rows = pa.table({"id": [1], "v": pa.array([{"metadata": value["metadata"], "value": cut_value}], FILE_VARIANT)})
        with pytest.raises(ValidationError, match=r"is no variant"):
            table.append(rows).scan("variant_get(v, '$.a', 'long') = 1").to_arrow()
        with pytest.raises(ValidationError, match=r"column v: 0x[0-9a-f]+ is no variant with metadata 0x"):
            with_expressions(new_table(tmp_path / cut_value.hex(), **whole), CALLS[2]).append(rows)


def test_texts_of_filters(tmp_path: Path) -> None:
    """Filters with quoted names are shown in the form that is parsed. Long texts end."""
    table = new_table(tmp_path)
    for text in (
        "lower(\"a b\") = 'x'",
        "upper(\"lower(name)\") IN ('x', 'y')",
        "variant_get(\"a\\\"b\", '$[\"it''s\"]', 'date') IS NULL",
        "variant_get(v, '$[''d\"q'']', 'long') = 1",
    ):
        assert as_text(parse_filter(text)) == text
    with pytest.raises(InvalidFilterError, match="is not a predicate"):
        table.scan("lower(name " + "''" * 60 + " = 1")
    with pytest.raises(InvalidFilterError, match="filters have no functions but lower, upper"):
        table.scan("lower(upper(name)) = 'a'")
    with pytest.raises(InvalidChangeError, match="is not a function of a column"):
        table.update_expressions().add("lower(name " + "''" * 60)
    many = " OR ".join(f"lower(name) = '{number}'" for number in range(2000))
    assert table.scan(many).count() == 0


def test_what_is_refused(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    before = table.metadata_location
    for call, problem in {
        "lower(nam)": "no column 'nam'",
        "lower(id)": "the column has type long",
        "lower(list.element)": "the column is in a list or map",
        "trim(name)": "is not a function of a column: expected one of lower, upper, variant_get",
        "lower(name, 'x')": "lower takes a column only",
        "variant_get(v)": "takes a column, a path and a type",
        "variant_get(v, '$.a[0]', 'long')": r"the path '\$.a\[0\]' is not one of names of fields",
        "variant_get(v, '$', 'long')": "is not one of names of fields",
        "variant_get(v, '$.a', 'int')": "the type 'int' is not one of boolean, long",
        "variant_get(name, '$.a', 'long')": "the column has type string",
    }.items():
        with pytest.raises(InvalidChangeError, match=problem):
            table.update_expressions().add(call)
        with pytest.raises(InvalidFilterError):
            table.scan(f"{call} IS NULL")
    with pytest.raises(InvalidChangeError, match="there is no expression 'lower_name'"):
        table.update_expressions().remove("lower_name").commit()
    with pytest.raises(InvalidChangeError, match="there is an expression x = "):
        table.update_expressions().add("lower(name)", "x").add("upper(name)", "x").commit()
    assert table.refresh().metadata_location == before
    for other in (new_table(tmp_path / "v3", 3), new_table(tmp_path / "iceberg", layout="iceberg")):
        with pytest.raises(UnsupportedError, match="only trees in the layout proposal have expressions"):
            other.update_expressions().add("lower(name)")


def test_filters_as_json(tmp_path: Path) -> None:
    """Plans for other processes have filters and residuals on functions, which are read as they were written."""
    table = new_table(tmp_path)
    for call in (*CALLS, "variant_get(v, '$[\"it''s\"].a', 'date')"):
        literal = "'2026-01-31'" if "date" in call else "'1'" if "string" in call or "variant" not in call else "1"
        bound = bind_filter(parse_filter(f"{call} = {literal}"), table.schema(), two_valued=True)
        text = expression_to_json(bound)
        again = bind_filter(expression_from_json(json.loads(text)), table.schema(), two_valued=True)
        assert (again, expression_to_json(again)) == (bound, text)


# A filter, and the ids of rows of Java's table that match.
OF_JAVA = {
    "variant_get(v, '$.a', 'long') >= 104": {104, 200, 201, 202, 203, 204},
    "variant_get(v, '$.o.x', 'double') < 1.5": {0, 1, 2},
    "variant_get(v, '$.s', 'string') = 'text 1202'": {202},
    "variant_get(v, '$.a', 'double') IN (3, 103)": {3, 103},
    "NOT variant_get(v, '$.a', 'long') < 203": {203, 204},
}


@pytest.mark.java
def test_bounds_of_java(spark: SparkSession) -> None:
    """Files are skipped by the bounds of fields that Iceberg's Java library has shredded."""
    shop = Workshop(Java(spark), "functions", catalog_name="java")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    shop.create("id BIGINT, v VARIANT", version=3, properties=SHRED)
    value = """parse_json('{"a": ' || id || ', "o": {"x": ' || id / 2 || '}, "s": "text ' || (id + 1000) || '"}')"""
    for start in (0, 100, 200):
        shop.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, {value} FROM range({start}, {start + 5})")
    table = sm.load_table(shop.metadata_location, spark=spark)
    for text, ids in OF_JAVA.items():
        assert {row["id"] for row in table.scan(text).to_df().collect()} == ids, text
        assert {*table.scan(text).to_arrow().column("id").to_pylist()} == ids, text
        assert planned(table, text) == len({identifier // 100 for identifier in ids}), text
