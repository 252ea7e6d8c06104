"""Data and delete files that Spark would not write, made for a table and committed through Java's API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from tests.peers.content_files import items

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.peers.java import Java

CONTENT_FILE = {
    "spec-id": 0,
    "content": "data",
    "file-format": "parquet",
    "file-size-in-bytes": 1000,
    "record-count": 10,
    "partition": [],
}


class FileMaker:
    """The part of a workshop that makes files; `table` is Java's `Table` in its newest state."""

    java: Java

    @property
    def table(self) -> Any:
        raise NotImplementedError

    def content_file(self, description: Mapping[str, Any], table: Any = None) -> Any:
        """A Java DataFile or DeleteFile of its JSON (Iceberg's ContentFileParser), with the table's spec of its id.

        The file itself need not exist: a plan asks only for metadata. "content" is "data" unless given.
        """
        parsers = self.java.iceberg
        full = CONTENT_FILE | dict(description)
        spec = (table or self.table).specs().get(full["spec-id"])
        key, value = ("data-file", full) if full["content"] == "data" else ("delete-files", [full])
        task = {
            "task-type": "file-scan-task",
            "schema": json.loads(parsers.SchemaParser.toJson(spec.schema())),
            "spec": json.loads(parsers.PartitionSpecParser.toJson(spec)),
            "start": 0,
            "length": 1,
            key: value,
        }
        parsed = parsers.ScanTaskParser.fromJson(json.dumps(task), True)
        return parsed.file() if key == "data-file" else parsed.deletes()[0]

    def file_location(self, file_name: str) -> str:
        return f"{self.table.location()}/data/{file_name}"

    def write_parquet(self, table: Any, file_name: str, columns: Mapping[str, Sequence[Any]]) -> tuple[str, list[int]]:
        """Writes values of some columns of the table, and returns the file's location and their field ids.

        Names may be dotted; columns that the table has dropped are found in its older schemas.
        """
        fields = [self._field(table, name) for name in columns]
        schema = schema_to_pyarrow(Schema(*fields), include_field_ids=True)
        arrays = [arrow_array(values, each.type) for values, each in zip(columns.values(), schema, strict=True)]
        location = f"{table.location()}/data/{file_name}"
        path = Path(local_path(location))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
        return location, [field.field_id for field in fields]

    def _field(self, table: Any, name: str) -> NestedField:
        parser = self.java.iceberg.SchemaParser
        schemas = [table.schema(), *items(table.schemas()).values()]
        schema = next(each for each in schemas if each.findField(name) is not None)
        field = Schema.model_validate_json(parser.toJson(schema)).find_field(name)
        return NestedField(field.field_id, name.replace(".", "_"), field.field_type, required=False)

    def data_file(
        self, file_name: str, columns: Mapping[str, Sequence[Any]], partition: Sequence[Any] = (), spec_id: int = 0
    ) -> Any:
        """A DataFile over a new Parquet file; `partition` in JSON single values."""
        table = self.table
        location, _ = self.write_parquet(table, file_name, columns)
        builder = self.java.iceberg.DataFiles.builder(table.specs().get(spec_id))
        return self._finished(table, builder, location, partition, spec_id)

    def equality_delete(
        self,
        file_name: str,
        columns: Mapping[str, Sequence[Any]],
        partition: Sequence[Any] = (),
        spec_id: int = 0,
        metrics: Mapping[str, str] | None = None,
    ) -> Any:
        """A DeleteFile over a new Parquet file of deleted values; `metrics`: properties that set its metrics modes."""
        table = self.table
        location, ids = self.write_parquet(table, file_name, columns)
        builder = self.java.iceberg.FileMetadata.deleteFileBuilder(table.specs().get(spec_id))
        return self._finished(
            table, builder.ofEqualityDeletes(self.java.ints(ids)), location, partition, spec_id, metrics
        )

    def _finished(
        self,
        table: Any,
        builder: Any,
        location: str,
        partition: Sequence[Any],
        spec_id: int,
        metrics: Mapping[str, str] | None = None,
    ) -> Any:
        iceberg, file = self.java.iceberg, self.java.io.newInputFile(location)
        modes = iceberg.MetricsConfig
        config = modes.forTable(table) if metrics is None else modes.fromProperties(dict(metrics))
        builder = builder.withInputFile(file).withFormat("parquet")
        if partition:
            builder = builder.withPartition(self._tuple(table, partition, spec_id))
        return builder.withMetrics(iceberg.parquet.ParquetUtil.fileMetrics(file, config)).build()

    def _tuple(self, table: Any, partition: Sequence[Any], spec_id: int) -> Any:
        record = {"file-path": "-", "spec-id": spec_id, "partition": list(partition)}
        return self.content_file(record, table).partition()

    def equality_delete_by_java(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], partition: Sequence[Any] = (), spec_id: int = 0
    ) -> Any:
        """A DeleteFile that Iceberg's Java writers made; values are JSON single values of int, long, text or double."""
        iceberg, table = self.java.iceberg, self.table
        spec, schema = table.specs().get(spec_id), table.schema().select(self.java.strings(columns))
        ids = [schema.findField(name).fieldId() for name in columns]
        writers = iceberg.data.GenericFileWriterFactory.Builder(table).equalityFieldIds(self.java.ints(ids))
        values = self._tuple(table, partition, spec_id) if partition else None
        target = iceberg.io.OutputFileFactory.builderFor(table, 1, len(rows)).defaultSpec(spec).build()
        output = target.newOutputFile(spec, values) if partition else target.newOutputFile()
        writer = writers.equalityDeleteRowSchema(schema).build().newEqualityDeleteWriter(output, spec, values)
        for row in rows:
            text = json.dumps({str(field_id): value for field_id, value in zip(ids, row, strict=True)})
            writer.write(iceberg.SingleValueParser.fromJson(schema.asStruct(), text))
        writer.close()
        return writer.toDeleteFile()

    def append(self, *files: Any) -> None:
        update = self.table.newFastAppend()
        for file in files:
            update.appendFile(file)
        update.commit()

    def row_delta(self, *deletes: Any, rows: Iterable[Any] = ()) -> None:
        update = self.table.newRowDelta()
        for file in deletes:
            update.addDeletes(file)
        for file in rows:
            update.addRows(file)
        update.commit()


def arrow_array(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    storage = arrow_type.storage_type if isinstance(arrow_type, pa.BaseExtensionType) else arrow_type
    array = pa.array(values, storage)
    return arrow_type.wrap_array(array) if storage is not arrow_type else array


def local_path(location: str) -> str:
    """The path of a file: location; Hadoop's locations are not percent-encoded."""
    path = location.removeprefix("file:")
    return path[2:] if path.startswith("///") else path
