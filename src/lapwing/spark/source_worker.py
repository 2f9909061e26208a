"""Spark's Python process of a streaming source, without a trace when Spark has gone before it could connect.

A query that is stopped as soon as it has begun leaves such a process behind, and nothing is wrong. `LAPWING_TRACE=1`
prints the trace as before.
"""

import os
import runpy
import sys
from typing import Final

from pyspark.errors import PySparkRuntimeError

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def main(module: str = RUNNER) -> None:
    """Run PySpark's own module."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except PySparkRuntimeError as error:
        if error.getCondition() != "CANNOT_OPEN_SOCKET" or os.environ.get("LAPWING_TRACE"):
            raise
        sys.exit(1)


if __name__ == "__main__":
    main()
