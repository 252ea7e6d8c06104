"""Entries of V4 manifests as Iceberg's own reader shows them, by a Java program (`make reader`).

Iceberg 1.12 reads leaves and roots in the layout of its project, but opens no table that has them. Its reader leaves
out entries of files without rows.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from sparkmeta.java import java_home
from tests.conftest import ROOT, iceberg_jar

if TYPE_CHECKING:
    from collections.abc import Sequence

Entry = dict[str, Any]
"""An entry: fields by their names in the format's specification, and `position`, its row number in the file.

`partition` has values by partition field id, each a dictionary of `type` and `value`. `content_stats` has dictionaries
by column id, with the `type` of the bounds. Values are in hexadecimal digits, in Iceberg's binary form. Bitmaps are
lists of positions. The status, the content type and the file format are names.
"""

BUILD = ROOT / "build" / "reader"
_PROGRAM = "org.apache.iceberg.V4Entries"
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx1g")

# What Iceberg's runtime takes from Spark.
_SPARK_JARS = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "snappy-java", "zstd-jni")

MANIFESTS = ("DATA_MANIFEST", "DELETE_MANIFEST")
LIVE = ("EXISTING", "ADDED", "MODIFIED")


@dataclass(frozen=True)
class ManifestToRead:
    """A leaf or root, and the values that its entries inherit: in a root, from the snapshot."""

    path: str
    snapshot_id: int
    sequence_number: int
    first_row_id: int | None = None


@dataclass(frozen=True)
class TableToRead:
    """Manifests of a table.

    Attributes:
        metadata: the path of a metadata file with the schema and the partition specs.
        manifests: the manifests to read.
        without: fields of the entry that are not read.
        location: the table's location, if the metadata file has none.
    """

    metadata: Path
    manifests: Sequence[ManifestToRead] = ()
    without: tuple[str, ...] = ()
    location: str | None = None

    @cached_property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.metadata.read_text())
        return content

    def request(self) -> dict[str, Any]:
        """Return what the program is asked."""
        location = self.json.get("location") or self.location or f"file:{self.metadata.parent.parent}"
        files = [vars(manifest) for manifest in self.manifests]
        return {"metadata": str(self.metadata), "location": location, "without": self.without or None, "files": files}


def read_manifests(tables: Sequence[TableToRead]) -> list[list[list[Entry]]]:
    """Return the entries of each manifest of each table, in the order of the files. Starts one JVM.

    Skips the test if the program or the Iceberg runtime is missing. Fails if a manifest can't be read.
    """
    jar = iceberg_jar()
    if jar is None or not (BUILD / Path(*_PROGRAM.split(".")).with_suffix(".class")).is_file():
        pytest.skip("no reader of V4 manifests: run `make reader`")
    spark_jars = Path(pyspark.__file__).parent / "jars"
    jars = [BUILD, jar, *(path for name in _SPARK_JARS for path in spark_jars.glob(f"{name}-[0-9]*.jar"))]
    command = [Path(java_home()) / "bin" / "java", *_JVM, "-cp", ":".join(map(str, jars)), _PROGRAM]
    requests = json.dumps([table.request() for table in tables])
    process = subprocess.run([*map(str, command)], input=requests, capture_output=True, encoding="utf-8", check=False)
    assert process.returncode == 0, process.stderr
    entries: list[list[list[Entry]]] = [[[] for _ in table.manifests] for table in tables]
    errors = []
    # Locations may have characters at which splitlines would split.
    for line in filter(None, process.stdout.split("\n")):
        entry = json.loads(line)
        place = entries[entry.pop("table")][entry.pop("file")]
        errors += [entry["error"]] if "error" in entry else []
        place.append(entry)
    assert not errors, "\n".join(["Iceberg's reader fails: " + "\n".join(errors), process.stderr])
    return entries


@dataclass(frozen=True)
class Tree:
    """The root of a snapshot, and its leaves.

    Attributes:
        root: the entries of the root.
        leaves: the entries of each live leaf by its location.
    """

    snapshot_id: int
    root: list[Entry]
    leaves: dict[str, list[Entry]] = field(default_factory=dict)

    @property
    def leaf_entries(self) -> list[Entry]:
        """The entries of live leaves, without manifests in the layouts of earlier format versions."""
        return [entry for entry in self.root if is_leaf(entry) and entry["format_version"] == 4]

    @property
    def is_whole(self) -> bool:
        """Whether all live manifests could be read: none has the layout of an earlier format version."""
        return len(self.leaf_entries) == sum(map(is_leaf, self.root))

    def entries(self) -> list[Entry]:
        """Return the entries of data and delete files, without those that the bitmaps of leaves mask."""
        entries = [entry for entry in self.root if entry["content_type"] not in MANIFESTS]
        for leaf in self.leaf_entries:
            masked = {*(leaf["manifest_info"]["dv"] or ())}
            entries += [entry for entry in self.leaves[leaf["location"]] if entry["position"] not in masked]
        return entries


def read_trees(tables: Sequence[TableToRead]) -> list[list[Tree]]:
    """Return the trees of all snapshots of tables that have a root. Starts two JVMs. See `read_manifests`.

    Args:
        tables: the tables; their `manifests` are ignored.
    """
    with_roots = [replace(table, manifests=_roots(table)) for table in tables]
    trees = [
        [Tree(root.snapshot_id, entries) for root, entries in zip(table.manifests, roots, strict=True)]
        for table, roots in zip(with_roots, read_manifests(with_roots), strict=True)
    ]
    with_leaves = [
        replace(table, manifests=[*{_to_read(leaf): None for tree in of_table for leaf in tree.leaf_entries}])
        for table, of_table in zip(tables, trees, strict=True)
    ]
    for table, of_table, contents in zip(with_leaves, trees, read_manifests(with_leaves), strict=True):
        entries = dict(zip(table.manifests, contents, strict=True))
        for tree in of_table:
            tree.leaves.update({leaf["location"]: entries[_to_read(leaf)] for leaf in tree.leaf_entries})
    return trees


def _roots(table: TableToRead) -> list[ManifestToRead]:
    names = ("root-manifest", "snapshot-id", "sequence-number", "first-row-id")
    snapshots = table.json.get("snapshots", ())
    return [ManifestToRead(*map(entry.get, names)) for entry in snapshots if names[0] in entry]


def is_leaf(entry: Entry) -> bool:
    """Return whether an entry of a root is a live leaf."""
    return entry["content_type"] in MANIFESTS and entry["status"] in LIVE


def _to_read(leaf: Entry) -> ManifestToRead:
    return ManifestToRead(leaf["location"], leaf["snapshot_id"], leaf["sequence_number"], leaf["first_row_id"])
