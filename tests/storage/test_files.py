from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyspark.errors import PySparkException

from sparkmeta.catalog.iceberg import _Locating
from sparkmeta.errors import NotFoundError, UnsupportedError
from sparkmeta.session import SessionSource
from sparkmeta.storage.content import open_io
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.files import Files, FileStatus, IOFiles, LocalFiles, SparkFiles, executor_reader, files_for
from sparkmeta.storage.location import spark_path_key
from sparkmeta.storage.reading import binary_files, passed_over
from sparkmeta.storage.walk import walk_io
from tests.conftest import SEPARATE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

# Each file holds its own name.
HOSTILE = [
    "plain", "a b", "a%20b", "100%", "a[1]", "a{x,y}", "a?", "a*", "a=b", "ü", "a+b", "it's", "a#b", "a^b", "a\\b",
    "a;b&c", 'a"b', "a<b>", "a|b", "a`b", "a~b", "日本𝒳", "a,b", "a@b!$(1)", "tab\t", "e\u0301", "\x7f", "a\u00a0b",
    "a\u2028b", "%2F", "..a",
]  # fmt: skip
SPARKS = [name for name in HOSTILE if not name.startswith(".")]
PYARROWS = ["plain", "a b", "ü", "a+b", "a=b", "日本𝒳"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "a [x] {y} % #ü+'="
    folder.mkdir()
    for name in HOSTILE:
        (folder / name).write_bytes(name.encode())
    below = folder / "below=1" / folder.name
    below.mkdir(parents=True)
    (below / "deep").write_bytes(b"deep")
    return folder


@pytest.fixture(params=["local", "spark", "pyarrow"])
def files(request: pytest.FixtureRequest, spark: SparkSession) -> Files:
    kinds: dict[str, Files] = {
        "local": LocalFiles(),
        "spark": SparkFiles(SessionSource(spark)),
        "pyarrow": IOFiles(PyArrowFileIO({})),
    }
    return kinds[request.param]


@pytest.fixture
def place(files: Files, folder: Path) -> Path:
    """A folder with the files that are readable in this way: a FileIO parses # and ? as parts of a URL."""
    if not isinstance(files, IOFiles):
        return folder
    portable = folder.parent / "portable"
    portable.mkdir(exist_ok=True)
    for name in PYARROWS:
        (portable / name).write_bytes(name.encode())
    return portable


def names_for(files: Files) -> list[str]:
    if isinstance(files, IOFiles):
        return PYARROWS
    return SPARKS if isinstance(files, SparkFiles) else HOSTILE


@pytest.mark.connect
def test_reading(files: Files, place: Path) -> None:
    for name in names_for(files):
        assert files.read(f"file://{place}/{name}") == name.encode()


def test_reading_a_part(files: Files, place: Path) -> None:
    location = f"file://{place}/a b"
    ranges = {(0, 3): b"a b", (1, 1): b" ", (2, 99): b"b", (1, 1 << 60): b" b", (3, 1): b"", (99, 1): b""}
    refused = {(-1, 2): b"", (0, -1): b"", (-(1 << 60), 1 << 62): b""}
    for (offset, size), expected in (ranges | refused).items():
        assert files.read_range(location, offset, size) == expected
    with pytest.raises(NotFoundError, match="none: there is no such file"):
        files.read_range(f"file://{place}/none", 0, 1)


@pytest.mark.parametrize("prefix", ["file://", "file:", ""])
def test_spellings_of_a_location(files: Files, place: Path, prefix: str) -> None:
    location = f"{prefix}{place}/a b"
    assert files.read(location) == b"a b"
    assert files.exists(location)
    assert files.length(location) == 3


@pytest.mark.connect
def test_what_is_missing(files: Files, tmp_path: Path) -> None:
    location = f"file://{tmp_path}/none"
    assert not files.exists(location)
    for ask in (files.read, files.length, files.list):
        with pytest.raises(NotFoundError, match=r"file:///.*/none: there is no such file"):
            ask(location)


@pytest.mark.parametrize("kind", ["local", "spark"])
def test_a_folder_is_no_file(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x").write_bytes(b"x")
    files: Files = LocalFiles() if kind == "local" else SparkFiles(SessionSource(spark))
    assert not files.exists(f"file://{tmp_path}/f")


@pytest.mark.connect
def test_listing(files: Files, place: Path) -> None:
    listed = {status.location: status for status in files.list(f"file://{place}/")}
    assert set(listed) == {f"file://{place}/{name}" for name in names_for(files)}
    status = listed[f"file://{place}/a b"]
    assert status == FileStatus(status.location, 3, (place / "a b").stat().st_mtime_ns // 1_000_000)


@pytest.mark.parametrize("character", ["#", "?", "\t", "\r", "\n"])
def test_pyarrow_opens_no_other_file(tmp_path: Path, character: str) -> None:
    # As the URL's path, and without the character.
    for name in ("a", "ab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(b"another file")
    files, reader = IOFiles(PyArrowFileIO()), ExecutorReader({"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"})
    folder = f"file://{tmp_path}/a{character}b"
    location = f"{folder}/f"
    doors: list[Callable[[], Any]] = [
        lambda: files.read(location),
        lambda: files.read_range(location, 0, 1),
        lambda: files.length(location),
        lambda: files.exists(location),
        lambda: files.list(folder),
        lambda: files.glob(folder, "*"),
        lambda: files.glob(folder, "*/*"),
        lambda: open_io(files.io, location),
        lambda: list(walk_io(files.io, folder, recursive=True)),
        lambda: reader.length(location.replace("file:", "hdfs:")),
    ]
    for door in doors:
        with pytest.raises(UnsupportedError, match="would open another file"):
            door()


def test_listing_by_name(files: Files, tmp_path: Path) -> None:
    for name in ("v1.metadata.json", "v2.gz.metadata.json", "a.avro", "b.metadata.jsonx"):
        (tmp_path / name).write_bytes(b"x")
    listed = files.list(f"file://{tmp_path}", "*.metadata.json")
    assert {status.location for status in listed} == {
        f"file://{tmp_path}/v1.metadata.json",
        f"file://{tmp_path}/v2.gz.metadata.json",
    }


def test_a_file_goes_away_while_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    real = os.scandir

    class Scan:
        def __enter__(self) -> list[os.DirEntry[str]]:
            entries = [*real(tmp_path)]
            (tmp_path / "a").unlink()
            return entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", lambda _: Scan())
    assert [status.location for status in LocalFiles().list(f"file://{tmp_path}")] == [f"file://{tmp_path}/b"]


@pytest.mark.parametrize("kind", ["local", "spark"])
def test_finding(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    warehouse = tmp_path / "w [1]"
    for place in ("a/metadata/x.json", "a b/metadata/y.json", "a b/data/z.json", "c/d/metadata/x.json"):
        (warehouse / place).parent.mkdir(parents=True, exist_ok=True)
        (warehouse / place).write_bytes(b"x")
    files: Files = LocalFiles() if kind == "local" else SparkFiles(SessionSource(spark))
    root = f"file://{warehouse}"
    assert set(files.glob(root, "*/metadata/*.json")) == {f"{root}/a/metadata/x.json", f"{root}/a b/metadata/y.json"}
    assert files.glob(root, "*/nothing/*") == []


def test_an_empty_folder(files: Files, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert files.list(f"file://{tmp_path}/empty") == []


@pytest.mark.connect
def test_an_empty_file(files: Files, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    location = f"file://{tmp_path}/empty"
    assert files.exists(location)
    assert (files.read(location), files.length(location)) == (b"", 0)


@pytest.mark.connect
def test_binary_files_miss_none_in_silence(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("full", "empty"):
        (tmp_path / name).write_bytes(b"x" if name == "full" else b"")
    locations = [f"file://{tmp_path}/full", f"file://{tmp_path}/empty"]
    with pytest.raises(PySparkException, match=f"file:{tmp_path}/empty: the file is empty"):
        passed_over(spark, locations, "a int").where("a > 0").collect()
    for columns in (["path"], ["content"], ["path", "length", "content"]):
        with pytest.raises(PySparkException, match="/empty: the file is empty, or is not there"):
            binary_files(spark, locations).select(*columns).collect()


def test_spark_passes_over_hidden_names(spark: SparkSession) -> None:
    for name in ("_a", ".a"):
        with pytest.raises(UnsupportedError, match="begins with"):
            SparkFiles(SessionSource(spark)).read(f"file:///tmp/{name}")
        with pytest.raises(UnsupportedError, match="begins with"):
            binary_files(spark, [f"file:///tmp/{name}"])


def test_fsspec_lists(tmp_path: Path) -> None:
    files = IOFiles(FsspecFileIO({}))
    (tmp_path / "below").mkdir()
    for name in ("v1.json", "v2.json", "x.json", "below/v3.json"):
        (tmp_path / name).write_bytes(b"abc")
    location = f"file://{tmp_path}"
    modified = (tmp_path / "v1.json").stat().st_mtime_ns // 1_000_000
    for pattern, names in (("v*", ["v1.json", "v2.json"]), ("*", ["v1.json", "v2.json", "x.json"]), ("y*", [])):
        listed = files.list(location, pattern)
        assert sorted(status.location for status in listed) == [f"{location}/{name}" for name in names]
        assert all(status.length == 3 for status in listed)
    assert abs(files.list(location, "v1*")[0].modified_ms - modified) <= 1
    (tmp_path / "v9.json").write_bytes(b"new")
    assert len(files.list(location, "v*")) == 3
    with pytest.raises(NotFoundError, match="none: there is no such file"):
        files.list(f"{location}/none")


def test_other_file_io_lists_nothing() -> None:
    with pytest.raises(UnsupportedError, match="_Locating lists no folders"):
        IOFiles(_Locating()).list("s3://b")


@pytest.mark.connect
def test_binary_files(spark: SparkSession, folder: Path) -> None:
    locations = {name: f"file://{folder}/{name}" for name in SPARKS}
    rows = binary_files(spark, [*locations.values(), locations["plain"]]).collect()
    by_key = {row.path: row for row in rows}
    assert len(rows) == len(by_key) == len(locations)
    for name, location in locations.items():
        row = by_key[spark_path_key(location)]
        assert (bytes(row.content), row.length) == (name.encode(), len(name.encode()))


def test_no_binary_files(spark: SparkSession) -> None:
    none = binary_files(spark, [])
    assert none.columns == ["path", "length", "content"]
    assert none.count() == 0


def test_a_missing_binary_file(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(NotFoundError, match="none"):
        binary_files(spark, [f"file://{folder}/plain", f"file://{folder}/none"])


def test_who_reads(spark: SparkSession) -> None:
    io = PyArrowFileIO({"s3.region": "x"})
    assert isinstance(files_for(SessionSource(spark), "/tmp/x"), LocalFiles)
    assert isinstance(files_for(SessionSource(spark), "file:/tmp/x", io), LocalFiles)
    assert isinstance(files_for(SessionSource(spark), "s3://b/x"), SparkFiles)
    assert files_for(SessionSource(spark), "s3://b/x", io) == IOFiles(io)


@pytest.mark.connect
def test_python_reads_what_client_and_server_see(
    spark: SparkSession, hidden_folder: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    is_separate = pytestconfig.option.spark_connect_url == SEPARATE
    assert isinstance(files_for(SessionSource(spark), f"{tmp_path}/not yet/there"), LocalFiles)
    (hidden_folder / "file").touch()
    for location in (f"{hidden_folder}/x", f"file://{hidden_folder}/file"):
        assert isinstance(files_for(SessionSource(spark), location), SparkFiles if is_separate else LocalFiles)


def test_who_reads_on_executors(spark: SparkSession) -> None:
    assert executor_reader(LocalFiles()) == ExecutorReader()
    assert executor_reader(IOFiles(PyArrowFileIO({"s3.region": "x"}))) == ExecutorReader(
        {"s3.region": "x", "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    )
    assert executor_reader(SparkFiles(SessionSource(spark))) is None


def test_an_executor_reader_travels(folder: Path) -> None:
    reader = ExecutorReader({"s3.region": "x"})
    reader.read(f"file://{folder}/a b")
    travelled = pickle.loads(pickle.dumps(reader))
    assert travelled == reader
    assert travelled.read(f"{folder}/a%20b") == b"a%20b"
    with pytest.raises(NotFoundError, match="none: there is no such file"):
        travelled.read(f"{folder}/none")


def test_an_executor_reader_by_file_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").write_bytes(b"a b")
    monkeypatch.setattr("sparkmeta.storage.executors.is_local", lambda _: False)
    reader = ExecutorReader({"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"})
    assert reader.read(f"file://{tmp_path}/a b") == b"a b"
    assert reader.read(f"file://{tmp_path}/a b") == b"a b"
    with pytest.raises(NotFoundError):
        reader.read(f"file://{tmp_path}/none")


def test_tasks_import_nothing_heavy() -> None:
    heavy = ("pydantic", "pyspark", "pyarrow")
    code = f"import sparkmeta.storage.executors, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
