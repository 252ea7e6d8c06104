from __future__ import annotations

import copy
import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg import types as t
from pyiceberg.schema import Schema, index_by_name

from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.schema import (
    VariantType,
    schema_from_json,
    schema_to_json,
    type_from_json,
    type_to_json,
)
from tests.spec.table_metadata import FIELDS, V3_FIELDS

EVERYTHING = {"type": "struct", "schema-id": 4, "fields": FIELDS + V3_FIELDS, "x-schema": 1}


def schema_of(*fields: dict[str, Any]) -> Schema:
    return schema_from_json({"type": "struct", "schema-id": 0, "fields": list(fields)})


@pytest.mark.parametrize(
    ("text", "kind", "written"),
    [
        ("boolean", t.BooleanType(), None),
        ("int", t.IntegerType(), None),
        ("long", t.LongType(), None),
        ("float", t.FloatType(), None),
        ("double", t.DoubleType(), None),
        ("date", t.DateType(), None),
        ("time", t.TimeType(), None),
        ("timestamp", t.TimestampType(), None),
        ("timestamptz", t.TimestamptzType(), None),
        ("timestamp_ns", t.TimestampNanoType(), None),
        ("timestamptz_ns", t.TimestamptzNanoType(), None),
        ("string", t.StringType(), None),
        ("uuid", t.UUIDType(), None),
        ("binary", t.BinaryType(), None),
        ("unknown", t.UnknownType(), None),
        ("variant", VariantType(), None),
        ("fixed[16]", t.FixedType(16), None),
        ("fixed[ 3 ]", t.FixedType(3), "fixed[3]"),
        ("decimal(9, 2)", t.DecimalType(9, 2), None),
        ("decimal(9,2)", t.DecimalType(9, 2), "decimal(9, 2)"),
        ("DECIMAL( 9 ,2 )", t.DecimalType(9, 2), "decimal(9, 2)"),
        ("Long", t.LongType(), "long"),
        ("geometry", t.GeometryType(), None),
        ("geometry(srid:4326)", t.GeometryType("srid:4326"), None),
        ("geometry('EPSG:4326')", t.GeometryType("EPSG:4326"), "geometry(EPSG:4326)"),
        ("geography", t.GeographyType(), None),
        ("geography(srid:4326)", t.GeographyType("srid:4326"), None),
        ("geography(srid:4326, karney)", t.GeographyType("srid:4326", "karney"), None),
    ],
)
def test_named_types(text: str, kind: t.IcebergType, written: str | None) -> None:
    assert type_from_json(JsonNode(text)) == kind
    assert type_to_json(kind) == (written or text)


def test_a_schema_is_kept_as_it_was() -> None:
    schema = schema_from_json(EVERYTHING)
    assert (schema.schema_id, schema.highest_field_id) == (4, 28)
    assert schema_to_json(schema) == EVERYTHING
    for same in (pickle.loads(pickle.dumps(schema)), copy.deepcopy(schema)):
        assert same == schema
        assert schema_to_json(same) == EVERYTHING


def test_a_schema_of_the_same_fields_is_written_alike() -> None:
    schema = schema_from_json(EVERYTHING)
    rewritten = schema_to_json(Schema(*schema.fields, schema_id=4))
    assert schema_from_json(rewritten) == schema
    assert rewritten["fields"][5:] == [field | {"type": field["type"]} for field in V3_FIELDS]


def test_a_changed_copy_is_written_from_its_fields() -> None:
    changed = schema_from_json(EVERYTHING).model_copy(update={"schema_id": 5})
    assert schema_to_json(changed)["schema-id"] == 5
    assert "x-schema" not in schema_to_json(changed)


def test_fields_equal_pyicebergs() -> None:
    schema = schema_of({"id": 1, "name": "a", "required": True, "type": "int", "doc": "d"})
    assert schema == Schema(t.NestedField(1, "a", t.IntegerType(), required=True, doc="d"))
    assert hash(schema.as_struct()) == hash(
        t.StructType(t.NestedField(1, "a", t.IntegerType(), required=True, doc="d"))
    )


def test_nested_fields_are_found() -> None:
    schema = schema_from_json(EVERYTHING)
    assert schema.find_field("where.lat").field_id == 4
    assert schema.find_field("tags.element").field_type == t.StringType()
    assert schema.find_field("counts.value").field_type == t.FixedType(16)
    assert index_by_name(schema)["v"] == 20


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("boolean", False, False),
        ("int", -1, -1),
        ("long", 1 << 62, 1 << 62),
        ("float", 1.5, 1.5),
        ("double", 7, 7),
        ("decimal(9, 2)", "14.20", Decimal("14.20")),
        ("string", "a'b", "a'b"),
        ("date", "1969-12-31", dt.date(1969, 12, 31)),
        ("time", "22:31:08.000001", dt.time(22, 31, 8, 1)),
        ("timestamp", "1969-12-31T23:59:59.999999", dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001
        ("date", "+12000-01-01", 3663382),
        ("date", "-0043-03-15", -735160),
        ("date", "0000-12-31", -719163),
        ("timestamp", "+12000-01-01T00:00:00", 316516204800000000),
        ("timestamptz", "-0043-03-15T00:00:00.5+00:00", -63517823999500000),
        ("timestamp_ns", "1969-12-31T23:59:59.999999999", -1),
        ("timestamptz_ns", "1970-01-01T00:00:01.000000002+00:00", 1_000_000_002),
        ("binary", "0001ff", b"\x00\x01\xff"),
        ("fixed[2]", "00ff", b"\x00\xff"),
        ({"type": "struct", "fields": []}, {}, "{}"),
        ({"type": "list", "element-id": 2, "element": "int", "element-required": True}, [], "[]"),
    ],
)
def test_defaults(kind: Any, default: Any, value: Any) -> None:
    field = {"id": 1, "name": "a", "required": False, "type": kind, "initial-default": default}
    schema = schema_of(field)
    assert schema.fields[0].initial_default == value
    assert schema.fields[0].write_default is None
    assert schema_to_json(Schema(*schema.fields))["fields"] == [field]


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", "1"),
        ("int", True),
        ("boolean", 1),
        ("string", 1),
        ("date", "31.12.1999"),
        ("date", "+12000-13-01"),
        ("timestamptz", "+12000-01-01T00:00:00"),
        ("timestamp", "1999-12-31"),
        ("timestamp_ns", "1999-12-31T00:00:00+02:00"),
        ("uuid", "no"),
        ("decimal(9, 2)", "ten"),
        ("binary", "0g"),
        ("fixed[2]", "00"),
    ],
)
def test_bad_defaults(kind: Any, default: Any) -> None:
    with pytest.raises(
        CorruptFileError, match=r"schema: fields\[0\]\.initial-default is .*: not a valid default for type"
    ):
        schema_of({"id": 1, "name": "a", "required": False, "type": kind, "initial-default": default})


def test_variant_is_one_object() -> None:
    assert pickle.loads(pickle.dumps(VariantType())) is VariantType()
    assert str(VariantType()) == "variant"
    assert VariantType().minimum_format_version() == 3
