"""Implement the `sparkmeta` command, which prints metadata and scan plans as text or JSON."""

from sparkmeta.cli.commands import main

__all__ = ["main"]
