r"""Remove delete files and deletion vectors from a table that apply to no data file, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/remove_dangling_deletes.py \
        --catalog prod --table db.events --commit

Prints the plan to standard error, and commits it with --commit. The last line of standard output is a JSON object: the
table, the plan (files by kind, deletes, bytes), the commit (null if there was none) and the time in seconds.

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
    parser = job_parser("remove_dangling_deletes.py", "Remove deletes that apply to no data file of the table.")
    add_branch_argument(parser)
    return run_job(parser, lambda table, **options: table.maintenance.remove_dangling_deletes(**options), arguments)


if __name__ == "__main__":
    sys.exit(main())
