"""Read the table properties for new delete files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparkmeta.data_files.options import parquet_codec
from sparkmeta.spec.table_properties import choice_property, number_property

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkmeta.spec.metadata import TableMetadata

VECTORS_SINCE: Final = 3
"""The first format version whose position deletes are deletion vectors."""

GRANULARITIES = BY_FILE, BY_PARTITION = "file", "partition"

_DELETE: Final = "write.delete."
_GRANULARITY: Final = "write.delete.granularity"
_CODEC, _FALLBACK = "write.delete.parquet.compression-codec", "write.parquet.compression-codec"
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
        UnsupportedError: the installed pyarrow lacks the codec.
    """
    return parquet_codec(properties, _CODEC if _CODEC in properties else _FALLBACK)


def of_deletes(metadata: TableMetadata, spec_id: int) -> TableMetadata:
    """Return a table's metadata with a default spec, and with the properties of equality delete files for data files.

    Such a property is `write.delete.parquet.compression-codec`, instead of `write.parquet.compression-codec`.
    """
    properties = dict(metadata.properties)
    for name, value in metadata.properties.items():
        if name.startswith(_DELETE):
            properties[f"write.{name.removeprefix(_DELETE)}"] = value
    properties["write.target-file-size-bytes"] = str(delete_target_bytes(metadata.properties))
    return metadata.model_copy(update={"default_spec_id": spec_id, "properties": properties})


def delete_target_bytes(properties: Mapping[str, str]) -> int:
    """Return the target size of a delete file.

    Raises:
        ValidationError: the table property has an invalid value.
    """
    return number_property(properties, _TARGET, _TARGET_BYTES, least=1)
