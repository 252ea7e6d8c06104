r"""Sort the Avro manifests of a table of format version 1 to 3 by partition with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/rewrite_manifests.py \
        --catalog prod --table db.events --filter "day >= '2026-01-01'" --commit

Prints the plan to standard error, and commits it with --commit. The last line of standard output is a JSON object: the
table, the plan (manifests, files, bytes), the commit (null if there was none) and the time in seconds.

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
    parser = job_parser("rewrite_manifests.py", "Sort the Avro manifests of a table of version 1 to 3 by partition.")
    add_branch_argument(parser)
    parser.add_argument("--filter", dest="row_filter", help="only manifests that may hold files for these rows")
    parser.add_argument("--spec-id", type=int, help="only manifests of this partition spec")
    parser.add_argument("--sort-by", type=names, help="partition fields to sort files by: a,b")
    parser.add_argument("--target-manifest-bytes", type=int, help="target size of manifests")
    return run_job(parser, lambda table, **options: table.maintenance.rewrite_manifests(**options), arguments)


if __name__ == "__main__":
    sys.exit(main())
