"""Facts about the machine that a daemon runs on."""

import contextlib
import os
from typing import Final

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the id of this run of the machine: another one after each start. Empty where the system has none."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def clock_id() -> str:
    """Return the id of the clocks that run since the machine's start. Empty where the system has none."""
    found = boot_id()
    with contextlib.suppress(OSError):  # a container may have clocks of its own
        found = found and f"{found} {os.stat('/proc/self/ns/time').st_ino}"
    return found
