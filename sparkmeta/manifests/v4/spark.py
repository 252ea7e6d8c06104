"""V4 leaf manifests read by Spark's own Parquet reader: columns pruned, filters pushed, no Python per entry.

The rows come out as those of any other manifest: inheritance applied, the partition tuple derived from stats.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from sparkmeta.columns import sql
from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.columns.sql import Aliased, Sql
from sparkmeta.manifests.arrays import narrowed
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryProjection, stats_struct
from sparkmeta.manifests.v4.types import TupleSources
from sparkmeta.session import local_frame, spark_schema
from sparkmeta.spec.entry import CONTENT_ENTRY, ROW_ID_OFFSET, FieldSpec, Status
from sparkmeta.storage.location import PATH_KEY, spark_name_key, spark_path_key
from sparkmeta.storage.reading import read_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ENTRY = {field.name: field for field in CONTENT_ENTRY}
_UNIT, _KEY, _UNIT_KEY, _UNIT_HASH = "_unit", "_key", "_unit_key", "_unit_hash"
# Up to so many leaves are told apart by their names alone, which spares a short plan a job.
_NAMED = 8

_INHERITED = "_inherited"
_INHERITED_FIELDS = ("snapshot_id", "sequence_number", "first_row_id")
_MANIFEST = sql.col(MANIFEST)


def read_leaf_entries(
    spark: SparkSession, leaves: pa.Table, projection: EntryProjection, tuples: TupleSources
) -> DataFrame:
    """The entries of V4 leaves as a lazy DataFrame of `projection.schema`, every physical row included.

    leaves: rows of `PART_SCHEMA`, one a leaf.

    Raises, when it runs: an error that names the file for a leaf that Spark spells as no leaf of the root.
    """
    fields = _read_fields(projection, tuples)
    if "first_row_id" in projection.columns:
        fields = fields.append(pa.field(ROW_ID_OFFSET.name, ROW_ID_OFFSET.type))
    read = read_leaves(spark, leaves, spark_schema(fields), "_metadata.row_index")
    return read.frame.selectExpr(*sql.texts(entry_columns(projection, tuples, read.inherited, read.manifest)))


def read_rows(
    spark: SparkSession, rows: pa.Table, projection: EntryProjection, tuples: TupleSources, *others: str
) -> DataFrame:
    """Return rows of `tree_schema` on the driver as a DataFrame of `projection.schema`.

    Args:
        spark: the session.
        rows: with `manifest`, `ordinal` and `others`; they leave nothing to be inherited.
        projection: what to read, without metrics maps.
        tuples: where partition values are.
        others: further columns to keep.
    """
    table = narrowed_rows(rows, projection, tuples)
    for name in (MANIFEST, ORDINAL, *others):
        table = table.append_column(name, rows.column(name))
    return local_frame(spark, table).selectExpr(*sql.texts(entry_columns(projection, tuples, None)), *others)


def narrowed_rows(rows: pa.Table, projection: EntryProjection, tuples: TupleSources) -> pa.Table:
    """Return rows of `tree_schema` with the fields only that a projection needs."""
    schema = _read_fields(projection, tuples)
    return pa.Table.from_arrays([narrowed(rows.column(field.name), field.type) for field in schema], schema=schema)


def entry_columns(
    projection: EntryProjection, tuples: TupleSources, inherited: Sql | None, manifest: Sql = _MANIFEST
) -> list[Aliased]:
    """Return the columns of `projection` over rows of the V4 layout that have `ordinal`.

    Args:
        projection: without metrics maps.
        tuples: where partition values are.
        inherited: a struct<snapshot_id, sequence_number, first_row_id> of the manifest, for what its entries leave
            out; None where they leave out nothing.
        manifest: the small id of the rows' manifest.
    """
    columns = [_column(name, inherited).alias(name) for name in projection.columns]
    if projection.partition:
        fields = [_partition_value(one, kind, tuples).alias(str(one)) for one, kind in projection.partition]
        columns.append(sql.struct(*fields).alias(PARTITION))
    if projection.stats:
        structs = [sql.col(f"{CONTENT_STATS}.`{one}`").alias(str(one)) for one, _ in projection.stats]
        columns.append(sql.struct(*structs).alias(CONTENT_STATS))
    return [*columns, manifest.alias(MANIFEST), sql.col(ORDINAL).alias(ORDINAL)]


def _column(name: str, inherited: Sql | None) -> Sql:
    if name == "file_format":
        return _file_format(sql.col(name))
    if name == "version_info" and inherited is not None:
        return version_info(inherited)
    if name == "first_row_id" and inherited is not None:
        return _row_id(inherited)
    return sql.col(name)


def _file_format(name: Sql) -> Sql:
    """In upper case. The usual ones are compared, which makes no new text for each entry."""
    usual = sql.when(name == "parquet", "PARQUET").when(name == "puffin", "PUFFIN")
    return usual.otherwise(sql.call("upper", name))


def _row_id(inherited: Sql) -> Sql:
    """An entry's own first row id, else the leaf's and the entry's offset from it; a leaf without one gives none."""
    own, start, offset = sql.col("first_row_id"), inherited["first_row_id"], sql.col(ROW_ID_OFFSET.name)
    counts = own.isNull() & start.isNotNull() & (sql.col("version_info.status") != int(Status.DELETED))
    message = sql.concat("there is no row_id_offset in the manifest's entry for ", sql.col("location"))
    missing = sql.raise_error(message).cast("bigint")
    return sql.when(counts & offset.isNull(), missing).when(counts, start + offset).otherwise(own)


def version_info(inherited: Sql, *, of_version_1: bool = False) -> Sql:
    """An entry's version, with what it leaves out from its manifest.

    of_version_1: manifests may have the sequence number 0, which all of their entries inherit (table spec, Sequence
    Number Inheritance).
    """
    status = sql.col("version_info.status")
    inherits = status == int(Status.ADDED)
    if of_version_1:
        inherits = inherits | (inherited["sequence_number"] == 0)

    def sequence(name: str) -> Aliased:
        own = sql.col(f"version_info.{name}")
        return sql.coalesce(own, sql.when(inherits, inherited["sequence_number"])).alias(name)

    return sql.struct(
        status.alias("status"),
        sql.coalesce(sql.col("version_info.snapshot_id"), inherited["snapshot_id"]).alias("snapshot_id"),
        sequence("sequence_number"),
        sequence("file_sequence_number"),
    )


def _partition_value(field_id: int, type_name: str, tuples: TupleSources) -> Sql:
    """A value of the tuple: the lower bound of the stats that the entry's spec names for it."""
    by_source: dict[int, list[int]] = {}
    for spec_id, fields in tuples.items():
        for one, source in fields:
            if one == field_id:
                by_source.setdefault(source, []).append(spec_id)
    nothing = sql.lit(None).cast(from_arrow_type(bound_arrow_type(type_name), prefer_timestamp_ntz=True))
    of_spec = sql.col("partition_spec_id")
    cases = [(of_spec.isin(specs), _derived(source, type_name)) for source, specs in sorted(by_source.items())]
    return reduce(lambda other, case: sql.when(case[0], case[1]).otherwise(other), cases, nothing)


def _derived(source: int, type_name: str) -> Sql:
    """The lower bound; NaN where all values are, as NaN is no bound.

    That an entry has the struct is for `Table.check` to tell: an error raised here would keep Spark from pushing
    filters of the tuple below its joins.
    """
    stats = sql.col(f"{CONTENT_STATS}.`{source}`")
    value = stats["lower_bound"]
    if type_name in ("float", "double"):
        nan = sql.lit(float("nan")).cast(type_name)
        value = sql.when(value.isNull() & (stats["nan_value_count"] > 0), nan).otherwise(value)
    return value


class LeafRows(NamedTuple):
    """Rows of leaves with `ordinal`, and over them the small id of a row's leaf and what it inherits from that: a
    struct<snapshot_id, sequence_number, first_row_id>."""

    frame: DataFrame
    manifest: Sql
    inherited: Sql


def read_leaves(spark: SparkSession, leaves: pa.Table, schema: Any, ordinal: str) -> LeafRows:
    """The rows of leaves (`PART_SCHEMA`), read as Spark's type `schema`.

    ordinal: what it is, in SQL.
    """
    locations = leaves.column("location").to_pylist()
    files = read_parquet(spark, locations, schema)
    keys, found = [spark_name_key(location) for location in locations], "_metadata.file_name"
    if len(set(keys)) < len(keys):
        keys, found = [spark_path_key(location) for location in locations], PATH_KEY
    names = [sql.quoted(name) for name in schema.names if name != ORDINAL]
    read = files.selectExpr(*names, f"{found} AS {_KEY}", f"{ordinal} AS {ORDINAL}")
    if len(keys) <= _NAMED:
        # Over the rows, not beside them: a selection of its own would keep Spark from pruning what it reads.
        place = _place(keys)
        manifest = sql.call("get", sql.array(*leaves.column(MANIFEST).to_pylist()), place)
        return LeafRows(read, _known(manifest, place), sql.call("get", _inherited(leaves), place))
    rows = local_frame(spark, leaves.append_column(_UNIT_KEY, pa.array(keys))).selectExpr(
        _UNIT_KEY,
        f"xxhash64({_UNIT_KEY}) AS {_UNIT_HASH}",
        f"{MANIFEST} AS {_UNIT}",
        f"struct({', '.join(_INHERITED_FIELDS)}) AS {_INHERITED}",
    )
    # Spark finds a number in a fraction of the time that it takes to find a text. Were the texts' equality a key of
    # the join too, it would look for both.
    same = f"xxhash64({_KEY}) = {_UNIT_HASH} AND ({_KEY} = {_UNIT_KEY}) IS TRUE"
    joined = read.join(F.broadcast(rows), F.expr(same), "left")
    return LeafRows(joined, _known(sql.col(_UNIT), sql.col(_UNIT)), sql.col(_INHERITED))


def _known(manifest: Sql, found: Sql) -> Sql:
    """`manifest`; an error where no leaf was `found` to be of the row's key."""
    unknown = sql.raise_error(sql.concat("Spark read a file that no manifest names: ", sql.col(_KEY))).cast("int")
    return sql.when(found.isNull(), unknown).otherwise(manifest)


def _place(keys: Sequence[str]) -> Sql:
    """Which of the keys a row's is; null for another."""
    first, *others = [(sql.col(_KEY) == key, place) for place, key in enumerate(keys)]
    return reduce(lambda chosen, case: chosen.when(*case), others, sql.when(*first))


def _inherited(leaves: pa.Table) -> Sql:
    """What the entries of each leaf inherit, as a literal array."""
    rows = leaves.select(_INHERITED_FIELDS).to_pylist()
    return sql.array(
        *(sql.struct(*(sql.lit(row[one]).cast("bigint").alias(one) for one in _INHERITED_FIELDS)) for row in rows)
    )


def _read_fields(projection: EntryProjection, tuples: TupleSources) -> pa.Schema:
    """The fields of the V4 layout that a projection needs, `content_stats` with those of the partition tuple."""
    names = {*projection.columns, "version_info", "partition_spec_id", "location"}
    fields = [_file_field(_ENTRY[name]) for name in _ENTRY if name in names]
    stats = dict(projection.stats)
    types = dict(projection.partition)
    for sources in tuples.values():
        stats |= {source: types[one] for one, source in sources if one in types and source not in stats}
    if stats:
        structs = [pa.field(str(one), stats_struct(bound_arrow_type(kind))) for one, kind in sorted(stats.items())]
        fields.append(pa.field(CONTENT_STATS, pa.struct(structs)))
    return pa.schema(fields)


def _file_field(spec: FieldSpec) -> pa.Field:
    return pa.field(spec.name, spec.type)
