"""Choose the data files to rewrite by their sizes and deletes, and group them as Iceberg's actions do."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyspark.sql.types import LongType, StructType

from sparkmeta.checks import POSITIVE, SHARE, at_least, one_of, option
from sparkmeta.commit.options import BranchOptions
from sparkmeta.entries.relation import collected, grouped, limited, ordered, pairs, union, where, with_columns
from sparkmeta.errors import ValidationError, shown
from sparkmeta.expr import sql
from sparkmeta.expr.predicate import parse_filter
from sparkmeta.maintain.rewrite_tasks import Packing
from sparkmeta.plan.choose import choose
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.plan.prune import prune_manifests
from sparkmeta.rows.planned import PARTITION_KEY, RowPlan, names_file, plan_rows
from sparkmeta.session import map_arrow, materialize
from sparkmeta.write.options import WriteOptions

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortOrder

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata

# Shares of the target size.
_LEAST, _MOST = 0.75, 1.8


@dataclass(frozen=True)
class FileSizes:
    """Sizes of files in bytes.

    Attributes:
        target: the size that new files should have.
        least: smaller files are rewritten.
        greatest: larger files are rewritten.
    """

    target: int
    least: int
    greatest: int

    @classmethod
    def of(cls, target: int, least: int | None, greatest: int | None) -> FileSizes:
        """Return sizes, with defaults for sizes that are None.

        Raises:
            ValidationError: the sizes do not increase.
        """
        least = int(target * _LEAST) if least is None else least
        greatest = max(int(target * _MOST), target + 1) if greatest is None else greatest
        if not least < target < greatest:
            raise ValidationError(
                f"min_file_size_bytes is {least}, target_file_size_bytes {target} and max_file_size_bytes {greatest}: "
                "they must increase"
            )
        return cls(target, least, greatest)

    @property
    def written(self) -> int:
        """The size at which a new file ends. It exceeds the target, so that no small file follows for the last rows."""
        return self.target + (self.greatest - self.target) // 2

    def outputs(self, size: int) -> int:
        """Return the number of files of about the target size for some bytes, as Iceberg's action computes it."""
        if size < self.target:
            return 1
        full_files, remainder = divmod(size, self.target)
        if not remainder or (remainder <= self.least and size / full_files < min(1.1 * self.target, self.written)):
            return full_files
        return full_files + 1


# -- The options of a rewrite of data files ---------------------------------------------------------------------------
# Iceberg's procedure `rewrite_data_files` has the same options.


BINPACK: Final = "binpack"
SORT: Final = "sort"
_COUNT: Final = at_least(1)
_FROM_ZERO: Final = at_least(0)


@dataclass(frozen=True)
class DataRewriteOptions(BranchOptions):
    """See `Maintenance.rewrite_data_files`."""

    row_filter: BooleanExpression | str = option(
        AlwaysTrue(), "rewrite only files that may hold matching rows, judging by partitions and metrics."
    )
    _: KW_ONLY
    strategy: str = option(
        BINPACK,
        "`binpack` to keep the order of rows, or `sort` to sort the rows of each partition.",
        one_of(BINPACK, SORT),
    )
    sort_order: SortOrder | str | None = option(
        None,
        "the order for `sort`, such as `id DESC NULLS LAST, bucket(16, name)` or `zorder(x, y)`. Defaults to the "
        "table's sort order.",
    )
    target_file_size_bytes: int | None = option(
        None, "the size of new files. Defaults to the table's `write.target-file-size-bytes`.", _COUNT
    )
    min_file_size_bytes: int | None = option(
        None, "smaller files are rewritten. Defaults to three quarters of the target size.", _FROM_ZERO
    )
    max_file_size_bytes: int | None = option(
        None, "larger files are rewritten. Defaults to 1.8 times the target size.", _COUNT
    )
    min_input_files: int = option(
        5, "the minimum number of files in a group, unless they are larger than the target size.", _COUNT
    )
    delete_file_threshold: int | None = option(
        None, "rewrite files with at least this number of delete files and deletion vectors.", _COUNT
    )
    delete_ratio_threshold: float = option(
        0.3,
        "rewrite files with at least this share of deleted rows, by deletion vectors and position delete files "
        "that name the file.",
        SHARE,
    )
    rewrite_all: bool = option(False, "rewrite all files.")
    only_old_specs: bool = option(
        False,
        "rewrite all files of other partition specs than the one of new files, whatever their size, and no others.",
    )
    only_old_orders: bool = option(
        False,
        "rewrite all files that are not in the order of the strategy `sort`, whatever their size, and no others. The "
        "order has to be one of the table's. With `only_old_specs`, files that are old in either way are rewritten.",
    )
    max_file_group_size_bytes: int = option(
        100 << 30, "the maximum size of a group; a larger partition has several.", _COUNT
    )
    max_concurrent_file_group_rewrites: int | None = option(
        None, "the maximum number of groups that a Spark job rewrites. Defaults to all groups of a commit.", _COUNT
    )
    rewrite_job_order: str = option(
        "none",
        "the order of groups: `bytes-asc`, `bytes-desc`, `files-asc`, `files-desc` or `none`.",
        one_of("none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"),
    )
    partial_progress_enabled: bool = option(False, "commit groups in several commits; some may fail.")
    partial_progress_max_commits: int = option(10, "the maximum number of commits.", _COUNT)
    partial_progress_max_failed_commits: int | None = option(
        None, "how many of the commits may fail. Defaults to all but one.", _FROM_ZERO
    )
    use_starting_sequence_number: bool = option(
        True,
        "give new files the sequence number of the snapshot whose files they replace, so that equality deletes of "
        "later snapshots apply to them and do not conflict.",
    )
    remove_dangling_deletes: bool = option(False, "after a rewrite, also remove deletes that apply to no data file.")
    output_spec_id: int | None = option(None, "the partition spec of new files. Defaults to the table's.", _FROM_ZERO)
    compression_factor: float = option(
        1.0, "the expected ratio of the size of new files to the bytes that they replace.", POSITIVE
    )
    max_file_group_input_files: int | None = option(
        None, "the maximum number of files in a group; a partition with more has several.", _COUNT
    )
    max_files_to_rewrite: int | None = option(
        None, "the maximum number of files to rewrite. The last group may be cut short.", _COUNT
    )

    def check(self) -> None:
        """See `Options.check`. Raises InvalidFilterError for a filter that is not valid."""
        super().check()
        parse_filter(self.row_filter)
        if self.sort_order is not None and self.strategy != SORT:
            raise ValidationError(f"sort_order is {shown(str(self.sort_order))}: it requires strategy='sort'")
        if self.only_old_orders and self.strategy != SORT:
            raise ValidationError("only_old_orders is true: it requires strategy='sort'")
        if self.rewrite_all and self.chooses_old:
            raise ValidationError("rewrite_all is true: only_old_specs and only_old_orders rewrite some of the files")
        if self.target_file_size_bytes is not None:
            self._sizes(self.target_file_size_bytes)

    @property
    def chooses_old(self) -> bool:
        """Whether files are chosen by their spec or order, and not by their size and deletes."""
        return self.only_old_specs or self.only_old_orders

    def check_for(self, metadata: TableMetadata) -> None:
        """Check values for a table.

        Raises:
            ValidationError: an option or table property has an invalid value.
            InvalidFilterError: the filter is not valid.
        """
        self.check()
        if self.output_spec_id is not None and self.output_spec_id not in metadata.specs():
            spec_ids = ", ".join(map(str, sorted(metadata.specs())))
            problem = f"the table has the partition specs {spec_ids}"
            raise ValidationError(f"output_spec_id is {self.output_spec_id}: {problem}")
        self.sizes(metadata)

    def sizes(self, metadata: TableMetadata) -> FileSizes:
        """Return the sizes of files. The target defaults to `write.target-file-size-bytes`.

        Raises:
            ValidationError: sizes are not in order, or the table property is invalid.
        """
        target = self.target_file_size_bytes
        if target is None:
            target = WriteOptions.of(metadata).target_bytes
        return self._sizes(target)

    def _sizes(self, target: int) -> FileSizes:
        return FileSizes.of(target, self.min_file_size_bytes, self.max_file_size_bytes)


# -- Choose the data files to rewrite ---------------------------------------------------------------------------------
# A group contains files of one partition that a rewrite improves.


NUMBER: Final = "number"
"""The column with a chosen group's index in the order of the rewrite."""

PLAN_ORDER: Final = ("manifest_number", "manifest_pos")
"""The columns that order files as Iceberg's plans do."""

_GROUP: Final = "group"
_KEY: Final = "group_key_{}"
_RECORDS, _SIZE, _DELETES = (sql.col(name) for name in ("record_count", "file_size_in_bytes", "deletes"))
_DELETED: Final = sql.total(sql.filter(_DELETES, names_file), lambda delete: delete["record_count"])
_IS_DEAD: Final = (_RECORDS == 0) | (
    (_RECORDS > 0)
    & sql.exists(_DELETES, lambda delete: (delete["file_format"] == "PUFFIN") & (delete["record_count"] >= _RECORDS))
)
_RATIO: Final = sql.call("least", sql.col("deleted_records"), _RECORDS) / sql.when(_RECORDS != 0, _RECORDS)
_LIVE_BYTES: Final = sql.when(sql.col("is_dead"), 0).otherwise(
    sql.call("floor", _SIZE * (sql.lit(1.0) - sql.coalesce(sql.col("deleted_ratio"), 0.0))).cast("bigint")
)


@dataclass(frozen=True)
class FileGroups:
    """The groups of data files of a snapshot to rewrite.

    Attributes:
        state: the table at the snapshot.
        options: the options of the rewrite.
        sizes: the sizes of files.
        order_id: the id of the order of new files; 0 if they are unsorted, or the table does not know the order.
    """

    state: TableState
    options: DataRewriteOptions
    sizes: FileSizes
    order_id: int = 0

    @cached_property
    def plan(self) -> RowPlan:
        """The plan of all data files that may match the filter, with their deletes."""
        scan = replace(ScanFilter.of(self.state, self.options.row_filter), reads_all_rows=True)
        return plan_rows(choose(prune_manifests(scan)), sql.col("manifest").alias(PLAN_ORDER[0]))

    @property
    def output_spec(self) -> int:
        """The partition spec of new files."""
        spec_id = self.options.output_spec_id
        return self.state.metadata.default_spec_id if spec_id is None else spec_id

    @cached_property
    def _packed(self) -> Relation:
        """The files that a rewrite improves, each with its group."""
        keys = {_KEY.format(index): key for index, key in enumerate(self._keys)}
        rows = with_columns(self._improvable, *sql.named(keys))
        packing = Packing(tuple(keys), self.options.max_file_group_size_bytes, self.options.max_file_group_input_files)
        if isinstance(rows, pa.Table):
            ordered = rows.sort_by([(name, "ascending") for name in (*keys, *PLAN_ORDER)])
            schema = ordered.schema.append(pa.field(_GROUP, pa.int64()))
            packed = pa.Table.from_batches(packing(ordered.combine_chunks().to_batches()), schema)
            return packed.drop_columns([*keys])
        shuffled = rows.repartition(*keys) if keys else rows.coalesce(1)
        sorted_rows = shuffled.sortWithinPartitions(*keys, *PLAN_ORDER)
        row_type = StructType([*sorted_rows.schema.fields]).add(_GROUP, LongType())
        return materialize(map_arrow(sorted_rows, packing, row_type).drop(*keys))

    @property
    def _improvable(self) -> Relation:
        """The files that are too small or too large, have too many deletes, or are of an old spec or order."""
        options, sizes = self.options, self.sizes
        rows = with_columns(self.plan.rows, _DELETED.alias("deleted_records"), _IS_DEAD.alias("is_dead"))
        rows = with_columns(rows, _RATIO.alias("deleted_ratio"))
        has_many_deletes = sql.coalesce(sql.col("deleted_ratio") >= options.delete_ratio_threshold, False)
        if options.delete_file_threshold is not None:
            has_many_deletes |= sql.call("size", _DELETES) >= options.delete_file_threshold
        rows = with_columns(rows, _LIVE_BYTES.alias("live_bytes"), has_many_deletes.alias("has_many_deletes"))
        if options.rewrite_all:
            return rows
        if options.chooses_old:
            is_of_old_order = ~sql.col("sort_order_id").eqNullSafe(self.order_id)
            is_old = (sql.col("spec_id") != self.output_spec) & options.only_old_specs
            return where(rows, is_old | (is_of_old_order & options.only_old_orders))
        return where(rows, (sizes.least > _SIZE) | (sizes.greatest < _SIZE) | sql.col("has_many_deletes"))

    @property
    def _keys(self) -> list[Sql]:
        """The values of the partition key. They are null for files of other specs and of the null partition."""
        spec = self.state.metadata.spec()
        partition_fields = self.state.types.partition_fields
        ids = [field.field_id for field in spec.fields if field.field_id in partition_fields]
        is_of_spec = sql.col("spec_id") == spec.spec_id
        return [sql.when(is_of_spec, sql.col(f"{PARTITION_KEY}.p{field_id}")) for field_id in ids]

    @cached_property
    def groups(self) -> pa.Table:
        """The groups that are worth a rewrite, in the order of the rewrite. Runs jobs.

        Columns: `NUMBER`, files, bytes, live_bytes, records, dead_files, outputs (the number of new files), stays
        (whether tasks can write the rows to files of the same partition and spec).
        """
        table, _ = self._chosen
        order, _, direction = self.options.rewrite_job_order.partition("-")
        if direction:
            keys = [(order, f"{direction}ending"), (_GROUP, "ascending")]
            table = table.take(pc.sort_indices(table, sort_keys=keys))
        table = table.append_column("outputs", pa.array(self._outputs(table), pa.int64()))
        return table.append_column(NUMBER, pa.array(range(len(table)), pa.int64()))

    def _outputs(self, groups: pa.Table) -> list[int]:
        factor = self.options.compression_factor
        return [self.sizes.outputs(int(size * factor)) for size in groups.column("live_bytes").to_pylist()]

    @cached_property
    def new_files(self) -> int:
        """The approximate number of new files. Runs a job if a group has files of other partition specs.

        The files of such a group go to several partitions. Only the fields that the specs share are known to
        distinguish these, so the true number may be larger.
        """
        live = self.groups.filter(pc.field("files") > pc.field("dead_files"))
        if pc.all(live.column("stays")).as_py() is not False:
            return pc.sum(live.column("outputs")).as_py() or 0
        known, specs = self.state.types.partition_fields, self.state.specs
        ids = {field.field_id for field in specs[self.output_spec].fields if field.field_id in known}
        # Files of specs that lack a field of the new one may go to any partition.
        keys = [sql.col(f"{PARTITION_KEY}.p{field_id}") for field_id in sorted(ids)] + [
            sql.col("spec_id") == spec_id
            for spec_id, spec in specs.items()
            if not ids <= {field.field_id for field in spec.fields}
        ]
        named = sql.named({_KEY.format(index): key for index, key in enumerate(keys)})
        size = sql.call("sum", sql.col("live_bytes")).alias("live_bytes")
        files = where(self.files(), ~sql.col("is_dead"))
        return sum(self._outputs(collected(grouped(files, [*sql.columns(NUMBER), *named], [size]))))

    @cached_property
    def _chosen(self) -> tuple[pa.Table, Relation]:
        """The groups that are worth a rewrite, and their files. As in Iceberg, a limit on files cuts the last group."""
        packed = self._packed
        chosen_groups = self._figures(packed, every=self.options.rewrite_all or self.options.chooses_old)
        limit = self.options.max_files_to_rewrite
        if limit is None or not len(chosen_groups):
            return chosen_groups, packed
        until = pc.cumulative_sum(chosen_groups.column("files"))
        before = pc.subtract(until, chosen_groups.column("files"))
        chosen_groups = chosen_groups.filter(pc.less(before, limit))
        remaining = limit - before[len(chosen_groups) - 1].as_py()
        if chosen_groups.column("files")[-1].as_py() <= remaining:
            return chosen_groups, packed
        is_last = sql.col(_GROUP) == chosen_groups.column(_GROUP)[-1].as_py()
        cut = limited(ordered(where(packed, is_last), PLAN_ORDER), remaining)
        groups = [chosen_groups.slice(0, len(chosen_groups) - 1), self._figures(cut, every=True)]
        return pa.concat_tables(groups), union(where(packed, ~is_last), cut, self.state)

    def _figures(self, packed: Relation, *, every: bool) -> pa.Table:
        """Return the figures of all groups, or only of groups that are worth a rewrite. May run a job."""
        spec_id = sql.col("spec_id")
        moves = (spec_id != self.output_spec) | (spec_id != self.state.metadata.default_spec_id)
        public_fields = {field.field_id for field in self.state.types.partition_type.fields}
        if self.state.access.tasks is None or any(
            field.field_id not in public_fields for field in self.state.metadata.spec().fields
        ):
            moves = spec_id.isNotNull()
        figures = {
            "files": sql.call("sum", 1),
            "bytes": sql.call("sum", _SIZE),
            "live_bytes": sql.call("sum", sql.col("live_bytes")),
            "records": sql.call("sum", _RECORDS),
            "dead_files": sql.count_if(sql.col("is_dead")),
            "has_many_deletes": sql.call("max", sql.col("has_many_deletes")),
            "moves": sql.call("max", moves),
        }
        groups = grouped(packed, sql.columns(_GROUP), sql.named(figures))
        table = collected(groups if every else where(groups, self._is_worth_it)).sort_by(_GROUP)
        return table.append_column("stays", pc.invert(table.column("moves"))).drop_columns(["moves"])

    @property
    def _is_worth_it(self) -> Sql:
        files, size = sql.col("files"), sql.col("bytes")
        is_mergeable = (files > 1) & ((files >= self.options.min_input_files) | (size > self.sizes.target))
        return is_mergeable | (size > self.sizes.greatest) | sql.col("has_many_deletes")

    def files(self, start: int = 0, end: int | None = None) -> Relation:
        """Return the files of the chosen groups from one `NUMBER` to before another.

        Columns: the columns of `plan_files`, `PLAN_ORDER`, `NUMBER`, deleted_records, live_bytes, is_dead; and for the
        group, outputs, stays and group_bytes (the live bytes of its files).
        """
        names = [_GROUP, NUMBER, "outputs", "stays", "live_bytes"]
        table = self.groups.select(names).slice(start, None if end is None else end - start)
        return pairs(self._chosen[1], table.rename_columns([*names[:-1], "group_bytes"]), _GROUP)
