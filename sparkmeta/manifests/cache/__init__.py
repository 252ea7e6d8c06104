"""The manifest cache: decoded Avro manifests, stored as Parquet leaves."""
