"""Paths of files that are on the disk of the tests' machine."""

from __future__ import annotations

from sparkmeta.storage import location as locations


def local_path(location: str) -> str:
    """Return the path of a location with the scheme `file` or without a scheme."""
    return locations.local_path(location)
