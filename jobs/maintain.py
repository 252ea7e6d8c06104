r"""Maintain the tables of a configuration with spark-submit: the jobs that their health makes necessary.

    spark-submit --properties-file conf/spark-defaults.conf jobs/maintain.py --config conf/maintenance.toml --commit

Prints its progress to standard error, and commits plans with --commit, unless the configuration says `dry_run`.
Standard output has a JSON object in a line for each table and job (spark-submit prints both streams to standard output;
no other line begins with a brace): the table, its catalog, the job, a status (committed, planned, nothing to do, not
applicable, deferred, leased, conflict, failed), the findings that make the job necessary, the plan, the committed
changes, the error and the time in seconds.

Exit codes: 0 success, or nothing to do; 1 a job or a table failed, the others were maintained; 2 invalid arguments or
configuration, and nothing was done; 3 nothing failed, but other commits or runs came first: run again. The executors
need sparkmeta installed.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from sparkmeta.cli.maintain import print_results
from sparkmeta.cli.schedule import read_config
from sparkmeta.errors import ValidationError
from sparkmeta.session import SessionSource

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    parser = argparse.ArgumentParser(prog="maintain.py", description="Maintain the tables of a configuration.")
    parser.add_argument("--config", required=True, help="a TOML or YAML file, such as conf/maintenance.toml")
    parser.add_argument("--commit", action="store_true", help="commit plans, instead of only printing them")
    parsed = parser.parse_args(arguments)
    try:
        config = read_config(parsed.config)
    except ValidationError as error:
        print(f"maintain: {error}", file=sys.stderr)
        return 2
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"maintain {parsed.config}").getOrCreate()
    return print_results(config, SessionSource(spark), commit=parsed.commit)


if __name__ == "__main__":
    sys.exit(main())
