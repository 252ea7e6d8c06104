r"""Remove old snapshots of a table, and the files that only they need, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/expire_snapshots.py \
        --catalog prod --table db.events --older-than 2026-01-31 --retain-last 10 --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "expire_snapshots")

if __name__ == "__main__":
    sys.exit(main())
