"""The changelog of every partition spec, kind of delete and format version, read in every way, against a model."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

import sparkmeta as sm
from tests.data_source.test_stream import Stream
from tests.local_files import local_path
from tests.rows.files import write_position_deletes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "part", StringType()), NestedField(3, "ts", TimestampType())
)
ARROW = pa.schema([("id", pa.int64()), ("part", pa.string()), ("ts", pa.timestamp("us"))])
# The fields of specs: source columns and transforms. The last spec gets a field, and loses one.
SPECS = {
    "unpartitioned": [],
    **{transform: [(2, transform)] for transform in ("identity", "truncate[1]", "void")},
    "bucket": [(1, "bucket[4]")],
    **{transform: [(3, transform)] for transform in ("year", "month", "day", "hour")},
    "several": [(1, "bucket[4]"), (2, "identity"), (3, "day")],
    "evolved": [(2, "identity"), (3, "month")],
}
MERGE_ON_READ = {"write.delete.mode": "merge-on-read"}
# The kinds of deletes, and the versions that may have them. `>` is an upgrade; each version has deletes.
DELETES = {
    "files": ("1", "2", "3", "4", "1>2>3>4"),
    "copy-on-write": ("1", "2", "3", "4", "1>2>3>4"),
    "position deletes of a file": ("2", "2>3>4"),
    "position deletes of several files": ("2", "2>3>4"),
    "vectors": ("3", "4", "3>4"),
    "equality deletes": ("2", "3", "4", "2>3>4"),
}
# Vectors in the entries of data files, in leaves and in the root.
IN_ENTRIES = "vectors in entries"
IN_LEAVES = {"write.tree.layout": "iceberg", "write.tree.direct-files": "2", "write.tree.flush-data-files": "3"}
CASES = [
    *((spec, kind, versions) for kind, every in DELETES.items() for versions in every for spec in SPECS),
    *((spec, IN_ENTRIES, "4") for spec in ("unpartitioned", "several", "evolved")),
]


def row(number: int) -> tuple[int, str, datetime]:
    """Return a row. Rows with the same tens are in the same partitions of all specs but buckets."""
    return number, "xyz"[number // 10 % 3], datetime.fromisoformat(f"{2020 + number // 10}-01-02T03:00")


def arrow(numbers: Iterable[int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ARROW.names, row(number), strict=True)) for number in numbers], ARROW)


class History:
    """A table, and the changes of its snapshots."""

    def __init__(self, folder: Path, spec: str, kind: str, version: int) -> None:
        catalog = sm.load_catalog("changelogs", type="hadoop", warehouse=folder.as_uri())
        catalog.create_namespace("db")
        fields = [
            PartitionField(source, 1000 + number, parse_transform(transform), f"f{number}")
            for number, (source, transform) in enumerate(SPECS[spec])
        ]
        properties = {} if kind in ("files", "copy-on-write") else MERGE_ON_READ
        properties = properties | (IN_LEAVES if kind == IN_ENTRIES else {})
        self.table = catalog.create_table(
            "db.t", SCHEMA, PartitionSpec(*fields), format_version=version, properties=properties
        )
        self.kind, self.changes = kind, list[set[tuple[str, int]]]()

    def append(self, *numbers: int) -> None:
        self.table = self.table.append(arrow(numbers))
        self.changes.append({("INSERT", number) for number in numbers})

    def delete(self, *numbers: int) -> None:
        if self.kind == "equality deletes":
            self.table = self.table.equality_delete(arrow(numbers), ARROW.names)
        elif self.kind == "position deletes of several files" and self.table.format_version == 2:
            self._delete_positions(numbers)
        else:
            self.table = self.table.delete(f"id in ({', '.join(map(str, numbers))})")
        self.changes.append({("DELETE", number) for number in numbers})

    def _delete_positions(self, numbers: Iterable[int]) -> None:
        """Commit a delete file for each partition with the rows."""
        pairs: dict[tuple[int, tuple[Any, ...]], list[tuple[str, int]]] = {}
        positions = self.table.scan().select("id", "_file", "_pos").to_arrow().to_pylist()
        files = self.table.inspect.arrow.data_files()
        for each in sorted(positions, key=lambda each: (each["_file"], each["_pos"])):
            if each["id"] in numbers:
                index = files.column("file_path").to_pylist().index(each["_file"])
                spec_id = files.column("spec_id")[index].as_py()
                values = files.column("partition")[index].as_py() if "partition" in files.column_names else {}
                fields = self.table.specs()[spec_id].fields
                keys = spec_id, tuple(values[field.name] for field in fields)
                pairs.setdefault(keys, []).append((each["_file"], each["_pos"]))
        deletes = []
        for (spec_id, values), of_partition in pairs.items():
            count = len(list(self._folder().glob("*-deletes.parquet")))
            path = write_position_deletes(self._folder() / f"{count}-deletes.parquet", of_partition)
            file = DataFile.from_args(
                2, content=DataFileContent.POSITION_DELETES, file_path=str(path), file_format=FileFormat.PARQUET,
                partition=Record(*values), record_count=len(of_partition), file_size_in_bytes=path.stat().st_size,
            )  # fmt: skip
            file.spec_id = spec_id
            deletes.append(file)
        with self.table.transaction() as transaction:
            transaction.update_snapshot().row_delta(deletes=deletes)
        self.table = self.table.refresh()

    def _folder(self) -> Path:
        return Path(local_path(self.table.location())) / "data"

    @property
    def expected(self) -> Counter[tuple[Any, ...]]:
        """The rows of the changelog."""
        ids = [snapshot.snapshot_id for snapshot in sorted(self.table.snapshots(), key=lambda each: each.timestamp_ms)]
        return Counter(
            (*row(number), change, ordinal, ids[ordinal])
            for ordinal, changes in enumerate(self.changes)
            for change, number in changes
        )


def build(folder: Path, spec: str, kind: str, versions: str) -> History:
    """Return a table with two appends, a new spec, and deletes in each version."""
    first, *upgrades = map(int, versions.split(">"))
    history = History(folder, spec, kind, first)
    history.append(*range(8), *range(10, 14))
    history.append(*range(20, 24), 30, 40, 41)
    if spec == "evolved":
        with history.table.update_spec() as update:
            update.add_field("id", parse_transform("bucket[2]"), "id_bucket")
            update.remove_field("f1")
        history.table = history.table.refresh()
    history.append(8, 9, 14, 24, 31)
    deleted = [(30,), (31,), (40, 41), (20, 21, 22, 23)] if kind == "files" else [(1, 3, 8, 11, 24), (0, 14), (2, 4)]
    history.delete(*deleted[0])
    for version, numbers in zip(upgrades, deleted[1:], strict=False):
        history.table.maintenance.upgrade(version).commit()
        history.table = history.table.refresh()
        history.append(50 + version)
        history.delete(*numbers)
    return history


@pytest.mark.parametrize(("spec", "kind", "versions"), CASES)
def test_changelogs(spark: SparkSession, tmp_path: Path, spec: str, kind: str, versions: str) -> None:
    history = build(tmp_path, spec, kind, versions)
    table, expected = history.table, history.expected
    place = str(table.location())
    sm.register(spark)
    ways = {
        "to_df": lambda: table.changelog(None).to_df().collect(),
        "source": lambda: spark.read.format("sparkmeta").option("table", "changelog").load(place).collect(),
        "SQL": lambda: spark.sql("SELECT * FROM sparkmeta_changelog(:place)", {"place": place}).collect(),
        "stream": lambda: Stream(place, table="changelog").drain(),
    }
    for way, read in ways.items():
        assert Counter(map(tuple, read())) == expected, way
    assert not table.arrow.check().num_rows
