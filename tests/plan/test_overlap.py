"""Partition summaries alone show which delete manifests may share a partition with a data manifest."""

from __future__ import annotations

import math
import uuid
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, PrimitiveType

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, manifests_of_list
from sparkmeta.expr.bounds import ANY
from sparkmeta.snapshot.overlaps import overlaps

Tuple = dict[int, Any]
Summary = dict[str, Any] | None

NAN = float("nan")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-3, 3),
    "long": st.sampled_from([-(2**63), -1, 0, 2**63 - 1]),
    "double": st.sampled_from([-1.5, -0.0, 0.0, 2.0, NAN, math.inf]),
    "string": st.sampled_from(["", "a", "ab", "é", "\U0001f600", "\uffff"]),
    "decimal(20, 2)": st.integers(-2, 2).map(lambda cents: Decimal(cents).scaleb(-2)),
    "date": st.integers(-2, 2).map(lambda days: date.fromordinal(date(1970, 1, 1).toordinal() + days)),
    "boolean": st.booleans(),
    "binary": st.sampled_from([b"", b"\x00", b"\x7f", b"\x80", b"\xff"]),
    "uuid": st.sampled_from([uuid.UUID(int=number) for number in (0, 1, 1 << 127, (1 << 128) - 1)]),
    ANY: st.sampled_from(["a", "b"]),
}
SPECS = {
    spec_id: [(1000 + 10 * spec_id + place, name) for place, name in enumerate(names)]
    for spec_id, names in enumerate([(), *((name,) for name in VALUES), ("int", "string"), ("double", ANY, "date")])
}


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def summary_of(values: list[Any], type_name: str, *, signed: bool) -> dict[str, Any]:
    """Return a writer's summary of a manifest's values. A writer with `signed` orders UUIDs as Java does."""
    kind = _type(type_name)
    known = [value for value in values if value is not None and not is_nan(value)]
    order = (
        (lambda value: tuple(map(_signed, (value.int >> 64, value.int & (1 << 64) - 1))))
        if signed
        else (lambda value: value.int)
    )
    ordered = sorted(known, key=order if type_name == "uuid" else _java_order)
    lower, upper = (to_bytes(kind, value) for value in (ordered[0], ordered[-1])) if known else (None, None)
    has = {"contains_null": None in values, "contains_nan": any(map(is_nan, values))}
    return {**has, "lower_bound": lower, "upper_bound": upper}


def _type(name: str) -> PrimitiveType:
    text = "string" if name == ANY else name
    field = NestedField.model_validate({"id": 1, "name": "x", "required": False, "type": text})
    primitive = Schema(field).find_type(1)
    assert isinstance(primitive, PrimitiveType)
    return primitive


def _signed(half: int) -> int:
    return half - (1 << 64) if half >> 63 else half


def _java_order(value: Any) -> Any:
    """Order strings by code point, and -0.0 before 0.0."""
    return (value, math.copysign(1, value)) if isinstance(value, float) else value


def table(manifests: list[tuple[int, list[Summary] | None]]) -> pa.Table:
    """Return the result of `manifests_of_list` for manifests given as (spec id, summaries of its fields)."""
    rows = [
        {
            "manifest_path": f"m{place}",
            "manifest_length": 1,
            "partition_spec_id": spec_id,
            "content": 0,
            "sequence_number": 1,
            "min_sequence_number": 1,
            "partitions": summaries,
        }
        for place, (spec_id, summaries) in enumerate(manifests)
    ]
    listed = pa.Table.from_pylist(
        [dict.fromkeys(MANIFEST_FILE_SCHEMA.names) | row for row in rows], MANIFEST_FILE_SCHEMA
    )
    return manifests_of_list(listed, SPECS, "list.avro")


@st.composite
def manifests(draw: st.DrawFn) -> tuple[int, list[Tuple], list[Summary] | None]:
    """Draw (spec id, partitions of the files, summaries or none)."""
    spec_id = draw(st.sampled_from([*SPECS]))
    fields = SPECS[spec_id]
    partition = st.fixed_dictionaries({field_id: VALUES[name] | st.none() for field_id, name in fields})
    partitions = draw(st.lists(partition, min_size=1, max_size=3))
    if draw(st.sampled_from([False] * 9 + [True])):
        return spec_id, partitions, None
    signed = draw(st.booleans())
    return (
        spec_id,
        partitions,
        [summary_of([row[field_id] for row in partitions], name, signed=signed) for field_id, name in fields],
    )


def key(partition: Tuple) -> Any:
    """Return a key that equal partitions share: -0.0 differs from 0.0, NaN equals NaN."""
    return sorted((field_id, repr(value)) for field_id, value in partition.items())


@settings(max_examples=120, deadline=None, derandomize=True)
@given(data=st.lists(manifests(), min_size=1, max_size=5), deletes=st.lists(manifests(), min_size=1, max_size=5))
def test_manifests_sharing_a_partition_always_overlap(data: list[Any], deletes: list[Any]) -> None:
    may_share = overlaps(
        table([(spec_id, said) for spec_id, _, said in data]),
        table([(spec_id, said) for spec_id, _, said in deletes]),
        SPECS,
    )
    for row, (spec_id, mine, _) in zip(may_share, data, strict=True):
        for overlap, (other_id, theirs, _) in zip(row, deletes, strict=True):
            shared = spec_id == other_id and any(key(left) == key(right) for left in mine for right in theirs)
            assert overlap or not shared, (spec_id, mine, theirs)
            assert not overlap or spec_id == other_id


def of(type_name: str, *values: Any) -> tuple[int, list[Summary] | None]:
    spec_id = next(spec_id for spec_id, fields in SPECS.items() if [name for _, name in fields] == [type_name])
    return spec_id, [summary_of([*values], type_name, signed=False)]


@pytest.mark.parametrize(
    ("type_name", "mine", "theirs", "may_share"),
    [
        ("int", [1, 3], [2], True),
        ("int", [1, 3], [3, 9], True),
        ("int", [1, 3], [4, 9], False),
        ("int", [1, None], [None], True),
        ("int", [1, None], [2], False),
        ("int", [None], [2, None], True),
        ("string", ["a", "b"], ["ba", "c"], False),
        ("string", ["\uffff"], ["\U0001f600"], False),
        ("string", ["a", "\U0001f600"], ["\uffff"], True),
        ("decimal(20, 2)", [Decimal("1.00")], [Decimal("1.01")], False),
        ("date", [date(2020, 1, 1)], [date(2020, 1, 2)], False),
        ("boolean", [True], [False], False),
        ("double", [NAN], [1.0, NAN], True),
        ("double", [NAN], [1.0], False),
        ("double", [1.0], [2.0], False),
        ("double", [-0.0], [0.0], True),
        ("uuid", [uuid.UUID(int=1)], [uuid.UUID(int=2)], False),
        (ANY, ["a"], ["b"], True),
    ],
)
def test_summaries_that_overlap(type_name: str, mine: list[Any], theirs: list[Any], may_share: bool) -> None:
    assert overlaps(table([of(type_name, *mine)]), table([of(type_name, *theirs)]), SPECS).tolist() == [[may_share]]


@pytest.mark.parametrize(
    "unknown",
    [
        None,
        {"contains_null": False, "contains_nan": None, "lower_bound": None, "upper_bound": None},
        {"contains_null": True, "contains_nan": None, "lower_bound": None, "upper_bound": b"\x01\x00\x00\x00"},
        {"contains_null": False, "contains_nan": None, "lower_bound": b"\x09\0\0\0", "upper_bound": b"\x01\0\0\0"},
    ],
)
def test_a_summary_that_says_nothing_keeps_nothing_apart(unknown: Summary) -> None:
    spec_id, known = of("int", 5)
    silent = (spec_id, None if unknown is None else [unknown])
    assert overlaps(table([silent]), table([(spec_id, known)]), SPECS).tolist() == [[True]]
    assert overlaps(table([(spec_id, known)]), table([silent]), SPECS).tolist() == [[True]]


def test_a_bound_that_is_nan_tells_nothing() -> None:
    spec_id, known = of("double", 1.0)
    nan = to_bytes(_type("double"), NAN)
    summary = {"contains_null": False, "contains_nan": True, "lower_bound": nan, "upper_bound": nan}
    assert overlaps(table([(spec_id, [summary])]), table([(spec_id, known)]), SPECS).tolist() == [[True]]


def test_unpartitioned_manifests_share_everything_and_specs_nothing() -> None:
    may_share = overlaps(table([(0, []), of("int", 1)]), table([(0, []), of("int", 1), of("int", 2)]), SPECS)
    assert may_share.tolist() == [[True, False, False], [False, True, False]]
    assert overlaps(table([]), table([(0, [])]), SPECS).shape == (0, 1)
    assert may_share.dtype == np.bool_
