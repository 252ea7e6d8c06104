"""Tables with position deletes and deletion vectors, and those that went through several format versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.peers.corpus import recipe
from tests.peers.workshop import MERGE_ON_READ

if TYPE_CHECKING:
    from tests.peers.workshop import Workshop

MERGE = """
    MERGE INTO {{t}} t USING (SELECT * FROM VALUES {rows} AS v(id, p, x)) s ON t.id = s.id
    WHEN MATCHED AND s.x < 0 THEN DELETE WHEN MATCHED THEN UPDATE SET x = s.x WHEN NOT MATCHED THEN INSERT *
"""


def rows(start: int, stop: int) -> list[str]:
    return [f"{i}, '{'ab'[i % 2]}', {i}.5D" if i % 7 else f"{i}, null, double('NaN')" for i in range(start, stop)]


def busy(shop: Workshop) -> None:
    """Appends, deletes, updates and merges over three partitions."""
    shop.insert(*rows(0, 12))
    shop.insert(*rows(12, 24))
    shop.sql("DELETE FROM {t} WHERE id IN (1, 2, 13)")
    shop.sql("DELETE FROM {t} WHERE id = 3")
    shop.sql("UPDATE {t} SET x = x + 100 WHERE id BETWEEN 4 AND 6")
    shop.sql(MERGE.format(rows="(8, 'a', -1.0D), (9, 'b', 99.0D), (50, 'c', 50.0D)"))
    shop.insert(*rows(60, 66))
    shop.sql("DELETE FROM {t} WHERE p IS NULL AND id > 0")
    shop.sql("DELETE FROM {t} WHERE p = 'c'")


def merge_on_read(shop: Workshop, version: int, partitioned: str, **properties: str) -> None:
    extra = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    shop.create("id INT, p STRING, x DOUBLE", partitioned, version=version, properties=MERGE_ON_READ | extra)
    busy(shop)


@recipe("deletes", "positions", versions=(2, 3, 4))
def deletes_by_file(shop: Workshop, version: int) -> None:
    """Deletes, updates and merges, partitioned: position deletes per file (version 2), deletion vectors (3, 4)."""
    merge_on_read(shop, version, "p", write__delete__granularity="file")


@recipe("deletes", "positions")
def deletes_by_partition(shop: Workshop, version: int) -> None:
    """Deletes, updates and merges, partitioned: position delete files that cover a partition's files."""
    merge_on_read(shop, version, "p", write__delete__granularity="partition")


@recipe("deletes", "positions", versions=(2, 3))
def deletes_unpartitioned(shop: Workshop, version: int) -> None:
    """Deletes, updates and merges, not partitioned, position deletes of the whole table."""
    merge_on_read(shop, version, "", write__delete__granularity="partition")


@recipe("deletes", "positions", "formats")
def deletes_by_format(shop: Workshop, version: int) -> None:
    """Position deletes in ORC and Avro files."""
    merge_on_read(shop, version, "p", write__delete__format__default="orc", write__delete__granularity="partition")
    shop.set(write__delete__format__default="avro")
    shop.sql("DELETE FROM {t} WHERE id IN (15, 16, 62)")


@recipe("deletes", "rewrites", versions=(1, 2))
def copy_on_write(shop: Workshop, version: int) -> None:
    """The same commands by copy-on-write: whole files replaced, no delete files."""
    shop.create("id INT, p STRING, x DOUBLE", "p", version=version)
    busy(shop)


@recipe("deletes", "positions", versions=(3,))
def vectors_replaced(shop: Workshop, version: int) -> None:
    """Deletion vectors that are replaced again and again, in one Puffin file each commit, until a file is empty."""
    shop.create("id INT, p STRING, x DOUBLE", "bucket(2, id)", version=version, properties=MERGE_ON_READ)
    shop.insert(*rows(0, 10))
    shop.insert(*rows(10, 20))
    for i in (0, 11, 2, 13, 4):
        shop.sql(f"DELETE FROM {{t}} WHERE id IN ({i}, {i + 3}, {i + 4})")
    shop.insert(*rows(20, 24))
    shop.sql("DELETE FROM {t} WHERE id > 15 AND x > 0 AND id <> 21")


def upgraded(shop: Workshop, until: int) -> None:
    shop.create("id INT, p STRING, x DOUBLE", "p", version=1, properties=MERGE_ON_READ)
    shop.insert(*rows(0, 8))
    shop.insert(*rows(8, 14))
    shop.set(format_version="2", write__delete__granularity="partition")
    shop.sql("DELETE FROM {t} WHERE id IN (1, 2, 9)")
    shop.insert(*rows(14, 20))
    shop.set(write__delete__granularity="file")
    shop.sql("DELETE FROM {t} WHERE id IN (3, 4, 15, 16)")
    shop.row_delta(
        shop.equality_delete("eq-x.parquet", {"x": [5.5, 17.5]}, ["b"]),
        shop.equality_delete("eq-id.parquet", {"id": [6, None]}, ["a"]),
    )
    for version in range(3, until + 1):
        shop.set(format_version=str(version))
        shop.sql(f"DELETE FROM {{t}} WHERE id IN ({version}5, {version + 2}, 10, 12, {18 + version})")
        shop.insert(*rows(version * 10, version * 10 + 6))
        shop.sql(f"DELETE FROM {{t}} WHERE id IN ({version}1, {version}2, 11)")
        shop.row_delta(shop.equality_delete(f"eq-{version}.parquet", {"id": [8, version * 10 + 3]}, ["b"]))


@recipe("deletes", "positions", "equality", "upgraded", versions=(2, 3, 4))
def upgraded_with_deletes(shop: Workshop, version: int) -> None:
    """Began as version 1 and was upgraded step by step, with deletes of every kind from each time."""
    upgraded(shop, version)


@recipe("upgraded", "partitions", versions=(2, 3, 4))
def upgraded_appends(shop: Workshop, version: int) -> None:
    """Appends in every version from 1 on, so that manifests and lists of each are read together."""
    shop.create("id INT, p STRING, x DOUBLE", "p", version=1)
    shop.insert(*rows(0, 6))
    for each in range(2, version + 1):
        shop.set(format_version=str(each))
        shop.insert(*rows(each * 10, each * 10 + 4))
    shop.insert(*rows(90, 93))
    shop.sql("DELETE FROM {t} WHERE p = 'a'")


@recipe("deletes", "upgraded", "rewrites", versions=(3, 4))
def upgraded_and_rewritten(shop: Workshop, version: int) -> None:
    """Upgraded from version 2, with manifests rewritten before and after: row ids come from both."""
    shop.create("id INT, p STRING, x DOUBLE", "p", version=2, properties=MERGE_ON_READ)
    shop.insert(*rows(0, 6))
    shop.insert(*rows(6, 9))
    shop.sql("DELETE FROM {t} WHERE id IN (1, 4)")
    shop.set(format_version=str(version))
    shop.call("rewrite_manifests", "use_caching => false")
    shop.insert(*rows(10, 13))
    shop.sql("DELETE FROM {t} WHERE id IN (2, 11)")
    shop.call("rewrite_manifests", "use_caching => false")
    shop.insert(*rows(13, 15))


@recipe("deletes", "positions", "made_up")
def positions_made_up(shop: Workshop, version: int) -> None:
    """Position deletes of every scope: named file, equal, unequal, missing and truncated bounds, of other specs."""
    shop.create("id INT, p STRING, x DOUBLE", "p", version=version)
    for name in ("a-1", "a-2", "a-3"):
        shop.append(shop.content_file({"file-path": shop.file_location(name), "partition": ["a"]}))
    path = shop.file_location
    shop.row_delta(
        made_up(shop, "named", ["a"], **{"referenced-data-file": path("a-1")}),
        made_up(shop, "equal", ["a"], **bounds(path("a-2"), path("a-2"))),
        made_up(shop, "range", ["a"], **bounds(path("a-1"), path("a-2"))),
        made_up(shop, "lower-only", ["a"], **{"lower-bounds": bounds(path("a-2"), "")["lower-bounds"]}),
        made_up(shop, "unknown", ["a"]),
        made_up(shop, "elsewhere", ["a"], **bounds("z", "zz")),
        made_up(shop, "other-partition", ["b"]),
        made_up(shop, "null-partition", [None]),
    )
    shop.append(shop.content_file({"file-path": path("a-4"), "partition": ["a"]}))
    shop.append(shop.content_file({"file-path": path("null-1"), "partition": [None]}))
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD p")
    other_spec = {"spec-id": 1, "partition": []}
    shop.append(shop.content_file({"file-path": path("bare-1"), **other_spec}))
    shop.row_delta(
        made_up(shop, "bare", [], **{"spec-id": 1}),
        made_up(shop, "bare-named", [], **{"spec-id": 1, "referenced-data-file": path("bare-1")}),
        rows=[shop.content_file({"file-path": path("same-commit"), **other_spec})],
    )
    shop.append(shop.content_file({"file-path": path("bare-2"), **other_spec}))


def made_up(shop: Workshop, name: str, partition: list[object], **more: object) -> object:
    described = {"file-path": shop.file_location(f"{name}-deletes"), "content": "position-deletes", "record-count": 2}
    return shop.content_file(described | {"partition": partition} | more)


FILE_PATH_ID = 2147483546


def bounds(lower: str, upper: str) -> dict[str, object]:
    return {
        "lower-bounds": {"keys": [FILE_PATH_ID], "values": [lower.encode().hex()]},
        "upper-bounds": {"keys": [FILE_PATH_ID], "values": [upper.encode().hex()]},
    }
