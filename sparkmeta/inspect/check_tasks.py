"""The tasks that check single manifests, and the rows of `check`. Without Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import Data, manifest_data, read_header
from sparkmeta.entries.live import is_live, manifest_counts
from sparkmeta.entries.manifest_records import column_metric, part_of
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import CorruptFileError, SparkmetaError, shown
from sparkmeta.expr.arrays import indices_where, whole
from sparkmeta.expr.bounds import inverted, known_bounds
from sparkmeta.manifests.decoder import decode
from sparkmeta.spec.entry import ENTRY_NAMES, FILE_NAMES, ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.encryption import KEY_METADATA, FileKey, decrypted

if TYPE_CHECKING:
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files

# -- Violations -------------------------------------------------------------------------------------------------------


VIOLATIONS = pa.schema([pa.field(name, pa.string()) for name in ("rule", "location", "value", "problem")])


class Broken(NamedTuple):
    """A violation of a rule: a field and value of the file or manifest at a location."""

    location: str | None
    field: str
    value: Any
    problem: str


def violation(rule: str, broken: Broken) -> dict[str, str | None]:
    """Return a row of `VIOLATIONS`."""
    value = f"{broken.field} is {shown(broken.value)}"
    return {"rule": rule, "location": broken.location, "value": value, "problem": broken.problem}


# -- Check single manifests -------------------------------------------------------------------------------------------
# A manifest that can't be decoded is a violation too, and does not prevent the check of other manifests.


CHECKED_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "version_info",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "referenced_file",
    "equality_ids",
    "lower_bounds",
    "upper_bounds",
)
"""The columns of entries that are checked, with the partition tuple."""

_LIVE_COUNTS = ("added_files_count", "existing_files_count", "deleted_files_count")
_ROW_COUNTS = ("added_rows_count", "existing_rows_count", "deleted_rows_count")
_FIRST_WITH_VECTORS = 3


@dataclass(frozen=True)
class ManifestChecks:
    """Checks manifests. Picklable.

    Attributes:
        reader: opens the manifests, in tasks or on the driver; None if Spark reads their content.
        projection: the columns of entries to read.
        types: the ids of columns -> Iceberg types.
        locations: resolves the locations in manifests.
        format_version: the table's format version.
    """

    reader: Files | ExecutorReader | None
    projection: EntryProjection
    types: Mapping[int, str]
    locations: Locations
    format_version: int

    def violations(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the violations in manifests.

        Args:
            batches: rows of `PART_SCHEMA` with `content_type` and `manifest_stats`, and `content` if Spark reads it.
        """
        for batch in batches:
            for row in batch.to_pylist():
                violations = [violation(rule, broken) for rule, broken in self._checked(row)]
                yield pa.RecordBatch.from_pylist(violations, schema=VIOLATIONS)

    def files(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of manifests as rows of `projection.schema`, except for manifests that can't be decoded."""
        for batch in batches:
            for row in batch.to_pylist():
                try:
                    entries = list(decode(self._data(row), row, self.projection, None, self.locations))
                except SparkmetaError:
                    continue
                yield from entries

    def _data(self, row: Mapping[str, Any]) -> Data:
        if self.reader is None:
            return decrypted(row["content"], row["location"], row[KEY_METADATA])
        return manifest_data(self.reader, row)

    def _checked(self, row: Mapping[str, Any]) -> Iterator[tuple[str, Broken]]:
        location = row["location"]
        try:
            data = self._data(row)
            yield from self._header(data, row)
            batches = decode(data, row, self.projection, None, self.locations)
            entries = pa.Table.from_batches(batches, self.projection.schema).combine_chunks()
        except CorruptFileError as error:
            rule = "partition-spec" if error.field.startswith("partition.") else "manifest-content"
            yield rule, Broken(location, error.field, error.value, error.problem)
        except SparkmetaError as error:
            yield "manifest-content", Broken(location, "file", location, str(error))
        else:
            yield from self._counts(entries, row)
            yield from self._entries(entries, row)
            yield from self._bounds(entries, location)

    def _header(self, data: Data, row: Mapping[str, Any]) -> Iterator[tuple[str, Broken]]:
        location, length = row["location"], row["file_size_in_bytes"]
        key = row[KEY_METADATA]
        stored = len(data) if key is None else FileKey.parse(key, location).length
        if length != stored:
            problem = f"the file has {stored} bytes, and readers stop at the length in the list"
            yield "manifest-length", Broken(location, "manifest_length", length, problem)
        if row["file_format"] == "PARQUET":
            return
        header = read_header(data, location)
        spec_id, content = part_of(row).spec_id, row["content_type"] - ContentType.DATA_MANIFEST
        listed = {"partition-spec-id": str(spec_id), "content": ("data", "deletes")[content]}
        for key, expected in listed.items():
            value = header.metadata.get(key, expected.encode()).decode("utf-8", "replace")
            if value != expected:
                yield "manifest-header", Broken(location, key, value, f"the manifest list says {expected}")
        lacking = [name for name, _ in _without_ids(header.schema)]
        if lacking:
            problem = "fields without field-id, which readers find by their names or not at all"
            yield "field-ids", Broken(location, "avro.schema", ", ".join(lacking), problem)

    def _counts(self, entries: pa.Table, row: Mapping[str, Any]) -> Iterator[tuple[str, Broken]]:
        location, listed = row["location"], row["manifest_stats"] or {}
        counted = manifest_counts(entries)
        for name in (*_LIVE_COUNTS, *_ROW_COUNTS):
            value = listed.get(name)
            if value is None and (self.format_version == 1 or name in _ROW_COUNTS):
                continue
            if value != counted[name]:
                yield "manifest-counts", Broken(location, name, value, f"the manifest's entries are {counted[name]}")
        least, listed_number = counted["min_sequence_number"], listed.get("min_sequence_number")
        if self.format_version > 1 and least is not None and listed_number is not None and listed_number > least:
            problem = f"a live file has the sequence number {least}"
            yield "sequence-numbers", Broken(location, "min_sequence_number", listed_number, problem)

    def _entries(self, entries: pa.Table, row: Mapping[str, Any]) -> Iterator[tuple[str, Broken]]:
        """Check the fields of live entries."""
        location = row["location"]
        live = entries.filter(is_live(entries)).combine_chunks()
        kind, sequence = live.column("content_type"), pc.struct_field(live.column("version_info"), "sequence_number")
        of_data = row["content_type"] == ContentType.DATA_MANIFEST
        is_data = pc.equal(kind, int(ContentType.DATA))
        is_dv = pc.equal(live.column("file_format"), "PUFFIN")
        vector = live.column("deletion_vector")
        lacks_reference = pc.or_(vector.is_null(), live.column("referenced_file").is_null())
        is_equality = pc.equal(kind, int(ContentType.EQUALITY_DELETES))
        no_ids = pc.fill_null(pc.equal(pc.list_value_length(live.column("equality_ids")), 0), True)
        above = pc.fill_null(pc.greater(sequence, pa.scalar(row["sequence_number"], pa.int64())), False)
        rules: list[tuple[str, str, Any, Any, str]] = [
            ("leaf-content", "content", kind, pc.invert(is_data) if of_data else is_data,
             "a manifest of this content holds no such entry"),
            ("sequence-numbers", "sequence_number", sequence, sequence.is_null(), "only ADDED entries inherit one"),
            ("sequence-numbers", "sequence_number", sequence, above, "the manifest is older than its entry"),
            ("entry-fields", "record_count", live.column("record_count"),
             pc.less(live.column("record_count"), 0), "it is negative"),
            ("entry-fields", "equality_ids", live.column("equality_ids"), pc.and_(is_equality, no_ids),
             "an equality delete file names no columns"),
            ("entry-fields", "content_offset", vector, pc.and_(is_dv, lacks_reference),
             "a deletion vector needs content_offset, content_size_in_bytes and referenced_data_file"),
        ]  # fmt: skip
        if self.format_version < _FIRST_WITH_VECTORS:
            name = live.column("file_format")
            rules.append(("entry-fields", "file_format", name, is_dv, "deletion vectors need format version 3"))
        for rule, field, values, broken, problem in rules:
            for index in indices_where(broken).to_pylist():
                file = live.column("location")[index].as_py()
                yield rule, Broken(location, f"{field} of {file}", values[index].as_py(), problem)

    def _bounds(self, entries: pa.Table, location: str) -> Iterator[tuple[str, Broken]]:
        """Check that bounds are values of their columns, in order."""
        names, files = ("lower_bounds", "upper_bounds"), entries.column("location")
        decoded: dict[int, dict[str, pa.Array]] = {}
        for name in names:
            for field_id, raw in column_metric(whole(entries.column(name)), self.types, len(entries)):
                values = known_bounds(raw.cast(pa.binary()), self.types[field_id])
                decoded.setdefault(field_id, {})[name] = values
                if pa.types.is_null(values.type):
                    continue
                for index in indices_where(pc.and_(raw.is_valid(), values.is_null())).to_pylist():
                    field = f"{name}[{field_id}] of {files[index].as_py()}"
                    problem = f"not a value of type {self.types[field_id]}, so it is unknown"
                    yield "bounds-value", Broken(location, field, raw[index].as_py(), problem)
        for field_id, bounds in decoded.items():
            if len(bounds) < len(names):
                continue
            lower, upper = (bounds[name] for name in names)
            wrong = inverted(lower, upper, self.types[field_id])
            for index in [] if wrong is None else indices_where(pc.fill_null(wrong, False)).to_pylist():
                field = f"lower_bounds[{field_id}] of {files[index].as_py()}"
                yield "bounds-order", Broken(location, field, shown_value(lower, index), above_upper(upper, index))


def shown_value(values: pa.Array, index: int) -> Any:
    """Return a value for a message; as a number if Python has no such date or time."""
    try:
        return values[index].as_py()
    except (ValueError, OverflowError):
        return str(values[index].cast(pa.int64()) if pa.types.is_timestamp(values.type) else values[index])


def above_upper(upper: pa.Array, index: int) -> str:
    """Return the problem of a lower bound that is above the upper one."""
    return f"it is above the upper bound, {shown_value(upper, index)}: both prove nothing"


def _without_ids(schema: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the known fields of the entry and data_file that have no id in a schema."""
    for field in schema.get("fields") or ():
        if not isinstance(field, dict):
            continue
        name = str(field.get("name"))
        if name in ENTRY_NAMES and field.get("field-id") is None:
            yield name, ENTRY_NAMES[name]
        if name == "data_file" and isinstance(field.get("type"), dict):
            for inner in field["type"].get("fields") or ():
                if isinstance(inner, dict) and inner.get("name") in FILE_NAMES and inner.get("field-id") is None:
                    yield f"data_file.{inner['name']}", FILE_NAMES[inner["name"]]
