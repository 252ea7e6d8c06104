"""Sort the Avro manifests of a v1 to v3 table by partition."""
