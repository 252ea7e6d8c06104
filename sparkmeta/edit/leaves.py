"""The format of the leaves that a commit writes, and reading of leaves that no root references yet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.entries.parts import whole_manifests
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.manifests.v4.spark import read_leaf_entries
from sparkmeta.manifests.v4.tree_manifests import leaf_manifests
from sparkmeta.manifests.v4.write import LeafFormat
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.session import map_by_tasks, map_on_driver
from sparkmeta.storage.access import executor_writer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.state import TableState


def few_entries(state: TableState, leaves: pa.Table, projection: EntryProjection) -> pa.Table:
    """Read every physical entry of a few leaves (rows of `tree_schema`), on the driver if it can open them."""
    if state.access.driver is None:
        return leaf_frame(state, leaves, projection).toArrow().cast(projection.schema)
    decoder = EntryDecoder(state.access.driver, state.types.tree_types, state.types.locations)
    return map_on_driver(_units(leaves), partial(decoder.decode_parts, projection), projection.schema)


def leaf_frame(state: TableState, leaves: pa.Table, projection: EntryProjection) -> DataFrame:
    """Return every physical entry of leaves as a lazy DataFrame. `manifest` is the leaf's index among the leaves."""
    units = _units(leaves)
    tasks = state.access.tasks
    if tasks is None or not len(units) or state.access.spark_opens(units.column("location")[0].as_py()):
        types = state.types
        return read_leaf_entries(
            state.spark, units, projection, types.tuple_sources, types.widened_decimals, types.locations
        )
    decoder = EntryDecoder(tasks, state.types.tree_types, state.types.locations)
    decode = partial(decoder.decode_parts, projection)
    return map_by_tasks(state.spark, units, decode, projection.schema)


def _units(leaves: pa.Table) -> pa.Table:
    return whole_manifests(leaf_manifests(leaves, pa.array(range(len(leaves)), pa.int32())))


def leaf_format(state: TableState, name: str, target_bytes: int) -> LeafFormat:
    """Return the format of a table's leaves.

    Args:
        name: the prefix of the files' names.
    """
    folder, writer, types = metadata_folder(state.metadata), executor_writer(state.files), state.types
    sources, locations = partition_stats(state), types.locations
    return LeafFormat(folder, name, types.stats_types, sources, target_bytes, writer, locations=locations)


def partition_stats(state: TableState) -> dict[int, frozenset[int]]:
    """Return the ids of the stats that hold partition values, by spec id."""
    sources = state.types.tuple_sources
    return {spec_id: frozenset(source for _, source in fields) for spec_id, fields in sources.items()}


def partition_columns(state: TableState) -> list[Column]:
    """Return the columns of `tree_schema` that hold the partition values of entries, for all specs."""
    sources = dict.fromkeys(source for fields in state.types.tuple_sources.values() for _, source in fields)
    return [F.col(f"{CONTENT_STATS}.`{source}`.lower_bound") for source in sources]
