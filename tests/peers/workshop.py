"""What the builders of the corpus work with: one table under construction, written by Iceberg's Java library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers.file_maker import FileMaker, local_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.peers.java import Java

NAMESPACE = "peers"
# One file per partition and insert, written without a shuffle.
QUICK = {
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.delete.distribution-mode": "none",
    "write.update.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}
MERGE_ON_READ = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}


@dataclass
class Workshop(FileMaker):
    """The table `<catalog>.peers.<name>`, to be made by one builder.

    warehouse: where a builder puts what no Spark catalog holds.
    """

    java: Java
    name: str
    warehouse: str = ""
    catalog_name: str = "java"

    @property
    def spark(self) -> SparkSession:
        return self.java.spark

    @cached_property
    def sql_name(self) -> str:
        return f"{self.catalog_name}.{NAMESPACE}.`{self.name.replace('`', '``')}`"

    # --- with Spark

    def sql(self, text: str) -> DataFrame:
        """Runs SQL; {t} is replaced by the table."""
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
        """Sets table properties; in their names, __ is replaced by a dot and _ by a dash."""
        listed = ", ".join(
            f"'{key.replace('__', '.').replace('_', '-')}'='{value}'" for key, value in properties.items()
        )
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({listed})")

    def call(self, procedure: str, arguments: str = "") -> list[Any]:
        """Calls one of Iceberg's Spark procedures on the table."""
        table = f"{NAMESPACE}.`{self.name}`".replace("'", "\\'")
        more = f", {arguments}" if arguments else ""
        return self.spark.sql(f"CALL {self.catalog_name}.system.{procedure}(`table` => '{table}'{more})").collect()

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
        return self.java.iceberg.spark.Spark3Util.loadIcebergCatalog(self.java.session, self.catalog_name)

    @cached_property
    def identifier(self) -> Any:
        identifiers = self.java.iceberg.catalog
        return identifiers.TableIdentifier.of(identifiers.Namespace.of(self.java.strings([NAMESPACE])), self.name)

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
