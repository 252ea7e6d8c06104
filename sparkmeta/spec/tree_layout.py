"""The layouts of metadata trees, and what commits and plans need to know about them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TreeLayout:
    """A layout of metadata trees.

    The names, ids and types of its fields are known to `manifests/v4` only.

    Attributes:
        name: the value of the table property `write.tree.layout`.
        colocates: whether the entries of data files contain their deletion vectors, which then have no own entries.
        has_mask_files: whether the deletion vector of a leaf may be in a Puffin file.
        spark_reads: whether Spark's Parquet reader returns the entries of leaves.
        is_strict: whether counts of leaves are exact, and roots contain only changes of their own snapshot. Other
            libraries, which write the layout `iceberg`, ensure neither.
    """

    name: str
    colocates: bool
    has_mask_files: bool
    spark_reads: bool
    is_strict: bool

    def __str__(self) -> str:
        return self.name


PROPOSAL = TreeLayout("proposal", colocates=False, has_mask_files=True, spark_reads=True, is_strict=True)
"""The layout of the proposal of 2025."""

ICEBERG = TreeLayout("iceberg", colocates=True, has_mask_files=False, spark_reads=False, is_strict=False)
"""The layout of the Iceberg project."""

LAYOUTS = {layout.name: layout for layout in (PROPOSAL, ICEBERG)}
