"""Table properties for V4 trees: how many files the root holds and how large leaves are.

`check_snapshot_options` also checks those of manifest lists.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from sparkmeta.avro.write import manifest_codec
from sparkmeta.edit.list_options import ListOptions
from sparkmeta.spec.metadata import has_tree
from sparkmeta.spec.table_properties import number_property

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata


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
    def of(metadata: TableMetadata) -> TreeOptions:
        """Return the options of a table. Raises ValidationError for a value that is not a whole number."""
        properties, location = metadata.properties, metadata.location
        defaults = {field.name: getattr(TreeOptions, field.name) for field in fields(TreeOptions)}
        return TreeOptions(**{
            name: number_property(properties, property_name(name), default, location=location)
            for name, default in defaults.items()
        })  # fmt: skip


def check_snapshot_options(metadata: TableMetadata) -> None:
    """Check the table properties that commits of snapshots use. Writers of rows call it before they write files.

    Raises:
        ValidationError: a property has an invalid value.
    """
    if has_tree(metadata):
        TreeOptions.of(metadata)
    else:
        ListOptions.of(metadata)
        manifest_codec(metadata)


def property_name(field: str) -> str:
    """Return the name of the table property of a field of TreeOptions."""
    return "write.tree." + field.replace("_", "-")
