"""Field names as Iceberg's writers make them fit for Avro, which Parquet manifests have as well."""

from __future__ import annotations

import unicodedata


def avro_name(name: str) -> str:
    """A name as it stands in manifests: what Avro names can't hold is replaced (table spec, Avro).

    A digit in the first place gets an underscore before it; any other character that is no letter, digit or underscore
    becomes `_x` and the hexadecimal number of its UTF-16 code unit.
    """
    encoded = name.encode("utf-16-be", "surrogatepass")
    units = [chr(int.from_bytes(encoded[place : place + 2], "big")) for place in range(0, len(encoded), 2)]
    return "".join(unit if _fits(unit, first=place == 0) else _replaced(unit) for place, unit in enumerate(units))


def _fits(unit: str, *, first: bool) -> bool:
    return unit == "_" or unicodedata.category(unit)[0] == "L" or (not first and _is_digit(unit))


def _is_digit(unit: str) -> bool:
    return unicodedata.category(unit) == "Nd"


def _replaced(unit: str) -> str:
    return f"_{unit}" if _is_digit(unit) else f"_x{ord(unit):X}"
