"""Which entries of a table a commit removes: found by Spark, named by leaf and ordinal or by the root's own key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.commit.tree import FileKey
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.avro.read import schema_of
from sparkmeta.manifests.projection import MANIFEST, ORDINAL
from sparkmeta.manifests.tree import IN_ROOT
from sparkmeta.plan.prune import is_live, live_manifests
from sparkmeta.session import local_frame, materialize
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.manifests.projection import EntryProjection
    from sparkmeta.state import TableState

# More removed files than this are never brought to the driver one by one.
FEW_FILES = 20_000

FOUND_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "version_info",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
    "referenced_file",
)

# One row for each manifest that entries are removed from, content type and kind of them.
_GROUPS = pa.schema(
    [
        pa.field(MANIFEST, pa.int32()),
        pa.field("content_type", pa.int32()),
        pa.field("files", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("ordinals", pa.binary()),
    ]
)


@dataclass(frozen=True)
class KindCount:
    """How many files of one content type, the records in them, and their bytes (a deletion vector's blob)."""

    files: int = 0
    records: int = 0
    size: int = 0

    def plus(self, other: KindCount) -> KindCount:
        return KindCount(self.files + other.files, self.records + other.records, self.size + other.size)


Counts = Mapping[int, KindCount]


def add_counts(*counts: Counts) -> dict[int, KindCount]:
    """Counts by content type, added up."""
    total: dict[int, KindCount] = {}
    for one in counts:
        for kind, count in one.items():
            total[kind] = total.get(kind, KindCount()).plus(count)
    return total


@dataclass(frozen=True)
class Removal:
    """Entries that are removed: of leaves by ordinal, of the root by key; and what they amount to."""

    masks: Mapping[str, PositionBitmap] = field(default_factory=dict)
    keys: frozenset[FileKey] = frozenset()
    counts: Counts = field(default_factory=dict)

    def plus(self, other: Removal) -> Removal:
        """Both; raises ValidationError where an entry is in both."""
        masks = dict(self.masks)
        for leaf, bitmap in other.masks.items():
            if leaf in masks and masks[leaf].intersects(bitmap):
                raise ValidationError(f"{leaf}: a file is removed twice in one commit")
            masks[leaf] = masks[leaf].union(bitmap) if leaf in masks else bitmap
        for key in self.keys & other.keys:
            raise ValidationError(f"{key.location} is removed twice in one commit")
        return Removal(masks, self.keys | other.keys, add_counts(self.counts, other.counts))


def removal_of(found: DataFrame, state: TableState, few: bool) -> Removal:
    """The entries in `found` as a removal; runs a job.

    found: rows of a projection of `FOUND_COLUMNS`. few: they are at most some thousands, and come to the driver.
    """
    columns = [MANIFEST, ORDINAL, *_KEY_COLUMNS]
    own = state.roots.filter(pc.equal(state.roots.column("file_format"), IN_ROOT))
    own_ids = own.column(MANIFEST).to_pylist()
    if few:
        rows = found.select(*columns).toArrow()
        in_root = pc.is_in(rows.column(MANIFEST), pa.array(own_ids, pa.int32()))
        leaves = pa.concat_tables([_grouped(group) for group in _by_manifest(rows.filter(pc.invert(in_root)))] or
                                  [_GROUPS.empty_table()])  # fmt: skip
        return _removal(leaves, rows.filter(in_root), state)
    kept = materialize(found.select(*columns))
    rows = kept.where(F.col(MANIFEST).isin(own_ids)).toArrow()
    grouped = kept.where(~F.col(MANIFEST).isin(own_ids)).groupBy(MANIFEST).applyInArrow(_grouped, schema_of(_GROUPS))
    return _removal(grouped.toArrow(), rows, state)


_KEY_COLUMNS = ("content_type", "location", "deletion_vector", "record_count", "file_size_in_bytes")


def _by_manifest(rows: pa.Table) -> Iterable[pa.Table]:
    for manifest in rows.column(MANIFEST).unique().to_pylist():
        yield rows.filter(pc.equal(rows.column(MANIFEST), manifest))


def _grouped(rows: pa.Table) -> pa.Table:
    """The entries of one manifest as rows of `_GROUPS`."""
    made = []
    for kind in rows.column("content_type").unique().to_pylist():
        group = rows.filter(pc.equal(rows.column("content_type"), kind))
        count = _count(group)
        ordinals = group.column(ORDINAL).to_numpy()
        made.append(
            {
                MANIFEST: group.column(MANIFEST)[0].as_py(),
                "content_type": kind,
                "files": count.files,
                "records": count.records,
                "size": count.size,
                "ordinals": write_deletion_vector(PositionBitmap.of(np.asarray(ordinals, np.int64))),
            }
        )
    return pa.Table.from_pylist(made, schema=_GROUPS)


def _count(rows: pa.Table) -> KindCount:
    blobs = pc.struct_field(rows.column("deletion_vector"), "size_in_bytes")
    sizes = pc.coalesce(blobs, rows.column("file_size_in_bytes"))
    return KindCount(len(rows), pc.sum(rows.column("record_count")).as_py() or 0, pc.sum(sizes).as_py() or 0)


def counts_of(rows: pa.Table) -> dict[int, KindCount]:
    """Rows of `tree_schema`, or of a projection of it, by content type."""
    kinds = rows.column("content_type")
    return {kind: _count(rows.filter(pc.equal(kinds, kind))) for kind in kinds.unique().to_pylist()}


def _removal(groups: pa.Table, own: pa.Table, state: TableState) -> Removal:
    assert state.tree is not None
    locations = state.tree.root.table.column("location")
    masks: dict[str, PositionBitmap] = {}
    counts: dict[int, KindCount] = counts_of(own) if len(own) else {}
    for row in groups.to_pylist():
        leaf = locations[row[MANIFEST]].as_py()
        bitmap = read_inline_vector(row["ordinals"], leaf)
        masks[leaf] = masks[leaf].union(bitmap) if leaf in masks else bitmap
        counts = add_counts(counts, {row["content_type"]: KindCount(row["files"], row["records"], row["size"])})
    offsets = pc.struct_field(own.column("deletion_vector"), "offset").to_pylist()
    keys = zip(own.column("content_type").to_pylist(), own.column("location").to_pylist(), offsets, strict=True)
    return Removal(masks, frozenset(FileKey(*key) for key in keys), counts)


# -- by path --------------------------------------------------------------------------------------------------------


def find_files(state: TableState, files: DataFrame) -> Removal:
    """The live entries of data and equality delete files by path, and of deletion vectors by path and offset.

    With a data file goes its deletion vector.

    files: rows with `file_path`; `content_offset` for deletion vectors; `manifest_path`, where it says which manifests
    to look in.

    Raises:
        ValidationError: a path that is no live file of the table, or is there twice.
    """
    named = [name for name in ("file_path", "content_offset", "manifest_path") if name in files.columns]
    if "file_path" not in named:
        raise ValidationError("the files to remove have no column file_path")
    wanted = files.select(*named)
    head = wanted.limit(FEW_FILES + 1).toArrow()
    few = len(head) <= FEW_FILES
    asked = local_frame(state.spark, head) if few else materialize(wanted)
    _refuse_twice(asked, state)
    projection = state.projection(FOUND_COLUMNS)
    roots = _named_roots(state, head) if few else live_manifests(state.roots)
    found = materialize(_by_key(state, roots, projection, asked, few))
    _refuse_missing(state, asked, found)
    paths = found.where(F.col("content_type") == int(ContentType.DATA)).select(F.col("location").alias("data_path"))
    vectors = vectors_of(state, paths, few)
    taken = found.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    again = vectors.join(taken.select(MANIFEST, ORDINAL), [MANIFEST, ORDINAL], "left_anti")
    return removal_of(found.unionByName(again), state, few)


def _key_columns(asked: DataFrame) -> tuple[Column, Column]:
    offset = F.col("content_offset") if "content_offset" in asked.columns else F.lit(None).cast("long")
    return F.col("file_path").alias("asked_path"), offset.alias("asked_offset")


def _by_key(state: TableState, roots: pa.Table, projection: EntryProjection, asked: DataFrame, few: bool) -> DataFrame:
    entries = state.entries(roots, projection).where(is_live())
    keys = asked.select(*_key_columns(asked))
    same = (F.col("location") == F.col("asked_path")) & (
        F.col("deletion_vector.offset").eqNullSafe(F.col("asked_offset"))
    )
    return entries.join(F.broadcast(keys) if few else keys, same, "left_semi")


def _named_roots(state: TableState, asked: pa.Table) -> pa.Table:
    """The manifests that the files say they are in, if all say so and all are in the table still; else all."""
    roots = live_manifests(state.roots)
    if "manifest_path" not in asked.column_names or asked.column("manifest_path").null_count:
        return roots
    named = asked.column("manifest_path").combine_chunks()
    if not pc.all(pc.is_in(named, roots.column("location").combine_chunks())).as_py():
        return roots
    return roots.filter(pc.is_in(roots.column("location"), named))


def _refuse_twice(asked: DataFrame, state: TableState) -> None:
    keys = asked.select(*_key_columns(asked)).groupBy("asked_path", "asked_offset").count()
    twice = keys.where("count > 1").limit(1).toArrow().to_pylist()
    if twice:
        raise ValidationError(f"{state.metadata.location}: {twice[0]['asked_path']} is to be removed twice")


def _refuse_missing(state: TableState, asked: DataFrame, found: DataFrame) -> None:
    keys = asked.select(*_key_columns(asked))
    same = (F.col("location") == F.col("asked_path")) & (
        F.col("deletion_vector.offset").eqNullSafe(F.col("asked_offset"))
    )
    missing = keys.join(found, same, "left_anti").limit(1).toArrow().to_pylist()
    if missing:
        raise ValidationError(f"{state.metadata.location}: {missing[0]['asked_path']} is no live file of the table")


def vectors_of(state: TableState, paths: DataFrame, few: bool) -> DataFrame:
    """The live deletion vectors of data files: entries of `FOUND_COLUMNS`. paths: rows with `data_path`."""
    return deletes_of(state, paths, few).where(F.col("deletion_vector.offset").isNotNull())


def deletes_of(state: TableState, paths: DataFrame, few: bool) -> DataFrame:
    """As `vectors_of`, with the position delete files of upgraded tables that name one data file."""
    roots = live_manifests(state.manifests(ContentType.DELETE_MANIFEST))
    projection = state.projection(FOUND_COLUMNS)
    entries = state.entries(roots, projection).where(is_live())
    deletes = entries.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    keys = F.broadcast(paths) if few else paths
    return deletes.join(keys, F.col("referenced_file") == F.col("data_path"), "left_semi")


def all_true(columns: Iterable[Column]) -> Column:
    """Their conjunction."""
    return reduce(and_, columns, F.lit(True))
