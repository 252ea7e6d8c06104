"""Choose the data files to rewrite: those that a rewrite improves, in groups of one partition. Spark jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.plan.choose import choose
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.plan.prune import prune_manifests
from sparkmeta.rewrite.data_files.packing import Packing
from sparkmeta.rows.planned import PARTITION_KEY, RowPlan, names_file, plan_rows
from sparkmeta.session import local_frame, map_arrow, materialize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.rewrite.data_files.options import DataRewriteOptions
    from sparkmeta.rewrite.file_sizes import FileSizes
    from sparkmeta.state import TableState

NUMBER: Final = "number"
"""The place of a chosen group in the order in which groups are rewritten."""

PLACE: Final = ("manifest_number", "manifest_pos")
"""The columns that order files as plans of Iceberg do."""

_GROUP: Final = "group"
_KEY: Final = "group_key_{}"
_DELETED: Final = sql.aggregate(
    sql.filter(sql.col("deletes"), names_file), Sql("0L"), lambda total, delete: total + delete["record_count"]
)
_IS_DEAD: Final = (
    "record_count = 0 OR record_count > 0 AND exists(deletes, delete -> delete.file_format = 'PUFFIN' AND "
    "delete.record_count >= record_count)"
)
_LIVE_BYTES: Final = (
    "IF(is_dead, 0L, CAST(file_size_in_bytes * (1 - coalesce(deleted_ratio, 0)) AS BIGINT)) AS live_bytes"
)


@dataclass(frozen=True)
class FileGroups:
    """The groups of data files of a snapshot to rewrite.

    Attributes:
        state: the table at the snapshot.
        options: which files, and how.
        sizes: the sizes of files.
    """

    state: TableState
    options: DataRewriteOptions
    sizes: FileSizes

    @cached_property
    def plan(self) -> RowPlan:
        """The plan of all data files that may match the filter, with their deletes."""
        scan = replace(ScanFilter.of(self.state, self.options.row_filter), reads_all_rows=True)
        return plan_rows(choose(prune_manifests(scan)), sql.col("manifest").alias(PLACE[0]))

    @property
    def output_spec(self) -> int:
        """The partition spec of new files."""
        chosen = self.options.output_spec_id
        return self.state.metadata.default_spec_id if chosen is None else chosen

    @cached_property
    def _packed(self) -> DataFrame:
        """The files that a rewrite improves, each with its group."""
        keys = self._keys
        frame = self._improvable
        if keys:
            names = [_KEY.format(place) for place in range(len(keys))]
            frame = frame.selectExpr("*", *(f"{key} AS {name}" for name, key in zip(names, keys, strict=True)))
            placed = frame.repartition(*names).sortWithinPartitions(*names, *PLACE)
        else:
            names = []
            placed = frame.coalesce(1).sortWithinPartitions(*PLACE)
        row_type = StructType([*placed.schema.fields]).add(_GROUP, LongType())
        packing = Packing(tuple(names), self.options.max_file_group_size_bytes, self.options.max_file_group_input_files)
        return materialize(map_arrow(placed, packing, row_type).drop(*names))

    @property
    def _improvable(self) -> DataFrame:
        """The files that are too small or too large, or have too many deletes."""
        options, sizes = self.options, self.sizes
        frame = self.plan.frame.selectExpr("*", _DELETED.alias("deleted_records").selected, f"{_IS_DEAD} AS is_dead")
        ratio = "least(deleted_records, record_count) / CAST(nullif(record_count, 0) AS DOUBLE)"
        frame = frame.selectExpr("*", f"{ratio} AS deleted_ratio")
        many = f"coalesce(deleted_ratio >= {options.delete_ratio_threshold!r}D, false)"
        if options.delete_file_threshold is not None:
            many += f" OR size(deletes) >= {options.delete_file_threshold}"
        frame = frame.selectExpr("*", _LIVE_BYTES, f"{many} AS has_many_deletes")
        if options.rewrite_all:
            return frame
        sized = f"file_size_in_bytes < {sizes.least} OR file_size_in_bytes > {sizes.most}"
        return frame.where(f"{sized} OR has_many_deletes")

    @property
    def _keys(self) -> list[str]:
        """The key of partitions of the table's spec; files of other specs share the group of its nulls."""
        spec = self.state.metadata.spec()
        known = self.state.types.partition_fields
        ids = [field.field_id for field in spec.fields if field.field_id in known]
        return [f"IF(spec_id = {spec.spec_id}, {PARTITION_KEY}.p{field_id}, NULL)" for field_id in ids]

    @cached_property
    def groups(self) -> pa.Table:
        """The groups that are worth a rewrite, in the order in which they are rewritten. Runs jobs.

        Columns: `NUMBER`, files, bytes, live_bytes, records, dead_files, outputs (how many files they become), stays
        (whether tasks can write the rows to files of the same partition and spec).
        """
        chosen, _ = self._chosen
        order, _, direction = self.options.rewrite_job_order.partition("-")
        if direction:
            keys = [(order, f"{direction}ending"), (_GROUP, "ascending")]
            chosen = chosen.take(pc.sort_indices(chosen, sort_keys=keys))
        factor = self.options.compression_factor
        outputs = [self.sizes.outputs(int(size * factor)) for size in chosen.column("live_bytes").to_pylist()]
        chosen = chosen.append_column("outputs", pa.array(outputs, pa.int64()))
        return chosen.append_column(NUMBER, pa.array(range(len(chosen)), pa.int64()))

    @cached_property
    def _chosen(self) -> tuple[pa.Table, DataFrame]:
        """The groups that are worth a rewrite, and the files. As in Iceberg, the last one of the most files is cut."""
        packed = self._packed
        groups = self._figures(packed)
        if not self.options.rewrite_all:
            groups = groups.where(self._is_worth_it)
        chosen = groups.toArrow().sort_by(_GROUP)
        most = self.options.max_files_to_rewrite
        if most is None or not len(chosen):
            return chosen, packed
        until = pc.cumulative_sum(chosen.column("files"))
        before = pc.subtract(until, chosen.column("files"))
        chosen = chosen.filter(pc.less(before, most))
        left = most - before[len(chosen) - 1].as_py()
        if chosen.column("files")[-1].as_py() <= left:
            return chosen, packed
        is_last = F.col(_GROUP) == chosen.column(_GROUP)[-1].as_py()
        cut = packed.where(is_last).orderBy(*PLACE).limit(left)
        last = self._figures(cut).toArrow().cast(chosen.schema)
        return pa.concat_tables([chosen.slice(0, len(chosen) - 1), last]), packed.where(~is_last).union(cut)

    def _figures(self, packed: DataFrame) -> DataFrame:
        is_other = f"spec_id <> {self.output_spec} OR spec_id <> {self.state.metadata.default_spec_id}"
        shown = {field.field_id for field in self.state.types.partition_type.fields}
        if self.state.access.tasks is None or any(
            field.field_id not in shown for field in self.state.metadata.spec().fields
        ):
            is_other = "true"
        return packed.groupBy(_GROUP).agg(
            F.count("*").alias("files"),
            F.sum("file_size_in_bytes").alias("bytes"),
            F.sum("live_bytes").alias("live_bytes"),
            F.sum("record_count").alias("records"),
            F.count_if("is_dead").alias("dead_files"),
            F.max("has_many_deletes").alias("has_many_deletes"),
            F.expr(f"NOT max({is_other})").alias("stays"),
        )

    @property
    def _is_worth_it(self) -> str:
        several = f"files > 1 AND (files >= {self.options.min_input_files} OR bytes > {self.sizes.target})"
        return f"{several} OR bytes > {self.sizes.most} OR has_many_deletes"

    def files(self, start: int = 0, end: int | None = None) -> DataFrame:
        """Return the files of the chosen groups from one `NUMBER` to before another.

        Columns of `plan_files`, `PLACE`, `NUMBER`, deleted_records, live_bytes, is_dead, and of the group outputs,
        stays and group_bytes, the live bytes of its files.
        """
        names = [_GROUP, NUMBER, "outputs", "stays", "live_bytes"]
        table = self.groups.select(names).slice(start, None if end is None else end - start)
        groups = local_frame(self.state.spark, table.rename_columns([*names[:-1], "group_bytes"]))
        return self._chosen[1].join(F.broadcast(groups), _GROUP).drop(_GROUP)
