"""Rewrite data files: bin-packed, sorted or in z-order, without deleted rows."""
