"""Two tables with one history, one changed by Java and the other by sparkmeta: their metadata and their rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparkmeta as sm
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.workshop import NAMESPACE, Workshop
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

LINEAGE = ("_row_id", "_last_updated_sequence_number")
# What differs between two tables of equal histories.
_OF_A_TABLE = {"table-uuid", "location", "last-updated-ms", "metadata-log"}
# Names of engines, and what depends on the lengths of paths and on the writer of data files.
_OF_AN_ENGINE = {"iceberg-version", "engine-name", "engine-version", "app-id", "app-name", "spark.app.id"}
_SIZES = {"added-files-size", "removed-files-size", "total-files-size"}


def twins(
    spark: SparkSession,
    name: str,
    columns: str,
    partitioned: str = "",
    *,
    version: int,
    properties: Mapping[str, str] | None = None,
) -> tuple[Workshop, Workshop]:
    """Two equal empty tables that Java has made."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS java.{NAMESPACE}")
    shops = [Workshop(Java(spark), f"{name}_{owner}") for owner in ("java", "ours")]
    for shop in shops:
        shop.create(columns, partitioned, version=version, properties=properties)
    return shops[0], shops[1]


def opened(shop: Workshop) -> sm.Table:
    """The newest state of a table of Java's warehouse, which can be committed to."""
    warehouse = f"file://{shop.folder.parents[1]}"
    catalog = sm.load_catalog("twins", type="hadoop", warehouse=warehouse, spark=shop.spark)
    return catalog.load_table(f"{NAMESPACE}.{shop.name}")


def document(shop: Workshop) -> dict[str, Any]:
    """The table's metadata file, as JSON."""
    shop.sql("REFRESH TABLE {t}")
    loaded: dict[str, Any] = json.loads(Path(local_path(shop.metadata_location)).read_text())
    return loaded


def comparable(metadata: Mapping[str, Any], *, ignored: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The JSON of table metadata without what is particular to a table: snapshots are numbered by their order."""
    numbers = {snapshot["snapshot-id"]: place for place, snapshot in enumerate(metadata["snapshots"])}

    def of_snapshot(snapshot: Mapping[str, Any]) -> dict[str, Any]:
        summary = {key: value for key, value in snapshot.get("summary", {}).items()
                   if key not in _OF_AN_ENGINE | _SIZES | ignored}  # fmt: skip
        for key in ("source-snapshot-id",):
            if key in summary:
                summary[key] = numbers.get(int(summary[key]))
        shown = {key: value for key, value in snapshot.items() if key not in ("timestamp-ms", "manifest-list")}
        shown |= {"snapshot-id": numbers[snapshot["snapshot-id"]], "summary": summary}
        if "parent-snapshot-id" in snapshot:
            shown["parent-snapshot-id"] = numbers.get(snapshot["parent-snapshot-id"], "expired")
        return shown

    shown = {key: value for key, value in metadata.items() if key not in _OF_A_TABLE}
    shown["snapshots"] = [of_snapshot(snapshot) for snapshot in metadata["snapshots"]]
    shown["snapshot-log"] = [numbers[entry["snapshot-id"]] for entry in metadata["snapshot-log"]]
    shown["refs"] = {
        name: ref | {"snapshot-id": numbers[ref["snapshot-id"]]} for name, ref in sorted(metadata["refs"].items())
    }
    shown["current-snapshot-id"] = numbers.get(metadata["current-snapshot-id"], metadata["current-snapshot-id"])
    shown["metadata-files"] = len(metadata["metadata-log"])
    return shown


def rows(shop: Workshop, *columns: str) -> Counter[tuple[str | None, ...]]:
    """The rows as Java reads them, with metadata columns if there are any among `columns`."""
    shop.sql("REFRESH TABLE {t}")
    return Counter(row_texts(shop.sql(f"SELECT {', '.join(columns or ['*'])} FROM {{t}}")))
