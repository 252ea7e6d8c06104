"""The `sparkmeta` command: a table's metadata and scan plans, as text to look at or JSON to go on with."""

from sparkmeta.cli.commands import main

__all__ = ["main"]
