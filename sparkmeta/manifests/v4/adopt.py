"""Turn entries of one table into entries that a commit adds to another. Without Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.arrays import narrowed, whole
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.errors import ValidationError, shown
from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.root import entry_problems
from sparkmeta.spec.entry import Status


@dataclass(frozen=True)
class TableMatch:
    """The ids of a table in another one that adds its files. Picklable.

    Attributes:
        table: the location of the table that has the entries, for errors.
        columns: ids of all columns that any schema of this table has had.
        specs: partition spec of the entries -> the same spec of the other table.
        sort_orders: sort order of the entries -> the same one of the other table. Files of others have none.
    """

    table: str
    columns: frozenset[int]
    specs: Mapping[int, int]
    sort_orders: Mapping[int, int]

    def sort_orders_of(self, ids: pa.Array) -> pa.Array:
        """Return the other table's sort orders; null for those that it lacks."""
        return _mapped(ids, self.sort_orders)

    def check(self, entries: pa.Table) -> None:
        """Check live entries with their sequence numbers, rows of a `tree_schema`.

        Raises:
            ValidationError: an entry breaks a rule of the field matrix.
        """
        for broken in entry_problems(entries, self.specs, self.columns):
            path = entries.column("location")[broken.row].as_py()
            raise ValidationError(
                f"{self.table}: {broken.field} of file {path} is {shown(broken.value)}: {broken.problem}"
            )


@dataclass(frozen=True)
class Adoption(TableMatch):
    """Makes live entries of a table those of new files of a tree. Picklable.

    Attributes:
        stats: the ids that may have stats in the other table -> Iceberg type names.
        sources: id of stats in the other table -> id of the same stats in the entries.
    """

    stats: Mapping[int, str]
    sources: Mapping[int, int]

    @cached_property
    def schema(self) -> pa.Schema:
        """The row type of the other table's entries."""
        return tree_schema(self.stats)

    def __call__(self, entries: pa.Table) -> pa.Table:
        """Return entries as rows of `schema` with status ADDED, without snapshot id, sequence numbers and row ids.

        Args:
            entries: live rows of a `tree_schema`, with their sequence numbers.

        Raises:
            ValidationError: an entry breaks a rule of the field matrix, so that readers would refuse it.
        """
        self.check(entries)
        rows = len(entries)
        columns = {name: whole(entries.column(name)) for name in entries.column_names}
        columns["version_info"] = added_version(rows, self.schema)
        columns["first_row_id"] = pa.nulls(rows, pa.int64())
        columns["partition_spec_id"] = _mapped(columns["partition_spec_id"], self.specs)
        columns["sort_order_id"] = self.sort_orders_of(columns["sort_order_id"])
        columns[CONTENT_STATS] = self._stats(columns[CONTENT_STATS])
        return pa.Table.from_arrays([columns[field.name] for field in self.schema], schema=self.schema)

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `map_arrow`."""
        for batch in batches:
            yield from self(pa.Table.from_batches([batch])).to_batches()

    def _stats(self, stats: pa.StructArray) -> pa.StructArray:
        by_id = dict(zip((int(field.name) for field in stats.type), stats.flatten(), strict=True))
        kind = self.schema.field(CONTENT_STATS).type
        children = []
        for field in kind:
            values = by_id.get(self.sources.get(int(field.name), -1))
            children.append(pa.nulls(len(stats), field.type) if values is None else _as(values, field.type))
        return (
            pa.StructArray.from_arrays(children, fields=list(kind)) if children else pa.array([{}] * len(stats), kind)
        )


def added_version(rows: int, schema: pa.Schema, sequence_number: int | None = None) -> pa.StructArray:
    """Return the `version_info` of new files: the commit sets snapshot id and sequence numbers.

    Args:
        rows: the number of files.
        schema: of the entries.
        sequence_number: the data sequence number of files whose rows are older than the commit.
    """
    added = pa.repeat(pa.scalar(int(Status.ADDED), pa.int32()), rows)
    snapshot_id, file_sequence_number = (pa.nulls(rows, pa.int64()) for _ in range(2))
    number = pa.repeat(pa.scalar(sequence_number, pa.int64()), rows)
    children = [added, snapshot_id, number, file_sequence_number]
    return pa.StructArray.from_arrays(children, fields=list(schema.field("version_info").type))


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else narrowed(values, kind)


def _mapped(ids: pa.Array, other: Mapping[int, int]) -> pa.Array:
    """Return the other table's ids; null for those that it lacks."""
    places = pc.index_in(ids, pa.array(list(other), ids.type))
    return pa.array(list(other.values()), ids.type).take(places)
