r"""Write a table's metadata for another location, and copy its files there, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/rewrite_table_path.py \
        --catalog prod --table db.events --source-prefix s3://old/events --target-prefix s3://new/events \
        --copy-files --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "rewrite_table_path")

if __name__ == "__main__":
    sys.exit(main())
