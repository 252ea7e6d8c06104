"""The maintenance of a table by name: `table.maintenance.upgrade(4)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkmeta.maintain.upgrade import UpgradePlan
    from sparkmeta.table import Table


@dataclass(frozen=True)
class Maintenance:
    """What can be done to keep a table in shape. Every method gives a plan: nothing happens before its `commit()`."""

    table: Table

    def upgrade(self, format_version: int) -> UpgradePlan:
        """The upgrade of a table of format version 1 to 3, or of one of version 4 with manifest lists, to the tree.

        In place: no manifest and no manifest list is written anew, and readers see the same table. From then on
        Iceberg's Java library refuses it.

        Raises:
            ValidationError: a format version other than 4, or a table that has the tree already.
            UnsupportedError: a table that is encrypted, or that was opened read-only.
        """
        from sparkmeta.maintain.upgrade import plan_upgrade

        return plan_upgrade(self.table, format_version)
