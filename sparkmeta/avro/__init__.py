"""Read and write the Avro manifests and manifest lists of v1 to v3 tables."""
