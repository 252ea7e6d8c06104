"""What the builders of the corpus work with: one table under construction, written by Iceberg's Java library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.peers.java import Java

NAMESPACE = "java.peers"
# One file per partition and insert, written without a shuffle.
QUICK = {
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.delete.distribution-mode": "none",
    "write.update.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}
CONTENT_FILE = {
    "spec-id": 0,
    "content": "data",
    "file-format": "parquet",
    "file-size-in-bytes": 1000,
    "record-count": 10,
    "partition": [],
}
MERGE_ON_READ = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}


@dataclass
class Workshop:
    """The table `java.peers.<name>`, to be made by one builder."""

    java: Java
    name: str
    warehouse: str

    @property
    def spark(self) -> SparkSession:
        return self.java.spark

    @cached_property
    def sql_name(self) -> str:
        return f"{NAMESPACE}.`{self.name.replace('`', '``')}`"

    # --- with Spark

    def sql(self, text: str) -> DataFrame:
        """Runs SQL in which {t} stands for the table."""
        return self.spark.sql(text.replace("{t}", self.sql_name))

    def create(
        self, columns: str, partitioned: str = "", *, version: int = 2, properties: Mapping[str, str] | None = None
    ) -> None:
        options = QUICK | {"format-version": str(version)} | dict(properties or {})
        listed = ", ".join(f"'{key}'='{value}'" for key, value in options.items())
        by = f"PARTITIONED BY ({partitioned})" if partitioned else ""
        self.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg {by} TBLPROPERTIES ({listed})")

    def insert(self, *rows: str) -> None:
        """Appends rows, each the SQL of its values, by one task: one file in each partition."""
        values = ", ".join(f"({row})" for row in rows)
        self.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")

    def insert_files(self, *files: Sequence[str]) -> None:
        """Appends several groups of rows in one snapshot, each group by a task (thus a file) of its own."""
        groups = [f"array({', '.join(f'struct({row})' for row in rows)})" for rows in files]
        spread = f"range(0, {len(groups)}, 1, {len(groups)})"
        self.sql(f"INSERT INTO {{t}} SELECT inline(array({', '.join(groups)})[cast(id as int)]) FROM {spread}")

    def set(self, **properties: str) -> None:
        """Sets table properties; __ stands for a dot and _ for a dash in their names."""
        listed = ", ".join(
            f"'{key.replace('__', '.').replace('_', '-')}'='{value}'" for key, value in properties.items()
        )
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({listed})")

    def call(self, procedure: str, arguments: str = "") -> list[Any]:
        """Calls one of Iceberg's Spark procedures on the table."""
        table = f"peers.`{self.name}`".replace("'", "\\'")
        more = f", {arguments}" if arguments else ""
        return self.spark.sql(f"CALL java.system.{procedure}(table => '{table}'{more})").collect()

    # --- with Java's API

    def create_by_java(
        self,
        fields: Sequence[Mapping[str, Any]],
        partitioned: Sequence[tuple[str, str]] = (),
        *,
        version: int = 2,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """A table of types that Spark can't name. `fields`: the spec's JSON; `partitioned`: (column, transform)."""
        iceberg = self.java.iceberg
        schema = iceberg.SchemaParser.fromJson(json.dumps({"type": "struct", "schema-id": 0, "fields": list(fields)}))
        ids = {each["name"]: each["id"] for each in fields}
        spec = {
            "spec-id": 0,
            "fields": [
                {"name": f"{column}_{transform.split('[')[0]}", "transform": transform, "source-id": ids[column]}
                for column, transform in partitioned
            ],
        }
        self.catalog.createTable(
            self.identifier,
            schema,
            iceberg.PartitionSpecParser.fromJson(schema, json.dumps(spec)),
            {"format-version": str(version)} | dict(properties or {}),
        )

    @cached_property
    def catalog(self) -> Any:
        return self.java.iceberg.spark.Spark3Util.loadIcebergCatalog(self.java.session, "java")

    @property
    def identifier(self) -> Any:
        identifiers = self.java.iceberg.catalog
        return identifiers.TableIdentifier.of(identifiers.Namespace.of(self.java.strings(["peers"])), self.name)

    @property
    def table(self) -> Any:
        """The Java `Table` in its newest state."""
        return self.catalog.loadTable(self.identifier)

    @property
    def metadata_location(self) -> str:
        return str(self.table.operations().current().metadataFileLocation())

    @property
    def folder(self) -> Path:
        return Path(local_path(str(self.table.location())))

    def snapshot_id(self) -> int:
        return int(self.table.currentSnapshot().snapshotId())

    # --- files that Spark would not write

    def content_file(self, description: Mapping[str, Any]) -> Any:
        """A Java DataFile or DeleteFile of its JSON (Iceberg's ContentFileParser), with the table's spec of its id.

        The file itself need not exist: a plan asks only for metadata. "content" is "data" unless given.
        """
        parsers = self.java.iceberg
        full = CONTENT_FILE | dict(description)
        spec = self.table.specs().get(full["spec-id"])
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

    def write_parquet(self, file_name: str, columns: Mapping[str, Sequence[Any]]) -> str:
        """Writes values of some columns of the table, with their field ids, and returns the file's location.

        Names may be dotted; columns that the table has dropped are found in its older schemas.
        """
        fields = [self._field(name) for name in columns]
        schema = schema_to_pyarrow(Schema(*fields), include_field_ids=True)
        arrays = [arrow_array(values, each.type) for values, each in zip(columns.values(), schema, strict=True)]
        path = Path(local_path(self.file_location(file_name)))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
        return self.file_location(file_name)

    def _field(self, name: str) -> NestedField:
        parser = self.java.iceberg.SchemaParser
        schemas = [self.table.schema(), *self.table.schemas().values()]
        found = next(each for each in schemas if each.findField(name) is not None)
        field = Schema.model_validate_json(parser.toJson(found)).find_field(name)
        return NestedField(field.field_id, name.replace(".", "_"), field.field_type, required=False)

    def metrics(self, location: str, properties: Mapping[str, str] | None = None) -> Any:
        """Java's Metrics of a Parquet file, by the table's metrics modes or those of `properties`."""
        iceberg = self.java.iceberg
        modes = iceberg.MetricsConfig
        config = modes.forTable(self.table) if properties is None else modes.fromProperties(dict(properties))
        return iceberg.parquet.ParquetUtil.fileMetrics(self.java.io.newInputFile(location), config)

    def data_file(
        self, file_name: str, columns: Mapping[str, Sequence[Any]], partition: Sequence[Any] = (), spec_id: int = 0
    ) -> Any:
        """A DataFile over a new Parquet file; `partition` in JSON single values."""
        location = self.write_parquet(file_name, columns)
        spec = self.table.specs().get(spec_id)
        return self._finished(self.java.iceberg.DataFiles.builder(spec), location, partition, spec_id)

    def equality_delete(
        self,
        file_name: str,
        columns: Mapping[str, Sequence[Any]],
        partition: Sequence[Any] = (),
        spec_id: int = 0,
        metrics: Mapping[str, str] | None = None,
    ) -> Any:
        """A DeleteFile over a new Parquet file of deleted values; `metrics`: properties that set its metrics modes."""
        location = self.write_parquet(file_name, columns)
        ids = self.java.ints([self._field(name).field_id for name in columns])
        builder = self.java.iceberg.FileMetadata.deleteFileBuilder(self.table.specs().get(spec_id))
        return self._finished(builder.ofEqualityDeletes(ids), location, partition, spec_id, metrics)

    def _finished(
        self,
        builder: Any,
        location: str,
        partition: Sequence[Any],
        spec_id: int,
        metrics: Mapping[str, str] | None = None,
    ) -> Any:
        builder = builder.withInputFile(self.java.io.newInputFile(location)).withFormat("parquet")
        if partition:
            record = {"file-path": "-", "record-count": 1, "spec-id": spec_id, "partition": list(partition)}
            builder = builder.withPartition(self.content_file(record).partition())
        return builder.withMetrics(self.metrics(location, metrics)).build()

    def equality_delete_by_java(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], partition: Sequence[Any] = (), spec_id: int = 0
    ) -> Any:
        """A DeleteFile that Iceberg's Java writers made; values are JSON single values of int, long, text or double."""
        iceberg, table = self.java.iceberg, self.table
        spec, schema = table.specs().get(spec_id), table.schema().select(self.java.strings(columns))
        ids = [schema.findField(name).fieldId() for name in columns]
        writers = iceberg.data.GenericFileWriterFactory.Builder(table).equalityFieldIds(self.java.ints(ids))
        values = None
        if partition:
            record = {"file-path": "-", "record-count": 1, "spec-id": spec_id, "partition": list(partition)}
            values = self.content_file(record).partition()
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
    return location.removeprefix("file:").replace("//", "/", 1) if location.startswith("file:") else location
