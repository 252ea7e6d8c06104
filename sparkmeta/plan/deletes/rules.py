"""The contradictions between deletes and data files that make a plan fail, and what equality deletes can match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DoubleType, FloatType, IcebergType, UUIDType

from sparkmeta.entries.projection import CONTENT_STATS, PARTITION
from sparkmeta.errors import ValidationError
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import identities, indices_where, whole
from sparkmeta.expr.conditions import identity
from sparkmeta.expr.sql import Sql
from sparkmeta.plan.filter import partition_value
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.storage.encryption import KEY_METADATA

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql.types import DataType

    from sparkmeta.snapshot.state import TableState


# -- Can an equality delete and a file share a value? -----------------------------------------------------------------


def may_share_values(delete: Sql, field_id: int, state: TableState) -> Sql:
    """Return false only if stats of a column prove that the files have no value, including null, in common.

    Args:
        delete: a delete of a group. The data file's stats are columns of the row.
        field_id: the column.
        state: the table.
    """
    required, kind = state.types.always_required(field_id), state.types.primitive_fields[field_id].field_type
    data, deleted = data_stats(field_id), delete[CONTENT_STATS][str(field_id)]
    null_in_data = _may_be_null(data, sql.col("record_count"), required)
    null_in_delete = _may_be_null(deleted, delete["record_count"], required)
    both_null = null_in_data & null_in_delete
    are_disjoint = (_all_null(data, required) & ~null_in_delete) | (_all_null(deleted, required) & ~null_in_data)
    if _is_ordered(kind):
        are_disjoint = are_disjoint | _disjoint(data, deleted, isinstance(kind, FloatType | DoubleType))
    return both_null | ~are_disjoint


def has_stats(delete: Sql, field_id: int) -> Sql:
    """Return whether an equality delete has stats of a column. Without them, `may_share_values` is true for all files.

    Args:
        delete: a delete of a group.
        field_id: the column.
    """
    stats = delete[CONTENT_STATS][str(field_id)]
    names = ("lower_bound", "upper_bound", "value_count", "null_value_count")
    return reduce(or_, (stats[name].isNotNull() for name in names))


def data_stats(field_id: int) -> Sql:
    """Return the stats of a column in a data entry."""
    return sql.col(f"{CONTENT_STATS}.`{field_id}`")


def extremes_decide(deletes: Sql, field_id: int, state: TableState) -> Sql:
    """Return whether `extreme_bounds` of deletes is as selective as their own stats."""
    if isinstance(state.types.primitive_fields[field_id].field_type, FloatType | DoubleType):
        return ~sql.exists(deletes, lambda _: sql.lit(True))
    required = state.types.always_required(field_id)
    return ~sql.exists(deletes, lambda delete: _all_null(delete[CONTENT_STATS][str(field_id)], required))


def extreme_bounds(deletes: Sql, field_id: int, state: TableState) -> Sql:
    """Return struct<lower, upper> with the greatest lower and least upper bound of the deletes that have both.

    Null if bounds prove nothing.
    """
    if not _is_ordered(state.types.primitive_fields[field_id].field_type):
        return sql.struct(sql.lit(None).alias("lower"), sql.lit(None).alias("upper"))

    def bound(name: str) -> Callable[[Sql], Sql]:
        return lambda delete: delete[CONTENT_STATS][str(field_id)][name]

    lower, upper = bound("lower_bound"), bound("upper_bound")
    bounded = sql.filter(deletes, lambda delete: lower(delete) <= upper(delete))
    greatest = sql.call("array_max", sql.transform(bounded, lower))
    least = sql.call("array_min", sql.transform(bounded, upper))
    return sql.struct(greatest.alias("lower"), least.alias("upper"))


def meets_all(extremes: Sql, field_id: int, state: TableState) -> list[Sql]:
    """Return conditions, all true if a data file may share values with every delete, given their extreme bounds."""
    data = data_stats(field_id)
    conditions = [~_all_null(data, state.types.always_required(field_id))]
    if _is_ordered(state.types.primitive_fields[field_id].field_type):
        are_disjoint = (data["lower_bound"] > extremes["upper"]) | (extremes["lower"] > data["upper_bound"])
        inverted = data["lower_bound"] > data["upper_bound"]
        conditions.append(~sql.coalesce(are_disjoint & ~sql.coalesce(inverted, False), False))
    return conditions


def _is_ordered(kind: IcebergType) -> bool:
    """Return whether ranges of bounds are meaningful. Java and Parquet order UUIDs differently."""
    return not isinstance(kind, UUIDType)


def _may_be_null(stats: Sql, record_count: Sql, required: bool) -> Sql:
    """Return whether a row may be null. Rows with a null parent struct are null, and may be missing in the counts."""
    uncounted = sql.coalesce(stats["value_count"] < record_count, False)
    return sql.lit(False) if required else ~stats["null_value_count"].eqNullSafe(0) | uncounted


def _all_null(stats: Sql, required: bool) -> Sql:
    nulls = stats["null_value_count"]
    return sql.lit(False) if required else sql.coalesce((nulls == stats["value_count"]) & (nulls >= 0), False)


def _disjoint(data: Sql, deleted: Sql, floating: bool) -> Sql:
    bounds = [stats[name] for stats in (data, deleted) for name in ("lower_bound", "upper_bound")]
    lower, upper, deleted_lower, deleted_upper = bounds
    are_disjoint = (lower > deleted_upper) | (deleted_lower > upper)
    are_known = reduce(
        and_, (bound.isNotNull() & ~sql.isnan(bound) if floating else bound.isNotNull() for bound in bounds)
    )
    are_ordered = (lower <= upper) & (deleted_lower <= deleted_upper)
    return sql.coalesce(are_known & are_ordered & are_disjoint, False)


# -- Contradictions that make a plan fail -----------------------------------------------------------------------------
# A rule is a condition on a data file and a delete. Both are views: mappings from column names to expressions. A view
# has `sequence_number` and `partition_key`; the view of a delete also has `is_dv`, `content_type` and `data_path`.


class EntryView(Protocol):
    """A data file or a delete: column name -> Sql. A Sql of struct type is a view."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(frozen=True)
class DeleteRule:
    """A contradiction in metadata, which is an error wherever deletes are matched.

    Attributes:
        text: the error message up to the location of the file.
        broken: (data file, delete) -> whether they contradict each other. A rule about one of them ignores the other.
    """

    text: str
    broken: Callable[[EntryView, EntryView], Any]

    def message(self, *locations: Sql) -> Sql:
        """Return the error message, which names files by their locations, in SQL."""
        first_path, *other_paths = (sql.coalesce(location, "") for location in locations)
        return sql.concat(self.text, first_path, *(text for path in other_paths for text in (" ", path)))

    def raised(self, *locations: Sql, as_type: str | DataType = "boolean") -> Sql:
        """Return a SQL expression of type `as_type` that fails with the message."""
        return sql.raise_error(self.message(*locations)).cast(as_type)

    def refuse(self, broken: pa.Array, locations: Callable[[int], tuple[Any, ...]]) -> None:
        """Raise ValidationError for the first row where `broken` is true.

        Args:
            broken: a flag for each row.
            locations: row -> the locations that the message names, as Arrow scalars.
        """
        rows = indices_where(pc.fill_null(broken, False))
        if len(rows):
            raise ValidationError(self.text + " ".join(str(location) for location in locations(rows[0].as_py())))


def _is_older_dv(data: EntryView, delete: EntryView) -> Any:
    return delete["is_dv"] & (delete["sequence_number"] < data["sequence_number"])


def _is_foreign(data: EntryView, delete: EntryView) -> Any:
    # Position deletes that are older than the data file do not apply, whatever their partition.
    applies = delete["is_dv"] | (delete["sequence_number"] >= data["sequence_number"])
    return applies & ~delete["partition_key"].eqNullSafe(data["partition_key"])


def _is_no_dv(_: EntryView, delete: EntryView) -> Any:
    return ~(delete["is_dv"] & delete["data_path"].isNotNull())


DATA_WITHOUT_SEQUENCE: Final = DeleteRule(
    "no sequence number is known for data file ", lambda data, _: data["sequence_number"].isNull()
)
DELETE_WITHOUT_SEQUENCE: Final = DeleteRule(
    "no sequence number is known for delete file ", lambda _, delete: delete["sequence_number"].isNull()
)
OLDER_DV: Final = DeleteRule("a deletion vector is older than its data file: ", _is_older_dv)
FOREIGN_DELETE: Final = DeleteRule(
    "a delete file has another partition spec or partition than its data file: ", _is_foreign
)
NOT_A_DV: Final = DeleteRule("a delete file is not a deletion vector where only deletion vectors can be: ", _is_no_dv)
# Applied where no equality delete of the scan names a column.
NO_COLUMNS: Final = DeleteRule(
    "no columns are known that an equality delete file compares: ",
    lambda _, delete: delete["content_type"] == int(ContentType.EQUALITY_DELETES),
)
RULES: Final = (DATA_WITHOUT_SEQUENCE, DELETE_WITHOUT_SEQUENCE, OLDER_DV, FOREIGN_DELETE, NOT_A_DV, NO_COLUMNS)

# A rule about several deletes, which `second_dv` and `repeated_paths` find.
TWO_DVS: Final = DeleteRule("two deletion vectors for ", lambda _, delete: delete["is_dv"])
# A rule about an affiliated delete leaf and its data leaf.
UNKNOWN_FILE: Final = DeleteRule(
    "a deletion vector in a delete manifest affiliated to a data manifest that does not have its file: ",
    lambda data, _: data["location"].isNull(),
)


# A rule, where it is broken, and the locations that its message names.
Check = tuple[DeleteRule, Sql, tuple[Sql, ...]]


def consistent(*checks: Check) -> Sql:
    """Return a SQL condition that is true, or fails for the first broken check."""
    (rule, broken, locations), *others = checks
    verdict = sql.when(broken, rule.raised(*locations))
    for rule, broken, locations in others:
        verdict = verdict.when(broken, rule.raised(*locations))
    return verdict.otherwise(True)


def second_dv(group: Sql) -> Sql:
    """Return the data file that has two deletion vectors in an array of deletes; null if there is none."""

    def has_another(delete: Sql) -> Sql:
        of_file = sql.filter(group, lambda other: other["is_dv"] & (other["data_path"] == delete["data_path"]))
        return delete["is_dv"] & (sql.size(of_file) > 1)

    first = sql.call("get", sql.filter(group, has_another), 0)["data_path"]
    return sql.when(sql.size(group) > 1, first).otherwise(None)


def repeated_paths(paths: pa.Array) -> pa.Array:
    """Return the data files with several deletion vectors, given the file of each deletion vector."""
    if pc.count_distinct(paths).as_py() == len(paths):
        return paths.slice(0, 0)
    counts = pc.value_counts(paths)
    return counts.field("values").filter(pc.greater(counts.field("counts"), 1))


# -- Views of data files and deletes ----------------------------------------------------------------------------------


SEQUENCE: Final = "version_info.sequence_number"


def data_view(state: TableState) -> EntryView:
    """Return the view of a data entry."""
    return {
        "sequence_number": sql.col(SEQUENCE),
        "partition_key": partition_key(state),
    }


def entry_view() -> EntryView:
    """Return a view of a delete entry that has only its kind and its data file."""
    return {
        "sequence_number": sql.col(SEQUENCE),
        "content_type": sql.col("content_type"),
        "is_dv": is_dv(),
        "data_path": sql.col("referenced_file"),
    }


def partition_key(state: TableState) -> Sql:
    """Return (spec id, partition tuple) of an entry as one comparable value."""
    values = [
        identity(partition_value(field_id), kind).alias(f"p{field_id}")
        for field_id, kind in state.types.partition_fields.items()
    ]
    return sql.struct(sql.col("partition_spec_id").alias("spec_id"), *values)


def arrow_partition_key(entries: pa.Table) -> pa.StructArray:
    """Return (spec id, partition tuple) of entries as one value, which is equal if `partition_key` is."""
    partition = whole(entries.column(PARTITION)).flatten() if PARTITION in entries.column_names else []
    columns = [whole(entries.column("partition_spec_id")), *map(identities, partition)]
    return pa.StructArray.from_arrays(columns, names=[str(index) for index in range(len(columns))])


def delete_struct(state: TableState, *, encrypted: bool) -> Sql:
    """Return a delete entry as a struct for groups. The sequence number comes first, so that arrays sort by it.

    The struct is a view. It fails, when it runs, for a delete without a sequence number.
    """
    unknown = DELETE_WITHOUT_SEQUENCE.raised(sql.col("location"), as_type="bigint")
    stats = sql.when(sql.col("content_type") != int(ContentType.POSITION_DELETES), sql.col(CONTENT_STATS))
    return sql.struct(
        sql.coalesce(sql.col(SEQUENCE), unknown).alias("sequence_number"),
        *sql.columns("manifest", "ordinal", "content_type", "location", "file_format"),
        *sql.columns("file_size_in_bytes", "referenced_file", "record_count", "equality_ids"),
        sql.col("deletion_vector.offset").alias("offset"),
        sql.col("deletion_vector.size_in_bytes").alias("size_in_bytes"),
        is_dv().alias("is_dv"),
        is_global_delete(state).alias("is_global"),
        data_path().alias("data_path"),
        partition_key(state).alias("partition_key"),
        stats.alias(CONTENT_STATS),
        *(sql.columns(KEY_METADATA) if encrypted else []),
    )


def is_dv() -> Sql:
    """Return whether a delete entry is a deletion vector."""
    position = sql.col("content_type") == int(ContentType.POSITION_DELETES)
    return position & (sql.col("file_format") == "PUFFIN")


def data_path() -> Sql:
    """Return the data file of a DV or a file-scoped position delete file; null for partition-scoped ones.

    The entry names the file, or has equal bounds of `file_path`, which are never truncated in position deletes.
    """
    bounds = f"{CONTENT_STATS}.`{DELETE_FILE_PATH_ID}`"
    lower, upper = sql.col(f"{bounds}.lower_bound"), sql.col(f"{bounds}.upper_bound")
    path = sql.coalesce(sql.col("referenced_file"), sql.when(lower == upper, lower))
    return sql.when(sql.col("content_type") == int(ContentType.POSITION_DELETES), path)


def is_global_delete(state: TableState) -> Sql:
    """Return whether a delete entry is an equality delete of the whole table."""
    everywhere = [spec_id for spec_id, spec in state.specs.items() if is_global(spec)]
    equality = sql.col("content_type") == int(ContentType.EQUALITY_DELETES)
    return equality & sql.col("partition_spec_id").isin(everywhere)


def is_global(spec: PartitionSpec) -> bool:
    """Return whether equality deletes of a spec apply to every file: it has no fields, or only void ones."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)
