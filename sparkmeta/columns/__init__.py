"""Iceberg expressions as Spark SQL, and as fast tests of Arrow arrays. No I/O."""
