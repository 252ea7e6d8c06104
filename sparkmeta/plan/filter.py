"""`ScanFilter`: a scan's filter, its projections to partitions and stats, and its conditions on entries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression, BoundPredicate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, TimestampNanoType, TimestampType
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from sparkmeta.entries.live import is_live_entry
from sparkmeta.entries.projection import CONTENT_STATS, PARTITION, EntryFilter, EntryProjection
from sparkmeta.entries.relation import frame_of, where
from sparkmeta.errors import ValidationError
from sparkmeta.expr import sql
from sparkmeta.expr.bounds import AllOf, reads_as
from sparkmeta.expr.implied_tests import partition_tests, stats_tests
from sparkmeta.expr.predicate import bind_filter, parse_filter, referenced_ids, row_predicate, with_promoted_dates
from sparkmeta.expr.predicate_terms import measured, on_columns
from sparkmeta.expr.residual import residual
from sparkmeta.expr.skipping import FieldStats, might_match, must_match
from sparkmeta.expr.sql import Aliased, Sql
from sparkmeta.expr.transforms import inclusive_projection, projections, undecided
from sparkmeta.expr.types import public_value, spark_type
from sparkmeta.session import local_frame
from sparkmeta.storage.encryption import KEY_METADATA

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import PrimitiveType

    from sparkmeta.entries.relation import Relation, Rows
    from sparkmeta.snapshot.state import TableState


# -- Expressions over entry rows --------------------------------------------------------------------------------------


DELETES = "deletes"
_DELETE_TYPE = StructType(
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
DELETES_TYPE = ArrayType(_DELETE_TYPE)
_KEY = StructField(KEY_METADATA, BinaryType())


def deletes_type(encrypted: bool) -> ArrayType:
    """Return the type of `DELETES`: `DELETES_TYPE`, with the key metadata of delete files of encrypted tables."""
    return ArrayType(StructType([*_DELETE_TYPE.fields, _KEY])) if encrypted else DELETES_TYPE


def no_deletes(encrypted: bool) -> Sql:
    """Return an empty array of `deletes_type`."""
    return sql.empty_array(sql.lit(None).cast(deletes_type(encrypted).elementType))


_LONG_TEXTS = "long_texts"
# The length in characters from which a text is worth a join.
_LONG = 10_000
# The maximum total length in characters of the copies of a text.
_COPIES = 1 << 20


def entry_stats(field_id: int) -> FieldStats:
    """Return the stats of a column in an entry's content_stats."""
    return stats_in(sql.col(CONTENT_STATS), field_id)


def stats_in(stats: Sql, field_id: int) -> FieldStats:
    """Return the stats of a column in a `content_stats`."""
    return FieldStats(*(stats[str(field_id)][name] for name in FieldStats._fields))


def partition_value(field_id: int) -> Sql:
    """Return a field of an entry's partition tuple."""
    return sql.col(f"{PARTITION}.`{field_id}`")


def public_partition(state: TableState) -> Sql:
    """Return the partition tuple as in metadata tables, with Iceberg's names and Iceberg's types in Spark."""
    return sql.struct(
        *(
            public_value(partition_value(field.field_id), cast("PrimitiveType", field.field_type)).alias(field.name)
            for field in state.types.partition_type.fields
        )
    )


def full_partition(state: TableState) -> Sql:
    """Return the partition tuple with the fields of all specs, for commits; see `partition_field_names`."""
    names = state.types.partition_field_names
    return sql.struct(*(partition_value(field_id).alias(name) for field_id, name in names.items()))


def public_partition_type(state: TableState) -> StructType:
    """Return the Spark type of `public_partition`."""
    return StructType(
        [StructField(field.name, spark_type(field.field_type)) for field in state.types.partition_type.fields]
    )


def manifest_path(manifests: pa.Table, manifest: Sql) -> Sql:
    """Return the location of a manifest by its small id."""
    paths = dict(zip(manifests.column("manifest").to_pylist(), manifests.column("location").to_pylist(), strict=True))
    return sql.lookup([paths.get(small_id, "") for small_id in range(max(paths, default=-1) + 1)], manifest)


def public_delete(delete: Sql, manifests: pa.Table, *, encrypted: bool) -> Sql:
    """Convert a delete of a group to an element of `deletes_type`. `manifests` are the delete manifests."""
    return sql.struct(
        delete["content_type"].alias("content"),
        delete["location"].alias("file_path"),
        delete["file_format"].alias("file_format"),
        delete["file_size_in_bytes"].alias("file_size_in_bytes"),
        delete["referenced_file"].alias("referenced_data_file"),
        delete["offset"].alias("content_offset"),
        delete["size_in_bytes"].alias("content_size_in_bytes"),
        delete["record_count"].alias("record_count"),
        delete["sequence_number"].alias("data_sequence_number"),
        delete["equality_ids"].alias("equality_ids"),
        manifest_path(manifests, delete["manifest"]).alias("manifest_path"),
        delete["ordinal"].alias("manifest_pos"),
        *([delete[KEY_METADATA].alias(KEY_METADATA)] if encrypted else []),
    )


def shown_deletes(deletes: Sql) -> Aliased:
    """Name an array of `deletes_type` as the column of plans, without a cast, which would copy each delete."""
    return deletes.alias(DELETES)


class SharedTexts:
    """Constant texts of a plan's rows. Long texts are in a broadcast relation with a single row.

    As literals, they would occur in each plan description that Spark builds and keeps. Rows of an Arrow table would
    each have a copy.

    Args:
        literal_length: the number of characters up to which a text is a literal.
    """

    def __init__(self, literal_length: int = _LONG) -> None:
        self._literal_length = literal_length
        self._texts: list[str] = []

    @classmethod
    def of(cls, rows: Relation, literal_length: int | None = None) -> SharedTexts:
        """Return a collector for the constant texts of rows.

        Args:
            rows: the rows.
            literal_length: the number of characters up to which a text is a literal, for rows of a table. By default,
                copies of a text in a table take 1 MiB at most.
        """
        if not isinstance(rows, pa.Table):
            return cls()
        return cls(min(_LONG, _COPIES // max(len(rows), 1)) if literal_length is None else literal_length)

    def literal(self, text: str) -> Sql:
        """Return an expression for a text, to be selected from the rows of `joined_to`."""
        if len(text) <= self._literal_length:
            return sql.lit(text)
        if text not in self._texts:
            self._texts.append(text)
        return sql.call("get", sql.col(_LONG_TEXTS), self._texts.index(text))

    def joined_to(self, rows: Relation, state: TableState) -> Relation:
        """Add the long texts to rows as a further column, by a cross join in Spark."""
        if not self._texts:
            return rows
        texts = pa.table({_LONG_TEXTS: pa.array([self._texts], pa.list_(pa.string()))})
        return frame_of(rows, state).crossJoin(F.broadcast(local_frame(state.spark, texts)))


# -- `ScanFilter` -----------------------------------------------------------------------------------------------------


_DATA_COLUMNS = (
    "location",
    "file_format",
    "version_info",
    "partition_spec_id",
    "sort_order_id",
    "record_count",
    "file_size_in_bytes",
    "split_offsets",
    "first_row_id",
)

# If a filter and a join both use stats of more columns, the filter hides them in a lambda. Spark infers a constraint
# for each subset of the stats that a condition shares with projections above it: planning took 11 s for three columns
# of an OR, and minutes for four.
_MOST_IN_CONSTRAINTS: Final = 1


@dataclass(frozen=True)
class ScanFilter:
    """A row filter bound to a schema, with the partition predicates that it implies for each spec of the table.

    Attributes:
        state: the table at the snapshot that is read.
        row_filter: the filter, bound and free of NOT. Its predicates are two-valued; see `bind_filter`.
        schema: the schema that the filter is bound to.
        reads_all_rows: whether all rows of matching files are read, not only matching rows, so that deletes of any of
            them matter.
    """

    state: TableState
    row_filter: BooleanExpression
    schema: Schema
    reads_all_rows: bool = False

    @classmethod
    def of(cls, state: TableState, row_filter: BooleanExpression | str, *, two_valued: bool = False) -> ScanFilter:
        """Bind a filter or its text to the table's current schema, with case-sensitive names of columns.

        Args:
            state: the table at the snapshot that is read.
            row_filter: the filter.
            two_valued: see `bind_filter`.

        Raises:
            InvalidFilterError: the text can't be parsed, or the filter can't be bound (`bind_filter`).
        """
        schema = state.metadata.schema()
        return cls(state, bind_filter(parse_filter(row_filter), schema, two_valued=two_valued), schema)

    def __post_init__(self) -> None:
        """Refuse a filter on a column whose id had another type before the table was replaced.

        Raises:
            ValidationError: neither type is promoted to the other.
        """
        if isinstance(self.row_filter, AlwaysTrue):
            return
        columns = self.state.types.column_types.keys() & referenced_ids(self.row_filter)
        for field_id in sorted(columns):
            written, read = self.state.types.column_types[field_id], str(self.schema.find_type(field_id))
            if not reads_as(written, read) and not reads_as(read, written):
                raise ValidationError(
                    f"{self.state.metadata.location}: column {self.schema.find_column_name(field_id)} has type {read}, "
                    f"and type {written} in the files that are read: they can't be filtered by it"
                )

    @cached_property
    def promoted_dates(self) -> dict[int, PrimitiveType]:
        """Date columns of the filter that were promoted later -> their types in manifests."""
        fields = self.state.types.primitive_fields
        columns = fields.keys() & referenced_ids(self.row_filter)
        dates = (field_id for field_id in columns if isinstance(self.schema.find_type(field_id), DateType))
        return {
            field_id: kind
            for field_id in dates
            if isinstance(kind := fields[field_id].field_type, TimestampType | TimestampNanoType)
        }

    @cached_property
    def typed_filter(self) -> BooleanExpression:
        """The filter, with the types that its columns have in manifests, and with expressions for its functions."""
        return measured(with_promoted_dates(self.row_filter, self.promoted_dates), self.state.types.expressions)

    @cached_property
    def partition_filters(self) -> dict[int, BooleanExpression]:
        """Spec id -> the filter's inclusive projection to the partition tuples of that spec."""
        specs = self.state.specs
        return {spec_id: inclusive_projection(self.typed_filter, spec) for spec_id, spec in specs.items()}

    @cached_property
    def stats_filter(self) -> BooleanExpression:
        """The filter's inclusive projection to the columns, expressions and fields of variants with stats."""
        return on_columns(self.typed_filter)

    @cached_property
    def filter_ids(self) -> frozenset[int]:
        """The columns and expressions of the filter that have stats."""
        return self.state.types.measured_ids.intersection(referenced_ids(self.typed_filter))

    @cached_property
    def identities(self) -> dict[int, frozenset[int]]:
        """Spec id -> the source columns of its identity partition fields."""
        return {
            spec_id: frozenset(
                field.source_id for field in spec.fields if isinstance(field.transform, IdentityTransform)
            )
            for spec_id, spec in self.state.specs.items()
        }

    @cached_property
    def undecided(self) -> BooleanExpression:
        """The part of the filter that passing partition tuples do not decide in every spec. Stats may decide it."""
        return undecided(self.stats_filter, frozenset.intersection(*self.identities.values()))

    @cached_property
    def undecided_ids(self) -> frozenset[int]:
        """The columns and expressions of `undecided` that have stats."""
        return self.state.types.measured_ids.intersection(referenced_ids(self.undecided))

    @property
    def partition_sources(self) -> frozenset[int]:
        """The ids of the stats that hold the partition values used in the partition filters."""
        return frozenset(
            source
            for spec_id, partition_filter in self.partition_filters.items()
            for field_id, source in self.state.types.tuple_sources[spec_id]
            if field_id in referenced_ids(partition_filter)
        )

    @cached_property
    def entry_filter(self) -> EntryFilter:
        """The part of `matching_entries` that manifest readers can apply, so that fewer entries reach Spark."""
        tuples = tuple((spec_id, partition_tests(kind)) for spec_id, kind in self.partition_filters.items())
        return EntryFilter(stats_tests(self.undecided), tuples)

    @property
    def keeps_all(self) -> bool:
        return isinstance(self.row_filter, AlwaysTrue)


def tuple_matches(scan_filter: ScanFilter) -> Sql:
    """Return a predicate that is false if an entry's partition tuple, by its spec, rules out the filter."""
    return sql.lit(True) if scan_filter.keeps_all else by_spec(scan_filter, _tuple_predicate)


def stats_match(scan_filter: ScanFilter, joined_ids: Collection[int] = ()) -> Sql:
    """Return a predicate that is false if an entry's stats rule out the filter.

    Without a filter, even a file without records is planned.

    Args:
        scan_filter: the filter.
        joined_ids: the columns whose stats a join uses later.
    """
    if scan_filter.keeps_all:
        return sql.lit(True)
    records = sql.col("record_count")
    if len(scan_filter.undecided_ids.intersection(joined_ids)) <= _MOST_IN_CONSTRAINTS:
        return might_match(scan_filter.undecided, entry_stats, records)
    return sql.let(
        sql.col(CONTENT_STATS), lambda stats: might_match(scan_filter.undecided, partial(stats_in, stats), records)
    )


def matching_entries(entries: Rows, scan_filter: ScanFilter, joined_ids: Collection[int] = ()) -> Rows:
    """Return the live entries whose partition tuple and stats don't rule out the filter.

    This is sound: each test is false only if no row of the file can satisfy the filter.

    Args:
        entries: the entries.
        scan_filter: the filter.
        joined_ids: the columns whose stats a join uses later.
    """
    return where(entries, is_live_entry() & may_match(scan_filter, joined_ids))


def matching_deletes(entries: Rows, scan_filter: ScanFilter) -> Rows:
    """Return the live delete entries that may delete rows of the scan.

    Stats of equality deletes describe deleted rows, so the row filter prunes them like data files, unless the scan also
    reads rows that do not match it.
    """
    if scan_filter.reads_all_rows:
        return where(entries, is_live_entry() & tuple_matches(scan_filter))
    return matching_entries(entries, scan_filter)


def may_match(scan_filter: ScanFilter, joined_ids: Collection[int] = ()) -> Sql:
    """Return a predicate that is false if an entry's tuple or stats rule out the filter; see `stats_match`."""
    return tuple_matches(scan_filter) & stats_match(scan_filter, joined_ids)


def all_rows_match(scan_filter: ScanFilter) -> Sql:
    """Return whether the stats or the partition tuple of an entry imply that all rows of its file match; never null.

    The entry has the stats of `ScanFilter.filter_ids`.
    """
    top_level = {column.field_id for column in scan_filter.schema.fields}
    expressions = scan_filter.state.types.expressions
    top_level |= {expr_id for (source, _), expr_id in expressions.items() if source in top_level}

    def by_tuple(leaf: BoundPredicate) -> Sql:
        proven = sql.lit(False)
        for spec_id, spec in scan_filter.state.specs.items():
            strict = projections(leaf, spec, strict=True)
            matches = [row_predicate(projected, partition_value, strict=True) for projected in strict]
            any_matches = reduce(or_, matches, sql.lit(False))
            proven = sql.when(sql.col("partition_spec_id") == spec_id, any_matches).otherwise(proven)
        return sql.coalesce(proven, False)

    return must_match(scan_filter.typed_filter, entry_stats, sql.col("record_count"), top_level, by_tuple)


def data_projection(
    scan_filter: ScanFilter, stats_ids: Iterable[int] = (), columns: Iterable[str] = ()
) -> EntryProjection:
    """Return the projection of data entries for planning: `columns`, and stats of undecided columns and `stats_ids`."""
    ids = {*scan_filter.undecided_ids, *stats_ids}
    names = {*_DATA_COLUMNS, *scan_filter.state.key_columns, *columns}
    projection = scan_filter.state.projection(names, ids)
    return replace(projection, entry_filter=scan_filter.entry_filter)


def tuple_filter(scan_filter: ScanFilter) -> EntryFilter:
    """Return the part of `ScanFilter.entry_filter` that tests partition tuples."""
    return replace(scan_filter.entry_filter, stats=AllOf())


def residual_json(scan_filter: ScanFilter, literal: Callable[[str], Sql] = sql.lit) -> Sql:
    """Return the residual filter of entries that `matching_entries` keeps, by the entry's spec.

    The result is Iceberg's expression JSON. `literal` converts a constant text to Sql.
    """
    identities, types = scan_filter.identities, scan_filter.promoted_dates
    texts = {
        spec_id: residual(undecided(scan_filter.row_filter, identities[spec_id]), spec, partition_value, literal, types)
        for spec_id, spec in scan_filter.state.specs.items()
    }
    first, *others = texts.items()
    return reduce(lambda chosen, item: sql.when(sql.col("partition_spec_id") == item[0], item[1]).otherwise(chosen),
                  others, first[1])  # fmt: skip


def by_spec(scan_filter: ScanFilter, matches: Callable[[int, BooleanExpression], Sql]) -> Sql:
    """Return a predicate on partitions, built per spec. It is true for specs that the filter does not constrain."""
    filters = scan_filter.partition_filters
    spec = sql.col("partition_spec_id")
    untested = [spec == spec_id for spec_id, tested in filters.items() if isinstance(tested, AlwaysTrue)]
    conditions = [
        (spec == spec_id) & matches(spec_id, tested)
        for spec_id, tested in filters.items()
        if not isinstance(tested, AlwaysTrue | AlwaysFalse)
    ]
    return reduce(or_, [*untested, *conditions], sql.lit(False))


def _tuple_predicate(_: int, partition_filter: BooleanExpression) -> Sql:
    return row_predicate(partition_filter, partition_value)
