"""Entries of leaves that a commit has written and no root names yet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.manifests.parts import whole_manifests
from sparkmeta.manifests.v4.spark import read_leaf_entries
from sparkmeta.manifests.v4.tree_manifests import leaf_manifests
from sparkmeta.session import map_on_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.manifests.projection import EntryProjection
    from sparkmeta.state import TableState


def few_entries(state: TableState, leaves: pa.Table, projection: EntryProjection) -> pa.Table:
    """Read every physical entry of a few leaves, rows of `tree_schema`, by threads of the driver where that may."""
    if state.access.driver is None:
        return leaf_frame(state, leaves, projection).toArrow().cast(projection.schema)
    decoder = EntryDecoder(state.access.driver, state.types.tree_types)
    return map_on_driver(_units(leaves), partial(decoder.decode_parts, projection), projection.schema)


def leaf_frame(state: TableState, leaves: pa.Table, projection: EntryProjection) -> DataFrame:
    """As `few_entries`, by Spark and lazily; `manifest` is the leaf's place among the leaves."""
    return read_leaf_entries(state.spark, _units(leaves), projection, state.types.tuple_sources)


def _units(leaves: pa.Table) -> pa.Table:
    return whole_manifests(leaf_manifests(leaves, pa.array(range(len(leaves)), pa.int32())))
