"""Which entries of a table a commit removes: found by Spark, named by leaf and ordinal or by the root's own key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.commit.summary import KindCount, PartitionKey, Tally, partition_keys, tally_of
from sparkmeta.commit.tree import FileKey
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.avro.read import schema_of
from sparkmeta.manifests.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.manifests.tree import IN_ROOT
from sparkmeta.plan.prune import is_live, live_manifests
from sparkmeta.session import local_frame, materialize
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.summary import FileKind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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

# Up to so many values are written into a query.
_LITERALS = 200
_WANTED = "_wanted"

# One row for each manifest that entries are removed from, and kind of files (`FileKind`).
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


@dataclass(frozen=True)
class Removal:
    """Entries that are removed: of leaves by ordinal, of the root by key; and what they amount to."""

    masks: Mapping[str, PositionBitmap] = field(default_factory=dict)
    keys: frozenset[FileKey] = frozenset()
    tally: Tally = field(default_factory=Tally)

    def plus(self, other: Removal) -> Removal:
        """Both; raises ValidationError where an entry is in both."""
        masks = dict(self.masks)
        for leaf, bitmap in other.masks.items():
            if leaf in masks and masks[leaf].intersects(bitmap):
                raise ValidationError(f"{leaf}: a file is removed twice in one commit")
            masks[leaf] = masks[leaf].union(bitmap) if leaf in masks else bitmap
        for key in self.keys & other.keys:
            raise ValidationError(f"{key.location} is removed twice in one commit")
        return Removal(masks, self.keys | other.keys, self.tally.plus(other.tally))

    def shared(self, other: Removal) -> Removal | None:
        """The entries that are in both, without a tally; None where none are."""
        masks = {
            leaf: bitmap.difference(bitmap.difference(other.masks[leaf]))
            for leaf, bitmap in self.masks.items()
            if leaf in other.masks and bitmap.intersects(other.masks[leaf])
        }
        keys = self.keys & other.keys
        return Removal(masks, keys) if masks or keys else None


def without(found: DataFrame, removal: Removal, state: TableState) -> DataFrame:
    """The entries in `found`, rows of a projection of `FOUND_COLUMNS`, that a small removal does not have."""
    assert state.tree is not None
    ids = {location: place for place, location in enumerate(state.tree.root.table.column("location").to_pylist())}
    ordinals = {ids[leaf]: np.concatenate(list(bitmap.positions())) for leaf, bitmap in removal.masks.items()}
    masked = pa.table(
        {
            MANIFEST: pa.array(np.repeat([*ordinals], [*map(len, ordinals.values())]), pa.int32()),
            ORDINAL: pa.array(np.concatenate([*ordinals.values(), np.empty(0, np.int64)]), pa.int64()),
        }
    )
    keys = [{"location": key.location, "offset": key.offset} for key in removal.keys]
    own = pa.Table.from_pylist(keys, pa.schema([pa.field("location", pa.string()), pa.field("offset", pa.int64())]))
    left = found.join(F.broadcast(local_frame(state.spark, masked)), [MANIFEST, ORDINAL], "left_anti")
    named = F.broadcast(local_frame(state.spark, own)).alias("own")
    same = (F.col("found.location") == F.col("own.location")) & F.col("found.deletion_vector.offset").eqNullSafe(
        F.col("own.offset")
    )
    return left.alias("found").join(named, same, "left_anti")


def removal_of(found: DataFrame, state: TableState, few: bool) -> Removal:
    """The entries in `found` as a removal; runs a job.

    found: rows of a projection of `FOUND_COLUMNS`. few: they are at most some thousands, and come to the driver.
    """
    columns = [MANIFEST, ORDINAL, *_KEY_COLUMNS, *([PARTITION] if PARTITION in found.columns else [])]
    if few:
        return removal_of_rows(found.select(*columns).toArrow(), state)
    own_ids = _own_ids(state).to_pylist()
    kept = materialize(found.select(*columns))
    rows = kept.where(F.col(MANIFEST).isin(own_ids)).toArrow()
    grouped = kept.where(~F.col(MANIFEST).isin(own_ids)).groupBy(MANIFEST).applyInArrow(_grouped, schema_of(_GROUPS))
    return _removal(grouped.toArrow(), rows, state)


def removal_of_rows(rows: pa.Table, state: TableState) -> Removal:
    """As `removal_of`, of entries that are on the driver; runs no job."""
    in_root = pc.is_in(rows.column(MANIFEST), _own_ids(state))
    leaves = [_grouped(group) for group in _by_manifest(rows.filter(pc.invert(in_root)))]
    removal = _removal(pa.concat_tables(leaves or [_GROUPS.empty_table()]), rows.filter(in_root), state)
    return replace(removal, tally=replace(removal.tally, partitions=_partitions(rows, state)))


def _own_ids(state: TableState) -> pa.Array:
    """The small ids of the manifests that are the root's own files."""
    own = state.roots.filter(pc.equal(state.roots.column("file_format"), IN_ROOT))
    return own.column(MANIFEST).combine_chunks().cast(pa.int32())


_KEY_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
)


def _by_manifest(rows: pa.Table) -> Iterable[pa.Table]:
    for manifest in rows.column(MANIFEST).unique().to_pylist():
        yield rows.filter(pc.equal(rows.column(MANIFEST), manifest))


def _grouped(rows: pa.Table) -> pa.Table:
    """The entries of one manifest as rows of `_GROUPS`."""
    made: list[dict[str, Any]] = []
    ordinals = np.asarray(rows.column(ORDINAL).to_numpy(), np.int64)
    for kind, count in tally_of(rows).items():
        made.append(
            {
                MANIFEST: rows.column(MANIFEST)[0].as_py(),
                "kind": kind.value,
                "files": count.files,
                "records": count.records,
                "size": count.size,
                "ordinals": None if made else write_deletion_vector(PositionBitmap.of(ordinals)),
            }
        )
    return pa.Table.from_pylist(made, schema=_GROUPS)


def _removal(groups: pa.Table, own: pa.Table, state: TableState) -> Removal:
    masks: dict[str, PositionBitmap] = {}
    tally = Tally(tally_of(own), None)
    for row in groups.to_pylist():
        if row["ordinals"] is not None:
            assert state.tree is not None
            leaf = state.tree.root.table.column("location")[row[MANIFEST]].as_py()
            masks[leaf] = read_inline_vector(row["ordinals"], leaf)
        count = KindCount(row["files"], row["records"], row["size"])
        tally = tally.plus(Tally({FileKind(row["kind"]): count}, None))
    offsets = pc.struct_field(own.column("deletion_vector"), "offset").to_pylist()
    keys = zip(own.column("content_type").to_pylist(), own.column("location").to_pylist(), offsets, strict=True)
    return Removal(masks, frozenset(FileKey(*key) for key in keys), tally)


def _partitions(rows: pa.Table, state: TableState) -> frozenset[PartitionKey]:
    """The partitions of entries that are on the driver."""
    fields = {field_id for pairs in state.tuple_sources.values() for field_id, _ in pairs}
    values = {one: pc.struct_field(rows.column(PARTITION), str(one)).to_pylist() for one in fields}
    return partition_keys(rows.column("partition_spec_id").to_pylist(), values, state.tuple_sources)


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
    if len(head) <= FEW_FILES:
        return _find_few(state, head)
    asked = materialize(wanted)
    _refuse_twice(asked, state)
    found = materialize(_by_key(state, asked))
    _refuse_missing(state, asked, found)
    paths = found.where(F.col("content_type") == int(ContentType.DATA)).select(F.col("location").alias("data_path"))
    vectors = vectors_of(state, paths, False)
    taken = found.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    again = vectors.join(taken.select(MANIFEST, ORDINAL), [MANIFEST, ORDINAL], "left_anti")
    return removal_of(found.unionByName(again), state, False)


def _find_few(state: TableState, asked: pa.Table) -> Removal:
    """As `find_files`, of files that are on the driver: a job for them, another for their vectors if there are any."""
    keys = _asked_keys(asked)
    if twice := [path for (path, _), count in Counter(keys).items() if count > 1]:
        raise ValidationError(f"{state.metadata.location}: {twice[0]} is to be removed twice")
    wanted = set(keys)
    found = _few_entries(state, _named_roots(state, asked), "location", [path for path, _ in keys])
    found = found.filter(pa.array([key in wanted for key in _entry_keys(found)], pa.bool_()))
    if missing := wanted.difference(_entry_keys(found)):
        path = min(path for path, _ in missing)
        raise ValidationError(f"{state.metadata.location}: {path} is no live file of the table")
    data = found.filter(pc.equal(found.column("content_type"), int(ContentType.DATA)))
    delete_roots = live_manifests(state.manifests(ContentType.DELETE_MANIFEST))
    vectors = _few_entries(state, delete_roots, "referenced_file", data.column("location").to_pylist())
    offsets = pc.struct_field(vectors.column("deletion_vector"), "offset")
    position = pc.equal(vectors.column("content_type"), int(ContentType.POSITION_DELETES))
    vectors = vectors.filter(pc.and_(position, offsets.is_valid()))
    again = vectors.filter(pa.array([key not in wanted for key in _entry_keys(vectors)], pa.bool_()))
    return removal_of_rows(pa.concat_tables([found, again]), state)


def _asked_keys(asked: pa.Table) -> list[tuple[str, int | None]]:
    paths = asked.column("file_path").to_pylist()
    offsets = (
        asked.column("content_offset").to_pylist() if "content_offset" in asked.column_names else [None] * len(paths)
    )
    return list(zip(paths, offsets, strict=True))


def _entry_keys(entries: pa.Table) -> list[tuple[str, int | None]]:
    offsets = pc.struct_field(entries.column("deletion_vector"), "offset").to_pylist()
    return list(zip(entries.column("location").to_pylist(), offsets, strict=True))


def _few_entries(state: TableState, roots: pa.Table, column: str, values: list[str]) -> pa.Table:
    """The live entries of some manifests that have one of some values in a column, on the driver.

    A few values are written into the query, so that Spark's Parquet reader looks for them.
    """
    projection = state.projection(FOUND_COLUMNS)
    if not values or not len(roots):
        return projection.schema.empty_table()
    entries = state.entries(roots, projection).where(is_live().text)
    if len(values) <= _LITERALS:
        return entries.where(sql.col(column).isin(values).text).toArrow().cast(projection.schema)
    keys = local_frame(state.spark, pa.table({_WANTED: values}))
    found = entries.join(F.broadcast(keys), F.expr(f"{column} = {_WANTED}"), "left_semi")
    return found.toArrow().cast(projection.schema)


def _key_columns(asked: DataFrame) -> tuple[Column, Column]:
    offset = F.col("content_offset") if "content_offset" in asked.columns else F.lit(None).cast("long")
    return F.col("file_path").alias("asked_path"), offset.alias("asked_offset")


def _by_key(state: TableState, asked: DataFrame) -> DataFrame:
    entries = state.entries(live_manifests(state.roots), state.projection(FOUND_COLUMNS)).where(is_live().text)
    keys = asked.select(*_key_columns(asked))
    same = (F.col("location") == F.col("asked_path")) & (
        F.col("deletion_vector.offset").eqNullSafe(F.col("asked_offset"))
    )
    return entries.join(keys, same, "left_semi")


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
    entries = state.entries(roots, projection).where(is_live().text)
    deletes = entries.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    keys = F.broadcast(paths) if few else paths
    return deletes.join(keys, F.col("referenced_file") == F.col("data_path"), "left_semi")


class VectorsKey(NamedTuple):
    """What tells one set of deletes from another, wherever in the tree they stand."""

    deletes: int
    hashes: Decimal


def vectors_key(deletes: DataFrame) -> VectorsKey:
    """The key of entries of deletes; runs a job. A flush and a compaction move entries, and don't change it."""
    offset = F.coalesce("deletion_vector.offset", F.lit(-1).cast("long"))
    hashes = F.sum(F.xxhash64("location", offset).cast("decimal(38,0)"))
    row = deletes.agg(F.count("*").alias("deletes"), F.coalesce(hashes, F.lit(0)).cast("decimal(38,0)").alias("hashes"))
    return VectorsKey(**row.toArrow().to_pylist()[0])
