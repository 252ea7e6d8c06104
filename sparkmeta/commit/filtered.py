"""Removals that a filter or a set of partitions names."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.columns.predicate import bind_filter, parse_filter, row_predicate
from sparkmeta.columns.skipping import must_match
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.transforms import projections
from sparkmeta.commit.addition import file_rows
from sparkmeta.commit.removal import FEW_FILES, FOUND_COLUMNS, Removal, removal_of, vectors_of
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.avro.read import schema_of
from sparkmeta.manifests.leaf import entry_columns
from sparkmeta.manifests.projection import MANIFEST, ORDINAL
from sparkmeta.plan.deletes import partition_key
from sparkmeta.plan.prune import ScanFilter, is_live, live_manifests, matching_entries, matching_manifests
from sparkmeta.plan.rows import entry_stats, partition_value
from sparkmeta.session import materialize
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression, BoundPredicate
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState


def files_to_delete(state: TableState, row_filter: BooleanExpression | str) -> Removal:
    """The data files all of whose rows match a filter, and their deletion vectors.

    Raises:
        ValidationError: a file may hold rows that match, and others.
    """
    schema = state.metadata.schema()
    bound = bind_filter(parse_filter(row_filter), schema, case_sensitive=True)
    scan = ScanFilter(state, bound, schema)
    roots = matching_manifests(live_manifests(state.manifests(ContentType.DATA_MANIFEST)), scan)
    projection = state.projection(FOUND_COLUMNS, scan.filter_ids)
    candidates = matching_entries(state.entries(roots, projection), scan)
    top_level = {field.field_id for field in schema.fields}
    all_match = must_match(bound, entry_stats, sql.col("record_count"), top_level, lambda leaf: _by_tuple(leaf, scan))
    judged = materialize(candidates.withColumn("_all_match", all_match.column()))
    partly = judged.where(~F.col("_all_match")).select("location").limit(1).toArrow()
    if len(partly):
        raise ValidationError(
            f"{state.metadata.location}: cannot delete {partly.column('location')[0]} as a whole: some of its rows "
            f"may not match {row_filter}"
        )
    return _with_vectors(state, judged.drop("_all_match"))


def _by_tuple(leaf: BoundPredicate, scan: ScanFilter) -> Sql:
    """Whether a file's partition tuple proves that all of its rows satisfy a predicate."""
    proven = sql.lit(False)
    for spec_id, spec in scan.state.specs.items():
        strict = projections(leaf, spec, scan.schema, strict=True)
        matches = reduce(or_, (row_predicate(one, partition_value, strict=True) for one in strict), sql.lit(False))
        proven = sql.when(sql.col("partition_spec_id") == spec_id, matches).otherwise(proven)
    return sql.coalesce(proven, False)


def files_to_replace(state: TableState, files: DataFrame) -> Removal:
    """The live data files in the partitions of new files, and their deletion vectors.

    All live ones, whatever their specs, where a new file is of an unpartitioned spec (semantics 4.8).
    """
    rows = file_rows(state)
    projection = state.projection(FOUND_COLUMNS)
    raw = files.mapInArrow(rows.batches, schema_of(rows.schema))
    if _any_unpartitioned(state, raw):
        everything = state.entries(live_manifests(state.manifests(ContentType.DATA_MANIFEST)), projection)
        return _with_vectors(state, materialize(everything.where(is_live().text)))
    placed = raw.withColumns({MANIFEST: F.lit(0), ORDINAL: F.lit(0).cast("long")})
    new = placed.selectExpr(*sql.texts(entry_columns(projection, state.tuple_sources, None)))
    keys = new.select(partition_key(state).alias("partition_key").column()).distinct()
    live = state.entries(live_manifests(state.manifests(ContentType.DATA_MANIFEST)), projection).where(is_live().text)
    same = partition_key(state).eqNullSafe(sql.col("partition_key")).column()
    return _with_vectors(state, materialize(live.join(keys, same, "left_semi")))


def _any_unpartitioned(state: TableState, entries: DataFrame) -> bool:
    """Whether an entry is of a spec without fields, in a table that has other specs as well; may run a small job."""
    without = [spec_id for spec_id, spec in state.specs.items() if spec.is_unpartitioned()]
    if not without or len(state.specs) == 1:
        return False
    return len(entries.where(F.col("partition_spec_id").isin(without)).select("location").limit(1).toArrow()) > 0


def _with_vectors(state: TableState, found: DataFrame) -> Removal:
    """Data files, all in one DataFrame that is kept, with their deletion vectors as a removal."""
    columns = [name for name in found.columns if name != "content_stats"]
    data = found.select(*columns)
    few = data.limit(FEW_FILES + 1).count() <= FEW_FILES
    vectors = vectors_of(state, data.select(F.col("location").alias("data_path")), few)
    return removal_of(data.unionByName(vectors.select(*columns)), state, few)
