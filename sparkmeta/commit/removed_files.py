"""Find the files that a commit removes: by name, by a row filter, or by the partitions of new files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.columns import sql
from sparkmeta.columns.filter_text import as_text
from sparkmeta.columns.predicate import parse_filter, referenced_names
from sparkmeta.columns.terms import SchemaFields
from sparkmeta.commit.new_files import PARTITION_KEY, keys_of, new_partitions, replaces_everything, rows_of
from sparkmeta.commit.next_root import FileKey, KindCount, PartitionKey, Tally, partition_keys, sums_by_kind, tally_of
from sparkmeta.commit.partition_folders import partitions_of_folders
from sparkmeta.commit.search import (
    FEW_FILES,
    SEARCH_COLUMNS,
    Candidates,
    FileName,
    LeafMemo,
    PathSearch,
    leaves_of_partitions,
    live_entries,
    live_leaves,
    named_leaves,
    names_of,
    root_manifests,
    rows_by_manifest,
    search_all,
)
from sparkmeta.entries.arrays import MANIFEST, ORDINAL, PARTITION, whole
from sparkmeta.errors import CommitConflictError, InvalidFilterError, ValidationError, shown
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.deletes.rules import partition_key
from sparkmeta.plan.filter import ScanFilter, all_rows_match, live_manifests, matching_entries, matching_manifests
from sparkmeta.plan.pairs import deletes_by_affinity, deletes_by_partition
from sparkmeta.session import local_frame, materialize
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import ContentType, FileKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import Column, DataFrame

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState


# -- The entries that a commit removes: in manifests by ordinal, in the root of a tree by key -------------------------


# One row per manifest and `FileKind` that entries are removed from.
_GROUPS = pa.schema(
    [
        pa.field(MANIFEST, pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("files", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("ordinals", pa.binary()),
    ]
)

_KEY_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
)


@dataclass(frozen=True)
class Removal:
    """The entries that a commit removes.

    Attributes:
        masks: manifest location -> ordinals of its removed entries.
        keys: the removed files of the root itself.
        tally: counts of the removed files, for the snapshot's summary.
    """

    masks: Mapping[str, PositionBitmap] = field(default_factory=dict)
    keys: frozenset[FileKey] = frozenset()
    tally: Tally = field(default_factory=Tally)

    def plus(self, other: Removal) -> Removal:
        """Return the entries of both. Raises ValidationError for an entry that is in both."""
        masks = dict(self.masks)
        for leaf, bitmap in other.masks.items():
            if leaf in masks and masks[leaf].intersects(bitmap):
                raise ValidationError(f"{leaf}: a file is removed twice in one commit")
            masks[leaf] = masks[leaf].union(bitmap) if leaf in masks else bitmap
        for key in self.keys & other.keys:
            raise ValidationError(f"{key.location} is removed twice in one commit")
        return Removal(masks, self.keys | other.keys, self.tally.plus(other.tally))


def without(entries: DataFrame, removal: Removal, state: TableState) -> DataFrame:
    """Return entries of `SEARCH_COLUMNS` without those in a small removal."""
    masked, keys = _removed_rows(removal, state)
    left = entries.join(F.broadcast(local_frame(state.spark, masked)), [MANIFEST, ORDINAL], "left_anti")
    named = F.broadcast(local_frame(state.spark, keys)).alias("removed")
    same = (F.col("entry.location") == F.col("removed.location")) & F.col("entry.deletion_vector.offset").eqNullSafe(
        F.col("removed.offset")
    )
    return left.alias("entry").join(named, same, "left_anti")


def _removed_rows(removal: Removal, state: TableState) -> tuple[pa.Table, pa.Table]:
    """Return removed entries of leaves as `manifest`, `ordinal`, and those of the root as `location`, `offset`."""
    ids = {location: manifest for manifest, location in _locations(state).items()}
    ordinals = {ids[leaf]: np.concatenate(list(bitmap.positions())) for leaf, bitmap in removal.masks.items()}
    masked = pa.table(
        {
            MANIFEST: pa.array(np.repeat([*ordinals], [*map(len, ordinals.values())]), pa.int32()),
            ORDINAL: pa.array(np.concatenate([*ordinals.values(), np.empty(0, np.int64)]), pa.int64()),
        }
    )
    keys = [{"location": key.location, "offset": key.offset} for key in removal.keys]
    schema = pa.schema([pa.field("location", pa.string()), pa.field("offset", pa.int64())])
    return masked, pa.Table.from_pylist(keys, schema)


def without_rows(entries: pa.Table, removal: Removal, state: TableState) -> pa.Table:
    """Do the same as `without` for entries on the driver."""
    if not len(entries) or not (removal.masks or removal.keys):
        return entries
    locations = _locations(state)
    places = zip(entries.column(MANIFEST).to_pylist(), entries.column(ORDINAL).to_pylist(), strict=True)
    stays = []
    for key, (manifest, ordinal) in zip(_keys(entries), places, strict=True):
        mask = removal.masks.get(locations[manifest])
        stays.append(FileKey(*key) not in removal.keys and (mask is None or not mask.contains(ordinal)))
    return entries.filter(pa.array(stays, pa.bool_()))


def removal_of(entries: DataFrame, state: TableState) -> Removal:
    """Return the removal of many entries of `SEARCH_COLUMNS`. Runs jobs."""
    in_root = F.col(MANIFEST).isin(_root_ids(state).to_pylist())
    narrow = materialize(entries.select(MANIFEST, ORDINAL, *_KEY_COLUMNS))
    rows = narrow.where(in_root).toArrow()
    of_leaves = narrow.where(~in_root)
    groups = of_leaves.groupBy(MANIFEST).applyInArrow(_grouped, spark_schema(_GROUPS)).toArrow()
    return _removal(groups, rows, state)


def removal_of_rows(rows: pa.Table, state: TableState) -> Removal:
    """Return the removal of entries on the driver, with their partitions in the tally."""
    in_root = pc.is_in(rows.column(MANIFEST), _root_ids(state))
    leaves = [_grouped(group) for group in rows_by_manifest(rows.filter(pc.invert(in_root))).values()]
    removal = _removal(pa.concat_tables(leaves or [_GROUPS.empty_table()]), rows.filter(in_root), state)
    return replace(removal, tally=replace(removal.tally, partitions=partitions_of(rows, state)))


def _root_ids(state: TableState) -> pa.Array:
    return root_manifests(state).column(MANIFEST).combine_chunks().cast(pa.int32())


def _grouped(rows: pa.Table) -> pa.Table:
    """Group the entries of one manifest to rows of `_GROUPS`, the first of which has all ordinals."""
    groups: list[dict[str, Any]] = []
    ordinals = np.asarray(rows.column(ORDINAL).to_numpy(), np.int64)
    for kind, count in tally_of(rows).items():
        groups.append(
            {
                MANIFEST: rows.column(MANIFEST)[0].as_py(),
                "kind": kind.value,
                "files": count.files,
                "records": count.records,
                "size": count.size,
                "ordinals": None if groups else write_deletion_vector(PositionBitmap.of(ordinals)),
            }
        )
    return pa.Table.from_pylist(groups, schema=_GROUPS)


def _removal(groups: pa.Table, in_root: pa.Table, state: TableState) -> Removal:
    masks: dict[str, PositionBitmap] = {}
    counts = [*tally_of(in_root).items()]
    locations = _locations(state)
    for row in groups.to_pylist():
        if row["ordinals"] is not None:
            location = locations[row[MANIFEST]]
            masks[location] = read_inline_vector(row["ordinals"], location)
        counts.append((FileKind(row["kind"]), KindCount(row["files"], row["records"], row["size"])))
    tally = Tally(sums_by_kind(counts), None)
    return Removal(masks, frozenset(FileKey(*key) for key in _keys(in_root)), tally)


def _locations(state: TableState) -> dict[int, str]:
    """Return the locations of manifests by their small ids."""
    return dict(zip(*(state.manifests.column(name).to_pylist() for name in (MANIFEST, "location")), strict=True))


def _keys(entries: pa.Table) -> Iterable[tuple[int, str, int | None]]:
    offsets = pc.struct_field(entries.column("deletion_vector"), "offset").to_pylist()
    return zip(entries.column("content_type").to_pylist(), entries.column("location").to_pylist(), offsets, strict=True)


def partitions_of(rows: pa.Table, state: TableState) -> frozenset[PartitionKey]:
    """Return the partitions of entries that are on the driver."""
    values = {
        field_id: pc.struct_field(rows.column(PARTITION), str(field_id)).to_pylist()
        for field_id in state.types.partition_fields
    }
    return partition_keys(rows.column("partition_spec_id").to_pylist(), values, state.types.spec_fields)


# -- Find the files that a commit names, and the deletion vectors of the data files among them ------------------------
# A search tries the root, then the manifest named in the file's row, then the manifests of its partition, then those
# of the partition in the folder names of its path, and finally all manifests.


_COLUMNS = ("file_path", "content_offset", "manifest_path", "spec_id", PARTITION)
_PATH, _OFFSET = "named_path", "named_offset"


class NotLiveError(ValidationError):
    """A file to remove is not a live file of the table."""


@dataclass
class Searches:
    """The searches of one commit, shared by its attempts."""

    files: PathSearch = field(default_factory=lambda: PathSearch("location"))
    new_files: PathSearch = field(default_factory=lambda: PathSearch("location"))
    deletes: PathSearch = field(default_factory=lambda: PathSearch("referenced_file"))


def find_files(state: TableState, files: DataFrame, searches: Searches) -> Removal:
    """Find the live entries of data and delete files by path, and of deletion vectors by path and offset.

    The result includes the deletion vectors of the data files.

    Args:
        files: rows with `file_path`, and `content_offset` for deletion vectors. `manifest_path`, and `spec_id` with
            `partition`, are hints for the search.
        searches: the searches of the commit.

    Raises:
        NotLiveError: a path is not a live file of the table.
        ValidationError: a path is null, or occurs twice.
    """
    return _find(state, files, searches, only_live_deletes=False)


def find_live_deletes(state: TableState, files: DataFrame, searches: Searches) -> Removal:
    """Find entries of delete files as `find_files` does, ignoring those that are not live."""
    return _find(state, files, searches, only_live_deletes=True)


def _find(state: TableState, files: DataFrame, searches: Searches, *, only_live_deletes: bool) -> Removal:
    named = [name for name in _COLUMNS if name in files.columns]
    if "file_path" not in named:
        raise ValidationError("the files to remove have no column file_path")
    rows = files.select(*named)
    head = rows.limit(FEW_FILES + 1).toArrow()
    if len(head) <= FEW_FILES:
        return _find_few(state, head, searches, only_live_deletes=only_live_deletes)
    return _find_many(state, rows, only_live_deletes=only_live_deletes)


# -- few ------------------------------------------------------------------------------------------------------------


def _find_few(state: TableState, rows: pa.Table, searches: Searches, *, only_live_deletes: bool) -> Removal:
    names = _names(state, rows)
    # Only deletion vectors have an offset.
    in_deletes = only_live_deletes or all(name.offset is not None for name in names)
    data = [] if in_deletes else [ContentType.DATA_MANIFEST]
    leaves = [live_leaves(state, content) for content in (*data, ContentType.DELETE_MANIFEST)]
    stages = [search_all(root_manifests(state))]
    stages += [stage for manifests in leaves for stage in _hinted(state, rows, manifests)]
    stages += [_by_folders(state, manifests) for manifests in leaves]
    stages += map(search_all, leaves)
    entries = searches.files.find(state, names, stages)
    removed = set(names)
    entries = entries.filter(pa.array([name in removed for name in names_of(entries)], pa.bool_()))
    if not only_live_deletes and (missing := removed.difference(names_of(entries))):
        raise NotLiveError(f"{state.metadata.location}: {min(missing).path} is not a live file of the table")
    data_files = entries.filter(pc.equal(entries.column("content_type"), int(ContentType.DATA)))
    dvs = dvs_of(state, data_files, searches)
    unnamed = dvs.filter(pa.array([name not in removed for name in names_of(dvs)], pa.bool_()))
    return removal_of_rows(pa.concat_tables([entries, unnamed]), state)


def _names(state: TableState, rows: pa.Table) -> list[FileName]:
    paths = rows.column("file_path").to_pylist()
    offsets = rows.column("content_offset").to_pylist() if "content_offset" in rows.column_names else [None] * len(rows)
    names = [FileName(*name) for name in zip(paths, offsets, strict=True)]
    for name, count in Counter(names).items():
        _refuse_name(state, name.path, count)
    return names


def _refuse_name(state: TableState, path: str | None, count: int) -> None:
    if path is None:
        raise ValidationError(f"{state.metadata.location}: file_path of a file to remove is None")
    if count > 1:
        raise ValidationError(f"{state.metadata.location}: {path} is to be removed twice")


def _hinted(state: TableState, rows: pa.Table, leaves: pa.Table) -> list[Candidates]:
    """Return search stages from hints in the rows: the leaves that they name, then those of their partitions."""
    stages: list[Candidates] = []
    if "manifest_path" in rows.column_names:
        paths = rows.column("manifest_path").drop_null().unique().to_pylist()
        stages.append(search_all(named_leaves(leaves, paths)))
    partitions = rows_of(state).partitions(rows)
    if partitions is not None and len(partitions):
        stages.append(lambda _: leaves_of_partitions(state, leaves, partitions))
    return stages


def _by_folders(state: TableState, leaves: pa.Table) -> Candidates:
    def candidates(names: Sequence[FileName]) -> pa.Table:
        partitions = partitions_of_folders(state, [name.path for name in names])
        return leaves_of_partitions(state, leaves, partitions)

    return candidates


def dvs_of(state: TableState, data: pa.Table, searches: Searches) -> pa.Table:
    """Return the live deletion vectors of data files, both as entries of `SEARCH_COLUMNS`."""
    if not may_have_vectors(state):
        return data.slice(0, 0)
    deletes = deletes_of(state, data, searches)
    return deletes.filter(pc.struct_field(deletes.column("deletion_vector"), "offset").is_valid())


def may_have_vectors(state: TableState) -> bool:
    """Return whether the table's format version has deletion vectors."""
    return state.metadata.format_version >= 3


def deletes_of(state: TableState, data: pa.Table, searches: Searches) -> pa.Table:
    """Return the live deletion vectors of data files, and position delete files that name one of them.

    Among trees, only those of upgraded tables have such position delete files.
    """
    leaves = delete_leaves(state, data)
    entries = searches.deletes.search(state, leaves, data.column("location").to_pylist())
    return entries.filter(pc.equal(entries.column("content_type"), int(ContentType.POSITION_DELETES)))


def delete_leaves(state: TableState, data: pa.Table) -> pa.Table:
    """Return the delete manifests that may hold deletes of data files (table spec, Scan Planning).

    These are the manifests affiliated with a manifest of the files, and unaffiliated ones that share their partitions.
    """
    deletes = live_leaves(state, ContentType.DELETE_MANIFEST)
    if not len(deletes) or not len(data):
        return deletes.slice(0, 0)
    if state.tree is None:
        return leaves_of_partitions(state, deletes, data)
    relevant = deletes_by_affinity(state, _manifests_with(state, data.column(MANIFEST)), deletes)
    affiliated = relevant.column("referenced_file").is_valid()
    unaffiliated = leaves_of_partitions(state, relevant.filter(pc.invert(affiliated)), data)
    return pa.concat_tables([relevant.filter(affiliated), unaffiliated])


def _manifests_with(state: TableState, ids: pa.ChunkedArray) -> pa.Table:
    return state.manifests.filter(pc.is_in(state.manifests.column(MANIFEST), whole(ids).unique()))


# -- many -----------------------------------------------------------------------------------------------------------


def _find_many(state: TableState, rows: DataFrame, *, only_live_deletes: bool) -> Removal:
    files = materialize(rows)
    keys = files.select(*_key_columns(files))
    counts = keys.groupBy(_PATH, _OFFSET).count()
    for row in counts.where(f"count > 1 OR {_PATH} IS NULL").limit(1).toArrow().to_pylist():
        _refuse_name(state, row[_PATH], row["count"])
    everywhere = live_manifests(state.delete_manifests if only_live_deletes else state.manifests)
    manifests = _named_manifests(files, everywhere)
    entries = materialize(_entries_of(state, manifests, keys))
    missing = _first_missing(keys, entries)
    if missing is not None and len(manifests) < len(everywhere):
        entries = materialize(_entries_of(state, everywhere, keys))
        missing = _first_missing(keys, entries)
    if missing is not None and not only_live_deletes:
        raise NotLiveError(f"{state.metadata.location}: {missing} is not a live file of the table")
    dvs = many_dvs_of(state, entries.where(F.col("content_type") == int(ContentType.DATA)))
    named = entries.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    unnamed = dvs.join(named.select(MANIFEST, ORDINAL), [MANIFEST, ORDINAL], "left_anti")
    return removal_of(entries.unionByName(unnamed), state)


def _key_columns(files: DataFrame) -> tuple[Column, Column]:
    offset = F.col("content_offset") if "content_offset" in files.columns else F.lit(None).cast("long")
    return F.col("file_path").alias(_PATH), offset.alias(_OFFSET)


def _named_manifests(files: DataFrame, manifests: pa.Table) -> pa.Table:
    """Return the root's files and the manifests that files name; all manifests if a file names none."""
    if "manifest_path" not in files.columns:
        return manifests
    paths = files.select("manifest_path").distinct().toArrow().column("manifest_path")
    if paths.null_count:
        return manifests
    in_root = pc.equal(manifests.column("file_format"), IN_ROOT)
    return manifests.filter(pc.or_(in_root, pc.is_in(manifests.column("location"), whole(paths))))


def _same_file() -> Column:
    return (F.col("location") == F.col(_PATH)) & F.col("deletion_vector.offset").eqNullSafe(F.col(_OFFSET))


def _entries_of(state: TableState, manifests: pa.Table, keys: DataFrame) -> DataFrame:
    return live_entries(state, manifests).join(keys, _same_file(), "left_semi")


def _first_missing(keys: DataFrame, entries: DataFrame) -> str | None:
    missing = keys.join(entries, _same_file(), "left_anti").limit(1).toArrow().to_pylist()
    return str(missing[0][_PATH]) if missing else None


def many_dvs_of(state: TableState, data: DataFrame) -> DataFrame:
    """Do the same as `dvs_of` for data entries in a DataFrame."""
    if not may_have_vectors(state):
        return data.limit(0)
    return many_deletes_of(state, data).where(F.col("deletion_vector.offset").isNotNull())


def many_deletes_of(state: TableState, data: DataFrame) -> DataFrame:
    """Do the same as `deletes_of` for data entries in a DataFrame. Runs a job that collects their manifests."""
    deletes = live_leaves(state, ContentType.DELETE_MANIFEST)
    if len(deletes):
        manifests = _manifests_with(state, data.select(MANIFEST).distinct().toArrow().column(MANIFEST))
        deletes = deletes_by_partition(state, manifests, deletes_by_affinity(state, manifests, deletes))
    position = live_entries(state, deletes).where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    return position.join(
        data.select(F.col("location").alias(_PATH)), F.col("referenced_file") == F.col(_PATH), "left_semi"
    )


# -- Find the files that a commit removes by a row filter or by the partitions of new files ---------------------------


_ALL_MATCH = "all_match"


def refuse_other_columns(
    filters: Iterable[BooleanExpression | str], started: TableMetadata, current: TableMetadata
) -> None:
    """Refuse filters with names of columns that others have renamed, deleted or replaced since an operation began.

    Raises:
        CommitConflictError: a name belongs to another column, or to none.
        InvalidFilterError: there was no such column when the operation began.
    """
    if started.current_schema_id == current.current_schema_id:
        return
    before, after = SchemaFields(started.schema()), SchemaFields(current.schema())
    for row_filter in map(parse_filter, filters):
        for name in sorted(referenced_names(row_filter)):
            if _field_id(after, name) != before.find(name).field.field_id:
                problem = f"others have renamed, deleted or replaced column {shown(name)}"
                raise CommitConflictError(f"{current.location}: {problem} of the filter {as_text(row_filter)}")


def _field_id(fields: SchemaFields, name: str) -> int | None:
    try:
        return fields.find(name).field.field_id
    except InvalidFilterError:
        return None


@dataclass
class FilteredFiles:
    """Finds the data files whose rows all match a filter."""

    row_filter: BooleanExpression | str
    _memo: LeafMemo = field(default_factory=LeafMemo)

    def find(self, state: TableState, searches: Searches) -> Removal:
        """Find the live files that match, and their deletion vectors.

        Raises:
            ValidationError: a file may match only partly.
        """
        scan = ScanFilter.of(state, self.row_filter)
        leaves = matching_manifests(live_leaves(state, ContentType.DATA_MANIFEST), scan)
        judged = _Matching(state, self._memo, _narrow(state).append(pa.field(_ALL_MATCH, pa.bool_())))
        entries = judged.entries(leaves, lambda fresh: self._judged(scan, fresh))
        if isinstance(entries, pa.Table):
            self._refuse_partly(state, entries.filter(pc.invert(entries.column(_ALL_MATCH))))
            return _with_dvs(state, entries.drop_columns([_ALL_MATCH]), searches)
        self._refuse_partly(state, entries.where(~F.col(_ALL_MATCH)).limit(1).toArrow())
        return _many_with_dvs(state, entries.drop(_ALL_MATCH))

    def _judged(self, scan: ScanFilter, leaves: pa.Table) -> DataFrame:
        """Return the entries that may match, and whether all of their rows match."""
        state = scan.state
        candidates = matching_entries(state.entries(leaves, state.projection(SEARCH_COLUMNS, scan.filter_ids)), scan)
        all_match = all_rows_match(scan).alias(_ALL_MATCH)
        return candidates.selectExpr(*map(sql.quoted, _narrow(state).names), all_match.selected)

    def _refuse_partly(self, state: TableState, partly: pa.Table) -> None:
        if len(partly):
            raise ValidationError(
                f"{state.metadata.location}: cannot delete {partly.column('location')[0]} as a whole: some of its rows "
                f"may not match {as_text(parse_filter(self.row_filter))}"
            )


@dataclass
class ReplacedFiles:
    """Finds the data files in the partitions of new files.

    If a new file has an unpartitioned spec, these are all files of all specs (semantics 12.4).
    """

    files: DataFrame
    _memo: LeafMemo = field(default_factory=LeafMemo)

    def find(self, state: TableState, searches: Searches) -> Removal:
        """Find the live files in these partitions, and their deletion vectors."""
        leaves = live_leaves(state, ContentType.DATA_MANIFEST)
        partitions = materialize(new_partitions(state, self.files))
        if replaces_everything(state, partitions):
            matching = partial(live_entries, state)
        else:
            head = partitions.limit(FEW_FILES + 1).toArrow()
            few = len(head) <= FEW_FILES
            leaves = leaves_of_partitions(state, leaves, head) if few else leaves
            matching = partial(_in_partitions, state, partitions=F.broadcast(partitions) if few else partitions)
        entries = _Matching(state, self._memo, _narrow(state)).entries(leaves, matching)
        if isinstance(entries, pa.Table):
            return _with_dvs(state, entries, searches)
        return _many_with_dvs(state, entries)


def _in_partitions(state: TableState, leaves: pa.Table, partitions: DataFrame) -> DataFrame:
    same = partition_key(state).eqNullSafe(sql.col(PARTITION_KEY)).column()
    return live_entries(state, leaves).join(keys_of(state, partitions), same, "left_semi")


@dataclass(frozen=True)
class _Matching:
    """Collects matching entries. If they are few, keeps them on the driver and remembers them for the next attempt.

    Attributes:
        memo: the entries found by earlier attempts.
        schema: the schema of the entries.
    """

    state: TableState
    memo: LeafMemo
    schema: pa.Schema

    def entries(self, leaves: pa.Table, matching: Callable[[pa.Table], DataFrame]) -> pa.Table | DataFrame:
        """Return the matching entries of leaves.

        Args:
            leaves: rows of `state.manifests`.
            matching: reads the matching entries of leaves that earlier attempts have not searched.
        """
        known, fresh = self.memo.recall(self.state, leaves, self.schema)
        if not len(fresh):
            return known
        entries = materialize(matching(fresh).select(*self.schema.names))
        head = entries.limit(FEW_FILES + 1).toArrow()
        if len(head) > FEW_FILES:
            return entries.unionByName(local_frame(self.state.spark, known))
        head = head.cast(self.schema)
        self.memo.keep(self.state, fresh, head)
        return pa.concat_tables([known, head]).combine_chunks()


def _narrow(state: TableState) -> pa.Schema:
    return state.projection(SEARCH_COLUMNS).schema


def _with_dvs(state: TableState, data: pa.Table, searches: Searches) -> Removal:
    """Return the removal of data files and their deletion vectors."""
    return removal_of_rows(pa.concat_tables([data, dvs_of(state, data, searches)]), state)


def _many_with_dvs(state: TableState, data: DataFrame) -> Removal:
    dvs = many_dvs_of(state, data)
    return removal_of(data.unionByName(dvs.select(*data.columns)), state)
