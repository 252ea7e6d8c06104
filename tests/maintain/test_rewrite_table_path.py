"""Tables that move: whole and in steps, on the driver and by tasks, with what is copied, told and refused."""

from __future__ import annotations

import csv
import gzip
import json
import random
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.errors import NotFoundError, UnsupportedError, ValidationError
from tests.command_line import invoke
from tests.conftest import configured
from tests.maintain.test_expire import opened, random_history, soon
from tests.peers.file_maker import local_path
from tests.peers.slices import SOAK
from tests.rows.comparison import row_texts
from tests.s3 import BUCKET, FILE_IOS
from tests.write.test_changes import frame, new_table, ordinary, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.s3 import S3Server

BY_TASKS = {"spark.sparkmeta.driver-manifest-bytes": "0"}


@pytest.fixture(params=["driver", "tasks"])
def in_each_place(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Have the driver rewrite and copy few files, and then tasks."""
    with configured(spark, BY_TASKS if request.param == "tasks" else {}):
        yield


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def versions(table: sm.Table) -> dict[int, list[Any]]:
    """Return the rows of each snapshot."""
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    scans = {snapshot_id: table.scan(snapshot_id=snapshot_id) for snapshot_id in ids}
    return {snapshot_id: sorted(map(repr, scan.to_arrow().to_pylist())) for snapshot_id, scan in scans.items()}


def assert_recorded_sizes(table: sm.Table) -> None:
    """Check the lengths of manifests and deletes, by which readers find their footers."""
    manifests, deletes = table.inspect.arrow.manifests(), table.inspect.arrow.delete_files()
    if table.state.layout.colocates:  # entries have the sizes of vectors
        deletes = deletes.slice(0, 0)
    paths = [*manifests["path"].to_pylist(), *deletes["file_path"].to_pylist()]
    sizes = [*manifests["length"].to_pylist(), *deletes["file_size_in_bytes"].to_pylist()]
    assert [Path(local_path(path)).stat().st_size for path in paths] == sizes


def changed(table: sm.Table, start: int) -> sm.Table:
    """Add rows and delete some, in new files and with deletes."""
    spark = table.state.spark
    table = table.append(frame(spark, ordinary(start, start + 6)).coalesce(1))
    return table.delete(f"id = {start + 1}")


KINDS: dict[str, tuple[int, dict[str, str]]] = {
    "v1": (1, {}),
    "v2": (2, {"write.delete.mode": "merge-on-read"}),
    "v2, partition deletes": (2, {"write.delete.mode": "merge-on-read", "write.delete.granularity": "partition"}),
    "v2, compressed": (2, {"write.metadata.compression-codec": "gzip", "write.delete.mode": "merge-on-read"}),
    "v3": (3, {"write.delete.mode": "merge-on-read"}),
    "absolute tree": (4, {"write.tree.relative-locations": "false"}),
    "relative tree": (4, {}),
    "tree of the Iceberg project": (4, {"write.tree.layout": "iceberg", "write.tree.relative-locations": "false"}),
}


def of_kind(spark: SparkSession, folder: Path, kind: str) -> sm.Table:
    version, properties = KINDS[kind]
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=f"file://{folder}")
    table = new_table(spark, folder / "unused", version=version)
    schema, spec = table.schema(), table.spec()
    small = {"write.tree.direct-files": "2", "write.tree.flush-data-files": "3"} if version == 4 else {}
    catalog.create_namespace("moved")
    return catalog.create_table(
        "moved.t", schema, spec, format_version=version, properties={**small, **properties}, spark=spark
    )


@pytest.mark.usefixtures("in_each_place")
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_moves_twice(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """First whole, then the later changes; the old place is gone each time the rows are read."""
    table = changed(changed(of_kind(spark, tmp_path / "old", kind), 0), 10)
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, "first").commit()
    table = table.refresh()
    places = "file://" + str(tmp_path / "old"), "file://" + str(tmp_path / "new é 1")
    whole = table.maintenance.rewrite_table_path(*places, copy_files=True)
    first = whole.commit()
    assert first.copied == first.listed == whole.to_df().count()
    start = Path(table.metadata_location).name
    table = changed(table, 20)
    table = table.maintenance.rewrite_data_files(rewrite_all=True).commit() if kind != "v1" else table
    expected, refs = versions(table), table.metadata.refs
    later = table.maintenance.rewrite_table_path(*places, copy_files=True, start_version=start)
    before = {row.target_path for row in whole.to_df().collect()}
    listed = {row.target_path: row.content for row in later.to_df().collect()}
    assert {listed[path] for path in before & listed.keys()} <= {"version hint"}
    second = later.commit()
    (tmp_path / "old").rename(tmp_path / "hidden")
    moved = sm.load_table(second.metadata_location, spark=spark)
    assert versions(moved) == expected
    assert row_texts(moved.check()) == []
    assert_recorded_sizes(moved)
    assert moved.metadata.refs == refs
    assert [*moved.inspect.arrow.metadata_log_entries()["file"].to_pylist()] == [
        path.replace(*places) for path in table.inspect.arrow.metadata_log_entries()["file"].to_pylist()
    ]
    by_folder = sm.load_catalog("rows", type="hadoop", warehouse=places[1], spark=spark).load_table("moved.t")
    assert versions(changed(by_folder, 30))[moved.metadata.current_snapshot_id] == expected[max_id(moved)]
    assert not by_folder.maintenance.remove_orphan_files(older_than=soon(), force=True).to_df().collect()


def max_id(table: sm.Table) -> int:
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    return snapshot_id


@pytest.mark.java
@pytest.mark.usefixtures("in_each_place")
@pytest.mark.parametrize("seed", range(20) if SOAK else [1, 2])
def test_random_histories_of_java(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """A table moves in random steps, while snapshots expire and manifests are rewritten."""
    rng = random.Random(seed)
    shop = random_history(
        spark, f"moved_{seed}_{rng.randrange(1 << 30)}_{tmp_path.name[-1]}", rng, steps=6, version=rng.choice([2, 3])
    ).shop
    table, folder = opened(shop), shop.folder
    source, target = f"file://{folder}", f"file://{tmp_path}/moved"
    start = None
    for step in range(3):
        plan = table.maintenance.rewrite_table_path(source, target, start_version=start, copy_files=True)
        result = plan.commit()
        start = table.metadata_location
        expected = versions(table)
        folder.rename(tmp_path / "hidden")
        moved = sm.load_table(result.metadata_location, spark=spark)
        assert versions(moved) == expected
        assert row_texts(moved.check()) == []
        assert_recorded_sizes(moved)
        (tmp_path / "hidden").rename(folder)
        shop.sql(f"DELETE FROM {{t}} WHERE id % 7 = {step}")
        shop.sql(f"INSERT INTO {{t}} VALUES ({step + 1000}, 'x', 'a')")
        table = opened(shop)
        if step:
            table = table.maintenance.expire_snapshots(older_than=soon(), retain_last=2).commit()
            table = table.maintenance.rewrite_manifests().commit()


def test_removed_deletes_need_not_exist(spark: SparkSession, tmp_path: Path) -> None:
    """A manifest keeps entries of removed deletes, whose files expiry has deleted."""
    table = of_kind(spark, tmp_path / "old", "v2")
    table = changed(changed(table, 0), 10).maintenance.rewrite_position_delete_files(rewrite_all=True).commit()
    table = table.maintenance.expire_snapshots(older_than=soon(), retain_last=1).commit()
    entries = table.inspect.arrow.entries().to_pylist()
    removed = [entry["data_file"]["file_path"] for entry in entries if entry["status"] == 2]
    assert removed
    assert not any(local(path).exists() for path in removed)
    expected = versions(table)
    new = f"file://{tmp_path}/new"
    plan = table.maintenance.rewrite_table_path(f"file://{tmp_path}/old", new, copy_files=True)
    moved = sm.load_table(plan.commit().metadata_location, spark=spark)
    assert versions(moved) == expected
    after = moved.inspect.arrow.entries().to_pylist()
    paths = {entry["data_file"]["file_path"] for entry in after}
    assert all(path.startswith(new) for path in paths)
    assert {path.replace(new, f"file://{tmp_path}/old") for path in paths} >= set(removed)


def test_the_list_and_an_interrupted_copy(spark: SparkSession, tmp_path: Path) -> None:
    table = changed(of_kind(spark, tmp_path / "old", "v3"), 0)
    names = f"file://{tmp_path}/old", f"file://{tmp_path}/new"
    options = {"staging_location": f"file://{tmp_path}/staging"}
    plan = table.maintenance.rewrite_table_path(*names, **options)
    rows = plan.to_df().collect()
    assert not (tmp_path / "staging").exists()
    result = plan.commit()
    assert plan.commit() is result
    assert (result.copied, result.listed) == (None, len(rows))
    lines = [line for file in local(result.file_list).glob("*.csv") for line in csv.reader(file.open())]
    assert sorted(map(tuple, lines)) == sorted((row.source_path, row.target_path) for row in rows)
    assert {row.rewritten for row in rows if row.content == "data file"} == {False}
    assert not (tmp_path / "new").exists()
    # Someone has copied a part: one file is torn.
    copied = [row for row in rows if row.content == "data file"]
    torn = local(copied[0].target_path)
    torn.parent.mkdir(parents=True)
    torn.write_bytes(local(copied[0].source_path).read_bytes()[:-1])
    for row in copied[1:]:
        local(row.target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(local(row.source_path), local(row.target_path))
    again = table.maintenance.rewrite_table_path(*names, **options, copy_files=True).commit()
    assert again.copied == len(rows) - len(copied[1:])
    files = [path for path in (tmp_path / "staging").rglob("*") if path.is_file() and path.suffix != ".csv"]
    staged = {path: path.read_bytes() for path in files}
    once_more = table.maintenance.rewrite_table_path(*names, **options, copy_files=True).commit()
    assert once_more.copied == result.rewritten
    assert all(path.read_bytes() == data for path, data in staged.items())
    moved = sm.load_table(once_more.metadata_location, spark=spark)
    assert rows_of(moved) == rows_of(table)
    assert table.refresh().metadata_location == table.metadata_location


def test_deletes_that_a_root_masks_need_not_exist(spark: SparkSession, tmp_path: Path) -> None:
    """A leaf keeps their entries, and expiry deletes their files."""
    table = of_kind(spark, tmp_path / "old", "absolute tree")
    with table.transaction() as tx:
        limits = dict.fromkeys(("direct-files", "flush-data-files", "flush-delete-files"), "1")
        tx.set_properties({f"write.tree.{name}": limit for name, limit in limits.items()})
        tx.set_properties({"write.delete.mode": "merge-on-read"})
    table = table.refresh()
    for start in (0, 10, 20):
        table = changed(table, start)
    for row_id in (2, 3, 4, 12, 13):
        table = table.delete(f"id = {row_id}")
    table = table.maintenance.expire_snapshots(older_than=soon(), retain_last=1).commit()
    expected = versions(table)
    places = f"file://{tmp_path}/old", f"file://{tmp_path}/new"
    result = table.maintenance.rewrite_table_path(*places, copy_files=True).commit()
    (tmp_path / "old").rename(tmp_path / "hidden")
    moved = sm.load_table(result.metadata_location, spark=spark)
    assert versions(moved) == expected
    assert row_texts(moved.check()) == []


def test_files_are_staged_where_they_go(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is copied onto itself; and commits at the new place are not overwritten."""
    table = changed(of_kind(spark, tmp_path / "old", "v2"), 0)
    places, start = (f"file://{tmp_path}/old", f"file://{tmp_path}/new"), table.metadata_location
    options: dict[str, Any] = {"staging_location": places[1], "copy_files": True}
    result = table.maintenance.rewrite_table_path(*places, **options).commit()
    moved = sm.load_table(f"{places[1]}/moved/t", spark=spark)
    assert moved.metadata_location == result.metadata_location
    assert rows_of(moved) == rows_of(table)
    changed(moved, 50)
    before = {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    later = changed(table, 10).maintenance.rewrite_table_path(*places, start_version=start, copy_files=True)
    with pytest.raises(ValidationError, match=r"metadata\.json: another metadata file has this name"):
        later.commit()
    assert {path: path.read_bytes() for path in before} == before


def test_an_earlier_version(spark: SparkSession, tmp_path: Path) -> None:
    table = changed(of_kind(spark, tmp_path / "old", "v2"), 0)
    expected, end = versions(table), Path(table.metadata_location).name
    later = changed(table, 10)
    names = f"file://{tmp_path}/old", f"file://{tmp_path}/new"
    plan = later.maintenance.rewrite_table_path(*names, end_version=end, copy_files=True)
    result = plan.commit()
    assert result.metadata_location == f"file://{tmp_path}/new/moved/t/metadata/{end}"
    assert versions(sm.load_table(result.metadata_location, spark=spark)) == expected
    assert versions(sm.load_table(f"file://{tmp_path}/new/moved/t", spark=spark)) == expected


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = changed(of_kind(spark, tmp_path / "old", "v3"), 0)
    old, new = f"file://{tmp_path}/old", f"file://{tmp_path}/new"
    rewrite: Any = table.maintenance.rewrite_table_path
    current = Path(table.metadata_location).name
    cases: dict[str, Callable[[], Any]] = {
        "source_prefix is 'old': expected an absolute location": lambda: rewrite("old", new),
        "target_prefix is '/': expected an absolute location": lambda: rewrite(old, "/"),
        "source_prefix is None: expected a name": lambda: rewrite(None, new),
        rf"source_prefix is '{old}/m': .* does not begin with it": lambda: rewrite(f"{old}/m", new),
        "target_prefix is '.*/old/': it is the source_prefix": lambda: rewrite(old, f"{old}/"),
        "staging_location is '/.*/old': it is the source_prefix": lambda: rewrite(
            old, new, staging_location=f"{tmp_path}/old"
        ),
        "source_prefix is 'file:///': expected an absolute location": lambda: rewrite("file:///", new),
        "end_version is 'v9.metadata.json': expected a metadata file": lambda: rewrite(
            old, new, end_version="v9.metadata.json"
        ),
        "start_version is .*: it is not before": lambda: rewrite(old, new, start_version=current),
    }
    for problem, call in cases.items():
        with pytest.raises(ValidationError, match=problem):
            call()
    outside = tmp_path / "elsewhere" / "a.parquet"
    outside.parent.mkdir()
    pq.write_table(pa.table({"id": pa.array([99], pa.int64()), "part": ["a"], "n": pa.array([1], pa.int32())}), outside)
    with_file = table.add_files([str(outside)])
    plan = with_file.maintenance.rewrite_table_path(old, new)
    for call in (plan.to_df, plan.summary, plan.commit):
        with pytest.raises(ValidationError, match=r"a\.parquet: the location does not begin with source_prefix"):
            call()
    assert not local(plan.staging_location).exists()
    wider = with_file.maintenance.rewrite_table_path(f"file://{tmp_path}", f"{new}/all", copy_files=True)
    assert rows_of(sm.load_table(wider.commit().metadata_location, spark=spark)) == rows_of(with_file)
    manifest = local(table.inspect.arrow.manifests().column("path")[0].as_py())
    manifest.rename(manifest.with_suffix(".away"))
    with pytest.raises(NotFoundError, match=manifest.name):
        table.maintenance.rewrite_table_path(old, new).commit()
    assert not (tmp_path / "new").exists() or {path.name for path in (tmp_path / "new").iterdir()} == {"all"}
    document = json.loads(local(table.metadata_location).read_text())
    document["properties"] |= {"encryption.key-id": "k"}
    encrypted = tmp_path / "old" / "encrypted.metadata.json"
    encrypted.write_text(json.dumps(document))
    with pytest.raises(UnsupportedError, match="encrypted, so that its manifests can't be rewritten"):
        sm.load_table(str(encrypted), spark=spark).maintenance.rewrite_table_path(old, new)


SPELLINGS = {
    "a path": str,
    "one slash": lambda folder: f"file:{folder}",
    "upper case": lambda folder: f"FILE://{folder}",
    "a slash at the end": lambda folder: f"file://{folder}/",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_the_prefix(spark: SparkSession, tmp_path: Path, spelling: str) -> None:
    table = changed(of_kind(spark, tmp_path / "old", "v2"), 0)
    source = SPELLINGS[spelling](tmp_path / "old")
    plan = table.maintenance.rewrite_table_path(source, f"file://{tmp_path}/new", copy_files=True)
    moved = sm.load_table(plan.commit().metadata_location, spark=spark)
    assert moved.location() == f"file://{tmp_path}/new/moved/t"
    assert rows_of(moved) == rows_of(table)


def test_properties_and_statistics(spark: SparkSession, tmp_path: Path) -> None:
    """Folders in properties move; other properties and the blobs of statistics stay."""
    table = changed(of_kind(spark, tmp_path / "old", "v3"), 0)
    data = f"file://{tmp_path}/old/data elsewhere"
    with table.transaction() as tx:
        tx.set_properties({"write.data.path": data, "comment": data, "write.metadata.compression-codec": "gzip"})
    table = changed(table.refresh(), 10)
    table = table.maintenance.compute_table_stats().commit().maintenance.compute_partition_stats().commit()
    places = f"file://{tmp_path}/old", f"file://{tmp_path}/new"
    result = table.maintenance.rewrite_table_path(*places, copy_files=True).commit()
    partitions = row_texts(table.inspect.partition_statistics())
    (tmp_path / "old").rename(tmp_path / "hidden")
    moved = sm.load_table(result.metadata_location, spark=spark)
    assert moved.properties["write.data.path"] == data.replace(*places)
    assert moved.properties["comment"] == data
    assert json.loads(gzip.decompress(local(result.metadata_location).read_bytes()))["location"] == moved.location()
    for name in ("statistics", "partition_statistics"):
        (statistics,) = getattr(moved.metadata, name)
        assert local(statistics.statistics_path).stat().st_size == statistics.file_size_in_bytes
    assert row_texts(moved.inspect.partition_statistics()) == partitions


@pytest.mark.usefixtures("in_each_place")
@pytest.mark.parametrize("kind", FILE_IOS)
def test_a_table_on_s3(spark: SparkSession, s3: S3Server, tmp_path: Path, kind: str) -> None:
    """A table moves to another folder of the bucket, and its locations are spelled `s3` and `s3a`."""
    root = f"s3://{BUCKET}/move-{uuid.uuid4()}"
    properties = s3.io(kind).properties | {"py-io-impl": FILE_IOS[kind]}
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = sm.load_catalog("moving", type="sql", uri=uri, warehouse=f"{root}/old", spark=spark, **properties)
    catalog.create_namespace("db")
    schema = new_table(spark, tmp_path / "unused", version=2).schema()
    table = catalog.create_table("db.t", schema, properties={"write.delete.mode": "merge-on-read"})
    table = changed(changed(table, 0), 10)
    expected = versions(table)
    plan = table.maintenance.rewrite_table_path(f"s3a{root[2:]}/old", f"{root}/new", copy_files=True)
    result = plan.commit()
    again = table.maintenance.rewrite_table_path(
        f"{root}/old", f"{root}/new", copy_files=True, staging_location=result.staging_location
    )
    assert again.commit().copied == result.rewritten
    catalog.create_namespace("copy")
    moved = catalog.register_table("copy.t", result.metadata_location)
    files = moved.inspect.arrow.files(columns=["file_path"])["file_path"].to_pylist()
    assert all(path.startswith(f"{root}/new/") for path in files)
    assert versions(moved) == expected
    assert row_texts(moved.check()) == []


def test_on_the_command_line(spark: SparkSession, tmp_path: Path) -> None:
    table = changed(of_kind(spark, tmp_path / "old", "v2"), 0)
    arguments = [
        "rewrite-table-path", table.location(), "--source-prefix", f"file://{tmp_path}/old",
        "--target-prefix", f"file://{tmp_path}/new",
    ]  # fmt: skip
    planned = invoke(arguments).stdout
    assert "nothing is changed without --commit" in planned
    assert "position delete file" in planned
    assert "to copy: " in invoke([*arguments, "--commit"]).stdout
    copied = invoke([*arguments, "--copy-files", "--commit", "--output", "json"]).stdout
    outcome = json.loads(copied)["committed"]
    assert rows_of(sm.load_table(outcome["metadata_location"], spark=spark)) == rows_of(table)
    refused = invoke(arguments[:2])
    assert refused.exit_code == 1
    assert "source_prefix is None: expected a name" in refused.output
