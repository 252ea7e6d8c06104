"""The manifest cache: Avro manifests decoded once and kept as Parquet leaves."""
