"""Spark's daemon of Python workers, without a trace for every reader that needs no more rows.

`limit`, `take` and `show` close the socket of a worker as soon as they have their rows. PySpark's daemon prints a
`BrokenPipeError` with its trace for each; nothing is wrong. `LAPWING_TRACE=1` prints them as before.
"""

import os
from collections.abc import Callable
from typing import Any

from pyspark import daemon

Worker = Callable[[Any, bool], int]


def quietly(work: Worker) -> Worker:
    """Return the function that serves a worker's socket; where nobody reads any more, its process ends in silence."""

    def serve(sock: Any, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            if os.environ.get("LAPWING_TRACE"):
                raise
            os._exit(1)  # as the daemon does after it has printed the trace

    return serve


def main() -> None:
    """Serve workers until Spark closes stdin."""
    daemon.worker = quietly(daemon.worker)  # type: ignore[assignment]  # PySpark has no other place for it
    daemon.manager()


if __name__ == "__main__":
    main()
