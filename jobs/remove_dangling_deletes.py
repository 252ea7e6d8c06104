r"""Remove a table's delete files and deletion vectors that apply to no data file, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/remove_dangling_deletes.py \
        --catalog prod --table db.events --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "remove_dangling_deletes")

if __name__ == "__main__":
    sys.exit(main())
