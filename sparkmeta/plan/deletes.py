"""Which deletes apply to a data file, as joins (table spec, Scan Planning; Iceberg's DeleteFileIndex).

Four kinds, each grouped once and joined once: DVs and file-scoped position deletes by the path of their data file,
partition-scoped position deletes and partitioned equality deletes by (spec, partition), global equality deletes by
nothing. A group is an array in ascending sequence number; a data file takes the part of it that its own sequence number
(and, for equality deletes, its stats) leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DoubleType, FloatType, UUIDType
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.projection import CONTENT_STATS
from sparkmeta.plan.prune import ScanFilter, is_live, matching_entries, wanted_entries
from sparkmeta.plan.rows import manifest_path, partition_value
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql import Column, DataFrame

    from sparkmeta.state import TableState

DELETES = "deletes"
DELETES_TYPE = ArrayType(
    StructType(
        [
            StructField("content", IntegerType()),
            StructField("file_path", StringType()),
            StructField("file_format", StringType()),
            StructField("file_size_in_bytes", LongType()),
            StructField("referenced_data_file", StringType()),
            StructField("content_offset", LongType()),
            StructField("content_size_in_bytes", LongType()),
            StructField("record_count", LongType()),
            StructField("data_sequence_number", LongType()),
            StructField("equality_ids", ArrayType(IntegerType())),
            StructField("manifest_path", StringType()),
            StructField("manifest_pos", LongType()),
        ]
    )
)

# Groups of at most this many delete files are broadcast; more are joined by hash, partition by partition.
BROADCAST_DELETES = 100_000

_DELETE_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "version_info",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
    "referenced_file",
    "equality_ids",
)

_KEY = "delete_key"


@dataclass(frozen=True)
class DeleteEntries:
    """The live delete entries that a scan may need.

    entries: None where the scan opens no delete manifest. manifests: the roots that they come from.
    count: how many entries at most; None where manifests don't say.
    equality_ids: every column that some equality delete compares, so that data stats are read for them.
    """

    entries: DataFrame | None
    manifests: pa.Table
    count: int | None
    equality_ids: frozenset[int]

    def sized(self, frame: DataFrame) -> DataFrame:
        """A group relation with the join that fits its size; Spark has no statistics of what Python decodes."""
        few = self.count is not None and self.count <= BROADCAST_DELETES
        return F.broadcast(frame) if few else frame.hint("shuffle_hash")


def delete_entries(scan_filter: ScanFilter, manifests: pa.Table) -> DeleteEntries:
    """The live entries of the delete manifests that may hold deletes for the filter.

    Their stats describe deleted rows, so the row filter prunes equality deletes as it prunes data files.
    """
    if not len(manifests):
        return DeleteEntries(None, manifests, 0, frozenset())
    equality_ids = _equality_ids(scan_filter, manifests)
    pruned_by = frozenset() if scan_filter.ignore_residuals else scan_filter.stats_ids
    stats = {DELETE_FILE_PATH_ID, *equality_ids, *pruned_by}
    by_stats = not scan_filter.ignore_residuals
    wanted = wanted_entries(scan_filter, by_stats=by_stats)
    projection = replace(scan_filter.state.projection(_DELETE_COLUMNS, stats), wanted=wanted)
    kept = matching_entries(scan_filter.state.entries(manifests, projection), scan_filter, by_stats=by_stats)
    return DeleteEntries(kept, manifests, _live_count(manifests), equality_ids)


def _live_count(manifests: pa.Table) -> int | None:
    stats = manifests.column("manifest_stats").combine_chunks()
    counts = pc.add(stats.field("added_files_count"), stats.field("existing_files_count"))
    return None if counts.null_count else pc.sum(counts).as_py()


def _equality_ids(scan_filter: ScanFilter, manifests: pa.Table) -> frozenset[int]:
    """The distinct equality ids of the deletes, at most one for each column; no job where the snapshot has none.

    Raises:
        ValidationError: an id that no schema of the table ever had.
    """
    state = scan_filter.state
    summary = state.snapshot.summary if state.snapshot else None
    if summary is not None and summary.additional_properties.get("total-equality-deletes") == "0":
        return frozenset()
    entries = state.entries(manifests, state.projection(("version_info", "equality_ids"))).where(is_live())
    ids = entries.select(F.explode("equality_ids").alias("id")).distinct().toArrow().column("id").to_pylist()
    for unknown in sorted(set(ids).difference(state.fields)):
        raise ValidationError(f"{state.metadata.location}: equality_ids has {unknown}: no schema has such a field")
    return frozenset(ids)


def attach_deletes(data: DataFrame, deletes: DeleteEntries, state: TableState) -> DataFrame:
    """The data entries with `deletes`, the array of what applies to each, in Iceberg's order.

    SQL: data LEFT JOIN groups ON path LEFT JOIN groups ON (spec, partition) [CROSS JOIN the global group]. Both joins
    take the same columns of the groups, so that Spark reads the delete manifests once for both.
    """
    if deletes.entries is None:
        return data.withColumn(DELETES, F.array().cast(DELETES_TYPE))
    groups = _groups(deletes.entries, state)
    joined = _join(data, deletes, groups, _key(F.col("location"), None, state), _OF_FILE)
    joined = _join(joined, deletes, groups, _key(None, partition_key(state), state), _OF_PARTITION)
    equality = []
    if deletes.equality_ids:
        everywhere = groups.where(F.col(_KEY) == _key(None, None, state))
        merged = everywhere.agg(F.flatten(F.collect_list(_GROUP)).alias(_OF_TABLE))
        joined = joined.crossJoin(F.broadcast(merged))
        equality = [_overlapping(name, deletes, state) for name in (_OF_TABLE, _OF_PARTITION)]
    dv = F.filter(_group(_OF_FILE), lambda delete: delete.is_dv)
    position = F.when(F.size(dv) > 0, dv).otherwise(F.concat(_positions(_OF_PARTITION), _positions(_OF_FILE)))
    applied = F.transform(F.concat(*equality, position), _public_delete(deletes))
    return joined.where(_is_consistent(state)).withColumn(DELETES, applied.cast(DELETES_TYPE))


def _join(data: DataFrame, deletes: DeleteEntries, groups: DataFrame, key: Column, name: str) -> DataFrame:
    chosen = groups.select(F.col(_KEY).alias("group_key"), F.col(_GROUP).alias(name))
    return data.join(deletes.sized(chosen), key == F.col("group_key"), "left").drop("group_key")


# -- groups ---------------------------------------------------------------------------------------------------------

_GROUP = "group"
_OF_FILE, _OF_PARTITION, _OF_TABLE = "deletes_of_file", "deletes_of_partition", "deletes_of_table"


def _groups(entries: DataFrame, state: TableState) -> DataFrame:
    """The deletes grouped by what they are about: delete_key, group (array in ascending sequence number).

    Raises, when it runs, for two DVs of one file: the check stands inside the key, which no optimizer drops.
    """
    equality = F.col("content_type") == int(ContentType.EQUALITY_DELETES)
    path = F.when(~equality, _data_path())
    global_specs = [spec_id for spec_id, spec in state.specs.items() if is_global(spec)]
    everywhere = equality & F.col("partition_spec_id").isin(global_specs)
    scope = F.when(path.isNull() & ~everywhere, partition_key(state))
    keyed = entries.select(_key(path, scope, state).alias(_KEY), _delete(state).alias("delete"))
    grouped = keyed.groupBy(_KEY).agg(F.sort_array(F.collect_list("delete")).alias(_GROUP))
    dvs = F.filter(_GROUP, lambda delete: delete.is_dv)
    twice = F.raise_error(F.concat(F.lit("two deletion vectors for "), F.col(f"{_KEY}.path")))
    return grouped.select(F.when(F.size(dvs) > 1, twice).otherwise(F.col(_KEY)).alias(_KEY), _GROUP)


def _delete(state: TableState) -> Column:
    """A delete as its group holds it: the sequence number first, so that arrays sort by it."""
    unknown = F.raise_error(F.concat(F.lit("no sequence number is known for delete file "), F.col("location")))
    position = F.col("content_type") == int(ContentType.POSITION_DELETES)
    return F.struct(
        F.coalesce(F.col("version_info.sequence_number"), unknown).alias("sequence_number"),
        *(F.col(name) for name in ("manifest", "ordinal", "content_type", "location", "file_format")),
        *(F.col(name) for name in ("file_size_in_bytes", "referenced_file", "record_count", "equality_ids")),
        F.col("deletion_vector.offset").alias("offset"),
        F.col("deletion_vector.size_in_bytes").alias("size_in_bytes"),
        (position & (F.col("file_format") == "PUFFIN")).alias("is_dv"),
        F.when(position, partition_key(state)).alias("partition_key"),
        F.when(~position, F.col(CONTENT_STATS)).alias(CONTENT_STATS),
    )


def is_global(spec: PartitionSpec) -> bool:
    """Whether equality deletes of this spec apply to every file: it has no fields, or only void ones."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)


# -- keys -----------------------------------------------------------------------------------------------------------


def _key(path: Column | None, partition: Column | None, state: TableState) -> Column:
    """What a group is about: a data file's path, or a partition, or (neither) everything."""
    nothing = F.lit(None).cast(_key_type(state))
    return F.struct(
        (F.lit(None).cast("string") if path is None else path).alias("path"),
        (nothing if partition is None else partition).alias("partition"),
    )


def partition_key(state: TableState) -> Column:
    """(spec id, partition tuple) as one comparable value.

    Floats go by their text: -0.0 and 0.0 are different partitions, which Spark's join keys would take for one.
    """
    values = [
        (partition_value(one).cast("string") if name in _FLOATS else partition_value(one)).alias(f"p{one}")
        for one, name in state.partition_fields.items()
    ]
    return F.struct(F.col("partition_spec_id").alias("spec_id"), *values)


_FLOATS = ("float", "double")


def _key_type(state: TableState) -> StructType:
    kinds = {
        one: pa.string() if name in _FLOATS else bound_arrow_type(name) for one, name in state.partition_fields.items()
    }
    fields = [pa.field("spec_id", pa.int32()), *(pa.field(f"p{one}", kind) for one, kind in kinds.items())]
    key: StructType = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
    return key


def _data_path() -> Column:
    """The one data file that a position delete file or DV is about; null for partition-scoped ones.

    Either the file says so, or its bounds of `file_path` are equal, which position deletes never truncate.
    """
    bounds = f"{CONTENT_STATS}.`{DELETE_FILE_PATH_ID}`"
    lower, upper = F.col(f"{bounds}.lower_bound"), F.col(f"{bounds}.upper_bound")
    return F.coalesce(F.col("referenced_file"), F.when(lower == upper, lower))


# -- what applies ---------------------------------------------------------------------------------------------------

_SEQUENCE = "version_info.sequence_number"


def _group(name: str) -> Column:
    return F.coalesce(F.col(name), F.array())


def _positions(name: str) -> Column:
    """Position delete files apply to data files of their own sequence number, and to older ones."""
    position = int(ContentType.POSITION_DELETES)
    return F.filter(
        _group(name),
        lambda delete: (delete.content_type == position) & (delete.sequence_number >= F.col(_SEQUENCE)) & ~delete.is_dv,
    )


def _overlapping(name: str, deletes: DeleteEntries, state: TableState) -> Column:
    """Equality deletes apply to strictly older files, unless stats prove that no row of the file can be equal."""

    def applies(delete: Column) -> Column:
        possible = [
            ~F.coalesce(F.array_contains(delete.equality_ids, one), F.lit(False))
            | _may_share_values(delete, one, state)
            for one in sorted(deletes.equality_ids)
            if one in state.primitive_fields
        ]
        newer = delete.sequence_number > F.col(_SEQUENCE)
        return reduce(and_, possible, (delete.content_type == int(ContentType.EQUALITY_DELETES)) & newer)

    return F.filter(_group(name), applies)


def _may_share_values(delete: Column, field_id: int, state: TableState) -> Column:
    """False only where one column's stats prove that no value, null included, is in both files."""
    required, kind = state.always_required(field_id), state.primitive_fields[field_id].field_type
    data, deleted = F.col(f"{CONTENT_STATS}.`{field_id}`"), delete[CONTENT_STATS][str(field_id)]
    both_null = _may_be_null(data, required) & _may_be_null(deleted, required)
    apart = (_all_null(data, required) & ~_may_be_null(deleted, required)) | (
        _all_null(deleted, required) & ~_may_be_null(data, required)
    )
    if not isinstance(kind, UUIDType):  # Java and Parquet order UUIDs differently, so their ranges prove nothing
        apart = apart | _disjoint(data, deleted, isinstance(kind, FloatType | DoubleType))
    return both_null | ~apart


def _may_be_null(stats: Column, required: bool) -> Column:
    nulls = stats.null_value_count
    return F.lit(False) if required else nulls.isNull() | (nulls > 0)


def _all_null(stats: Column, required: bool) -> Column:
    equal = F.coalesce(stats.null_value_count == stats.value_count, F.lit(False))
    return F.lit(False) if required else equal


def _disjoint(data: Column, deleted: Column, floating: bool) -> Column:
    apart = (data.lower_bound > deleted.upper_bound) | (deleted.lower_bound > data.upper_bound)
    bounds = (data.lower_bound, data.upper_bound, deleted.lower_bound, deleted.upper_bound)
    known = reduce(and_, (one.isNotNull() & ~F.isnan(one) if floating else one.isNotNull() for one in bounds))
    return F.coalesce(known & apart, F.lit(False))


def _is_consistent(state: TableState) -> Column:
    """True, or an error where metadata contradicts itself: deletes are never guessed at."""
    sequence, own = F.col(_SEQUENCE), partition_key(state)
    of_file = _group(_OF_FILE)
    older = F.filter(of_file, lambda delete: delete.is_dv & (delete.sequence_number < sequence))
    foreign = F.filter(
        of_file,
        lambda delete: (delete.is_dv | (delete.sequence_number >= sequence)) & ~delete.partition_key.eqNullSafe(own),
    )
    checks = [
        (sequence.isNull(), "no sequence number is known for data file ", F.lit("")),
        (F.size(older) > 0, "a deletion vector is older than its data file ", F.get(older, F.lit(0)).location),
        (F.size(foreign) > 0, _FOREIGN, F.get(foreign, F.lit(0)).location),
    ]
    result = F.lit(True)
    for wrong, text, delete in reversed(checks):
        message = F.concat(F.lit(text), F.col("location"), F.lit(" "), F.coalesce(delete, F.lit("")))
        result = F.when(wrong, F.raise_error(message).cast("boolean")).otherwise(result)
    return result


_FOREIGN = "a delete file has another partition spec or partition than its data file "

# -- result ---------------------------------------------------------------------------------------------------------


def _public_delete(deletes: DeleteEntries) -> Callable[[Column], Column]:
    def public(delete: Column) -> Column:
        return F.struct(
            delete.content_type.alias("content"),
            delete.location.alias("file_path"),
            delete.file_format.alias("file_format"),
            delete.file_size_in_bytes.alias("file_size_in_bytes"),
            delete.referenced_file.alias("referenced_data_file"),
            delete.offset.alias("content_offset"),
            delete.size_in_bytes.alias("content_size_in_bytes"),
            delete.record_count.alias("record_count"),
            delete.sequence_number.alias("data_sequence_number"),
            delete.equality_ids.alias("equality_ids"),
            manifest_path(deletes.manifests, delete.manifest).alias("manifest_path"),
            delete.ordinal.alias("manifest_pos"),
        )

    return public
