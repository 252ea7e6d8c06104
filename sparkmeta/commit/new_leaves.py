"""Entries of leaves that a commit has written and no root names yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.manifests.parts import leaf_units, part_of
from sparkmeta.manifests.v4.decode import TreeContext, tree_entries
from sparkmeta.manifests.v4.spark import read_leaf_entries
from sparkmeta.manifests.v4.tree_manifests import leaf_manifests
from sparkmeta.session import map_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.manifests.projection import EntryProjection
    from sparkmeta.state import TableState
    from sparkmeta.storage.files import Files


def few_entries(state: TableState, leaves: pa.Table, projection: EntryProjection) -> pa.Table:
    """Read every physical entry of a few leaves, rows of `tree_schema`, by threads of the driver where that may."""
    if state.driver_files is None:
        return leaf_frame(state, leaves, projection).toArrow().cast(projection.schema)
    read = partial(_entries, state.driver_files, projection, context_of(state))
    return map_here(_units(leaves), read, projection.schema)


def _entries(
    files: Files, projection: EntryProjection, context: TreeContext, units: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for unit in units:
        for row in unit.to_pylist():
            yield from tree_entries(files.read(row["location"]), part_of(row), projection, context).to_batches()


def context_of(state: TableState) -> TreeContext:
    """What reads V4 manifests of the table, whether or not it has any yet."""
    return TreeContext(state.stats_types, frozenset(state.primitive_fields), state.spec_fields, state.tuple_sources)


def leaf_frame(state: TableState, leaves: pa.Table, projection: EntryProjection) -> DataFrame:
    """As `few_entries`, by Spark and lazily; `manifest` is the leaf's place among the leaves."""
    return read_leaf_entries(state.spark, _units(leaves), projection, state.tuple_sources)


def _units(leaves: pa.Table) -> pa.Table:
    return leaf_units(leaf_manifests(leaves, pa.array(range(len(leaves)), pa.int32())))
