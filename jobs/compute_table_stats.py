r"""Count the distinct values of columns with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/compute_table_stats.py \
        --catalog prod --table db.events --columns id,country --commit

Prints the plan to standard error, and commits it with --commit. The last line of standard output is a JSON object: the
table, the plan (columns and data files to read), the statistics file with the number of distinct values of each column
(null if there was no commit) and the time in seconds.

Exit codes: 0 success, or nothing to do; 1 an error, described in one line; 2 invalid arguments; 3 nothing was committed
because other commits came first: run the job again. The executors need sparkmeta installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkmeta.cli.job import job_parser, run_job
from sparkmeta.cli.source import names

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    parser = job_parser("compute_table_stats.py", "Count the distinct values of columns in a snapshot.")
    parser.add_argument("--snapshot-id", type=int, help="the snapshot, instead of the current one")
    parser.add_argument(
        "--columns", type=names, metavar="A,B", help="the columns to count, instead of all of primitive types"
    )
    return run_job(parser, lambda table, **options: table.maintenance.compute_table_stats(**options), arguments)


if __name__ == "__main__":
    sys.exit(main())
