"""The result of examining a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from sparkmeta.health.entries import EntryFigures, Limits
from sparkmeta.health.findings import Finding
from sparkmeta.health.history import History
from sparkmeta.health.layout import Layout
from sparkmeta.inspect.units import counted

if TYPE_CHECKING:
    from sparkmeta.state import TableState


@dataclass(frozen=True, repr=False)
class Examined:
    """A table in numbers, and the findings.

    Attributes:
        table: the table's name.
        state: the table's state that was examined.
        examined_at: when.
        seconds: how long it took.
        list_findings: the findings.
        limits: sizes and ratios beyond which there is a finding.
        entries: the live entries in numbers.
        layout: the manifests in numbers.
        history: the snapshots in numbers.
        list_bytes: the size of the manifest list or root.
    """

    table: str
    state: TableState = field(compare=False)
    metadata_location: str
    examined_at: datetime
    seconds: float
    list_findings: tuple[Finding, ...]
    limits: Limits
    entries: EntryFigures
    layout: Layout
    history: History
    list_bytes: int

    @property
    def is_healthy(self) -> bool:
        """Whether there is no finding."""
        return not self.list_findings

    @property
    def headline(self) -> str:
        """The result in one line."""
        if self.is_healthy:
            return f"{self.table} is healthy: it needs no maintenance"
        return f"{self.table} needs maintenance: {counted(len(self.list_findings), 'finding')}"

    @cached_property
    def bytes_by_kind(self) -> dict[str, int]:
        """The bytes of the current snapshot's files and of the table's metadata, by kind of file."""
        return {
            "data files": self.entries.bytes,
            "deletes": self.entries.deletes.bytes,
            "data manifests": self.layout.data_bytes,
            "delete manifests": self.layout.delete_bytes,
            "manifest list" if self.state.tree is None else "root": self.list_bytes,
            "metadata JSON": self.history.metadata_json_bytes,
            "statistics": self.history.statistics_bytes,
        }
