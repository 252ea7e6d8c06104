"""Group the leaves that a compaction rewrites, within its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sparkmeta.spec.entry import ContentType


class Reason(StrEnum):
    """Why a leaf or a file of the root is rewritten.

    Attributes:
        LAYOUT: it has the layout of versions 1 to 3.
        MASKED: many of its entries are masked.
        SMALL: it is merged with its neighbours.
        OVERLAP: too many leaves overlap it in the order of the clustering columns.
        ROOT: the root holds too many files.
        AFFINITY: its data leaf is split, or the data files of its deletion vectors are in few leaves.
    """

    LAYOUT = "layout"
    MASKED = "masked"
    SMALL = "small"
    OVERLAP = "overlap"
    ROOT = "root"
    AFFINITY = "affinity"


@dataclass(frozen=True)
class Limits:
    """The limits of a compaction. See `CompactionOptions`, and `TreeOptions` for `affiliated_deletes`.

    Attributes:
        fewest_merged: the least number of small leaves that are merged.
    """

    target_bytes: int
    min_masked_ratio: float
    min_leaf_ratio: float
    max_overlap: int
    max_root_files: int | None
    affiliated_deletes: int
    max_entries: int | None = None
    max_bytes: int | None = None
    fewest_merged: int = 2


@dataclass(frozen=True)
class Group:
    """Leaves and files that are rewritten together: data of one spec, or deletes of all specs.

    Attributes:
        leaves: row numbers in the root's table, in the order of the clustering columns.
        files: row numbers in the root's table.
        parts: the expected number of new leaves.
        exchanged: whether entries are sorted among tasks; otherwise one task reads the whole group.
        gain: the benefit of rewriting the group, for comparisons.
    """

    content: ContentType
    spec_id: int | None
    leaves: tuple[int, ...]
    files: tuple[int, ...] = ()
    parts: int = 1
    exchanged: bool = False
    gain: float = 0.0


@dataclass(frozen=True)
class Choice:
    """The groups that a compaction rewrites.

    Attributes:
        reasons: row number in the root's table -> why it is rewritten.
    """

    groups: tuple[Group, ...] = ()
    reasons: Mapping[int, tuple[Reason, ...]] = field(default_factory=dict)

    def of(self, groups: Sequence[Group]) -> Choice:
        """Return the choice of only the given groups."""
        chosen = {place for group in groups for place in (*group.leaves, *group.files)}
        return Choice(tuple(groups), {place: why for place, why in self.reasons.items() if place in chosen})

    @property
    def data(self) -> list[Group]:
        return [group for group in self.groups if group.content == ContentType.DATA_MANIFEST]

    @property
    def deletes(self) -> Group | None:
        """All delete leaves and deletes of the root, which are rewritten together."""
        return next((group for group in self.groups if group.content == ContentType.DELETE_MANIFEST), None)
