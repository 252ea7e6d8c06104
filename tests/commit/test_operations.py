"""The swap of a table's metadata, by every kind of pointer."""

from __future__ import annotations

import gzip
import json
import time
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table import StaticTable

from sparkmeta.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnsupportedError,
    ValidationError,
)
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.operations.sql import SqlOperations
from sparkmeta.operations.table_operations import Outcome, TableVersion, outcome_of
from sparkmeta.session import SessionSource
from sparkmeta.spec.metadata import SnapshotRef
from sparkmeta.storage.files import SparkFiles
from sparkmeta.storage.writing import is_temporary
from tests.commit.places import KINDS, open_operations, place
from tests.commit.tables import appended, new_table, with_properties
from tests.faults import FaultyFiles, Killed, faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkmeta.operations.table_operations import TableOperations
    from sparkmeta.storage.files import Files

KEEP_ONE = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def swap_in(request: pytest.FixtureRequest, kind: str) -> Callable[[Path, Files | None], TableOperations]:
    """Return a function that opens the operations of the table in a folder."""
    postgres = request.getfixturevalue("postgres") if kind == "postgres" else None

    def opened(folder: Path, files: Files | None = None) -> TableOperations:
        folder.mkdir(exist_ok=True)
        return open_operations(place(kind, folder, postgres), folder, files)

    return opened


@pytest.fixture
def swap(swap_in: Any, tmp_path: Path) -> TableOperations:
    return swap_in(tmp_path)  # type: ignore[no-any-return]


def location_of(tmp_path: Path) -> str:
    return f"file://{tmp_path}/table"


def create(swap: TableOperations, folder: Path, version: int = 2, **properties: str) -> TableVersion:
    return swap.commit(None, new_table(location_of(folder), properties, version))


def metadata_files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "table" / "metadata").iterdir() if ".metadata.json" in path.name}


def logged(version: TableVersion) -> list[str]:
    return [entry.metadata_file for entry in version.metadata.metadata_log]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_history(swap: TableOperations, tmp_path: Path, kind: str, version: int) -> None:
    versions = [create(swap, tmp_path, version)]
    for step in range(3):
        base = versions[-1]
        versions.append(swap.commit(base, appended(base.metadata, step=str(step))))
        assert swap.refresh() == versions[-1]
    locations = [table_version.metadata_location for table_version in versions]
    assert len(set(locations)) == 4
    assert logged(versions[-1]) == locations[:-1]
    stamps = [entry.timestamp_ms for entry in versions[-1].metadata.metadata_log]
    assert stamps == [table_version.metadata.last_updated_ms for table_version in versions[:-1]]
    names = [Path(location).name for location in locations]
    if kind == "folder":
        assert names == [f"v{number}.metadata.json" for number in range(1, 5)]
        assert (tmp_path / "table" / "metadata" / "version-hint.text").read_text() == "4"
    else:
        assert [name.partition("-")[0] for name in names] == ["00000", "00001", "00002", "00003"]
        assert all(uuid.UUID(name.partition("-")[2].removesuffix(".metadata.json")) for name in names)


def test_who_comes_second_is_told(swap: TableOperations, tmp_path: Path) -> None:
    base = create(swap, tmp_path)
    first = swap.commit(base, appended(base.metadata))
    before = metadata_files(tmp_path)
    with pytest.raises(CommitFailedError, match=r"is no longer the current version: .*metadata\.json is$"):
        swap.commit(base, appended(base.metadata))
    assert swap.refresh() == first
    assert metadata_files(tmp_path) == before
    again = swap.refresh()
    second = swap.commit(again, appended(again.metadata))
    assert logged(second) == [base.metadata_location, first.metadata_location]


def test_a_table_is_there_already(swap: TableOperations, tmp_path: Path) -> None:
    first = create(swap, tmp_path)
    before = metadata_files(tmp_path)
    with pytest.raises(
        TableAlreadyExistsError, match=r"there is a table already|there is a table of this name already"
    ):
        create(swap, tmp_path)
    assert swap.refresh() == first
    assert metadata_files(tmp_path) == before


def test_no_table(swap: TableOperations, tmp_path: Path) -> None:
    with pytest.raises(NoSuchTableError):
        swap.refresh()
    metadata = new_table(location_of(tmp_path))
    with pytest.raises(NoSuchTableError):
        swap.commit(TableVersion(f"{location_of(tmp_path)}/metadata/v1.metadata.json", metadata), appended(metadata))


def test_another_table_took_its_place(swap: TableOperations, tmp_path: Path) -> None:
    known = create(swap, tmp_path).metadata.table_uuid
    assert isinstance(swap, FileSystemOperations | SqlOperations)
    assert replace(swap, table_uuid=known).refresh()
    with pytest.raises(ValidationError, match=f"table-uuid is {known}: the table that was opened here is"):
        replace(swap, table_uuid=uuid.uuid4()).refresh()


def test_a_commit_keeps_the_uuid(swap: TableOperations, tmp_path: Path) -> None:
    base = create(swap, tmp_path)
    with pytest.raises(ValidationError, match=r"table-uuid is .* it can't become"):
        swap.commit(base, new_table(base.metadata.location))
    assert swap.refresh() == base


@pytest.mark.parametrize("max_versions", ["2", "0", "1"])
@pytest.mark.parametrize("deletes", ["true", "false"])
def test_old_metadata_files(swap: TableOperations, tmp_path: Path, kind: str, max_versions: str, deletes: str) -> None:
    base = create(swap, tmp_path)
    locations = [base.metadata_location]
    for _ in range(3):
        base = swap.commit(base, appended(base.metadata))
        locations.append(base.metadata_location)
    limits = {
        "write.metadata.previous-versions-max": max_versions,
        "write.metadata.delete-after-commit.enabled": deletes,
    }
    base = swap.commit(base, with_properties(base.metadata, **limits))
    locations.append(base.metadata_location)
    log_length = max(1, int(max_versions))
    assert logged(base) == locations[-log_length - 1 : -1]
    left = locations[-log_length - 1 :] if deletes == "true" else locations
    assert metadata_files(tmp_path) == {Path(location).name for location in left}
    assert swap.refresh() == base


def test_a_hundred_by_default(swap: TableOperations, tmp_path: Path) -> None:
    base = create(swap, tmp_path)
    for _ in range(103):
        base = swap.commit(base, with_properties(base.metadata))
    assert len(logged(base)) == 100
    assert len(metadata_files(tmp_path)) == 104


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"write.metadata.compression-codec": "zstd"}, "compression-codec is 'zstd': expected none or gzip"),
        ({"write.metadata.previous-versions-max": "many"}, "previous-versions-max is 'many': expected a whole number"),
    ],
)
def test_properties_that_can_not_be(
    swap: TableOperations, tmp_path: Path, properties: dict[str, str], message: str
) -> None:
    base = create(swap, tmp_path)
    before = metadata_files(tmp_path)
    with pytest.raises(ValidationError, match=message):
        swap.commit(base, with_properties(base.metadata, **properties))
    assert (swap.refresh(), metadata_files(tmp_path)) == (base, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current_schema_id": 7}, "could not be read again: current-schema-id is 7"),
        ({"refs": {"b": SnapshotRef.model_validate({"snapshot-id": 5, "type": "branch"})}}, "refs.b.snapshot-id is 5"),
        ({"properties": {"a": "\ud800"}}, "the new metadata can't be written"),
    ],
)
@pytest.mark.parametrize("created", [True, False])
def test_unreadable_metadata_is_not_written(
    swap: TableOperations, tmp_path: Path, change: dict[str, Any], message: str, created: bool
) -> None:
    base = create(swap, tmp_path) if created else None
    metadata = base.metadata if base is not None else new_table(location_of(tmp_path))
    with pytest.raises(ValidationError, match=message):
        swap.commit(base, metadata.model_copy(update=change))
    if base is not None:
        assert (swap.refresh(), metadata_files(tmp_path)) == (base, {Path(base.metadata_location).name})
    else:
        assert not (tmp_path / "table").exists() or not metadata_files(tmp_path)


def test_gzip(swap: TableOperations, tmp_path: Path, kind: str) -> None:
    codec = "write.metadata.compression-codec"
    base = create(swap, tmp_path, **{codec: "gzip"})
    compressed = [Path(base.metadata_location).name.endswith(".gz.metadata.json")]
    for properties in ({}, {codec: "none"}, {}):
        base = swap.commit(base, with_properties(base.metadata, **properties))
        compressed.append(base.metadata_location.endswith(".gz.metadata.json"))
        assert swap.refresh() == base
    # In a folder, all commits on one base compete for one name, which depends on the base.
    assert compressed == ([False, True, True, False] if kind == "folder" else [True, True, False, False])
    for name in metadata_files(tmp_path):
        data = (tmp_path / "table" / "metadata" / name).read_bytes()
        assert json.loads(gzip.decompress(data) if ".gz." in name else data)["location"] == base.metadata.location


def test_pyiceberg_reads_it(swap: TableOperations, tmp_path: Path) -> None:
    base = create(swap, tmp_path)
    for _ in range(2):
        base = swap.commit(base, appended(base.metadata))
    if isinstance(swap, SqlOperations):
        loaded = swap.catalog.load_table(swap.identifier)
        assert loaded.metadata_location == base.metadata_location
    else:
        loaded = StaticTable.from_metadata(location_of(tmp_path))
    snapshot = loaded.current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == base.metadata.current_snapshot_id
    assert len(loaded.metadata.metadata_log) == 2


# -- faults --------------------------------------------------------------------------------------------------------


def commit_again(swap: TableOperations, step: str) -> TableVersion:
    """Commit a step like a new client: unless it is committed already."""
    current = swap.refresh()
    done = current.metadata.properties.get("step") == step
    return current if done else swap.commit(current, appended(current.metadata, step=step))


@pytest.mark.parametrize("properties", [{}, KEEP_ONE], ids=["keeps", "deletes"])
def test_each_fault_of_a_commit(swap_in: Any, tmp_path: Path, properties: dict[str, str]) -> None:
    """The table has the old or the new state, a retry succeeds, and no current or logged file is deleted."""

    def prepared(name: str) -> tuple[Path, TableVersion]:
        folder = tmp_path / name
        base = create(swap_in(folder), folder, **properties)
        for _ in range(2):
            base = swap_in(folder).commit(base, appended(base.metadata))
        return folder, base

    def dry_run(files: FaultyFiles) -> None:
        folder, base = prepared("dry")
        swap_in(folder, files).commit(base, appended(base.metadata, step="new"))

    seen: dict[str, int] = {}
    for number, fault in enumerate(faults(dry_run)):
        folder, base = prepared(str(number))
        new = appended(base.metadata, step="new")
        files = FaultyFiles(fault=fault)
        outcome = attempt(
            lambda files=files, base=base, new=new, folder=folder: swap_in(folder, files).commit(base, new)
        )
        after = swap_in(folder).refresh()
        committed = after.metadata.properties.get("step") == "new"
        seen[outcome] = seen.get(outcome, 0) + 1
        assert committed or after == base, fault
        assert outcome != "committed" or committed, f"{fault}: a commit that was reported is not there"
        assert outcome != "failed" or not committed, f"{fault}: a commit that is there was reported as failed"
        last = commit_again(swap_in(folder), "new")
        assert last.metadata.last_sequence_number == base.metadata.last_sequence_number + 1, fault
        for location in [last.metadata_location, *logged(last)]:
            assert Path(location.removeprefix("file://")).is_file(), f"{fault}: {location} is gone"
        names = {path.name for path in (folder / "table" / "metadata").iterdir()}
        assert {name for name in names if name.endswith(".tmp")} == {name for name in names if is_temporary(name)}
    assert {"failed", "killed"} <= seen.keys()
    assert sum(seen.values()) >= 6


def attempt(commit: Callable[[], object]) -> str:
    """Return the outcome of a commit: killed, unknown, failed or committed."""
    try:
        commit()
    except Killed:
        return "killed"
    except CommitStateUnknownError:
        return "unknown"
    except (CommitFailedError, OSError):
        return "failed"
    return "committed"


def test_each_fault_of_a_creation(swap_in: Any, tmp_path: Path) -> None:
    def dry_run(files: FaultyFiles) -> None:
        create(swap_in(tmp_path / "dry", files), tmp_path / "dry")

    outcomes = set()
    for number, fault in enumerate(faults(dry_run)):
        folder = tmp_path / str(number)
        files = FaultyFiles(fault=fault)
        outcome = attempt(lambda folder=folder, files=files: create(swap_in(folder, files), folder))
        outcomes.add(outcome)
        try:
            version = swap_in(folder).refresh()
        except NoSuchTableError:
            assert outcome != "committed", fault
            version = create(swap_in(folder), folder)
        else:
            assert outcome != "failed", fault
        assert swap_in(folder).refresh() == version
        assert swap_in(folder).commit(version, appended(version.metadata))
    assert {"failed", "killed"} <= outcomes


def test_spark_can_not_commit(swap_in: Any, tmp_path: Path) -> None:
    class Reader(SparkFiles):
        read = staticmethod(FaultyFiles().read)
        exists = staticmethod(FaultyFiles().exists)
        list = staticmethod(FaultyFiles().list)

    base = create(swap_in(tmp_path), tmp_path)
    with pytest.raises(UnsupportedError, match="Spark's sources write no single file"):
        swap_in(tmp_path, Reader(SessionSource())).commit(base, appended(base.metadata))
    assert swap_in(tmp_path).refresh() == base


# -- whether a commit has won --------------------------------------------------------------------------------------


def test_asking_for_the_outcome_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = waits_of(monkeypatch)
    answers: list[Any] = [OSError("down"), Outcome.UNKNOWN, OSError("down"), Outcome.WON]

    def check() -> Outcome:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    assert outcome_of(check, {}) is Outcome.WON
    assert waits == [1, 2, 4]
    answers[:] = [OSError("down")] * 9
    waits.clear()
    quick = {"num-retries": "5", "min-wait-ms": "100", "max-wait-ms": "300"}
    assert outcome_of(check, {f"commit.status-check.{key}": value for key, value in quick.items()}) is Outcome.UNKNOWN
    assert waits == [0.1, 0.2, 0.3, 0.3, 0.3]
    assert len(answers) == 3
    assert outcome_of(check, {"commit.status-check.total-timeout-ms": "-1"}) is Outcome.UNKNOWN
    assert len(answers) == 2


def waits_of(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that records the waits of the check in seconds, instead of sleeping. Other modules still sleep."""
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=waits.append)
    monkeypatch.setattr("sparkmeta.operations.table_operations.time", clock)
    return waits


@pytest.mark.parametrize("key", ["num-retries", "min-wait-ms", "max-wait-ms", "total-timeout-ms"])
@pytest.mark.parametrize("value", ["x", "", "1_0", "9" * 5000, str(1 << 31), "-9999999999"])
def test_invalid_limits_of_the_check_are_ignored(
    key: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits = waits_of(monkeypatch)
    name = f"commit.status-check.{key}"
    assert outcome_of(lambda: Outcome.UNKNOWN, {name: value}) is Outcome.UNKNOWN
    assert waits == [1, 2, 4]
    assert f"the table property {name} is" in caplog.text


@pytest.mark.parametrize("key", ["num-retries", "min-wait-ms", "max-wait-ms", "total-timeout-ms"])
def test_negative_limits_of_the_check_are_0(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = waits_of(monkeypatch)
    assert outcome_of(lambda: Outcome.UNKNOWN, {f"commit.status-check.{key}": "-1"}) is Outcome.UNKNOWN
    expected = {"num-retries": [], "min-wait-ms": [0, 0, 0], "max-wait-ms": [0, 0, 0], "total-timeout-ms": []}
    assert waits == expected[key]
