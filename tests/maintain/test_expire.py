"""The snapshots and files that an expiry removes, compared with Iceberg's Java library."""

from __future__ import annotations

import json
import random
import runpy
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import IllegalArgumentException

import sparkmeta as sm
from sparkmeta.errors import CommitStateUnknownError, NoSuchSnapshotError, NotFoundError, ValidationError
from sparkmeta.maintain import expire_snapshots
from sparkmeta.maintain.reachable import reachable_paths, unreachable_files
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.spec.expiry import ExpiryRules, choose_expired, without_expired
from sparkmeta.spec.metadata import parse_table_metadata, serialize_table_metadata
from sparkmeta.spec.metadata_model import StatisticsFile
from tests.command_line import invoke
from tests.commit.tables import new_table as new_metadata_of
from tests.commit.test_tree_faults import attempt
from tests.conftest import configured
from tests.faults import FaultyFiles, Kind, faults
from tests.maintain.test_compact import append, delete, mask_rows, new_table
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts
from tests.rows.test_changelog import History
from tests.spec.table_metadata import encoded
from tests.trees import TreeTable, data

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOBS = Path(__file__).parents[2] / "jobs"
HOUR = 3_600_000
NOW = 1_700_000_000_000


# -- expired snapshots -----------------------------------------------------------------------------------------------


def retention(draw: Any, names: tuple[str, ...]) -> dict[str, int]:
    values = {"max-snapshot-age-ms": [1, 5, 20], "max-ref-age-ms": [1, 5, 20], "min-snapshots-to-keep": [1, 2, 4]}
    chosen = {name: draw(st.sampled_from(values[name])) for name in names if draw(st.booleans())}
    return {name: value * HOUR if name.endswith("-ms") else value for name, value in chosen.items()}


@st.composite
def histories(draw: Any, now: int = NOW) -> dict[str, Any]:
    """Draw table metadata with snapshots an hour apart, some of them on branches, and some without their parents."""
    count = draw(st.integers(1, 9))
    snapshots = []
    for number in range(1, count + 1):
        parent = draw(st.none() | st.integers(max(1, number - 3), number))
        snapshots.append(
            {
                "snapshot-id": number,
                "sequence-number": number,
                "timestamp-ms": now - (count - number) * HOUR - HOUR // 2,
                "manifest-list": f"/t/metadata/{number}.avro",
                "summary": {"operation": "append"},
                **({"parent-snapshot-id": parent} if parent not in (None, number) else {}),
            }
        )
    ids = st.integers(1, count)
    ages = ("max-snapshot-age-ms", "min-snapshots-to-keep")
    refs: dict[str, Any] = {"main": {"snapshot-id": draw(ids), "type": "branch", **retention(draw, ages)}}
    for name in draw(st.sets(st.sampled_from(["b", "c"]))):
        refs[name] = {"snapshot-id": draw(ids), "type": "branch", **retention(draw, (*ages, "max-ref-age-ms"))}
    for name in draw(st.sets(st.sampled_from(["t", "u"]))):
        refs[name] = {"snapshot-id": draw(ids), "type": "tag", **retention(draw, ("max-ref-age-ms",))}
    defaults = retention(draw, (*ages, "max-ref-age-ms"))
    properties = {f"history.expire.{name}": str(value) for name, value in defaults.items()}
    current = refs["main"]["snapshot-id"]
    return empty_table() | {
        "snapshots": snapshots, "refs": refs, "current-snapshot-id": current, "last-sequence-number": count,
        "snapshot-log": [{"snapshot-id": current, "timestamp-ms": now}], "properties": properties,
        "last-updated-ms": now,
    }  # fmt: skip


def empty_table() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(serialize_table_metadata(new_metadata_of("/t")))
    return document


@pytest.mark.java
@settings(max_examples=400 if SOAK else 40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_same_snapshots_as_java(data: Any, spark: SparkSession, tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    document = data.draw(histories(now))
    older_than = data.draw(st.none() | st.integers(0, 9).map(lambda hours: now - hours * HOUR))
    retain_last = data.draw(st.none() | st.integers(1, 4))
    named = data.draw(st.sets(st.integers(1, len(document["snapshots"])), max_size=2))
    file = tmp_path / "v1.metadata.json"
    file.write_bytes(encoded(document))
    java = Java(spark)
    removal = java.table(f"file://{file}").table.expireSnapshots()
    removal = removal if older_than is None else removal.expireOlderThan(older_than)
    removal = removal if retain_last is None else removal.retainLast(retain_last)
    for snapshot_id in named:
        removal = removal.expireSnapshotId(snapshot_id)
    metadata = parse_table_metadata(encoded(document), str(file))
    rules = ExpiryRules(now, older_than, retain_last, tuple(named))
    try:
        expired = choose_expired(metadata, rules)
    except ValidationError as error:
        assert "can't expire" in str(error)  # noqa: PT017  Java's error is what is expected
        with pytest.raises(IllegalArgumentException, match="Still referenced by refs"):
            removal.apply()
        return
    expected = {snapshot.snapshotId() for snapshot in removal.apply()}
    assert {snapshot.snapshot_id for snapshot in expired.snapshots} == expected
    after = without_expired(metadata, expired, None, now)
    remaining = {snapshot.snapshot_id for snapshot in metadata.snapshots} - expected
    assert {snapshot.snapshot_id for snapshot in after.snapshots} == remaining
    assert all(after.snapshot_by_id(ref.snapshot_id) for name, ref in after.refs.items() if name != "main")


# -- deleted files ---------------------------------------------------------------------------------------------------


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".crc")}


def planned_paths(files: DataFrame) -> set[str]:
    return {local_path(row.file_path) for row in files.collect()}


def planned_by_tasks(spark: SparkSession, table: sm.Table, **options: Any) -> set[str]:
    """Return the paths of a plan for which tasks read lists and manifests, however few they are."""
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "1"}):
        return planned_paths(table.refresh().maintenance.expire_snapshots(**options).to_df())


def change_refs(shop: Workshop, rng: random.Random, step: int) -> None:
    """Tag or branch the current snapshot, or return to an earlier one."""
    ids = [row.snapshot_id for row in shop.spark.sql(f"SELECT snapshot_id FROM {shop.sql_name}.history").collect()]
    choice = rng.choice(["tag", "branch", "rollback", "none", "none"])
    if choice == "rollback":
        shop.call("set_current_snapshot", f"snapshot_id => {rng.choice(ids)}")
    elif choice != "none":
        shop.sql(f"ALTER TABLE {{t}} CREATE {choice.upper()} r{step} AS OF VERSION {rng.choice(ids)}")


def random_history(
    spark: SparkSession, name: str, rng: random.Random, steps: int, version: int | None = None
) -> History:
    """Return a table that Java has changed at random, with branches and tags."""
    shop = Workshop(Java(spark), name)
    shop.create(
        "id INT, name STRING, part STRING", "part", version=version or rng.choice([2, 3]), properties=MERGE_ON_READ
    )
    history = History(shop, rng)
    history.insert()
    for step in range(steps):
        history.step()
        change_refs(shop, rng, step)
    return history


def opened(shop: Workshop) -> sm.Table:
    """Open Java's table in its warehouse, so that it can be committed to."""
    warehouse = f"file://{shop.folder.parents[1]}"
    return sm.load_catalog("copies", type="hadoop", warehouse=warehouse, spark=shop.spark).load_table(
        f"peers.{shop.name}"
    )


@pytest.mark.java
@pytest.mark.parametrize("seed", range(30) if SOAK else [3])
def test_the_same_files_as_java(spark: SparkSession, seed: int) -> None:
    """Snapshots expire after random changes of rows, deletes, manifests and refs.

    The remaining ones have the same rows.
    """
    rng = random.Random(seed)
    shop = random_history(spark, f"expired_{seed}", rng, steps=10).shop
    table = opened(shop)
    chosen = rng.choice(table.metadata.snapshots).timestamp_ms + 1
    plan = table.maintenance.expire_snapshots(older_than=chosen, retain_last=1)
    planned, before = planned_paths(plan.to_df()), files_below(shop.folder)
    assert isinstance(plan._files, pa.Table)
    assert planned == planned_by_tasks(spark, table, older_than=chosen, retain_last=1)
    assert sum(plan.summary().files.values()) == len(planned)
    sizes = {local_path(row.file_path): row.file_size_in_bytes for row in plan.to_df().collect()}
    assert {path: size for path, size in sizes.items() if size is not None} == {
        path: Path(path).stat().st_size for path, size in sizes.items() if size is not None
    }
    when = datetime.fromtimestamp(chosen / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    shop.call("expire_snapshots", f"older_than => TIMESTAMP '{when}', retain_last => 1, stream_results => true")
    removed_by_java = before - files_below(shop.folder)
    unneeded = planned - removed_by_java
    assert removed_by_java <= planned
    assert not unneeded, "Java leaves what nothing needs"


@pytest.mark.java
@pytest.mark.parametrize("seed", range(100, 130) if SOAK else [101])
def test_what_stays_is_read_as_before(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    history = random_history(spark, f"expired_by_us_{seed}", rng, steps=8)
    shop = history.shop
    table = opened(shop)
    cutoff = rng.choice(table.metadata.snapshots).timestamp_ms + 1
    plan = table.maintenance.expire_snapshots(older_than=cutoff, clean_expired_metadata=True)
    expired = {row.snapshot_id for row in plan.snapshots().collect()}
    retained = [snapshot.snapshot_id for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in expired]
    rows = {
        snapshot_id: row_texts(shop.sql(f"SELECT * FROM {{t}} VERSION AS OF {snapshot_id}")) for snapshot_id in retained
    }
    planned, before = planned_paths(plan.to_df()), files_below(shop.folder)
    after = plan.commit()
    assert before - files_below(shop.folder) == planned
    assert [snapshot.snapshot_id for snapshot in after.metadata.snapshots] == retained
    shop.sql("REFRESH TABLE {t}")
    assert {
        snapshot_id: row_texts(shop.sql(f"SELECT * FROM {{t}} VERSION AS OF {snapshot_id}")) for snapshot_id in retained
    } == rows
    history.insert()


def reachable(table: sm.Table) -> dict[int, set[str]]:
    """Return the files of each snapshot of a tree."""
    files = {}
    for snapshot in table.metadata.snapshots:
        state = table.state.at(snapshot)
        assert state.tree is not None
        root = state.tree.root
        paths = {root.location, *root.leaves.column("location").to_pylist()}
        paths |= {path for path in root.manifest_dvs.column("location").to_pylist() if path}
        planned = table.scan(snapshot_id=snapshot.snapshot_id).plan_files().select("file_path", "deletes.file_path")
        paths |= {path for row in planned.collect() for path in (row[0], *row[1])}
        files[snapshot.snapshot_id] = {local_path(path) for path in paths}
    return files


def test_files_of_a_tree(spark: SparkSession, tmp_path: Path) -> None:
    """A file is deleted if a manifest DV masks it in the remaining snapshots. Its leaf stays."""
    table = append(new_table(spark, tmp_path), *range(8))
    table = append(delete(table, 1, 2), 8, 9, part="b")
    table = mask_rows(table, tmp_path, "dv", f3=[1], f4=[0])
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, "t").commit()
    table = delete(table.refresh(), 3, 8)
    table = table.maintenance.compact_manifests(min_masked_ratio=0.01).commit()
    table = append(table, 10)
    files = reachable(table)
    plan = table.maintenance.expire_snapshots(older_than=int(time.time() * 1000) + HOUR)
    expired = {row.snapshot_id for row in plan.snapshots().collect()}
    retained = files.keys() - expired
    assert len(retained) == 2
    assert planned_paths(plan.to_df()) == planned_by_tasks(spark, table, older_than=int(time.time() * 1000) + HOUR)
    needed = set[str]().union(*(files[snapshot_id] for snapshot_id in retained))
    unneeded = set[str]().union(*(files[snapshot_id] for snapshot_id in expired)) - needed
    assert planned_paths(plan.to_df()) == unneeded
    assert {"/data/f1", "/data/f2"} <= unneeded
    before = {snapshot_id: table.scan(snapshot_id=snapshot_id).plan_files().count() for snapshot_id in retained}
    after = plan.commit()
    assert {snapshot_id: after.scan(snapshot_id=snapshot_id).plan_files().count() for snapshot_id in retained} == before
    assert not [path for path in unneeded if Path(path).exists()]
    assert all(Path(path).exists() for path in needed if not path.startswith("/data/"))
    assert after.check().isEmpty()


def random_tree(table: sm.Table, folder: Path, rng: random.Random, steps: int) -> sm.Table:
    """Change a tree at random: files, deletion vectors, compactions, branches, tags and rollbacks."""
    for step in range(steps):
        planned = table.scan().plan_files().selectExpr("file_path", "size(deletes) AS deletes").collect()
        has_vector = {int(Path(row.file_path).name.removeprefix("f")): row.deletes > 0 for row in planned}
        live, unmasked = sorted(has_vector), sorted(number for number, masked in has_vector.items() if not masked)
        choices = ["append", "delete", "mask", "compact", "ref", "rollback"]
        choice = rng.choice(choices) if len(unmasked) > 2 else "append"
        snapshot_id = rng.choice(table.metadata.snapshots).snapshot_id if table.metadata.snapshots else 0
        if choice == "append":
            table = append(table, *range(10 * step, 10 * step + rng.randrange(1, 6)))
        elif choice == "delete":
            table = delete(table, *rng.sample(live, rng.randrange(1, 3)))
        elif choice == "mask":
            positions = {f"f{number}": [rng.randrange(5)] for number in rng.sample(unmasked, rng.randrange(1, 3))}
            table = mask_rows(table, folder, f"dv{step}", **positions)
        elif choice == "compact":
            table = table.maintenance.compact_manifests(min_masked_ratio=0.01, min_leaf_ratio=1.0).commit()
        elif choice == "ref":
            manage = table.manage_snapshots()
            rng.choice([manage.create_tag, manage.create_branch])(snapshot_id, f"r{step}").commit()
        else:
            table.manage_snapshots().set_current_snapshot(snapshot_id).commit()
        table = table.refresh()
    return table


@pytest.mark.parametrize("seed", range(40) if SOAK else [4])
def test_files_of_random_trees(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = random_tree(new_table(spark, tmp_path), tmp_path, rng, steps=10)
    files, folder = reachable(table), Path(local_path(table.location()))
    cutoff = rng.choice(table.metadata.snapshots).timestamp_ms + 1
    options = {"older_than": cutoff, "retain_last": rng.randrange(1, 4)}
    plan = table.maintenance.expire_snapshots(**options)
    expired = {row.snapshot_id for row in plan.snapshots().collect()}
    assert planned_paths(plan.to_df()) == planned_by_tasks(spark, table, **options)
    needed = set[str]().union(*(files[snapshot_id] for snapshot_id in files.keys() - expired))
    unneeded = set[str]().union(*(files[snapshot_id] for snapshot_id in expired)) - needed
    assert planned_paths(plan.to_df()) == unneeded
    before = files_below(folder)
    after = plan.commit()
    assert before - files_below(folder) == {path for path in unneeded if path in before}
    assert reachable(after) == {
        snapshot_id: paths for snapshot_id, paths in files.items() if snapshot_id not in expired
    }


# -- files that changes need -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["expire", "orphans"])
def test_changes_of_the_oldest_snapshot_that_stays(spark: SparkSession, tmp_path: Path, job: str) -> None:
    """Its changes need the deletion vectors that its root replaces, until the snapshot itself expires."""
    table = new_table(spark, tmp_path)
    with table.transaction() as tx:
        tx.set_properties({"write.tree.inline-vector-bytes": "0", "write.tree.flush-data-files": "1"})
    table = delete(delete(append(table.refresh(), *range(1, 9)), 1), 2)
    parent, head = (snapshot.snapshot_id for snapshot in table.metadata.snapshots[-2:])

    def changes(table: sm.Table) -> list[tuple[str, str]]:
        rows = table.file_changes(parent, head).select("change_type", "file_path").collect()
        return sorted((row.change_type, row.file_path) for row in rows)

    before = changes(table)
    assert [change for change, _ in before] == ["removed"]
    puffins = {path for path in files_below(tmp_path) if path.endswith(".puffin")}
    assert len(puffins) == 2
    if job == "expire":
        table = table.maintenance.expire_snapshots(older_than=soon()).commit()
    else:
        table = table.maintenance.expire_snapshots(older_than=soon(), cleanup="none").commit()
        table.maintenance.remove_orphan_files(older_than=soon(), force=True).commit()
    assert changes(table) == before
    assert puffins <= files_below(tmp_path)
    table = delete(table, 3)
    table.maintenance.expire_snapshots(older_than=soon()).commit()
    assert len({path for path in files_below(tmp_path) if path.endswith(".puffin")} & puffins) == 1


def test_a_leaf_that_a_root_lists_as_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """The leaf stays with the root. Files that only the leaf lists are deleted."""
    tree = TreeTable(tmp_path)
    removed, other = tree.leaf("removed", data("x:d1"), data("x:d2")), tree.leaf("other", data("x:d3"))
    tree.snapshot(added=[removed, other])
    tree.snapshot(existing=[other], deleted=[removed])
    state = tree.load(spark).state
    unreachable = unreachable_files(state, {1})
    assert isinstance(unreachable, pa.Table)
    names = {Path(path).name for path in unreachable.column("path").to_pylist()}
    assert {"x:d1", "x:d2"} <= names
    assert not {name for name in names if name.startswith(("removed", "other"))}
    reachable = reachable_paths(state)
    assert isinstance(reachable, pa.Table)
    assert any("removed" in path for path in reachable.column("path").to_pylist())


def test_an_older_leaf_is_opened_only_if_files_would_be_deleted(spark: SparkSession, tmp_path: Path) -> None:
    tree = TreeTable(tmp_path)
    removed, older = tree.leaf("removed", data("x:d1")), tree.leaf("older", data("x:d2"), data("x:d3"))
    tree.snapshot(added=[removed, older])
    newer = tree.leaf("newer", data("x:d1"))
    tree.snapshot(added=[newer], existing=[older])
    dropped = tree.leaf("dropped", data("x:d2"), data("x:d4"))
    tree.snapshot(added=[dropped], existing=[newer, older])
    tree.snapshot(existing=[newer, older])
    state = tree.load(spark).state

    def files(*expired: int) -> set[str]:
        unneeded = unreachable_files(state, expired)
        assert isinstance(unneeded, pa.Table)
        return {path for path in unneeded.column("path").to_pylist() if path.startswith("x:")}

    assert files(1, 2, 3) == {"x:d4"}
    location = local_path(older.row["location"])
    moved = Path(location).rename(f"{location}.away")
    assert files(1) == set()
    with pytest.raises(NotFoundError, match="older"):
        files(1, 2, 3)
    moved.rename(location)


def cleaned(shop: Workshop, *, by_java: bool) -> sm.Table:
    """Return the table after Java or sparkmeta expired everything that the current snapshot does not need."""
    if by_java:
        shop.call("expire_snapshots", "older_than => TIMESTAMP '2099-01-01', clean_expired_metadata => true")
        return opened(shop)
    return opened(shop).maintenance.expire_snapshots(older_than=soon(), clean_expired_metadata=True).commit()


@pytest.mark.java
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("by_java", [False, True])
def test_a_spec_whose_column_is_dropped(spark: SparkSession, version: int, by_java: bool) -> None:
    """The table stays readable after its metadata is cleaned, by sparkmeta or by Java."""
    shop = Workshop(Java(spark), f"dropped_source_{version}_{by_java}")
    shop.create("id BIGINT, part STRING, c STRING", "part", version=version)
    shop.insert("1, 'b', 'x'")
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD part")
    shop.sql("ALTER TABLE {t} DROP COLUMN part")
    shop.insert("2, 'y'")
    table = cleaned(shop, by_java=by_java)
    assert len(table.metadata.schemas) == (1 if by_java else 2)
    rows = {(1, "x"), (2, "y")}
    assert {(row.id, row.c) for row in table.scan().to_df().collect()} == rows
    assert table.inspect.files().count() == 2
    assert sum(row.record_count for row in table.inspect.partitions().collect()) == 2
    assert table.inspect.manifests().count() == 2
    assert {(row.id, row.c) for row in shop.sql("SELECT * FROM {t}").collect()} == rows


@pytest.mark.java
@pytest.mark.parametrize("by_java", [False, True])
@pytest.mark.parametrize("kind", ["STRING", "INT"])
def test_a_column_that_is_added_again_after_its_schema_was_removed(
    spark: SparkSession, kind: str, by_java: bool
) -> None:
    shop = Workshop(Java(spark), f"added_again_{kind}_{by_java}")
    shop.create("id BIGINT")
    shop.sql("ALTER TABLE {t} ADD COLUMN c STRING")
    shop.insert("1, 'dropped'")
    shop.sql("ALTER TABLE {t} DROP COLUMN c")
    shop.insert("2")
    table = cleaned(shop, by_java=by_java)
    assert len(table.metadata.schemas) == (1 if by_java else 2)
    shop.sql("REFRESH TABLE {t}")
    shop.sql(f"ALTER TABLE {{t}} ADD COLUMN c {kind}")
    assert row_texts(opened(shop).scan().to_df()) == row_texts(shop.sql("SELECT * FROM {t}"))


@pytest.mark.java
def test_a_column_that_got_its_name_back_before_its_schema_expired(spark: SparkSession) -> None:
    shop = Workshop(Java(spark), "named_back")
    shop.create("id BIGINT, c STRING")
    shop.sql("ALTER TABLE {t} RENAME COLUMN c TO d")
    shop.insert("1, 'x'")
    shop.sql("ALTER TABLE {t} RENAME COLUMN d TO c")
    shop.insert("2, 'y'")
    table = cleaned(shop, by_java=False)
    assert {(row.id, row.c) for row in table.scan().to_df().collect()} == {(1, "x"), (2, "y")}
    updated = table.update({"id": 3}, "c = 'x'")
    assert {(row.id, row.c) for row in updated.scan().to_df().collect()} == {(3, "x"), (2, "y")}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_writes_after_partition_columns_are_lost(spark: SparkSession, version: int) -> None:
    """Partition values whose type no schema contains stay distinct, and survive rewrites as text."""
    shop = Workshop(Java(spark), f"lost_source_{version}")
    shop.create("id BIGINT, part INT, code STRING", "part, bucket(4, code)", version=version)
    shop.insert("1, 1, 'a'", "2, 1, 'a'", "3, 2, 'a'", "4, null, 'a'")
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD part")
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD bucket(4, code)")
    shop.sql("ALTER TABLE {t} DROP COLUMNS part, code")
    shop.insert("5")
    table = cleaned(shop, by_java=True)
    assert len(table.metadata.schemas) == 1

    def assert_rows(table: sm.Table, *ids: int) -> None:
        shop.sql("REFRESH TABLE {t}")
        assert sorted(row.id for row in table.scan().to_df().collect()) == list(ids)
        assert sorted(row.id for row in shop.sql("SELECT id FROM {t}").collect()) == list(ids)

    table = table.append(spark.createDataFrame([(6,)], "id long"))
    assert_rows(table, 1, 2, 3, 4, 5, 6)
    table = table.delete("id = 1")
    assert_rows(table, 2, 3, 4, 5, 6)
    table = table.maintenance.rewrite_manifests().commit()
    assert_rows(table, 2, 3, 4, 5, 6)
    table = table.delete("id = 2 or id = 5")
    assert_rows(table, 3, 4, 6)
    shop.insert("7")
    shop.sql("DELETE FROM {t} WHERE id = 3")
    table = opened(shop)
    assert_rows(table, 4, 6, 7)
    table.maintenance.rewrite_data_files(min_input_files=1, rewrite_all=True).commit()
    assert_rows(table.refresh(), 4, 6, 7)


# -- when something goes wrong ---------------------------------------------------------------------------------------


@pytest.fixture
def tree(spark: SparkSession, tmp_path: Path) -> sm.Table:
    """Return a tree with three snapshots. The first two are old, and each removes a file of the previous one."""
    table = append(new_table(spark, tmp_path), 1, 2, 3)
    return delete(delete(table, 1), 2)


def soon() -> int:
    return int(time.time() * 1000) + HOUR


def test_a_missing_file_of_an_expired_snapshot(tree: sm.Table) -> None:
    root = local_path(tree.metadata.snapshots[0].root_manifest or "")
    Path(root).unlink()
    plan = tree.maintenance.expire_snapshots(older_than=soon())
    summary = plan.summary()
    assert (summary.snapshots, summary.missing) == (2, 1)
    assert "1 lists and manifests of expired snapshots are missing" in str(summary)
    assert len(plan.commit().metadata.snapshots) == 1


@pytest.mark.java
def test_a_missing_manifest_of_an_expired_snapshot(spark: SparkSession) -> None:
    """The files that the manifest lists stay. Other files are deleted."""
    shop = Workshop(Java(spark), "a_missing_manifest")
    shop.create("id INT")
    shop.insert("1")
    shop.sql("INSERT OVERWRITE {t} SELECT 2")
    table = opened(shop)
    (first,) = (row.path for row in table.inspect.manifests(table.metadata.snapshots[0].snapshot_id).collect())
    Path(local_path(first)).unlink()
    plan = table.maintenance.expire_snapshots(older_than=soon())
    summary = plan.summary()
    assert (summary.missing, summary.files["manifest list"]) == (1, 1)
    assert first not in planned_paths(plan.to_df())
    assert plan.commit().scan().to_df().count() == 1


def test_a_missing_manifest_dv_of_an_expired_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    """The files of its manifest stay."""
    table = new_table(spark, tmp_path)
    with table.transaction() as tx:
        tx.set_properties({"write.tree.inline-vector-bytes": "0"})
    table = delete(append(table.refresh(), 1, 2, 3), 1)
    table = table.maintenance.compact_manifests(min_masked_ratio=0.01).commit()
    (puffin,) = Path(local_path(table.location())).glob("metadata/*.puffin")
    puffin.unlink()
    plan = table.maintenance.expire_snapshots(older_than=soon())
    assert plan.summary().missing == 1
    assert not [path for path in planned_paths(plan.to_df()) if path.endswith(".puffin")]
    assert len(plan.commit().metadata.snapshots) == 1


def test_a_missing_file_of_a_snapshot_that_stays(tree: sm.Table) -> None:
    """Nothing is committed, and no file is deleted."""
    leaf = tree.state.tree.root.leaves.column("location")[0].as_py()  # type: ignore[union-attr]
    moved = Path(local_path(leaf)).rename(f"{local_path(leaf)}.away")
    folder = Path(local_path(tree.location()))
    before = files_below(folder)
    with pytest.raises(NotFoundError, match=Path(leaf).name):
        tree.maintenance.expire_snapshots(older_than=soon()).commit()
    assert files_below(folder) == before
    moved.rename(local_path(leaf))


def test_an_unknown_outcome_deletes_nothing(tree: sm.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_below(Path(local_path(tree.location())))

    def unknown(*_: Any) -> Any:
        raise CommitStateUnknownError("who knows")

    monkeypatch.setattr(FileSystemOperations, "commit", unknown)
    with pytest.raises(CommitStateUnknownError):
        tree.maintenance.expire_snapshots(older_than=soon()).commit()
    assert files_below(Path(local_path(tree.location()))) == before


def test_an_error_while_files_are_deleted(tree: sm.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that the snapshots are gone. The files are orphans."""
    folder = Path(local_path(tree.location()))
    before = files_below(folder)

    def stopped(*_: Any) -> Any:
        raise RuntimeError("the executors are gone")

    monkeypatch.setattr(expire_snapshots, "delete_files", stopped)
    plan = tree.maintenance.expire_snapshots(older_than=soon())
    assert not plan.is_partly_committed
    with pytest.raises(RuntimeError, match="the executors are gone"):
        plan.commit()
    after = tree.refresh()
    assert len(after.snapshots()) < len(tree.snapshots())
    assert plan.is_partly_committed
    assert plan.result()["committed"] == {"metadata_location": after.metadata_location}
    assert plan.commit().metadata_location == after.metadata_location
    assert before <= files_below(folder)


def test_faults(tree: sm.Table, tmp_path: Path) -> None:
    """Before the commit no file is deleted, and after it no needed one. Another run finishes the job."""
    folder = Path(local_path(tree.location()))
    contents = {path: path.read_bytes() for path in map(Path, files_below(folder))}
    files, current = reachable(tree), tree.metadata.current_snapshot_id
    assert current is not None
    unneeded = set[str]().union(*files.values()) - files[current]
    older_than = soon()

    def opened_through(driver: FaultyFiles) -> sm.Table:
        for path in map(Path, files_below(folder)):
            path.unlink()
        for path, content in contents.items():
            path.write_bytes(content)
        table = sm.load_table(tree.location(), spark=tree.state.spark)
        assert isinstance(table.operations, FileSystemOperations)
        return replace(table, operations=replace(table.operations, files=driver))

    class Stage:
        """A stage for `attempt`."""

        def commit(self, driver: FaultyFiles) -> None:
            opened_through(driver).maintenance.expire_snapshots(older_than=older_than).commit()

    stage: Any = Stage()
    candidates = list(faults(stage.commit))
    assert {fault.kind for fault in candidates} == set(Kind)
    for fault in candidates if SOAK else random.Random(2).sample(candidates, 3):
        outcome = attempt(stage, FaultyFiles(fault=fault))
        after = sm.load_table(tree.location(), spark=tree.state.spark)
        left = files_below(folder)
        is_committed = len(after.metadata.snapshots) == 1
        assert is_committed or contents.keys() <= set(map(Path, left)), f"{fault}: {outcome}"
        assert is_committed == (outcome == "committed") or outcome in ("unknown", "killed"), f"{fault}: {outcome}"
        assert reachable(after)[current] == files[current], f"{fault}: {outcome}"
        assert {path for path in files[current] if not path.startswith("/data/")} <= left, f"{fault}: {outcome}"
        finished = after.maintenance.expire_snapshots(older_than=older_than).commit()
        assert len(finished.metadata.snapshots) == 1
        if not is_committed:
            assert not unneeded & files_below(folder)


def test_a_tag_that_comes_first(tree: sm.Table) -> None:
    """A snapshot that was tagged since the plan stays, with its files."""
    first = tree.metadata.snapshots[0].snapshot_id
    plan = tree.maintenance.expire_snapshots(older_than=soon())
    assert "/data/f1" in planned_paths(plan.to_df())
    tree.manage_snapshots().create_tag(first, "audit").commit()
    after = plan.commit()
    assert [snapshot.snapshot_id for snapshot in after.metadata.snapshots] == [first, tree.metadata.current_snapshot_id]
    assert after.scan(snapshot_id=first).plan_files().count() == 3
    assert "data file" not in plan.result()["committed"]["files"]


def test_files_that_can_not_be_deleted(tree: sm.Table, tmp_path: Path) -> None:
    """The files are counted and named. The commit remains."""
    folder = tmp_path / "no file"
    folder.mkdir()
    statistics = StatisticsFile.model_validate(
        {"snapshot-id": tree.metadata.snapshots[0].snapshot_id, "statistics-path": str(folder),
         "file-size-in-bytes": 5, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    )  # fmt: skip
    tree.operations.commit(tree.version, tree.metadata.model_copy(update={"statistics": [statistics]}))
    plan = tree.refresh().maintenance.expire_snapshots(older_than=soon())
    assert plan.summary().bytes["statistics file"] == 5
    after = plan.commit()
    assert len(after.metadata.snapshots) == 1
    assert not after.metadata.statistics
    committed = plan.result()["committed"]
    deleted = [committed[name]["statistics file"] for name in ("files", "bytes")]
    assert (committed["failed"], deleted) == (1, [0, 0])
    (problem,) = committed["problems"]
    assert problem.startswith(str(folder))


def test_nothing_to_do(tree: sm.Table) -> None:
    plan = tree.maintenance.expire_snapshots()
    assert plan.summary().is_empty
    assert str(plan.summary()) == f"{tree.full_name}: none of its 3 snapshots expires"
    assert plan.commit() is tree
    assert plan.to_df().isEmpty()


def test_only_metadata_is_deleted(tree: sm.Table) -> None:
    plan = tree.maintenance.expire_snapshots(older_than=soon(), cleanup="metadata")
    assert plan.summary().files.keys() <= {"root", "manifest", "manifest deletion vectors"}
    assert plan.commit().scan().plan_files().count() == 1
    assert not Path(local_path(tree.metadata.snapshots[0].root_manifest or "")).exists()


def test_no_file_is_deleted(tree: sm.Table) -> None:
    plan = tree.maintenance.expire_snapshots(older_than=soon(), cleanup="none")
    assert (plan.summary().snapshots, plan.summary().files) == (2, {})
    after = plan.commit()
    assert len(after.metadata.snapshots) == 1
    assert Path(local_path(tree.metadata.snapshots[0].root_manifest or "")).exists()


def test_as_pyiceberg_spells_it(tree: sm.Table) -> None:
    first, second, _ = (snapshot.snapshot_id for snapshot in tree.metadata.snapshots)
    plan = tree.maintenance.expire_snapshots()
    expired = {
        "older_than": plan.older_than(datetime.fromtimestamp(soon() / 1000, UTC)),
        "retain_last": plan.older_than(soon()).retain_last(2),
        "by_id": plan.by_id(second),
        "by_ids": plan.by_ids([first, second]),
    }
    assert {name: {row.snapshot_id for row in each.snapshots().collect()} for name, each in expired.items()} == {
        "older_than": {first, second}, "retain_last": {first}, "by_id": {second}, "by_ids": {first, second},
    }  # fmt: skip


def test_what_is_refused(tree: sm.Table) -> None:
    expire = tree.maintenance.expire_snapshots
    for options, problem in (
        ({"retain_last": 0}, "retain_last is 0: expected a whole number of 1 or more"),
        ({"retain_last": "5"}, "retain_last is '5': expected a whole number of 1 or more"),
        ({"retain_last": 1.5}, "retain_last is 1.5: expected a whole number"),
        ({"retain_last": True}, "retain_last is True: expected a whole number"),
        ({"snapshot_ids": 5}, "snapshot_ids is 5: expected ids of snapshots"),
        ({"snapshot_ids": "57"}, "snapshot_ids is '57': expected ids of snapshots"),
        ({"clean_expired_metadata": "false"}, "clean_expired_metadata is 'false': expected true or false"),
    ):
        with pytest.raises(ValidationError, match=problem):
            expire(**options)
    with pytest.raises(NoSuchSnapshotError, match="has no snapshot 7"):
        expire(snapshot_ids=iter([7]))
    with pytest.raises(ValidationError, match=r"older_than is .*: expected a datetime with a time zone"):
        expire(older_than=datetime(2026, 1, 1))  # noqa: DTZ001  what is refused
    with pytest.raises(NoSuchSnapshotError, match="has no snapshot 7"):
        expire(snapshot_ids=[7])
    current = tree.metadata.current_snapshot_id
    with pytest.raises(ValidationError, match=f"snapshot {current} can't expire: it is the head of main"):
        expire(snapshot_ids=[current])
    with pytest.raises(ValidationError, match="cleanup is 'some': expected all, metadata or none"):
        expire(cleanup="some")
    with tree.transaction() as tx:
        tx.set_properties({"gc.enabled": "false"})
    with pytest.raises(ValidationError, match=r"gc\.enabled is false"):
        tree.refresh().maintenance.expire_snapshots()


def test_ten_thousand_snapshots() -> None:
    """One update removes all of them, with their statistics and their part of the log."""
    count = 10_000
    snapshots = [
        {"snapshot-id": number, "parent-snapshot-id": number - 1, "sequence-number": number,
         "timestamp-ms": NOW + number, "manifest-list": f"/t/{number}", "summary": {"operation": "append"}}
        for number in range(1, count + 1)
    ]  # fmt: skip
    document = empty_table() | {
        "snapshots": snapshots,
        "refs": {"main": {"snapshot-id": count, "type": "branch"}},
        "current-snapshot-id": count,
        "last-sequence-number": count,
        "last-updated-ms": NOW + count,
        "snapshot-log": [{"snapshot-id": number, "timestamp-ms": NOW + number} for number in range(1, count + 1)],
    }
    metadata = parse_table_metadata(json.dumps(document).encode(), "t")
    expired = choose_expired(metadata, ExpiryRules(NOW + HOUR, NOW + count - 10))
    after = without_expired(metadata, expired, None, NOW + HOUR)
    assert [snapshot.snapshot_id for snapshot in after.snapshots] == [*range(count - 10, count + 1)]
    assert [snapshot.snapshot_id for snapshot in after.snapshot_log] == [*range(count - 10, count + 1)]


# -- command and job -------------------------------------------------------------------------------------------------


def test_command_and_job(tree: sm.Table, capsys: pytest.CaptureFixture[str]) -> None:
    """Both print the plan, and execute it with --commit."""

    def command(*arguments: str) -> str:
        result = invoke(["expire-snapshots", tree.location(), "--older-than", "2100-01-01", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    assert "2 snapshots to expire, 1 snapshots stay" in command()
    assert "nothing is changed without --commit" in command()
    rows = [json.loads(line) for line in command("--files", "-o", "json").splitlines()]
    assert {row["file_path"] for row in rows if row["content"] == "data file"} == {"/data/f1", "/data/f2"}
    assert len(tree.refresh().metadata.snapshots) == 3
    job = runpy.run_path(str(JOBS / "expire_snapshots.py"))["main"]
    arguments = ["--table", tree.location(), "--older-than", "2100-01-01"]
    assert job([*arguments, "--retain-last", "2", "--commit"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["plan"]["snapshots"], result["committed"]["failed"]) == (1, 0)
    assert job([*arguments, "--snapshot-id", "5"]) == 1
    assert "has no snapshot 5" in capsys.readouterr().err
    assert "files deleted, 0 not deleted" in command("--commit")
    assert len(tree.refresh().metadata.snapshots) == 1
    assert "none of its 1 snapshots expires" in command("--commit")
