"""The metrics modes of columns are those that Iceberg's Java library reads from the table's properties."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import IcebergType, ListType, LongType, MapType, NestedField, StringType, StructType

from sparkmeta.spec.metadata import serialize_table_metadata
from sparkmeta.spec.metrics_modes import COUNTS_ONLY, FULL, NO_METRICS, metrics_modes
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.spec.schema import VariantType
from tests.peers.java import Java

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

LIMIT = "write.metadata.metrics.max-inferred-column-defaults"
NAMED = {"none": NO_METRICS, "counts": COUNTS_ONLY, "full": FULL, "truncate(16)": 16}
# Their ids are replaced by fresh ones.
types: st.SearchStrategy[IcebergType] = st.recursive(
    st.sampled_from([LongType(), StringType(), VariantType()]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda kinds: StructType(*fields_of(kinds)))
        | inner.map(lambda kind: ListType(1, kind, False))
        | st.builds(lambda key, value: MapType(1, key, 2, value, False), st.just(LongType()) | inner, inner)
    ),
    max_leaves=6,
)


def fields_of(kinds: list[IcebergType]) -> list[NestedField]:
    return [NestedField(place, f"c{place}", kind) for place, kind in enumerate(kinds, 1)]


def strings(number: int) -> StructType:
    return StructType(*fields_of([StringType()] * number))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(types, min_size=1, max_size=5), st.none() | st.integers(0, 12))
@example([ListType(1, StringType(), False)] * 20 + [StringType()] * 90, None)  # elements count, and come last
@example([strings(10)] * 10, None)  # a hundred strings in ten structs
@example([strings(10)] * 9 + [StringType()], None)
@example([MapType(1, StringType(), 2, strings(1), False), StringType()], 2)  # the key does not count
@example([MapType(1, strings(1), 2, StringType(), False), StringType()], 3)
def test_inferred_modes(spark: SparkSession, tmp_path: Path, kinds: list[IcebergType], limit: int | None) -> None:
    properties = {} if limit is None else {LIMIT: str(limit)}
    schema = assign_fresh_schema_ids(Schema(*fields_of(kinds)))
    metadata = new_metadata(
        str(tmp_path), schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, properties, format_version=3
    )
    number = next(number for number in count() if not (tmp_path / f"{number}.metadata.json").exists())
    location = tmp_path / f"{number}.metadata.json"
    location.write_text(serialize_table_metadata(metadata))
    java = Java(spark)
    modes = java.iceberg.MetricsConfig.forTable(java.table(str(location)).table)
    names = {field_id: metadata.schema().find_column_name(field_id) for field_id in metadata.schema().field_ids}
    theirs = {field_id: NAMED[str(modes.columnMode(name).toString())] for field_id, name in names.items()}
    ours = metrics_modes(metadata, metadata.schema())
    primitives = [field_id for field_id in names if metadata.schema().find_type(field_id).is_primitive]
    assert {field_id: ours[field_id] for field_id in primitives} == {
        field_id: theirs[field_id] for field_id in primitives
    }
