"""Either decoder of Avro manifests, whatever a manifest's size."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparkmeta.avro import decode
from sparkmeta.entries.manifest_records import ManifestContext, ManifestPart
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import SparkmetaError

LOCATION = "file:///m.avro"
PART = ManifestPart(0, LOCATION, 0, ManifestContext(7, 3, 1000))


class Always(decode.Compiler):
    """A compiler that always compiles, or never."""

    def __init__(self, compiles: bool) -> None:
        super().__init__()
        self.compiles = compiles

    def pays_for(self, size: int) -> bool:
        if self.compiles:
            from sparkmeta.avro import machine

            machine.prepare()
        return self.compiles


def decoded(data: bytes, projection: EntryProjection, compiled: bool) -> list[pa.RecordBatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "compiler", Always(compiled))
        batches = list(decode.decode_manifest(data, PART, projection))
    for batch in batches:
        batch.validate(full=True)
    return batches


def values_or_error(data: bytes, projection: EntryProjection, compiled: bool) -> str:
    """All values as text, in which NaN equals NaN and -0.0 is not 0.0; or that the file was refused."""
    try:
        batches = decoded(data, projection, compiled)
    except SparkmetaError as error:
        assert LOCATION in str(error)  # noqa: PT017
        return "refused"
    return repr([[python_values(column) for column in batch.columns] for batch in batches])


def python_values(array: pa.Array) -> Any:
    """Return Python values, with numbers for dates and times, since Python's types don't cover Iceberg's range."""
    if pa.types.is_struct(array.type):
        return [array.is_valid().to_pylist(), *map(python_values, array.flatten())]
    if pa.types.is_temporal(array.type):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
    return array.to_pylist()
