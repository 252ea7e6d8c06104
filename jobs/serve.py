r"""Serve a catalog by Iceberg's REST protocol, read-only, with scans planned by a cluster, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf --conf spark.scheduler.mode=FAIR jobs/serve.py \
        --catalog prod --host 0.0.0.0 --token-file /secrets/token --spool s3://bucket/spool

Replicas share the spool, and a secret in the variable SPARKMETA_SERVE_SECRET. The driver and the executors need
sparkmeta[serve] and sparkmeta. The log on standard error has a line with a JSON object for each request.

Exit codes: 0 stopped by SIGTERM or SIGINT; 1 an error, described in one line; 2 invalid arguments.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

import sparkmeta as sm
from sparkmeta.cli.job import argument
from sparkmeta.cli.output import report_error
from sparkmeta.cli.serve import log_to_stderr, serve_options
from sparkmeta.cli.source import configured_catalog, key_value
from sparkmeta.service.access import check_options

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    parser = argparse.ArgumentParser(prog="serve.py", description="Serve a catalog by Iceberg's REST protocol.")
    parser.add_argument("--catalog", help="the name of a catalog in pyiceberg's configuration")
    parser.add_argument(
        "--property", dest="properties", metavar="KEY=VALUE", type=argument(key_value), action="append", default=[]
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=8181, help="the port to listen on")
    parser.add_argument("--token-file", help="a file with the bearer token that all clients share")
    parser.add_argument("--principals", help="a JSON file of users, their tokens and tables")
    parser.add_argument("--principal-header", help="the header in which a proxy with a token names its user")
    parser.add_argument("--spool", help="the folder, on storage that executors share, of the pages of large plans")
    parser.add_argument("--slots", type=int, help="how many plans run at a time")
    parser.add_argument("--page-tasks", type=int, help="how many scan tasks a page has")
    parser.add_argument("--wait-seconds", type=float, help="how long a client waits before it has to ask again")
    parser.add_argument("--keep-seconds", type=float, help="how long plans, pages and tokens last")
    parser.add_argument("--vend-credentials", action="store_true", help="hand out credentials that the catalog vends")
    parsed = vars(parser.parse_args(arguments))
    properties = dict(parsed.pop("properties"))
    try:
        name = parsed.pop("catalog")
        options = serve_options(properties, **parsed)
        check_options(options)
        spark = SparkSession.builder.appName("sparkmeta serve").getOrCreate()
        log_to_stderr()
        sm.serve(configured_catalog(name, properties), spark, options=options).run()
    except Exception as error:  # noqa: BLE001  report_error raises what it does not know
        report_error("serve", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
