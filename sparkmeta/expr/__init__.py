"""Expressions over columns: built once, and run as Spark SQL or over Arrow arrays. No I/O."""
