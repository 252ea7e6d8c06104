"""Files are passed to a commit as Arrow tables or as pyiceberg's data files, without a session."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, DecimalType, LongType, NestedField, TimestamptzType, UUIDType

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkmeta import SnapshotUpdate, Table

KINDS = {2: DateType(), 3: DecimalType(9, 2), 4: UUIDType(), 5: TimestamptzType()}
SCHEMA = Schema(NestedField(1, "id", LongType()), *(NestedField(id_, f"c{id_}", kind) for id_, kind in KINDS.items()))
SPEC = PartitionSpec(*(PartitionField(id_, 998 + id_, IdentityTransform(), f"p{id_}") for id_ in KINDS))
VALUES = (20_454, Decimal("1.50"), uuid.UUID(int=7), 1_700_000_000_000_001)
BOUND = b"\x07\0\0\0\0\0\0\0"


def new_table(tmp_path: Path, version: int, **properties: str) -> Table:
    lake = sm.load_catalog("lake", type="hadoop", warehouse=str(tmp_path))
    lake.create_namespace("db")
    return lake.create_table("db.t", SCHEMA, SPEC, properties=properties, format_version=version)


def data_file(name: str, *values: Any, version: int = 2, **others: Any) -> DataFile:
    known = {
        "content": DataFileContent.DATA,
        "file_path": f"/data/{name}.parquet",
        "file_format": FileFormat.PARQUET,
        "partition": Record(*(values or VALUES)),
        "record_count": 3,
        "file_size_in_bytes": 100,
        "value_counts": {1: 3},
        "lower_bounds": {1: BOUND},
        "split_offsets": [4],
    }
    names = {field.name for field in DATA_FILE_TYPE[version].fields}
    return DataFile.from_args(version, **{name: value for name, value in (known | others).items() if name in names})


def commit(table: Table, change: Callable[[SnapshotUpdate], object]) -> Table:
    with table.refresh().transaction() as transaction:
        change(transaction.update_snapshot())
    return table.refresh()


def files(table: Table) -> list[dict[str, Any]]:
    rows = table.scan().arrow.plan_files().drop_columns(["manifest_path", "manifest_pos", "first_row_id"]).to_pylist()
    return sorted(rows, key=lambda row: row["file_path"])


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_both_forms_are_the_same(tmp_path: Path, version: int) -> None:
    """Partition values have the form that pyiceberg reads from manifests."""
    given = [data_file("a", version=min(version, 3)), data_file("b", None, None, None, None)]
    table = commit(new_table(tmp_path / "files", version), lambda update: update.append(given))
    first, second = files(table)
    assert first["partition"] == {
        "p2": pa.scalar(VALUES[0], pa.date32()).as_py(),
        "p3": VALUES[1],
        "p4": str(VALUES[2]),
        "p5": pa.scalar(VALUES[3], pa.timestamp("us", "UTC")).as_py(),
    }
    assert (set(second["partition"].values()), first["split_offsets"]) == ({None}, [4])
    rows = table.scan().arrow.plan_files().drop_columns(["manifest_path", "manifest_pos", "residual"])
    metrics = pa.array([[(1, BOUND)]] * 2, pa.map_(pa.int32(), pa.binary()))
    counts = pa.array([[(1, 3)]] * 2, pa.map_(pa.int64(), pa.int32()))
    rows = rows.append_column("lower_bounds", metrics).append_column("value_counts", counts)
    # Large texts and dictionaries, as other libraries return them.
    odd = rows.set_column(0, "file_path", rows.column(0).cast(pa.large_string()))
    odd = odd.set_column(1, "file_format", odd.column("file_format").dictionary_encode())
    same = commit(new_table(tmp_path / "rows", version), lambda update: update.append(odd))
    assert files(same) == files(table)
    assert len(same.scan("id > 7").arrow.plan_files()) == len(same.scan("id >= 7").arrow.plan_files()) == 2
    assert len(same.scan("id < 7").arrow.plan_files()) == 0
    same = commit(same, lambda update: update.delete([given[0]]))
    rest = same.scan().arrow.plan_files()
    assert rest.column("file_path").to_pylist() == ["/data/b.parquet"]
    assert files(commit(same, lambda update: update.delete(rest))) == []


def test_paths_get_the_scheme_of_the_table(tmp_path: Path) -> None:
    shop = sm.load_catalog("shop", type="sql", uri=f"sqlite:///{tmp_path}/shop.db", warehouse=tmp_path.as_uri())
    shop.create_namespace("db")
    table = shop.create_table("db.t", SCHEMA, SPEC, format_version=4)
    for removed in ([data_file("a")], pa.table({"file_path": ["/data/a.parquet"]})):
        table = commit(table, lambda update: update.append([data_file("a")]))
        assert [row["file_path"] for row in files(table)] == ["file:///data/a.parquet"]
        table = commit(table, lambda update, removed=removed: update.delete(removed))  # type: ignore[misc]
        assert files(table) == []


def test_files_beyond_the_root_are_written_to_leaves(tmp_path: Path) -> None:
    table = new_table(tmp_path, 4, **{"write.tree.direct-files": "2", "write.tree.flush-data-files": "1"})
    table = commit(table, lambda update: update.append([data_file(name) for name in "edcba"]))
    assert [row["file_path"] for row in table.scan().arrow.plan_files().to_pylist()] == [
        f"/data/{name}.parquet" for name in "abcde"
    ]
    assert table.state.tree is not None
    assert len(table.state.tree.root.leaves) == 1
    for name in "fgh":  # the third append moves the earlier files into a leaf
        table = commit(table, lambda update, name=name: update.append([data_file(name)]))  # type: ignore[misc]
    assert table.state.tree is not None
    assert len(table.state.tree.root.leaves) == 2
    assert len(files(table)) == 8


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (lambda: "x", "files is of type str: expected a DataFrame, an Arrow table or DataFiles of pyiceberg"),
        (lambda: [{"file_path": "x"}], "files is of type list: expected"),
        (lambda: [data_file("a", 1, 2)], "partition of file /data/a.parquet: it has 2 values: partition spec 0 has 4"),
        (lambda: [data_file("a", "x", *VALUES[1:])], "partition.p2 of a file is 'x': expected date32"),
        (lambda: [data_file("a", record_count="many")], "record_count of a file is 'many': expected int64"),
        (lambda: [data_file("a", record_count=-1)], "record_count of file /data/a.parquet is -1"),
        (lambda: pa.table({"file_path": ["a"]}), "file a is None"),
        (lambda: pa.table({"file_path": ["a"], "file_size_in_bytes": ["x"]}), "column file_size_in_bytes of the files"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, given: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        commit(new_table(tmp_path, 2), lambda update: update.append(given()))


@pytest.mark.parametrize("version", [2, 4])
def test_files_that_others_change(tmp_path: Path, version: int) -> None:
    table = commit(new_table(tmp_path, version), lambda update: update.append([data_file("a"), data_file("b")]))
    stale = table.transaction()
    stale.update_snapshot().delete([data_file("a")])
    commit(table, lambda update: update.delete([data_file("a")]))
    with pytest.raises(CommitConflictError, match=r"/data/a.parquet is not a live file of the table any more"):
        stale.commit()
    with pytest.raises(CommitConflictError, match=r"/data/b.parquet is in the table already"):
        commit(table, lambda update: update.append([data_file("b")]))
