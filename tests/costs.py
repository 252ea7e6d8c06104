"""Costs of planning that a test sets, so that a few deletes are many."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkmeta.plan import costs

if TYPE_CHECKING:
    import pytest


def limit(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Plan with other limits, by their names in `Costs`."""
    monkeypatch.setattr(costs, "COSTS", replace(costs.COSTS, **limits))
