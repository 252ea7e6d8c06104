"""Find the files that snapshots reach, and delete those that nothing needs."""
