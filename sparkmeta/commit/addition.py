"""The files that a commit adds: a few as rows for the root, many as leaves that Spark tasks write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.commit.affinity import DELETE_ENTRY_BYTES, live_owners, with_owners, write_affiliated
from sparkmeta.commit.file_rows import FILE_COLUMNS, FileRows, TupleField
from sparkmeta.commit.summary import KindCount, Tally, file_kind, tally_of, tree_partitions
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.avro.read import schema_of
from sparkmeta.manifests.leaf_writer import OWNER, LeafFormat, write_leaves
from sparkmeta.manifests.projection import CONTENT_STATS
from sparkmeta.session import materialize
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.summary import FileKind
from sparkmeta.storage.files import executor_writer
from sparkmeta.storage.location import join
from sparkmeta.storage.reading import read_parquet

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql import Column, DataFrame

    from sparkmeta.commit.options import TreeOptions
    from sparkmeta.state import TableState


# What DataFrame.limit() takes, but for the one row that tells that there are more.
_MOST_LIMIT = (1 << 31) - 2


@dataclass(frozen=True)
class Addition:
    """Files that are added: rows for the root, or the root's entries for leaves that hold them."""

    rows: pa.Table | None = None
    leaves: pa.Table | None = None
    tally: Tally = field(default_factory=Tally)

    def plus(self, other: Addition) -> Addition:
        """Both."""
        rows, leaves = (
            pa.concat_tables(found) if (found := [one for one in pair if one is not None]) else None
            for pair in ((self.rows, other.rows), (self.leaves, other.leaves))
        )
        return Addition(rows, leaves, self.tally.plus(other.tally))


def file_rows(state: TableState) -> FileRows:
    """What turns rows of files into entries of this table."""
    names = {one.field_id: one.name for one in state.partition_type.fields}
    specs = {}
    for spec_id, spec in state.specs.items():
        sources = dict(state.tuple_sources[spec_id])
        specs[spec_id] = tuple(
            TupleField(
                tuple(dict.fromkeys((names.get(one.field_id, one.name), one.name))),
                sources.get(one.field_id),
                state.partition_fields[one.field_id],
            )
            for one in spec.fields
        )
    return FileRows(state.metadata.location, state.stats_types, specs, state.metadata.default_spec_id)


def leaf_format(state: TableState, name: str, target_bytes: int) -> LeafFormat:
    """How this table's leaves are written; `name` begins the names of one commit's files."""
    sources = {spec_id: frozenset(source for _, source in fields) for spec_id, fields in state.tuple_sources.items()}
    folder = join(state.metadata.location, "metadata")
    return LeafFormat(folder, name, state.stats_types, sources, target_bytes, executor_writer(state.files))


def add_files(
    state: TableState, files: DataFrame, form: LeafFormat, options: TreeOptions, allowed: Collection[int]
) -> Addition:
    """New files as an addition; more than `direct_files` are written into leaves, by a job.

    Deletes that are many for one data leaf, `affiliated_deletes`, are in any case, into leaves that belong to it.

    files: columns of `inspect.files`. allowed: their content types.

    Raises:
        ValidationError: a row that is no file of this table, or is there twice.
    """
    rows = file_rows(state)
    known = files.select(*(name for name in FILE_COLUMNS if name in files.columns))
    few = min(options.direct_files, _MOST_LIMIT)
    head = known.limit(few + 1).toArrow()
    only_deletes = int(ContentType.DATA) not in allowed
    if len(head) <= few and not (only_deletes and len(head) >= options.affiliated_deletes):
        return _direct(rows.entries(head), state, allowed)
    entries = known.mapInArrow(rows.batches, schema_of(rows.schema))
    if only_deletes and state.tree is not None:
        return _add_deletes(state, entries, form, options, allowed)
    return _in_leaves(write_leaves(_clustered(entries, state), form), state, allowed)


def _direct(entries: pa.Table, state: TableState, allowed: Collection[int]) -> Addition:
    """Files that stand in the root."""
    _refuse_kinds(entries, allowed, state)
    _refuse_twice(entries, state)
    return Addition(rows=entries, tally=_tally(entries, state)) if len(entries) else Addition()


def _in_leaves(leaves: pa.Table, state: TableState, allowed: Collection[int]) -> Addition:
    """Files that stand in leaves, which have been written."""
    _refuse_leaf_kinds(state, leaves, allowed)
    return Addition(leaves=leaves, tally=Tally(_counts_of_leaves(state, leaves), None)) if len(leaves) else Addition()


def _add_deletes(
    state: TableState, entries: DataFrame, form: LeafFormat, options: TreeOptions, allowed: Collection[int]
) -> Addition:
    """Deletes by the data leaves that hold their files; what belongs to none is treated like any other file."""
    assert state.tree is not None
    roots = state.manifests(ContentType.DATA_MANIFEST)
    roots = roots.filter(state.tree.has_tree_layout(roots))
    placed = materialize(with_owners(entries, live_owners(state, roots)))
    rest, owned = write_affiliated(placed, form, options.affiliated_deletes, DELETE_ENTRY_BYTES)
    rest = rest.drop(OWNER)
    head = rest.limit(options.direct_files + 1).toArrow()
    if len(head) <= options.direct_files:
        direct = _direct(head.cast(form.schema).combine_chunks(), state, allowed)
        return direct.plus(_in_leaves(owned, state, allowed))
    return _in_leaves(pa.concat_tables([owned, write_leaves(_clustered(rest, state), form)]), state, allowed)


def _clustered(entries: DataFrame, state: TableState) -> DataFrame:
    """In ranges of partition values, then of the sort order's columns, then of paths: each task writes neighbours."""
    keys = [F.col("content_type"), F.col("partition_spec_id"), *_cluster_columns(state), F.col("location")]
    return entries.repartitionByRange(*keys).sortWithinPartitions(*keys)


def _cluster_columns(state: TableState) -> list[Column]:
    spec_id = state.metadata.default_spec_id
    sorted_by = [one.source_id for one in state.metadata.sort_order().fields]
    ids = [source for _, source in state.tuple_sources[spec_id]] + sorted_by
    known = [one for one in dict.fromkeys(ids) if one in state.stats_types]
    return [F.col(f"{CONTENT_STATS}.`{one}`.lower_bound") for one in known]


def _tally(entries: pa.Table, state: TableState) -> Tally:
    return Tally(tally_of(entries), tree_partitions(entries, state.tuple_sources))


def _counts_of_leaves(state: TableState, leaves: pa.Table) -> dict[FileKind, KindCount]:
    """What the leaves that were just written hold, by kind: a scan of some narrow columns."""
    counted = ("content_type int", "file_format string", "record_count bigint", "file_size_in_bytes bigint")
    schema = ", ".join([*counted, "deletion_vector struct<size_in_bytes: bigint>"])
    size = F.coalesce("deletion_vector.size_in_bytes", "file_size_in_bytes")
    read = read_parquet(state.spark, leaves.column("location").to_pylist(), schema)
    totals = (F.count("*").alias("files"), F.sum("record_count").alias("records"), F.sum(size).alias("size"))
    sums = read.groupBy("content_type", "file_format").agg(*totals)
    found = Tally()
    for row in sums.collect():
        kind = file_kind(row["content_type"], row["file_format"])
        found = found.plus(Tally({kind: KindCount(row["files"], row["records"], row["size"])}))
    return dict(found.counts)


def _refuse_kinds(entries: pa.Table, allowed: Iterable[int], state: TableState) -> None:
    for kind in entries.column("content_type").unique().to_pylist():
        if kind not in set(allowed):
            wrong = entries.filter(pc.equal(entries.column("content_type"), kind)).column("location")[0]
            raise ValidationError(
                f"{state.metadata.location}: {wrong} has content {kind}: this operation adds none of it"
            )


def _refuse_leaf_kinds(state: TableState, leaves: pa.Table, allowed: Iterable[int]) -> None:
    wanted = set(allowed)
    deletes = ContentType.DELETE_MANIFEST in leaves.column("content_type").to_pylist()
    data = ContentType.DATA_MANIFEST in leaves.column("content_type").to_pylist()
    if (deletes and not wanted - {0}) or (data and 0 not in wanted):
        raise ValidationError(f"{state.metadata.location}: this operation adds only files of content {sorted(wanted)}")


def _refuse_twice(entries: pa.Table, state: TableState) -> None:
    offsets = pc.struct_field(entries.column("deletion_vector"), "offset").to_pylist()
    seen: set[tuple[str, int | None]] = set()
    for key in zip(entries.column("location").to_pylist(), offsets, strict=True):
        if key in seen:
            raise ValidationError(f"{state.metadata.location}: {key[0]} is to be added twice")
        seen.add(key)
