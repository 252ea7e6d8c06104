"""Files on an S3-compatible server: requests, retries, conditional writes and errors."""

from __future__ import annotations

import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from sparkmeta.errors import FileAccessError, FileAlreadyExistsError, NotFoundError, UnsupportedError
from sparkmeta.storage import content, writing
from sparkmeta.storage.content import without_secrets
from sparkmeta.storage.files import IOFiles, executor_reader, executor_writer
from sparkmeta.storage.walk import walk_io
from tests.s3 import ACCESS_KEY, BUCKET, FILE_IOS, SECRET_KEY, SESSION_TOKEN, Request, S3Server, methods

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENT = bytes(range(256)) * 12_000
"""More than pyarrow and s3fs read in one request by themselves."""


@pytest.fixture(params=FILE_IOS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def files(s3: S3Server, kind: str) -> IOFiles:
    return IOFiles(s3.io(kind))


@pytest.fixture
def folder(s3: S3Server) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4()}"


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Omit the waits between attempts."""
    monkeypatch.setattr(content, "_WAITS", (0.0, 0.0))


def refused_first(number: int, status: int = 503) -> Callable[[Request], int]:
    """Refuse as many requests, and carry out later ones."""
    seen = count()
    return lambda _: status if next(seen) < number else 0


@pytest.mark.parametrize("in_tasks", [False, True])
def test_what_is_read_with_how_many_requests(
    s3: S3Server, files: IOFiles, kind: str, folder: str, in_tasks: bool
) -> None:
    files.write_new(f"{folder}/f", CONTENT)
    files.write_new(f"{folder}/empty", b"")
    reader: Any = pickle.loads(pickle.dumps(executor_reader(files))) if in_tasks else files
    # pyarrow asks for a file's size before it reads.
    fetch, nothing = ({"HEAD": 1, "GET": 1}, {"HEAD": 1}) if kind == "pyarrow" else ({"GET": 1}, {"HEAD": 1, "GET": 1})
    cases: list[tuple[Callable[[], object], object, dict[str, int]]] = [
        (lambda: reader.read(f"{folder}/f"), CONTENT, fetch),
        (lambda: reader.read(f"{folder}/empty"), b"", nothing),
        (lambda: reader.read_range(f"{folder}/f", 7, 2_000_000), CONTENT[7:2_000_007], fetch),
        (lambda: reader.read_range(f"{folder}/f", 3_000_000, 1 << 40), CONTENT[3_000_000:], fetch),
        (lambda: reader.read_range(f"{folder}/f", len(CONTENT), 5), b"", nothing),
        (lambda: reader.read_range(f"{folder}/f", -2, 5), b"", {"HEAD": 1}),
        (lambda: reader.length(f"{folder}/f"), len(CONTENT), {"HEAD": 1}),
    ]
    for number, (read, result, expected) in enumerate(cases):
        with s3.counted() as sent:
            assert read() == result, number
        assert methods(sent) == expected, number


def test_missing_and_listed_files(s3: S3Server, files: IOFiles, folder: str) -> None:
    files.write_new(f"{folder}/a", b"1")
    files.write_new(f"{folder}/b/c", b"2")
    assert [status.location for status in files.list(folder)] == [f"{folder}/a"]
    assert files.exists(f"{folder}/a")
    assert not files.exists(f"{folder}/none")
    asks: list[Callable[[str], object]] = [files.read, files.length, files.list, lambda at: files.read_range(at, 0, 1)]
    for ask in asks:
        with pytest.raises(NotFoundError, match=f"{folder}/none: there is no such file"):
            ask(f"{folder}/none")
    assert files.delete_many([f"{folder}/a", f"{folder}/none"]) == []
    assert not files.exists(f"{folder}/a")


@pytest.mark.parametrize("refused", [0, 403])
def test_objects_are_deleted_by_few_requests(
    s3: S3Server, files: IOFiles, folder: str, kind: str, refused: int
) -> None:
    """Some stores don't support the request that deletes many objects."""
    locations = [f"{folder}/{number}" for number in range(1_003)]
    for location in (locations[0], locations[-1]):
        files.write_new(location, b"1")
    with s3.counted() as sent, s3.faulty(refuses=lambda request: refused if request.method == "POST" else 0):
        assert files.delete_many(locations) == []
    deleting = {method: count for method, count in methods(sent).items() if method in ("POST", "DELETE")}
    # pyarrow asks for each file before it deletes it.
    expected = {"DELETE": 2} if kind == "pyarrow" else {"POST": 2}
    assert deleting == expected | ({"DELETE": len(locations)} if refused and kind != "pyarrow" else {})
    assert not any(files.exists(location) for location in (locations[0], locations[-1]))


def test_files_by_a_pattern(s3: S3Server, files: IOFiles, folder: str) -> None:
    """The listing requests no files of other folders."""
    for name in (
        "a/metadata/v1.json",
        "b/metadata/v1.json",
        "b/metadata/v2.txt",
        "b/data/1.json",
        "c/x.json",
        "d.json",
    ):
        files.write_new(f"{folder}/{name}", b"1")
    with s3.counted() as sent:
        located = files.glob(folder, "*/metadata/*.json")
    assert sorted(located) == [f"{folder}/a/metadata/v1.json", f"{folder}/b/metadata/v1.json"]
    assert len(sent) <= 6
    assert files.glob(f"{folder}/none", "*/*") == []
    assert files.glob(folder, "?.json") == [f"{folder}/d.json"]


@pytest.mark.parametrize("scheme", ["s3a", "s3n"])
def test_spellings_of_the_scheme(files: IOFiles, kind: str, folder: str, scheme: str) -> None:
    spelled = folder.replace("s3:", f"{scheme}:")
    files.write_new(f"{spelled}/in/f", b"data")
    assert files.read(f"{spelled}/in/f") == files.read(f"{folder}/in/f") == b"data"
    assert files.read_range(f"{spelled}/in/f", 1, 2) == b"at"
    assert files.exists(f"{spelled}/in/f")
    assert files.length(f"{spelled}/in/f") == 4
    assert [status.location for status in files.list(f"{spelled}/in")] == [f"{spelled}/in/f"]
    assert files.glob(spelled, "*/*") == [f"{spelled}/in/f"]
    for recursive, name in ((True, "in/f"), (False, "in")):
        (batch,) = walk_io(files.io, spelled, recursive=recursive)
        assert batch.column("path").to_pylist() == [f"{spelled}/{name}"]
    if kind == "fsspec":
        files.publish(f"{spelled}/g", b"first")
        with pytest.raises(FileAlreadyExistsError):
            files.publish(f"{folder}/g", b"second")
    files.write_new(f"{spelled}/h", b"data")
    assert files.delete_many([f"{spelled}/g", f"{spelled}/h"]) == []
    assert files.delete_many([f"{spelled}/in/f"]) == []
    assert not files.glob(folder, "*")
    assert not files.exists(f"{folder}/in/f")


@pytest.mark.usefixtures("_hurried")
def test_a_busy_store_is_asked_again(s3: S3Server, folder: str) -> None:
    """There are more attempts than the three of the store's client."""
    files = IOFiles(s3.io("pyarrow"))
    files.write_new(f"{folder}/f", b"content")
    with s3.faulty(refuses=refused_first(4)), s3.counted() as sent:
        assert files.read(f"{folder}/f") == b"content"
    assert methods(sent) == {"HEAD": 5, "GET": 1}


def test_a_store_that_stays_busy(s3: S3Server, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_WAITS", ())
    with s3.faulty(refuses=lambda _: 503), pytest.raises(FileAccessError, match=f"^{folder}/f: .*503"):
        IOFiles(s3.io("pyarrow")).read(f"{folder}/f")


def test_a_refusal_is_not_repeated(s3: S3Server, files: IOFiles, folder: str) -> None:
    files.write_new(f"{folder}/f", b"content")
    with s3.faulty(refuses=lambda _: 403), s3.counted() as sent, pytest.raises(FileAccessError, match=f"^{folder}/f: "):
        files.length(f"{folder}/f")
    assert len(sent) == 1


def test_a_store_that_is_not_there(s3: S3Server, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    nobody = {"s3.endpoint": "http://127.0.0.1:1", "s3.connect-timeout": "1"}
    with pytest.raises(FileAccessError, match=r"^s3://tests/f: .*(connect)"):
        IOFiles(s3.io(kind, **nobody)).read("s3://tests/f")


def test_one_of_many_publishes(s3: S3Server, folder: str) -> None:
    def publish(writer: int) -> list[int]:
        files, won = IOFiles(s3.io("fsspec")), []
        for version in range(10):
            try:
                files.publish(f"{folder}/v{version}", bytes([writer]) * 10_000)
            except FileAlreadyExistsError:
                continue
            won.append(version)
        return won

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(publish, range(4)))
    assert sorted(version for versions in won for version in versions) == list(range(10))
    files = IOFiles(s3.io("pyarrow"))
    for writer, versions in enumerate(won):
        assert all(files.read(f"{folder}/v{version}") == bytes([writer]) * 10_000 for version in versions)
    assert len(files.list(folder)) == 10


def test_no_publishing_without_a_condition(
    s3: S3Server, kind: str, files: IOFiles, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_proven", set())
    reason = {"pyarrow": "PyArrowFileIO has no conditional writes", "fsspec": "its store ignores the condition"}[kind]
    with s3.faulty(ignores_conditions=True), pytest.raises(UnsupportedError, match=rf"{reason}.* SQL catalog"):
        files.publish(f"{folder}/v1", b"first")
    with pytest.raises(NotFoundError):
        files.list(folder)


def test_credentials_are_never_shown(s3: S3Server, files: IOFiles, folder: str) -> None:
    """Texts contain neither the FileIO's credentials nor their repetition in a store's answers."""
    shown = [repr(part) for part in (files, executor_reader(files), executor_writer(files))]
    writes: list[Callable[[], Any]] = [
        lambda: files.write_new(f"{folder}/f", b""),
        lambda: files.read(f"{folder}/f"),
        lambda: files.list(folder),
    ]
    with s3.faulty(refuses=lambda _: 403):
        for ask in writes:
            with pytest.raises(FileAccessError) as caught:
                ask()
            assert caught.value.__cause__ is None
            shown.append(str(caught.value))
        shown.append(str(files.delete_many([f"{folder}/f"])))
    assert any("***" in text for text in shown)
    for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
        assert all(secret not in text for text in shown)


def test_parts_of_signed_urls_are_no_part_of_errors() -> None:
    url = "https://b.s3/f?X-Amz-Credential=abc%2F1&X-Amz-Expires=60&X-Amz-Signature=def&sig=ghi"
    assert without_secrets(url, {}) == (
        "https://b.s3/f?X-Amz-Credential=***&X-Amz-Expires=60&X-Amz-Signature=***&sig=***"
    )
