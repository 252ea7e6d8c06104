"""The tables of a service, and the pages of their plans: from a request to a scan to Spark's result."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression, UnboundPredicate
from pyiceberg.types import DateType, DoubleType, FloatType, TimestampNanoType, TimestampType

from sparkmeta.catalog.base import with_sessions
from sparkmeta.changes.file_changes import snapshots_between
from sparkmeta.changes.range_scan import IncrementalScan
from sparkmeta.errors import (
    InvalidFilterError,
    NoSuchNamespaceError,
    NoSuchTableError,
    UnsupportedError,
    ValidationError,
    shown,
)
from sparkmeta.expr.arrays import from_stream
from sparkmeta.expr.conditions import fold
from sparkmeta.expr.predicate_terms import SchemaFields
from sparkmeta.operations.rest import RestOperations
from sparkmeta.scan import ALL_FIELDS, Scan
from sparkmeta.service.pages import PAGE_SCHEMA, PageWriter, cut_pages, packed, page_text
from sparkmeta.service.requests import BAD_REQUEST, INTERNAL, NO_NAMESPACE, NO_TABLE, ApiError
from sparkmeta.service.rest_tasks import refuse_dropped, refuse_table
from sparkmeta.session import map_arrow
from sparkmeta.spec.locations import LAYOUT_REVISION_KEY, RELATIVE_LOCATIONS_KEY
from sparkmeta.spec.metadata import serialize_table_metadata
from sparkmeta.spec.partitioning import partition_spec_to_json
from sparkmeta.storage.content import VendedIO
from sparkmeta.storage.location import file_name

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField
    from pyspark.sql import DataFrame

    from sparkmeta.catalog import Catalog
    from sparkmeta.entries.relation import Relation
    from sparkmeta.service.access import Principal, ServeOptions
    from sparkmeta.service.pages import Spool
    from sparkmeta.service.requests import PlanRequest
    from sparkmeta.session import SessionSource
    from sparkmeta.table import Table


# -- Plans of requests ------------------------------------------------------------------------------------------------


_BY_TYPE = (FloatType, DoubleType, DateType, TimestampType, TimestampNanoType)
# The maximum number of scan tasks that a Spark task returns instead of writing a page.
_MOST_RETURNED = 500
_NO_ROWS = pa.table({"task": pa.array([], pa.string()), "delete_files": pa.array([], pa.list_(pa.string()))})
# The maximum number of files that are examined for the rows of a LIMIT, before all are planned.
_MOST_LIMITED = 1_000


@dataclass(frozen=True)
class Pages:
    """A finished plan.

    Attributes:
        result: its name in the spool.
        first: the text of the page in the response itself; empty for none. None if it was dropped from memory.
        names: the pages in the spool.
        tasks: how many scan tasks all pages have.
        spooled: how many bytes the pages in the spool have.
    """

    result: str
    first: bytes | None
    names: tuple[str, ...]
    tasks: int
    spooled: int


# -- The scan of a request --------------------------------------------------------------------------------------------


def scan_of(table: Table, request: PlanRequest) -> Scan | IncrementalScan:
    """Return the scan that a request asks for. It does not depend on the settings of this process's session.

    Its filter has the protocol's meaning of null; see `Scan.two_valued`.

    Raises:
        NoSuchSnapshotError: the table has no such snapshot.
        ApiError: the first snapshot is not an ancestor of the last one.
        InvalidFilterError: the filter does not fit the schema.
        UnsupportedError: it is not clear which columns the filter is about.
    """
    if request.from_exclusive is not None:
        try:
            snapshots_between(table.metadata, request.from_exclusive, request.to_inclusive)
        except ValidationError as error:
            raise ApiError(400, BAD_REQUEST, str(error)) from error
        scan = _filtered(table, request, ALL_FIELDS)
        _ = scan.plan.filter
        return IncrementalScan(scan, request.from_exclusive, request.to_inclusive)
    # `refuse_dropped_columns` has checked which columns the client reads; the plan does not depend on them.
    scan = _filtered(table, request, (), request.snapshot_id)
    if request.snapshot_id is not None:
        scan = _by_its_schema(table, scan) if request.by_snapshot else scan.with_table_schema()
    _ = scan.plan.filter
    return scan


def _filtered(table: Table, request: PlanRequest, fields: tuple[str, ...], snapshot_id: int | None = None) -> Scan:
    return Scan(table.state, request.row_filter, fields, request.case_sensitive, snapshot_id, two_valued=True)


def refuse_dropped_columns(table: Table, request: PlanRequest) -> None:
    """Raise UnsupportedError if a request reads a dropped column, for which clients would get nulls.

    Plans are shared by requests for all columns, so each request is checked before it joins a plan.
    """
    if request.snapshot_id is not None and request.by_snapshot:
        selected = request.select if request.select is not None else ALL_FIELDS
        scan = table.scan(selected_fields=selected, snapshot_id=request.snapshot_id)
        refuse_dropped(scan.state, scan.schema(), selected, request.case_sensitive)


def _by_its_schema(table: Table, scan: Scan) -> Scan:
    """Return the scan with the snapshot's schema, or with the table's if the client can only mean the latter.

    Spark always asks for the snapshot's schema, even if it reads the head of a branch with the table's schema. It may
    have loaded the table before the branch moved on.
    """
    names = _filter_names(scan.row_filter)
    fields = [_fields(names, schema, scan.case_sensitive) for schema in _schemas_at(table, scan)]
    of_snapshot = fields[0]
    known = [by_name for by_name in fields if by_name is not None]
    for name in names:
        targets = {_comparison_target(by_name[name]) for by_name in known}
        if len(targets) > 1:
            raise UnsupportedError(
                f"column {shown(name)} of the filter is {' or '.join(sorted(targets))}: the schema of snapshot "
                f"{scan.snapshot_id} and the table's while it was the head of a branch differ, and clients send "
                "use-snapshot-schema for both. Read the branch after its next commit with a refreshed table"
            )
    return scan if of_snapshot is not None or not known else scan.with_table_schema()


def _schemas_at(table: Table, scan: Scan) -> list[Schema]:
    """Return the schema of a scan's snapshot, and the table's possible schemas while it was the head of a branch.

    These are the schemas from the snapshot's schema to the schema of each of its children or, if it is a head, the
    table's.
    """
    first, metadata = scan.schema(), table.metadata
    last = [child.schema_id for child in metadata.snapshots if child.parent_snapshot_id == scan.snapshot_id]
    if any(ref.snapshot_id == scan.snapshot_id and ref.snapshot_ref_type == "branch" for ref in table.refs().values()):
        last.append(metadata.current_schema_id)
    ids = {schema_id for end in last if end is not None for schema_id in (*range(first.schema_id + 1, end + 1), end)}
    return [first, *(schema for schema in metadata.schemas if schema.schema_id in ids - {first.schema_id})]


def _comparison_target(field: NestedField) -> str:
    """Return what a literal is compared with: the field and, if a promotion changes how literals convert, its type."""
    kind = field.field_type
    return f"field {field.field_id}" + (f" of type {kind}" if isinstance(kind, _BY_TYPE) else "")


def _filter_names(row_filter: BooleanExpression) -> list[str]:
    names: list[str] = []

    def visit(leaf: BooleanExpression, _negated: bool) -> None:
        if isinstance(leaf, UnboundPredicate):
            names.append(leaf.term.name)  # type: ignore[attr-defined]  # all terms that filters have are named

    fold(row_filter, visit, lambda _junction, _operands: None)
    return names


def _fields(names: list[str], schema: Schema, case_sensitive: bool) -> dict[str, NestedField] | None:
    """Return the fields of names; None if the schema lacks one."""
    fields = SchemaFields(schema, case_sensitive)
    try:
        return {name: fields.find(name).field for name in names}
    except InvalidFilterError:
        return None


def most_files(scan: Scan | IncrementalScan) -> int | None:
    """Return how many files the manifests of a plan list; None if that is not known without a job."""
    if isinstance(scan, IncrementalScan):
        return None
    return scan.plan.most_files() if scan.snapshot() is not None else 0


# -- The pages of a plan ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageMaker:
    """Makes the pages of plans.

    Attributes:
        options: how long pages are.
        spool: where they are written.
    """

    options: ServeOptions
    spool: Spool

    def make(self, result: str, tasks: Relation, files: int | None, min_rows: int | None) -> Pages:
        """Run a plan. The driver collects small plans, and writes all but the first page to the spool.

        Args:
            result: the plan's name in the spool.
            tasks: its scan tasks.
            files: how many files its manifests list; None if that is unknown.
            min_rows: how many rows are enough; None for all.

        Raises:
            FileAccessError: the spool can't be written to.
            ApiError: the plan has too many pages, or the service does not see pages that tasks have written.
        """
        if isinstance(tasks, pa.Table) or (files is not None and files <= self.options.driver_files):
            rows = tasks if isinstance(tasks, pa.Table) else tasks.toArrow()
            enough = None if min_rows is None else _enough(rows, min_rows)
            return self._from_driver(result, rows if enough is None else enough)
        if min_rows is not None:
            sure_tasks = tasks.where("sure_rows > 0").limit(max(1, min(min_rows, _MOST_LIMITED))).toArrow()
            if (enough := _enough(sure_tasks, min_rows)) is not None:
                return self._from_driver(result, enough)
        return self._from_tasks(result, tasks, files)

    def _from_driver(self, result: str, rows: pa.Table) -> Pages:
        count = len(rows)
        first, *others = cut_pages(rows, self.options.page_tasks, self.options.page_bytes) if count else (_NO_ROWS,)
        names, spooled = self._write(result, others)
        return Pages(result, page_text(first), names, count, spooled)

    def _write(self, result: str, pages: list[pa.Table]) -> tuple[tuple[str, ...], int]:
        self._check_pages(len(pages))
        names, spooled = [], 0
        for number, rows in enumerate(pages):
            name, data = f"{number:032x}", packed(page_text(rows))
            self.spool.write(result, name, data)
            names.append(name)
            spooled += len(data)
        return tuple(names), spooled

    def _from_tasks(self, result: str, tasks: DataFrame, files: int | None) -> Pages:
        options = self.options
        # If every Spark task returns this share of its files, a page or so comes together.
        returned = 0 if files is None else min(_MOST_RETURNED, options.page_tasks * options.page_tasks // max(files, 1))
        folder = self.spool.prepare(result)
        writer = PageWriter(folder, self.spool.writer, options.page_tasks, options.page_bytes, returned)
        pages = map_arrow(tasks, writer, PAGE_SCHEMA).toArrow()
        written = pages.filter(pc.is_valid(pages.column("page")))
        self._check_pages(len(written))
        names = tuple(written.column("page").to_pylist())
        if names and self.spool.read(result, names[0]) is None:
            raise ApiError(
                500, INTERNAL, "the service can't see the pages that Spark's tasks write: the spool must be shared"
            )
        spooled = pc.sum(written.column("bytes")).as_py() or 0
        count = pc.sum(pages.column("tasks")).as_py() or 0
        returned_tasks = [from_stream(rows) for rows in pages.column("rows").to_pylist() if rows is not None]
        first = self._from_driver(result, pa.concat_tables(returned_tasks) if returned_tasks else _NO_ROWS)
        return Pages(result, first.first, first.names + names, count, spooled + first.spooled)

    def _check_pages(self, pages: int) -> None:
        if pages > self.options.max_pages:
            problem = f"the plan has {pages:,} pages of scan tasks, and {self.options.max_pages:,} are the limit"
            raise ApiError(400, BAD_REQUEST, f"{problem}: use a more selective filter")


def _enough(rows: pa.Table, min_rows: int) -> pa.Table | None:
    """Return the first tasks that are certain to hold `min_rows` rows together; None if there are none."""
    sure_tasks = rows.filter(pc.greater(rows.column("sure_rows"), 0))
    if not len(sure_tasks):
        return sure_tasks if min_rows <= 0 else None
    totals = pc.cumulative_sum(sure_tasks.column("sure_rows")).combine_chunks().to_numpy()
    if totals[-1] < min_rows:
        return None
    return sure_tasks.slice(0, int(totals.searchsorted(min_rows, side="left")) + 1)


# -- Table metadata as clients see it ---------------------------------------------------------------------------------


SHOWN_VERSION = 3
"""The newest format version that clients know."""

HIDDEN = "sparkmeta-tree://planned-by-the-catalog-only"
"""The beginning of the locations of manifest lists that clients must not read: no FileIO has the scheme.

Clients would read an empty list, and orphan removal would then consider all files of the table orphans.
"""

READ_ONLY = "this-catalog-is-read-only--write-through-the-catalog-that-owns-the-table"
"""The value of write properties. It is not a file format, so that writers fail before they write."""

_NO_FOLDER = f"sparkmeta-read-only://{READ_ONLY}"
# Properties that make writers and maintenance of clients fail at once. They replace the table's own.
_REFUSALS = {
    "write.format.default": READ_ONLY,
    "write.delete.format.default": READ_ONLY,
    "write.data.path": _NO_FOLDER,
    "write.metadata.path": _NO_FOLDER,
    "gc.enabled": "false",
}
# A location provider would ignore the paths above.
_WITHOUT = ("write.location-provider.impl",)


def is_hidden(table: Table) -> bool:
    """Return whether clients can't read the table's manifest lists, so that only this service plans its scans."""
    return table.metadata.format_version > SHOWN_VERSION


def shown_metadata(table: Table) -> dict[str, Any]:
    """Return the JSON object of a table's metadata for clients.

    Tables of format version 4, ours and Iceberg's own, are shown as version 3: partition specs without expressions,
    snapshots with manifest lists that can't be read. Schemas, refs, row lineage and history are the table's.
    """
    document: dict[str, Any] = json.loads(serialize_table_metadata(table.metadata))
    if is_hidden(table):
        document["format-version"] = SHOWN_VERSION
        for key in (LAYOUT_REVISION_KEY, RELATIVE_LOCATIONS_KEY, "expressions"):
            document.pop(key, None)
        document["partition-specs"] = [partition_spec_to_json(spec) for spec in table.state.specs.values()]
        for snapshot in document.get("snapshots", ()):
            listed = snapshot.pop("root-manifest", None) or snapshot.get("manifest-list") or "none"
            snapshot["manifest-list"] = f"{HIDDEN}/{snapshot['snapshot-id']}/{file_name(listed)}"
    properties = document.get("properties") or {}
    document["properties"] = {key: text for key, text in properties.items() if key not in _WITHOUT} | _REFUSALS
    return document


# -- Tables and their states ------------------------------------------------------------------------------------------


MODE = "scan-planning-mode"
SERVER, CLIENT = "server", "client"
CREDENTIALS = "storage-credentials"
_MOST_TABLES = 256
# A part of ETags. Change it whenever tables are shown in another way.
_SHOWN_AS = "2"


@dataclass(frozen=True)
class ServedTable:
    """A version of a table in the form for clients.

    Attributes:
        table: the table.
        etag: the ETag of this version.
        credentials: the credentials that the catalog has just vended for it, as JSON objects.
    """

    table: Table
    etag: str
    credentials: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def document(self, only_refs: bool, *, with_credentials: bool) -> bytes:
        """Return the JSON of a LoadTableResult.

        Args:
            only_refs: whether to name only the snapshots of branches and tags.
            with_credentials: whether to hand out the table's credentials.
        """
        metadata = shown_metadata(self.table)
        if only_refs:
            # Without refs, the current snapshot is the head of main (table spec, Table Metadata).
            heads = {metadata.get("current-snapshot-id")}
            heads.update(ref["snapshot-id"] for ref in metadata.get("refs", {}).values())
            metadata["snapshots"] = [
                snapshot for snapshot in metadata.get("snapshots", ()) if snapshot["snapshot-id"] in heads
            ]
        mode = SERVER if is_planned(self.table) else CLIENT
        document: dict[str, Any] = {
            "metadata-location": self.table.metadata_location,
            "metadata": metadata,
            "config": {MODE: mode},
        }
        if with_credentials:
            document[CREDENTIALS] = self.credentials
        return json.dumps(document).encode()


def is_planned(table: Table) -> bool:
    """Return whether scans of a table are planned here. Clients plan others themselves, if they can."""
    try:
        refuse_table(table.state)
    except UnsupportedError:
        return is_hidden(table)
    return True


def _credentials(table: Table) -> tuple[dict[str, Any], ...]:
    operations = table.operations
    vended = operations.credentials if isinstance(operations, RestOperations) else ()
    return tuple({"prefix": credential.prefix, "config": credential.config} for credential in vended)


def version_key(table: Table) -> tuple[str, str, int]:
    """Return the key of a version of a table. A location is not enough: a dropped table may have had the same one."""
    metadata = table.metadata
    return table.metadata_location, str(metadata.table_uuid), metadata.last_updated_ms


def _renews(table: Table) -> bool:
    """Return whether the credentials for reading a table's files renew themselves."""
    return isinstance(getattr(table.state.files, "source", None), VendedIO)


class Tables:
    """The tables of a catalog."""

    def __init__(self, catalog: Catalog, sessions: SessionSource) -> None:
        self.catalog, self._sessions = with_sessions(catalog, sessions), sessions
        self._lock = threading.Lock()
        self._recent: OrderedDict[tuple[str, ...], Table] = OrderedDict()

    def load(self, names: tuple[str, ...], principal: Principal) -> ServedTable:
        """Return the current version of a table.

        Raises:
            ApiError: the user may not read it.
            NoSuchTableError: the table does not exist.
        """
        principal.check(names)
        try:
            current = self.catalog.load_table(names, self._sessions.given)
        except NoSuchTableError as error:
            raise ApiError(404, NO_TABLE, f"Table does not exist: {'.'.join(names)}") from error
        credentials, version = _credentials(current), version_key(current)
        with self._lock:
            cached = self._recent.get(names)
            # Credentials that do not renew themselves may have expired.
            if cached is not None and version_key(cached) == version and (not credentials or _renews(cached)):
                current = cached
            self._recent[names] = current
            self._recent.move_to_end(names)
            while len(self._recent) > _MOST_TABLES:
                self._recent.popitem(last=False)
        digest = hashlib.sha256(f"{_SHOWN_AS} {version}".encode())
        return ServedTable(current, f'"{digest.hexdigest()[:32]}"', credentials)

    def exists(self, names: tuple[str, ...], principal: Principal) -> bool:
        """Return whether a table exists. Raises ApiError if the user may not read it."""
        principal.check(names)
        return self.catalog.table_exists(names)

    def namespaces(self, parent: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the namespaces in a namespace. Raises NoSuchNamespaceError."""
        return sorted(self.catalog.list_namespaces(parent))

    def check_namespace(self, namespace: tuple[str, ...]) -> None:
        """Raise ApiError if a namespace does not exist."""
        exists = False
        with suppress(NoSuchNamespaceError):
            exists = self.catalog.namespace_exists(namespace)
        if not exists:
            raise ApiError(404, NO_NAMESPACE, f"Namespace does not exist: {'.'.join(namespace)}")

    def tables(self, namespace: tuple[str, ...], principal: Principal) -> list[tuple[str, ...]]:
        """Return the tables in a namespace that the user may read. Raises NoSuchNamespaceError."""
        return sorted(names for names in self.catalog.list_tables(namespace) if principal.may_read(names))
