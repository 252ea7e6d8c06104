"""`sparkmeta maintain`: what health finds decides which jobs run, and with which options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.types import IntegerType

from tests.schedule.test_maintain import command, written
from tests.write.test_changes import frame, new_table, ordinary, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import sparkmeta as sm


def small_files(spark: SparkSession, folder: Path, files: int, version: int = 4, **properties: str) -> sm.Table:
    table = new_table(spark, folder, UNPARTITIONED_PARTITION_SPEC, version=version, **properties)
    for number in range(files):
        table = table.append(frame(spark, ordinary(10 * number, 10 * number + 10)).coalesce(1))
    return table


def maintained(folder: Path, table: sm.Table, text: str, *arguments: str) -> dict:
    config = written(folder / "c.toml", f"{text}\n[[tables]]\nlocations = [{table.location()!r}]\n")
    code, results, log = command("--config", str(config), *arguments)
    assert code == 0, log
    (result,) = results
    return result


def test_a_job_has_the_options_of_its_findings(spark: SparkSession, tmp_path: Path) -> None:
    table = small_files(spark, tmp_path, 3, write__delete__mode="merge-on-read").delete("id in (0, 10)")
    text = "[thresholds]\nmin_small_files = 2\nmax_deleted_ratio = 0.05\n[jobs.rewrite_data_files]\n"
    findings = ["dense_deletes", "small_files"]

    result = maintained(tmp_path, table, f"{text}min_input_files = 9\ndelete_ratio_threshold = 1.0", "--commit")
    assert (result["status"], result["findings"]) == ("nothing to do", findings)

    result = maintained(tmp_path, table, text.replace("min_small_files = 2", ""), "--commit")
    assert (result["findings"], result["committed"]["rewritten_data_files"]) == (findings[:1], 3)

    table = table.refresh().append(frame(spark, ordinary(30, 40)).coalesce(1))
    result = maintained(tmp_path, table, text, "--commit")
    assert (result["status"], result["findings"]) == ("committed", findings[1:])
    assert table.refresh().inspect.files().count() == 1
    assert rows_of(table.refresh()) == sorted([*ordinary(1, 10), *ordinary(11, 40)], key=repr)


def test_a_job_takes_files_below_the_ratio_of_its_findings(spark: SparkSession, tmp_path: Path) -> None:
    table = small_files(spark, tmp_path, 5)
    size = max(row.file_size_in_bytes for row in table.inspect.files().collect())
    with table.transaction() as change:
        change.set_properties({"write.target-file-size-bytes": str(int(size / 0.78))})
    text = "[thresholds]\nsmall_file_ratio = 0.9\n[jobs.rewrite_data_files]\n"
    for options, status in {"": "planned", "min_file_size_bytes = 1": "nothing to do"}.items():
        result = maintained(tmp_path, table, text + options)
        assert (result["status"], result["findings"]) == (status, ["small_files"])
    result = maintained(tmp_path, table, f"{text}target_file_size_bytes = {size // 2}")
    assert result["status"] == "planned"


def test_a_part_of_a_rewrite_that_fails(spark: SparkSession, tmp_path: Path) -> None:
    """The job has failed, although another part is committed."""
    table = new_table(spark, tmp_path, version=2)
    for number in range(4):
        table = table.append(frame(spark, [(number, "ab"[number % 2], number)]))
    damaged = table.inspect.files().where("partition.part = 'a'").first()["file_path"]
    Path(damaged.removeprefix("file://")).write_bytes(b"PAR1")
    text = "[thresholds]\nmin_small_files = 2\n[jobs.rewrite_data_files]\npartial_progress_enabled = true\n"
    config = written(tmp_path / "c.toml", f"{text}[[tables]]\nlocations = [{table.location()!r}]\n")
    code, (result,), _ = command("--config", str(config), "--commit")
    assert (code, result["status"], result["error"]) == (1, "failed", "1 commit failed: 2 data files not rewritten")
    assert (result["committed"]["commits"], result["committed"]["rewritten_data_files"]) == (1, 2)
    assert len(table.refresh().snapshots()) == 5


def test_a_large_metadata_file_loses_its_schemas(spark: SparkSession, tmp_path: Path) -> None:
    table = small_files(spark, tmp_path, 1, version=2)
    with table.update_schema() as update:
        update.add_column("more", IntegerType())
    table = table.refresh().append(frame(spark, ordinary(20, 30)).selectExpr("*", "1 AS more"))
    text = '[thresholds]\nmax_metadata_json_bytes = 10\n[jobs.expire_snapshots]\nolder_than = "0m"\n'
    result = maintained(tmp_path, table, text, "--commit")
    assert result["findings"] == ["large_metadata_json"]
    assert len(table.refresh().schemas()) == 1


def test_schemas_and_specs_are_removed_without_an_expiring_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, version=2)
    with table.update_schema() as update:
        update.add_column("more", IntegerType())
    with table.refresh().update_spec() as update:
        update.remove_field("part")
    table = table.refresh().append(frame(spark, ordinary(0, 9)).selectExpr("*", "1 AS more"))
    text = "[jobs.expire_snapshots]\nclean_expired_metadata = true\n"
    result = maintained(tmp_path, table, text)
    assert (result["status"], result["plan"]["snapshots"]) == ("planned", 0)
    assert (result["plan"]["schemas"], result["plan"]["partition_specs"]) == (1, 1)
    assert maintained(tmp_path, table, text, "--commit")["status"] == "committed"
    table = table.refresh()
    assert (len(table.schemas()), len(table.specs()), len(table.snapshots())) == (1, 1, 1)
    assert maintained(tmp_path, table, text, "--commit")["status"] == "nothing to do"


def test_distinct_values_of_a_snapshot_are_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    table = small_files(spark, tmp_path, 1, version=2)
    of_all = "[jobs.compute_table_stats]\n"
    of_id = of_all + 'columns = ["id"]\n'

    def status(text: str) -> str:
        return maintained(tmp_path, table, text, "--commit")["status"]

    assert [status(text) for text in (of_id, of_id)] == ["committed", "nothing to do"]
    assert [status(text) for text in (of_all, of_all, of_id)] == ["committed", "nothing to do", "nothing to do"]
    table.refresh().append(frame(spark, ordinary(20, 30)))
    assert [status(text) for text in (of_all, of_id)] == ["committed", "nothing to do"]


def test_metrics_do_not_make_a_job_rewrite_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = small_files(spark, tmp_path, 1, version=2)
    with table.transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "none"})
    (finding,) = table.refresh().maintenance.health().list_findings
    assert (finding.finding, finding.job, finding.options) == ("excess_stats", None, {"rewrite_all": True})
    result = maintained(tmp_path, table, "[jobs.rewrite_data_files]")
    assert (result["status"], result["findings"]) == ("nothing to do", [])


def test_the_plan_decides_about_another_branch(spark: SparkSession, tmp_path: Path) -> None:
    """Health examines main, which has small files, until the branch has some."""
    table = small_files(spark, tmp_path, 5)
    with table.manage_snapshots() as change:
        change.create_branch(table.current_snapshot().snapshot_id, "dev")
    table = table.refresh().overwrite(frame(spark, ordinary(0, 9)).coalesce(1), branch="dev")
    text = '[thresholds]\nmin_small_files = 2\n[jobs.rewrite_data_files]\nbranch = "dev"'
    result = maintained(tmp_path, table, text)
    assert (result["status"], result["findings"]) == ("nothing to do", [])
    assert maintained(tmp_path, table, text.replace("dev", "main"))["findings"] == ["small_files"]

    table = table.refresh().overwrite(frame(spark, ordinary(0, 9)).coalesce(1))
    for number in range(4):
        table = table.append(frame(spark, ordinary(10 * number, 10 * number + 10)).coalesce(1), branch="dev")
    result = maintained(tmp_path, table, text, "--commit")
    assert (result["status"], result["committed"]["rewritten_data_files"]) == ("committed", 5)
    files = table.refresh().inspect.files
    assert (files().count(), files(table.refresh().refs()["dev"].snapshot_id).count()) == (1, 1)
