"""Planning a scan: DataFrames in, DataFrames out. `files.py` is the page to read first."""
