r"""Compute the partition statistics of a snapshot with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/compute_partition_stats.py \
        --catalog prod --table db.events --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "compute_partition_stats")

if __name__ == "__main__":
    sys.exit(main())
