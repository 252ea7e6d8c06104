"""V4 leaf manifests read by Spark's own Parquet reader: columns pruned, filters pushed, no Python per entry.

The rows come out as those of any other manifest: inheritance applied, the partition tuple derived from stats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.manifests.avro.read import schema_of
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryProjection, stats_struct
from sparkmeta.spec.entry import CONTENT_ENTRY, ROW_ID_OFFSET, FieldSpec, Status

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Spec id -> its fields' (partition field id, id of the stats that hold the value); fields without values left out.
TupleSources = Mapping[int, Sequence[tuple[int, int]]]

_ENTRY = {field.name: field for field in CONTENT_ENTRY}
_UNIT, _PATH = "unit", "path"
_INHERITED = "_inherited"


def read_leaf_entries(
    spark: SparkSession, leaves: pa.Table, projection: EntryProjection, tuples: TupleSources
) -> DataFrame:
    """The entries of V4 leaves as a lazy DataFrame of `projection.schema`, every physical row included.

    leaves: rows of `PART_SCHEMA`, one a leaf.

    Raises, when it runs: an error that names the file for a leaf that Spark spells as no leaf of the root.
    """
    from pyspark.sql import functions as F

    fields = read_fields(projection, tuples)
    if "first_row_id" in projection.columns:
        fields = fields.append(pa.field(ROW_ID_OFFSET.name, ROW_ID_OFFSET.type))
    read = _with_manifest(spark, leaves, schema_of(fields))
    return read.select(*entry_columns(projection, tuples, F.col(_INHERITED)))


def entry_columns(projection: EntryProjection, tuples: TupleSources, inherited: Column | None) -> list[Column]:
    """Columns of `projection` over rows of the V4 layout that have `manifest` and `ordinal`.

    inherited: a struct<snapshot_id, sequence_number, first_row_id> of the manifest's own, for what its entries leave
    out; None where they leave out nothing.
    """
    from pyspark.sql import functions as F

    columns = [_column(name, inherited).alias(name) for name in projection.columns]
    if projection.partition:
        fields = [_partition_value(one, kind, tuples).alias(str(one)) for one, kind in projection.partition]
        columns.append(F.struct(*fields).alias(PARTITION))
    if projection.stats:
        structs = [F.col(f"{CONTENT_STATS}.`{one}`").alias(str(one)) for one, _ in projection.stats]
        columns.append(F.struct(*structs).alias(CONTENT_STATS))
    return [*columns, F.col(MANIFEST), F.col(ORDINAL)]


def _column(name: str, inherited: Column | None) -> Column:
    from pyspark.sql import functions as F

    if name == "file_format":
        return F.upper(name)
    if name == "version_info" and inherited is not None:
        return _version_info(inherited)
    if name == "first_row_id" and inherited is not None:
        return _row_id(inherited)
    return F.col(name)


def _row_id(inherited: Column) -> Column:
    """An entry's own first row id, else the leaf's and the entry's offset from it; a leaf without one gives none."""
    from pyspark.sql import functions as F

    own, start, offset = F.col("first_row_id"), inherited["first_row_id"], F.col(ROW_ID_OFFSET.name)
    counts = own.isNull() & start.isNotNull() & (F.col("version_info.status") != int(Status.DELETED))
    missing = F.raise_error(
        F.concat(F.lit("there is no row_id_offset in the manifest's entry for "), F.col("location"))
    )
    return F.when(counts & offset.isNull(), missing).when(counts, start + offset).otherwise(own)


def _version_info(inherited: Column) -> Column:
    from pyspark.sql import functions as F

    status = F.col("version_info.status")
    added = status == int(Status.ADDED)

    def sequence(name: str) -> Column:
        own = F.col(f"version_info.{name}")
        return F.coalesce(own, F.when(added, inherited["sequence_number"])).alias(name)

    return F.struct(
        status.alias("status"),
        F.coalesce("version_info.snapshot_id", inherited["snapshot_id"]).alias("snapshot_id"),
        sequence("sequence_number"),
        sequence("file_sequence_number"),
    )


def _partition_value(field_id: int, type_name: str, tuples: TupleSources) -> Column:
    """A value of the tuple: the lower bound of the stats that the entry's spec names for it."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type

    by_source: dict[int, list[int]] = {}
    for spec_id, fields in tuples.items():
        for one, source in fields:
            if one == field_id:
                by_source.setdefault(source, []).append(spec_id)
    nothing = F.lit(None).cast(from_arrow_type(bound_arrow_type(type_name), prefer_timestamp_ntz=True))
    of_spec = F.col("partition_spec_id")
    cases = [(of_spec.isin(specs), _derived(source, type_name)) for source, specs in sorted(by_source.items())]
    return reduce(lambda other, case: F.when(case[0], case[1]).otherwise(other), cases, nothing)


def _derived(source: int, type_name: str) -> Column:
    """The lower bound; NaN where all values are, as NaN is no bound.

    That an entry has the struct is for `Table.check` to tell: an error raised here would keep Spark from pushing
    filters of the tuple below its joins.
    """
    from pyspark.sql import functions as F

    stats = F.col(f"{CONTENT_STATS}.`{source}`")
    value = stats.lower_bound
    if type_name in ("float", "double"):
        value = F.when(value.isNull() & (stats.nan_value_count > 0), F.lit(float("nan"))).otherwise(value)
    return value


def _with_manifest(spark: SparkSession, leaves: pa.Table, schema: Any) -> DataFrame:
    """The leaves' rows with `manifest`, `ordinal`, and what their entries inherit."""
    from pyspark.sql import functions as F

    from sparkmeta.session import local_frame
    from sparkmeta.storage.files import refuse_hidden
    from sparkmeta.storage.location import escape_glob, path_key, spark_path_key

    locations = leaves.column("location").to_pylist()
    refuse_hidden(locations)
    reader = spark.read.schema(schema).options(**_STRICT)
    files = reader.parquet(*map(escape_glob, locations))
    keys = pa.array([spark_path_key(location) for location in locations])
    units = local_frame(spark, leaves.append_column(_PATH, keys)).select(
        _PATH,
        F.col(MANIFEST).alias(_UNIT),
        F.struct("snapshot_id", "sequence_number", "first_row_id").alias(_INHERITED),
    )
    path = path_key(F.col("_metadata.file_path"))
    read = files.withColumns({_PATH: path, ORDINAL: F.col("_metadata.row_index")})
    unknown = F.raise_error(F.concat(F.lit("Spark read a file that no manifest names: "), F.col(_PATH)))
    manifest = F.when(F.col(_UNIT).isNull(), unknown).otherwise(F.col(_UNIT))
    return read.join(F.broadcast(units), _PATH, "left").withColumn(MANIFEST, manifest).drop(_PATH, _UNIT)


# Sessions may allow reads to pass over files, and what is broken in them; a plan never may.
_STRICT = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


def read_fields(projection: EntryProjection, tuples: TupleSources) -> pa.Schema:
    """The fields of the V4 layout that a projection needs, `content_stats` with those of the partition tuple."""
    names = {*projection.columns, "version_info", "partition_spec_id", "location"}
    fields = [_read_field(_ENTRY[name]) for name in _ENTRY if name in names]
    stats = dict(projection.stats)
    types = dict(projection.partition)
    for sources in tuples.values():
        stats |= {source: types[one] for one, source in sources if one in types and source not in stats}
    if stats:
        structs = [pa.field(str(one), stats_struct(bound_arrow_type(kind))) for one, kind in sorted(stats.items())]
        fields.append(pa.field(CONTENT_STATS, pa.struct(structs)))
    return pa.schema(fields)


def _read_field(spec: FieldSpec) -> pa.Field:
    return pa.field(spec.name, spec.type)
