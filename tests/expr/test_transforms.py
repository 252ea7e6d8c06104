"""Each row of the projection table, with negative values, ends of ranges and fields that project to nothing."""

from __future__ import annotations

import json
import struct
from itertools import product
from typing import Any

import mmh3
import pytest
from pyiceberg import transforms as tr
from pyiceberg import types as t
from pyiceberg.expressions import BooleanExpression, In, NotIn, NotStartsWith, StartsWith
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema

from sparkmeta.expr.predicate import bind_filter, expression_to_json, parse_filter
from sparkmeta.expr.transforms import inclusive_projection, strict_projection, undecided
from sparkmeta.spec.schema import partition_spec_from_json
from sparkmeta.spec.transforms import ColumnsBucket

SCHEMA = Schema(
    t.NestedField(1, "i", t.IntegerType()),
    t.NestedField(2, "dec", t.DecimalType(9, 2)),
    t.NestedField(3, "s", t.StringType()),
    t.NestedField(4, "b", t.BinaryType()),
    t.NestedField(5, "d", t.DateType()),
    t.NestedField(6, "ts", t.TimestampType()),
    t.NestedField(7, "ns", t.TimestampNanoType()),
    t.NestedField(8, "f", t.DoubleType()),
    t.NestedField(9, "l", t.LongType()),
)
OPERATORS = {"lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">=", "eq": "=", "not-eq": "<>"}
NONE = None


def spec_of(*fields: tuple[str, tr.Transform[Any, Any]]) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(SCHEMA.find_field(name).field_id, 1000 + place, transform, f"p{place}")
            for place, (name, transform) in enumerate(fields)
        )
    )


def short(expression: BooleanExpression) -> str:
    return _short(json.loads(expression_to_json(expression)))


def _short(node: Any) -> str:
    if isinstance(node, bool):
        return str(node).lower()
    if node["type"] in ("and", "or"):
        return f"({_short(node['left'])} {node['type']} {_short(node['right'])})"
    term = node["term"]
    if "values" in node:
        return f"{term} {node['type']} {node['values']}"
    if "value" in node:
        return f"{term} {OPERATORS.get(node['type'], node['type'])} {node['value']}"
    return f"{term} {node['type']}"


def both(row_filter: str | BooleanExpression, spec: PartitionSpec) -> tuple[str, str]:
    bound = bind_filter(parse_filter(row_filter), SCHEMA, two_valued=True)
    return short(inclusive_projection(bound, spec)), short(strict_projection(bound, spec))


def check(
    row_filter: str | BooleanExpression, name: str, transform: Any, inclusive: str | None, strict: str | None
) -> None:
    assert both(row_filter, spec_of((name, transform))) == (inclusive or "true", strict or "false")


@pytest.mark.parametrize(
    ("row_filter", "projected"),
    [
        ("i < 5", "p0 < 5"),
        ("i <> 5", "p0 <> 5"),
        ("i in (1, 2)", "p0 in [1, 2]"),
        ("i not in (1, 2)", "p0 not-in [1, 2]"),
        ("i is null", "p0 is-null"),
        ("i is not null", "p0 not-null"),
    ],
)
def test_identity(row_filter: str, projected: str) -> None:
    check(row_filter, "i", tr.IdentityTransform(), projected, projected)


def test_identity_of_text_and_floating_point() -> None:
    check("s not like 'a%'", "s", tr.IdentityTransform(), "p0 not-starts-with a", "p0 not-starts-with a")
    check("f is nan", "f", tr.IdentityTransform(), "p0 is-nan", "p0 is-nan")


@pytest.mark.parametrize(
    ("row_filter", "inclusive", "strict"),
    [
        ("l = 34", "p0 = 79", NONE),
        ("l <> 34", NONE, "p0 <> 79"),
        ("l < 34", NONE, NONE),
        ("l is null", "p0 is-null", "p0 is-null"),
        (In("l", [34, 35]), "p0 in [25, 79]", NONE),
        (NotIn("l", [34, 35]), NONE, "p0 not-in [25, 79]"),
    ],
)
def test_bucket(row_filter: str | BooleanExpression, inclusive: str | None, strict: str | None) -> None:
    """The table spec's hash of 34 is 2017239379."""
    assert 2017239379 % 100 == 79
    assert (mmh3.hash(struct.pack("<q", 35)) & 0x7FFFFFFF) % 100 == 25
    check(row_filter, "l", tr.BucketTransform(100), inclusive, strict)


@pytest.mark.parametrize(
    ("row_filter", "inclusive", "strict"),
    [
        ("i < 10", "(p0 <= 0 or p0 = 2147483646)", "p0 < 10"),
        ("i <= 10", "(p0 <= 10 or p0 = 2147483646)", "p0 < 10"),
        ("i <= 9", "(p0 <= 0 or p0 = 2147483646)", "p0 < 10"),
        ("i > 9", "p0 >= 10", "(p0 > 0 and p0 <> 2147483646)"),
        ("i >= 10", "p0 >= 10", "(p0 > 0 and p0 <> 2147483646)"),
        ("i > -1", "p0 >= 0", "(p0 > -10 and p0 <> 2147483646)"),
        ("i = -1", "p0 = -10", NONE),
        ("i <> -1", NONE, "p0 <> -10"),
        ("i in (5, 6, 15)", "p0 in [0, 10]", NONE),
        ("i not in (5, 6, 15)", NONE, "p0 not-in [0, 10]"),
        ("i is not null", "p0 not-null", "p0 not-null"),
        # What a truncated value would be is beyond the type: nothing is known.
        ("i < -2147483645", NONE, NONE),
        ("i = -2147483648", NONE, NONE),
        ("i <= 2147483647", "(p0 <= 2147483640 or p0 = 2147483646)", "p0 < 2147483640"),
        ("i > 2147483647", "p0 >= 2147483640", "(p0 > 2147483640 and p0 <> 2147483646)"),
    ],
)
def test_truncated_integers(row_filter: str, inclusive: str | None, strict: str | None) -> None:
    check(row_filter, "i", tr.TruncateTransform(10), inclusive, strict)


@pytest.mark.parametrize(
    ("row_filter", "inclusive", "strict"),
    [
        ("l < 10", "(p0 <= 0 or p0 in [2147483646, 9223372036854775806])", "p0 < 10"),
        ("l > 9", "p0 >= 10", "(p0 > 0 and p0 not-in [2147483646, 9223372036854775806])"),
        ("l = 5", "p0 = 0", NONE),
        ("l = -2147483648", "p0 in [-2147483650, 2147483646]", NONE),
        ("l <> -2147483648", NONE, "p0 not-in [-2147483650, 2147483646]"),
        ("l = -9223372036854775808", NONE, NONE),
    ],
)
def test_truncated_longs_may_have_been_ints(row_filter: str, inclusive: str | None, strict: str | None) -> None:
    """The least number of either type is truncated to one below it, which is 2147483646 in 32 bits."""
    check(row_filter, "l", tr.TruncateTransform(10), inclusive, strict)


def test_multiples_of_a_power_of_two_include_the_least_integer() -> None:
    check("i < 10", "i", tr.TruncateTransform(8), "p0 <= 8", "p0 < 8")
    check("l > 10", "l", tr.TruncateTransform(8), "p0 >= 8", "p0 > 8")


@pytest.mark.parametrize(
    ("row_filter", "inclusive", "strict"),
    [
        ("dec < 1.00", "p0 <= 0.90", "p0 < 1.00"),
        ("dec > 1.09", "p0 >= 1.10", "p0 > 1.00"),
        ("dec = -0.01", "p0 = -0.10", NONE),
        ("dec < 1.005", "p0 <= 1.00", "p0 < 1.00"),
        ("dec <= 9999999.99", "p0 <= 9999999.90", NONE),
    ],
)
def test_truncated_decimals_count_in_units_of_their_scale(row_filter: str, inclusive: str, strict: str | None) -> None:
    check(row_filter, "dec", tr.TruncateTransform(10), inclusive, strict)


@pytest.mark.parametrize(
    ("row_filter", "inclusive", "strict"),
    [
        ("s < 'abc'", "p0 <= ab", "p0 < ab"),
        ("s >= 'abc'", "p0 >= ab", "p0 > ab"),
        ("s = 'abc'", "p0 = ab", NONE),
        ("s <> 'abc'", NONE, "p0 <> ab"),
        ("s in ('abc', 'abd', 'b')", "p0 in ['ab', 'b']", NONE),
        ("s not in ('abc', 'abd', 'b')", NONE, "p0 not-in ['ab', 'b']"),
        ("s like 'a%'", "p0 starts-with a", "p0 starts-with a"),
        ("s like 'ab%'", "p0 = ab", "p0 = ab"),
        ("s like 'abc%'", "p0 starts-with ab", NONE),
        ("s not like 'a%'", "p0 not-starts-with a", "p0 not-starts-with a"),
        ("s not like 'ab%'", "p0 <> ab", "p0 <> ab"),
        ("s not like 'abc%'", NONE, "p0 not-starts-with ab"),
        (StartsWith("s", "\U0001f600"), "p0 starts-with \U0001f600", "p0 starts-with \U0001f600"),
        (StartsWith("s", "\U0001f600a"), "p0 = \U0001f600a", "p0 = \U0001f600a"),
        (NotStartsWith("s", "\U0001f600ab"), NONE, "p0 not-starts-with \U0001f600a"),
    ],
)
def test_truncated_text_counts_code_points(
    row_filter: str | BooleanExpression, inclusive: str | None, strict: str | None
) -> None:
    check(row_filter, "s", tr.TruncateTransform(2), inclusive, strict)


def test_truncated_bytes() -> None:
    check("b < 'ab01ff'", "b", tr.TruncateTransform(2), "p0 <= AB01", "p0 < AB01")


# Writers of old rounded times before 1970 up, so that a partition may be one too great


@pytest.mark.parametrize(
    ("row_filter", "inclusive", "strict"),
    [
        ("d < '1970-02-01'", "p0 <= 0", "p0 < 1"),
        ("d < '1969-12-01'", "p0 <= -1", "p0 < -1"),
        ("d <= '1969-12-31'", "p0 <= 0", "p0 < 0"),
        ("d > '1969-12-31'", "p0 >= 0", "p0 > 0"),
        ("d > '1970-01-31'", "p0 >= 1", "p0 > 1"),
        ("d >= '1969-12-01'", "p0 >= -1", "p0 > -1"),
        ("d >= '1970-03-01'", "p0 >= 2", "p0 > 1"),
        ("d = '1969-12-31'", "p0 in [-1, 0]", NONE),
        ("d = '1970-01-01'", "p0 = 0", NONE),
        ("d <> '1969-12-31'", NONE, "p0 not-in [-1, 0]"),
        ("d in ('1969-12-31', '1970-03-01')", "p0 in [-1, 0, 2]", NONE),
        ("d not in ('1969-12-31', '1970-03-01')", NONE, "p0 not-in [-1, 0, 2]"),
        ("d is null", "p0 is-null", "p0 is-null"),
    ],
)
def test_month_of_date(row_filter: str, inclusive: str | None, strict: str | None) -> None:
    check(row_filter, "d", tr.MonthTransform(), inclusive, strict)


def test_day_of_date_was_never_wrong() -> None:
    check("d < '1969-12-31'", "d", tr.DayTransform(), "p0 <= 1969-12-30", "p0 < 1969-12-31")
    check("d >= '1969-12-31'", "d", tr.DayTransform(), "p0 >= 1969-12-31", "p0 > 1969-12-30")
    check("d = '1969-12-31'", "d", tr.DayTransform(), "p0 = 1969-12-31", NONE)


@pytest.mark.parametrize(
    ("transform", "row_filter", "inclusive", "strict"),
    [
        (tr.YearTransform(), "ts < '1969-01-01T00:00:00'", "p0 <= -1", "p0 < -1"),
        (tr.YearTransform(), "ts >= '1971-01-01T00:00:00'", "p0 >= 1", "p0 > 1"),
        (tr.DayTransform(), "ts <= '1969-12-31T23:59:59.999999'", "p0 <= 1970-01-01", "p0 < 1970-01-01"),
        (tr.DayTransform(), "ts > '1969-12-31T23:59:59.999999'", "p0 >= 1970-01-01", "p0 > 1970-01-01"),
        (tr.DayTransform(), "ts = '1969-12-31T10:00:00'", "p0 in ['1969-12-31', '1970-01-01']", NONE),
        (tr.HourTransform(), "ts < '1970-01-01T01:00:00'", "p0 <= 0", "p0 < 1"),
        (tr.HourTransform(), "ts = '1969-12-31T23:59:59'", "p0 in [-1, 0]", NONE),
        # Hour 2^31 and more have no integer.
        (tr.HourTransform(), "ts < '+270000-01-01T00:00:00'", NONE, NONE),
    ],
)
def test_timestamps(transform: Any, row_filter: str, inclusive: str | None, strict: str | None) -> None:
    check(row_filter, "ts", transform, inclusive, strict)


def test_nanoseconds_step_by_one_nanosecond() -> None:
    check("ns < '1970-01-02T00:00:00.000000001'", "ns", tr.DayTransform(), "p0 <= 1970-01-02", "p0 < 1970-01-02")
    check("ns < '1970-01-02T00:00:00'", "ns", tr.DayTransform(), "p0 <= 1970-01-01", "p0 < 1970-01-02")


@pytest.mark.parametrize("row_filter", ["i = 5", "i is null", "i <> 5"])
def test_void_and_unknown_say_nothing(row_filter: str) -> None:
    check(row_filter, "i", tr.VoidTransform(), NONE, NONE)
    check(row_filter, "i", tr.UnknownTransform("zorder"), NONE, NONE)
    several = {
        "spec-id": 1,
        "fields": [{"field-id": 1000, "name": "p0", "transform": "bucket[4]", "source-ids": [1, 9]}],
    }
    assert both(row_filter, partition_spec_from_json(several)) == ("true", "false")


def test_several_columns() -> None:
    """Only filters that limit all columns to few values say something, and only by a known hash."""
    sources = [SCHEMA.find_field(name).field_id for name in "isl"]
    spec = PartitionSpec(PartitionField(sources[0], 1000, ColumnsBucket(4, sources), "p0"))

    def of(*parts: bytes) -> int:
        return (mmh3.hash(b"".join(parts)) & 0x7FFFFFFF) % 4

    five, six, seven = (struct.pack("<q", number) for number in (5, 6, 7))
    all_set = of(five, b"a", six)
    of_sets = sorted({of(number, text, six) for number in (five, six, seven) for text in (b"a", b"b")})
    or_nulls = sorted(
        {of(*filter(None, parts)) for parts in product((five, b""), (b"a", b""), (six, b"")) if any(parts)}
    )
    cases = {
        "i = 5 and l = 6 and s = 'a'": f"p0 = {all_set}",
        "s = 'a' and (l = 6 and i = 5) and f > 1.5": f"p0 = {all_set}",
        "i = 5 and l = 6": "true",
        "i = 5 and l = 6 and s > 'a'": "true",
        "i = 5 or l = 6 or s = 'a'": "true",
        "i is null and l is null and s is null": "p0 is-null",
        "i in (5, 6, 7) and l = 6 and s in ('a', 'b')": f"p0 in {of_sets}",
        "(i = 5 or i is null) and (l is null or l = 6) and (s is null or s = 'a')": f"(p0 in {or_nulls} or p0 is-null)",
        "(i = 5 and l = 6 and s = 'a') or (i is null and l is null and s is null)": f"(p0 = {all_set} or p0 is-null)",
        "i = 5 and i = 6 and l = 6 and s = 'a'": "false",
        "i = 5 and l = 6 and s = 'a' or f > 1.5": "true",
    }
    for row_filter, projected in cases.items():
        assert both(row_filter, spec) == (projected, "false"), row_filter
    field = {"field-id": 1000, "name": "p0", "transform": "bucket[4]", "source-ids": sources}
    for of_hash in ({}, {"bucket-hash": "xor"}):
        unknown = partition_spec_from_json({"spec-id": 0, "fields": [field | of_hash]})
        assert both("i = 5 and l = 6 and s = 'a'", unknown) == ("true", "false")
    assert partition_spec_from_json({"spec-id": 0, "fields": [field | {"bucket-hash": "murmur3-concatenated"}]}) == spec
    many = f"i in ({', '.join(map(str, range(200)))}) and l in ({', '.join(map(str, range(100)))}) and s = 'a'"
    assert both(many, spec) == ("true", "false")


def test_several_fields_of_one_column() -> None:
    spec = spec_of(("ts", tr.DayTransform()), ("ts", tr.HourTransform()), ("i", tr.TruncateTransform(10)))
    assert both("ts < '1970-01-02T03:00:00'", spec) == (
        "(p0 <= 1970-01-02 and p1 <= 26)",
        "(p0 < 1970-01-02 or p1 < 27)",
    )
    assert both("i > 9 or ts < '1970-01-02T03:00:00'", spec)[0] == "(p2 >= 10 or (p0 <= 1970-01-02 and p1 <= 26))"
    assert both("l = 1 or i = 5", spec) == ("true", "false")
    assert both("l = 1 and i = 5", spec) == ("p2 = 0", "false")


def test_references_carry_partition_field_ids() -> None:
    bound = bind_filter(parse_filter("i = 5"), SCHEMA)
    projected = inclusive_projection(bound, spec_of(("l", tr.BucketTransform(4)), ("i", tr.IdentityTransform())))
    reference = projected.term.ref()
    assert (reference.field.field_id, reference.field.field_type, reference.field.required) == (
        1001,
        t.IntegerType(),
        False,
    )
    assert reference.accessor.position == 1


@pytest.mark.parametrize(
    ("row_filter", "left"),
    [
        ("i = 5", "true"),
        ("l = 5", "l = 5"),
        ("i = 5 and l = 5", "l = 5"),
        ("i = 5 and (s = 'a' and l > 5 and i < 9)", "l > 5"),
        ("i = 5 or s is null", "true"),
        ("i = 5 or l = 5", "(i = 5 or l = 5)"),
        ("(i = 5 and l = 5) or i = 6", "((i = 5 and l = 5) or i = 6)"),
        ("i in (5, 6) and s not like 'a%'", "true"),
        ("f > 1.5 and i <> 5", "f > 1.5"),
        ("f is null", "f is-null"),
    ],
)
def test_what_identity_partitions_leave_of_a_filter(row_filter: str, left: str) -> None:
    ids = {SCHEMA.find_field(name).field_id for name in ("i", "s", "f")}
    bound = bind_filter(parse_filter(row_filter), SCHEMA, two_valued=True)
    assert short(undecided(bound, ids)) == left
    assert short(undecided(bound, ())) == short(bound)
