"""Maintenance operations. Each returns a plan that changes nothing before its `commit()`."""
