"""What the bytes of Iceberg metadata mean: no Spark, no input or output."""
