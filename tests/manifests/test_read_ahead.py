"""Tasks read several manifests of a store at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from sparkmeta.entries.manifest_records import PART_SCHEMA
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import NotFoundError
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.spec.locations import Locations
from tests.avro.avro_files import avro_file, data_file, entry, entry_schema

MANIFESTS = 12
PROJECTION = EntryProjection.of({"location"})


@dataclass
class Store:
    """Manifests with an entry each, which are read only when as many are asked for as `meeting` has parties."""

    meeting: Barrier
    read_locations: list[str] = field(default_factory=list)

    def read(self, location: str) -> bytes:
        self.read_locations.append(location)
        if location.endswith("/none"):
            raise NotFoundError(location)
        self.meeting.wait(timeout=60)
        return avro_file(entry_schema(data_file()), [entry(file_path=f"{location}/data")])


def parts(*locations: str) -> pa.RecordBatch:
    common: dict[str, Any] = {"file_format": "AVRO", "partition_spec_id": 0, "part": 0, "parts": 1}
    rows = [
        {"manifest": number, "location": location, "file_size_in_bytes": 1000, **common}
        for number, location in enumerate(locations)
    ]
    return pa.RecordBatch.from_pylist(rows, PART_SCHEMA)


def decoded(store: Store, *locations: str) -> list[str]:
    decoder: Any = EntryDecoder(store, None, Locations("s3://b", 2))  # type: ignore[arg-type]
    batches = decoder.decode_parts(PROJECTION, [parts(*locations)])
    return [path for batch in batches for path in batch.column("location").to_pylist()]


def test_manifests_of_a_store_are_read_together() -> None:
    locations = [f"s3://b/m{number}" for number in range(MANIFESTS)]
    store = Store(Barrier(MANIFESTS))
    assert decoded(store, *locations) == [f"{location}/data" for location in locations]
    assert sorted(store.read_locations) == sorted(locations)


def test_local_manifests_are_read_one_by_one() -> None:
    store = Store(Barrier(1))
    assert decoded(store, "file:///m0", "file:///m1") == ["file:///m0/data", "file:///m1/data"]


def test_a_missing_manifest_is_an_error() -> None:
    with pytest.raises(NotFoundError, match="s3://b/none"):
        decoded(Store(Barrier(1)), "s3://b/m0", "s3://b/none", "s3://b/m1")
