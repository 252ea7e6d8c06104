"""Check new deletion vectors against their data files, and find the deletes that they replace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.commit.removed_files import (
    Removal,
    Searches,
    delete_leaves,
    deletes_of,
    has_offset,
    removal_of,
    without,
)
from sparkmeta.entries.live import is_kind
from sparkmeta.entries.projection import DV_COLUMNS, MANIFEST, PARTITION
from sparkmeta.entries.relation import (
    alike,
    beside,
    columns_of,
    computed,
    first,
    frame_of,
    matching,
    nothing,
    repeated,
    union,
    where,
    with_columns,
)
from sparkmeta.errors import CommitConflictError, CorruptFileError, NotFoundError, UnsupportedError, ValidationError
from sparkmeta.expr import evaluate, sql
from sparkmeta.manifests.placement import few_requests, mapped_files
from sparkmeta.manifests.sorted_manifests import task_rows
from sparkmeta.plan.choose import only_dvs
from sparkmeta.plan.deletes.attach import attach_deletes
from sparkmeta.plan.deletes.groups import DeleteEntries
from sparkmeta.plan.deletes.rules import partition_key
from sparkmeta.plan.filter import DELETES
from sparkmeta.rows.delete_rows import deleted_positions
from sparkmeta.session import local_frame, map_arrow, map_on_driver, materialize
from sparkmeta.snapshot.search import (
    FileName,
    leaves_of_partitions,
    live_entries,
    live_leaves,
    live_relation,
    named_leaves,
    root_manifests,
    search_all,
    search_projection,
)
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.encryption import KEY_METADATA, Decrypting, Stream
from sparkmeta.storage.vectors import stored_vector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files


# -- Compare deletion vectors with position delete files --------------------------------------------------------------
# If a data file has a deletion vector, readers ignore its position delete files, including the delete files of its
# partition (semantics 6.5). The vector must therefore include their positions, as Java's writers ensure (semantics
# 13.5).


_LOST_SCHEMA = pa.schema(
    [pa.field("data_path", pa.string()), pa.field("position", pa.int64()), pa.field("delete_path", pa.string())]
)


def may_have_position_files(state: TableState, manifests: pa.Table) -> bool:
    """Return whether delete manifests may hold position delete files that tasks can read. May run a job."""
    return bool(len(manifests)) and state.access.tasks is not None and not only_dvs(state, manifests, by_job=True)


def _position_files(state: TableState, manifests: pa.Table) -> Relation:
    """Return the position delete files in delete manifests, rows of `state.manifests`."""
    is_file = is_kind(ContentType.POSITION_DELETES) & ~has_offset()
    return where(live_relation(state, manifests), is_file)


def refuse_lost_positions(state: TableState, dvs: Relation, data: Relation, manifests: pa.Table) -> None:
    """Refuse deletion vectors that lack positions of position delete files. For many deletes, runs jobs.

    Damaged and missing delete files are ignored, since readers can't read their positions either.

    Args:
        state: the state that the deletion vectors are added to.
        dvs: the new deletion vectors, entries of `SEARCH_COLUMNS`.
        data: their live data files, entries of `SEARCH_COLUMNS`.
        manifests: the delete manifests that may apply to the data files, rows of `state.manifests`; see
            `may_have_position_files`.

    Raises:
        ValidationError: a deletion vector lacks a position.
    """
    projection = state.projection((*DV_COLUMNS, "equality_ids"), {DELETE_FILE_PATH_ID})
    positional = where(live_relation(state, manifests, projection), is_kind(ContentType.POSITION_DELETES))
    attached = attach_deletes(data, DeleteEntries(positional, manifests, frozenset()), state)
    units = _few_units(attached, dvs) if isinstance(attached, pa.Table) and isinstance(dvs, pa.Table) else None
    if units is not None and state.access.driver_opens(few_requests(units)):
        lost = map_on_driver(units, partial(_lost_positions, state.files, state.types.locations), _LOST_SCHEMA)
    else:
        lost = _lost_by_tasks(state, frame_of(attached, state), frame_of(dvs, state)).limit(1).toArrow()
    for row in lost.slice(0, 1).to_pylist():
        raise ValidationError(
            f"{state.metadata.location}: the deletion vector of {row['data_path']} lacks position {row['position']}, "
            f"which {row['delete_path']} deletes: readers of the vector would pass over that file"
        )


def _few_units(attached: pa.Table, dvs: pa.Table) -> pa.Table:
    """Return one row for each position delete file, with the new deletion vectors of the data files that it covers."""
    columns = {**_VECTOR, "record_count": _VECTOR["records"], "data_path": "referenced_file"}
    vectors = evaluate.select(dvs, [sql.col(path).alias(name) for name, path in columns.items()])
    by_path = {row["data_path"]: row for row in vectors.to_pylist()}
    units: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path, deletes in zip(*(attached.column(name).to_pylist() for name in ("location", DELETES)), strict=True):
        for delete in deletes if path in by_path else ():
            if delete["file_format"].upper() != "PUFFIN":
                units.setdefault((delete["file_path"], delete["file_format"]), []).append(by_path[path])
    rows = [
        {"location": key[0], "file_format": key[1], "vectors": vectors_of_file}
        for key, vectors_of_file in units.items()
    ]
    return pa.Table.from_pylist(rows)


def _lost_by_tasks(state: TableState, attached: DataFrame, dvs: DataFrame) -> DataFrame:
    """Return rows of `_LOST_SCHEMA`, found by tasks."""
    assert state.access.tasks is not None
    pairs = attached.select(F.col("location").alias("data_path"), F.explode(DELETES).alias("delete"))
    blob = F.col("deletion_vector")
    vectors = dvs.select(
        F.col("referenced_file").alias("data_path"),
        F.struct(
            F.col("referenced_file").alias("data_path"), "location", blob["offset"].alias("offset"),
            blob["size_in_bytes"].alias("size"), "record_count",
        ).alias("vector"),
    )  # fmt: skip
    vector_pairs = pairs.where(F.upper("delete.file_format") != "PUFFIN").join(vectors, "data_path")
    units = vector_pairs.groupBy(
        F.col("delete.file_path").alias("location"), F.col("delete.file_format").alias("file_format")
    ).agg(F.collect_list("vector").alias("vectors"))
    find = partial(_lost_positions, state.access.tasks, state.types.locations)
    return map_arrow(materialize(units), find, _LOST_SCHEMA)


def _lost_positions(
    reader: ExecutorReader | Files, locations: Locations, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the first missing position for each delete file and deletion vector that lacks any of its positions."""
    for unit in task_rows(batches):
        lost = []
        positions = _positions(reader, locations, unit["location"], unit["file_format"])
        for vector in unit["vectors"]:
            path = vector["data_path"]
            if path not in positions:
                continue
            bitmap = stored_vector(reader, *(vector[name] for name in ("location", "offset", "size", "record_count")))
            first_lost = next(positions[path].difference(bitmap).positions(), np.empty(0, np.int64))
            if len(first_lost):
                lost.append({"data_path": path, "position": int(first_lost[0]), "delete_path": unit["location"]})
        yield pa.RecordBatch.from_pylist(lost, schema=_LOST_SCHEMA)


def _positions(
    reader: ExecutorReader | Files, locations: Locations, location: str, file_format: str
) -> dict[str, PositionBitmap]:
    """Return the positions that a position delete file deletes, by data file."""
    by_path: dict[str, list[np.ndarray[Any, Any]]] = {}
    try:
        for paths, positions in deleted_positions(reader.read(location), file_format, location, locations):
            codes, values = paths.indices.to_numpy(), positions.to_numpy()
            for code in np.unique(codes):
                by_path.setdefault(paths.dictionary[int(code)].as_py(), []).append(values[codes == code])
    except (NotFoundError, CorruptFileError):
        return {}
    return {path: PositionBitmap.of(np.concatenate(parts)) for path, parts in by_path.items()}


# -- Check deletion vectors and find the deletes they replace ---------------------------------------------------------
# A lost deletion vector or position would make deleted rows reappear. Each new deletion vector must be the only one of
# a live data file and have the file's partition. It must not have more positions than the file has rows. It must
# include all positions of the deletion vector that it replaces, and of its data file's position delete files (semantics
# 13.5).


_SPEC = "partition_spec_id"
# Columns of a deletion vector, new or old -> in entries.
_VECTOR = {
    "location": "location",
    "offset": "deletion_vector.offset",
    "size": "deletion_vector.size_in_bytes",
    "records": "record_count",
}
_LOST_VECTOR_SCHEMA = pa.schema([pa.field("data_path", pa.string()), pa.field("position", pa.int64())])


def replaced_deletes(state: TableState, added: NewFiles, removal: Removal, searches: Searches) -> Removal:
    """Check the new deletion vectors of a commit and find the deletes that they replace.

    Returns:
        The entries of the replaced deletes, except for deletes that the commit removes by name.

    Raises:
        CommitConflictError: the data file of a deletion vector is not live.
        ValidationError: a deletion vector violates another rule.
    """
    dvs = added.of([ContentType.POSITION_DELETES], ContentType.DELETE_MANIFEST).relation(state)
    dvs = where(dvs, is_kind(ContentType.POSITION_DELETES))
    if isinstance(dvs, pa.Table):
        current = find_targets(state, dvs, added.named, searches)
    else:
        data_leaves = live_leaves(state, ContentType.DATA_MANIFEST)
        current = where(live_entries(state, data_leaves), is_kind(ContentType.DATA))
    live = without(current, removal, state)
    placed = computed(_beside_data_files(state, dvs, union(live, _new_data(state, added, dvs, live), state)))
    _check_targets(state, placed, current)
    with_live_target = where(placed, sql.col(f"target_{MANIFEST}").isNotNull())
    partition = {PARTITION: PARTITION} if state.types.partition_fields else {}
    targets = columns_of(
        with_live_target, {"location": "data_path", MANIFEST: f"target_{MANIFEST}", _SPEC: "spec_id", **partition}
    )
    leaves = delete_leaves(state, targets)
    deletes = computed(deletes_of(state, targets, leaves, searches))
    _check_replaced(state, placed, where(deletes, has_offset()))
    if may_have_position_files(state, leaves):
        if state.is_encrypted and first(_position_files(state, leaves)) is not None:
            problem = "position delete files of encrypted tables can't be compared with deletion vectors"
            raise UnsupportedError(f"{state.metadata.location}: {problem}")
        data = matching(live, placed, {"location": "data_path"})
        refuse_lost_positions(state, dvs, data, leaves)
    replaced = removal_of(without(deletes, removal, state), state)
    if not state.layout.colocates:
        return replaced
    targets = matching(live, dvs, {"location": "referenced_file"})
    gaining = removal_of(targets, state).masks
    return replace(replaced, gaining=gaining, rewritten=_rewritten(state, added, targets, gaining))


def _rewritten(
    state: TableState, added: NewFiles, targets: Relation, gaining: Mapping[str, PositionBitmap]
) -> Mapping[str, PositionBitmap]:
    """Return the part of `gaining` that the commit has written to leaves with the deletion vectors.

    Args:
        state: the table.
        added: the new files.
        targets: the data files that get deletion vectors.
        gaining: the ordinals of the targets by leaf.
    """
    if added.moved is None:
        return {}
    root_paths = [] if added.rows is None else added.rows.column("referenced_file").drop_null().to_pylist()
    return removal_of(where(targets, ~sql.col("location").isin(root_paths)), state).masks if root_paths else gaining


def find_targets(state: TableState, dvs: pa.Table, named: Collection[str], searches: Searches) -> pa.Table:
    """Find the live data files of deletion vectors on the driver.

    Args:
        dvs: entries of `SEARCH_COLUMNS`.
        named: locations of manifests that may hold the files.
    """
    leaves = live_leaves(state, ContentType.DATA_MANIFEST)
    stages = [
        search_all(root_manifests(state)),
        search_all(named_leaves(leaves, named)),
        lambda _: leaves_of_partitions(state, leaves, dvs),
        search_all(leaves),
    ]
    paths = dvs.column("referenced_file").to_pylist()
    entries = searches.files.find(state, map(FileName, paths), stages)
    return entries.filter(pc.equal(entries.column("content_type"), int(ContentType.DATA)))


def _new_data(state: TableState, added: NewFiles, dvs: Relation, live: Relation) -> Relation:
    """Return the data files that the commit itself adds; if there are few deletion vectors, only their data files."""
    data = added.of([ContentType.DATA], ContentType.DATA_MANIFEST)
    if not isinstance(dvs, pa.Table):
        return data.frame(state) if data.count else nothing(live)
    without_data = matching(dvs, live, {"referenced_file": "location"}, absent=True)
    if first(without_data) is None or not data.count:
        return nothing(live)
    files = data.relation(state)
    if isinstance(files, pa.Table):
        return matching(files, without_data, {"location": "referenced_file"})
    paths = F.broadcast(local_frame(state.spark, columns_of(without_data, {"referenced_file": "referenced_file"})))
    files_of_vectors = matching(files, paths, {"location": "referenced_file"})
    schema = search_projection(state).schema
    return files_of_vectors.select(*schema.names).toArrow().cast(schema)


def _beside_data_files(state: TableState, dvs: Relation, data: Relation) -> Relation:
    """Join deletion vectors with their data files."""
    has_tuples = bool(state.types.partition_fields)
    vector = {"data_path": "referenced_file", "spec_id": _SPEC, "key": "key", **_vector(state, "new")}
    target = {name: name for name in ("key", "location", MANIFEST, "record_count", _SPEC)}
    if has_tuples:
        vector, target = vector | {PARTITION: PARTITION}, target | {PARTITION: PARTITION}
    target = {f"target_{name}": path for name, path in target.items()}
    vectors, data_files = (with_columns(entries, partition_key(state).alias("key")) for entries in alike(dvs, data))
    return beside(columns_of(vectors, vector), columns_of(data_files, target), "data_path", "target_location")


def _vector(state: TableState, age: str) -> dict[str, str]:
    """Return the columns of new or old deletion vectors -> their paths in entries."""
    columns = _VECTOR | {name: name for name in state.key_columns}
    return {f"{age}_{name}": path for name, path in columns.items()}


def _check_targets(state: TableState, placed: Relation, current: Relation) -> None:
    """Refuse deletion vectors that don't fit their data files.

    Args:
        state: the table.
        placed: the deletion vectors, beside their data files.
        current: the live data files before the commit.
    """
    table = state.metadata.location
    if duplicate := repeated(placed, ["data_path"]):
        raise ValidationError(f"{table}: {duplicate['data_path']} gets two deletion vectors in one commit")
    if lost := first(placed, sql.col("target_location").isNull()):
        path = lost["data_path"]
        if first(current, sql.col("location") == path):
            raise ValidationError(f"{table}: {path} gets a deletion vector and is removed in one commit")
        raise CommitConflictError(f"{table}: {path}, of a new deletion vector, is not a live file")
    if foreign := first(placed, ~sql.col("key").eqNullSafe(sql.col("target_key"))):
        vector, target = (
            f"{_partition_text(state, foreign[spec], foreign.get(values))} of spec {foreign[spec]}"
            for spec, values in (("spec_id", PARTITION), (f"target_{_SPEC}", f"target_{PARTITION}"))
        )
        problem = f"partition of the deletion vector of {foreign['data_path']} is {vector}: the file is in {target}"
        raise ValidationError(f"{table}: {problem}")
    if longer := first(placed, sql.col("target_record_count") < sql.col("new_records")):
        raise ValidationError(
            f"{table}: record_count of the deletion vector of {longer['data_path']} is {longer['new_records']}: the "
            f"file has {longer['target_record_count']} rows"
        )


def _partition_text(state: TableState, spec_id: int, values: Mapping[str, Any] | None) -> str:
    fields = state.specs[spec_id].fields
    return "/".join(f"{field.name}={(values or {}).get(str(field.field_id))!r}" for field in fields) or "no partition"


def _check_replaced(state: TableState, placed: Relation, old_vectors: Relation) -> None:
    """Raise ValidationError for a deletion vector that lacks a position of the deletion vector that it replaces."""
    new_vectors = columns_of(placed, {name: name for name in _vector(state, "new")} | {"new_path": "data_path"})
    replaced_vectors = columns_of(old_vectors, _vector(state, "old") | {"data_path": "referenced_file"})
    pairs = computed(beside(replaced_vectors, new_vectors, "data_path", "new_path"))
    table = state.metadata.location
    if fewer := first(pairs, sql.col("new_records") < sql.col("old_records")):
        raise ValidationError(
            f"{table}: record_count of the deletion vector of {fewer['data_path']} is {fewer['new_records']}: the one "
            f"that it replaces has {fewer['old_records']}, and all of its positions stay"
        )
    tasks = state.access.tasks
    if tasks is None:
        return
    lost = mapped_files(
        pairs, lambda files: partial(_lost_vector_positions, files or tasks), _LOST_VECTOR_SCHEMA, state
    )
    if row := first(lost):
        raise ValidationError(
            f"{table}: the deletion vector of {row['data_path']} lacks position {row['position']}, which the one that "
            "it replaces has"
        )


def _lost_vector_positions(files: ExecutorReader | Files, pairs: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the first missing position of each pair whose new deletion vector lacks positions."""
    for batch in pairs:
        lost = []
        for pair in batch.to_pylist():
            new = _bitmap(files, pair, "new")
            try:
                old = _bitmap(files, pair, "old")
            except (NotFoundError, CorruptFileError):  # readers can't read its positions either
                continue
            first_lost = next(old.difference(new).positions(), np.empty(0, np.int64))
            if len(first_lost):
                lost.append({"data_path": pair["data_path"], "position": int(first_lost[0])})
        yield pa.RecordBatch.from_pylist(lost, schema=_LOST_VECTOR_SCHEMA)


def _bitmap(files: ExecutorReader | Files, pair: Mapping[str, Any], age: str) -> PositionBitmap:
    location, offset, size, records = (pair[f"{age}_{name}"] for name in _VECTOR)
    key = pair.get(f"{age}_{KEY_METADATA}")
    opened = files if key is None else Decrypting(files, Stream.of(location, key))
    return stored_vector(opened, location, offset, size, records)
