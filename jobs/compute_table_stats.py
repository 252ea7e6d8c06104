r"""Count the distinct values of columns with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/compute_table_stats.py \
        --catalog prod --table db.events --columns id,country --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "compute_table_stats")

if __name__ == "__main__":
    sys.exit(main())
