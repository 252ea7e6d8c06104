r"""Rewrite data files with spark-submit: in a suitable size, without deleted rows, and optionally sorted.

    spark-submit --properties-file conf/spark-defaults.conf jobs/rewrite_data_files.py \
        --catalog prod --table db.events --filter "day >= '2026-01-01'" --strategy sort --sort-order "id DESC" --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "rewrite_data_files")

if __name__ == "__main__":
    sys.exit(main())
