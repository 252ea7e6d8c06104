"""What the command line does in Arrow is what Spark would do: conditions, and rows as JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from sparkmeta.cli.arrow_json import json_lines
from sparkmeta.cli.output import JSON_OPTIONS, with_text_ids
from sparkmeta.cli.row_filter import arrow_condition
from sparkmeta.errors import InvalidArgumentError
from sparkmeta.expr.evaluate import values
from tests.frames import local_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN, INF, MOMENT = float("nan"), float("inf"), datetime(1969, 12, 31, tzinfo=UTC)
STRUCT = pa.struct([("parent_id", pa.int64()), ("a.b", pa.string()), ("n", pa.struct([("x", pa.float32())]))])
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "small": (pa.int32(), [1, -5, None, 2**31 - 1]),
    "snapshot_id": (pa.int64(), [2**62 + 1, 7, None]),
    "big": (pa.int64(), [2**62 + 1, 7, None, 0]),
    "f": (pa.float32(), [0.1, NAN, -0.0, 1e10, None, 3.0, 1e-5]),
    "d": (pa.float64(), [0.1, NAN, INF, -INF, 1e7, 9999999.0, 1e-3, 9.9e-4, 1.25e-300, -0.0, None, 123456789.125]),
    "m": (pa.decimal128(9, 2), [Decimal("1.10"), Decimal("-0.05"), None, Decimal(0)]),
    "tiny": (pa.decimal128(20, 10), [Decimal("0.0000001"), Decimal(5), None]),
    "t": (pa.string(), ["a", 'q"\\/\n\x01\u2028é\x7f', "", None, "a_b", "A", "ab"]),
    "raw": (pa.binary(), [b"", b"\x00\xff\x10", None]),
    "day": (pa.date32(), [date(2026, 1, 2), date(1, 1, 1), None]),
    "local": (pa.timestamp("us"), [datetime(2026, 1, 2, 3, 4, 5, 6), None]),  # noqa: DTZ001  it has none
    "at": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 2, 3, 4, 5, 67, UTC), MOMENT, None]),
    "s": (STRUCT, [{"parent_id": 7, "a.b": "x", "n": {"x": 1.5}}, None, {"parent_id": None, "a.b": None, "n": None}]),
    "partition": (STRUCT, [{"parent_id": 7, "a.b": "y", "n": None}, None]),
    "numbers": (pa.list_(pa.int64()), [[1, 2, None], [], None]),
    "structs": (pa.list_(pa.struct([("snapshot_ids", pa.int64()), ("v", pa.string())])),
                [[{"snapshot_ids": 1, "v": "a"}, None], [], None]),
    "by_id": (pa.map_(pa.int32(), pa.binary()), [[(1, b"a"), (-2, None)], [], None]),
    "summary": (pa.map_(pa.string(), pa.string()), [[("k", "v"), ("ü", None)], [], None]),
}  # fmt: skip
ROWS = 13


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    columns = [pa.array([listed[row % len(listed)] for row in range(ROWS)], kind) for kind, listed in COLUMNS.values()]
    return pa.table([pa.array(range(ROWS)), *columns], ["row", *COLUMNS])


def test_rows_are_written_as_by_spark(rows: pa.Table, spark: SparkSession) -> None:
    frame = with_text_ids(local_frame(spark, rows)).select("row", F.to_json(F.struct("*"), JSON_OPTIONS).alias("json"))
    by_spark = [row.json for row in sorted(frame.collect(), key=lambda row: int(row.row))]
    ours = list(json_lines(rows))
    for line, expected in zip(ours, by_spark, strict=True):
        assert list(json.loads(line).items()) == list(json.loads(expected).items())
        assert line == expected
    assert [*json_lines(rows.slice(0, 0))] == []


CONDITIONS = (
    "small > 0", "small <> 1", "not (small = 1)", "small in (1, -5)", "small not in (1)", "small is null",
    "snapshot_id = 4611686018427387905", "big > 99999999999999999999", "small >= 1.5", "SMALL < 1",
    "f = 0.1", "d = 0.1",
    "d > 5", "d >= 0.1", "d = 0", "d <= -1", "not d < 5", "m = 1.1", "m < 0.001", "t = 'a'", "t > 'A'", "t like 'a%'",
    "t not like 'a%'", "t like 'a_b'", "t is not null and flag = true", "flag = false or small between -10 and 1",
    "day >= '2026-01-01'", "local < '2027-01-01T00:00:00'", "at > '2020-01-01'", "at > '2020-01-01T00:00:00+00:00'",
    "s.parent_id = 7", "s.n.x > 1", "s is null", "partition.`a.b` = 'y'", "t = \"a\"", "t = 'a\\n'",
    "size(numbers) = 3", "small % 2 = 1", "t <=> null", "raw = 'a'", "numbers is null", "summary.k = 'v'", "true",
    "false",
)  # fmt: skip
ONLY_SPARK = {
    "f = 0.1", "s.n.x > 1", "t like 'a_b'", "at > '2020-01-01'", "partition.`a.b` = 'y'", "t = \"a\"", "t = 'a\\n'",
    "size(numbers) = 3", "small % 2 = 1", "t <=> null", "raw = 'a'", "numbers is null", "summary.k = 'v'",
}  # fmt: skip


def test_conditions_are_evaluated_as_by_spark(rows: pa.Table, spark: SparkSession) -> None:
    matching = [f"sort_array(collect_list(CASE WHEN {condition} THEN row END)) AS c" for condition in CONDITIONS]
    [by_spark] = local_frame(spark, rows).selectExpr(*matching).collect()
    for condition, expected in zip(CONDITIONS, by_spark, strict=True):
        test = arrow_condition(condition, rows.schema)
        assert (test is None) == (condition in ONLY_SPARK), condition
        if test is not None:
            flags = values(rows, test).cast(pa.bool_())
            assert rows.filter(flags).column("row").to_pylist() == expected, condition


def test_an_unknown_column_needs_no_spark(rows: pa.Table) -> None:
    for condition in ("nothing = 1", "flag = true and sx = 1", "flags.x = 1"):
        with pytest.raises(
            InvalidArgumentError, match=r"in the rows(, which has 'row', 'flag', 'small'|: did you mean)"
        ):
            arrow_condition(condition, rows.schema)
