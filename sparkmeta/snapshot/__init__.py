"""One immutable state of a table, and the search for files in it."""
