"""Which deletes apply to a data file (table spec, Scan Planning; Iceberg's DeleteFileIndex)."""
