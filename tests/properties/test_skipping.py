"""might_match and must_match against pyiceberg's evaluators, and against the rows themselves.

`make test` runs a seeded slice; SPARKMETA_SOAK=1 runs at least 100,000 cases and prints how many.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluationVisitor, _StrictMetricsEvaluationVisitor, visit
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from sparkmeta.expr import sql
from sparkmeta.expr.bounds import decode_bounds
from sparkmeta.expr.predicate import bind_filter, expression_to_json, row_predicate
from sparkmeta.expr.skipping import FieldStats, might_match, must_match
from sparkmeta.expr.sql import Sql
from tests.properties.cases import (
    VALUES,
    ColumnChunk,
    File,
    by_both,
    chunks,
    distinct,
    filters,
    is_floating,
    matches,
    predicates,
    same,
    signed_key,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"
EXAMPLES = 260 if SOAK else 20
TOP, STRUCT, NESTED, NESTED_REQUIRED, REQUIRED = 1, 2, 3, 4, 5
TOP_LEVEL = {TOP, STRUCT, REQUIRED}
LEAVES = {TOP: "v", NESTED: "s.n", NESTED_REQUIRED: "s.q", REQUIRED: "w"}

PROFILE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not SOAK,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


INTRICATE = [t.FloatType(), t.DoubleType(), t.StringType()] * 3


def schema_of(primitive: t.PrimitiveType) -> Schema:
    struct = t.StructType(
        t.NestedField(NESTED, "n", primitive, required=False),
        t.NestedField(NESTED_REQUIRED, "q", primitive, required=True),
    )
    return Schema(
        t.NestedField(TOP, "v", primitive, required=False),
        t.NestedField(STRUCT, "s", struct, required=False),
        t.NestedField(REQUIRED, "w", primitive, required=True),
    )


# Batches: one type, some files, some filters; every filter is evaluated on every file in one Spark job


class Batch(NamedTuple):
    primitive: t.PrimitiveType
    files: list[File]
    expressions: list[BooleanExpression]

    def __repr__(self) -> str:
        return f"{len(self.files)} files x {len(self.expressions)} filters on {self.primitive}"


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    primitive = draw(st.sampled_from([*VALUES, *INTRICATE]))
    pool = draw(st.lists(VALUES[primitive], min_size=2, max_size=5))
    drawn_files = draw(st.lists(files(primitive, pool), min_size=22, max_size=30))
    leaves = st.sampled_from(list(LEAVES.values())).flatmap(lambda name: predicates(name, primitive, pool))
    return Batch(primitive, drawn_files, draw(st.lists(filters(leaves), min_size=14, max_size=20)))


@st.composite
def files(draw: st.DrawFn, primitive: t.PrimitiveType, pool: list[Any]) -> File:
    key = draw(st.sampled_from([same, signed_key])) if isinstance(primitive, t.UUIDType) else same
    value = st.sampled_from([*pool, math.nan] if is_floating(primitive) else pool)
    optional = st.sampled_from([st.none(), value, value | st.none()])
    top, nested, parents = draw(optional), draw(optional), draw(st.sampled_from([[True], [True, False], [False]]))
    rows = [
        _row(draw(top), draw(st.sampled_from(parents)), draw(nested), draw(value), draw(value))
        for _ in range(draw(st.integers(0, 4)))
    ]
    file = File(draw(st.sampled_from([len(rows)] * 9 + [-1])), rows, key=key)
    skips_null_parents = draw(st.booleans())
    for field_id in LEAVES:
        in_struct = field_id in (NESTED, NESTED_REQUIRED)
        uncounted = sum(row[STRUCT] is None for row in rows) if in_struct and skips_null_parents else 0
        values = [row[field_id] for row in rows]
        file.chunks[field_id] = draw(chunks(values, primitive, key, uncounted))
    return file


def _row(top: Any, parent: bool, nested: Any, nested_required: Any, required: Any) -> dict[int, Any]:
    return {
        TOP: top,
        STRUCT: {} if parent else None,
        NESTED: nested if parent else None,
        NESTED_REQUIRED: nested_required if parent else None,
        REQUIRED: required,
    }


def stats_table(files: list[File], primitive: t.PrimitiveType) -> pa.Table:
    stats = {str(field_id): _stats([file.chunks[field_id] for file in files], primitive) for field_id in LEAVES}
    counts = pa.array([file.record_count for file in files], pa.int64())
    content = pa.StructArray.from_arrays(list(stats.values()), list(stats))
    return pa.table(
        {"place": pa.array(range(len(files)), pa.int32()), "content_stats": content, "record_count": counts}
    )


def _stats(column: list[ColumnChunk], primitive: t.PrimitiveType) -> pa.StructArray:
    def counts(name: str) -> pa.Array:
        return pa.array([getattr(chunk, name) for chunk in column], pa.int64())

    bounds = [
        decode_bounds(
            pa.array([serialized(getattr(chunk, side), primitive) for chunk in column], pa.binary()), str(primitive)
        )
        for side in ("lower", "upper")
    ]
    arrays = [*bounds, counts("value_count"), counts("null_count"), counts("nan_count")]
    return pa.StructArray.from_arrays(arrays, list(FieldStats._fields))


def serialized(value: Any, primitive: t.PrimitiveType) -> bytes | None:
    return None if value is None else to_bytes(primitive, value)


def stats_of(field_id: int) -> FieldStats:
    return FieldStats(*(sql.col(f"content_stats.`{field_id}`.{name}") for name in FieldStats._fields))


def evaluated(
    spark: SparkSession, files: list[File], primitive: t.PrimitiveType, columns: list[Sql]
) -> list[list[bool]]:
    """One list a column, with its result for each file."""
    return by_both(spark, stats_table(files, primitive), columns)


# The oracle: pyiceberg's evaluators, and where this project departs from them


class Inclusive(_InclusiveMetricsEvaluationVisitor):
    """pyiceberg's, with Iceberg Java's rules where pyiceberg has others, and bounds of UUIDs in either order."""

    def __init__(self, file: File, data_file: DataFile) -> None:
        super().__init__(data_file)
        self.record_count = file.record_count

    def _contains_nulls_only(self, field_id: int) -> bool:
        """A column without any counted value is all null, too: pyiceberg takes zero counts for missing ones."""
        return _known_equal(self.value_counts.get(field_id), self.null_counts.get(field_id))

    def _contains_nans_only(self, field_id: int) -> bool:
        return _known_equal(self.value_counts.get(field_id), self.nan_counts.get(field_id))

    def _uncounted(self, field_id: int) -> bool:
        """Rows whose parent struct is null may not be counted; they are null."""
        return self.value_counts.get(field_id, self.record_count) < self.record_count

    def _may_contain_null(self, field_id: int) -> bool:
        """pyiceberg's is true where the count is known, be it zero, and false where it is not."""
        return self.null_counts.get(field_id) != 0 or self._uncounted(field_id)

    def visit_is_null(self, term: Any) -> bool:
        return self._may_contain_null(term.ref().field.field_id)

    def visit_not_nan(self, term: Any) -> bool:
        field_id = term.ref().field.field_id
        return not self._contains_nans_only(field_id) or self._uncounted(field_id)

    def visit_in(self, term: Any, literals: set[Any]) -> bool:
        """Java looks at no bound where the lower one is missing."""
        return self._by_lower(term, lambda: self._either_order(term, literals, super(Inclusive, self).visit_in))

    def visit_starts_with(self, term: Any, literal: Any) -> bool:
        return self._by_lower(term, lambda: super(Inclusive, self).visit_starts_with(term, literal))

    def _by_lower(self, term: Any, evaluate: Any) -> bool:
        field_id = term.ref().field.field_id
        if field_id in self.lower_bounds:
            return evaluate()
        floating = is_floating(term.ref().field.field_type)
        return not (self._contains_nulls_only(field_id) or (floating and self._contains_nans_only(field_id)))

    def visit_not_equal(self, term: Any, literal: Any) -> bool:
        return self.visit_not_in(term, {literal.value})

    def visit_not_in(self, term: Any, literals: set[Any]) -> bool:
        """pyiceberg keeps every file; equal bounds prove one single value."""
        field = term.ref().field
        lower, upper = (bounds.get(field.field_id) for bounds in (self.lower_bounds, self.upper_bounds))
        if self._may_contain_null(field.field_id) or lower is None or upper is None:
            return True
        if is_floating(field.field_type) and self.nan_counts.get(field.field_id) != 0:
            return True
        least, greatest = from_bytes(field.field_type, lower), from_bytes(field.field_type, upper)
        return least != greatest or least not in literals

    def visit_less_than(self, term: Any, literal: Any) -> bool:
        return self._either_order(term, literal, super().visit_less_than)

    def visit_less_than_or_equal(self, term: Any, literal: Any) -> bool:
        return self._either_order(term, literal, super().visit_less_than_or_equal)

    def visit_greater_than(self, term: Any, literal: Any) -> bool:
        return self._either_order(term, literal, super().visit_greater_than)

    def visit_greater_than_or_equal(self, term: Any, literal: Any) -> bool:
        return self._either_order(term, literal, super().visit_greater_than_or_equal)

    def visit_equal(self, term: Any, literal: Any) -> bool:
        return self._either_order(term, literal, super().visit_equal)

    def _either_order(self, term: Any, literal: Any, evaluate: Any) -> bool:
        field = term.ref().field
        if not isinstance(field.field_type, t.UUIDType):
            return evaluate(term, literal)
        if self._contains_nulls_only(field.field_id):
            return False
        lower, upper = (bounds.get(field.field_id) for bounds in (self.lower_bounds, self.upper_bounds))
        literals = literal if isinstance(literal, set) else {literal.value}
        ranges = uuid_ranges(lower, upper)
        if ranges is None or len(literals) > 200:
            return True
        name = evaluate.__name__
        return any(
            ("greater" in name or least <= value[:8]) and ("less" in name or value[:8] <= highest)
            for value in literals
            for least, highest in ranges
        )


def uuid_ranges(lower: bytes | None, upper: bytes | None) -> list[tuple[bytes, bytes]] | None:
    """The ranges of the first halves of UUIDs, by unsigned bytes, for bounds of either order; None if unknown."""
    if lower is None or upper is None:
        return None
    if lower <= upper:
        return [(lower[:8], upper[:8])]
    if lower[0] >= 128 > upper[0]:
        return [(lower[:8], b"\xff" * 8), (bytes(8), upper[:8])]
    return None


class Strict(_StrictMetricsEvaluationVisitor):
    """pyiceberg's, but nothing is proven from counts that are missing, and more from bounds that are there."""

    def __init__(self, file: File, data_file: DataFile, schema: Schema) -> None:
        super().__init__(schema.as_struct(), data_file)
        self.inclusive = Inclusive(file, data_file)

    def _contains_nulls_only(self, field_id: int) -> bool:
        return self.inclusive._contains_nulls_only(field_id)

    def _contains_nans_only(self, field_id: int) -> bool:
        return self.inclusive._contains_nans_only(field_id)

    def _can_contain_nulls(self, field_id: int) -> bool:
        return field_id not in TOP_LEVEL or self.inclusive._may_contain_null(field_id)

    def _can_contain_nans(self, field_id: int) -> bool:
        return is_floating(self.struct.field(field_id).field_type) and self.nan_counts.get(field_id) != 0

    def visit_is_nan(self, term: Any) -> bool:
        field_id = term.ref().field.field_id
        return self._contains_nans_only(field_id) and not self.inclusive._uncounted(field_id)

    def visit_is_null(self, term: Any) -> bool:
        return term.ref().field.field_id in TOP_LEVEL and super().visit_is_null(term)

    def visit_not_null(self, term: Any) -> bool:
        return not self._can_contain_nulls(term.ref().field.field_id)

    def visit_equal(self, term: Any, literal: Any) -> bool:
        return self.visit_in(term, {literal.value})

    def visit_not_equal(self, term: Any, literal: Any) -> bool:
        return self.visit_not_in(term, {literal.value})

    def visit_not_in(self, term: Any, literals: set[Any]) -> bool:
        """pyiceberg gives up on the upper bound alone."""
        field = term.ref().field
        if field.field_id not in TOP_LEVEL:
            return False
        if self._contains_nulls_only(field.field_id) or (
            is_floating(field.field_type) and self._contains_nans_only(field.field_id)
        ):
            return True
        if isinstance(field.field_type, t.UUIDType):
            ranges = self._uuid_range(field)
            return bool(ranges) and all(
                not least <= value[:8] <= highest for value in literals for least, highest in ranges
            )
        return all(
            self._outside(field, literal, "lower_bounds") or self._outside(field, literal, "upper_bounds")
            for literal in literals
        )

    def _uuid_range(self, field: t.NestedField) -> list[tuple[bytes, bytes]]:
        """The range that bounds prove, if any: not where they go around from ff... to 00...."""
        ranges = uuid_ranges(*(bounds.get(field.field_id) for bounds in (self.lower_bounds, self.upper_bounds)))
        return ranges if ranges is not None and len(ranges) == 1 else []

    def _outside(self, field: t.NestedField, literal: Any, side: str) -> bool:
        lower = self.lower_bounds.get(field.field_id)
        if lower is not None and self._is_nan(from_bytes(field.field_type, lower)):
            return False
        stored = getattr(self, side).get(field.field_id)
        if stored is None:
            return False
        bound = from_bytes(field.field_type, stored)
        return bound > literal if side == "lower_bounds" else bound < literal

    def visit_starts_with(self, term: Any, literal: Any) -> bool:
        field_id = term.ref().field.field_id
        bounds = [self.lower_bounds.get(field_id), self.upper_bounds.get(field_id)]
        return not self._can_contain_nulls(field_id) and all(
            bound is not None and bound.startswith(literal.value.encode()) for bound in bounds
        )

    def visit_not_starts_with(self, term: Any, literal: Any) -> bool:
        field_id, prefix = term.ref().field.field_id, literal.value.encode()
        if field_id not in TOP_LEVEL:
            return False
        lower, upper = self.lower_bounds.get(field_id), self.upper_bounds.get(field_id)
        above = lower is not None and lower[: len(prefix)] > prefix
        below = upper is not None and upper[: len(prefix)] < prefix
        return self._contains_nulls_only(field_id) or above or below

    def visit_less_than(self, term: Any, literal: Any) -> bool:
        return self._range(term, literal, super().visit_less_than)

    def visit_less_than_or_equal(self, term: Any, literal: Any) -> bool:
        return self._range(term, literal, super().visit_less_than_or_equal)

    def visit_greater_than(self, term: Any, literal: Any) -> bool:
        return self._range(term, literal, super().visit_greater_than)

    def visit_greater_than_or_equal(self, term: Any, literal: Any) -> bool:
        return self._range(term, literal, super().visit_greater_than_or_equal)

    def _range(self, term: Any, literal: Any, evaluate: Any) -> bool:
        field = term.ref().field
        if not isinstance(field.field_type, t.UUIDType):
            return evaluate(term, literal)
        ranges, half = self._uuid_range(field), literal.value[:8]
        is_less = "less" in evaluate.__name__
        counted = field.field_id in TOP_LEVEL and not self._can_contain_nulls(field.field_id)
        return counted and any(highest < half if is_less else least > half for least, highest in ranges)


def _known_equal(left: int | None, right: int | None) -> bool:
    return left is not None and left == right


def data_file(file: File, primitive: t.PrimitiveType) -> DataFile:
    def known(name: str, convert: Any = same) -> dict[int, Any]:
        values = {field_id: convert(getattr(chunk, name)) for field_id, chunk in file.chunks.items()}
        return {field_id: value for field_id, value in values.items() if value is not None}

    return DataFile.from_args(
        record_count=file.record_count,
        value_counts=known("value_count"),
        null_value_counts=known("null_count"),
        nan_value_counts=known("nan_count"),
        lower_bounds=known("lower", lambda value: serialized(value, primitive)),
        upper_bounds=known("upper", lambda value: serialized(value, primitive)),
    )


def expected_might(bound: BooleanExpression, file: File, metrics: DataFile) -> bool:
    return file.record_count != 0 and (file.record_count < 0 or visit(bound, Inclusive(file, metrics)))


def expected_must(bound: BooleanExpression, file: File, metrics: DataFile, schema: Schema) -> bool:
    return file.record_count == 0 or (file.record_count > 0 and visit(bound, Strict(file, metrics, schema)))


# The tests

tally = {"cases": 0, "skipped": 0, "proven": 0, "skippable": 0}


def test_skipping(spark: SparkSession) -> None:
    """No file with a matching row is skipped, no file with another row must match, and both are decided as expected."""
    tally.update(dict.fromkeys(tally, 0))
    _check_batches(spark)
    print(f"\nskipping: {tally}")  # noqa: T201
    assert tally["skipped"] > tally["cases"] // 20
    assert tally["proven"] > tally["cases"] // 50
    assert tally["cases"] >= (100_000 if SOAK else 5_000)


def _check_batches(spark: SparkSession) -> None:
    @PROFILE
    @given(batch=batches(), two_valued=st.booleans())
    def check(batch: Batch, two_valued: bool) -> None:
        primitive, files, expressions = batch
        schema = schema_of(primitive)
        bounds = [bind_filter(expression, schema, two_valued=two_valued) for expression in expressions]
        might = [might_match(bound, stats_of, sql.col("record_count")) for bound in bounds]
        must = [must_match(bound, stats_of, sql.col("record_count"), TOP_LEVEL) for bound in bounds]
        results = evaluated(spark, files, primitive, might + must)
        data_files = [data_file(file, primitive) for file in files]
        for place, bound in enumerate(bounds):
            for file, metrics, is_kept, proven in zip(
                files, data_files, results[place], results[len(bounds) + place], strict=True
            ):
                check_case(bound, two_valued, file, is_kept, proven)
                assert is_kept is expected_might(bound, file, metrics), shown(bound, file)
                assert proven is expected_must(bound, file, metrics, schema), shown(bound, file)

    check()


def check_case(bound: BooleanExpression, two_valued: bool, file: File, is_kept: Any, proven: Any) -> None:
    matching = [matches(bound, row) for row in file.rows]
    assert is_kept is True or is_kept is False
    assert proven is True or proven is False
    assert is_kept or not any(matching), shown(bound, file)
    total_order = [matches(bound, row, nan_is_greatest=True) for row in file.rows]
    assert two_valued or matching == total_order, shown(bound, file)
    assert not proven or (all(matching) and all(total_order)), shown(bound, file)
    tally["cases"] += 1
    tally["skipped"] += not is_kept
    tally["proven"] += proven
    tally["skippable"] += not any(matching)


def shown(bound: BooleanExpression, file: File) -> str:
    stats = {LEAVES[field_id]: vars(chunk) for field_id, chunk in file.chunks.items()}
    return f"{expression_to_json(bound)}\nrecord_count {file.record_count}, {file.key.__name__}, {stats}"


def test_rows(spark: SparkSession) -> None:
    """row_predicate matches the filter's rows; if strict, only rows that match if NaN is not above all numbers."""
    examples = settings(PROFILE, max_examples=EXAMPLES // 4)

    @examples
    @given(batch=batches())
    def check(batch: Batch) -> None:
        primitive, files, expressions = batch
        rows = distinct_rows(files)
        bounds = [bind_filter(expression, schema_of(primitive)) for expression in expressions]
        columns = [row_predicate(bound, row_value, strict=strict) for bound in bounds for strict in (False, True)]
        results = evaluated(spark, rows, primitive, columns)
        for place, bound in enumerate(bounds):
            for file, possible, certain in zip(rows, *results[2 * place : 2 * place + 2], strict=True):
                check_row(bound, file.rows[0], possible, certain)

    check()


def row_value(field_id: int) -> Sql:
    return sql.col(f"content_stats.`{field_id}`.lower_bound")


def distinct_rows(files: list[File]) -> list[File]:
    """Files of one row each, whose lower bounds are its values."""
    rows = {repr(row): row for file in files for row in file.rows} or {"": dict.fromkeys([*LEAVES, STRUCT])}
    return [File(1, [row], {field_id: ColumnChunk([], row[field_id]) for field_id in LEAVES}) for row in rows.values()]


def check_row(bound: BooleanExpression, row: dict[int, Any], possible: Any, certain: Any) -> None:
    matching = matches(bound, row, nan_is_greatest=True)
    assert possible is matching, (bound, row)
    assert certain is matches(bound, row), (bound, row)


def test_generated_filters_are_varied() -> None:
    assert len(distinct(VALUES)) == 17
