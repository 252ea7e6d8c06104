"""Tasks that describe existing data files: they take paths and return one row of `inspect.files` for each.

Of Parquet files, they read the footer and the floating-point columns of identity partitions, since footers do not count
NaNs. They read ORC and Avro files completely, because Arrow exposes no statistics of them.

Spark tasks import this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.data_files.file_schema import FileColumns, file_schema
from sparkmeta.data_files.footer_facts import (
    Facts,
    Layout,
    TableColumns,
    leaf_sources,
    leaf_types,
    metrics_of,
    split_offsets,
)
from sparkmeta.data_files.java_types import avro_kind, avro_leaves, conversion, leaf_names, orc_kind, refuse
from sparkmeta.data_files.metrics import FileMetrics, bound_of, metric_leaves
from sparkmeta.entries.metrics_maps import VALUE_SIZES
from sparkmeta.errors import CorruptFileError, FileAccessError, NotFoundError, UnsupportedError, ValidationError
from sparkmeta.operations.metadata_files import METADATA, METADATA_FILE
from sparkmeta.rows.data_file import DataFile, open_data_file
from sparkmeta.rows.file_rows import START, STOP, FileRows
from sparkmeta.rows.resolve import TYPE_OF_COLUMN, Column, FromFile, Source, has_ids
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.location import join, normalize, parents, scheme
from sparkmeta.storage.read_errors import translated_read_errors
from sparkmeta.write.file_partitions import FilePartitions
from sparkmeta.write.tasks import PROBLEM, files_schema

FILE_PATH: Final = "file_path"
NEEDS_MAPPING: Final = "needs_name_mapping"
IS_MISSING: Final = "is_missing"

_SUFFIXES: Final = {"parquet": "PARQUET", "orc": "ORC", "avro": "AVRO"}
_MAGIC: Final = {b"PAR1": "PARQUET", b"ORC": "ORC", b"Obj\x01": "AVRO"}
_BATCH_FILES: Final = 256


@dataclass(frozen=True)
class ExistingFiles:
    """Describes existing data files as files of a table. Picklable.

    Attributes:
        table: the table, for errors.
        reader: opens files.
        columns: the table's columns.
        partitions: finds the partitions of files.
        rows: reads all columns of whole files.
        written: the columns as for writers, from which metrics are computed.
        modes: the metrics modes of columns by field id.
        spec_id: the partition spec.
        partition: the type of partition tuples in the result; None if no spec of the table has fields.
        tuple_places: for each field of `partition` the place in the spec; None for fields of other specs.
        own_folder: the comparable location of the table, to refuse files of other tables; None to take them.
    """

    table: str
    reader: ExecutorReader
    columns: TableColumns
    partitions: FilePartitions
    rows: FileRows
    written: tuple[Column, ...]
    modes: Mapping[int, int]
    spec_id: int
    partition: pa.StructType | None
    tuple_places: tuple[int | None, ...]
    own_folder: str | None
    _other_tables: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the results: `files_schema`, whether a file needs a name mapping, and its problem, if any."""
        schema = files_schema(self.partition).append(pa.field(NEEDS_MAPPING, pa.bool_()))
        return schema.append(pa.field(IS_MISSING, pa.bool_())).append(pa.field(PROBLEM, pa.string()))

    def describe(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row of `schema` for each path in the `FILE_PATH` column of the batches."""
        layouts: list[tuple[pq.ParquetSchema, frozenset[int], Layout]] = []
        for batch in batches:
            paths = batch.column(FILE_PATH).to_pylist()
            for start in range(0, len(paths), _BATCH_FILES):
                yield self._result([self._described(path, layouts) for path in paths[start : start + _BATCH_FILES]])

    def _described(self, location: str, layouts: list[tuple[pq.ParquetSchema, frozenset[int], Layout]]) -> _Described:
        file_format = None
        try:
            self._refuse_place(location)
            with translated_read_errors(location):
                file_format = self._format(location)
                if file_format == "PARQUET":
                    return self._of_footer(location, layouts)
                return self._of_rows(location, file_format)
        except NotFoundError:
            return _Described(location, problem=f"{location}: there is no such file", is_missing=True)
        except (ValidationError, UnsupportedError) as error:
            is_type = isinstance(error, CorruptFileError) and error.field.startswith(TYPE_OF_COLUMN)
            hint = f": {conversion(location, file_format)}" if is_type and file_format else ""
            return _Described(location, problem=f"{error}{hint}")

    def _refuse_place(self, location: str) -> None:
        if not scheme(location) and not location.startswith("/"):
            raise ValidationError(
                f"{location}: the path of a file to add is relative: expected an absolute path or a URI"
            )
        if self.own_folder is not None and (other := self._other_table(parents(location))) is not None:
            problem = f"the file is in the folder of another Iceberg table, {other}, whose maintenance may delete it"
            raise ValidationError(f"{location}: {problem}: check_other_tables=False permits it")

    def _other_table(self, folders: Sequence[str]) -> str | None:
        """Return the first of some folders that is a table's; None if it is this table's or there is none."""
        if not folders or normalize(folders[0]) == self.own_folder:
            return None
        if folders[0] not in self._other_tables:
            is_table = self._has_metadata(join(folders[0], METADATA))
            self._other_tables[folders[0]] = folders[0] if is_table else self._other_table(folders[1:])
        return self._other_tables[folders[0]]

    def _has_metadata(self, folder: str) -> bool:
        try:
            names = chain.from_iterable(
                batch.column("path").to_pylist() for batch in self.reader.walk(folder, recursive=False)
            )
            return any(re.search(METADATA_FILE, name) for name in names)
        except (FileAccessError, NotFoundError, UnsupportedError):
            # Folders above the files may be closed to the reader.
            return False

    def _format(self, location: str) -> str:
        suffix = location.rpartition(".")[2].lower()
        if suffix in _SUFFIXES:
            return _SUFFIXES[suffix]
        begin = self.reader.read_range(location, 0, 4)
        for magic, file_format in _MAGIC.items():
            if begin.startswith(magic):
                return file_format
        raise ValidationError(f"{location}: the file is not Parquet, ORC or Avro")

    # -- Parquet ----------------------------------------------------------------------------------------------------

    def _of_footer(self, location: str, layouts: list[tuple[pq.ParquetSchema, frozenset[int], Layout]]) -> _Described:
        with self.reader.open(location) as file:
            size = file.size()
            footer = pq.read_metadata(file)
            layout = self._layout(footer, location, layouts)
            facts = layout.facts(footer, location)
            if numbers := self.partitions.floats & facts.keys():
                facts = layout.with_nans(file, footer, facts, numbers)
        described = _Described(location, "PARQUET", footer.num_rows, size)
        described.needs_mapping = self._needs_mapping(layout.columns, has_ids=layout.has_ids)
        described.partition = self.partitions.values(location, facts, layout.columns)
        described.split_offsets = split_offsets(footer)
        described.maps = metrics_of(self.columns.leaves, facts) | {"column_sizes": layout.sizes(footer)}
        return described

    def _layout(
        self, footer: pq.FileMetaData, location: str, layouts: list[tuple[pq.ParquetSchema, frozenset[int], Layout]]
    ) -> Layout:
        """Return the layout of a file. Files often share a layout, which is compared with the table only once."""
        in_folders = self.partitions.in_folders(location)
        for schema, folders, layout in layouts:
            if folders == in_folders and schema.equals(footer.schema):
                return layout
        layout = Layout.of(self.columns, footer, location, in_folders)
        layouts[:] = [(footer.schema, in_folders, layout), *layouts[:7]]
        return layout

    # -- ORC and Avro -----------------------------------------------------------------------------------------------

    def _of_rows(self, location: str, file_format: str) -> _Described:
        """Read the rows of a file and compute its metrics."""
        file = open_data_file(self.reader, location, file_format)
        columns = file.columns
        sources = self.columns.sources(columns, location, self.partitions.in_folders(location))
        _refuse_types(file, sources, location, file_format)
        # Columns that the file lacks have no metrics: their values may come from partitions.
        places = [place for place, source in enumerate(sources) if isinstance(source, FromFile)]
        present = frozenset(_present(sources))
        rows = replace(
            self.rows,
            columns=tuple(self.rows.columns[place] for place in places),
            schema=pa.schema([self.rows.schema.field(place) for place in places]),
            identities={self.spec_id: {}},
        )
        written = FileColumns(self.table, tuple(self.written[place] for place in places), "parquet")
        metrics = FileMetrics(metric_leaves(written.columns, self.modes))
        schema = file_schema(written.columns, "parquet")
        for batch in rows.read([self._part(location, file_format)]):
            named = pa.RecordBatch.from_arrays(batch.columns, names=[column.name for column in written.columns])
            try:
                metrics.add(written.table_of(named, schema))
            except ValidationError as error:
                raise ValidationError(f"{location}: {error}") from error
        facts = {leaf.id: _facts(metrics, leaf.id) for leaf in metrics.leaves}
        described = _Described(location, file_format, metrics.rows, self.reader.length(location))
        described.needs_mapping = self._needs_mapping(present, has_ids=has_ids(columns))
        described.partition = self.partitions.values(location, facts, present)
        described.maps = {**metrics.counts(), **metrics.bounds(), VALUE_SIZES: metrics.value_sizes()}
        return described

    def _needs_mapping(self, columns: frozenset[int], *, has_ids: bool) -> bool:
        """Return whether readers need a name mapping to read a file, or to tell which columns it lacks.

        Without a name mapping, columns are read by name, and missing ones as null, except that columns of identity
        partitions get the partition's value.
        """
        identities = {field.source for field in self.partitions.fields if field.is_identity}
        return not has_ids or not identities <= columns

    def _part(self, location: str, file_format: str) -> pa.RecordBatch:
        """Return a file as a row of a plan, without deletes."""
        columns = {
            "file_path": pa.array([location]), "file_format": pa.array([file_format]),
            "spec_id": pa.array([self.spec_id], pa.int32()), "record_count": pa.array([-1], pa.int64()),
            "first_row_id": pa.nulls(1, pa.int64()), "data_sequence_number": pa.array([0], pa.int64()),
            "deletes": pa.array([[]], pa.list_(pa.struct([("content", pa.int32())]))),
            START: pa.array([0], pa.int64()), STOP: pa.nulls(1, pa.int64()),
        }  # fmt: skip
        if self.partition is not None:
            columns["partition"] = pa.nulls(1, self.partition)
        return pa.RecordBatch.from_pydict(columns)

    # -- results ----------------------------------------------------------------------------------------------------

    def _result(self, files: Sequence[_Described]) -> pa.RecordBatch:
        columns: dict[str, list[Any]] = {
            "content": [int(ContentType.DATA)] * len(files),
            "file_path": [file.location for file in files],
            "file_format": [file.file_format for file in files],
            "spec_id": [self.spec_id] * len(files),
            "record_count": [file.record_count for file in files],
            "file_size_in_bytes": [file.size for file in files],
            "split_offsets": [file.split_offsets or None for file in files],
            "sort_order_id": [0] * len(files),
            NEEDS_MAPPING: [file.needs_mapping for file in files],
            IS_MISSING: [file.is_missing for file in files],
            PROBLEM: [file.problem for file in files],
        }
        arrays = []
        for kind in self.schema:
            if kind.name == "partition":
                arrays.append(self._tuples(files, kind.type))
            elif pa.types.is_map(kind.type):
                maps = (file.maps.get(kind.name) for file in files)
                arrays.append(pa.array([sorted(each.items()) if each else None for each in maps], kind.type))
            else:
                arrays.append(pa.array(columns[kind.name], kind.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _tuples(self, files: Sequence[_Described], kind: pa.StructType) -> pa.Array:
        values = self.partitions.tuples([file.partition for file in files])
        children = [
            pa.nulls(len(files), child.type) if place is None else values[place].cast(child.type)
            for place, child in zip(self.tuple_places, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind))


@dataclass
class _Described:
    """An existing file, or the reason why it can't be added."""

    location: str
    file_format: str | None = None
    record_count: int | None = None
    size: int | None = None
    needs_mapping: bool | None = None
    partition: tuple[Any, ...] | None = None
    split_offsets: list[int] | None = None
    maps: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    problem: str | None = None
    is_missing: bool = False


def _refuse_types(file: DataFile, sources: Sequence[Source], location: str, file_format: str) -> None:
    """Raise UnsupportedError for a column of an ORC or Avro file that Java's readers misread or can't read."""
    names = [*leaf_names(file.columns)]
    kinds: list[Any] = [*(avro_leaves if file_format == "AVRO" else leaf_types)(file.schema)]
    kind_of = avro_kind if file_format == "AVRO" else orc_kind
    for source, place, _ in leaf_sources(file.columns, sources, 0):
        if kind := kind_of(kinds[place], source.physical.type, source.column.type):
            refuse(location, file_format, names[place], kind, source.column.type)


def _present(sources: Iterable[Source]) -> Iterator[int]:
    """Yield the ids of the columns, including nested ones, that a file has."""
    for source in sources:
        if isinstance(source, FromFile):
            yield source.column.id or 0
            yield from _present(source.children)


def _facts(metrics: FileMetrics, field_id: int) -> Facts:
    least, most = (bound_of(value) for value in metrics.extremes(field_id))
    return Facts(metrics.rows, metrics.nulls(field_id), least, most, metrics.nans(field_id))
