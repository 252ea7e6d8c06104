"""What each step of planning opens and which Spark jobs it runs: when it is made, and when it runs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta import Scan
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.manifests import decoder
from sparkmeta.manifests.entry_memory import EntryMemory
from sparkmeta.plan.choose import choose
from sparkmeta.plan.prune import prune_manifests
from sparkmeta.scan import table_scan
from sparkmeta.storage import files
from sparkmeta.storage.files import LocalFiles
from tests.handmade import HandmadeTable, data, deletion_vector, long_bounds
from tests.logging_reader import LoggingReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.classic
PLANNING, BYTES = "spark.sparkmeta.planning", "spark.sparkmeta.driver-manifest-bytes"
LIST = "snap.avro"
DATA, DELETES = {"m0.avro", "m1.avro"}, {"m2.avro"}
Watch: TypeAlias = "Callable[..., Watched]"
_groups = itertools.count()


@dataclass(frozen=True)
class LoggingFiles(LocalFiles):
    """Files on the driver, which adds the names of those that it opens to the log of a reader."""

    reader: LoggingReader = field(default_factory=LoggingReader)

    def read(self, location: str) -> bytes:
        return self.reader.read(location)


@dataclass(frozen=True)
class Watched:
    """A scan, and what using it opens and runs."""

    scan: Scan
    reader: LoggingReader
    spark: SparkSession

    def during(self, action: Callable[[], Any]) -> tuple[set[str], int]:
        """Return the names of the files that an action opens, and the number of jobs that it runs."""
        known, group = len(self.reader.requests), f"watched {next(_groups)}"
        context = self.spark.sparkContext
        context.setJobGroup(group, "")
        try:
            action()
        finally:
            context.setJobGroup("", "")
        opened = {Path(request.split()[0]).name for request in self.reader.requests[known:]}
        return opened, len(context.statusTracker().getJobIdsForGroup(group))


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    """Two data manifests, of the partitions x and y, and one of deletion vectors of both."""
    table = HandmadeTable(tmp_path, summaries=True)
    for part in "xy":
        table.add(0, 1, *(data(f"x:{part}{number}", partition={"part": part}, **long_bounds(number, number))
                         for number in range(3)))  # fmt: skip
    table.add(1, 1, *(deletion_vector(f"x:{part}1", partition={"part": part}) for part in "xy"))
    return table


@pytest.fixture
def watch(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    def watched(table: HandmadeTable, planning: str, on_driver: bool, row_filter: str = "true") -> Watched:
        spark.conf.set(PLANNING, planning)
        spark.conf.set(BYTES, "1g" if on_driver else "0")
        reader = LoggingReader(log=str(tmp_path / f"requests{next(_groups)}"))
        monkeypatch.setattr(files, "executor_reader", lambda _: reader)
        state = replace(sm.load_table(table.write(), spark=spark).state, files=LoggingFiles(reader=reader))
        return Watched(table_scan(state, row_filter, ("*",), True, None, {}), reader, spark)

    yield watched
    for name in (PLANNING, BYTES):
        spark.conf.unset(name)


WAYS = [("auto", True), ("auto", False), ("join", True), ("join", False)]


@pytest.mark.parametrize(("planning", "on_driver"), WAYS)
def test_counting_without_a_filter_reads_the_list_alone(
    table: HandmadeTable, watch: Watch, planning: str, on_driver: bool
) -> None:
    watched = watch(table, planning, on_driver)
    counts: list[int] = []
    assert watched.during(lambda: counts.append(watched.scan.count_files())) == ({LIST}, 0)
    assert counts == [6]


@pytest.mark.parametrize(("on_driver", "row_filter"), [(True, "id = 1"), (False, "id = 1"), (False, "part = 'x'")])
def test_counting_with_a_filter_never_looks_for_deletes(
    table: HandmadeTable, watch: Watch, on_driver: bool, row_filter: str
) -> None:
    watched = watch(table, "auto", on_driver, row_filter)
    counts: list[int] = []
    opened, jobs = watched.during(lambda: counts.append(watched.scan.count_files()))
    of_x = {"m0.avro"}
    assert opened == {LIST} | (of_x if "part" in row_filter else DATA)
    assert (jobs == 0) is on_driver
    assert counts == [3 if "part" in row_filter else 2]


def test_counting_a_list_without_counts_opens_its_data_manifests(table: HandmadeTable, watch: Watch) -> None:
    table.summaries = False
    watched = watch(table, "auto", True)
    opened, _ = watched.during(watched.scan.count_files)
    assert opened == {LIST} | DATA


@pytest.mark.parametrize(
    ("planning", "on_driver", "read_at_planning", "jobs", "run"),
    [
        ("auto", True, DATA | DELETES, 0, set()),
        ("auto", False, DELETES, 2, DATA | DELETES),
        ("join", True, DATA | DELETES, 0, set()),
        ("join", False, DELETES, 2, DATA | DELETES),
    ],
)
def test_what_a_plan_reads_when_it_is_made_and_when_it_runs(
    table: HandmadeTable,
    watch: Watch,
    planning: str,
    on_driver: bool,
    read_at_planning: set[str],
    jobs: int,
    run: set[str],
) -> None:
    """A query of two jobs finds the kinds of many deletes. The driver matches few without a job."""
    watched = watch(table, planning, on_driver)
    plans: list[Any] = []
    assert watched.during(lambda: plans.append(watched.scan.plan_files())) == ({LIST} | read_at_planning, jobs)
    opened, _ = watched.during(plans[0].collect)
    assert opened == run


@pytest.mark.parametrize(("planning", "on_driver"), WAYS)
def test_the_choice_says_where_manifests_are_read(
    table: HandmadeTable, watch: Watch, planning: str, on_driver: bool
) -> None:
    choice = choose(prune_manifests(watch(table, planning, on_driver).scan.plan.filter))
    readings = [choice.data_reading, choice.delete_reading]
    if planning == "auto":
        assert choice.coplanned is not None
        readings = [choice.coplanned.reading]
    assert {reading.placement.value for reading in readings} == {"driver" if on_driver else "tasks"}
    assert sum(reading.load.entries or 0 for reading in readings) == 8
    assert all(f"{reading.load.entries} entries in" in reading.reason for reading in readings)


def test_no_delete_manifest_means_no_job(table: HandmadeTable, watch: Watch) -> None:
    table.manifests.pop()
    for planning, on_driver in WAYS:
        watched = watch(table, planning, on_driver)
        assert watched.during(watched.scan.plan_files) == ({LIST} | (DATA if on_driver else set()), 0)


@pytest.mark.parametrize(("planning", "on_driver"), WAYS)
def test_a_report_is_of_the_plan_that_was_made(
    table: HandmadeTable, watch: Watch, planning: str, on_driver: bool
) -> None:
    """A report repeats no choice: deletes that the driver has read for the choice are not read again."""
    watched, reports = watch(table, planning, on_driver), []
    planned = {row.file_path: len(row.deletes) for row in watched.scan.plan_files().collect()}
    opened, jobs = watched.during(lambda: reports.append(watched.scan.report()))
    assert opened == (DATA if (planning, on_driver) == ("auto", True) else DATA | DELETES)
    assert (jobs == 0) is on_driver
    (report,) = reports
    assert report.data_entries.planned == len(planned) == 6
    assert report.files_with_deletes == sum(planned.values()) == 2
    assert report.strategy.startswith("join: the setting" if planning == "join" else "colocated: 2 deletion vectors")
    assert 0 < report.manifest_pruning_seconds <= report.planning_seconds


@pytest.mark.parametrize("planning", ["auto", "join"])
def test_a_plan_of_another_filter_opens_no_small_manifest_again(
    table: HandmadeTable, watch: Watch, monkeypatch: pytest.MonkeyPatch, planning: str
) -> None:
    """A plan that reads the manifests itself has the same rows. A join reads the kinds of deletes each time."""
    watched, kinds = watch(table, planning, on_driver=True), set() if planning == "auto" else DELETES
    again = table_scan(watched.scan.state, "id = 1", ("*",), True, None, {})
    assert watched.during(watched.scan.filter("id = 2").arrow.plan_files)[0] == {LIST} | DATA | DELETES
    plans: list[Any] = []
    assert watched.during(lambda: plans.append(again.arrow.plan_files())) == (kinds, 0)
    other = watch(table, planning, on_driver=True, row_filter="id = 1").scan
    assert plans[0].equals(other.arrow.plan_files())
    assert len(plans[0]) == 2
    with monkeypatch.context() as large:
        large.setattr(decoder, "SMALL_MANIFEST_BYTES", 0)
        assert watched.during(watched.scan.filter("id = 0").arrow.plan_files)[0] == DATA | DELETES


@pytest.mark.parametrize("planning", ["auto", "join"])
def test_contradictions_beyond_a_filter_are_no_errors_of_entries_in_memory(
    table: HandmadeTable, watch: Watch, planning: str
) -> None:
    table.add(1, 1, *(deletion_vector("x:y1", partition={"part": "y"}) for _ in range(2)))
    state = watch(table, planning, on_driver=True).scan.state
    for row_filter in ("part = 'x'", "part = 'x' and id = 1"):
        planned = table_scan(state, row_filter, ("*",), True, None, {}).arrow.plan_files()
        assert [len(deletes) for deletes in planned.column("deletes").to_pylist()].count(1) == 1
    with pytest.raises(sm.ValidationError, match="two deletion vectors for x:y1"):
        table_scan(state, "true", ("*",), True, None, {}).arrow.plan_files()


def test_the_memory_of_entries_has_a_limit() -> None:
    """The memory keeps the entries that were used last."""
    memory, read = EntryMemory(1000), list[str]()

    def entries(place: str) -> pa.Table:
        def of_place(every: EntryProjection) -> pa.Table:
            assert every.entry_filter is None
            read.append(place)
            return pa.table({"x": pa.array(range(50), pa.int64())})

        return memory.of(place, EntryProjection.of(("location",)), of_place)

    for place in "abacab":
        entries(place)
    assert read == ["a", "b", "c", "b"]
