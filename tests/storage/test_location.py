from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sparkmeta.entries.relation import select
from sparkmeta.expr import sql
from sparkmeta.session import local_frame
from sparkmeta.storage.location import (
    escape_glob,
    file_name,
    is_local,
    join,
    local_path,
    normalize,
    path_of,
    scheme,
    spark_name_key,
    spark_path_key,
)
from sparkmeta.storage.reading import location_key, path_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("location", "kind", "local"),
    [
        ("s3://b/k", "s3", False),
        ("S3A://b/k", "s3a", False),
        ("file:///a", "file", True),
        ("file:/a", "file", True),
        ("/a/b:c", "", True),
        ("a/b", "", True),
        ("abfss://c@a.dfs.core.windows.net/k", "abfss", False),
    ],
)
def test_schemes(location: str, kind: str, local: bool) -> None:
    assert scheme(location) == kind
    assert is_local(location) is local


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:///a b%20c", "/a b%20c"),
        ("file:/a", "/a"),
        ("file://localhost/a", "/a"),
        ("/a?b#c", "/a?b#c"),
        ("a", "a"),
    ],
)
def test_local_paths(location: str, path: str) -> None:
    assert local_path(location) == path


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("/a/b", "file:/a/b"),
        ("file:///a/b", "FILE:/a//b/"),
        ("file://localhost/a/b", "file:/a/./c/../b"),
        ("s3a://bucket/k", "s3://bucket/k"),
        ("s3n://bucket/k", "s3://bucket//k"),
    ],
)
def test_equal_locations(left: str, right: str) -> None:
    assert normalize(left) == normalize(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("s3://bucket/k", "s3://bucket2/k"),
        ("s3://bucket/k", "gs://bucket/k"),
        ("s3://b/a b", "s3://b/a%20b"),
        ("s3://b/K", "s3://b/k"),
        ("s3://b/a+b", "s3://b/a b"),
    ],
)
def test_different_locations(left: str, right: str) -> None:
    assert normalize(left) != normalize(right)
    assert spark_path_key(left) != spark_path_key(right)


def test_names() -> None:
    assert file_name("s3://b/k/n.avro") == "n.avro"
    assert join("s3://b/k", "n") == join("s3://b/k/", "n") == "s3://b/k/n"
    assert path_of("hdfs://host:8020//a//b/") == path_of("hdfs:///a/b") == "/a/b"


def test_globs_are_escaped() -> None:
    assert escape_glob("s3://b/a{1}[2]*?\\ü") == "s3://b/a\\{1\\}\\[2\\]\\*\\?\\\\ü"


def test_spark_keys() -> None:
    assert spark_path_key("s3a://b/a b%[{+ü'=*}]#?") == "s3://b/a%20b%25%5B%7B+ü'=*%7D%5D%23%3F"
    assert spark_path_key("file:///a/\u00a0\u2028\t\x7f") == "file:/a/%C2%A0%E2%80%A8%09%7F"
    assert spark_name_key("s3://b/x y/a b") == "a%20b"


def test_keys_in_spark_equal_those_in_python(spark: SparkSession) -> None:
    paths = ["/d/a", "/d//a", "/d/./a", "/d/x/../a", "/d/.a", "//d/a/", "/../d/a", "/d/a..b/c.", "/d/a b%20\n"]
    prefixes = ["", "file:", "file://", "FILE://host", "s3a://b", "S3N://b", "s3://B", "abfss://c@h", "hdfs:"]
    locations = [f"{prefix}{path}" for prefix in prefixes for path in paths]
    frame = local_frame(spark, pa.table({"location": locations}))
    location = sql.col("location")
    columns = {"location": location, "key": location_key(location), "path": path_key(location)}
    rows = select(frame, [column.alias(name) for name, column in columns.items()]).toArrow()
    texts, keys, in_folder = (column.to_pylist() for column in rows.columns)
    assert keys == [normalize(text) for text in texts]
    assert in_folder == [path_of(text) for text in texts]
