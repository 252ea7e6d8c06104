"""Snapshot summaries: Iceberg's keys, when each is written, and totals that go on from the branch's head."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation, update_snapshot_summaries
from pyiceberg.table.snapshots import Summary as IcebergSummary

from sparkmeta.errors import ValidationError
from sparkmeta.spec.file_kind import FileKind
from sparkmeta.spec.metadata_model import Snapshot, Summary
from sparkmeta.spec.summary import SnapshotSummaryBuilder, UpdateMetrics, totals

NO_MANIFESTS = {"manifests-created": "0", "manifests-kept": "0", "manifests-replaced": "0"}
ZEROS = {
    "total-data-files": "0",
    "total-delete-files": "0",
    "total-records": "0",
    "total-files-size": "0",
    "total-position-deletes": "0",
    "total-equality-deletes": "0",
}


def head(summary: dict[str, str] | None) -> Snapshot:
    known = {"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": "s3://l", "summary": summary}
    return Snapshot.model_validate(known)


def built(builder: SnapshotSummaryBuilder, operation: str = "append", parent: Snapshot | None = None) -> Any:
    summary = builder.build(operation, parent)
    assert isinstance(summary, Summary)
    return json.loads(summary.model_dump_json())


def test_an_append_as_java_sums_it_up() -> None:
    builder = SnapshotSummaryBuilder(changed_partition_count=1, manifests_created=1)
    builder.metrics.add_files(FileKind.DATA, 1, 1, 10)
    assert built(builder) == {
        "operation": "append",
        "added-data-files": "1",
        "added-files-size": "10",
        "added-records": "1",
        "changed-partition-count": "1",
        "manifests-created": "1",
        "manifests-kept": "0",
        "manifests-replaced": "0",
        **ZEROS,
        "total-data-files": "1",
        "total-files-size": "10",
        "total-records": "1",
    }


@pytest.mark.parametrize(
    ("kind", "added", "removed"),
    [
        (
            FileKind.DATA,
            {"added-data-files": "2", "added-records": "30", "added-files-size": "400"},
            {"deleted-data-files": "2", "deleted-records": "30", "removed-files-size": "400"},
        ),
        (
            FileKind.POSITION_DELETES,
            {
                "added-position-delete-files": "2",
                "added-delete-files": "2",
                "added-position-deletes": "30",
                "added-files-size": "400",
            },
            {
                "removed-position-delete-files": "2",
                "removed-delete-files": "2",
                "removed-position-deletes": "30",
                "removed-files-size": "400",
            },
        ),
        (
            FileKind.EQUALITY_DELETES,
            {
                "added-equality-delete-files": "2",
                "added-delete-files": "2",
                "added-equality-deletes": "30",
                "added-files-size": "400",
            },
            {
                "removed-equality-delete-files": "2",
                "removed-delete-files": "2",
                "removed-equality-deletes": "30",
                "removed-files-size": "400",
            },
        ),
        (
            FileKind.DELETION_VECTOR,
            {
                "added-dvs": "2",
                "added-delete-files": "2",
                "added-position-deletes": "30",
                "added-files-size": "400",
            },
            {
                "removed-dvs": "2",
                "removed-delete-files": "2",
                "removed-position-deletes": "30",
                "removed-files-size": "400",
            },
        ),
    ],
)
def test_keys_by_kind(kind: FileKind, added: dict[str, str], removed: dict[str, str]) -> None:
    metrics = UpdateMetrics()
    metrics.add_files(kind, 2, 30, 400)
    assert metrics.to_dict() == added
    metrics.remove_files(kind, 2, 30, 400)
    assert metrics.to_dict() == added | removed
    metrics.add_files(kind, 2, 30, 400)
    assert metrics.to_dict() == {key: str(2 * int(value)) for key, value in added.items()} | removed


def test_nothing_is_written_as_0_but_what_always_is() -> None:
    assert built(SnapshotSummaryBuilder()) == {
        "operation": "append",
        "changed-partition-count": "0",
        **NO_MANIFESTS,
        **ZEROS,
    }
    metrics = UpdateMetrics()
    metrics.add_files(FileKind.DATA, 1, 0, 7)
    assert metrics.to_dict() == {"added-data-files": "1", "added-files-size": "7"}


def test_a_rewrite_of_manifests() -> None:
    builder = SnapshotSummaryBuilder(manifests_created=2, manifests_kept=3, manifests_replaced=4, entries_processed=0)
    parent = head(ZEROS | {"total-records": "7"})
    assert built(builder, "replace", parent) == {
        "operation": "replace",
        "changed-partition-count": "0",
        "manifests-created": "2",
        "manifests-kept": "3",
        "manifests-replaced": "4",
        "entries-processed": "0",
        **ZEROS,
        "total-records": "7",
    }


def test_properties() -> None:
    extra = {"engine-name": "spark", "wap.id": "7", "replace-partitions": "true", "self": "x", "note": "ü"}
    assert built(SnapshotSummaryBuilder(properties=extra)).items() >= extra.items()


@pytest.mark.parametrize(
    "key",
    [
        *("added-records", "total-records", "partitions.a=1", "operation", "manifests-kept", "changed-partition-count"),
        *("removed-dvs", "added-files-size", "added-delete-files", "partition-summaries-included", "entries-processed"),
        "deleted-duplicate-files",
    ],
)
def test_properties_that_are_computed(key: str) -> None:
    with pytest.raises(ValidationError, match=f"property {key} is computed"):
        SnapshotSummaryBuilder(properties={key: "1"}).build("append", None)


@pytest.mark.parametrize("counts", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_counts_are_not_negative(counts: tuple[int, int, int]) -> None:
    metrics = UpdateMetrics()
    for change in (metrics.add_files, metrics.remove_files):
        with pytest.raises(ValidationError, match="a count is not negative"):
            change(FileKind.DATA, *counts)
    assert metrics.to_dict() == {}


def test_a_replace_adds_no_rows() -> None:
    builder = SnapshotSummaryBuilder(changed_partition_count=1)
    builder.metrics.add_files(FileKind.DATA, 1, 10, 100)
    builder.metrics.remove_files(FileKind.DATA, 5, 10, 90)
    assert built(builder, "replace", head(ZEROS | {"total-data-files": "9"}))["total-data-files"] == "5"
    builder.metrics.add_files(FileKind.DATA, 1, 3, 100)
    for operation in ("replace", Operation.REPLACE):
        with pytest.raises(ValidationError, match="adds 3 records more"):
            builder.build(operation, None)
    assert built(builder, "overwrite")["total-records"] == "3"


ADDS = {"added-records": "5", "deleted-records": "7"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("10", "8"),
        ("2", "0"),
        ("1", None),  # negative after
        ("-1", None),
        ("x", None),
        ("", None),
        (" 10", None),
        ("1_0", None),
        ("+10", "8"),
        ("٣", None),
        (str(1 << 63), None),
        (str((1 << 63) - 1), str((1 << 63) - 3)),
        (None, None),
    ],
)
def test_totals_that_are_known(before: str | None, after: str | None) -> None:
    parent = head({"operation": "append"} | ({} if before is None else {"total-records": before}))
    assert totals(ADDS, parent) == ({} if after is None else {"total-records": after})


def test_totals_begin_at_0_or_not_at_all() -> None:
    assert totals({}, None) == ZEROS
    assert totals({"added-records": "5"}, None) == ZEROS | {"total-records": "5"}
    assert totals(ADDS, head(None)) == {}
    assert totals({"added-records": "5"}, head({"total-records": "-1"})) == {}
    assert totals(ADDS, head({})) == {}


counted = st.tuples(st.sampled_from(list(FileKind)), st.integers(0, 9), st.integers(0, 99), st.integers(0, 999))


@given(st.lists(st.tuples(st.lists(counted, max_size=4), st.lists(counted, max_size=4)), max_size=6))
def test_totals_over_a_history_are_pyicebergs(history: list[tuple[list[Any], list[Any]]]) -> None:
    parent: Snapshot | None = None
    theirs: Any = None
    for added, removed in history:
        builder = SnapshotSummaryBuilder()
        for change in added:
            builder.metrics.add_files(*change)
        for change in removed:
            builder.metrics.remove_files(*change)
        summary = builder.build(Operation.APPEND, parent)
        theirs = update_snapshot_summaries(
            IcebergSummary(Operation.APPEND, **builder.metrics.to_dict()),
            {} if theirs is None else theirs.additional_properties,
        )
        ours = {key: value for key, value in summary.additional_properties.items() if key.startswith("total")}
        expected = {key: value for key, value in theirs.additional_properties.items() if key.startswith("total")}
        assert ours == expected
        if len(expected) < len(ZEROS):  # pyiceberg starts again at 0 where a summary is empty
            return
        parent = head(json.loads(summary.model_dump_json()))
