"""Commits: from the metadata that a table has to the metadata that it is to have."""
