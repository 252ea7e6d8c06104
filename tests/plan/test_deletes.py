"""Which deletes apply, on tables made for one rule each; metadata that contradicts itself is an error, not a guess."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import ValidationError
from sparkmeta.expr import sql
from sparkmeta.plan.deletes import groups
from tests.conftest import configured
from tests.costs import limit
from tests.handmade import (
    BY_PART,
    BY_RATIO,
    COLUMNS,
    SNAPSHOT_ID,
    HandmadeTable,
    data,
    deletion_vector,
    equality_deletes,
    long_bounds,
    position_deletes,
)
from tests.plans import physical_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

A, B, C = "file:///t/a.parquet", "file:///t/b.parquet", "file:///t/c.parquet"


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    return HandmadeTable(tmp_path)


def deletes(table: HandmadeTable, spark: SparkSession, row_filter: str | None = None) -> dict[str, list[str]]:
    """Data file -> the paths of its deletes, in order."""
    scan = sm.load_table(table.write(), spark=spark).scan()
    planned = (scan.filter(row_filter) if row_filter else scan).plan_files()
    return {row.file_path: [delete.file_path for delete in row.deletes] for row in planned.collect()}


def test_the_order_of_deletes_and_the_sequence_numbers_they_need(table: HandmadeTable, spark: SparkSession) -> None:
    part = {"partition": {"part": "x"}}
    table.add(0, 1, data(A, 3, **part), data(B, 1, **part), data(C, 4, partition={"part": "y"}))
    table.add(1, 1, equality_deletes("x:eq3", 3, **part), equality_deletes("x:eq4", 4, **part))
    table.add(1, 1, position_deletes("x:pos3", 3, **part), position_deletes("x:pos2", 2, **part))
    table.add(1, 1, position_deletes("x:of b", 2, referenced_data_file=B, **part))
    table.add(1, 0, equality_deletes("x:everywhere5", 5), equality_deletes("x:everywhere3", 3))
    assert deletes(table, spark) == {
        A: ["x:everywhere5", "x:eq4", "x:pos3"],
        B: ["x:everywhere3", "x:everywhere5", "x:eq3", "x:eq4", "x:pos2", "x:pos3", "x:of b"],
        C: ["x:everywhere5"],
    }


@pytest.mark.parametrize("collide", [False, True])
def test_position_deletes_of_a_partition_are_shared_by_the_files_that_they_apply_to(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, collide: bool
) -> None:
    """The partition has no other deletes. With `collide`, every key has the same hash."""
    if collide:
        monkeypatch.setattr(groups, "_hash", lambda _: sql.lit(1).cast("bigint"))
    x, y, none = ({"partition": {"part": part}} for part in ("x", "y", None))
    old, new = f"{A}.old", f"{A}.new"
    table.add(0, 1, data(old, 1, **x), data(A, 3, **x), data(new, 5, **x), data(B, 1, **y), data(C, 1, **none))
    table.add(1, 1, *(position_deletes(f"x:pos{number}", number, **x) for number in (3, 2, 4)))
    expected = {old: ["x:pos2", "x:pos3", "x:pos4"], A: ["x:pos3", "x:pos4"], new: [], B: [], C: []}
    assert deletes(table, spark) == expected
    table.add(1, 1, position_deletes("x:of null", 2, **none), deletion_vector(A, 4, **x))
    table.add(1, 1, position_deletes("x:of old", 3, referenced_data_file=old, **x))
    changed = {old: [*expected[old], "x:of old"], A: ["file:///t/dvs.puffin"], C: ["x:of null"]}
    assert deletes(table, spark) == expected | changed


def test_a_dv_stands_for_all_position_deletes_of_its_file_but_not_for_equality_deletes(
    table: HandmadeTable, spark: SparkSession
) -> None:
    table.add(0, 0, data(A), data(B))
    table.add(1, 0, deletion_vector(A), position_deletes("x:pos"), position_deletes("x:of a", referenced_data_file=A))
    table.add(1, 0, equality_deletes("x:eq"))
    assert deletes(table, spark) == {A: ["x:eq", "file:///t/dvs.puffin"], B: ["x:eq", "x:pos"]}


def test_equal_path_bounds_scope_a_position_delete_file_to_one_file(table: HandmadeTable, spark: SparkSession) -> None:
    def bounds(lower: str, upper: str) -> dict[str, Any]:
        path_id = 2147483546
        return {
            "lower_bounds": [{"key": path_id, "value": lower.encode()}],
            "upper_bounds": [{"key": path_id, "value": upper.encode()}],
        }

    table.add(0, 0, data(A), data(B))
    table.add(1, 0, position_deletes("x:of a", **bounds(A, A)), position_deletes("x:of many", **bounds(A, B)))
    assert deletes(table, spark) == {A: ["x:of many", "x:of a"], B: ["x:of many"]}


def test_partitions_match_by_spec_and_value_null_included(table: HandmadeTable, spark: SparkSession) -> None:
    table.add(0, 1, data(A, partition={"part": None}), data(B, partition={"part": "x"}))
    table.add(0, 0, data(C))
    table.add(1, 1, position_deletes("x:null", partition={"part": None}))
    table.add(1, 0, position_deletes("x:unpartitioned"))
    assert deletes(table, spark) == {A: ["x:null"], B: [], C: ["x:unpartitioned"]}


def test_signed_zeros_are_different_partitions_and_nan_is_one(table: HandmadeTable, spark: SparkSession) -> None:
    table.add(
        0, 2, *(data(path, partition={"ratio": value}) for path, value in ((A, 0.0), (B, -0.0), (C, float("nan"))))
    )
    table.add(1, 2, equality_deletes("x:minus", partition={"ratio": -0.0}))
    table.add(1, 2, equality_deletes("x:nan", partition={"ratio": float("nan")}))
    assert deletes(table, spark) == {A: [], B: ["x:minus"], C: ["x:nan"]}


@pytest.mark.parametrize(
    ("of_data", "of_delete", "applies"),
    [
        (long_bounds(1, 5), long_bounds(5, 9), True),
        (long_bounds(1, 5), long_bounds(6, 9), False),
        (long_bounds(1, 5, nulls=1), long_bounds(6, 9, nulls=1), True),
        (long_bounds(1, 5, nulls=None), long_bounds(6, 9, nulls=1), True),
        (long_bounds(1, 5, nulls=10), long_bounds(1, 5, nulls=0), False),
        (long_bounds(1, 5, nulls=0), long_bounds(1, 5, nulls=10), False),
        (long_bounds(1, 5, nulls=-1), long_bounds(6, 9, nulls=1), True),
        ({}, long_bounds(6, 9), True),
        (long_bounds(1, 5), {}, True),
    ],
)
def test_equality_deletes_whose_stats_prove_no_common_value_are_dropped(
    table: HandmadeTable, spark: SparkSession, of_data: dict[str, Any], of_delete: dict[str, Any], applies: bool
) -> None:
    table.add(0, 0, data(A, 1, **of_data)).add(1, 0, equality_deletes("x:eq", 2, **of_delete))
    assert deletes(table, spark) == {A: ["x:eq"] if applies else []}


def test_a_filter_drops_equality_deletes_that_only_delete_other_rows(table: HandmadeTable, spark: SparkSession) -> None:
    table.add(0, 0, data(A, **long_bounds(1, 50)))
    table.add(1, 0, equality_deletes("x:low", **long_bounds(1, 10)), equality_deletes("x:high", **long_bounds(20, 50)))
    assert deletes(table, spark, "id > 15") == {A: ["x:high"]}


@pytest.mark.parametrize("others", [[], [position_deletes("x:pos")]], ids=["alone", "among others"])
def test_two_dvs_of_one_file_are_an_error_even_if_not_read(
    table: HandmadeTable, spark: SparkSession, others: list[dict[str, Any]]
) -> None:
    table.add(0, 0, data(A)).add(1, 0, deletion_vector(A), deletion_vector(A), *others)
    scan = sm.load_table(table.write(), spark=spark).scan()
    with pytest.raises(Exception, match=f"two deletion vectors for {A}"):
        scan.plan_files().count()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (deletion_vector(A, 1), "a deletion vector is older than its data file"),
        (position_deletes("x:foreign", 3, referenced_data_file=A, partition={"part": "y"}), "another partition"),
        (deletion_vector(A, 3, partition={"part": "y"}), "another partition"),
    ],
)
def test_deletes_that_contradict_their_data_file(
    table: HandmadeTable, spark: SparkSession, entry: dict[str, Any], message: str
) -> None:
    entry["data_file"]["partition"] = entry["data_file"]["partition"] or {"part": "x"}
    table.add(0, 1, data(A, 2, partition={"part": "x"})).add(1, 1, entry)
    scan = sm.load_table(table.write(), spark=spark).scan()
    with pytest.raises(Exception, match=f"{message}.*{A}"):
        scan.plan_files().count()


def test_equality_ids_that_no_schema_ever_had(table: HandmadeTable, spark: SparkSession) -> None:
    table.add(0, 0, data(A)).add(1, 0, equality_deletes("x:eq", ids=(1, 77)))
    scan = sm.load_table(table.write(), spark=spark).scan()
    with pytest.raises(sm.ValidationError, match=r"equality_ids has 77"):
        scan.plan_files()


@pytest.mark.parametrize("on_driver", [True, False])
def test_equality_deletes_that_compare_no_column_are_refused(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, on_driver: bool
) -> None:
    if not on_driver:
        limit(monkeypatch, driver_deletes=-1)
    table.add(0, 0, data(A)).add(1, 0, equality_deletes("x:of nothing", 3, ()))
    scan = sm.load_table(table.write(), spark=spark).scan()
    with pytest.raises(Exception, match="no columns are known that an equality delete file compares: x:of nothing"):
        scan.plan_files().count()


def test_an_unknown_sequence_number_is_not_invented(table: HandmadeTable, spark: SparkSession) -> None:
    table.add(0, 0, data(A, None, status=0)).add(1, 0, deletion_vector(A, 3))
    scan = sm.load_table(table.write(), spark=spark).scan()
    with pytest.raises(Exception, match=f"no sequence number is known for data file {A}"):
        scan.plan_files().count()


@pytest.mark.classic  # a plan that has run, by which adaptive execution has changed it
def test_both_joins_read_the_delete_manifests_once(
    table: HandmadeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, driver_pairs=-1)
    table.add(0, 0, data(A)).add(1, 0, deletion_vector(A), position_deletes("x:pos"))
    planned = sm.load_table(table.write(), spark=spark).scan().plan_files()
    planned.collect()
    plan = physical_plan(planned)
    final = plan.split("Initial Plan")[0]
    assert "ReusedExchange" in final


def test_partitions_of_an_unknown_transform_are_told_apart(table: HandmadeTable, spark: SparkSession) -> None:
    table.specs = ((), ({**BY_PART[0], "transform": "mystery[7]"},), BY_RATIO)
    x, y, null = ({"partition": {"part": part}} for part in ("x", "y", None))
    table.add(0, 1, data(A, **x), data(B, **y), data(C, **null))
    table.add(1, 1, equality_deletes("x:of x", **x), equality_deletes("x:of null", **null))
    assert deletes(table, spark) == {A: ["x:of x"], B: [], C: ["x:of null"]}
    assert deletes(table, spark, "part = 'x'") == {A: ["x:of x"], B: [], C: ["x:of null"]}


@pytest.fixture
def _many(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deletes that are too many to be broadcast, and joined all the same."""
    limit(monkeypatch, broadcast_deletes=0)
    spark.conf.set("spark.sparkmeta.planning", "join")
    yield
    spark.conf.unset("spark.sparkmeta.planning")


@pytest.mark.usefixtures("_many")
def test_many_vectors_are_joined_ungrouped(table: HandmadeTable, spark: SparkSession) -> None:
    """Vectors of files that are gone are ignored."""
    table.add(0, 0, data(A), data(B)).add(1, 0, deletion_vector(A), deletion_vector(C))
    planned = sm.load_table(table.write(), spark=spark).scan().plan_files()
    vectors = {
        row.file_path: [(delete.file_path, delete.referenced_data_file) for delete in row.deletes]
        for row in planned.collect()
    }
    assert vectors == {A: [("file:///t/dvs.puffin", A)], B: []}
    assert "collect_list" not in physical_plan(planned)


@pytest.mark.usefixtures("_many")
def test_many_deletes_of_all_kinds(table: HandmadeTable, spark: SparkSession) -> None:
    table.add(0, 0, data(A), data(B))
    table.add(1, 0, deletion_vector(A), position_deletes("x:pos"))
    assert deletes(table, spark) == {A: ["file:///t/dvs.puffin"], B: ["x:pos"]}


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([deletion_vector(A), deletion_vector(A)], f"two deletion vectors for {A}"),
        ([deletion_vector(A, 1)], "a deletion vector is older than its data file"),
    ],
)
@pytest.mark.usefixtures("_many")
def test_many_vectors_that_contradict_each_other(
    table: HandmadeTable, spark: SparkSession, vectors: list[dict[str, Any]], message: str
) -> None:
    table.add(0, 0, data(A, 2)).add(1, 0, *vectors)
    with pytest.raises(Exception, match=message):
        deletes(table, spark)


def test_a_snapshot_older_than_a_replaced_column_is_read_by_its_own_types(
    table: HandmadeTable, spark: SparkSession
) -> None:
    """A replaced table may give a column's id to one of another type."""
    table.add(0, 1, data(A, partition={"part": "x"}, **long_bounds(1, 5)), data(B, partition={"part": "y"}))
    table.write()
    metadata = table.metadata()
    new = [{**column, "type": "long" if column["name"] == "part" else "string"} for column in COLUMNS]
    metadata["schemas"].append({"type": "struct", "schema-id": 1, "fields": new})
    metadata["current-schema-id"] = 1
    path = table.folder / "metadata" / "v2.metadata.json"
    path.write_text(json.dumps(metadata))
    scan = sm.load_table(str(path), spark=spark).scan(snapshot_id=SNAPSHOT_ID)
    parts = {row.file_path: row.partition.part for row in scan.plan_files().collect()}
    assert parts == {A: "x", B: "y"}
    assert [row.file_path for row in scan.filter("part = 'x' and id = 3").plan_files().collect()] == [A]
    assert scan.filter("part = 'x' and id = 7").plan_files().collect() == []


def test_a_snapshot_whose_schema_was_removed(table: HandmadeTable, spark: SparkSession) -> None:
    """Reads that need the schema do not fall back to another one. A branch is read by the table's schema."""
    table.add(0, 1, data(A, partition={"part": "x"}, **long_bounds(1, 5)), data(B, partition={"part": "y"}))
    table.write()
    metadata = table.metadata()
    metadata["snapshots"][0]["schema-id"] = 7
    path = table.folder / "metadata" / "v2.metadata.json"
    path.write_text(json.dumps(metadata))
    loaded = sm.load_table(str(path), spark=spark)
    scan, message = (
        loaded.scan("part = 'x'", snapshot_id=SNAPSHOT_ID),
        rf"snapshot {SNAPSHOT_ID} has schema-id 7: no such",
    )
    for use in (scan.schema, scan.plan_files, scan.to_df, scan.count):
        with pytest.raises(ValidationError, match=message):
            use()
    for by_table in (loaded.scan("part = 'x'"), loaded.scan("part = 'x'").use_ref("main"), scan.with_table_schema()):
        assert [row.file_path for row in by_table.plan_files().collect()] == [A]
    assert loaded.inspect.files(snapshot_id=SNAPSHOT_ID).count() == 2


def test_a_field_that_a_later_spec_made_void_keeps_its_type(table: HandmadeTable, spark: SparkSession) -> None:
    by_bucket, void = ({**BY_PART[0], "transform": transform} for transform in ("bucket[4]", "void"))
    table.specs = ((), (by_bucket,), (void,))
    state = sm.load_table(table.write(), spark=spark).state
    assert {field_id: str(kind) for field_id, kind in state.types.partition_types.items()} == {1000: "int"}
    assert state.types.spec_fields == {0: [], 1: [(1000, "int")], 2: [(1000, "int")]}
    assert state.types.partition_fields == {1000: "int"}


def test_filters_on_many_compared_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would infer a constraint for each subset of their stats, and end only after hours, or without memory."""
    ids = range(1, 7)
    columns = tuple({"id": each, "name": f"c{each}", "required": False, "type": "long"} for each in ids)
    table = HandmadeTable(tmp_path, schemas=(columns,))

    def bounds(lower: int, upper: int) -> dict[str, Any]:
        of_columns = [long_bounds(lower, upper, field_id=each) for each in ids]
        return {name: [pair for stats in of_columns for pair in stats[name]] for name in of_columns[0]}

    table.add(0, 0, data(A, **bounds(0, 9)), data(B, **bounds(100, 109)))
    table.add(1, 0, equality_deletes("x:eq", ids=(*ids,), **bounds(5, 6)))
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        for values, planned in (((5, 105), {A: ["x:eq"], B: []}), ((50, 105), {B: []})):
            places = (" and ".join(f"c{each} = {value}" for each in ids) for value in values)
            assert deletes(table, spark, " or ".join(f"({place})" for place in places)) == planned
