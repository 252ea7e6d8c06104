"""Parquet manifests with the entry layout of versions 1 to 3, as Iceberg 1.12 writes them for format version 4."""
