"""Entries that a filter has no use for are left out where manifests are decoded, by every reader, after row ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from sparkmeta.entries.manifest_records import EntryBuilder, ManifestContext, ManifestPart, matching_rows
from sparkmeta.entries.projection import EntryFilter, EntryProjection
from sparkmeta.expr.bounds import AllOf, BoundTest
from sparkmeta.manifests.decoder import ArrowRecords
from sparkmeta.manifests.v4.colocated import with_vector_column
from sparkmeta.manifests.v4.decode import decode_tree_manifest
from sparkmeta.manifests.v4.iceberg_writer import write_iceberg_leaf
from sparkmeta.manifests.v4.layout import DATA as DATA_LEAF
from sparkmeta.manifests.v4.layout import TreeTypes, write_manifest
from tests.avro.decoders import PART, decoded, python_values
from tests.avro.random_manifests import random_manifest
from tests.handmade import HandmadeTable, data, long_bounds
from tests.manifests.entry_rows import DATA, STATS, bounds, entry_table, file_row, version

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
    return repr(
        [python_values(pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])) for column in table.columns]
    )


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


# Row ids begin at 1,000 in the leaf; stats 101 hold the partition value of field 1000.
LEAF_PART = ManifestPart(3, "leaf", 0, ManifestContext(7, 5, 1000))
LEAF_TYPES = TreeTypes(STATS, frozenset((1, 2, 5)), {0: ((1000, "int"),)}, {0: ((1000, 101),)})
LEAF_PROJECTION = EntryProjection.of(
    ["location", "version_info", "record_count", "first_row_id", "partition_spec_id", "split_offsets"],
    {1000: "int"},
    {1: "long"},
)


def leaf_entries(rng: Random, count: int) -> pa.Table:
    """Return entries with ascending bounds of column 1, and some row ids of their own."""
    rows = []
    for number in range(count):
        stats = {"101": bounds(number % 3, number % 3), "1": bounds(number, number + rng.randrange(3))}
        status = version(rng.choice([0, 1, 1, 1, 2]), None, None)
        ids = rng.choice([None, None, 50_000 + number])
        place = f"/t/data/{number}.parquet"
        rows.append(
            file_row(DATA, place, version_info=status, first_row_id=ids, content_stats=stats, split_offsets=[4])
        )
    return entry_table(*rows)


def decoded_leaf(data: bytes, projection: EntryProjection) -> pa.Table:
    batches = decode_tree_manifest(data, LEAF_PART, projection, LEAF_TYPES)
    return pa.Table.from_batches(batches, projection.schema).combine_chunks()


@pytest.mark.parametrize("layout", ["proposal", "iceberg"])
@pytest.mark.parametrize("seed", range(6))
def test_entries_of_leaves_that_a_filter_keeps(seed: int, layout: str) -> None:
    rng = Random(seed)
    entries = leaf_entries(rng, rng.randrange(1, 60))
    if layout == "proposal":
        data = write_manifest(entries, DATA_LEAF)
    else:
        data = write_iceberg_leaf(with_vector_column(entries), LEAF_TYPES)
    everything = decoded_leaf(data, LEAF_PROJECTION)
    assert len(everything) == len(entries)
    assert everything.column("first_row_id").null_count < len(entries)
    limit = rng.randrange(70)
    at_least = AllOf((replace(AT_LEAST_7.tests[0], limit=limit),))
    of_part = AllOf((BoundTest("partition", 1000, "int", upward=True, inclusive=True, limit=2),))
    for entry_filter in (
        EntryFilter(at_least, ()),
        EntryFilter(AllOf(), ((0, of_part),)),
        EntryFilter(at_least, ((0, of_part),)),
    ):
        projection = replace(LEAF_PROJECTION, entry_filter=entry_filter)
        expected = matching_rows(everything, projection)
        read = decoded_leaf(data, projection)
        assert read.to_pylist() == expected.to_pylist()
        without_ids = replace(projection, columns=tuple(name for name in projection.columns if name != "first_row_id"))
        assert decoded_leaf(data, without_ids) == expected.select(without_ids.schema.names)
