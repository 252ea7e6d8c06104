"""V4 tables built by hand from a description: leaves with entries, roots, deletion vectors, metadata.

    table = TreeTable(tmp_path)
    m1 = table.leaf("m1", data("d1"), data("d2"))
    table.snapshot(added=[m1])
    table.snapshot(existing=[m1], added=[table.mask(m1, {1}), data("d3")])
    table.load(spark).file_changes(1, 2)

Snapshots have the ids and sequence numbers 1, 2, 3, ... An entry keeps the version of the snapshot that first had it in
its root. Whatever `with_fields` says wins, so that a tree can be broken at any place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from sparkmeta import Table
from sparkmeta.manifests.v4.layout import DATA, DELETE, ROOT, tree_schema, write_manifest
from sparkmeta.manifests.v4.root import write_root
from sparkmeta.manifests.v4.write import leaf_row
from sparkmeta.session import SessionSource
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.metadata import Snapshot, SnapshotRef, serialize_table_metadata
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from sparkmeta.table import open_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

STATS = {1: "long", 2: "string"}
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))


@dataclass(frozen=True)
class Entry:
    """An entry of a root or a leaf without its version; `row` has the fields of `tree_schema`."""

    row: Mapping[str, Any]
    status: Status = Status.ADDED
    version: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def location(self) -> str:
        return str(self.row["location"])

    def existing(self, sequence: int | None = 1, snapshot_id: int | None = 1) -> Entry:
        """Return the entry of a leaf that carries it on: EXISTING, with the version of an earlier snapshot."""
        return self._of(Status.EXISTING, sequence, snapshot_id)

    def deleted(self, sequence: int | None = 1, snapshot_id: int | None = 1) -> Entry:
        return self._of(Status.DELETED, sequence, snapshot_id)

    def _of(self, status: Status, sequence: int | None, snapshot_id: int | None) -> Entry:
        version = {"snapshot_id": snapshot_id, "sequence_number": sequence, "file_sequence_number": sequence}
        return replace(self, status=status, version=version)

    def with_fields(self, **values: Any) -> Entry:
        """Return the entry with other values of fields, valid or not."""
        return replace(self, row={**self.row, **values})


def data(path: str, part: str | None = "a", records: int = 10, **values: Any) -> Entry:
    """Return an entry of a data file; `values` override its defaults."""
    row = {
        "content_type": int(ContentType.DATA),
        "location": path,
        "file_format": "parquet",
        "partition_spec_id": 0,
        "record_count": records,
        "file_size_in_bytes": 1000,
        "content_stats": stats(part),
    }
    return Entry(row | values)


def stats(part: str | None, ids: tuple[int, int] = (0, 9)) -> dict[str, Any]:
    """Return the content_stats of a file: the bounds of its partition and of its ids."""
    lower, upper = ids
    return {
        "1": {"lower_bound": lower, "upper_bound": upper, "value_count": 10, "null_value_count": 0},
        "2": {"lower_bound": part, "value_count": 10, "null_value_count": 10 if part is None else 0},
    }


def equality_deletes(path: str, part: str = "a", **values: Any) -> Entry:
    """Return an entry of an equality delete file of column 1."""
    return data(path, part, content_type=int(ContentType.EQUALITY_DELETES), equality_ids=[1], **values)


@dataclass
class TreeTable:
    """A table under construction in a local folder.

    Attributes:
        spec: BY_PART, or a spec without fields.
        others: further specs.
        schema: the table's schema.
        types: the types of the columns that have stats in leaves.
    """

    folder: Path
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
    properties: Mapping[str, str] = field(default_factory=dict)
    others: Sequence[PartitionSpec] = ()
    schema: Schema = SCHEMA
    types: Mapping[int, str] = field(default_factory=lambda: STATS)
    snapshots: list[Snapshot] = field(default_factory=list)
    _versions: dict[Any, dict[str, int | None]] = field(default_factory=dict)
    _row_ids: int = 0
    _files: int = 0

    @property
    def location(self) -> str:
        return f"file://{self.folder}"

    # -- entries ----------------------------------------------------------------------------------------------------

    def leaf(self, name: str, *entries: Entry, content: str | None = None, **values: Any) -> Entry:
        """Write a leaf of a content, by default that of its first entry, and return the root's entry for the leaf."""
        rows = [_row(entry, {"status": int(entry.status), **entry.version}) for entry in entries]
        table = pa.Table.from_pylist(rows, schema=tree_schema(self.types))
        is_data = entries[0].row["content_type"] == ContentType.DATA
        written = write_manifest(table, content or (DATA if is_data else DELETE))
        location = self._write(f"{name}.parquet", written)
        sources = [2] if self.spec.fields else []
        row = leaf_row(table, location, len(written), sources).to_pylist()[0]
        columns = {name: value for name, value in row.items() if name not in ("version_info", "first_row_id")}
        return Entry({**columns, **values})

    def mask(self, leaf: Entry, ordinals: Collection[int], *, puffin: bool = False, **values: Any) -> Entry:
        """Return the deletion vector of a leaf, inline or in a Puffin file."""
        blob = write_deletion_vector(PositionBitmap.of(list(ordinals)))
        row: dict[str, Any] = {
            "content_type": int(ContentType.MANIFEST_DELETION_VECTOR),
            "file_format": "puffin",
            "partition_spec_id": leaf.row["partition_spec_id"],
            "record_count": len(ordinals),
            "referenced_file": leaf.location,
            "deletion_vector": {"inline_content": blob},
        }
        if puffin:
            row |= self._puffin(blob, leaf.location, len(ordinals))
        return Entry({**row, **values})

    def masks(self, ordinals: Mapping[int, Collection[int]], leaves: Sequence[Entry]) -> list[Entry]:
        """Return the deletion vectors of leaves, by their indices, in one Puffin file."""
        entries = [self.mask(leaves[index], masked) for index, masked in ordinals.items()]
        return self._together(entries, [*ordinals.values()])

    def vector(self, of: str, positions: Collection[int], part: str = "a", **values: Any) -> Entry:
        """Return the deletion vector of a data file, in its own Puffin file."""
        blob = write_deletion_vector(PositionBitmap.of(list(positions)))
        row = {
            "content_type": int(ContentType.POSITION_DELETES),
            "file_format": "puffin",
            "partition_spec_id": 0,
            "record_count": len(positions),
            "referenced_file": of,
            "content_stats": stats(part),
            **self._puffin(blob, of, len(positions)),
        }
        return Entry({**row, **values})

    def vectors(self, positions: Mapping[str, Collection[int]], gap: int = 0) -> list[Entry]:
        """Return the deletion vectors of data files in one Puffin file, with `gap` bytes between them."""
        entries = [self.vector(of, deleted) for of, deleted in positions.items()]
        return self._together(entries, [*positions.values()], gap)

    def _together(self, entries: Sequence[Entry], positions: Sequence[Collection[int]], gap: int = 0) -> list[Entry]:
        content, regions = b"PFA1", []
        for deleted in positions:
            blob = write_deletion_vector(PositionBitmap.of(list(deleted)))
            regions.append({"offset": len(content), "size_in_bytes": len(blob)})
            content += blob + bytes(gap)
        self._files += 1
        file = {"location": self._write(f"dv{self._files}.puffin", content), "file_size_in_bytes": len(content)}
        return [
            entry.with_fields(**file, deletion_vector=region) for entry, region in zip(entries, regions, strict=True)
        ]

    def _puffin(self, blob: bytes, of: str, count: int) -> dict[str, Any]:
        file = write_puffin([deletion_vector_blob(blob, of, count)])
        self._files += 1
        location = self._write(f"dv{self._files}.puffin", file.data)
        region = {"offset": file.blobs[0].offset, "size_in_bytes": file.blobs[0].length}
        return {"location": location, "file_size_in_bytes": len(file.data), "deletion_vector": region}

    # -- snapshots --------------------------------------------------------------------------------------------------

    def snapshot(
        self,
        *,
        added: Iterable[Entry] = (),
        existing: Iterable[Entry] = (),
        deleted: Iterable[Entry] = (),
        parent: int | None = None,
        with_layout: bool = True,
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Write a root, add a snapshot of it and return the snapshot's id.

        Args:
            parent: the parent snapshot, by default the previous one; 0 for none.
            with_layout: whether the root names its layout, as the roots of our writer do.
        """
        number = len(self.snapshots) + 1
        rows = [self._root_row(entry, Status.EXISTING, number) for entry in existing]
        rows += [self._root_row(entry, Status.DELETED, number) for entry in deleted]
        rows += [self._root_row(entry, Status.ADDED, number) for entry in added]
        table = pa.Table.from_pylist(rows, schema=tree_schema(self.types))
        known = dict(properties or {})
        written = write_root(table, known) if with_layout else write_manifest(table, ROOT, known)
        document = {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": 1_700_000_000_000 + number,
            "root-manifest": self._write(f"root{number}.parquet", written),
            "summary": {"operation": "append"},
            "schema-id": 0,
        }
        before = number - 1 if parent is None else parent
        if before:
            document["parent-snapshot-id"] = before
        self.snapshots.append(Snapshot.model_validate(document))
        return number

    def _root_row(self, entry: Entry, status: Status, number: int) -> dict[str, Any]:
        vector = entry.row.get("deletion_vector") or {}
        names = (entry.row.get("location"), entry.row.get("referenced_file"))
        key = (*names, vector.get("offset"), vector.get("inline_content"))
        if key not in self._versions:
            self._versions[key] = self._first_version(entry, number)
        version = self._versions[key]
        version_info = {**version, **entry.version, "status": int(status)}
        if status is Status.DELETED:
            version_info["snapshot_id"] = number
        first_row_id = version_info.pop("first_row_id", None)
        return _row(entry, version_info, first_row_id)

    def _first_version(self, entry: Entry, number: int) -> dict[str, int | None]:
        version: dict[str, int | None] = dict.fromkeys(_VERSION, number)
        kind, counts = entry.row["content_type"], entry.row.get("manifest_stats") or {}
        if kind in (ContentType.DATA, ContentType.DATA_MANIFEST):
            rows = counts.get("added_rows_count", 0) + counts.get("existing_rows_count", 0)
            version["first_row_id"] = self._row_ids
            self._row_ids += entry.row["record_count"] if kind == ContentType.DATA else rows
        return version

    # -- the table --------------------------------------------------------------------------------------------------

    def load(self, spark: SparkSession | None, *, expired: Collection[int] = ()) -> Table:
        """The table with the snapshots so far, at the last one; `expired` are left out."""
        metadata = new_metadata(self.location, self.schema, self.spec, UNSORTED_SORT_ORDER, self.properties, 4)
        last = self.snapshots[-1].snapshot_id
        changed = {
            "partition_specs": [*metadata.partition_specs, *self.others],
            "snapshots": [snapshot for snapshot in self.snapshots if snapshot.snapshot_id not in expired],
            "current_snapshot_id": last,
            "refs": {"main": SnapshotRef.model_validate({"snapshot-id": last, "type": "branch"})},
            "last_sequence_number": last,
            "last_updated_ms": self.snapshots[-1].timestamp_ms,
            "next_row_id": self._row_ids,
        }
        document = serialize_table_metadata(metadata.model_copy(update=changed))
        self._write(f"v{last}.metadata.json", document.encode())
        return open_table(self.location, SessionSource(spark))

    def _write(self, name: str, content: bytes) -> str:
        path = self.folder / "metadata" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"file://{path}"


_VERSION = ("snapshot_id", "sequence_number", "file_sequence_number")


def _row(entry: Entry, version: Mapping[str, int | None], first_row_id: int | None = None) -> dict[str, Any]:
    return {"first_row_id": first_row_id, "version_info": version, **entry.row}
