"""Field ids in the metadata of Arrow fields, where Arrow's readers and writers of data files have them."""

from __future__ import annotations

import pyarrow as pa

_FIELD_ID_KEY = b"PARQUET:field_id"
# Of Parquet files, and of the column attributes that Iceberg writes in ORC.
_KEYS = (_FIELD_ID_KEY, b"iceberg.id", b"ICEBERG:iceberg.id")


def field_id(field: pa.Field) -> int | None:
    """Return the id of a field of a file, or None if it has none."""
    metadata = field.metadata or {}
    text = next((metadata[key] for key in _KEYS if key in metadata), None)
    return None if text is None else int(text)


def with_field_id(field: pa.Field, number: int | None) -> pa.Field:
    """Return the field with an id where Parquet writers take it from, and without other metadata.

    Without an id, the field is unchanged.
    """
    return field if number is None else field.with_metadata({_FIELD_ID_KEY: str(number).encode()})
