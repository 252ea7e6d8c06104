"""Projections, residuals and manifest summaries against the rows of partitions, for random specs and filters."""

from __future__ import annotations

import math
import operator
import os
import struct
from datetime import date, timedelta
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import mmh3
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg import transforms
from pyiceberg import types as t
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, Or
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema

from sparkmeta.expr import sql
from sparkmeta.expr.bounds import decode_bounds
from sparkmeta.expr.conditions import fold
from sparkmeta.expr.expression_json import leaf_to_json
from sparkmeta.expr.predicate import bind_filter, expression_to_json, parse_filter, row_predicate
from sparkmeta.expr.residual import residual
from sparkmeta.expr.skipping import FieldSummary, summary_might_match
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.transforms import inclusive_projection, strict_projection, undecided
from sparkmeta.spec.transforms import ColumnsBucket
from tests.properties.cases import DAY_MICROS, VALUES, by_arrow, by_both, filters, is_floating, matches, predicates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"
PROFILE = settings(
    max_examples=200 if SOAK else 40,
    deadline=None,
    derandomize=not SOAK,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SOURCE, OTHER = 1, 2
EXACT = Context(prec=76)
LEAST_INT, LEAST_LONG = -(2**31), -(2**63)
DATES = st.integers(-40_000, 40_000) | st.integers(-800, 800)
TICKS = {
    t.TimestampType(): 1,
    t.TimestamptzType(): 1,
    t.TimestampNanoType(): 1000,
    t.TimestamptzNanoType(): 1000,
}


# Transforms, from the words of the table spec


def transformed(transform: Any, primitive: t.PrimitiveType, value: Any, old_writer: bool) -> Any:
    if value is None or isinstance(transform, transforms.VoidTransform):
        return None
    match transform:
        case transforms.IdentityTransform():
            return value
        case transforms.BucketTransform():
            return (mmh3.hash(hashed(primitive, value)) & 0x7FFFFFFF) % transform.num_buckets
        case transforms.TruncateTransform():
            was_int = old_writer and isinstance(primitive, t.LongType) and LEAST_INT <= value < -LEAST_INT
            return truncated(t.IntegerType() if was_int else primitive, value, transform.width)
    days = value if isinstance(primitive, t.DateType) else value // (DAY_MICROS * TICKS[primitive])
    day = date(1970, 1, 1) + timedelta(days)
    match transform:
        case transforms.YearTransform():
            return day.year - 1970
        case transforms.MonthTransform():
            return (day.year - 1970) * 12 + day.month - 1
        case transforms.DayTransform():
            return days
    return value // (3_600_000_000 * TICKS[primitive])


def hashed(primitive: t.PrimitiveType, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, Decimal):
        unscaled = int(value.scaleb(10)) if primitive == t.DecimalType(38, 10) else int(value.scaleb(2))
        return minimal(unscaled)
    return struct.pack("<q", value // 1000 if TICKS.get(primitive) == 1000 else value)


def minimal(unscaled: int) -> bytes:
    """Two's complement in as few bytes as hold the sign."""
    length = 1
    while not -(1 << (8 * length - 1)) <= unscaled < 1 << (8 * length - 1):
        length += 1
    return unscaled.to_bytes(length, "big", signed=True)


def truncated(primitive: t.PrimitiveType, value: Any, width: int) -> Any:
    if isinstance(value, str | bytes):
        return value[:width]
    if isinstance(value, Decimal):
        unscaled = int(value.scaleb(2))
        return Decimal(unscaled - unscaled % width).scaleb(-2)
    step = value - value % width
    least = LEAST_INT if isinstance(primitive, t.IntegerType) else LEAST_LONG
    return step if step >= least else step - 2 * least


# Specs, rows and batches


class Batch(NamedTuple):
    """Rows are of two columns; each is in a partition of its own. tuples: the partition of each row."""

    schema: Schema
    spec: PartitionSpec
    rows: list[dict[int, Any]]
    tuples: list[dict[int, Any]]
    expressions: list[BooleanExpression]

    def __repr__(self) -> str:
        return f"{len(self.rows)} rows x {len(self.expressions)} filters on {self.schema}, {self.spec}"


def source_values(primitive: t.PrimitiveType) -> st.SearchStrategy[Any]:
    """Values whose partition a writer can write: truncating near the least decimal leaves its type."""
    if isinstance(primitive, t.DateType):
        return DATES
    if primitive in TICKS:
        unit = DAY_MICROS * TICKS[primitive]
        return st.builds(lambda days, rest: days * unit + rest, DATES, st.integers(-2, 2) | st.integers(0, unit - 1))
    if isinstance(primitive, t.IntegerType | t.LongType):
        least = st.just(LEAST_INT) | st.just(LEAST_LONG if isinstance(primitive, t.LongType) else LEAST_INT)
        near_least = st.builds(operator.add, least, st.integers(0, 30))
        return st.integers(LEAST_INT, -LEAST_INT - 1) | st.integers(-50, 50) | near_least
    if primitive == t.DecimalType(9, 2):
        return st.integers(-(10**8), 10**8).map(two_places) | st.integers(-300, 300).map(two_places)
    return VALUES[primitive]


def two_places(unscaled: int) -> Decimal:
    return Decimal(unscaled).scaleb(-2)


def transforms_of(primitive: t.PrimitiveType) -> list[Any]:
    """The transforms of a type; those that prune most are listed several times."""
    choices: list[Any] = [*[transforms.IdentityTransform()] * 3, transforms.VoidTransform()]
    if transforms.BucketTransform(2).can_transform(primitive):
        choices += [transforms.BucketTransform(2), transforms.BucketTransform(7)]
    if transforms.TruncateTransform(2).can_transform(primitive) and primitive != t.DecimalType(38, 10):
        choices += [transforms.TruncateTransform(width) for width in (1, 2, 3, 10)] * 2
    times = [
        transforms.YearTransform(),
        transforms.MonthTransform(),
        transforms.DayTransform(),
        transforms.HourTransform(),
    ]
    return choices + [time for time in times if time.can_transform(primitive)] * 4


SOURCES = [
    *VALUES,
    *[t.IntegerType(), t.LongType(), t.DecimalType(9, 2), t.StringType(), t.BinaryType()] * 2,
    *[t.DateType(), t.TimestampType(), t.TimestamptzType(), t.TimestampNanoType()] * 2,
]
INTEGERS = [t.IntegerType(), t.LongType()]


@st.composite
def pools(draw: st.DrawFn, primitive: t.PrimitiveType) -> list[Any]:
    """Values. Some are close to each other, so that they share a partition or are in neighbouring ones."""
    base = draw(source_values(primitive))
    if primitive in TICKS:
        steps = st.builds(
            lambda hours, rest: hours * 3_600_000_000 * TICKS[primitive] + rest,
            st.integers(-30, 30),
            st.integers(-1, 1),
        )
    elif isinstance(base, Decimal):
        steps = st.integers(-12, 12).map(two_places) if primitive == t.DecimalType(9, 2) else st.just(Decimal(0))
    elif isinstance(primitive, t.DateType | t.IntegerType | t.LongType):
        steps = st.integers(-12, 12) | st.integers(-40, 40)
    else:
        return [base, *draw(st.lists(source_values(primitive), min_size=2, max_size=5))]
    near = draw(st.lists(steps, min_size=3, max_size=6))
    if isinstance(primitive, t.IntegerType | t.LongType):
        least = LEAST_INT if isinstance(primitive, t.IntegerType) else LEAST_LONG
        return [max(least, min(-least - 1, base + step)) for step in (0, *near)]
    add = EXACT.add if isinstance(base, Decimal) else operator.add
    return [base, *(add(base, step) for step in near)]


@st.composite
def batches(draw: st.DrawFn, sources: list[t.PrimitiveType] = SOURCES) -> Batch:
    primitive = draw(st.sampled_from(sources))
    schema = Schema(t.NestedField(SOURCE, "v", primitive), t.NestedField(OTHER, "w", t.LongType()))
    chosen = draw(st.lists(st.sampled_from(transforms_of(primitive)), min_size=1, max_size=2, unique_by=str))
    fields = [PartitionField(SOURCE, 1000 + place, transform, f"p{place}") for place, transform in enumerate(chosen)]
    of_other = draw(st.sampled_from([transforms.BucketTransform(3), transforms.IdentityTransform()]))
    of_both = ColumnsBucket(draw(st.sampled_from([3, 50])), draw(st.permutations([SOURCE, OTHER])))
    has_both = transforms.BucketTransform(2).can_transform(primitive)
    both = [PartitionField(of_both.sources[0], 1020, of_both, "both")] if has_both else []
    spec = PartitionSpec(*fields, PartitionField(OTHER, 1010, of_other, "w_part"), *both)
    pool = draw(pools(primitive))
    value = st.sampled_from([*pool, None, *([math.nan] if is_floating(primitive) else [])])
    rows = [{SOURCE: draw(value), OTHER: draw(st.integers(-2, 2) | st.none())} for _ in range(24)]
    old_writer = draw(st.booleans())
    tuples = [partition_of(row, spec, primitive, old_writer) for row in rows]
    of_w = predicates("w", t.LongType(), [0, 1])
    leaves = predicates("v", primitive, pool) | predicates("v", primitive, pool) | of_w
    # Only filters that limit both columns to few values prune by a bucket of both.
    few = st.builds(And, leaves, of_w) | st.builds(And, filters(leaves), filters(of_w))
    return Batch(schema, spec, rows, tuples, draw(st.lists(filters(leaves) | few, min_size=12, max_size=16)))


def partition_of(
    row: dict[int, Any], spec: PartitionSpec, primitive: t.PrimitiveType, old_writer: bool
) -> dict[int, Any]:
    partition = {}
    for field in spec.fields:
        if isinstance(field.transform, ColumnsBucket):
            kinds = {SOURCE: primitive, OTHER: t.LongType()}
            parts = [hashed(kinds[at], row[at]) for at in field.transform.sources if row[at] is not None]
            bucket = (mmh3.hash(b"".join(parts)) & 0x7FFFFFFF) % field.transform.num_buckets
            partition[field.field_id] = bucket if parts else None
            continue
        source = primitive if field.source_id == SOURCE else t.LongType()
        value = transformed(field.transform, source, row[field.source_id], old_writer)
        of_time = isinstance(field.transform, transforms.TimeTransform) and not (
            isinstance(field.transform, transforms.DayTransform) and isinstance(source, t.DateType)
        )
        # Writers of old rounded times before 1970 up, and wrote columns as int that are long now.
        partition[field.field_id] = value + 1 if value is not None and of_time and old_writer and value < 0 else value
    return partition


def result_types(batch: Batch) -> dict[int, t.PrimitiveType]:
    return {
        field.field_id: field.transform.result_type(batch.schema.find_type(field.source_id))
        for field in batch.spec.fields
    }


def as_bounds(values: list[Any], primitive: t.PrimitiveType) -> pa.Array:
    serialized = [None if value is None else to_bytes(primitive, value) for value in values]
    return decode_bounds(pa.array(serialized, pa.binary()), str(primitive))


def partition_value(field_id: int) -> Sql:
    return sql.col(f"partition.`{field_id}`")


def tuple_table(batch: Batch) -> pa.Table:
    kinds = result_types(batch)
    arrays = [as_bounds([row[field_id] for row in batch.tuples], kind) for field_id, kind in kinds.items()]
    partition = pa.StructArray.from_arrays(arrays, [str(field_id) for field_id in kinds])
    return pa.table({"place": pa.array(range(len(batch.tuples)), pa.int32()), "partition": partition})


# What a residual says


def residual_matches(text: str, bound: BooleanExpression, row: dict[int, Any]) -> bool:
    """Evaluate expression JSON that is made of the filter's own predicates."""
    leaves: dict[str, BooleanExpression] = {"true": AlwaysTrue(), "false": AlwaysFalse()}
    fold(bound, lambda leaf, _negated: leaves.update({leaf_to_json(leaf): leaf}), lambda _junction, _operands: None)
    return matches(parsed(text, leaves), row)


def parsed(text: str, leaves: dict[str, BooleanExpression]) -> BooleanExpression:
    if text in leaves:
        return leaves[text]
    for junction, name in ((And, "and"), (Or, "or")):
        start, middle = f'{{"type":"{name}","left":', ',"right":'
        if text.startswith(start):
            for at in range(len(start), len(text)):
                if text.startswith(middle, at) and balanced(text[len(start) : at]):
                    left, right = text[len(start) : at], text[at + len(middle) : -1]
                    return junction(parsed(left, leaves), parsed(right, leaves))
    raise AssertionError(f"not made of the filter's predicates: {text}")


def balanced(text: str) -> bool:
    depth, quoted, escaped = 0, False, False
    for char in text:
        if not escaped and char == '"':
            quoted = not quoted
        depth += 0 if quoted else {"{": 1, "}": -1}.get(char, 0)
        escaped = quoted and char == "\\" and not escaped
    return depth == 0 and not quoted


# The tests


@pytest.mark.parametrize(("sources", "share"), [(SOURCES, 1), (INTEGERS, 2)], ids=["all types", "integers"])
def test_projections_and_residuals(spark: SparkSession, sources: list[t.PrimitiveType], share: int) -> None:
    """A matching row's tuple satisfies the inclusive projection; where the strict one holds, the row matches.

    Where the inclusive one holds, the undecided part has the same residual and the same truth as the filter.
    """
    tally = dict.fromkeys(("cases", "pruned", "proven", "simpler", "decided"), 0)

    @settings(PROFILE, max_examples=PROFILE.max_examples // share)
    @given(batch=batches(sources), two_valued=st.booleans())
    def check(batch: Batch, two_valued: bool) -> None:
        bounds = [bind_filter(expression, batch.schema, two_valued=two_valued) for expression in batch.expressions]
        columns = [column for bound in bounds for column in tuple_columns(bound, batch)]
        results = by_both(spark, tuple_table(batch), columns)
        for place, bound in enumerate(bounds):
            rest = rest_of(bound, batch)
            for row, *decisions, left in zip(batch.rows, *results[4 * place : 4 * place + 4], strict=True):
                check_tuple(bound, batch, row, *decisions)
                if decisions[0] and rest != bound:
                    assert left == decisions[2]
                    assert [matches(rest, row, nan_is_greatest=nan) for nan in (True, False)] == [
                        matches(bound, row, nan_is_greatest=nan) for nan in (True, False)
                    ]
                    tally["decided"] += 1
                tally["cases"] += 1
                tally["pruned"] += not decisions[0]
                tally["proven"] += decisions[1]
                tally["simpler"] += decisions[2] != expression_to_json(bound)

    check()
    print(f"\nprojections: {tally}")  # noqa: T201
    assert tally["cases"] >= (40_000 if SOAK else 3_000) // share
    assert min(tally["pruned"], tally["proven"], tally["simpler"], tally["decided"]) > tally["cases"] // 20


def tuple_columns(bound: BooleanExpression, batch: Batch) -> list[Sql]:
    return [
        row_predicate(inclusive_projection(bound, batch.spec), partition_value),
        row_predicate(strict_projection(bound, batch.spec), partition_value, strict=True),
        residual(bound, batch.spec, partition_value),
        residual(rest_of(bound, batch), batch.spec, partition_value),
    ]


def rest_of(bound: BooleanExpression, batch: Batch) -> BooleanExpression:
    same = {field.source_id for field in batch.spec.fields if isinstance(field.transform, transforms.IdentityTransform)}
    return undecided(bound, same)


def check_tuple(
    bound: BooleanExpression, batch: Batch, row: dict[int, Any], is_kept: Any, proven: Any, left: str
) -> None:
    readings = [matches(bound, row, nan_is_greatest=nan) for nan in (True, False)]
    case = (expression_to_json(bound), batch.spec, row)
    assert is_kept or not any(readings), case
    assert not proven or all(readings), case
    if readings[0] == readings[1]:
        assert residual_matches(left, bound, row) is readings[0], (left, *case)
    elif left == "true":
        assert all(readings), (left, *case)
    elif left == "false":
        assert not any(readings), (left, *case)


class Summary(NamedTuple):
    contains_null: bool
    contains_nan: bool | None
    lower: Any
    upper: Any


def summary_of(values: list[Any], primitive: t.PrimitiveType, knows_nan: bool) -> Summary:
    nans = [value for value in values if isinstance(value, float) and math.isnan(value)]
    present = [value for value in values if value is not None and value not in nans and value == value]  # noqa: PLR0124
    contains_nan = bool(nans) if knows_nan or not is_floating(primitive) else None
    return Summary(None in values, contains_nan, min(present, default=None), max(present, default=None))


def test_manifest_summaries(spark: SparkSession) -> None:
    """A manifest is kept if the tuple of any of its files satisfies the inclusive projection."""
    tally = dict.fromkeys(("cases", "skipped"), 0)

    @settings(PROFILE, max_examples=PROFILE.max_examples // 2)
    @given(batch=batches(), knows_nan=st.booleans(), size=st.integers(1, 3))
    def check(batch: Batch, knows_nan: bool, size: int) -> None:
        manifests = [batch.tuples[at : at + size] for at in range(0, len(batch.tuples), size)]
        bounds = [bind_filter(expression, batch.schema) for expression in batch.expressions]
        projected = [inclusive_projection(bound, batch.spec) for bound in bounds]
        table = summary_table(batch, manifests, knows_nan)
        results = by_both(spark, table, [summary_might_match(predicate, summary_column) for predicate in projected])
        for predicate, decisions in zip(projected, results, strict=True):
            for manifest, is_kept in zip(manifests, decisions, strict=True):
                assert isinstance(is_kept, bool)
                assert is_kept or not any(matches(predicate, partition) for partition in manifest), (
                    predicate,
                    manifest,
                )
                tally["cases"] += 1
                tally["skipped"] += not is_kept

    check()
    print(f"\nsummaries: {tally}")  # noqa: T201
    assert tally["skipped"] > tally["cases"] // 20


def summary_table(batch: Batch, manifests: list[list[dict[int, Any]]], knows_nan: bool) -> pa.Table:
    structs = {}
    for field_id, kind in result_types(batch).items():
        field_summaries = [
            summary_of([partition[field_id] for partition in manifest], kind, knows_nan) for manifest in manifests
        ]
        structs[str(field_id)] = pa.StructArray.from_arrays(
            [
                pa.array([summary.contains_null for summary in field_summaries], pa.bool_()),
                pa.array([summary.contains_nan for summary in field_summaries], pa.bool_()),
                as_bounds([summary.lower for summary in field_summaries], kind),
                as_bounds([summary.upper for summary in field_summaries], kind),
            ],
            list(FieldSummary._fields),
        )
    summaries = pa.StructArray.from_arrays(list(structs.values()), list(structs))
    return pa.table({"place": pa.array(range(len(manifests)), pa.int32()), "partition": summaries})


@pytest.mark.parametrize(
    ("text", "matches"),
    [(text, [True, False, True]) for text in ("v = 4", "v > 4", "v <= 3", "v in (1, 5)", "v = 9 or v = 3", "v != 1")]
    + [(text, [True, False, False]) for text in ("v > 5", "v < 3", "v in (2, 6)")]
    + [("v is null", [True, True, False])],
)
def test_manifests_without_summaries_are_kept(text: str, matches: list[bool]) -> None:
    schema = Schema(t.NestedField(SOURCE, "v", t.IntegerType()))
    flags, bounds = ("contains_null", "contains_nan"), ("lower_bound", "upper_bound")
    kind = pa.struct([*((name, pa.bool_()) for name in flags), *((name, pa.int32()) for name in bounds)])
    values = [None, {"contains_null": True}, {"contains_null": False, "lower_bound": 3, "upper_bound": 5}]
    summaries = pa.StructArray.from_arrays([pa.array(values, kind)], [str(SOURCE)])
    condition = summary_might_match(bind_filter(parse_filter(text), schema), summary_column)
    assert by_arrow(pa.table({"partition": summaries}), [condition]) == [matches]


def summary_column(field_id: int) -> FieldSummary:
    return FieldSummary(*(sql.col(f"partition.`{field_id}`.{name}") for name in FieldSummary._fields))
