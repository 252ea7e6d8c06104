"""Iceberg's metadata tables as DataFrames, one module a family, and drawings of metadata trees."""
