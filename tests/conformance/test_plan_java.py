"""Every plan equals Iceberg Java's: files, their deletes in order, the meaning of residuals; at every snapshot.

Our filters have SQL's meaning of null, and so Java gets them with the null tests that they imply.

Known departures, each on purpose:
- `null < x` and `null <= x` are false for us; Java's evaluators put null first and keep such partitions.
- -0.0 and 0.0 are one value when pruning; Java orders them apart, and so skips files that hold an equal value, and
  keeps files of nothing but the other zero for `!=`, `<` and `>`.
- UUID ranges prove something only where signed and unsigned order agree.
- Infinity is a value of a float column; Java takes the literal for one beyond the type's range, and so skips files that
  hold infinity, and keeps files of nothing else for a value that is not infinity.
- A literal next to the least integer stays below all partition values when it is truncated; in Java it overflows to the
  greatest, and so files are skipped that hold matching rows.
- A column of a struct that is null has no value that ORC's metrics count. Such a row is null and not NaN, but Java
  skips files where no counted value is.
So we may plan fewer files for a partition that is null (`_orders_null`) and signed zeros (`_compares_zero`), and more
for these, infinity and UUIDs (`_has_odd_order`), where Java overflows (`_overflows`) and for `_seeks_uncounted`.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg import expressions as e
from pyiceberg.types import DoubleType, FloatType, UUIDType
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import sparkmeta as sm
from tests.peers import corpus as peers
from tests.peers.expressions import equivalent, is_beyond, with_null_tests
from tests.peers.filters import filters
from tests.peers.java import NOW, At
from tests.peers.slices import FILTERS, SOAK, slice_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.peers.corpus import PeerTable
    from tests.peers.filters import Filter

pytestmark = [pytest.mark.java, pytest.mark.core]

BATCH = 12
SLICE = 4  # filters a table, where not all run
SNAPSHOTS = 3
PLANNING = ("auto", "join", "colocated")


@pytest.fixture(autouse=True)
def _ways(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Each table's manifests are decoded on the driver in one of the two tests, and by tasks in the other; its deletes
    are joined in one of the ways, or in the one that a test asks for."""
    asked = request.node.callspec.params
    number = crc32(asked["name"].encode()) + ("filters" in request.node.name)
    values = {
        "spark.sparkmeta.driver-manifest-bytes": "0" if number % 2 else "64m",
        "spark.sparkmeta.planning": asked.get("planning") or PLANNING[number // 2 % len(PLANNING)],
    }
    for setting, value in values.items():
        spark.conf.set(setting, value)
    yield
    for setting in values:
        spark.conf.unset(setting)


@pytest.mark.parametrize("planning", PLANNING if SOAK else [None])
@pytest.mark.parametrize("name", slice_of(peers.names()))
def test_plan_without_filter_at_every_snapshot(
    name: str, planning: str | None, corpus: peers.Corpus, spark: SparkSession
) -> None:
    peer = corpus.table(name)
    table = sm.load_table(peer.metadata_location, spark=spark)
    places = [NOW, *(At(snapshot_id=snapshot_id) for snapshot_id in snapshots_of(peer, SNAPSHOTS))]
    scans = [table.scan(snapshot_id=place.snapshot_id) for place in places]
    for place, scan, ours in zip(places, scans, _rows([scan.plan_files() for scan in scans]), strict=True):
        compare(peer, ours, place)
        assert scan.count_files() == len(ours)


@pytest.mark.parametrize("name", slice_of(peers.names()))
def test_plan_with_filters(name: str, corpus: peers.Corpus, spark: SparkSession, soak: bool) -> None:
    peer = corpus.table(name)
    table = sm.load_table(peer.metadata_location, spark=spark)
    chosen = filters(peer, FILTERS if soak else SLICE)
    for start in range(0, len(chosen), BATCH):
        batch = chosen[start : start + BATCH]
        scans = [
            table.scan(row_filter=row_filter.expression, case_sensitive=row_filter.case_sensitive)
            for row_filter in batch
        ]
        for row_filter, ours in zip(batch, _rows([scan.plan_files() for scan in scans]), strict=True):
            compare(peer, ours, NOW, row_filter)


def snapshots_of(peer: PeerTable, limit: int) -> list[int]:
    """All of a table's snapshots, or so many, from the first to the last, where not all tests run."""
    ids = peer.java.snapshot_ids
    return ids if SOAK or len(ids) <= limit else [ids[place * (len(ids) - 1) // (limit - 1)] for place in range(limit)]


def compare(peer: PeerTable, ours: list[dict[str, Any]], place: At, row_filter: Filter | None = None) -> None:
    """Compares with Java's plan; only the files where Java fails to say more.

    Its residuals fail on NOT STARTS WITH and a null partition value, its JSON on partitions of a promoted column and on
    literals beyond its longs, for which there is nothing to compare then.
    """
    expression = with_null_tests(row_filter.expression) if row_filter else None
    cased = row_filter.case_sensitive if row_filter else True
    try:
        theirs = peer.java.plan(expression, place, case_sensitive=cased)
    except (Py4JJavaError, IllegalArgumentException) as error:
        if "Cannot convert JSON to literal" in str(error):
            assert _is_beyond_long(expression), expression
            return
        if not any(known in str(error) for known in ("String.startsWith", "Invalid default")):
            raise
        paths = peer.java.paths(expression, place, case_sensitive=cased)
        assert sorted(row["file_path"] for row in ours) == paths, f"{peer.name}: {row_filter}"
    else:
        assert_same_plan(peer, ours, theirs, peer.schema, row_filter)


def _is_beyond_long(expression: e.BooleanExpression | None) -> bool:
    numbers = [value for leaf in _leaves(expression) for value in _values(leaf) if isinstance(value, int)]
    return any(not -(2**63) <= number < 2**63 for number in numbers)


def _values(leaf: Any) -> list[Any]:
    return [literal.value for literal in getattr(leaf, "literals", None) or [getattr(leaf, "literal", None)] if literal]


def _rows(plans: list[DataFrame]) -> list[list[dict[str, Any]]]:
    """The rows of several plans. One job collects all plans of a type."""
    by_type: dict[str, list[DataFrame]] = {}
    for number, plan in enumerate(plans):
        by_type.setdefault(plan.schema.json(), []).append(plan.withColumn("plan_no", F.lit(number)))
    collected: list[list[dict[str, Any]]] = [[] for _ in plans]
    for numbered in by_type.values():
        for row in reduce(DataFrame.unionByName, numbered).collect():
            values = row.asDict(recursive=True)
            collected[values.pop("plan_no")].append(values)
    return collected


def assert_same_plan(
    peer: PeerTable,
    ours: list[dict[str, Any]],
    theirs: list[dict[str, Any]],
    schema: Any,
    row_filter: Filter | None = None,
) -> None:
    said = f"{peer.name}: {row_filter.name if row_filter else None}"
    mine, java = _by_entry(ours), _by_entry(theirs)
    more, fewer = mine.keys() - java.keys(), java.keys() - mine.keys()
    exceeds = _exceeds_range(row_filter, schema)
    may_be_more = _has_odd_order(row_filter, schema) or _overflows(row_filter, peer) or _seeks_uncounted(row_filter)
    may_be_more |= FloatType in exceeds
    assert not more or may_be_more, f"{said}: only ours {more}"
    may_be_fewer = _differs_from_infinity(row_filter) or _compares_zero(row_filter, schema) or exceeds
    may_be_fewer = may_be_fewer or any(isinstance(kind, UUIDType) for kind, _ in _compared(row_filter, schema))
    for key in fewer:
        assert may_be_fewer or _orders_null(row_filter, java[key]), f"{said}: only Java {key}"
    for key in mine.keys() & java.keys():
        row, expected = mine[key], java[key]
        for column in _COMPARED:
            if expected.get(column, {}) != {}:  # unpartitioned tables have no partition column
                assert _plain(row.get(column)) == _plain(expected[column]), f"{said}: {key} {column}"
        assert_same_deletes(row["deletes"], expected["deletes"], f"{said}: {key}")
        if not (_orders_null(row_filter, expected) or _has_odd_order(row_filter, schema) or exceeds):
            cased = row_filter.case_sensitive if row_filter else True
            assert equivalent(row["residual"], expected["residual"], schema, cased), (
                f"{said}: {key} residual {row['residual']} is not {expected['residual']}"
            )


def _leaves(expression: Any) -> list[Any]:
    if isinstance(expression, e.And | e.Or):
        return [*_leaves(expression.left), *_leaves(expression.right)]
    return _leaves(expression.child) if isinstance(expression, e.Not) else [expression]


def _has_odd_order(row_filter: Filter | None, schema: Any) -> bool:
    """Whether the filter compares a float or a UUID, which Java orders in its own way: it selects no NaN by `>`."""
    return any(isinstance(kind, UUIDType) or _is_floating(kind) for kind, _ in _compared(row_filter, schema))


def _exceeds_range(row_filter: Filter | None, schema: Any) -> set[type]:
    """The types of columns that the filter orders by a literal beyond their values.

    Java takes that for TRUE or FALSE: it plans files of nulls, and none for infinities.
    """
    ordered = _leaves(row_filter.expression) if row_filter else []
    kinds = [
        (schema.find_type(leaf.term.name, case_sensitive=row_filter.case_sensitive), leaf.literal.value)
        for leaf in ordered
        if row_filter and isinstance(leaf, _ORDERED)
    ]
    return {type(kind) for kind, value in kinds if is_beyond(value, kind)}


def _compares_zero(row_filter: Filter | None, schema: Any) -> bool:
    return any(_is_floating(kind) and 0 in values for kind, values in _compared(row_filter, schema))


def _is_floating(kind: Any) -> bool:
    return isinstance(kind, FloatType | DoubleType)


def _compared(row_filter: Filter | None, schema: Any) -> Iterator[tuple[Any, list[Any]]]:
    """What a filter compares with literals: the columns' types, and these."""
    for leaf in _leaves(row_filter.expression) if row_filter else ():
        if row_filter and (values := _values(leaf)):
            yield schema.find_type(leaf.term.name, case_sensitive=row_filter.case_sensitive), values


def _seeks_uncounted(row_filter: Filter | None) -> bool:
    leaves = _leaves(row_filter.expression) if row_filter else []
    return any(isinstance(leaf, e.NotNaN | e.IsNull) and "." in leaf.term.name for leaf in leaves)


def _differs_from_infinity(row_filter: Filter | None) -> bool:
    leaves = _leaves(row_filter.expression) if row_filter else []
    return any({math.inf, -math.inf} & {*_values(leaf)} for leaf in leaves)


def _overflows(row_filter: Filter | None, peer: PeerTable) -> bool:
    """Whether truncating a literal by the width of a partition field overflows, near the least int or long."""
    widths = [
        int(text.removeprefix("truncate[").removesuffix("]"))
        for spec in peer.metadata.get("partition-specs") or [{"fields": peer.metadata.get("partition-spec", [])}]
        for text in (field["transform"] for field in spec["fields"])
        if text.startswith("truncate[")
    ]
    literals = [getattr(leaf, "literal", None) for leaf in (_leaves(row_filter.expression) if row_filter else ())]
    values = [literal.value for literal in literals if literal is not None and isinstance(literal.value, int)]
    return any(0 <= value + (1 << bits) < max(widths, default=0) for value in values for bits in (31, 63))


def _orders_null(row_filter: Filter | None, planned: dict[str, Any]) -> bool:
    """Whether Java lets a null partition value satisfy the filter: `<` and `<=`, or what NOT makes of `>`."""
    ordered = row_filter and any(isinstance(leaf, _ORDERED) for leaf in _leaves(row_filter.expression))
    return bool(ordered) and None in (planned["partition"] or {}).values()


_ORDERED = (e.LessThan, e.LessThanOrEqual, e.GreaterThan, e.GreaterThanOrEqual)
_COMPARED = (
    "file_format",
    "spec_id",
    "partition",
    "record_count",
    "file_size_in_bytes",
    "split_offsets",
    "sort_order_id",
    "first_row_id",
    "data_sequence_number",
)
_DELETE_COMPARED = (
    "content",
    "file_path",
    "file_format",
    "file_size_in_bytes",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
    "record_count",
    "data_sequence_number",
    "equality_ids",
    "manifest_path",
    "manifest_pos",
)


def _by_entry(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, Any]]:
    keyed = {(row["file_path"], row["manifest_path"], row["manifest_pos"]): row for row in rows}
    assert len(keyed) == len(rows), "a file was planned twice"
    return keyed


def assert_same_deletes(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], said: str) -> None:
    """The same deletes in the same order; Java leaves the order of equal sequence numbers open."""

    def comparable(delete: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(_plain(delete.get(name)) for name in _DELETE_COMPARED)

    assert sorted(map(comparable, ours), key=repr) == sorted(map(comparable, theirs), key=repr), said
    order = [(delete["content"], delete["data_sequence_number"]) for delete in ours]
    assert order == [(delete["content"], delete["data_sequence_number"]) for delete in theirs], said


def _plain(value: Any) -> Any:
    """A value that compares by what it says: NaN equals NaN, -0.0 differs from 0.0, bytes from any holder."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
