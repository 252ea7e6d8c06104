"""Entries that a filter has no use for are left out where manifests are decoded, by every reader, after row ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from sparkmeta.entries.projection import EntryFilter, EntryProjection
from sparkmeta.entries.records import EntryBuilder
from sparkmeta.expr.bounds import AllOf, BoundTest
from sparkmeta.manifests.decoder import ArrowRecords
from tests.avro.decoders import PART, decoded, plain
from tests.avro.random_manifests import random_manifest
from tests.handmade import HandmadeTable, data, long_bounds

EVERYTHING = EntryFilter(AllOf(), ())
PROJECTION = EntryProjection.of(
    ["location", "version_info", "record_count", "first_row_id"], {1000: "string"}, {1: "long"}
)
AT_LEAST_7 = AllOf((BoundTest("upper_bound", 1, "long", upward=True, inclusive=True, limit=7),))
OF_A = AllOf(
    tuple(BoundTest("partition", 1000, "string", upward=upward, inclusive=True, limit="a") for upward in (True, False))
)


@pytest.fixture
def manifest(tmp_path: Path) -> bytes:
    """Files of ten records with bounds (n, n), each third deleted, in partitions a and b; one counts no records."""
    entries = [
        data(
            f"f{n}",
            status=2 if n % 3 == 2 else 1,
            partition={"part": "ab"[n % 2]},
            record_count=10,
            **long_bounds(n, n),
        )
        for n in range(10)
    ]
    entries[1]["data_file"]["record_count"] = -1
    HandmadeTable(tmp_path).add(0, 1, *entries).write()
    return (tmp_path / "metadata" / "m0.avro").read_bytes()


def row_ids(batches: list[pa.RecordBatch]) -> dict[int, int | None]:
    """Return first row ids by ordinal."""
    return {row["ordinal"]: row["first_row_id"] for batch in batches for row in batch.to_pylist()}


@pytest.mark.parametrize("compiled", [False, True], ids=["fastavro", "compiled"])
@pytest.mark.parametrize(
    ("entry_filter", "ordinals"),
    [
        (None, [*range(10)]),
        (EVERYTHING, [0, 1, 3, 4, 6, 7, 9]),
        (EntryFilter(AT_LEAST_7, ()), [1, 7, 9]),
        (EntryFilter(AllOf(), ((0, OF_A), (1, AllOf()))), [0, 4, 6]),
        (EntryFilter(AllOf(), ((1, OF_A),)), [0, 1, 3, 4, 6, 7, 9]),
        (EntryFilter(AT_LEAST_7, ((0, OF_A),)), []),
    ],
    ids=["all", "live", "bounds", "partition", "another spec", "nothing"],
)
def test_entries_that_a_filter_keeps(
    entry_filter: EntryFilter | None, ordinals: list[int], compiled: bool, manifest: bytes
) -> None:
    all_ids = row_ids(decoded(manifest, PROJECTION, compiled))
    assert all_ids[9] == 1000 + 10 + (-1) + 10 * 4
    batches = decoded(manifest, replace(PROJECTION, entry_filter=entry_filter), compiled)
    assert row_ids(batches) == {ordinal: all_ids[ordinal] for ordinal in ordinals}
    assert all(len(batch) for batch in batches)


@pytest.mark.parametrize("compiled", [False, True], ids=["fastavro", "compiled"])
def test_bounds_of_another_type_decide_nothing(compiled: bool, manifest: bytes) -> None:
    of_dates = AllOf((replace(AT_LEAST_7.tests[0], type_name="date"),))
    projection = replace(PROJECTION, entry_filter=EntryFilter(of_dates, ()))
    assert len(row_ids(decoded(manifest, projection, compiled))) == 7


@pytest.mark.parametrize("compiled", [False, True], ids=["fastavro", "compiled"])
@pytest.mark.parametrize("seed", range(12))
def test_kept_entries_are_as_without_a_filter(seed: int, compiled: bool) -> None:
    """This holds for manifests of any schema, and for any columns."""
    manifest = random_manifest(Random(seed))
    names = {*manifest.projection.columns, "version_info"}
    full = EntryProjection.of(names, dict(manifest.projection.partition), dict(manifest.projection.stats))
    try:
        batches = decoded(manifest.data, full, compiled)
    except ValueError:
        pytest.skip("a manifest that is refused")
    table = pa.Table.from_batches(batches, full.schema)
    live = pa.compute.not_equal(pa.compute.struct_field(table["version_info"], "status"), 2)
    filtered = pa.Table.from_batches(
        decoded(manifest.data, replace(full, entry_filter=EVERYTHING), compiled), full.schema
    )
    assert values(filtered) == values(table.filter(live))


def values(table: pa.Table) -> str:
    """Return values as text, in which NaN equals NaN."""
    return repr([plain(pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])) for column in table.columns])


def test_records_in_arrow_are_taken_too() -> None:
    batch = pa.RecordBatch.from_pydict({"f0": pa.array([1, 2, 0], pa.int32()), "f103": [1, 2, 3], "f142": [None] * 3})
    projection = EntryProjection.of(["record_count", "first_row_id"])
    builder = EntryBuilder(PART, replace(projection, entry_filter=EVERYTHING))
    filtered = builder.batch(pa.array([5, 6, 7]), ArrowRecords(batch))
    assert filtered.select(["record_count", "first_row_id", "ordinal"]).to_pydict() == {
        "record_count": [1, 3],
        "first_row_id": [1000, 1001],
        "ordinal": [5, 7],
    }
