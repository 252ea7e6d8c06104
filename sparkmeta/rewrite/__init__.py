"""Rewrites of data files, position deletes and Avro manifests: plans that change nothing before `commit()`."""
