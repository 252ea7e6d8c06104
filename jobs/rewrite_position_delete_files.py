r"""Merge position delete files, or replace them with deletion vectors from format version 3 on, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/rewrite_position_delete_files.py \
        --catalog prod --table db.events --filter "day >= '2026-01-01'" --commit

Prints the plan to standard error, and commits it with --commit. The last line of standard output is a JSON object: the
table, the plan (files, deletes, bytes), the commit (null if there was none) and the time in seconds.

Exit codes: 0 success, or nothing to do; 1 an error, described in one line; 2 invalid arguments; 3 nothing was committed
because other commits came first: run the job again. The executors need sparkmeta installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkmeta.cli.job import add_branch_argument, job_parser, run_job

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    what = "Merge small position delete files, or replace them with deletion vectors from format version 3 on."
    parser = job_parser("rewrite_position_delete_files.py", what)
    add_branch_argument(parser)
    parser.add_argument("--filter", dest="row_filter", help="only deletes of partitions that may hold these rows")
    parser.add_argument("--target-file-size-bytes", type=int, help="target size of delete files")
    parser.add_argument("--min-file-size-bytes", type=int, help="smaller delete files are merged")
    parser.add_argument("--max-file-size-bytes", type=int, help="larger position delete files are divided")
    parser.add_argument("--min-input-files", type=int, help="the least number of small files to merge")
    parser.add_argument("--rewrite-all", action="store_true", help="rewrite all position deletes")
    return run_job(
        parser, lambda table, **options: table.maintenance.rewrite_position_delete_files(**options), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
