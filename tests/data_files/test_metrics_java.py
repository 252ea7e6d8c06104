"""Data files that we write have the metrics that Iceberg's Java library gives files of the same rows.

The one difference: column_sizes come from another encoder, so only the set of columns that have a size is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from tests.data_files.rewritten import METRICS, files_and_their_copies
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.peers.corpus import Corpus

pytestmark = pytest.mark.java

SLICE = ["types_v2", "metrics_inferred_v2", "required_v2", "java_types_v3"]
MORE = ["types_v1", "types_v3", "metrics_none_v2", "metrics_truncate_v2", "metrics_full_v2", "nested_v2"]
# Files that lack columns of their table.
INCOMPLETE = ("nulls.parquet", "few-columns.parquet")


@pytest.mark.parametrize("name", SLICE + MORE if SOAK else SLICE)
def test_metrics_are_those_of_java(spark: SparkSession, corpus: Corpus, name: str) -> None:
    peer = corpus.table(name)
    table = sm.load_table(peer.location, spark=spark)
    pairs = files_and_their_copies(table)
    assert pairs
    for theirs, ours in pairs:
        if theirs["file_path"].endswith(INCOMPLETE):
            continue
        for metric in METRICS:
            assert _texts(ours[metric]) == _texts(theirs[metric]), (theirs["file_path"], metric)
        assert ours["column_sizes"].keys() == theirs["column_sizes"].keys()
        for fact in ("record_count", "file_format", "spec_id", "sort_order_id", "content", "partition"):
            assert ours.get(fact) == theirs.get(fact), (theirs["file_path"], fact)
        # Files of a few rows have one row group, behind the magic bytes. Files that Java only measured have no offsets.
        assert theirs["split_offsets"] in (ours["split_offsets"], None)


def _texts(metric: dict[int, Any]) -> dict[int, Any]:
    return {field_id: value.hex() if isinstance(value, bytes) else value for field_id, value in sorted(metric.items())}
