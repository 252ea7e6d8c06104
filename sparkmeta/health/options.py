"""The options of `Maintenance.health`: the thresholds of findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkmeta.checks import SHARE, Rule, are_texts, at_least, check_options


@dataclass(frozen=True)
class HealthOptions:
    """See `Maintenance.health`."""

    columns: Sequence[str] | None = None
    max_overlap: int = 3
    min_small_files: int = 5
    small_file_ratio: float = 0.25
    max_deleted_ratio: float = 0.3
    max_excess_stats_ratio: float = 0.1
    max_ref_age_days: int = 30
    max_metadata_json_bytes: int = 5 << 20

    def check(self) -> None:
        """Raise ValidationError for a value of the wrong type or out of range."""
        check_options(self, _RULES)


_RULES = {
    "columns": Rule("names of columns, each once", lambda value: are_texts(value) and len(set(value)) == len([*value])),
    "max_overlap": at_least(0),
    "min_small_files": at_least(2),
    "small_file_ratio": SHARE,
    "max_deleted_ratio": SHARE,
    "max_excess_stats_ratio": SHARE,
    "max_ref_age_days": at_least(0),
    "max_metadata_json_bytes": at_least(1),
}
