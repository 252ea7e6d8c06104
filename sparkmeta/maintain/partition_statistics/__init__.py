"""Compute partition statistics: the rows, the file, and the plan."""
