r"""Sort the Avro manifests of a table of format version 1 to 3 by partition with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/rewrite_manifests.py \
        --catalog prod --table db.events --filter "day >= '2026-01-01'" --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "rewrite_manifests")

if __name__ == "__main__":
    sys.exit(main())
