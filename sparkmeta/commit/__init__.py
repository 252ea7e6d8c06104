"""Change sets: the files that a snapshot adds and removes, their checks for conflicts, and the transaction."""
