r"""Compacts the manifests of a V4 table with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/compact_manifests.py \
        --table s3://warehouse/db/events --max-entries 20000000 --commit

Without --commit it says what it would do, and does nothing. The plan goes to standard error. The last line of standard
output is a JSON object: the table, the plan (leaves, entries, reasons), what was committed (null: nothing), seconds.
Exit codes: 0 done, or nothing to do; 1 an error (one line names it); 2 wrong arguments; 3 others' commits came first,
and nothing was committed: run it again. The executors need the package sparkmeta installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkmeta.cli.job import job_parser, run_job
from sparkmeta.cli.maintain import names

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job. Returns the exit code."""
    parser = job_parser("compact_manifests.py", "Compact the manifests of a V4 table.")
    parser.add_argument("--filter", dest="row_filter", help="only leaves that may hold files for these rows")
    parser.add_argument("--cluster-by", type=names, help="columns and partition fields that order entries, as a,b")
    parser.add_argument("--target-leaf-bytes", type=int, help="size of a leaf's file")
    parser.add_argument("--max-entries", type=int, help="entries of data leaves that are rewritten at most")
    parser.add_argument("--max-bytes", type=int, help="bytes of data leaves that are rewritten at most")
    parser.add_argument("--root-files", type=int, help="files of a kind that may stay in the root")
    return run_job(parser, lambda table, **asked: table.maintenance.compact_manifests(**asked), arguments)


if __name__ == "__main__":
    sys.exit(main())
