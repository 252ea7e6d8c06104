"""The table properties that say how a V4 tree is kept: what stands in the root, and how large leaves are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from sparkmeta.errors import ValidationError, shown


@dataclass(frozen=True)
class TreeOptions:
    """Table properties `write.tree.*`; the names of the fields with dashes for underscores.

    direct_files: new files of one commit up to this many stand in the root; more become leaves.
    flush_data_files, flush_delete_files: a root that carries more files of a kind has them moved into leaves.
    leaf_target_bytes: of a leaf's file.
    inline_vector_bytes: a larger deletion vector of a leaf goes into a Puffin file.
    inline_vectors_bytes: of all inline deletion vectors of a root, which every commit copies.
    affiliated_deletes: deletion vectors of one data leaf's files, new in a commit, that get a delete leaf which belongs
        to the data leaf; fewer don't.
    compact_entries: of data leaves that a commit may rewrite besides, to merge small ones and to leave out masked
        entries; 0: none.
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
        """Return the options that a table's properties set. Raises ValidationError for what is no whole number."""
        values = {}
        for field in fields(TreeOptions):
            name = property_name(field.name)
            if name in properties:
                values[field.name] = _natural(name, properties[name])
        return TreeOptions(**values)


def property_name(field: str) -> str:
    """Return the table property of a field of TreeOptions."""
    return "write.tree." + field.replace("_", "-")


# Digits: any number of so many is an int64, and int() refuses thousands of them with an error of its own.
_LONGEST = 18


def _natural(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > _LONGEST:
        raise ValidationError(f"the table property {name} is {shown(text)}: it takes a whole number")
    return int(text)
