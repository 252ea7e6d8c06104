"""Broken leaves and Puffin files of metadata trees: one clear error or what they held, and never anything else.

Pages of manifests have checksums, and so have deletion vectors. The footer of a Parquet file has none: of a broken one
these tests say that it ends in an error or in rows.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta.errors import SparkmetaError, from_spark
from sparkmeta.manifests.v4.layout import DATA, read_manifest, tree_schema, write_manifest
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.puffin import deletion_vector_blob, read_blob, read_footer, write_puffin
from tests.manifests.test_root import mutated
from tests.properties.test_fuzz_manifests import SECONDS_LIMIT
from tests.trees import BY_PART, TreeTable, data, stats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATS = {1: "long", 2: "string"}
LEAF = "file:///t/metadata/leaf.parquet"
PUFFIN = "file:///t/metadata/dv.puffin"
# Ordinals of two vectors, in arrays and in runs, beyond the first 65,536 as well.
ORDINALS = ({1, 5, 900}, {*range(300), 70_000, 70_002})


def leaf() -> bytes:
    rows = [
        {**data(f"x:d{number}", f"p{number % 5}", number, content_stats=stats("x", (number, number + 9))).row,
         "version_info": {"status": 1}}
        for number in range(300)
    ]  # fmt: skip
    return write_manifest(pa.Table.from_pylist(rows, schema=tree_schema(STATS)), DATA)


def footer_of(parquet: bytes) -> int:
    """Where its footer begins."""
    return len(parquet) - 8 - int.from_bytes(parquet[-8:-4], "little")


def flipped(content: bytes, rng: random.Random, start: int, end: int) -> bytes:
    """One bit of that range changed."""
    changed = bytearray(content)
    changed[rng.randrange(start, end)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def outcomes(rounds: int, broken: Callable[[], bytes], read: Callable[[bytes], Any], expected: Any) -> Counter[str]:
    """Count how often broken bytes are refused, read as the original, and read as something else."""
    counts: Counter[str] = Counter()
    for _ in range(rounds):
        content, started = broken(), time.perf_counter()
        try:
            counts["same" if read(content) == expected else "other"] += 1
        except SparkmetaError as error:
            assert "file:///t/metadata/" in str(error)  # noqa: PT017
            counts["refused"] += 1
        assert time.perf_counter() - started < SECONDS_LIMIT
    return counts


def test_bits_of_pages(soak: bool) -> None:
    content, rng = leaf(), random.Random("pages")
    counts = outcomes(
        30_000 if soak else 300,
        lambda: flipped(content, rng, 0, footer_of(content)),
        lambda broken: read_manifest(broken, STATS, LEAF)[0],
        read_manifest(content, STATS, LEAF)[0],
    )
    print(f"bits of a leaf's pages: {dict(counts)}")  # noqa: T201  the figures of `make soak`
    assert counts["other"] == 0
    assert counts["refused"] > counts["same"]


def test_mutated_leaves(soak: bool) -> None:
    content, rng = leaf(), random.Random("leaves")
    counts = outcomes(
        30_000 if soak else 300,
        lambda: mutated(content, rng),
        lambda broken: read_manifest(broken, STATS, LEAF)[0],
        read_manifest(content, STATS, LEAF)[0],
    )
    print(f"leaves: {dict(counts)}")  # noqa: T201
    assert counts["other"] < sum(counts.values()) / 100
    assert counts["refused"] > counts["same"] > 0


def puffin() -> bytes:
    blobs = (write_deletion_vector(PositionBitmap.of(sorted(ordinals))) for ordinals in ORDINALS)
    return write_puffin(
        deletion_vector_blob(blob, LEAF, len(ordinals)) for blob, ordinals in zip(blobs, ORDINALS, strict=True)
    ).data


def ordinals_of(blob: bytes, number: int) -> set[int]:
    bitmap = read_inline_vector(blob, PUFFIN, len(ORDINALS[number]))
    return {int(ordinal) for part in bitmap.positions() for ordinal in part}


def test_mutated_puffin_files(soak: bool) -> None:
    """Read blobs at the offsets in a root, and at the offsets in the file's own footer."""
    content, rng = puffin(), random.Random("puffin")
    places = [(blob.offset, blob.length) for blob in read_footer(content, PUFFIN).blobs]

    def by_root(broken: bytes) -> list[set[int]]:
        return [ordinals_of(broken[offset : offset + size], number) for number, (offset, size) in enumerate(places)]

    def by_footer(broken: bytes) -> list[set[int]]:
        footer = read_footer(broken, PUFFIN)
        return [ordinals_of(read_blob(broken, blob, PUFFIN), number) for number, blob in enumerate(footer.blobs[:2])]

    for read in (by_root, by_footer):
        counts = outcomes(20_000 if soak else 400, lambda: mutated(content, rng), read, [*ORDINALS])
        print(f"Puffin files {read.__name__}: {dict(counts)}")  # noqa: T201
        assert counts["other"] == 0
        assert min(counts["refused"], counts["same"]) > 0


def test_plans_of_broken_leaves(spark: SparkSession, tmp_path: Path, soak: bool) -> None:
    """With Spark's reader and a deletion vector: the right plan, or an error that names the file."""
    tree = TreeTable(tmp_path / "t", BY_PART)
    m1 = tree.leaf("m1", *(data(f"x:d{number}", f"p{number % 5}") for number in range(100)))
    mask = tree.mask(m1, {3, 70}, puffin=True)
    tree.snapshot(added=[m1, mask])
    table, counts = tree.load(spark), Counter[str]()
    files = {entry.location: Path(entry.location.removeprefix("file://")) for entry in (m1, mask)}
    whole = {location: path.read_bytes() for location, path in files.items()}
    expected = planned(table)
    assert len(expected) == 98
    for number in range(300 if soak else 4):
        location, rng = (m1.location, mask.location)[number % 2], random.Random(number)
        start, end = span_of(whole[location], locations=number % 4 == 0) if location == m1.location else (0, None)
        files[location].write_bytes(flipped(whole[location], rng, start, end or len(whole[location])))
        try:
            # A table that is loaded anew remembers no entries.
            again = sm.load_table(table.metadata_location, spark=spark)
            counts["same" if planned(again) == expected else "other"] += 1
        except (SparkmetaError, Py4JJavaError, PySparkException) as error:
            assert files[location].name in str(from_spark(error) or error)  # noqa: PT017
            counts["refused"] += 1
        files[location].write_bytes(whole[location])
    print(f"plans: {dict(counts)}")  # noqa: T201
    assert counts["other"] == 0
    assert counts["refused"] > 0


def span_of(leaf: bytes, *, locations: bool) -> tuple[int, int]:
    """The span of a leaf's pages, or only of the pages of locations, which every plan reads."""
    if not locations:
        return 0, footer_of(leaf)
    group = pq.ParquetFile(pa.BufferReader(leaf)).metadata.row_group(0)
    chunk = next(
        column for column in map(group.column, range(group.num_columns)) if column.path_in_schema == "location"
    )
    return chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size


def planned(table: Any) -> set[tuple[Any, ...]]:
    rows = table.scan("part is not null").plan_files()
    columns = ("file_path", "record_count", "file_size_in_bytes", "partition.part", "data_sequence_number")
    return {tuple(row) for row in rows.select(*columns).collect()}
