"""Odd but valid metadata: manifests, lists and table metadata of pyiceberg's tables, written again at random.

Nothing that is written changes which rows a table has. A table is `regular` if Iceberg's Java library reads all of it,
so that its plans are the same. Otherwise stats are garbage in it: the rows are what they were, if somebody reads them.
"""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DecimalType, LongType, NestedField, StringType

from sparkmeta.avro.container import inflate, read_blocks, read_header
from sparkmeta.avro.schema import expanded_schema
from tests.avro.avro_files import mislabelled_file
from tests.avro.odd_schemas import Oddity

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "s", StringType()),
    NestedField(3, "a", DecimalType(9, 2)),
    NestedField(4, "b", DecimalType(9, 2)),
    NestedField(5, "d", DateType()),
)
# Partition fields: source, transform and name. pyiceberg writes the fixed type of two decimals out twice.
FIELDS = (
    (3, IdentityTransform(), "a"),
    (4, IdentityTransform(), "b part"),
    (2, IdentityTransform(), "2s"),
    (5, IdentityTransform(), "d"),
)
NAMES = ("id", "s", "a", "b", "d")
ROWS: list[dict[str, Any]] = [
    dict(zip(NAMES, (n, "xyz"[n % 3] + "é" * n, Decimal(n % 2), Decimal("1.50"), 19_000 + n), strict=True))
    for n in range(8)
] + [dict.fromkeys(NAMES)]
FILTERS = (
    "id = 3",
    "s >= 'y'",
    "a = 1.00",
    "d < '2022-01-10'",
    "s is null",
    "id > 2 and b = 1.50",
    "id in (1, 2) or a = 1.00",
)

CODECS = ("null", "deflate", "snappy", "zstandard")
_BOUNDS = ("lower_bounds", "upper_bounds")
# Fields that any reader does without.
_OPTIONAL = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", *_BOUNDS, "key_metadata",
             "split_offsets", "equality_ids", "sort_order_id")  # fmt: skip
_LIST_OPTIONAL = ("partitions", "key_metadata")


@dataclass
class OddTable:
    """A table with odd metadata.

    Attributes:
        location: of its metadata file.
        regular: whether Java's plans are the oracle.
        done: what was changed, for messages.
    """

    location: str
    regular: bool
    done: list[str] = field(default_factory=list)


def odd_table(catalog: Catalog, seed: int) -> OddTable:
    """Make a table, and change its metadata at random."""
    chance = Random(seed)
    regular = chance.random() < 0.7
    chosen = chance.sample(FIELDS, chance.randrange(len(FIELDS)))
    if chance.random() < 0.5:
        chosen = [*FIELDS[:2], *(each for each in chosen if each not in FIELDS[:2])]
    fields = [
        # Without ids, Java takes values of names that are no Avro names for null, and so skips files with rows.
        PartitionField(source, 1000 + place, kind, f"p{place}" if regular else name)
        for place, (source, kind, name) in enumerate(chosen)
    ]
    version = chance.choice([1, 2, 2])
    table = catalog.create_table(
        f"db.t{seed}", SCHEMA, partition_spec=PartitionSpec(*fields), properties={"format-version": str(version)}
    )
    for start in range(0, len(ROWS), 3):
        table.append(pa.Table.from_pylist(ROWS[start : start + 3], table.schema().as_arrow()))
    odd = OddTable(table.metadata_location, regular)
    writer = _Writer(chance, odd)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = [manifest.manifest_path for manifest in snapshot.manifests(table.io)]
    lengths = {path: writer.rewrite(path, is_list=False) for path in manifests}
    writer.rewrite(snapshot.manifest_list, is_list=True, lengths=lengths)
    writer.metadata()
    return odd


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


class _Writer:
    def __init__(self, chance: Random, odd: OddTable) -> None:
        self.chance, self.odd = chance, odd

    def often(self, what: str, share: float = 0.4) -> bool:
        if self.chance.random() >= share:
            return False
        self.odd.done.append(what)
        return True

    def rewrite(self, location: str, *, is_list: bool, lengths: dict[str, int] | None = None) -> int:
        """Write a manifest or list again, and return its length."""
        data = local(location).read_bytes()
        header = read_header(data, location)
        schema = expanded_schema(header.schema, location)
        records = []
        for block in read_blocks(data, header, location):
            stream = io.BytesIO(inflate(data, block, header, location))
            records += [fastavro.schemaless_reader(stream, raw(schema), None) for _ in range(block.count)]
        if is_list:
            self.change_list(schema, records, lengths or {})
        else:
            self.change_entries(schema, records)
        declared = json.loads(json.dumps(header.schema if self.often("as pyiceberg declares", 0.2) else schema))
        if declared == schema:
            drop = self.often("no ids", 0.3)
            declared = Oddity(self.chance, java=self.odd.regular).schema(declared, drop_ids=drop)
        if _fields(declared) != _fields(schema):
            declared = schema
        codec = self.chance.choice(CODECS if self.odd.regular else (*CODECS, "bzip2", "xz"))
        changed = mislabelled_file(declared, raw(schema), *self.blocks(records), codec=codec, notes=self.notes(header))
        local(location).write_bytes(changed)
        return len(changed)

    def blocks(self, records: list[Any]) -> list[list[Any]]:
        size = self.chance.choice([1, 2, 100])
        return [records[start : start + size] for start in range(0, len(records), size)]

    def notes(self, header: Any) -> dict[str, bytes]:
        notes = {key: value for key, value in header.metadata.items() if not key.startswith("avro.")}
        if self.often("no header values"):
            return {}
        if self.often("wrong header values", 0.3):
            notes |= {"partition-spec-id": b"77", "format-version": b"9", "content": b"deletes", "schema": b"{}"}
        return notes

    def change_entries(self, schema: dict[str, Any], records: list[Any]) -> None:
        place = next(each for each in schema["fields"] if each["name"] == "data_file")
        files = [record["data_file"] for record in records]
        for name in _OPTIONAL:
            if self.often(f"null {name}", 0.1):
                for file in files:
                    file[name] = None
            elif name not in _BOUNDS and self.often(f"no {name}", 0.1):
                place["type"]["fields"] = [each for each in place["type"]["fields"] if each["name"] != name]
        if not self.odd.regular:
            self.garble(files)
        if self.often("more fields"):
            extra = {"name": "more", "field-id": 9000, "type": ["null", {"type": "map", "values": "double"}]}
            place["type"]["fields"].append(extra)
            for file in files:
                file["more"] = self.chance.choice([None, {"x": 1.0}])
        if self.often("other order"):
            for record in (schema, place["type"]):
                self.chance.shuffle(record["fields"])

    def garble(self, files: list[Any]) -> None:
        """Put bytes into bounds that prove nothing: cut, of a wrong length, or the wrong way round."""
        for file in files:
            lower, upper = (file.get(name) for name in _BOUNDS)
            if lower is None or upper is None:
                continue
            if self.often("the wrong way round", 0.5):
                file[_BOUNDS[0]], file[_BOUNDS[1]] = upper, lower
                for side in _BOUNDS:  # equal bounds are right either way round
                    file[side] = [pair for pair in file[side] if pair["key"] != 2]
                continue
            for bounds in (lower, upper):
                for pair in bounds:
                    if self.often("bytes", 0.5):
                        pair["value"] = {2: b"a\xc3", 3: b"", 4: b"\x7f" * 17}.get(pair["key"], b"abc")

    def change_list(self, schema: dict[str, Any], records: list[Any], lengths: dict[str, int]) -> None:
        for record in records:
            record["manifest_length"] = lengths.get(record["manifest_path"], record["manifest_length"])
        for name in _LIST_OPTIONAL:
            if self.often(f"list: null {name}", 0.2):
                for record in records:
                    record[name] = None
        if not self.odd.regular:
            for summary in (each for record in records for each in record["partitions"] or ()):
                lower, upper = summary["lower_bound"], summary["upper_bound"]
                if lower is not None and lower != upper and self.often("list: the wrong way round", 0.5):
                    summary["lower_bound"], summary["upper_bound"] = upper, lower
                elif lower is not None and self.often("list: bytes", 0.3):
                    summary["lower_bound"] = b"\xff" * 17
        if self.often("list: other order"):
            self.chance.shuffle(schema["fields"])

    def metadata(self) -> None:
        """Write the table's metadata again."""
        path = local(self.odd.location)
        document = json.loads(path.read_bytes())
        for snapshot in document["snapshots"]:
            if self.often("no summary", 0.3):
                snapshot.pop("summary")
        for name in ("snapshot-log", "metadata-log", "properties", "refs", "statistics", "partition-statistics"):
            if self.often(f"no {name}", 0.2):
                document.pop(name, None)
        data = json.dumps(document).encode()
        if self.often("byte order mark", 0.3):
            data = b"\xef\xbb\xbf" + data
        if not self.odd.regular and self.often("gzip under a plain name"):
            data = gzip.compress(data)
        path.write_bytes(data)


def raw(schema: Any) -> Any:
    """Return a schema without logical types, so that values are written unchanged."""
    if isinstance(schema, list):
        return [raw(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: raw(value) for key, value in schema.items() if key != "logicalType"}


def _fields(schema: dict[str, Any]) -> list[Any]:
    """Return the names of fields in order."""
    inner = [each["type"].get("fields", ()) for each in schema["fields"] if each["name"] == "data_file"]
    return [[each["name"] for each in fields] for fields in (schema["fields"], *inner)]
