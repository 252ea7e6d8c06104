"""Deletes that apply to no live data file: which they are, and what a commit without them changes."""

from __future__ import annotations

import json
import random
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, CommitStateUnknownError
from sparkmeta.session import SessionSource
from tests.command_line import invoke
from tests.commit.test_lost_attempts import ROWS, Overtaken, appended, rows
from tests.conftest import configured
from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, position_deletes
from tests.maintain.test_expire import opened
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts
from tests.rows.test_changelog import History

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

PARTITIONS: dict[int, list[dict[str, Any]]] = {
    0: [{}],
    1: [{"part": value} for value in ("a", "b", None)],
    2: [{"ratio": value} for value in (0.0, -0.0, float("nan"), 1.5)],
}
PATH_ID = 2147483546


def key_of(spec_id: int, partition: dict[str, Any]) -> str:
    """A partition as text, in which NaN equals NaN and -0.0 differs from 0.0."""
    return f"{spec_id} {partition}"


class RandomTable:
    """Data files and deletes of every kind at random, and by brute force the deletes that apply to none.

    Attributes:
        dangling: the `name` of each delete that does.
    """

    def __init__(self, folder: Path, rng: random.Random, version: int) -> None:
        self.rng, self.version = rng, version
        self.table = HandmadeTable(folder, version=version, summaries=True)
        self.live: list[tuple[str, int, str, int]] = []  # path, spec id, partition, sequence number
        self.gone: list[tuple[str, int, str, int]] = []
        self.dangling: set[str] = set()
        self.with_vectors: set[str] = set()
        for spec_id in PARTITIONS:
            for _ in range(2):
                self.table.add(0, spec_id, *self._data(spec_id, rng.randint(1, 6)))
        self.live.append(("file:///t/oldest", 1, key_of(1, {"part": "a"}), 2))
        self.table.add(0, 1, data("file:///t/oldest", 2, partition={"part": "a"}))
        # It applies to files of other specs only.
        self.table.add(1, 0, equality_deletes("file:///t/global", 3))
        for spec_id in PARTITIONS:
            for _ in range(3):
                self.table.add(1, spec_id, *self._deletes(spec_id, 12))
        self.table.write()

    def _data(self, spec_id: int, count: int) -> Iterator[dict[str, Any]]:
        for _ in range(count):
            partition = self.rng.choice(PARTITIONS[spec_id])
            path, sequence = (
                f"file:///t/{len(self.live) + len(self.gone)}.parquet",
                self.rng.randint(2 if spec_id else 3, 4),
            )
            is_live = self.rng.random() < 0.6
            files = self.live if is_live else self.gone
            files.append((path, spec_id, key_of(spec_id, partition), sequence))
            yield data(path, sequence, status=self.rng.choice([0, 1]) if is_live else 2, partition=partition)

    def _deletes(self, spec_id: int, count: int) -> Iterator[dict[str, Any]]:
        for number in range(count):
            partition, sequence = self.rng.choice(PARTITIONS[spec_id]), self.rng.randint(1, 5)
            same = key_of(spec_id, partition)
            name = f"file:///t/delete-{len(self.table.manifests)}-{number}"
            kind = self.rng.choice(["equality", "partition", "referenced", "bounds", "vector"])
            named = [file for file in self.live + self.gone if file[2] == same]
            named = [file for file in named if kind != "vector" or file[0] not in self.with_vectors]
            if kind == "equality":
                older = [file for file in self.live if file[3] < sequence and (spec_id == 0 or file[2] == same)]
                yield self._known(name, older, equality_deletes(name, sequence, partition=partition))
            elif kind == "partition":
                older = [file for file in self.live if file[3] <= sequence and file[2] == same]
                yield self._known(name, older, position_deletes(name, sequence, partition=partition))
            elif named and (kind != "vector" or self.version > 2):
                yield self._of_file(name, kind, self.rng.choice(named), sequence, partition)

    def _of_file(
        self, name: str, kind: str, file: tuple[str, int, str, int], sequence: int, partition: dict[str, Any]
    ) -> dict[str, Any]:
        if kind == "vector":
            self.with_vectors.add(file[0])
            entry = deletion_vector(file[0], 5, file_path=name, partition=partition)
            return self._known(name, [file] if file in self.live else [], entry)
        older = [file] if file in self.live and file[3] <= sequence else []
        if kind == "referenced":
            entry = position_deletes(name, sequence, partition=partition, referenced_data_file=file[0])
        else:
            bound = [{"key": PATH_ID, "value": file[0].encode()}]
            entry = position_deletes(name, sequence, partition=partition, lower_bounds=bound, upper_bounds=bound)
        return self._known(name, older, entry)

    def _known(self, name: str, applies_to: Sequence[Any], entry: dict[str, Any]) -> dict[str, Any]:
        if not applies_to:
            self.dangling.add(name)
        return entry


def applied_deletes(table: sm.Table) -> list[tuple[Any, ...]]:
    """Each planned file with its deletes, whatever manifest lists them."""
    plan = table.scan().plan_files().selectExpr("file_path", "first_row_id", "deletes.file_path AS deletes")
    return sorted((row[0], row[1], tuple(sorted(row[2]))) for row in plan.collect())


def live_deletes(table: sm.Table) -> dict[str, tuple[Any, ...]]:
    """The numbers and the file of each live delete entry, by path."""
    entries = table.inspect.entries().where("status != 2 AND data_file.content > 0").drop("readable_metrics")
    return {row["data_file"]["file_path"]: (str(tuple(row)[1:])) for row in entries.collect()}


@pytest.mark.parametrize("driver_bytes", [None, "0"], ids=["driver", "spark"])
@pytest.mark.parametrize("seed", range(20) if SOAK else [5])
def test_what_dangles_and_nothing_else(
    spark: SparkSession, tmp_path: Path, seed: int, driver_bytes: str | None
) -> None:
    """In a table of lists, and after its upgrade in a tree: as a model says, by all rules at once."""
    with configured(spark, {} if driver_bytes is None else {"spark.sparkmeta.driver-manifest-bytes": driver_bytes}):
        remove_what_dangles(spark, tmp_path, seed)


def remove_what_dangles(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    version = 2 + seed % 2
    model = RandomTable(tmp_path, random.Random(seed), version)
    before = sm.load_table(f"file://{tmp_path}", spark=spark)
    plan = before.maintenance.remove_dangling_deletes()
    rows = plan.to_df().collect()
    assert {row["file_path"] for row in rows} == model.dangling
    planned, live = applied_deletes(before), live_deletes(before)
    after = plan.commit()
    summary, counts = plan.summary(), plan.result()["committed"]
    check_removed(before, after, model.dangling, live)
    assert applied_deletes(after) == planned
    assert after.maintenance.remove_dangling_deletes().summary().is_empty
    assert counts["manifests_created"] == counts["manifests_replaced"] == summary.manifests
    assert counts["manifests_kept"] == len(before.state.manifest_files) - summary.manifests

    other = tmp_path / "upgraded"
    RandomTable(other, random.Random(seed), version)
    tree = sm.load_table(f"file://{other}", spark=spark).maintenance.upgrade(4).commit()
    plan = tree.maintenance.remove_dangling_deletes(snapshot_properties={"why": "tidy"})
    assert {row["file_path"] for row in plan.to_df().collect()} == model.dangling
    masked = plan.commit()
    assert set(live_deletes(masked)) == set(live) - model.dangling
    assert applied_deletes(masked) == applied_deletes(tree)
    assert masked.maintenance.remove_dangling_deletes().summary().is_empty
    assert masked.check().isEmpty()
    assert masked.current_snapshot().summary.additional_properties["why"] == "tidy"  # type: ignore[union-attr]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_beside_a_writer(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt looks for dangling deletes again, without Spark."""
    monkeypatch.setattr(SessionSource, "get", lambda _: pytest.fail("a session is asked for"))
    catalog = sm.load_catalog("c", type="hadoop", warehouse=tmp_path.as_uri())
    properties = {"write.delete.mode": "merge-on-read", "commit.retry.min-wait-ms": "1"}
    table = catalog.create_table("db.t", ROWS, partition_by=["part"], format_version=version, properties=properties)
    for part in range(3):
        table = table.append(rows(part * 10, part * 10 + 1, part=part))
    table = table.equality_delete(rows(0, 10, part=0), ["id"]).equality_delete(rows(20, part=2), ["id"])
    table = table.delete("part = 0").delete("part = 1")
    count = table.inspect.arrow.delete_files().num_rows
    plan = table.maintenance.remove_dangling_deletes()
    assert plan.summary().equality_delete_files == count - 1
    overtaken = Overtaken(table, monkeypatch, [appended(number) for number in range(3)])
    after = plan.commit()
    assert overtaken.attempts == 4
    assert after.inspect.arrow.delete_files().num_rows == 1
    assert sorted(after.scan().to_arrow().column("id").to_pylist()) == [21, 100, 101, 102]
    assert not after.arrow.check().to_pylist()


def check_removed(before: sm.Table, after: sm.Table, dangling: set[str], remaining: dict[str, tuple[Any, ...]]) -> None:
    """The rest of the deletes is unchanged; removed ones are DELETED entries, and the list and summary count them."""
    head = after.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.operation == "replace"
    assert live_deletes(after) == {path: entry for path, entry in remaining.items() if path not in dangling}
    deleted = after.inspect.entries().where(f"status = 2 AND snapshot_id = {head.snapshot_id}").collect()
    assert {row["data_file"]["file_path"] for row in deleted} == dangling
    assert all(row["sequence_number"] is not None for row in deleted)
    removed = {key: int(value) for key, value in head.summary.additional_properties.items() if "removed" in key}
    assert removed["removed-delete-files"] == len(dangling)
    assert removed["removed-dvs"] if before.format_version > 2 else "removed-dvs" not in removed
    old_paths = {row["manifest_path"] for row in before.state.manifest_files.to_pylist()}
    new = [row for row in after.state.manifest_files.to_pylist() if row["manifest_path"] not in old_paths]
    assert sum(row["deleted_files_count"] for row in new) == len(dangling)
    for row in new:
        entries = after.inspect.entries().where(f"status = 0 AND data_file.spec_id = {row['partition_spec_id']}")
        assert row["min_sequence_number"] >= min(entry["sequence_number"] for entry in entries.collect())


@pytest.mark.java
@pytest.mark.parametrize(("version", "seed"), [(2 + n % 2, n) for n in range(20)] if SOAK else [(2, 0), (3, 1)])
def test_java_finds_none_afterwards(spark: SparkSession, version: int, seed: int) -> None:
    """Java's rows and row ids stay the same, its own action has nothing left to do, and its commits work."""
    shop = Workshop(Java(spark), f"dangling_{version}_{seed}")
    shop.create("id INT, name STRING, part STRING", "part", version=version, properties=MERGE_ON_READ)
    history = History(shop, random.Random(seed))
    shop.insert(*(f"{number}, 'a', '{'xyz'[number % 3]}'" for number in range(9)))
    shop.sql("DELETE FROM {t} WHERE id IN (0, 1)")
    for _ in range(6):
        history.step()
    shop.row_delta(shop.equality_delete("last.parquet", {"id": [0]}, ["y"]))
    shop.call("rewrite_data_files", "`where` => \"part <> 'x'\", options => map('rewrite-all', 'true')")
    before = opened(shop)
    columns = "*, _row_id, _last_updated_sequence_number" if version > 2 else "*"
    rows = row_texts(shop.sql(f"SELECT {columns} FROM {{t}}"))
    plan = before.maintenance.remove_dangling_deletes()
    assert not plan.summary().is_empty
    paths = sorted(row["file_path"] for row in plan.to_df().collect())
    after = plan.commit()
    changes = after.file_changes(before.metadata.current_snapshot_id, after.metadata.current_snapshot_id).collect()
    assert sorted((row["change_type"], row["file_path"]) for row in changes) == [("removed", path) for path in paths]
    shop.sql("REFRESH TABLE {t}")
    assert row_texts(shop.sql(f"SELECT {columns} FROM {{t}}")) == rows
    assert row_texts(after.scan().to_df()) == row_texts(before.scan().to_df())
    actions = shop.java.iceberg.spark.actions.SparkActions.get(shop.java.session)
    assert not list(actions.removeDanglingDeleteFiles(shop.table).execute().removedDeleteFiles())
    for _ in range(3):
        history.step()
    assert row_texts(opened(shop).scan().to_df()) == row_texts(shop.sql("SELECT * FROM {t}"))


def small_table(folder: Path) -> HandmadeTable:
    """A data file that is newer than one of two equality deletes."""
    table = HandmadeTable(folder, version=2, summaries=True)
    table.add(0, 0, data("file:///t/old", 1, status=2), data("file:///t/new", 3))
    return table.add(1, 0, equality_deletes("file:///t/e2", 2), equality_deletes("file:///t/e4", 4))


@pytest.mark.java
def test_a_branch_that_is_set_back(spark: SparkSession) -> None:
    """What dangles is determined again: in the earlier snapshot, the deletes apply to its files."""
    shop = Workshop(Java(spark), "dangling_rollback")
    shop.create("id INT", version=2, properties=MERGE_ON_READ | {"write.delete.granularity": "partition"})
    shop.insert("1", "2", "3")
    shop.sql("DELETE FROM {t} WHERE id = 1")
    with_deletes = shop.snapshot_id()
    shop.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    table = opened(shop)
    plan = table.maintenance.remove_dangling_deletes()
    assert plan.summary().position_delete_files == 1
    table.manage_snapshots().set_current_snapshot(with_deletes).commit()
    with pytest.raises(CommitConflictError, match="plan again"):
        plan.commit()
    assert opened(shop).scan().to_df().count() == 2


def test_an_unknown_outcome_deletes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_table(tmp_path).write()
    plan = sm.load_table(f"file://{tmp_path}", spark=spark).maintenance.remove_dangling_deletes()

    def unknown(*_: Any) -> Any:
        raise CommitStateUnknownError("who knows")

    monkeypatch.setattr("sparkmeta.operations.filesystem.FileSystemOperations.commit", unknown)
    before = {path.name for path in tmp_path.rglob("*.avro")}
    with pytest.raises(CommitStateUnknownError):
        plan.commit()
    assert len({path.name for path in tmp_path.rglob("*.avro")} - before) == 2, "the new manifest and its list stay"


def test_the_command_and_the_job(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = f"file://{tmp_path}"
    small_table(tmp_path).write()

    def command(*arguments: str) -> str:
        result = invoke(["remove-dangling-deletes", location, *arguments])
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.output

    text = command()
    assert "0 position delete files, 1 equality delete files and 0 deletion vectors apply to no live data file" in text
    assert "nothing is changed without --commit" in text
    (row,) = (json.loads(line) for line in command("--files", "-o", "json").splitlines())
    assert (row["file_path"], row["data_sequence_number"], row["manifest_pos"]) == ("file:///t/e2", 2, 0)
    job = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "remove_dangling_deletes.py"))["main"]
    assert job(["--table", location, "--commit"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["plan"]["equality_delete_files"], result["committed"]["manifests_replaced"]) == (1, 1)
    assert "all deletes apply to live data files" in command("--commit")
