"""Tables that other processes open again at the same version, without a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.session import NoSession
from sparkmeta.spec.metadata import snapshot_of
from sparkmeta.storage.location import is_local
from sparkmeta.table import open_metadata

if TYPE_CHECKING:
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.table import Table


@dataclass(frozen=True)
class Opened:
    """A table at a metadata file and a snapshot, which another process can open again."""

    location: str
    reader: ExecutorReader
    snapshot_id: int | None

    @staticmethod
    def of(table: Table, state: TableState) -> Opened:
        """Return the description of a table at the snapshot of a state."""
        reader = state.access.tasks
        assert reader is not None  # Python opens the files of a table without a session
        return Opened(table.metadata_location, reader, None if state.snapshot is None else state.snapshot.snapshot_id)

    def open(self) -> Table:
        """Open the table."""
        io = None
        if not is_local(self.location):
            from pyiceberg.io import load_file_io

            io = load_file_io(self.reader.io_properties or {}, self.location)
        return open_metadata(self.location, NoSession(), io=io)

    def state(self) -> TableState:
        """Return the table at the snapshot."""
        table = self.open()
        snapshot = None if self.snapshot_id is None else snapshot_of(table.metadata, self.snapshot_id)
        return table.state.at(snapshot)
