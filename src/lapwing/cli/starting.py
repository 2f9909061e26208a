"""The first step of a daemon, before it imports anything else."""

import os
import signal


def leave_at_signals() -> None:
    """End the program at SIGINT or SIGTERM, with exit code 0, until its event loop handles them.

    An exception, as Python raises one at SIGINT, is dropped where it meets a callback of the import system or of an
    object that is freed, and then the program does not end.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(number: int, frame: object) -> None:
    os._exit(0)
