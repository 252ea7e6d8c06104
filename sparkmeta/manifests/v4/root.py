"""Read, check and write root manifests of V4 trees, on the driver.

A root lists a snapshot's leaf manifests, their deletion vectors, and data and delete files. It stays small, since
commits move files into leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.live import FILE_COUNTS, is_live, sums
from sparkmeta.entries.locations import ENTRY_LOCATIONS, is_relative, table_with_locations, written_locations
from sparkmeta.entries.manifest_records import RowIdCounter
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import indices_where, whole
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.layout import CONTENT_KEY, ROOT, TreeTypes, open_manifest, write_manifest
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.locations import LAYOUT_REVISION, LAYOUT_REVISION_KEY
from sparkmeta.spec.tree_layout import PROPOSAL, TreeLayout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sparkmeta.spec.locations import Locations

LEAVES = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
FILES = (ContentType.DATA, ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES)
MANIFEST_DVS = (ContentType.MANIFEST_DELETION_VECTOR,)
TWO_LIVE_ENTRIES = "the root has two live entries for this manifest"

_FORMATS = {
    ContentType.DATA: ("avro", "orc", "parquet"),
    ContentType.POSITION_DELETES: ("puffin",),
    ContentType.EQUALITY_DELETES: ("avro", "orc", "parquet"),
    ContentType.DATA_MANIFEST: ("avro", "parquet"),
    ContentType.DELETE_MANIFEST: ("avro", "parquet"),
    ContentType.MANIFEST_DELETION_VECTOR: ("puffin",),
}
_VERSION_FIELDS = ("status", "snapshot_id", "sequence_number", "file_sequence_number")
_POSITION_FILES = {ContentType.POSITION_DELETES: _FORMATS[ContentType.EQUALITY_DELETES]}
_FORMAT_HINTS = {
    True: ": from format version 3 on, new position deletes are deletion vectors in Puffin files",
    False: ": deletion vectors need format version 3",
}


@dataclass(frozen=True)
class Root:
    """A root manifest.

    Attributes:
        table: its entries as rows of `tree_schema`, in the file's order. A leaf's row number is its small id.
        properties: its key-value metadata.
        layout: its layout.
    """

    location: str
    table: pa.Table
    properties: Mapping[str, str] = field(default_factory=dict)
    layout: TreeLayout = PROPOSAL

    def of(self, kinds: Iterable[ContentType], *, live: bool = True) -> pa.Table:
        """Return the entries of content types with their `ordinal`; with `live`, without DELETED ones."""
        mask = one_of(self.table, kinds)
        if live:
            mask = pc.and_(mask, is_live(self.table))
        ordinals = pa.array(range(len(self.table)), pa.int64())
        return self.table.append_column("ordinal", ordinals).filter(mask)

    @cached_property
    def leaves(self) -> pa.Table:
        """The entries of live leaf manifests."""
        return self.of(LEAVES)

    @cached_property
    def manifest_dvs(self) -> pa.Table:
        """The live manifest DVs of live leaves, at most one per leaf.

        Raises:
            CorruptFileError: a leaf has two.
        """
        live = self.of(MANIFEST_DVS)
        masked = live.filter(pc.is_in(live.column("referenced_file"), self.leaves.column("location").combine_chunks()))
        counts = masked.column("referenced_file").value_counts() if len(masked) else []
        for count in counts:
            if count["counts"].as_py() > 1:
                problem = "two live deletion vectors mask this manifest"
                raise CorruptFileError(self.location, "referenced_file", count["values"].as_py(), problem)
        return masked

    @cached_property
    def manifest_dv_of(self) -> Mapping[str, Mapping[str, Any]]:
        """The `manifest_dvs` by the leaf that they mask."""
        return {row["referenced_file"]: row for row in self.manifest_dvs.drop_columns(["ordinal"]).to_pylist()}


def in_files(leaves: pa.Table) -> pa.Table:
    """Return the root's entries of leaves, without those that represent the deletion vectors in a data leaf."""
    return leaves.filter(pc.not_equal(leaves.column("file_format"), VECTORS))


def repeated_leaves(leaves: pa.Table) -> list[str]:
    """Return the sorted locations that several entries of live leaves have."""
    located = in_files(leaves)
    counts = located.column("location").value_counts() if len(located) else []
    return sorted(count["values"].as_py() for count in counts if count["counts"].as_py() > 1)


def one_of(table: pa.Table | pa.RecordBatch, kinds: Iterable[ContentType]) -> pa.Array:
    """Return whether each row has one of the content types."""
    return pc.is_in(table.column("content_type"), pa.array([int(kind) for kind in kinds], pa.int32()))


def version(table: pa.Table | pa.RecordBatch, name: str) -> Any:
    """Return a field of `version_info`."""
    return pc.struct_field(table.column("version_info"), name)


def write_root(
    table: pa.Table, properties: Mapping[str, str] | None = None, locations: Locations | None = None
) -> bytes:
    """Return the bytes of a root manifest with rows of `tree_schema`.

    Args:
        table: the rows.
        properties: further key-value metadata.
        locations: how to write locations; None to write them unchanged.
    """
    written = table if locations is None else written_locations(table, locations)
    return write_manifest(written, ROOT, {LAYOUT_REVISION_KEY: str(LAYOUT_REVISION), **(properties or {})})


def read_root(
    data: bytes, types: TreeTypes, location: str, stamp: tuple[int, int, int | None], locations: Locations
) -> Root:
    """Read and check a root manifest, with inheritance applied.

    Args:
        data: the content of the file.
        types: the types of the table's V4 manifests.
        location: the file's location.
        stamp: the id, sequence number and first row id of the root's snapshot.
        locations: resolves the locations in the root.

    Raises:
        CorruptFileError: not a root, an entry breaks a rule of the field matrix (see docs/layout.md), or a leaf has two
            live entries.
    """
    root = read_unchecked_root(data, types, location, stamp, locations)
    check_root(root.table, types.spec_fields, location, exact_counts=root.layout.is_strict)
    for leaf in repeated_leaves(root.leaves):
        raise CorruptFileError(location, "location", leaf, TWO_LIVE_ENTRIES)
    return root


def read_unchecked_root(
    data: bytes,
    types: TreeTypes,
    location: str,
    stamp: tuple[int, int, int | None],
    locations: Locations,
    *,
    as_written: bool = False,
) -> Root:
    """Read a root manifest without checking its entries; see `read_root`.

    Args:
        as_written: see `EntryProjection`.
    """
    with open_manifest(pa.BufferReader(data), location) as manifest:
        if not manifest.may_be_root:
            content = manifest.properties.get(CONTENT_KEY)
            raise CorruptFileError(location, CONTENT_KEY, content, "the file is not a root manifest")
        table = manifest.root_rows(types, as_written=as_written)
    snapshot_id, sequence_number, first_row_id = stamp
    table = _inherited(table, snapshot_id, sequence_number)
    if not manifest.layout.is_strict and first_row_id is not None:
        table = _with_row_ids(table, first_row_id)
    rows = table_with_locations(table, locations, location)
    return Root(location, rows, manifest.properties, manifest.layout)


def _inherited(table: pa.Table, snapshot_id: int, sequence_number: int) -> pa.Table:
    info = table.column("version_info").combine_chunks()
    status, snapshot_ids, *sequences = info.flatten()
    added = pc.equal(status, int(Status.ADDED))
    inherited = pc.if_else(added, pa.scalar(sequence_number, pa.int64()), pa.scalar(None, pa.int64()))
    children = [
        status,
        pc.fill_null(snapshot_ids, pa.scalar(snapshot_id, pa.int64())),
        *(pc.coalesce(sequence, inherited) for sequence in sequences),
    ]
    struct = pa.StructArray.from_arrays(children, fields=list(info.type), mask=info.is_null())
    return table.set_column(table.column_names.index("version_info"), table.schema.field("version_info"), struct)


def _with_row_ids(table: pa.Table, first_row_id: int) -> pa.Table:
    """Return a root with the first row ids that data files inherit from the snapshot."""
    inherits = pc.and_(one_of(table, [ContentType.DATA]), is_live(table))
    counts = pc.if_else(inherits, table.column("record_count"), 0)
    ids, status = table.column("first_row_id"), version(table, "status")
    assigned = RowIdCounter(first_row_id).assign(*(whole(values) for values in (ids, status, counts)))
    index = table.column_names.index("first_row_id")
    return table.set_column(index, table.schema.field(index), pc.if_else(inherits, assigned, ids))


# -- The field matrix -------------------------------------------------------------------------------------------------


def check_root(table: pa.Table, specs: Collection[int], location: str, *, exact_counts: bool = True) -> None:
    """Raise CorruptFileError for the first entry that breaks a rule of the field matrix; see `entry_problems`."""
    for problem in entry_problems(table, specs, exact_counts=exact_counts):
        raise problem.error(location)


@dataclass(frozen=True)
class EntryProblem:
    """A rule that an entry breaks.

    Attributes:
        row: the entry's index among the checked entries.
        content_type: the entry's content type.
        field: the field that breaks the rule, a dotted path for a child of a struct.
        value: the value of the field.
        problem: the reason.
    """

    row: int
    content_type: int | None
    field: str
    value: Any
    problem: str

    def error(self, location: str) -> CorruptFileError:
        """Return the error for an entry of a manifest."""
        text = f"in entry {self.row}, of content type {self.content_type}: {self.problem}"
        return CorruptFileError(location, self.field, self.value, text)


def entry_problems(
    table: pa.Table,
    specs: Collection[int],
    columns: Collection[int] | None = None,
    *,
    vectors: bool = True,
    exact_counts: bool = True,
) -> list[EntryProblem]:
    """Return the entries that break a rule of the field matrix (semantics 18.4), rule by rule.

    Args:
        table: entries, rows of `tree_schema`.
        specs: ids of the table's partition specs.
        columns: ids of all columns that any schema of the table has had. If given, rules that only writers must follow
            are checked as well, such as existing columns and valid offsets.
        vectors: whether position deletes are deletion vectors, not the files of format version 2.
        exact_counts: whether a leaf's counts of entries must add up. In the layout of the Iceberg project, files that
            are added with a deletion vector may count twice.
    """
    check = _Checks(table)
    check.known("content_type", tuple(int(kind) for kind in ContentType))
    check.present(("version_info", "record_count", "partition_spec_id", "file_format"), check.all)
    info = {name: version(check.table, name) for name in _VERSION_FIELDS}
    for name, values in info.items():
        check.refuse(f"version_info.{name}", values, values.is_null(), "it is missing")
    unknown = pc.invert(pc.is_in(info["status"], pa.array([0, 1, 2], pa.int32())))
    check.refuse("version_info.status", info["status"], unknown, "not one of 0, 1, 2")
    check.known("partition_spec_id", tuple(specs))
    lower_formats = pc.utf8_lower(check.table.column("file_format"))
    for kind, formats in (_FORMATS if vectors else _FORMATS | _POSITION_FILES).items():
        rows = check.rows([kind])
        if not rows.true_count:
            continue
        known = pc.is_in(lower_formats, pa.array([*formats, VECTORS.lower()]))
        hint = _FORMAT_HINTS[vectors] if kind == ContentType.POSITION_DELETES else ""
        problem = f"a {kind.name.lower()} entry has one of {', '.join(formats)}{hint}"
        check.refuse("file_format", table.column("file_format"), pc.and_(rows, pc.invert(known)), problem)
    check.not_negative("record_count")
    _check_leaves(check, exact_counts=exact_counts)
    _check_deletes(check, vectors=vectors)
    _check_manifest_dvs(check)
    if columns is not None:
        _check_written(check, columns)
    return check.problems


def _check_leaves(check: _Checks, *, exact_counts: bool) -> None:
    leaves = check.rows(LEAVES)
    check.absent(("manifest_stats",), pc.invert(leaves))
    if not leaves.true_count:
        return
    check.present(("location", "file_size_in_bytes", "manifest_stats"), leaves)
    sequences = version(check.table, "sequence_number")
    differing = pc.not_equal(sequences, version(check.table, "file_sequence_number"))
    check.refuse("version_info.file_sequence_number", version(check.table, "file_sequence_number"),
                 pc.and_(leaves, differing), "a manifest's two sequence numbers must be equal")  # fmt: skip
    for name in FILE_COUNTS:
        values = pc.struct_field(check.table.column("manifest_stats"), name)
        check.refuse(f"manifest_stats.{name}", values, pc.and_(leaves, values.is_null()), "it is missing")
        check.refuse(f"manifest_stats.{name}", values, pc.and_(leaves, pc.less(values, 0)), "it is negative")
    if not exact_counts:
        return
    records = check.table.column("record_count")
    check.refuse("record_count", records, pc.and_(leaves, pc.not_equal(sums(check.table, FILE_COUNTS), records)),
                 "it must equal the number of its entries: added, existing and deleted")  # fmt: skip


def _check_deletes(check: _Checks, *, vectors: bool) -> None:
    files = check.rows(FILES)
    check.present(("location", "file_size_in_bytes"), files)
    equality = check.rows([ContentType.EQUALITY_DELETES])
    check.present(("equality_ids",), equality)
    check.absent(("equality_ids",), pc.invert(equality))
    ids = check.table.column("equality_ids")
    check.refuse("equality_ids", ids, pc.and_(equality, pc.equal(pc.list_value_length(ids), 0)), "there is none")
    if not vectors:
        check.absent(("deletion_vector",), files)
        return
    check.absent(("deletion_vector",), pc.invert(check.rows([ContentType.POSITION_DELETES, *MANIFEST_DVS])))
    position = check.rows([ContentType.POSITION_DELETES])
    if not position.true_count:
        return
    check.present(("deletion_vector", "referenced_file"), position)
    for name in ("offset", "size_in_bytes"):
        values = check.vector(name)
        check.refuse(f"deletion_vector.{name}", values, pc.and_(position, values.is_null()), "it is missing")
    inline = check.vector("inline_content")
    problem = "deletion vectors of data files are in Puffin files"
    check.refuse("deletion_vector.inline_content", inline, pc.and_(position, inline.is_valid()), problem)


def _check_manifest_dvs(check: _Checks) -> None:
    dvs = check.rows(MANIFEST_DVS)
    if not dvs.true_count:
        return
    check.present(("deletion_vector", "referenced_file"), dvs)
    inline, offset = check.vector("inline_content"), check.vector("offset")
    located = pc.not_equal(pc.fill_null(check.table.column("location"), ""), "")
    ambiguous = pc.equal(inline.is_valid(), pc.and_(offset.is_valid(), located))
    problem = "a manifest's deletion vector is either inline or at an offset of a Puffin file"
    check.refuse("deletion_vector", check.table.column("deletion_vector"), pc.and_(dvs, ambiguous), problem)
    stored = pc.and_(dvs, offset.is_valid())
    size = check.vector("size_in_bytes")
    check.refuse("deletion_vector.size_in_bytes", size, pc.and_(stored, size.is_null()), "it is missing")
    records = check.table.column("record_count")
    check.refuse("record_count", records, pc.and_(dvs, pc.less(records, 1)), "it masks nothing")


def _check_written(check: _Checks, columns: Collection[int]) -> None:
    """Check the rules that only writers must follow."""
    check.not_negative("file_size_in_bytes")
    location = check.table.column("location")
    check.refuse("location", location, pc.and_(check.rows(FILES), pc.equal(location, "")), "it is empty")
    for name in ENTRY_LOCATIONS:
        values = check.table.column(name)
        if values.null_count < len(values):
            check.refuse(name, values, is_relative(values), "it is not absolute")
    ids = check.table.column("equality_ids")
    known = set(columns)
    if ids.null_count < len(ids):
        unknown = [ids_of_entry is not None and not known.issuperset(ids_of_entry) for ids_of_entry in ids.to_pylist()]
        check.refuse("equality_ids", ids, pa.array(unknown, pa.bool_()), "no schema of the table has such a column")
    referring = check.rows([ContentType.POSITION_DELETES, ContentType.DELETE_MANIFEST, *MANIFEST_DVS])
    check.absent(("referenced_file",), pc.invert(referring))
    offset, size = check.vector("offset"), check.vector("size_in_bytes")
    if offset.null_count == size.null_count == len(offset):
        return
    negative = pc.or_kleene(pc.less(offset, 0), pc.less(size, 0))
    outside = pc.greater(pc.add(offset, size), check.table.column("file_size_in_bytes"))
    problem = "the deletion vector lies outside its file"
    check.refuse("deletion_vector.offset", offset, pc.or_kleene(negative, outside), problem)
    records, is_vector = check.table.column("record_count"), pc.and_(check.rows(FILES), offset.is_valid())
    empty = pc.and_(is_vector, pc.less(records, 1))
    check.refuse("record_count", records, empty, "a deletion vector deletes at least one row")


class _Checks:
    """Rules over entries. `problems` has an `EntryProblem` for each entry that breaks an evaluated rule."""

    def __init__(self, table: pa.Table | pa.RecordBatch) -> None:
        self.table = pa.RecordBatch.from_arrays([*map(whole, table.columns)], schema=table.schema)
        self.problems: list[EntryProblem] = []
        self.all = pa.repeat(pa.scalar(True), len(table))

    def rows(self, kinds: Iterable[ContentType]) -> pa.BooleanArray:
        return one_of(self.table, kinds)

    def vector(self, name: str) -> pa.Array:
        return pc.struct_field(self.table.column("deletion_vector"), name)

    def known(self, name: str, values: Collection[Any]) -> None:
        column = self.table.column(name)
        unknown = pc.invert(pc.is_in(column, pa.array(sorted(values), column.type)))
        self.refuse(name, column, unknown, f"not one of {', '.join(map(str, sorted(values)))}")

    def not_negative(self, name: str) -> None:
        column = self.table.column(name)
        self.refuse(name, column, pc.less(column, 0), "it is negative")

    def present(self, names: Iterable[str], rows: pa.Array) -> None:
        for name in names:
            column = self.table.column(name)
            if column.null_count:
                self.refuse(name, column, pc.and_(rows, column.is_null()), "it is missing")

    def absent(self, names: Iterable[str], rows: pa.Array) -> None:
        for name in names:
            column = self.table.column(name)
            if column.null_count < len(column):
                self.refuse(name, column, pc.and_(rows, column.is_valid()), "its content type has no such field")

    def refuse(self, name: str, values: Any, wrong: Any, problem: str) -> None:
        for row in indices_where(wrong).to_pylist() if whole(wrong).true_count else ():
            kind = self.table.column("content_type")[row].as_py()
            self.problems.append(EntryProblem(row, kind, name, values[row].as_py(), problem))


def same_manifest_dv(dv: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Return whether two manifest DVs have the same stored bitmap, without reading it, or are both None."""
    if dv is None or other is None:
        return dv is other
    return all(dv[name] == other[name] for name in ("location", "deletion_vector", "record_count"))
