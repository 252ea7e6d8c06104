"""Check new deletion vectors against their data files, and find the deletes that they replace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
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
    many_deletes_of,
    removal_of,
    removal_of_rows,
    without,
    without_rows,
)
from sparkmeta.commit.search import (
    FEW_FILES,
    SEARCH_COLUMNS,
    FileName,
    leaves_of_partitions,
    live_entries,
    live_leaves,
    named_leaves,
    root_manifests,
    search_all,
)
from sparkmeta.commit.sorted_manifests import task_rows
from sparkmeta.entries.arrays import MANIFEST, PARTITION, whole
from sparkmeta.errors import CommitConflictError, CorruptFileError, NotFoundError, ValidationError
from sparkmeta.inspect.tasks import deleted_positions
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.plan.choose import DV_COLUMNS, only_dvs
from sparkmeta.plan.deletes.attach import attach_deletes
from sparkmeta.plan.deletes.groups import DeleteEntries
from sparkmeta.plan.deletes.rules import partition_key
from sparkmeta.plan.filter import DELETES, is_live_entry
from sparkmeta.session import local_frame, map_arrow, map_on_driver, materialize
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.content import stored_vector

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.state import TableState
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files


# -- Compare new deletion vectors with the position delete files that apply to their data files -----------------------
# If a data file has a deletion vector, readers ignore its position delete files, including those of its partition
# (semantics 6.5). The vector must therefore include their positions, as with Java's writers (semantics 13.5).


_LOST_SCHEMA = pa.schema(
    [pa.field("data_path", pa.string()), pa.field("position", pa.int64()), pa.field("delete_path", pa.string())]
)


def may_have_position_files(state: TableState, manifests: pa.Table) -> bool:
    """Return whether delete manifests may hold position delete files, and tasks can read these. May run a job."""
    return bool(len(manifests)) and state.access.tasks is not None and not only_dvs(state, manifests, by_job=True)


def refuse_lost_positions(state: TableState, dvs: DataFrame, data: DataFrame, manifests: pa.Table) -> None:
    """Refuse deletion vectors that lack positions of position delete files. Runs jobs.

    Damaged and missing delete files are ignored, since readers can't read their positions either.

    Args:
        state: the state to which the deletion vectors are added.
        dvs: the new deletion vectors, entries of `SEARCH_COLUMNS`.
        data: their live data files, entries of `SEARCH_COLUMNS`.
        manifests: the delete manifests that may apply to the data files, rows of `state.manifests`; see
            `may_have_position_files`.

    Raises:
        ValidationError: a deletion vector lacks a position.
    """
    assert state.access.tasks is not None
    projection = state.projection((*DV_COLUMNS, "equality_ids"), {DELETE_FILE_PATH_ID})
    entries = state.entries(manifests, projection).where(is_live_entry().text)
    positional = entries.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    attached = attach_deletes(data, DeleteEntries(positional, manifests, frozenset()), state)
    pairs = attached.select(F.col("location").alias("data_path"), F.explode(DELETES).alias("delete"))
    place = F.col("deletion_vector")
    vectors = dvs.select(
        F.col("referenced_file").alias("data_path"),
        F.struct(
            F.col("referenced_file").alias("data_path"), "location", place["offset"].alias("offset"),
            place["size_in_bytes"].alias("size"), "record_count",
        ).alias("vector"),
    )  # fmt: skip
    of_files = pairs.where(F.upper("delete.file_format") != "PUFFIN").join(vectors, "data_path")
    units = of_files.groupBy(
        F.col("delete.file_path").alias("location"), F.col("delete.file_format").alias("file_format")
    ).agg(F.collect_list("vector").alias("vectors"))
    lost = map_arrow(
        materialize(units), partial(_lost_positions, state.access.tasks, state.types.locations), _LOST_SCHEMA
    )
    for row in lost.limit(1).toArrow().to_pylist():
        raise ValidationError(
            f"{state.metadata.location}: the deletion vector of {row['data_path']} lacks position {row['position']}, "
            f"which {row['delete_path']} deletes: readers of the vector would pass over that file"
        )


def _lost_positions(
    reader: ExecutorReader, locations: Locations, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the first missing position for each delete file and deletion vector that lacks any of its positions."""
    for unit in task_rows(batches):
        lost = []
        positions = _positions(reader, locations, unit["location"], unit["file_format"])
        for vector in unit["vectors"]:
            path = vector["data_path"]
            if path not in positions:
                continue
            new = stored_vector(reader, *(vector[name] for name in ("location", "offset", "size", "record_count")))
            first = next(positions[path].difference(new).positions(), np.empty(0, np.int64))
            if len(first):
                lost.append({"data_path": path, "position": int(first[0]), "delete_path": unit["location"]})
        yield pa.RecordBatch.from_pylist(lost, schema=_LOST_SCHEMA)


def _positions(
    reader: ExecutorReader, locations: Locations, location: str, file_format: str
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


# -- Check new deletion vectors against their data files, and find the deletes that they replace ----------------------
# A lost deletion vector or position would make deleted rows reappear. Each new deletion vector must be the only one of
# a live data file, have the file's partition, have no more positions than the file has rows, and include all positions
# of the deletion vector that it replaces and of its data file's position delete files (semantics 13.5).


_POSITION = int(ContentType.POSITION_DELETES)
# A new deletion vector and the one that it replaces.
_PAIR_SCHEMA = pa.schema(
    [
        pa.field("data_path", pa.string()),
        *(
            pa.field(f"{age}_{name}", kind)
            for age in ("new", "old")
            for name, kind in (("location", pa.string()), ("offset", pa.int64()), ("size", pa.int64()),
                               ("records", pa.int64()))
        ),
    ]
)  # fmt: skip
_LOST_VECTOR_SCHEMA = pa.schema([pa.field("data_path", pa.string()), pa.field("position", pa.int64())])


def replaced_deletes(state: TableState, added: NewFiles, removal: Removal, searches: Searches) -> Removal:
    """Check the new deletion vectors of a commit and find the deletes that they replace.

    Returns:
        The entries of these deletes, without those that the commit removes by name.

    Raises:
        CommitConflictError: the data file of a deletion vector is not live.
        ValidationError: a deletion vector violates another rule.
    """
    deletes = added.of([ContentType.POSITION_DELETES], ContentType.DELETE_MANIFEST)
    if deletes.count <= FEW_FILES:
        entries = deletes.entries(state)
        dvs = entries.filter(pc.equal(entries.column("content_type"), _POSITION))
        return _replaced_by_few(state, dvs, added, removal, searches)
    return _replaced_by_many(state, deletes.frame(state).where(F.col("content_type") == _POSITION), added, removal)


# -- few ------------------------------------------------------------------------------------------------------------


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


def _replaced_by_few(
    state: TableState, dvs: pa.Table, added: NewFiles, removal: Removal, searches: Searches
) -> Removal:
    table = state.metadata.location
    paths = dvs.column("referenced_file")
    counts = paths.value_counts() if len(paths) else []
    for count in counts:
        if count["counts"].as_py() > 1:
            raise ValidationError(f"{table}: {count['values']} gets two deletion vectors in one commit")
    current = find_targets(state, dvs, added.named, searches)
    live = without_rows(current, removal, state)
    missing = set(paths.to_pylist()).difference(live.column("location").to_pylist())
    targets = pa.concat_tables([live, _new_data(state, added, missing)])
    places = pc.index_in(paths, whole(targets.column("location")))
    if places.null_count:
        path = paths.filter(places.is_null())[0].as_py()
        raise _no_target(table, path, removed=path in current.column("location").to_pylist())
    _check_pairs(state, dvs, targets.take(places))
    deletes = deletes_of(state, live, searches)
    _check_replaced(state, dvs, deletes)
    manifests = delete_leaves(state, live)
    if may_have_position_files(state, manifests):
        new, data = (local_frame(state.spark, entries) for entries in (dvs, live))
        refuse_lost_positions(state, new, data, manifests)
    unnamed = without_rows(deletes, removal, state)
    return removal_of_rows(unnamed, state)


def _no_target(table: str, path: str, *, removed: bool) -> ValidationError:
    """Return the error for a deletion vector without a data file: the commit removes it, or it was not live before."""
    if removed:
        return ValidationError(f"{table}: {path} gets a deletion vector and is removed in one commit")
    return CommitConflictError(f"{table}: {path}, of a new deletion vector, is not a live file")


def _new_data(state: TableState, added: NewFiles, paths: Collection[str]) -> pa.Table:
    """Return the data files at the given paths that the commit itself adds."""
    data = added.of([ContentType.DATA], ContentType.DATA_MANIFEST)
    schema = state.projection(SEARCH_COLUMNS).schema
    if not paths or not data.count:
        return schema.empty_table()
    if data.count <= FEW_FILES:
        added_data = data.entries(state)
        return added_data.filter(pc.is_in(added_data.column("location"), pa.array(sorted(paths), pa.string())))
    targets = F.broadcast(local_frame(state.spark, pa.table({_TARGET: sorted(paths)})))
    entries = data.frame(state).join(targets, F.col("location") == F.col(_TARGET), "left_semi")
    return entries.select(*schema.names).toArrow().cast(schema)


def _check_pairs(state: TableState, dvs: pa.Table, targets: pa.Table) -> None:
    """Raise ValidationError for a deletion vector that has another partition than its file, or too many positions."""
    same = pc.equal(dvs.column("partition_spec_id"), targets.column("partition_spec_id"))
    for field_id in state.types.partition_fields:
        left, right = (
            _comparable(pc.struct_field(whole(side.column(PARTITION)), str(field_id))) for side in (dvs, targets)
        )
        both_null = pc.and_(left.is_null(), right.is_null())
        same = pc.and_(same, pc.or_(both_null, pc.fill_null(pc.equal(left, right), False)))
    for row in pc.indices_nonzero(pc.invert(same)).to_pylist()[:1]:
        raise _wrong_partition(state, dvs.slice(row, 1), targets.slice(row, 1))
    more = pc.greater(dvs.column("record_count"), targets.column("record_count"))
    for row in pc.indices_nonzero(more).to_pylist()[:1]:
        path, records = dvs.column("referenced_file")[row], dvs.column("record_count")[row]
        raise ValidationError(
            f"{state.metadata.location}: record_count of the deletion vector of {path} is {records}: the file has "
            f"{targets.column('record_count')[row]} rows"
        )


def _comparable(values: pa.Array) -> pa.Array:
    """Return floats as their bits, so that -0.0 differs from 0.0 and NaN equals NaN. Leave other values unchanged."""
    if not pa.types.is_floating(values.type):
        return values
    size = values.type.bit_width
    canonical = pc.if_else(pc.fill_null(pc.is_nan(values), False), pa.scalar(float("nan"), values.type), values)
    bits = canonical.fill_null(0).to_numpy(zero_copy_only=False).view(f"int{size}")
    return pc.if_else(values.is_valid(), pa.array(bits), pa.scalar(None, pa.from_numpy_dtype(bits.dtype)))


def _wrong_partition(state: TableState, dv: pa.Table, target: pa.Table) -> ValidationError:
    places = [
        (side.column("partition_spec_id")[0].as_py(),
         side.column(PARTITION)[0].as_py() if PARTITION in side.column_names else {})
        for side in (dv, target)
    ]  # fmt: skip
    shown = [f"{_partition_text(state, spec_id, values)} of spec {spec_id}" for spec_id, values in places]
    path = target.column("location")[0]
    return ValidationError(
        f"{state.metadata.location}: partition of the deletion vector of {path} is {shown[0]}: "
        f"the file is in {shown[1]}"
    )


def _partition_text(state: TableState, spec_id: int, values: Mapping[str, Any]) -> str:
    fields = state.specs[spec_id].fields
    return "/".join(f"{field.name}={values.get(str(field.field_id))!r}" for field in fields) or "no partition"


def _check_replaced(state: TableState, dvs: pa.Table, deletes: pa.Table) -> None:
    """Raise ValidationError for a deletion vector that lacks a position of the one that it replaces."""
    old = deletes.filter(pc.struct_field(deletes.column("deletion_vector"), "offset").is_valid())
    if not len(old):
        return
    new = dvs.take(pc.index_in(old.column("referenced_file"), whole(dvs.column("referenced_file"))))
    columns = {"data_path": old.column("referenced_file"), **_pair_side("new", new), **_pair_side("old", old)}
    pairs = pa.table([columns[field.name] for field in _PAIR_SCHEMA], schema=_PAIR_SCHEMA)
    fewer = pairs.filter(pc.less(pairs.column("new_records"), pairs.column("old_records")))
    for row in fewer.slice(0, 1).to_pylist():
        raise _fewer_positions(state, row)
    if state.access.tasks is None:
        return
    if state.access.driver is not None and len(pairs) <= MOST_REQUESTS:
        lost = map_on_driver(pairs, partial(_lost_vector_positions, state.files), _LOST_VECTOR_SCHEMA)
        _refuse_lost(state, lost)
    else:
        _check_bitmaps(state, local_frame(state.spark, pairs))


def _pair_side(age: str, dvs: pa.Table) -> dict[str, Any]:
    place = dvs.column("deletion_vector")
    return {
        f"{age}_location": dvs.column("location"),
        f"{age}_offset": pc.struct_field(place, "offset"),
        f"{age}_size": pc.struct_field(place, "size_in_bytes"),
        f"{age}_records": dvs.column("record_count"),
    }


def _fewer_positions(state: TableState, pair: Mapping[str, Any]) -> ValidationError:
    return ValidationError(
        f"{state.metadata.location}: record_count of the deletion vector of {pair['data_path']} is "
        f"{pair['new_records']}: the one that it replaces has {pair['old_records']}, and all of its positions stay"
    )


def _check_bitmaps(state: TableState, pairs: DataFrame) -> None:
    assert state.access.tasks is not None
    lost = map_arrow(pairs, partial(_lost_vector_positions, state.access.tasks), _LOST_VECTOR_SCHEMA)
    _refuse_lost(state, lost.limit(1).toArrow())


def _refuse_lost(state: TableState, lost: pa.Table) -> None:
    for row in lost.slice(0, 1).to_pylist():
        raise ValidationError(
            f"{state.metadata.location}: the deletion vector of {row['data_path']} lacks position {row['position']}, "
            "which the one that it replaces has"
        )


def _lost_vector_positions(files: ExecutorReader | Files, pairs: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the first missing position for each pair whose new deletion vector lacks any."""
    for batch in pairs:
        lost = []
        for pair in batch.to_pylist():
            new = _bitmap(files, pair, "new")
            try:
                old = _bitmap(files, pair, "old")
            except (NotFoundError, CorruptFileError):  # readers can't read its positions either
                continue
            positions = next(old.difference(new).positions(), np.empty(0, np.int64))
            if len(positions):
                lost.append({"data_path": pair["data_path"], "position": int(positions[0])})
        yield pa.RecordBatch.from_pylist(lost, schema=_LOST_VECTOR_SCHEMA)


def _bitmap(files: ExecutorReader | Files, pair: Mapping[str, Any], age: str) -> PositionBitmap:
    return stored_vector(files, *(pair[f"{age}_{name}"] for name in ("location", "offset", "size", "records")))


# -- many -----------------------------------------------------------------------------------------------------------

_TARGET, _TARGET_KEY, _TARGET_ROWS, _VECTOR_KEY = "target", "target_key", "target_rows", "vector_key"


def _replaced_by_many(state: TableState, dvs: DataFrame, added: NewFiles, removal: Removal) -> Removal:
    leaves = live_leaves(state, ContentType.DATA_MANIFEST)
    current = live_entries(state, leaves).where(F.col("content_type") == int(ContentType.DATA))
    data = without(current, removal, state) if removal.masks or removal.keys else current
    new = added.of([ContentType.DATA], ContentType.DATA_MANIFEST)
    if new.count:
        data = data.unionByName(new.frame(state))
    key = partition_key(state).column()
    targets = data.select(
        F.col("location").alias(_TARGET), MANIFEST, key.alias(_TARGET_KEY), F.col("record_count").alias(_TARGET_ROWS)
    )
    narrow = dvs.select("referenced_file", "location", "deletion_vector", "record_count", key.alias(_VECTOR_KEY))
    placed = materialize(narrow.join(targets, F.col("referenced_file") == F.col(_TARGET), "left"))
    _refuse_many(state, placed, current)
    live_targets = placed.where(F.col(MANIFEST).isNotNull()).select(F.col(_TARGET).alias("location"), MANIFEST)
    deletes = materialize(many_deletes_of(state, live_targets))
    old = deletes.where(F.col("deletion_vector.offset").isNotNull())
    pairs = old.select(F.col("referenced_file").alias("data_path"), *_pair_columns("old")).join(
        placed.select(F.col("referenced_file").alias("data_path"), *_pair_columns("new")), "data_path"
    )
    pairs = materialize(pairs.select(*_PAIR_SCHEMA.names))
    for row in pairs.where("new_records < old_records").limit(1).toArrow().to_pylist():
        raise _fewer_positions(state, row)
    if state.access.tasks is not None:
        _check_bitmaps(state, pairs)
    manifests = live_leaves(state, ContentType.DELETE_MANIFEST)
    if may_have_position_files(state, manifests):
        of_live = live_targets.select(F.col("location").alias(_TARGET))
        live_data = data.join(of_live, F.col("location") == F.col(_TARGET), "left_semi")
        refuse_lost_positions(state, dvs, live_data, manifests)
    unnamed = without(deletes, removal, state) if removal.masks or removal.keys else deletes
    return removal_of(unnamed, state)


def _pair_columns(age: str) -> list[Column]:
    place = F.col("deletion_vector")
    values = {"location": F.col("location"), "offset": place["offset"], "size": place["size_in_bytes"],
              "records": F.col("record_count")}  # fmt: skip
    return [value.alias(f"{age}_{name}") for name, value in values.items()]


def _refuse_many(state: TableState, placed: DataFrame, current: DataFrame) -> None:
    """Raise the same errors as `_replaced_by_few`.

    Args:
        placed: the deletion vectors, joined to their data files.
        current: the live data files before the commit.
    """
    table, path = state.metadata.location, F.col("referenced_file")
    for row in placed.where(F.col(_TARGET).isNull()).select(path).limit(1).toArrow().to_pylist():
        missing = row["referenced_file"]
        removed = len(current.where(F.col("location") == F.lit(missing)).limit(1).toArrow()) > 0
        raise _no_target(table, missing, removed=removed)
    twice = placed.groupBy(path).count().where("count > 1").limit(1).toArrow()
    if len(twice):
        raise ValidationError(f"{table}: {twice[0][0]} gets two deletion vectors in one commit")
    foreign = placed.where(~F.col(_VECTOR_KEY).eqNullSafe(F.col(_TARGET_KEY)))
    keys = [F.col(name).cast("string") for name in (_VECTOR_KEY, _TARGET_KEY)]
    for row in foreign.select(path, *keys).limit(1).toArrow().to_pylist():
        raise ValidationError(
            f"{table}: partition of the deletion vector of {row['referenced_file']} is {row[_VECTOR_KEY]}: the file is "
            f"in {row[_TARGET_KEY]}"
        )
    longer = placed.where(F.col("record_count") > F.col(_TARGET_ROWS)).select(path, "record_count", _TARGET_ROWS)
    for row in longer.limit(1).toArrow().to_pylist():
        raise ValidationError(
            f"{table}: record_count of the deletion vector of {row['referenced_file']} is {row['record_count']}: the "
            f"file has {row[_TARGET_ROWS]} rows"
        )
