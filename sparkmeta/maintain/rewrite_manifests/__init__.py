"""The Avro manifests of a v1-v3 table sorted anew by partition: the plan, its groups, and the Spark jobs."""
