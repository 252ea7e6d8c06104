"""Compute table statistics: sketches of the distinct values of columns, and the plan."""
