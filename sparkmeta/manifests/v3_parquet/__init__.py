"""Parquet manifests of the v1-v3 entry layout, as Iceberg 1.12 writes them for format version 4."""
