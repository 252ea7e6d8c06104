"""Write tables of version 2 with very many small Avro manifests, which are kept in build/bench.

They have the shape of tables with billions of files, by the number of manifests. Each manifest is the bytes of a
template in which names are replaced, so that writing 48,000 of them takes a minute.
"""

from __future__ import annotations

import io
import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from tests.benchmarks.workload import BUILD

PARTITIONS = 100
_NAME, _PART = "M0000000", "p00000"


@dataclass(frozen=True)
class ManyManifests:
    """A table of version 2 whose manifests have `files` data files each, of one of 100 partitions."""

    manifests: int
    files: int = 40
    build: Path = BUILD

    @property
    def folder(self) -> Path:
        return self.build / "many-manifests" / "db" / f"t{self.manifests}"

    def location(self) -> str:
        """Write the table anew, and return the location of its folder."""
        import sparkmeta as sm

        shutil.rmtree(self.folder, ignore_errors=True)
        schema = Schema(NestedField(1, "part", StringType()), NestedField(2, "id", LongType()))
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
        catalog: Any = sm.load_catalog("bench", type="hadoop", warehouse=self.folder.parents[1].as_uri())
        name = f"db.t{self.manifests}"
        # Without the property, the first append would merge all of these small manifests.
        apart = {"commit.manifest-merge.enabled": "false"}
        table = catalog.create_table(name, schema, partition_spec=spec, format_version=2, properties=apart)
        with table.transaction() as tx:
            tx.update_snapshot().append(self.template_files())
        table = catalog.load_table(name)
        self._multiply(Path(table.current_snapshot().manifest_list.removeprefix("file://")))
        return str(table.location())

    def template_files(self) -> pa.Table:
        """Return the files of the template."""
        paths = [
            f"file:///warehouse/many/data/part={_PART}/{_NAME}-{number:05d}.parquet" for number in range(self.files)
        ]
        rows = [
            {"file_path": path, "file_format": "parquet", "spec_id": 0, "partition": {"part": _PART},
             "record_count": 100, "file_size_in_bytes": 1 << 20}
            for path in paths
        ]  # fmt: skip
        types = {
            "file_path": pa.string(), "file_format": pa.string(), "spec_id": pa.int32(),
            "partition": pa.struct([("part", pa.string())]), "record_count": pa.int64(),
            "file_size_in_bytes": pa.int64(),
        }  # fmt: skip
        return pa.Table.from_pylist(rows, schema=pa.schema(list(types.items())))

    def _multiply(self, manifest_list: Path) -> None:
        """Replace the list's manifest by as many as there should be."""
        with manifest_list.open("rb") as opened:
            reader = fastavro.reader(opened)
            schema, metadata = reader.writer_schema, reader.metadata
            (row,) = reader
        template = Path(row["manifest_path"].removeprefix("file://"))
        data = template.read_bytes()
        sync = data[-16:]
        header = data[: data.index(sync) + 16]
        (block,) = fastavro.block_reader(io.BytesIO(data))
        content = block.bytes_.getvalue()
        rows = []
        for number in range(self.manifests):
            part = f"p{number * PARTITIONS // self.manifests:05d}"
            changed = content.replace(_NAME.encode(), f"M{number:07d}".encode()).replace(_PART.encode(), part.encode())
            packed = zlib.compress(changed, 1, -15)
            written = b"".join([header, _varint(self.files), _varint(len(packed)), packed, sync])
            path = template.with_name(f"many-{number:07d}-m0.avro")
            path.write_bytes(written)
            bounds = {"lower_bound": part.encode(), "upper_bound": part.encode()}
            summary = [{**field, **bounds} for field in row["partitions"]]
            renamed = {"manifest_path": path.as_uri(), "manifest_length": len(written), "partitions": summary}
            rows.append({**row, **renamed})
        with manifest_list.open("wb") as opened:
            properties = {key: value for key, value in metadata.items() if not key.startswith("avro.")}
            fastavro.writer(opened, json.loads(json.dumps(schema)), rows, codec="deflate", metadata=properties)


def _varint(value: int) -> bytes:
    """Return the Avro encoding of a number that is not negative."""
    value, encoded = value << 1, bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
