"""The file `clock` of a data path: the time that the broker goes by, for the process that comes next.

Deadlines are saved by the broker's time. A process that continues it delivers no message early, even if the machine's
clock was set just before its predecessor was killed.
"""

import json
import os
from typing import Final, NamedTuple

from lapwing.log.disk import DISK, Disk

FILE: Final = "clock"


class SavedClock(NamedTuple):
    """The time of a broker."""

    boot: str  # the run of the machine
    since_boot: int  # ns from the start of the machine to the broker's time 0; negative
    skew: int  # ns from the broker's time to that of the machine's clock


class ClockFile:
    """The file, written when the clock was set and while the broker's time follows it."""

    def __init__(self, path: str, *, disk: Disk = DISK) -> None:
        self._file = os.path.join(path, FILE)
        self._disk = disk

    def load(self) -> SavedClock | None:
        """Return what was saved; None if that is nothing, or cannot be read."""
        try:
            found = json.loads(self._disk.read(self._file))
            return SavedClock(str(found["boot"]), int(found["since_boot"]), int(found["skew"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def save(self, saved: SavedClock) -> None:
        """Save the time for the next process. Raises `OSError`."""
        self._disk.replace(self._file, [json.dumps(saved._asdict()).encode()], sync=False)
