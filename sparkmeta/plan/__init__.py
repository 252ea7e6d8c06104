"""Scan planning: DataFrames in, DataFrames out. Start reading at `files.py`."""
