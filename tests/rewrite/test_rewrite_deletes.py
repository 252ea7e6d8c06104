"""Position deletes that are rewritten as deletion vectors: rows stay the same, and files become few."""

from __future__ import annotations

import json
import random
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, CommitStateUnknownError, ValidationError
from sparkmeta.operations.filesystem import FileSystemOperations
from tests.command_line import invoke
from tests.maintain.test_expire import files_below, opened
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts
from tests.rows.test_changelog import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java


def history_of(spark: SparkSession, name: str, rng: random.Random, steps: int) -> Workshop:
    """A table with position deletes of both granularities, and since its upgrade to version 3 deletion vectors."""
    shop = Workshop(Java(spark), name)
    shop.create("id INT, name STRING, part STRING", "part", version=2, properties=MERGE_ON_READ)
    history = History(shop, rng)
    for granularity, condition in (("partition", "id % 5 = 0"), ("file", "id % 4 = 3")):
        shop.insert(*(f"{number}, 'a', '{'xyz'[number % 3]}'" for number in range(9)))
        shop.insert(*(f"{number}, 'b', '{'xyz'[number % 3]}'" for number in range(9)))
        shop.set(write__delete__granularity=granularity)
        shop.sql(f"DELETE FROM {{t}} WHERE {condition}")
    for _ in range(steps):
        history.step()
    shop.set(format_version="3")
    shop.insert("1, 'c', 'x'", "2, 'c', 'x'", "1, 'c', 'y'", "2, 'c', 'y'")
    shop.sql("DELETE FROM {t} WHERE id = 1")
    return shop


def upgraded(shop: Workshop) -> sm.Table:
    return opened(shop).maintenance.upgrade(4).commit()


def position_deletes(table: sm.Table) -> list[Any]:
    return table.inspect.delete_files().where("content = 1").collect()


def planned(table: sm.Table) -> list[tuple[Any, ...]]:
    plan = table.scan().plan_files().selectExpr("file_path", "first_row_id", "data_sequence_number")
    return sorted(map(tuple, plan.collect()))


@pytest.mark.parametrize("seed", range(20) if SOAK else [2])
def test_rows_stay(spark: SparkSession, seed: int) -> None:
    """Each data file has one deletion vector at most, and all of them are in one Puffin file."""
    table = upgraded(history_of(spark, f"rewritten_deletes_{seed}", random.Random(seed), steps=5))
    before = position_deletes(table)
    files = [row for row in before if row["file_format"] != "PUFFIN"]
    vectors = [row for row in before if row["file_format"] == "PUFFIN"]
    assert files
    assert vectors
    plan = table.maintenance.rewrite_position_delete_files(min_input_files=1, rewrite_all=True)
    summary = plan.summary()
    assert (summary.position_delete_files, summary.deletion_vectors) == (len(files), len(vectors))
    assert summary.records == sum(row["record_count"] for row in before)
    after = plan.commit()
    assert row_texts(after.scan().to_df()) == row_texts(table.scan().to_df())
    assert planned(after) == planned(table)
    deletes = position_deletes(after)
    assert {row["file_format"] for row in deletes} == {"PUFFIN"}
    assert len({row["file_path"] for row in deletes}) == 1
    assert len({row["referenced_data_file"] for row in deletes}) == len(deletes)
    assert after.check().isEmpty()
    head = after.current_snapshot()
    assert head is not None
    assert head.operation == "replace"
    assert head.summary is not None
    assert head.summary.additional_properties["removed-position-delete-files"] == str(len(files))
    assert head.summary.additional_properties["added-dvs"] == str(len(deletes))
    assert after.maintenance.rewrite_position_delete_files().summary().is_empty
    again = after.maintenance.remove_dangling_deletes()
    assert not [row for row in again.to_df().collect() if row["content"] == 1]


def command(location: str, *arguments: str, code: int = 0) -> str:
    result = invoke(["rewrite-position-delete-files", location, *arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def test_what_can_go_wrong(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad options, an unknown outcome, a conflict; then the job commits what the command shows."""
    shop = history_of(spark, "deletes_to_rewrite", random.Random(1), steps=0)
    folder, table = shop.folder, upgraded(shop)
    location = table.location()
    with pytest.raises(ValidationError, match="min_input_files is 0"):
        table.maintenance.rewrite_position_delete_files(min_input_files=0)
    assert "target_file_size_bytes is -1" in command(location, "--target-file-size-bytes", "-1", code=1)
    files = [row for row in position_deletes(table) if row["file_format"] != "PUFFIN"]

    for error in (CommitStateUnknownError("who knows"), RuntimeError("a signal's handler")):

        def unknown(*_: Any, error: Exception = error) -> Any:
            raise error

        before = files_below(folder)
        with monkeypatch.context() as patch:
            patch.setattr(FileSystemOperations, "commit", unknown)
            with pytest.raises(type(error)):
                table.maintenance.rewrite_position_delete_files().commit()
        assert before < files_below(folder)
        assert any(path.endswith("-deletes.puffin") for path in files_below(folder) - before)

    plan = table.maintenance.rewrite_position_delete_files()
    named = table.inspect.position_deletes().where("delete_file_path NOT LIKE '%.puffin'").select("file_path")
    with_positions = table.scan().plan_files().where("exists(deletes, d -> d.file_format = 'PARQUET')")
    deleted = with_positions.join(named.distinct(), "file_path", "left_semi").first()
    assert deleted is not None
    with table.transaction() as tx:
        tx.update_snapshot().delete(table.scan().plan_files().where(f"file_path = '{deleted['file_path']}'"))
    before = files_below(folder)
    with pytest.raises(CommitConflictError, match="not a live file"):
        plan.commit()
    assert files_below(folder) == before

    rows = row_texts(table.refresh().scan().to_df())
    shown = [
        json.loads(line) for line in command(location, "--filter", "part = 'x'", "--files", "-o", "json").splitlines()
    ]
    of_x = {row["file_path"] for row in files if row["partition"]["part"] == "x"}
    assert {row["file_path"] for row in shown} == of_x
    job = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "rewrite_position_delete_files.py"))["main"]
    assert job(["--table", location, "--filter", "part = 'x'", "--commit"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["plan"]["position_delete_files"], result["plan"]["deletion_vectors"]) == (len(of_x), 0)
    left = [row["file_path"] for row in position_deletes(table.refresh()) if row["file_format"] != "PUFFIN"]
    assert set(left) == {row["file_path"] for row in files} - of_x
    assert row_texts(table.refresh().scan().to_df()) == rows
    assert "position delete files become deletion vectors" in command(location)
    after = table.refresh().maintenance.rewrite_position_delete_files().commit()
    assert {row["file_format"] for row in position_deletes(after)} == {"PUFFIN"}
    assert row_texts(after.scan().to_df()) == rows
