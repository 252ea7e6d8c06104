"""Tables in forms that Java reads but does not write: their metadata rewritten by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro

from tests.peers.corpus import read_metadata
from tests.peers.file_maker import local_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers.workshop import Workshop


def rewrite_metadata(shop: Workshop, change: Callable[[dict[str, Any]], object]) -> str:
    """Commits a changed copy of the metadata JSON as the next version of a file-system table, and returns its path."""
    metadata = read_metadata(shop.metadata_location)
    change(metadata)
    folder = shop.folder / "metadata"
    version = max(int(path.name[1:].split(".")[0]) for path in folder.glob("v*.metadata.json")) + 1
    path = folder / f"v{version}.metadata.json"
    path.write_text(json.dumps(metadata))
    (folder / "version-hint.text").write_text(str(version))
    return f"file:{path}"


def rewrite_lists(metadata: dict[str, Any], change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Replaces every manifest list by a copy; `change` gets the Avro schema first and each record, to alter them."""
    for snapshot in metadata["snapshots"]:
        snapshot["manifest-list"] = rewrite_list(snapshot["manifest-list"], change)


def rewrite_list(location: str, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> str:
    path = Path(local_path(location))
    reader = fastavro.reader(io.BytesIO(path.read_bytes()))
    schema = json.loads(reader.metadata["avro.schema"])
    records: list[dict[str, Any]] = list(reader)  # type: ignore[arg-type]
    for record in records:
        change(schema, record)
    extra = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    target = path.with_name(f"changed-{path.name}")
    with target.open("wb") as out:
        fastavro.writer(out, schema, records, codec="deflate", metadata=extra)
    # Hadoop checks a file against the checksum that it wrote beside it, where there is one.
    return f"file:{target}"


def manifests_of(location: str) -> list[str]:
    with Path(local_path(location)).open("rb") as data:
        return [record["manifest_path"] for record in fastavro.reader(data)]  # type: ignore[index,call-overload]
