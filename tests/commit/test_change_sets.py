"""Random change sets, valid and invalid, are compared with a small model of the table.

An invalid change set is refused with an error that names its file, and leaves nothing behind. After the valid ones, the
table passes `check`, and plans like the model. Commits run without Spark, like small commits of the driver.
SPARKMETA_SOAK=1 makes more than 10,000 of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from sparkmeta.commit.leaves import leaf_format
from sparkmeta.commit.new_files import NewFiles, file_rows
from sparkmeta.entries.manifest_records import map_type
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.v4.write import leaves_on_driver
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from tests.commit.places import open_operations
from tests.commit.test_transaction import SCHEMA, SPEC
from tests.commit.tree_committers import ArrowFrame, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import sparkmeta as sm
    from sparkmeta.operations.table_operations import TableOperations

pytestmark = pytest.mark.usefixtures("either_way")

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"
COMMITS = 24
PARTS = ("a", "b", "ü/=", None)

Row = dict[str, Any]

_PARTITION = pa.struct([("s", pa.string()), ("id_bucket", pa.int32())])
_COLUMNS = pa.schema(
    [
        ("content", pa.int32()),
        ("file_path", pa.string()),
        ("file_format", pa.string()),
        ("spec_id", pa.int32()),
        ("partition", _PARTITION),
        ("record_count", pa.int64()),
        ("file_size_in_bytes", pa.int64()),
        ("referenced_data_file", pa.string()),
        ("content_offset", pa.int64()),
        ("content_size_in_bytes", pa.int64()),
        ("equality_ids", pa.list_(pa.int32())),
        ("value_counts", map_type("value_counts")),
        ("null_value_counts", map_type("null_value_counts")),
        ("manifest_path", pa.string()),
    ]
)


def frame(rows: Sequence[Row]) -> Any:
    table = pa.Table.from_pylist([dict.fromkeys(_COLUMNS.names) | row for row in rows], schema=_COLUMNS)
    return cast("Any", ArrowFrame(table))


@dataclass(frozen=True)
class Vector:
    """A deletion vector of the model."""

    path: str
    offset: int
    positions: frozenset[int]


@dataclass
class Model:
    """The live files.

    Attributes:
        data: path -> row of a data file.
        vectors: path of a data file -> its vector.
        equality: path -> row of an equality delete file.
    """

    data: dict[str, Row] = field(default_factory=dict)
    vectors: dict[str, Vector] = field(default_factory=dict)
    equality: dict[str, Row] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(dict(self.data), dict(self.vectors), dict(self.equality))

    def remove(self, path: str) -> None:
        del self.data[path]
        self.vectors.pop(path, None)

    def planned(self) -> dict[str, tuple[int, str | None]]:
        """Return the record count, and the Puffin file of the vector, by data file."""
        return {
            path: (row["record_count"], self.vectors[path].path if path in self.vectors else None)
            for path, row in self.data.items()
        }


class ChangeSet(NamedTuple):
    """A commit's changes.

    Attributes:
        refused: the text that the error about an invalid change set contains.
    """

    change: Callable[[Any], Any]
    refused: str | None = None


@dataclass
class World:
    """A table in a folder, its model, and a source of files."""

    swap: TableOperations
    folder: Path
    rng: random.Random
    model: Model = field(default_factory=Model)
    count: int = 0

    # -- rows -------------------------------------------------------------------------------------------------------

    def name(self, what: str) -> str:
        self.count += 1
        return f"file:///data/{what} {self.count}"

    def data(self, **values: Any) -> Row:
        records = self.rng.randrange(1, 20)
        row = {"content": 0, "file_path": self.name("data"), "file_format": "PARQUET", "spec_id": 0,
               "partition": {"s": self.rng.choice(PARTS), "id_bucket": self.rng.randrange(4)},
               "record_count": records, "file_size_in_bytes": 100, "value_counts": [(1, records)],
               "null_value_counts": [(1, 0)]}  # fmt: skip
        return row | values

    def equality(self, **values: Any) -> Row:
        row = {"content": 2, "file_path": self.name("equality"), "file_format": "PARQUET", "spec_id": 0,
               "partition": {"s": self.rng.choice(PARTS), "id_bucket": self.rng.randrange(4)}, "record_count": 1,
               "file_size_in_bytes": 10, "equality_ids": [1]}  # fmt: skip
        return row | values

    def vector_rows(self, positions: Mapping[str, frozenset[int]]) -> list[Row]:
        """Return deletion vectors of data files, in one Puffin file."""
        path = self.folder / f"vectors-{self.count}.puffin"
        self.count += 1
        blobs = [
            write_deletion_vector(PositionBitmap.of(sorted(file_positions))) for file_positions in positions.values()
        ]
        file = write_puffin(
            [deletion_vector_blob(blob, of, len(positions[of])) for blob, of in zip(blobs, positions, strict=True)]
        )
        path.write_bytes(file.data)
        return [
            {"content": 1, "file_path": path.as_uri(), "file_format": "PUFFIN", "spec_id": 0,
             "partition": self.model.data[of]["partition"] if of in self.model.data else {"s": "a", "id_bucket": 0},
             "record_count": len(positions[of]), "file_size_in_bytes": len(file.data), "referenced_data_file": of,
             "content_offset": blob_position.offset, "content_size_in_bytes": blob_position.length}
            for of, blob_position in zip(positions, file.blobs, strict=True)
        ]  # fmt: skip

    def some(self, limit: int) -> list[str]:
        known = [*self.model.data]
        return self.rng.sample(known, min(len(known), self.rng.randrange(1, limit + 1)))

    def grown(self, path: str) -> frozenset[int]:
        """Return the positions of a file's new vector: the old vector's positions, and more."""
        records = self.model.data[path]["record_count"]
        old = self.model.vectors[path].positions if path in self.model.vectors else frozenset()
        return old | set(self.rng.sample(range(records), self.rng.randrange(1, records + 1)))

    def named(self, paths: Sequence[str]) -> Any:
        """Return files to remove. Some rows name the partition of their file, rightly or wrongly."""
        rows = []
        for path in paths:
            row: Row = {"file_path": path}
            if self.rng.random() < 0.5 and path in self.model.data:
                row |= {"spec_id": 0, "partition": self.model.data[path]["partition"]}
            if self.rng.random() < 0.1:
                row |= {"spec_id": 0, "partition": {"s": "nowhere", "id_bucket": 7}, "manifest_path": "/nowhere"}
            rows.append(row)
        return frame(rows)

    # -- commits ----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Apply a random valid change set, or assert that an invalid one is refused."""
        operation = self.rng.choice(VALID if self.rng.random() < 0.5 or not self.model.data else [*VALID, *INVALID])
        before, table = self.files(), opened(self.swap)
        model = self.model.copy()
        change, refused = operation(self)
        if refused is None:
            self.run(table, change)
            return
        self.model = model
        with pytest.raises(ValidationError) as caught:
            self.run(table, change)
        assert refused in str(caught.value), operation.__name__
        assert self.files() == before, operation.__name__

    def run(self, table: sm.Table, change: Callable[[Any], Any]) -> None:
        with table.transaction() as tx:
            change(tx.update_snapshot())

    def files(self) -> set[str]:
        return {path.name for path in (self.folder / "table" / "metadata").iterdir()}

    def into_leaves(self) -> None:
        """Add data files in leaves of one partition or of several, as tasks write them."""
        table = opened(self.swap)
        rows = [self.data() for _ in range(self.rng.randrange(1, 9))]
        rows.sort(key=lambda row: (row["partition"]["s"] or "", row["partition"]["id_bucket"]))
        half = self.rng.randrange(len(rows) + 1)
        tx = table.transaction()
        leaves = [self.leaf(table, part) for part in (rows[:half], rows[half:]) if part]
        tx.update_snapshot()._step._progress.added = NewFiles(leaves=pa.concat_tables(leaves))
        tx.commit()
        self.model.data |= {row["file_path"]: row for row in rows}

    def leaf(self, table: sm.Table, rows: list[Row]) -> pa.Table:
        entries = file_rows(table.state).entries(frame(rows).toArrow()).combine_chunks()
        form = leaf_format(table.state, f"leaf-{self.count}", 1 << 20)
        self.count += 1
        return leaves_on_driver(entries, form)


Operation = Callable[[World], ChangeSet]


# -- valid ----------------------------------------------------------------------------------------------------------


def append(world: World) -> ChangeSet:
    rows = [world.data() for _ in range(world.rng.randrange(1, 5))]
    world.model.data |= {row["file_path"]: row for row in rows}
    return ChangeSet(lambda update: update.append(frame(rows)))


def delete(world: World) -> ChangeSet:
    paths = world.some(3)
    for path in paths:
        world.model.remove(path)
    named = world.named(paths)
    return ChangeSet(lambda update: update.delete(named))


def overwrite(world: World) -> ChangeSet:
    paths, rows = world.some(3), [world.data()]
    if paths and world.rng.random() < 0.3:  # a file may come back under its own path
        rows.append(world.data(file_path=paths[0]))
    named = world.named(paths)
    for path in paths:
        world.model.remove(path)
    world.model.data |= {row["file_path"]: row for row in rows}
    return ChangeSet(lambda update: update.overwrite(frame(rows), named))


def row_delta(world: World) -> ChangeSet:
    positions = {path: world.grown(path) for path in world.some(4)}
    rows = world.vector_rows(positions)
    world.model.vectors |= {
        row["referenced_data_file"]: Vector(row["file_path"], row["content_offset"],
                                            positions[row["referenced_data_file"]])
        for row in rows
    }  # fmt: skip
    deletes = [*rows, *([world.equality()] if world.rng.random() < 0.3 else [])]
    world.model.equality |= {row["file_path"]: row for row in deletes if row["content"] == 2}
    return ChangeSet(lambda update: update.row_delta(deletes=frame(deletes)) if deletes else update)


def new_file_with_vector(world: World) -> ChangeSet:
    row = world.data(record_count=9, value_counts=[(1, 9)])
    world.model.data[row["file_path"]] = row
    (vector,) = world.vector_rows({row["file_path"]: frozenset([1, 8])})
    world.model.vectors[row["file_path"]] = Vector(vector["file_path"], vector["content_offset"], frozenset([1, 8]))
    return ChangeSet(lambda update: update.row_delta(frame([row]), deletes=frame([vector])))


# -- invalid --------------------------------------------------------------------------------------------------------


def added_twice(world: World) -> ChangeSet:
    row, other = world.data(), world.data()
    again = row | {"partition": {"s": "z", "id_bucket": 0}}
    if world.rng.random() < 0.5:
        return ChangeSet(lambda update: update.append(frame([row, other, again])), row["file_path"])
    return ChangeSet(lambda update: update.append(frame([row])).append(frame([other, again])), row["file_path"])


def live_already(world: World) -> ChangeSet:
    row = world.model.data[world.some(1)[0]]
    return ChangeSet(lambda update: update.append(frame([world.data(), row])), row["file_path"])


def two_vectors(world: World) -> ChangeSet:
    path = world.some(1)[0]
    first, second = (world.vector_rows({path: world.grown(path)}) for _ in range(2))
    if world.rng.random() < 0.5:
        return ChangeSet(lambda update: update.row_delta(deletes=frame([*first, *second])), path)
    return ChangeSet(lambda update: update.row_delta(deletes=frame(first)).row_delta(deletes=frame(second)), path)


def foreign_vector(world: World) -> ChangeSet:
    path = world.some(1)[0]
    (row,) = world.vector_rows({path: world.grown(path)})
    row["partition"] = row["partition"] | {"s": "elsewhere"}
    return ChangeSet(lambda update: update.row_delta(deletes=frame([row])), path)


def shrinking_vector(world: World) -> ChangeSet:
    old = [path for path, vector in world.model.vectors.items() if len(vector.positions) > 1]
    if not old:
        return append(world)
    path = world.rng.choice(old)
    records, positions = world.model.data[path]["record_count"], world.model.vectors[path].positions
    fewer = set(positions) - {world.rng.choice(sorted(positions))}
    others = sorted(set(range(records)) - positions)
    if others and world.rng.random() < 0.7:
        fewer.add(world.rng.choice(others))
    rows = world.vector_rows({path: frozenset(fewer)})
    return ChangeSet(lambda update: update.row_delta(deletes=frame(rows)), path)


def too_many_positions(world: World) -> ChangeSet:
    path = world.some(1)[0]
    rows = world.vector_rows({path: frozenset(range(world.model.data[path]["record_count"] + 1))})
    return ChangeSet(lambda update: update.row_delta(deletes=frame(rows)), path)


def vector_of_nothing(world: World) -> ChangeSet:
    path = world.name("nothing")
    rows = world.vector_rows({path: frozenset([0])})
    return ChangeSet(lambda update: update.row_delta(deletes=frame(rows)), path)


def vector_of_removed(world: World) -> ChangeSet:
    path = world.some(1)[0]
    rows, named = world.vector_rows({path: world.grown(path)}), world.named([path])
    return ChangeSet(lambda update: update.row_delta(deletes=frame(rows), removed=named), path)


def missing_file(world: World) -> ChangeSet:
    path = world.name("nothing")
    named = world.named([*world.some(2), path])
    return ChangeSet(lambda update: update.delete(named), path)


def removed_twice(world: World) -> ChangeSet:
    path = world.some(1)[0]
    named = world.named([path, path])
    return ChangeSet(lambda update: update.delete(named), path)


def removed_by_two(world: World) -> ChangeSet:
    path = world.some(1)[0]
    named = [world.named([path]) for _ in range(2)]
    return ChangeSet(lambda update: update.delete(named[0]).delete(named[1]), "removed twice in one commit")


def null_path(world: World) -> ChangeSet:
    if world.rng.random() < 0.5:
        return ChangeSet(lambda update: update.delete(frame([{"file_path": None}])), "file_path")
    return ChangeSet(lambda update: update.append(frame([world.data(file_path=None)])), "file_path")


def broken_row(world: World) -> ChangeSet:
    """Return a change set with a row that has an invalid column."""
    values: list[tuple[Row, str]] = [
        (world.data(record_count=-1), "record_count"),
        (world.data(file_size_in_bytes=-2), "file_size_in_bytes"),
        (world.data(record_count=None), "record_count"),
        (world.data(spec_id=7), "spec_id"),
        (world.data(content=5), "content"),
        (world.data(partition=None), "partition"),
        (world.data(file_format="csv"), "file_format"),
        (world.data(value_counts=[(1, 2)], null_value_counts=[(1, 3)]), "null_value_counts[1]"),
        (world.data(value_counts=[(1, -2)]), "value_counts[1]"),
        (world.data(referenced_data_file="/data/x"), "referenced_data_file"),
    ]
    row, column = world.rng.choice(values)
    return ChangeSet(lambda update: update.append(frame([world.data(), row])), f"{column} of file {row['file_path']}")


def broken_delete(world: World) -> ChangeSet:
    path = world.some(1)[0]
    (vector,) = world.vector_rows({path: world.grown(path)})
    values: list[tuple[Row, str]] = [
        (world.equality(equality_ids=[1, 77]), "equality_ids"),
        (world.equality(equality_ids=None), "equality_ids"),
        (vector | {"content_offset": None}, "content_offset"),
        (vector | {"content_size_in_bytes": 10_000}, "content_offset"),
        (vector | {"file_format": "PARQUET"}, "file_format"),
        (vector | {"referenced_data_file": None}, "referenced_data_file"),
    ]
    row, column = world.rng.choice(values)
    return ChangeSet(lambda update: update.row_delta(deletes=frame([row])), f"{column} of file {row['file_path']}")


VALID: list[Operation] = [append, delete, overwrite, row_delta, row_delta, new_file_with_vector]
INVALID: list[Operation] = [
    added_twice, live_already, two_vectors, foreign_vector, shrinking_vector, too_many_positions, vector_of_nothing,
    vector_of_removed, missing_file, removed_twice, removed_by_two, null_path, broken_row, broken_delete,
]  # fmt: skip


# -- the property ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["proposal", "iceberg"])
@settings(
    max_examples=450 if SOAK else 4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_change_sets(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, layout: str, seed: int) -> None:
    folder = tmp_path_factory.mktemp("world")
    swap = open_operations("", folder)
    properties = {"write.tree.layout": layout, "write.tree.flush-data-files": "8"}
    swap.commit(None, new_metadata(f"file://{folder}/table", SCHEMA, SPEC, UNSORTED_SORT_ORDER, properties, 4))
    world = World(swap, folder, random.Random(seed))
    for number in range(COMMITS):
        if number % 6 == 0:
            world.into_leaves()
        else:
            world.commit()
    table = opened(swap, spark)
    assert [row.asDict() for row in table.check().collect()] == []
    rows = table.scan().plan_files().collect()
    planned = {row.file_path: (row.record_count, vector_of(row)) for row in rows}
    assert len(rows) == len(planned)
    assert planned == world.model.planned()


def vector_of(row: Any) -> str | None:
    """Return the Puffin file of a planned file's deletion vector."""
    return next((delete.file_path for delete in row.deletes if delete.content == 1), None)


def test_the_model_is_not_blind(tmp_path: Path) -> None:
    """Every kind of invalid change set occurs, and the model detects a lost file."""
    world = World(cast("Any", None), tmp_path, random.Random(1))
    rows = [world.data() for _ in range(3)]
    model = Model({row["file_path"]: row for row in rows})
    world.model = model
    for operation in INVALID:
        if operation is not shrinking_vector:
            assert operation(world).refused is not None
    assert replace(model, data={}).planned() != model.planned()
