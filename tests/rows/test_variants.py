"""Variants: shredded ones are rebuilt, and Iceberg's Java library and we read each other's."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType
from pyspark.sql import functions as F
from pyspark.sql.types import VariantVal

import sparkmeta as sm
from sparkmeta.errors import CorruptFileError, UnsupportedError, ValidationError
from sparkmeta.expr.variants import FILE_VARIANT
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.spec.schema import VariantType
from sparkmeta.write.shredding import Shredder
from tests.peers.java import Java
from tests.peers.workshop import Workshop
from tests.rows.files import write
from tests.rows.test_file_rows import part, read, reading

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

KIND = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
TEXTS = "SELECT id, to_json(v) AS v, schema_of_variant(v) AS kind FROM "


def metadata(*names: str) -> bytes:
    """The metadata of a variant with these names, with offsets of one byte."""
    ends = [sum(map(len, names[:count])) for count in range(len(names) + 1)]
    return bytes([1, len(names), *ends]) + "".join(names).encode()


def group(kind: pa.DataType) -> pa.StructType:
    """A shredded field or element."""
    return pa.struct([("value", pa.binary()), ("typed_value", kind)])


def fields_read(tmp_path: Path, rows: list[dict[str, Any] | None], typed: pa.DataType) -> list[Any]:
    """The variants of a file, as Python values of PySpark's own decoder."""
    kind = pa.struct([("metadata", pa.binary()), *group(typed)])
    path = write(tmp_path / "f.parquet", pa.table({"v": pa.array(rows, kind)}))
    variants = [row["v"] for row in read(reading((IcebergColumn("v", 1, "variant"), KIND)), part(path))]
    return [None if each is None else VariantVal(each["value"], each["metadata"]).toPython() for each in variants]


NOON = dt.datetime(2026, 1, 31, 12, 0, 0, 5, dt.UTC)
PRIMITIVES = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-1, 127]),
    (pa.int16(), [-300, 300]),
    (pa.int32(), [-70_000, 70_000]),
    (pa.int64(), [-(2**62), 2**62]),
    (pa.float32(), [0.5, float("inf")]),
    (pa.float64(), [1.1, -0.0]),
    (pa.decimal128(9, 2), [Decimal("-1.25"), Decimal("9999999.99")]),
    (pa.decimal128(18, 3), [Decimal("-999999999999999.999")]),
    (pa.decimal128(38, 0), [Decimal(-(10**37)), Decimal(10**37)]),
    (pa.date32(), [dt.date(1969, 1, 1)]),
    (pa.timestamp("us", "UTC"), [NOON]),
    (pa.timestamp("us"), [NOON.replace(tzinfo=None)]),
    (pa.string(), ["", "ü" * 31, "ü" * 32, "x" * 70_000]),
    (pa.binary(), [b"", b"\xff" * 300]),
]


@pytest.mark.parametrize(("kind", "values"), PRIMITIVES, ids=[str(kind) for kind, _ in PRIMITIVES])
def test_primitive_values(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    """All values are of the shredded type, except a null, a value of another type, and the null of the column."""
    rows = [{"metadata": metadata(), "typed_value": value} for value in values]
    others = [{"metadata": metadata()}, {"metadata": metadata(), "value": b"\x05a"}, None]
    assert fields_read(tmp_path, [*rows, *others], kind) == [*values, None, "a", None]


def test_types_that_spark_lacks(tmp_path: Path) -> None:
    key = uuid.UUID(int=2**127 + 5)
    inside = {
        "t": (pa.time64("us"), dt.time(0, 0, 1), b"\x44" + (10**6).to_bytes(8, "little")),
        "n": (pa.timestamp("ns"), 7, b"\x4c" + (7).to_bytes(8, "little")),
        "z": (pa.timestamp("ns", "UTC"), -7, b"\x48" + (-7).to_bytes(8, "little", signed=True)),
        "u": (pa.uuid(), key.bytes, b"\x50" + key.bytes),
    }
    for kind, value, encoded in inside.values():
        rows = pa.StructArray.from_arrays(
            [pa.array([metadata()]), pa.array([value], kind)], ["metadata", "typed_value"]
        )
        path = write(tmp_path / "f.parquet", pa.table({"v": rows}))
        (row,) = read(reading((IcebergColumn("v", 1, "variant"), KIND)), part(path))
        assert row["v"]["value"] == encoded, kind


def test_objects_and_arrays(tmp_path: Path) -> None:
    typed = pa.struct([("b", group(pa.int64())), ("a", group(pa.list_(group(pa.string()))))])
    names = metadata("b", "c", "a")
    rest = bytes([2, 1, 1, 0, 2, 0x0C, 7])  # {"c": 7}
    whole, empty = {"typed_value": 1}, {}
    elements = [{"typed_value": "x"}, {"value": b"\x0c\x02"}, empty, {"typed_value": "y" * 300}]
    rows: list[dict[str, Any] | None] = [
        {"metadata": names, "typed_value": {"b": whole, "a": {"typed_value": elements}}},
        {"metadata": names, "typed_value": {"b": {"value": b"\0"}, "a": empty}, "value": rest},
        {"metadata": names, "typed_value": {"b": empty, "a": {"typed_value": []}}},
        {"metadata": names, "typed_value": {"b": empty, "a": empty}},
        {"metadata": names, "value": rest},
        {"metadata": names, "value": b"\x0c\x01"},
        None,
        {"metadata": metadata("a", "b"), "typed_value": {"b": whole, "a": {"value": b"\x05z"}}},
    ]
    assert fields_read(tmp_path, rows, typed) == [
        {"b": 1, "a": ["x", 2, None, "y" * 300]},
        {"b": None, "c": 7},
        {"a": []},
        {},
        {"c": 7},
        1,
        None,
        {"b": 1, "a": "z"},
    ]


def test_many_fields(tmp_path: Path) -> None:
    names = [f"f{index:03d}" for index in range(300)]
    ends = b"".join((4 * index).to_bytes(2, "little") for index in range(301))
    encoded = b"\x41" + (300).to_bytes(2, "little") + ends + "".join(names).encode()
    fields = {name: {"typed_value": index} for index, name in enumerate(names)}
    typed = pa.struct([(name, group(pa.int32())) for name in names])
    values = [*range(300)]
    assert fields_read(tmp_path, [{"metadata": encoded, "typed_value": fields}], typed) == [dict(zip(names, values))]  # noqa: B905
    long = [{"metadata": metadata(), "typed_value": [{"typed_value": value} for value in values]}]
    assert fields_read(tmp_path, long, pa.list_(group(pa.int32()))) == [values]


@pytest.mark.parametrize(
    ("row", "typed", "problem"),
    [
        ({"typed_value": 1, "value": b"\0"}, pa.int32(), "a shredded variant has two values"),
        ({"typed_value": 1}, pa.uint32(), "a variant has a typed_value of the type uint32"),
        ({"typed_value": 1, "metadata": None}, pa.int32(), "a variant has no metadata"),
        ({"typed_value": {"z": {"typed_value": 1}}}, pa.struct([("z", group(pa.int8()))]), "lacks the field z"),
        ({"typed_value": {"z": {}}, "value": b"\0"}, pa.struct([("z", group(pa.int8()))]), "no object"),
    ],
)
def test_what_contradicts_the_specification(
    tmp_path: Path, row: dict[str, Any], typed: pa.DataType, problem: str
) -> None:
    with pytest.raises(CorruptFileError, match=problem):
        fields_read(tmp_path, [{"metadata": metadata()} | row], typed)


# -- Writes, without Spark --------------------------------------------------------------------------------------------


def variant(text: str) -> dict[str, bytes]:
    value = VariantVal.parseJson(text)
    return {"metadata": value.metadata, "value": value.value}


def new_table(tmp_path: Path, **properties: str) -> sm.Table:
    lake = sm.load_catalog("lake", type="hadoop", warehouse=str(tmp_path))
    lake.create_namespace("db")
    inside = NestedField(7, "x", VariantType())
    fields = [
        NestedField(1, "id", LongType()),
        NestedField(2, "v", VariantType()),
        NestedField(3, "st", StructType(inside)),
        NestedField(4, "li", ListType(8, VariantType(), element_required=False)),
        NestedField(5, "m", MapType(9, StringType(), 10, VariantType(), value_required=False)),
        *(NestedField(20 + index, f"c{index}", LongType()) for index in range(15)),
    ]
    return lake.create_table("db.t", Schema(*fields), format_version=3, properties=properties)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_variants_in_memory(tmp_path: Path, file_format: str) -> None:
    """Fields of a variant are in any order. A file marks each variant, however deep, and counts only its nulls."""
    table = new_table(tmp_path, **{"write.format.default": file_format})
    first, second = variant('{"a": [1, "b"]}'), variant("7")
    rows = pa.table(
        {"id": [1, 2], "v": [dict(reversed(first.items())), None], "st": [{"x": second}, {"x": None}],
         "li": [[first, None], []], "m": pa.array([[("k", second)], None], pa.map_(pa.string(), KIND))}
    )  # fmt: skip
    table = table.append(rows)
    read_back = table.scan().to_arrow()
    assert read_back.column("v").to_pylist() == [first, None]
    assert read_back.column("st").to_pylist() == [{"x": second}, {"x": None}]
    assert read_back.column("li").to_pylist() == [[first, None], []]
    assert read_back.column("m").to_pylist() == [[("k", second)], None]
    table = table.upsert(read_back.slice(0, 1), ["id"])
    assert table.scan().count() == 2
    (file, *_) = table.inspect.arrow.files().to_pylist()
    ids = {name: table.schema().find_field(name).field_id for name in ("v", "st.x", "li.element", "m.value")}
    assert {ids["v"], ids["st.x"]} <= dict(file["value_counts"]).keys() & dict(file["null_value_counts"]).keys()
    assert {*ids.values()}.isdisjoint([*dict(file["lower_bounds"]), *dict(file["column_sizes"] or ())])
    if file_format == "parquet":
        schema = str(pq.ParquetFile(file["file_path"].removeprefix("file://")).schema)
        assert schema.count("(Variant(1))") == 4
        assert f"optional group field_id={ids['m.value']} value (Variant(1))" in schema


def test_what_is_refused(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"write.format.default": "orc"})
    with pytest.raises(UnsupportedError, match=r"column v is of type variant, which .* can't write to ORC"):
        table.append(pa.table({"v": [variant("1")]}))
    table = new_table(tmp_path / "parquet")
    for rows, problem in (
        ([{"metadata": b"\x01\0\0", "value": None}], "column v of type variant: a variant has no bytes of value"),
        ([{"metadata": b"\x01\0\0"}], "column v of the rows is struct<metadata:binary>: the table has type variant"),
    ):
        with pytest.raises(ValidationError, match=problem):
            table.append(pa.table({"v": rows}))
    assert not list(tmp_path.rglob("data/*"))


@pytest.mark.parametrize("rows", [2, 100])
def test_shredded_in_memory(tmp_path: Path, rows: int) -> None:
    """What the first rows decide does not fit all others."""
    texts = ['{"a": %d, "s": "x", "o": {"x": 1.5, "y": [{"z": 1}]}}' % index for index in (1, 2, 300)]  # noqa: UP031
    texts += ['{"a": null, "o": 5}', '{"o": {"x": 1.25, "w": 1}, "s": "y"}', "[1]", "null", '{"a": "text"}', "{}"]
    properties = {"write.parquet.shred-variants": "true", "write.parquet.variant-inference-buffer-size": str(rows)}
    table = new_table(tmp_path, **properties)
    values = [*map(variant, texts), None]
    table = table.append(pa.table({"id": range(len(values)), "v": values}))
    read_back = table.scan().to_arrow().column("v").to_pylist()
    shown = [
        [each and str(VariantVal(each["value"], each["metadata"])) for each in side] for side in (values, read_back)
    ]
    assert shown[1] == shown[0]
    (file,) = table.inspect.arrow.files().to_pylist()
    schema = str(pq.ParquetFile(file["file_path"].removeprefix("file://")).schema)
    assert ("typed_value" in schema) == (rows == 2)
    bounds = [
        dict(file[name]).get(table.schema().find_field("v").field_id) for name in ("lower_bounds", "upper_bounds")
    ]
    assert bounds == ([None, None] if rows > 2 else [bound_of("$['s']", b"\x05x"), bound_of("$['s']", b"\x05y")])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(max_size=3)
    | st.decimals(-99, 99, places=2).map(float),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ü'"]), inside, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(st.none() | JSON, min_size=1, max_size=6), count=st.integers(1, 6))
def test_any_variants(tmp_path: Path, values: list[Any], count: int) -> None:
    rows = [None if value is None else variant(json.dumps(value)) for value in values]
    table = pa.table({"v": pa.array(rows, FILE_VARIANT)}, pa.schema([pa.field("v", FILE_VARIANT)]))
    shredder = Shredder(table, count)
    path = write(tmp_path / "f.parquet", shredder.shredded(table))
    read_back = read(reading((IcebergColumn("v", 1, "variant"), KIND)), part(path))
    shown = [None if each["v"] is None else VariantVal(each["v"]["value"], each["v"]["metadata"]) for each in read_back]
    assert [each and each.toPython() for each in shown] == [
        each and VariantVal(each["value"], each["metadata"]).toPython() for each in rows
    ]


def bound_of(path: str, value: bytes) -> bytes:
    """The bound of one field."""
    return bytes([0x11, 1, 0, len(path)]) + path.encode() + bytes([2, 1, 0, 0, len(value)]) + value


# -- Iceberg's Java library -------------------------------------------------------------------------------------------


def texts(rows: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, rows.sparkSession.sql(TEXTS + "{rows}", rows=rows).collect()))


SHREDDED = [
    text.replace("`", '"')
    for text in (
        "parse_json('{`a`: ' || id || ', `o`: {`x`: ' || id / 2 || ', `y`: [1]}, `z' || id || '`: [], `s`: `t`}')",
        "to_variant_object(named_struct('t', timestamp_seconds(id), 'n', cast(id AS DECIMAL(30, 5))))",
        "to_variant_object(named_struct('d', date'2020-01-01', 'f', cast(id AS FLOAT), 'b', cast('x' AS BINARY)))",
        "CASE id % 3 WHEN 0 THEN parse_json('{`a`: 1}') WHEN 1 THEN parse_json('{`a`: `x`}') ELSE parse_json('1') END",
        "parse_json('[' || id || ', {`k`: ' || id || '}, null]')",
    )
]


@pytest.mark.java
@pytest.mark.parametrize("version", [3, 4])
def test_shredded_variants_of_java(spark: SparkSession, version: int) -> None:
    shop = Workshop(Java(spark), f"shredded_v{version}", catalog_name="java")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    shop.create("id BIGINT, v VARIANT", version=version, properties={"write.parquet.shred-variants": "true"})
    for value in SHREDDED:
        shop.sql(f"INSERT INTO {{t}} SELECT id, {value} FROM range(20)")
    table = sm.load_table(shop.metadata_location, spark=spark)
    rows = shop.sql("SELECT * FROM {t}")
    assert texts(table.scan().to_df()) == texts(rows)
    in_memory = table.scan().to_arrow().to_pylist()
    variants = [each["v"] and VariantVal(each["v"]["value"], each["v"]["metadata"]) for each in in_memory]
    expected = Counter((row.id, str(row.v)) for row in rows.collect())
    assert Counter((row["id"], str(each)) for row, each in zip(in_memory, variants, strict=True)) == expected
    assert texts(table.scan("id in (1, 7)").to_df()) == texts(shop.sql("SELECT * FROM {t} WHERE id IN (1, 7)"))


MIXED = (
    "parse_json('{`a`: ' || id || ', `text`: `more than sixteen letters ' || id || '`, `d`: ' || id / 4 || '"
    ", `b`: ' || (id > 3) || ', `o`: {`x`: [{`y`: 1}], `z`: ' || IF(id = 2, 'null', '1.5') || '}, `i t`: {`s`: 7}}')"
).replace("`", '"')


@pytest.mark.java
def test_shredded_as_by_java(spark: SparkSession) -> None:
    """The columns and bounds are the same, and each reads the other's rows."""
    values = [*SHREDDED, MIXED]
    for number, value in enumerate(values):
        rows = spark.sql(f"SELECT id, {value} v FROM range(12)").coalesce(1)
        shops = [Workshop(Java(spark), f"shredded_by_{who}_{number}", catalog_name="java") for who in ("java", "us")]
        spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
        for shop in shops:
            shop.create("id BIGINT, v VARIANT", version=3, properties={"write.parquet.shred-variants": "true"})
        rows.writeTo(shops[0].sql_name).append()
        sm.load_table(f"file://{shops[1].folder}", spark=spark).append(rows)
        tables = [sm.load_table(shop.metadata_location, spark=spark) for shop in shops]
        files = [table.inspect.arrow.files().to_pylist() for table in tables]
        by_java, by_us = ([dict(file[name]).get(2) for name in BOUNDS] for (file,) in files)
        assert by_us == by_java, value
        by_java, by_us = (typed_of(file["file_path"]) for (file,) in files)
        assert by_us == by_java, value
        for shop, table in zip(shops, tables, strict=True):
            assert texts(shop.sql("SELECT * FROM {t}")) == texts(rows), value
            assert texts(table.scan().to_df()) == texts(rows), value


BOUNDS = ("lower_bounds", "upper_bounds")


def typed_of(location: str) -> str:
    """The columns of a variant."""
    schema = str(pq.ParquetFile(location.removeprefix("file:").replace("///", "/")).schema)
    return schema[schema.index("(Variant(1))") :]


@pytest.mark.java
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_java_reads_ours(spark: SparkSession, file_format: str) -> None:
    shop = Workshop(Java(spark), f"variants_{file_format}", catalog_name="java")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    columns = "id BIGINT, v VARIANT, st STRUCT<x: VARIANT>, li ARRAY<VARIANT>, m MAP<STRING, VARIANT>"
    shop.create(columns, version=3, properties={"write.format.default": file_format})
    table = sm.load_table(f"file://{shop.folder}", spark=spark)
    value = SHREDDED[0]
    rows = spark.sql(
        f"SELECT id, {value} v, IF(id = 1, NULL, named_struct('x', {value})) st, array({value}, NULL) li, "
        f"map('k', {value}, 'n', NULL) m FROM range(6)"
    )
    table = table.append(rows).delete("id = 3")
    shown = "id", "to_json(v)", "to_json(st)", "to_json(li)", "to_json(m)"
    expected = sorted(map(tuple, rows.where("id <> 3").selectExpr(*shown).collect()))
    assert sorted(map(tuple, shop.sql("SELECT * FROM {t}").selectExpr(*shown).collect())) == expected
    assert sorted(map(tuple, table.scan().to_df().selectExpr(*shown).collect())) == expected


@pytest.mark.parametrize("version", [3, 4])
def test_changes(spark: SparkSession, tmp_path: Path, version: int) -> None:
    """An update, an upsert, a merge and a rewrite of files."""
    lake = sm.load_catalog("lake", type="hadoop", warehouse=f"file://{tmp_path}")
    lake.create_namespace("db")
    rows = spark.sql("SELECT id, parse_json('{\"a\": ' || id || '}') v FROM range(5)")
    table = lake.create_table("db.t", rows.schema, format_version=version, spark=spark).append(rows)
    quoted = rows.selectExpr("id", "parse_json('\"u\"') v")
    table = table.update({"v": F.expr("parse_json('[9]')")}, "id = 1")
    table = table.upsert(quoted.where("id = 2"), ["id"])
    table = table.merge(quoted.where("id >= 3"), on=["id"]).when_matched("source.id = 3").update_all().merge()
    table.maintenance.rewrite_data_files(rewrite_all=True).commit()
    table = lake.load_table("db.t", spark=spark)
    expected = [(0, '{"a":0}'), (1, "[9]"), (2, '"u"'), (3, '"u"'), (4, '{"a":4}')]
    assert sorted(map(tuple, table.scan().to_df().selectExpr("id", "to_json(v)").collect())) == expected
    assert table.check().count() == 0
    with pytest.raises(UnsupportedError, match="column v is of type variant, and files with it can't be added"):
        table.add_files([f"{tmp_path}/x.parquet"])
