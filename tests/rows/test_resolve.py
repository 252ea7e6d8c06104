"""Sources of projected columns in files that were written with other schemas, or by other libraries."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.rows.columns import identity_sources, projected_column
from sparkmeta.rows.data_file import file_columns
from sparkmeta.rows.resolve import (
    FromDefault,
    FromFile,
    FromPartition,
    IcebergColumn,
    MappedName,
    Null,
    can_read,
    resolve,
)

FILE = "file:///table/data/a.parquet"


def col(name: str, field_id: int | None, kind: str = "int", *children: IcebergColumn, **more: Any) -> IcebergColumn:
    return IcebergColumn(name, field_id, kind, children, **more)


def struct(name: str, field_id: int | None, *children: IcebergColumn) -> IcebergColumn:
    return col(name, field_id, "struct", *children)


def text_of(sources: Any) -> str:
    """Return the sources as text: `a<-b` for the file's column b, `a=partition`, `a=default`, `a=null`."""
    parts = []
    for source in sources:
        match source:
            case FromFile():
                inside = f"({text_of(source.children)})" if source.children else ""
                parts.append(f"{source.column.name}<-{source.physical.name}{inside}")
            case FromPartition():
                parts.append(f"{source.column.name}=partition")
            case FromDefault():
                parts.append(f"{source.column.name}=default")
            case Null():
                parts.append(f"{source.column.name}=null")
    return " ".join(parts)


A, B = col("a", 1), col("b", 2, "string")
MAPPING = (
    MappedName(("a", "old a"), 1),
    MappedName(("s",), 3, (MappedName(("x",), 4),)),
    MappedName(("l",), 5, (MappedName(("element",), 6, (MappedName(("x",), 7),)),)),
    MappedName(("m",), 8, (MappedName(("value",), 10, (MappedName(("x",), 11),)), MappedName(("key",), 9))),
    MappedName(("nameless",), None),
)
LIST = col("l", 5, "list", struct("element", 6, col("x", 7)))
MAP = col("m", 8, "map", col("key", 9, "string"), struct("value", 10, col("x", 11)))


@pytest.mark.parametrize(
    ("file", "projected", "more", "expected"),
    [
        pytest.param([A, B], [A, B], {}, "a<-a b<-b", id="the same"),
        pytest.param([A, B], [B], {}, "b<-b", id="a part"),
        pytest.param([A, B], [B, A], {}, "b<-b a<-a", id="moved"),
        pytest.param([A, B], [col("b", 1), col("a", 2, "string")], {}, "b<-a a<-b", id="swapped names"),
        pytest.param([A], [col("a", 7)], {}, "a=null", id="dropped and added again"),
        pytest.param([A], [col("A", 1), col("a", 2)], {}, "A<-a a=null", id="names that differ in case"),
        pytest.param([A], [col("a", 1, "long")], {}, "a<-a", id="promoted"),
        pytest.param([A], [col("d", 2, default=0)], {}, "d=default", id="a default, though false"),
        pytest.param([A], [col("d", 2, default=5, required=True)], {}, "d=default", id="a required default"),
        pytest.param([A], [col("p", 2, default=5)], {"partition_ids": {2}}, "p=partition", id="then default"),
        pytest.param([A], [A], {"partition_ids": {1}}, "a<-a", id="the file, then partition"),
        pytest.param([col("a", None)], [A], {"partition_ids": {1}, "names": MAPPING}, "a=partition", id="then mapping"),
        pytest.param([col("old a", None)], [col("n", 1, default=5)], {"names": MAPPING}, "n<-old a", id="then name"),
        pytest.param([col("a", None), col("c", 9)], [A], {"names": MAPPING}, "a<-a", id="mapped beside ids"),
        pytest.param([col("a", None), col("c", 1)], [A], {"names": MAPPING}, "a<-c", id="an id, then mapping"),
        pytest.param([col("a", None), col("c", 9)], [A], {}, "a=null", id="no mapping beside ids"),
        pytest.param([col("nameless", None)], [A], {"names": MAPPING}, "a=null", id="mapped to nothing"),
        pytest.param([col("a", None)], [A], {"names": ()}, "a=null", id="an empty mapping"),
        pytest.param([col("b", None), col("a", None)], [A, col("b", 2)], {}, "a<-a b<-b", id="own names"),
        pytest.param(
            [col("b", None), col("c", None)], [A, col("x", 3)], {"by_position": True}, "a<-b x=null", id="positions"
        ),
        pytest.param([A], [col("a", 7)], {"by_position": True}, "a=null", id="no positions beside ids"),
        pytest.param(
            [struct("s", 3, col("x", 4), col("y", 5))],
            [struct("t", 3, col("y", 4), col("z", 6, default=1), col("x", 9))],
            {},
            "t<-s(y<-x z=default x=null)",
            id="inside a struct",
        ),
        pytest.param([A], [struct("s", 3, col("x", 4, required=True))], {}, "s=null", id="no struct"),
        pytest.param(
            [struct("s", 3, col("y", 5))], [struct("s", 3, A)], {"partition_ids": {1}}, "s<-s(a=partition)", id="nested"
        ),
        pytest.param([LIST, MAP], [LIST], {}, "l<-l(element<-element(x<-x))", id="a list"),
        pytest.param([MAP], [MAP], {}, "m<-m(key<-key value<-value(x<-x))", id="a map"),
        pytest.param(
            [
                struct("s", None, col("x", None)),
                col("l", None, "list", struct("element", None, col("x", None))),
                col("m", None, "map", col("key", None, "string"), struct("value", None, col("x", None))),
            ],
            [struct("s", 3, col("n", 4)), LIST, MAP],
            {"names": MAPPING},
            "s<-s(n<-x) l<-l(element<-element(x<-x)) m<-m(key<-key value<-value(x<-x))",
            id="nested names",
        ),
        pytest.param([struct("v", 1, B)], [col("v", 1, "variant")], {}, "v<-v", id="a variant"),
        pytest.param([col("s", 3, "unknown")], [struct("s", 3, A)], {}, "s<-s", id="a struct that was always null"),
    ],
)
def test_source(file: list[IcebergColumn], projected: list[IcebergColumn], more: dict[str, Any], expected: str) -> None:
    assert text_of(resolve(file, projected, FILE, **more)) == expected


@pytest.mark.parametrize(
    ("file", "projected", "message"),
    [
        ([A, col("c", 1)], [B], f"{FILE}: field id of column c is 1: column a has the same id"),
        ([A, col("a", 2)], [B], f"{FILE}: column name is 'a': two columns have this name"),
        ([A], [col("b", 1, "string")], f"{FILE}: type of column b is 'int': the table has type string (field id 1)"),
        ([col("a", 1, "long")], [A], "type of column a is 'long'"),
        ([struct("s", 3, A)], [struct("s", 3, col("a", 1, "date"))], "type of column s.a is 'int'"),
        ([struct("s", 3, A)], [LIST, col("s", 3, "map", A, B)], "type of column s is 'struct': the table has type map"),
        ([A], [col("b", 2, required=True)], "column b is None: the file lacks this required column (field id 2)"),
        ([struct("s", 3, A)], [struct("s", 3, col("b", 2, required=True))], "column s.b is None"),
    ],
)
def test_contradiction(file: list[IcebergColumn], projected: list[IcebergColumn], message: str) -> None:
    with pytest.raises(CorruptFileError) as error:
        resolve(file, projected, FILE)
    assert message in str(error.value)


def test_nested_fields_have_no_positions() -> None:
    file = [struct("s", None, col("x", None))]
    with pytest.raises(UnsupportedError, match=f"{FILE}: the fields of column s have no ids in the file"):
        resolve(file, [struct("s", 1, col("x", 2))], FILE, by_position=True)


def test_defaults_of_structs() -> None:
    """A value in the default of a struct takes precedence over the default of its field."""
    children = [col("a", 2, default=2), col("b", 3, default=3), col("c", 4), col("d", 5, default=5)]
    (source,) = resolve([], [replace(struct("s", 1, *children), default=((3, 30), (5, None)))], FILE)
    assert isinstance(source, FromDefault)
    assert [type(child) for child in source.children] == [FromDefault, FromDefault, Null, Null]
    assert [child.column.default for child in source.children[:2]] == [2, 30]
    with pytest.raises(CorruptFileError, match=r"column s\.a is None: the file lacks this required column"):
        resolve([], [replace(struct("s", 1, col("a", 2, required=True)), default=())], FILE)


@pytest.mark.parametrize(
    ("file_type", "readable"),
    [
        ("int", {"int", "long"}),
        ("long", {"long", "time"}),
        ("float", {"float", "double"}),
        ("date", {"date", "timestamp", "timestamp_ns"}),
        ("decimal(9, 2)", {"decimal(9, 2)", "decimal(18,2)"}),
        ("timestamp", {"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"}),
        ("string", {"string", "binary"}),
        ("binary", {"string", "binary", "uuid", "fixed[16]", "geometry(OGC:CRS84)"}),
        ("fixed[16]", {"binary", "uuid", "fixed[16]", "geometry(OGC:CRS84)"}),
        ("struct", {"struct", "variant"}),
        ("uint64", set()),
    ],
)
def test_readable_types(file_type: str, readable: set[str]) -> None:
    names = {
        "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "timestamp_ns",
        "timestamptz_ns", "string", "binary", "uuid", "fixed[16]", "variant", "geometry(OGC:CRS84)", "struct", "list",
        "map", "decimal(9, 2)", "decimal(9,1)", "decimal(18,2)", "decimal(5,2)",
    }  # fmt: skip
    assert {name for name in names if can_read(file_type, name)} == readable


def test_columns_of_an_arrow_schema() -> None:
    def field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})

    schema = pa.schema(
        [
            field("l", pa.large_list(field("item", pa.decimal128(9, 2), 2)), 1),
            field("m", pa.map_(field("key", pa.string(), 4).with_nullable(False), field("value", pa.int16(), 5)), 3),
            field("s", pa.struct([field("x", pa.binary(5), 7), field("y", pa.timestamp("ns", "UTC"), 8)]), 6),
            pa.field("d", pa.dictionary(pa.int32(), pa.string()), metadata={"iceberg.id": "9"}),
            pa.field("u", pa.uint64()),
        ]
    )
    assert file_columns(schema) == (
        col("l", 1, "list", col("element", 2, "decimal(9, 2)")),
        col("m", 3, "map", col("key", 4, "string"), col("value", 5)),
        struct("s", 6, col("x", 7, "fixed[5]"), col("y", 8, "timestamptz_ns")),
        col("d", 9, "string"),
        col("u", None, "uint64"),
    )


def test_columns_of_a_schema() -> None:
    struct_type = t.StructType(t.NestedField(7, "x", t.FixedType(5), required=True))
    field = t.NestedField(1, "m", t.MapType(2, t.StringType(), 3, t.ListType(4, struct_type, False), True))
    element = col("element", 4, "struct", col("x", 7, "fixed[5]", required=True))
    value = col("value", 3, "list", element, required=True)
    assert projected_column(field) == col("m", 1, "map", col("key", 2, "string", required=True), value)
    default = t.NestedField(1, "d", t.DateType(), initial_default=5)
    assert projected_column(default) == col("d", 1, "date", default=date(1970, 1, 6))


def test_identity_sources() -> None:
    fields = (PartitionField(1, 1000, IdentityTransform(), "a"), PartitionField(2, 1001, BucketTransform(4), "b"))
    assert identity_sources(PartitionSpec(*fields)) == {1: 1000}


# A schema of structs, by ids: None for a primitive, else the ids of the struct's fields.
def trees(ids: list[int]) -> st.SearchStrategy[tuple[IcebergColumn, ...]]:
    """Return schemas whose field ids are drawn from a list, each at most once and always under the same parent."""
    outer = [field_id for field_id in ids if field_id < 10]

    @st.composite
    def make(draw: st.DrawFn) -> tuple[IcebergColumn, ...]:
        columns = []
        for number in draw(st.lists(st.sampled_from(outer), unique=True)):
            inner = draw(st.lists(st.sampled_from([number * 10 + field_id for field_id in range(4)]), unique=True))
            children = tuple(col(draw(st.sampled_from("abcd")) + str(field_id), field_id) for field_id in inner)
            name = draw(st.sampled_from("abcd")) + str(number)
            columns.append(struct(name, number, *children) if number % 2 else col(name, number))
        return tuple(columns)

    return make()


def by_id(columns: tuple[IcebergColumn, ...]) -> dict[int | None, IcebergColumn]:
    return {column.id: column for column in columns}


@given(trees(list(range(1, 8))), trees(list(range(1, 8))), st.sets(st.integers(1, 80)))
def test_every_column_has_its_source(
    file: tuple[IcebergColumn, ...], projected: tuple[IcebergColumn, ...], partition_ids: set[int]
) -> None:
    """The source is the file's column with the same id, or else the partition's value, or else null."""

    def check(sources: tuple[Any, ...], wanted: tuple[IcebergColumn, ...], there: tuple[IcebergColumn, ...]) -> None:
        assert [source.column for source in sources] == list(wanted)
        for source in sources:
            physical = by_id(there).get(source.column.id)
            if physical is not None:
                assert source.physical is physical
                check(source.children, source.column.children, physical.children)
            else:
                assert isinstance(source, FromPartition if source.column.id in partition_ids else Null)

    check(resolve(file, projected, FILE, partition_ids=partition_ids, names=()), projected, file)
