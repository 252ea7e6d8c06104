r"""Puts the Avro manifests of a table of format version 1 to 3 in order with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/rewrite_manifests.py \
        --table s3://warehouse/db/events --filter "day >= '2026-01-01'" --commit

Without --commit it says what it would do, and does nothing. The plan goes to standard error. The last line of standard
output is a JSON object: the table, the plan (manifests, files, bytes), what was committed (null: nothing), seconds.
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
    parser = job_parser("rewrite_manifests.py", "Put the Avro manifests of a table of version 1 to 3 in order.")
    parser.add_argument("--filter", dest="row_filter", help="only manifests that may hold files for these rows")
    parser.add_argument("--spec-id", type=int, help="only manifests of this partition spec")
    parser.add_argument("--sort-by", type=names, help="partition fields that order files, as a,b")
    parser.add_argument("--target-manifest-bytes", type=int, help="size of a manifest's file")
    return run_job(parser, lambda table, **asked: table.maintenance.rewrite_manifests(**asked), arguments)


if __name__ == "__main__":
    sys.exit(main())
