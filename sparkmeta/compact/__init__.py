"""Compaction of a metadata tree: which leaves are rewritten and why, the Spark jobs, and the commit of the result."""
