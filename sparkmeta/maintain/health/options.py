"""The options of `Maintenance.health`: the thresholds of findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sparkmeta.errors import ValidationError, shown


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
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _LEAST and not (_is_whole(value) and value >= _LEAST[field.name]):
                problem = f"expected a whole number of {_LEAST[field.name]} or more"
                raise ValidationError(f"{field.name} is {shown(value)}: {problem}")
            if field.name in _SHARES and not (_is_number(value) and 0 < value <= 1):
                raise ValidationError(f"{field.name} is {shown(value)}: expected a share above 0, up to 1")
        names = self.columns
        if names is not None and (isinstance(names, str) or len(set(names)) < len(names)):
            raise ValidationError(f"columns is {shown(names)}: expected names of columns, each once")


_LEAST = {"max_overlap": 0, "min_small_files": 2, "max_ref_age_days": 0, "max_metadata_json_bytes": 1}
_SHARES = ("small_file_ratio", "max_deleted_ratio", "max_excess_stats_ratio")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
