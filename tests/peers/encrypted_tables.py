"""Encrypted tables of Iceberg's Java library, in a process of its own: its Hive catalog alone writes such tables.

The catalog's metastore is in a folder (Derby). Each line of the standard input is a request, each result a line of
JSON after `RESULT`.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator

FILTERS = (None, "id < 20", "p = 1", "id = 445")
RESULT = "RESULT"
_MERGE_ON_READ = ", ".join(f"'write.{change}.mode'='merge-on-read'" for change in ("delete", "update", "merge"))


def session(folder: str, jar: str, classes: str) -> SparkSession:
    catalog = "spark.sql.catalog.enc"
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "2g",
        "spark.jars": jar,
        "spark.driver.extraClassPath": f"{jar}:{classes}",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hive",
        f"{catalog}.warehouse": f"file://{folder}/warehouse",
        f"{catalog}.encryption.kms-impl": "MasterKeys",
        f"{catalog}.cache-enabled": "false",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.iceberg.engine.hive.lock-enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def write(spark: SparkSession, name: str, file_format: str, key_length: int) -> None:
    """Write a table with data files of two commits, deletion vectors and an emptied partition."""
    properties = f"'format-version'='3', 'encryption.key-id'='key of {file_format}', {_MERGE_ON_READ}"
    properties += f", 'write.format.default'='{file_format}', 'encryption.data-key-length'='{key_length}'"
    columns = "id bigint, data string, p int"
    spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg PARTITIONED BY (p) TBLPROPERTIES ({properties})")
    values = "id, concat('v', id), cast(id % 3 as int)"
    spark.sql(f"INSERT INTO {name} SELECT {values} FROM range(400)")
    spark.sql(f"INSERT INTO {name} SELECT {values} FROM range(400, 450)")
    spark.sql(f"DELETE FROM {name} WHERE id < 10 OR id = 440")
    spark.sql(f"UPDATE {name} SET data = 'updated' WHERE id = 445")


def read(spark: SparkSession, name: str) -> dict[str, Any]:
    """Return the location of a table's metadata, its rows, and the plans of `FILTERS`: a file's path and deletes."""
    rows = spark.sql(f"SELECT * FROM {name} ORDER BY id").collect()
    jvm: Any = spark._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    log = spark.sql(f"SELECT file FROM {name}.metadata_log_entries").collect()
    plans = [sorted(_planned(jvm, spark, table, row_filter)) for row_filter in FILTERS]
    return {"location": log[-1].file, "rows": [[*row] for row in rows], "plans": plans}


def _planned(jvm: Any, spark: SparkSession, table: Any, row_filter: str | None) -> Iterator[tuple[str, list[str]]]:
    scan = table.newScan()
    if row_filter is not None:
        convert = jvm.org.apache.spark.sql.execution.datasources.SparkExpressionConverter
        condition = convert.collectResolvedSparkExpression(spark._jsparkSession, table.name(), row_filter)
        scan = scan.filter(convert.convertToIcebergExpression(condition))
    tasks = scan.planFiles().iterator()
    while tasks.hasNext():
        task = tasks.next()
        yield task.file().location(), sorted(delete.location() for delete in task.deletes())


def main() -> None:
    spark = session(*sys.argv[1:])
    spark.sql("CREATE NAMESPACE enc.db")
    for line in sys.stdin:
        request = json.loads(line)
        name = f"enc.db.{request['name']}"
        if "file_format" in request:
            write(spark, name, request["file_format"], request["key_length"])
        if "location" in request:
            spark.sql(f"CALL enc.system.register_table('db.{request['name']}', '{request['location']}')")
        for statement in request.get("sql", ()):
            spark.sql(statement.format(name))
        sys.stdout.write(f"{RESULT} {json.dumps(read(spark, name))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
