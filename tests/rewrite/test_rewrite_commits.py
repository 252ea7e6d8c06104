"""Rewritten manifests are committed: their order and size, beside other commits, and what is refused."""

from __future__ import annotations

import json
import runpy
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparkmeta as sm
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, write_manifest_list
from sparkmeta.commit import lists
from sparkmeta.commit.lists import with_row_ids
from sparkmeta.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    UnsupportedError,
    ValidationError,
)
from sparkmeta.maintain.rewrite_manifests import REWRITTEN
from sparkmeta.snapshot import state as snapshot_state
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from tests.command_line import invoke
from tests.commit.test_tree_faults import attempt
from tests.faults import FaultyFiles, Kind, faults, through
from tests.handmade import BY_PART, HandmadeTable, data, deletion_vector, equality_deletes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def table_by_letter(spark: SparkSession, folder: Path, manifests: int = 8, files: int = 40, **options: Any) -> sm.Table:
    """A table of files by letter, in random order; of each manifest every tenth entry is DELETED."""
    chance, table = Random(7), HandmadeTable(folder, summaries=True, **options)
    for number in range(manifests):
        rows = [
            data(f"file:///t/{number}-{place}", 1 + number % 3, status=2 if place % 10 == 9 else 1,
                 partition={"part": chance.choice(LETTERS)})
            for place in range(files)
        ]  # fmt: skip
        table.add(0, 1, *rows)
    table.write()
    return sm.load_table(f"file://{folder}", spark=spark)


def rows_of(table: sm.Table) -> list[dict[str, Any]]:
    return table.state.manifest_files.to_pylist()


def paths_of(table: sm.Table) -> list[str]:
    return sorted(row["file_path"] for row in table.scan().plan_files().select("file_path").collect())


def avro_files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "metadata").glob("*.avro")}


def test_manifests_follow_each_other(spark: SparkSession, tmp_path: Path) -> None:
    """They are of the size that is asked for, and a partition is in neighbours only."""
    before = table_by_letter(spark, tmp_path)
    size = sum(row["manifest_length"] for row in rows_of(before))
    plan = before.maintenance.rewrite_manifests(target_manifest_bytes=-(-size // 10))
    assert plan.summary().to_dict() | {"bytes": 0} == {
        "table": before.full_name, "snapshot_id": 10, "data_manifests": 8, "delete_manifests": 0, "kept_manifests": 0,
        "manifests_after": 10, "live_files": 288, "bytes": 0,
    }  # fmt: skip
    planned = plan.to_df().collect()
    assert sum(row["live_files"] for row in planned) == 288
    assert sum(row["deleted_files"] for row in planned) == 32
    table = plan.commit()
    assert plan.commit() is table
    new_rows = rows_of(table)
    assert 5 <= len(new_rows) <= 14
    bounds = sorted(
        (summary["lower_bound"], summary["upper_bound"]) for row in new_rows for summary in row["partitions"]
    )
    assert all(low <= high for low, high in bounds)
    assert all(preceding[1] <= following[0] for preceding, following in pairwise(bounds))
    assert paths_of(table) == paths_of(before)
    entries = table.inspect.entries().select("status", "snapshot_id", "sequence_number", "data_file.file_path")
    old = before.inspect.entries().where("status != 2")
    old = old.selectExpr("0 AS status", "snapshot_id", "sequence_number", "data_file.file_path")
    assert sorted(map(tuple, entries.collect())) == sorted(map(tuple, old.collect()))
    result = plan.result()["committed"]
    assert result == {
        "snapshot_id": table.current_snapshot().snapshot_id, "manifests_created": len(new_rows),  # type: ignore[union-attr]
        "manifests_replaced": 8, "manifests_kept": 0, "entries_processed": 288,
    }  # fmt: skip


def test_one_large_partition_is_divided(spark: SparkSession, tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path, summaries=True)
    for number in range(4):
        table.add(0, 1, *(data(f"file:///t/{number}-{place}", partition={"part": "x"}) for place in range(300)))
    table.write()
    before = sm.load_table(f"file://{tmp_path}", spark=spark)
    after = before.maintenance.rewrite_manifests(target_manifest_bytes=2_000).commit()
    counts = [row["existing_files_count"] for row in rows_of(after)]
    assert len(counts) > 4
    assert max(counts) < 600
    assert sum(counts) == 1_200


def test_all_is_one_manifest(spark: SparkSession, tmp_path: Path) -> None:
    table = table_by_letter(spark, tmp_path, manifests=3).maintenance.rewrite_manifests().commit()
    (row,) = rows_of(table)
    letters = [row["partition"]["part"].encode() for row in table.scan().plan_files().collect()]
    assert [row["partitions"][0][name] for name in ("lower_bound", "upper_bound")] == [min(letters), max(letters)]
    assert table.maintenance.rewrite_manifests().summary().is_empty
    same = table.maintenance.rewrite_manifests().commit()
    assert same.metadata_location == table.metadata_location, "nothing to do makes no snapshot"


def test_a_filter_and_a_spec_choose_manifests(spark: SparkSession, tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path, summaries=True)
    for letter in "aabbcc":
        rows = [
            data(f"file:///t/{letter}{place}-{len(table.manifests)}", partition={"part": letter}) for place in range(3)
        ]
        table.add(0, 1, *rows)
    for number in range(2):
        table.add(0, 2, data(f"file:///t/r{number}", partition={"ratio": 0.5 * number}))
        table.add(1, 1, deletion_vector(f"file:///t/a0-{number}", partition={"part": "a"}))
    table.write()
    before = sm.load_table(f"file://{tmp_path}", spark=spark)
    chosen = before.maintenance.rewrite_manifests("part = 'b'").to_df().collect()
    assert {(row["content"], row["spec_id"]) for row in chosen} == {("data", 1), ("data", 2)}
    assert sum(row["spec_id"] == 1 for row in chosen) == 2
    plan = before.maintenance.rewrite_manifests("part = 'b'", spec_id=1)
    after = plan.commit()
    assert len(rows_of(after)) == len(rows_of(before)) - 1
    assert paths_of(after) == paths_of(before)
    rest = after.maintenance.rewrite_manifests(spec_id=1).commit()
    assert [(row["content"], row["partition_spec_id"]) for row in rows_of(rest)[:2]] == [(0, 1), (1, 1)]
    deletes = {row["file_path"]: len(row["deletes"]) for row in rest.scan().plan_files().collect()}
    assert {path for path, count in deletes.items() if count} == {"file:///t/a0-0", "file:///t/a0-1"}


def test_other_commits_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    """A manifest that another commit adds stays, and so does what it removed; ours has been made before."""
    plan = table_by_letter(spark, tmp_path, row_ids=False).maintenance.rewrite_manifests("part >= 'a'")
    other = sm.load_table(f"file://{tmp_path}", spark=spark)
    add_manifest(other, tmp_path)
    after = plan.commit()
    assert len(after.snapshots()) == 3
    assert [row["manifest_path"].endswith("other.avro") for row in rows_of(after)] == [False, True]
    assert len(paths_of(after)) == 288 + 1
    lists = [path for path in avro_files(tmp_path) if path.startswith("snap-")]
    assert len(lists) == 1, "the list of the attempt that lost is deleted"


def add_manifest(table: sm.Table, folder: Path) -> None:
    """Commit, as another writer, a manifest with one more file."""
    elsewhere = HandmadeTable(folder / "elsewhere", summaries=True, row_ids=False)
    elsewhere.add(0, 1, data("file:///t/other", None, partition={"part": "q"})).write()
    there = sm.load_table(f"file://{folder}/elsewhere", spark=table.state.spark)
    (row,) = rows_of(there)
    (folder / "metadata" / "other.avro").write_bytes((folder / "elsewhere" / "metadata" / "m0.avro").read_bytes())
    row |= {"manifest_path": f"file://{folder}/metadata/other.avro", "sequence_number": 6, "added_snapshot_id": 11}
    row |= {"added_rows_count": 10, "existing_rows_count": 0, "deleted_rows_count": 0}
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    known = table.state.manifest_files.to_pylist()
    for listed in known:
        listed |= {"added_rows_count": 0, "existing_rows_count": 0, "deleted_rows_count": 0}
    rows = pa.Table.from_pylist([row, *known], schema=MANIFEST_FILE_SCHEMA)
    (folder / "metadata" / "other-list.avro").write_bytes(write_manifest_list(rows, 3, {}, "other"))
    snapshot = metadata["snapshots"][0] | {
        "snapshot-id": 11, "parent-snapshot-id": 10, "sequence-number": 6, "timestamp-ms": 2,
        "manifest-list": f"file://{folder}/metadata/other-list.avro", "first-row-id": 1000, "added-rows": 10,
    }  # fmt: skip
    metadata |= {
        "snapshots": [*metadata["snapshots"], snapshot], "current-snapshot-id": 11, "last-sequence-number": 6,
        "next-row-id": 1010, "refs": {"main": {"snapshot-id": 11, "type": "branch"}}, "last-updated-ms": 2,
    }  # fmt: skip
    (folder / "metadata" / "v2.metadata.json").write_text(json.dumps(metadata))


def test_another_rewriting_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    """It is refused, and nothing of it stays."""
    table = table_by_letter(spark, tmp_path)
    late = table.maintenance.rewrite_manifests(target_manifest_bytes=2_000)
    table.maintenance.rewrite_manifests().commit()
    there = avro_files(tmp_path)
    with pytest.raises(CommitConflictError, match="plan again"):
        late.commit()
    assert avro_files(tmp_path) == there


@pytest.mark.parametrize("change", ["format-version", "first_row_id"])
def test_numbers_that_change_meanwhile(spark: SparkSession, tmp_path: Path, change: str) -> None:
    """Entries that were written inherit what their manifests gave them when they were planned: plan again."""
    table = table_by_letter(spark, tmp_path, manifests=2, version=2 if change == "format-version" else 3, row_ids=False)
    plan = table.maintenance.rewrite_manifests()
    path = tmp_path / "metadata" / "v1.metadata.json"
    metadata = json.loads(path.read_text()) | {"last-updated-ms": 2}
    if change == "format-version":
        metadata["format-version"] = 3
    else:
        rows = rows_of(table)
        rows[0]["first_row_id"] = 2_000
        data_ = write_manifest_list(pa.Table.from_pylist(rows, schema=MANIFEST_FILE_SCHEMA), 3, {}, "other")
        (tmp_path / "metadata" / "other-list.avro").write_bytes(data_)
        metadata["snapshots"][0]["manifest-list"] = f"file://{tmp_path}/metadata/other-list.avro"
    (tmp_path / "metadata" / "v2.metadata.json").write_text(json.dumps(metadata))
    there = avro_files(tmp_path)
    with pytest.raises(CommitConflictError, match="plan again"):
        plan.commit()
    assert avro_files(tmp_path) == there


def test_manifests_without_live_files(spark: SparkSession, tmp_path: Path) -> None:
    """They are dropped; a spec without other manifests gets no new one."""
    table = HandmadeTable(tmp_path, summaries=True)
    for status in (1, 2, 2):
        table.add(0, 1, *(data(f"file:///t/{len(table.manifests)}{place}", partition={"part": "a"}, status=status)
                          for place in range(3)))  # fmt: skip
        table.add(0, 2, data(f"file:///r/{len(table.manifests)}", partition={"ratio": 0.5}, status=2))
    table.write()
    before = sm.load_table(f"file://{tmp_path}", spark=spark)
    after = before.maintenance.rewrite_manifests().commit()
    assert [(row["partition_spec_id"], row["existing_files_count"]) for row in rows_of(after)] == [(1, 3)]
    assert paths_of(after) == paths_of(before)


def test_another_target_is_another_rewriting(spark: SparkSession, tmp_path: Path) -> None:
    whole = table_by_letter(spark, tmp_path).maintenance.rewrite_manifests().commit()
    assert whole.maintenance.rewrite_manifests().summary().is_empty
    small = whole.maintenance.rewrite_manifests(target_manifest_bytes=2_000).commit()
    assert len(rows_of(small)) > len(rows_of(whole)) == 1
    assert small.maintenance.rewrite_manifests(target_manifest_bytes=2_000).summary().is_empty
    assert not small.maintenance.rewrite_manifests().summary().is_empty
    snapshot = small.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    snapshot.summary.additional_properties[REWRITTEN] = "[no JSON"
    assert not small.maintenance.rewrite_manifests(target_manifest_bytes=2_000).summary().is_empty


def test_a_branch(spark: SparkSession, tmp_path: Path) -> None:
    table = table_by_letter(spark, tmp_path)
    path = tmp_path / "metadata" / "v1.metadata.json"
    metadata = json.loads(path.read_text())
    metadata["refs"]["audit"] = {"snapshot-id": 10, "type": "branch", "max-ref-age-ms": 5}
    path.write_text(json.dumps(metadata))
    table = sm.load_table(f"file://{tmp_path}", spark=spark)
    after = table.maintenance.rewrite_manifests(branch="audit", snapshot_properties={"by": "me"}).commit()
    assert after.current_snapshot().snapshot_id == 10  # type: ignore[union-attr]
    head = after.snapshot_by_name("audit")
    assert head is not None
    assert head.parent_snapshot_id == 10
    assert head.summary.additional_properties["by"] == "me"  # type: ignore[union-attr]
    assert after.refs()["audit"].max_ref_age_ms == 5
    with pytest.raises(ValidationError, match="no branch 'nope'"):
        table.maintenance.rewrite_manifests(branch="nope")


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"spec_id": 9}, "has no partition spec 9: it has 0, 1, 2"),
        ({"sort_by": ["nope"]}, "sort_by names 'nope'"),
        ({"sort_by": "part"}, "sort_by is 'part'"),
        ({"sort_by": []}, "sort_by is"),
        ({"sort_by": ["part", "part"]}, "each once"),
        ({"target_manifest_bytes": 0}, "target_manifest_bytes is 0"),
        ({"target_manifest_bytes": True}, "target_manifest_bytes is True"),
    ],
)
def test_wrong_options(spark: SparkSession, tmp_path: Path, asked: dict[str, Any], problem: str) -> None:
    table = table_by_letter(spark, tmp_path, manifests=2)
    with pytest.raises(ValidationError, match=problem):
        table.maintenance.rewrite_manifests(**asked)


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"commit.manifest.target-size-bytes": "8m"}, "commit.manifest.target-size-bytes is '8m'"),
        (
            {"write.manifest.compression-codec": "lzma"},
            "compression-codec is 'lzma': expected gzip, uncompressed, snappy or zstd",
        ),
        ({"write.manifest.compression-level": "99"}, "compression-level is '99': it is not a level of gzip"),
        ({"write.manifest.compression-level": "x"}, "compression-level is 'x'"),
    ],
)
def test_wrong_properties(spark: SparkSession, tmp_path: Path, properties: dict[str, str], problem: str) -> None:
    table = table_by_letter(spark, tmp_path, manifests=2, properties=properties)
    with pytest.raises(ValidationError, match=problem):
        table.maintenance.rewrite_manifests()


def test_tables_that_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    encrypted = table_by_letter(spark, tmp_path / "e", manifests=2, properties={"encryption.key-id": "k"})
    with pytest.raises(UnsupportedError, match="is encrypted"):
        encrypted.maintenance.rewrite_manifests()
    upgraded = table_by_letter(spark, tmp_path / "u", manifests=2).maintenance.upgrade(4).commit()
    with pytest.raises(UnsupportedError, match="compact_manifests"):
        upgraded.maintenance.rewrite_manifests()
    unknown = ({**BY_PART[0], "transform": "zorder"},)
    odd = table_by_letter(spark, tmp_path / "o", manifests=2, specs=((), unknown, ()))
    with pytest.raises(UnsupportedError, match="partition spec 1 has a transform that is not known, of field 1000"):
        odd.maintenance.rewrite_manifests()
    read_only = sm.load_table(f"file://{tmp_path}/o/metadata/v1.metadata.json", spark=spark)
    with pytest.raises(UnsupportedError, match="opened by its path"):
        read_only.maintenance.rewrite_manifests()


def test_a_list_that_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    """Manifests with other files than their list says are left unchanged; so are broken ones."""
    table = table_by_letter(spark, tmp_path, manifests=2)
    (tmp_path / "metadata" / "m0.avro").write_bytes((tmp_path / "metadata" / "m1.avro").read_bytes()[:-40])
    there = avro_files(tmp_path)
    with pytest.raises(ValidationError, match=r"m0\.avro"):
        table.maintenance.rewrite_manifests().commit()
    smaller = HandmadeTable(tmp_path / "s", summaries=True).add(0, 1, data("file:///x", partition={"part": "a"}))
    smaller.write()
    (tmp_path / "metadata" / "m0.avro").write_bytes((tmp_path / "s" / "metadata" / "m0.avro").read_bytes())
    with pytest.raises(ValidationError, match="have 72 live files: they have 37"):
        table.maintenance.rewrite_manifests().commit()
    assert avro_files(tmp_path) == there


def test_compression(spark: SparkSession, tmp_path: Path) -> None:
    sizes = {}
    for codec, level in (("gzip", None), ("gzip", "9"), ("uncompressed", None), ("zstd", "3"), ("snappy", None)):
        folder = tmp_path / f"{codec}{level}"
        level_of = {"write.manifest.compression-level": level} if level else {}
        properties = {"write.manifest.compression-codec": codec, **level_of}
        before = table_by_letter(spark, folder, properties=properties)
        after = before.maintenance.rewrite_manifests().commit()
        assert paths_of(after) == paths_of(before)
        sizes[codec, level] = rows_of(after)[0]["manifest_length"]
    assert sizes["gzip", "9"] < sizes["gzip", None] < sizes["snappy", None] < sizes["uncompressed", None]


@pytest.mark.parametrize("seed", [1, 2])
def test_each_fault_of_a_commit(
    interpreted: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, soak: bool
) -> None:
    """The table has the old manifests or the new ones, and all of the files that it names."""
    monkeypatch.setattr(lists, "executor_writer", lambda _: ExecutorWriter({}))
    monkeypatch.setattr(snapshot_state, "executor_reader", lambda _: ExecutorReader())
    before = table_by_letter(interpreted, tmp_path, manifests=2, files=5, properties={"commit.retry.min-wait-ms": "1"})
    contents = {path.name: path.read_bytes() for path in (tmp_path / "metadata").iterdir()}
    expected = paths_of(before)

    class Stage:
        """For `attempt`."""

        def commit(self, driver: FaultyFiles) -> None:
            for path in (tmp_path / "metadata").iterdir():
                path.unlink()
            for name, content in contents.items():
                (tmp_path / "metadata" / name).write_bytes(content)
            table = sm.load_table(f"file://{tmp_path}", spark=interpreted)
            through(table, driver).maintenance.rewrite_manifests().commit()

    stage: Any = Stage()
    candidates = list(faults(stage.commit))
    for fault in candidates if soak else Random(seed).sample(candidates, 3):
        outcome = attempt(stage, FaultyFiles(fault=fault))
        table = sm.load_table(f"file://{tmp_path}", spark=interpreted)
        assert paths_of(table) == expected, f"{fault}: {outcome}"
        assert (len(table.snapshots()) == 2) or outcome != "committed", f"{fault}: {outcome}"
        assert (len(table.snapshots()) == 1) or outcome != "failed", f"{fault}: {outcome}"
    kinds = {fault.kind for fault in candidates}
    assert kinds == set(Kind)


def test_an_unknown_outcome_deletes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_by_letter(spark, tmp_path, manifests=2, files=5)
    plan = table.maintenance.rewrite_manifests()

    def unknown(*_: Any) -> Any:
        raise CommitStateUnknownError("who knows")

    monkeypatch.setattr("sparkmeta.operations.filesystem.FileSystemOperations.commit", unknown)
    with pytest.raises(CommitStateUnknownError):
        plan.commit()
    assert len(avro_files(tmp_path)) == 3 + 2, "the new manifest and its list stay"


def test_row_ids_as_in_the_spec() -> None:
    """The example of the table spec, First Row ID Assignment (semantics 13.4)."""
    counts = [(None, 100, 25), (None, 0, 100), (None, 125, 25), (925, 0, 0)]
    known = [
        {"manifest_path": str(place), "content": 0, "first_row_id": first, "added_rows_count": added,
         "existing_rows_count": existing, "manifest_length": 1, "partition_spec_id": 0}
        for place, (first, added, existing) in enumerate(counts)
    ]  # fmt: skip
    deletes = {**known[0], "content": 1}
    rows, following = with_row_ids(pa.Table.from_pylist([*known, deletes], schema=MANIFEST_FILE_SCHEMA), 1000)
    assert rows.column("first_row_id").to_pylist() == [1000, 1125, 1225, 925, None]
    assert following == 1375


def test_row_ids_stay(spark: SparkSession, tmp_path: Path) -> None:
    before = table_by_letter(spark, tmp_path)
    after = before.maintenance.rewrite_manifests(target_manifest_bytes=2_000).commit()
    row_ids = [
        {row["file_path"]: row["first_row_id"] for row in table.scan().plan_files().collect()}
        for table in (before, after)
    ]
    assert row_ids[0] == row_ids[1]
    assert None not in row_ids[0].values()
    head = after.current_snapshot()
    assert head is not None
    assert (head.first_row_id, head.added_rows) == (1000, 288 * 10)
    assert after.metadata.next_row_id == 1000 + 288 * 10  # type: ignore[union-attr]


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    table = table_by_letter(spark, tmp_path, manifests=3)

    def command(*arguments: str) -> str:
        result = invoke(["rewrite-manifests", table.location(), *arguments])
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.output

    text = command()
    assert "3 data manifests and 0 delete manifests become about 1; 0 stay" in text
    assert "nothing is changed without --commit" in text
    rows = [json.loads(line) for line in command("--files", "-o", "json").splitlines()]
    assert [row["live_files"] for row in rows] == [36, 36, 36]
    result = json.loads(command("--sort-by", "part", "--commit", "-o", "json"))
    assert result["committed"]["manifests_replaced"] == 3
    assert "its manifests are in order" in command("--sort-by", "part")
    assert pc.sum(table.refresh().state.manifest_files.column("existing_files_count")).as_py() == 108


def test_the_job(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = table_by_letter(spark, tmp_path, manifests=3)
    job = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "rewrite_manifests.py"))["main"]
    assert job(["--table", table.location()]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["committed"] is None
    assert job(["--table", table.location(), "--sort-by", "nope", "--commit"]) == 1
    assert "rewrite_manifests: " in capsys.readouterr().err
    assert job(["--table", table.location(), "--sort-by", "part", "--target-manifest-bytes", "99999", "--commit"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["committed"]["entries_processed"] == 108
    assert result["plan"]["data_manifests"] == 3


def test_partition_fields_are_needed(spark: SparkSession, tmp_path: Path) -> None:
    """`sort_by` names fields of some specs; the others keep their own order. Equality deletes go along."""
    table = HandmadeTable(tmp_path, summaries=True)
    for number in range(2):
        table.add(0, 1, *(data(f"file:///t/{number}{letter}", partition={"part": letter}) for letter in "ba"))
        table.add(0, 2, *(data(f"file:///r/{number}{place}", partition={"ratio": 1.0 - place}) for place in range(2)))
        table.add(1, 1, equality_deletes(f"file:///e/{number}", partition={"part": "a"}))
    table.write()
    before = sm.load_table(f"file://{tmp_path}", spark=spark)
    after = before.maintenance.rewrite_manifests(sort_by=["part"]).commit()
    assert sorted((row["content"], row["partition_spec_id"]) for row in rows_of(after)) == [(0, 1), (0, 2), (1, 1)]
    order = after.inspect.entries().where("data_file.spec_id = 2").select("data_file.partition.ratio").collect()
    assert [row[0] for row in order] == sorted(row[0] for row in order)
