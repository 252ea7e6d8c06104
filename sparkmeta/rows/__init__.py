"""Rows of data files."""
