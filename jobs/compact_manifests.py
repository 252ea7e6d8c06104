r"""Compact the manifests of a metadata tree (format version 4) with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/compact_manifests.py \
        --catalog prod --table db.events --max-entries 20000000 --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "compact_manifests")

if __name__ == "__main__":
    sys.exit(main())
