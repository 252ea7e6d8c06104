"""Take in tables of Hive, in a process of its own: its session has Hive's catalog.

`python -m tests.catalog.hive_tables FOLDER` prints a line for each table: its format, and its rows as Spark and as
sparkmeta read them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import sparkmeta as sm
from sparkmeta.session import local_config, prepare_environment
from tests.rows.comparison import row_texts


def main(folder: Path) -> None:
    prepare_environment()
    options = local_config(2, "1g") | {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:hive;create=true",
        "spark.sql.warehouse.dir": str(folder / "hive"),
        "spark.sql.shuffle.partitions": "2",
        "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in options.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    catalog = sm.load_catalog("taking", type="hadoop", warehouse=str(folder / "iceberg"))
    for file_format in ("parquet", "avro", "textfile"):
        name = f"of_{file_format}"
        spark.sql(f"CREATE TABLE {name} (id BIGINT, d DATE) PARTITIONED BY (k INT, p STRING) STORED AS {file_format}")
        spark.sql(f"INSERT INTO {name} VALUES (1, DATE'2026-01-31', 1, 'x y/%=ü+'), (2, NULL, 1, 'x y/%=ü+')")
        try:
            table = catalog.snapshot_table(name, f"db.{name}", spark=spark).commit()
        except sm.UnsupportedError as error:
            result = str(error)
        else:
            result = str(row_texts(table.scan().to_df()) == row_texts(spark.table(name)))
        sys.stdout.write(f"{file_format}: {result}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
