"""Write Parquet files with Arrow. Spark tasks import this module."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.entries.field_ids import field_id
from sparkmeta.rows.data_file import row_group_start

if TYPE_CHECKING:
    from sparkmeta.data_files.options import WriteOptions


@dataclass(frozen=True)
class Written:
    """Facts of a closed file.

    Attributes:
        size: its size in bytes.
        split_offsets: the offsets at which it can be split.
        column_sizes: the size in bytes of each primitive column with metrics, by field id.
    """

    size: int
    split_offsets: list[int]
    column_sizes: dict[int, int]


class ParquetOutput:
    """A Parquet file being written, one row group at a time."""

    def __init__(
        self, sink: Any, schema: pa.Schema, options: WriteOptions, sized: Sequence[int | None], notes: Mapping[str, str]
    ) -> None:
        """Open the file.

        Args:
            sink: the output stream.
            schema: the schema of the rows, with field ids.
            options: how to write it.
            sized: the field ids of all primitive columns in order; None for those whose size is not reported.
            notes: key-value metadata of the footer.
        """
        self._sink, self._schema, self._options, self._sized, self._notes = sink, schema, options, sized, notes
        self._footers: list[pq.FileMetaData] = []
        self._opened: pq.ParquetWriter | None = None

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows as a row group."""
        self._writer(len(table)).write_table(table, row_group_size=max(len(table), 1))

    def _writer(self, rows: int) -> pq.ParquetWriter:
        """Return Arrow's writer. Its Bloom filters are made for the rows of the first row group."""
        if self._opened is None:
            options, columns = self._options, dict(_leaves(self._schema))
            filters = _bloom_filters(options, columns, rows)
            self._opened = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression=options.codec,
                compression_level=options.level if options.codec != "none" else None,
                data_page_size=options.page_bytes,
                max_rows_per_page=options.page_rows,
                use_dictionary=_others(columns, options.plain),
                write_statistics=_others(columns, options.unmeasured),
                dictionary_pagesize_limit=options.dictionary_bytes,
                store_schema=False,
                store_decimal_as_integer=True,
                write_page_index=True,
                metadata_collector=self._footers,
                # pyarrow before 26 does not know the option.
                **({"bloom_filter_options": filters} if filters else {}),
            )
            self._opened.add_key_value_metadata(dict(self._notes))
        return self._opened

    def close(self) -> Written:
        """Write the footer."""
        self._writer(0).close()
        size = self.size
        self._sink.close()
        (footer,) = self._footers
        sizes: dict[int, int] = {}
        offsets = []
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            offsets.append(row_group_start(group))
            for place, column in enumerate(self._sized):
                if column is not None:
                    sizes[column] = sizes.get(column, 0) + group.column(place).total_compressed_size
        return Written(size, offsets, sizes)

    def abort(self) -> None:
        """Release the file without finishing it."""
        # The writer's destructor would try to write the footer to the closed stream.
        if self._opened is not None:
            self._opened.is_open = False
        self._sink.close()


def _leaves(schema: pa.Schema) -> Iterator[tuple[int | None, str]]:
    """Yield the field ids of primitive columns and their paths in Parquet."""

    def leaves(field: pa.Field, path: str) -> Iterator[tuple[int | None, str]]:
        kind = field.type
        if pa.types.is_struct(kind):
            for child in kind:
                yield from leaves(child, f"{path}.{child.name}")
        elif pa.types.is_map(kind):
            yield from leaves(kind.key_field, f"{path}.key_value.key")
            yield from leaves(kind.item_field, f"{path}.key_value.value")
        elif pa.types.is_list(kind):
            yield from leaves(kind.value_field, f"{path}.list.element")
        else:
            yield field_id(field), path

    for field in schema:
        yield from leaves(field, field.name)


def _others(columns: Mapping[int | None, str], without: Collection[int]) -> bool | list[str]:
    """Return the paths of the columns but some; True for all."""
    return [path for column, path in columns.items() if column not in without] if without else True


def _bloom_filters(
    options: WriteOptions, columns: Mapping[int | None, str], rows: int
) -> dict[str, dict[str, int | float]]:
    """Return the options of Bloom filters by path. A filter takes at most `bloom_bytes`, a power of 2."""
    filters = {}
    for column, wanted in options.bloom_filters.items():
        if column in columns:
            bits = 8 << (options.bloom_bytes.bit_length() - 1)
            # As many values as have that share of false positives in that many bits (Parquet format, Bloom filter).
            most = int(-bits / 8 * math.log(1 - wanted.false_positives ** (1 / 8)))
            values = max(1, min(wanted.values or rows, most))
            filters[columns[column]] = {"ndv": values, "fpp": wanted.false_positives}
    return filters
