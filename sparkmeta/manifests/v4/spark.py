"""Read V4 leaf manifests with Spark's Parquet reader, which prunes columns and pushes filters down.

Entries have the same columns as in other manifests: inheritance is applied, and the partition tuple is derived from
stats.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema, spark_type_of
from sparkmeta.entries.live import is_live_entry
from sparkmeta.entries.locations import ENTRY_LOCATIONS
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryProjection, stats_struct
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import narrowed
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.expr.conditions import unpushed
from sparkmeta.expr.sql import Aliased, Sql
from sparkmeta.manifests.v4.layout import TupleSources
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import BOUNDS, CONTENT_ENTRY, DELETE_FILE_PATH_ID, ROW_ID_OFFSET, FieldSpec, Status
from sparkmeta.spec.locations import SCHEME, Locations
from sparkmeta.storage.location import PATH_KEY, spark_name_key, spark_path_key
from sparkmeta.storage.reading import failing_if_skipped, read_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ENTRY = {field.name: field for field in CONTENT_ENTRY}
_UNIT, _KEY, _UNIT_KEY, _UNIT_HASH = "_unit", "_key", "_unit_key", "_unit_hash"
# Maximum leaves that are identified by an expression over their names; more need a join, which costs a job.
_NAMED = 8

_INHERITED = "_inherited"
_INHERITED_FIELDS = ("snapshot_id", "sequence_number", "first_row_id")
_MANIFEST = sql.col(MANIFEST)


def read_leaf_entries(
    spark: SparkSession,
    leaves: pa.Table,
    projection: EntryProjection,
    tuples: TupleSources,
    widened: Collection[int],
    locations: Locations,
) -> DataFrame:
    """Return every physical entry of V4 leaves as a lazy DataFrame of `projection.schema`.

    The DataFrame fails, when it runs, if Spark reads a file that is not one of the leaves.

    Args:
        spark: the session.
        leaves: rows of `PART_SCHEMA`, one per leaf.
        projection: the columns to return, without metrics maps.
        tuples: the stats that hold partition values.
        widened: ids of stats of decimals that may have a lower precision in some leaves.
        locations: resolves the locations in leaves.
    """
    fields = _read_fields(projection, tuples)
    if "first_row_id" in projection.columns:
        fields = fields.append(pa.field(ROW_ID_OFFSET.name, ROW_ID_OFFSET.type))
    rows = read_leaves(spark, leaves, spark_schema(fields), "_metadata.row_index")
    columns = entry_columns(projection, tuples, rows.inherited, rows.manifest, widened, locations)
    entries = rows.frame.selectExpr(*sql.texts(columns))
    paths = leaves.column("location").to_pylist()
    return failing_if_skipped(spark, entries, paths, spark_schema(projection.schema))


def read_rows(
    spark: SparkSession, rows: pa.Table, projection: EntryProjection, tuples: TupleSources, *others: str
) -> DataFrame:
    """Return rows of `tree_schema` on the driver as a DataFrame of `projection.schema`.

    Args:
        spark: the session.
        rows: rows with `manifest`, `ordinal` and `others`. They inherit nothing.
        projection: the columns to return, without metrics maps.
        tuples: the stats that hold partition values.
        others: further columns to return.
    """
    table = narrowed_rows(rows, projection, tuples)
    for name in (MANIFEST, ORDINAL, *others):
        table = table.append_column(name, rows.column(name))
    return local_frame(spark, table).selectExpr(*sql.texts(entry_columns(projection, tuples, None)), *others)


def narrowed_rows(rows: pa.Table, projection: EntryProjection, tuples: TupleSources) -> pa.Table:
    """Return rows of `tree_schema` with only the fields that a projection needs."""
    schema = _read_fields(projection, tuples)
    return pa.Table.from_arrays([narrowed(rows.column(field.name), field.type) for field in schema], schema=schema)


def entry_columns(
    projection: EntryProjection,
    tuples: TupleSources,
    inherited: Sql | None,
    manifest: Sql = _MANIFEST,
    widened: Collection[int] = (),
    locations: Locations | None = None,
) -> list[Aliased]:
    """Return the columns of `projection`, over rows of the V4 layout with `ordinal`.

    Args:
        projection: the columns to return, without metrics maps.
        tuples: the stats that hold partition values.
        inherited: a struct<snapshot_id, sequence_number, first_row_id> of the manifest, which entries inherit; None if
            they inherit nothing.
        manifest: the small id of the rows' manifest.
        widened: ids of stats of decimals that Spark must not push into Parquet.
        locations: resolves the rows' locations; None if they are absolute.
    """
    columns = [_column(name, inherited, locations).alias(name) for name in projection.columns]
    if projection.partition:
        fields = [
            _partition_value(field_id, kind, tuples, widened).alias(str(field_id))
            for field_id, kind in projection.partition
        ]
        columns.append(sql.struct(*fields).alias(PARTITION))
    if projection.stats:
        structs = [
            _stats(field_id, kind, widened, locations).alias(str(field_id)) for field_id, kind in projection.stats
        ]
        columns.append(sql.struct(*structs).alias(CONTENT_STATS))
    return [*columns, manifest.alias(MANIFEST), sql.col(ORDINAL).alias(ORDINAL)]


def _stats(field_id: int, type_name: str, widened: Collection[int], locations: Locations | None = None) -> Sql:
    """Return the stats of a column."""
    stats = sql.col(f"{CONTENT_STATS}.`{field_id}`")
    if field_id == DELETE_FILE_PATH_ID and locations is not None:
        children = (
            (resolved(stats[name], locations) if name in BOUNDS else stats[name]).alias(name)
            for name in stats_struct(bound_arrow_type(type_name)).names
        )
        return sql.when(stats.isNotNull(), sql.struct(*children))
    if field_id not in widened or not type_name.startswith("decimal"):
        return stats
    values = (
        (unpushed(stats[name]) if name in BOUNDS else stats[name]).alias(name)
        for name in stats_struct(bound_arrow_type(type_name)).names
    )
    return sql.when(stats.isNotNull(), sql.struct(*values))


def resolved(location: Sql, locations: Locations) -> Sql:
    """Return the absolute form of a location of format version 4; see `Locations.resolve`.

    Spark compares the beginnings that nearly all locations have much faster than it matches the pattern.
    """
    relative = sql.concat(locations.folder, location)
    cases = sql.when(location.startswith(locations.folder), location)
    cases = cases.when(location.startswith("data/") | location.startswith("metadata/"), relative)
    cases = cases.when(sql.call("rlike", location, f"{SCHEME}|^$"), location)
    if locations.rooted != locations.folder:
        cases = cases.when(location.startswith("/"), sql.concat(locations.rooted, location))
    return cases.otherwise(relative)


def _column(name: str, inherited: Sql | None, locations: Locations | None) -> Sql:
    if name in ENTRY_LOCATIONS and locations is not None:
        return resolved(sql.col(name), locations)
    if name == "file_format":
        return _file_format(sql.col(name))
    if name == "version_info" and inherited is not None:
        return version_info(inherited)
    if name == "first_row_id" and inherited is not None:
        return _row_id(inherited)
    return sql.col(name)


def _file_format(name: Sql) -> Sql:
    """Return the format in upper case. For common formats, Spark creates no string per entry."""
    usual = sql.when(name == "parquet", "PARQUET").when(name == "puffin", "PUFFIN")
    return usual.otherwise(sql.call("upper", name))


def _row_id(inherited: Sql) -> Sql:
    """Return an entry's first row id, or else the leaf's plus the entry's offset; null if the leaf has none."""
    row_id, start, offset = sql.col("first_row_id"), inherited["first_row_id"], sql.col(ROW_ID_OFFSET.name)
    inherits = row_id.isNull() & start.isNotNull() & is_live_entry()
    message = sql.concat("there is no row_id_offset in the manifest's entry for ", sql.col("location"))
    missing = sql.raise_error(message).cast("bigint")
    return sql.when(inherits & offset.isNull(), missing).when(inherits, start + offset).otherwise(row_id)


def version_info(inherited: Sql, *, of_version_1: bool = False) -> Sql:
    """Return an entry's version with inheritance applied.

    Args:
        of_version_1: whether manifests may have the sequence number 0, which all of their entries inherit (table spec,
            Sequence Number Inheritance).
    """
    status = sql.col("version_info.status")
    inherits = status == int(Status.ADDED)
    if of_version_1:
        inherits = inherits | (inherited["sequence_number"] == 0)

    def sequence(name: str) -> Aliased:
        number = sql.col(f"version_info.{name}")
        return sql.coalesce(number, sql.when(inherits, inherited["sequence_number"])).alias(name)

    return sql.struct(
        status.alias("status"),
        sql.coalesce(sql.col("version_info.snapshot_id"), inherited["snapshot_id"]).alias("snapshot_id"),
        sequence("sequence_number"),
        sequence("file_sequence_number"),
    )


def _partition_value(field_id: int, type_name: str, tuples: TupleSources, widened: Collection[int]) -> Sql:
    """Return a partition value: the lower bound of the stats that hold it for the entry's spec."""
    by_source: dict[int, list[int]] = {}
    for spec_id, fields in tuples.items():
        for spec_field_id, source in fields:
            if spec_field_id == field_id:
                by_source.setdefault(source, []).append(spec_id)
    nothing = sql.lit(None).cast(spark_type_of(bound_arrow_type(type_name)))
    of_spec = sql.col("partition_spec_id")
    cases = [(of_spec.isin(specs), _derived(source, type_name, widened)) for source, specs in sorted(by_source.items())]
    return reduce(lambda other, case: sql.when(case[0], case[1]).otherwise(other), cases, nothing)


def _derived(source: int, type_name: str, widened: Collection[int]) -> Sql:
    """Return the lower bound, or NaN if the value is NaN, which is never a bound.

    `Table.check` detects entries without the struct. An error raised here would keep Spark from pushing filters of the
    tuple below joins.
    """
    stats = _stats(source, type_name, widened)
    value = stats["lower_bound"]
    if type_name in ("float", "double"):
        nan = sql.lit(float("nan")).cast(type_name)
        value = sql.when(value.isNull() & (stats["nan_value_count"] > 0), nan).otherwise(value)
    return value


class LeafRows(NamedTuple):
    """Rows of leaves, and expressions over them.

    Attributes:
        frame: the rows, with `ordinal`.
        manifest: the small id of a row's leaf.
        inherited: a struct<snapshot_id, sequence_number, first_row_id> of the leaf, which the row inherits.
    """

    frame: DataFrame
    manifest: Sql
    inherited: Sql


def read_leaves(spark: SparkSession, leaves: pa.Table, schema: Any, ordinal: str) -> LeafRows:
    """Return the rows of leaves.

    Args:
        leaves: rows of `PART_SCHEMA`.
        schema: the Spark type to read them as.
        ordinal: the SQL expression of `ordinal`.
    """
    locations = leaves.column("location").to_pylist()
    files = read_parquet(spark, locations, schema)
    keys, file_key = [spark_name_key(location) for location in locations], "_metadata.file_name"
    if len(set(keys)) < len(keys):
        keys, file_key = [spark_path_key(location) for location in locations], PATH_KEY
    names = [sql.quoted(name) for name in schema.names if name != ORDINAL]
    rows_with_keys = files.selectExpr(*names, f"{file_key} AS {_KEY}", f"{ordinal} AS {ORDINAL}")
    if len(keys) <= _NAMED:
        # Expressions over the rows, not columns: a separate projection would keep Spark from pruning columns.
        key_index = _key_index(keys)
        manifest = sql.call("get", sql.array(*leaves.column(MANIFEST).to_pylist()), key_index)
        return LeafRows(
            rows_with_keys, _checked_manifest(manifest, key_index), sql.call("get", _inherited(leaves), key_index)
        )
    rows = local_frame(spark, leaves.append_column(_UNIT_KEY, pa.array(keys))).selectExpr(
        _UNIT_KEY,
        f"xxhash64({_UNIT_KEY}) AS {_UNIT_HASH}",
        f"{MANIFEST} AS {_UNIT}",
        f"struct({', '.join(_INHERITED_FIELDS)}) AS {_INHERITED}",
    )
    # Spark looks up numbers much faster than texts. `IS TRUE` keeps the equality of texts from becoming a join key.
    keys_match = f"xxhash64({_KEY}) = {_UNIT_HASH} AND ({_KEY} = {_UNIT_KEY}) IS TRUE"
    joined = rows_with_keys.join(F.broadcast(rows), F.expr(keys_match), "left")
    return LeafRows(joined, _checked_manifest(sql.col(_UNIT), sql.col(_UNIT)), sql.col(_INHERITED))


def _checked_manifest(manifest: Sql, leaf: Sql) -> Sql:
    """Return `manifest`. If `leaf` is null, since no leaf has the row's key, Spark raises an error when it runs."""
    failure = sql.raise_error(sql.concat("Spark read a file that no manifest names: ", sql.col(_KEY))).cast("int")
    return sql.when(leaf.isNull(), failure).otherwise(manifest)


def _key_index(keys: Sequence[str]) -> Sql:
    """Return the index of a row's key among the keys; null if it is not one of them."""
    first_case, *other_cases = [(sql.col(_KEY) == key, index) for index, key in enumerate(keys)]
    return reduce(lambda chosen, case: chosen.when(*case), other_cases, sql.when(*first_case))


def _inherited(leaves: pa.Table) -> Sql:
    """Return the values that entries of each leaf inherit, as a literal array."""
    rows = leaves.select(_INHERITED_FIELDS).to_pylist()
    return sql.array(
        *(sql.struct(*(sql.lit(row[name]).cast("bigint").alias(name) for name in _INHERITED_FIELDS)) for row in rows)
    )


def _read_fields(projection: EntryProjection, tuples: TupleSources) -> pa.Schema:
    """Return the fields of the V4 layout that a projection needs, including stats that hold partition values."""
    names = {*projection.columns, "version_info", "partition_spec_id", "location"}
    fields = [_file_field(_ENTRY[name]) for name in _ENTRY if name in names]
    stats = dict(projection.stats)
    types = dict(projection.partition)
    for sources in tuples.values():
        stats |= {source: types[field] for field, source in sources if field in types and source not in stats}
    if stats:
        structs = [
            pa.field(str(source), stats_struct(bound_arrow_type(kind))) for source, kind in sorted(stats.items())
        ]
        fields.append(pa.field(CONTENT_STATS, pa.struct(structs)))
    return pa.schema(fields)


def _file_field(spec: FieldSpec) -> pa.Field:
    return pa.field(spec.name, spec.type)
