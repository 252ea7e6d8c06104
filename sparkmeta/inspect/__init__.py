"""Iceberg's metadata tables as DataFrames, and drawings of metadata trees."""
