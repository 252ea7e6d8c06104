"""Match data entries with their deletes, by joins and by tasks that read both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.columns import sql
from sparkmeta.plan.coplan import with_dv
from sparkmeta.plan.deletes.attach import attach_deletes
from sparkmeta.plan.rows import DELETES, shown_deletes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.plan.choose import Choice
    from sparkmeta.plan.entries import ScanEntries


@dataclass(frozen=True)
class MatchedEntries:
    """The data entries of a scan with `deletes`, the array of deletes that apply to each.

    Attributes:
        choice: how they are read and matched.
        frame: the entries.
    """

    choice: Choice
    frame: DataFrame


def match_deletes(entries: ScanEntries) -> MatchedEntries:
    """Match data entries with their deletes, lazily.

    Raises:
        ValidationError: deletes that the driver has read violate one of the `rules`. For others, the plan fails when
            it runs.
    """
    choice = entries.choice
    matched = attach_deletes(entries.data, entries.deletes, choice.pruned.filter.state)
    if choice.coplanned is not None:
        merged = with_dv(sql.col(DELETES), choice.coplanned.deletes)
        matched = matched.selectExpr(*map(sql.quoted, entries.data.columns), shown_deletes(merged))
    return MatchedEntries(choice, matched)
