"""V4 tables written by hand, root by root, in encodings that readers must accept and our commits don't write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

import sparkmeta as sm
from sparkmeta.manifests.v4.layout import DATA, DELETE, tree_schema, write_manifest
from sparkmeta.manifests.v4.root import write_root
from sparkmeta.manifests.v4.write import leaf_row
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import serialize_table_metadata
from sparkmeta.spec.new_table import new_metadata
from tests.commit.tree_model import ADDED, Reading, Row, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATS = {1: "long"}
SCHEMA = tree_schema(STATS)
COLUMNS = Schema(NestedField(1, "id", LongType()))


def version(status: int, sequence: int | None) -> Row:
    """Return the version info of an entry, whose snapshot id is 100 above its sequence number; None inherits it."""
    snapshot_id = None if sequence is None else 100 + sequence
    numbers = {"sequence_number": sequence, "file_sequence_number": sequence}
    return {"status": int(status), "snapshot_id": snapshot_id, **numbers}


def data(name: str, status: int = ADDED, sequence: int | None = None, **values: Any) -> Row:
    """Return the entry of a data file of ten rows."""
    row = {
        "content_type": int(ContentType.DATA),
        "location": f"/d/{name}",
        "file_format": "parquet",
        "version_info": version(status, sequence),
        "partition_spec_id": 0,
        "record_count": 10,
        "file_size_in_bytes": 100,
        "deletion_vector": None,
        "referenced_file": None,
    }
    return row | values


def vector(name: str, of: str, status: int = ADDED, sequence: int | None = None) -> Row:
    """Return the entry of a data file's deletion vector, in a separate Puffin file."""
    stored = {"offset": 4, "size_in_bytes": 40, "inline_content": None}
    row = data(name, status, sequence, content_type=int(ContentType.POSITION_DELETES), file_format="puffin")
    return row | {"record_count": 1, "deletion_vector": stored, "referenced_file": f"/d/{of}"}


@dataclass
class HandmadeTree:
    """An unpartitioned table in a folder, with a list of root rows for each snapshot."""

    folder: Path
    store: Store = field(default_factory=Store)
    roots: list[list[Row]] = field(default_factory=list)
    leaves: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "metadata").mkdir(parents=True)

    def path(self, name: str) -> str:
        return f"{self.folder}/metadata/{name}"

    def leaf(self, name: str, entries: Iterable[Row], affinity: str | None = None) -> None:
        """Write a leaf."""
        table = pa.Table.from_pylist(list(entries), schema=SCHEMA)
        content = DATA if table.column("content_type")[0].as_py() == ContentType.DATA else DELETE
        location = self.path(f"{name}.parquet")
        written = write_manifest(table, content)
        Path(location).write_bytes(written)
        self.store.leaves[location] = table
        row: Row = leaf_row(table, location, len(written), ()).to_pylist()[0]
        owner = None if affinity is None else self.path(f"{affinity}.parquet")
        self.leaves[name] = row | {"referenced_file": owner, "first_row_id": None}

    def of(self, name: str, status: int, sequence: int) -> Row:
        """Return the root's entry for a leaf."""
        return self.leaves[name] | {"version_info": version(status, sequence)}

    def mask(self, name: str, positions: Iterable[int], status: int, sequence: int) -> Row:
        """Return the root's entry for a leaf's deletion vector."""
        bitmap = PositionBitmap.of(sorted(positions))
        blob = write_deletion_vector(bitmap)
        stored = {"offset": None, "size_in_bytes": None, "inline_content": blob}
        row = data(name, status, sequence, content_type=int(ContentType.MANIFEST_DELETION_VECTOR))
        more = {"location": None, "file_format": "puffin", "file_size_in_bytes": None, "deletion_vector": stored}
        return row | more | {"record_count": bitmap.cardinality, "referenced_file": self.path(f"{name}.parquet")}

    def snapshot(self, *rows: Row) -> Reading:
        """Add a snapshot with these rows in its root. The first snapshot has the sequence number 1."""
        table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
        self.roots.append(table.to_pylist())
        Path(self.path(f"root-{len(self.roots)}.parquet")).write_bytes(write_root(table))
        return self.reading(len(self.roots))

    def reading(self, number: int, *, lenient: bool = False) -> Reading:
        return Reading(self.roots[number - 1], self.store, lenient)

    def load(self, spark: SparkSession) -> sm.Table:
        """Load the table at its newest snapshot. Snapshot ids are 100 above the sequence numbers."""
        empty = new_metadata(str(self.folder), COLUMNS, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, {}, 4)
        document = json.loads(serialize_table_metadata(empty))
        last = len(self.roots)
        document |= {"last-sequence-number": last, "current-snapshot-id": 100 + last, "next-row-id": 1000}
        document["snapshots"] = [
            snapshot_json(number, self.path(f"root-{number}.parquet")) for number in range(1, last + 1)
        ]
        document["refs"] = {"main": {"snapshot-id": 100 + last, "type": "branch"}}
        Path(self.path("v1.metadata.json")).write_text(json.dumps(document))
        return sm.load_table(str(self.folder), spark=spark)


def snapshot_json(number: int, root: str) -> Mapping[str, Any]:
    parent = {"parent-snapshot-id": 99 + number} if number > 1 else {}
    return {
        "snapshot-id": 100 + number,
        "sequence-number": number,
        "timestamp-ms": 1_700_000_000_000 + number,
        "root-manifest": root,
        "summary": {"operation": "append"},
        "schema-id": 0,
        "first-row-id": 0,
        "added-rows": 0,
        **parent,
    }
