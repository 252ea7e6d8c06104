r"""Compact the manifests of a metadata tree (format version 4) with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/compact_manifests.py \
        --catalog prod --table db.events --max-entries 20000000 --commit

Prints the plan to standard error, and commits it with --commit. The last line of standard output is a JSON object: the
table, the plan (leaves, entries, reasons), the commit (null if there was none) and the time in seconds.

Exit codes: 0 success, or nothing to do; 1 an error, described in one line; 2 invalid arguments; 3 nothing was committed
because other commits came first: run the job again. The executors need sparkmeta installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkmeta.cli.job import add_branch_argument, job_parser, run_job
from sparkmeta.cli.source import names

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    parser = job_parser("compact_manifests.py", "Compact the manifests of a metadata tree (format version 4).")
    add_branch_argument(parser)
    parser.add_argument("--filter", dest="row_filter", help="only leaves that may hold files for these rows")
    parser.add_argument("--cluster-by", type=names, help="columns and partition fields to sort entries by: a,b")
    parser.add_argument("--target-leaf-bytes", type=int, help="target size of leaves")
    parser.add_argument("--max-entries", type=int, help="limit of data leaf entries to rewrite")
    parser.add_argument("--max-bytes", type=int, help="limit of data leaf bytes to rewrite")
    parser.add_argument("--max-overlap", type=int, help="other leaves that one may overlap (default: 3)")
    parser.add_argument("--max-root-files", type=int, help="root files of a kind that may stay (default: 100)")
    return run_job(parser, lambda table, **options: table.maintenance.compact_manifests(**options), arguments)


if __name__ == "__main__":
    sys.exit(main())
