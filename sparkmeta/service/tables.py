"""The tables of a service, and their states, which are kept as long as they are current."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import NoSuchNamespaceError, NoSuchTableError, UnsupportedError
from sparkmeta.operations.rest import RestOperations
from sparkmeta.plan.rest_tasks import refuse_table
from sparkmeta.service.errors import NO_NAMESPACE, NO_TABLE, ApiError
from sparkmeta.service.shown import is_hidden, shown_metadata
from sparkmeta.storage.vended import VendedIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.catalog import Catalog
    from sparkmeta.service.access import Principal
    from sparkmeta.table import Table

MODE = "scan-planning-mode"
SERVER, CLIENT = "server", "client"
CREDENTIALS = "storage-credentials"
_MOST_TABLES = 256
# Part of ETags, to be changed with the way in which tables are shown.
_SHOWN_AS = "2"


@dataclass(frozen=True)
class ServedTable:
    """A version of a table, as clients get it.

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
            metadata["snapshots"] = [each for each in metadata.get("snapshots", ()) if each["snapshot-id"] in heads]
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
    return tuple({"prefix": each.prefix, "config": each.config} for each in vended)


def version_key(table: Table) -> tuple[str, str, int]:
    """Return what identifies a version of a table. Its location does not: a dropped table may have had the same."""
    metadata = table.metadata
    return table.metadata_location, str(metadata.table_uuid), metadata.last_updated_ms


def _renews(table: Table) -> bool:
    """Return whether the credentials by which a table's files are read renew themselves."""
    return isinstance(getattr(table.state.files, "source", None), VendedIO)


class Tables:
    """The tables of a catalog."""

    def __init__(self, catalog: Catalog, spark: SparkSession) -> None:
        self.catalog, self.spark = catalog.with_session(spark), spark
        self._lock = threading.Lock()
        self._recent: OrderedDict[tuple[str, ...], Table] = OrderedDict()

    def load(self, names: tuple[str, ...], principal: Principal) -> ServedTable:
        """Return the current version of a table.

        Raises:
            ApiError: the user may not read it.
            NoSuchTableError: there is no such table.
        """
        principal.check(names)
        try:
            current = self.catalog.load_table(names, self.spark)
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
        """Return whether there is such a table. Raises ApiError if the user may not read it."""
        principal.check(names)
        return self.catalog.table_exists(names)

    def namespaces(self, parent: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the namespaces in a namespace. Raises NoSuchNamespaceError."""
        return sorted(self.catalog.list_namespaces(parent))

    def check_namespace(self, namespace: tuple[str, ...]) -> None:
        """Raise ApiError if there is no such namespace."""
        exists = False
        with suppress(NoSuchNamespaceError):
            exists = self.catalog.namespace_exists(namespace)
        if not exists:
            raise ApiError(404, NO_NAMESPACE, f"Namespace does not exist: {'.'.join(namespace)}")

    def tables(self, namespace: tuple[str, ...], principal: Principal) -> list[tuple[str, ...]]:
        """Return the tables in a namespace that the user may read. Raises NoSuchNamespaceError."""
        return sorted(names for names in self.catalog.list_tables(namespace) if principal.may_read(names))
