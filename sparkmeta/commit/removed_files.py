"""Find the files that a commit removes: by name, by a row filter, or by the partitions of new files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.commit.new_files import (
    in_partitions,
    new_partitions,
    partitions_of,
    replaces_everything,
    rows_of,
)
from sparkmeta.commit.next_root import FileKey, union_of_masks
from sparkmeta.commit.partition_folders import partitions_of_folders
from sparkmeta.entries import relation
from sparkmeta.entries.live import is_kind
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.entries.relation import (
    computed,
    few,
    few_or_many,
    first,
    frame_of,
    matching,
    nothing,
    repeated,
    select,
    some_columns,
    union,
    where,
    with_columns,
)
from sparkmeta.entries.tally import KindCount, Tally, sums_by_kind, tally_of
from sparkmeta.errors import CommitConflictError, InvalidFilterError, ValidationError, shown
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.filter_text import as_text
from sparkmeta.expr.predicate import parse_filter, referenced_names
from sparkmeta.expr.predicate_terms import SchemaFields
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.filter import ScanFilter, all_rows_match, matching_entries
from sparkmeta.plan.pairs import deletes_by_affinity, deletes_by_partition
from sparkmeta.plan.prune import matching_manifests
from sparkmeta.session import local_frame, materialize
from sparkmeta.snapshot.search import (
    Candidates,
    FileName,
    LeafMemo,
    PathSearch,
    leaves_of_partitions,
    live_entries,
    live_leaves,
    live_manifests,
    live_relation,
    named_leaves,
    root_manifests,
    rows_by_manifest,
    search_all,
    search_projection,
)
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.file_kind import FileKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata


# The name of a file in a search -> in entries.
_PATH, _OFFSET = "named_path", "named_offset"
_FILE = {_PATH: "location", _OFFSET: "deletion_vector.offset"}


# -- The entries that a commit removes --------------------------------------------------------------------------------
# Entries are identified by ordinals in manifests, and by keys in the root of a tree.


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
        vectors: leaf location -> ordinals of data files whose entries lose their deletion vector.
        gaining: leaf location -> ordinals of data files whose entries get a deletion vector.
        rewritten: the part of `gaining` whose new entries the commit has written to leaves.
    """

    masks: Mapping[str, PositionBitmap] = field(default_factory=dict)
    keys: frozenset[FileKey] = frozenset()
    tally: Tally = field(default_factory=Tally)
    vectors: Mapping[str, PositionBitmap] = field(default_factory=dict)
    gaining: Mapping[str, PositionBitmap] = field(default_factory=dict)
    rewritten: Mapping[str, PositionBitmap] = field(default_factory=dict)

    def plus(self, other: Removal) -> Removal:
        """Return the union with another removal. Raises ValidationError for an entry that is in both."""
        names = ("masks", "vectors", "gaining", "rewritten")
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        for ours, theirs in pairs:
            for leaf in ours.keys() & theirs.keys():
                if ours[leaf].intersects(theirs[leaf]):
                    raise ValidationError(f"{leaf}: a file is removed twice in one commit")
        masks, *others = (union_of_masks(*pair) for pair in pairs)
        for key in self.keys & other.keys:
            raise ValidationError(f"{key.location} is removed twice in one commit")
        return Removal(masks, self.keys | other.keys, self.tally.plus(other.tally), *others)

    def masks_of(self, state: TableState) -> dict[int, PositionBitmap]:
        """Return the ordinals of removed entries by the small id of their manifest."""
        removed = {
            manifest: (self.vectors if are_vectors else self.masks).get(location)
            for manifest, (location, are_vectors) in _leaves(state).items()
        }
        return {manifest: bitmap for manifest, bitmap in removed.items() if bitmap is not None}


def without(entries: Relation, removal: Removal, state: TableState) -> Relation:
    """Return entries of `SEARCH_COLUMNS` that are not in a removal. If there are many entries, the removal is small."""
    if not (removal.masks or removal.vectors or removal.keys):
        return entries
    masks = removal.masks_of(state)
    if isinstance(entries, pa.Table):
        positions = zip(entries.column(MANIFEST).to_pylist(), entries.column(ORDINAL).to_pylist(), strict=True)
        is_kept = []
        for key, (manifest, ordinal) in zip(_keys(entries), positions, strict=True):
            mask = masks.get(manifest)
            is_kept.append(FileKey(*key) not in removal.keys and (mask is None or not mask.contains(ordinal)))
        return entries.filter(pa.array(is_kept, pa.bool_()))
    ordinals = {manifest: np.concatenate(list(bitmap.positions())) for manifest, bitmap in masks.items()}
    masked = pa.table(
        {
            MANIFEST: pa.array(np.repeat([*ordinals], [*map(len, ordinals.values())]), pa.int32()),
            ORDINAL: pa.array(np.concatenate([*ordinals.values(), np.empty(0, np.int64)]), pa.int64()),
        }
    )
    schema = pa.schema([pa.field(_PATH, pa.string()), pa.field(_OFFSET, pa.int64())])
    keys = pa.Table.from_pylist([{_PATH: key.location, _OFFSET: key.offset} for key in removal.keys], schema)
    unmasked = entries.join(F.broadcast(local_frame(state.spark, masked)), [MANIFEST, ORDINAL], "left_anti")
    in_root = F.broadcast(local_frame(state.spark, keys))
    return matching(unmasked, in_root, {path: name for name, path in _FILE.items()}, absent=True)


def removal_of(entries: Relation, state: TableState) -> Removal:
    """Return the removal of entries of `SEARCH_COLUMNS`. If there are few, the tally includes their partitions.

    For many entries, runs jobs.
    """
    root_ids = root_manifests(state).column(MANIFEST).combine_chunks().cast(pa.int32())
    if isinstance(entries, pa.Table):
        in_root = pc.is_in(entries.column(MANIFEST), root_ids)
        rows, partitions = entries.filter(in_root), partitions_of(entries, state)
        leaves = [_grouped(group) for group in rows_by_manifest(entries.filter(pc.invert(in_root))).values()]
        groups = pa.concat_tables(leaves or [_GROUPS.empty_table()])
    else:
        narrow = materialize(entries.select(MANIFEST, ORDINAL, *_KEY_COLUMNS))
        is_in_root = F.col(MANIFEST).isin(root_ids.to_pylist())
        rows, partitions = narrow.where(is_in_root).toArrow(), None
        by_leaf = narrow.where(~is_in_root).groupBy(MANIFEST)
        groups = by_leaf.applyInArrow(_grouped, spark_schema(_GROUPS)).toArrow()
    masks: dict[str, PositionBitmap] = {}
    vectors: dict[str, PositionBitmap] = {}
    counts = [*tally_of(rows).items()]
    leaf_of = _leaves(state)
    for row in groups.to_pylist():
        if row["ordinals"] is not None:
            location, are_vectors = leaf_of[row[MANIFEST]]
            (vectors if are_vectors else masks)[location] = read_inline_vector(row["ordinals"], location)
        counts.append((FileKind(row["kind"]), KindCount(row["files"], row["records"], row["size"])))
    keys = frozenset(FileKey(*key) for key in _keys(rows))
    return Removal(masks, keys, Tally(sums_by_kind(counts), partitions), vectors)


def _grouped(rows: pa.Table) -> pa.Table:
    """Group the entries of one manifest into rows of `_GROUPS`. The first row holds all ordinals."""
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


def _leaves(state: TableState) -> dict[int, tuple[str, bool]]:
    """Return the location of each manifest, and whether its entries are deletion vectors in entries of data files."""
    manifests = state.manifests
    are_vectors = pc.equal(manifests.column("file_format"), VECTORS).to_pylist()
    rows = zip(*(manifests.column(name).to_pylist() for name in (MANIFEST, "location")), are_vectors, strict=True)
    return {manifest: (location, of_vectors) for manifest, location, of_vectors in rows}


def _keys(entries: pa.Table) -> Iterable[tuple[int, str, int | None]]:
    offsets = pc.struct_field(entries.column("deletion_vector"), "offset").to_pylist()
    return zip(entries.column("content_type").to_pylist(), entries.column("location").to_pylist(), offsets, strict=True)


# -- Find the files that a commit names -------------------------------------------------------------------------------
# A search tries these places in order: the root, the manifest named in the file's row, the manifests of the partition
# in the row, the manifests of the partition in the path's folder names, all manifests.


_COLUMNS = ("file_path", "content_offset", "manifest_path", "spec_id", PARTITION)


class NotLiveError(ValidationError):
    """A file to remove is not a live file of the table."""


@dataclass
class Searches:
    """The searches of one commit, shared by its attempts."""

    files: PathSearch = field(default_factory=lambda: PathSearch("location"))
    new_files: PathSearch = field(default_factory=lambda: PathSearch("location"))
    deletes: PathSearch = field(default_factory=lambda: PathSearch("referenced_file"))


def find_files(state: TableState, files: Relation, searches: Searches) -> Removal:
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


def find_live_deletes(state: TableState, files: Relation, searches: Searches) -> Removal:
    """Find entries of delete files as `find_files` does, ignoring files that are not live."""
    return _find(state, files, searches, only_live_deletes=True)


def _find(state: TableState, files: Relation, searches: Searches, *, only_live_deletes: bool) -> Removal:
    if "file_path" not in relation.names(files):
        raise ValidationError("the files to remove have no column file_path")
    rows, table = few_or_many(some_columns(files, _COLUMNS), state), state.metadata.location
    file_names = _names(rows)
    if first(file_names, sql.col(_PATH).isNull()):
        raise ValidationError(f"{table}: file_path of a file to remove is None")
    if duplicate := repeated(file_names, [_PATH, _OFFSET]):
        raise ValidationError(f"{table}: {duplicate[_PATH]} is to be removed twice")
    if isinstance(rows, pa.Table):
        entries, first_missing = _few_entries(state, rows, file_names, searches, only_live_deletes)
    else:
        entries, first_missing = _many_entries(state, rows, file_names, only_live_deletes)
    if first_missing is not None and not only_live_deletes:
        raise NotLiveError(f"{table}: {first_missing[_PATH]} is not a live file of the table")
    dvs = dvs_of(state, where(entries, is_kind(ContentType.DATA)), searches)
    named_vectors = where(entries, is_kind(ContentType.POSITION_DELETES))
    unnamed_vectors = matching(dvs, named_vectors, {path: path for path in _FILE.values()}, absent=True)
    return removal_of(union(entries, unnamed_vectors, state), state)


def _names(files: Relation) -> Relation:
    offset = sql.col("content_offset") if "content_offset" in relation.names(files) else sql.lit(None).cast("bigint")
    return select(files, [sql.col("file_path").alias(_PATH), offset.alias(_OFFSET)])


def _few_entries(
    state: TableState, rows: pa.Table, names: pa.Table, searches: Searches, only_live_deletes: bool
) -> tuple[pa.Table, dict[str, Any] | None]:
    """Return the live entries of files, and the name of the first file without one; None if all files have one."""
    # Only deletion vectors have an offset.
    in_deletes = only_live_deletes or not names.column(_OFFSET).null_count
    data = [] if in_deletes else [ContentType.DATA_MANIFEST]
    leaves = [live_leaves(state, content) for content in (*data, ContentType.DELETE_MANIFEST)]
    stages = [search_all(root_manifests(state))]
    stages += [stage for manifests in leaves for stage in _hinted(state, rows, manifests)]
    stages += [_by_folders(state, manifests) for manifests in leaves]
    stages += map(search_all, leaves)
    files = map(FileName, *(names.column(name).to_pylist() for name in (_PATH, _OFFSET)))
    entries = searches.files.find(state, files, stages)
    return _named_entries(entries, names), _first_missing(names, entries)


def _many_entries(
    state: TableState, rows: DataFrame, names: DataFrame, only_live_deletes: bool
) -> tuple[DataFrame, dict[str, Any] | None]:
    """Return the same as `_few_entries`. If the manifests that the rows name lack a file, search all manifests."""
    all_manifests = live_manifests(state.delete_manifests if only_live_deletes else state.manifests)
    for manifests in (_named_manifests(rows, all_manifests), all_manifests):
        entries = materialize(_named_entries(live_entries(state, manifests), names))
        missing = _first_missing(names, entries)
        if missing is None or len(manifests) == len(all_manifests):
            break
    return entries, missing


def _named_entries(entries: Relation, names: Relation) -> Relation:
    return matching(entries, names, {path: name for name, path in _FILE.items()})


def _first_missing(names: Relation, entries: Relation) -> dict[str, Any] | None:
    return first(matching(names, entries, _FILE, absent=True))


def _named_manifests(files: DataFrame, manifests: pa.Table) -> pa.Table:
    """Return the root's files and the manifests that files name; all manifests if a file names none."""
    if "manifest_path" not in files.columns:
        return manifests
    paths = files.select("manifest_path").distinct().toArrow().column("manifest_path")
    if paths.null_count:
        return manifests
    in_root = pc.equal(manifests.column("file_format"), IN_ROOT)
    return manifests.filter(pc.or_(in_root, pc.is_in(manifests.column("location"), whole(paths))))


def _hinted(state: TableState, rows: pa.Table, leaves: pa.Table) -> list[Candidates]:
    """Return search stages from hints in the rows: the leaves that they name, then the leaves of their partitions."""
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


def dvs_of(state: TableState, data: Relation, searches: Searches) -> Relation:
    """Return the live deletion vectors of data files. Both are entries of `SEARCH_COLUMNS`."""
    if state.metadata.format_version < 3:  # earlier versions have no deletion vectors
        return nothing(data)
    return where(deletes_of(state, data, delete_leaves(state, data), searches), has_offset())


def has_offset() -> Sql:
    """Return the condition that an entry is a deletion vector."""
    return sql.col("deletion_vector.offset").isNotNull()


def deletes_of(state: TableState, data: Relation, leaves: pa.Table, searches: Searches) -> Relation:
    """Return the live deletion vectors of data files, and position delete files that name one of them.

    Trees have such position delete files only after an upgrade.

    Args:
        state: the table.
        data: the data files, with their `location`.
        leaves: the `delete_leaves` of the files.
        searches: the searches of the commit.
    """
    if isinstance(data, pa.Table):
        entries = searches.deletes.search(state, leaves, data.column("location").to_pylist())
    else:
        entries = matching(live_entries(state, leaves), data, {"referenced_file": "location"})
    return where(entries, is_kind(ContentType.POSITION_DELETES))


def delete_leaves(state: TableState, data: Relation) -> pa.Table:
    """Return the delete manifests that may hold deletes of data files (table spec, Scan Planning).

    These are the manifests affiliated with a manifest of the files, and unaffiliated manifests that share a partition
    with the files (if there are few) or with their manifests. For many files, runs a job that finds the manifests.

    Args:
        state: the table.
        data: the data files with their `manifest`, and with their partitions if there are few.
    """
    deletes = live_leaves(state, ContentType.DELETE_MANIFEST)
    if not len(deletes) or (isinstance(data, pa.Table) and not len(data)):
        return deletes.slice(0, 0)
    if not isinstance(data, pa.Table):
        manifests = _manifests_with(state, data.select(MANIFEST).distinct().toArrow().column(MANIFEST))
        return deletes_by_partition(state, manifests, deletes_by_affinity(state, manifests, deletes))
    if state.tree is None:
        return leaves_of_partitions(state, deletes, data)
    relevant = deletes_by_affinity(state, _manifests_with(state, data.column(MANIFEST)), deletes)
    affiliated = relevant.column("referenced_file").is_valid()
    unaffiliated = leaves_of_partitions(state, relevant.filter(pc.invert(affiliated)), data)
    return pa.concat_tables([relevant.filter(affiliated), unaffiliated])


def _manifests_with(state: TableState, ids: pa.ChunkedArray) -> pa.Table:
    return state.manifests.filter(pc.is_in(state.manifests.column(MANIFEST), whole(ids).unique()))


# -- Find files by a row filter or by partitions ----------------------------------------------------------------------


_ALL_MATCH = "all_match"


def refuse_other_columns(
    filters: Iterable[BooleanExpression | str], started: TableMetadata, current: TableMetadata
) -> None:
    """Refuse filters on columns that others have renamed, deleted or replaced since an operation began.

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
        search = _Matching(state, self._memo, _search_schema(state).append(pa.field(_ALL_MATCH, pa.bool_())))
        entries = search.entries(leaves, lambda fresh: self._with_all_match(scan, fresh))
        if partly := first(entries, ~sql.col(_ALL_MATCH)):
            raise ValidationError(
                f"{state.metadata.location}: cannot delete {partly['location']} as a whole: some of its rows may not "
                f"match {as_text(parse_filter(self.row_filter))}"
            )
        return _with_dvs(state, entries, searches)

    def _with_all_match(self, scan: ScanFilter, leaves: pa.Table) -> Relation:
        """Return the entries that may match, and whether all of their rows match."""
        state = scan.state
        projection = search_projection(state, scan.filter_ids)
        candidates = matching_entries(live_relation(state, leaves, projection), scan)
        return with_columns(candidates, all_rows_match(scan).alias(_ALL_MATCH))


@dataclass
class ReplacedFiles:
    """Finds the data files in the partitions of new files.

    If a new file has an unpartitioned spec, these are all files of all specs (semantics 12.4).
    """

    files: Relation
    _memo: LeafMemo = field(default_factory=LeafMemo)

    def find(self, state: TableState, searches: Searches) -> Removal:
        """Find the live files in these partitions, and their deletion vectors."""
        leaves = live_leaves(state, ContentType.DATA_MANIFEST)
        partitions = few_or_many(new_partitions(state, self.files), state)
        if replaces_everything(state, partitions):
            replaced = partial(live_relation, state)
        else:
            if isinstance(partitions, pa.Table):
                leaves = leaves_of_partitions(state, leaves, partitions)
            replaced = partial(_in_partitions, state, partitions=partitions)
        return _with_dvs(state, _Matching(state, self._memo, _search_schema(state)).entries(leaves, replaced), searches)


def _in_partitions(state: TableState, leaves: pa.Table, partitions: Relation) -> Relation:
    return in_partitions(state, live_relation(state, leaves), partitions)


@dataclass(frozen=True)
class _Matching:
    """Collects matching entries. If there are few, keeps them on the driver and remembers them for the next attempt.

    Attributes:
        memo: the entries found by earlier attempts.
        schema: the schema of the entries.
    """

    state: TableState
    memo: LeafMemo
    schema: pa.Schema

    def entries(self, leaves: pa.Table, matching: Callable[[pa.Table], Relation]) -> Relation:
        """Return the matching entries of leaves.

        Args:
            leaves: rows of `state.manifests`.
            matching: reads the matching entries of leaves that earlier attempts have not searched.
        """
        remembered, unsearched = self.memo.recall(self.state, leaves, self.schema)
        if not len(unsearched):
            return remembered
        entries = computed(some_columns(matching(unsearched), self.schema.names))
        few_entries = few(entries, self.state)
        if few_entries is None:
            return frame_of(entries, self.state).unionByName(local_frame(self.state.spark, remembered))
        few_entries = few_entries.cast(self.schema)
        self.memo.keep(self.state, unsearched, few_entries)
        return pa.concat_tables([remembered, few_entries]).combine_chunks()


def _search_schema(state: TableState) -> pa.Schema:
    return search_projection(state).schema


def _with_dvs(state: TableState, data: Relation, searches: Searches) -> Removal:
    """Return the removal of data files and their deletion vectors."""
    files = some_columns(data, _search_schema(state).names)
    return removal_of(union(files, dvs_of(state, files, searches), state), state)
