"""Table properties for V4 trees: how many files the root holds and how large leaves are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from sparkmeta.spec.table_properties import number_property


@dataclass(frozen=True)
class TreeOptions:
    """Table properties `write.tree.*`, named like the fields with dashes.

    Attributes:
        direct_files: maximum new files of a commit to put into the root; beyond it, they go into leaves.
        flush_data_files: maximum carried-over data files of a root; more are moved into leaves.
        flush_delete_files: maximum carried-over delete files of a root; more are moved into leaves.
        leaf_target_bytes: target size of a leaf.
        inline_vector_bytes: maximum size of an inline manifest DV; larger ones go into a Puffin file.
        inline_vectors_bytes: maximum total size of a root's inline manifest DVs, since every commit copies them.
        affiliated_deletes: minimum new deletion vectors for one data leaf that get an affiliated delete leaf.
        compact_entries: maximum data leaf entries that a commit may rewrite to merge small leaves and drop masked
            entries; 0 for none.
    """

    direct_files: int = 500
    flush_data_files: int = 1_000
    flush_delete_files: int = 1_000
    leaf_target_bytes: int = 8 << 20
    inline_vector_bytes: int = 16 << 10
    inline_vectors_bytes: int = 1 << 20
    affiliated_deletes: int = 1_000
    compact_entries: int = 0

    @staticmethod
    def of(properties: Mapping[str, str]) -> TreeOptions:
        """Return the options of a table. Raises ValidationError for a value that is not a whole number."""
        names = [field.name for field in fields(TreeOptions)]
        values = {name: number_property(properties, property_name(name), getattr(TreeOptions, name)) for name in names}
        return TreeOptions(**values)


def property_name(field: str) -> str:
    """Return the name of the table property of a field of TreeOptions."""
    return "write.tree." + field.replace("_", "-")
