"""The engine on Spark Connect gives what it gives on a classic session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.connect.engine_slice import engine_slice
from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, long_bounds, position_deletes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.connect
def test_a_slice_of_the_engine_on_spark_connect(tmp_path: Path, spark: SparkSession) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's client is not installed: pip install 'sparkmeta[connect]'")
    part = {"partition": {"part": "x"}}
    table = HandmadeTable(tmp_path / "a b%20[c]{d}")
    table.add(0, 1, *(data(f"file:///t/{n}.parquet", 1, **part, **long_bounds(n, n + 9)) for n in range(0, 40, 10)))
    table.add(0, 0, data("file:///t/other.parquet", 1, **long_bounds(0, 99)))
    table.add(1, 1, deletion_vector("file:///t/20.parquet", 2, **part), position_deletes("pos", 2, **part))
    table.add(1, 0, equality_deletes("eq", 3, **long_bounds(30, 35)))
    location = table.write()
    done = subprocess.run(
        [sys.executable, "-m", "tests.connect.engine_slice", location],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    connected = json.loads(done.stdout.strip().splitlines()[-1])
    classic = json.loads(json.dumps(engine_slice(spark, location)))
    assert connected == classic
    assert len(classic["filtered"]) == 3
    assert len(classic["plan"]) == 5
