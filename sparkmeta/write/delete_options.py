"""Read the table properties for new delete files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparkmeta.spec.table_properties import choice_property, number_property

if TYPE_CHECKING:
    from collections.abc import Mapping

VECTORS_SINCE: Final = 3
"""The first format version whose position deletes are deletion vectors."""

GRANULARITIES = BY_FILE, BY_PARTITION = "file", "partition"

_GRANULARITY: Final = "write.delete.granularity"
_CODEC, _FALLBACK = "write.delete.parquet.compression-codec", "write.parquet.compression-codec"
_CODECS: Final = ("zstd", "gzip", "snappy", "lz4", "brotli", "uncompressed")
_TARGET, _TARGET_BYTES = "write.delete.target-file-size-bytes", 64 << 20


def delete_granularity(properties: Mapping[str, str]) -> str:
    """Return whether a new position delete file covers a data file or a partition.

    The default is that of Iceberg's Spark writers.

    Raises:
        ValidationError: the table property has an invalid value.
    """
    return choice_property(properties, _GRANULARITY, GRANULARITIES)


def delete_codec(properties: Mapping[str, str]) -> str:
    """Return PyArrow's name of the compression codec of new position delete files.

    Raises:
        ValidationError: the table property has an invalid value.
    """
    name = _CODEC if _CODEC in properties else _FALLBACK
    codec = choice_property(properties, name, _CODECS)
    return "none" if codec == "uncompressed" else codec


def delete_target_bytes(properties: Mapping[str, str]) -> int:
    """Return the target size of a delete file.

    Raises:
        ValidationError: the table property has an invalid value.
    """
    return number_property(properties, _TARGET, _TARGET_BYTES, least=1)
