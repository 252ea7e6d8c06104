from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.write import leaf_row
from tests.manifests.entry_rows import DATA, DM, EQ, PD, XM, Row, bounds, file_row, version

ROUNDS = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
NAN = math.nan


def aggregate(kind: str, *files: Row | None, source: bool = False) -> Row | None:
    """Return the aggregate of one column's stats over files; None stands for a file without stats."""
    schema = tree_schema({1: kind})
    rows = [file_row(content_stats=None if stats is None else {"1": stats}) for stats in files]
    unordered = {1} if kind == "uuid" else set()
    row = leaf_row(pa.Table.from_pylist(rows, schema=schema), "/t/leaf", 9, {1} if source else set(), unordered)
    assert row.schema == schema
    stats: Row | None = row.to_pylist()[0]["content_stats"]["1"]
    return stats


def span(kind: str, *files: Row | None, source: bool = False) -> tuple[Any, Any] | None:
    stats = aggregate(kind, *files, source=source)
    return None if stats is None else (stats["lower_bound"], stats["upper_bound"])


# -- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("boolean", False, True),
        ("int", -3, 9),
        ("long", -(2**63), 2**63 - 1),
        ("float", -1.5, math.inf),
        ("double", -math.inf, 0.25),
        ("date", date(1969, 1, 1), date(2024, 2, 29)),
        ("time", 0, 86_399_999_999),
        ("timestamp_ns", -1, 1),
        ("string", "Z", "\U0001f600"),
        ("binary", b"\x00", b"\xff"),
        ("fixed[2]", b"\x00\x01", b"\xff\x00"),
        ("decimal(5, 2)", Decimal("-999.99"), Decimal("0.01")),
        ("decimal(38, 10)", Decimal("-1e-10"), Decimal("9999999999999999999999999999.9999999999")),
    ],
)
def test_the_least_and_the_greatest(kind: str, low: Any, high: Any) -> None:
    assert span(kind, bounds(low, low), bounds(high, high), bounds(low, high)) == (low, high)
    assert span(kind, bounds(high, high), bounds(high, high)) == (high, high)


def test_strings_are_ordered_by_code_point() -> None:
    """Strings compare as UTF-8 bytes, not as UTF-16 units, where U+1F600 is below U+FFFF."""
    assert span("string", bounds("\uffff", "\uffff"), bounds("\U0001f600", "\U0001f600")) == ("\uffff", "\U0001f600")


def test_a_missing_bound_makes_the_aggregate_unknown() -> None:
    """The values of a file without the bound may be anything (semantics 17.6)."""
    assert span("int", bounds(1, 2), bounds(None, 5)) == (None, 5)
    assert span("int", bounds(1, 2), bounds(3, None)) == (1, None)
    assert span("int", bounds(1, 2), None) == (None, None)
    assert span("int", bounds(1, 2), bounds(None, None, 10, 9)) == (None, None)


def test_files_without_values_do_not_count() -> None:
    assert span("int", bounds(1, 2), bounds(None, None, 10, 10)) == (1, 2)
    assert span("double", bounds(1.0, 2.0), bounds(None, None, 10, 0, nan_value_count=10)) == (1.0, 2.0)
    assert span("double", bounds(1.0, 2.0), bounds(None, None, 10, 4, nan_value_count=6)) == (1.0, 2.0)
    assert span("double", bounds(1.0, 2.0), bounds(None, None, 10, 4, nan_value_count=5)) == (None, None)
    assert span("int", bounds(None, None, 10, 10), bounds(None, None, 3, 3)) == (None, None)


def test_unknown_counts_prove_nothing() -> None:
    assert span("int", bounds(1, 2), bounds(None, None, None, 10)) == (None, None)
    assert span("int", bounds(1, 2), bounds(None, None, 10, None)) == (None, None)


def test_nan_as_a_bound_is_no_bound() -> None:
    """Old writers wrote NaN as a bound; it tells nothing about the other values."""
    assert span("double", bounds(NAN, 2.0), bounds(1.0, 3.0)) == (None, 3.0)
    assert span("float", bounds(1.0, NAN), bounds(1.0, 3.0)) == (1.0, None)


def test_signed_zeros() -> None:
    """-0.0 is below 0.0: the aggregate covers both in either order."""
    for pair in ((0.0, -0.0), (-0.0, 0.0), (0.0, 0.0), (-0.0, -0.0)):
        span_bounds = span("double", *(bounds(zero, zero) for zero in pair))
        assert span_bounds is not None
        assert [math.copysign(1, bound) for bound in span_bounds] == [-1, 1]


def test_uuids_have_no_one_order() -> None:
    """Writers compare UUIDs as signed or as unsigned numbers, so bounds of different UUIDs aggregate to none."""
    low, high = bytes(16), b"\xff" * 16
    assert span("uuid", bounds(low, low), bounds(low, low)) == (low, low)
    assert span("uuid", bounds(low, low), bounds(high, high)) == (None, None)
    assert span("uuid", bounds(low, high), bounds(low, high)) == (None, None)
    assert span("uuid", bounds(low, low), bounds(None, None, 10, 10)) == (low, low)


# -- partition values -----------------------------------------------------------------------------------------------


def test_a_value_in_the_lower_bound_only() -> None:
    """The null upper bound of a partition value equals the lower one (semantics 17.2)."""
    assert span("int", bounds(3, None), bounds(7, None), source=True) == (3, 7)
    assert span("int", bounds(3, None), bounds(5, 6), source=True) == (3, 6)
    assert span("int", bounds(3, None), bounds(7, None)) == (3, None)


def test_the_partition_value_null() -> None:
    """Two null bounds mean the value null, which does not change aggregated bounds (semantics 17.3)."""
    assert span("int", bounds(3, None), bounds(None, None, None, None), source=True) == (3, 3)
    assert span("int", bounds(None, None), source=True) == (None, None)


def test_the_partition_value_nan() -> None:
    """NaN is not a bound; it is counted (semantics 17.3)."""
    nan = bounds(None, None, 10, 0, nan_value_count=10)
    stats = aggregate("double", bounds(3.0, 3.0, nan_value_count=0), nan, source=True)
    assert stats is not None
    assert (stats["lower_bound"], stats["upper_bound"], stats["nan_value_count"]) == (3.0, 3.0, 10)


def test_a_missing_partition_value_is_no_null() -> None:
    assert span("int", bounds(3, 3), None, source=True) == (None, None)


def test_partition_values_keep_their_length() -> None:
    long = "x" * 500
    assert span("string", bounds(long, None), bounds("a", None), source=True) == ("a", long)


# -- counts, flags, missing stats -----------------------------------------------------------------------------------


def test_counts_add_up() -> None:
    stats = aggregate("double", bounds(1.0, 1.0, 10, 2, nan_value_count=1), bounds(1.0, 1.0, 5, 0, nan_value_count=3))
    assert stats is not None
    assert [stats[count] for count in ("value_count", "null_value_count", "nan_value_count")] == [15, 2, 4]


@pytest.mark.parametrize("name", ["value_count", "null_value_count", "nan_value_count"])
def test_an_unknown_count_makes_the_sum_unknown(name: str) -> None:
    known = bounds(1.0, 1.0, 10, 2, nan_value_count=1)
    stats = aggregate("double", known, known | {name: None})
    assert stats is not None
    assert [count for count in ("value_count", "null_value_count", "nan_value_count") if stats[count] is None] == [name]
    whole = aggregate("double", known, None)
    assert whole is not None
    assert whole["value_count"] is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [((True, True), True), ((True, False), None), ((True, None), None), ((None, None), None), ((False, False), None)],
)
def test_tight_only_where_all_are(flags: tuple[bool | None, ...], expected: bool | None) -> None:
    stats = aggregate("int", *(bounds(1, 2, tight_bounds=tight) for tight in flags))
    assert stats is not None
    assert stats["tight_bounds"] is expected


def test_no_stats_at_all() -> None:
    assert aggregate("int", None, None) is None
    table = pa.Table.from_pylist([file_row()], schema=tree_schema({}))
    assert leaf_row(table, "/t/leaf", 9, ()).to_pylist()[0]["content_stats"] == {}


def test_sizes_are_not_averaged() -> None:
    stats = aggregate("string", bounds("a", "b", avg_value_size_in_bytes=7))
    assert stats is not None
    assert stats["avg_value_size_in_bytes"] is None


# -- the row --------------------------------------------------------------------------------------------------------


def row_of(*rows: Row) -> Row:
    table = pa.Table.from_pylist(list(rows), schema=tree_schema({1: "int"}))
    row: Row = leaf_row(table, "/t/leaf", 99, ()).to_pylist()[0]
    return row


def test_the_row_of_a_leaf() -> None:
    row = row_of(
        file_row(version_info=version(1, None, None), record_count=3),
        file_row(version_info=version(0, 1, 5), record_count=5, content_stats={"1": bounds(1, 2)}),
        file_row(version_info=version(2, 1, 2), record_count=7, content_stats={"1": bounds(-9, 99)}),
        file_row(version_info=version(0, 1, 4), record_count=11),
    )
    assert row["manifest_stats"] == {
        "added_files_count": 1, "existing_files_count": 2, "deleted_files_count": 1,
        "added_rows_count": 3, "existing_rows_count": 16, "deleted_rows_count": 7,
        "min_sequence_number": 4,
    }  # fmt: skip
    assert (row["content_type"], row["location"], row["file_size_in_bytes"]) == (DM, "/t/leaf", 99)
    assert (row["record_count"], row["partition_spec_id"], row["file_format"]) == (4, 0, "parquet")
    left = ("version_info", "first_row_id", "referenced_file", "deletion_vector", "equality_ids", "sort_order_id")
    assert [row[column] for column in left] == [None] * 6


def test_stats_are_of_live_entries() -> None:
    live = file_row(version_info=version(0, 1, 5), content_stats={"1": bounds(1, 2)})
    dead = file_row(version_info=version(2, 1, 2), content_stats={"1": bounds(-9, 99)})
    row = row_of(live, dead)
    assert row["content_stats"]["1"]["upper_bound"] == 2
    assert row["manifest_stats"]["min_sequence_number"] == 5


@pytest.mark.parametrize(("kind", "leaf"), [(DATA, DM), (PD, XM), (EQ, XM)])
def test_the_content_type_of_a_leaf(kind: int, leaf: int) -> None:
    assert row_of(file_row(kind))["content_type"] == leaf


# -- property -------------------------------------------------------------------------------------------------------

VALUES = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0])


@st.composite
def files(draw: st.DrawFn) -> tuple[Row | None, list[float | None]]:
    """Draw the values of a file and its stats, and withhold some stats."""
    values = draw(st.lists(st.none() | st.just(NAN) | VALUES, max_size=4))
    numbers = sorted(
        (value for value in values if value is not None and not math.isnan(value)),
        key=lambda value: (value, math.copysign(1, value)),
    )
    nans = sum(value is not None and math.isnan(value) for value in values)
    known = {
        "lower_bound": numbers[0] if numbers else None,
        "upper_bound": numbers[-1] if numbers else None,
        "value_count": len(values),
        "null_value_count": values.count(None),
        "nan_value_count": nans,
    }
    withheld = draw(st.sets(st.sampled_from(sorted(known)), max_size=2)) if draw(st.booleans()) else set()
    stats = {name: None if name in withheld else value for name, value in known.items()}
    return (None if draw(st.integers(0, 9)) == 0 else stats), values


@ROUNDS
@given(st.lists(files(), min_size=1, max_size=5))
def test_the_aggregate_holds_for_every_value_of_every_file(
    samples: list[tuple[Row | None, list[float | None]]],
) -> None:
    stats = aggregate("double", *(stats_of_file for stats_of_file, _ in samples))
    if stats is None:
        assert all(stats_of_file is None for stats_of_file, _ in samples)
        return
    values = [value for _, some in samples for value in some]
    numbers = [(value, math.copysign(1, value)) for value in values if value is not None and not math.isnan(value)]
    low, high = stats["lower_bound"], stats["upper_bound"]
    assert low is None or all((low, math.copysign(1, low)) <= number for number in numbers)
    assert high is None or all(number <= (high, math.copysign(1, high)) for number in numbers)
    assert stats["value_count"] in (None, len(values))
    assert stats["null_value_count"] in (None, values.count(None))
    if all(stats_of_file is not None and None not in stats_of_file.values() for stats_of_file, _ in samples):
        assert low == min(numbers)[0]
        assert high == max(numbers)[0]
