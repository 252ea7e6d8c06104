"""Iceberg expressions as Spark Columns. No I/O."""
