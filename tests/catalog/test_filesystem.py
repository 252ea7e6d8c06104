from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

from sparkmeta import load_catalog, load_table
from sparkmeta.catalog.filesystem import FileSystemCatalog
from sparkmeta.errors import (
    CorruptFileError,
    InvalidArgumentError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotFoundError,
    ValidationError,
)
from sparkmeta.operations.metadata_files import is_metadata_file, latest_metadata
from sparkmeta.session import SessionSource
from sparkmeta.storage import listing
from sparkmeta.storage.files import Files, IOFiles, LocalFiles, SparkFiles
from tests.spec.table_metadata import encoded, v2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyiceberg.io import FileIO

UUID = "0d3b7f6c-1234-4321-9999-00000000000{}"


@pytest.fixture(params=["local", "spark"])
def files(request: pytest.FixtureRequest, spark: SparkSession) -> Files:
    return LocalFiles() if request.param == "local" else SparkFiles(SessionSource(spark))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "db" / "a [t]"
    (folder / "metadata").mkdir(parents=True)
    return folder


def fill(folder: Path, *names: str, hint: str | None = None) -> None:
    for name in names:
        data = encoded(v2())
        (folder / "metadata" / name).write_bytes(gzip.compress(data) if ".gz" in name else data)
    if hint is not None:
        (folder / "metadata" / "version-hint.text").write_text(hint)


def opened(files: Files, folder: Path) -> tuple[str, int, bool]:
    latest = latest_metadata(files, f"file://{folder}")
    assert latest.location.startswith(f"file://{folder}/metadata/")
    return latest.location.rpartition("/")[2], latest.version, latest.read_only


def test_the_hint_is_right(files: Files, folder: Path) -> None:
    fill(folder, "v1.metadata.json", "v2.metadata.json", hint="2")
    assert opened(files, folder) == ("v2.metadata.json", 2, False)


def test_the_hint_lags(files: Files, folder: Path) -> None:
    fill(folder, "v1.metadata.json", "v2.gz.metadata.json", "v3.metadata.json.gz", "v5.metadata.json", hint="1\n")
    assert opened(files, folder) == ("v3.metadata.json.gz", 3, False)


def test_the_hint_names_what_is_not_there(files: Files, folder: Path) -> None:
    fill(folder, "v1.metadata.json", "v2.metadata.json", hint="3")
    with pytest.raises(CorruptFileError, match=r"version-hint\.text: version is 3: there is no v3\.metadata\.json"):
        opened(files, folder)


@pytest.mark.parametrize("hint", [None, "", "three", "-1", "9" * 5000, "1.5"])
def test_without_a_usable_hint(folder: Path, hint: str | None) -> None:
    fill(folder, "v1.metadata.json", "v12.metadata.json", "v9.metadata.json", hint=hint)
    assert opened(LocalFiles(), folder) == ("v12.metadata.json", 12, False)


def test_a_missing_hint(files: Files, folder: Path) -> None:
    fill(folder, "v1.metadata.json", "v2.metadata.json.gz", f"{UUID.format(1)}.metadata.json", "v007.metadata.json")
    assert opened(files, folder) == ("v2.metadata.json.gz", 2, False)


def test_plain_comes_before_gzip(files: Files, folder: Path) -> None:
    fill(folder, "v1.metadata.json.gz", "v1.gz.metadata.json", "v1.metadata.json")
    assert opened(files, folder) == ("v1.metadata.json", 1, False)
    (folder / "metadata" / "v1.metadata.json").unlink()
    assert opened(files, folder) == ("v1.gz.metadata.json", 1, False)


def test_an_empty_newest_file_is_seen(files: Files, folder: Path) -> None:
    fill(folder, "v1.metadata.json", hint="1")
    (folder / "metadata" / "v2.metadata.json").write_bytes(b"")
    assert opened(files, folder) == ("v2.metadata.json", 2, False)


def test_a_table_of_a_catalog(files: Files, folder: Path) -> None:
    newest = f"00012-{UUID.format(3)}.gz.metadata.json"
    fill(
        folder,
        f"00000-{UUID.format(1)}.metadata.json",
        f"00009-{UUID.format(2)}.metadata.json",
        newest,
        "12345678-1234-4321-9999-000000000000.metadata.json",
        "snap-99999-1.avro",
    )
    assert opened(files, folder) == (newest, 12, True)


def test_the_highest_version_twice(files: Files, folder: Path) -> None:
    names = [f"00012-{UUID.format(1)}.metadata.json", f"00012-{UUID.format(2)}.metadata.json"]
    fill(folder, f"00011-{UUID.format(0)}.metadata.json", *names)
    with pytest.raises(ValidationError, match=f"both {names[0]} and {names[1]} are version 12"):
        opened(files, folder)


def test_a_lower_version_twice(files: Files, folder: Path) -> None:
    fill(folder, *(f"0001{version}-{UUID.format(i)}.metadata.json" for i, version in enumerate([1, 1, 2])))
    assert opened(files, folder)[1] == 12


def test_a_missing_folder(files: Files, folder: Path, tmp_path: Path) -> None:
    for nothing in (folder, tmp_path / "none"):
        with pytest.raises(NoSuchTableError, match=r"there is no Iceberg table: .*/metadata holds no metadata file"):
            opened(files, nothing)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://b/t/metadata/v1.metadata.json", True),
        ("s3://b/t/metadata/v1.gz.metadata.json", True),
        ("s3://b/t/metadata/v1.metadata.json.gz", True),
        ("/t/any.json", True),
        ("s3://b/t", False),
        ("s3://b/t.json/", False),
    ],
)
def test_metadata_files(location: str, expected: bool) -> None:
    assert is_metadata_file(location) is expected


def test_a_warehouse(spark: SparkSession, tmp_path: Path) -> None:
    for place in ("db/one", "db/two.json", "db/deep/three", "other/four", "top"):
        (tmp_path / place / "metadata").mkdir(parents=True)
        fill(tmp_path / place, "v1.metadata.json", hint="1")
    (tmp_path / "empty").mkdir()
    catalog = load_catalog("here", type="hadoop", warehouse=f"file://{tmp_path}")
    assert isinstance(catalog, FileSystemCatalog)
    assert catalog.list_namespaces() == [("db",), ("other",)]
    assert catalog.list_namespaces("db") == [("db", "deep")]
    assert catalog.list_tables("db") == [("db", "one"), ("db", "two.json")]
    assert catalog.list_tables(()) == catalog.list_tables("") == [("top",)]
    table = catalog.load_table("db.deep.three", spark)
    assert (table.name(), table.read_only) == (("db", "deep", "three"), False)
    assert catalog.load_table(("db", "two.json")).metadata_location.endswith("two.json/metadata/v1.metadata.json")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.none")


def test_names_of_a_warehouse(spark: SparkSession, tmp_path: Path) -> None:
    """Namespaces and tables are single folders below the warehouse."""
    (tmp_path / "db" / "t" / "metadata").mkdir(parents=True)
    fill(tmp_path / "db" / "t", "v1.metadata.json")
    catalog = FileSystemCatalog("lake", f"file://{tmp_path}")
    for name in ("./x", "db.a/b", ("db", ".."), ("db", "a\0b"), ("db", "é" * 128)):
        with pytest.raises(
            ValidationError, match="can't be the name of a folder" if name != "./x" else "expected names"
        ):
            catalog.load_table(name, spark)
    for namespace in ((), "a.b.c.d"):
        with pytest.raises(ValidationError, match="levels"):
            catalog.create_namespace(namespace)
    with pytest.raises(NamespaceAlreadyExistsError, match=r"db\.t: a table or view of this name already exists"):
        catalog.create_namespace("db.t")
    for list_names in (catalog.list_tables, catalog.list_namespaces):
        with pytest.raises(NoSuchNamespaceError, match="none: there is no such namespace"):
            list_names("none")


def test_a_warehouse_that_spark_lists(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkmeta.catalog.filesystem.files_for", lambda sessions, *_: SparkFiles(sessions))
    (tmp_path / "db" / "one" / "metadata").mkdir(parents=True)
    fill(tmp_path / "db" / "one", "v1.metadata.json")
    catalog = FileSystemCatalog("here", f"file://{tmp_path}")
    assert catalog.list_tables("db", spark) == [("db", "one")]
    assert catalog.list_namespaces((), spark) == [("db",)]


def test_partitions_are_not_listed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may have any number of folders. Those that are named as a table's own are no reason to stop."""
    for place in ("db/one", "db/metadata/two", "deep/er/three"):
        (tmp_path / place / "metadata").mkdir(parents=True)
        fill(tmp_path / place, "v1.metadata.json")
        (tmp_path / place / "data" / "part=1" / "day=2").mkdir(parents=True)
    listed, by_client = list[str](), listing.folders_by_client

    def counted(io: FileIO, folder: str) -> Callable[[str], list[str]]:
        listed.append(folder.removeprefix(f"file://{tmp_path}"))
        return by_client(io, folder)

    monkeypatch.setattr(listing, "folders_by_client", counted)
    for files in (LocalFiles(), IOFiles(PyArrowFileIO())):
        monkeypatch.setattr("sparkmeta.catalog.filesystem.files_for", lambda *_: files)  # noqa: B023  called at once
        each = load_catalog("here", type="hadoop", warehouse=f"file://{tmp_path}")
        assert each.list_namespaces() == [("db",), ("deep",)]
        assert each.list_namespaces("db") == [("db", "metadata")]
        assert each.list_tables("db.metadata") == [("db", "metadata", "two")]
        assert each.namespace_exists("deep.er")
        assert not each.namespace_exists("nope")
        for table in ("db.one", "deep.er.three"):
            assert not each.namespace_exists(table)
    assert "/db/one" in listed
    assert not [folder for folder in listed if "/data" in folder]


def test_a_warehouse_without_a_place() -> None:
    with pytest.raises(InvalidArgumentError, match="catalog here: the property warehouse is missing"):
        load_catalog("here", type="hadoop")


def test_catalogs_that_can_not_be_found() -> None:
    for properties in ({"type": "hadop"}, {}):
        with pytest.raises(InvalidArgumentError, match="catalog nowhere: "):
            load_catalog("nowhere", **properties)


def test_a_relative_warehouse(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    catalog = load_catalog("here", type="hadoop", warehouse="lake")
    table = catalog.create_table("db.t", Schema(NestedField(1, "id", LongType())), spark=spark)
    assert table.location() == f"{tmp_path}/lake/db/t"
    monkeypatch.chdir("/")
    assert table.append(spark.sql("SELECT 1L id")).scan().to_df().count() == 1


def test_places_below_a_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NoSuchTableError):
        load_table(f"{tmp_path}/file/t", spark=spark)
    (tmp_path / "v1.metadata.json").mkdir()
    with pytest.raises((NoSuchTableError, NotFoundError)):
        load_table(f"{tmp_path}/v1.metadata.json", spark=spark)
