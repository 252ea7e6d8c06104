r"""Write data files anew with spark-submit: in a good size, without deleted rows, and maybe sorted.

    spark-submit --properties-file conf/spark-defaults.conf jobs/rewrite_data_files.py \
        --catalog prod --table db.events --filter "day >= '2026-01-01'" --strategy sort --sort-order "id DESC" --commit

Prints the plan to standard error, and commits it with --commit. Options are named as those of Iceberg's procedure. The
last line of standard output is a JSON object: the table, the plan (files, groups, bytes), the commits (null if there
were none) and the time in seconds.

Exit codes: 0 success, or nothing to do; 1 an error, described in one line; 2 invalid arguments; 3 other commits came
first: run the job again. After 1 or 3, the JSON object is printed only if some of the commits were made before the
error, and says what they did. The executors need sparkmeta installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkmeta.cli.job import add_branch_argument, job_parser, run_job
from sparkmeta.cli.maintain import FLAGS, NUMBERS, TEXTS

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    what = "Write data files anew: in a good size, without deleted rows, and maybe sorted."
    parser = job_parser("rewrite_data_files.py", what)
    add_branch_argument(parser)
    parser.add_argument("--filter", dest="row_filter", help="only files that may hold these rows")
    for name, text in TEXTS.items():
        parser.add_argument(f"--{name}", help=text)
    for name, (kind, text) in NUMBERS.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    for name, text in FLAGS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--no-starting-sequence-number", dest="use_starting_sequence_number", action="store_false",
        help="give new files the sequence number of the commit",
    )  # fmt: skip
    return run_job(parser, lambda table, **options: table.maintenance.rewrite_data_files(**options), arguments)


if __name__ == "__main__":
    sys.exit(main())
