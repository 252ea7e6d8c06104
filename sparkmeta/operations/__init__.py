"""Load and commit table metadata: in folders, in SQL catalogs, or from single metadata files."""
