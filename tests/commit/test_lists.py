"""Commits to tables with manifest lists: many files, merges, retries and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.commit import file_writer
from sparkmeta.commit.file_rows import FILE_ORDER, FILES_PER_KEY, KEYS, FileTasks
from sparkmeta.commit.lists import MOST_MERGED, manifest_format, merge_bins
from sparkmeta.commit.new_files import listed_rows
from sparkmeta.commit.options import ListOptions
from sparkmeta.errors import CommitFailedError, CommitStateUnknownError, FileAccessError, UnsupportedError
from sparkmeta.expr.arrays import from_stream
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.files import LocalFiles
from tests.commit.operations import SCHEMA, SPEC
from tests.handmade import HandmadeTable, data
from tests.rows.files import write_position_deletes, write_vector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.operations.table_operations import TableVersion

QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "1"}


def new_table(spark: SparkSession, folder: Path, version: int = 2, **properties: str) -> sm.Table:
    catalog = sm.load_catalog("lists", type="hadoop", warehouse=str(folder))
    named = QUICK | {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    return catalog.create_table("db.t", SCHEMA, SPEC, properties=named, format_version=version, spark=spark)


def data_files(spark: SparkSession, start: int, stop: int) -> DataFrame:
    """Return files of 10 rows in the partitions a to e."""
    part = F.element_at(F.array(*map(F.lit, "abcde")), (F.col("id") % 5 + 1).cast("int"))
    return spark.range(start, stop).select(
        F.concat(F.lit("/data/f"), "id").alias("file_path"),
        F.lit("parquet").alias("file_format"),
        F.lit(0).alias("spec_id"),
        F.struct(part.alias("s")).alias("partition"),
        F.lit(10).cast("long").alias("record_count"),
        F.lit(100).cast("long").alias("file_size_in_bytes"),
        F.create_map(F.lit(1), F.lit(10).cast("long")).alias("value_counts"),
    )


def named(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(f"/data/f{number}",) for number in ids], "file_path string")


def change(table: sm.Table, added: DataFrame | None = None, removed: DataFrame | None = None) -> sm.Table:
    with table.transaction() as tx:
        update = tx.update_snapshot()
        if added is not None:
            update.append(added)
        if removed is not None:
            update.delete(removed)
    return table.refresh()


def live(table: sm.Table) -> set[int]:
    paths = table.scan().plan_files().select("file_path").toArrow().column(0).to_pylist()
    assert len(paths) == len(set(paths))
    return {int(path.removeprefix("/data/f")) for path in paths}


def left_over(table: sm.Table, folder: Path) -> set[str]:
    """Return the metadata files that neither a snapshot nor a version of the table names."""
    used = {"version-hint.text"}
    for entry in (table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)):
        used.add(entry.rpartition("/")[2])
    for snapshot in table.snapshots():
        manifests = table.state.at(snapshot).manifest_files.column("manifest_path").to_pylist()
        used |= {path.rpartition("/")[2] for path in (snapshot.manifest_list, *manifests)}
    written = {path.name for path in (folder / "db" / "t" / "metadata").iterdir() if not path.name.startswith(".")}
    return written - used


@pytest.mark.parametrize("version", [2, 3])
def test_many_files_are_written_by_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Several manifests of the target size are sorted by partition. Then a file of each is removed."""
    monkeypatch.setattr(file_writer, "MOST_ON_DRIVER", 2_000)
    table = new_table(spark, tmp_path, version, commit__manifest__target_size_bytes="20000")
    table = change(table, data_files(spark, 0, 3000))
    assert live(table) == {*range(3000)}
    manifests = table.inspect.manifests().collect()
    assert len(manifests) > 3
    assert sum(row["added_data_files_count"] for row in manifests) == 3000
    assert {row["added_snapshot_id"] for row in manifests} == {table.current_snapshot().snapshot_id}  # type: ignore[union-attr]
    one_partition = table.scan("s = 'c'")
    assert one_partition.plan_files().count() == 600
    assert one_partition.report().to_dict()["data_manifests"]["scanned"] < len(manifests)
    entries = table.inspect.entries()
    assert entries.where("status <> 1 OR sequence_number <> 1").isEmpty()
    if version == 3:
        row_ids = table.scan().plan_files().select("first_row_id").toArrow().column(0).to_pylist()
        assert sorted(row_ids) == [*range(0, 30_000, 10)]
    removed = [*range(0, 3000, 300)]
    table = change(table, removed=named(spark, *removed))
    assert live(table) == {*range(3000)}.difference(removed)
    statuses = {row["status"]: row["count"] for row in table.inspect.entries().groupBy("status").count().collect()}
    assert statuses[2] == len(removed)
    if version == 3:
        row_ids = table.scan().plan_files().select("first_row_id").toArrow().column(0).to_pylist()
        assert len({*row_ids}) == 3000 - len(removed)


def test_alternating_partitions_are_sampled(spark: SparkSession, tmp_path: Path) -> None:
    """The samples that bound the ranges are not the keys of every hundredth file, which might share a partition."""
    state = new_table(spark, tmp_path).state
    form = manifest_format(state, ContentType.DATA_MANIFEST, 0, "m", 1 << 20)
    tasks = FileTasks(listed_rows(state), {(0, 0): form}, frozenset({0}), 1)
    count = 10_000
    columns = {
        "file_path": [f"/data/f{number}" for number in range(count)],
        "file_format": ["parquet"] * count,
        "partition": pa.array([{"s": f"{number % 100:02}"} for number in range(count)]),
        "record_count": [10] * count,
        "file_size_in_bytes": [100] * count,
        FILE_ORDER: range(count),
    }
    (row,) = tasks.encode([pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})])
    keys = from_stream(row.column(KEYS)[0].as_buffer())
    assert len(keys) == count // FILES_PER_KEY
    assert len(keys.column("k0").unique()) > 40
    assert row.column("kinds").to_pylist() == [
        [{"kind": "data", "files": count, "records": 100_000, "size": 1_000_000}]
    ]


def test_a_retry_writes_only_the_list(spark: SparkSession, tmp_path: Path) -> None:
    """After a concurrent commit, manifests are reused, unless that commit changed their sources."""
    table = change(new_table(spark, tmp_path), data_files(spark, 0, 20))
    with table.transaction() as tx:
        tx.update_snapshot().append(data_files(spark, 20, 30)).delete(named(spark, 3))
        change(table, data_files(spark, 30, 40), named(spark, 4))
    after = table.refresh()
    assert live(after) == {*range(40)} - {3, 4}
    assert left_over(after, tmp_path) == set()
    parent = after.snapshot_by_id(after.current_snapshot().parent_snapshot_id)  # type: ignore[union-attr,arg-type]
    assert parent is not None
    assert live_at(after, parent.snapshot_id) == {*range(20), *range(30, 40)} - {4}


def live_at(table: sm.Table, snapshot_id: int) -> set[int]:
    paths = table.scan(snapshot_id=snapshot_id).plan_files().select("file_path").collect()
    return {int(row[0].removeprefix("/data/f")) for row in paths}


@pytest.mark.parametrize("known", [True, False])
def test_a_commit_that_fails(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """Files of a commit are deleted if it certainly failed. After an unknown outcome, all files stay."""
    table = change(new_table(spark, tmp_path, commit__retry__num_retries="0"), data_files(spark, 0, 5))
    before = {path.name for path in (tmp_path / "db" / "t" / "metadata").iterdir()}

    def publish(files: LocalFiles, location: str, data: bytes) -> None:
        raise FileExistsError(location) if known else OSError(f"{location}: no answer")

    read = LocalFiles.read

    def unreadable(files: LocalFiles, location: str) -> bytes:
        if location.endswith("/v3.metadata.json"):
            raise OSError(f"{location}: no answer")
        return read(files, location)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "publish", publish)
        if not known:
            patch.setattr(LocalFiles, "read", unreadable)
        with pytest.raises(CommitFailedError if known else CommitStateUnknownError):
            change(table, data_files(spark, 5, 9))
    written = {path.name for path in (tmp_path / "db" / "t" / "metadata").iterdir()} - before
    assert live(table.refresh()) == {*range(5)}
    assert bool([name for name in written if name.endswith(".avro")]) == (not known)


def change_file(table: sm.Table, **fields: object) -> None:
    """Publish the next version of a table's metadata with other fields, as another library may."""
    file = Path(table.metadata_location.removeprefix("file://"))
    document = json.loads(file.read_text()) | {name.replace("_", "-"): value for name, value in fields.items()}
    number = int(file.name.removeprefix("v").removesuffix(".metadata.json"))
    file.with_name(f"v{number + 1}.metadata.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"format_version": 4}, "it is a table of format version 4 with manifest lists"),
        ({"encryption_keys": [{"key-id": "k", "encrypted-key-metadata": "AA=="}]}, "the table is encrypted"),
    ],
)
def test_a_table_that_can_not_be_committed_to_any_more(
    spark: SparkSession, tmp_path: Path, fields: dict[str, object], problem: str
) -> None:
    """The first attempt meets the table's new version, which another commit wrote."""
    table = change(new_table(spark, tmp_path, 3), data_files(spark, 0, 2))
    transaction = table.transaction()
    transaction.update_snapshot().append(data_files(spark, 2, 4))
    change_file(table, **fields)
    with pytest.raises(UnsupportedError, match=problem):
        transaction.commit()
    assert left_over(table.refresh(), tmp_path) <= {Path(table.metadata_location).name}


def test_a_table_that_is_gone_when_a_commit_is_tried_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = change(new_table(spark, tmp_path), data_files(spark, 0, 2))
    stale = table
    table = change(table, data_files(spark, 2, 4))
    transaction = stale.transaction()
    transaction.update_snapshot().append(data_files(spark, 4, 6))

    def refresh(_: object) -> TableVersion:
        raise FileAccessError("the store does not respond")

    with monkeypatch.context() as patch:
        patch.setattr(FileSystemOperations, "refresh", refresh)
        with pytest.raises(FileAccessError, match="does not respond"):
            transaction.commit()
    assert left_over(table.refresh(), tmp_path) == set()


def equality_deletes(spark: SparkSession, name: str) -> DataFrame:
    """Return an equality delete file for ids in all files of the partition a."""
    deletes = data_files(spark, 0, 1).drop("value_counts").withColumn("file_path", F.lit(f"/data/{name}"))
    return deletes.withColumns({"content": F.lit(2), "equality_ids": F.array(F.lit(1))})


def deletes_by_file(table: sm.Table) -> dict[str, list[str]]:
    rows = table.scan().plan_files().select("file_path", "deletes.file_path").toArrow()
    return dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))


@pytest.mark.parametrize("version", [1, 2, 4])
@pytest.mark.parametrize("number", [-1, 3, 10**6, 1 << 70, "1", 1.0, True])
def test_data_sequence_numbers_that_no_snapshot_read_has(
    spark: SparkSession, tmp_path: Path, version: int, number: Any
) -> None:
    table = change(change(new_table(spark, tmp_path, version), data_files(spark, 0, 1)), data_files(spark, 5, 6))
    update = table.transaction().update_snapshot()
    limit = 0 if version == 1 else 2
    with pytest.raises(
        sm.ValidationError, match=f"data_sequence_number is .*: expected a whole number from 0 to {limit}"
    ):
        update.rewrite(named(spark, 0), data_files(spark, 10, 11), data_sequence_number=number)


@pytest.mark.parametrize("version", [2, 4])
def test_a_rewrite_is_no_older_than_what_it_replaces(spark: SparkSession, tmp_path: Path, version: int) -> None:
    """An equality delete that is older than a file would apply to an older replacement."""
    table = change(new_table(spark, tmp_path, version), data_files(spark, 0, 1))
    with table.transaction() as tx:
        tx.update_snapshot().row_delta(deletes=equality_deletes(spark, "e"))
    table = change(tx.commit(), data_files(spark, 5, 6))
    assert deletes_by_file(table) == {"/data/f0": ["/data/e"], "/data/f5": []}
    tx = table.transaction()
    tx.update_snapshot().rewrite(named(spark, 5), data_files(spark, 10, 11), data_sequence_number=1)
    with pytest.raises(sm.ValidationError, match=r"data_sequence_number is 1: /data/f5, which is replaced, has 3$"):
        tx.commit()
    tx = table.transaction()
    tx.update_snapshot().rewrite(named(spark, 0), data_files(spark, 10, 11), data_sequence_number=1)
    assert deletes_by_file(tx.commit()) == {"/data/f10": ["/data/e"], "/data/f5": []}


@pytest.mark.parametrize("version", [2, 4])
def test_equality_deletes_that_come_meanwhile_apply_to_the_rewritten_file(
    spark: SparkSession, tmp_path: Path, version: int
) -> None:
    table = change(new_table(spark, tmp_path, version), data_files(spark, 0, 1))
    tx = table.transaction()
    tx.update_snapshot().rewrite(named(spark, 0), data_files(spark, 5, 6), data_sequence_number=1)
    with table.transaction() as other:
        other.update_snapshot().row_delta(deletes=equality_deletes(spark, "e"))
    assert deletes_by_file(tx.commit()) == {"/data/f5": ["/data/e"]}


def test_row_ids_that_another_commit_assigned_stay(spark: SparkSession, tmp_path: Path) -> None:
    """Manifests without row ids are merged, while another commit lists the same manifests with row ids."""
    limits = {"commit__manifest__min_count_to_merge": "3", "commit__manifest_merge__enabled": "false"}
    table = new_table(spark, tmp_path, **limits)
    for number in (0, 1):
        table = change(table, data_files(spark, number, number + 1))
    with table.transaction() as tx:
        tx.set_properties({"commit.manifest-merge.enabled": "true"})
    table = tx.commit().maintenance.upgrade(3).commit()
    tx = table.transaction()
    tx.update_snapshot().append(data_files(spark, 2, 3))
    with table.transaction() as other:
        other.update_snapshot().row_delta(deletes=equality_deletes(spark, "e"))
    assigned = row_ids(other.commit())
    assert set(assigned.values()) == {0, 10}
    after = tx.commit()
    assert row_ids(after) == assigned | {"/data/f2": 20}
    assert left_over(after, tmp_path) == set()


def row_ids(table: sm.Table) -> dict[str, int]:
    rows = table.scan().plan_files().select("file_path", "first_row_id").toArrow()
    return dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def position_file(spark: SparkSession, path: Path, data_path: str, *positions: int, names: bool) -> DataFrame:
    """Return a position delete file for a data file in the partition a. Its entry may name the data file."""
    write_position_deletes(path, [(data_path, position) for position in positions] + [("/data/other", 0)])
    file = data_files(spark, 0, 1).drop("value_counts").withColumn("file_path", F.lit(f"file://{path}"))
    known = {"content": F.lit(1), "record_count": F.lit(len(positions) + 1).cast("long")}
    return file.withColumns(known | ({"referenced_data_file": F.lit(data_path)} if names else {}))


def vector(spark: SparkSession, path: Path, data_path: str, *positions: int) -> DataFrame:
    """Return a deletion vector of a data file in the partition a."""
    facts = {name: F.lit(value) for name, value in write_vector(path, [*positions]).items()}
    file = data_files(spark, 0, 1).drop("value_counts").withColumns({"file_path": F.lit(f"file://{path}")})
    facts |= {"file_format": F.lit("puffin"), "referenced_data_file": F.lit(data_path)}
    return file.withColumns({"content": F.lit(1), **facts})


@pytest.mark.parametrize(
    ("version", "names", "few"),
    [(3, True, 20_000), (3, False, 20_000), (4, False, 20_000), (3, False, 0), (4, True, 0)],
)
def test_a_vector_has_the_positions_of_older_position_deletes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, names: bool, few: int
) -> None:
    """Readers of the vector skip the position delete files of an upgraded table, whose rows would come back."""
    monkeypatch.setattr("sparkmeta.entries.relation.FEW_ROWS", few)
    table = change(new_table(spark, tmp_path), data_files(spark, 0, 1))
    with table.transaction() as tx:
        deletes = position_file(spark, tmp_path / "p.parquet", "/data/f0", 1, 3, names=names)
        tx.update_snapshot().row_delta(deletes=deletes)
    table = tx.commit().maintenance.upgrade(version).commit()
    tx = table.transaction()
    tx.update_snapshot().row_delta(deletes=vector(spark, tmp_path / "less.puffin", "/data/f0", 0, 1, 2))
    with pytest.raises(sm.ValidationError, match=r"of /data/f0 lacks position 3, which .*p\.parquet deletes"):
        tx.commit()
    assert deletes_by_file(table.refresh()) == {"/data/f0": [f"file://{tmp_path}/p.parquet"]}
    tx = table.transaction()
    tx.update_snapshot().row_delta(deletes=vector(spark, tmp_path / "all.puffin", "/data/f0", 1, 2, 3))
    assert deletes_by_file(tx.commit()) == {"/data/f0": [f"file://{tmp_path}/all.puffin"]}


MISSING = ("record_count", "file_format", "file_size_in_bytes", "file_path", "partition")


@pytest.mark.parametrize("limit", [0, 100], ids=["many", "few"])
def test_bad_rows_are_refused_however_many_there_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Tasks and the driver raise the same errors, and no file stays."""
    monkeypatch.setattr(file_writer, "MOST_ON_DRIVER", limit)
    table = new_table(spark, tmp_path)
    new = data_files(spark, 0, 5)
    metadata = tmp_path / "db" / "t" / "metadata"
    before = {path.name for path in metadata.iterdir()}
    last = F.col("file_path") == "/data/f4"
    cases = {
        **{f"{name} of.* is None: |{name} of file .* has no field": new.drop(name) for name in MISSING},
        "content.* (is string, not int32|of file /data/f0 is x)": new.withColumn("content", F.lit("x")),
        "content.* (is string, not int32|of file /data/f4 is x)": new.withColumn(
            "content", F.when(last, "x").otherwise("0")
        ),
        "spec_id.* (is string, not int32|of file /data/f4 is x)": new.withColumn(
            "spec_id", F.when(last, "x").otherwise("0")
        ),
        "record_count of the files is string, not int64": new.withColumn(
            "record_count", F.when(last, "x").otherwise("1")
        ),
    }
    for problem, bad in cases.items():
        with pytest.raises(sm.ValidationError, match=problem):
            change(table, bad)
        assert {path.name for path in metadata.iterdir()} == before, problem
    assert live(table.refresh()) == set()


class UnknownAsMinusOne(HandmadeTable):
    def _manifest(self, *arguments: Any) -> dict[str, Any]:
        return super()._manifest(*arguments) | {"added_data_files_count": -1, "existing_files_count": 0}


def test_only_counts_of_zero_tell_that_no_file_is_live(spark: SparkSession, tmp_path: Path) -> None:
    UnknownAsMinusOne(tmp_path / "t", version=2, specs=((),)).add(0, 0, data("x:old")).write()
    table = sm.load_table(f"file://{tmp_path}/t", spark=spark)
    new = spark.sql("SELECT 'x:new' file_path, 'parquet' file_format, 0L record_count, 9L file_size_in_bytes")
    assert [row.file_path for row in table.scan().plan_files().collect()] == ["x:old"]
    changed = change(table, added=new)
    assert sorted(row.file_path for row in changed.scan().plan_files().collect()) == ["x:new", "x:old"]


def manifest(entries: int | None, spec_id: int = 0, length: int = 5_000) -> dict[str, Any]:
    counts = {"added_files_count": entries, "existing_files_count": 0, "deleted_files_count": 0}
    return {"manifest_length": length, "partition_spec_id": spec_id, **counts}


@pytest.mark.parametrize(
    ("manifests", "limited", "unlimited"),
    [
        ([manifest(1)] * 99, [(99, False)], [(99, False)]),
        ([manifest(1)] * 100, [(100, True)], [(100, True)]),
        (  # at most 200 manifests, in the newest group that may be merged
            [manifest(1)] * 430, [(30, False), (200, True), (200, False)], [(430, True)],
        ),
        (  # at most 1,000 entries
            [manifest(1)] * 5 + [manifest(400)] * 3 + [manifest(5_000)],
            [(6, False), (2, True), (1, False)],
            [(9, False)],
        ),
        (  # 25 entries by their length
            [manifest(None)] * 90, [(10, False), (40, True), (40, False)], [(90, False)],
        ),
        (
            [manifest(1, 1)] * 100 + [manifest(1, 0)] * 2, [(100, True), (2, False)], [(100, True), (2, True)],
        ),
        (  # 8 MiB
            [manifest(1)] + [manifest(1, length=4 << 20)] * 3, [(2, False), (2, True)], [(2, False), (2, True)],
        ),
    ],
)  # fmt: skip
def test_manifests_to_merge_without_a_session(
    manifests: list[dict[str, Any]], limited: list[tuple[int, bool]], unlimited: list[tuple[int, bool]]
) -> None:
    listed = pa.Table.from_pylist(
        [dict.fromkeys(MANIFEST_FILE_SCHEMA.names) | each for each in manifests], MANIFEST_FILE_SCHEMA
    )
    for limit, expected in ((MOST_MERGED, limited), (None, unlimited)):
        bins = merge_bins(listed, ListOptions(), limit)
        assert [(len(each.indices), each.is_merged) for each in bins] == expected
        assert [index for each in bins for index in each.indices] == [*range(len(manifests))]
