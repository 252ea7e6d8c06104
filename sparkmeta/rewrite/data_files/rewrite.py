"""Write the rows of groups of data files to new files. Spark jobs.

Rows that stay in their partition and need no order go from file to file in Arrow (`pack_tasks`). Others are rows of a
DataFrame, which Spark distributes and sorts (`write/files.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table.sorting import SortOrder
from pyspark.sql import Window
from pyspark.sql import functions as F

from sparkmeta.edit.range_sort import most_tasks
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.rewrite.data_files.curve import Curve, Path
from sparkmeta.rewrite.data_files.groups import NUMBER, PLACE, FileGroups
from sparkmeta.rewrite.data_files.pack_tasks import PARTS, PackTasks
from sparkmeta.rows.arrow_reader import PLANNED, parts, task_rows
from sparkmeta.rows.file_rows import START, STOP
from sparkmeta.rows.planned import PARTITION, PlannedFiles, RowPlan
from sparkmeta.rows.read import RowScan, rows_of
from sparkmeta.session import map_arrow
from sparkmeta.write.cleanup import delete_written
from sparkmeta.write.files import (
    CURVE_COLUMN,
    LINEAGE,
    Arrangement,
    data_file_tasks,
    lineage_columns,
    write_files,
    written_files,
)
from sparkmeta.write.input import way_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.rewrite.data_files.order import RowOrder
    from sparkmeta.state import TableState

_TARGET: Final = "write.target-file-size-bytes"
# Rows from which the bounds of a z-order come.
_SAMPLED: Final = 100_000
_UNSORTED: Final = SortOrder(order_id=0)


@dataclass(frozen=True)
class Rewrite:
    """Writes the rows of groups to new files.

    Attributes:
        groups: the groups.
        order: the order of rows; None to leave them in the order in which they are read.
    """

    groups: FileGroups
    order: RowOrder | None

    @property
    def state(self) -> TableState:
        return self.groups.state

    @cached_property
    def target(self) -> TableState:
        """The table, with the partition spec and the size of new files."""
        metadata = self.state.metadata
        properties = {**metadata.properties, _TARGET: str(self.groups.sizes.written)}
        update = {"default_spec_id": self.groups.output_spec, "properties": properties}
        return replace(self.state, metadata=metadata.model_copy(update=update))

    @cached_property
    def schema(self) -> Schema:
        """The columns of new files."""
        fields = self.state.metadata.schema().fields
        return Schema(*fields, *(LINEAGE if self._lineage else ()))

    @property
    def _lineage(self) -> tuple[str, ...]:
        return lineage_columns(self.state.metadata)

    def write(self, start: int, end: int) -> list[DataFrame]:
        """Write the rows of the groups from one `NUMBER` to before another.

        Returns:
            Rows that describe the new files, as `write_files`, which Spark keeps.

        Raises:
            ValidationError: a row does not fit the table.
            UnsupportedError: tasks can't open or write the table's files.
            CorruptFileError: a data file or a delete file is damaged.
        """
        written: list[DataFrame] = []
        try:
            most = self.groups.options.max_concurrent_file_group_rewrites or end - start
            for first in range(start, end, max(most, 1)):
                self._write(first, min(first + most, end), written)
        except BaseException:
            for files in written:
                delete_written(self.state, files)
            raise
        return written

    def _write(self, start: int, end: int, written: list[DataFrame]) -> None:
        groups = self.groups.groups.slice(start, end - start)
        live = groups.filter(pc.field("files") > pc.field("dead_files"))
        files = self.groups.files(start, end).where("NOT is_dead")
        stays = live.column("stays").to_pylist()
        outputs = live.column("outputs").to_pylist()
        if self.order is None:
            if any(stays):
                packed = sum(count for count, is_packed in zip(outputs, stays, strict=True) if is_packed)
                written.append(self._pack(files.where("stays"), packed))
            if not all(stays):
                moved = sum(count for count, is_packed in zip(outputs, stays, strict=True) if not is_packed)
                written.append(self._arrange(files.where("NOT stays"), _UNSORTED, moved))
            return
        # Ranges would cut small groups in two, whose rows a single task can sort.
        for by_range, condition in ((False, "outputs = 1"), (True, "outputs > 1")):
            count = sum(count for count in outputs if (count > 1) == by_range)
            if count:
                order = self.order.order
                written.append(self._arrange(files.where(condition), order, count, by_range=by_range))

    # -- from file to file ------------------------------------------------------------------------------------------

    def _pack(self, files: DataFrame, outputs: int) -> DataFrame:
        """Write the rows of files to new files of the same partition and spec."""
        schema = self.state.metadata.schema()
        rows = task_rows(self.state, schema, self._lineage)
        tasks = replace(data_file_tasks(self.target, self.schema), sort_order_id=_UNSORTED.order_id)
        names = {field.field_id: field.name for field in self.state.types.partition_type.fields}
        fields = tuple(names[field.field_id] for field in self.target.metadata.spec().fields)
        pack = PackTasks(rows, tuple(field.name for field in self.schema.fields), tasks, fields)
        placed = self._outputs(files).repartition(max(1, min(outputs, most_tasks(self.state.spark))))
        return written_files(self.state, map_arrow(placed, pack.write, tasks.result_schema), tasks.name)

    def _outputs(self, files: DataFrame) -> DataFrame:
        """Return a row for each new file with `PARTS`, the parts of files whose rows go there, in their order."""
        tuples = [PARTITION] if PARTITION in files.columns else []
        cut = parts(files, *tuples, *PLACE, NUMBER, "file_size_in_bytes", "live_bytes", "outputs", "group_bytes")
        share = f"(coalesce({STOP}, file_size_in_bytes) - {START}) / greatest(file_size_in_bytes, 1)"
        weighed = cut.withColumn("weight", F.expr(f"live_bytes * {share}"))
        until = Window.partitionBy(NUMBER).orderBy(*PLACE, START).rowsBetween(Window.unboundedPreceding, 0)
        middle = F.sum("weight").over(until) - F.col("weight") / 2
        place = F.floor(middle * F.col("outputs") / F.greatest("group_bytes", F.lit(1)))
        assigned = weighed.withColumn("output", F.least(place, F.col("outputs") - 1))
        part = F.struct(*PLACE, START, STOP, *PLANNED, *tuples)
        listed = assigned.groupBy(NUMBER, "output").agg(F.sort_array(F.collect_list(part)).alias(PARTS))
        return listed.select(PARTS)

    # -- by Spark ---------------------------------------------------------------------------------------------------

    def _arrange(self, files: DataFrame, order: SortOrder, outputs: int, *, by_range: bool = False) -> DataFrame:
        """Write the rows of files to new files, distributed by partition, and sorted."""
        planned = PlannedFiles.of([RowPlan(files, self.groups.plan.deletes)], self.state)
        curve = None if self.order is None or not self.order.curve else self._curve(planned)
        tasks = max(1, min(outputs, most_tasks(self.state.spark)))
        rows = rows_of(self._scan(self.state.metadata.schema(), self._lineage), planned)
        arrangement = Arrangement(order, tasks, by_range, curve)
        return write_files(self.target, rows, lineage=bool(self._lineage), arrangement=arrangement)

    def _scan(self, projection: Schema, metadata_columns: tuple[str, ...] = ()) -> RowScan:
        return RowScan(ScanFilter.of(self.state, AlwaysTrue()), projection, metadata_columns)

    def _curve(self, files: PlannedFiles) -> Curve:
        """Return the z-order of files' rows, of which some are read."""
        assert self.order is not None
        schema, columns = self.state.metadata.schema(), self.order.curve
        ways = [way_to(schema, column.field_id) for column in columns]
        paths: list[Path] = [(way[0].name, *(field.name for field in way[1:])) for way in ways]
        read = prune_columns(schema, {column.field_id for column in columns})
        count = sum(files.numbers("record_count").tolist())
        rows = rows_of(self._scan(read), files)
        sample = rows.sample(min(1.0, _SAMPLED / max(count, 1)), seed=7).limit(2 * _SAMPLED).toArrow()
        of_rows: list[Path] = [(schema.fields.index(way[0]), *path[1:]) for way, path in zip(ways, paths, strict=True)]
        return replace(Curve.of(CURVE_COLUMN, paths, sample), paths=tuple(of_rows))
