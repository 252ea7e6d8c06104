r"""Find damage of a table, and mend the kinds of damage that are named, with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/repair.py \
        --catalog prod --table db.events --kinds lost-data-files --kinds wrong-sizes --commit

`sparkmeta/cli/job.py` describes the output and the exit codes.
"""

import sys
from functools import partial

from sparkmeta.cli.job import run_operation

main = partial(run_operation, "repair")

if __name__ == "__main__":
    sys.exit(main())
