"""Convert rows with the columns of `inspect.files` to entries of v1 to v3 manifests. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.commit.file_rows import FileRows, checked_table
from sparkmeta.entries.projection import FILE_COLUMNS, MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.manifests.v4.root import EntryProblem, entry_problems
from sparkmeta.spec.entry import METRICS_MAP_IDS, ContentType

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class ListedRows(FileRows):
    """Converts rows of files to entries of one table with manifest lists. Picklable.

    Attributes:
        format_version: the table's.
        partition: (partition field id, type name) of the fields of `partition` in entries.
    """

    format_version: int
    partition: tuple[tuple[int, str], ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of content entries, unconverted metrics maps, `partition`, `manifest` and `ordinal`."""
        return EntryProjection((*FILE_COLUMNS, *METRICS_MAP_IDS), self.partition).schema

    def _table(self, values: Mapping[str, pa.Array]) -> pa.Table:
        rows = len(values["location"])
        values = {
            **values,
            "file_format": pc.utf8_upper(values["file_format"]),
            MANIFEST: pa.repeat(pa.scalar(0, pa.int32()), rows),
            ORDINAL: pa.array(range(rows), pa.int64()),
        }
        return super()._table(values)

    def _problems(self, values: Mapping[str, pa.Array]) -> list[EntryProblem]:
        if self.format_version == 1:
            kinds = values["content_type"]
            for row in pc.indices_nonzero(pc.not_equal(kinds, int(ContentType.DATA))).to_pylist()[:1]:
                problem = "tables of format version 1 have no deletes"
                raise self._error(values, row, "content", kinds[row].as_py(), problem)
        vectors = self.format_version >= 3
        return entry_problems(checked_table(values), self.specs, self.columns, vectors=vectors)

    def _vectors(self, files: pa.Table, kinds: pa.Array) -> pa.Array:
        vectors = super()._vectors(files, kinds)
        if self.format_version >= 3:
            return vectors
        present = pc.or_(vectors.field("offset").is_valid(), vectors.field("size_in_bytes").is_valid())
        return pc.if_else(present, vectors, pa.scalar(None, vectors.type))

    def _details(self, files: pa.Table, values: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the partition tuples and the metrics maps."""
        maps = self._maps(files)
        self._checked_stats(maps, values)
        return maps | ({PARTITION: self._tuples(files, values)} if self.partition else {})

    def placed(self, files: pa.Table) -> pa.Table:
        """Return the columns `partition_spec_id` and, if the table has partition fields, `partition` of entries.

        Args:
            files: rows with `file_path`, `spec_id`, and `partition`.
        """
        values = {"partition_spec_id": pc.fill_null(self._column(files, "spec_id", pa.int32()), self.default_spec)}
        values["location"] = self._column(files, "file_path", pa.string())
        tuples = {PARTITION: self._tuples(files, values)} if self.partition else {}
        return pa.table({"partition_spec_id": values["partition_spec_id"]} | tuples)

    def _tuples(self, files: pa.Table, values: Mapping[str, pa.Array]) -> pa.StructArray:
        kind = self.schema.field(PARTITION).type
        specs = values["partition_spec_id"]
        columns = {field.name: pa.nulls(len(files), field.type) for field in kind}
        for spec_id in specs.unique().to_pylist():
            mask = pc.equal(specs, spec_id)
            for field in self.specs[spec_id]:
                if not field.is_void:
                    name = str(field.field_id)
                    columns[name] = pc.if_else(mask, self._partition_value(field, files, values, mask), columns[name])
        return pa.StructArray.from_arrays([*columns.values()], fields=list(kind))
