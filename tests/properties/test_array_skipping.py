"""Tasks leave out no entries of manifests that `might_match` or a projection keeps, for random filters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from pyiceberg import types as t
from pyiceberg.expressions import In, Or

from sparkmeta.entries.manifest_records import as_numbers
from sparkmeta.expr.bounds import AllOf, AnyOf, BoundTest
from sparkmeta.expr.implied_tests import partition_tests, stats_tests
from sparkmeta.expr.predicate import bind_filter, parse_filter
from sparkmeta.expr.transforms import inclusive_projection
from tests.properties import test_projection as of_partitions
from tests.properties import test_skipping as of_stats
from tests.properties.cases import matches

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

ORDERED = (t.IntegerType, t.LongType, t.DateType, t.TimestampType, t.StringType, t.DecimalType, t.BinaryType)


def passes(tests: AllOf, columns: Any, rows: int) -> list[bool]:
    passed = tests.passes(columns)
    return [True] * rows if passed is None else passed.to_pylist()


def test_no_file_is_left_out_that_might_match() -> None:
    tally = {"kept": 0, "left out": 0, "skippable": 0}

    @of_stats.PROFILE
    @given(batch=of_stats.batches())
    def check(batch: of_stats.Batch) -> None:
        primitive, files, expressions = batch
        schema, stats = of_stats.schema_of(primitive), of_stats.stats_table(files, primitive).column("content_stats")
        structs = stats.combine_chunks()

        def columns(source: str, field_id: int, type_name: str) -> pa.Array:
            assert type_name == str(primitive)
            return as_numbers(structs.field(str(field_id)).field(source))

        for expression in expressions:
            bound = bind_filter(expression, schema)
            passed = passes(stats_tests(bound), columns, len(files))
            for file, is_kept in zip(files, passed, strict=True):
                expected = file.record_count < 0 or of_stats.expected_might(
                    bound, file, of_stats.data_file(file, primitive)
                )
                assert is_kept or not expected or file.record_count < 0, f"{bound} leaves out {file}"
                skippable = not expected and file.record_count > 0 and isinstance(primitive, ORDERED)
                tally["skippable"] += skippable
                tally["left out"] += skippable and not is_kept
                tally["kept"] += is_kept

    check()
    print(f"\narray skipping: {tally}")  # noqa: T201
    assert tally["left out"] > tally["skippable"] // 6


def test_no_partition_is_left_out_that_holds_a_row() -> None:
    tally = {"rows": 0, "left out": 0}

    @of_partitions.PROFILE
    @given(batch=of_partitions.batches())
    def check(batch: of_partitions.Batch) -> None:
        types = {field_id: str(kind) for field_id, kind in of_partitions.result_types(batch).items()}
        tuples = of_partitions.tuple_table(batch).column("partition").combine_chunks()

        def columns(source: str, field_id: int, type_name: str) -> pa.Array | None:
            assert source == "partition"
            return as_numbers(tuples.field(str(field_id))) if type_name == types[field_id] else None

        for expression in batch.expressions:
            bound = bind_filter(expression, batch.schema)
            tests = partition_tests(inclusive_projection(bound, batch.spec))
            for row, is_kept in zip(batch.rows, passes(tests, columns, len(batch.rows)), strict=True):
                assert is_kept or not matches(bound, row), f"{bound} leaves out {row}"
                tally["rows"] += 1
                tally["left out"] += not is_kept

    check()
    print(f"\npartitions left out: {tally}")  # noqa: T201
    assert tally["left out"] > tally["rows"] // 50


SCHEMA = of_stats.Schema(
    t.NestedField(1, "v", t.IntegerType()), t.NestedField(2, "w", t.DoubleType()), t.NestedField(3, "d", t.DateType())
)


def implied_by(row_filter: str | BooleanExpression) -> AllOf:
    return stats_tests(bind_filter(parse_filter(row_filter), SCHEMA))


@pytest.mark.parametrize("row_filter", ["w < 3", "v is null", "v != 3", "v = 1 or w = 2", "true"])
def test_what_has_no_order_is_no_test(row_filter: str) -> None:
    assert implied_by(row_filter) == AllOf()


def test_many_alternatives_reduce_to_their_hull() -> None:
    wide = implied_by(
        Or(*(parse_filter(f"v > {n} and v <= {n + 2} and d = '1970-01-0{1 + n % 9}'") for n in range(20)))
    )
    assert set(wide.tests) == {
        BoundTest("upper_bound", 1, "int", upward=True, inclusive=False, limit=0),
        BoundTest("lower_bound", 1, "int", upward=False, inclusive=True, limit=21),
        BoundTest("upper_bound", 3, "date", upward=True, inclusive=True, limit=0),
        BoundTest("lower_bound", 3, "date", upward=False, inclusive=True, limit=8),
    }
    uneven = implied_by(Or(*(parse_filter(f"v > {n}") for n in range(9)), parse_filter("v = 3 and d = '1970-01-01'")))
    assert uneven == AllOf((BoundTest("upper_bound", 1, "int", upward=True, inclusive=False, limit=0),))
    assert isinstance(implied_by("v = 1 or v = 7").tests[0], AnyOf)
    assert len(implied_by(In("v", set(range(200)))).tests) == 2
    assert implied_by(In("v", set(range(201)))) == AllOf()  # as Iceberg does


def test_of_equal_limits_the_inclusive_one_is_looser() -> None:
    texts = [f"v < {3 if n else 4} and v > 9" for n in range(9)] + ["v <= 4 and v >= 9"]
    wide = implied_by(Or(*map(parse_filter, texts)))
    assert {(test.upward, test.inclusive, test.limit) for test in wide.tests} == {(False, True, 4), (True, True, 9)}


def test_what_cannot_be_compared_passes() -> None:
    days = BoundTest("lower_bound", 1, "date", upward=False, inclusive=True, limit=3)
    values = pa.array([1, 5, None], pa.int32())
    assert days.passes(lambda *_: values).to_pylist() == [True, False, True]
    assert days.passes(lambda *_: None) is None
    assert replace(days, limit=2**40).passes(lambda *_: values) is None
    assert replace(days, limit="x").passes(lambda *_: values) is None
    either = AnyOf((AllOf((days,)), AllOf((replace(days, limit="x"),))))
    assert either.passes(lambda *_: values) is None
    upper = replace(days, source="upper_bound", upward=True, waived_by="lower_bound")
    sides = {"upper_bound": values, "lower_bound": pa.array([None, 1, 1], pa.int32())}
    assert upper.passes(lambda source, *_: sides[source]).to_pylist() == [True, True, True]
    assert replace(upper, limit=6).passes(lambda source, *_: sides[source]).to_pylist() == [True, False, True]
