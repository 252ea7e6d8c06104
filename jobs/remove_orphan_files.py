r"""Delete files in a table's folder that the table does not need, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/remove_orphan_files.py \
        --catalog prod --table db.events --older-than 2026-01-31 --inventory s3://inventories/lake/2026-02-03 --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "remove_orphan_files")

if __name__ == "__main__":
    sys.exit(main())
