"""Edits of a table's metadata: the next root with its leaves, the next manifest list, and attempts to commit."""
