"""Columns of geometry and geography: WKB in marked Parquet columns, with bounds of geometries."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import GeographyType, GeometryType, ListType, LongType, NestedField, StructType

import sparkmeta as sm
from sparkmeta.errors import UnsupportedError
from tests.conftest import configured
from tests.peers.java import Java
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.types import IcebergType
    from pyspark.sql import SparkSession

NAN = float("nan")


def wkb(kind: int, *numbers: Any, order: str = "<") -> bytes:
    """A shape: whole numbers are counts, floats coordinates, and bytes other shapes."""
    parts = [
        each if isinstance(each, bytes) else struct.pack(f"{order}I" if isinstance(each, int) else f"{order}d", each)
        for each in numbers
    ]
    return struct.pack(f"{order}BI", order == "<", kind) + b"".join(parts)


def point(x: float, y: float) -> bytes:
    return wkb(1, float(x), float(y))


def new_table(tmp_path: Path, kind: IcebergType, version: int = 3, **properties: str) -> sm.Table:
    lake = sm.load_catalog("lake", type="hadoop", warehouse=f"file://{tmp_path}")
    lake.create_namespace("db")
    fields = [NestedField(1, "id", LongType()), NestedField(2, "g", kind)]
    return lake.create_table("db.t", Schema(*fields), format_version=version, properties=properties)


def bounds_of(table: sm.Table, column: str = "g") -> list[tuple[float, ...] | None]:
    """The lower and the upper corner in the newest file's bounds."""
    (file, *_) = table.inspect.arrow.files().to_pylist()
    field_id = table.schema().find_field(column).field_id
    corners = (dict(file[name] or ()).get(field_id) for name in ("lower_bounds", "upper_bounds"))
    return [None if corner is None else struct.unpack("<dd", corner) for corner in corners]


SQUARE = wkb(3, 1, 4, 0.0, 0.0, 4.0, 1.0, 2.0, 9.0, 0.0, 0.0)
SHAPES = {
    "points": ([point(1, 2), None, point(-3, 7)], [(-3, 2), (1, 7)]),
    "negative": ([point(-2, -5)], [(-2, -5), (-2, -5)]),
    "line": ([wkb(2, 2, 5.0, 6.0, 1.0, 9.0)], [(1, 6), (5, 9)]),
    "polygon": ([SQUARE], [(0, 0), (4, 9)]),
    "big endian": ([wkb(1, 3.0, 4.0, order=">")], [(3, 4), (3, 4)]),
    "z and m": ([wkb(3001, 1.0, 2.0, 30.0, 40.0)], [(1, 2), (1, 2)]),
    "collection": ([wkb(7, 2, point(1, 1), wkb(4, 2, point(8, 0), point(2, 2)))], [(1, 0), (8, 2)]),
    "an empty one": ([point(NAN, NAN), wkb(2, 0), point(5, 5)], [(5, 5), (5, 5)]),
    "empty ones": ([point(NAN, NAN), wkb(7, 0)], [None, None]),
    "nulls": ([None, None], [None, None]),
    "no shape": ([point(1, 1), b"bad"], [None, None]),
    "extended WKB": ([wkb(0x20000001, 4326, 1.0, 2.0)], [None, None]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_bounds(tmp_path: Path, name: str) -> None:
    shapes, expected = SHAPES[name]
    table = new_table(tmp_path, GeometryType())
    table = table.append(pa.table({"id": range(len(shapes)), "g": pa.array(shapes, pa.binary())}))
    assert bounds_of(table) == expected
    assert table.scan().to_arrow().column("g").to_pylist() == shapes


KINDS = {
    "geometry": (GeometryType(), "Geometry(crs=)"),
    "crs": (GeometryType("EPSG:3857"), "Geometry(crs=EPSG:3857)"),
    "geography": (GeographyType(), "Geography(crs=, algorithm=spherical)"),
    "geography of a crs": (GeographyType("EPSG:4269"), "Geography(crs=EPSG:4269, algorithm=spherical)"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("version", [3, 4])
def test_columns(tmp_path: Path, name: str, version: int) -> None:
    """Also inside structs and lists. Only geometries outside lists have bounds, unless the metrics are counts."""
    kind, marked = KINDS[name]
    inside = NestedField(5, "x", kind)
    nested = StructType(inside, NestedField(6, "li", ListType(7, kind, element_required=False)))
    table = new_table(tmp_path, nested, version)
    rows = pa.table({"id": [1, 2], "g": [{"x": point(1, 2), "li": [point(9, 9), None]}, None]})
    table = table.append(rows)
    assert table.scan().to_arrow().column("g").to_pylist() == rows.column("g").to_pylist()
    has_bounds = isinstance(kind, GeometryType)
    assert bounds_of(table, "g.x") == ([(1, 2), (1, 2)] if has_bounds else [None, None])
    assert bounds_of(table, "g.li.element") == [None, None]
    (path,) = table.scan().arrow.plan_files().column("file_path").to_pylist()
    assert str(pq.ParquetFile(path.removeprefix("file://")).schema).count(marked) == 2
    counted = new_table(tmp_path / "counts", kind, version, **{"write.metadata.metrics.default": "counts"})
    assert bounds_of(counted.append(pa.table({"g": [point(1, 2)]}))) == [None, None]


def test_several_row_groups(tmp_path: Path) -> None:
    table = new_table(tmp_path, GeometryType(), **{"write.parquet.row-group-size-bytes": "1"})
    rows = pa.table({"g": [point(index % 700, -index) for index in range(5000)]})
    table = table.append(rows)
    assert bounds_of(table) == [(0, -4999), (699, 0)]
    assert len(table.inspect.arrow.files().column("split_offsets").to_pylist()[0]) > 1


@pytest.mark.parametrize(
    ("kind", "file_format", "problem"),
    [
        (GeometryType(), "orc", "column g is of type geometry, which Iceberg's Spark writer can't write to ORC files"),
        (GeographyType(), "avro", "of type geography, which Iceberg's Spark writer can't write to Avro files"),
        (GeographyType("OGC:CRS84", "karney"), "parquet", "'karney'.*, whose edges pyarrow can't mark in Parquet"),
    ],
)
def test_what_is_refused(tmp_path: Path, kind: IcebergType, file_format: str, problem: str) -> None:
    table = new_table(tmp_path, kind, **{"write.format.default": file_format})
    with pytest.raises(UnsupportedError, match=problem):
        table.append(pa.table({"g": [point(1, 2)]}))
    assert not list(tmp_path.rglob("data/*"))


def test_layout_of_iceberg(tmp_path: Path) -> None:
    """Bounds of shapes are structs in this layout. It has none of ours."""
    table = new_table(tmp_path, GeometryType(), 4, **{"write.tree.layout": "iceberg"})
    table = table.append(pa.table({"id": [3], "g": [point(1, 2)]}))
    assert bounds_of(table) == [None, None]
    assert table.scan("id = 3").to_arrow().column("g").to_pylist() == [point(1, 2)]


@pytest.mark.java
def test_java(spark: SparkSession) -> None:
    shop = Workshop(Java(spark), "shapes", catalog_name="java")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    with configured(spark, {"spark.sql.geospatial.enabled": "true"}):
        read_each_other(shop)


def read_each_other(shop: Workshop) -> None:
    spark = shop.spark
    shop.create("id BIGINT, g GEOMETRY(4326), h GEOGRAPHY(4326)", version=3)
    shop.sql(
        f"INSERT INTO {{t}} SELECT 0, st_setsrid(st_geomfromwkb(X'{SQUARE.hex()}'), 4326), "
        f"st_geogfromwkb(X'{point(2, 3).hex()}')"
    )
    table = sm.load_table(f"file://{shop.folder}", spark=spark)
    rows = [(1, point(1, 2), point(170, 7)), (2, None, None), (3, point(-3, 7), point(-170, 7))]
    frame = spark.createDataFrame(rows, "id BIGINT, g BINARY, h BINARY").coalesce(1)
    table = table.append(frame).delete("id = 1")
    expected = [(0, SQUARE, point(2, 3)), *rows[1:]]
    assert sorted(map(tuple, table.scan().to_df().collect())) == expected
    javas = shop.sql("SELECT id, st_asbinary(g) AS g, st_asbinary(h) AS h FROM {t}").collect()
    assert sorted((row.id, row.g and bytes(row.g), row.h and bytes(row.h)) for row in javas) == expected
    bound = shop.java.iceberg.geospatial.GeospatialBound
    (least,) = filter(None, (dict(file["lower_bounds"]).get(2) for file in table.inspect.arrow.files().to_pylist()))
    corner = bound.fromByteArray(least)
    assert (corner.x(), corner.y(), corner.hasZ(), corner.hasM()) == (-3, 7, False, False)
