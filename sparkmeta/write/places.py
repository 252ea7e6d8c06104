"""Choose the locations of data files as Iceberg's location providers do. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pyarrow as pa

from sparkmeta.columns.bounds import encode_bounds
from sparkmeta.inspect.human import NULL, human_strings
from sparkmeta.spec.table_properties import flag_property
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata

_DATA, _OBJECTS, _OLD_DATA = "write.data.path", "write.object-storage.path", "write.folder-storage.path"
_ENABLED, _PARTITIONED = "write.object-storage.enabled", "write.object-storage.partitioned-paths"
# Folders of hash bits in a location, so that object stores spread requests.
_BITS, _FOLDER_BITS, _FOLDERS = 20, 4, 3


@dataclass(frozen=True)
class PartitionField:
    """A field of the partition spec of new files.

    Attributes:
        name: its name in the spec.
        transform: the name of its transform.
        type: the Iceberg type name of its values.
    """

    name: str
    transform: str
    type: str


@dataclass(frozen=True)
class Places:
    """Names the locations of data files. Picklable.

    Attributes:
        folder: the folder of all data files.
        fields: the partition fields.
        hashed: whether folders of hash bits come first.
        with_partitions: whether there are partition folders.
        context: the table's last two folders, which follow the hash bits in a folder shared by several tables.
    """

    folder: str
    fields: tuple[PartitionField, ...] = ()
    hashed: bool = False
    with_partitions: bool = True
    context: str = ""

    @staticmethod
    def of(metadata: TableMetadata, fields: Sequence[PartitionField]) -> Places:
        """Return the layout of a table's data files.

        Raises:
            ValidationError: a table property has an invalid value.
        """
        properties = metadata.properties
        hashed = _flag(metadata, _ENABLED, default=False)
        keys = (_DATA, _OBJECTS, _OLD_DATA) if hashed else (_DATA, _OLD_DATA)
        chosen = next((properties[key] for key in keys if key in properties), join(metadata.location, "data"))
        folder = chosen.rstrip("/")
        inside = folder.startswith(metadata.location.rstrip("/"))
        context = "" if inside or not hashed else "/".join(metadata.location.rstrip("/").split("/")[-2:])
        with_partitions = not hashed or _flag(metadata, _PARTITIONED, default=True)
        return Places(folder, tuple(fields), hashed, with_partitions, context)

    def location(self, values: Sequence[pa.Scalar], name: str) -> str:
        """Return the location of a file.

        Args:
            values: its partition values, in `bound_arrow_type`.
            name: the name of the file.
        """
        path = self._partition_folder(values)
        inside = f"{path}/{name}" if path else name
        if not self.hashed:
            return f"{self.folder}/{inside}"
        bits = _hash_folders(inside)
        if self.context:
            return f"{self.folder}/{bits}/{self.context}/{inside}"
        separator = "/" if self.with_partitions else "-"
        return f"{self.folder}/{bits}{separator}{inside}"

    def _partition_folder(self, values: Sequence[pa.Scalar]) -> str:
        if not self.with_partitions:
            return ""
        folders = (
            f"{_escaped(field.name)}={_escaped(_text(value, field))}"
            for field, value in zip(self.fields, values, strict=True)
        )
        return "/".join(folders)

    @cached_property
    def is_partitioned(self) -> bool:
        return bool(self.fields)


def _text(value: pa.Scalar, field: PartitionField) -> str:
    if not value.is_valid:
        return NULL
    text: str = human_strings(encode_bounds(pa.repeat(value, 1)), field.transform, field.type)[0].as_py()
    return text


def _escaped(text: str) -> str:
    """Escape text as java.net.URLEncoder does, which escapes ~ but not *."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def _hash_folders(name: str) -> str:
    import mmh3

    text = f"{mmh3.hash(name) & ((1 << _BITS) - 1):0{_BITS}b}"
    folders = [text[start : start + _FOLDER_BITS] for start in range(0, _FOLDERS * _FOLDER_BITS, _FOLDER_BITS)]
    return "/".join([*folders, text[_FOLDERS * _FOLDER_BITS :]])


def _flag(metadata: TableMetadata, name: str, *, default: bool) -> bool:
    return flag_property(metadata.properties, name, default=default, location=metadata.location)
