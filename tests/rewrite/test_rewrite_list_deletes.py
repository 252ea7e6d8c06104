"""Position deletes of v2 and v3 tables that are rewritten: rows stay the same, and Java goes on with the table."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, CommitStateUnknownError, ValidationError
from sparkmeta.operations.filesystem import FileSystemOperations
from tests.maintain.test_expire import files_below, opened
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rewrite.test_rewrite_deletes import planned, position_deletes
from tests.rows.comparison import row_texts
from tests.rows.test_changelog import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

CASES = [(2, "file"), (2, "partition"), (3, "file")]


def history_of(spark: SparkSession, name: str, rng: random.Random, version: int, granularity: str) -> History:
    """A table with position deletes of both granularities, in every format, and in version 3 deletion vectors."""
    shop = Workshop(Java(spark), name)
    shop.create("id INT, name STRING, part STRING", "part", version=2, properties=MERGE_ON_READ)
    history = History(shop, rng)
    for number, kind in enumerate(("parquet", "avro", "orc")):
        shop.insert(*(f"{row}, 'a', '{'xyz'[row % 3]}'" for row in range(9)))
        shop.insert(*(f"{row}, 'b', '{'xyz'[row % 3]}'" for row in range(9)))
        shop.set(write__delete__granularity=rng.choice(["file", "partition"]), write__delete__format__default=kind)
        shop.sql(f"DELETE FROM {{t}} WHERE id % 4 = {number}")
    shop.set(write__delete__granularity=granularity, write__delete__format__default="parquet")
    for _ in range(4 if SOAK else 2):
        history.step()
    if version > 2:
        shop.set(format_version=str(version))
        shop.insert("1, 'c', 'x'", "2, 'c', 'x'", "1, 'c', 'y'", "2, 'c', 'y'")
        shop.sql("DELETE FROM {t} WHERE id = 2 AND name = 'c'")
    return history


def java_rows(shop: Workshop, version: int) -> list[Any]:
    shop.sql("REFRESH TABLE {t}")
    lineage = ", _row_id, _last_updated_sequence_number" if version > 2 else ""
    return row_texts(shop.sql(f"SELECT *{lineage} FROM {{t}}"))


def newest_applied(table: sm.Table) -> dict[str, int]:
    """Each data file with position deletes, and the greatest sequence number of these."""
    plan = table.scan().plan_files().selectExpr("file_path", "explode(deletes) AS d").where("d.content = 1")
    numbers = plan.selectExpr("file_path", "d.data_sequence_number AS number").groupBy("file_path")
    return dict(map(tuple, numbers.agg({"number": "max"}).collect()))  # type: ignore[arg-type]


def deleted(table: sm.Table) -> set[tuple[str, int]]:
    """The positions that are deleted of live data files."""
    live = table.scan().plan_files().selectExpr("file_path", "explode(deletes) AS d")
    live = live.selectExpr("file_path", "d.file_path AS delete_file_path")
    rows = table.inspect.position_deletes().join(live, ["file_path", "delete_file_path"])
    return {(row.file_path, row.pos) for row in rows.collect()}


@pytest.mark.parametrize(
    ("version", "granularity", "seed"),
    [(*case, seed) for seed in range(10 if SOAK else 1) for case in (CASES if SOAK else CASES[1:])],
)
def test_rows_stay(spark: SparkSession, version: int, granularity: str, seed: int) -> None:
    """Few files have the deletes afterwards; Java reads the same rows, deletes more, and rewrites deletes itself."""
    history = history_of(spark, f"listed_{version}_{granularity}_{seed}", random.Random(seed), version, granularity)
    shop = history.shop
    before, rows = opened(shop), java_rows(shop, version)
    deletes = position_deletes(before)
    plan = before.maintenance.rewrite_position_delete_files(rewrite_all=True)
    summary = plan.summary()
    assert summary.position_delete_files + summary.deletion_vectors == len(deletes) > 1
    assert summary.records == sum(row["record_count"] for row in deletes)
    after = plan.commit()
    assert java_rows(shop, version) == rows
    assert row_texts(after.scan().to_df()) == row_texts(before.scan().to_df())
    assert planned(after) == planned(before)
    assert deleted(after) == deleted(before)
    numbers = newest_applied(before)
    check_files(after, version, granularity, numbers)
    assert after.maintenance.rewrite_position_delete_files(min_input_files=2).summary().is_empty
    check_summary(plan.result(), after, deletes)

    for _ in range(3 if SOAK else 1):
        history.step()
    shop.sql("DELETE FROM {t} WHERE id IN (0, 5, 7)")
    rows = java_rows(shop, version)
    assert row_texts(opened(shop).scan().to_df()) == row_texts(shop.sql("SELECT * FROM {t}"))
    shop.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")
    assert java_rows(shop, version) == rows
    opened(shop).maintenance.rewrite_position_delete_files(rewrite_all=True).commit()
    assert java_rows(shop, version) == rows


def check_files(table: sm.Table, version: int, granularity: str, numbers: dict[str, int]) -> None:
    """New deletes are of the right form, and as new as those that they replace."""
    deletes = position_deletes(table)
    entries = table.inspect.entries().where("status = 1 AND data_file.content = 1").collect()
    new = {row["data_file"]["file_path"]: row for row in entries}
    assert {row["file_path"] for row in deletes} == set(new)
    assert {row["snapshot_id"] for row in entries} == {table.metadata.current_snapshot_id}
    assert {row["file_sequence_number"] for row in entries} == {table.metadata.last_sequence_number}
    if version > 2:
        assert {row["file_format"] for row in deletes} == {"PUFFIN"}
        assert len({row["file_path"] for row in deletes}) == 1
        assert len({row["referenced_data_file"] for row in deletes}) == len(deletes)
        by_file = {row["data_file"]["referenced_data_file"]: row["sequence_number"] for row in entries}
        assert by_file == numbers
        return
    scopes = [row["referenced_data_file"] if granularity == "file" else str(row["partition"]) for row in deletes]
    assert len(set(scopes)) == len(scopes) > 1
    for row in deletes:
        file = pq.ParquetFile(local_path(row["file_path"]))
        ids = {field.name: field.metadata[b"PARQUET:field_id"] for field in file.schema_arrow}
        assert ids == {"file_path": b"2147483546", "pos": b"2147483545"}
        assert file.metadata.metadata[b"delete-type"] == b"position"
        pairs = list(zip(*file.read().to_pydict().values(), strict=True))
        assert pairs == sorted(set(pairs))
        paths = {path for path, _ in pairs}
        metrics = new[row["file_path"]]["data_file"]
        assert dict(metrics["lower_bounds"])[2147483546] == min(paths).encode()
        assert dict(metrics["upper_bounds"])[2147483546] == max(paths).encode()
        assert dict(metrics["value_counts"])[2147483545] == row["record_count"] == len(pairs)
        assert new[row["file_path"]]["sequence_number"] == max(numbers[path] for path in paths)


def check_summary(result: dict[str, Any], table: sm.Table, replaced: list[Any]) -> None:
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.operation == "replace"
    properties = head.summary.additional_properties
    deletes = position_deletes(table)
    assert properties["removed-delete-files"] == str(len(replaced))
    assert properties["added-delete-files"] == str(len(deletes))
    assert properties["added-position-deletes"] == str(sum(row["record_count"] for row in deletes))
    assert result["committed"]["added_delete_files"] == len(deletes)
    assert result["committed"]["added_bytes"] == int(properties["added-files-size"])


# -- other commits come first ----------------------------------------------------------------------------------------


def test_other_commits_come_first(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits that contradict the rewrite are a conflict, and leave none of its files; other commits are not."""
    shop = Workshop(Java(spark), "deletes_beside_others")
    properties = MERGE_ON_READ | {"write.delete.granularity": "partition"}
    shop.create("id INT, name STRING, part STRING", "part", version=2, properties=properties)
    for name in "ab":
        shop.insert(*(f"{number}, '{name}', '{'xyz'[number % 3]}'" for number in range(30)))
    shop.sql("DELETE FROM {t} WHERE id < 6")
    first = shop.snapshot_id()
    shop.sql("DELETE FROM {t} WHERE id IN (7, 8, 9)")

    def plan() -> Any:
        rewrite = opened(shop).maintenance.rewrite_position_delete_files(rewrite_all=True)
        assert not rewrite.summary().is_empty
        return rewrite

    def refused(rewrite: Any, error: type[Exception], text: str) -> None:
        before, rows = files_below(shop.folder), java_rows(shop, 2)
        with pytest.raises(error, match=text):
            rewrite.commit()
        assert files_below(shop.folder) == before
        assert java_rows(shop, 2) == rows

    rewrite = plan()
    opened(shop).manage_snapshots().set_current_snapshot(first).commit()
    refused(rewrite, ValidationError, "can't tell what was committed")
    rewrite = plan()
    shop.call("rewrite_data_files", "`where` => \"part = 'x'\", options => map('rewrite-all', 'true')")
    shop.sql("DELETE FROM {t} WHERE id = 10")
    rows = java_rows(shop, 2)
    rewrite.commit()
    assert java_rows(shop, 2) == rows, "rewritten data files and more deletes don't matter in version 2"

    rewrite = plan()
    shop.set(format_version="3")
    refused(rewrite, CommitConflictError, "its format version has changed")
    rewrite = plan()
    shop.sql("DELETE FROM {t} WHERE id = 11 AND name = 'a'")
    refused(rewrite, CommitConflictError, "added a deletion vector for")
    rewrite = plan()
    shop.sql("DELETE FROM {t} WHERE part = 'y'")
    refused(rewrite, CommitConflictError, "removed .*, whose deletes are rewritten")
    shop.insert("40, 'c', 'y'", "41, 'c', 'z'")

    def unknown(*_: Any) -> Any:
        raise CommitStateUnknownError("who knows")

    before = files_below(shop.folder)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystemOperations, "commit", unknown)
        with pytest.raises(CommitStateUnknownError):
            plan().commit()
    left = {path.rpartition(".")[2] for path in files_below(shop.folder) - before}
    assert left == {"puffin", "avro"}

    rewrite = plan()
    shop.call("rewrite_manifests", "use_caching => false")
    shop.insert("42, 'c', 'z'")
    rows, before = java_rows(shop, 2), files_below(shop.folder)
    after = rewrite.commit()
    assert java_rows(shop, 2) == rows
    assert {row["file_format"] for row in position_deletes(after)} == {"PUFFIN"}
    new = [path for path in files_below(shop.folder) - before if not path.endswith(".json")]
    assert sum(path.endswith(".puffin") for path in new) == 1
    listed = {local_path(row["manifest_path"]) for row in after.state.manifest_files.to_pylist()}
    lists = {local_path(snapshot.manifest_list or "") for snapshot in after.metadata.snapshots}
    assert {path for path in new if path.endswith(".avro")} <= listed | lists, "each file is used"
    shop.sql("DELETE FROM {t} WHERE id = 14")
    assert row_texts(opened(shop).scan().to_df()) == java_rows(shop, 2)
