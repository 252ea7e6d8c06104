"""The swap of a file system table with repeated names, codecs, hints and stores."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from sparkmeta.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    FileAlreadyExistsError,
    TableAlreadyExistsError,
    UnsupportedError,
    ValidationError,
)
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.operations.metadata_files import latest_metadata
from sparkmeta.operations.table_operations import load_version
from sparkmeta.storage.files import LocalFiles
from tests.commit.tables import appended, new_table, with_properties
from tests.faults import Fault, FaultyFiles, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparkmeta.operations.table_operations import TableVersion

DELETES = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
CODEC = "write.metadata.compression-codec"


@dataclass(frozen=True)
class Meanwhile(LocalFiles):
    """Files of a slow writer: a callback runs right before, or right after, a publication."""

    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None

    def publish(self, location: str, data: bytes) -> None:
        self.before()
        super().publish(location, data)
        self.after()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"file://{tmp_path}/table"


@pytest.fixture
def swap(folder: str) -> FileSystemOperations:
    return FileSystemOperations(LocalFiles(), folder)


def create(swap: FileSystemOperations, **properties: str) -> TableVersion:
    return swap.commit(None, new_table(swap.folder, properties))


def names(folder: str) -> set[str]:
    return {path.name for path in Path(f"{folder.removeprefix('file://')}/metadata").iterdir()}


def commits(swap: FileSystemOperations, number: int) -> TableVersion:
    base = swap.refresh()
    for _ in range(number):
        base = swap.commit(base, appended(base.metadata))
    return base


# -- a drop while others commit -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadSlowly(LocalFiles):
    """Files of a slow reader: another commit follows each of the first metadata files that it reads."""

    commits: list[Callable[[], object]]

    def read(self, location: str) -> bytes:
        data = super().read(location)
        if self.commits:
            self.commits.pop()()
        return data


def test_a_commit_while_a_table_is_dropped(swap: FileSystemOperations) -> None:
    """The remaining file describes the version of that commit."""
    create(swap)
    dropped = FileSystemOperations(ReadSlowly([lambda: commits(swap, 1)]), swap.folder).drop()
    assert names(swap.folder) == {dropped.rpartition("/")[2]}
    metadata = load_version(LocalFiles(), dropped).metadata
    assert (len(metadata.snapshots), [entry.metadata_file for entry in metadata.metadata_log]) == (
        1,
        [f"{swap.folder}/metadata/v1.metadata.json"],
    )


def test_a_drop_that_is_always_late(swap: FileSystemOperations) -> None:
    create(swap)
    slow = FileSystemOperations(ReadSlowly([lambda: commits(swap, 1)] * 50), swap.folder)
    with pytest.raises(CommitFailedError, match=r"/table: was not dropped: each of 20 listings has a newer version"):
        slow.drop()
    newest = swap.refresh()
    assert names(swap.folder) == {
        "version-hint.text",
        *(f"v{number}.metadata.json" for number in range(1, len(newest.metadata.snapshots) + 2)),
    }


# -- a base so old that the next version's name is free again ------------------------------------------------------


def test_a_base_of_long_ago(swap: FileSystemOperations) -> None:
    old = create(swap, **DELETES)
    newest = commits(swap, 4)
    assert names(swap.folder) == {"v4.metadata.json", "v5.metadata.json", "version-hint.text"}
    with pytest.raises(
        CommitFailedError, match=r"v1\.metadata\.json is no longer the current version: .*/v5\.metadata"
    ):
        swap.commit(old, appended(old.metadata))
    assert swap.refresh() == newest
    assert "v2.metadata.json" not in names(swap.folder)


def test_the_name_becomes_free_while_a_writer_sleeps(swap: FileSystemOperations) -> None:
    old = create(swap, **DELETES)
    slow = FileSystemOperations(Meanwhile(before=lambda: commits(swap, 4)), swap.folder)
    with pytest.raises(CommitFailedError, match=r"v2\.metadata\.json was not committed"):
        slow.commit(old, appended(old.metadata))
    assert swap.refresh().metadata_location.endswith("/v5.metadata.json")
    assert "v2.metadata.json" not in names(swap.folder), "a reader of a hint that lags would take it for the newest"


def test_the_name_becomes_free_while_a_writer_of_properties_sleeps(swap: FileSystemOperations) -> None:
    """Without a snapshot of its own, the writer can't tell whether other commits built on its version."""
    old = create(swap, **DELETES)
    slow = FileSystemOperations(Meanwhile(before=lambda: commits(swap, 4)), swap.folder)
    with pytest.raises(CommitStateUnknownError):
        slow.commit(old, with_properties(old.metadata, mine="1"))
    assert "v2.metadata.json" in names(swap.folder)
    assert swap.refresh().metadata_location.endswith("/v5.metadata.json")


@pytest.mark.parametrize("steps", [1, 4])
def test_others_commit_on_ours_before_we_look(swap: FileSystemOperations, steps: int) -> None:
    old = create(swap, **DELETES)
    slow = FileSystemOperations(Meanwhile(after=lambda: commits(swap, steps)), swap.folder)
    new = appended(old.metadata)
    committed = slow.commit(old, new)
    newest = swap.refresh()
    assert newest.metadata.snapshot_by_id(new.current_snapshot_id or 0)
    assert newest.metadata.last_sequence_number == committed.metadata.last_sequence_number + steps


def test_others_commit_on_our_properties_before_we_look(swap: FileSystemOperations) -> None:
    old = create(swap, **DELETES)
    slow = FileSystemOperations(Meanwhile(after=lambda: commits(swap, 1)), swap.folder)
    slow.commit(old, with_properties(old.metadata, mine="1"))
    assert swap.refresh().metadata.properties["mine"] == "1"


# -- answers that are lost -----------------------------------------------------------------------------------------


@pytest.fixture
def base(swap: FileSystemOperations) -> TableVersion:
    create(swap)
    return commits(swap, 2)


def test_where_the_publication_stands(swap: FileSystemOperations, base: TableVersion) -> None:
    files = FaultyFiles()
    FileSystemOperations(files, swap.folder).commit(base, appended(base.metadata))
    assert [name for name, _ in files.operations].index("publish") == 2


def faulty(kind: Kind, *, lasting: bool = False) -> FaultyFiles:
    """Return files that fail to publish, in a commit to an ordinary table."""
    return FaultyFiles(fault=Fault(2, kind, "publish", lasting))


def test_an_answer_is_lost(swap: FileSystemOperations, base: TableVersion) -> None:
    files = faulty(Kind.ANSWER_LOST)
    committed = FileSystemOperations(files, swap.folder).commit(base, appended(base.metadata))
    assert swap.refresh() == committed


def test_invalid_properties_do_not_turn_a_success_into_a_failure(swap: FileSystemOperations) -> None:
    base = create(swap, **{"commit.status-check.num-retries": "x"})
    files = FaultyFiles(fault=Fault(2, Kind.ANSWER_LOST, "publish"))
    committed = FileSystemOperations(files, swap.folder).commit(base, appended(base.metadata))
    assert swap.refresh() == committed


def test_nobody_answers_any_more(swap: FileSystemOperations, base: TableVersion) -> None:
    files = faulty(Kind.ANSWER_LOST, lasting=True)
    with pytest.raises(CommitStateUnknownError, match=r"v4\.metadata\.json may have been committed.*injected"):
        FileSystemOperations(files, swap.folder).commit(base, appended(base.metadata))
    assert not files.deleted
    assert swap.refresh().metadata.last_sequence_number == base.metadata.last_sequence_number + 1


def test_the_publication_failed(swap: FileSystemOperations, base: TableVersion) -> None:
    with pytest.raises(CommitFailedError, match=r"v4\.metadata\.json was not committed: .*injected"):
        FileSystemOperations(faulty(Kind.FAILS), swap.folder).commit(base, appended(base.metadata))
    assert swap.refresh() == base


def test_a_request_may_be_under_way(
    swap: FileSystemOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that did not respond may write the object later, after a retry."""
    monkeypatch.setattr("sparkmeta.operations.filesystem.is_local", lambda _: False)
    with pytest.raises(CommitStateUnknownError):
        FileSystemOperations(faulty(Kind.FAILS), swap.folder).commit(base, appended(base.metadata))


@pytest.mark.parametrize("properties_only", [False, True])
def test_a_client_that_repeats_its_request(
    swap: FileSystemOperations, base: TableVersion, properties_only: bool
) -> None:
    """The first request gets no response. The second is refused, since the first one has written the object."""

    class Repeats(LocalFiles):
        def publish(self, location: str, data: bytes) -> None:
            super().publish(location, data)
            raise FileAlreadyExistsError(location)

    new = with_properties(base.metadata, mine="1") if properties_only else appended(base.metadata)
    committed = FileSystemOperations(Repeats(), swap.folder).commit(base, new)
    assert swap.refresh() == committed


def test_another_has_the_name(swap: FileSystemOperations, base: TableVersion) -> None:
    slow = FileSystemOperations(Meanwhile(before=lambda: commits(swap, 1)), swap.folder)
    with pytest.raises(CommitFailedError, match=r"v4\.metadata\.json was not committed: .*the file already exists"):
        slow.commit(base, appended(base.metadata))
    assert swap.refresh().metadata.last_sequence_number == base.metadata.last_sequence_number + 1


def test_a_lost_answer_and_others_on_top(swap: FileSystemOperations) -> None:
    """Our file has been deleted as an old version when the outcome is checked."""
    create(swap, **DELETES)
    old = commits(swap, 2)

    def on_top() -> None:
        commits(swap, 4)
        raise OSError("no answer")

    slow = FileSystemOperations(Meanwhile(after=on_top), swap.folder)
    committed = slow.commit(old, appended(old.metadata))
    assert not Path(committed.metadata_location.removeprefix("file://")).exists()
    assert swap.refresh().metadata.last_sequence_number == committed.metadata.last_sequence_number + 4


# -- one name for all who commit on a base -------------------------------------------------------------------------


def test_a_new_codec_is_no_other_name(swap: FileSystemOperations, base: TableVersion) -> None:
    slow = FileSystemOperations(Meanwhile(before=lambda: commits(swap, 1)), swap.folder)
    with pytest.raises(CommitFailedError):
        slow.commit(base, with_properties(base.metadata, **{CODEC: "gzip"}))
    assert {name for name in names(swap.folder) if name.startswith("v4.")} == {"v4.metadata.json"}


def test_creators_of_any_codec(swap: FileSystemOperations) -> None:
    slow = FileSystemOperations(Meanwhile(before=lambda: create(swap)), swap.folder)
    with pytest.raises(CommitFailedError):
        create(slow, **{CODEC: "gzip"})
    assert names(swap.folder) == {"v1.metadata.json", "version-hint.text"}


# -- another table, another place ----------------------------------------------------------------------------------


def test_a_table_that_was_made_anew(swap: FileSystemOperations) -> None:
    old = create(swap)
    shutil.rmtree(swap.folder.removeprefix("file://"))
    again = create(swap)
    assert again.metadata_location == old.metadata_location
    with pytest.raises(
        ValidationError, match=f"table-uuid is {again.metadata.table_uuid}: .* {old.metadata.table_uuid}"
    ):
        swap.commit(old, appended(old.metadata))
    assert swap.refresh() == again


def test_it_does_not_move(swap: FileSystemOperations, base: TableVersion) -> None:
    moved = base.metadata.model_copy(update={"location": "file:///elsewhere"})
    with pytest.raises(UnsupportedError, match="can't move to file:///elsewhere"):
        swap.commit(base, moved)
    with pytest.raises(UnsupportedError, match=r"can't have the property write\.metadata\.path"):
        swap.commit(base, with_properties(base.metadata, **{"write.metadata.path": "file:///elsewhere"}))
    assert swap.refresh() == base


def test_a_table_of_a_catalog(swap: FileSystemOperations) -> None:
    created = create(swap)
    path = Path(created.metadata_location.removeprefix("file://"))
    path.rename(path.with_name("00000-0d3b7f6c-1234-4321-9999-000000000001.metadata.json"))
    (path.parent / "version-hint.text").unlink()
    version = swap.refresh()
    with pytest.raises(UnsupportedError, match="commit through the catalog"):
        swap.commit(version, appended(version.metadata))
    with pytest.raises(TableAlreadyExistsError):
        create(swap)
    assert swap.refresh() == version


# -- the hint ------------------------------------------------------------------------------------------------------


def test_the_hint_of_a_slow_writer(swap: FileSystemOperations) -> None:
    """The hint arrives after its version is deleted.

    Readers search for a higher version, and the next commit corrects the hint.
    """
    create(swap, **DELETES)
    newest = commits(swap, 4)
    hint = Path(f"{swap.folder.removeprefix('file://')}/metadata/version-hint.text")
    hint.write_text("2")
    assert latest_metadata(swap.files, swap.folder).location == newest.metadata_location
    assert swap.refresh() == newest
    commits(swap, 1)
    assert hint.read_text() == "6"


def test_a_hint_does_not_go_back(swap: FileSystemOperations) -> None:
    old = create(swap)
    slow = FileSystemOperations(Meanwhile(after=lambda: commits(swap, 3)), swap.folder)
    slow.commit(old, appended(old.metadata))
    assert Path(f"{swap.folder.removeprefix('file://')}/metadata/version-hint.text").read_text() == "5"


def test_old_files_stay_where_the_hint_fails(swap: FileSystemOperations, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise an outdated hint would name a deleted file."""
    create(swap, **DELETES)
    base = commits(swap, 3)

    class NoHint(LocalFiles):
        def overwrite(self, location: str, data: bytes, *, syncs: bool = True) -> None:
            raise OSError("read-only")

    before = names(swap.folder)
    FileSystemOperations(NoHint(), swap.folder).commit(base, appended(base.metadata))
    assert names(swap.folder) == before | {"v5.metadata.json"}
    assert "version 5 is committed; after it: read-only" in caplog.text


def test_old_versions_with_a_gap(swap: FileSystemOperations) -> None:
    """An old version may stay before a gap, since its deletion failed or its writer was killed.

    The hint may name it.
    """
    old = create(swap, **DELETES)
    old_bytes = LocalFiles().read(old.metadata_location)
    newest = commits(swap, 4)
    LocalFiles().write_new(old.metadata_location, old_bytes)
    LocalFiles().overwrite(f"{swap.folder}/metadata/version-hint.text", b"1")
    assert swap.refresh() == newest
    with pytest.raises(CommitFailedError, match="is no longer the current version"):
        swap.commit(old, appended(old.metadata))
    assert "v2.metadata.json" not in names(swap.folder)
    assert swap.commit(newest, appended(newest.metadata)) == swap.refresh()


def test_a_gap_comes_while_a_writer_sleeps(swap: FileSystemOperations) -> None:
    """The base still exists and the next name is free, but the version published there is not the current one."""
    old = create(swap, **DELETES)
    old_bytes = LocalFiles().read(old.metadata_location)

    def others() -> None:
        commits(swap, 4)
        LocalFiles().write_new(old.metadata_location, old_bytes)

    with pytest.raises(CommitFailedError, match=r"v2\.metadata\.json was not committed"):
        FileSystemOperations(Meanwhile(before=others), swap.folder).commit(old, appended(old.metadata))
    assert "v2.metadata.json" not in names(swap.folder)


def test_a_listing_misses_what_comes_while_it_is_made(swap: FileSystemOperations) -> None:
    old = create(swap, **DELETES)
    slow = Meanwhile(before=lambda: commits(swap, 4))

    class Partial(LocalFiles):
        def publish(self, location: str, data: bytes) -> None:
            slow.publish(location, data)
            self.missed.append("v5.metadata.json")

        def names(self, folder: str, pattern: str) -> Sequence[str]:
            listed = super().names(folder, pattern)
            is_first = bool(self.missed) and not self.missed.clear()
            return [name for name in listed if not is_first or name == "v2.metadata.json"]

        missed: ClassVar[list[str]] = []

    with pytest.raises(CommitFailedError, match=r"v2\.metadata\.json was not committed"):
        FileSystemOperations(Partial(), swap.folder).commit(old, appended(old.metadata))
    assert "v2.metadata.json" not in names(swap.folder)


def test_a_version_is_deleted_before_it_is_read(swap: FileSystemOperations) -> None:
    create(swap, **DELETES)
    commits(swap, 1)

    class Slow(LocalFiles):
        def read(self, location: str) -> bytes:
            if location.endswith("/v2.metadata.json"):
                commits(swap, 3)
            return super().read(location)

    assert FileSystemOperations(Slow(), swap.folder).refresh().metadata_location.endswith("/v5.metadata.json")


def test_how_many_requests_it_takes(swap: FileSystemOperations, base: TableVersion) -> None:
    """Each request of a commit to a store takes about 30 ms."""
    files = FaultyFiles()
    FileSystemOperations(files, swap.folder).commit(base, appended(base.metadata))
    assert [name for name, _ in files.operations] == [
        "list",
        "read",
        "publish",
        "list",
        "read",
        "read",
        "overwrite",
    ]
