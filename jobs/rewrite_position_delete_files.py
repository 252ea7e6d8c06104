r"""Merge position delete files, or replace them with deletion vectors from format version 3 on, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/rewrite_position_delete_files.py \
        --catalog prod --table db.events --filter "day >= '2026-01-01'" --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "rewrite_position_delete_files")

if __name__ == "__main__":
    sys.exit(main())
