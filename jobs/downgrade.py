r"""Downgrade a table with metadata trees to format version 3, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/downgrade.py --catalog prod --table db.events --commit

Prints the plan to standard error, and commits it with --commit. The last line of standard output is a JSON object: the
table, the plan (snapshots, branches and tags, leaves to write), the new metadata file (null if there was no commit) and
the time in seconds.

Exit codes: 0 success; 1 an error, described in one line; 2 invalid arguments; 3 nothing was committed because other
commits came first: run the job again. The executors need sparkmeta installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkmeta.cli.job import job_parser, run_job

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    parser = job_parser("downgrade.py", "Downgrade a table with metadata trees to format version 3.")
    parser.add_argument("--format-version", type=int, default=3, help="the format version to downgrade to (default: 3)")
    return run_job(parser, lambda table, **options: table.maintenance.downgrade(**options), arguments)


if __name__ == "__main__":
    sys.exit(main())
