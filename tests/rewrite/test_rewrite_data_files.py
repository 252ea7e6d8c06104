"""Data files written anew: those that Iceberg chooses, the same rows and row lineage, and nothing of others lost."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import NestedField, StringType

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.operations.filesystem import FileSystemOperations
from tests.command_line import invoke
from tests.conftest import configured
from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, position_deletes
from tests.maintain.test_expire import opened
from tests.peers.content_files import elements
from tests.peers.file_maker import local_path
from tests.peers.java import Java, iterate
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts
from tests.write.test_changes import BY_PART, frame, new_table, ordinary, paths, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

BY_TASKS = {"spark.sparkmeta.driver-manifest-bytes": "0"}
LINEAGE = ("id", "part", "n", "_row_id", "_last_updated_sequence_number")


# -- which files ------------------------------------------------------------------------------------------------------


class FilesOfSizes(HandmadeTable):
    """Files of random sizes and deletes, in partitions of the current spec, and some of an older spec.

    The latter share a partition with the file of nulls. Java reads manifests in any order, so all fit a group.
    """

    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), "default-spec-id": 1}


def files_of_sizes(folder: Path, rng: random.Random, version: int) -> str:
    table = FilesOfSizes(folder, version=version, specs=((), ({"source-id": 2, "field-id": 1000, "name": "part",
                         "transform": "identity"},)), summaries=True)  # fmt: skip
    files: list[tuple[str, dict[str, Any]]] = []
    for number in range(60):
        partition = {"part": rng.choice(["a", "b", "c"]) if number else None}
        size = rng.choice([rng.randint(1, 700), rng.randint(700, 2_000), rng.randint(2_000, 9_000)]) if number else 5
        file = data(f"file:///t/{number}", partition=partition, file_size_in_bytes=size, record_count=100)
        files.append((partition["part"], file))
    deletes = []
    for number in rng.sample(range(60), 20):
        of, partition = f"file:///t/{number}", {"part": files[number][0]}
        count = rng.choice([1, 29, 30, 31, 100])
        if version > 2:
            offset = 4 + 40 * number
            deletes.append(deletion_vector(of, partition=partition, record_count=count, content_offset=offset))
        else:
            for part in range(rng.randint(1, 3)):
                path = f"file:///t/{number}-{part}.deletes"
                deletes.append(position_deletes(path, partition=partition, record_count=count, referenced_data_file=of))
    equality = [equality_deletes(f"file:///t/eq{number}", partition={"part": "a"}, record_count=5) for number in (0, 1)]
    others = [data(f"file:///t/old{size}", file_size_in_bytes=size) for size in (10, 20, 30, 40, 1_000)]
    table.add(0, 1, *(file for _, file in files)).add(0, 0, *others).add(1, 1, *deletes, *equality)
    return table.write()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"min-input-files": "2"},
    {"max-file-group-size-bytes": "3000", "min-input-files": "3"},
    {"delete-file-threshold": "2", "delete-ratio-threshold": "0.31"},
    {"rewrite-all": "true", "max-file-group-size-bytes": "5000"},
    {"min-file-size-bytes": "100", "max-file-size-bytes": "8000"},
    {"rewrite-job-order": "bytes-desc"},
    {"rewrite-job-order": "files-asc", "min-input-files": "2", "max-file-group-size-bytes": "2000"},
    {"max-file-group-input-files": "6", "min-input-files": "2", "max-file-group-size-bytes": "4000"},
    {"max-file-group-input-files": "7", "rewrite-all": "true"},
]


def python_options(options: dict[str, str]) -> dict[str, Any]:
    values = {name.replace("-", "_").replace(".", "_"): value for name, value in options.items()}
    return {
        name: value == "true"
        if value in ("true", "false")
        else int(value)
        if value.isdecimal()
        else float(value)
        if value[0].isdigit()
        else value
        for name, value in values.items()
    }


@pytest.fixture(params=["driver", "tasks"])
def in_each_place(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Have the driver choose, read and write few files, and then tasks."""
    with configured(spark, BY_TASKS if request.param == "tasks" else {}):
        yield


@pytest.mark.java
@pytest.mark.usefixtures("in_each_place")
@pytest.mark.parametrize("seed", range(5 if SOAK else 1))
@pytest.mark.parametrize("version", [2, 3])
def test_groups_are_those_of_iceberg(spark: SparkSession, tmp_path: Path, version: int, seed: int) -> None:
    location = files_of_sizes(tmp_path, random.Random(seed), version)
    table = sm.load_table(str(tmp_path), spark=spark)
    java = Java(spark)
    options = OPTIONS if SOAK else OPTIONS[seed + version - 2 :: 2]
    for chosen in options:
        settings = {"target-file-size-bytes": "1000"} | chosen
        planner = java.iceberg.actions.BinPackRewriteFilePlanner(java.table(location).table)
        planner.init(settings)
        theirs = [
            (frozenset(str(file.location()) for file in elements(group.rewrittenFiles())), group.expectedOutputFiles())
            for group in iterate(planner.plan().groups())
        ]
        plan = table.maintenance.rewrite_data_files(**python_options(settings))
        ours: dict[int, set[str]] = {}
        for row in plan.to_df().collect():
            ours.setdefault(row.file_group, set()).add(row.file_path)
        assert theirs, settings
        assert {frozenset(group) for group in ours.values()} == {group for group, _ in theirs}, settings
        if "rewrite-job-order" in settings:
            field = settings["rewrite-job-order"].partition("-")[0]
            sizes = {row.file_path: row.file_size_in_bytes for row in plan.to_df().collect()}
            figures = [
                sum(sizes[path] for path in ours[number]) if field == "bytes" else len(ours[number])
                for number in range(len(ours))
            ]
            assert figures == sorted(figures, reverse=settings["rewrite-job-order"].endswith("desc"))


@pytest.mark.java
@pytest.mark.usefixtures("in_each_place")
def test_the_most_files_are_as_many_as_those_of_iceberg(spark: SparkSession, tmp_path: Path) -> None:
    """Iceberg takes partitions in an order of its own, so that only one partition has the same files."""
    location = files_of_sizes(tmp_path, random.Random(0), 3)
    java, table = Java(spark), sm.load_table(str(tmp_path), spark=spark)
    whole = table.maintenance.rewrite_data_files(target_file_size_bytes=1000, max_file_group_input_files=6)
    groups: dict[int, list[str]] = {}
    for row in whole.to_df().orderBy("file_group", "manifest_pos").collect():
        groups.setdefault(row.file_group, []).append(row.file_path)
    for limit in ("1", "7", "10", "1000"):
        options = {"target-file-size-bytes": "1000", "max-file-group-input-files": "6", "max-files-to-rewrite": limit}
        planner = java.iceberg.actions.BinPackRewriteFilePlanner(java.table(location).table)
        planner.init(options)
        theirs = [len(list(elements(group.rewrittenFiles()))) for group in iterate(planner.plan().groups())]
        plan = table.maintenance.rewrite_data_files(**python_options(options))
        ours: dict[int, set[str]] = {}
        for row in plan.to_df().collect():
            ours.setdefault(row.file_group, set()).add(row.file_path)
        assert sum(map(len, ours.values())) == sum(theirs)
        assert plan.summary().data_files == sum(theirs)
        for number, files in ours.items():
            assert files == set(groups[number][: len(files)])


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_each_place")
def test_rows_and_lineage_stay(spark: SparkSession, tmp_path: Path) -> None:
    """A tree is packed, sorted and z-ordered; a file with only deleted rows is not read."""
    table = new_table(spark, tmp_path, write__delete__mode="merge-on-read")
    table = table.append(frame(spark, [*ordinary(0, 15), (900, "d", 1), (901, "d", 2)]))
    table = table.append(frame(spark, [*ordinary(15, 30), (902, "d", 3)])).update({"n": 5}, "id = 5")
    # No metrics prove that all rows of a file match, so that they are deleted by a deletion vector.
    table = table.delete("n in (1, 2, 100, 110)")
    before = rows_of(table, selected_fields=LINEAGE)
    (gone,) = masked_whole(table)
    Path(local_path(gone)).unlink()
    plan = table.maintenance.rewrite_data_files(min_input_files=2)
    summary = plan.summary()
    assert (summary.deleted_files, summary.groups) == (1, 5)
    assert summary.data_files == plan.to_df().count() == table.inspect.data_files().count()
    starting = table.current_snapshot().sequence_number
    table = plan.commit()
    assert rows_of(table, selected_fields=LINEAGE) == before
    committed = plan.result()["committed"]
    assert committed["rewritten_data_files"] == summary.data_files
    assert (committed["added_data_files"], committed["commits"]) == (5, 1)
    assert table.inspect.delete_files().count() == 0
    entries = table.inspect.entries().where("status = 1").collect()
    assert {(row.sequence_number, row.file_sequence_number) for row in entries} == {(starting, starting + 1)}
    assert {row.sort_order_id for row in table.inspect.data_files().collect()} == {0}
    assert table.current_snapshot().summary.operation.value == "replace"
    assert plan.commit() is table
    assert table.maintenance.rewrite_data_files(min_input_files=2).summary().is_empty

    sizes = {"target_file_size_bytes": 700, "min_file_size_bytes": 1, "max_file_size_bytes": 800}
    ordered = table.maintenance.rewrite_data_files(strategy="sort", sort_order="id DESC", rewrite_all=True, **sizes)
    table = ordered.commit()
    assert rows_of(table, selected_fields=LINEAGE) == before
    assert table.inspect.data_files().count() > 5
    for path in paths(table):
        ids = [row.id for row in spark.read.parquet(path).collect()]
        assert ids == sorted(ids, reverse=True)
    z = table.maintenance.rewrite_data_files("id < 900", strategy="sort", sort_order="zorder(id, n)", rewrite_all=True)
    of_d = {path for path in paths(table) if "part=d" in path}
    table = z.commit()
    assert rows_of(table, selected_fields=LINEAGE) == before
    # The filter leaves the other partition alone.
    assert of_d < paths(table)
    assert not {path for path in paths(table) if "part=d" in path} - of_d


def test_rows_go_to_the_same_files_in_each_place(spark: SparkSession, tmp_path: Path) -> None:
    """Several small files become several large ones, which begin and end at the same rows."""
    written = {}
    for place in ("driver", "tasks"):
        catalog = sm.load_catalog("local", type="hadoop", warehouse=str(tmp_path / place))
        schema = pa.schema([("id", pa.int64()), ("part", pa.string())])
        table = catalog.create_table("ns.t", schema, partition_by=["part"], format_version=2, spark=spark)
        for load in range(9):
            ids = range(20 * load, 20 * load + 20)
            table = table.append(pa.table({"id": ids, "part": [["a", "b", None][row % 3] for row in ids]}))
        # One file of each partition, since the order of several that are written again is not known.
        table = table.delete("id in (0, 25, 26)")
        size = max(table.inspect.arrow.files().column("file_size_in_bytes").to_pylist())
        with configured(spark, BY_TASKS if place == "tasks" else {}):
            plan = table.maintenance.rewrite_data_files(
                rewrite_all=True, min_file_size_bytes=1, target_file_size_bytes=3 * size
            )
            table = plan.commit()
        files: dict[str, list[int]] = {}
        for row in table.scan().select("id", "_file").to_arrow().to_pylist():
            files.setdefault(row["_file"], []).append(row["id"])
        written[place] = sorted(files.values())
    assert len(written["driver"]) > 6
    assert written["driver"] == written["tasks"]


@pytest.mark.parametrize("order", [None, "A DESC", "bucket(4, A), _sort_value_0 DESC", "zorder(A, _curve_value)"])
def test_columns_whose_names_spark_confuses(spark: SparkSession, tmp_path: Path, order: str | None) -> None:
    """Names that differ only in case, and names of columns that are added to the rows."""
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    names = ("a", "A", "_partition_value_0", "_sort_value_0", "_curve_value", "_column_0")
    schema = Schema(*(NestedField(place, name, StringType()) for place, name in enumerate(names, 1)))
    table = catalog.create_table("db.t", schema, format_version=3, spark=spark)
    rows = [tuple(f"{name} {place * 7 % 5}" for name in names) for place in range(5)]
    table = table.append(spark.createDataFrame(rows, list(names)).coalesce(1))
    with table.update_spec() as update:
        update.add_field("_partition_value_0", BucketTransform(2), "bucket")
    table = table.refresh()
    strategy = {"strategy": "sort", "sort_order": order} if order else {}
    table = table.maintenance.rewrite_data_files(rewrite_all=True, output_spec_id=1, **strategy).commit()
    assert sorted(map(tuple, table.scan().to_df().collect())) == sorted(rows)
    assert {row.spec_id for row in table.inspect.data_files().collect()} == {1}
    if order == "A DESC":
        for path in paths(table):
            values = pq.read_table(local_path(path)).column("A").to_pylist()
            assert values == sorted(values, reverse=True)


@pytest.mark.usefixtures("in_each_place")
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_only_old_specs_and_orders(spark: SparkSession, tmp_path: Path, version: int) -> None:
    """All files of other specs or orders are rewritten, whatever their size, and no others."""
    table = new_table(spark, tmp_path, PartitionSpec(), version=version)
    table = table.append(frame(spark, ordinary(0, 4)).coalesce(1))
    with table.update_spec() as update:
        update.add_field("part", "identity")
    table = table.refresh().append(frame(spark, ordinary(4, 8)).coalesce(1))
    before, of_new_spec = rows_of(table), {path for path in paths(table) if "part=" in path}
    assert table.maintenance.rewrite_data_files(only_old_specs=True, output_spec_id=0).summary().data_files == len(
        of_new_spec
    )
    plan = table.maintenance.rewrite_data_files(only_old_specs=True)
    assert {row.file_path for row in plan.to_df().collect()} == paths(table) - of_new_spec
    table = plan.commit()
    assert rows_of(table) == before
    assert of_new_spec < paths(table)
    assert {row.spec_id for row in table.inspect.data_files().collect()} == {1}
    assert table.maintenance.rewrite_data_files(only_old_specs=True).summary().is_empty
    by_id: dict[str, Any] = {"strategy": "sort", "only_old_orders": True}
    with pytest.raises(ValidationError, match="only_old_orders is true: the table does not have the order"):
        table.maintenance.rewrite_data_files(sort_order="id", **by_id)
    with table.update_sort_order() as order:
        order.desc("id", IdentityTransform())
    table = table.refresh().maintenance.rewrite_data_files("part = 'a'", **by_id).commit()
    in_order = {row.file_path for row in table.inspect.data_files().collect() if row.sort_order_id == 1}
    assert in_order
    assert all("part=a" in path for path in in_order)
    table = table.maintenance.rewrite_data_files(only_old_specs=True, **by_id).commit()
    assert in_order < paths(table)
    assert {row.sort_order_id for row in table.inspect.data_files().collect()} == {1}
    assert rows_of(table) == before
    assert table.maintenance.rewrite_data_files(**by_id).summary().is_empty


WRONG_CHOICES: dict[str, dict[str, Any]] = {
    "only_old_orders is true: it requires strategy='sort'": {"only_old_orders": True},
    "rewrite_all is true: only_old_specs and only_old_orders": {"rewrite_all": True, "only_old_specs": True},
    "only_old_specs is 1: expected true or false": {"only_old_specs": 1},
}


@pytest.mark.parametrize("problem", WRONG_CHOICES)
def test_choices_that_contradict(spark: SparkSession, tmp_path: Path, problem: str) -> None:
    table = new_table(spark, tmp_path)
    with pytest.raises(ValidationError, match=re.escape(problem)):
        table.maintenance.rewrite_data_files(**WRONG_CHOICES[problem])


def upgraded(spark: SparkSession, folder: Path) -> sm.Table:
    """A table of version 3 whose files have no row ids yet."""
    table = new_table(spark, folder, version=2).append(frame(spark, ordinary(0, 3)))
    return table.append(frame(spark, ordinary(3, 6))).maintenance.upgrade(3).commit()


def lineage_of(table: sm.Table, row_filter: str = "id < 6") -> list[Any]:
    return sorted(map(tuple, table.refresh().scan(row_filter, selected_fields=LINEAGE).to_df().collect()))


def test_row_ids_that_another_commit_assigns(spark: SparkSession, tmp_path: Path) -> None:
    """The first commit after an upgrade assigns ids to all files. Rows that were read before it would get others."""
    table = upgraded(spark, tmp_path)
    plan = table.maintenance.rewrite_data_files(rewrite_all=True)
    plan.summary()
    transaction = table.transaction().update({"n": 7}, "id = 1")
    table.append(frame(spark, ordinary(6, 8)))
    before = lineage_of(table)
    for stale in (plan, transaction):
        with pytest.raises(CommitConflictError, match="has assigned row ids to the files of snapshot"):
            stale.commit()
    assert lineage_of(table) == before
    table.refresh().maintenance.rewrite_data_files(rewrite_all=True).commit()
    assert lineage_of(table) == before
    table.refresh().update({"n": 7}, "id = 1")
    assert [row[3] for row in lineage_of(table)] == [row[3] for row in before]


def test_partial_progress_of_rows_without_ids(spark: SparkSession, tmp_path: Path) -> None:
    """One commit has all groups, since it assigns row ids to the files of the others."""
    table = upgraded(spark, tmp_path)
    options = {"partial_progress_enabled": True, "max_file_group_size_bytes": 1}
    plan = table.maintenance.rewrite_data_files(rewrite_all=True, **options)
    assert (plan.summary().groups > 1, plan.summary().commits) == (True, 1)
    plan.commit()
    again = table.refresh().maintenance.rewrite_data_files(rewrite_all=True, **options)
    before = lineage_of(table)
    assert again.summary().commits > 1
    again.commit()
    assert lineage_of(table) == before


def masked_whole(table: sm.Table) -> set[str]:
    planned = table.scan().plan_files().where("exists(deletes, d -> d.record_count = record_count)")
    return {row.file_path for row in planned.collect()}


def test_partial_progress_and_another_spec(spark: SparkSession, tmp_path: Path, caplog: Any) -> None:
    table = new_table(spark, tmp_path)
    for start in range(0, 40, 20):
        table = table.append(frame(spark, ordinary(start, start + 20)))
    with table.manage_snapshots() as manage:
        manage.create_branch(table.current_snapshot().snapshot_id, "audit")
    with table.update_spec() as update:
        update.remove_field("part")
        update.add_field("id", BucketTransform(2), "bucket")
    table = table.refresh()
    before = rows_of(table, selected_fields=LINEAGE)
    plan = table.maintenance.rewrite_data_files(
        rewrite_all=True, output_spec_id=0, partial_progress_enabled=True, partial_progress_max_commits=4,
        max_file_group_size_bytes=1_900, branch="audit", snapshot_properties={"job": "7"},
    )  # fmt: skip
    assert plan.summary().commits == 4
    # One of the files is gone when the plan is committed: its part fails, and the others go on.
    (lost,) = [row.file_path for row in plan.to_df().where("file_group = 0").limit(1).collect()]
    gone = spark.createDataFrame([(lost,)], "file_path STRING")
    with table.transaction() as tx:
        tx.update_snapshot("audit").delete(gone)
    missing = {row.id for row in spark.read.parquet(lost).collect()}
    table = plan.commit()
    committed = plan.result()["committed"]
    assert (committed["commits"], committed["failed_commits"]) == (3, 1)
    assert 0 < committed["failed_data_files"] < plan.summary().data_files
    assert "file group 0 was not rewritten" in caplog.text
    branch = table.scan(selected_fields=LINEAGE).use_ref("audit")
    assert sorted(map(tuple, branch.to_df().collect()), key=repr) == [row for row in before if row[0] not in missing]
    assert rows_of(table, selected_fields=LINEAGE) == before
    assert table.snapshot_by_name("audit").summary["job"] == "7"
    written = {row.spec_id for row in branch.plan_files().collect()}
    assert written == {0}
    # The files of the part that failed are deleted.
    live = {row.file_path for row in table.inspect.all_data_files().collect()}
    assert {str(path) for path in tmp_path.rglob("*.parquet") if "/data/" in str(path)} == live
    # By default, new files are of the current spec.
    table = table.maintenance.rewrite_data_files(rewrite_all=True).commit()
    assert rows_of(table, selected_fields=LINEAGE) == before
    assert {row.spec_id for row in table.inspect.data_files().collect()} == {1}


def test_partial_progress_past_a_damaged_file(spark: SparkSession, tmp_path: Path, caplog: Any) -> None:
    table = new_table(spark, tmp_path)
    table = table.append(frame(spark, ordinary(0, 20))).append(frame(spark, ordinary(20, 40)))
    plan = table.maintenance.rewrite_data_files(
        strategy="sort", sort_order="id", rewrite_all=True, partial_progress_enabled=True,
        partial_progress_max_commits=2,
    )  # fmt: skip
    assert (plan.summary().groups, plan.summary().commits) == (4, 2)
    unread = plan.to_df().where("file_group < 2").collect()
    damaged = Path(local_path(unread[0].file_path))
    damaged.write_bytes(b"PAR1" + b"\xff" * 60 + damaged.read_bytes()[64:])
    table = plan.commit()
    committed = plan.result()["committed"]
    assert (committed["failed_commits"], committed["failed_data_files"]) == (1, len(unread))
    assert committed["commits"] == 1
    assert re.search(rf"file groups 0 to 1 were not rewritten: .*{damaged.name}", caplog.text)
    assert paths(table) >= {row.file_path for row in unread}
    live = {row.file_path for row in table.inspect.all_data_files().collect()}
    assert {str(path) for path in (tmp_path / "db/t/data").rglob("*.parquet")} == live
    with pytest.raises(sm.ValidationError, match=damaged.name):
        table.maintenance.rewrite_data_files(strategy="sort", sort_order="id", rewrite_all=True).commit()


def only_the_first_commit_wins(patch: pytest.MonkeyPatch) -> None:
    swap, commits = FileSystemOperations.commit, []

    def commit(self: FileSystemOperations, base: Any, metadata: Any) -> Any:
        commits.append(metadata)
        if len(commits) > 1:
            raise sm.CommitFailedError("another commit came first")
        return swap(self, base, metadata)

    patch.setattr(FileSystemOperations, "commit", commit)


def test_parts_that_were_committed_before_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(spark, tmp_path, commit__retry__num_retries="0")
    table = table.append(frame(spark, ordinary(0, 20))).append(frame(spark, ordinary(20, 40)))
    limits = {"partial_progress_max_commits": 2, "partial_progress_max_failed_commits": 0}
    plan = table.maintenance.rewrite_data_files(rewrite_all=True, partial_progress_enabled=True, **limits)
    with monkeypatch.context() as patch:
        only_the_first_commit_wins(patch)
        with pytest.raises(sm.CommitFailedError, match="another commit came first"):
            plan.commit()
    assert plan.is_partly_committed
    after = table.refresh()
    committed = plan.result()["committed"]
    assert (committed["commits"], committed["failed_commits"]) == (1, 1)
    assert committed["snapshot_id"] == after.current_snapshot().snapshot_id
    assert committed["rewritten_data_files"] == len(paths(table) - paths(after)) > 0
    assert committed["failed_data_files"] == len(paths(table) & paths(after)) > 0
    with pytest.raises(sm.CommitConflictError, match="parts of the plan were committed before an error: plan again"):
        plan.commit()
    assert table.refresh().metadata_location == after.metadata_location

    command = ["rewrite-data-files", table.location(), "--rewrite-all", "--partial-progress-enabled", "--commit"]
    command += [text for name, value in limits.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    for output in ("json", "text"):
        with monkeypatch.context() as patch:
            only_the_first_commit_wins(patch)
            done = invoke([*command, "--output", output])
        assert (done.exit_code, "another commit came first" in done.stderr) == (1, True)
        if output == "json":
            assert json.loads(done.stdout)["committed"]["commits"] == 1
        else:
            assert "in 1 commit\n1 commit failed, " in done.stdout


def test_conflicts_and_a_lost_answer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    table = new_table(spark, tmp_path, write__delete__mode="merge-on-read")
    table = table.append(frame(spark, ordinary(0, 20))).append(frame(spark, ordinary(20, 30)))
    before = paths(table)
    plan = table.maintenance.rewrite_data_files(min_input_files=2)
    plan.summary()
    # An append is none; rows of replaced files that were deleted are.
    appended = table.append(frame(spark, [(500, "a", 1)]))
    after = plan.commit()
    assert len(rows_of(after)) == 31
    assert len(paths(after) & paths(appended) - before) == 1
    stale = after.maintenance.rewrite_data_files(rewrite_all=True)
    deleted = after.delete("id = 3")
    with pytest.raises(sm.CommitConflictError, match="deleted rows of a file to replace"):
        stale.commit()
    assert {str(path) for path in (tmp_path / "db/t/data").rglob("*.parquet")} == before | paths(deleted)

    with deleted.manage_snapshots() as manage:
        manage.create_branch(deleted.current_snapshot().snapshot_id, "side")
    aside = deleted.refresh().maintenance.rewrite_data_files(rewrite_all=True, branch="side")
    aside.summary()
    with deleted.refresh().transaction() as tx:
        tx.update_snapshot("side").delete(aside.to_df().select("file_path").limit(1))
    with pytest.raises(sm.CommitConflictError, match="is not a live file of the table any more"):
        aside.commit()

    swap = FileSystemOperations.commit

    for number, error in enumerate((sm.CommitStateUnknownError("lost"), KeyboardInterrupt("now")), start=1):

        def lost(self: FileSystemOperations, base: Any, metadata: Any, error: BaseException = error) -> Any:
            swap(self, base, metadata)
            raise error

        monkeypatch.setattr(FileSystemOperations, "commit", lost)
        with pytest.raises(type(error)):
            deleted.refresh().maintenance.rewrite_data_files(rewrite_all=True).commit()
        assert caplog.text.count("the files of the write stay") == number
        assert len(rows_of(deleted.refresh())) == 30


# -- Java -------------------------------------------------------------------------------------------------------------


def java_rows(shop: Workshop, version: int) -> list[Any]:
    shop.sql("REFRESH TABLE {t}")
    lineage = ", _row_id, _last_updated_sequence_number" if version > 2 else ""
    return row_texts(shop.sql(f"SELECT *{lineage} FROM {{t}}"))


@pytest.mark.java
@pytest.mark.parametrize("version", (1, 2, 3) if SOAK else (3,))
def test_java_goes_on_with_the_table(spark: SparkSession, version: int) -> None:
    shop = Workshop(Java(spark), f"data_rewritten_{version}")
    shop.create(
        "id INT, name STRING, part STRING", "part", version=version, properties=MERGE_ON_READ if version > 1 else {}
    )
    for number in range(3):
        shop.insert(*(f"{row}, 'n{number}', '{'xy'[row % 2]}'" for row in range(8)))
    shop.sql("DELETE FROM {t} WHERE id % 4 = 1")
    shop.sql("UPDATE {t} SET name = 'changed' WHERE id = 2")
    rows = java_rows(shop, version)
    orders = [None, "id DESC", "zorder(id, name)"] if SOAK else [None, "id DESC"]
    for order in orders:
        strategy = {"strategy": "sort", "sort_order": order} if order else {}
        plan = opened(shop).maintenance.rewrite_data_files(rewrite_all=True, remove_dangling_deletes=True, **strategy)
        after = plan.commit()
        assert java_rows(shop, version) == rows
        assert row_texts(after.scan().to_df()) == row_texts(shop.sql("SELECT * FROM {t}"))
        assert after.inspect.data_files().count() == 2
        assert after.inspect.delete_files().count() == 0
    shop.insert("100, 'new', 'x'", "101, 'new', 'y'")
    shop.sql("DELETE FROM {t} WHERE id IN (4, 100)")
    rows = java_rows(shop, version)
    shop.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    assert java_rows(shop, version) == rows
    shop.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01', retain_last => 1")
    assert java_rows(shop, version) == rows
    opened(shop).maintenance.rewrite_data_files(rewrite_all=True).commit()
    assert java_rows(shop, version) == rows


@pytest.mark.java
def test_a_snapshot_beside_that_of_iceberg(spark: SparkSession) -> None:
    """Summaries and entries of a rewrite equal Iceberg's procedure's, except for sizes that depend on the writer."""
    results = []
    for name in ("ours", "theirs"):
        shop = Workshop(Java(spark), f"rewritten_{name}")
        shop.create("id INT, part STRING", "part", version=3, properties=MERGE_ON_READ)
        for number in range(3):
            shop.insert(*(f"{row}, '{'xy'[row % 2]}'" for row in range(number, number + 8)))
        shop.sql("DELETE FROM {t} WHERE id = 4")
        if name == "ours":
            opened(shop).maintenance.rewrite_data_files(min_input_files=3).commit()
            shop.sql("REFRESH TABLE {t}")
        else:
            shop.call("rewrite_data_files", "options => map('min-input-files', '3')")
        summary = shop.spark.sql(f"SELECT summary FROM {shop.sql_name}.snapshots ORDER BY committed_at DESC").first()[0]
        summary = {key: value for key, value in summary.items() if "size" not in key and "-name" not in key}
        columns = "status, sequence_number, file_sequence_number, data_file.partition, data_file.record_count"
        maps = "data_file.value_counts, data_file.lower_bounds, data_file.upper_bounds, data_file.sort_order_id"
        entries = shop.spark.sql(f"SELECT {columns}, {maps} FROM {shop.sql_name}.entries").collect()
        # Maps have no order.
        texts = [str([sorted(value.items()) if isinstance(value, dict) else value for value in row]) for row in entries]
        results.append((summary, sorted(texts)))
    drop = {"app-id", "engine-version", "spark.app.id", "iceberg-version"}
    left, right = ({key: value for key, value in each[0].items() if key not in drop} for each in results)
    assert left == right
    assert results[0][1] == results[1][1]


def test_dangling_deletes_stay_without_a_rewrite(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, version=2, write__delete__mode="merge-on-read")
    for part in "ab":
        table = table.append(frame(spark, [(number, part, number) for number in range(4)]).coalesce(1))
    table = table.delete("id = 1 and part = 'a'").delete("part = 'a'")
    plan = table.maintenance.rewrite_data_files(remove_dangling_deletes=True)
    assert plan.summary().is_empty
    assert plan.commit().current_snapshot() == table.current_snapshot()
    assert plan.result()["committed"] is None
    table = table.maintenance.rewrite_data_files(remove_dangling_deletes=True, rewrite_all=True).commit()
    assert (table.inspect.delete_files().count(), table.inspect.data_files().count()) == (0, 1)


@pytest.mark.java
def test_equality_deletes_of_later_commits_apply(spark: SparkSession) -> None:
    shop = Workshop(Java(spark), "equality_rewritten")
    shop.create("id INT, part STRING", "part", version=2)
    for number in range(3):
        shop.insert(f"{number}, 'a'", "7, 'a'")
    shop.row_delta(shop.equality_delete_by_java(["id"], [[2]], partition=["a"]))
    plan = opened(shop).maintenance.rewrite_data_files(min_input_files=3)
    newest = opened(shop).maintenance.rewrite_data_files(min_input_files=3, use_starting_sequence_number=False)
    assert plan.summary().data_files == newest.summary().data_files == 3
    shop.row_delta(shop.equality_delete_by_java(["id"], [[7]], partition=["a"]))
    with pytest.raises(sm.CommitConflictError, match="added deletes that apply to a file to replace"):
        newest.commit()
    after = plan.commit()
    assert sorted(row.id for row in after.scan().to_df().collect()) == [0, 1]
    shop.sql("REFRESH TABLE {t}")
    assert sorted(row.id for row in shop.sql("SELECT id FROM {t}").collect()) == [0, 1]


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("rows_move", ["to an older spec", "to a newer spec"])
def test_equality_deletes_of_a_spec_that_rows_leave(
    spark: SparkSession, tmp_path: Path, version: int, rows_move: str
) -> None:
    """The deletes would not apply to the new files."""
    old, added = (PartitionSpec(), "part") if rows_move == "to an older spec" else (BY_PART, "id")
    table = new_table(spark, tmp_path, old, version=version)

    def with_newer_spec(table: sm.Table) -> sm.Table:
        with table.update_spec() as update:
            update.add_field(added, "identity")
        return table.refresh()

    def texts(table: sm.Table) -> list[str]:
        return sorted(map(str, table.refresh().scan().to_df().collect()))

    if rows_move == "to an older spec":
        table = with_newer_spec(table)
    table = table.append(frame(spark, [(i, "a", i) for i in range(6)]).coalesce(1))
    deleting: Any = table.transaction()
    deleting.equality_delete(frame(spark, [(3, "a", None)]).select("id", "part"), ["id"])
    if rows_move == "to a newer spec":
        table = with_newer_spec(table)
    options: dict[str, Any] = {"rewrite_all": True, "output_spec_id": 0 if rows_move == "to an older spec" else 1}
    plan = table.maintenance.rewrite_data_files(**options)
    assert plan.summary()
    deleting.commit()
    before = texts(table)
    assert len(before) == 5
    with pytest.raises(CommitConflictError, match="added equality deletes of one partition spec"):
        plan.commit()
    assert texts(table) == before
    table.refresh().maintenance.rewrite_data_files(**options).commit()
    assert texts(table) == before


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path)
    for start in range(0, 20, 10):
        table = table.append(frame(spark, ordinary(start, start + 10)))
    listed = invoke(["rewrite-data-files", table.location(), "--min-input-files", "2", "--files", "-o", "json"])
    rows = [json.loads(line) for line in listed.output.splitlines()]
    assert {row["file_group"] for row in rows} == {0, 1, 2, 3}
    shown = invoke(["rewrite-data-files", table.location(), "--min-input-files", "2"])
    assert "8 data files in 4 groups become about 4 (binpack)" in shown.output
    assert shown.output.endswith("nothing is changed without --commit\n")
    done = invoke(["rewrite-data-files", table.location(), "--strategy", "sort", "--sort-order", "id", "--rewrite-all",
                "--commit"])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "8 data files became 4 in 1 commit" in done.output
    wrong = invoke(["rewrite-data-files", table.location(), "--rewrite-job-order", "size"])
    assert (wrong.exit_code, "'--rewrite-job-order': 'size' is not one of" in wrong.output) == (2, True)


# -- options ----------------------------------------------------------------------------------------------------------

BAD_VALUES: list[tuple[str, Any]] = [
    ("delete_ratio_threshold", float("nan")), ("compression_factor", float("inf")), ("min_input_files", None),
    ("max_file_group_size_bytes", None), ("partial_progress_max_commits", None), ("rewrite_all", "false"),
    ("partial_progress_enabled", "no"), ("use_starting_sequence_number", 1), ("remove_dangling_deletes", None),
    ("strategy", ["sort"]),
]  # fmt: skip


def test_options_of_wrong_types(spark: SparkSession, tmp_path: Path) -> None:
    HandmadeTable(tmp_path).write()
    maintenance = sm.load_table(f"file://{tmp_path}", spark=spark).maintenance
    for name, value in BAD_VALUES:
        with pytest.raises(ValidationError, match=re.escape(f"{name} is {value!r}: expected ")):
            maintenance.rewrite_data_files(**{name: value})
    with pytest.raises(ValidationError, match="full is 'false': expected true or false"):
        maintenance.compute_partition_stats(full="false")  # type: ignore[arg-type]
