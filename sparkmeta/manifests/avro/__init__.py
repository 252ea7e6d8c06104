"""Avro manifests of v1-v3 tables: container framing, schema by field ids, decoding to Arrow, distributed reading."""
