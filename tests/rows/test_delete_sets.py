"""Each file has its own deletes, even if files share sets of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.errors import SparkmetaError
from sparkmeta.rows.planned import ENTRY, ENTRY_ID, DeleteSets, delete_sets

SCHEMA = pa.schema([("file_path", pa.string())])
NAMES = "abcdef"
IDS = {name: (-1) ** place * 7**place for place, name in enumerate(NAMES)}


def table(names: str) -> pa.Table:
    columns = {ENTRY_ID: [IDS[name] for name in names], "file_path": [*names]}
    entry = dict(zip(ENTRY, ([f"m{name}" for name in names], [ord(name) for name in names]), strict=True))
    return pa.table(columns | entry)


def names_of(sets: DeleteSets, codes: np.ndarray) -> list[str]:
    places, members = sets.members_of(codes)
    paths = sets.deletes.column("file_path").take(pa.array(members)).to_pylist()
    return [
        "".join(path for path, place in zip(paths, places, strict=True) if place == file) for file in range(len(codes))
    ]


@given(files=st.lists(st.lists(st.sampled_from(NAMES), unique=True).map("".join), max_size=12), twice=st.text(NAMES))
def test_files_have_their_deletes(files: list[str], twice: str) -> None:
    ids = pa.array([[IDS[name] for name in names] for names in files], pa.list_(pa.int64()))
    codes, sets = delete_sets(ids, table(NAMES + twice), SCHEMA)
    assert names_of(sets, codes) == files
    assert len(sets) == len(set(files))
    for name in NAMES:
        chosen = np.asarray([path == name for path in sets.deletes.column("file_path").to_pylist()])
        assert sets.any(chosen)[codes].tolist() == [name in names for names in files]


@given(files=st.lists(st.sampled_from(["", "a", "bc"]), min_size=1), further=st.lists(st.sampled_from(["", "f", "ab"])))
def test_further_sets_follow(files: list[str], further: list[str]) -> None:
    ids = pa.array([[IDS[name] for name in names] for names in files], pa.list_(pa.int64()))
    codes, sets = delete_sets(ids, table(NAMES), SCHEMA)
    places = {name: sets.deletes.column("file_path").to_pylist().index(name) for name in NAMES}
    members = np.array([places[name] for names in further for name in names], np.int64)
    more = sets.with_sets(np.array([len(names) for names in further], np.int64), members)
    assert names_of(more, codes) == files
    assert names_of(more, len(sets) + np.arange(len(further))) == further


def test_entries_of_one_hash_are_refused() -> None:
    entries = table("ab").set_column(0, ENTRY_ID, pa.array([1, 1]))
    with pytest.raises(SparkmetaError, match="same hash"):
        delete_sets(pa.array([[1]], pa.list_(pa.int64())), entries, SCHEMA)


def test_an_unknown_delete_is_refused() -> None:
    with pytest.raises(SparkmetaError, match="in no manifest"):
        delete_sets(pa.array([[5]], pa.list_(pa.int64())), table("ab"), SCHEMA)
