"""Numbers for people."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def byte_size(count: float) -> str:
    """Format a number of bytes, such as 1536 as 1.5 KiB."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count:.0f} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def counted(count: int, noun: str) -> str:
    """Format a number with a noun, such as `1 file` or `2,000 files`. The noun is plural by an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
