from __future__ import annotations

import errno
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from sparkmeta.errors import FileAlreadyExistsError, UnsupportedError
from sparkmeta.session import SessionSource
from sparkmeta.storage import writing
from sparkmeta.storage.files import Files, IOFiles, LocalFiles, SparkFiles
from sparkmeta.storage.writing import is_temporary

LOCAL = LocalFiles()
WRITES = ["write_new", "publish", "overwrite"]
ONCE = ["write_new", "publish"]


def write(files: Files, how: str, location: str, data: bytes) -> None:
    getattr(files, how)(location, data)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("prefix", ["file://", "file:", ""])
def test_a_file_in_a_new_folder(tmp_path: Path, how: str, prefix: str) -> None:
    folder = tmp_path / "a b%20" / "c#?*"
    write(LOCAL, how, f"{prefix}{folder}/ü.json", b"data")
    assert (folder / "ü.json").read_bytes() == b"data"
    assert names(folder) == {"ü.json"}


@pytest.mark.parametrize("how", ONCE)
def test_not_over_another(tmp_path: Path, how: str) -> None:
    write(LOCAL, how, f"{tmp_path}/f", b"first")
    with pytest.raises(FileAlreadyExistsError, match="/f: the file already exists"):
        write(LOCAL, how, f"{tmp_path}/f", b"second")
    assert (tmp_path / "f").read_bytes() == b"first"
    assert names(tmp_path) == {"f"}


def test_over_another(tmp_path: Path) -> None:
    LOCAL.overwrite(f"{tmp_path}/f", b"first")
    LOCAL.overwrite(f"{tmp_path}/f", b"second")
    assert (tmp_path / "f").read_bytes() == b"second"
    assert names(tmp_path) == {"f"}


def test_one_of_many_publishes(tmp_path: Path) -> None:
    """Readers never see a part of the file."""
    torn: list[int] = []
    done = threading.Event()
    size = 1 << 20

    def watch() -> None:
        while not done.is_set():
            sizes = [path.stat().st_size for path in tmp_path.glob("v*")]
            torn.extend(seen for seen in sizes if seen != size)

    def publish(writer: int) -> list[int]:
        won = []
        for version in range(20):
            try:
                LOCAL.publish(f"{tmp_path}/v{version}", bytes([writer]) * size)
            except FileAlreadyExistsError:
                continue
            won.append(version)
        return won

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(publish, range(8)))
    done.set()
    watcher.join()
    assert sorted(version for versions in won for version in versions) == list(range(20))
    for writer, versions in enumerate(won):
        assert all((tmp_path / f"v{version}").read_bytes() == bytes([writer]) * size for version in versions)
    assert not torn
    assert len(names(tmp_path)) == 20


def refuse_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    refuse_links(monkeypatch, number)
    with pytest.raises(
        UnsupportedError, match=r"/f: can't be written only if it is absent.*no hard links.*SQL catalog"
    ):
        LOCAL.publish(f"{tmp_path}/f", b"x")
    assert names(tmp_path) == set()
    LOCAL.write_new(f"{tmp_path}/f", b"x")
    with pytest.raises(FileAlreadyExistsError):
        LOCAL.write_new(f"{tmp_path}/f", b"y")
    assert (tmp_path / "f").read_bytes() == b"x"
    assert names(tmp_path) == {"f"}


def test_an_error_of_the_disk_is_no_lack_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_links(monkeypatch, errno.ENOSPC)
    for how in ONCE:
        with pytest.raises(OSError, match="no links here") as caught:
            write(LOCAL, how, f"{tmp_path}/f", b"x")
        assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == set()


_DIES = """
import os, sys
from pathlib import Path
from sparkmeta.storage.files import LocalFiles

how, location, place = sys.argv[1:]
owner, name = (Path, place.removeprefix("Path.")) if place.startswith("Path.") else (os, place)
real, calls = getattr(owner, name), []

def dies(*args, **kwargs):
    calls.append(args)
    os._exit(9)

setattr(owner, name, dies)
getattr(LocalFiles(), how)(location, b"new" * 100_000)
"""


@pytest.mark.parametrize(
    ("how", "place", "there"),
    [
        ("publish", "fsync", False),
        ("publish", "Path.hardlink_to", False),
        ("publish", "Path.unlink", True),
        ("write_new", "fsync", False),
        ("write_new", "Path.hardlink_to", False),
        ("write_new", "Path.unlink", True),
        ("overwrite", "fsync", False),
        ("overwrite", "Path.replace", False),
        ("overwrite", "Path.unlink", True),
    ],
)
def test_a_crash_leaves_a_temporary_file(tmp_path: Path, how: str, place: str, there: bool) -> None:
    if how == "overwrite":
        (tmp_path / "f").write_bytes(b"old")
    died = subprocess.run([sys.executable, "-c", _DIES, how, f"{tmp_path}/f", place], check=False)
    assert died.returncode == 9
    left = {name for name in names(tmp_path) if is_temporary(name)}
    assert names(tmp_path) - left == ({"f"} if there or how == "overwrite" else set())
    assert len(left) == (0 if how == "overwrite" and there else 1)
    if there:
        assert (tmp_path / "f").read_bytes() == b"new" * 100_000
    elif how == "overwrite":
        assert (tmp_path / "f").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0d3b7f6c-1234-4321-9999-000000000001.tmp", True),
        ("file:///t/metadata/0d3b7f6c-1234-4321-9999-000000000001.tmp", True),
        ("0d3b7f6c-1234-4321-9999-000000000001.tmp.json", False),
        ("0d3b7f6c-1234-4321-9999-000000000001.metadata.json", False),
        ("v1.metadata.json", False),
        ("mine.tmp", False),
    ],
)
def test_names_of_temporary_files(name: str, expected: bool) -> None:
    assert is_temporary(name) is expected


def test_deleting(tmp_path: Path) -> None:
    for name in ("a", "b*", "bc"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    locations = [f"file://{tmp_path}/{name}" for name in ("a", "none", "folder", "b*")]
    (failure,) = LOCAL.delete_many(locations)
    assert failure.location == locations[2]
    assert "folder" in failure.reason
    assert names(tmp_path) == {"bc", "folder"}


def test_spark_writes_nothing() -> None:
    files = SparkFiles(SessionSource())
    for how in WRITES:
        with pytest.raises(UnsupportedError, match="s3://b/f: Spark's sources write no single file"):
            write(files, how, "s3://b/f", b"x")
    assert [failure.location for failure in files.delete_many(["s3://b/f"])] == ["s3://b/f"]


# -- through a FileIO ----------------------------------------------------------------------------------------------


def test_by_pyarrow(tmp_path: Path) -> None:
    files = IOFiles(PyArrowFileIO())
    for how, data in (("write_new", b"first"), ("overwrite", b"second")):
        write(files, how, f"file://{tmp_path}/f", data)
        assert (tmp_path / "f").read_bytes() == data
    assert files.delete_many([f"file://{tmp_path}/f", f"file://{tmp_path}/none"]) == []
    assert names(tmp_path) == set()
    with pytest.raises(
        UnsupportedError, match=r"s3://b/f: can't be .*PyArrowFileIO has no conditional writes.*SQL catalog"
    ):
        files.publish("s3://b/f", b"x")
    with pytest.raises(UnsupportedError, match=r"conditional writes to hdfs: are not supported"):
        files.publish("hdfs://b/f", b"x")


def test_pyarrow_would_open_another_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"not this one")
    files = IOFiles(PyArrowFileIO())
    for location in (f"file://{tmp_path}/a#b", f"file://{tmp_path}/a?b", f"file://{tmp_path}/\ta"):
        with pytest.raises(UnsupportedError, match=r"parses # and \? as parts of a URL"):
            files.write_new(location, b"x")
        (failure,) = files.delete_many([location])
        assert failure.location == location
    assert (tmp_path / "a").read_bytes() == b"not this one"


class Store(MemoryFileSystem):
    """As an object store's client: with a conditional PUT, or with one of the ways not to have it."""

    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's own
    honours = True
    puts = 0

    def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        """Only its signature is looked at."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.puts += 1
        if mode == "create" and self.honours and self.exists(path):
            raise self.refusal(path)
        super().pipe_file(path, value)

    def refusal(self, path: str) -> Exception:
        return FileExistsError(path)


class Botocore(Store):
    """s3fs, for which a failed condition is one EINVAL of many."""

    def refusal(self, path: str) -> Exception:
        error = OSError(errno.EINVAL, "At least one of the pre-conditions you specified did not hold")
        error.__cause__ = type("ClientError", (Exception,), {"response": {"Error": {"Code": "PreconditionFailed"}}})()
        return error


class Old(Store):
    def _pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:  # type: ignore[override]
        """A version that passes on unknown arguments."""


def object_files(monkeypatch: pytest.MonkeyPatch, store: Store) -> IOFiles:
    monkeypatch.setattr(writing, "_proven", set())
    store.store.clear()
    io = FsspecFileIO({})
    monkeypatch.setattr(io, "get_fs", lambda *_: store)
    return IOFiles(io)


@pytest.mark.parametrize("kind", [Store, Botocore])
@pytest.mark.parametrize("place", ["s3://bucket", "gs://bucket", "abfss://container@account.dfs.core.windows.net"])
def test_a_conditional_put(monkeypatch: pytest.MonkeyPatch, kind: type[Store], place: str) -> None:
    store = kind()
    files = object_files(monkeypatch, store)
    files.publish(f"{place}/t/v1", b"first")
    assert store.puts == 3, "two prove the store"
    with pytest.raises(FileAlreadyExistsError, match="/t/v1: the file already exists"):
        files.publish(f"{place}/t/v1", b"second")
    assert store.puts == 4
    assert store.cat(f"{place}/t/v1") == b"first"
    assert len(store.store) == 1


def test_a_store_that_ignores_the_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.honours = False
    files = object_files(monkeypatch, store)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="its store ignores the condition"):
            files.publish("s3://bucket/t/v1", b"x")
    assert not store.store


def test_a_client_without_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Old()
    with pytest.raises(UnsupportedError, match="has no conditional writes: upgrade it"):
        object_files(monkeypatch, store).publish("s3://bucket/t/v1", b"x")
    assert store.puts == 0


def test_another_error_of_a_store_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    files = object_files(monkeypatch, store)
    files.publish("s3://bucket/t/v1", b"x")
    monkeypatch.setattr(store, "refusal", lambda _: OSError(errno.EINVAL, "broken"))
    with pytest.raises(OSError, match="broken") as caught:
        files.publish("s3://bucket/t/v1", b"x")
    assert not isinstance(caught.value, FileAlreadyExistsError)


def test_deleting_objects_takes_no_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    files = object_files(monkeypatch, store)
    for name in ("a*", "ab", "c"):
        files.write_new(f"s3://bucket/{name}", b"x")
    assert files.delete_many(["s3://bucket/a*", "s3://bucket/none"]) == []
    assert sorted(name.rpartition("/")[2] for name in store.store) == ["ab", "c"]
    monkeypatch.setattr(store, "rm_file", lambda _: 1 / 0)
    assert files.delete_many(["s3://bucket/c"]) == [("s3://bucket/c", "ZeroDivisionError: division by zero")]


def test_objects_that_a_store_does_not_delete_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    files = object_files(monkeypatch, store)
    answers = {"Errors": [{"Key": "bucket/b", "Code": "InternalError"}, {"Key": "bucket/c", "Code": "AccessDenied"}]}
    monkeypatch.setattr(store, "call_s3", lambda *_, **__: answers, raising=False)
    monkeypatch.setattr(store, "split_path", lambda location: ("bucket", location.removeprefix("s3://")), raising=False)
    removed: list[str] = []

    def remove(location: str) -> None:
        removed.append(location)
        if location.endswith("c"):
            raise PermissionError("of c")

    monkeypatch.setattr(store, "rm_file", remove)
    (failure,) = files.delete_many([f"s3://bucket/{name}" for name in "abc"])
    assert failure == ("s3://bucket/c", "PermissionError: of c")
    assert sorted(removed) == ["s3://bucket/b", "s3://bucket/c"]
