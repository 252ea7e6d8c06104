r"""Replace equality deletes by deletion vectors, or by position delete files in version 2, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/convert_equality_deletes.py \
        --catalog prod --table db.events --max-files 10000 --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "convert_equality_deletes")

if __name__ == "__main__":
    sys.exit(main())
