"""Iceberg expressions as Spark SQL, and as quick tests of Arrow arrays. No I/O."""
