"""Table properties of files: docs/properties.md lists Iceberg 1.12's, and says which are honoured."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import BooleanType, ListType, LongType, MapType, NestedField, StringType, StructType

import sparkmeta as sm
from sparkmeta.avro.container import read_header
from sparkmeta.operations.table_operations import TableVersion, is_compressed, metadata_folder, next_version
from sparkmeta.rows.columns import projected_column
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.metrics_modes import COUNTS_ONLY, NO_METRICS, metrics_modes
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.write.deletes import delete_codec, of_deletes
from sparkmeta.write.file_schema import file_schema
from sparkmeta.write.formats import AvroOutput, OrcOutput, ParquetOutput
from sparkmeta.write.options import WriteOptions
from sparkmeta.write.partition_file import PositionFile
from tests.maintain.test_expire import opened
from tests.peers.expressions import filter_json
from tests.peers.java import Java
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from sparkmeta.spec.metadata import TableMetadata

DOCUMENTED = re.compile(r"^\| `(write\.[^`]+)` \| (yes|no) \|", re.MULTILINE)
PROPERTIES = dict(DOCUMENTED.findall((Path(__file__).parents[2] / "docs" / "properties.md").read_text()))
# A value, other than the default, of those that are not honoured.
OTHERS = {
    "page-version": "v2", "row-group-check-min-record-count": "1", "row-group-check-max-record-count": "2",
    "row-group-size-track-uncompressed": "true", "bloom-filter-adaptive-enabled": "true",
    "block-size-bytes": "7", "bloom.filter.columns": "s",
    "bloom.filter.fpp": "0.5", "vectorized.batch-size": "7",
}  # fmt: skip
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "a b", StringType()),
    NestedField(3, "st", StructType(NestedField(4, "x", StringType()))),
    NestedField(5, "l", ListType(6, StringType(), element_required=False)),
    NestedField(7, "m", MapType(8, StringType(), 9, StringType(), value_required=False)),
    NestedField(10, "flag", BooleanType()),
)
COUNT = 10_000


def metadata(properties: dict[str, str]) -> TableMetadata:
    return new_metadata("file:///t", SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, properties)


def written(table: TableMetadata, tmp_path: Path) -> Path:
    """A file of the table's format and properties."""
    options = WriteOptions.of(table)
    columns = tuple(map(projected_column, table.schema().fields))
    schema = file_schema(columns, options.file_format)
    texts = pa.array([f"text {n * 7919 % COUNT}" for n in range(COUNT)])
    offsets = pa.array(range(COUNT + 1), pa.int32())
    arrays = [
        pa.array(range(COUNT)), texts, pa.StructArray.from_arrays([texts], fields=list(schema.field("st").type)),
        pa.ListArray.from_arrays(offsets, texts, schema.field("l").type),
        pa.MapArray.from_arrays(offsets, texts, texts, schema.field("m").type), pa.array([True] * COUNT),
    ]  # fmt: skip
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.{options.file_format}"
    with pa.OSFile(str(path), "wb") as sink:
        match options.file_format:
            case "parquet":
                output: Any = ParquetOutput(sink, schema, options, frozenset(), {})
            case "orc":
                output = OrcOutput(sink, schema, options, "t")
            case _:
                output = AvroOutput(sink, columns, options, {})
        output.write(pa.Table.from_arrays(arrays, schema=schema))
        output.close()
    return path


def chunk(path: Path, name: str) -> pq.ColumnChunkMetaData:
    group = pq.read_metadata(path).row_group(0)
    return next(each for each in map(group.column, range(group.num_columns)) if each.path_in_schema == name)


PATHS = {"id": "id", "a b": "a_x20b", "st.x": "st.x", "l.element": "l.list.element", "m.value": "m.key_value.value"}
BLOOM = "write.parquet.bloom-filter-{}.column.st.x"
# What a file shows of a property that is honoured: the property's value, and a function of the file's path.
PARQUET: dict[str, tuple[dict[str, str], Callable[[Path], Any]]] = {
    "page-size-bytes": ({"page-size-bytes": "1000", "dict-size-bytes": "1"}, lambda path: path.stat().st_size),
    "page-row-limit": ({"page-row-limit": "100"}, lambda path: path.stat().st_size),
    "dict-size-bytes": ({"dict-size-bytes": "1"}, lambda path: chunk(path, "a_x20b").total_compressed_size),
    "dict-encoding-enabled.column.*": (
        {f"dict-encoding-enabled.column.{name}": "false" for name in PATHS},
        lambda path: [chunk(path, name).has_dictionary_page for name in PATHS.values()],
    ),
    "compression-codec": ({"compression-codec": "lz4"}, lambda path: chunk(path, "id").compression),
    "compression-level": ({"compression-level": "19"}, lambda path: chunk(path, "a_x20b").total_compressed_size),
    "stats-enabled.column.*": (
        {f"stats-enabled.column.{name}": "false" for name in PATHS},
        lambda path: [chunk(path, name).is_stats_set for name in PATHS.values()],
    ),
    "bloom-filter-enabled.column.*": (
        {f"bloom-filter-enabled.column.{name}": "true" for name in (*PATHS, "flag", "st", "gone")},
        lambda path: [chunk(path, name).bloom_filter_length is not None for name in (*PATHS.values(), "flag")],
    ),
}  # fmt: skip
BLOOMS = {"bloom-filter-fpp.column.*": "0.5", "bloom-filter-ndv.column.*": "10", "bloom-filter-max-bytes": "100"}
SIZES = {"row-group-size-bytes": "group_bytes", "stripe-size-bytes": "group_bytes"}


def differing(properties: dict[str, str], **others: str) -> set[str]:
    """The options that properties change."""
    ours, theirs = (WriteOptions.of(metadata({**others, **each})) for each in (properties, {}))
    return {each.name for each in fields(WriteOptions) if getattr(ours, each.name) != getattr(theirs, each.name)}


@pytest.mark.parametrize("name", [name for name in PROPERTIES if re.match(r"write\.(parquet|orc|avro)\.", name)])
def test_properties_of_data_files(name: str, tmp_path: Path) -> None:
    _, file_format, short = name.split(".", 2)
    base = {"write.format.default": file_format}
    if PROPERTIES[name] == "no":
        assert not differing({name: OTHERS[short]}, **base)
    elif "variant" in short:
        value = {"shred-variants": "true"} | ({short: "7"} if short != "shred-variants" else {})
        prefixed = {f"write.parquet.{key}": each for key, each in value.items()}
        assert differing(prefixed, **base) == {"inferring_rows"}
    elif short in SIZES:
        assert differing({name: "1000000"}, **base) == {SIZES[short]}
    elif short in BLOOMS:
        wanted = {BLOOM.format("enabled"): "true"}
        full = written(metadata(wanted), tmp_path)
        less = written(metadata({**wanted, name.replace("*", "st.x"): BLOOMS[short]}), tmp_path)
        assert chunk(less, "st.x").bloom_filter_length < chunk(full, "st.x").bloom_filter_length
    elif file_format == "parquet":
        values, shown = PARQUET[short]
        prefixed = {f"write.parquet.{key}": value for key, value in values.items()}
        without = {f"write.parquet.{key}": "1" for key in values if key != short and "*" not in short}
        assert shown(written(metadata(prefixed), tmp_path)) != shown(written(metadata(without), tmp_path))
    elif file_format == "avro":
        base |= {"write.avro.compression-codec": "zstd"}
        value = {"compression-codec": "snappy", "compression-level": "19"}[short]
        ours, theirs = (written(metadata({**base, **each}), tmp_path).read_bytes() for each in ({name: value}, {}))
        if short == "compression-codec":
            assert (read_header(ours, "ours").codec, read_header(theirs, "theirs").codec) == ("snappy", "zstandard")
        else:
            assert len(ours) < len(theirs)
    elif short == "compression-codec":
        assert orc.ORCFile(written(metadata({**base, name: "snappy"}), tmp_path)).compression == "SNAPPY"
    else:
        ours, theirs = (
            written(metadata({**base, **each}), tmp_path).stat().st_size for each in ({name: "compression"}, {})
        )
        assert ours < theirs


def test_each_enabled_column_has_what_it_is_enabled_for(tmp_path: Path) -> None:
    default = written(metadata({}), tmp_path)
    footer = pq.read_metadata(default).row_group(0)
    for each in map(footer.column, range(footer.num_columns)):
        assert (each.has_column_index, each.has_offset_index) == (True, True), each.path_in_schema
        assert each.is_stats_set
        assert each.bloom_filter_length is None
    deletes = PositionFile("zstd")
    deletes.add("file:///t/1.parquet", PositionBitmap.of(range(5)))
    group = pq.read_metadata(pa.BufferReader(deletes.close())).row_group(0)
    assert [(each.has_column_index, each.has_offset_index) for each in map(group.column, range(2))] == [
        (True, True)
    ] * 2
    for short, missing in (("dict-encoding-enabled", "has_dictionary_page"), ("stats-enabled", "is_stats_set")):
        path = written(metadata({f"write.parquet.{short}.column.l.element": "false"}), tmp_path)
        assert [getattr(chunk(path, name), missing) for name in PATHS.values()] == [
            name != "l.list.element" for name in PATHS.values()
        ]
    for name, path_in_file in PATHS.items():
        path = written(metadata({f"write.parquet.bloom-filter-enabled.column.{name}": "true"}), tmp_path)
        group = pq.read_metadata(path).row_group(0)
        chunks = list(map(group.column, range(group.num_columns)))
        assert [each.path_in_schema for each in chunks if each.bloom_filter_length is not None] == [path_in_file]
    assert WriteOptions.of(metadata({"write.parquet.bloom-filter-enabled.column.id": "false"})).bloom_filters == {}


@pytest.mark.parametrize(("name", "value", "problem"), [
    (BLOOM.format("enabled"), "yes", "expected true or false"),
    (BLOOM.format("fpp"), "1", "expected a number above 0 and below 1"),
    (BLOOM.format("fpp"), "nan", "expected a number above 0 and below 1"),
    (BLOOM.format("ndv"), "0", "expected a whole number of 1 or more"),
    ("write.parquet.bloom-filter-max-bytes", "1 MB", "expected a whole number of 1 or more"),
    ("write.orc.compression-strategy", "size", "expected speed or compression"),
    ("write.parquet.compression-codec", "lzo", "gzip, zstd, lz4, lz4_raw or brotli"),
])  # fmt: skip
def test_values_that_are_not_valid(name: str, value: str, problem: str) -> None:
    with pytest.raises(sm.ValidationError, match=re.escape(f"the table property {name} is ")) as caught:
        WriteOptions.of(metadata({BLOOM.format("enabled"): "true", name: value}))
    assert problem in str(caught.value)


def test_a_pyarrow_without_bloom_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pq, "ParquetWriter", type("ParquetWriter", (), {}))
    table = metadata({BLOOM.format("enabled"): "true"})
    with pytest.raises(
        sm.UnsupportedError, match=r"bloom-filter-enabled\.column\.st\.x is true: pyarrow .* install a newer"
    ):
        WriteOptions.of(table)


OF_METADATA: dict[str, tuple[str, Callable[[TableMetadata], Any], Any]] = {
    "compression-codec": ("gzip", lambda table: is_compressed(table.properties), True),
    "path": ("file:///other", metadata_folder, "file:///other"),
    "previous-versions-max": ("1", lambda table: len(logged(table, 3).metadata.metadata_log), 1),
    "delete-after-commit.enabled": ("true", lambda table: logged(table, 102).dropped, ["v1"]),
    "metrics.default": ("none", lambda table: metrics_modes(table, table.schema())[1], NO_METRICS),
    "metrics.column.*": (
        "counts",
        lambda table: metrics_modes(table, table.schema())[table.schema().find_field("st.x").field_id],
        COUNTS_ONLY,
    ),
    "metrics.max-inferred-column-defaults": ("1", lambda table: metrics_modes(table, table.schema())[2], NO_METRICS),
}


def logged(table: TableMetadata, commits: int) -> Any:
    result = next_version(None, table)
    for number in range(commits):
        result = next_version(TableVersion(f"v{number}", result.metadata), result.metadata)
    return result


@pytest.mark.parametrize("name", [name for name in PROPERTIES if name.startswith("write.metadata.")])
def test_properties_of_metadata(name: str) -> None:
    value, shown, expected = OF_METADATA[name.removeprefix("write.metadata.")]
    assert PROPERTIES[name] == "yes"
    assert shown(metadata({})) != expected
    assert shown(metadata({name.replace("*", "st.x"): value})) == expected


@pytest.mark.parametrize("name", [name for name in PROPERTIES if name.startswith("write.delete.")])
def test_properties_of_delete_files(name: str) -> None:
    """Equality delete files are written as data files of a table whose properties are without `delete`."""
    of_data = name.replace("write.delete.", "write.")
    assert PROPERTIES.get(of_data, "yes") == PROPERTIES[name]
    short = name.rpartition(".")[2]
    value = OTHERS.get(short) or {"default": "orc", "compression-codec": "snappy"}.get(short, "9")
    value = "compression" if short == "compression-strategy" else value
    table = of_deletes(metadata({name: value, of_data: "1"}), 0)
    assert table.properties[of_data] == value
    if name == "write.delete.parquet.compression-codec":
        assert delete_codec({name: value, of_data: "gzip"}) == value


@pytest.mark.java
def test_the_properties_are_those_of_java(spark: SparkSession) -> None:
    java = Java(spark)
    loader = java.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    of_files = re.compile(r"write\.(delete\.)?(parquet|orc|avro|metadata)\.")
    names = set()
    for field in loader.loadClass("org.apache.iceberg.TableProperties").getFields():
        name = str(field.get(None)) if field.getType().getSimpleName() == "String" else ""
        if of_files.match(name):
            names.add(f"{name}*" if name.endswith(".") else name)
    assert names == {name for name in PROPERTIES if of_files.match(name)}


@pytest.mark.java
def test_java_prunes_by_bloom_filters(spark: SparkSession) -> None:
    """It keeps the row group for a value that is in it, and skips it for an absent one, whatever the type."""
    kinds: dict[str, tuple[str, str, Callable[[int], Any]]] = {
        "i": ("INT", "CAST({} AS INT)", int),
        "l": ("BIGINT", "{}", int),
        "f": ("FLOAT", "CAST({} AS FLOAT)", float),
        "d": ("DOUBLE", "CAST({} AS DOUBLE)", float),
        "s": ("STRING", "concat('s', {})", "s{}".format),
        "b": ("BINARY", "CAST(concat('s', {}) AS BINARY)", lambda number: f"s{number}".encode()),
        "day": ("DATE", "date_from_unix_date(CAST({} AS INT))", lambda number: date.fromordinal(719163 + number)),
        "t": ("TIMESTAMP", "timestamp_seconds({})", lambda number: datetime.fromtimestamp(number, UTC)),
        "p": ("DECIMAL(9, 2)", "CAST({} AS DECIMAL(9, 2))", "{}.00".format),
        "q": ("DECIMAL(18, 2)", "CAST({} AS DECIMAL(18, 2))", "{}.00".format),
        "r": ("DECIMAL(30, 2)", "CAST({} AS DECIMAL(30, 2))", "{}.00".format),
    }
    java = Java(spark)
    shop = Workshop(java, "bloom_filters")
    filters = {f"write.parquet.bloom-filter-enabled.column.{name}": "true" for name in kinds}
    shop.create(", ".join(f"{name} {kind}" for name, (kind, _, _) in kinds.items()), properties=filters)
    rows = spark.range(0, 2000, 1, 1).selectExpr(
        *(f"{value.format('id * 2')} AS {name}" for name, (_, value, _) in kinds.items())
    )
    table = opened(shop).append(rows)
    (path,) = [row.file_path for row in table.inspect.data_files().collect()]
    parquet = java.jvm.org.apache.iceberg.shaded.org.apache.parquet.hadoop
    file = parquet.util.HadoopInputFile.fromPath(
        java.jvm.org.apache.hadoop.fs.Path(path), java.session.sessionState().newHadoopConf()
    )
    reader = parquet.ParquetFileReader.open(file)
    group, schema = reader.getRowGroups().get(0), reader.getFileMetaData().getSchema()
    for name, (kind, _, value_of) in kinds.items():
        read = []
        for number in (1402, 1403):
            value = Decimal(value_of(number)) if kind.startswith("DECIMAL") else value_of(number)
            expression = java.expressions.fromJson(filter_json(EqualTo(name, value)))
            bloom = java.iceberg.parquet.ParquetBloomRowGroupFilter(shop.table.schema(), expression)
            read.append(bloom.shouldRead(schema, group, reader.getBloomFilterDataReader(group)))
        assert read == [True, False], name
    reader.close()
