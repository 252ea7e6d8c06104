"""Read the table properties for new data files."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import index_by_name
from pyiceberg.types import BooleanType, PrimitiveType

from sparkmeta.errors import UnsupportedError
from sparkmeta.spec.table_properties import choice_property, flag_property, fraction_property, number_property
from sparkmeta.storage.keys import data_key_length

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata

_log = logging.getLogger(__name__)

FORMATS: Final = ("parquet", "orc", "avro")
MODES: Final = ("none", "hash", "range")

# Iceberg's codec names -> Arrow's and Avro's names.
_PARQUET_CODECS: Final = {
    "uncompressed": "none",
    "none": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    # Arrow writes LZ4_RAW, which replaces LZ4 in the format.
    "lz4": "lz4",
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
# Shuffled rows take about three times the space of their Parquet files, so a task's file has about 128 MB, as in
# Iceberg.
_SHUFFLED_BYTES: Final = 384 << 20
# The default levels of parquet-java.
_LEVELS: Final = {"zstd": 3}


@dataclass(frozen=True)
class WriteOptions:
    """The options of writers of data files. Picklable.

    Attributes:
        file_format: one of `FORMATS`.
        target_bytes: the size at which a new file begins.
        codec: the format library's name of the codec.
        level: the compression level; None for the library's default.
        group_bytes: the size of row groups or stripes; for Avro, the size of the rows that are encoded at a time.
        page_bytes: the size of Parquet pages.
        page_rows: the maximum number of rows in a Parquet page.
        dictionary_bytes: the size of Parquet dictionaries.
        without_dictionary: the ids of Parquet columns without dictionaries.
        unmeasured: the ids of Parquet columns without statistics in the footer.
        bloom_filters: the Bloom filters of Parquet columns by field id.
        bloom_bytes: the maximum size of a Bloom filter.
        orc_strategy: whether ORC's codec favours speed or compression.
        inferring_rows: how many rows of a Parquet file determine how its variants are shredded; 0 to shred none.
        distribution: one of `MODES`.
        shuffled_bytes: the size of the shuffled rows that adaptive execution assigns to a task.
        data_key_length: the length of the keys of encrypted files in bytes; None if files are not encrypted.
    """

    file_format: str
    target_bytes: int
    codec: str
    level: int | None
    group_bytes: int
    page_bytes: int
    page_rows: int
    dictionary_bytes: int
    without_dictionary: frozenset[int]
    unmeasured: frozenset[int]
    bloom_filters: Mapping[int, BloomFilter]
    bloom_bytes: int
    orc_strategy: str
    inferring_rows: int
    distribution: str
    shuffled_bytes: int
    data_key_length: int | None

    @staticmethod
    def of(metadata: TableMetadata) -> WriteOptions:
        """Return the options of a table.

        Raises:
            ValidationError: a property has an invalid value.
            UnsupportedError: a property names a codec that the installed pyarrow lacks, or Bloom filters that it can't
                write.
        """
        properties, key_length = _Properties(metadata), data_key_length(metadata)
        file_format = properties.choice("write.format.default", "parquet", FORMATS)
        if file_format == "orc" and key_length is not None:
            raise UnsupportedError(f"{metadata.location}: the table is encrypted, and ORC files can't be")
        bloom_filters = _bloom_filters(properties) if file_format == "parquet" else {}
        if bloom_filters and key_length is not None:
            raise UnsupportedError(f"{metadata.location}: the table is encrypted, and Bloom filters can't be")
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
            without_dictionary=properties.columns_where(
                "write.parquet.dict-encoding-enabled.column.", is_enabled=False
            ),
            unmeasured=properties.columns_where("write.parquet.stats-enabled.column.", is_enabled=False),
            bloom_filters=bloom_filters,
            bloom_bytes=properties.number("write.parquet.bloom-filter-max-bytes", 1 << 20),
            orc_strategy=properties.choice("write.orc.compression-strategy", "speed", ("speed", "compression")),
            inferring_rows=properties.number("write.parquet.variant-inference-buffer-size", 100)
            if flag_property(
                metadata.properties, "write.parquet.shred-variants", default=False, location=metadata.location
            )
            else 0,
            distribution=properties.choice(
                "write.distribution-mode", "range" if is_sorted else "hash" if is_partitioned else "none", MODES
            ),
            shuffled_bytes=properties.number("write.spark.advisory-partition-size-bytes", _SHUFFLED_BYTES),
            data_key_length=key_length,
        )


@dataclass(frozen=True)
class BloomFilter:
    """A Bloom filter of a Parquet column.

    Attributes:
        false_positives: the share of absent values that the filter reports as present.
        values: the number of distinct values in a row group; None if it is unknown.
    """

    false_positives: float
    values: int | None


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

    def columns_where(self, prefix: str, *, is_enabled: bool) -> frozenset[int]:
        """Return the ids of the primitive columns whose property is `is_enabled`."""
        location = self.metadata.location
        return frozenset(
            field_id
            for name, field_id in self._columns(prefix)
            if flag_property(self.values, name, default=not is_enabled, location=location) == is_enabled
        )

    def _columns(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the properties with a prefix, and the ids of the primitive columns that they name."""
        schema = self.metadata.schema()
        ids = index_by_name(schema)
        for name in self.values:
            if not name.startswith(prefix):
                continue
            field_id = ids.get(name.removeprefix(prefix))
            if field_id is not None and isinstance(schema.find_type(field_id), PrimitiveType):
                yield name, field_id
            else:
                # As in Java, unknown columns are ignored: the column may have been dropped since.
                _log.warning("the table property %s is ignored: it names no primitive column", name)


_CODECS: Final = {"parquet": (_PARQUET_CODECS, "zstd"), "orc": (_ORC_CODECS, "zlib"), "avro": (_AVRO_CODECS, "gzip")}
_GROUPS: Final = {
    "parquet": ("write.parquet.row-group-size-bytes", 128 << 20),
    "orc": ("write.orc.stripe-size-bytes", 64 << 20),
}


def parquet_codec(properties: Mapping[str, str], name: str, location: str | None = None) -> str:
    """Return Arrow's name of the codec in a table property.

    Raises:
        ValidationError: the property has an invalid value.
        UnsupportedError: the installed pyarrow lacks the codec.
    """
    text = choice_property(properties, name, tuple(_PARQUET_CODECS), default="zstd", location=location)
    codec = _PARQUET_CODECS[text]
    if codec != "none" and not pa.Codec.is_available(codec):
        table = "" if location is None else f"{location}: "
        raise UnsupportedError(f"{table}{name} is {codec}: this pyarrow has no such codec")
    return codec


def _codec(properties: _Properties, file_format: str) -> str:
    name = f"write.{file_format}.compression-codec"
    if file_format == "parquet":
        return parquet_codec(properties.values, name, properties.metadata.location)
    codecs, default = _CODECS[file_format]
    return codecs[properties.choice(name, default, tuple(codecs))]


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


_BLOOM: Final = "write.parquet.bloom-filter-{}.column."


def _bloom_filters(properties: _Properties) -> dict[int, BloomFilter]:
    schema, location = properties.metadata.schema(), properties.metadata.location
    filters = {}
    for field_id in properties.columns_where(_BLOOM.format("enabled"), is_enabled=True):
        column = schema.find_column_name(field_id)
        name = f"{_BLOOM.format('enabled')}{column}"
        if isinstance(schema.find_type(field_id), BooleanType):
            _log.warning("the table property %s is ignored: Parquet has no Bloom filters of booleans", name)
            continue
        if "bloom_filter_options" not in inspect.signature(pq.ParquetWriter).parameters:
            problem = f"pyarrow {pa.__version__} writes no Bloom filters: install a newer one, or unset the property"
            raise UnsupportedError(f"{location}: the table property {name} is true: {problem}")
        values = f"{_BLOOM.format('ndv')}{column}"
        filters[field_id] = BloomFilter(
            fraction_property(properties.values, f"{_BLOOM.format('fpp')}{column}", 0.01, location=location),
            properties.number(values, 1) if values in properties.values else None,
        )
    return filters
