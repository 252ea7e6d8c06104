"""Table metadata as clients see them: metadata trees as format version 3, and every table read-only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sparkmeta.spec.entry import LAYOUT_REVISION_KEY, RELATIVE_LOCATIONS_KEY
from sparkmeta.spec.metadata import serialize_table_metadata
from sparkmeta.spec.partitioning import partition_spec_to_json
from sparkmeta.storage.location import file_name

if TYPE_CHECKING:
    from sparkmeta.table import Table

SHOWN_VERSION = 3
"""The newest format version that clients know."""

HIDDEN = "sparkmeta-tree://planned-by-the-catalog-only"
"""The beginning of the locations of manifest lists that clients must not read: no FileIO has the scheme.

An empty list would be read: orphan removal would then take all files of the table for orphans.
"""

READ_ONLY = "this-catalog-is-read-only--write-through-the-catalog-that-owns-the-table"
"""The value of write properties: no file format, so that writers fail before they write."""

_NO_FOLDER = f"sparkmeta-read-only://{READ_ONLY}"
# Properties that make writers and maintenance of clients fail at once. They replace the table's own.
_REFUSALS = {
    "write.format.default": READ_ONLY,
    "write.delete.format.default": READ_ONLY,
    "write.data.path": _NO_FOLDER,
    "write.metadata.path": _NO_FOLDER,
    "gc.enabled": "false",
}
# A location provider would not look at the paths above.
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
