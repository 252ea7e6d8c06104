"""Read the table properties for new data files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sparkmeta.errors import UnsupportedError
from sparkmeta.spec.table_properties import choice_property, number_property

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata

FORMATS: Final = ("parquet", "orc", "avro")
MODES: Final = ("none", "hash", "range")

# Iceberg's codec names -> those of Arrow and Avro.
_PARQUET_CODECS: Final = {
    "uncompressed": "none",
    "none": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "lz4_raw": "lz4",
    "brotli": "brotli",
}
_ORC_CODECS: Final = {
    "none": "uncompressed",
    "zlib": "zlib",
    "snappy": "snappy",
    "lz4": "lz4",
    "zstd": "zstd",
}
_AVRO_CODECS: Final = {"uncompressed": "null", "snappy": "snappy", "gzip": "deflate", "zstd": "zstandard"}
_WITH_LEVEL: Final = ("gzip", "zstd", "brotli")
_AVRO_BYTES: Final = 16 << 20
# Shuffled rows take about three times the space of the Parquet files that are written from them, so these files have
# about 128 MB, as Iceberg's.
_SHUFFLED_BYTES: Final = 384 << 20
# The default of parquet-java.
_LEVELS: Final = {"zstd": 3}


@dataclass(frozen=True)
class WriteOptions:
    """How data files are written. Picklable.

    Attributes:
        file_format: one of `FORMATS`.
        target_bytes: the size at which a new file begins.
        codec: the format library's name of the codec.
        level: the compression level; None for the library's default.
        group_bytes: the size of row groups or stripes; for Avro, of the rows that are encoded at a time.
        page_bytes: the size of Parquet pages.
        page_rows: the maximum number of rows in a Parquet page.
        dictionary_bytes: the size of Parquet dictionaries.
        distribution: one of `MODES`.
        shuffled_bytes: the size of the shuffled rows that adaptive execution gives to a task.
    """

    file_format: str
    target_bytes: int
    codec: str
    level: int | None
    group_bytes: int
    page_bytes: int
    page_rows: int
    dictionary_bytes: int
    distribution: str
    shuffled_bytes: int

    @staticmethod
    def of(metadata: TableMetadata) -> WriteOptions:
        """Return the options of a table.

        Raises:
            ValidationError: a property has an invalid value.
            UnsupportedError: a property names a codec that the installed pyarrow lacks.
        """
        properties = _Properties(metadata)
        file_format = properties.choice("write.format.default", "parquet", FORMATS)
        is_sorted = bool(metadata.sort_order().fields)
        is_partitioned = not metadata.spec().is_unpartitioned()
        return WriteOptions(
            file_format=file_format,
            target_bytes=properties.number("write.target-file-size-bytes", 512 << 20),
            codec=_codec(properties, file_format),
            level=_level(properties, file_format),
            group_bytes=_group_bytes(properties, file_format),
            page_bytes=properties.number("write.parquet.page-size-bytes", 1 << 20),
            page_rows=properties.number("write.parquet.page-row-limit", 20_000),
            dictionary_bytes=properties.number("write.parquet.dict-size-bytes", 2 << 20),
            distribution=properties.choice(
                "write.distribution-mode", "range" if is_sorted else "hash" if is_partitioned else "none", MODES
            ),
            shuffled_bytes=properties.number("write.spark.advisory-partition-size-bytes", _SHUFFLED_BYTES),
        )


@dataclass(frozen=True)
class _Properties:
    metadata: TableMetadata

    @property
    def values(self) -> Mapping[str, str]:
        return self.metadata.properties

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        return choice_property(self.values, name, allowed, default=default, location=self.metadata.location)

    def number(self, name: str, default: int) -> int:
        return number_property(self.values, name, default, least=1, location=self.metadata.location)


_CODECS: Final = {"parquet": (_PARQUET_CODECS, "zstd"), "orc": (_ORC_CODECS, "zlib"), "avro": (_AVRO_CODECS, "gzip")}
_GROUPS: Final = {
    "parquet": ("write.parquet.row-group-size-bytes", 128 << 20),
    "orc": ("write.orc.stripe-size-bytes", 64 << 20),
}


def _codec(properties: _Properties, file_format: str) -> str:
    codecs, default = _CODECS[file_format]
    name = f"write.{file_format}.compression-codec"
    codec = codecs[properties.choice(name, default, tuple(codecs))]
    if file_format == "parquet" and codec != "none" and not pa.Codec.is_available(codec):
        raise UnsupportedError(f"{properties.metadata.location}: {name} is {codec}: this pyarrow has no such codec")
    return codec


def _level(properties: _Properties, file_format: str) -> int | None:
    name = properties.values.get(f"write.{file_format}.compression-codec", _CODECS[file_format][1]).lower()
    if name not in _WITH_LEVEL or file_format == "orc":
        return None
    key = f"write.{file_format}.compression-level"
    if key in properties.values:
        return properties.number(key, 1)
    return _LEVELS.get(name) if file_format == "parquet" else None


def _group_bytes(properties: _Properties, file_format: str) -> int:
    if file_format == "avro":
        return _AVRO_BYTES
    return properties.number(*_GROUPS[file_format])
