"""Change sets: which files a snapshot adds and removes, what they are checked against, and the transaction."""
