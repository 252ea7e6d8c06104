"""Measure the state of a table's metadata, and say what maintenance it needs."""
