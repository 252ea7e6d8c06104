"""The bytes that the delete of one file writes, to a table of a million files in 100 leaves with stats of 23 columns.

Iceberg's format version 3 rewrites a manifest, which has 8 MiB by default. A tree writes at most a hundredth. `python
-m tests.benchmarks --part deletes` measures both, on real tables.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, NestedField, StringType

from sparkmeta.commit.new_files import NewFiles
from sparkmeta.manifests.v4.layout import DATA, tree_schema, write_manifest
from sparkmeta.manifests.v4.write import leaf_row
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.storage.files import LocalFiles
from tests.commit.places import open_operations
from tests.commit.tree_committers import ArrowFrame, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

LEAVES, FILES = 100, 10_000
HUNDREDTH = (8 << 20) // 100
PART, INTEGERS = 10, (1, 2, 3, 10)
TYPES = {field_id: "int" if field_id in INTEGERS else "string" for field_id in range(1, 24)}
SCHEMA = Schema(
    *(
        NestedField(field_id, f"column_{field_id}", IntegerType() if field_id in INTEGERS else StringType())
        for field_id in TYPES
    )
)
SPEC = PartitionSpec(PartitionField(PART, 1000, IdentityTransform(), "part"))
LETTERS = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"


def stats(rng: random.Random, part: int) -> dict[str, Any]:
    """Return stats of 10,000 files with random texts and numbers as bounds, as in Iceberg's PlanningBenchmark."""
    content_stats = {}
    for field_id, kind in TYPES.items():
        lower: Any = "" if kind == "string" else -(1 << 31) + rng.randrange(500_000)
        upper: Any = "z" + "".join(rng.choices(LETTERS, k=15)) if kind == "string" else -lower - 1
        counts = {"value_count": int(rng.gauss(1e9, 3e3)), "null_value_count": int(rng.gauss(2e4, 140))}
        bounds = (part, part) if field_id == PART else (lower, upper)
        content_stats[str(field_id)] = {"lower_bound": bounds[0], "upper_bound": bounds[1], **counts}
    return content_stats


def leaves(table: str, rng: random.Random) -> Iterator[pa.Table]:
    """Yield the root's entries of the leaves. Their files have only the entry that the delete searches for."""
    for number in range(LEAVES):
        entry = {"content_type": 0, "location": f"file:///data/{number}", "file_format": "parquet",
                 "version_info": {"status": 1}, "partition_spec_id": 0, "record_count": 100_000,
                 "file_size_in_bytes": 10, "content_stats": {str(PART): {"lower_bound": 0}}}  # fmt: skip
        entries = pa.Table.from_pylist([entry], schema=tree_schema(TYPES))
        data = write_manifest(entries, DATA)
        location = (
            f"{table}/metadata/{rng.getrandbits(63)}-1-leaf-{rng.getrandbits(128):x}-{rng.getrandbits(128):x}.parquet"
        )
        LocalFiles().write_new(location, data)
        row = leaf_row(entries, location, len(data), [PART]).to_pylist()[0]
        counts = {"added_files_count": FILES, "added_rows_count": int(rng.gauss(1e9, 3e4))}
        row |= {"record_count": FILES, "content_stats": stats(rng, number // 3)}
        row["manifest_stats"] |= counts
        yield pa.Table.from_pylist([row], schema=tree_schema(TYPES))


def test_a_hundredth_of_a_manifest(spark: SparkSession, tmp_path: Path) -> None:
    swap, location = open_operations("", tmp_path), f"file://{tmp_path}/table"
    swap.commit(None, new_metadata(location, SCHEMA, SPEC, UNSORTED_SORT_ORDER, {}, 4))
    tx = opened(swap, spark).transaction()
    tx.update_snapshot()._step._progress.added = NewFiles(leaves=pa.concat_tables(leaves(location, random.Random(1))))
    table, folder = tx.commit(), tmp_path / "table" / "metadata"
    before = {path.name for path in folder.iterdir()}
    with table.transaction() as tx:
        tx.update_snapshot().delete(cast("Any", ArrowFrame(pa.table({"file_path": ["file:///data/7"]}))))
    new = {path.name: path.stat().st_size for path in folder.iterdir() if path.name not in before}
    assert len(new) == 2
    assert sum(new.values()) <= HUNDREDTH
