r"""Delete files in a table's folder that the table does not need, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/remove_orphan_files.py \
        --catalog prod --table db.events --older-than 2026-01-31 --inventory s3://inventories/lake/2026-02-03 --commit

Prints the plan to standard error, and deletes the files with --commit. The last line of standard output is a JSON
object: the table, the plan (files and bytes by content), what was deleted (null without --commit) and the time in
seconds.

Exit codes: 0 success, or nothing to do; 1 an error, described in one line; 2 invalid arguments. The executors need
sparkmeta installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkmeta.cli.job import argument, job_parser, run_job
from sparkmeta.cli.maintain import INVENTORY, orphan_plan
from sparkmeta.cli.source import key_value, moment_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    parser = job_parser("remove_orphan_files.py", "Delete files in a table's folder that the table does not need.")
    parser.add_argument("--older-than", type=argument(moment_of), help="only files from before this time (ISO 8601)")
    parser.add_argument("--location", help="the folder to search, instead of the table's")
    parser.add_argument("--inventory", help=f"{INVENTORY}, instead of a listing")
    parser.add_argument(
        "--prefix-mismatch-mode",
        choices=("error", "ignore", "delete"),
        help="what becomes of files that the table has under another scheme or authority; an error by default",
    )
    for name, example in (("scheme", "s3a,s3n=s3"), ("authority", "a,b=c")):
        dest = {"scheme": "equal_schemes", "authority": "equal_authorities"}[name]
        parser.add_argument(
            f"--equal-{name}", dest=dest, type=argument(key_value), action="append", help=f"{example}; repeatable"
        )
    parser.add_argument("--force", action="store_true", help="permit --older-than to be less than 24 hours ago")
    parser.add_argument(
        "--shared-location", action="store_true", help="delete files of another table that has the same location"
    )
    return run_job(parser, orphan_plan, arguments)


if __name__ == "__main__":
    sys.exit(main())
