"""Tables that are broken in one way each, and what health says of each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

if TYPE_CHECKING:
    from collections.abc import Callable

    import sparkmeta as sm


def local(location: str) -> Path:
    """The path of a local file."""
    return Path(unquote(urlparse(location).path))


def _metadata(table: sm.Table) -> Path:
    return local(table.metadata_location)


def _list(table: sm.Table) -> Path:
    """The manifest list or root of the current snapshot."""
    snapshot: Any = table.current_snapshot()
    return local(snapshot.manifests_location)


def _manifest(table: sm.Table) -> Path:
    """A manifest; the root of a tree that has no leaves."""
    paths = table.inspect.arrow.manifests().column("path").to_pylist()
    return local(paths[0]) if paths else _list(table)


def _changed(table: sm.Table, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads(_metadata(table).read_text())
    change(document)
    _metadata(table).write_text(json.dumps(document))


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _garble(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes(255 - byte for byte in content))


# Name -> how a table of any version is broken, and a pattern of the error.
WAYS: dict[str, tuple[Callable[[sm.Table], Any], str]] = {
    "no_metadata": (lambda table: _metadata(table).unlink(), r"metadata\.json.* no such file"),
    "cut_metadata": (lambda table: _cut(_metadata(table)), r"metadata\.json.* JSON"),
    "empty_metadata": (lambda table: _metadata(table).write_bytes(b""), r"metadata\.json.* empty|JSON"),
    "no_list": (lambda table: _list(table).unlink(), r"no such file"),
    "garbled_list": (lambda table: _garble(_list(table)), r"not an? (Avro|Parquet)"),
    "no_manifest": (lambda table: _manifest(table).unlink(), r"no such file"),
    "garbled_manifest": (lambda table: _garble(_manifest(table)), r"not an? (Avro|Parquet)"),
    "unknown_version": (lambda table: _changed(table, lambda document: document.update({"format-version": 9})), "9"),
    "encrypted": (
        lambda table: _changed(table, lambda document: document["snapshots"][-1].update({"key-id": "k"})),
        r"is encrypted",
    ),
    "no_folder": (lambda table: shutil.rmtree(local(table.location())), r"no such file"),
}
