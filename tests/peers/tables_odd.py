"""Tables that few writers make: partial and odd statistics, odd split offsets, old forms of version 1."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from tests.peers.corpus import recipe
from tests.peers.rewriting import manifests_of, rewrite_lists, rewrite_metadata

if TYPE_CHECKING:
    from tests.peers.workshop import Workshop

INT, LONG, FLOAT, DOUBLE, TEXT = 1, 2, 3, 4, 5
COLUMNS = "i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING"


def packed(form: str, value: Any) -> str:
    return struct.pack(f"<{form}", value).hex()


def stats(**maps: dict[int, Any]) -> dict[str, Any]:
    """Statistics maps in ContentFileParser's JSON."""
    return {
        name.replace("_", "-"): {"keys": list(values), "values": list(values.values())} for name, values in maps.items()
    }


NAN_F, NAN_D = packed("f", float("nan")), packed("d", float("nan"))
ONE = {INT: packed("i", 1), LONG: packed("q", 1), FLOAT: packed("f", 1), DOUBLE: packed("d", 1), TEXT: b"b".hex()}
NINE = {INT: packed("i", 9), LONG: packed("q", 9), FLOAT: packed("f", 9), DOUBLE: packed("d", 9), TEXT: b"k".hex()}
TEN, NO = dict.fromkeys(range(1, 6), 10), dict.fromkeys(range(1, 6), 0)
NANS = {FLOAT: 0, DOUBLE: 0}
KNOWN = stats(value_counts=TEN, null_value_counts=NO, nan_value_counts=NANS, lower_bounds=ONE, upper_bounds=NINE)
ODD_STATS: dict[str, dict[str, Any]] = {
    "known": KNOWN,
    "none": {},
    "empty": stats(value_counts={}, null_value_counts={}, nan_value_counts={}, lower_bounds={}, upper_bounds={}),
    "lower": {key: value for key, value in KNOWN.items() if key != "upper-bounds"},
    "upper": {key: value for key, value in KNOWN.items() if key != "lower-bounds"},
    "bounds": stats(lower_bounds=ONE, upper_bounds=NINE),
    "no-null-counts": stats(value_counts=TEN, nan_value_counts=NANS, lower_bounds=ONE, upper_bounds=NINE),
    "no-nan-counts": stats(value_counts=TEN, null_value_counts=NO, lower_bounds=ONE, upper_bounds=NINE),
    "one-value": stats(
        value_counts=TEN, null_value_counts=NO, nan_value_counts=NANS, lower_bounds=ONE, upper_bounds=ONE
    ),
    "all-null": stats(value_counts=TEN, null_value_counts=TEN),
    "all-null-with-bounds": stats(value_counts=TEN, null_value_counts=TEN, lower_bounds=ONE, upper_bounds=NINE),
    "all-nan": stats(value_counts=TEN, null_value_counts=NO, nan_value_counts={FLOAT: 10, DOUBLE: 10}),
    "some-columns": stats(value_counts={INT: 10}, null_value_counts={INT: 0}, lower_bounds={INT: ONE[INT]}),
    "nan-bounds": stats(
        value_counts=TEN,
        null_value_counts=NO,
        lower_bounds=ONE | {FLOAT: NAN_F, DOUBLE: NAN_D},
        upper_bounds=NINE | {FLOAT: NAN_F, DOUBLE: NAN_D},
    ),
    "nan-upper": stats(value_counts=TEN, lower_bounds=ONE, upper_bounds=NINE | {FLOAT: NAN_F, DOUBLE: NAN_D}),
    "narrow": stats(
        value_counts=TEN,
        null_value_counts=NO,
        lower_bounds=ONE | {LONG: packed("i", 1), DOUBLE: packed("f", 1)},
        upper_bounds=NINE | {LONG: packed("i", 9), DOUBLE: packed("f", 9)},
    ),
    "zeros": stats(
        value_counts=TEN,
        null_value_counts=NO,
        nan_value_counts=NANS,
        lower_bounds={FLOAT: packed("f", -0.0), DOUBLE: packed("d", 0.0)},
        upper_bounds={FLOAT: packed("f", -0.0), DOUBLE: packed("d", 0.0)},
    ),
    "no-rows": KNOWN | {"record-count": 0},
    "unknown-rows": KNOWN | {"record-count": -1},
}


@recipe("metrics", "made_up", versions=(1, 2, 3, 4))
def odd_statistics(shop: Workshop, version: int) -> None:
    """Missing maps, missing keys, single bounds, NaN bounds, bounds of narrower types, no rows, unknown rows."""
    shop.create(COLUMNS, version=version)
    shop.append(*(file(shop, name, more) for name, more in ODD_STATS.items()))


def file(shop: Workshop, name: str, more: dict[str, Any]) -> Any:
    return shop.content_file({"file-path": shop.file_location(f"{name}.parquet")} | more)


MB = 1024 * 1024
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"file-size-in-bytes": 1},
    "small": {"file-size-in-bytes": 3 * MB, "split-offsets": [4]},
    "exact": {"file-size-in-bytes": 128 * MB},
    "above": {"file-size-in-bytes": 128 * MB + 1},
    "large": {"file-size-in-bytes": 1000 * MB},
    "offsets": {"file-size-in-bytes": 400 * MB, "split-offsets": [4, 100 * MB, 250 * MB, 399 * MB]},
    "late-first": {"file-size-in-bytes": 300 * MB, "split-offsets": [1000, 200 * MB]},
    "descending": {"file-size-in-bytes": 300 * MB, "split-offsets": [4, 200 * MB, 100 * MB]},
    "equal": {"file-size-in-bytes": 300 * MB, "split-offsets": [4, 4]},
    "beyond": {"file-size-in-bytes": 300 * MB, "split-offsets": [4, 300 * MB]},
    "no-offsets": {"file-size-in-bytes": 300 * MB, "split-offsets": []},
    "avro": {"file-size-in-bytes": 200 * MB, "file-format": "avro"},
    "orc": {"file-size-in-bytes": 200 * MB, "file-format": "orc", "split-offsets": [3, 64 * MB]},
}


@recipe("splits", "made_up", "deletes", versions=(2, 3))
def splits(shop: Workshop, version: int) -> None:
    """Files from a byte to a gigabyte, with good and bad split offsets, some with large deletes."""
    shop.create(COLUMNS, version=version)
    shop.append(*(file(shop, name, more) for name, more in SIZES.items()))
    for number in range(12):
        shop.append(file(shop, f"more-{number}", {"file-size-in-bytes": (number + 1) * 9 * MB}))
    shop.row_delta(*(delete_of(shop, name, version, n) for n, name in enumerate(("small", "large", "more-3"), 1)))


def delete_of(shop: Workshop, name: str, version: int, number: int) -> Any:
    described = {
        "content": "position-deletes",
        "record-count": 10,
        "file-size-in-bytes": number * 40 * MB,
        "referenced-data-file": shop.file_location(f"{name}.parquet"),
    }
    if version > 2:
        vector = {"file-format": "puffin", "content-offset": 4, "content-size-in-bytes": number * 30 * MB}
        return shop.content_file(described | vector | {"file-path": shop.file_location("vectors.puffin")})
    return shop.content_file(described | {"file-path": shop.file_location(f"{name}-deletes.parquet")})


@recipe("made_up", "encrypted", versions=(2, 3))
def key_metadata(shop: Workshop, version: int) -> None:
    """Entries with key metadata."""
    shop.create(COLUMNS, version=version)
    shop.append(file(shop, "plain", KNOWN), file(shop, "encrypted", KNOWN | {"key-metadata": "00ff10"}))


def old_table(shop: Workshop) -> None:
    shop.create("id INT, p STRING", "p", version=1)
    for start in (0, 4, 8):
        shop.insert(*(f"{i}, '{'abc'[i % 3]}'" for i in range(start, start + 4)))
    shop.sql("DELETE FROM {t} WHERE p = 'b'")


@recipe("old", "partitions", "no_counts", versions=(1,))
def inline_manifests(shop: Workshop, version: int) -> str:
    """Snapshots that list their manifests themselves, without a manifest list; no summaries, no refs."""
    old_table(shop)

    def change(metadata: dict[str, Any]) -> None:
        for snapshot in metadata["snapshots"]:
            snapshot["manifests"] = manifests_of(snapshot.pop("manifest-list"))
            del snapshot["summary"]
        del metadata["refs"]

    return rewrite_metadata(shop, change)


@recipe("old", "partitions", "no_counts", versions=(1,))
def unknown_counts(shop: Workshop, version: int) -> str:
    """Manifest lists in which counts and summaries are unknown."""
    old_table(shop)
    optional = [f"{state}_{what}_count" for state in ("added", "existing", "deleted") for what in ("files", "rows")]
    missing = dict.fromkeys([*optional, "partitions"])
    return rewrite_metadata(shop, lambda metadata: rewrite_lists(metadata, lambda _, record: record.update(missing)))


@recipe("old", "partitions", "no_nan", versions=(1, 2))
def no_nan_summaries(shop: Workshop, version: int) -> str:
    """Partition summaries of a time before contains_nan."""
    shop.create("id INT, x DOUBLE", "x", version=version)
    for i in range(3):
        shop.insert(f"{i}, double('{i}')", f"{i}, double('NaN')", f"{i}, null")
        shop.insert(f"{i}, double('{i}.5')")
    shop.insert("5, double('NaN')")
    shop.insert("6, null")

    def change(_: dict[str, Any], record: dict[str, Any]) -> None:
        for summary in record["partitions"]:
            summary["contains_nan"] = None

    return rewrite_metadata(shop, lambda metadata: rewrite_lists(metadata, change))


@recipe("old", "partitions", versions=(1,))
def bare_metadata(shop: Workshop, version: int) -> str:
    """Metadata JSON of the first kind: one schema, one spec without field ids, no logs, no sort orders."""
    old_table(shop)

    def change(metadata: dict[str, Any]) -> None:
        columns = (
            "schemas",
            "partition-specs",
            "default-spec-id",
            "last-partition-id",
            "current-schema-id",
            "sort-orders",
        )
        for key in (*columns, "default-sort-order-id", "refs", "snapshot-log", "metadata-log", "statistics"):
            metadata.pop(key, None)
        for snapshot in metadata["snapshots"]:
            snapshot.pop("schema-id", None)
        for field in metadata["partition-spec"]:
            field.pop("field-id")

    return rewrite_metadata(shop, change)


@recipe("partitions", "not_spark", "unknown_transform", versions=(1, 2))
def unknown_transform(shop: Workshop, version: int) -> str:
    """Partitioned by a transform that no one here knows, and by one that all know."""
    shop.create("id INT, s STRING", "s, bucket(2, id)", version=version)
    for start in (0, 3):
        shop.insert(*(f"{i}, 's{i}'" for i in range(start, start + 3)))

    def change(metadata: dict[str, Any]) -> None:
        for fields in (metadata["partition-specs"][0]["fields"], metadata.get("partition-spec", [])):
            for field in fields:
                field["transform"] = field["transform"].replace("identity", "mystery[7]")

    return rewrite_metadata(shop, change)
