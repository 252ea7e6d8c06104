"""Read and write the Avro manifests of v1 to v3 tables."""
