"""Choose the manifests that a commit merges, as merging commits of Iceberg's Java library do (semantics 9.9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from sparkmeta.edit.list_options import ListOptions


@dataclass(frozen=True)
class Bin:
    """Adjacent manifests of one partition spec.

    Attributes:
        places: their indices in the list.
        is_merged: whether one manifest replaces them.
    """

    places: tuple[int, ...]
    is_merged: bool


def merge_bins(manifests: pa.Table, options: ListOptions) -> list[Bin]:
    """Pack the manifests of one content into bins, in the order of the next list.

    The newest partition spec comes first. Manifests of a spec are packed into bins of the target size, starting from
    the last. Bins of several manifests are merged; the one with the commit's newest only if it has `min_count`.

    Args:
        manifests: rows of `MANIFEST_FILE_SCHEMA`, those of the commit first.
    """
    if not options.merges or not len(manifests):
        return [Bin((place,), is_merged=False) for place in range(len(manifests))]
    places: dict[int, list[int]] = {}
    for place, spec_id in enumerate(manifests.column("partition_spec_id").to_pylist()):
        places.setdefault(spec_id, []).append(place)
    sizes = manifests.column("manifest_length").to_pylist()
    chosen = []
    for spec_id in sorted(places, reverse=True):
        for packed in _packed_from_end(places[spec_id], sizes, options.target_bytes):
            least = options.min_count if 0 in packed else 2
            chosen.append(Bin(packed, is_merged=len(packed) >= max(2, least)))
    return chosen


def _packed_from_end(places: Iterable[int], sizes: list[int], target: int) -> Iterator[tuple[int, ...]]:
    bins: list[list[int]] = []
    total = 0
    for place in reversed([*places]):
        if not bins or total + sizes[place] > target:
            bins.append([])
            total = 0
        bins[-1].append(place)
        total += sizes[place]
    return (tuple(reversed(packed)) for packed in reversed(bins))
