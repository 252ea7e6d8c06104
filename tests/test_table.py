"""The names that a table shares with pyiceberg's."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import sparkmeta as sm
from sparkmeta.errors import InvalidArgumentError, InvalidChangeError, NotFoundError, SettingError, ValidationError
from tests.conftest import configured
from tests.small_table import write_small_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))


@pytest.fixture
def catalog(tmp_path: Path) -> sm.Catalog:
    return sm.load_catalog("test", type="hadoop", warehouse=f"file://{tmp_path}")


@pytest.fixture
def table(spark: SparkSession, catalog: sm.Catalog) -> sm.Table:
    return catalog.create_table("db.t", SCHEMA, format_version=4, spark=spark)


def with_files(table: sm.Table, spark: SparkSession, *paths: str, branch: str = "main") -> sm.Table:
    rows = [(path, "parquet", 1, 100) for path in paths]
    files = spark.createDataFrame(
        rows, "file_path string, file_format string, record_count bigint, file_size_in_bytes bigint"
    )
    with table.transaction() as tx:
        tx.update_snapshot(branch).append(files)
    return table.refresh()


def test_the_name_of_a_table(spark: SparkSession, catalog: sm.Catalog, table: sm.Table) -> None:
    assert table.name() == catalog.load_table(("db", "t"), spark).name() == ("db", "t")
    assert sm.load_table(table.location(), spark).name() == (table.location(),)
    assert sm.load_table(table.metadata_location, spark).name() == (table.location(),)


def test_planned_tables_are_compared(tmp_path: Path) -> None:
    """Metadata remembers what plans derive from it, which is no part of it."""
    location = write_small_table(tmp_path).metadata.location
    first, second = (sm.load_table(spelled) for spelled in (location, location.removeprefix("file://")))
    assert first.scan().arrow.plan_files() == second.scan().arrow.plan_files()
    assert first.metadata == second.metadata


def test_history(spark: SparkSession, table: sm.Table) -> None:
    assert (table.history(), table.last_sequence_number, table.snapshot_as_of_timestamp(1 << 60)) == ([], 0, None)
    table = with_files(with_files(table, spark, "/data/a"), spark, "/data/b")
    first, second = table.history()
    assert [first.snapshot_id, second.snapshot_id] == [snapshot.snapshot_id for snapshot in table.snapshots()]
    assert table.last_sequence_number == 2
    assert table.snapshot_as_of_timestamp(second.timestamp_ms) == table.current_snapshot()
    earlier = table.snapshot_as_of_timestamp(second.timestamp_ms, inclusive=False)
    assert earlier is not None
    assert earlier.snapshot_id == first.snapshot_id
    assert table.snapshot_as_of_timestamp(first.timestamp_ms, inclusive=False) is None


def test_builders_that_commit(table: sm.Table) -> None:
    with table.update_schema() as update:
        update.add_column("name", StringType())
    table.refresh().update_spec().add_field("id", BucketTransform(16), "id_bucket").commit()
    with table.refresh().update_sort_order() as order:
        order.desc("name", IdentityTransform())
    changed = table.refresh()
    assert changed.schema().column_names == ["id", "name"]
    assert [field.name for field in changed.spec().fields] == ["id_bucket"]
    assert [field.source_id for field in changed.sort_orders()[changed.sort_order().order_id].fields] == [2]
    assert changed.metadata_location.endswith("/v4.metadata.json")


INVALID_CHANGES: dict[str, Callable[[sm.RowTransaction], Any]] = {
    "Cannot add column, name already exists: id": lambda tx: tx.update_schema().add_column("id", StringType()),
    "Could not find field with name none, case_sensitive=True": lambda tx: tx.update_schema().set_default_value(
        "none", 1
    ),
    "Could not find field with name no, case_sensitive=True": lambda tx: tx.update_spec().add_field("no", "identity"),
    "No such partition field: none": lambda tx: tx.update_spec().remove_field("none"),
    "Could not find field with name none, case_sensitive=False": lambda tx: tx.update_sort_order(False).asc(
        "none", IdentityTransform()
    ),
    "Either snapshot_id or ref_name must be provided": lambda tx: tx.manage_snapshots().set_current_snapshot(),
}


@pytest.mark.parametrize("problem", INVALID_CHANGES)
def test_invalid_changes_name_the_table(table: sm.Table, problem: str) -> None:
    with pytest.raises(InvalidChangeError) as caught, table.transaction() as tx:
        INVALID_CHANGES[problem](tx)
    assert str(caught.value).startswith(f"{table.metadata.location}: {problem}")
    assert table.refresh().metadata_location == table.metadata_location


def test_a_builder_that_fails_at_its_end_commits_nothing(table: sm.Table) -> None:
    with pytest.raises(InvalidChangeError, match=f"^{table.metadata.location}: "), table.update_schema() as update:
        update.set_identifier_fields("none")
    assert table.refresh().metadata_location == table.metadata_location


LIMITS = {
    "max_ref_age_ms": (0, (1 << 63) - 1),
    "max_snapshot_age_ms": (1 << 63, (1 << 63) - 1),
    "min_snapshots_to_keep": (1 << 31, (1 << 31) - 1),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_that_java_does_not_read(spark: SparkSession, table: sm.Table, name: str) -> None:
    value, greatest = LIMITS[name]
    table = with_files(table, spark, "/data/a")
    with pytest.raises(sm.ValidationError) as caught:
        table.manage_snapshots().create_branch(table.snapshots()[0].snapshot_id, "b", **{name: value})
    problem = f"{name} is {value}: expected a whole number from 1 to {greatest}"
    assert str(caught.value) == f"{table.metadata.location}: {problem}"


def test_branches_and_tags_in_one_commit(spark: SparkSession, table: sm.Table) -> None:
    table = with_files(table, spark, "/data/a")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "v1").create_branch(
        snapshot.snapshot_id, "audit"
    ).commit()
    table = table.refresh()
    table = with_files(table, spark, "/data/b", branch="audit")
    merge = table.manage_snapshots().fast_forward("main", "audit")
    assert table.refresh().scan().count_files() == 1, "nothing is committed before the end"
    merge.create_tag(snapshot.snapshot_id, "v2").commit()
    merged = table.refresh()
    assert merged.scan().count_files() == 2
    assert sorted(merged.refs()) == ["audit", "main", "v1", "v2"]
    assert merged.metadata_location.endswith("/v5.metadata.json")


def test_scans_of_one_table_read_its_manifest_list_once(spark: SparkSession, tmp_path: Path) -> None:
    location = write_small_table(tmp_path).metadata_location
    table = sm.load_table(location, spark=spark)
    assert table.scan().plan_files().count() == 6
    for path in tmp_path.rglob("snap-*.avro"):
        path.unlink()
    assert table.scan("country = 'NO'").plan_files().count() == 3
    assert table.scan(snapshot_id=table.snapshots()[-1].snapshot_id).plan_files().count() == 6
    with pytest.raises(NotFoundError):
        sm.load_table(location, spark=spark).scan().plan_files()


def test_a_scan_takes_the_settings_of_its_time(spark: SparkSession, tmp_path: Path) -> None:
    table = sm.load_table(write_small_table(tmp_path).metadata_location, spark=spark)
    assert table.scan().plan_files().count() == 6
    with configured(spark, {"spark.sparkmeta.planning": "no such way"}), pytest.raises(SettingError):
        table.scan().plan_files()
    assert table.scan().plan_files().count() == 6


def test_arguments_that_do_not_fit(table: sm.Table) -> None:
    calls: dict[str, Callable[[], object]] = {
        "no column 'ID' in the schema: did you mean 'id'": lambda: table.scan().select("ID").to_df(),
        "2026-11-26 00:00:00 has no time zone": lambda: table.scan().as_of(datetime(2026, 11, 26)),  # noqa: DTZ001
        "as_of: 'today' is not an ISO 8601 time": lambda: table.scan(as_of="today"),
        "'my view' can't be the name of a view": lambda: table.scan().create_temp_view("my view"),
        "'a view' can't be the name of a view": lambda: table.incremental(None).create_temp_view("a view"),
    }
    for problem, call in calls.items():
        with pytest.raises(InvalidArgumentError, match=f"{table.location()}: {problem}"):
            call()
    with pytest.raises(sm.ValidationError, match="ref 'main' and as_of 1: expected at most one"):
        table.scan(ref="main", as_of=1)


def test_a_filter_is_bound_when_it_is_given(spark: SparkSession, table: sm.Table) -> None:
    """Unless a snapshot with another schema may still be chosen."""
    table = with_files(table, spark, "/data/a")
    calls: dict[str, Callable[[], object]] = {
        "no column 'nope' in the schema": lambda: table.scan("nope = 1"),
        "column id has type long: 'x' is not a number": lambda: table.scan().filter("id = 'x'"),
        "no column 'ID' in the schema: did you mean 'id'": lambda: table.scan("id = 1").filter("ID = 1"),
        "no column 'never'": lambda: table.changelog(None).filter("never = 1"),
        "no column 'nothing'": lambda: table.incremental(None).filter("nothing = 1"),
    }
    for problem, call in calls.items():
        with pytest.raises(sm.InvalidFilterError, match=problem) as refused:
            call()
        assert len(refused.traceback) < 8
    assert table.scan("ID = 1", case_sensitive=False).count_files() == 1
    (first,) = table.snapshots()
    table.update_schema().rename_column("id", "key").commit()
    table = table.refresh()
    with pytest.raises(sm.InvalidFilterError, match="no column 'id'"):
        table.scan("id = 1").plan_files()
    assert table.scan("id = 1", snapshot_id=first.snapshot_id).filter("id < 5").count_files() == 1
    assert table.scan("key = 1").filter("key < 5").count_files() == 1


def test_invalid_versions(table: sm.Table) -> None:
    with pytest.raises(InvalidArgumentError, match=r"at is 12345: expected a TableVersion; scan\(snapshot_id=...\)"):
        table.at(12345)  # type: ignore[arg-type]


def test_an_identifier_that_is_no_folder(spark: SparkSession) -> None:
    """The error says how a catalog has the table, and which catalogs there are."""
    with configured(spark, {"spark.sql.catalog.prod": "org.apache.iceberg.spark.SparkCatalog"}):
        with pytest.raises(sm.NoSuchTableError, match=r'load_catalog\("\w+"\).load_table\("shop.orders"\).*: .*prod'):
            sm.load_table("shop.orders", spark)
        with pytest.raises(sm.NoSuchTableError, match=r"no such file[^;]*$"):
            sm.load_table("shop/orders", spark)


def test_columns_are_selected_by_separate_arguments(table: sm.Table) -> None:
    names: Any = ["id"]
    with pytest.raises(sm.ValidationError, match=r"select is .*: expected each name as an argument"):
        table.scan().select(names)


def test_plans_are_shown_without_metadata(table: sm.Table) -> None:
    maintenance = table.maintenance
    for plan in (
        maintenance.rewrite_data_files(),
        maintenance.rewrite_position_delete_files(),
        maintenance.convert_equality_deletes(),
        maintenance.remove_dangling_deletes(),
        maintenance.compact_manifests(),
        maintenance.expire_snapshots(),
        maintenance.remove_orphan_files(),
        maintenance.downgrade(3),
        maintenance.repair(),
        maintenance.rewrite_table_path(table.location(), "s3://elsewhere/t"),
    ):
        assert table.metadata_location in repr(plan)
        assert "schemas" not in repr(plan)
        assert len(repr(plan)) < 1_100


def test_options_of_maintenance_that_do_not_fit(table: sm.Table) -> None:
    maintenance: Any = table.maintenance
    calls: dict[str, Callable[[], object]] = {
        "files is 'x': expected a DataFrame": lambda: maintenance.remove_orphan_files(files="x").to_df(),
        "snapshot_properties is 'x': expected a map": lambda: maintenance.rewrite_manifests(snapshot_properties="x"),
        r"snapshot_id is \[1\]: expected a whole number": lambda: maintenance.compute_table_stats(snapshot_id=[1]),
    }
    for problem, call in calls.items():
        with pytest.raises(sm.ValidationError, match=problem):
            call()


BY_ID: dict[str, Callable[[sm.Table, Any], Any]] = {
    "snapshot_id of a scan": lambda table, snapshot: table.scan(snapshot_id=snapshot),
    "snapshot_id of files": lambda table, snapshot: table.inspect.files(snapshot_id=snapshot),
    "snapshot_id of a drawing": lambda table, snapshot: table.draw(snapshot),
    "snapshot_id of a check": lambda table, snapshot: table.check(snapshot),
    "snapshot_id of statistics": lambda table, snapshot: table.maintenance.compute_table_stats(snapshot_id=snapshot),
    "snapshot_id of a cherry-pick": lambda table, snapshot: table.manage_snapshots().cherry_pick(snapshot).commit(),
    "from_snapshot_id_exclusive": lambda table, snapshot: table.incremental(snapshot).to_df(),
    "from_snapshot_id_exclusive of changes": lambda table, snapshot: table.changelog(snapshot).to_df(),
    "to_snapshot_id_inclusive": lambda table, snapshot: table.incremental(None, snapshot).to_df(),
    "to_snapshot_id_inclusive of files": lambda table, snapshot: table.file_changes(None, snapshot),
}


@pytest.mark.parametrize("name", BY_ID)
def test_ids_of_snapshots_are_whole_numbers(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = sm.load_table(write_small_table(tmp_path).metadata_location, spark)
    argument = name.split(maxsplit=1)[0]
    for value, text in {"main": "'main'", True: "True", (1,): r"\(1,\)"}.items():
        with pytest.raises(ValidationError, match=rf"^{argument} is {text}: expected a whole number"):
            BY_ID[name](table, value)


def test_a_view_has_a_text_as_its_name(table: sm.Table) -> None:
    for name in (5, None):
        with pytest.raises(ValidationError, match=f"^name is {name}: expected a string"):
            table.create_temp_view(name)  # type: ignore[arg-type]


def test_the_branch_main_of_an_empty_table(table: sm.Table) -> None:
    assert table.scan().use_ref("main").count() == 0
    assert table.inspect.files(ref="main").collect() == table.inspect.entries(ref="main").collect() == []
    for name in ("dev", "Main"):
        with pytest.raises(sm.NoSuchSnapshotError, match=f"has no branch or tag '{name}'"):
            table.inspect.files(ref=name)
    with pytest.raises(ValidationError, match=r"^ref is 5: expected a string"):
        table.inspect.files(ref=5)  # type: ignore[arg-type]
