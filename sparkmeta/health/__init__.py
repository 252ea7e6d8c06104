"""Measure the state of a table's metadata, and report the maintenance that it needs."""
