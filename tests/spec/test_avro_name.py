"""Names in manifests are those that Iceberg's Java library makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkmeta.spec.avro_name import avro_name
from tests.peers.java import Java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = {
    "plain_1": "plain_1",
    "a b": "a_x20b",
    "1st": "_1st",
    "ü%=": "ü_x25_x3D",
    "日本": "日本",
    "a.b-c": "a_x2Eb_x2Dc",
    "\U0001f600": "_xD83D_xDE00",
    "_": "_",
    "٣x": "_٣x",
    "x²": "x_xB2",
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    assert avro_name(name) == NAMES[name]


@pytest.mark.java
def test_equal_to_java(spark: SparkSession) -> None:
    make = Java(spark).iceberg.avro.AvroSchemaUtil.makeCompatibleName
    assert {name: make(name) for name in NAMES} == NAMES
