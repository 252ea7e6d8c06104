"""Position deletes of handmade tables that are rewritten: what is kept of them, what is chosen, and faults."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.operations.filesystem import FileSystemOperations
from tests.commit.test_tree_faults import attempt
from tests.faults import FaultyFiles, Kind, faults
from tests.handmade import HandmadeTable, data, position_deletes
from tests.maintain.test_expire import files_below
from tests.peers.file_maker import local_path
from tests.peers.slices import SOAK
from tests.rewrite.test_rewrite_deletes import position_deletes as live_deletes
from tests.rows.comparison import row_texts
from tests.rows.row_table import RowTable
from tests.write.test_changes import frame, new_table, ordinary, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A, B = {"partition": {"part": "a"}}, {"partition": {"part": "b"}}
BY_PARTITION = {"write.delete.granularity": "partition"}


def rows(first: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + 4), pa.int64()), "part": ["a"] * 4})


def table_with_deletes(folder: Path, version: int) -> RowTable:
    """Only the first delete file's positions in `old` apply: its rows 1 and 2. `again` is newer, `other` in another
    partition, and `gone` is not live. A vector supersedes what the second deletes of `masked`."""
    table = RowTable(folder, version=version, summaries=True, properties=BY_PARTITION)
    old, again = table.data("old.parquet", rows(0), **A), table.data("again.parquet", rows(10), sequence=4, **A)
    masked, other = table.data("masked.parquet", rows(20), **A), table.data("other.parquet", rows(30), **B)
    table.add(0, 1, old, again, masked, other)
    gone = f"file://{folder}/data/gone.parquet"
    deleted = sorted([(again, 0), (gone, 3), (old, 1), (old, 2), (other, 0)], key=lambda pair: path_of(pair[0]))
    table.add(1, 1, table.positions("first.parquet", *deleted, **A))
    if version > 2:
        table.add(1, 1, table.vector(masked, [3], **A), table.positions("second.parquet", (masked, 0), **A))
    else:
        table.add(1, 1, table.positions("second.parquet", (old, 0), (old, 1), sequence=3, **A))
    return table


def path_of(of: Any) -> str:
    return of if isinstance(of, str) else str(of["data_file"]["file_path"])


@pytest.mark.parametrize("version", [2, 3, 4])
def test_only_what_plans_apply_is_kept(spark: SparkSession, tmp_path: Path, version: int) -> None:
    table = table_with_deletes(tmp_path, min(version, 3)).load(spark)
    before = sm.load_table(f"file://{tmp_path}", spark=spark)
    if version == 4:
        before = before.maintenance.upgrade(4).commit()
    expected = row_texts(table.scan().to_df())
    after = before.maintenance.rewrite_position_delete_files(rewrite_all=True).commit()
    assert row_texts(after.scan().to_df()) == expected
    deletes = {Path(row["referenced_data_file"]).name: row["record_count"] for row in live_deletes(after)}
    assert deletes == ({"old.parquet": 3} if version == 2 else {"old.parquet": 2, "masked.parquet": 1})
    if version == 2:
        (file,) = live_deletes(after)
        assert pq.read_table(local_path(file["file_path"])).column("pos").to_pylist() == [0, 1, 2]
        (entry,) = after.inspect.entries().where("status = 1 AND data_file.content = 1").collect()
        assert (entry["sequence_number"], entry["file_sequence_number"]) == (3, 6)


@pytest.mark.parametrize("version", [2, 3])
def test_rewritten_deletes_go_where_new_deletes_go(spark: SparkSession, tmp_path: Path, version: int) -> None:
    objects = f"file://{tmp_path}/objects"
    table_with_deletes(tmp_path, version).load(spark)
    with sm.load_table(f"file://{tmp_path}", spark=spark).transaction() as tx:
        tx.set_properties({"write.object-storage.enabled": "true", "write.object-storage.path": objects})
    after = tx.commit().maintenance.rewrite_position_delete_files(rewrite_all=True).commit()
    assert {row["file_path"].rpartition("/")[0] for row in live_deletes(after)} == {objects}


def test_a_tree_with_vectors_only(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, write__delete__mode="merge-on-read").append(frame(spark, ordinary(0, 9)))
    table = table.delete("id = 1").delete("id = 2")
    expected = rows_of(table)
    after = table.maintenance.rewrite_position_delete_files(rewrite_all=True).commit()
    assert rows_of(after) == expected
    assert after.current_snapshot().operation == "replace"


CHOICES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "too few": ("partition", {"min_input_files": 4}, set()),
    "enough": ("partition", {"min_input_files": 3}, {"x:p0", "x:p1", "x:f0"}),
    "more than the target": (
        "partition",
        {"min_input_files": 4, "target_file_size_bytes": 250},
        {"x:p0", "x:p1", "x:f0"},
    ),
    "not fewer": ("partition", {"min_input_files": 2, "target_file_size_bytes": 134}, set()),
    "large enough": ("partition", {"min_input_files": 2, "min_file_size_bytes": 100}, set()),
    "too large": ("partition", {"target_file_size_bytes": 500, "max_file_size_bytes": 600}, {"x:large", "x:f1"}),
    "some about data files": ("file", {"min_input_files": 3}, {"x:p0", "x:p1", "x:f0"}),
    "a filter": ("partition", {"min_input_files": 1, "row_filter": "part = 'b'"}, set()),
}


@pytest.mark.parametrize("name", CHOICES)
def test_which_files_are_chosen(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """By partition, size and number; a file about a data file that has no other stays, and is never divided."""
    granularity, options, expected = CHOICES[name]
    table = HandmadeTable(tmp_path, version=2, summaries=True, properties={"write.delete.granularity": granularity})
    table.add(0, 1, data("/d/1", **A), data("/d/2", **B), data("/d/3", **B))
    small = {"file_size_in_bytes": 100}
    large = {"file_size_in_bytes": 1 << 30}
    target = options.get("target_file_size_bytes")
    of_a = [position_deletes(name, **A, **small) for name in ("x:p0", "x:p1")]
    of_a.append(position_deletes("x:f0", referenced_data_file="/d/1", **A, **small))
    of_b = [position_deletes("x:f1", referenced_data_file="/d/2", **B, **small)]
    if target == 500:
        of_b += [position_deletes("x:large", **B, **large)]
        of_b += [position_deletes("x:f2", referenced_data_file="/d/3", **B, **large)]
    table.add(1, 1, *of_a, *of_b)
    table.write()
    plan = sm.load_table(f"file://{tmp_path}", spark=spark).maintenance.rewrite_position_delete_files(**options)
    assert {row["file_path"] for row in plan.to_df().collect()} == expected


def test_files_about_the_same_data_file_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    """Those that alone are about theirs stay."""
    table = RowTable(tmp_path, version=2, summaries=True)
    files = [table.data(f"{number}.parquet", rows(4 * number), **A) for number in range(3)]
    table.add(0, 1, *files)
    names = [(0, "x"), (0, "y"), (1, "z"), (2, "w")]
    deletes = [
        table.positions(f"{name}.parquet", (files[of], place), **A, referenced_data_file=path_of(files[of]))
        for place, (of, name) in enumerate(names)
    ]
    before = table.add(1, 1, *deletes).load(spark)
    expected = row_texts(before.scan().to_df())
    table = sm.load_table(f"file://{tmp_path}", spark=spark)  # type: ignore[assignment]
    after = table.maintenance.rewrite_position_delete_files(min_input_files=2).commit()  # type: ignore[attr-defined]
    assert row_texts(after.scan().to_df()) == expected
    left = {Path(row["file_path"]).name for row in live_deletes(after)} & {f"{name}.parquet" for _, name in names}
    assert left == {"z.parquet", "w.parquet"}
    assert len(live_deletes(after)) == 3
    assert after.maintenance.rewrite_position_delete_files(min_input_files=1).summary().is_empty


REFUSED: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "least": ({}, {"min_file_size_bytes": 100 << 20}, "min_file_size_bytes is 104857600, target_file_size_bytes"),
    "most": ({}, {"max_file_size_bytes": True}, "max_file_size_bytes is True: expected a whole number of 1 or more"),
    "all": ({}, {"rewrite_all": "false"}, "rewrite_all is 'false': expected true or false"),
    "none": ({}, {"min_input_files": None}, "min_input_files is None: expected a whole number of 1 or more"),
    "granularity": ({"write.delete.granularity": "row"}, {}, "granularity is 'row': expected file or partition"),
    "codec": ({"write.parquet.compression-codec": "zip"}, {}, "compression-codec is 'zip': expected uncompressed"),
    "target": (
        {"write.delete.target-file-size-bytes": "1k"},
        {},
        "size-bytes is '1k': expected a whole number of 1 or more",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    properties, options, text = REFUSED[name]
    HandmadeTable(tmp_path, version=2, properties=properties).write()
    table = sm.load_table(f"file://{tmp_path}", spark=spark)
    with pytest.raises(ValidationError, match=text):
        table.maintenance.rewrite_position_delete_files(**options)


def test_encrypted_tables_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    HandmadeTable(tmp_path, properties={"encryption.key-id": "k"}).write()
    table = sm.load_table(f"file://{tmp_path}", spark=spark)
    with pytest.raises(UnsupportedError, match="encrypted"):
        table.maintenance.rewrite_position_delete_files()


# -- faults ----------------------------------------------------------------------------------------------------------

JOBS: dict[str, Any] = {
    "rewrite": lambda maintenance: maintenance.rewrite_position_delete_files(rewrite_all=True),
    "dangling": lambda maintenance: maintenance.remove_dangling_deletes(),
}


@pytest.mark.parametrize(
    ("job", "version"), [("rewrite", 3), ("dangling", 3), *([("rewrite", 2), ("dangling", 2)] if SOAK else [])]
)
def test_each_fault_of_a_commit(spark: SparkSession, tmp_path: Path, job: str, version: int) -> None:
    """The table has the old or the new deletes, its rows are the same, and another run finishes."""
    handmade = table_with_deletes(tmp_path, version)
    if job == "dangling":
        handmade.add(
            1, 1, handmade.positions("dangling.parquet", (f"file://{tmp_path}/data/gone.parquet", 1), sequence=0, **A)
        )
    location = handmade.write().rpartition("/metadata/")[0]
    contents = {path: path.read_bytes() for path in map(Path, files_below(tmp_path))}
    expected = row_texts(sm.load_table(location, spark=spark).scan().to_df())

    class Stage:
        """For `attempt`."""

        def commit(self, driver: FaultyFiles) -> None:
            for path in {*map(Path, files_below(tmp_path))} - contents.keys():
                path.unlink()
            table = sm.load_table(location, spark=spark)
            assert isinstance(table.operations, FileSystemOperations)
            table = replace(table, operations=replace(table.operations, files=driver))
            JOBS[job](table.maintenance).commit()

    stage: Any = Stage()
    candidates = list(faults(stage.commit))
    assert {fault.kind for fault in candidates} == set(Kind)
    for fault in candidates if SOAK else random.Random(job).sample(candidates, 1):
        outcome = attempt(stage, FaultyFiles(fault=fault))
        said = f"{fault}: {outcome}"
        after = sm.load_table(location, spark=spark)
        is_committed = len(after.metadata.snapshots) == 2
        assert is_committed == (outcome == "committed") or outcome in ("unknown", "killed"), said
        assert contents.keys() <= set(map(Path, files_below(tmp_path))), said
        assert row_texts(after.scan().to_df()) == expected, said
        finished = JOBS[job](after.maintenance).commit()
        assert row_texts(finished.scan().to_df()) == expected, said
        assert JOBS["dangling"](finished.maintenance).summary().is_empty or job == "rewrite", said
        if outcome == "failed":
            left = {path for path in map(Path, files_below(tmp_path)) if path.suffix in (".puffin", ".parquet")}
            reached = {Path(local_path(row["file_path"])) for row in live_deletes(finished)}
            assert left <= {*contents, *reached}, said
