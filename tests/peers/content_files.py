"""Java's DataFiles and DeleteFiles as rows: by one JSON text a file, since a py4j call per field would be slow."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.types import UnknownType

from tests.peers.values import java_type, python_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.types import IcebergType

    from tests.peers.java import Java

CONTENTS = {"data": 0, "position-deletes": 1, "equality-deletes": 2}
FILE_KEYS = {
    "file_path": "file-path",
    "file_size_in_bytes": "file-size-in-bytes",
    "record_count": "record-count",
}
DATA_KEYS = {"split_offsets": "split-offsets", "sort_order_id": "sort-order-id", "first_row_id": "first-row-id"}
DELETE_KEYS = {
    "referenced_data_file": "referenced-data-file",
    "content_offset": "content-offset",
    "content_size_in_bytes": "content-size-in-bytes",
    "equality_ids": "equality-ids",
}
GETTERS = {"file-path": "location", "file-size-in-bytes": "fileSizeInBytes", "record-count": "recordCount"}
DATA_GETTERS = {"split-offsets": "splitOffsets", "sort-order-id": "sortOrderId", "first-row-id": "firstRowId"}
DELETE_GETTERS = {
    "referenced-data-file": "referencedDataFile",
    "content-offset": "contentOffset",
    "content-size-in-bytes": "contentSizeInBytes",
    "equality-ids": "equalityFieldIds",
}
LISTS = {"split-offsets", "equality-ids"}


def elements(iterable: Any) -> Iterator[Any]:
    """The elements of a Java Iterable. py4j's own loops end by an exception, which costs more than the elements."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def items(java_map: Any) -> dict[Any, Any]:
    """A Java Map as a dict."""
    return {each.getKey(): each.getValue() for each in elements(java_map.entrySet())}


class ContentFiles:
    """The content files of one table."""

    def __init__(self, java: Java, table: Any) -> None:
        self.java = java
        self.table = table

    @cached_property
    def specs(self) -> dict[int, Any]:
        return items(self.table.specs())

    @cached_property
    def partition_names(self) -> dict[int, str]:
        """The fields of the table's common partition type, by field id, in its order.

        Java has no such type for a table with an unknown transform: then the newest spec's names of all fields. Of
        several fields with one name the newest has it, and the others end in their id, as in our plans.
        """
        iceberg = self.java.iceberg
        if any("Unknown" in each.transform().getClass().getName() for each in self._spec_fields()):
            fields = sorted(self._spec_fields(), key=lambda each: each.fieldId())
        else:
            fields = elements(iceberg.Partitioning.partitionType(self.table).fields())
        names = {each.fieldId(): each.name() for each in fields}
        newest = {name: field_id for field_id, name in sorted(names.items())}
        return {
            field_id: name if newest[name] == field_id else f"{name}_{field_id}" for field_id, name in names.items()
        }

    def _spec_fields(self) -> list[Any]:
        return [each for _, spec in sorted(self.specs.items()) for each in elements(spec.fields())]

    def describe(self, file: Any) -> dict[str, Any]:
        """The columns of `JavaTable.plan` that are of the file itself."""
        spec_id = file.specId()
        spec = self.specs[spec_id]
        if spec_id in self.unparsable_specs:
            described = self._by_getters(file)
        else:
            described = json.loads(self.java.content_files.toJson(file, spec))
        row = {name: described.get(key) for name, key in FILE_KEYS.items()} | {
            "file_format": described["file-format"].upper(),
            "spec_id": spec_id,
            "data_sequence_number": file.dataSequenceNumber(),
            "file_sequence_number": file.fileSequenceNumber(),
        }
        if (content := CONTENTS[described["content"]]) == 0:
            keys, row["partition"] = DATA_KEYS, self._partition(spec_id, described.get("partition", []))
        else:
            keys, row["content"] = DELETE_KEYS, content
        return row | {name: described.get(key) for name, key in keys.items()}

    @cached_property
    def unparsable_specs(self) -> set[int]:
        """Specs of whose files ContentFileParser writes no JSON: with void fields only, or of a dropped column."""
        return {
            spec_id
            for spec_id, fields in self.partition_fields.items()
            if any(isinstance(kind, UnknownType) for _, kind in fields)
            or (fields and self.specs[spec_id].isUnpartitioned())
        }

    def _by_getters(self, file: Any) -> dict[str, Any]:
        """What ContentFileParser would write."""
        content = file.content().name().lower().replace("_", "-")
        getters = GETTERS | (DATA_GETTERS if content == "data" else DELETE_GETTERS)
        described = {key: getattr(file, getter)() for key, getter in getters.items()}
        lists = {key: list(elements(value)) for key, value in described.items() if key in LISTS and value is not None}
        values, anything = file.partition(), self.java.anything
        partition = [json_value(values.get(pos, anything)) for pos in range(values.size())]
        return described | lists | {"content": content, "file-format": file.format().name(), "partition": partition}

    @cached_property
    def partition_fields(self) -> dict[int, list[tuple[int, IcebergType]]]:
        """Per spec id the field ids of its partition type and their types."""
        return {
            spec_id: [
                (each.fieldId(), java_type(each.type().toString())) for each in elements(spec.partitionType().fields())
            ]
            for spec_id, spec in self.specs.items()
        }

    def _partition(self, spec_id: int, values: list[Any]) -> dict[str, Any]:
        fields = zip(self.partition_fields[spec_id], values, strict=True)
        known = {field_id: python_value(value, field_type) for (field_id, field_type), value in fields}
        return {name: known.get(field_id) for field_id, name in self.partition_names.items()}


def json_value(value: Any) -> Any:
    """A value of a Java partition tuple, as py4j gives it, in the form of JSON single values."""
    if not hasattr(value, "getClass"):
        return value
    return bytes(value.array()).hex() if "ByteBuffer" in value.getClass().getName() else value.toString()
