"""Rewrite position delete files and small Puffin files as deletion vectors."""
