"""Change sets: the files that a snapshot adds and removes, their conflict checks, and the transaction."""
