"""How deletes are matched, as a plain function of counts and sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkmeta.plan.choose import Figures, Verdict, matching
from sparkmeta.plan.costs import Costs

LIMITS = Costs()
BROADCAST, ENTRIES, PER_DV = LIMITS.broadcast_deletes, LIMITS.few_entries, LIMITS.entries_per_dv
AVRO = Figures(
    planning="auto",
    executors_read=True,
    format_version=3,
    is_tree=False,
    formats=frozenset({"AVRO"}),
    data_manifests=4,
    delete_manifests=2,
    deletes=1000,
    only_dvs=True,
    pairs=3,
    decoded=1000,
    held=500,
)
TREE = replace(AVRO, format_version=4, is_tree=True, formats=frozenset({"PARQUET"}), only_dvs=None, pairs=2)
TREE = replace(TREE, paired_entries=5000, paired_deletes=1000, decoded=0, held=0)
JOIN, COLOCATED = "join", "colocated"
SETTING, NO_DELETES, UNREADABLE = (
    "the setting planning says so",
    "opens no delete manifest",
    "executors can't open files",
)


@pytest.mark.parametrize("figures", [AVRO, TREE], ids=["lists", "tree"])
@pytest.mark.parametrize(
    ("changes", "how", "why"),
    [
        ({}, COLOCATED, "1,000 deletion vectors"),
        ({"planning": "join"}, JOIN, SETTING),
        ({"executors_read": False}, JOIN, UNREADABLE),
        ({"executors_read": False, "planning": "colocated"}, JOIN, UNREADABLE),
        ({"data_manifests": 0}, JOIN, NO_DELETES),
        ({"delete_manifests": 0, "planning": "colocated"}, JOIN, NO_DELETES),
    ],
)
def test_reasons_in_every_layout(figures: Figures, changes: dict[str, Any], how: str, why: str) -> None:
    verdict = matching(replace(figures, **changes))
    assert verdict is not None
    assert verdict.matching == how
    assert why in verdict.reason


@pytest.mark.parametrize(
    ("changes", "how", "why"),
    [
        ({"pairs": 0}, JOIN, "no delete leaf is affiliated"),
        ({"paired_entries": ENTRIES + PER_DV * 1000}, COLOCATED, "1,000 deletion vectors are in 2 delete leaves"),
        ({"paired_entries": ENTRIES + PER_DV * 1000 + 1}, JOIN, "1,000 deletion vectors are few enough"),
        ({"paired_entries": None}, JOIN, "few enough to be broadcast"),
        ({"paired_entries": None, "planning": "colocated"}, COLOCATED, "1,000 deletion vectors are"),
        ({"paired_entries": 10**9, "paired_deletes": BROADCAST}, JOIN, "few enough to be broadcast"),
        ({"paired_entries": 10**9, "paired_deletes": BROADCAST + 1}, COLOCATED, "100,001 deletion vectors are"),
        ({"paired_entries": None, "paired_deletes": None}, JOIN, "0 deletion vectors are few enough"),
    ],
)
def test_trees(changes: dict[str, Any], how: str, why: str) -> None:
    verdict = matching(replace(TREE, **changes))
    assert verdict is not None
    assert verdict.matching == how
    assert why in verdict.reason


@pytest.mark.parametrize(
    ("changes", "how", "why"),
    [
        ({"formats": frozenset({"AVRO", "PARQUET"})}, JOIN, "not Avro files"),
        ({"only_dvs": False}, JOIN, "list more than deletion vectors"),
        ({"only_dvs": False, "format_version": 2}, JOIN, "have no deletion vectors"),
        ({"driver_dvs": 7, "pairs": None}, COLOCATED, "7 deletion vectors are few enough for the driver to read"),
        ({"deletes": None}, JOIN, "does not count its entries"),
        ({"delete_manifests": LIMITS.compared_pairs // 4 + 1}, JOIN, "too many to compare partitions"),
        ({"delete_manifests": LIMITS.compared_pairs // 4}, COLOCATED, "1,000 deletion vectors are read beside"),
        ({"pairs": 0}, JOIN, "no deletion vector is in a partition that is read"),
        ({"pairs": LIMITS.pairs}, COLOCATED, "are read beside"),
        ({"pairs": LIMITS.pairs + 1, "planning": "colocated"}, JOIN, "don't tell well where"),
        ({"held": LIMITS.held_dvs}, COLOCATED, "are read beside"),
        ({"held": LIMITS.held_dvs + 1}, JOIN, "don't tell well where"),
        ({"held": LIMITS.held_dvs + 1, "planning": "colocated"}, COLOCATED, "are read beside"),
        ({"decoded": LIMITS.decoded_times * 1000 + LIMITS.held_dvs}, COLOCATED, "are read beside"),
        ({"decoded": LIMITS.decoded_times * 1000 + LIMITS.held_dvs + 1}, JOIN, "don't tell well where"),
    ],
)
def test_lists(changes: dict[str, Any], how: str, why: str) -> None:
    verdict = matching(replace(AVRO, **changes))
    assert verdict is not None
    assert verdict.matching == how
    assert why in verdict.reason


@pytest.mark.parametrize("changes", [{"only_dvs": None}, {"pairs": None}])
def test_no_verdict_while_figures_are_missing(changes: dict[str, Any]) -> None:
    assert matching(replace(AVRO, **changes)) is None
    assert matching(replace(TREE, pairs=None)) is None
    decided = replace(AVRO, **changes, planning="join")
    assert matching(decided) == Verdict("join", SETTING)
