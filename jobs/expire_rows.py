r"""Delete a table's rows that are older than a time, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/expire_rows.py \
        --catalog prod --table db.events --column sold_at --older-than 2026-01-01T00:00:00Z --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "expire_rows")

if __name__ == "__main__":
    sys.exit(main())
