"""Entries of data files with their deletion vectors in one row, as leaves of the Iceberg project's layout have them.

Elsewhere, deletion vectors are entries of their own. Without Spark: tasks import this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.locations import resolved, spelled, table_with_locations, written_locations
from sparkmeta.expr.arrays import whole
from sparkmeta.spec.entry import Status
from sparkmeta.spec.locations import Locations

VECTOR: Final = "vector"
"""A column in addition to `tree_schema`: the deletion vector in the entry of a data file."""

VECTOR_TYPE: Final = pa.struct(
    [
        pa.field("status", pa.int32()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("location", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("size_in_bytes", pa.int64()),
        pa.field("record_count", pa.int64()),
    ]
)


def colocated_schema(schema: pa.Schema) -> pa.Schema:
    """Return a `tree_schema` with the column `vector` before the stats, which stay the last column."""
    return schema.insert(len(schema) - 1, pa.field(VECTOR, VECTOR_TYPE))


def with_vectors(files: pa.Table, vectors: pa.Table) -> pa.Table:
    """Return files with their deletion vectors in the column `vector`, null without one.

    Args:
        files: rows of `tree_schema`.
        vectors: deletion vectors, rows of `tree_schema`; at most one for each data file.
    """
    rows = pc.index_in(whole(files.column("location")), whole(vectors.column("referenced_file")))
    return with_vector_column(files, vector_values(vectors).take(rows))


def vector_values(vectors: pa.Table) -> pa.StructArray:
    """Return deletion vectors, rows of `tree_schema`, as values of the column `vector`."""
    info, blob = whole(vectors.column("version_info")), whole(vectors.column("deletion_vector"))
    children = [
        pc.struct_field(info, "status"),
        pc.struct_field(info, "snapshot_id"),
        whole(vectors.column("location")),
        pc.struct_field(blob, "offset"),
        pc.struct_field(blob, "size_in_bytes"),
        whole(vectors.column("record_count")),
    ]
    return pa.StructArray.from_arrays(children, fields=list(VECTOR_TYPE))


def with_vector_column(files: pa.Table, values: pa.Array | None = None) -> pa.Table:
    """Return rows of `tree_schema` with the column `vector`, by default null."""
    column = pa.nulls(len(files), VECTOR_TYPE) if values is None else values
    return files.add_column(len(files.schema) - 1, pa.field(VECTOR, VECTOR_TYPE), column)


def as_existing(vectors: pa.StructArray) -> pa.StructArray:
    """Return deletion vectors, values of the column `vector`, as EXISTING ones."""
    status = pa.repeat(pa.scalar(int(Status.EXISTING), pa.int32()), len(vectors))
    return pa.StructArray.from_arrays(
        [status, *vectors.flatten()[1:]], fields=list(VECTOR_TYPE), mask=vectors.is_null()
    )


def with_resolved_vectors(table: pa.Table, locations: Locations, file: str) -> pa.Table:
    """Return rows of a leaf with absolute locations, those in the column `vector` included.

    Args:
        table: the rows.
        locations: resolves the locations.
        file: the leaf's location, for errors.
    """
    return _with_vector_locations(
        table_with_locations(table, locations, file),
        lambda values: resolved(values, locations, file, "deletion_vector.location"),
    )


def written_vectors(table: pa.Table, locations: Locations) -> pa.Table:
    """Return rows with the column `vector` with locations as new files of format version 4 spell them."""
    return _with_vector_locations(written_locations(table, locations), lambda values: spelled(values, locations))


def _with_vector_locations(table: pa.Table, change: Callable[[pa.Array], pa.Array]) -> pa.Table:
    vectors = whole(table.column(VECTOR))
    if vectors.null_count == len(vectors):
        return table
    children = dict(zip(VECTOR_TYPE.names, vectors.flatten(), strict=True))
    children["location"] = change(children["location"])
    values = pa.StructArray.from_arrays([*children.values()], fields=list(VECTOR_TYPE), mask=vectors.is_null())
    index = table.column_names.index(VECTOR)
    return table.set_column(index, table.schema.field(index), values)
