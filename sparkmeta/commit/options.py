"""Table properties of commits: sizes of manifests and leaves, merging, and how many files a root holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING

from sparkmeta.avro.write import manifest_codec
from sparkmeta.checks import NAME, Options, option
from sparkmeta.spec.metadata import has_tree
from sparkmeta.spec.summary import summary_properties
from sparkmeta.spec.table_properties import flag_property, number_property

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata


# -- Table properties for manifest lists ------------------------------------------------------------------------------


TARGET = "commit.manifest.target-size-bytes"
MOST_BYTES = 64 << 20
"""Maximum bytes of a manifest, since a task holds its uncompressed entries as one array."""

_MIN_COUNT = "commit.manifest.min-count-to-merge"
_MERGE = "commit.manifest-merge.enabled"


@dataclass(frozen=True)
class ListOptions:
    """Table properties `commit.manifest.*` (semantics 9.9).

    Attributes:
        target_bytes: target size of a manifest.
        min_count: minimum number of manifests to merge if the commit's own new manifest is one of them.
        merges: whether commits merge small manifests.
    """

    target_bytes: int = 8 << 20
    min_count: int = 100
    merges: bool = True

    @staticmethod
    def of(metadata: TableMetadata) -> ListOptions:
        """Return the options of a table. Raises ValidationError for an invalid value."""
        properties, location = metadata.properties, metadata.location
        target = number_property(properties, TARGET, ListOptions.target_bytes, least=1, location=location)
        return ListOptions(
            target_bytes=min(target, MOST_BYTES),
            min_count=number_property(properties, _MIN_COUNT, ListOptions.min_count, least=1, location=location),
            merges=flag_property(properties, _MERGE, default=True, location=location),
        )


# -- Table properties for V4 trees ------------------------------------------------------------------------------------
# `check_snapshot_options` also checks the properties for manifest lists.


@dataclass(frozen=True)
class TreeOptions:
    """Table properties `write.tree.*`, named like the fields with dashes.

    Attributes:
        direct_files: maximum new files that a commit puts into the root; further files go into leaves.
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


@dataclass(frozen=True)
class BranchOptions(Options):
    """The options of operations that commit a snapshot to a branch."""

    _: KW_ONLY
    branch: str = option("main", "the branch to commit to.", NAME)
    snapshot_properties: Mapping[str, str] | None = option(None, "extra properties for the snapshot's summary.")

    def check(self) -> None:
        """See `Options.check`."""
        summary_properties(self.snapshot_properties)
        super().check()
