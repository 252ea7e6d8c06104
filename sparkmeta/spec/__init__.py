"""Read and write the formats of Iceberg metadata, without Spark and without I/O."""
