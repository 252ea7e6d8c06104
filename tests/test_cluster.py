"""A standalone cluster: tasks run in other processes than the driver, some twice, and some processes are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

import sparkmeta as sm
from sparkmeta.java import spark_java_home
from tests import cluster_driver
from tests.cluster import ENVIRONMENT, HOSTS, Cluster, packed_environment, standalone_cluster
from tests.conftest import INTERPRET
from tests.peers.slices import SOAK
from tests.s3 import ACCESS_KEY, BUCKET, FILE_IOS, SECRET_KEY, S3Server
from tests.table_life import ON_CLUSTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
LONGEST = 7200
KILLS = int(os.environ.get("SPARKMETA_KILLS", "200"))
SEED = int(os.environ.get("SPARKMETA_SEED", "1"))
# What is killed, and how often in comparison.
KINDS = {"executor": 8, "python": 8, "starve": 3, "worker": 3, "driver": 2}
# Processes do not live long enough for more.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# So that many tasks run twice.
SPECULATION = {
    "spark.speculation": "true", "spark.speculation.interval": "100ms", "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25", "spark.speculation.minTaskRuntime": "200ms",
}  # fmt: skip


@pytest.mark.jvm
@pytest.mark.skipif(not SOAK, reason="takes half an hour: SPARKMETA_SOAK=1 runs it")
def test_lives_on_a_cluster(tmp_path: Path) -> None:
    """In a separate process, with Spark's settings instead of the tests' session's."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
    with standalone_cluster(tmp_path / "workers") as cluster:
        done = subprocess.run(
            [sys.executable, "-m", "tests.table_life", cluster.master, str(tmp_path)], cwd=ROOT, text=True,
            env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False, timeout=LONGEST,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    hosts, *lives = done.stdout.splitlines()
    assert hosts.split() == [*HOSTS]
    assert lives == [" ".join(map(str, life)) for life in ON_CLUSTERS]


class Killed:
    """A driver (`cluster_driver`) in a folder of its own; only the store is shared with the executors."""

    def __init__(self, cluster: Cluster, folder: Path, s3: S3Server) -> None:
        self.folder, self.log, self.s3 = folder / "driver", folder / "driver.log", s3
        archive = packed_environment(folder)
        with tarfile.open(archive) as packed:
            packed.extractall(self.folder / ENVIRONMENT, filter="fully_trusted")
        shutil.copy(cluster_driver.__file__, self.folder)
        spark = {
            "spark.master": cluster.master, "spark.archives": f"{archive}#{ENVIRONMENT}", "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "4", "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC", "spark.executor.extraJavaOptions": SHORT_LIVED,
        } | INTERPRET  # fmt: skip
        # Tasks that looked for the catalog's file would not find it.
        catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": f"s3://{BUCKET}/cluster"}
        self.catalog = catalog | {"py-io-impl": FILE_IOS["fsspec"]} | s3.properties
        settings = {"spark": spark | SPECULATION, "catalog": self.catalog}
        (self.folder / "driver.json").write_text(json.dumps(settings))

    def start(self, seed: object) -> None:
        python = f"./{ENVIRONMENT}/bin/python"
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment |= {"PYSPARK_PYTHON": python, "JAVA_HOME": str(spark_java_home()), "SPARK_LOCAL_IP": HOSTS[0]}
        environment |= {"SPARK_SUBMIT_OPTS": SHORT_LIVED}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [python, cluster_driver.__file__.rpartition("/")[2], str(seed)], cwd=self.folder, env=environment,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def go_on(self, count: int) -> None:
        """Wait until the driver has noted some more steps."""
        end, count = time.monotonic() + LONGEST, count + len(self.steps())
        while len(self.steps()) < count:
            assert self.process.poll() is None, self.log.read_text()[-10_000:]
            assert time.monotonic() < end, "the driver hangs"
            time.sleep(0.1)

    def steps(self) -> list[list[str]]:
        """What the driver has noted."""
        path = self.folder / "steps"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self) -> None:
        assert self.process.wait(LONGEST) == 0, self.log.read_text()[-10_000:]

    def files(self) -> set[str]:
        """The files of the store."""
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
        pages = boto3.client("s3", endpoint_url=self.s3.url, **keys).get_paginator("list_objects_v2")
        listed = pages.paginate(Bucket=BUCKET, Prefix="cluster/")
        return {f"s3://{BUCKET}/{each['Key']}" for page in listed for each in page.get("Contents", ())}

    def tables(self) -> Iterator[tuple[str, sm.Table]]:
        """The tables, opened without Spark."""
        catalog = sm.load_catalog("cluster", **self.catalog | {"uri": f"sqlite:///{self.folder}/catalog.db"})
        for name in (*cluster_driver.TABLES, cluster_driver.STREAMED):
            yield name, catalog.load_table(name)

    def reached(self) -> set[str]:
        """The files that the metadata of the tables name."""
        paths: set[str] = set()
        for _, table in self.tables():
            inspect = table.inspect.arrow
            paths |= {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
            paths |= {path for each in table.snapshots() for path in (each.manifest_list, each.root_manifest) if path}
            paths |= {*inspect.all_files()["file_path"].to_pylist(), *inspect.all_manifests()["path"].to_pylist()}
        return paths


@pytest.mark.jvm
@pytest.mark.skipif(not SOAK, reason="takes an hour: SPARKMETA_SOAK=1 runs it, with 200 kills or SPARKMETA_KILLS")
def test_kills_on_a_cluster(tmp_path: Path, s3: S3Server) -> None:
    """Executors, their Python, workers and the driver are killed: no row is lost, and left-overs are orphans."""
    chance, counts = random.Random(SEED), Counter[str]()
    with standalone_cluster(tmp_path / "workers") as cluster:
        killed = Killed(cluster, tmp_path, s3)
        killed.start(SEED)
        try:
            while sum(counts.values()) < KILLS:
                killed.go_on(chance.choice([0, 0, 0, 1, 2, 4]))
                time.sleep(chance.uniform(0, 2))
                (kind,) = chance.choices([*KINDS], [*KINDS.values()])
                if kind == "driver":
                    killed.kill()
                    killed.start(chance.randrange(1_000_000))
                elif not cluster.kill(kind, chance):
                    continue
                counts[kind] += 1
                print(f"{counts.total()} {kind}", flush=True)  # noqa: T201  the soak is watched
            (killed.folder / "stop").touch()
            killed.wait()
            files, reached = killed.files(), killed.reached()
            killed.start("end")
            killed.wait()
        finally:
            killed.kill()
    assert reached <= files
    assert set(json.loads((killed.folder / "orphans.json").read_text())) == files - reached
    assert killed.files() == reached
    for name, table in killed.tables():
        assert not table.arrow.check().num_rows
        if name != cluster_driver.STREAMED:
            rows = table.scan().to_arrow()
            model = json.loads((killed.folder / f"{name}.json").read_text())["before"]
            assert sorted(zip(*rows.select(["id", "n"]).to_pydict().values(), strict=True)) == sorted(map(tuple, model))
    places = {path for word, *paths in killed.steps() if word == "place" for path in paths}
    assert all(Path(path).is_relative_to(cluster.folder) for path in places), places
    steps = Counter(tuple(step[:2]) for step in killed.steps() if step[0] not in ("place", "begun"))
    print(f"{counts}, {len(files - reached)} orphans, {steps}")  # noqa: T201
    for kind in (*cluster_driver.CHANGES, *cluster_driver.JOBS, "stream"):
        assert KILLS < 100 or steps["done", kind], kind
