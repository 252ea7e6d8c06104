"""Find the files that snapshots reach, and delete files, in Spark tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import Data, Windows, manifest_data
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, SUMMARIES, decode_manifest_list, manifests_of_list
from sparkmeta.entries.live import is_live, may_be_live
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.entries.relation import collected, grouped, where
from sparkmeta.errors import CorruptFileError, NotFoundError, translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.bounds import ANY
from sparkmeta.manifests.decoder import decode
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, inlined, manifest_dvs, unmasked_entries
from sparkmeta.manifests.placement import mapped_files
from sparkmeta.manifests.v4.decode import SoughtValues
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.layout import TreeTypes, is_tree_manifest, open_manifest
from sparkmeta.manifests.v4.root import FILES, LEAVES, MANIFEST_DVS, Root, in_files, read_root, version
from sparkmeta.progress import progress
from sparkmeta.session import read_tasks
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.content import read_ahead
from sparkmeta.storage.encryption import KEY_METADATA, decrypted
from sparkmeta.storage.executors import ExecutorReader

if TYPE_CHECKING:
    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.storage.executors import ExecutorWriter


# -- Retained manifests that may list an expired file -----------------------------------------------------------------
# Partition summaries tell which retained manifests are likely to list a file of an expired manifest. After a rewrite of
# manifests, the new manifests list all files of the expired ones, and no other manifest has to be read:
#
# - A data file is in no delete manifest, and no delete file is in a data manifest. Without an expired manifest of a
#   content that has live entries, no manifest of that content is read.
# - Entries of one data file and spec usually name the same partition tuple. So two data manifests of one spec share no
#   file if their summaries exclude each other in some field. This does not hold after the repair of a wrong tuple: the
#   manifests left out are read before a data file is deleted.
#
# Nothing else is concluded:
#
# - A file may be added again under another spec. Therefore, retained manifests of other specs are always read, and all
#   retained manifests are read if expired data manifests have several specs.
# - Later snapshots may add a file again, such as cherry-picks and reverts. Sequence numbers and snapshot ids exclude
#   nothing.
# - Deletion vectors of several partitions share a Puffin file. Delete manifests are compared by content only.
# - Floats, UUIDs and unknown transforms have no order that all writers share.


_UNORDERED = ("float", "double", "uuid", ANY)


@dataclass(frozen=True)
class SharedFiles:
    """Chooses among the data manifests of one partition spec. Picklable.

    Attributes:
        spec_fields: spec id -> (partition field id, type name) of its fields, in the spec's order.
    """

    spec_fields: Mapping[int, Sequence[tuple[int, str]]]

    def chosen(self, manifests: pa.Table) -> pa.Table:
        """Return the expired manifests, and the retained manifests that may list one of their files.

        Args:
            manifests: rows of `LISTED` of one spec.
        """
        retained = np.asarray(manifests.column("retained").to_numpy(zero_copy_only=False), bool)
        spec_id = manifests.column("spec_id")[0].as_py()
        if retained.all() or not retained.any() or not self.spec_fields.get(spec_id):
            return manifests
        try:
            summaries = self._summaries(manifests)
        except CorruptFileError:  # they exclude nothing
            return manifests
        fields = [
            _overlaps(summaries.field(str(field_id)), retained)
            for field_id, kind in self.spec_fields[spec_id]
            if kind not in _UNORDERED
        ]
        # Expired manifests overlap with themselves.
        return manifests.filter(pa.array(reduce(np.logical_and, fields, np.ones(len(manifests), bool))))

    def _summaries(self, manifests: pa.Table) -> pa.StructArray:
        values = {
            "manifest_path": manifests.column("path"),
            "partition_spec_id": manifests.column("spec_id"),
            "partitions": manifests.column("partitions"),
            "content": pa.repeat(pa.scalar(0, pa.int32()), len(manifests)),
        }
        columns = [values.get(field.name, pa.nulls(len(manifests), field.type)) for field in MANIFEST_FILE_SCHEMA]
        listed = pa.Table.from_arrays(columns, schema=MANIFEST_FILE_SCHEMA).combine_chunks()
        return manifests_of_list(listed, self.spec_fields, "partition summaries").column(SUMMARIES).combine_chunks()


def _overlaps(summaries: pa.StructArray, retained: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which manifests may share a value of a partition field with an expired manifest."""
    all_rows = np.ones(len(summaries), bool)
    lower, upper = (_codes(summaries, name) for name in ("lower_bound", "upper_bound"))
    unknown = np.asarray(summaries.is_null().to_numpy(zero_copy_only=False), bool)
    nulls = pc.fill_null(summaries.field("contains_null"), True).to_numpy(zero_copy_only=False) | unknown
    has_bounds = (lower >= 0) & (upper >= 0)
    only_nulls = ~unknown & (lower < 0) & (upper < 0) & nulls
    is_contradictory = ~has_bounds & ~only_nulls | (has_bounds & (lower > upper))
    if is_contradictory[~retained].any():
        return all_rows
    expired = has_bounds & ~retained
    starting = np.searchsorted(np.sort(lower[expired]), upper, "right")
    ended = np.searchsorted(np.sort(upper[expired]), lower, "left")
    values_in_common = has_bounds & (starting > ended)
    nulls_in_common = nulls & nulls[~retained].any()
    return np.asarray(values_in_common | nulls_in_common | is_contradictory, bool)


def _codes(summaries: pa.StructArray, name: str) -> np.ndarray[Any, Any]:
    """Return the bounds as numbers in the same order, -1 for null. Lower and upper bounds share the numbering."""
    bounds = pa.concat_arrays([summaries.field("lower_bound"), summaries.field("upper_bound")])
    bounds = bounds.cast(pa.int8()) if pa.types.is_boolean(bounds.type) else bounds
    values = bounds.drop_null().unique()
    ordered = values.take(pc.sort_indices(values))
    codes = pc.fill_null(pc.index_in(bounds, ordered), -1).to_numpy(zero_copy_only=False)
    half = len(summaries)
    return np.asarray(codes[:half] if name == "lower_bound" else codes[half:], np.int64)


# -- Read the files that snapshots reach ------------------------------------------------------------------------------
# Manifest lists list manifests, and manifests list content files. Tasks import this module, so it imports little.


LIST, ROOT, MANIFEST = "manifest list", "root", "manifest"
MANIFEST_DV = "manifest deletion vectors"
CONTENTS = {
    ContentType.DATA: "data file",
    ContentType.POSITION_DELETES: "position delete file",
    ContentType.EQUALITY_DELETES: "equality delete file",
}
MISSING = "missing"
"""The content of a row for a missing file that only expired snapshots need."""

# A snapshot, and its manifest list or root.
SNAPSHOTS = pa.schema(
    [
        pa.field("snapshot_id", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("location", pa.string()),
        pa.field("retained", pa.bool_()),
        pa.field(KEY_METADATA, pa.binary()),
    ]
)

# A manifest list, a root, or a manifest with the deletion vector that masks it in a snapshot.
LISTED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("path", pa.string()),
        pa.field("retained", pa.bool_()),
        pa.field("first_listed", pa.int64()),  # the sequence number of the first snapshot that lists it
        pa.field("length", pa.int64()),
        pa.field("spec_id", pa.int32()),
        pa.field("sequence_number", pa.int64()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("dv", pa.struct(list(DV_SCHEMA))),
        pa.field("kind", pa.int32()),  # 0 data, 1 deletes; null for leaves of trees
        pa.field("has_live", pa.bool_()),  # null if unknown
        pa.field("removed", pa.bool_()),  # whether a root has it as DELETED, so that only `file_changes` reads it
        pa.field("partitions", MANIFEST_FILE_SCHEMA.field("partitions").type),
        pa.field(KEY_METADATA, pa.binary()),
    ]
)

REACHED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("path", pa.string()),
        pa.field("length", pa.int64()),
        pa.field("retained", pa.bool_()),
    ]
)

PATHS = pa.schema([REACHED.field("path")])
# The columns of `REACHED` -> the fields of entries that they come from.
_SOURCES = {"content": "content_type", "path": "location", "length": "file_size_in_bytes"}
_MAGIC = b"PAR1"
# The assumed length of a manifest list or root, since metadata does not record it.
_LIST_BYTES = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class ListReader:
    """Reads the lists and roots of snapshots. Picklable.

    Attributes:
        trees: the types of the table's V4 manifests; None if it has none.
        locations: resolves the locations in lists and roots.
    """

    reader: ExecutorReader
    trees: TreeTypes | None
    locations: Locations

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the lists of snapshots, rows of `SNAPSHOTS`, and the manifests in them, as `LISTED`.

        Raises:
            NotFoundError: the list of a retained snapshot is gone.
        """
        for batch in batches:
            for row, data in read_ahead(batch.to_pylist(), self._read, lambda _: _LIST_BYTES):
                if data is None:
                    yield listed(MISSING, {"path": [row["location"]]}, retained=False)
                    continue
                sequence = pa.scalar(row["sequence_number"], pa.int64())
                index = LISTED.get_field_index("first_listed")
                for rows in self._rows(data, row):
                    yield rows.set_column(index, LISTED.field(index), pa.repeat(sequence, len(rows)))

    def _read(self, row: Mapping[str, Any]) -> bytes | None:
        return _unless_missing(row, lambda: self.reader.read(row["location"]))

    def _rows(self, data: bytes, row: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        location, retained = row["location"], row["retained"]
        file = {"path": [location], "length": [len(data)]}
        if self.trees is None or not data.startswith(_MAGIC):
            yield listed(LIST, file, retained=retained)
            manifests = decode_manifest_list(decrypted(data, location, row[KEY_METADATA]), location, self.locations)
            yield listed_manifests(manifests, retained=retained)
            return
        stamp = (row["snapshot_id"], row["sequence_number"] or 0, None)
        root = read_root(data, self.trees, location, stamp, self.locations)
        columns = file | {"sequence_number": [row["sequence_number"]], "spec_id": [_spec_id(root)]}
        yield listed(ROOT, columns, retained=retained)
        yield listed(MANIFEST, _leaves(root), retained=retained)
        for content, kinds in ((MANIFEST, LEAVES), (MANIFEST_DV, MANIFEST_DVS)):
            yield listed(content, _removed(root, kinds), retained=retained, removed=True)


def listed_manifests(manifests: pa.RecordBatch, *, retained: bool) -> pa.RecordBatch:
    """Return rows of `MANIFEST_FILE_SCHEMA` as `LISTED`."""
    columns = {
        "path": "manifest_path",
        "length": "manifest_length",
        "spec_id": "partition_spec_id",
        "sequence_number": "sequence_number",
        "snapshot_id": "added_snapshot_id",
        "kind": "content",
        "partitions": "partitions",
        KEY_METADATA: KEY_METADATA,
    }
    values = {name: manifests.column(source) for name, source in columns.items()}
    return listed(MANIFEST, values | {"has_live": may_be_live(manifests)}, retained=retained)


def listed(content: str, columns: Mapping[str, Any], *, retained: bool, removed: bool = False) -> pa.RecordBatch:
    """Return columns as `LISTED`. Missing columns are null."""
    size = len(columns["path"])
    constants = {"content": content, "retained": retained, "removed": removed}
    table = pa.table(dict(columns) | {name: pa.repeat(value, size) for name, value in constants.items()})
    arrays = [
        table[field.name].combine_chunks().cast(field.type) if field.name in table.schema.names
        else pa.nulls(size, field.type)
        for field in LISTED
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=LISTED)


def _spec_id(root: Root) -> int | None:
    """Return a partition spec of a root's own files."""
    files = root.of(FILES, live=False)
    return files.column("partition_spec_id")[0].as_py() if len(files) else None


def _leaves(root: Root) -> dict[str, pa.ChunkedArray]:
    leaves, dvs = in_files(root.leaves), manifest_dvs(root)
    # A deletion vector must compare equal in all roots, so its small id is replaced by a constant.
    dvs = dvs.set_column(0, DV_SCHEMA.field(0), pa.repeat(pa.scalar(0, pa.int32()), len(dvs)))
    dv_rows = pc.index_in(leaves.column("location"), dvs.column("referenced_file").combine_chunks())
    return {
        "path": leaves.column("location"),
        "length": leaves.column("file_size_in_bytes"),
        "spec_id": leaves.column("partition_spec_id"),
        "sequence_number": version(leaves, "sequence_number"),
        "snapshot_id": version(leaves, "snapshot_id"),
        "dv": dvs.to_struct_array().combine_chunks().take(dv_rows),
    }


def _removed(root: Root, kinds: Collection[ContentType]) -> dict[str, pa.ChunkedArray]:
    """Return the files of DELETED entries. Changes of the root's snapshot are computed from them."""
    entries = root.of(kinds, live=False)
    has_file = pc.greater(pc.utf8_length(entries.column("location")), 0)
    removed_entries = entries.filter(pc.and_not(pc.fill_null(has_file, False), is_live(entries)))
    return {"path": removed_entries.column("location"), "length": removed_entries.column("file_size_in_bytes")}


@dataclass(frozen=True)
class ContentReader:
    """Reads the live files of manifests. Picklable.

    Attributes:
        locations: resolves the locations in manifests.
        schema: the columns of `REACHED` to return.
        sought: the sorted paths of the files to return, possibly among others; None for all files.
    """

    reader: ExecutorReader
    trees: TreeTypes | None
    locations: Locations
    schema: pa.Schema
    sought: Sequence[str] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the live files of manifests, rows of `LISTED`, as `schema`.

        Raises:
            NotFoundError: a manifest of a retained snapshot is gone.
        """
        for batch in batches:
            for row, data in read_ahead(batch.to_pylist(), self._read, lambda row: row["length"] or 0):
                path = row["path"]
                if data is not None:
                    manifest, dv = data
                    if row["dv"] is None or dv is not None:
                        for entries in self._entries(manifest, row, dv):
                            yield self._live_files(entries, row["retained"])
                        continue
                    path = row["dv"]["location"]
                missing = {"content": MISSING, "path": path, "retained": False}
                yield pa.RecordBatch.from_pylist([missing], schema=self.schema)

    def _read(self, row: Mapping[str, Any]) -> tuple[Data, Mapping[str, Any] | None] | None:
        """Return a manifest, and its deletion vector with its bitmap; None for a missing manifest."""
        data = _unless_missing(row, lambda: manifest_data(self.reader, _part(row)))
        if data is None or row["dv"] is None:
            return None if data is None else (data, None)
        dvs = _unless_missing(row, lambda: inlined([row["dv"]], self.reader))
        return data, None if dvs is None else dvs[0]

    def _entries(self, data: Data, row: Mapping[str, Any], dv: Mapping[str, Any] | None) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a manifest, then the deletion vectors in entries of data files."""
        part = _part(row)
        path, formats = row["path"], [part["file_format"]]
        may_be_tree = self.trees is not None and formats == ["PARQUET"]
        if may_be_tree and not isinstance(data, Windows) and is_tree_manifest(data, path):
            formats = ["PARQUET", VECTORS] if self._may_list_sought(data, path) else [VECTORS]
        for file_format in formats:
            batches = decode(data, part | {"file_format": file_format}, self._projection, self.trees, self.locations)
            if dv is None:
                yield from batches
                continue
            table = pa.Table.from_batches(batches, self._projection.schema)
            yield from unmasked_entries(table, dv, some=file_format == VECTORS).to_batches()

    def _may_list_sought(self, data: bytes | memoryview, location: str) -> bool:
        """Return whether a tree manifest may list a sought file, by the bounds of its row groups."""
        if self.sought is None:
            return True
        with open_manifest(pa.BufferReader(data), location) as manifest:
            return bool(self._sought_values.groups(manifest))

    @cached_property
    def _sought_values(self) -> SoughtValues:
        return SoughtValues(_SOURCES["path"], self.sought or (), self.locations)

    @cached_property
    def _sought_array(self) -> pa.Array:
        return pa.array(self.sought, pa.string())

    @cached_property
    def _projection(self) -> EntryProjection:
        names = (_SOURCES[name] for name in self.schema.names if name in _SOURCES)
        return EntryProjection.of({*names, "version_info"})

    def _live_files(self, entries: pa.RecordBatch, retained: bool) -> pa.RecordBatch:
        live_entries = entries.filter(is_live(entries))
        # Each filter hashes all sought paths, which takes longer than returning a few rows.
        if self.sought is not None and len(live_entries) * _HASHED_PATHS >= len(self.sought):
            live_entries = live_entries.filter(pc.is_in(live_entries.column(_SOURCES["path"]), self._sought_array))
        columns: dict[str, Any] = {"retained": pa.repeat(pa.scalar(retained), len(live_entries))}
        for name in _SOURCES.keys() & self.schema.names:
            columns[name] = live_entries.column(_SOURCES[name])
        if "content" in columns:
            columns["content"] = _CONTENT_NAMES.take(columns["content"])
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


# The number of paths that can be hashed in the time that it takes to return a row.
_HASHED_PATHS = 10
_CONTENT_NAMES = pa.array([CONTENTS.get(ContentType(number)) for number in range(len(ContentType))])


def _part(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole manifest, a row of `LISTED`, as a row of `PART_SCHEMA`."""
    return {
        "manifest": 0,
        "location": row["path"],
        "file_format": "PARQUET" if row["path"].lower().endswith(".parquet") else "AVRO",
        "partition_spec_id": row["spec_id"],
        "snapshot_id": row["snapshot_id"],
        "sequence_number": row["sequence_number"],
        "first_row_id": None,
        "part": 0,
        "parts": 1,
        "file_size_in_bytes": row["length"],
        KEY_METADATA: row[KEY_METADATA],
    }


def _unless_missing(row: Mapping[str, Any], read: Callable[[], T]) -> T | None:
    """Return what `read` returns, or None for a missing file that no retained snapshot needs."""
    try:
        return read()
    except NotFoundError:
        if row["retained"]:
            raise
        return None


# -- Delete files ----------------------------------------------------------------------------------------------------


# Maximum number of messages about files that could not be deleted.
_MESSAGES = 20
# Maximum number of files that the driver deletes: one request to S3 deletes as many.
_MOST_DELETED = 1000

_DELETED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("length", pa.int64()),
        pa.field("failed", pa.bool_()),
        pa.field("problem", pa.string()),  # of some of the failures
    ]
)


@dataclass(frozen=True)
class Deletion:
    """The outcome of a deletion.

    Attributes:
        files: content -> the number of deleted files.
        bytes: content -> the bytes of deleted files, as far as metadata records them.
        failed: the number of files that could not be deleted; they become orphans.
        problems: some of the reasons, with the files.
    """

    files: Mapping[str, int]
    bytes: Mapping[str, int]
    failed: int
    problems: tuple[str, ...]


def _are_few(files: pa.Table) -> bool:
    return len(files) <= _MOST_DELETED


def delete_files(files: Relation, writer: ExecutorWriter, state: TableState, count: int | None = None) -> Deletion:
    """Delete files, by tasks if there are many. It is not an error if a file can't be deleted.

    Args:
        files: rows of `UNREACHABLE`. Rows with the content `MISSING` are skipped.
        writer: deletes files.
        state: the table.
        count: the maximum number of files; None if it is unknown.
    """
    present = where(files, sql.col("content") != MISSING)
    deleter, tasks = _Deleter(writer), partial(read_tasks, files=count, size=0)
    outcomes = mapped_files(present, lambda _: deleter, _DELETED, state, are_few=_are_few, runs=True, tasks=tasks)
    failed, length = sql.col("failed"), sql.col("length")
    figures = {
        "files": sql.count_if(~failed),
        "bytes": sql.call("sum", sql.when(failed, 0).otherwise(length)),
        "failed": sql.count_if(failed),
        "problems": sql.call("collect_list", sql.col("problem")),
    }
    # Without checkpoints, the job also computes which files these are.
    with translated_errors(), progress("Deleting files", state.sessions):
        counted = collected(grouped(outcomes, sql.columns("content"), sql.named(figures)))
    rows = counted.sort_by("content").to_pylist()
    problems = [problem for row in rows for problem in row["problems"] if problem is not None]
    return Deletion(
        files={row["content"]: row["files"] for row in rows},
        bytes={row["content"]: row["bytes"] or 0 for row in rows},
        failed=sum(row["failed"] for row in rows),
        problems=tuple(problems[:_MESSAGES]),
    )


@dataclass(frozen=True)
class _Deleter:
    """Deletes files in tasks. Picklable."""

    writer: ExecutorWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            failures = dict(self.writer.delete_many(batch.column("path").to_pylist()))
            failed = pc.is_in(batch.column("path"), pa.array(failures, pa.string()))
            problems = {path: f"{path}: {reason}" for path, reason in [*failures.items()][:_MESSAGES]}
            texts = pa.array([problems.get(path) for path in batch.column("path").to_pylist()], pa.string())
            columns = [batch.column("content"), batch.column("length"), failed, texts]
            yield pa.RecordBatch.from_arrays(columns, schema=_DELETED)
