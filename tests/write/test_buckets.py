"""Buckets of Arrow arrays equal pyiceberg's, whatever the lengths of values and their place in a batch."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import mmh3
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IcebergType

from sparkmeta.write.buckets import buckets, murmur3
from tests.expr.test_partition_values import VALUES

LENGTHS = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 255, 256, 257, 1000])


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(values=st.lists(LENGTHS.flatmap(lambda size: st.binary(min_size=size, max_size=size))), start=st.integers(0, 3))
def test_hashes_are_murmur3(values: list[bytes], start: int) -> None:
    assert murmur3(pa.array(values, pa.binary()).slice(start)).tolist() == [
        mmh3.hash(value, signed=False) for value in values[start:]
    ]


@pytest.mark.parametrize("kind", VALUES, ids=str)
@pytest.mark.parametrize("count", [1, 16, 2**31 - 1])
def test_one_column(kind: IcebergType, count: int) -> None:
    values, array = VALUES[kind]
    if str(kind) == "uuid":
        array = pa.array(values, pa.binary())
    nulls = pa.nulls(2, array.type)
    expected = [BucketTransform(count).transform(kind)(value) for value in values]
    result = buckets(count, [(pa.concat_arrays([nulls, array, nulls]).slice(1), kind)])
    assert result.to_pylist() == [None, *expected, None, None]
    assert result.type == pa.int32()
    assert buckets(count, [(array.slice(len(array)), kind)]).to_pylist() == []


def test_several_columns_are_one_value_without_nulls() -> None:
    kinds = {str(kind): kind for kind in VALUES}
    a, s = pa.array([1, None, 1, None], pa.int32()), pa.array(["x", "x", None, None])
    dec = pa.array([Decimal("1.25"), None, Decimal("-3.00"), None], pa.decimal128(10, 2))
    parts = [(b"\x01" + bytes(7), b"x", b"\x7d"), (b"x",), (b"\x01" + bytes(7), b"\xfe\xd4"), None]
    expected: list[Any] = [part and (mmh3.hash(b"".join(part)) & 0x7FFFFFFF) % 1000 for part in parts]
    columns = [(a, kinds["int"]), (s, kinds["string"]), (dec, kinds["decimal(10, 2)"])]
    assert buckets(1000, columns).to_pylist() == expected
    assert buckets(1000, columns[::-1]).to_pylist() != expected
