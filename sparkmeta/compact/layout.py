"""Which leaves of an upgraded table, in the layout of versions 1 to 3, can become leaves of the tree's own layout.

Position delete files of version 2 have no place in a tree but in the manifests that they are in (semantics 19.3), and
partition values of unknown transforms none at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.entries.projection import MANIFEST, EntryProjection
from sparkmeta.spec.entry import ContentType, Status

if TYPE_CHECKING:
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class OldLayout:
    """The leaves of a root in the layout of versions 1 to 3.

    Attributes:
        convertible: those that can be converted, rows of `TableState.manifests`.
        position_deletes: location of a delete manifest that stays -> the number of its live position delete files.
        unknown_transforms: locations of manifests that stay since a field of their spec has an unknown transform.
    """

    convertible: pa.Table | None = None
    position_deletes: Mapping[str, int] = field(default_factory=dict)
    unknown_transforms: tuple[str, ...] = ()


def old_layout(state: TableState) -> OldLayout:
    """Return the leaves of a tree in the layout of versions 1 to 3.

    Runs a job that reads the delete manifests among them, since a manifest list does not say what kinds of deletes
    these hold.
    """
    assert state.tree is not None
    old = state.manifests.filter(state.tree.has_old_layout(state.manifests))
    unknown = pa.array(state.types.unwritable_fields, pa.int32())
    is_unknown = pc.is_in(old.column("partition_spec_id"), unknown)
    known = old.filter(pc.invert(is_unknown))
    counts = _position_delete_files(state, known)
    return OldLayout(
        known.filter(pc.invert(pc.is_in(known.column("location"), pa.array(list(counts), pa.string())))),
        counts,
        tuple(old.filter(is_unknown).column("location").to_pylist()),
    )


def _position_delete_files(state: TableState, manifests: pa.Table) -> dict[str, int]:
    """Return the number of live position delete files, without deletion vectors, of each manifest that has any."""
    deletes = manifests.filter(pc.equal(manifests.column("content_type"), int(ContentType.DELETE_MANIFEST)))
    if not len(deletes):
        return {}
    projection = EntryProjection.of(("content_type", "file_format", "version_info"))
    is_file = (
        (F.col("content_type") == int(ContentType.POSITION_DELETES))
        & (F.col("file_format") != "PUFFIN")
        & (F.col("version_info.status") != int(Status.DELETED))
    )
    counts = state.entries(deletes, projection).where(is_file).groupBy(MANIFEST).count().toArrow()
    by_id = dict(zip(deletes.column(MANIFEST).to_pylist(), deletes.column("location").to_pylist(), strict=True))
    return {by_id[row[MANIFEST]]: row["count"] for row in counts.sort_by(MANIFEST).to_pylist()}
