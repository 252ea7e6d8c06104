r"""Downgrade a table with metadata trees to format version 3, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/downgrade.py --catalog prod --table db.events --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "downgrade")

if __name__ == "__main__":
    sys.exit(main())
