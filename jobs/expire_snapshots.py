r"""Remove old snapshots of a table, and the files that only they need, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/expire_snapshots.py \
        --catalog prod --table db.events --older-than 2026-01-31 --retain-last 10 --commit

Prints the plan to standard error, and commits it with --commit. The last line of standard output is a JSON object: the
table, the plan (snapshots, files and bytes by content), what was deleted (null if there was no commit) and the time in
seconds.

Exit codes: 0 success, or nothing to do; 1 an error, described in one line; 2 invalid arguments; 3 nothing was committed
because other commits came first: run the job again. The executors need sparkmeta installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkmeta.cli.job import argument, job_parser, run_job
from sparkmeta.cli.maintain import SNAPSHOT_AGE, SNAPSHOTS_TO_KEEP
from sparkmeta.cli.source import moment_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    parser = job_parser("expire_snapshots.py", "Remove old snapshots of a table, and the files that only they need.")
    parser.add_argument(
        "--older-than", type=argument(moment_of), metavar="TIME",
        help=f"snapshots from before this time (ISO 8601) expire ({SNAPSHOT_AGE})",
    )  # fmt: skip
    parser.add_argument(
        "--retain-last", type=int, metavar="N",
        help=f"snapshots of each branch that stay whatever their age ({SNAPSHOTS_TO_KEEP})",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot-id", dest="snapshot_ids", type=int, action="append", help="a snapshot that expires; repeatable"
    )
    parser.add_argument(
        "--clean-expired-metadata", action="store_true", help="also remove unused schemas and partition specs"
    )
    parser.add_argument("--cleanup", choices=("all", "metadata", "none"), help="which files to delete; all by default")
    return run_job(parser, lambda table, **options: table.maintenance.expire_snapshots(**options), arguments)


if __name__ == "__main__":
    sys.exit(main())
