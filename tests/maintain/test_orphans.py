"""Orphan files: a listing or an inventory finds them, and old ones are deleted, as by Iceberg's Java library."""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta import session
from sparkmeta.entries.relation import select
from sparkmeta.errors import CommitStateUnknownError, NotFoundError, ValidationError
from sparkmeta.expr import sql
from sparkmeta.maintain import reachable as reachable_files
from sparkmeta.maintain.orphan_tasks import Folder
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.session import is_connect
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.location import path_of
from tests.command_line import invoke
from tests.commit.test_transaction import commit, files
from tests.conftest import configured
from tests.maintain.test_compact import mask_rows, new_table
from tests.maintain.test_expire import JOBS, files_below, opened, planned_paths, random_history, reachable, soon
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import Workshop
from tests.rows.comparison import row_texts
from tests.s3 import BUCKET, FILE_IOS, S3Server, methods

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

FIVE_DAYS = 5 * 24 * 3600
BY_TASKS = {"spark.sparkmeta.driver-manifest-bytes": "0"}


def plant(folder: Path, *names: str) -> set[str]:
    """Create files, and return their paths."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"orphan")
    return {str(folder / name) for name in names}


def age(folder: Path) -> None:
    """Make all files below a folder five days old."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - FIVE_DAYS,) * 2)


@pytest.fixture(params=["on the driver", "by tasks", "only listed on the driver"])
def in_each_place(
    request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Have the driver list, compare and delete files, and then tasks."""
    if request.param == "only listed on the driver":
        monkeypatch.setattr(reachable_files, "few_files", lambda *_: False)
    with configured(spark, BY_TASKS if request.param == "by tasks" else {}):
        yield


def folder_of(table: sm.Table) -> Path:
    return Path(local_path(table.location()))


def inventory_of(spark: SparkSession, paths: Iterable[str], days: float = 5) -> DataFrame:
    then = datetime.fromtimestamp(time.time() - days * 24 * 3600, UTC)
    return spark.createDataFrame([(path, then) for path in paths], "file_path string, last_modified timestamp")


# -- without Spark ---------------------------------------------------------------------------------------------------


def test_no_session_is_started_for_many_folders_and_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes longer than the driver needs to read a few hundred small files."""
    monkeypatch.setattr(session, "running_session", lambda: None)
    monkeypatch.setattr(session, "local_session", lambda: pytest.fail("a session was started"))
    catalog = sm.load_catalog("local", type="hadoop", warehouse=str(tmp_path))
    table = catalog.create_table("ns.t", pa.schema([("id", pa.int64())]))
    for number in range(MOST_REQUESTS + 1):
        table = table.append(pa.table({"id": [number]}))
    planted = plant(tmp_path / "ns/t/data", *(f"part={number}/orphan" for number in range(MOST_REQUESTS + 1)))
    age(tmp_path)
    plan = table.maintenance.remove_orphan_files()
    assert plan.summary().files == {"data": len(planted)}
    assert plan.commit().files == {"data": len(planted)}
    assert not any(Path(path).exists() for path in planted)
    assert table.scan().to_arrow().num_rows == MOST_REQUESTS + 1
    assert table.maintenance.expire_snapshots(older_than=soon(), retain_last=1).summary().snapshots == MOST_REQUESTS


# -- beside Iceberg's Java library -----------------------------------------------------------------------------------


def listed_by_java(shop: Workshop, arguments: str = "dry_run => true") -> set[str]:
    return {local_path(row.orphan_file_location) for row in shop.call("remove_orphan_files", arguments)}


@pytest.mark.java
@pytest.mark.parametrize("seed", range(40) if SOAK else [7])
def test_the_same_files_as_java(spark: SparkSession, seed: int) -> None:
    """Orphans are removed after random changes and expiry, by a listing and by an inventory.

    The table's rows stay the same.
    """
    rng = random.Random(seed)
    history = random_history(spark, f"orphans_{seed}", rng, steps=6)
    shop = history.shop
    shop.call("compute_table_stats")
    shop.call("compute_partition_stats")
    when = datetime.fromtimestamp(time.time() + 60, UTC).strftime("%Y-%m-%d %H:%M:%S")
    dropped = {path: Path(path).read_bytes() for path in files_below(shop.folder)}
    shop.call("expire_snapshots", f"older_than => TIMESTAMP '{when}', retain_last => {rng.randint(1, 3)}")
    for path, data in dropped.items():
        Path(path).write_bytes(data)  # as if no file had been deleted
    names = ["data/part=x/lost.parquet", "data/a b%20{c}[d]#e?.parquet", "metadata/lost-m0.avro", "x/y/z/deep", "top"]
    hidden = plant(shop.folder, "_spark/0", "data/.hidden/1", "data/_SUCCESS", "metadata/.lost.crc")
    planted = plant(shop.folder, *rng.sample(names, 4))
    age(shop.folder)
    young = plant(shop.folder, "data/young.parquet")
    table, before = opened(shop), files_below(shop.folder)
    rows = row_texts(shop.sql("SELECT * FROM {t}"))
    plan = table.maintenance.remove_orphan_files()
    planned = planned_paths(plan.to_df())
    assert planned == listed_by_java(shop)
    with configured(spark, BY_TASKS):
        by_tasks = opened(shop).maintenance.remove_orphan_files(older_than=plan.rules.older_than_ms)
        assert planned_paths(by_tasks.to_df()) == planned
        assert by_tasks.summary() == plan.summary()
    assert planned >= planted
    assert not planned & (hidden | young)
    located = [f"file://{path}" for path in before - young]
    by_inventory = table.maintenance.remove_orphan_files(files=inventory_of(spark, located * 2))
    assert sorted(row.file_path for row in by_inventory.to_df().collect()) == sorted(
        f"file://{path}" for path in planned
    )
    summary = plan.summary()
    assert sum(summary.files.values()) == len(planned)
    assert sum(summary.bytes.values()) == sum(Path(path).stat().st_size for path in planned)
    assert summary.listed == len(before - hidden)
    deletion = plan.commit()
    assert (deletion.files, deletion.failed) == (summary.files, 0)
    assert before - files_below(shop.folder) == planned
    assert table.maintenance.remove_orphan_files().summary().is_empty
    assert table.refresh().metadata_location == table.metadata_location
    shop.sql("REFRESH TABLE {t}")
    assert row_texts(shop.sql("SELECT * FROM {t}")) == rows
    history.insert()


@pytest.mark.java
def test_partition_folders_with_hidden_names(spark: SparkSession) -> None:
    shop = Workshop(Java(spark), "hidden_partitions")
    shop.create("id INT, _p STRING, `.q` STRING", "_p, `.q`", version=1)
    shop.insert("1, 'a', 'b'")
    planted = plant(shop.folder, "data/_p=a/.q=b/lost", "data/_p=c/x", "data/.q=/y")
    plant(shop.folder, "data/_p=a/_x/lost", "data/_pp=a/x", "data/_p/x", "data/_p=a/.lost")
    age(shop.folder)
    planned = planned_paths(opened(shop).maintenance.remove_orphan_files().to_df())
    assert planned == planted == listed_by_java(shop)


@pytest.mark.java
def test_schemes_and_authorities_as_java(spark: SparkSession) -> None:
    shop = Workshop(Java(spark), "prefixes")
    shop.create("id INT", version=2)
    folder, on_h1 = shop.folder, f"file://h1{shop.folder}"
    prefixes = ["file://h1", "FILE://H1", "file://h2", "file:", "", "s3a://h1", "S3N://h1", "hdfs://h2"]
    appended = shop.table.newAppend()
    for number, prefix in enumerate(prefixes):
        appended.appendFile(shop.content_file({"file-path": f"{prefix}{folder}/x//f{number}"}))
    appended.commit()
    listed = [f"{on_h1}/x/f{number}" for number in range(len(prefixes) + 1)]
    inventory_of(spark, [*listed, f"file://h3{folder}/x/g", f"{on_h1}-other/x/g"]).createOrReplaceTempView("inventory")
    table, refused = opened(shop), PySparkException if is_connect(spark) else Py4JJavaError
    equal: list[tuple[str, dict[str, dict[str, str]], set[int]]] = [
        ("", {}, {2, 5, 6, 7}),
        (
            "equal_schemes => map('s3,hdfs', 'file'), equal_authorities => map('h2', 'h1')",
            {"equal_schemes": {"s3,hdfs": "file"}, "equal_authorities": {"h2": "h1"}},
            {5, 6},
        ),
    ]
    for text, options, mismatched in equal:
        for mode in ("ignore", "delete"):
            java = f"file_list_view => 'inventory', location => '{on_h1}/', prefix_mismatch_mode => '{mode}'"
            rows = shop.call("remove_orphan_files", f"dry_run => true, {java}{text and ', ' + text}")
            plan = table.maintenance.remove_orphan_files(
                files=spark.table("inventory"), location=on_h1, prefix_mismatch_mode=mode, **options
            )
            planned = {row.file_path for row in plan.to_df().collect()}
            assert planned == {row.orphan_file_location for row in rows}, (text, mode)
            orphans = {len(prefixes)} | (mismatched if mode == "delete" else set())
            assert planned == {listed[number] for number in orphans}, (text, mode)
            assert plan.summary().mismatched == (len(mismatched) if mode == "ignore" else 0)
        with pytest.raises(ValidationError, match=r"s3a://h1 has 1 files, such as .*x/f5"):
            table.maintenance.remove_orphan_files(files=spark.table("inventory"), location=on_h1, **options).summary()
        with pytest.raises(refused, match="Unable to determine whether certain files are orphan"):
            shop.call("remove_orphan_files", f"dry_run => true, file_list_view => 'inventory', location => '{on_h1}/'")
    everything = {"s3,hdfs,s3a,s3n": "file"}
    plan = table.maintenance.remove_orphan_files(
        files=spark.table("inventory"), location=on_h1, equal_schemes=everything, equal_authorities={"h2": "h1"}
    )
    assert [row.file_path for row in plan.to_df().collect()] == [listed[-1]]


def test_paths_are_compared_as_storage_compares_them(spark: SparkSession) -> None:
    """Spark and Python agree, also on empty and dot segments."""
    rng = random.Random(3)
    parts = ["a", "b.c", "..", ".", "", "ä b", "%20", ".d", "e."]
    texts = ["/".join(rng.choice(parts) for _ in range(rng.randint(1, 6))) for _ in range(600)]
    beginnings = ["/w/t", "file:///w/t", "file:/w//t", "s3://b/w/t", "s3a:/w/./t", "file:///w/u/../t", "file:///w/tt"]
    locations = sorted({f"{rng.choice(beginnings)}/{text}" for text in texts if text.strip("/.")})
    for location in ("file:///w/t", "file:///w/t/", "/w/t", "s3://b/w/t"):
        folder = Folder.of(location)
        rows, path = spark.createDataFrame([(each,) for each in locations], "path string"), sql.col("path")
        has_prefix = folder.has_prefix_of(path, or_none=location == "/w/t").alias("has_prefix")
        columns = [path.alias("path"), folder.key_of(path).alias("key"), has_prefix]
        keys = select(rows, columns).toArrow().to_pylist()
        assert {row["path"]: row["key"] for row in keys} == {each: path_of(each) for each in locations}
        assert select(pa.table({"path": [row["path"] for row in keys]}), columns).to_pylist() == keys


# -- trees -----------------------------------------------------------------------------------------------------------


def append_real(table: sm.Table, *ids: int, old: bool = True) -> sm.Table:
    """Append data files below the table's folder."""
    folder = folder_of(table) / "data"
    paths = plant(folder, *(f"f{number}" for number in ids))
    for path in paths if old else ():
        os.utime(path, (time.time() - FIVE_DAYS,) * 2)
    frame = files(table.state.spark, *ids).withColumn(
        "file_path", F.regexp_replace("file_path", "^/data", f"file://{folder}")
    )
    return commit(table, lambda tx: tx.update_snapshot().append(frame))


def delete_real(table: sm.Table, *ids: int) -> sm.Table:
    paths = [(f"file://{folder_of(table)}/data/f{number}",) for number in ids]
    gone = table.state.spark.createDataFrame(paths, "file_path string")
    return commit(table, lambda tx: tx.update_snapshot().delete(gone))


def needed(table: sm.Table) -> set[str]:
    """Return the files that a tree needs."""
    logged = {local_path(entry.metadata_file) for entry in table.metadata.metadata_log}
    current = {local_path(table.metadata_location), str(folder_of(table) / "metadata" / "version-hint.text")}
    return logged.union(current, *reachable(table).values())


def unknown(*_: Any) -> Any:
    raise CommitStateUnknownError("who knows")


@pytest.mark.usefixtures("in_each_place")
@pytest.mark.parametrize("seed", range(20) if SOAK else [1])
def test_files_of_a_tree(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """After random commits that may fail, an expiry and a compaction, every unneeded file is deleted."""
    rng = random.Random(seed)
    table = append_real(new_table(spark, tmp_path), *range(4))
    folder, left = folder_of(table), set[str]()
    live = {0, 1, 2, 3}
    for step in range(4, 16, 2):
        match (
            rng.choice(["append", "delete", "compact", "mask", "lost"]) if step < 12 else ("lost", "delete")[step > 12]
        ):
            case "append":
                table, live = append_real(table, step, step + 1), live | {step, step + 1}
            case "delete" if len(live) > 1:
                gone = rng.sample(sorted(live), 2)
                table, live = delete_real(table, *gone), live - {*gone}
            case "compact":
                table = table.maintenance.compact_manifests(min_masked_ratio=0.01).commit()
            case "mask":
                table = mask_rows(table, folder, f"dv{step}.puffin", **{f"m{step}": [1]}) if step in live else table
            case _:
                before = files_below(folder)
                with monkeypatch.context() as patched:
                    patched.setattr(FileSystemOperations, "commit", unknown)
                    with pytest.raises(CommitStateUnknownError):
                        append_real(table, 100 + step)
                left |= files_below(folder) - before
        table = table.refresh()
    assert any("/metadata/" in path for path in left), "a lost attempt leaves its root or leaves"
    expired = table.metadata.snapshots[1].timestamp_ms + 1
    table = table.maintenance.expire_snapshots(older_than=expired, cleanup="none").commit()
    left |= plant(folder, f"metadata/{uuid.uuid4()}.tmp", "data/lost.parquet")
    age(folder)
    young = plant(folder, "data/young.parquet", f"metadata/{uuid.uuid4()}-m0.parquet")
    needed_files, before = needed(table), files_below(folder)
    plan = table.maintenance.remove_orphan_files()
    planned = planned_paths(plan.to_df())
    assert planned == before - needed_files - young
    assert planned >= left
    summary = plan.summary()
    assert summary.files.keys() == {"data", "metadata", "unfinished write"}
    assert "older than" in str(summary)
    rows = {
        snapshot.snapshot_id: table.scan(snapshot_id=snapshot.snapshot_id).plan_files().count()
        for snapshot in table.snapshots()
    }
    plan.commit()
    assert files_below(folder) == before - planned
    assert table.check().isEmpty()
    assert {snapshot_id: table.scan(snapshot_id=snapshot_id).plan_files().count() for snapshot_id in rows} == rows
    append_real(table, 200)


def test_files_that_a_commit_needs_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    """Planned files that a new version needs stay, even if the table was loaded before it."""
    table = append_real(new_table(spark, tmp_path), 1)
    folder = folder_of(table)
    planted = plant(folder, "data/f5", "data/f6", "data/f7")
    age(folder)
    append_real(table, 5)
    plan = table.maintenance.remove_orphan_files()
    assert planned_paths(plan.to_df()) == planted - {str(folder / "data/f5")}
    append_real(table.refresh(), 6, 8)
    deletion = plan.commit()
    assert deletion.files == {"data": 1}
    assert files_below(folder / "data") == {str(folder / f"data/f{number}") for number in (1, 5, 6, 8)}
    assert table.refresh().check().isEmpty()


@pytest.mark.usefixtures("in_each_place")
def test_files_that_can_not_be_deleted(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are counted and named, and the next plan contains them."""
    table = append_real(new_table(spark, tmp_path), 1)
    folder = folder_of(table)
    first, second = sorted(plant(folder, "data/lost1", "data/lost2"))
    age(folder)
    plan = table.maintenance.remove_orphan_files()
    assert plan.result()["committed"] is None
    assert planned_paths(plan.to_df()) == {first, second}
    Path(first).unlink()
    Path(first).mkdir()
    deletion = plan.commit()
    assert (deletion.files, deletion.bytes, deletion.failed) == ({"data": 1}, {"data": 6}, 1)
    assert deletion.problems[0].startswith(f"file://{first}") or deletion.problems[0].startswith(first)
    assert not Path(second).exists()
    Path(first).rmdir()
    Path(first).write_bytes(b"again")
    age(folder)
    assert plan.commit() is deletion
    assert Path(first).exists()
    assert table.maintenance.remove_orphan_files().commit().files == {"data": 1}
    assert not Path(first).exists()


# -- other tables and other places -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_each_place")
def test_tables_that_share_a_location(spark: SparkSession, tmp_path: Path) -> None:
    table = append_real(new_table(spark, tmp_path), 1)
    folder = folder_of(table)
    below = sm.load_catalog("test", type="hadoop", warehouse=str(folder)).create_table(
        "ns.inner", table.schema(), format_version=2, spark=spark
    )
    orphans = plant(folder, "data/lost", "ns/lost")
    of_inner = plant(folder, "ns/inner/data/lost")
    age(folder)
    plan = table.maintenance.remove_orphan_files()
    assert planned_paths(plan.to_df()) == orphans
    assert plan.summary().other_tables == (f"{folder}/ns/inner/",)
    assert "files of other tables stay" in str(plan.summary())
    # The inner table's folder is below the outer table's.
    with pytest.raises(ValidationError, match=r"another table shares .*metadata/v\d.metadata.json"):
        below.maintenance.remove_orphan_files(force=True).to_df()
    assert planned_paths(below.maintenance.remove_orphan_files(shared_location=True).to_df()) == of_inner
    with pytest.raises(ValidationError, match="another table shares"):
        table.maintenance.remove_orphan_files(location=f"{folder}/ns/inner/data").to_df()
    # An earlier table in the same folder, and the same table by another path.
    former = json.loads((folder / "metadata/v1.metadata.json").read_bytes()) | {"table-uuid": str(uuid.uuid4())}
    (folder / "metadata/00007-x.metadata.json").write_text(json.dumps(former))
    with pytest.raises(ValidationError, match=r"00007-x\.metadata\.json; the option shared_location permits it"):
        table.maintenance.remove_orphan_files().summary()
    # A table of version 1 without a uuid; and the table's own uuid in upper case.
    former = {key: value for key, value in former.items() if key != "table-uuid"}
    (folder / "metadata/00007-x.metadata.json").write_text(json.dumps(former))
    with pytest.raises(ValidationError, match=r"00007-x\.metadata\.json; the option shared_location permits it"):
        table.maintenance.remove_orphan_files().summary()
    former["table-uuid"] = str(table.metadata.table_uuid).upper()
    (folder / "metadata/00007-x.metadata.json").write_text(json.dumps(former))
    assert table.maintenance.remove_orphan_files().summary().other_tables == (f"{folder}/ns/inner/",)
    (folder / "metadata/00007-x.metadata.json").write_text("")
    assert table.maintenance.remove_orphan_files().summary().other_tables == (f"{folder}/ns/inner/",)
    (folder / "metadata/00007-x.metadata.json").unlink()
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(ValidationError, match="another table shares"):
        table.maintenance.remove_orphan_files(location=str(link)).to_df()
    # A link to a folder of the table is not followed.
    (folder / "alias").symlink_to(folder / "data")
    assert planned_paths(plan.to_df()) == orphans
    assert planned_paths(table.maintenance.remove_orphan_files().to_df()) == orphans


def test_a_table_that_is_opened_elsewhere(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path starts at the current folder. By another path, the table's own files would seem foreign."""
    table = append_real(new_table(spark, tmp_path), 1)
    folder = folder_of(table)
    orphans = plant(folder, "data/lost")
    age(folder)
    monkeypatch.chdir(folder.parent)
    relative = sm.load_table(folder.name, spark=spark)
    assert relative.metadata_location == str(folder / "metadata" / Path(table.metadata_location).name)
    with relative.transaction() as tx:
        tx.set_properties({"a": "b"})
    relative = relative.refresh()
    assert all(entry.metadata_file.startswith("/") for entry in relative.metadata.metadata_log)
    age(folder)
    assert planned_paths(relative.maintenance.remove_orphan_files().to_df()) == orphans
    (link := tmp_path / "link").symlink_to(folder)
    with sm.load_table(str(link), spark=spark).transaction() as tx:
        tx.set_properties({"a": "c"})
    for options in ({}, {"shared_location": True}):
        with pytest.raises(ValidationError, match=r"is a link to .*: open the table there"):
            sm.load_table(str(link), spark=spark).maintenance.remove_orphan_files(**options).commit()
    assert sm.load_table(str(folder), spark=spark).scan().count() == table.scan().count()


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("spelling", ["{}//t", "{}/./t", "{}/other/../t", "file:{}//t", "file://{}/./t"])
def test_paths_with_empty_and_dot_segments(spelling: str, version: int, tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "other").mkdir()
    catalog = sm.load_catalog("c", type="hadoop", warehouse=str(tmp_path.parent))
    name, properties = f"{tmp_path.name}.t", {"format-version": str(version)}
    catalog.create_table(name, pa.schema([("a", pa.int64())]), properties=properties).append(pa.table({"a": [1]}))
    (tmp_path / "t/data/lost").touch()
    age(tmp_path / "t")
    spelled = spelling.format(tmp_path)
    for options in ({}, {"location": spelled}, {"location": str(tmp_path / "t")}):
        plan = sm.load_table(spelled, spark=spark).maintenance.remove_orphan_files(**options)
        assert [Path(path).name for path in planned_paths(plan.to_df())] == ["lost"]


def test_a_name_that_is_not_utf_8(spark: SparkSession, tmp_path: Path) -> None:
    table = append_real(new_table(spark, tmp_path), 1)
    orphans = plant(folder_of(table), "data/lost")
    unreadable = os.fsencode(folder_of(table) / "data") + b"/caf\xe9.parquet"
    Path(os.fsdecode(unreadable)).touch()
    age(folder_of(table))
    plan = table.maintenance.remove_orphan_files()
    assert planned_paths(plan.to_df()) == orphans
    plan.commit()
    assert os.path.exists(unreadable)  # noqa: PTH110  a name of bytes


def test_another_location(spark: SparkSession, tmp_path: Path) -> None:
    table = append_real(new_table(spark, tmp_path), 1)
    table = commit(table, lambda tx: tx.update_snapshot().append(files(spark, 2)))
    folder = folder_of(table)
    planted = plant(folder, "data/lost", "lost")
    age(folder)
    plan = table.maintenance.remove_orphan_files(location=f"file://{folder}/data")
    assert planned_paths(plan.to_df()) == {str(folder / "data/lost")}
    summary = table.maintenance.remove_orphan_files().summary()
    assert summary.elsewhere == 1
    assert "1 files referenced by the table are outside this location, which was not searched" in str(summary)
    assert planned_paths(table.maintenance.remove_orphan_files(location=str(tmp_path)).to_df()) == planted
    with pytest.raises(NotFoundError, match="none: there is no file below it"):
        table.maintenance.remove_orphan_files(location=f"{folder}/none").to_df()


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = append_real(new_table(spark, tmp_path), 1)
    remove = table.maintenance.remove_orphan_files
    yesterday = int((time.time() - 23 * 3600) * 1000)
    moment = datetime.fromtimestamp(yesterday / 1000, UTC)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"older_than": yesterday}, "older_than is .*less than 24 hours ago"),
        ({"older_than": moment}, rf"older_than is {re.escape(moment.isoformat())}: less.*; the option force permits"),
        ({"older_than": datetime(2026, 1, 1)}, "older_than is .*a datetime with a time zone"),  # noqa: DTZ001
        ({"prefix_mismatch_mode": "none"}, "prefix_mismatch_mode is 'none': expected error, ignore or delete"),
        ({"location": "file:///"}, "location is 'file:///': expected a folder"),
        ({"location": 5}, "location is 5: expected the URI or absolute path of a folder"),
        ({"location": ""}, "location is '': expected the URI or absolute path of a folder"),
        ({"location": "data"}, "location is 'data': expected the URI or absolute path of a folder"),
        ({"equal_schemes": "s3a=s3"}, "equal_schemes is 's3a=s3': expected a mapping of strings to strings"),
        ({"equal_authorities": {"a": 1}}, "equal_authorities is {'a': 1}: expected a mapping of strings to strings"),
        ({"force": "no", "older_than": yesterday}, "force is 'no': expected true or false"),
        ({"shared_location": "no"}, "shared_location is 'no': expected true or false"),
        ({"equal_schemes": {"s3a,": "s3"}}, "equal_schemes has 's3a,': 's3': expected names"),
        ({"files": spark.sql("SELECT 'a' AS file_path")}, "files has no column last_modified"),
        (
            {"files": spark.sql("SELECT 'a' AS file_path, '2020-01-01' AS last_modified")},
            "files.last_modified is of type string: expected timestamp",
        ),
    ]
    for options, message in refused:
        with pytest.raises(ValidationError, match=message):
            remove(**options)
    with pytest.raises(NotFoundError, match="no file below it in the inventory"):
        remove(files=inventory_of(spark, [f"{table.location()}-2/x"])).summary()
    assert remove(files=inventory_of(spark, [])).summary().is_empty
    assert remove(older_than=yesterday, force=True).summary().is_empty
    plan = remove(older_than=soon(), force=True)
    with table.transaction() as tx:
        tx.set_properties({"gc.enabled": "false"})
    with pytest.raises(ValidationError, match=r"gc\.enabled is false"):
        table.refresh().maintenance.remove_orphan_files()
    plant(folder_of(table), "data/lost")
    with pytest.raises(ValidationError, match=r"gc\.enabled is false"):
        plan.commit()
    assert (folder_of(table) / "data/lost").exists()


# -- stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FILE_IOS)
def test_folders_of_a_store(s3: S3Server, kind: str) -> None:
    """A listing requests 1,000 names at a time, regardless of folders."""
    import boto3

    root = f"walk-{uuid.uuid4()}"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=s3.url, **keys)
    names = {f"p={number % 40}/f {number}%20" for number in range(1100)} | {"top", "deep/er/x"}
    for name in names:
        client.put_object(Bucket=BUCKET, Key=f"{root}/{name}", Body=b"12")
    client.put_object(Bucket=BUCKET, Key=f"{root}/empty/", Body=b"")
    client.put_object(Bucket=BUCKET, Key=f"{root}x/other", Body=b"12")
    reader = ExecutorReader(s3.io(kind).properties | {"py-io-impl": FILE_IOS[kind]})
    folder = f"s3://{BUCKET}/{root}"
    with s3.counted() as sent:
        rows = [row for batch in reader.walk(folder, recursive=True) for row in batch.to_pylist()]
    assert {row["path"] for row in rows} == {f"{folder}/{name}" for name in names}
    assert len(rows) == len(names)
    assert {row["length"] for row in rows} == {2}
    assert all(abs(row["modified_ms"] / 1000 - time.time()) < 3600 for row in rows)
    assert methods(sent)["GET"] <= 3
    level = [row for batch in reader.walk(f"{folder}/", recursive=False) for row in batch.to_pylist()]
    folders = {f"{folder}/{name}" for name in [*(f"p={number}" for number in range(40)), "deep", "empty"]}
    assert {row["path"] for row in level if row["is_folder"]} == folders
    assert [row["path"] for row in level if not row["is_folder"]] == [f"{folder}/top"]
    assert sum(len(batch) for batch in reader.walk(f"{folder}/none", recursive=True)) == 0


def test_empty_names_in_keys(s3: S3Server) -> None:
    """Level by level, each file is listed once, with its unchanged key."""
    import boto3

    root = f"empty-{uuid.uuid4()}"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=s3.url, **keys)
    names = {"data/a", "data//b", "data/c//d/e", "/data/a", "//f"}
    for name in names:
        client.put_object(Bucket=BUCKET, Key=f"{root}/{name}", Body=b"12")
    reader = ExecutorReader(s3.io("fsspec").properties | {"py-io-impl": FILE_IOS["fsspec"]})
    level, listed = [f"s3://{BUCKET}/{root}"], list[str]()
    for _ in range(4):
        rows = [row for folder in level for batch in reader.walk(folder, recursive=False) for row in batch.to_pylist()]
        level = [row["path"] for row in rows if row["is_folder"]]
        listed += [row["path"] for row in rows if not row["is_folder"]]
    assert level == []
    assert sorted(listed) == sorted(f"s3://{BUCKET}/{root}/{name}" for name in names)


@pytest.mark.parametrize("kind", FILE_IOS)
def test_a_table_on_s3(spark: SparkSession, s3: S3Server, kind: str) -> None:
    properties = s3.properties | {"py-io-impl": FILE_IOS["fsspec"]}
    location = f"s3://{BUCKET}/{uuid.uuid4()}"
    lake: Any = sm.load_catalog("lake", type="hadoop", warehouse=location, **properties)
    table = lake.create_table("db.t", new_schema(), format_version=4, spark=spark)
    io = s3.io(kind)
    for name in ("data/f1", "data/lost", "data/_hidden/x", "metadata/1-2-root-3.parquet"):
        with io.new_output(f"{table.location()}/{name}").create() as stream:
            stream.write(b"1234")
    frame = files(spark, 1).drop("partition").withColumn("file_path", F.lit(f"s3a{table.location()[2:]}/data/f1"))
    table = commit(table, lambda tx: tx.update_snapshot().append(frame))
    other: Any = sm.load_catalog("lake", type="hadoop", warehouse=location, **s3.io(kind).properties)
    table = other.load_table("db.t", spark=spark)
    plan = table.maintenance.remove_orphan_files(older_than=soon(), force=True)
    lost = {f"{table.location()}/{name}" for name in ("data/lost", "metadata/1-2-root-3.parquet")}
    assert {row.file_path for row in plan.to_df().collect()} == lost
    assert plan.summary().bytes == {"data": 4, "metadata": 4}
    assert plan.commit().files == {"data": 1, "metadata": 1}
    assert table.maintenance.remove_orphan_files(older_than=soon(), force=True).summary().is_empty
    assert table.refresh().scan().plan_files().count() == 1


def new_schema() -> Any:
    from tests.commit.test_transaction import SCHEMA

    return SCHEMA


# -- command and job -------------------------------------------------------------------------------------------------


def test_command_and_job(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both print the plan, and delete the files with --commit."""
    table = append_real(new_table(spark, tmp_path), 1)
    folder = folder_of(table)
    planted = plant(folder, "data/lost1", "data/lost2")
    age(folder)

    def command(*arguments: str) -> str:
        result = invoke(["remove-orphan-files", table.location(), *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    assert re.search(r"2 of \d+ files are orphans, with 12 bytes", command())
    assert "nothing is changed without --commit" in command("--equal-scheme", "s3a,s3n=s3")
    rows = [json.loads(line) for line in command("--files", "-o", "json").splitlines()]
    assert {local_path(row["file_path"]) for row in rows} == planted
    inventory = tmp_path / "inventory"
    inventory_of(spark, [f"{folder}/data/lost1"]).write.parquet(str(inventory))
    job = runpy.run_path(str(JOBS / "remove_orphan_files.py"))["main"]
    arguments = ["--table", table.location(), "--inventory", str(inventory)]
    assert job([*arguments, "--equal-authority", "a=b", "--commit"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["plan"]["files"], result["committed"]["files"]) == ({"data": 1}, {"data": 1})
    assert job([*arguments, "--older-than", "2100-01-01"]) == 1
    assert "less than 24 hours ago" in capsys.readouterr().err
    assert job(["--table", table.location(), "--inventory", str(tmp_path / "none")]) == 1
    assert "1 files deleted, 0 not deleted" in command("--commit")
    assert files_below(folder / "data") == {str(folder / "data/f1")}
    assert "0 of" in command("--commit")
