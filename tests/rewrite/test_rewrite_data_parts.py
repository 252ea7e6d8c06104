"""What a rewrite of data files is made of, without Spark: groups of files, sort orders, the z-order, options."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, StructType

from sparkmeta.errors import ValidationError
from sparkmeta.maintain.file_groups import DataRewriteOptions, FileSizes
from sparkmeta.maintain.rewrite_data_files import row_order
from sparkmeta.maintain.rewrite_tasks import Curve, Packing
from sparkmeta.spec.new_table import new_metadata

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "in", StructType(NestedField(5, "x", DoubleType()))),
    NestedField(4, "many", ListType(6, LongType())),
)
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
ORDER = SortOrder(SortField(1, IdentityTransform()))


def metadata(order: SortOrder = ORDER) -> Any:
    return new_metadata("file:///t", SCHEMA, SPEC, order, {}, 2)


def next_fit(files: list[tuple[str | None, int]], limit: int) -> list[list[int]]:
    """The places of files in groups, as Iceberg packs them: one open group, which ends where a file does not fit."""
    groups: list[list[int]] = []
    partition: Any = object()
    weight = 0
    for place, (key, size) in enumerate(files):
        if key != partition or weight + size > limit:
            groups.append([])
            weight = 0
        partition, weight = key, weight + size
        groups[-1].append(place)
    return groups


@pytest.mark.parametrize("seed", range(20))
def test_files_are_packed_next_fit(seed: int) -> None:
    rng = random.Random(seed)
    files = sorted(
        ((rng.choice([None, "a", "b", "c"]), rng.choice([0, 1, 10, 50, 99, 100, 101, 400])) for _ in range(60)),
        key=lambda file: file[0] or "",
    )
    table = pa.table(
        {"file_size_in_bytes": [size for _, size in files], "key": pa.array([key for key, _ in files], pa.string())}
    )
    batches = table.to_batches(max_chunksize=rng.choice([1, 7, 100]))
    packing = pickle.loads(pickle.dumps(Packing(("key",), 100)))
    packed = pa.Table.from_batches(packing([batches[0].slice(0, 0), *batches]))
    numbers = packed.column("group").to_pylist()
    groups: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        groups.setdefault(number, []).append(place)
    assert list(groups.values()) == next_fit(files, 100)


def test_sizes_of_new_files() -> None:
    sizes = FileSizes(target=100, least=75, greatest=180)
    assert sizes.written == 140
    assert {size: sizes.outputs(size) for size in (0, 99, 100, 109, 111, 175, 176, 1_050, 1_076)} == {
        0: 1, 99: 1, 100: 1, 109: 1, 111: 2, 175: 2, 176: 2, 1_050: 10, 1_076: 11,
    }  # fmt: skip


ORDERS = {
    "id": ["1 ASC NULLS FIRST: identity"],
    "id DESC, in.x asc nulls last": ["1 DESC NULLS LAST: identity", "5 ASC NULLS LAST: identity"],
    " bucket(16, id) , truncate(name, 4) desc nulls first ": [
        "1 ASC NULLS FIRST: bucket[16]",
        "2 DESC NULLS FIRST: truncate[4]",
    ],
}


@pytest.mark.parametrize("text", ORDERS)
def test_a_sort_order_as_text(text: str) -> None:
    order = row_order(metadata(), text).order
    assert [f"{f.source_id} {f.direction} {f.null_order}: {f.transform}" for f in order.fields] == ORDERS[text]
    # Files have the id of an order only if the table knows it.
    assert order.order_id == (1 if text == "id" else 0)


WRONG_ORDERS = {
    "nope": "no column 'nope' in the table",
    "id,": "a part of it is empty",
    "many": "column many of type list<long> can't be sorted by",
    "many.element": "column many.element of type long can't be sorted by",
    "days(id)": "values of type long have no transform day",
    "bucket(id)": "bucket(id) is not a transform of a column",
    "id sideways": "no column 'id sideways' in the table",
    "zorder(id), id": "can't be combined with other columns",
    "zorder(id, id)": "a column occurs twice",
    "zorder(name)": "expected 1 to 31 columns that are not the source of an identity partition field",
}


@pytest.mark.parametrize("text", WRONG_ORDERS)
def test_a_wrong_sort_order(text: str) -> None:
    with pytest.raises(ValidationError, match=r"sort_order is ") as caught:
        row_order(metadata(), text)
    assert WRONG_ORDERS[text] in str(caught.value)


WRONG_FIELDS = {
    "no column with the id 99": SortField(99, IdentityTransform()),
    "column many of type list<long> can't be sorted by": SortField(4, IdentityTransform()),
    "column in of type struct<5: x: optional double> can't be sorted by": SortField(3, IdentityTransform()),
    "column many.element of type long can't be sorted by": SortField(6, IdentityTransform()),
    "values of type long have no transform day": SortField(1, DayTransform()),
}


@pytest.mark.parametrize("problem", WRONG_FIELDS)
def test_a_sort_order_that_does_not_fit_the_table(problem: str) -> None:
    wrong = SortOrder(SortField(1, IdentityTransform()), WRONG_FIELDS[problem])
    with pytest.raises(ValidationError, match=r"sort_order is ") as caught:
        row_order(metadata(), wrong)
    assert problem in str(caught.value)


@pytest.mark.parametrize("wrong", [5, ["id"], b"id", SortField(1, IdentityTransform())])
def test_a_sort_order_of_another_type(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="expected text, or a SortOrder of pyiceberg"):
        row_order(metadata(), wrong)


def test_a_sort_order_without_fields() -> None:
    with pytest.raises(ValidationError, match="sort_order is unsorted: it has no fields"):
        row_order(metadata(), SortOrder())


def test_the_order_of_the_table_and_a_z_order() -> None:
    assert row_order(metadata(), None).order.order_id == 1
    with pytest.raises(ValidationError, match="the table has no sort order: give sort_order"):
        row_order(metadata(SortOrder(order_id=0)), None)
    order = row_order(metadata(), SortOrder(SortField(1, BucketTransform(4)), order_id=7))
    assert (order.order.order_id, order.curve) == (0, ())
    chosen = row_order(metadata(), "ZORDER(`id`, name, in.x)")
    # Rows of a partition have one name.
    assert [column.field_id for column in chosen.curve] == [1, 5]
    assert not chosen.order.fields


def test_a_curve_orders_by_the_bits_of_all_columns() -> None:
    rows = [(x, y) for x in range(4) for y in range(4)]
    sample = pa.table({"x": [x for x, _ in rows], "y": [f"text {y}" for _, y in rows]})
    curve = pickle.loads(pickle.dumps(Curve.of("z", [("x",), ("y",)], sample)))
    (result,) = curve(sample.combine_chunks().to_batches())
    place = dict(zip(rows, result.column("z").to_pylist(), strict=True))
    for (x, y), z in place.items():
        assert all(place[x2, y2] >= z for x2, y2 in rows if x2 >= x and y2 >= y), (x, y)
    # Each half of one column is in two runs: neither column alone decides.
    by_place = sorted(rows, key=lambda row: place[row])
    for column in range(2):
        assert [row[column] for row in by_place] != sorted(row[column] for row in by_place)


def test_nulls_come_first_on_a_curve_of_any_type() -> None:
    columns: dict[str, pa.Array] = {
        "d": pa.array([3.5, None, float("nan"), -1.0, -0.0, 0.0]),
        "s": pa.StructArray.from_arrays(
            [pa.array(["b", "a", None, "", "é", "zz"])], names=["t"], mask=pa.array([False] * 5 + [True])
        ),
        "b": pa.array([True, False, None, True, False, True]),
    }
    sample = pa.table(columns)
    for path in (("d",), ("s", "t"), ("b",)):
        curve = Curve.of("z", [path], sample)
        (result,) = curve(sample.combine_chunks().to_batches())
        places = result.column("z").to_pylist()
        values = result.column(path[0])
        values = (
            values if len(path) == 1 else pa.array([None if row is None else row["t"] for row in values.to_pylist()])
        )
        nulls = [place for place, value in zip(places, values.to_pylist(), strict=True) if value is None]
        known = [(value, place) for place, value in zip(places, values.to_pylist(), strict=True) if value is not None]
        assert set(nulls) == {0}
        assert min(place for _, place in known) > 0
        ordered = [place for value, place in sorted(known, key=lambda each: (each[0] != each[0], each[0]))]
        assert ordered == sorted(ordered), path


OPTIONS: dict[str, Any] = {
    "strategy": ("zorder", "expected binpack or sort"),
    "rewrite_job_order": ("bytes", "expected none, bytes-asc, bytes-desc, files-asc or files-desc"),
    "min_input_files": (0, "expected a whole number of 1 or more"),
    "delete_ratio_threshold": (1.5, "expected a share above 0, up to 1"),
    "compression_factor": (0, "expected a number above 0"),
    "output_spec_id": (3, "the table has the partition specs 0"),
    "sort_order": ("id", "it requires strategy='sort'"),
    "min_file_size_bytes": (600 << 20, "they must increase"),
    "partial_progress_max_commits": (True, "expected a whole number of 1 or more"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_out_of_range(name: str) -> None:
    value, problem = OPTIONS[name]
    with pytest.raises(ValidationError, match=name) as caught:
        DataRewriteOptions(**{name: value}).check_for(metadata())
    assert problem in str(caught.value)
