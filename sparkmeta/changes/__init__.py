"""What snapshots changed: files, entries and rows."""
