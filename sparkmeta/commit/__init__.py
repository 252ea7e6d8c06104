"""Commits: a change of a table's files, and the root, metadata and swap that make it the table's next state."""
