"""Compare entries that Iceberg's own reader shows (`v4_entries`) with what sparkmeta shows of the same manifests."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.types import PrimitiveType

from tests.peers.v4_entries import is_leaf
from tests.peers.values import comparable, java_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.peers.v4_entries import Entry

Row = dict[str, Any]

# The status that metadata tables show. They have no row for an entry before it was changed.
_STATUS = {"EXISTING": 0, "ADDED": 1, "DELETED": 2, "MODIFIED": 0}
_VECTOR_STATUS = {"EXISTING": 0, "ADDED": 1, "DELETED": 2, "MODIFIED": 1, "REPLACED": 2}
_CONTENT = {"DATA": 0, "EQUALITY_DELETES": 2}
# Column of metadata tables -> field of `content_stats`.
_COUNTS = {f"{name}s": name for name in ("value_count", "null_value_count", "nan_value_count")}
_BOUNDS = {f"{name}s": name for name in ("lower_bound", "upper_bound")}
_SAME_IN_ENTRY = ("snapshot_id", "sequence_number", "file_sequence_number")
_SAME_IN_FILE = ("record_count", "file_size_in_bytes", "sort_order_id", "split_offsets", "equality_ids")


def assert_same_entries(java_entries: Iterable[Entry], our_entries: pa.Table, metadata: Mapping[str, Any]) -> None:
    """Assert that rows of the metadata table `entries` show the entries that Java reads.

    In metadata tables, a deletion vector in an entry is a row of its own. The layout tells no sequence numbers and no
    statistics of it: they are not compared. Bounds of columns by whose values a file is partitioned are these values.
    Java knows the columns of the current schema only, and no files without rows.

    Args:
        java_entries: entries of data and delete files, such as `Tree.entries`.
        our_entries: the rows for the same manifests, such as `table.inspect.arrow.entries(snapshot_id)`.
        metadata: the JSON of the table's metadata.
    """
    table = _Table(metadata)
    expected = [row for entry in java_entries for row in table.rows_of(entry)]
    actual = [table.row(row) for row in _with_numbers(our_entries)]
    _assert_same([row for row in actual if row["record_count"] or row["content"] == 1], expected)


def assert_same_manifests(java_root: Iterable[Entry], our_manifests: pa.Table) -> None:
    """Assert that rows of the metadata table `manifests` show the leaves of a root that Java reads.

    In metadata tables, the deletion vectors in a leaf of data files are a manifest of their own, which is left out, and
    replaced entries count as deleted. The partition spec of a leaf that names none is not compared.
    """
    expected = {}
    for entry in filter(is_leaf, java_root):
        info, content = entry["manifest_info"], int(entry["content_type"] != "DATA_MANIFEST")
        expected[entry["location"], content] = {
            "length": entry["file_size_in_bytes"],
            "partition_spec_id": entry["spec_id"],
            "added_snapshot_id": entry["snapshot_id"],
            "added": info["added_files_count"],
            "existing": info["existing_files_count"],
            "deleted": info["deleted_files_count"] + info["replaced_files_count"],
        }
    actual = {}
    for row in our_manifests.to_pylist():
        key, kind = (row["path"], row["content"]), ("data", "delete")[row["content"]]
        if row["content"] == 1 and (row["path"], 0) in expected:
            continue
        counts = {name: row[f"{name}_{kind}_files_count"] for name in ("added", "existing", "deleted")}
        assert key not in actual, key
        actual[key] = {name: row[name] for name in ("length", "partition_spec_id", "added_snapshot_id")} | counts
        if key in expected and expected[key]["partition_spec_id"] is None:
            actual[key]["partition_spec_id"] = None
    _assert_same([row | {"path": key} for key, row in actual.items()],
                 [row | {"path": key} for key, row in expected.items()])  # fmt: skip


def assert_same_stats(java_entries: Iterable[Entry], our_rows: pa.Table, metadata: Mapping[str, Any]) -> None:
    """Assert that rows of a manifest in memory (`read_manifest`) have the statistics that Java reads, of the same rows.

    Compares what metadata tables don't show: whether bounds are tight, and sizes; of others, whether they are known.
    Unknown tightness is false in Java.
    """
    columns, rows = _Table(metadata).columns, our_rows.column("content_stats").to_pylist()
    for entry in java_entries:
        theirs, ours = (
            {int(column): _known(stats) for column, stats in (content or {}).items() if stats is not None}
            for content in (entry["content_stats"], rows[entry["position"]])
        )
        for column in columns:
            assert ours.get(column, {}) == theirs.get(column, {}), (entry["location"], column)


def _known(stats: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: True for name in (*_BOUNDS.values(), *_COUNTS.values()) if stats[name] is not None}
    return known | {name: stats[name] for name in ("tight_bounds", "avg_value_size_in_bytes") if stats[name]}


def partition_fields(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return partition field id -> name in the column `partition`, from the JSON of a table's metadata."""
    return {str(part["field-id"]): part["name"] for part in _parts(metadata)}


def _parts(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    specs = sorted(metadata["partition-specs"], key=lambda spec: int(spec["spec-id"]))
    return [part for spec in specs for part in spec["fields"]]


def decoded(digits: str | None, type_name: str) -> Any:
    """Return a value from its binary form, by pyiceberg. Dates and times are numbers, a UUID is text."""
    if digits is None:
        return None
    kind = java_type(type_name)
    assert isinstance(kind, PrimitiveType)
    value: Any = from_bytes(kind, bytes.fromhex(digits))
    return str(value if isinstance(value, UUID) else UUID(bytes=value)) if type_name == "uuid" else value


def _assert_same(actual: Iterable[Row], expected: Iterable[Row]) -> None:
    ours, theirs = (Counter(map(comparable, rows)) for rows in (actual, expected))
    different = [("ours", row) for row in ours - theirs] + [("Java's", row) for row in theirs - ours]
    lines = [f"only {whose}: {row}" for whose, row in sorted(different, key=lambda pair: repr(pair[1]))]
    assert not lines, "\n".join(lines[:10])


@dataclass(frozen=True)
class _Table:
    """How rows of metadata tables follow from entries of a table."""

    metadata: Mapping[str, Any]

    @cached_property
    def columns(self) -> frozenset[int]:
        """The ids of the current schema."""
        current = self.metadata["current-schema-id"]
        schema = next(schema for schema in self.metadata["schemas"] if schema["schema-id"] == current)
        return frozenset(_ids_in(schema))

    @cached_property
    def _names(self) -> dict[str, str]:
        return partition_fields(self.metadata)

    @cached_property
    def _sources(self) -> dict[str, str]:
        """Partition field id -> id of the column whose values are the partition's."""
        parts = (part for part in _parts(self.metadata) if part["transform"] == "identity")
        return {str(part["field-id"]): str(part["source-id"]) for part in parts}

    def rows_of(self, entry: Entry) -> Iterator[Row]:
        """Yield the rows for an entry: of its file, and of the deletion vector in it."""
        values = {number: part for number, part in (entry["partition"] or {}).items() if part["value"] is not None}
        partition = {self._names[number]: decoded(part["value"], part["type"]) for number, part in values.items()}
        shared = {"spec_id": entry["spec_id"] or 0, "partition": partition}
        status, vector = entry["status"], entry["deletion_vector"]
        if status in _STATUS:
            yield {
                **shared,
                **{name: entry[name] for name in (*_SAME_IN_ENTRY, *_SAME_IN_FILE, "key_metadata", "file_format")},
                **self._metrics(entry["content_stats"] or {}, values),
                "status": _STATUS[status],
                "content": _CONTENT[entry["content_type"]],
                "file_path": entry["location"],
                # Java gives row ids to delete files as well.
                "first_row_id": entry["first_row_id"] if entry["content_type"] == "DATA" else None,
            }
        if vector is not None:
            change = _VECTOR_STATUS[status]
            added_by = None if change == 2 else entry["dv_snapshot_id"]
            yield {
                **shared,
                "status": change,
                "snapshot_id": added_by or entry["snapshot_id"],
                "content": 1,
                "file_path": vector["location"],
                "file_format": "PUFFIN",
                "record_count": vector["cardinality"],
                "content_offset": vector["offset"],
                "content_size_in_bytes": vector["size_in_bytes"],
                "referenced_data_file": entry["location"],
            }

    def _metrics(self, stats: Mapping[str, Entry], values: Mapping[str, Entry]) -> Row:
        metrics = {
            name: {column: known[child] for column, known in stats.items() if known[child] is not None}
            for name, child in (_COUNTS | _BOUNDS).items()
        }
        for number in self._sources.keys() & values.keys():
            value, column = values[number], self._sources[number]
            is_nan = value["type"] in ("float", "double") and math.isnan(decoded(value["value"], value["type"]))
            for name in _BOUNDS:
                metrics[name] = {**metrics[name], column: value["value"]}
                if is_nan:
                    del metrics[name][column]
            if is_nan:
                counts = metrics["nan_value_counts"]
                metrics["nan_value_counts"] = {**counts, column: max(counts.get(column, 1), 1)}
        return metrics

    def row(self, row: Mapping[str, Any]) -> Row:
        """Return a row of the metadata table in the form of `rows_of`."""
        file = row["data_file"]
        shown = {
            "status": row["status"],
            "spec_id": file["spec_id"],
            "partition": {name: value for name, value in (file.get("partition") or {}).items() if value is not None},
            "content": file["content"],
            "file_path": file["file_path"],
            "file_format": file["file_format"].upper(),
        }
        if file["content"] == 1:
            names = ("record_count", "content_offset", "content_size_in_bytes", "referenced_data_file")
            return shown | {name: file[name] for name in names} | {"snapshot_id": row["snapshot_id"]}
        metrics = {
            name: {str(column): value for column, value in file[name] or () if column in self.columns}
            for name in (*_COUNTS, *_BOUNDS)
        }
        digits = {name: {column: value.hex() for column, value in metrics[name].items()} for name in _BOUNDS}
        return {
            **shown,
            **{name: row[name] for name in _SAME_IN_ENTRY},
            **{name: file[name] for name in (*_SAME_IN_FILE, "first_row_id")},
            **metrics,
            **digits,
            "key_metadata": None if file["key_metadata"] is None else file["key_metadata"].hex(),
        }


def _ids_in(node: Any) -> Iterator[int]:
    """Yield the ids of fields, elements, keys and values in a type's JSON."""
    if isinstance(node, list):
        for child in node:
            yield from _ids_in(child)
    elif isinstance(node, dict):
        yield from (node[name] for name in ("id", "element-id", "key-id", "value-id") if name in node)
        for name in ("fields", "type", "element", "key", "value"):
            yield from _ids_in(node.get(name))


def _with_numbers(entries: pa.Table) -> list[Row]:
    """Return rows of the metadata table `entries`, with numbers for dates and times in partitions."""
    rows: list[Row] = entries.drop_columns(["readable_metrics"]).to_pylist()
    file = entries.column("data_file")
    if file.type.get_field_index("partition") >= 0:
        partitions = pc.struct_field(file, ["partition"])
        for part in partitions.type:
            values = _numbers(pc.struct_field(partitions, [part.name]))
            for row, value in zip(rows, values, strict=True):
                row["data_file"]["partition"][part.name] = value
    return rows


def _numbers(values: pa.ChunkedArray) -> list[Any]:
    kind = values.type
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_time64(kind) or pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    return [*values.to_pylist()]
