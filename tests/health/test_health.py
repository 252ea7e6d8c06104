"""`table.maintenance.health()`: what it finds on tables that are bad in one way each, and nothing on healthy ones."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import ValidationError
from sparkmeta.storage import files
from tests.command_line import invoke
from tests.conftest import configured
from tests.handmade import (
    HandmadeTable,
    data,
    deletion_vector,
    equality_deletes,
    long_bounds,
    position_deletes,
)
from tests.logging_reader import LoggingReader
from tests.maintain.test_compact import append, compacted, delete, new_table
from tests.peers.slices import SOAK
from tests.plan.test_what_runs import LoggingFiles
from tests.trees import BY_PART, TreeTable
from tests.trees import data as tree_data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE = 512 << 20
SIZED = {"file_size_in_bytes": LARGE, "record_count": 100}


def file(path: str, part: str = "x", **values: Any) -> dict[str, Any]:
    """A data file that is large enough."""
    return data(f"x:{path}", partition={"part": part}, **{**SIZED, **long_bounds(0, 9), **values})


def healthy(folder: Path, **values: Any) -> HandmadeTable:
    """Two manifests, each of a partition of its own."""
    table = HandmadeTable(folder, summaries=True, **values)
    for part in "xy":
        table.add(0, 1, *(file(f"{part}{number}", part) for number in range(3)))
    return table


def report_of(table: HandmadeTable, spark: SparkSession, **options: Any) -> Any:
    document = table.metadata()
    location = table.write()
    document["snapshots"][0]["timestamp-ms"] = 4_000_000_000_000
    if table.version == 1:
        del document["snapshots"][0]["sequence-number"], document["last-sequence-number"]
    Path(location.removeprefix("file://")).write_text(json.dumps(document))
    return health_of(sm.load_table(location, spark=spark), **options)


def health_of(table: sm.Table, **options: Any) -> Any:
    """The report that the driver makes, which is also that of Spark's jobs."""
    report = table.maintenance.health(**options)
    with configured(table.state.spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        by_spark = table.refresh().maintenance.health(**options)
    assert numbers(report) == numbers(by_spark)
    assert report.list_findings == by_spark.list_findings
    return report


def numbers(report: Any) -> dict[str, Any]:
    """The values of a report in any order of partitions, without what depends on the time or on equal partitions."""
    numbers = {name: value for name, value in report.to_dict().items() if name not in ("examined_at", "seconds")}
    for kind in ("data_files", "deletes"):
        numbers[kind] = {
            name: sorted(map(str, value)) if isinstance(value, list) else value
            for name, value in numbers[kind].items()
            if not (isinstance(value, list) and len(value) == report.limits.partitions)
        }
    return numbers


def kinds(report: Any) -> list[str]:
    return [row.finding for row in report.findings().collect()]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_healthy_table(spark: SparkSession, tmp_path: Path, version: int) -> None:
    report = report_of(healthy(tmp_path, version=version), spark)
    assert kinds(report) == []
    assert report.is_healthy
    assert "is healthy: it needs no maintenance" in str(report)
    assert "Nothing to do" in report.html
    assert (report.entries.files, report.entries.partitions, report.entries.bytes) == (6, 2, 6 * LARGE)
    assert report.entries.sizes == ((29, 6, 6 * LARGE),)


def test_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path)
    report = table.maintenance.health()
    assert report.is_healthy
    assert "</html>" in report.html


# -- deletes ----------------------------------------------------------------------------------------------------------

X = {"partition": {"part": "x"}}
DANGLING = {
    "a vector of a file that is gone": deletion_vector("x:gone", **X),
    "position deletes of a file that is gone": position_deletes("x:p", **X, referenced_data_file="x:gone"),
    "position deletes older than all files of the partition": position_deletes("x:p", 0, **X),
    "position deletes of an empty partition": position_deletes("x:p", partition={"part": "z"}),
    "equality deletes as old as all files of the partition": equality_deletes("x:e", 1, **X),
}
APPLYING = {
    "a vector": deletion_vector("x:x1", **X),
    "position deletes of a file": position_deletes("x:p", **X, referenced_data_file="x:x1"),
    "position deletes of a partition": position_deletes("x:p", 1, **X),
    "equality deletes": equality_deletes("x:e", 2, **X),
}


@pytest.mark.parametrize("names", [tuple(DANGLING), *((name,) for name in DANGLING if SOAK)], ids="; ".join)
def test_dangling_deletes(spark: SparkSession, tmp_path: Path, names: tuple[str, ...]) -> None:
    dangling = [DANGLING[name] for name in names]
    table = healthy(tmp_path).add(1, 1, *dangling, *(dict(entry) for entry in APPLYING.values()))
    report = report_of(table, spark)
    assert kinds(report) == ["dangling_deletes", "equality_deletes", "position_delete_files"]
    row = report.findings().where("finding = 'dangling_deletes'").collect()[0]
    assert (row["items"], row.job) == (len(names), "remove_dangling_deletes")
    assert row.call == "table.maintenance.remove_dangling_deletes().commit()"
    assert row.command == f"sparkmeta remove-dangling-deletes file://{tmp_path} --commit"
    assert report.entries.deletes.files == len(names) + 4


def test_deletes_that_apply(spark: SparkSession, tmp_path: Path) -> None:
    """A table of version 3 could have deletion vectors instead of all other deletes."""
    report = report_of(healthy(tmp_path).add(1, 1, *APPLYING.values()), spark)
    assert kinds(report) == ["equality_deletes", "position_delete_files"]
    jobs = [finding.job for finding in report.list_findings]
    assert jobs == ["convert_equality_deletes", "rewrite_position_delete_files"]


def test_equality_deletes_of_the_whole_table(spark: SparkSession, tmp_path: Path) -> None:
    everywhere = healthy(tmp_path / "a").add(1, 0, equality_deletes("x:e", 2, partition={}))
    assert kinds(report_of(everywhere, spark)) == ["equality_deletes"]
    nowhere = healthy(tmp_path / "b").add(1, 0, equality_deletes("x:e", 1, partition={}))
    assert kinds(report_of(nowhere, spark)) == ["dangling_deletes"]


def test_small_puffin_files(spark: SparkSession, tmp_path: Path) -> None:
    def table(files: int) -> HandmadeTable:
        names = [f"{part}{number}" for part in "xy" for number in range(3)]
        vectors = [
            deletion_vector(f"x:{name}", partition={"part": name[0]}, file_path=f"x:{place % files}.puffin")
            for place, name in enumerate(names)
        ]
        return healthy(tmp_path / str(files)).add(1, 1, *vectors)

    report = report_of(table(6), spark)
    assert kinds(report) == ["small_puffin_files"]
    row = report.findings().collect()[0]
    assert (row["items"], row.bytes, row.job) == (6, 6 * 40, "rewrite_position_delete_files")
    assert row.gain == "1 Puffin file instead of 6"
    assert kinds(report_of(table(4), spark)) == []
    large = table(5)
    assert kinds(report_of(large, spark)) == ["small_puffin_files"]
    large.properties["write.delete.target-file-size-bytes"] = "1"
    assert kinds(report_of(large, spark)) == []


def test_partitions_with_many_deleted_rows(spark: SparkSession, tmp_path: Path) -> None:
    vectors = [deletion_vector(f"x:x{number}", **X, record_count=90) for number in range(3)]
    table = healthy(tmp_path).add(1, 1, *vectors)
    report = report_of(table, spark)
    assert kinds(report) == ["dense_deletes"]
    assert [(row.values, row.deleted_ratio) for row in report.entries.densest] == [({1000: "x", 1001: None}, 0.9)]
    finding = report.list_findings[0]
    assert (finding.job, finding.call) == (
        "rewrite_data_files",
        "table.maintenance.rewrite_data_files(delete_ratio_threshold=0.3).commit()",
    )
    assert finding.command.endswith(" --delete-ratio-threshold 0.3 --commit")
    assert kinds(report_of(table, spark, max_deleted_ratio=0.91)) == []


# -- data files and their metrics -------------------------------------------------------------------------------------


def test_small_files(spark: SparkSession, tmp_path: Path) -> None:
    table = healthy(tmp_path).add(0, 1, *(file(f"s{number}", file_size_in_bytes=1 << 20) for number in range(5)))
    report = report_of(table, spark)
    assert kinds(report) == ["small_files"]
    assert (report.entries.small_files, report.entries.files_saved) == (5, 4)
    assert report.list_findings[0].job == "rewrite_data_files"
    assert kinds(report_of(table, spark, min_small_files=6)) == []
    assert kinds(report_of(table, spark, small_file_ratio=1 / 512)) == []
    table.properties["write.target-file-size-bytes"] = str(1 << 20)
    assert kinds(report_of(table, spark)) == []


@pytest.mark.parametrize(
    ("properties", "columns"),
    [
        ({"write.metadata.metrics.default": "none"}, 1),
        ({"write.metadata.metrics.column.id": "counts"}, 1),
        ({"write.metadata.metrics.default": "none", "write.metadata.metrics.column.id": "full"}, 0),
        ({}, 0),
    ],
)
def test_metrics_that_properties_do_not_keep(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], columns: int
) -> None:
    report = report_of(healthy(tmp_path, properties=properties), spark)
    assert kinds(report) == ["excess_stats"] * bool(columns)
    assert [finding.items for finding in report.list_findings] == [columns] * bool(columns)
    assert set(report.entries.stats.columns) == {1}


def test_bounds_the_wrong_way_round_are_named(spark: SparkSession, tmp_path: Path) -> None:
    wrong = data("x:swapped", **X, **SIZED, **long_bounds(7, 2))
    (finding,) = report_of(HandmadeTable(tmp_path / "a", summaries=True).add(0, 1, wrong), spark).list_findings
    assert (finding.finding, finding.items, finding.job) == ("inverted_bounds", 1, None)
    assert finding.problem.endswith("such as in column 1 of x:swapped")


def test_metrics_of_a_dropped_column_and_long_bounds(spark: SparkSession, tmp_path: Path) -> None:
    text = [{"key": 2, "value": b"x" * 200}]
    long = {"lower_bounds": text, "upper_bounds": text, "value_counts": [{"key": 2, "value": 1}]}
    table = HandmadeTable(tmp_path, summaries=True).add(0, 1, data("x:x", **X, **SIZED, **long))
    assert kinds(report_of(table, spark)) == ["excess_stats"]
    table.properties["write.metadata.metrics.column.part"] = "truncate(200)"
    assert kinds(report_of(table, spark)) == []
    dropped = long_bounds(1, 2, field_id=77)
    table = HandmadeTable(tmp_path, summaries=True).add(0, 1, data("x:x", **X, **SIZED, **dropped))
    report = report_of(table, spark)
    assert "dropped column 77" in report.list_findings[0].problem


def test_metrics_of_metadata_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Rewritten files have metrics of `_row_id`, which no property governs, and which another rewrite keeps."""
    row_ids, dropped = long_bounds(1, 2, field_id=2147483540), long_bounds(1, 2, field_id=77)
    files = [data("x:x", **X, **SIZED, **row_ids), data("x:y", **X, **SIZED, **long_bounds(0, 9))]
    assert kinds(report_of(HandmadeTable(tmp_path / "a", summaries=True).add(0, 1, *files), spark)) == []
    files.append(data("x:z", **X, **SIZED, **dropped))
    (finding,) = report_of(HandmadeTable(tmp_path / "b", summaries=True).add(0, 1, *files), spark).list_findings
    assert finding.problem.endswith(": dropped column 77")
    assert finding.cost.startswith("50% of the metrics")


# -- manifests --------------------------------------------------------------------------------------------------------


def test_manifests_of_a_list(spark: SparkSession, tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path, summaries=True)
    for number in range(6):
        table.add(0, 1, file(f"a{number}", "a"), file(f"b{number}", "m"), file(f"c{number}", "z"))
    report = report_of(table, spark)
    assert kinds(report) == ["overlapping_manifests"]
    assert [(depth.name, depth.overlaps, depth.most_overlaps) for depth in report.layout.depths] == [("part", 5.0, 5)]
    assert report.list_findings[0].call == "table.maintenance.rewrite_manifests().commit()"
    assert kinds(report_of(table, spark, max_overlap=5)) == []
    table.properties["commit.manifest.min-count-to-merge"] = "5"
    assert kinds(report_of(table, spark, max_overlap=5)) == ["small_manifests"]


def test_overlaps_by_column(spark: SparkSession, tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path, summaries=True)
    for number, part in enumerate("abc"):
        table.add(0, 1, file(part, part, **long_bounds(number, 10)), file(f"{part}1", part, **long_bounds(5, 6)))
    report = report_of(table, spark, columns=["id"])
    depths = {depth.name: (depth.kind, depth.overlaps) for depth in report.layout.depths}
    assert depths == {"part": ("partition field", 0.0), "id": ("column", 2.0)}
    with pytest.raises(ValidationError, match="no column 'nothing' with bounds"):
        report_of(table, spark, columns=["nothing"])


def test_leaves_of_a_tree(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path)
    for number in range(3):
        table = append(table, 10 * number, 10 * number + 1)
    report = health_of(table)
    (finding,) = report.list_findings
    assert (finding.finding, finding.items, finding.job) == ("small_manifests", 3, "compact_manifests")
    assert report.entries.files == 6
    table = compacted(table)
    assert table.maintenance.health().is_healthy
    table = delete(table, 0, 10, 11)
    report = health_of(table)
    assert [finding.finding for finding in report.list_findings] == ["masked_entries"]
    assert (report.layout.masked, report.entries.files) == (3, 3)


def test_the_command_has_the_threshold_of_the_call(spark: SparkSession, tmp_path: Path) -> None:
    table = append(append(new_table(spark, tmp_path), 1, 2), 3, 4)
    (finding,) = table.maintenance.health(max_overlap=1).list_findings
    assert finding.call == "table.maintenance.compact_manifests(max_overlap=1).commit()"
    words = shlex.split(finding.command)
    assert words[-3:] == ["--max-overlap", "1", "--commit"]
    done = invoke([words[1], table.location(), *words[-3:]])
    assert done.exit_code == 0, done.output


def test_files_in_the_root_and_in_leaves(spark: SparkSession, tmp_path: Path) -> None:
    table = TreeTable(tmp_path, BY_PART)
    leaf = table.leaf("m1", tree_data("x:d1"), tree_data("x:d2", "b"))
    vector = table.vector("x:d1", {1, 2})
    gone = table.vector("x:gone", {1})
    table.snapshot(added=[leaf, vector, gone, *(tree_data(f"x:r{number}") for number in range(101))])
    report = health_of(table.load(spark), min_small_files=1000)
    assert kinds(report) == ["files_in_root", "dangling_deletes"]
    assert (report.entries.files, report.entries.deletes.vectors, report.layout.root_files) == (103, 2, 103)


# -- metadata ---------------------------------------------------------------------------------------------------------


def history(folder: Path, spark: SparkSession, **changes: Any) -> Any:
    """Two old snapshots, and a current one that removed files of a gigabyte."""
    table = healthy(folder)
    table.write()
    document = table.metadata()
    (snapshot,) = document["snapshots"]
    old = [
        snapshot | {"snapshot-id": number, "timestamp-ms": 1000 * number, "summary": {"operation": "append"}}
        for number in (1, 2)
    ]
    old[1]["parent-snapshot-id"] = 1
    summary = {"operation": "delete", "removed-files-size": str(1 << 30)}
    now = snapshot | {"timestamp-ms": 4_000_000_000_000, "parent-snapshot-id": 2, "summary": summary}
    document["snapshots"] = [*old, now]
    document |= changes
    (folder / "metadata" / "v1.metadata.json").write_text(json.dumps(document))
    return sm.load_table(str(folder / "metadata" / "v1.metadata.json"), spark=spark)


def test_snapshots_past_their_age(spark: SparkSession, tmp_path: Path) -> None:
    report = history(tmp_path, spark).maintenance.health()
    (finding,) = report.list_findings
    assert (finding.finding, finding.items, finding.bytes) == ("old_snapshots", 2, 1 << 30)
    assert finding.call == "table.maintenance.expire_snapshots().commit()"
    table = history(tmp_path, spark, properties={"history.expire.min-snapshots-to-keep": "3"})
    assert table.maintenance.health().is_healthy
    refused = history(tmp_path, spark, properties={"gc.enabled": "false"}).maintenance.health()
    assert [finding.call for finding in refused.list_findings] == [None]
    assert "gc.enabled is false" in refused.list_findings[0].problem


def test_old_tags(spark: SparkSession, tmp_path: Path) -> None:
    refs = {"main": {"type": "branch", "snapshot-id": 10}, "audit": {"type": "tag", "snapshot-id": 1}}
    report = history(tmp_path, spark, refs=refs).maintenance.health()
    assert [finding.finding for finding in report.list_findings] == ["old_snapshots", "old_refs"]
    assert report.list_findings[1].call == "table.manage_snapshots().remove_tag('audit').commit()"
    assert report.list_findings[1].command == f"sparkmeta tag {report.table} audit --remove --commit"
    assert report.history.kept_by_refs == 1
    report = history(tmp_path, spark, refs=refs).maintenance.health(max_ref_age_days=1_000_000)
    assert [finding.finding for finding in report.list_findings] == ["old_snapshots"]


# -- how it works -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_driver", [True, False])
def test_each_manifest_is_opened_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_driver: bool
) -> None:
    reader = LoggingReader(log=str(tmp_path / "requests"))
    monkeypatch.setattr(files, "executor_reader", lambda _: reader)
    spark.conf.set("spark.sparkmeta.driver-manifest-bytes", "1g" if on_driver else "0")
    try:
        table = healthy(tmp_path / "table").add(1, 1, *APPLYING.values(), deletion_vector("x:gone", **X))
        loaded = sm.load_table(table.write(), spark=spark)
        watched = replace(loaded, state=replace(loaded.state, files=LoggingFiles(reader=reader)))
        report = watched.maintenance.health(columns=["id"])
        assert (str(report), report.html) == (str(report), report.html)
        report.findings().collect()
    finally:
        spark.conf.unset("spark.sparkmeta.driver-manifest-bytes")
    opened = [Path(request.split()[0]).name for request in reader.requests]
    assert sorted(name for name in opened if name.startswith("m")) == ["m0.avro", "m1.avro", "m2.avro"]
    assert report.entries.dangling.vectors == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_overlap", -1), ("min_small_files", 1), ("min_small_files", "5"), ("small_file_ratio", 0),
        ("max_deleted_ratio", 1.5), ("max_excess_stats_ratio", True), ("max_ref_age_days", None),
        ("max_metadata_json_bytes", 0), ("columns", "id"), ("columns", ["id", "id"]),
    ],
)  # fmt: skip
def test_options_out_of_range(spark: SparkSession, tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"^{name} is "):
        report_of(healthy(tmp_path), spark, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.target-file-size-bytes", "0"),
        ("commit.manifest.min-count-to-merge", "few"),
    ],
)
def test_properties_out_of_range(spark: SparkSession, tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(f"the table property {name} is ")):
        report_of(healthy(tmp_path, properties={name: value}), spark)


# -- the page ---------------------------------------------------------------------------------------------------------


def test_a_page_is_escaped_bounded_and_complete(spark: SparkSession, tmp_path: Path) -> None:
    evil = "<script>alert('&')</script>"
    table = HandmadeTable(tmp_path, summaries=True)
    for number in range(300):
        part = f"{evil}{number:03}"
        small = [file(f"{number} {place}", part, file_size_in_bytes=1 << (place + 8)) for place in range(5)]
        table.add(0, 1, *small)
    table.add(1, 1, *(deletion_vector(f"x:{number} 0", partition={"part": f"{evil}{number:03}"}, record_count=400)
                      for number in range(300)))  # fmt: skip
    report = report_of(table, spark, columns=["id"])
    page = report.html
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert len(page) < 120_000
    assert not re.search(r"(src|href|url\()", page.replace("http://www.w3.org/2000/svg", ""))
    titles = re.findall(r"<figcaption><h2>(.*?)</h2>", page)
    assert titles == [
        "Files by size", "Overlap of manifests", "Deleted rows by partition", "Small files by partition",
        "Snapshots over time", "Bytes by kind", "Clustering depth",
    ]  # fmt: skip
    assert report._repr_html_() in page
    report.save(tmp_path / "health.html")
    assert (tmp_path / "health.html").read_text() == page
    report.save(tmp_path / "health.txt")
    assert (tmp_path / "health.txt").read_text() == f"{report}\n"
    assert json.loads(json.dumps(report.to_dict()))["data_files"]["files"] == 1500
