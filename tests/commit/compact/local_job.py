"""A compaction without Spark: the tasks' own functions run on Arrow tables, with leaves in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.commit import compaction_job as rebasing
from sparkmeta.commit.compaction_groups import CompactionGroups, Group, Scope
from sparkmeta.commit.compaction_job import Rebased, RewriteJob, Rewritten, rebase
from sparkmeta.commit.compaction_tasks import BIN_SCHEMA, key_table
from sparkmeta.commit.next_root import FileKey
from sparkmeta.manifests.sorted_manifests import range_bounds
from sparkmeta.manifests.v4.layout import TreeTypes, read_manifest, write_manifest
from sparkmeta.manifests.v4.root import Root
from sparkmeta.manifests.v4.write import LeafFormat, encode_leaf, pieces, put_behind
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.spec.tree_layout import PROPOSAL
from tests.commit.tree_model import Reading, Store, key_of


@dataclass(frozen=True)
class LocalFrame:
    """The part of a DataFrame's interface that the jobs of data leaves use."""

    table: pa.Table
    sparkSession: ClassVar[Any] = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "2"))  # noqa: N815

    @property
    def columns(self) -> list[str]:
        return self.table.column_names

    def mapInArrow(self, function: Callable[[Iterable[pa.RecordBatch]], Any], _: Any) -> LocalFrame:  # noqa: N802
        batches = list(function(self.table.to_batches(max_chunksize=1)))
        return LocalFrame(pa.Table.from_batches(batches) if batches else EMPTY)

    def repartition(self, *_: Any) -> LocalFrame:
        return self

    def sortWithinPartitions(self, name: str) -> LocalFrame:  # noqa: N802
        return LocalFrame(self.table.sort_by(name)) if len(self.table) else self

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self.table


EMPTY = pa.table({"group": pa.array([], pa.int32()), "leaf": pa.array([], pa.binary())})


@dataclass(frozen=True)
class Memory:
    """The leaves of a store, which are tables, read and written as bytes."""

    store: Store
    stats: Mapping[int, str]

    def leaf(self, location: str) -> pa.Table:
        return self.store.leaves[location]

    def read(self, location: str) -> bytes:
        table = self.store.leaves.get(location)
        if table is None:
            offset, blob = next(
                (stored_at[1], blob) for stored_at, blob in self.store.blobs.items() if stored_at[0] == location
            )
            return bytes(offset) + blob
        data = pc.all(pc.equal(table.column("content_type"), int(ContentType.DATA))).as_py()
        return write_manifest(table, "data" if data else "delete")

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        return self.read(location)[offset : offset + size]

    def write_new(self, location: str, data: bytes) -> None:
        assert location not in self.store.leaves
        self.store.leaves[location] = read_manifest(data, self.stats, location)[0]


@dataclass(frozen=True)
class LocalJob(RewriteJob):
    """The jobs of a compaction in this process."""

    memory: Memory

    def _frame(self, rows: list[dict[str, Any]]) -> Any:
        return LocalFrame(pa.Table.from_pylist(rows, schema=BIN_SCHEMA))

    def _bounds(self, group: Group, ranges: int) -> pa.Table:
        keys = self.scope.keys[group.spec_id or 0]
        leaves = [self.memory.leaf(self.root.column("location")[ordinal].as_py()) for ordinal in group.leaves]
        return range_bounds(pa.concat_tables([key_table(leaf, keys) for leaf in [*leaves, self.files(group)]]), ranges)

    @cached_property
    def form(self) -> LeafFormat:
        return replace(super().form, writer=self.memory)

    def deletes(self, group: Group, data: Sequence[Rewritten]) -> Rewritten:
        """Return delete leaves, grouped by the data leaves that contain their files."""
        rewriting = self.rewriting(group.leaves)
        leaves = rewriting.live_entries(self._leaf_sources(group.leaves))
        entries = pa.concat_tables([rewriting.form.schema.empty_table(), *leaves, self.files(group)])
        owners = self._owners({leaf for rewritten in data for leaf in rewritten.leaves}, data)
        parts: dict[tuple[str | None, int], list[int]] = {}
        for number, row in enumerate(entries.select(_OWNED).to_pylist()):
            is_vector = row["content_type"] == ContentType.POSITION_DELETES
            owner = owners.get(row["referenced_file"]) if is_vector else None
            parts.setdefault((owner, row["partition_spec_id"]), []).append(number)
        leaf_rows = []
        for (owner, _), numbers in parts.items():
            for piece in pieces(entries.take(pa.array(numbers)), 1):
                ((_, row),) = put_behind([(None, encode_leaf(piece, rewriting.form))], rewriting.form.writer)
                index = row.column_names.index("referenced_file")
                leaf_rows.append(row.set_column(index, row.schema.field(index), pa.array([owner], pa.string())))
        return self.rewritten(group, leaf_rows)

    def _owners(self, dropped: set[str], data: Sequence[Rewritten]) -> dict[str, str]:
        leaves = Root("", pa.concat_tables([rewritten.new_leaves for rewritten in data])) if data else None
        new_leaves = [] if leaves is None else leaves.table.to_pylist()
        remaining = [
            row for row in self.root.to_pylist() if row["content_type"] == 3 and row["location"] not in dropped
        ]
        reading = Reading([*(row for row in self.root.to_pylist() if row["content_type"] == 5), *remaining],
                          self.memory.store)  # fmt: skip
        owners = {key.location: place.leaf for key, place in reading.places().items() if place.leaf is not None}
        for row in new_leaves:
            owners |= {entry["location"]: row["location"] for entry in self.memory.store.rows(row["location"])}
        return owners


_OWNED = ["content_type", "referenced_file", "partition_spec_id"]


def local_rewrite(
    scope: Scope, choice: CompactionGroups, store: Store, stats: Mapping[int, str], name: str
) -> list[Rewritten]:
    """Rewrite the groups of a choice."""
    memory = Memory(store, stats)
    metadata = SimpleNamespace(location="/t", properties={})
    types = TreeTypes(stats, frozenset(stats), {}, dict.fromkeys(scope.sources, ()))
    state: Any = SimpleNamespace(
        layout=PROPOSAL,
        sessions=None,
        metadata=metadata,
        types=SimpleNamespace(
            tuple_sources=dict.fromkeys(scope.sources, ()),
            stats_types=stats,
            tree_types=types,
            locations=Locations("/t", 4),
        ),
        files=None,
        spark=LocalFrame.sparkSession,
    )
    job = LocalJob(state, scope, memory, name, memory)  # type: ignore[arg-type]
    data = job.data(choice.data)
    return data if choice.deletes is None else [*data, job.deletes(choice.deletes, data)]


def local_fold(base: Root, done: Sequence[Rewritten], store: Store, busy: Iterable[str] = ()) -> Rebased:
    """Run `fold` without Spark: this process finds removed entries in the new leaves."""

    def masks(
        _: Any, new_leaves: pa.Table, gone: Mapping[str, PositionBitmap], lost: Sequence[FileKey]
    ) -> dict[str, PositionBitmap]:
        keys = set(lost)
        for leaf, bitmap in gone.items():
            rows = store.rows(leaf)
            keys |= {key_of(rows[ordinal]) for part in bitmap.positions() for ordinal in part}
        bitmaps = {}
        for location in new_leaves.column("location").to_pylist():
            places = [ordinal for ordinal, row in enumerate(store.rows(location)) if key_of(row) in keys]
            if places:
                bitmaps[location] = PositionBitmap.of(places)
        return bitmaps

    known, rebasing._masks = rebasing._masks, masks
    try:
        return rebase(None, base, done, store.load, list(busy))  # type: ignore[arg-type]
    finally:
        rebasing._masks = known
