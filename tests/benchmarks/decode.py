"""Measure decoders of data manifests in entries per second of one core. The manifests have stats of 23 columns."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import fastavro

from tests.avro.decoders import Always

Decoder = Callable[[str, bytes], int]

SORT_COLUMN_ID, PARTITION_COLUMN_ID, PARTITION_FIELD_ID = 1, 10, 1000
ALL_STATS = {number: "int" if number in {1, 2, 3, PARTITION_COLUMN_ID} else "string" for number in range(1, 24)}


@dataclass(frozen=True)
class Decoding:
    """What a decoder decoded, and the seconds of CPU that this took, including garbage collection."""

    decoder: str
    entries: int
    seconds: float

    @property
    def entries_per_second(self) -> float:
        return self.entries / self.seconds

    def to_json(self) -> dict[str, Any]:
        return {"decoder": self.decoder, "entries": self.entries, "entries_per_second": round(self.entries_per_second)}


def data_manifests(metadata: str, limit: int) -> dict[str, bytes]:
    """Return the bytes of at most `limit` data manifests of a table, by location."""
    import json

    table = json.loads(local_path(metadata).read_bytes())
    current = next(s for s in table["snapshots"] if s["snapshot-id"] == table["current-snapshot-id"])
    with local_path(current["manifest-list"]).open("rb") as file:
        rows = [row for row in fastavro.reader(file) if isinstance(row, dict) and row["content"] == 0]
    paths = sorted(str(row["manifest_path"]) for row in rows)[:limit]
    return {path: local_path(path).read_bytes() for path in paths}


def local_path(location: str) -> Path:
    return Path(unquote(urlparse(location).path))


def compare_decoders(manifests: dict[str, bytes], repeats: int) -> list[Decoding]:
    """Decode the same manifests `repeats` times with every decoder; require equal numbers of entries."""
    decodings = [_measure(name, decoder, manifests, repeats) for name, decoder in decoders().items()]
    counts = Counter(decoding.entries for decoding in decodings)
    assert len(counts) == 1, f"decoders found different numbers of entries: {decodings}"
    return decodings


def _measure(name: str, decoder: Decoder, manifests: dict[str, bytes], repeats: int) -> Decoding:
    decoder(*next(iter(manifests.items())))  # imports and compiles
    start = time.process_time()
    entries = sum(decoder(*manifest) for _ in range(repeats) for manifest in manifests.items())
    return Decoding(name, entries, time.process_time() - start)


def decoders() -> dict[str, Decoder]:
    """Return the decoders by name. A decoder returns the number of entries that it decoded."""
    scan = ["location", "file_format", "version_info", "record_count", "file_size_in_bytes"]
    projections: dict[str, dict[int, str]] = {
        "what a plan needs": {},
        "and one column's stats": {SORT_COLUMN_ID: "int"},
        "and all columns' stats": ALL_STATS,
    }
    return {
        "fastavro, every field": _fastavro,
        "pyiceberg": _pyiceberg,
        **{
            f"sparkmeta {way}, {name}": partial(_sparkmeta, compiled, scan, stats)
            for name, stats in projections.items()
            for way, compiled in (("by fastavro", False), ("compiled", True))
        },
    }


def _fastavro(location: str, data: bytes) -> int:
    return _length(fastavro.reader(io.BytesIO(data)))


def _pyiceberg(location: str, data: bytes) -> int:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import ManifestFile

    manifest = ManifestFile.from_args(
        manifest_path=location, manifest_length=len(data), partition_spec_id=0, content=0, sequence_number=1,
        min_sequence_number=1, added_snapshot_id=1,
    )  # fmt: skip
    return len(manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=False))


def _sparkmeta(compiled: bool, columns: Sequence[str], stats: Mapping[int, str], location: str, data: bytes) -> int:
    from sparkmeta.avro import decode
    from sparkmeta.entries.manifest_records import ManifestContext, ManifestPart
    from sparkmeta.entries.projection import EntryProjection

    projection = EntryProjection.of(columns, {PARTITION_FIELD_ID: "int"}, stats)
    part = ManifestPart(0, location, 0, ManifestContext(1, 1, None))
    decode.compiler = Always(compiled)
    return sum(batch.num_rows for batch in decode.decode_manifest(data, part, projection))


def _length(items: Iterable[Any]) -> int:
    return sum(1 for _ in items)
