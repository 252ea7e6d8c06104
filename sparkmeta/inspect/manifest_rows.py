"""Convert rows of manifest lists to the metadata tables `manifests` and `all_manifests`.

Light: Spark tasks import this to read the lists of all snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, decode_manifest_list, refuse_encrypted_parquet
from sparkmeta.entries.live import FILE_COUNTS
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.partition_text import human_strings
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.layout import TreeTypes
from sparkmeta.manifests.v4.tree_manifests import listed_root
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.encryption import KEY_METADATA, decrypted
from sparkmeta.storage.executors import ExecutorReader

# Spec id -> (transform, Iceberg type name of the result) of its fields, in the spec's order.
SpecTransforms = Mapping[int, Sequence[tuple[str, str]]]
# Converts a snapshot's manifest list: (rows of MANIFEST_FILE_SCHEMA, snapshot id, the list's location) -> rows.
ListShape = Callable[[pa.RecordBatch, int, str], pa.RecordBatch]

_DATA = 0
_COUNTS = ("added", "existing", "deleted")


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


LIST_SCHEMA = pa.schema(
    [
        pa.field("reference_snapshot_id", pa.int64()),
        pa.field("location", pa.string()),
        pa.field("root_sequence_number", pa.int64()),  # of a V4 root; null: a manifest list
        pa.field(KEY_METADATA, pa.binary()),
    ]
)

REACHABLE = pa.schema(
    [
        *(
            MANIFEST_FILE_SCHEMA.field(name)
            for name in (
                "manifest_path",
                "manifest_length",
                "partition_spec_id",
                "content",
                "sequence_number",
                "added_snapshot_id",
                "first_row_id",
                KEY_METADATA,
                *FILE_COUNTS,
            )
        ),
        _required("file_format", pa.string()),
    ]
)


# Iceberg declares contains_nan of all_manifests as required, but shows null if a list lacks it.
_SUMMARIES = pa.list_(
    _required(
        "element",
        pa.struct(
            [
                _required("contains_null", pa.bool_()),
                pa.field("contains_nan", pa.bool_()),
                pa.field("lower_bound", pa.string()),
                pa.field("upper_bound", pa.string()),
            ]
        ),
    )
)
_DELETE_COUNTS = [_required(f"{status}_delete_files_count", pa.int32()) for status in _COUNTS]

MANIFESTS = pa.schema(
    [
        _required("content", pa.int32()),
        _required("path", pa.string()),
        _required("length", pa.int64()),
        _required("partition_spec_id", pa.int32()),
        _required("added_snapshot_id", pa.int64()),
        *(_required(f"{status}_data_files_count", pa.int32()) for status in _COUNTS),
        *_DELETE_COUNTS,
        _required("partition_summaries", _SUMMARIES),
    ]
)
ALL_MANIFESTS = pa.schema(
    [
        _required("content", pa.int32()),
        _required("path", pa.string()),
        _required("length", pa.int64()),
        pa.field("partition_spec_id", pa.int32()),
        pa.field("added_snapshot_id", pa.int64()),
        *(pa.field(f"{status}_data_files_count", pa.int32()) for status in _COUNTS),
        *_DELETE_COUNTS,
        pa.field("partition_summaries", _SUMMARIES),
        _required("reference_snapshot_id", pa.int64()),
        pa.field("key_metadata", pa.binary()),
    ]
)


def manifest_rows(manifests: pa.RecordBatch, specs: SpecTransforms, location: str) -> pa.RecordBatch:
    """Return rows of `MANIFEST_FILE_SCHEMA` as rows of `manifests`. Values that the list lacks are null.

    Raises:
        CorruptFileError: the table does not have a manifest's spec, or summaries don't fit the spec.
    """
    is_data = pc.equal(manifests.column("content"), _DATA)
    counts = {status: manifests.column(f"{status}_files_count") for status in _COUNTS}
    none = pa.scalar(0, pa.int32())
    columns = [
        manifests.column("content"),
        manifests.column("manifest_path"),
        manifests.column("manifest_length"),
        manifests.column("partition_spec_id"),
        manifests.column("added_snapshot_id"),
        *(pc.if_else(is_data, count, none) for count in counts.values()),
        *(pc.if_else(is_data, none, count) for count in counts.values()),
        _summaries(manifests, specs, location),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MANIFESTS)


def all_manifests_rows(
    specs: SpecTransforms, manifests: pa.RecordBatch, snapshot_id: int, location: str
) -> pa.RecordBatch:
    """Return rows of one snapshot's list as rows of `all_manifests`.

    Raises:
        CorruptFileError: see `manifest_rows`; also if the list lacks a required value.
    """
    manifests = manifests.filter(pc.not_equal(manifests.column("manifest_path"), location))  # a root is not a leaf
    rows = manifest_rows(manifests, specs, location)
    for field in _DELETE_COUNTS:
        if rows.column(field.name).null_count:
            raise CorruptFileError(location, field.name, None, "unknown for a delete manifest")
    snapshot_ids = pa.repeat(pa.scalar(snapshot_id, pa.int64()), len(rows))
    return pa.RecordBatch.from_arrays(
        [*rows.columns, snapshot_ids, manifests.column("key_metadata")], schema=ALL_MANIFESTS
    )


def reachable_rows(specs: SpecTransforms, manifests: pa.RecordBatch, _: int, location: str) -> pa.RecordBatch:
    """Return the manifests of one snapshot's list as `REACHABLE`.

    In the layout of the Iceberg project, the deletion vectors in a data manifest form a delete manifest of the format
    `VECTORS` at the same path. Any root with deletes may contain such vectors besides other deletes.
    """
    refuse_encrypted_parquet(manifests, location)
    _spec_rows(manifests, specs, location)
    paths, is_data = manifests.column("manifest_path"), pc.equal(manifests.column("content"), _DATA)
    is_root = pc.equal(paths, location)
    has_vectors = pc.and_not(pc.is_in(paths, paths.filter(is_data)), pc.or_(is_data, is_root))
    is_parquet = pc.ends_with(pc.utf8_lower(paths), ".parquet")
    file_format = pc.case_when(pc.make_struct(has_vectors, is_parquet), VECTORS, "PARQUET", "AVRO")
    of_root = manifests.filter(pc.and_not(is_root, is_data))
    parts = [(manifests, file_format), (of_root, pa.repeat(VECTORS, len(of_root)))]
    rows = [part.append_column("file_format", formats).select(REACHABLE.names) for part, formats in parts]
    reachable = pa.Table.from_batches(rows).cast(REACHABLE)
    return pa.RecordBatch.from_arrays([whole(column) for column in reachable.columns], schema=REACHABLE)


@dataclass(frozen=True)
class ListRows:
    """Reads the manifest lists that rows of `LIST_SCHEMA` name, and converts them. Picklable.

    Attributes:
        shape: converts the rows of a list.
        trees: the types of V4 roots; None if there are none.
        locations: resolves the locations in lists and roots.
    """

    shape: ListShape
    trees: TreeTypes | None
    locations: Locations

    def read(self, reader: ExecutorReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of lists that the task opens."""
        for batch in batches:
            for row in batch.to_pylist():
                yield self._rows(row, reader.read(row["location"]))

    def read_contents(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of lists that have their bytes as `content`."""
        for batch in batches:
            for row in batch.to_pylist():
                if row["location"] is None:
                    raise CorruptFileError(row["path"], "path", row["path"], "Spark read a file that no snapshot names")
                yield self._rows(row, row["content"])

    def _rows(self, row: dict[str, Any], data: bytes) -> pa.RecordBatch:
        snapshot_id, location, sequence_number, key = (row[name] for name in LIST_SCHEMA.names)
        if sequence_number is None or self.trees is None:
            listed = decode_manifest_list(decrypted(data, location, key), location, self.locations)
        else:
            listed = listed_root(data, location, (snapshot_id, sequence_number), self.trees, self.locations)
        return self.shape(listed, snapshot_id, location)


def _spec_rows(manifests: pa.RecordBatch, specs: SpecTransforms, location: str) -> dict[int, np.ndarray[Any, Any]]:
    spec_ids = manifests.column("partition_spec_id").to_numpy()
    rows = {int(spec_id): np.flatnonzero(spec_ids == spec_id) for spec_id in np.unique(spec_ids)}
    for spec_id in rows:
        if spec_id not in specs:
            raise CorruptFileError(location, "partition_spec_id", spec_id, "the table has no such partition spec")
    return rows


def _summaries(manifests: pa.RecordBatch, specs: SpecTransforms, location: str) -> pa.ListArray:
    partitions = manifests.column("partitions")
    values = partitions.values
    shown = {name: _Texts(values.field(name)) for name in ("lower_bound", "upper_bound")}
    for indices, transform, type_name in _field_indices(manifests, specs, location):
        for texts in shown.values():
            texts.show(indices, transform, type_name)
    children = [
        values.field("contains_null"),
        values.field("contains_nan"),
        *(summary.array() for summary in shown.values()),
    ]
    structs = pa.StructArray.from_arrays(children, fields=list(_SUMMARIES.value_type))
    return pa.ListArray.from_arrays(partitions.offsets, structs, type=_SUMMARIES, mask=partitions.is_null())


def _field_indices(
    manifests: pa.RecordBatch, specs: SpecTransforms, location: str
) -> Iterator[tuple[np.ndarray[Any, Any], str, str]]:
    """Yield the indices of a partition field's summaries, its transform and its result type, for each field."""
    partitions = manifests.column("partitions")
    offsets, present = partitions.offsets.to_numpy(), partitions.is_valid().to_numpy(False)
    for spec_id, rows in _spec_rows(manifests, specs, location).items():
        chosen = rows[present[rows]]
        _check_sizes(np.diff(offsets)[chosen], len(specs[spec_id]), spec_id, location)
        for position, (transform, type_name) in enumerate(specs[spec_id]):
            yield offsets[chosen] + position, transform, type_name


class _Texts:
    """Formats bounds as text, field by field."""

    def __init__(self, bounds: pa.BinaryArray) -> None:
        self._bounds = bounds
        self._texts: list[str | None] = [None] * len(bounds)

    def show(self, indices: np.ndarray[Any, Any], transform: str, type_name: str) -> None:
        texts = human_strings(self._bounds.take(pa.array(indices)), transform, type_name)
        for index, text in zip(indices.tolist(), texts.to_pylist(), strict=True):
            self._texts[index] = text

    def array(self) -> pa.StringArray:
        return pa.array(self._texts, pa.string())


def _check_sizes(sizes: np.ndarray[Any, Any], expected: int, spec_id: int, location: str) -> None:
    wrong = sizes[sizes != expected]
    if len(wrong):
        problem = f"partition spec {spec_id} has {expected} fields"
        raise CorruptFileError(location, "partitions", f"{wrong[0]} field summaries", problem)
