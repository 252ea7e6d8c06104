"""What entries inherit from their manifest, by the examples of the table spec."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.entries.manifest_records import (
    ManifestContext,
    RowIdCounter,
    inherited_sequence_numbers,
    inherited_snapshot_ids,
)
from sparkmeta.spec.entry import Status


def longs(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


def statuses(*values: int) -> pa.Array:
    return pa.array(values, pa.int32())


def test_snapshot_ids_are_inherited_whatever_the_status() -> None:
    inherited = inherited_snapshot_ids(longs(None, 5, None), ManifestContext(9, 3, None))
    assert inherited.to_pylist() == [9, 5, 9]


def test_sequence_numbers_are_inherited_by_added_entries_only() -> None:
    null = longs(None, None, None, 2)
    status = statuses(Status.EXISTING, Status.ADDED, Status.DELETED, Status.ADDED)
    assert inherited_sequence_numbers(null, status, ManifestContext(9, 3, None)).to_pylist() == [None, 3, None, 2]


def test_manifests_of_version_1_give_sequence_number_0() -> None:
    inherited = inherited_sequence_numbers(longs(None, None), statuses(0, 2), ManifestContext(9, 0, None))
    assert inherited.to_pylist() == [0, 0]


def test_the_row_ids_of_the_table_specs_example() -> None:
    """Manifest added1 begins at 1000: data1 keeps 800, data2 gets 1000, data3 1050."""
    counter = RowIdCounter(1000)
    assigned = counter.assign(longs(800, None, None), statuses(0, 1, 1), longs(25, 50, 50))
    assert assigned.to_pylist() == [800, 1000, 1050]
    assert counter.assign(longs(None), statuses(1), longs(1)).to_pylist() == [1100]


def test_a_manifest_without_row_ids_blanks_those_of_its_entries() -> None:
    assert RowIdCounter(None).assign(longs(7, None), statuses(1, 1), longs(1, 1)).to_pylist() == [None, None]


def test_deleted_entries_neither_get_row_ids_nor_move_the_counter() -> None:
    assigned = RowIdCounter(10).assign(longs(None, None, 3), statuses(2, 0, 2), longs(5, 6, 7))
    assert assigned.to_pylist() == [None, 10, 3]


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 1000), st.none() | st.integers(0, 99))),
    st.integers(0, 40),
)
def test_row_ids_equal_a_plain_count_however_the_entries_are_batched(
    entries: list[tuple[int, int, int | None]], cut: int
) -> None:
    expected, counter = [], 100
    for status, count, row_id in entries:
        if status != Status.DELETED and row_id is None:
            expected.append(counter)
            counter += count
        else:
            expected.append(row_id)
    batches, rows = RowIdCounter(100), []
    for part in (entries[:cut], entries[cut:]):
        status, counts, row_ids = ([row[index] for row in part] for index in range(3))
        rows += batches.assign(longs(*row_ids), statuses(*status), longs(*counts)).to_pylist()
    assert rows == expected
