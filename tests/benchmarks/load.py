"""`python -m tests.benchmarks.load`: many clients ask a service for plans of a metadata tree, for an hour.

The clients are threads of another process. They mix filters, and no two plans are the same, so that each is made. Every
answer must have the files that the filter selects. After each sixth of the time, prints the plans and their seconds by
filter, and the memory of the service's process and of the JVM's live objects. It grows until Spark has its last 1,000
executions and 250 MB of listed files, and the service `cached_bytes` of plans.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import click
from rich.console import Console

import sparkmeta as sm
from tests.benchmarks.session import bench_session
from tests.benchmarks.trees import tree_location
from tests.benchmarks.workload import BUILD, QUERIES, Query, Workload
from tests.service.serving import Client, LocatedTables
from tests.service.test_load import memory

# Query -> how many of a hundred plans are of it. A partition has 50,000 files, and most of the time goes into its JSON.
SHARES = {"partition, min/max": 70, "min/max": 29, "one partition": 1}


PARTS = 6
TABLE = "/v1/namespaces/db/tables/t"


@dataclass(frozen=True)
class _Service:
    uri: str


@click.command()
@click.option("--scale", type=float, default=1.0, show_default=True, help="1 is 1.5 million data files.")
@click.option("--minutes", type=float, default=60, show_default=True, help="How long they ask.")
@click.option("--clients", type=int, default=50, show_default=True, help="How many ask at a time.")
@click.option("--heap", default="3g", show_default=True, help="Of the service's JVM.")
@click.option("--uri", hidden=True, help="Of the service: be its clients.")
def main(scale: float, minutes: float, clients: int, heap: str, uri: str | None) -> None:
    """Measure a service under load."""
    workload = Workload(2, "none", scale)
    if uri:
        ask_for(minutes * 60, clients, workload, _Service(uri))
        return
    spark, console = bench_session(heap), Console()
    tables = LocatedTables({"t": tree_location(spark, workload)})
    with sm.serve(tables, spark, port=0) as service:
        options = ("--scale", str(scale), "--clients", str(clients), "--uri", service.uri)
        states, results = [], []
        for _ in range(PARTS):
            command = [sys.executable, "-m", "tests.benchmarks.load", "--minutes", str(minutes / PARTS), *options]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout))
            states.append(memory(spark))
            console.print(f"{time.strftime('%X')} {results[-1]} {[size >> 20 for size in states[-1]]} MiB")
    path = BUILD / f"load-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"files": workload.files, "results": results, "memory": states}, indent=1))
    console.print(f"written: {path}")
    spark.stop()


def ask_for(seconds: float, clients: int, workload: Workload, service: _Service) -> None:
    """Ask for plans, and print how many of each query were answered, refused at first, and their seconds as JSON."""
    queries = {query.name: query for query in QUERIES}
    begun = time.monotonic()
    ends, taken, refused = begun + seconds, defaultdict[str, list[float]](list), [0]

    def ask(number: int) -> None:
        choice, client = random.Random(f"{begun} {number}"), Client(service)
        while time.monotonic() < ends:
            (name,) = choice.choices([*SHARES], [*SHARES.values()])
            begin = time.monotonic()
            count = _planned(client, queries[name], choice.getrandbits(40), refused)
            assert count == workload.expected(queries[name])[0], (name, count)
            taken[name].append(time.monotonic() - begin)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(clients)))
    click.echo(json.dumps({"refused": refused[0], **{name: _figures(each) for name, each in sorted(taken.items())}}))


def _planned(client: Client, query: Query, salt: int, refused: list[int]) -> int:
    """Plan a query, with a condition that all files satisfy and no other plan has, and return the number of files."""
    always = {"type": "lt", "term": "ss_ticket_number", "value": 1_000_000 + salt}
    row_filter = {"type": "and", "left": json.loads(query.expression), "right": always}
    while (answer := client.plan("t", filter=row_filter)).status_code == 503:
        refused[0] += 1
        time.sleep(float(answer.headers["Retry-After"]))
    assert answer.status_code == 200, answer.text
    document = answer.json()
    plan_id = document["plan-id"]
    while document["status"] == "submitted":
        time.sleep(0.5)
        document = client.request("GET", f"{TABLE}/plan/{plan_id}").json()
    assert document["status"] == "completed", document
    return len(document.get("file-scan-tasks", [])) + len(client.fetched("t", document.get("plan-tasks", [])))


def _figures(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100) if len(seconds) > 1 else [0.0] * 99
    return {"plans": len(seconds), "p50": round(cuts[49], 3), "p99": round(cuts[98], 3)}


if __name__ == "__main__":
    main()
