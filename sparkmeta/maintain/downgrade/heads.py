"""Choose the manifests of a downgrade: Avro leaves of branches and tags stay, and other leaves are written again.

Heads share most of their leaves. Leaves that the same heads have, masked by the same deletion vectors, form a group,
whose entries are written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.columns.bounds import ANY
from sparkmeta.entries.arrays import whole
from sparkmeta.entries.projection import MANIFEST
from sparkmeta.errors import UnsupportedError
from sparkmeta.manifests.v4.tree_manifests import MASKED
from sparkmeta.spec.downgrade import tree_snapshots

if TYPE_CHECKING:
    from sparkmeta.manifests.v4.tree_manifests import Tree
    from sparkmeta.state import TableState

# What entries of a leaf depend on: its location, what they inherit, and the deletion vector that masks it.
LeafKey = tuple[Any, ...]

_REQUIRED = [
    field.name for field in MANIFEST_FILE_SCHEMA if field.name.endswith(("_count", "sequence_number", "snapshot_id"))
]


@dataclass(frozen=True)
class Head:
    """The snapshot of branches and tags that has a tree.

    Attributes:
        state: the table at the snapshot.
        refs: the names of the branches and tags.
    """

    state: TableState
    refs: tuple[str, ...]

    @property
    def snapshot_id(self) -> int:
        assert self.state.snapshot is not None
        return self.state.snapshot.snapshot_id

    @property
    def tree(self) -> Tree:
        assert self.state.tree is not None
        return self.state.tree

    @cached_property
    def is_kept(self) -> pa.Array:
        """Which of the state's manifests a manifest list can name: Avro manifests with all counts that none masks."""
        manifests, listed = self.state.manifests, self.state.manifest_files
        is_complete = reduce(pc.and_, (whole(listed.column(name)).is_valid() for name in _REQUIRED))
        of_root = pa.repeat(False, len(manifests) - len(listed))
        is_avro = pc.equal(whole(manifests.column("file_format")), "AVRO")
        is_whole = pc.equal(whole(manifests.column(MASKED)), 0)
        return pc.and_(pc.and_(is_avro, is_whole), pa.concat_arrays([is_complete, of_root]))

    @cached_property
    def kept(self) -> pa.Table:
        """The Avro leaves that stay as they are, as `MANIFEST_FILE_SCHEMA`."""
        listed = self.state.manifest_files
        rows = listed.filter(self.is_kept.slice(0, len(listed)))
        place, sources = rows.schema.get_field_index("partitions"), self.tree.sources
        fields = {
            spec_id: [kind == ANY or field_id in dict(sources[spec_id]) for field_id, kind in spec_fields]
            for spec_id, spec_fields in self.state.types.spec_fields.items()
        }
        summaries = [
            summary if _is_known(summary, fields[spec_id]) else None
            for summary, spec_id in zip(
                rows.column(place).to_pylist(), rows.column("partition_spec_id").to_pylist(), strict=True
            )
        ]
        return rows.set_column(place, rows.schema.field(place), pa.array(summaries, rows.schema.field(place).type))

    @cached_property
    def rewritten(self) -> dict[LeafKey, int]:
        """The leaves whose entries are written to other manifests -> their small ids in the state."""
        masks = {row[MANIFEST]: tuple(row.values()) for row in self.tree.manifest_dvs.to_pylist()}
        names = [MANIFEST, "location", "content_type", "version_info", "first_row_id"]
        manifests = self.state.manifests.filter(pc.invert(self.is_kept)).select(names)
        keys: dict[LeafKey, int] = {}
        for row in manifests.to_pylist():
            manifest, version = row[MANIFEST], row["version_info"] or {}
            inherited = (version.get("snapshot_id"), version.get("sequence_number"), row["first_row_id"])
            # Small ids differ between roots.
            mask = masks[manifest][1:] if manifest in masks else None
            keys[row["location"], row["content_type"], inherited, mask] = manifest
        return keys


@dataclass(frozen=True)
class LeafGroup:
    """Leaves that the same heads have. Their entries are written once.

    Attributes:
        heads: in the order of their sequence numbers. New manifests belong to the first.
        keys: the leaves.
    """

    heads: tuple[Head, ...]
    keys: frozenset[LeafKey]

    @property
    def state(self) -> TableState:
        return self.heads[0].state

    @cached_property
    def manifests(self) -> pa.Table:
        """The leaves as rows of the `manifests` of the first head."""
        ids = pa.array([self.heads[0].rewritten[key] for key in self.keys], pa.int32())
        manifests = self.state.manifests
        return manifests.filter(pc.is_in(manifests.column(MANIFEST), ids))


def table_heads(state: TableState) -> tuple[Head, ...]:
    """Return the heads of a table's branches and tags that have a tree, in the order of their sequence numbers."""
    names: dict[int, list[str]] = {}
    for name, ref in sorted(state.metadata.refs.items()):
        names.setdefault(ref.snapshot_id, []).append(name)
    heads = tree_snapshots(state.metadata).heads
    return tuple(Head(state.at(snapshot), tuple(names[snapshot.snapshot_id])) for snapshot in heads)


def leaf_groups(heads: Sequence[Head]) -> list[LeafGroup]:
    """Return the leaves to write, grouped by the heads that have them."""
    holders: dict[LeafKey, list[int]] = {}
    for place, head in enumerate(heads):
        for key in head.rewritten:
            holders.setdefault(key, []).append(place)
    keys: dict[tuple[int, ...], set[LeafKey]] = {}
    for key, places in holders.items():
        keys.setdefault(tuple(places), set()).add(key)
    return [
        LeafGroup(tuple(heads[place] for place in places), frozenset(of_heads)) for places, of_heads in keys.items()
    ]


def refuse_unknown_transforms(state: TableState, spec_ids: Iterable[int]) -> None:
    """Raise UnsupportedError for a partition spec whose tuples can't be written."""
    for spec_id in sorted(set(spec_ids)):
        if unwritable := state.types.unwritable_fields.get(spec_id):
            raise UnsupportedError(
                f"{state.metadata.location}: partition spec {spec_id} has a transform or source column that is not "
                f"known, of field {unwritable[0]}: its files can't be written to other manifests"
            )


def _is_known(summary: Sequence[dict[str, Any]], has_values: Sequence[bool]) -> bool:
    """Return whether a root knows the bounds of a leaf's partition values.

    In a manifest list, a field without bounds has only nulls. In a root it may be unknown.
    """
    return all(
        not valued or field["lower_bound"] is not None for field, valued in zip(summary, has_values, strict=True)
    )
