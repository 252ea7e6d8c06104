"""Tables of format versions 2 and 3 that Iceberg's Java library writes, with a model of their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.commit.random_commits import Maker, metrics
from tests.commit.table_model import DATA, POSITION, Draft, File, Snapshot, deletes_replaced
from tests.peers.java import Java
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

_SPEC = (0, ("s_identity", "id_bucket"))
_CONTENTS = ("data", "position-deletes", "equality-deletes")


@dataclass
class JavaStart:
    """A table under construction.

    Attributes:
        version: the current format version.
    """

    maker: Maker
    shop: Workshop
    version: int
    snapshots: dict[int, Snapshot] = field(default_factory=dict)

    @staticmethod
    def of(maker: Maker, name: str, schema: Schema, properties: Mapping[str, str]) -> JavaStart:
        """Make a table by two to five commits: in version 2, in version 3, or in 2 and upgraded to 3 midway."""
        start = JavaStart(maker, Workshop(Java(maker.spark), name), maker.rng.choice((2, 3, 3)))
        fields = schema.model_dump()["fields"]
        start.shop.create_by_java(
            fields, [("s", "identity"), ("id", "bucket[4]")], version=start.version, properties=dict(properties)
        )
        start._append()
        for _ in range(maker.rng.randrange(1, 5)):
            if start.version == 2 and maker.rng.random() < 0.3:
                start.shop.table.updateProperties().set("format-version", "3").commit()
                start.version = 3
            maker.rng.choice([start._append, start._delete, start._row_delta, start._row_delta])()
        return start

    @property
    def location(self) -> str:
        return str(self.shop.table.location())

    def _head(self) -> Snapshot | None:
        return [*self.snapshots.values()][-1] if self.snapshots else None

    def _draft(self) -> Draft:
        head = self._head()
        return Draft({} if head is None else dict(head.files))

    def _append(self) -> None:
        draft = self._draft()
        draft.add(self.maker.data(_SPEC) for _ in range(self.maker.rng.randrange(3, 9)))
        table, is_fast = self.shop.table, self.maker.rng.random() >= 0.5
        update = table.newFastAppend() if is_fast else table.newAppend()
        for file in draft.added.values():
            update.appendFile(self._file(file))
        self._commit(update, draft, "append", drops_old_deletes=not is_fast)

    def _delete(self) -> None:
        draft = self._draft()
        update = self.shop.table.newDelete()
        for file in self.maker.rng.sample(draft.data(), min(2, len(draft.data()))):
            update.deleteFile(self.shop.java.path(file.path))
            draft.remove([file])
        self._commit(update, draft, "delete")

    def _row_delta(self) -> None:
        maker, draft = self.maker, self._draft()
        update = self.shop.table.newRowDelta().validateFromSnapshot(self.shop.snapshot_id())
        targets = maker.rng.sample(draft.data(), min(3, len(draft.data())))
        if self.version == 2:
            deletes = [maker.positions(file, maker.rng.choice((file.path, None))) for file in targets]
        else:
            deletes = maker.vectors(targets, draft.live)
            replaced = deletes_replaced({file.path for file in targets}, draft.live).values()
            for file in replaced:
                update.removeDeletes(self._file(file))
            draft.remove(replaced)
        if maker.rng.random() < 0.5:
            deletes.append(maker.equality(_SPEC))
        draft.add(deletes)
        for file in deletes:
            update.addDeletes(self._file(file))
        # Java records a row delta that adds nothing as an overwrite.
        self._commit(update, draft, "delete" if deletes else "overwrite")

    def _commit(self, update: Any, draft: Draft, operation: str, *, drops_old_deletes: bool = True) -> None:
        """Commit an update, and follow it in the model.

        All commits but fast appends drop the deletes that are older than every data file.
        """
        update.commit()
        head = self._head()
        sequence = 1 + (0 if head is None else head.sequence)
        if drops_old_deletes and head is not None:
            oldest = min([head.sequence, *(file.sequence for file in draft.data())])
            draft.remove([file for file in draft.live.values() if file.content != DATA and file.sequence < oldest])
        added, files = draft.finished(sequence)
        snapshot_id = self.shop.snapshot_id()
        self.snapshots[snapshot_id] = Snapshot(snapshot_id, head, sequence, operation, added, draft.removed, files)

    def _file(self, file: File) -> Any:
        described: dict[str, Any] = {
            "spec-id": file.spec_id,
            "content": _CONTENTS[file.content],
            "file-path": file.path,
            "file-format": "puffin" if file.is_vector else "parquet",
            "partition": [value for _, value in file.partition],
            "file-size-in-bytes": file.size,
            "record-count": file.records,
        }
        if file.content == DATA:
            for name, values in metrics(file).items():
                shown = [value.hex().upper() if isinstance(value, bytes) else value for value in values.values()]
                described[name.replace("_", "-")] = {"keys": [*values], "values": shown}
        elif file.content == POSITION:
            places = {
                "referenced-data-file": file.of,
                "content-offset": file.offset,
                "content-size-in-bytes": file.blob,
            }
            described |= {key: value for key, value in places.items() if value is not None}
        else:
            described["equality-ids"] = [1]
        return self.shop.content_file(described)
