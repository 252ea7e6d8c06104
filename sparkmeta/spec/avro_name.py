"""Convert field names to valid Avro names, as Iceberg's writers do in Avro and Parquet manifests."""

from __future__ import annotations

import unicodedata


def avro_name(name: str) -> str:
    """Return a field name as manifests spell it (table spec, Avro).

    An underscore is put before a leading digit. Any other character that is not a letter, digit or underscore becomes
    `_x` and the hexadecimal value of its UTF-16 code unit.
    """
    encoded = name.encode("utf-16-be", "surrogatepass")
    units = [chr(int.from_bytes(encoded[start : start + 2], "big")) for start in range(0, len(encoded), 2)]
    return "".join(unit if _is_valid(unit, first=i == 0) else _escape(unit) for i, unit in enumerate(units))


def _is_valid(unit: str, *, first: bool) -> bool:
    return unit == "_" or unicodedata.category(unit)[0] == "L" or (not first and _is_digit(unit))


def _is_digit(unit: str) -> bool:
    return unicodedata.category(unit) == "Nd"


def _escape(unit: str) -> str:
    return f"_{unit}" if _is_digit(unit) else f"_x{ord(unit):X}"
