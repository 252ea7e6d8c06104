"""The syncs, statements and requests of a small append, so that they do not grow unseen. See docs/commits.md."""

from __future__ import annotations

import os
import stat
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import requests
import sqlalchemy
from sqlalchemy import event

import sparkmeta as sm
from sparkmeta.operations.metadata_files import VERSION_HINT
from sparkmeta.spec.metadata import parse_table_metadata, serialize_table_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = pa.table({"id": range(10)})


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """The number of syncs, by the beginning of the file's name without its UUID, or by the folder."""
    counts: Counter[str] = Counter()
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        counts[path.name if is_folder else f"a file in {path.parent.name}"] += 1
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    return counts


def table_of(folder: Path, kind: str, version: int) -> sm.Table:
    uri = {"uri": f"sqlite:///{folder}/catalog.db"} if kind == "sql" else {}
    catalog = sm.load_catalog("c", type=kind, warehouse=folder.as_uri(), **uri)
    catalog.create_namespace("db")
    return catalog.create_table("db.t", ROWS.schema, format_version=version).append(ROWS)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system has no /proc")
@pytest.mark.parametrize("kind", ["hadoop", "sql"])
@pytest.mark.parametrize(("version", "manifests"), [(2, 2), (4, 1)])
def test_syncs(tmp_path: Path, syncs: Counter[str], kind: str, version: int, manifests: int) -> None:
    """Each file that a reader needs is synced once, and its name before a file that refers to it is published."""
    table = table_of(tmp_path, kind, version)
    syncs.clear()
    table.append(ROWS)
    assert syncs == {"a file in data": 1, "data": 1, "a file in metadata": manifests + 1, "metadata": 2}


@pytest.mark.parametrize("version", [2, 4])
def test_statements(tmp_path: Path, version: int) -> None:
    table = table_of(tmp_path, "sql", version)
    statements: list[str] = []

    def executed(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement.split(maxsplit=1)[0])

    event.listen(sqlalchemy.Engine, "before_cursor_execute", executed)
    try:
        table.append(ROWS)
    finally:
        event.remove(sqlalchemy.Engine, "before_cursor_execute", executed)
    assert statements == ["UPDATE"]


def test_requests(rest_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, name = sm.load_catalog("c", type="rest", uri=rest_uri), f"db_{uuid.uuid4().hex}.t"
    catalog.create_namespace(name.partition(".")[0])
    table = catalog.create_table(name, ROWS.schema).append(ROWS)
    sent: list[tuple[str | None, str]] = []
    request = requests.Session.request

    def counted(self: requests.Session, method: str, url: str, **options: Any) -> requests.Response:
        sent.append((method, url.rpartition("/")[2]))
        return request(self, method, url, **options)

    monkeypatch.setattr(requests.Session, "request", counted)
    table.append(ROWS)
    assert [each for each in sent if each[1] != "metrics"] == [("GET", "t"), ("POST", "t")]


@pytest.mark.parametrize("hint", [None, b"", b"\0\0", b"1"])
@pytest.mark.parametrize("version", [2, 4])
def test_a_hint_that_a_crash_has_torn(tmp_path: Path, hint: bytes | None, version: int) -> None:
    """Readers and writers find the newest version all the same."""
    table = table_of(tmp_path, "hadoop", version).append(ROWS)
    file = Path(table.location().removeprefix("file://"), "metadata", VERSION_HINT)
    file.unlink() if hint is None else file.write_bytes(hint)
    assert sm.load_table(table.location()).metadata_location == table.metadata_location
    assert table.append(ROWS).scan().count() == 30
    assert file.read_text() == "4"


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_what_a_commit_returns_is_what_it_has_written(tmp_path: Path, version: int) -> None:
    """A process that writes a file does not parse it again."""
    table = table_of(tmp_path, "hadoop", version)
    for _ in range(3):
        table = table.append(ROWS)
        data = Path(table.metadata_location.removeprefix("file://")).read_bytes()
        # Another location, for which nothing is noted, in the same folder.
        parsed = parse_table_metadata(data, table.metadata_location.replace("/v", "/w"))
        assert parsed is not table.metadata
        assert parsed == table.metadata
        assert serialize_table_metadata(parsed) == serialize_table_metadata(table.metadata)
